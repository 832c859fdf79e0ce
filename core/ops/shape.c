/* shape.c: the same buffer, seen otherwise, and copies in another shape.  A view of a watched tensor is recorded, with
 * its inverse as the gradient. */
#include "ops/shape.h"

#include <stdlib.h>
#include <string.h>

#include "ops/tape.h"
#include "tensor/primitive.h"

/* ---- gradients of views ----------------------------------------------------------------------------- */

/* dx is dy in x's shape. */
static cfx_status reshape_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(cfx_reshape(dy, node->inputs[0].ndim, node->inputs[0].shape, &g));
    return cf_give(tape, node, 0, &g);
}

/* Keeps the forward permutation. */
static cfx_status permute_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const int32_t *order = node->kept;
    int32_t inverse[CFX_MAX_DIMS];
    cfx_tensor g = {0};
    for (int32_t d = 0; d < dy->_ndim; d++) inverse[order[d]] = d;
    CF_TRY(cfx_permute(dy, dy->_ndim, inverse, &g));
    return cf_give(tape, node, 0, &g);
}

/* The diagonal of the last two dimensions, as one. */
static void leave_diagonal(cfx_tensor *x) {
    const int r = x->_ndim - 2, c = x->_ndim - 1;
    if (x->_shape[c] < x->_shape[r]) x->_shape[r] = x->_shape[c];
    x->_stride[r] += x->_stride[c];
    x->_ndim--;
}

/* Which part of x a view shows: of dimension `dim` the elements from `start` on, `step` apart, or if it was dropped the
 * one at `start`; -1: the diagonal. */
typedef struct region {
    int64_t dim, start, step;
} region;

/* Zeros of x's form, with dy where the view was. */
static cfx_status part_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    const region *p = node->kept;
    const int32_t dim = (int32_t)p->dim;
    const bool dropped = dy->_ndim < in->ndim;
    cfx_tensor g = {0}, view;
    CF_TRY(cfx_full(in->device, in->dtype, in->ndim, in->shape, 0, &g));
    cf_alias(&g, &view);
    if (dim < 0) leave_diagonal(&view);
    else {
        cf_narrow(&view, dim, p->start, dropped ? 1 : dy->_shape[dim], p->step);
        if (dropped) cf_drop_dim(&view, dim);
    }
    cfx_status status = cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = in->dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(&view, (cfx_tensor *)dy)});
    cfx_release(&view);
    if (status == CFX_OK) return cf_give(tape, node, 0, &g);
    cfx_release(&g);
    return status;
}

static cfx_status record_part(const char *op, const cfx_tensor *x, region p, cfx_tensor *out) {
    return cf_record_one(op, part_backward, x, &p, sizeof p, out);
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
    return cf_record_one("reshape", reshape_backward, x, NULL, 0, out);
}

CFX_API cfx_status cfx_permute(const cfx_tensor *x, int32_t ndim, const int32_t *dims, cfx_tensor *out) {
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
    return cf_record_one("permute", permute_backward, x, order, sizeof order, out);
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
    return record_part("slice", x, (region){dim, start, step}, out);
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
    return record_part("select", x, (region){dim, i, 1}, out);
}

CFX_API cfx_status cfx_squeeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("squeeze", "x", x));
    CF_TRY(cf_check_dim("squeeze", x->_ndim, &dim));
    if (x->_shape[dim] != 1)
        return cf_fail(CFX_EARG, "squeeze: expected dimension %d to have size 1, got %lld", dim + 1,
                       (long long)x->_shape[dim]);
    cf_alias(x, out);
    cf_drop_dim(out, dim);
    return cf_record_one("squeeze", reshape_backward, x, NULL, 0, out);
}

CFX_API cfx_status cfx_unsqueeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("unsqueeze", "x", x));
    CF_TRY(cf_check_dim("unsqueeze", x->_ndim + 1, &dim));
    if (x->_ndim == CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "unsqueeze: expected at most %d dimensions, got %d", CFX_MAX_DIMS, x->_ndim + 1);
    cf_alias(x, out);
    cf_dims_insert(out->_ndim++, dim, 1, dim < x->_ndim ? x->_shape[dim] * x->_stride[dim] : 1, out->_shape,
                   out->_stride);
    return cf_record_one("unsqueeze", reshape_backward, x, NULL, 0, out);
}

CFX_API cfx_status cfx_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    char have[256], want[192];
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
    return cf_record_one("expand", cf_give_alike, x, NULL, 0, out); /* broadcasting is undone by cf_give */
}

CFX_API cfx_status cfx_diagonal(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("diagonal", "x", x));
    if (x->_ndim < 2) return cf_fail(CFX_EARG, "diagonal: expected 2 dimensions or more, got %d", x->_ndim);
    cf_alias(x, out);
    leave_diagonal(out);
    return record_part("diagonal", x, (region){-1, 0, 0}, out);
}

void cf_move_last(const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    const int64_t size = x->_shape[dim], stride = x->_stride[dim];
    cf_alias(x, out);
    cf_drop_dim(out, dim);
    cf_dims_insert(out->_ndim, out->_ndim, size, stride, out->_shape, out->_stride);
    out->_ndim++;
}

