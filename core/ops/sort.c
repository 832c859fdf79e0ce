/* sort.c: the largest along a dimension, and all in order. */
#include <string.h>

#include "ops/shape.h"
#include "ops/tape.h"
#include "tensor/issue.h"

/* Keeps the dimension, and which elements the values came from. */
static cfx_status pick_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor zero = {0}, g = {0};
    CF_TRY(cfx_full(in->device, dy->_dtype, in->ndim, in->shape, 0, &zero));
    const cfx_status status = cfx_scatter_add(&zero, *(int32_t *)node->kept, cf_saved(node, 0), dy, &g);
    cfx_release(&zero);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

static cfx_status run_pick(cf_op op, const cfx_tensor *x, int32_t dim, int64_t n, const void *params,
                           cfx_tensor *values, cfx_tensor *ids) {
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor from, to, to_ids;
    memcpy(shape, x->_shape, sizeof shape);
    shape[dim] = n;
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, shape, values));
    cfx_status status = cf_new(cf_device(x), CFX_INT64, x->_ndim, shape, ids);
    if (status == CFX_OK) {
        cf_move_last(x, dim, &from);
        cf_move_last(values, dim, &to);
        cf_move_last(ids, dim, &to_ids);
        status = cf_issue_run(&(cf_issue){
            .op = op, .dtype = x->_dtype, .nout = 2, .nin = 1, .t = CF_VIEWS(&to, &to_ids, &from), .params = params});
        cfx_release(&from);
        cfx_release(&to);
        cfx_release(&to_ids);
    }
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = cf_op_table[op].name,
                                           .backward = pick_backward,
                                           .nin = 1,
                                           .nsaved = 1,
                                           .inputs = &x,
                                           .saved = (const cfx_tensor *[]){ids},
                                           .kept = &dim,
                                           .kept_bytes = sizeof dim},
                           values);
    if (status == CFX_OK) return CFX_OK;
    cfx_release(values);
    cfx_release(ids);
    return status;
}

CFX_API cfx_status cfx_topk(const cfx_tensor *x, int64_t k, int32_t dim, cfx_tensor *values, cfx_tensor *ids) {
    CF_TRY(cf_check_tensor("topk", "x", x));
    CF_TRY(cf_check_dim("topk", x->_ndim, &dim));
    if (k < 0 || k > x->_shape[dim])
        return cf_fail(CFX_EARG, "topk: argument 'k': expected 0 to %lld, the size of dimension %d, got %lld",
                       (long long)x->_shape[dim], dim + 1, (long long)k);
    return run_pick(CF_OP_topk, x, dim, k, &(cf_topk_params){k}, values, ids);
}

CFX_API cfx_status cfx_sort(const cfx_tensor *x, int32_t dim, int32_t descending, cfx_tensor *values, cfx_tensor *ids) {
    CF_TRY(cf_check_tensor("sort", "x", x));
    CF_TRY(cf_check_dim("sort", x->_ndim, &dim));
    return run_pick(CF_OP_sort, x, dim, x->_shape[dim], &(cf_sort_params){descending}, values, ids);
}
