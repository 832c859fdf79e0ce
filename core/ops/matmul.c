/* matmul.c: matrix products and dense layers. */
#include <string.h>

#include "ops/activation.h"
#include "tensor/primitive.h"

/* ---- matmul ----------------------------------------------------------------------------------------- */

/* Borrowed: x with its last two dimensions exchanged. */
static void exchanged(const cfx_tensor *x, cfx_tensor *out) {
    const int r = x->_ndim - 2;
    *out = *x;
    cf_dims_pick(2, (int32_t[]){1, 0}, out->_shape + r, out->_stride + r);
}

/* Borrowed: x with its batch dimensions expanded to those of a result. */
static void batched(const cfx_tensor *x, int32_t ndim, const int64_t *result, cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, result, (size_t)(ndim - 2) * sizeof *shape);
    memcpy(shape + ndim - 2, x->_shape + x->_ndim - 2, 2 * sizeof *shape);
    cf_expand(x, ndim, shape, out);
}

/* Both of two dimensions or more. */
static cfx_status run_matmul(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor x, y;
    char one[256], other[256];
    const int n = 2 + cf_shape_broadcast(a->_ndim - 2, a->_shape, b->_ndim - 2, b->_shape, shape);
    if (n < 2)
        return cf_fail(CFX_EARG, "matmul: argument 'b': expected batch dimensions that broadcast with a %s, got %s",
                       cf_describe(a, one), cf_describe(b, other));
    shape[n - 2] = a->_shape[a->_ndim - 2];
    shape[n - 1] = b->_shape[b->_ndim - 1];
    const int dtype = cfx_dtype_promote(a->_dtype, b->_dtype);
    cfx_tensor left = {0}, right = {0};
    CF_TRY(cfx_to(a, NULL, dtype, &left));
    cfx_status status = cfx_to(b, NULL, dtype, &right);
    if (status == CFX_OK) status = cf_new(cf_device(a), dtype, n, shape, out);
    if (status == CFX_OK) {
        batched(&left, n, shape, &x);
        batched(&right, n, shape, &y);
        status = cf_issue_run(&(cf_issue){.op = CF_OP_matmul,
                                          .dtype = dtype,
                                          .nout = 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(out, &x, &y),
                                          .params = &(cf_matmul_params){.precision = cf_context(a)->precision}});
    }
    cfx_release(&left);
    cfx_release(&right);
    return status;
}

static cfx_status check_matmul(const cfx_tensor *a, const cfx_tensor *b) {
    CF_TRY(cf_check_tensor("matmul", "a", a));
    CF_TRY(cf_check_tensor("matmul", "b", b));
    CF_TRY(cf_check_same_device("matmul", "b", a, b));
    char left[256], right[256];
    if (!a->_ndim || !b->_ndim)
        return cf_fail(CFX_EARG, "matmul: expected tensors of one dimension or more, got %s and %s",
                       cf_describe(a, left), cf_describe(b, right));
    const int64_t inner = a->_shape[a->_ndim - 1];
    if (inner == b->_shape[b->_ndim == 1 ? 0 : b->_ndim - 2]) return CFX_OK;
    return cf_fail(CFX_EARG, "matmul: argument 'b': expected shape [%lld%s] for a %s, got %s", (long long)inner,
                   b->_ndim == 1 ? "" : ", n", cf_shape_text(a->_ndim, a->_shape, left), cf_describe(b, right));
}

/* A vector is a row on the left and a column on the right, and its dimension is dropped again. */
static cfx_status matmul_vector(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    cfx_tensor x = {0}, y = {0}, z = {0}, w = {0};
    const bool row = a->_ndim == 1, column = b->_ndim == 1;
    const cf_mark mark = cf_mark_of(2, (const cfx_tensor *[]){a, b});
    cfx_status status = row ? cfx_unsqueeze(a, 0, &x) : cfx_retain(a, &x);
    if (status == CFX_OK) status = column ? cfx_unsqueeze(b, 1, &y) : cfx_retain(b, &y);
    if (status == CFX_OK) status = cfx_matmul(&x, &y, &z);
    if (status == CFX_OK) status = column ? cfx_squeeze(&z, -1, &w) : cfx_retain(&z, &w);
    if (status == CFX_OK) status = row ? cfx_squeeze(&w, column ? -1 : -2, out) : cfx_retain(&w, out);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
    cfx_release(&w);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}

