/* groupnorm.c: group normalisation. */
#include <string.h>

#include "ops/gradients.h"
#include "tensor/primitive.h"

static cfx_status check_channels(const cfx_tensor *x, const char *argument, const cfx_tensor *t) {
    char have[256];
    const int64_t c = x->_shape[x->_ndim - 1];
    CF_TRY(cf_check_tensor("groupnorm", argument, t));
    CF_TRY(cf_check_same_device("groupnorm", argument, x, t));
    if (cf_has_shape(t, 1, &c) && t->_dtype == x->_dtype) return CFX_OK;
    return cf_fail(CFX_EARG, "groupnorm: argument '%s': expected shape [%lld] (%s), got %s", argument, (long long)c,
                   cfx_dtype_name(x->_dtype), cf_describe(t, have));
}

static cfx_status check(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, int64_t groups) {
    char have[256];
    CF_TRY(cf_check_tensor("groupnorm", "x", x));
    if (!cf_is_float(x->_dtype) || x->_ndim < 2)
        return cf_fail(CFX_EARG, "groupnorm: argument 'x': expected floats of shape [n, .., channels], got %s",
                       cf_describe(x, have));
    if (groups < 1 || x->_shape[x->_ndim - 1] % groups)
        return cf_fail(CFX_EARG, "groupnorm: argument 'groups': %lld groups do not divide %lld channels",
                       (long long)groups, (long long)x->_shape[x->_ndim - 1]);
    if (!gamma != !beta) return cf_fail(CFX_EARG, "groupnorm: expected gamma and beta, or neither");
    if (!gamma) return CFX_OK;
    CF_TRY(check_channels(x, "gamma", gamma));
    return check_channels(x, "beta", beta);
}

/* Shows x, which is packed, as [n, rows, c]. */
static void as_rows(cfx_tensor *x) {
    const int64_t shape[3] = {x->_shape[0], cf_shape_numel(x->_ndim - 2, x->_shape + 1), x->_shape[x->_ndim - 1]};
    cf_set_packed(x, 3, shape);
}

/* Inputs of a node, in order; its saved tensors are rows, mean and variance, and if affine gamma. */
enum { X, GAMMA, BETA, INPUTS };

/* Makes the gradients g of the inputs that `wants` names. */
static cfx_status run_gradient(cf_node *node, cfx_tensor *dy, const bool *wants, cfx_tensor *g) {
    const bool affine = node->nsaved > 3;
    const cf_groupnorm_bw_params params = {*(double *)node->kept, wants[X], wants[GAMMA], affine};
    cfx_tensor dx = g[X], *t[8];
    int n = 0;
    if (wants[X]) {
        as_rows(&dx);
        t[n++] = &dx;
    }
    if (wants[GAMMA]) t[n++] = &g[GAMMA], t[n++] = &g[BETA];
    const int nout = n;
    t[n++] = dy;
    for (int i = 0; i < node->nsaved; i++) t[n++] = cf_saved(node, i);
    const cfx_status status = cf_issue_run(&(cf_issue){
        .op = CF_OP_groupnorm_bw, .dtype = dy->_dtype, .nout = nout, .nin = n - nout, .t = t, .params = &params});
    if (status != CFX_OK) memset(g, 0, INPUTS * sizeof *g); /* released by the failure */
    return status;
}

static cfx_status groupnorm_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const bool affine = cf_needs(node, GAMMA) || cf_needs(node, BETA);
    const bool wants[INPUTS] = {cf_needs(node, X), affine, affine};
    cfx_tensor dy = {0};
    CF_TRY(cf_packed(grad, &dy));
    as_rows(&dy);
    return cf_give_gradients(tape, node, INPUTS, wants, run_gradient, &dy);
}

/* out is made, and mean and variance [n, groups]; x: rows. */
static cfx_status run(cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, double eps, cfx_tensor *mean,
                      cfx_tensor *variance, cfx_tensor *out) {
    const cf_groupnorm_params params = {eps, gamma != NULL};
    cfx_tensor y = *out; /* borrowed */
    as_rows(&y);
    const cfx_status status =
        cf_issue_run(&(cf_issue){.op = CF_OP_groupnorm,
                                 .dtype = x->_dtype,
                                 .nout = 3,
                                 .nin = gamma ? 3 : 1,
                                 .t = CF_VIEWS(&y, mean, variance, x, (cfx_tensor *)gamma, (cfx_tensor *)beta),
                                 .params = &params});
    if (status != CFX_OK) *out = y; /* released by the failure */
    return status;
}

CFX_API cfx_status cfx_groupnorm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, int64_t groups,
                                 double eps, cfx_tensor *out) {
    cfx_tensor rows = {0}, mean = {0}, variance = {0};
    CF_TRY(check(x, gamma, beta, groups));
    CF_TRY(cf_packed(x, &rows));
    as_rows(&rows);
    const int kept = x->_dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    const int64_t shape[2] = {x->_shape[0], groups};
    cfx_status status = cf_new(cf_device(x), kept, 2, shape, &mean);
    if (status == CFX_OK) status = cf_new(cf_device(x), kept, 2, shape, &variance);
    if (status == CFX_OK) status = cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out);
    if (status == CFX_OK) status = run(&rows, gamma, beta, eps, &mean, &variance, out);
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "groupnorm",
                                           .backward = groupnorm_backward,
                                           .nin = INPUTS,
                                           .nsaved = gamma ? 4 : 3,
                                           .inputs = (const cfx_tensor *[INPUTS]){x, gamma, beta},
                                           .saved = (const cfx_tensor *[]){&rows, &mean, &variance, gamma},
                                           .kept = &eps,
                                           .kept_bytes = sizeof eps},
                           out);
    cfx_release(&rows);
    cfx_release(&mean);
    cfx_release(&variance);
    return status;
}
