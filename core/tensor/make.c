/* make.c: tensors from nothing, and copies. */
#include <stdlib.h>
#include <string.h>

#include "tensor/tape.h"

/* ---- from nothing ----------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_full(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, double value,
                            cfx_tensor *out) {
    CF_TRY(cf_check_shape("full", dtype, ndim, shape));
    CF_TRY(cf_check_device("full", device));
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    return cf_issue_run(&(cf_issue){.op = CF_OP_fill, .dtype = dtype, .nout = 1, .t = {out}, .p = {value}});
}

CFX_API cfx_status cfx_arange(cfx_device *device, int32_t dtype, int64_t n, double start, double step,
                              cfx_tensor *out) {
    CF_TRY(cf_check_shape("arange", dtype, 1, &n));
    CF_TRY(cf_check_device("arange", device));
    CF_TRY(cf_new(device, dtype, 1, &n, out));
    return cf_issue_run(&(cf_issue){.op = CF_OP_arange, .dtype = dtype, .nout = 1, .t = {out}, .p = {start, step}});
}

/* Where a stream is.  It moves on, by `advance`, when nothing can fail any more. */
static cfx_status position_of(const char *function, cfx_context *context, int32_t stream, int64_t rng[3]) {
    if (stream < 0 || stream >= CF_STREAMS)
        return cf_fail(CFX_EARG, "%s: random stream %d does not exist", function, stream);
    const cf_rng_stream *s = &context->streams[stream];
    rng[0] = (int64_t)s->seed;
    rng[1] = stream;
    rng[2] = (int64_t)s->position;
    return CFX_OK;
}

/* Past the next `words` random words: a position is always a multiple of a block's four. */
static void advance(cfx_context *context, int32_t stream, int64_t words) {
    context->streams[stream].position += (uint64_t)(words + 3) / 4 * 4;
}

CFX_API cfx_status cfx_random(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, const char *kind,
                              double a, double b, int32_t stream, cfx_tensor *out) {
    static const struct {
        const char *kind;
        cf_op op;
    } kinds[] = {{"uniform", CF_OP_uniform},
                 {"normal", CF_OP_normal},
                 {"integer", CF_OP_randint},
                 {"permutation", CF_OP_permutation}};
    size_t k = 0;
    while (k < 4 && strcmp(kinds[k].kind, kind) != 0) k++;
    if (k == 4) return cf_fail(CFX_EARG, "random: expected uniform, normal, integer or permutation, got '%s'", kind);
    const cf_op op = kinds[k].op;
    CF_TRY(cf_check_shape("random", dtype, ndim, shape));
    CF_TRY(cf_check_device("random", device));
    if ((op == CF_OP_uniform || op == CF_OP_normal) && !cf_is_float(dtype))
        return cf_fail(CFX_EARG, "random: expected a float dtype, got %s", cfx_dtype_name(dtype));
    if (op == CF_OP_permutation && (dtype != CFX_INT64 || ndim != 1))
        return cf_fail(CFX_EARG, "random: a permutation is int64 of one dimension");
    if (op == CF_OP_randint && !(a <= b)) return cf_fail(CFX_EARG, "random: expected low <= high, got %g and %g", a, b);
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    cf_issue issue = {.op = op, .dtype = dtype, .nout = 1, .t = {out}, .p = {a, b}};
    const int64_t words = op == CF_OP_randint || dtype == CFX_FLOAT64 ? 2 : 1;
    const cfx_status status = position_of("random", cf_context_of(device), stream, issue.i);
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    CF_TRY(cf_issue_run(&issue));
    advance(cf_context_of(device), stream, cf_numel(out) * words);
    return CFX_OK;
}

/* ---- dropout ---------------------------------------------------------------------------------------- */

static cfx_status run_dropout(const cfx_tensor *x, double p, const int64_t rng[3], cfx_tensor *out) {
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out));
    return cf_issue_run(&(cf_issue){.op = CF_OP_dropout,
                                    .dtype = x->_dtype,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = {out, (cfx_tensor *)x},
                                    .p = {p},
                                    .i = {rng[0], rng[1], rng[2]}});
}

CFX_API cfx_status cfx_dropout(const cfx_tensor *x, double p, int32_t stream, cfx_tensor *out) {
    int64_t rng[3];
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("dropout", "x", x));
    if (!cf_is_float(x->_dtype))
        return cf_fail(CFX_EARG, "dropout: argument 'x': expected a float tensor, got %s", cfx_dtype_name(x->_dtype));
    if (!(p >= 0 && p < 1)) return cf_fail(CFX_EARG, "dropout: argument 'p': expected 0 <= p < 1, got %g", p);
    CF_TRY(position_of("dropout", cf_context(x), stream, rng));
    CF_TRY(run_dropout(x, p, rng, out));
    CF_TRY(cf_record(CF_OP_dropout, cf_gradients[CF_OP_dropout], 1, &x, out, &node));
    advance(cf_context(x), stream, cf_numel(x));
    if (!node) return CFX_OK;
    node->p[0] = p;
    memcpy(node->i, rng, sizeof rng);
    return CFX_OK;
}

/* The same numbers give the same mask. */
cfx_status cf_grad_dropout(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(run_dropout(dy, node->p[0], node->i, &g));
    return cf_give(tape, node, 0, &g);
}

