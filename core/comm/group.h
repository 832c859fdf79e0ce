/* group.h: which group serves: decided by the devices. */
#ifndef CF_COMM_GROUP_H
#define CF_COMM_GROUP_H

#include "comm/parts.h"

/* The group that serves replicas on these devices; is_weighted: also to CF_COMBINE_WEIGHTED.  A replica alone has
 * nothing to be joined with: its group's way has no `combine`. */
cfx_status cf_group_for(const char *function, int32_t replicas, cfx_device *const *devices, bool is_weighted,
                        cf_group **out);

#endif
