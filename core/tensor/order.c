/* order.c: operations along one dimension: softmax, topk, sort; triangles and one-hot rows. */
#include <string.h>

#include "tensor/tape.h"

/* ---- softmax ---------------------------------------------------------------------------------------- */

static cfx_status run_along(cf_op op, int dtype, int32_t dim, cfx_tensor *out, const cfx_tensor *a,
                            const cfx_tensor *b) {
    cfx_tensor to, x, y;
    cf_move_last(out, dim, &to);
    cf_move_last(a, dim, &x);
    cf_move_last(b ? b : a, dim, &y);
    const cfx_status status =
        cf_issue_run(&(cf_issue){.op = op, .dtype = dtype, .nout = 1, .nin = b ? 2 : 1, .t = {&to, &x, &y}});
    cfx_release(&to);
    cfx_release(&x);
    cfx_release(&y);
    if (status != CFX_OK) cfx_release(out);
    return status;
}

CFX_API cfx_status cfx_softmax(int32_t op, const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    cf_node *node = NULL;
    if (op != CF_OP_softmax && op != CF_OP_logsoftmax)
        return cf_fail(CFX_EARG, "softmax: there is no such operation (%d)", op);
    const char *name = cf_op_table[op].name;
    CF_TRY(cf_check_tensor(name, "x", x));
    CF_TRY(cf_check_dim(name, x->_ndim, &dim));
    const int dtype = cf_float_of(x->_dtype);
    CF_TRY(cf_new(cf_device(x), dtype, x->_ndim, x->_shape, out));
    CF_TRY(run_along((cf_op)op, dtype, dim, out, x, NULL));
    CF_TRY(cf_record((cf_op)op, cf_gradients[op], 1, &x, out, &node));
    if (!node) return CFX_OK;
    node->i[0] = dim;
    cf_save(node, out);
    return CFX_OK;
}

cfx_status cf_grad_softmax(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(cf_new(cf_device(dy), dy->_dtype, dy->_ndim, dy->_shape, &g));
    CF_TRY(run_along(node->op + 1, dy->_dtype, (int32_t)node->i[0], &g, dy, &node->saved[0]));
    return cf_give(tape, node, 0, &g);
}

/* ---- topk and sort ---------------------------------------------------------------------------------- */

/* i[0]: the dimension; saved[0]: which elements the values came from. */
static cfx_status pick_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor zero = {0}, g = {0};
    CF_TRY(cfx_full(in->device, dy->_dtype, in->ndim, in->shape, 0, &zero));
    const cfx_status status = cfx_scatter_add(&zero, (int32_t)node->i[0], &node->saved[0], dy, &g);
    cfx_release(&zero);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

static cfx_status run_pick(cf_op op, const cfx_tensor *x, int32_t dim, int64_t n, int64_t param, cfx_tensor *values,
                           cfx_tensor *ids) {
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor from, to, to_ids;
    cf_node *node = NULL;
    memcpy(shape, x->_shape, sizeof shape);
    shape[dim] = n;
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, shape, values));
    cfx_status status = cf_new(cf_device(x), CFX_INT64, x->_ndim, shape, ids);
    if (status == CFX_OK) {
        cf_move_last(x, dim, &from);
        cf_move_last(values, dim, &to);
        cf_move_last(ids, dim, &to_ids);
        status = cf_issue_run(
            &(cf_issue){.op = op, .dtype = x->_dtype, .nout = 2, .nin = 1, .t = {&to, &to_ids, &from}, .i = {param}});
        cfx_release(&from);
        cfx_release(&to);
        cfx_release(&to_ids);
    }
    if (status == CFX_OK) status = cf_record(op, pick_backward, 1, &x, values, &node);
    if (status != CFX_OK) {
        cfx_release(values);
        cfx_release(ids);
        return status;
    }
    if (!node) return CFX_OK;
    node->i[0] = dim;
    cf_save(node, ids);
    return CFX_OK;
}

CFX_API cfx_status cfx_topk(const cfx_tensor *x, int64_t k, int32_t dim, cfx_tensor *values, cfx_tensor *ids) {
    CF_TRY(cf_check_tensor("topk", "x", x));
    CF_TRY(cf_check_dim("topk", x->_ndim, &dim));
    if (k < 0 || k > x->_shape[dim])
        return cf_fail(CFX_EARG, "topk: argument 'k': expected 0 to %lld, the size of dimension %d, got %lld",
                       (long long)x->_shape[dim], dim + 1, (long long)k);
    return run_pick(CF_OP_topk, x, dim, k, k, values, ids);
}

CFX_API cfx_status cfx_sort(const cfx_tensor *x, int32_t dim, int32_t descending, cfx_tensor *values, cfx_tensor *ids) {
    CF_TRY(cf_check_tensor("sort", "x", x));
    CF_TRY(cf_check_dim("sort", x->_ndim, &dim));
    return run_pick(CF_OP_sort, x, dim, x->_shape[dim], descending, values, ids);
}

/* ---- triangles and one-hot rows --------------------------------------------------------------------- */

CFX_API cfx_status cfx_tri(const cfx_tensor *x, int32_t upper, int64_t k, cfx_tensor *out) {
    cf_node *node = NULL;
    CF_TRY(cf_check_tensor("tri", "x", x));
    if (x->_ndim < 2) return cf_fail(CFX_EARG, "tri: expected 2 dimensions or more, got %d", x->_ndim);
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out));
    CF_TRY(cf_issue_run(&(cf_issue){
        .op = CF_OP_tri, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = {out, (cfx_tensor *)x}, .i = {upper, k}}));
    CF_TRY(cf_record(CF_OP_tri, cf_gradients[CF_OP_tri], 1, &x, out, &node));
    if (!node) return CFX_OK;
    node->i[0] = upper;
    node->i[1] = k;
    return CFX_OK;
}

cfx_status cf_grad_tri(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(cfx_tri(dy, (int32_t)node->i[0], node->i[1], &g));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_onehot(const cfx_tensor *ids, int64_t n, cfx_tensor *out) {
    int64_t shape[CFX_MAX_DIMS];
    CF_TRY(cf_check_tensor("onehot", "ids", ids));
    if (cf_is_float(ids->_dtype) || ids->_dtype == CFX_BOOL)
        return cf_fail(CFX_EARG, "onehot: argument 'ids': expected integers, got %s", cfx_dtype_name(ids->_dtype));
    if (n < 0) return cf_fail(CFX_EARG, "onehot: argument 'n': expected 0 or more, got %lld", (long long)n);
    if (ids->_ndim == CFX_MAX_DIMS) return cf_fail(CFX_EARG, "onehot: too many dimensions");
    memcpy(shape, ids->_shape, ids->_ndim * sizeof *shape);
    shape[ids->_ndim] = n;
    CF_TRY(cf_check_shape("onehot", CFX_FLOAT32, ids->_ndim + 1, shape));
    CF_TRY(cf_new(cf_device(ids), CFX_FLOAT32, ids->_ndim + 1, shape, out));
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_onehot, .dtype = CFX_FLOAT32, .nout = 1, .nin = 1, .t = {out, (cfx_tensor *)ids}});
}
