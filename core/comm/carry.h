/* carry.h: parts that no other process reaches are carried to where all do.
 *
 * A buffer of a CPU's own pool moves into shareable memory, once.  Memory that cannot move (a host program's, a GPU's,
 * or whose address was told) is copied there, and the result is copied back.
 */
#ifndef CF_COMM_CARRY_H
#define CF_COMM_CARRY_H

#include "comm/parts.h"

/* The parts of a call, as they lie in shareable memory. */
typedef struct cf_carried {
    int32_t nparts, size;
    cf_part *parts;
    cfx_device **devices;  /* [size]: of the replicas; cpu:0 in place of a GPU */
    cfx_tensor *copies;    /* [nparts][size]; without a buffer: it is no copy */
    cfx_tensor *originals; /* [nparts][size], borrowed */
} cf_carried;

/* Whether other processes reach all of it; parts of so many bytes, in memory that the host sees, travel otherwise. */
bool cf_are_reachable(const cf_group *group, int32_t nparts, const cf_part *parts, int64_t small);
/* Ends with cf_carried_free, once it has succeeded. */
cfx_status cf_carry(const cf_group *group, int32_t nparts, const cf_part *parts, int64_t small, cf_carried *out);
cfx_status cf_carry_back(const cf_carried *c);
void cf_carried_free(cf_carried *c);

#endif
