/* tensor.h: tensors inside the core: buffers, results, and how an operation is issued.
 *
 * A buffer is a block of one device's pool and what is known of its order: the events of its last write and,
 * for each queue, of its last use.  A handle (cfx_tensor) is a view of it and holds one reference.  Reference
 * counts and orders are the host's alone; workers see addresses only.
 */
#ifndef CF_TENSOR_TENSOR_H
#define CF_TENSOR_TENSOR_H

#include "base/status.h"
#include "base/view.h"
#include "device/context.h"

/* A stretch of a gradient buffer whose last contribution is known. */
typedef struct cf_bucket {
    int64_t from, to; /* bytes */
    int32_t pending;  /* places that still expect a contribution */
    cf_event event;
} cf_bucket;

typedef struct cf_round cf_round;     /* drift.c's */
typedef struct cf_changes cf_changes; /* drift.c's */

/* A view that a thread of the host's reads as it likes, outside all queues. */
typedef struct cf_reader {
    cfx_tensor tensor;
    struct cf_reader *next;
} cf_reader;

typedef struct cf_buffer {
    cf_dependent dependent; /* of the device */
    cfx_device *device;     /* NULL: its context has ended */
    cf_block *block;
    char *data;
    size_t bytes;
    int32_t refs;
    int32_t fresh; /* 1 until something is written: what an operation that fails gives back */
    int32_t empty; /* 1: cfx_empty's, and not written yet */
    int32_t saved; /* how many handles the live tapes keep of it */
    cf_reader *readers;
    cf_uses writes; /* the last write; a collective's slices are several */
    cf_uses reads;  /* since then, the last of each queue */
    cf_uses made;   /* the write that gave the buffer its value; if it was skipped the tensor is void.  In-place
                        updates do not count: a skipped one leaves the old value */
    struct cfx_layout *layout;
    int32_t layout_dtype; /* which of the layout's buffers this is */
    cf_bucket *buckets;   /* valid while the backward that made them is the last writer: then nbuckets > 0 */
    int32_t nbuckets;     /* -1: a backward is under way and has written nothing yet */
    int32_t counting;     /* places of a backward under way */
    cf_round *round;      /* the collective that its value came out of, as that of `replica`; or NULL */
    int32_t replica;
    cf_changes *changes; /* what was done to it by such values; NULL: never anything */
} cf_buffer;

/* ---- handles ---------------------------------------------------------------------------------------- */

