/* pool.c: the largest and the mean of windows of images [n, height, width, c]. */
#include <string.h>

#include "ops/tape.h"
#include "tensor/primitive.h"

/* ---- checks ----------------------------------------------------------------------------------------- */

static cfx_status check_images(const char *function, const cfx_tensor *x) {
    char have[256];
    CF_TRY(cf_check_tensor(function, "x", x));
    if (x->_ndim == 4 && cf_is_float(x->_dtype)) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'x': expected floats of shape [n, height, width, channels], got %s",
                   function, cf_describe(x, have));
}

/* A window on one axis, and how many fit there.  As in PyTorch, a pad is at most half of what
 * the window spans, so that none lies in it alone. */
static cfx_status check_axis(const char *function, const cfx_window *w, int d, int64_t size, int64_t *out) {
    enum { MOST = 1 << 30 };
    const char *const axis = d ? "width" : "height";
    const int64_t kernel = w->kernel[d], *pad = &w->pad[2 * d];
    if (kernel < 1 || w->stride[d] < 1 || w->dilation[d] < 1 || kernel > MOST || w->stride[d] > MOST ||
        w->dilation[d] > MOST)
        return cf_fail(CFX_EARG,
                       "%s: argument 'window': expected a positive %s, stride and dilation, got %lld, %lld, %lld",
                       function, axis, (long long)kernel, (long long)w->stride[d], (long long)w->dilation[d]);
    const int64_t span = (kernel - 1) * w->dilation[d] + 1;
    for (int side = 0; side < 2; side++)
        if (pad[side] < 0 || pad[side] > span / 2)
            return cf_fail(CFX_EARG,
                           "%s: argument 'window': expected a pad from 0 to half the window's %s of %lld, got %lld",
                           function, axis, (long long)span, (long long)pad[side]);
    const int64_t padded = size + pad[0] + pad[1];
    if (span > padded)
        return cf_fail(CFX_EARG, "%s: argument 'window': its %s of %lld is larger than the padded image's %lld",
                       function, axis, (long long)span, (long long)padded);
    *out = (padded - span) / w->stride[d] + 1;
    return CFX_OK;
}

static cfx_status check_window(const char *function, const cfx_tensor *x, const cfx_window *w, int64_t *shape) {
    if (!w) return cf_fail(CFX_EARG, "%s: argument 'window': expected a window, got none", function);
    memcpy(shape, x->_shape, 4 * sizeof *shape);
    CF_TRY(check_axis(function, w, 0, x->_shape[1], &shape[1]));
    return check_axis(function, w, 1, x->_shape[2], &shape[2]);
}

/* ---- results and gradients -------------------------------------------------------------------------- */

/* dx from dy, and from the saved taps of a maxpool. */
static cfx_status pool_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_input *in = &node->inputs[0];
    const bool taps = node->nsaved > 0;
    cfx_tensor dy = {0}, g;
    CF_TRY(cf_packed(grad, &dy));
    cf_place(tape, node, 0, in->dtype, in->ndim, in->shape, &g);
    cfx_status status = cf_new(in->device, in->dtype, in->ndim, in->shape, &g);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = taps ? CF_OP_maxpool_bw : CF_OP_meanpool_bw,
                                          .dtype = in->dtype,
                                          .nout = 1,
                                          .nin = taps ? 2 : 1,
                                          .t = CF_VIEWS(&g, &dy, taps ? cf_saved(node, 0) : NULL),
                                          .params = node->kept});
    if (status == CFX_OK) status = cf_give(tape, node, 0, &g);
    cfx_release(&dy);
    return status;
}

/* taps: of a maxpool whose gradient is wanted, else NULL. */
static cfx_status run(cf_op op, const cfx_tensor *x, const cf_pool_params *params, const int64_t *shape,
                      cfx_tensor *taps, cfx_tensor *out) {
    cfx_tensor in = {0};
    const int64_t *kernel = params->window.kernel;
    CF_TRY(cf_packed(x, &in));
    cfx_status status = cf_new(cf_device(x), x->_dtype, 4, shape, out);
    if (status == CFX_OK && taps) {
        status = cf_new(cf_device(x), kernel[0] * kernel[1] <= 256 ? CFX_UINT8 : CFX_INT32, 4, shape, taps);
        if (status != CFX_OK) cfx_release(out);
    }
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = op,
                                          .dtype = x->_dtype,
                                          .nout = taps ? 2 : 1,
                                          .nin = 1,
                                          .t = CF_VIEWS(out, taps ? taps : &in, &in),
                                          .params = params});
    if (status == CFX_OK)
        status = cf_record(&(cf_recording){.op = cf_op_table[op].name,
                                           .backward = pool_backward,
                                           .nin = 1,
                                           .nsaved = taps ? 1 : 0,
                                           .inputs = &x,
                                           .saved = (const cfx_tensor *[]){taps},
                                           .kept = params,
                                           .kept_bytes = sizeof *params},
                           out);
    cfx_release(&in);
    return status;
}

CFX_API cfx_status cfx_maxpool(const cfx_tensor *x, const cfx_window *window, cfx_tensor *out) {
    int64_t shape[4];
    cfx_tensor taps = {0};
    CF_TRY(check_images("maxpool", x));
    CF_TRY(check_window("maxpool", x, window, shape));
    if (window->kernel[0] > INT32_MAX / window->kernel[1])
        return cf_fail(CFX_EARG, "maxpool: argument 'window': it has more than %d elements", INT32_MAX);
    const cfx_status status =
        run(CF_OP_maxpool, x, &(cf_pool_params){.window = *window}, shape, cf_watched(x) ? &taps : NULL, out);
    cfx_release(&taps);
    return status;
}

CFX_API cfx_status cfx_meanpool(const cfx_tensor *x, const cfx_window *window, int32_t count_pad, cfx_tensor *out) {
    int64_t shape[4];
    CF_TRY(check_images("meanpool", x));
    CF_TRY(check_window("meanpool", x, window, shape));
    return run(CF_OP_meanpool, x, &(cf_pool_params){.window = *window, .count_pad = count_pad}, shape, NULL, out);
}

CFX_API cfx_status cfx_adaptive_meanpool(const cfx_tensor *x, int64_t height, int64_t width, cfx_tensor *out) {
    char have[256];
    CF_TRY(check_images("adaptive_meanpool", x));
    if (height < 1 || width < 1)
        return cf_fail(CFX_EARG, "adaptive_meanpool: expected a positive height and width, got %lld and %lld",
                       (long long)height, (long long)width);
    if (x->_shape[1] < 1 || x->_shape[2] < 1)
        return cf_fail(CFX_EARG, "adaptive_meanpool: argument 'x': expected images with pixels, got %s",
                       cf_describe(x, have));
    const int64_t shape[4] = {x->_shape[0], height, width, x->_shape[3]};
    CF_TRY(cf_check_shape("adaptive_meanpool", x->_dtype, 4, shape));
    return run(CF_OP_meanpool, x, &(cf_pool_params){.adaptive = 1}, shape, NULL, out);
}