cfx_status cf_rows_of(const cfx_tensor *x, int lead, cfx_tensor *out) {
    cfx_tensor plain, packed = {0};
    const int64_t shape[2] = {cf_shape_numel(lead, x->_shape), cf_shape_numel(x->_ndim - lead, x->_shape + lead)};
    cf_alias(x, &plain);
    cfx_status status = cf_packed(&plain, &packed);
    if (status == CFX_OK) status = cfx_reshape(&packed, 2, shape, out);
    cfx_release(&plain);
    cfx_release(&packed);
    return status;
}

/* ---- joining ---------------------------------------------------------------------------------------- */

/* Keeps the dimension.  Each input takes its part of dy. */
static cfx_status concat_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const int32_t dim = *(int32_t *)node->kept;
    int64_t at = 0;
    for (int k = 0; k < node->nin; k++) {
        const int64_t n = node->inputs[k].shape[dim];
        if (cf_needs(node, k)) {
            cfx_tensor g = {0};
            CF_TRY(cfx_slice(dy, dim, at, n, 1, &g));
            CF_TRY(cf_give(tape, node, k, &g));
        }
        at += n;
    }
    return CFX_OK;
}

static cfx_status check_concat(int32_t n, const cfx_tensor *const *xs, int32_t *dim, int32_t *dtype, int64_t *shape) {
    char have[256], want[256];
    if (n < 1) return cf_fail(CFX_EARG, "concat: expected one tensor or more, got none");
    for (int32_t k = 0; k < n; k++) {
        CF_TRY(cf_check_tensor("concat", "list", xs[k]));
        if (k == 0) {
            CF_TRY(cf_check_dim("concat", xs[0]->_ndim, dim));
            memcpy(shape, xs[0]->_shape, xs[0]->_ndim * sizeof *shape);
            *dtype = xs[0]->_dtype;
            continue;
        }
        CF_TRY(cf_check_same_device("concat", "list", xs[0], xs[k]));
        bool fits = xs[k]->_ndim == xs[0]->_ndim;
        for (int d = 0; fits && d < xs[0]->_ndim; d++) fits = d == *dim || xs[k]->_shape[d] == xs[0]->_shape[d];
        if (!fits)
            return cf_fail(CFX_EARG, "concat: tensor %d: expected the shape of a %s but for dimension %d, got %s",
                           k + 1, cf_describe(xs[0], want), *dim + 1, cf_describe(xs[k], have));
        if (__builtin_add_overflow(shape[*dim], xs[k]->_shape[*dim], &shape[*dim]))
            return cf_fail(CFX_EARG, "concat: dimension %d would be too large", *dim + 1);
        *dtype = cfx_dtype_promote(*dtype, xs[k]->_dtype);
    }
    return CFX_OK;
}

CFX_API cfx_status cfx_concat(int32_t n, const cfx_tensor *const *xs, int32_t dim, cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS], at = 0;
    int32_t dtype = 0;
    CF_TRY(check_concat(n, xs, &dim, &dtype, shape));
    CF_TRY(cf_new(cf_device(xs[0]), dtype, xs[0]->_ndim, shape, out));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < n && status == CFX_OK; k++) {
        cfx_tensor part = {0};
        status = cfx_slice(out, dim, at, xs[k]->_shape[dim], 1, &part);
        if (status == CFX_OK)
            status = cf_issue_run(&(cf_issue){
                .op = CF_OP_copy, .dtype = dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(&part, (cfx_tensor *)xs[k])});
        cfx_release(&part);
        at += xs[k]->_shape[dim];
    }
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    return cf_record(&(cf_recording){.op = "concat",
                                     .backward = concat_backward,
                                     .nin = n,
                                     .inputs = xs,
                                     .kept = &dim,
                                     .kept_bytes = sizeof dim},
                     out);
}

CFX_API cfx_status cfx_stack(int32_t n, const cfx_tensor *const *xs, int32_t dim, cfx_tensor *out) {
    char have[256], want[256];
    void *memory;
    if (n < 1) return cf_fail(CFX_EARG, "stack: expected one tensor or more, got none");
    for (int32_t k = 0; k < n; k++) {
        CF_TRY(cf_check_tensor("stack", "list", xs[k]));
        if (!cf_same_shape(xs[0], xs[k]))
            return cf_fail(CFX_EARG, "stack: tensor %d: expected the shape of a %s, got %s", k + 1,
                           cf_describe(xs[0], want), cf_describe(xs[k], have));
    }
    CF_TRY(cf_check_dim("stack", xs[0]->_ndim + 1, &dim));
    CF_TRY(cf_alloc_zero((size_t)n, sizeof(cfx_tensor) + sizeof(cfx_tensor *), &memory));
    cfx_tensor *rows = memory;
    const cfx_tensor **list = (const cfx_tensor **)(rows + n);
    const cf_mark mark = cf_mark_of(n, xs);
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < n && status == CFX_OK; k++) {
        status = cfx_unsqueeze(xs[k], dim, &rows[k]);
        list[k] = &rows[k];
    }
    if (status == CFX_OK) status = cfx_concat(n, list, dim, out);
    for (int32_t k = 0; k < n; k++) cfx_release(&rows[k]);
    free(memory);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}

