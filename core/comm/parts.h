/* parts.h: what a collective is cut into, and the group that joins it.
 *
 * A part is a stretch of memory that has one dtype and lies likewise in every replica.  A group joins parts: it is a list
 * of devices, in the order of the replicas, and the way that they reach each other (local.h, remote.h, levels.h; group.h
 * chooses).  The context keeps its groups, each made at its first collective.
 */
#ifndef CF_COMM_PARTS_H
#define CF_COMM_PARTS_H

#include "tensor/dispatch.h"

/* One stretch: elements [0, n) at at[r] of replica r, which handle[r]'s buffer holds. */
typedef struct cf_part {
    int64_t n;
    int32_t dtype;
    int32_t bucket;             /* of the buffers' current buckets, or -1: the whole of what was written */
    cfx_tensor *const *handles; /* [replicas], stride apart */
    int32_t stride;
    int64_t *offset; /* [replicas]: bytes from the buffer's start */
} cf_part;

/* The operation on all parts. */
typedef struct cf_collective {
    cf_combine op;
    int32_t
        root; /* -1: every replica receives the result; else the root alone, or, of CF_COMBINE_COPY, all but the root */
    double scale;          /* of each element before it is added: `remote` takes another than 1, with a sum of floats */
    const double *weights; /* [size] of CF_COMBINE_WEIGHTED */
} cf_collective;

typedef struct cf_group cf_group;

/* How the members of a group are joined.  A call enqueues all of it on all devices, or fails with nothing enqueued. */
typedef struct cf_way {
    const char *name;
    bool is_linked;  /* its groups have a link */
    bool by_layout;  /* other processes cut their parts, and find the same */
    bool writes_all; /* a reduction to one root alone changes others, too: it is given copies, and root -1 */
    cfx_status (*combine)(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts);
    /* Packed tensors, in[r] and out[r] on member r: all of in, one after another, into every out; or the n-th rows of out
     * from the reduction of all in.  NULL: by copies. */
    cfx_status (*gather)(cf_group *group, const cfx_tensor *const *in, cfx_tensor *const *out);
    cfx_status (*scatter)(cf_group *group, cf_combine op, const cfx_tensor *const *in, cfx_tensor *const *out);
    void (*end)(cf_group *group); /* frees what it keeps with the group; the workers have stopped.  NULL: nothing */
} cf_way;

struct cf_group {
    cf_dependent dependent; /* of the context */
    const cf_way *way;
    int32_t rank, size; /* this process's first member; how many there are, which are all this process's */
    const cf_link *link;
    void *state;       /* the link's */
    uint64_t sequence; /* of what the link was given last, from 1: the same with every member */
    void *own;         /* its way's own state */
    cfx_device *devices[];
};

/* The group of these devices and of that way; its link is open. */
cfx_status cf_group_open(const cf_way *way, int32_t n, cfx_device *const *devices, cf_group **out);

/* ---- before and after commands are enqueued ---------------------------------------------------------- */

/* Makes sure that the communication queues of the members' devices have room for parts from `first` on, each with a
 * command of `payload` for every member, before the first is enqueued; *last says how far.  All but lists of thousands of
 * tensors fit at once.  cf_parts_done ends the promise.  An interrupt can end the wait for the first room; from then on
 * interrupts wait until the caller of the group resumes them, for replicas of which only some were joined would
 * differ. */
cfx_status cf_parts_room(const cf_group *group, size_t payload, int32_t first, int32_t nparts, int32_t *last);
void cf_parts_done(const cf_group *group);

/* Makes room in the replicas' buffers to note that `queues` of them read or write all parts: before the first command
 * is enqueued, so that noting cannot fail. */
cfx_status cf_parts_notable(const cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts,
                            int32_t queues);

/* Adds the part in replica r to a command. */
cfx_status cf_part_add(cf_dispatch *d, const cf_part *part, int32_t r, bool reads, bool writes);
/* Replica r was read or written by n commands, whose events these are; an event of no queue is of no command. */
void cf_part_note(const cf_collective *how, const cf_part *part, int32_t r, int32_t n, const cf_event *events);

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

static inline char *cf_part_data(const cf_part *part, int32_t r) {
    return cf_part_buffer(part, r)->data + part->offset[r];
}

#endif
