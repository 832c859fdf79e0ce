/* bootstrap.h: how the processes of a run find each other.
 *
 * conflux-run gives rank 0 a socket to each other rank, and tells the numbers in CONFLUX_SOCKETS.  Rank 0 is told of all
 * others' memory there, and tells all of them.  Where there is no such launcher, a process is alone; and where another
 * launcher has started several, joining fails: they must never train alone, and over each other's files.
 */
#ifndef CF_COMM_BOOTSTRAP_H
#define CF_COMM_BOOTSTRAP_H

#include "comm/world.h"

/* Which rank this process is, and of how many. */
cfx_status cf_bootstrap_find(cf_meeting *out);
/* Meets the other ranks: sets control, arenas and their sizes.  All ranks have come when it succeeds.  On failure
 * nothing is mapped. */
cfx_status cf_bootstrap_meet(cf_world *world);
/* The world that was met has been left: another can be. */
void cf_bootstrap_release(void);

#endif
