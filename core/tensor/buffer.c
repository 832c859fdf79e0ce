/* buffer.c: making, viewing, holding and releasing.  See buffer.h. */
#include "tensor/buffer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- text for messages ------------------------------------------------------------------------------ */

const char *cf_describe(const cfx_tensor *x, char text[256]) {
    char shape[192];
    snprintf(text, 256, "%s (%s, %s)", cf_shape_text(x->_ndim, x->_shape, shape), cfx_dtype_name(x->_dtype),
             x->_buffer && x->_buffer->device ? x->_buffer->device->name : "released");
    return text;
}

/* ---- checks ----------------------------------------------------------------------------------------- */

cfx_status cf_check_tensor(const char *function, const char *argument, const cfx_tensor *x) {
    if (!x || !x->_buffer)
        return cf_fail(CFX_EARG, "%s: argument '%s': expected a tensor, got %s", function, argument,
                       x ? "one that was released" : "none");
    if (!x->_buffer->device)
        return cf_fail(CFX_EARG, "%s: argument '%s': the tensor's context has ended", function, argument);
    return cf_interrupted(&cf_context(x)->hub);
}

cfx_status cf_check_device(const char *function, const cfx_device *device) {
    if (!device) return cf_fail(CFX_EARG, "%s: argument 'device': expected a device, got none", function);
    return cf_interrupted(&cf_context_of(device)->hub);
}

cfx_status cf_check_dim(const char *function, int ndim, int32_t *dim) {
    const int32_t d = *dim < 0 ? *dim + ndim : *dim;
    if (d < 0 || d >= ndim)
        return cf_fail(CFX_EARG, "%s: dimension %d of a tensor of %d dimensions", function, *dim >= 0 ? *dim + 1 : *dim,
                       ndim);
    *dim = d;
    return CFX_OK;
}

cfx_status cf_check_same_device(const char *function, const char *argument, const cfx_tensor *a, const cfx_tensor *b) {
    char left[256], right[256];
    if (cf_device(a) == cf_device(b)) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument '%s': expected a tensor on %s for a %s, got %s (device(x) is x on a device)",
                   function, argument, cf_device(a)->name, cf_describe(a, left), cf_describe(b, right));
}

cfx_status cf_check_shape(const char *function, int32_t dtype, int32_t ndim, const int64_t *shape) {
    if (dtype < 0 || dtype >= CFX_DTYPES) return cf_fail(CFX_EARG, "%s: unknown dtype %d", function, dtype);
    if (ndim < 0 || ndim > CFX_MAX_DIMS)
        return cf_fail(CFX_EARG, "%s: expected at most %d dimensions, got %d", function, CFX_MAX_DIMS, ndim);
    size_t bytes;
    for (int d = 0; d < ndim; d++)
        if (shape[d] < 0)
            return cf_fail(CFX_EARG, "%s: dimension %d: expected a size of 0 or more, got %lld", function, d + 1,
                           (long long)shape[d]);
    if (cf_shape_bytes(dtype, ndim, shape, &bytes)) return CFX_OK;
    char text[192];
    return cf_fail(CFX_EARG, "%s: a %s of %s would have more than 2^63 bytes", function, cfx_dtype_name(dtype),
                   cf_shape_text(ndim, shape, text));
}

/* ---- views ------------------------------------------------------------------------------------------- */

void cf_extent(const cfx_tensor *x, int64_t *from, int64_t *to) {
    const int64_t size = cf_dtype_size(x->_dtype);
    int64_t low, high;
    cf_dims_extent(x->_ndim, x->_shape, x->_stride, &low, &high);
    *from = (x->_offset + low) * size;
    *to = (x->_offset + high) * size;
}

void cf_reach(const cfx_tensor *x, uintptr_t *from, uintptr_t *to) {
    cf_view v;
    cf_view_of(x, &v);
    cf_view_reach(&v, from, to);
}

int64_t cf_shared(const cfx_tensor *a, const cfx_tensor *b, int64_t enough) {
    cf_view v, w;
    cf_view_of(a, &v);
    cf_view_of(b, &w);
    return cf_view_shared(&v, &w, enough);
}

bool cf_is_expanded(const cfx_tensor *x) { return cf_dims_expanded(x->_ndim, x->_shape, x->_stride); }

bool cf_same_view(const cfx_tensor *a, const cfx_tensor *b) {
    return a->_buffer == b->_buffer && a->_offset == b->_offset && a->_dtype == b->_dtype && cf_same_shape(a, b) &&
           cf_shape_same(a->_ndim, a->_stride, b->_stride);
}

bool cf_is_same(const cfx_tensor *a, const cfx_tensor *b) {
    if (cf_data(a) != cf_data(b) || a->_dtype != b->_dtype || !cf_same_shape(a, b)) return false;
    for (int d = 0; d < a->_ndim; d++)
        if (a->_stride[d] != b->_stride[d] && a->_shape[d] != 1) return false;
    return true;
}

bool cf_narrow(cfx_tensor *x, int32_t dim, int64_t start, int64_t n, int64_t step) {
    return cf_dims_slice(&x->_shape[dim], &x->_stride[dim], start, n, step, &x->_offset);
}

