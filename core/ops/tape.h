/* tape.h: what was computed from watched tensors, and the walk back over it.
 *
 * A handle's watch is (tape, node).  There is no global tape: an operation records itself if one of its inputs
 * carries the watch of a live tape, and a watch is void once its tape has ended.  Each operation hands over its backward
 * function and keeps only what that needs; the walk gives it back node by node.  The tape knows no operation.  Nodes
 * 0 .. n-1 are the watched leaves.
 */
#ifndef CF_OPS_TAPE_H
#define CF_OPS_TAPE_H

#include "tensor/buffer.h"

typedef struct cf_node cf_node;

/* Enqueues the gradients of the node's inputs, given that of its output.  Where it fails half-way it is called again,
 * and asked only for what it has not given. */
typedef cfx_status (*cf_backward)(cfx_tape *tape, cf_node *node, const cfx_tensor *dy);

/* An input: which node made it (-1: not watched) and its form. */
typedef struct cf_input {
    cfx_device *device;
    int64_t shape[CFX_MAX_DIMS];
    int32_t node;
    uint8_t dtype, ndim;
    bool given; /* its gradient has come from the node that is walked */
} cf_input;

struct cf_node {
    cf_backward backward;
    int32_t nin, nsaved;
    cf_input *inputs; /* [nin]; of a leaf: its own form, as the one */
    cf_hold *saved;   /* [nsaved] */
    void *kept;       /* the operation's own struct */
    cfx_tensor grad;  /* of the output, as far as it has come */
    bool reached;
};

/* The k-th tensor that was saved. */
static inline cfx_tensor *cf_saved(const cf_node *node, int k) { return &node->saved[k].tensor; }

/* An operation that is to be recorded. */
typedef struct cf_recording {
    const char *op; /* its name, for messages */
    cf_backward backward;
    int nin, nsaved;
    const cfx_tensor *const *inputs; /* NULL ones are skipped: not watched, no form */
    const cfx_tensor *const
        *saved;       /* handles on them are kept; they cannot change in place until the tape has passed */
    const void *kept; /* copied into the node */
    size_t kept_bytes;
} cf_recording;

/* Records that `out` was made from the inputs, where one of them is watched and `out` is of floats.  Inputs of two live
 * tapes are refused.  A failure releases `out`. */
cfx_status cf_record(const cf_recording *recording, cfx_tensor *out);
/* An operation of one input that saves nothing. */
static inline cfx_status cf_record_one(const char *op, cf_backward backward, const cfx_tensor *x, const void *kept,
                                       size_t kept_bytes, cfx_tensor *out) {
    if (!x->_tape) return CFX_OK;
    return cf_record(
        &(cf_recording){.op = op, .backward = backward, .nin = 1, .inputs = &x, .kept = kept, .kept_bytes = kept_bytes},
        out);
}

/* A call that records several operations forgets those before the one that failed: how far the tape of its inputs was. */
typedef struct cf_mark {
    cfx_tape *tape;
    int32_t n;
} cf_mark;
cf_mark cf_mark_of(int nin, const cfx_tensor *const *inputs);
void cf_rewind(cf_mark mark);

/* In a backward function: does input k need a gradient? */
static inline bool cf_needs(const cf_node *node, int k) {
    return k < node->nin && node->inputs[k].node >= 0 && !node->inputs[k].given;
}
/* Prepares `out` to receive a gradient of input k of this form: where it is the first contribution to a leaf
 * that has such a place of its own (in a flat buffer), `out` becomes that place, and the kernel writes it there
 * at once; else `out` is empty.  The handle is borrowed: it holds no reference, so a gradient that fails half-way
 * leaves nothing behind. */
void cf_place(cfx_tape *tape, cf_node *node, int k, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* Takes `grad` (and releases it) as the contribution to input k, unless it has come before; sums over what was
 * broadcast and converts. */
cfx_status cf_give(cfx_tape *tape, cf_node *node, int k, cfx_tensor *grad);
/* The backward function of an operation whose only gradient is dy itself, summed and converted by cf_give. */
cfx_status cf_give_alike(cfx_tape *tape, cf_node *node, const cfx_tensor *dy);

#endif
