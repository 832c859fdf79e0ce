/* select.c: rows and elements by ids, and ids as rows. */
#include <string.h>

#include "ops/tape.h"
#include "tensor/primitive.h"

static cfx_status check_ids(const char *name, const cfx_tensor *x, const cfx_tensor *ids) {
    CF_TRY(cf_check_tensor(name, "x", x));
    CF_TRY(cf_check_tensor(name, "ids", ids));
    CF_TRY(cf_check_same_device(name, "ids", x, ids));
    if (cf_is_float(ids->_dtype) || ids->_dtype == CFX_BOOL)
        return cf_fail(CFX_EARG, "%s: argument 'ids': expected integers, got %s", name, cfx_dtype_name(ids->_dtype));
    return CFX_OK;
}

/* Keeps the dimension and the ids. */
static cfx_status record(cf_op op, cf_backward backward, int nin, const cfx_tensor *const *inputs,
                         const cfx_tensor *ids, int32_t dim, cfx_tensor *out) {
    return cf_record(&(cf_recording){.op = cf_op_table[op].name,
                                     .backward = backward,
                                     .nin = nin,
                                     .nsaved = 1,
                                     .inputs = inputs,
                                     .saved = &ids,
                                     .kept = &dim,
                                     .kept_bytes = sizeof dim},
                     out);
}

/* Adds dy to zeros at the saved ids. */
static cfx_status give_added(cfx_tape *tape, cf_node *node, cf_op op, const cfx_tensor *dy) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor g = {0};
    cf_place(tape, node, 0, dy->_dtype, in->ndim, in->shape, &g);
    CF_TRY(cf_new(in->device, dy->_dtype, in->ndim, in->shape, &g));
    cfx_status status = cf_fill_make(&g);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = op,
                                          .dtype = dy->_dtype,
                                          .nout = 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(&g, cf_saved(node, 0), (cfx_tensor *)dy),
                                          .params = &(cf_select_params){*(int32_t *)node->kept}});
    if (status != CFX_OK) {
        cfx_release(&g);
        return status;
    }
    return cf_give(tape, node, 0, &g);
}

/* ---- index ------------------------------------------------------------------------------------------ */

static cfx_status index_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_added(tape, node, CF_OP_index_add, dy);
}

CFX_API cfx_status cfx_index(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, cfx_tensor *out) {
    int64_t shape[2 * CFX_MAX_DIMS];
    cfx_tensor packed = {0};
    CF_TRY(check_ids("index", x, ids));
    CF_TRY(cf_check_dim("index", x->_ndim, &dim));
    const int ndim = x->_ndim - 1 + ids->_ndim;
    memcpy(shape, x->_shape, (size_t)dim * sizeof *shape);
    memcpy(shape + dim, ids->_shape, ids->_ndim * sizeof *shape);
    memcpy(shape + dim + ids->_ndim, x->_shape + dim + 1, (size_t)(x->_ndim - dim - 1) * sizeof *shape);
    CF_TRY(cf_check_shape("index", x->_dtype, ndim, shape));
    CF_TRY(cf_packed(ids, &packed));
    cfx_status status = cf_new(cf_device(x), x->_dtype, ndim, shape, out);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_index,
                                          .dtype = x->_dtype,
                                          .nout = 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(out, (cfx_tensor *)x, &packed),
                                          .params = &(cf_select_params){dim}});
    if (status == CFX_OK) status = record(CF_OP_index, index_backward, 1, &x, &packed, dim, out);
    cfx_release(&packed);
    return status;
}

/* ---- gather and scatter ----------------------------------------------------------------------------- */

/* ids has the rank of x, and nowhere but along `dim` reaches beyond it. */
static cfx_status check_gather(const char *name, const cfx_tensor *x, int32_t *dim, const cfx_tensor *ids) {
    char have[256], want[256];
    CF_TRY(check_ids(name, x, ids));
    CF_TRY(cf_check_dim(name, x->_ndim, dim));
    bool fits = ids->_ndim == x->_ndim;
    for (int d = 0; fits && d < x->_ndim; d++) fits = d == *dim || ids->_shape[d] <= x->_shape[d];
    if (fits) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'ids': expected at most the shape of a %s but for dimension %d, got %s",
                   name, cf_describe(x, want), *dim + 1, cf_describe(ids, have));
}

static cfx_status gather_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_added(tape, node, CF_OP_scatter_add, dy);
}

CFX_API cfx_status cfx_gather(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, cfx_tensor *out) {
    cfx_tensor packed = {0};
    CF_TRY(check_gather("gather", x, &dim, ids));
    CF_TRY(cf_packed(ids, &packed));
    cfx_status status = cf_new(cf_device(x), x->_dtype, ids->_ndim, ids->_shape, out);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_gather,
                                          .dtype = x->_dtype,
                                          .nout = 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(out, (cfx_tensor *)x, &packed),
                                          .params = &(cf_select_params){dim}});
    if (status == CFX_OK) status = record(CF_OP_gather, gather_backward, 1, &x, &packed, dim, out);
    cfx_release(&packed);
    return status;
}

/* dx = dy, dsrc = dy at ids. */
static cfx_status scatter_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    if (cf_needs(node, 0)) {
        cf_alias(dy, &g);
        CF_TRY(cf_give(tape, node, 0, &g));
    }
    if (!cf_needs(node, 1)) return CFX_OK;
    CF_TRY(cfx_gather(dy, *(int32_t *)node->kept, cf_saved(node, 0), &g));
    return cf_give(tape, node, 1, &g);
}

CFX_API cfx_status cfx_scatter_add(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, const cfx_tensor *src,
                                   cfx_tensor *out) {
    char have[256], want[192];
    cfx_tensor packed = {0};
    CF_TRY(check_gather("scatteradd", x, &dim, ids));
    CF_TRY(cf_check_tensor("scatteradd", "src", src));
    CF_TRY(cf_check_same_device("scatteradd", "src", x, src));
    if (!cf_same_shape(ids, src) || src->_dtype != x->_dtype)
        return cf_fail(CFX_EARG, "scatteradd: argument 'src': expected shape %s (%s), got %s",
                       cf_shape_text(ids->_ndim, ids->_shape, want), cfx_dtype_name(x->_dtype), cf_describe(src, have));
    CF_TRY(cf_packed(ids, &packed));
    cfx_status status = cf_clone(x, out);
    if (status == CFX_OK) {
        status = cf_issue_run(&(cf_issue){.op = CF_OP_scatter_add,
                                          .dtype = x->_dtype,
                                          .nout = 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(out, &packed, (cfx_tensor *)src),
                                          .params = &(cf_select_params){dim}});
        if (status != CFX_OK) cfx_release(out);
    }
    if (status == CFX_OK)
        status = record(CF_OP_scatter_add, scatter_backward, 2, (const cfx_tensor *[]){x, src}, &packed, dim, out);
    cfx_release(&packed);
    return status;
}

/* ---- one-hot rows ----------------------------------------------------------------------------------- */

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
    return cf_issue_run(&(cf_issue){
        .op = CF_OP_onehot, .dtype = CFX_FLOAT32, .nout = 1, .nin = 1, .t = CF_VIEWS(out, (cfx_tensor *)ids)});
}
