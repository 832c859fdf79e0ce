/* primitive.c: fill, copy, convert, add and sum.  See primitive.h. */
#include "tensor/primitive.h"

#include <string.h>

#include "tensor/drift.h"
#include "tensor/transfer.h"

/* ---- from nothing ----------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_full(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, double value,
                            cfx_tensor *out) {
    CF_TRY(cf_check_shape("full", dtype, ndim, shape));
    CF_TRY(cf_check_device("full", device));
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    return cf_issue_run(&(cf_issue){
        .op = CF_OP_fill, .dtype = dtype, .nout = 1, .t = CF_VIEWS(out), .params = &(cf_fill_params){.value = value}});
}

CFX_API cfx_status cfx_arange(cfx_device *device, int32_t dtype, int64_t n, double start, double step,
                              cfx_tensor *out) {
    CF_TRY(cf_check_shape("arange", dtype, 1, &n));
    CF_TRY(cf_check_device("arange", device));
    CF_TRY(cf_new(device, dtype, 1, &n, out));
    return cf_issue_run(&(cf_issue){
        .op = CF_OP_arange, .dtype = dtype, .nout = 1, .t = CF_VIEWS(out), .params = &(cf_arange_params){start, step}});
}

/* ---- copies ----------------------------------------------------------------------------------------- */

static cfx_status copy_near(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    CF_TRY(cf_new(device, dtype, x->_ndim, x->_shape, out));
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(out, (cfx_tensor *)x)});
}

/* Converted and packed where it lies, its bytes are moved. */
static cfx_status copy_far(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    cfx_tensor packed = {0};
    const bool fits = x->_dtype == dtype && cfx_is_contiguous(x);
    if (!fits) CF_TRY(copy_near(x, cf_device(x), dtype, &packed));
    cfx_status status = cf_new(device, dtype, x->_ndim, x->_shape, out);
    if (status == CFX_OK) status = cf_transfer(fits ? x : &packed, out);
    if (status != CFX_OK) cfx_release(out);
    cfx_release(&packed);
    return status;
}

cfx_status cf_copy_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out) {
    return cf_is_far(cf_device(x), device) ? copy_far(x, device, dtype, out) : copy_near(x, device, dtype, out);
}

cfx_status cf_clone(const cfx_tensor *x, cfx_tensor *out) { return copy_near(x, cf_device(x), x->_dtype, out); }

cfx_status cf_packed(const cfx_tensor *x, cfx_tensor *out) {
    if (!cfx_is_contiguous(x)) return cf_clone(x, out);
    *out = *x;
    out->_lent = 0;
    cf_buffer_retain(out->_buffer);
    return CFX_OK;
}

/* ---- sums ------------------------------------------------------------------------------------------- */

cfx_status cf_add_into(cfx_tensor *y, const cfx_tensor *x) {
    cfx_tensor wide;
    cf_expand(x, y->_ndim, y->_shape, &wide);
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_add, .dtype = y->_dtype, .nout = 1, .nin = 2, .t = CF_VIEWS(y, y, &wide)});
}

cfx_status cf_add(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    CF_TRY(cf_new(cf_device(a), a->_dtype, a->_ndim, a->_shape, out));
    return cf_issue_run(&(cf_issue){.op = CF_OP_add,
                                    .dtype = a->_dtype,
                                    .nout = 1,
                                    .nin = 2,
                                    .t = CF_VIEWS(out, (cfx_tensor *)a, (cfx_tensor *)b)});
}

cfx_status cf_sum_to(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    int32_t dims[CFX_MAX_DIMS], reduced[CFX_MAX_DIMS], kept = 0, n = 0;
    const int32_t lead = x->_ndim - ndim;
    for (int32_t d = 0; d < x->_ndim; d++) {
        if (d < lead || (shape[d - lead] == 1 && x->_shape[d] != 1)) reduced[n++] = d;
        else dims[kept++] = d;
    }
    memcpy(dims + kept, reduced, (size_t)n * sizeof *dims);
    cfx_tensor in = *x; /* borrowed; the reduced dimensions last */
    cf_pick_dims(&in, x->_ndim, dims);
    CF_TRY(cf_new(cf_device(x), x->_dtype, kept, in._shape, out));
    CF_TRY(cf_issue_run(&(cf_issue){.op = CF_OP_sum,
                                    .dtype = x->_dtype,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(out, &in),
                                    .params = &(cf_reduce_params){.dims = n}}));
    for (int32_t k = 0; k < n; k++)
        if (reduced[k] >= lead) cf_dims_insert(out->_ndim++, reduced[k] - lead, 1, 0, out->_shape, out->_stride);
    return CFX_OK;
}

/* ---- in place --------------------------------------------------------------------------------------- */

bool cf_overlaps(const cfx_tensor *y, const cfx_tensor *x) {
    int64_t a, b, c, d;
    if (y->_buffer != x->_buffer || cf_same_view(y, x)) return false;
    cf_extent(y, &a, &b);
    cf_extent(x, &c, &d);
    return a < d && c < b;
}

/* Filling all of a buffer makes its value if it has none yet; else an old one would be void where this is skipped.  So
 * it is to be where the old one is not that of the other replicas. */
static bool is_update(const cfx_tensor *y) {
    if (cf_is_behind(y)) return false;
    return !cf_is_whole(y) || !(y->_buffer->empty || cf_refuse_void(y) != CFX_OK);
}

CFX_API cfx_status cfx_fill(cfx_tensor *y, double value) {
    CF_TRY(cf_check_tensor("fill_", "x", y));
    CF_TRY(cf_check_into("fill_", y, NULL));
    return cf_issue_run(&(cf_issue){.op = CF_OP_fill,
                                    .dtype = y->_dtype,
                                    .nout = 1,
                                    .t = CF_VIEWS(y),
                                    .params = &(cf_fill_params){.value = value},
                                    .nupdated = is_update(y)});
}

cfx_status cf_fill_make(cfx_tensor *y) {
    return cf_issue_run(&(cf_issue){.op = CF_OP_fill, .dtype = y->_dtype, .nout = 1, .t = CF_VIEWS(y)});
}

static cfx_status copy_into(cfx_tensor *y, const cfx_tensor *x, bool updates) {
    cfx_tensor wide, near = {0};
    if (cf_is_far(cf_device(y), cf_device(x))) CF_TRY(cf_copy_to(x, cf_device(y), x->_dtype, &near));
    cf_expand(near._buffer ? &near : x, y->_ndim, y->_shape, &wide);
    const cfx_status status = cf_issue_run(&(cf_issue){
        .op = CF_OP_copy, .dtype = y->_dtype, .nout = 1, .nin = 1, .t = CF_VIEWS(y, &wide), .nupdated = updates});
    cfx_release(&near);
    return status;
}

cfx_status cf_copy_make(cfx_tensor *y, const cfx_tensor *x) { return copy_into(y, x, false); }

CFX_API cfx_status cfx_copy(cfx_tensor *y, const cfx_tensor *x) {
    cfx_tensor copy = {0};
    CF_TRY(cf_check_tensor("copy_", "x", y));
    CF_TRY(cf_check_tensor("copy_", "y", x));
    if (cf_context(x) != cf_context(y)) return cf_fail(CFX_EARG, "copy_: its tensors belong to two contexts");
    CF_TRY(cf_check_into("copy_", y, x));
    if (cf_overlaps(y, x)) CF_TRY(cf_clone(x, &copy));
    const cfx_status status = copy_into(y, copy._buffer ? &copy : x, is_update(y));
    cfx_release(&copy);
    return status;
}
