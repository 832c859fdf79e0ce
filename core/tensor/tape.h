/* tape.h: what was computed from watched tensors, and the walk back over it.
 *
 * A handle's watch is (tape, node).  There is no global tape: an operation records itself if one of its inputs
 * carries the watch of a live tape, and a watch is void once its tape has ended.  Each operation keeps only
 * what its gradient needs, and the walk gives it back node by node.  Nodes 0 .. n-1 are the watched leaves.
 */
#ifndef CF_TENSOR_TAPE_H
#define CF_TENSOR_TAPE_H

#include "tensor/tensor.h"

typedef struct cf_node cf_node;

/* Enqueues the gradients of the node's inputs, given that of its output.  Where it fails half-way it is called again,
 * and asked only for what it has not given. */
typedef cfx_status (*cf_backward)(cfx_tape *tape, cf_node *node, const cfx_tensor *dy);

/* An input: which node made it (-1: not watched) and its form. */
typedef struct cf_input {
    int32_t node, dtype, ndim;
    cfx_device *device;
    int64_t shape[CFX_MAX_DIMS];
    bool given; /* its gradient has come from the node that is walked */
} cf_input;

enum { CF_NODE_INPUTS = 3, CF_NODE_SAVED = 5 };

struct cf_node {
    cf_backward backward;
    cf_op op;
    int32_t nin, nsaved;
    cf_input inputs[CF_NODE_INPUTS];
    cf_input *more; /* all inputs, where there are more than CF_NODE_INPUTS */
    cfx_tensor saved[CF_NODE_SAVED];
    cfx_tensor *many; /* what is saved of a custom operation, which may be more */
    cfx_tensor grad;  /* of the output, as far as it has come */
    double p[4];
    int64_t i[6];
    int32_t reached;
};

static inline cfx_tensor *cf_node_saved(cf_node *node) { return node->many ? node->many : node->saved; }
static inline cf_input *cf_node_inputs(cf_node *node) { return node->more ? node->more : node->inputs; }

/* 1 if x is watched by a live tape. */
bool cf_watched(const cfx_tensor *x);

/* Records that `out` was made from the inputs (NULL ones are skipped: not watched, no form).  *node is NULL when
 * none is watched: then there is nothing to record.  Inputs of two live tapes are refused. */
cfx_status cf_record(cf_op op, cf_backward backward, int nin, const cfx_tensor *const *inputs, cfx_tensor *out,
                     cf_node **node);
/* A call that records several operations forgets those before the one that failed: how far the tape of its inputs was. */
typedef struct cf_mark {
    cfx_tape *tape;
    int32_t n;
} cf_mark;
cf_mark cf_mark_of(int nin, const cfx_tensor *const *inputs);
void cf_rewind(cf_mark mark);

/* Keeps a handle for the gradient; in-place writes into it are refused until the tape has passed. */
void cf_save(cf_node *node, const cfx_tensor *x);

/* In a backward function: does input k need a gradient? */
static inline bool cf_needs(cf_node *node, int k) {
    return k < node->nin && cf_node_inputs(node)[k].node >= 0 && !cf_node_inputs(node)[k].given;
}
/* Prepares `out` to receive a gradient of input k of this form: where it is the first contribution to a leaf
 * that has such a place of its own (in a flat buffer), `out` becomes that place, and the kernel writes it there
 * at once; else `out` is empty.  A place is lent: the handle holds no reference, so a gradient that fails half-way
 * leaves nothing behind. */
void cf_place(cfx_tape *tape, cf_node *node, int k, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* Takes `grad` (and releases it) as the contribution to input k, unless it has come before; sums over what was
 * broadcast and converts. */
cfx_status cf_give(cfx_tape *tape, cf_node *node, int k, cfx_tensor *grad);

/* The gradient function of each op, by ops.def's last column; NULL for none. */
extern const cf_backward cf_gradients[CF_OPS];

#endif
