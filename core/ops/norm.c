/* norm.c: layer normalisation. */
#include <string.h>

#include "ops/shape.h"
#include "ops/tape.h"
#include "tensor/issue.h"

/* lead: how many dimensions come before those that are normalised. */
static cfx_status check_norm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, int *lead) {
    char have[256], want[256];
    CF_TRY(cf_check_tensor("layernorm", "x", x));
    if (!cf_is_float(x->_dtype))
        return cf_fail(CFX_EARG, "layernorm: argument 'x': expected a float tensor, got %s", cfx_dtype_name(x->_dtype));
    if (x->_ndim < 1) return cf_fail(CFX_EARG, "layernorm: argument 'x': expected one dimension or more, got none");
    *lead = x->_ndim - 1;
    if (!gamma != !beta) return cf_fail(CFX_EARG, "layernorm: expected gamma and beta, or neither");
    if (!gamma) return CFX_OK;
    CF_TRY(cf_check_tensor("layernorm", "gamma", gamma));
    CF_TRY(cf_check_tensor("layernorm", "beta", beta));
    CF_TRY(cf_check_same_device("layernorm", "gamma", x, gamma));
    CF_TRY(cf_check_same_device("layernorm", "beta", x, beta));
    *lead = x->_ndim - gamma->_ndim;
    if (*lead >= 0 && gamma->_ndim > 0 && cf_same_shape(gamma, beta) && gamma->_dtype == beta->_dtype &&
        gamma->_dtype == x->_dtype && cfx_is_contiguous(gamma) && cfx_is_contiguous(beta) &&
        cf_has_shape(gamma, x->_ndim - *lead, x->_shape + *lead))
        return CFX_OK;
    return cf_fail(CFX_EARG,
                   "layernorm: argument 'gamma': expected the last dimensions of a %s (beta likewise), got %s",
                   cf_describe(x, want), cf_describe(gamma, have));
}

/* Borrowed: x as one dimension. */
static void flat(const cfx_tensor *x, cfx_tensor *out) {
    const int64_t n = cf_numel(x);
    *out = *x;
    cf_set_packed(out, 1, &n);
}

static cfx_status layernorm_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_input *in = &node->inputs[0];
    const bool affine = node->nin == 3;
    cfx_tensor *x = cf_saved(node, 0), dy = {0}, g[3] = {0}, gamma, to[3];
    CF_TRY(cf_rows_of(grad, grad->_ndim - (affine ? node->inputs[1].ndim : 1), &dy));
    cfx_status status = cf_new(in->device, grad->_dtype, in->ndim, in->shape, &g[0]);
    for (int k = 1; k < 3 && affine && status == CFX_OK; k++) {
        const cf_input *p = &node->inputs[k];
        cf_place(tape, node, k, p->dtype, p->ndim, p->shape, &g[k]);
        status = cf_new(in->device, p->dtype, p->ndim, p->shape, &g[k]);
        if (status == CFX_OK) flat(&g[k], &to[k]);
    }
    if (status == CFX_OK) {
        to[0] = g[0];
        cf_set_packed(&to[0], 2, x->_shape);
        if (affine) flat(cf_saved(node, 3), &gamma);
        cfx_tensor *mean = cf_saved(node, 1), *rstd = cf_saved(node, 2);
        status = cf_issue_run(&(cf_issue){.op = CF_OP_layernorm_bw,
                                          .dtype = grad->_dtype,
                                          .nout = affine ? 3 : 1,
                                          .nin = affine ? 5 : 4,
                                          .t = affine ? CF_VIEWS(&to[0], &to[1], &to[2], &dy, x, mean, rstd, &gamma)
                                                      : CF_VIEWS(&to[0], &dy, x, mean, rstd),
                                          .params = &(cf_layernorm_bw_params){affine}});
        if (status != CFX_OK) memset(g, 0, sizeof g); /* released by the failure */
    }
    for (int k = 0; k < (affine ? 3 : 1) && status == CFX_OK; k++) status = cf_give(tape, node, k, &g[k]);
    for (int k = 0; k < 3; k++) cfx_release(&g[k]);
    cfx_release(&dy);
    return status;
}

CFX_API cfx_status cfx_layernorm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, double eps,
                                 cfx_tensor *out) {
    int lead = 0;
    cfx_tensor rows = {0}, mean = {0}, rstd = {0}, y, g, b;
    CF_TRY(check_norm(x, gamma, beta, &lead));
    CF_TRY(cf_rows_of(x, lead, &rows));
    cfx_status status = cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out);
    const int kept = x->_dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    if (status == CFX_OK) status = cf_new(cf_device(x), kept, 1, rows._shape, &mean);
    if (status == CFX_OK) status = cf_new(cf_device(x), kept, 1, rows._shape, &rstd);
    if (status == CFX_OK) {
        y = *out; /* borrowed */
        cf_set_packed(&y, 2, rows._shape);
        if (gamma) {
            flat(gamma, &g);
            flat(beta, &b);
        }
        status = cf_issue_run(&(cf_issue){.op = CF_OP_layernorm,
                                          .dtype = x->_dtype,
                                          .nout = 3,
                                          .nin = gamma ? 3 : 1,
                                          .t = CF_VIEWS(&y, &mean, &rstd, &rows, &g, &b),
                                          .params = &(cf_layernorm_params){eps}});
        if (status != CFX_OK) *out = y;
    } else {
        cfx_release(out);
    }
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "layernorm",
                                           .backward = layernorm_backward,
                                           .nin = gamma ? 3 : 1,
                                           .nsaved = gamma ? 4 : 3,
                                           .inputs = (const cfx_tensor *[]){x, gamma, beta},
                                           .saved = (const cfx_tensor *[]){&rows, &mean, &rstd, gamma}},
                           out);
    cfx_release(&rows);
    cfx_release(&mean);
    cfx_release(&rstd);
    return status;
}
