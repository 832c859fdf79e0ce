/* views.c: the same buffer, seen otherwise.  A view of a watched tensor is recorded, with its inverse as the
 * gradient. */
#include <stdlib.h>
#include <string.h>

#include "tensor/tape.h"

/* ---- gradients of views ----------------------------------------------------------------------------- */

/* dx is dy in x's shape. */
static cfx_status reshape_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(cfx_reshape(dy, node->inputs[0].ndim, node->inputs[0].shape, &g));
    return cf_give(tape, node, 0, &g);
}

/* i: the forward permutation. */
static cfx_status permute_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    int32_t order[CFX_MAX_DIMS], inverse[CFX_MAX_DIMS];
    cfx_tensor g = {0};
    memcpy(order, node->i, sizeof order);
    for (int32_t d = 0; d < dy->_ndim; d++) inverse[order[d]] = d;
    CF_TRY(cfx_permute(dy, dy->_ndim, inverse, &g));
    return cf_give(tape, node, 0, &g);
}

/* Broadcasting is undone by cf_give. */
static cfx_status expand_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_alias(dy, &g);
    return cf_give(tape, node, 0, &g);
}

/* The diagonal of the last two dimensions, as one. */
static void leave_diagonal(cfx_tensor *x) {
    const int r = x->_ndim - 2, c = x->_ndim - 1;
    if (x->_shape[c] < x->_shape[r]) x->_shape[r] = x->_shape[c];
    x->_stride[r] += x->_stride[c];
    x->_ndim--;
}

/* Zeros of x's form, with dy where the view was.  i: the dimension, of which elements were taken from i[1] on, i[2]
 * apart, or which was dropped; -1: the diagonal was. */
static cfx_status place_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    const int32_t dim = (int32_t)node->i[0];
    const bool dropped = dy->_ndim < in->ndim;
    cfx_tensor g = {0}, view;
    CF_TRY(cfx_full(in->device, in->dtype, in->ndim, in->shape, 0, &g));
    cf_alias(&g, &view);
    if (dim < 0) leave_diagonal(&view);
    else {
        cf_narrow(&view, dim, node->i[1], dropped ? 1 : dy->_shape[dim], node->i[2]);
        if (dropped) cf_drop_dim(&view, dim);
    }
    cfx_status status = cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = in->dtype, .nout = 1, .nin = 1, .t = {&view, (cfx_tensor *)dy}});
    cfx_release(&view);
    if (status == CFX_OK) return cf_give(tape, node, 0, &g);
    cfx_release(&g);
    return status;
}

static cfx_status record_view(const cfx_tensor *x, cf_backward backward, cfx_tensor *out, cf_node **node) {
    return cf_record(CF_OP_copy, backward, 1, &x, out, node);
}

static cfx_status record_place(const cfx_tensor *x, int64_t dim, int64_t start, int64_t step, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(record_view(x, place_backward, out, &node));
    if (!node) return CFX_OK;
    node->i[0] = dim;
    node->i[1] = start;
    node->i[2] = step;
    return CFX_OK;
}

/* ---- views ------------------------------------------------------------------------------------------ */

static cfx_status resolve(const cfx_tensor *x, int32_t ndim, const int64_t *shape, int64_t *full) {
    char have[256], want[192];
    const int64_t n = cf_numel(x);
    size_t bytes;
    if (ndim < 0 || ndim > CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "reshape: expected at most %d dimensions, got %d", CFX_MAX_DIMS, ndim);
    if (cf_shape_complete(n, ndim, shape, full) && cf_shape_bytes(x->_dtype, ndim, full, &bytes)) return CFX_OK;
    return cf_fail(CFX_EARG, "reshape: argument 'shape': %s does not fit the %lld elements of %s",
                   cf_shape_text(ndim, shape, want), (long long)n, cf_describe(x, have));
}

CFX_API cfx_status cfx_reshape(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    int64_t full[CFX_MAX_DIMS], stride[CFX_MAX_DIMS];
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("reshape", "x", x));
    CF_TRY(resolve(x, ndim, shape, full));
    if (!cf_dims_reshape(x->_ndim, x->_shape, x->_stride, ndim, full, stride)) {
        cfx_tensor packed = {0};
        const cf_mark mark = cf_mark_of(1, &x);
        CF_TRY(cfx_clone(x, &packed)); /* recorded by itself where x is watched */
        const cfx_status status = cfx_reshape(&packed, ndim, full, out);
        cfx_release(&packed);
        if (status != CFX_OK) cf_rewind(mark);
        return status;
    }
    cf_alias(x, out);
    out->_ndim = (uint8_t)ndim;
    memcpy(out->_shape, full, (size_t)ndim * sizeof *full);
    memcpy(out->_stride, stride, (size_t)ndim * sizeof *stride);
    return record_view(x, reshape_backward, out, &node);
}

