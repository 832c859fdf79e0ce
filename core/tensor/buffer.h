/* buffer.h: buffers, and the handles on them.
 *
 * A buffer is a block of one device's memory and what is known of its order: the events of its last write and,
 * for each queue, of its last use.  A handle (cfx_tensor) is a view of it and holds one reference.  Reference
 * counts and orders are the host's alone; workers see addresses only.
 */
#ifndef CF_TENSOR_BUFFER_H
#define CF_TENSOR_BUFFER_H

#include "base/status.h"
#include "base/view.h"
#include "device/context.h"
#include "tensor/places.h"
#include "tensor/rounds.h"

/* A stretch of a gradient buffer whose last contribution is known. */
typedef struct cf_bucket {
    int64_t from, to; /* bytes */
    int32_t pending;  /* places that still expect a contribution */
    cf_event event;
} cf_bucket;

/* A view that may not change in place. */
typedef struct cf_hold {
    cfx_tensor tensor;
    const char *op; /* its gradient needs the values; NULL: a thread of a DataLoader reads them, outside all queues */
    struct cf_hold *next, **link; /* of the buffer's list */
} cf_hold;

/* A live tape, as a handle that it watches knows it. */
typedef struct cf_watch {
    cf_dependent dependent; /* of the context */
    uint64_t id;
} cf_watch;

typedef struct cf_buffer {
    cf_dependent dependent; /* of the device */
    cfx_device *device;     /* NULL: its context has ended */
    cf_block *block;
    char *data;
    size_t bytes;
    int32_t refs;
    int32_t fresh;  /* 1 until something is written: what an operation that fails gives back */
    int32_t empty;  /* 1: cfx_empty's, and not written yet */
    int32_t fixed;  /* 1: its address was given away */
    cf_hold *holds; /* newest first */
    cf_uses writes; /* the last write; a collective's slices are several */
    cf_uses reads;  /* since then, the last of each queue */
    cf_uses made;   /* the write that gave the buffer its value; if it was skipped the tensor is void.  In-place
                        updates do not count: a skipped one leaves the old value */
    cfx_layout *layout;
    int32_t layout_dtype; /* which of the layout's buffers this is */
    int32_t nbuckets;     /* -1: a backward is under way and has written nothing yet */
    cf_bucket *buckets;   /* valid while the backward that made them is the last writer: then nbuckets > 0 */
    int32_t counting;     /* places of a backward under way */
    cf_drift drift;
} cf_buffer;

/* ---- handles ---------------------------------------------------------------------------------------- */

static inline int64_t cf_numel(const cfx_tensor *x) { return cf_shape_numel(x->_ndim, x->_shape); }
/* Of its elements, packed or not. */
static inline int64_t cf_bytes(const cfx_tensor *x) { return cf_numel(x) * cf_dtype_size(x->_dtype); }
/* The dtype of a float operation on x. */
static inline int32_t cf_float_of(int32_t dtype) { return cf_is_float(dtype) ? dtype : CFX_FLOAT32; }
static inline cfx_device *cf_device(const cfx_tensor *x) { return x->_buffer->device; }
static inline cfx_context *cf_context(const cfx_tensor *x) { return cf_context_of(x->_buffer->device); }
static inline char *cf_data(const cfx_tensor *x) { return x->_buffer->data + x->_offset * cf_dtype_size(x->_dtype); }
static inline bool cf_has_shape(const cfx_tensor *x, int ndim, const int64_t *shape) {
    return x->_ndim == ndim && cf_shape_same(ndim, x->_shape, shape);
}
static inline bool cf_same_shape(const cfx_tensor *a, const cfx_tensor *b) {
    return cf_has_shape(a, b->_ndim, b->_shape);
}
static inline void cf_view_of(const cfx_tensor *x, cf_view *out) {
    out->data = cf_data(x);
    out->dtype = x->_dtype;
    out->ndim = x->_ndim;
    memcpy(out->shape, x->_shape, x->_ndim * sizeof *out->shape);
    memcpy(out->stride, x->_stride, x->_ndim * sizeof *out->stride);
}
/* Whether a and b have their memory in common, element for element: by the numbers of their handles, or (cf_is_same) by
 * where the elements lie. */
bool cf_same_view(const cfx_tensor *a, const cfx_tensor *b);
bool cf_is_same(const cfx_tensor *a, const cfx_tensor *b);
/* cf_view_shared of two tensors, cf_view_reach and cf_dims_expanded of one. */
int64_t cf_shared(const cfx_tensor *a, const cfx_tensor *b, int64_t enough);
void cf_reach(const cfx_tensor *x, uintptr_t *from, uintptr_t *to);
bool cf_is_expanded(const cfx_tensor *x);
/* Bytes [from, to) of the buffer that the view can touch. */
void cf_extent(const cfx_tensor *x, int64_t *from, int64_t *to);

