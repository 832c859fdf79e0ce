/* conv.c: convolutions and transposed ones, over images [n, h, w, channels].
 *
 * A transposed convolution is the gradient of a convolution by its image, run forwards; so its own gradients are a
 * convolution, and that convolution's gradient by its weight.
 */
#include <string.h>

#include "ops/activation.h"
#include "tensor/primitive.h"

/* ---- checks ------------------------------------------------------------------------------------------------- */

/* Strides, pads and dilations are at most so many: libraries count in 32 bits, and no sum of ours overflows. */
enum { MOST = 1 << 30 };

static bool is_window(const cfx_window *w) {
    for (int d = 0; d < 2; d++)
        if (w->stride[d] < 1 || w->stride[d] > MOST || w->dilation[d] < 1 || w->dilation[d] > MOST) return false;
    for (int side = 0; side < 4; side++)
        if (w->pad[side] < 0 || w->pad[side] > MOST) return false;
    return true;
}

/* An operand beside x: [sizes] of x's dtype and device. */
static cfx_status check_like(const char *function, const char *argument, const cfx_tensor *t, const cfx_tensor *x,
                             int ndim, const int64_t *shape) {
    char have[256], want[192];
    CF_TRY(cf_check_tensor(function, argument, t));
    CF_TRY(cf_check_same_device(function, argument, x, t));
    if (cf_has_shape(t, ndim, shape) && t->_dtype == x->_dtype) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument '%s': expected shape %s (%s), got %s", function, argument,
                   cf_shape_text(ndim, shape, want), cfx_dtype_name(x->_dtype), cf_describe(t, have));
}

/* Of x, weight, window and groups: both kinds ask the same. */
static cfx_status check(const char *function, const cfx_tensor *x, const cfx_tensor *w, const cfx_window *window,
                        int64_t groups, bool transposed) {
    char have[256], want[256];
    CF_TRY(cf_check_tensor(function, "x", x));
    CF_TRY(cf_check_tensor(function, "weight", w));
    CF_TRY(cf_check_same_device(function, "weight", x, w));
    if (x->_ndim != 4)
        return cf_fail(CFX_EARG, "%s: argument 'x': expected shape [n, h, w, channels], got %s", function,
                       cf_describe(x, have));
    if (w->_ndim != 4 || w->_shape[1] < 1 || w->_shape[2] < 1)
        return cf_fail(CFX_EARG, "%s: argument 'weight': expected shape %s with a kernel from 1 by 1, got %s", function,
                       transposed ? "[in, kh, kw, out / groups]" : "[out, kh, kw, in / groups]", cf_describe(w, have));
    if (x->_dtype != w->_dtype || !cf_is_float(x->_dtype))
        return cf_fail(CFX_EARG, "%s: argument 'x': expected %s, got %s", function,
                       cf_is_float(w->_dtype) ? "the weight's dtype" : "a float tensor, and such a weight",
                       cf_describe(x, have));
    if (!window || !is_window(window))
        return cf_fail(CFX_EARG,
                       "%s: argument 'window': expected strides and dilations from 1 and pads from 0, none above %d",
                       function, MOST);
    if (groups < 1 || x->_shape[3] % groups || w->_shape[0] % groups)
        return cf_fail(CFX_EARG,
                       "%s: argument 'groups': expected a number that divides the channels of a %s and of a "
                       "weight %s, got %lld",
                       function, cf_describe(x, have), cf_shape_text(4, w->_shape, want), (long long)groups);
    const int64_t in = transposed ? w->_shape[0] : w->_shape[3] * groups;
    if (x->_shape[3] == in) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'x': expected %lld channels for a weight %s and %lld group%s, got %s",
                   function, (long long)in, cf_shape_text(4, w->_shape, want), (long long)groups,
                   groups == 1 ? "" : "s", cf_describe(x, have));
}

/* The pixels that a window with all its gaps covers. */
static int64_t reach_of(const cfx_window *window, const cfx_tensor *w, int d) {
    int64_t reach;
    if (__builtin_mul_overflow(window->dilation[d], w->_shape[1 + d] - 1, &reach)) return INT64_MAX / 2;
    return reach + 1;
}

static cfx_status conv_shape(const cfx_tensor *x, const cfx_tensor *w, const cfx_window *window, int64_t *shape) {
    char have[256];
    shape[0] = x->_shape[0];
    shape[3] = w->_shape[0];
    for (int d = 0; d < 2; d++) {
        const int64_t reach = reach_of(window, w, d);
        const int64_t padded = x->_shape[1 + d] + window->pad[2 * d] + window->pad[2 * d + 1];
        if (reach > padded)
            return cf_fail(CFX_EARG,
                           "conv: argument 'weight': its kernel, which covers %lld pixels of %s with its dilation, "
                           "is larger than the image with its pads (%lld): x is %s",
                           (long long)reach, d ? "a row" : "a column", (long long)padded, cf_describe(x, have));
        shape[1 + d] = (padded - reach) / window->stride[d] + 1;
    }
    return CFX_OK;
}

