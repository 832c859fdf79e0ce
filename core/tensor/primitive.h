/* primitive.h: the few operations that others are made of.  A tape hears nothing of them. */
#ifndef CF_TENSOR_PRIMITIVE_H
#define CF_TENSOR_PRIMITIVE_H

#include "tensor/issue.h"

/* y = x, y += x, y = 0, as parts of the making of y, without checks for tapes; x broadcasts to y. */
cfx_status cf_copy_make(cfx_tensor *y, const cfx_tensor *x);
cfx_status cf_add_into(cfx_tensor *y, const cfx_tensor *x);
cfx_status cf_fill_make(cfx_tensor *y);

/* A packed copy of x: as it is; on that device, and of that dtype.  Where x is packed already cf_packed gives another
 * handle on it. */
cfx_status cf_clone(const cfx_tensor *x, cfx_tensor *out);
cfx_status cf_copy_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out);
cfx_status cf_packed(const cfx_tensor *x, cfx_tensor *out);

/* a + b, of one shape, dtype and device. */
cfx_status cf_add(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out);
/* x, of floats, summed over all dimensions that it has beside `shape`, which broadcasts to it. */
cfx_status cf_sum_to(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out);

/* x overlaps y, but not element for element: reading the one and writing the other would mix. */
bool cf_overlaps(const cfx_tensor *y, const cfx_tensor *x);

#endif
