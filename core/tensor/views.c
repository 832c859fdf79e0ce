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
    int32_t inverse[CFX_MAX_DIMS];
    cfx_tensor g = {0};
    for (int32_t d = 0; d < dy->_ndim; d++) inverse[((const uint8_t *)node->i)[d]] = d;
    CF_TRY(cfx_permute(dy, dy->_ndim, inverse, &g));
    return cf_give(tape, node, 0, &g);
}

/* Broadcasting is undone by cf_give. */
static cfx_status expand_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_alias(dy, &g);
    return cf_give(tape, node, 0, &g);
}

/* Zeros of x's form, with dy where the view was.  What the view was is kept as strides relative to a packed x:
 * saved[0] is such a view's geometry on dy's shape. */
static cfx_status place_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor g = {0}, view;
    int64_t unit[CFX_MAX_DIMS], stride = 1;
    CF_TRY(cfx_full(in->device, in->dtype, in->ndim, in->shape, 0, &g));
    for (int d = in->ndim - 1; d >= 0; d--) {
        unit[d] = stride;
        stride *= in->shape[d];
    }
    cf_alias(&g, &view);
    view._ndim = dy->_ndim;
    memcpy(view._shape, dy->_shape, sizeof view._shape);
    if (node->i[0] < 0) { /* a diagonal */
        memcpy(view._stride, unit, sizeof unit);
        view._stride[dy->_ndim - 1] = unit[in->ndim - 2] + unit[in->ndim - 1];
    } else {
        const int32_t dim = (int32_t)node->i[0];
        const bool dropped = dy->_ndim < in->ndim;
        for (int32_t d = 0, k = 0; d < in->ndim; d++) {
            if (d == dim && dropped) continue;
            view._stride[k++] = unit[d] * (d == dim ? node->i[2] : 1);
        }
        view._offset += node->i[1] * unit[dim];
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

/* The strides that show x in the new shape, if there are any.  The new dimensions are taken, from the last one, out of
 * runs of x's dimensions that lie as one; a dimension of size 1 lies anywhere, for its stride is never used. */
static bool strides_for(const cfx_tensor *x, int32_t ndim, const int64_t *shape, int64_t *stride) {
    int64_t left = 1, step = 1; /* of the run at hand */
    int from = x->_ndim - 1;
    if (cfx_is_contiguous(x)) {
        cf_packed_strides(ndim, shape, stride);
        return true;
    }
    for (int d = ndim - 1; d >= 0; d--) {
        if (left == 1 && shape[d] != 1) {
            while (x->_shape[from] == 1) from--;
            step = x->_stride[from];
            left = x->_shape[from--];
            for (; from >= 0 && (x->_shape[from] == 1 || x->_stride[from] == step * left); from--)
                left *= x->_shape[from];
        }
        if (left % shape[d]) return false;
        stride[d] = step;
        step *= shape[d];
        left /= shape[d];
    }
    return true;
}

static cfx_status resolve(const cfx_tensor *x, int32_t ndim, const int64_t *shape, int64_t *full) {
    char have[256], want[192];
    int64_t known = 1, n = cf_numel(x);
    size_t bytes;
    int hole = -1;
    if (ndim < 0 || ndim > CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "reshape: expected at most %d dimensions, got %d", CFX_MAX_DIMS, ndim);
    for (int d = 0; d < ndim; d++) {
        full[d] = shape[d];
        if (shape[d] == -1 && hole < 0) hole = d;
        else if (shape[d] < 0 || __builtin_mul_overflow(known, shape[d], &known)) goto bad;
    }
    if (hole >= 0) {
        if (known == 0 || n % known) goto bad;
        full[hole] = n / known;
    } else if (known != n) {
        goto bad;
    }
    if (cf_shape_bytes(x->_dtype, ndim, full, &bytes)) return CFX_OK;
bad:
    return cf_fail(CFX_EARG, "reshape: argument 'shape': %s does not fit the %lld elements of %s",
                   cf_shape_text(ndim, shape, want), (long long)n, cf_describe(x, have));
}

CFX_API cfx_status cfx_reshape(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    int64_t full[CFX_MAX_DIMS], stride[CFX_MAX_DIMS];
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("reshape", "x", x));
    CF_TRY(resolve(x, ndim, shape, full));
    if (!strides_for(x, ndim, full, stride)) {
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
    uint8_t order[CFX_MAX_DIMS] = {0}, seen[CFX_MAX_DIMS] = {0};
    CF_TRY(cf_check_tensor("permute", "x", x));
    if (ndim != x->_ndim) return cf_fail(CFX_EARG, "permute: expected %d dimensions, got %d", x->_ndim, ndim);
    for (int d = 0; d < ndim; d++) {
        int32_t dim = dims[d];
        CF_TRY(cf_check_dim("permute", ndim, &dim));
        if (seen[dim]++) return cf_fail(CFX_EARG, "permute: dimension %d is named twice", dim + 1);
        order[d] = (uint8_t)dim;
    }
    cf_alias(x, out);
    for (int d = 0; d < ndim; d++) {
        out->_shape[d] = x->_shape[order[d]];
        out->_stride[d] = x->_stride[order[d]];
    }
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
    const int64_t size = x->_shape[dim];
    if (step < 1) return cf_fail(CFX_EARG, "slice: expected a step of 1 or more, got %lld", (long long)step);
    if (n < 0 || start < 0 || start > size || (n > 0 && (start == size || n - 1 > (size - 1 - start) / step)))
        return cf_fail(CFX_EARG,
                       "slice: %lld elements from position %lld by %lld are outside dimension %d of size %lld",
                       (long long)n, position(start), (long long)step, dim + 1, (long long)size);
    const int64_t used = n > 1 ? step : 1; /* between fewer than two elements any step fits, however large */
    cf_alias(x, out);
    out->_shape[dim] = n;
    out->_stride[dim] *= used;
    out->_offset += n ? start * x->_stride[dim] : 0;
    return record_place(x, dim, n ? start : 0, used, out);
}

static void drop_dim(cfx_tensor *x, int32_t dim) {
    for (int d = dim; d + 1 < x->_ndim; d++) {
        x->_shape[d] = x->_shape[d + 1];
        x->_stride[d] = x->_stride[d + 1];
    }
    x->_ndim--;
}

CFX_API cfx_status cfx_select(const cfx_tensor *x, int32_t dim, int64_t i, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("select", "x", x));
    CF_TRY(cf_check_dim("select", x->_ndim, &dim));
    const int64_t size = x->_shape[dim];
    if (i < 0 || i >= size)
        return cf_fail(CFX_EARG, "select: position %lld is outside dimension %d of size %lld", position(i), dim + 1,
                       (long long)size);
    cf_alias(x, out);
    out->_offset += i * x->_stride[dim];
    drop_dim(out, dim);
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
    drop_dim(out, dim);
    return record_view(x, reshape_backward, out, &node);
}