/* Keeps which dimensions, as bits. */
static cfx_status flip_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    int32_t dims[CFX_MAX_DIMS], n = 0;
    cfx_tensor g = {0};
    for (int32_t d = 0; d < dy->_ndim; d++)
        if (*(int64_t *)node->kept >> d & 1) dims[n++] = d;
    CF_TRY(cfx_flip(dy, n, dims, &g));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_flip(const cfx_tensor *x, int32_t ndims, const int32_t *dims, cfx_tensor *out) {
    int64_t bits = 0;
    CF_TRY(cf_check_tensor("flip", "x", x));
    cfx_tensor back = *x; /* borrowed; runs backwards along the dimensions */
    for (int32_t k = 0; k < ndims; k++) {
        int32_t d = dims[k];
        CF_TRY(cf_check_dim("flip", x->_ndim, &d));
        if (bits >> d & 1) return cf_fail(CFX_EARG, "flip: dimension %d is named twice", d + 1);
        bits |= (int64_t)1 << d;
        if (x->_shape[d] == 0) continue;
        cf_narrow(&back, d, x->_shape[d] - 1, x->_shape[d], -1);
    }
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out));
    CF_TRY(cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(out, &back)}));
    return cf_record_one("flip", flip_backward, x, &bits, sizeof bits, out);
}

/* Keeps how much lies before x along each dimension. */
static cfx_status pad_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    const int64_t *before = node->kept;
    cfx_tensor g = *dy; /* borrowed */
    cfx_tensor own;
    for (int32_t d = 0; d < in->ndim; d++) cf_narrow(&g, d, before[d], in->shape[d], 1);
    cf_alias(&g, &own);
    return cf_give(tape, node, 0, &own);
}

CFX_API cfx_status cfx_pad(const cfx_tensor *x, const int64_t *before, const int64_t *after, double value,
                           cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS];
    CF_TRY(cf_check_tensor("pad", "x", x));
    for (int d = 0; d < x->_ndim; d++) {
        if (before[d] < 0 || after[d] < 0)
            return cf_fail(CFX_EARG, "pad: dimension %d: expected 0 or more elements on each side, got %lld and %lld",
                           d + 1, (long long)before[d], (long long)after[d]);
        if (__builtin_add_overflow(x->_shape[d], before[d], &shape[d]) ||
            __builtin_add_overflow(shape[d], after[d], &shape[d]))
            return cf_fail(CFX_EARG, "pad: dimension %d would be too large", d + 1);
    }
    CF_TRY(cfx_full(cf_device(x), x->_dtype, x->_ndim, shape, value, out));
    cfx_tensor inside = *out; /* borrowed */
    for (int32_t d = 0; d < x->_ndim; d++) cf_narrow(&inside, d, before[d], x->_shape[d], 1);
    const cfx_status status = cf_issue_run(&(cf_issue){
        .op = CF_OP_copy, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(&inside, (cfx_tensor *)x)});
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    return cf_record_one("pad", pad_backward, x, before, x->_ndim * sizeof *before, out);
}

/* Tiling is a broadcast over new dimensions beside the old ones, packed. */
CFX_API cfx_status cfx_tile(const cfx_tensor *x, const int64_t *count, cfx_tensor *out) {
    int64_t split[CFX_MAX_DIMS * 2], wide[CFX_MAX_DIMS * 2], shape[CFX_MAX_DIMS];
    int32_t n = 0;
    CF_TRY(cf_check_tensor("tile", "x", x));
    for (int d = 0; d < x->_ndim; d++) {
        if (count[d] < 0)
            return cf_fail(CFX_EARG, "tile: dimension %d: expected 0 copies or more, got %lld", d + 1,
                           (long long)count[d]);
        if (count[d] != 1) {
            split[n] = 1;
            wide[n++] = count[d];
        }
        split[n] = wide[n] = x->_shape[d];
        n++;
        if (__builtin_mul_overflow(x->_shape[d], count[d], &shape[d]))
            return cf_fail(CFX_EARG, "tile: dimension %d would be too large", d + 1);
    }
    if (n > CFX_MAX_DIMS) return cf_fail(CFX_EARG, "tile: too many dimensions are repeated");
    cfx_tensor a = {0}, b = {0}, c = {0};
    const cf_mark mark = cf_mark_of(1, &x);
    cfx_status status = cfx_reshape(x, n, split, &a);
    if (status == CFX_OK) status = cfx_expand(&a, n, wide, &b);
    if (status == CFX_OK) status = cfx_contiguous(&b, &c);
    if (status == CFX_OK) status = cfx_reshape(&c, x->_ndim, shape, out);
    cfx_release(&a);
    cfx_release(&b);
    cfx_release(&c);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}