static inline int64_t cf_numel(const cfx_tensor *x) { return cf_shape_numel(x->_ndim, x->_shape); }
/* Of its elements, packed or not. */
static inline int64_t cf_bytes(const cfx_tensor *x) { return cf_numel(x) * cf_dtype_size(x->_dtype); }
static inline cfx_device *cf_device(const cfx_tensor *x) { return x->_buffer->device; }
static inline cfx_context *cf_context(const cfx_tensor *x) { return cf_context_of(x->_buffer->device); }
static inline char *cf_data(const cfx_tensor *x) { return x->_buffer->data + x->_offset * cf_dtype_size(x->_dtype); }
static inline bool cf_has_shape(const cfx_tensor *x, int ndim, const int64_t *shape) {
    return x->_ndim == ndim && cf_shape_same(ndim, x->_shape, shape);
}
static inline bool cf_same_shape(const cfx_tensor *a, const cfx_tensor *b) {
    return cf_has_shape(a, b->_ndim, b->_shape);
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
/* A handle on x with dimension `dim` last. */
void cf_move_last(const cfx_tensor *x, int32_t dim, cfx_tensor *out);
/* Makes x, whose buffer is set, the whole of it, and no view, watched or frozen. */
void cf_cover(cfx_tensor *x, int32_t dtype, int32_t ndim, const int64_t *shape);
void cf_buffer_retain(cf_buffer *buffer);
void cf_buffer_release(cf_buffer *buffer);

/* A buffer of `device` over a block that the caller has taken, with one reference; releasing it gives the block back.
 * On failure the block is still the caller's. */
cfx_status cf_buffer_over(cfx_device *device, cf_block *block, size_t bytes, cf_buffer **out);
/* Gives the host program its memory back, once the block's uses are over.  Cannot fail.  ended: no worker is
 * left, so they are. */
void cf_share_end(cf_block *block, bool ended);

/* ---- order ------------------------------------------------------------------------------------------ */

/* CF_MAKE gives the view its value, CF_UPDATE changes it.  Where a CF_MAKE is skipped the tensor is void. */
typedef enum cf_write { CF_MAKE, CF_UPDATE } cf_write;

/* Fails with the first error if the command that should have given x its value was skipped. */
cfx_status cf_refuse_void(const cfx_tensor *x);
/* 1 if the view is all of its buffer. */
bool cf_is_whole(const cfx_tensor *x);
/* What a command on `queue` that reads or writes x has to wait for; a reader refuses void tensors.  A part that is
 * written rests on what was written before, for it stands for the whole from then on.  Makes room for the note. */
cfx_status cf_wait_to_read(cf_waits *waits, const cfx_tensor *x);
cfx_status cf_wait_to_write(cf_waits *waits, const cfx_tensor *x);
/* Notes that the command of event e read or wrote x. */
void cf_did_read(const cfx_tensor *x, cf_event e);
void cf_did_write(const cfx_tensor *x, cf_event e, cf_write kind);

/* ---- replicas that a fault left behind (drift.c) ------------------------------------------------------ */

/* Before a collective gives all replicas of [replicas][n] leaves one value: what is changed in place by it from here on
 * is changed in all of them, or in none. */
cfx_status cf_rounds_begin(int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* Around the commit of a command that changes t[0 .. nout) in place by t[nout .. nout + nin), or of so many commands like
 * it; the second cannot fail. */
cfx_status cf_change_room(int nout, int nin, cfx_tensor *const *t, int32_t commands);
void cf_did_change(int nout, int nin, cfx_tensor *const *t, cf_event e);
/* Whether a fault kept from x a change that other replicas made, as far as is known; `what` is x, for the message. */
bool cf_is_behind(const cfx_tensor *x);
cfx_status cf_refuse_behind(const char *function, const char *what, const cfx_tensor *x);
/* x was given a new value; where that is skipped the tensor is void. */
void cf_caught_up(const cfx_tensor *x);
/* y is to be what x was. */
cfx_status cf_changes_move(const cfx_tensor *x, const cfx_tensor *y);
/* How many changes of x's buffer are not known to have been made. */
int32_t cf_changes_kept(const cfx_tensor *x);
void cf_drift_free(cf_buffer *buffer);

/* ---- commands --------------------------------------------------------------------------------------- */

/* One operation, on the compute queue of its first output's device.  Inputs may lie on other devices only for
 * `copy`.  Fills the call, orders it and notes its uses.  On failure nothing was enqueued, and outputs that
 * were never written are released. */
typedef struct cf_issue {
    cf_op op;
    int dtype; /* what it computes in */
    int nout, nin;
    cfx_tensor *t[8]; /* outputs, then inputs */
    double p[4];
    int64_t i[6];
    const void *extra;
    size_t extra_bytes;
    cf_write kind;
} cf_issue;
cfx_status cf_issue_run(const cf_issue *issue);
/* n >= 1 operations of one row that takes a list, on one device, as one command: all of them happen, or none. */
cfx_status cf_issue_list(const cf_issue *issues, int32_t n);
void cf_view_of(const cfx_tensor *x, cf_view *out);

/* Runs one cf_call; a cf_run. */
/* Whether neither device's kernels can reach the other's memory. */
bool cf_is_far(const cfx_device *a, const cfx_device *b);
/* The bytes of packed x into packed y, of one dtype and shape, on a device that is far. */
cfx_status cf_transfer(const cfx_tensor *x, cfx_tensor *y);

cfx_status cf_run_call(cf_worker *worker, void *payload, bool poisoned);

/* The reader takes a handle on x; until it gives it back what it reads cannot be written in place. */
cfx_status cf_reader_begin(cf_reader *reader, const cfx_tensor *x);
void cf_reader_end(cf_reader *reader);

/* Refuses to write into x in place while a tape needs it, or a reader reads it. */
cfx_status cf_check_writable(const char *function, const cfx_tensor *x);

/* ---- operations on operations ----------------------------------------------------------------------- */

/* y += x, y = x, y = 0, without checks for tapes, as parts of the making of y. */
cfx_status cf_copy_make(cfx_tensor *y, const cfx_tensor *x);
cfx_status cf_add_into(cfx_tensor *y, const cfx_tensor *x);
cfx_status cf_fill_make(cfx_tensor *y);
/* The dtype of a float operation on x. */
static inline int32_t cf_float_of(int32_t dtype) { return cf_is_float(dtype) ? dtype : CFX_FLOAT32; }

#endif