/* ---- copies ----------------------------------------------------------------------------------------- */

/* dx is dy, taken back to x's dtype and device by cf_give. */
static cfx_status copy_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_alias(dy, &g);
    return cf_give(tape, node, 0, &g);
}

static cfx_status copy_near(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    CF_TRY(cf_new(device, dtype, x->_ndim, x->_shape, out));
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = dtype, .nout = 1, .nin = 1, .t = {out, (cfx_tensor *)x}});
}

/* Converted and packed where it lies, its bytes are moved. */
static cfx_status copy_far(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    cfx_tensor packed = {0};
    const bool fits = x->_dtype == dtype && cfx_is_contiguous(x);
    if (!fits) CF_TRY(copy_near(x, cf_device(x), dtype, &packed));
    cfx_status status = cf_new(device, dtype, x->_ndim, x->_shape, out);
    if (status == CFX_OK) status = cf_transfer(fits ? x : &packed, out);
    if (status != CFX_OK) cfx_release(out);
    cfx_release(&packed);
    return status;
}

static cfx_status copy_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(cf_is_far(cf_device(x), device) ? copy_far(x, device, dtype, out) : copy_near(x, device, dtype, out));
    return cf_record(CF_OP_copy, copy_backward, 1, &x, out, &node);
}

CFX_API cfx_status cfx_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("to", "x", x));
    if (!device) device = cf_device(x);
    if (dtype < 0) dtype = x->_dtype;
    if (dtype >= CFX_DTYPES) return cf_fail(CFX_EARG, "to: unknown dtype %d", dtype);
    if (cf_context_of(device) != cf_context(x)) return cf_fail(CFX_EARG, "to: the device belongs to another context");
    if (device == cf_device(x) && dtype == x->_dtype) return cfx_retain(x, out);
    return copy_to(x, device, dtype, out);
}

CFX_API cfx_status cfx_clone(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("clone", "x", x));
    return copy_to(x, cf_device(x), x->_dtype, out);
}

CFX_API cfx_status cfx_contiguous(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("contiguous", "x", x));
    return cfx_is_contiguous(x) ? cfx_retain(x, out) : copy_to(x, cf_device(x), x->_dtype, out);
}

/* ---- joining ---------------------------------------------------------------------------------------- */

/* i[0]: the dimension.  Each input takes its stretch of dy. */
static cfx_status concat_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const int32_t dim = (int32_t)node->i[0];
    int64_t at = 0;
    for (int k = 0; k < node->nin; k++) {
        const int64_t n = cf_node_inputs(node)[k].shape[dim];
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
    cf_node *node = NULL;
    CF_TRY(check_concat(n, xs, &dim, &dtype, shape));
    CF_TRY(cf_new(cf_device(xs[0]), dtype, xs[0]->_ndim, shape, out));
    cfx_status status = CFX_OK;
    for (int32_t k = 0; k < n && status == CFX_OK; k++) {
        cfx_tensor part = {0};
        status = cfx_slice(out, dim, at, xs[k]->_shape[dim], 1, &part);
        if (status == CFX_OK)
            status = cf_issue_run(
                &(cf_issue){.op = CF_OP_copy, .dtype = dtype, .nout = 1, .nin = 1, .t = {&part, (cfx_tensor *)xs[k]}});
        cfx_release(&part);
        at += xs[k]->_shape[dim];
    }
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    CF_TRY(cf_record(CF_OP_copy, concat_backward, n, xs, out, &node));
    if (node) node->i[0] = dim;
    return CFX_OK;
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

/* i[0]: which dimensions, as bits. */
static cfx_status flip_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    int32_t dims[CFX_MAX_DIMS], n = 0;
    cfx_tensor g = {0};
    for (int32_t d = 0; d < dy->_ndim; d++)
        if (node->i[0] >> d & 1) dims[n++] = d;
    CF_TRY(cfx_flip(dy, n, dims, &g));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_flip(const cfx_tensor *x, int32_t ndims, const int32_t *dims, cfx_tensor *out) {
    cf_node *node = NULL;
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
    CF_TRY(cf_issue_run(&(cf_issue){.op = CF_OP_copy, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = {out, &back}}));
    CF_TRY(cf_record(CF_OP_copy, flip_backward, 1, &x, out, &node));
    if (node) node->i[0] = bits;
    return CFX_OK;
}

/* more[d].shape[0]: what lies before x along d; the node's first input is x. */
static cfx_status pad_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor g = *dy; /* borrowed */
    cfx_tensor own;
    for (int32_t d = 0; d < in->ndim; d++) cf_narrow(&g, d, node->inputs[1].shape[d], in->shape[d], 1);
    cf_alias(&g, &own);
    return cf_give(tape, node, 0, &own);
}

CFX_API cfx_status cfx_pad(const cfx_tensor *x, const int64_t *before, const int64_t *after, double value,
                           cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS];
    cf_node *node = NULL;
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
    const cfx_status status = cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = {&inside, (cfx_tensor *)x}});
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    CF_TRY(cf_record(CF_OP_copy, pad_backward, 1, &x, out, &node));
    if (node) memcpy(node->inputs[1].shape, before, x->_ndim * sizeof *before);
    return CFX_OK;
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