/* Many matrices times one are one tall matrix times it: one product, and its gradient needs no sum. */
static cfx_status matmul_tall(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    int64_t flat[2] = {-1, a->_shape[a->_ndim - 1]}, shape[CFX_MAX_DIMS];
    cfx_tensor x = {0}, y = {0};
    const cf_mark mark = cf_mark_of(2, (const cfx_tensor *[]){a, b});
    memcpy(shape, a->_shape, sizeof shape);
    shape[a->_ndim - 1] = b->_shape[1];
    cfx_status status = cfx_reshape(a, 2, flat, &x);
    if (status == CFX_OK) status = cfx_matmul(&x, b, &y);
    if (status == CFX_OK) status = cfx_reshape(&y, a->_ndim, shape, out);
    cfx_release(&x);
    cfx_release(&y);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}

/* g_k = x y into the gradient of input k. */
static cfx_status give_product(cfx_tape *tape, cf_node *node, int k, const cfx_tensor *x, const cfx_tensor *y) {
    cfx_tensor g = {0};
    if (x->_ndim == 2 && y->_ndim == 2)
        cf_place(tape, node, k, cfx_dtype_promote(x->_dtype, y->_dtype), 2, (int64_t[]){x->_shape[0], y->_shape[1]},
                 &g);
    CF_TRY(run_matmul(x, y, &g));
    return cf_give(tape, node, k, &g);
}

static cfx_status matmul_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor t;
    if (cf_needs(node, 0)) {
        exchanged(cf_saved(node, 1), &t);
        CF_TRY(give_product(tape, node, 0, dy, &t));
    }
    if (!cf_needs(node, 1)) return CFX_OK;
    exchanged(cf_saved(node, 0), &t);
    return give_product(tape, node, 1, &t, dy);
}

CFX_API cfx_status cfx_matmul(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    CF_TRY(check_matmul(a, b));
    if (a->_ndim == 1 || b->_ndim == 1) return matmul_vector(a, b, out);
    if (a->_ndim > 2 && b->_ndim == 2 && a->_shape[a->_ndim - 1] > 0 && cf_numel(a) > 0) return matmul_tall(a, b, out);
    CF_TRY(run_matmul(a, b, out));
    const cfx_tensor *const inputs[] = {a, b};
    return cf_record(
        &(cf_recording){
            .op = "matmul", .backward = matmul_backward, .nin = 2, .nsaved = 2, .inputs = inputs, .saved = inputs},
        out);
}

/* ---- dense ------------------------------------------------------------------------------------------ */

static cfx_status check_dense(const cfx_tensor *x, const cfx_tensor *w, const cfx_tensor *bias) {
    char have[256], want[256];
    CF_TRY(cf_check_tensor("dense", "x", x));
    CF_TRY(cf_check_tensor("dense", "weight", w));
    CF_TRY(cf_check_same_device("dense", "weight", x, w));
    if (w->_ndim != 2)
        return cf_fail(CFX_EARG, "dense: argument 'weight': expected shape [out, in], got %s", cf_describe(w, have));
    if (x->_ndim < 1 || x->_shape[x->_ndim - 1] != w->_shape[1])
        return cf_fail(CFX_EARG, "dense: argument 'x': expected shape [.., %lld] for a weight %s, got %s",
                       (long long)w->_shape[1], cf_shape_text(2, w->_shape, want), cf_describe(x, have));
    if (x->_dtype != w->_dtype || !cf_is_float(x->_dtype))
        return cf_fail(CFX_EARG, "dense: argument 'x': expected the weight's dtype %s, got %s",
                       cfx_dtype_name(w->_dtype), cfx_dtype_name(x->_dtype));
    if (!bias) return CFX_OK;
    CF_TRY(cf_check_tensor("dense", "bias", bias));
    CF_TRY(cf_check_same_device("dense", "bias", x, bias));
    if (bias->_ndim != 1 || bias->_shape[0] != w->_shape[0] || bias->_dtype != w->_dtype)
        return cf_fail(CFX_EARG, "dense: argument 'bias': expected shape [%lld] (%s), got %s", (long long)w->_shape[0],
                       cfx_dtype_name(w->_dtype), cf_describe(bias, have));
    return CFX_OK;
}

