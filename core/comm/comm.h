/* comm.h: collectives over replicas.
 *
 * A collective is cut into parts: stretches of memory that have one dtype and lie likewise in every replica.  A
 * group joins parts; which group serves is decided by the devices.  `self` is one replica, which has nothing to
 * join.  `local`: each device's worker joins its slice of every part, reading and writing the replicas' memory in
 * place.  `remote`, for devices that do not reach each other's memory: their backend's own collectives (NCCL), each
 * launched by its device's worker.  `levels`, where some do and some do not: local, remote between one of each, local.
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
     * receives the result; else only the root, or, of CF_COMBINE_COPY, all but the root.  weights: [replicas] of
     * CF_COMBINE_WEIGHTED, which `remote` leaves to `levels`. */
    cfx_status (*combine)(cf_combine op, const double *weights, int32_t root, int32_t replicas, int32_t nparts,
                          const cf_part *parts);
} cf_group;

extern const cf_group cf_group_self, cf_group_local, cf_group_remote, cf_group_levels;

/* The group that serves replicas on these devices; what it needs is made. */
cfx_status cf_group_for(const char *function, int32_t replicas, cfx_device *const *devices, const cf_group **out);

/* The sum of scale * x, where the sum is of floats; else as cf_group_remote. */
cfx_status cf_remote_combine(cf_combine op, double scale, int32_t root, int32_t replicas, int32_t nparts,
                             const cf_part *parts);
/* in[r] lies on devices that need `remote`, out[r] beside it, both packed: all of in, one after another, into every
 * out; or the n-th rows of out from the reduction of all in. */
cfx_status cf_remote_gather(int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out);
cfx_status cf_remote_scatter(cf_combine op, int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out);

/* Makes sure that the communication queues of the replicas' devices have room for parts from `first` on, each with a
 * command of `payload` on the first `commands(part)` of them, before the first is enqueued; *last says how far.  All
 * but lists of thousands of tensors fit at once.  cf_parts_done ends the promise.  An interrupt can end the wait for the
 * first room; from then on interrupts wait until the caller of the group resumes them, for replicas of which only some
 * were joined would differ. */
cfx_status cf_parts_room(int32_t replicas, size_t payload, int32_t (*commands)(const cf_part *part, int32_t replicas),
                         int32_t first, int32_t nparts, const cf_part *parts, int32_t *last);
void cf_parts_done(int32_t replicas, const cf_part *parts);

/* Makes room in the replicas' buffers to note that `queues` of them read or write all parts: before the first command
 * is enqueued, so that noting cannot fail. */
cfx_status cf_parts_notable(cf_combine op, int32_t root, int32_t replicas, int32_t nparts, const cf_part *parts,
                            int32_t queues);

/* Adds what a command waits for before it touches the part in replica r. */
cfx_status cf_part_waits(cf_waits *waits, const cf_part *part, int32_t r, bool reads, bool writes);

/* Whether what replica r holds goes into the result. */
static inline bool cf_combine_reads(cf_combine op, int32_t root, int32_t r) {
    return op != CF_COMBINE_COPY || r == root;
}

/* Whether replica r is written. */
static inline bool cf_combine_writes(cf_combine op, int32_t root, int32_t r) {
    return root < 0 || (op == CF_COMBINE_COPY) != (r == root);
}

static inline cf_buffer *cf_part_buffer(const cf_part *part, int32_t r) {
    return part->handles[(int64_t)r * part->stride]->_buffer;
}

static inline cfx_device *cf_part_device(const cf_part *part, int32_t r) { return cf_part_buffer(part, r)->device; }

/* Replica r's buffer has been written as a whole part by those who noted their events there. */
static inline void cf_part_written(const cf_part *part, int32_t r) {
    cf_buffer *buffer = cf_part_buffer(part, r);
    buffer->fresh = buffer->empty = 0;
    buffer->nbuckets = 0;
}

#endif
