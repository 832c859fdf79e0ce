/* fork.h: tells the live hubs when they find themselves in a child of fork. */
#ifndef CF_DEVICE_FORK_H
#define CF_DEVICE_FORK_H

#include "device/hub.h"

/* From here on a child's copy of the hub is marked CF_FORKED, until the hub is forgotten. */
cfx_status cf_fork_watch(cf_hub *hub);
void cf_fork_forget(cf_hub *hub);

#endif