CFX_API cfx_status cfx_permute(const cfx_tensor *x, int32_t ndim, const int32_t *dims, cfx_tensor *out) {
    cf_node *node = NULL;
    uint8_t seen[CFX_MAX_DIMS] = {0};
    int32_t order[CFX_MAX_DIMS] = {0};
    CF_TRY(cf_check_tensor("permute", "x", x));
    if (ndim != x->_ndim) return cf_fail(CFX_EARG, "permute: expected %d dimensions, got %d", x->_ndim, ndim);
    for (int d = 0; d < ndim; d++) {
        int32_t dim = dims[d];
        CF_TRY(cf_check_dim("permute", ndim, &dim));
        if (seen[dim]++) return cf_fail(CFX_EARG, "permute: dimension %d is named twice", dim + 1);
        order[d] = dim;
    }
    cf_alias(x, out);
    cf_pick_dims(out, ndim, order);
    CF_TRY(record_view(x, permute_backward, out, &node));
    if (node) memcpy(node->i, order, sizeof order);
    return CFX_OK;
}

CFX_API cfx_status cfx_transpose(const cfx_tensor *x, int32_t a, int32_t b, cfx_tensor *out) {
    int32_t dims[CFX_MAX_DIMS];
    CF_TRY(cf_check_tensor("transpose", "x", x));
    CF_TRY(cf_check_dim("transpose", x->_ndim, &a));
    CF_TRY(cf_check_dim("transpose", x->_ndim, &b));
    for (int32_t d = 0; d < x->_ndim; d++) dims[d] = d == a ? b : d == b ? a : d;
    return cfx_permute(x, x->_ndim, dims, out);
}

/* As messages count, from 1. */
static long long position(int64_t i) { return i < INT64_MAX ? i + 1 : i; }

CFX_API cfx_status cfx_slice(const cfx_tensor *x, int32_t dim, int64_t start, int64_t n, int64_t step,
                             cfx_tensor *out) {
    CF_TRY(cf_check_tensor("slice", "x", x));
    CF_TRY(cf_check_dim("slice", x->_ndim, &dim));
    cfx_tensor part = *x; /* borrowed */
    if (step < 1) return cf_fail(CFX_EARG, "slice: expected a step of 1 or more, got %lld", (long long)step);
    if (!cf_narrow(&part, dim, start, n, step))
        return cf_fail(CFX_EARG,
                       "slice: %lld elements from position %lld by %lld are outside dimension %d of size %lld",
                       (long long)n, position(start), (long long)step, dim + 1, (long long)x->_shape[dim]);
    cf_alias(&part, out);
    return record_place(x, dim, start, step, out);
}

CFX_API cfx_status cfx_select(const cfx_tensor *x, int32_t dim, int64_t i, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("select", "x", x));
    CF_TRY(cf_check_dim("select", x->_ndim, &dim));
    cfx_tensor part = *x; /* borrowed */
    if (!cf_narrow(&part, dim, i, 1, 1))
        return cf_fail(CFX_EARG, "select: position %lld is outside dimension %d of size %lld", position(i), dim + 1,
                       (long long)x->_shape[dim]);
    cf_drop_dim(&part, dim);
    cf_alias(&part, out);
    return record_place(x, dim, i, 1, out);
}

CFX_API cfx_status cfx_squeeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("squeeze", "x", x));
    CF_TRY(cf_check_dim("squeeze", x->_ndim, &dim));
    if (x->_shape[dim] != 1)
        return cf_fail(CFX_EARG, "squeeze: expected dimension %d to have size 1, got %lld", dim + 1,
                       (long long)x->_shape[dim]);
    cf_alias(x, out);
    cf_drop_dim(out, dim);
    return record_view(x, reshape_backward, out, &node);
}

CFX_API cfx_status cfx_unsqueeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("unsqueeze", "x", x));
    CF_TRY(cf_check_dim("unsqueeze", x->_ndim + 1, &dim));
    if (x->_ndim == CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "unsqueeze: expected at most %d dimensions, got %d", CFX_MAX_DIMS, x->_ndim + 1);
    cf_alias(x, out);
    cf_dims_insert(out->_ndim++, dim, 1, dim < x->_ndim ? x->_shape[dim] * x->_stride[dim] : 1, out->_shape,
                   out->_stride);
    return record_view(x, reshape_backward, out, &node);
}

CFX_API cfx_status cfx_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    char have[256], want[192];
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("expand", "x", x));
    const int lead = ndim - x->_ndim;
    int64_t full[CFX_MAX_DIMS];
    bool fits = lead >= 0 && ndim <= CFX_MAX_DIMS;
    for (int d = 0; fits && d < ndim; d++) { /* -1: as it is */
        full[d] = shape[d] == -1 && d >= lead ? x->_shape[d - lead] : shape[d];
        fits = full[d] >= 0;
    }
    if (!fits || !cf_shape_expands(x->_ndim, x->_shape, ndim, full))
        return cf_fail(CFX_EARG, "expand: argument 'shape': a %s does not broadcast to %s", cf_describe(x, have),
                       cf_shape_text(ndim, shape, want));
    CF_TRY(cf_check_shape("expand", x->_dtype, ndim, full));
    cfx_tensor wide;
    cf_expand(x, ndim, full, &wide);
    cf_alias(&wide, out);
    return record_view(x, expand_backward, out, &node);
}

CFX_API cfx_status cfx_diagonal(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("diagonal", "x", x));
    if (x->_ndim < 2) return cf_fail(CFX_EARG, "diagonal: expected 2 dimensions or more, got %d", x->_ndim);
    cf_alias(x, out);
    leave_diagonal(out);
    return record_place(x, -1, 0, 0, out);
}
