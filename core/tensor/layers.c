/* layers.c: layer normalisation, and cross-entropy fused with its softmax. */
#include <string.h>

#include "tensor/tape.h"

/* x as rows of all but its first `lead` dimensions, packed; not recorded. */
static cfx_status rows_of(const cfx_tensor *x, int lead, cfx_tensor *out) {
    cfx_tensor plain, packed = {0};
    const int64_t shape[2] = {cf_shape_numel(lead, x->_shape), cf_shape_numel(x->_ndim - lead, x->_shape + lead)};
    cf_alias(x, &plain);
    cfx_status status = cfx_contiguous(&plain, &packed);
    if (status == CFX_OK) status = cfx_reshape(&packed, 2, shape, out);
    cfx_release(&plain);
    cfx_release(&packed);
    return status;
}

/* ---- layer normalisation ---------------------------------------------------------------------------- */

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

CFX_API cfx_status cfx_layernorm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, double eps,
                                 cfx_tensor *out) {
    int lead = 0;
    cfx_tensor rows = {0}, mean = {0}, rstd = {0}, y, g, b;
    cf_node *node = NULL;
    CF_TRY(check_norm(x, gamma, beta, &lead));
    CF_TRY(rows_of(x, lead, &rows));
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
                                          .t = {&y, &mean, &rstd, &rows, &g, &b},
                                          .p = {eps}});
        if (status != CFX_OK) *out = y;
    } else {
        cfx_release(out);
    }
    if (status == CFX_OK)
        status = cf_record(CF_OP_layernorm, cf_gradients[CF_OP_layernorm], gamma ? 3 : 1,
                           (const cfx_tensor *[]){x, gamma, beta}, out, &node);
    if (status == CFX_OK && node) {
        cf_save(node, &rows);
        cf_save(node, &mean);
        cf_save(node, &rstd);
        if (gamma) cf_save(node, gamma);
    }
    cfx_release(&rows);
    cfx_release(&mean);
    cfx_release(&rstd);
    return status;
}

cfx_status cf_grad_layernorm(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_input *in = &node->inputs[0];
    const bool affine = node->nin == 3;
    cfx_tensor *x = &node->saved[0], dy = {0}, g[3] = {0}, gamma, to[3];
    CF_TRY(rows_of(grad, grad->_ndim - (affine ? node->inputs[1].ndim : 1), &dy));
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
        if (affine) flat(&node->saved[3], &gamma);
        cf_issue issue = {.op = CF_OP_layernorm_bw,
                          .dtype = grad->_dtype,
                          .nout = affine ? 3 : 1,
                          .nin = affine ? 5 : 4,
                          .i = {affine}};
        int n = 0;
        for (int k = 0; k < issue.nout; k++) issue.t[n++] = &to[k];
        issue.t[n++] = &dy;
        issue.t[n++] = x;
        issue.t[n++] = &node->saved[1];
        issue.t[n++] = &node->saved[2];
        if (affine) issue.t[n] = &gamma;
        status = cf_issue_run(&issue);
        if (status != CFX_OK) memset(g, 0, sizeof g); /* released by the failure */
    }
    for (int k = 0; k < (affine ? 3 : 1) && status == CFX_OK; k++) status = cf_give(tape, node, k, &g[k]);
    for (int k = 0; k < 3; k++) cfx_release(&g[k]);
    cfx_release(&dy);
    return status;
}

/* ---- cross-entropy ---------------------------------------------------------------------------------- */