CFX_API cfx_status cfx_unsqueeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("unsqueeze", "x", x));
    CF_TRY(cf_check_dim("unsqueeze", x->_ndim + 1, &dim));
    if (x->_ndim == CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "unsqueeze: expected at most %d dimensions, got %d", CFX_MAX_DIMS, x->_ndim + 1);
    cf_alias(x, out);
    for (int d = x->_ndim; d > dim; d--) {
        out->_shape[d] = x->_shape[d - 1];
        out->_stride[d] = x->_stride[d - 1];
    }
    out->_shape[dim] = 1;
    out->_stride[dim] = dim < x->_ndim ? x->_shape[dim] * x->_stride[dim] : 1;
    out->_ndim++;
    return record_view(x, reshape_backward, out, &node);
}

CFX_API cfx_status cfx_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    char have[256], want[192];
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("expand", "x", x));
    const int lead = ndim - x->_ndim;
    bool fits = lead >= 0 && ndim <= CFX_MAX_DIMS;
    for (int d = 0; fits && d < ndim; d++) {
        const int64_t had = d < lead ? 1 : x->_shape[d - lead];
        fits = shape[d] == had || (shape[d] == -1 && d >= lead) || (had == 1 && shape[d] >= 0);
    }
    if (!fits)
        return cf_fail(CFX_EARG, "expand: argument 'shape': a %s does not broadcast to %s", cf_describe(x, have),
                       cf_shape_text(ndim, shape, want));
    cfx_tensor wide = *x; /* borrowed */
    wide._ndim = (uint8_t)ndim;
    for (int d = 0; d < ndim; d++) {
        const int64_t had = d < lead ? 1 : x->_shape[d - lead];
        wide._shape[d] = shape[d] == -1 ? had : shape[d];
        wide._stride[d] = d < lead || (had == 1 && wide._shape[d] != 1) ? 0 : x->_stride[d - lead];
    }
    CF_TRY(cf_check_shape("expand", wide._dtype, ndim, wide._shape));
    cf_alias(&wide, out);
    return record_view(x, expand_backward, out, &node);
}

CFX_API cfx_status cfx_diagonal(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("diagonal", "x", x));
    if (x->_ndim < 2) return cf_fail(CFX_EARG, "diagonal: expected 2 dimensions or more, got %d", x->_ndim);
    const int r = x->_ndim - 2, c = x->_ndim - 1;
    cf_alias(x, out);
    out->_shape[r] = x->_shape[r] < x->_shape[c] ? x->_shape[r] : x->_shape[c];
    out->_stride[r] = x->_stride[r] + x->_stride[c];
    out->_ndim--;
    return record_place(x, -1, 0, 0, out);
}

void cf_move_last(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    cf_alias(x, out);
    const int64_t shape = x->_shape[dim], stride = x->_stride[dim];
    drop_dim(out, dim);
    out->_shape[out->_ndim] = shape;
    out->_stride[out->_ndim++] = stride;
}