static cfx_status transposed_shape(const cfx_tensor *x, const cfx_tensor *w, const cfx_window *window,
                                   const int64_t *output_pad, int64_t groups, int64_t *shape) {
    char have[256];
    shape[0] = x->_shape[0];
    shape[3] = w->_shape[3] * groups;
    for (int d = 0; d < 2; d++) {
        const int64_t stride = window->stride[d], dilation = window->dilation[d];
        const int64_t below = stride > dilation ? stride : dilation;
        if (output_pad[d] < 0 || output_pad[d] >= below)
            return cf_fail(CFX_EARG,
                           "conv_transpose: argument 'output_pad': expected 0 to %lld, less than stride or dilation, "
                           "got %lld",
                           (long long)below - 1, (long long)output_pad[d]);
        int64_t size;
        bool fits = !__builtin_mul_overflow(x->_shape[1 + d] - 1, stride, &size);
        fits = fits && !__builtin_add_overflow(size, reach_of(window, w, d) - 1 + output_pad[d] + 1, &size);
        shape[1 + d] = size - window->pad[2 * d] - window->pad[2 * d + 1];
        if (!fits || shape[1 + d] < 1)
            return cf_fail(CFX_EARG, "conv_transpose: argument 'window': its pads leave nothing of the result: x is %s",
                           cf_describe(x, have));
    }
    return cf_check_shape("conv_transpose", x->_dtype, 4, shape);
}

static cf_conv_params params_of(const cfx_tensor *x, const cfx_window *w, int64_t groups, int32_t act) {
    return (cf_conv_params){.stride = {w->stride[0], w->stride[1]},
                            .pad = {w->pad[0], w->pad[2]},
                            .dilation = {w->dilation[0], w->dilation[1]},
                            .groups = groups,
                            .p = {cf_act_number(act)},
                            .act = act,
                            .precision = cf_context(x)->precision};
}

/* ---- commands ----------------------------------------------------------------------------------------------- */

/* `out`, made by the row `op` of its inputs; bias and residual NULL but for conv. */
static cfx_status issue(cf_op op, cfx_tensor *out, const cfx_tensor *a, const cfx_tensor *b, const cfx_tensor *bias,
                        const cfx_tensor *residual, cf_conv_params params) {
    cfx_tensor *t[5] = {out, (cfx_tensor *)a, (cfx_tensor *)b};
    int nin = 2;
    params.bias = bias != NULL;
    params.residual = residual != NULL;
    if (op != CF_OP_conv) params.act = -1;
    if (bias) t[1 + nin++] = (cfx_tensor *)bias;
    if (residual) t[1 + nin++] = (cfx_tensor *)residual;
    return cf_issue_run(&(cf_issue){.op = op, .dtype = out->_dtype, .nout = 1, .nin = nin, .t = t, .params = &params});
}

/* The gradient of input k, made by `op` of two tensors. */
static cfx_status give(cfx_tape *tape, cf_node *node, int k, cf_op op, const cfx_tensor *a, const cfx_tensor *b) {
    const cf_input *in = &node->inputs[k];
    cf_conv_params params = *(const cf_conv_params *)node->kept;
    cfx_tensor g = {0};
    if (!cf_needs(node, k)) return CFX_OK;
    params.act = -1;
    cf_place(tape, node, k, a->_dtype, 4, in->shape, &g);
    CF_TRY(cf_new(in->device, a->_dtype, 4, in->shape, &g));
    CF_TRY(issue(op, &g, a, b, NULL, NULL, params));
    return cf_give(tape, node, k, &g);
}

/* ---- conv --------------------------------------------------------------------------------------------------- */

enum { X, WEIGHT, BIAS, RESIDUAL, INPUTS }; /* those that are recorded */

static cfx_status conv_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const int32_t act = ((const cf_conv_params *)node->kept)->act;
    const int64_t rows[2] = {cf_shape_numel(3, grad->_shape), grad->_shape[3]};
    const cfx_tensor *x = cf_saved(node, 0), *weight = cf_saved(node, 1), *y = act >= 0 ? cf_saved(node, 2) : NULL;
    cfx_tensor dy = {0}, dpre = {0}, dresidual;
    CF_TRY(cf_packed(grad, &dy));
    cf_set_packed(&dy, 2, rows);
    cfx_status status = cf_act_backward(tape, node, act, y, &dy, &dpre);
    if (status == CFX_OK) {
        cf_set_packed(&dpre, 4, grad->_shape);
        status = give(tape, node, WEIGHT, CF_OP_conv_bw_weights, &dpre, x);
    }
    if (status == CFX_OK) status = give(tape, node, X, CF_OP_conv_bw_data, &dpre, weight);
    if (status == CFX_OK && cf_needs(node, RESIDUAL)) {
        cf_alias(&dpre, &dresidual);
        status = cf_give(tape, node, RESIDUAL, &dresidual);
    }
    cfx_release(&dy);
    cfx_release(&dpre);
    return status;
}

