/* levels.h: replicas of which some share memory and some do not: several on each of several GPUs.
 *
 * Those that share one are joined into their first, the firsts are joined across, and what came out is copied to the
 * others.  A mean is a sum until the firsts are joined; they are scaled on the way.  A weighted mean is weighed in each
 * memory, also of a replica that is alone there: one of weight 0 goes into the sum as zeros.
 */
#ifndef CF_COMM_LEVELS_H
#define CF_COMM_LEVELS_H

#include "comm/parts.h"

extern const cf_way cf_way_levels;

#endif
