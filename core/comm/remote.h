/* remote.h: replicas on devices that do not reach each other's memory, by the link between them (NCCL).
 *
 * Every replica of a part is one command on its device's communication queue.  It is launched when the stretch is there
 * in every replica, though its own would do: so a fault in one is known to all.  It is launched in a poisoned queue,
 * too, because the others could not finish without it.  Its own end is all that the next user of the replica waits for.
 */
#ifndef CF_COMM_REMOTE_H
#define CF_COMM_REMOTE_H

#include "comm/parts.h"

/* It leaves weights to levels.h. */
extern const cf_way cf_way_remote;

#endif
