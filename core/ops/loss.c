/* loss.c: losses of two tensors of one shape, and cross-entropy fused with its softmax. */
#include "ops/shape.h"
#include "ops/tape.h"
#include "tensor/primitive.h"

/* ---- losses of two tensors -------------------------------------------------------------------------- */

/* As much of the call as its gradient needs to know. */
typedef struct pair_form {
    cf_op op;
    int32_t reduction;
    double param;
} pair_form;

static cfx_status pair_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const pair_form *form = node->kept;
    const cf_input *in = &node->inputs[0];
    for (int k = 0; k < 2; k++) {
        cfx_tensor g;
        if (!cf_needs(node, k)) continue;
        cf_place(tape, node, k, dy->_dtype, in->ndim, in->shape, &g);
        CF_TRY(cf_new(in->device, dy->_dtype, in->ndim, in->shape, &g));
        CF_TRY(cf_issue_run(&(cf_issue){.op = form->op + 1,
                                        .dtype = dy->_dtype,
                                        .nout = 1,
                                        .nin = 3,
                                        .t = CF_VIEWS(&g, (cfx_tensor *)dy, cf_saved(node, 0), cf_saved(node, 1)),
                                        .params = &(cf_loss_params){form->param, form->reduction, k}}));
        CF_TRY(cf_give(tape, node, k, &g));
    }
    return CFX_OK;
}

CFX_API cfx_status cfx_loss(int32_t op, const cfx_tensor *x, const cfx_tensor *y, double param, int32_t reduction,
                            cfx_tensor *out) {
    char have[256], want[256];
    if (op < 0 || op >= CF_OPS || cf_op_table[op].family != CF_LOSS)
        return cf_fail(CFX_EARG, "loss: there is no such operation (%d)", op);
    const char *name = cf_op_table[op].name;
    CF_TRY(cf_check_tensor(name, "x", x));
    CF_TRY(cf_check_tensor(name, "y", y));
    CF_TRY(cf_check_same_device(name, "y", x, y));
    if (!cf_same_shape(x, y))
        return cf_fail(CFX_EARG, "%s: argument 'y': expected the shape of x, a %s, got %s", name, cf_describe(x, want),
                       cf_describe(y, have));
    if (reduction < CFX_NONE || reduction > CFX_SUM)
        return cf_fail(CFX_EARG, "%s: unknown reduction %d", name, reduction);
    if (op == CF_OP_huber && !(param > 0)) return cf_fail(CFX_EARG, "huber: expected delta > 0, got %g", param);
    const int dtype = cf_float_of(cfx_dtype_promote(x->_dtype, y->_dtype));
    CF_TRY(cf_new(cf_device(x), dtype, reduction == CFX_NONE ? x->_ndim : 0, x->_shape, out));
    CF_TRY(cf_issue_run(&(cf_issue){.op = (cf_op)op,
                                    .dtype = dtype,
                                    .nout = 1,
                                    .nin = 2,
                                    .t = CF_VIEWS(out, (cfx_tensor *)x, (cfx_tensor *)y),
                                    .params = &(cf_loss_params){param, reduction, 0}}));
    const cfx_tensor *const inputs[] = {x, y};
    return cf_record(&(cf_recording){.op = name,
                                     .backward = pair_backward,
                                     .nin = 2,
                                     .nsaved = 2,
                                     .inputs = inputs,
                                     .saved = inputs,
                                     .kept = &(pair_form){(cf_op)op, reduction, param},
                                     .kept_bytes = sizeof(pair_form)},
                     out);
}

/* ---- cross-entropy ---------------------------------------------------------------------------------- */

static cfx_status crossentropy_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_crossentropy_params *form = node->kept;
    const cf_input *in = &node->inputs[0];
    cfx_tensor *x = cf_saved(node, 0), dy = {0}, g = {0}, to;
    CF_TRY(cf_packed(grad, &dy));
    if (form->reduction == CFX_NONE) cf_set_packed(&dy, 1, x->_shape);
    cfx_status status = cf_new(in->device, in->dtype, in->ndim, in->shape, &g);
    if (status == CFX_OK) {
        to = g; /* borrowed */
        cf_set_packed(&to, 2, x->_shape);
        status = cf_issue_run(
            &(cf_issue){.op = CF_OP_crossentropy_bw,
                        .dtype = in->dtype,
                        .nout = 1,
                        .nin = 5,
                        .t = CF_VIEWS(&to, &dy, x, cf_saved(node, 1), cf_saved(node, 2), cf_saved(node, 3)),
                        .params = form});
        if (status != CFX_OK) g = to;
    }
    cfx_release(&dy);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

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
    CF_TRY(check_classes(logits, target, smoothing, reduction, &ids));
    const int dtype = logits->_dtype, kept = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    CF_TRY(cf_rows_of(logits, logits->_ndim - 1, &x));
    cfx_status status = cf_rows_of(target, logits->_ndim - 1, &t);
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
                                          .t = CF_VIEWS(&loss, &lse, &weight, &x, &t),
                                          .params = &(cf_crossentropy_params){smoothing, ignore, reduction}});
        if (status != CFX_OK) *out = loss;
    } else {
        cfx_release(out);
    }
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "crossentropy",
                                           .backward = crossentropy_backward,
                                           .nin = 1,
                                           .nsaved = 4,
                                           .inputs = &logits,
                                           .saved = (const cfx_tensor *[]){&x, &t, &lse, &weight},
                                           .kept = &(cf_crossentropy_params){smoothing, ignore, reduction},
                                           .kept_bytes = sizeof(cf_crossentropy_params)},
                           out);
    cfx_release(&x);
    cfx_release(&t);
    cfx_release(&lse);
    cfx_release(&weight);
    return status;
}