void cf_drop_dim(cfx_tensor *x, int32_t dim) { cf_dims_drop(x->_ndim--, dim, x->_shape, x->_stride); }

void cf_pick_dims(cfx_tensor *x, int32_t n, const int32_t *dims) {
    cf_dims_pick(n, dims, x->_shape, x->_stride);
    x->_ndim = (uint8_t)n;
}

void cf_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    *out = *x;
    cf_dims_expand(x->_ndim, out->_shape, out->_stride, ndim, shape);
    out->_ndim = (uint8_t)ndim;
}

/* ---- buffers ---------------------------------------------------------------------------------------- */

static void give(cf_buffer *buffer, bool ended) {
    if (buffer->block->give) buffer->block->give(buffer->block, ended);
    else cf_pool_give(buffer->block->pool, buffer->block);
}

/* Handles still held when their context ends stay valid memory and become void. */
static void end_with_device(cf_dependent *buffer) {
    cf_buffer *b = (cf_buffer *)buffer;
    cf_uses_clear(&b->writes);
    cf_uses_clear(&b->reads);
    cf_uses_clear(&b->made);
    cf_drift_free(&b->drift);
    give(b, true);
    cf_depend_no_more(&b->dependent);
    b->device = NULL;
}

cfx_status cf_buffer_over(cfx_device *device, cf_block *block, size_t bytes, cf_buffer **out) {
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(cf_buffer), &memory));
    cf_buffer *buffer = memory;
    buffer->device = device;
    buffer->block = block;
    buffer->data = block->data;
    buffer->bytes = bytes;
    buffer->refs = buffer->fresh = 1;
    cf_depend(&device->buffers, &buffer->dependent, end_with_device);
    *out = buffer;
    return CFX_OK;
}

/* A backend with a link may free what its pool gives back only when none is in flight: before memory is said to be
 * out they are waited for. */
static cfx_status take(cfx_device *device, size_t bytes, cf_block **out) {
    cfx_context *context = cf_context_of(device);
    const cfx_status status = cf_pool_take(&device->pool, bytes, out);
    if (status != CFX_EMEMORY || !device->backend->link) return status;
    for (int32_t i = 0; i < context->nopen; i++)
        CF_TRY(cf_event_wait(cf_queue_last(cf_queue_at(context->open[i], CF_COMM))));
    return cf_pool_take(&device->pool, bytes, out);
}

static cfx_status buffer_new(cfx_device *device, size_t bytes, cf_buffer **out) {
    cf_block *block;
    if (!cf_device_is_open(device)) return cf_fail(CFX_ESTATE, "device %s is no longer one of this run", device->name);
    CF_TRY(take(device, bytes, &block));
    const cfx_status status = cf_buffer_over(device, block, bytes, out);
    if (status != CFX_OK) {
        cf_pool_give(block->pool, block);
        return status;
    }
    cfx_context *context = cf_context_of(device);
    if ((double)(device->pool.in_use - device->pool.at_collection) > context->debt_threshold) context->debt = 1;
    return CFX_OK;
}

void cf_buffer_retain(cf_buffer *buffer) { buffer->refs++; }

/* The events of commands that still use the memory go with the block. */
static void hand_over(cf_buffer *buffer) {
    cf_uses *all[] = {&buffer->writes, &buffer->reads};
    for (int k = 0; k < 2; k++) {
        cf_uses_prune(all[k]);
        const cf_event *events = cf_uses_items(all[k]);
        for (int32_t i = 0; i < all[k]->n; i++) {
            /* releasing cannot fail: without memory for an event it is waited for */
            if (cf_uses_add(&buffer->block->uses, events[i]) != CFX_OK) cf_event_settle(events[i]);
        }
        cf_uses_clear(all[k]);
    }
    cf_uses_clear(&buffer->made);
}

void cf_buffer_release(cf_buffer *buffer) {
    if (--buffer->refs > 0) return;
    if (buffer->device) {
        hand_over(buffer);
        cf_drift_free(&buffer->drift);
        give(buffer, false);
        cf_depend_no_more(&buffer->dependent);
    }
    if (buffer->layout) cfx_layout_free(buffer->layout);
    free(buffer->buckets);
    free(buffer);
}

/* ---- handles ---------------------------------------------------------------------------------------- */

void cf_set_packed(cfx_tensor *x, int32_t ndim, const int64_t *shape) {
    x->_ndim = (uint8_t)ndim;
    if (ndim > 0) memmove(x->_shape, shape, (size_t)ndim * sizeof *shape); /* no dimensions: shape may be NULL */
    cf_dims_pack(ndim, x->_shape, x->_stride);
}

void cf_cover(cfx_tensor *x, int32_t dtype, int32_t ndim, const int64_t *shape) {
    x->_offset = 0;
    x->_tape = 0;
    x->_node = 0;
    x->_dtype = (uint8_t)dtype;
    x->_flags = 0;
    x->_lent = 0;
    cf_set_packed(x, ndim, shape);
}