/* "[32, 128] (float32, cpu:0)" for messages; the result lies in `text`. */
const char *cf_describe(const cfx_tensor *x, char text[256]);

/* A live tensor, or CFX_EARG naming function and argument. */
cfx_status cf_check_tensor(const char *function, const char *argument, const cfx_tensor *x);
/* A device, or CFX_EARG naming function; then as cf_interrupted. */
cfx_status cf_check_device(const char *function, const cfx_device *device);
/* A dimension 0 <= *dim < ndim (negative ones count from the end), or CFX_EARG. */
cfx_status cf_check_dim(const char *function, int ndim, int32_t *dim);
cfx_status cf_check_same_device(const char *function, const char *argument, const cfx_tensor *a, const cfx_tensor *b);
/* A shape that a tensor may have, or CFX_EARG: that of every tensor has passed it, a view's too. */
cfx_status cf_check_shape(const char *function, int32_t dtype, int32_t ndim, const int64_t *shape);

/* A packed tensor without a value.  An `out` that already has a buffer is taken as it is: it must have this
 * shape and dtype (this is how gradients are written in place). */
cfx_status cf_new(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* A handle on the same buffer with another view; nothing of the watch. */
void cf_alias(const cfx_tensor *x, cfx_tensor *out);
/* Change what a handle shows: x is packed, and gets another shape of as many elements; n elements of one dimension
 * (false: it has not those, see cf_dims_slice); one dimension less; the n dimensions `dims` alone, in that order. */
void cf_set_packed(cfx_tensor *x, int32_t ndim, const int64_t *shape);
bool cf_narrow(cfx_tensor *x, int32_t dim, int64_t start, int64_t n, int64_t step);
void cf_drop_dim(cfx_tensor *x, int32_t dim);
void cf_pick_dims(cfx_tensor *x, int32_t n, const int32_t *dims);
/* Borrowed (no reference, not released): x expanded to a shape that it broadcasts to. */
void cf_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* Makes x, whose buffer is set, the whole of it, and no view, watched or frozen. */
void cf_cover(cfx_tensor *x, int32_t dtype, int32_t ndim, const int64_t *shape);
void cf_buffer_retain(cf_buffer *buffer);
void cf_buffer_release(cf_buffer *buffer);

/* A buffer of `device` over a block that the caller has taken, with one reference; releasing it gives the block back,
 * by the block's own `give` where it has one.  On failure the block is still the caller's. */
cfx_status cf_buffer_over(cfx_device *device, cf_block *block, size_t bytes, cf_buffer **out);

/* ---- checks of values and of writes -------------------------------------------------------------------- */

/* Fails with the first error if the command that should have given x its value was skipped. */
static inline cfx_status cf_refuse_void(const cfx_tensor *x) {
    const cf_uses *made = &x->_buffer->made;
    for (int32_t i = 0; i < made->n; i++) {
        const cf_fault *fault = cf_event_void(cf_uses_items(made)[i]);
        if (fault) return cf_fault_raise(fault, "the tensor was never written: ");
    }
    return CFX_OK;
}
/* 1 if the view is all of its buffer. */
static inline bool cf_is_whole(const cfx_tensor *x) { return cf_bytes(x) == (int64_t)x->_buffer->bytes; }

/* The live tape that watches x, or NULL. */
static inline cf_watch *cf_watch_of(const cfx_tensor *x) {
    if (!x || !x->_tape || !x->_buffer || !x->_buffer->device) return NULL;
    for (cf_dependent *tape = cf_context(x)->tapes.first; tape; tape = tape->next)
        if (((cf_watch *)tape)->id == x->_tape) return (cf_watch *)tape;
    return NULL;
}
static inline bool cf_watched(const cfx_tensor *x) { return cf_watch_of(x) != NULL; }

/* Keeps a handle on x, which until the end of it cannot change in place.  Ending one that holds nothing does nothing. */
void cf_hold_begin(cf_hold *hold, const cfx_tensor *x, const char *op);
void cf_hold_end(cf_hold *hold);

/* Refuses to write into x in place while a tape needs it, or a DataLoader reads it. */
cfx_status cf_check_writable(const char *function, const cfx_tensor *x);
/* Refuses to change y in place by x, which broadcasts to it; x NULL: by a number. */
cfx_status cf_check_into(const char *function, const cfx_tensor *y, const cfx_tensor *x);

#endif
