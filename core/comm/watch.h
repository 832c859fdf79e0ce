/* watch.h: a thread that knows whether the other ranks live.
 *
 * It hears of a rank's death by a descriptor of its process, or by the socket between it and rank 0: either suffices.
 * It breaks the world then, and also where a rank has left that others wait for, or does not come in time.
 */
#ifndef CF_COMM_WATCH_H
#define CF_COMM_WATCH_H

#include "comm/world.h"

typedef struct cf_watcher cf_watcher;

cfx_status cf_watcher_start(cf_world *world, cf_watcher **out);
void cf_watcher_stop(cf_watcher *watcher);

#endif
