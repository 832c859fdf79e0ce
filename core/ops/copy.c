/* copy.c: copies, which a tape records. */
#include "ops/tape.h"
#include "tensor/primitive.h"

/* dx is dy, taken back to x's dtype and device by cf_give. */
static cfx_status copy_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    CF_TRY(cf_copy_to(x, device, dtype, out));
    return cf_record_one("copy", cf_give_alike, x, NULL, 0, out);
}

CFX_API cfx_status cfx_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("to", "x", x));
    if (!device) device = cf_device(x);
    if (dtype < 0) dtype = x->_dtype;
    if (dtype >= CFX_DTYPES) return cf_fail(CFX_EARG, "to: unknown dtype %d", dtype);
    if (cf_context_of(device) != cf_context(x)) return cf_fail(CFX_EARG, "to: the device belongs to another context");
    if (device == cf_device(x) && dtype == x->_dtype) return cfx_retain(x, out);
    return copy_to(x, device, dtype, out);
}

CFX_API cfx_status cfx_clone(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("clone", "x", x));
    return copy_to(x, cf_device(x), x->_dtype, out);
}

CFX_API cfx_status cfx_contiguous(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("contiguous", "x", x));
    return cfx_is_contiguous(x) ? cfx_retain(x, out) : copy_to(x, cf_device(x), x->_dtype, out);
}
