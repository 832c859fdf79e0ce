/* normalise.c: bytes as numbers, channel by channel: what images are to a model. */
#include "tensor/primitive.h"

static cfx_status check_numbers(const cfx_tensor *x, const char *argument, const cfx_tensor *t) {
    char have[256];
    const int64_t c = x->_shape[x->_ndim - 1];
    CF_TRY(cf_check_tensor("normalise", argument, t));
    CF_TRY(cf_check_same_device("normalise", argument, x, t));
    if (cf_has_shape(t, 1, &c) && t->_dtype == CFX_FLOAT32) return CFX_OK;
    return cf_fail(CFX_EARG, "normalise: argument '%s': expected shape [%lld] (float32), got %s", argument,
                   (long long)c, cf_describe(t, have));
}

CFX_API cfx_status cfx_normalise(const cfx_tensor *x, const cfx_tensor *scale, const cfx_tensor *shift,
                                 cfx_tensor *out) {
    char have[256];
    cfx_tensor packed = {0};
    CF_TRY(cf_check_tensor("normalise", "x", x));
    if (x->_dtype != CFX_UINT8 || x->_ndim < 1)
        return cf_fail(CFX_EARG, "normalise: argument 'x': expected shape [.., channels] (uint8), got %s",
                       cf_describe(x, have));
    CF_TRY(check_numbers(x, "scale", scale));
    CF_TRY(check_numbers(x, "shift", shift));
    CF_TRY(cf_packed(x, &packed));
    cfx_status status = cf_new(cf_device(x), CFX_FLOAT32, x->_ndim, x->_shape, out);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_normalise,
                                          .dtype = CFX_FLOAT32,
                                          .nout = 1,
                                          .nin = 3,
                                          .t = CF_VIEWS(out, &packed, (cfx_tensor *)scale, (cfx_tensor *)shift)});
    cfx_release(&packed);
    return status;
}