static cfx_status check_classes(const cfx_tensor *x, const cfx_tensor *target, double smoothing, int32_t reduction,
                                bool *ids) {
    char have[256], want[256];
    CF_TRY(cf_check_tensor("crossentropy", "logits", x));
    CF_TRY(cf_check_tensor("crossentropy", "target", target));
    CF_TRY(cf_check_same_device("crossentropy", "target", x, target));
    if (!cf_is_float(x->_dtype) || x->_ndim < 1 || x->_shape[x->_ndim - 1] < 1)
        return cf_fail(CFX_EARG, "crossentropy: argument 'logits': expected floats [.., classes], got %s",
                       cf_describe(x, have));
    *ids = !cf_is_float(target->_dtype);
    const int rank = *ids ? x->_ndim - 1 : x->_ndim;
    if (target->_dtype == CFX_BOOL || !cf_has_shape(target, rank, x->_shape))
        return cf_fail(CFX_EARG, "crossentropy: argument 'target': expected ids, or probabilities, for a %s, got %s",
                       cf_describe(x, want), cf_describe(target, have));
    if (!(smoothing >= 0 && smoothing <= 1))
        return cf_fail(CFX_EARG, "crossentropy: option 'smoothing': expected 0 to 1, got %g", smoothing);
    if (reduction < CFX_NONE || reduction > CFX_SUM)
        return cf_fail(CFX_EARG, "crossentropy: unknown reduction %d", reduction);
    return CFX_OK;
}

CFX_API cfx_status cfx_crossentropy(const cfx_tensor *logits, const cfx_tensor *target, double smoothing,
                                    int64_t ignore, int32_t reduction, cfx_tensor *out) {
    bool ids = false;
    cfx_tensor x = {0}, t = {0}, lse = {0}, weight = {0}, loss;
    cf_node *node = NULL;
    CF_TRY(check_classes(logits, target, smoothing, reduction, &ids));
    const int dtype = logits->_dtype, kept = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    CF_TRY(rows_of(logits, logits->_ndim - 1, &x));
    cfx_status status = rows_of(target, logits->_ndim - 1, &t);
    if (status == CFX_OK && ids) cf_set_packed(&t, 1, x._shape);
    if (status == CFX_OK)
        status = cf_new(cf_device(logits), dtype, reduction == CFX_NONE ? logits->_ndim - 1 : 0, logits->_shape, out);
    if (status == CFX_OK) status = cf_new(cf_device(logits), kept, 1, x._shape, &lse);
    if (status == CFX_OK) status = cf_new(cf_device(logits), kept, 0, NULL, &weight);
    if (status == CFX_OK) {
        loss = *out; /* borrowed */
        if (reduction == CFX_NONE) cf_set_packed(&loss, 1, x._shape);
        status = cf_issue_run(&(cf_issue){.op = CF_OP_crossentropy,
                                          .dtype = dtype,
                                          .nout = 3,
                                          .nin = 2,
                                          .t = {&loss, &lse, &weight, &x, &t},
                                          .p = {smoothing},
                                          .i = {reduction, ignore}});
        if (status != CFX_OK) *out = loss;
    } else {
        cfx_release(out);
    }
    if (status == CFX_OK)
        status = cf_record(CF_OP_crossentropy, cf_gradients[CF_OP_crossentropy], 1, &logits, out, &node);
    if (status == CFX_OK && node) {
        node->p[0] = smoothing;
        node->i[0] = reduction;
        node->i[1] = ignore;
        cf_save(node, &x);
        cf_save(node, &t);
        cf_save(node, &lse);
        cf_save(node, &weight);
    }
    cfx_release(&x);
    cfx_release(&t);
    cfx_release(&lse);
    cfx_release(&weight);
    return status;
}

cfx_status cf_grad_crossentropy(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor *x = &node->saved[0], dy = {0}, g = {0}, to;
    CF_TRY(cfx_contiguous(grad, &dy));
    if (node->i[0] == CFX_NONE) cf_set_packed(&dy, 1, x->_shape);
    cfx_status status = cf_new(in->device, in->dtype, in->ndim, in->shape, &g);
    if (status == CFX_OK) {
        to = g; /* borrowed */
        cf_set_packed(&to, 2, x->_shape);
        status = cf_issue_run(&(cf_issue){.op = CF_OP_crossentropy_bw,
                                          .dtype = in->dtype,
                                          .nout = 1,
                                          .nin = 5,
                                          .t = {&to, &dy, x, &node->saved[1], &node->saved[2], &node->saved[3]},
                                          .p = {node->p[0]},
                                          .i = {node->i[0], node->i[1]}});
        if (status != CFX_OK) g = to;
    }
    cfx_release(&dy);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}
