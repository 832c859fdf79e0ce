/* local.h: replicas in one process join in each other's memory.
 *
 * Every part is cut into one slice a device; a small one is one slice.  A slice is one command on its device's
 * communication queue: it waits until the stretch is there in every replica, adds the replicas in their order, and writes
 * the result to all.  Workers that compute by themselves take pieces of each other's slices, and the next user of a replica
 * waits for the first slice, which ends when all pieces are done; of devices that only launch it waits for all slices.
 * Nothing is copied.
 */
#ifndef CF_COMM_LOCAL_H
#define CF_COMM_LOCAL_H

#include "comm/parts.h"

extern const cf_way cf_way_local;

#endif
