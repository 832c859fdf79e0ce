/* comm.h: collectives over replicas.
 *
 * A collective is cut into parts: stretches of memory that have one dtype and lie likewise in every replica.  A
 * group joins parts; which group serves is decided by the devices.  `self` is one replica, which has nothing to
 * join; `local` is one process: each device's worker joins its slice of every part, reading and writing the
 * replicas' memory in place.
 */
#ifndef CF_COMM_COMM_H
#define CF_COMM_COMM_H

#include "tensor/tensor.h"

/* One stretch: elements [0, n) at at[r] of replica r, which handle[r]'s buffer holds. */
typedef struct cf_part {
    int64_t n;
    int32_t dtype;
    int32_t bucket;             /* of the buffers' current buckets, or -1: the whole of what was written */
    cfx_tensor *const *handles; /* [replicas], stride apart */
    int32_t stride;
    int64_t *offset; /* [replicas]: bytes from the buffer's start */
} cf_part;

typedef struct cf_group {
    const char *name;
    /* Enqueues the joining of all parts on all devices, or fails with nothing enqueued.  root -1: every replica
     * receives the result; else only the root, or, of CF_COMBINE_COPY, all but the root. */
    cfx_status (*combine)(cf_combine op, int32_t root, int32_t replicas, int32_t nparts, const cf_part *parts);
} cf_group;

extern const cf_group cf_group_self, cf_group_local;

/* The group that serves these replicas. */
const cf_group *cf_group_for(int32_t replicas);

/* Whether replica r is written. */
static inline bool cf_combine_writes(cf_combine op, int32_t root, int32_t r) {
    return root < 0 || (op == CF_COMBINE_COPY) != (r == root);
}

static inline cf_buffer *cf_part_buffer(const cf_part *part, int32_t r) {
    return part->handles[(int64_t)r * part->stride]->_buffer;
}

#endif