/* All inputs checked, the activation none or one that fuses. */
static cfx_status conv(const cfx_tensor *const *inputs, const int64_t *shape, const cf_conv_params *params,
                       cfx_tensor *out) {
    cfx_tensor packed[INPUTS] = {{0}};
    cfx_status status = CFX_OK;
    for (int k = 0; k < INPUTS && status == CFX_OK; k++)
        if (inputs[k]) status = cf_packed(inputs[k], &packed[k]);
    if (status == CFX_OK) status = cf_new(cf_device(inputs[X]), inputs[X]->_dtype, 4, shape, out);
    if (status == CFX_OK)
        status = issue(CF_OP_conv, out, &packed[X], &packed[WEIGHT], inputs[BIAS] ? &packed[BIAS] : NULL,
                       inputs[RESIDUAL] ? &packed[RESIDUAL] : NULL, *params);
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "conv",
                                           .backward = conv_backward,
                                           .nin = INPUTS,
                                           .nsaved = params->act >= 0 ? 3 : 2,
                                           .inputs = inputs,
                                           .saved = (const cfx_tensor *[]){&packed[X], &packed[WEIGHT], out},
                                           .kept = params,
                                           .kept_bytes = sizeof *params},
                           out);
    for (int k = 0; k < INPUTS; k++) cfx_release(&packed[k]);
    return status;
}

CFX_API cfx_status cfx_conv(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias,
                            const cfx_tensor *residual, int32_t act, const cfx_window *window, int64_t groups,
                            cfx_tensor *out) {
    int64_t shape[4];
    const cfx_tensor *const inputs[INPUTS] = {x, weight, bias, residual};
    CF_TRY(check("conv", x, weight, window, groups, false));
    CF_TRY(conv_shape(x, weight, window, shape));
    CF_TRY(cf_check_shape("conv", x->_dtype, 4, shape));
    if (bias) CF_TRY(check_like("conv", "bias", bias, x, 1, &shape[3]));
    if (residual) CF_TRY(check_like("conv", "residual", residual, x, 4, shape));
    CF_TRY(cf_check_act("conv", act));
    const bool fuses = act < 0 || cf_act_fuses(act);
    const cf_conv_params params = params_of(x, window, groups, fuses ? act : -1);
    if (fuses) return conv(inputs, shape, &params, out);
    cfx_tensor pre = {0};
    const cf_mark mark = cf_mark_of(INPUTS, inputs);
    CF_TRY(conv(inputs, shape, &params, &pre));
    const cfx_status status = cfx_unary(act, &pre, cf_act_number(act), 0, out);
    cfx_release(&pre);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}

/* ---- conv_transpose ----------------------------------------------------------------------------------------- */

static cfx_status transposed_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    cfx_tensor dy = {0};
    CF_TRY(cf_packed(grad, &dy));
    cfx_status status = give(tape, node, WEIGHT, CF_OP_conv_bw_weights, cf_saved(node, 0), &dy);
    if (status == CFX_OK) status = give(tape, node, X, CF_OP_conv, &dy, cf_saved(node, 1));
    cfx_release(&dy);
    return status;
}

static cfx_status transposed(const cfx_tensor *const *inputs, const int64_t *shape, const cf_conv_params *params,
                             cfx_tensor *out) {
    cfx_tensor x = {0}, weight = {0};
    cfx_status status = cf_packed(inputs[X], &x);
    if (status == CFX_OK) status = cf_packed(inputs[WEIGHT], &weight);
    if (status == CFX_OK) status = cf_new(cf_device(&x), x._dtype, 4, shape, out);
    if (status == CFX_OK) status = issue(CF_OP_conv_bw_data, out, &x, &weight, NULL, NULL, *params);
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = "conv_transpose",
                                           .backward = transposed_backward,
                                           .nin = 2,
                                           .nsaved = 2,
                                           .inputs = inputs,
                                           .saved = (const cfx_tensor *[]){&x, &weight},
                                           .kept = params,
                                           .kept_bytes = sizeof *params},
                           out);
    cfx_release(&x);
    cfx_release(&weight);
    return status;
}

CFX_API cfx_status cfx_conv_transpose(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias,
                                      int32_t act, const cfx_window *window, const int64_t output_pad[2],
                                      int64_t groups, cfx_tensor *out) {
    int64_t shape[4];
    cfx_tensor plain = {0}, sum = {0};
    const cfx_tensor *const inputs[] = {x, weight, bias};
    CF_TRY(check("conv_transpose", x, weight, window, groups, true));
    CF_TRY(transposed_shape(x, weight, window, output_pad, groups, shape));
    if (bias) CF_TRY(check_like("conv_transpose", "bias", bias, x, 1, &shape[3]));
    CF_TRY(cf_check_act("conv_transpose", act));
    const cf_conv_params params = params_of(x, window, groups, -1);
    const cf_mark mark = cf_mark_of(3, inputs);
    cfx_status status = transposed(inputs, shape, &params, &plain);
    if (status == CFX_OK) status = bias ? cfx_binary(CF_OP_add, &plain, bias, &sum) : cfx_retain(&plain, &sum);
    if (status == CFX_OK) status = act < 0 ? cfx_retain(&sum, out) : cfx_unary(act, &sum, cf_act_number(act), 0, out);
    cfx_release(&plain);
    cfx_release(&sum);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}