cfx_status cf_new(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    if (out->_buffer) {
        char have[256], want[192];
        if (out->_dtype == dtype && cf_device(out) == device && cf_has_shape(out, ndim, shape)) return CFX_OK;
        return cf_fail(CFX_EARG, "expected a place for %s (%s, %s), got %s", cf_shape_text(ndim, shape, want),
                       cfx_dtype_name(dtype), device->name, cf_describe(out, have));
    }
    size_t bytes;
    if (!cf_shape_bytes(dtype, ndim, shape, &bytes)) {
        char text[192];
        return cf_fail(CFX_EARG, "a %s of %s would have more than 2^63 bytes", cfx_dtype_name(dtype),
                       cf_shape_text(ndim, shape, text));
    }
    CF_TRY(buffer_new(device, bytes, &out->_buffer));
    cf_cover(out, dtype, ndim, shape);
    return CFX_OK;
}

void cf_alias(const cfx_tensor *x, cfx_tensor *out) {
    *out = *x;
    out->_tape = 0;
    out->_node = 0;
    out->_flags = CFX_FLAG_VIEW;
    out->_lent = 0;
    out->_buffer->refs++;
}

CFX_API cfx_status cfx_retain(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("retain", "x", x));
    *out = *x;
    out->_lent = 0;
    out->_buffer->refs++;
    return CFX_OK;
}

CFX_API cfx_status cfx_detach(const cfx_tensor *x, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("detach", "x", x));
    cf_alias(x, out);
    return CFX_OK;
}

CFX_API void cfx_release(cfx_tensor *x) {
    if (!x || !x->_buffer) return;
    if (!x->_lent) cf_buffer_release(x->_buffer); /* a lent handle has no reference to give back */
    x->_buffer = NULL;                            /* all that a second release, and every check, looks at */
    x->_tape = 0;
}

CFX_API cfx_device *cfx_tensor_device(const cfx_tensor *x) { return x && x->_buffer ? x->_buffer->device : NULL; }

CFX_API int32_t cfx_is_contiguous(const cfx_tensor *x) { return x && cf_dims_packed(x->_ndim, x->_shape, x->_stride); }

CFX_API cfx_status cfx_empty(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out) {
    CF_TRY(cf_check_shape("empty", dtype, ndim, shape));
    CF_TRY(cf_check_device("empty", device));
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    out->_buffer->fresh = 0; /* the caller's, written or not */
    out->_buffer->empty = 1;
    return CFX_OK;
}

/* ---- checks of values and of writes -------------------------------------------------------------------- */

CFX_API int32_t cfx_is_watched(const cfx_tensor *x) { return cf_watched(x); }

void cf_hold_begin(cf_hold *hold, const cfx_tensor *x, const char *op) {
    cf_alias(x, &hold->tensor);
    hold->op = op;
    hold->link = &x->_buffer->holds;
    hold->next = *hold->link;
    if (hold->next) hold->next->link = &hold->next;
    *hold->link = hold;
}

void cf_hold_end(cf_hold *hold) {
    if (!hold->tensor._buffer) return;
    *hold->link = hold->next;
    if (hold->next) hold->next->link = hold->link;
    cfx_release(&hold->tensor);
}

/* Of several operations that need x's values the first is named. */
static cfx_status refuse_held(const char *function, const cfx_tensor *x) {
    const char *op = NULL;
    int64_t from, to;
    cf_extent(x, &from, &to);
    for (const cf_hold *hold = x->_buffer->holds; hold; hold = hold->next) {
        int64_t a, b;
        cf_extent(&hold->tensor, &a, &b);
        if (b <= from || to <= a) continue;
        if (!hold->op)
            return cf_fail(CFX_ESTATE,
                           "%s: a DataLoader reads the tensor: it cannot change in place before the loader is released",
                           function);
        op = hold->op;
    }
    if (!op) return CFX_OK;
    return cf_fail(CFX_ESTATE, "%s: %s needs the tensor's values for its gradient; they cannot change in place",
                   function, op);
}

cfx_status cf_check_writable(const char *function, const cfx_tensor *x) {
    if (cf_watched(x))
        return cf_fail(CFX_ESTATE, "%s: the tensor is part of a gradient being recorded and cannot change in place",
                       function);
    return x->_buffer->holds ? refuse_held(function, x) : CFX_OK;
}

cfx_status cf_check_into(const char *function, const cfx_tensor *y, const cfx_tensor *x) {
    char have[256], want[256];
    if (x && cf_watched(x))
        return cf_fail(CFX_ESTATE, "%s: argument 'y' is watched by a gradient, which an in-place operation would lose",
                       function);
    CF_TRY(cf_check_writable(function, y));
    if (cf_is_expanded(y))
        return cf_fail(CFX_EARG, "%s: the tensor is expanded: several elements share one place", function);
    if (!x) return CFX_OK;
    if (!cf_shape_expands(x->_ndim, x->_shape, y->_ndim, y->_shape))
        return cf_fail(CFX_EARG, "%s: argument 'y': expected a shape that broadcasts to a %s, got %s", function,
                       cf_describe(y, want), cf_describe(x, have));
    return CFX_OK;
}
