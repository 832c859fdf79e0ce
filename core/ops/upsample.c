/* upsample.c: images of another size. */
#include "ops/tape.h"
#include "tensor/primitive.h"

static cfx_status upsample_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const cf_input *in = &node->inputs[0];
    cfx_tensor dy = {0}, g;
    CF_TRY(cf_packed(grad, &dy));
    cf_place(tape, node, 0, in->dtype, in->ndim, in->shape, &g);
    cfx_status status = cf_new(in->device, in->dtype, in->ndim, in->shape, &g);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_upsample_bw,
                                          .dtype = in->dtype,
                                          .nout = 1,
                                          .nin = 1,
                                          .t = CF_VIEWS(&g, &dy),
                                          .params = node->kept});
    if (status == CFX_OK) status = cf_give(tape, node, 0, &g);
    cfx_release(&dy);
    return status;
}

static cfx_status check(const cfx_tensor *x, const int64_t *shape, const double *scale, bool bilinear,
                        bool align_corners) {
    char have[256];
    if (x->_ndim != 4 || !cf_is_float(x->_dtype) || x->_shape[1] < 1 || x->_shape[2] < 1)
        return cf_fail(CFX_EARG,
                       "upsample: argument 'x': expected floats of shape [n, height, width, channels], got %s",
                       cf_describe(x, have));
    if (shape[1] < 1 || shape[2] < 1)
        return cf_fail(CFX_EARG, "upsample: expected a positive height and width, got %lld and %lld",
                       (long long)shape[1], (long long)shape[2]);
    if (scale && !(scale[0] >= 0 && scale[1] >= 0))
        return cf_fail(CFX_EARG, "upsample: argument 'scale': expected positive numbers, or 0, got %g and %g", scale[0],
                       scale[1]);
    if (align_corners && !bilinear)
        return cf_fail(CFX_EARG, "upsample: argument 'align_corners': only a bilinear one aligns them");
    return cf_check_shape("upsample", x->_dtype, 4, shape);
}

CFX_API cfx_status cfx_upsample(const cfx_tensor *x, int64_t height, int64_t width, const double scale[2],
                                int32_t bilinear, int32_t align_corners, cfx_tensor *out) {
    cfx_tensor in = {0};
    cf_upsample_params params = {.bilinear = bilinear != 0, .align_corners = align_corners != 0};
    CF_TRY(cf_check_tensor("upsample", "x", x));
    const int64_t shape[4] = {x->_shape[0], height, width, x->_shape[3]};
    CF_TRY(check(x, shape, scale, bilinear, align_corners));
    for (int d = 0; d < 2 && scale; d++) params.scale[d] = scale[d];
    CF_TRY(cf_packed(x, &in));
    cfx_status status = cf_new(cf_device(x), x->_dtype, 4, shape, out);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){
            .op = CF_OP_upsample, .dtype = x->_dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(out, &in), .params = &params});
    if (status == CFX_OK) status = cf_record_one("upsample", upsample_backward, x, &params, sizeof params, out);
    cfx_release(&in);
    return status;
}