/* x as [rows, in]: a view where it can be, else a copy; not recorded. */
static cfx_status flatten(const cfx_tensor *x, cfx_tensor *out) {
    cfx_tensor plain;
    const int64_t shape[2] = {cf_shape_numel(x->_ndim - 1, x->_shape), x->_shape[x->_ndim - 1]};
    cf_alias(x, &plain);
    cfx_status status = cfx_reshape(&plain, 2, shape, out);
    cfx_release(&plain);
    if (status != CFX_OK || out->_stride[1] == 1 || out->_shape[1] <= 1) return status;
    cfx_tensor packed = {0}; /* the kernels want the elements of a row side by side */
    status = cf_packed(out, &packed);
    cfx_release(out);
    *out = packed;
    return status;
}

static cfx_status run_dense(const cfx_tensor *x, const cfx_tensor *w, const cfx_tensor *bias, int32_t act,
                            cfx_tensor *out, cfx_tensor *rows) {
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, x->_shape, x->_ndim * sizeof *shape);
    shape[x->_ndim - 1] = w->_shape[0];
    CF_TRY(flatten(x, rows));
    cfx_status status = cf_new(cf_device(x), x->_dtype, x->_ndim, shape, out);
    if (status != CFX_OK) return status;
    cfx_tensor y = *out, weight = *w; /* borrowed */
    cf_set_packed(&y, 2, (int64_t[]){rows->_shape[0], w->_shape[0]});
    status =
        cf_issue_run(&(cf_issue){.op = CF_OP_dense,
                                 .dtype = x->_dtype,
                                 .nout = 1,
                                 .nin = bias ? 3 : 2,
                                 .t = CF_VIEWS(&y, rows, &weight, (cfx_tensor *)bias),
                                 .params = &(cf_dense_params){{cf_act_number(act)}, act, cf_context(x)->precision}});
    if (status != CFX_OK) *out = y; /* released by the failure */
    return status;
}

static cfx_status dense_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    cfx_tensor packed = {0}, dy = {0}, dpre = {0}, t;
    const cfx_tensor *x = cf_saved(node, 0), *w = cf_saved(node, 1);
    int64_t shape[2] = {x->_shape[0], w->_shape[0]};
    CF_TRY(cf_packed(grad, &packed));
    cfx_status status = cfx_reshape(&packed, 2, shape, &dy);
    if (status == CFX_OK) status = cf_act_backward(tape, node, *(int32_t *)node->kept, cf_saved(node, 2), &dy, &dpre);
    if (status == CFX_OK && cf_needs(node, 1)) {
        exchanged(&dpre, &t);
        status = give_product(tape, node, 1, &t, x);
    }
    if (status == CFX_OK && cf_needs(node, 0)) {
        cfx_tensor rows = {0}, g = {0};
        status = run_matmul(&dpre, w, &rows);
        if (status == CFX_OK) status = cfx_reshape(&rows, node->inputs[0].ndim, node->inputs[0].shape, &g);
        cfx_release(&rows);
        if (status == CFX_OK) status = cf_give(tape, node, 0, &g);
    }
    cfx_release(&packed);
    cfx_release(&dy);
    cfx_release(&dpre);
    return status;
}

CFX_API cfx_status cfx_dense(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias, int32_t act,
                             cfx_tensor *out) {
    cfx_tensor rows = {0};
    CF_TRY(check_dense(x, weight, bias));
    CF_TRY(cf_check_act("dense", act));
    if (act >= 0 && !cf_act_fuses(act)) {
        cfx_tensor pre = {0};
        const cf_mark mark = cf_mark_of(bias ? 3 : 2, (const cfx_tensor *[]){x, weight, bias});
        CF_TRY(cfx_dense(x, weight, bias, -1, &pre));
        const cfx_status status = cfx_unary(act, &pre, cf_act_number(act), 0, out);
        cfx_release(&pre);
        if (status != CFX_OK) cf_rewind(mark);
        return status;
    }
    cfx_status status = run_dense(x, weight, bias, act, out, &rows);
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "dense",
                                           .backward = dense_backward,
                                           .nin = bias ? 3 : 2,
                                           .nsaved = 3,
                                           .inputs = (const cfx_tensor *[]){x, weight, bias},
                                           .saved = (const cfx_tensor *[]){&rows, weight, out},
                                           .kept = &act,
                                           .kept_bytes = sizeof act},
                           out);
    cfx_release(&rows);
    return status;
}
