/* conflux.h: the one public header of Conflux, a training engine over asynchronous devices.
 *
 * Everything the Lua front end does goes through this page, so a C program can do it too.  Plain C99; every
 * name starts with cfx_; handles are opaque, but for cfx_tensor, a small struct that the caller holds and
 * passes by address.
 *
 * Calls enqueue and return.  The host waits only where a value is read (cfx_read, cfx_wait, cfx_sync).  A
 * call that fails has changed nothing; it returns a status and leaves a message for cfx_error().  A context
 * is used by one host thread at a time.  Dimensions are counted from 0 here (Lua counts from 1).
 *
 * Equal runs give equal bits in any host: Conflux's threads compute in C's default floating-point environment, whatever
 * that of the thread is that makes a context.  Some calls compute numbers in the caller's thread (an optimiser's, those
 * of a CSV file): a program that changes that thread's environment restores it for them (fesetenv(FE_DFL_ENV)).
 * Engines do so themselves.
 *
 * The part between the marks `cdef: begin` and `cdef: end` is also the text that LuaJIT's ffi.cdef reads:
 * there are no varargs, structs by value, callbacks or 64-bit results in it.
 */
#ifndef CONFLUX_H
#define CONFLUX_H

#include <stddef.h>
#include <stdint.h>

#define CFX_ABI_VERSION 1

/* Marks what the library exports; all else is hidden. */
#if defined(__GNUC__)
#define CFX_API __attribute__((visibility("default")))
#else
#define CFX_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* cdef: begin */

enum { CFX_MAX_DIMS = 8, CFX_MAX_THREADS = 4096 };

/* The result of a call.  CFX_CUSTOM is no failure but the tape's request to run one backward function of the
 * host's own. */
typedef enum cfx_status {
    CFX_OK = 0,
    CFX_CUSTOM = -1,
    CFX_EARG = 1,       /* an argument does not fit; nothing was enqueued */
    CFX_EMEMORY = 2,    /* out of memory, host or device */
    CFX_EFAULT = 3,     /* an operation enqueued earlier failed */
    CFX_EIO = 4,        /* a file is missing, unreadable, truncated or corrupt */
    CFX_ESTATE = 5,     /* the call does not fit the state of its object */
    CFX_EINTERRUPT = 6, /* cfx_interrupt was called */
    CFX_ESCRIPT = 7     /* a script does not parse, or raised an error */
} cfx_status;

typedef enum cfx_dtype {
    CFX_BOOL = 0,
    CFX_UINT8 = 1,
    CFX_INT32 = 2,
    CFX_INT64 = 3,
    CFX_FLOAT16 = 4,
    CFX_BFLOAT16 = 5,
    CFX_FLOAT32 = 6,
    CFX_FLOAT64 = 7,
    CFX_DTYPES = 8
} cfx_dtype;

/* Marks on a tensor that a model holds. */
typedef enum cfx_flag {
    CFX_FLAG_BUFFER = 1, /* model state: copied, saved and synchronised, never trained */
    CFX_FLAG_FROZEN = 2, /* a parameter that is not watched, updated or decayed */
    CFX_FLAG_VIEW = 4    /* made by a view operation */
} cfx_flag;

typedef struct cfx_context cfx_context;
typedef struct cfx_device cfx_device;
typedef struct cfx_layout cfx_layout;
typedef struct cfx_tape cfx_tape;
typedef struct cfx_loader cfx_loader;

/* A view over a reference-counted buffer: element (i, j, ...) lies at offset + i * stride[0] + ..., counted
 * in elements.  Zero-initialise it before it receives a result; give it back with cfx_release, which zeroes
 * it.  The fields belong to Conflux. */
typedef struct cfx_tensor {
    struct cf_buffer *_buffer;
    int64_t _offset;
    uint64_t _tape; /* the tape that watches this handle; void once that tape has ended */
    int32_t _node;
    uint8_t _dtype, _ndim, _flags, _lent;
    int64_t _shape[8], _stride[8];
} cfx_tensor;

/* ---- library --------------------------------------------------------------------------------------- */

/* CFX_ABI_VERSION of the library that runs: compare it before calling anything else. */
CFX_API int32_t cfx_abi_version(void);
/* Its version, "0.1.0". */
CFX_API const char *cfx_version(void);
/* The message of the last call that failed in this thread; "" if none has. */
CFX_API const char *cfx_error(void);
/* Sets it: for plugins. */
CFX_API void cfx_error_set(const char *message);
/* A library of CUDA's by its name, from wherever such libraries lie (CONFLUX_CUDA_PATH), for plugins; NULL, and why in
 * the message.  It stays open. */
CFX_API void *cfx_library_open(const char *name);
/* The name of a dtype, "float32"; "unknown" for a number that is none. */
CFX_API const char *cfx_dtype_name(int32_t dtype);
/* Bytes of one element; 0 for a number that is none. */
CFX_API int32_t cfx_dtype_size(int32_t dtype);
/* The dtype of a name, or -1. */
CFX_API int32_t cfx_dtype_find(const char *name);
/* The dtype that `a` and `b` promote to. */
CFX_API int32_t cfx_dtype_promote(int32_t a, int32_t b);
/* The number of an operation of core/device/ops.def ("add", "tanh"), or -1. */
CFX_API int32_t cfx_op_find(const char *name);

/* Whether a terminal is behind a descriptor: it is one, or it is the pipe by which conflux-run shows rank 0's output on
 * one, so that bars and colours are in place. */
CFX_API int32_t cfx_is_terminal(int32_t fd);

/* How it was built: type, compiler, processor. */
CFX_API const char *cfx_build(void);
/* The libraries that it rests on and no backend brings, with their versions. */
CFX_API const char *cfx_libraries(void);

/* ---- backends -------------------------------------------------------------------------------------- */

/* A kind of devices. */
typedef struct cfx_backend_info {
    char name[16];       /* "cpu", "cuda" */
    int32_t devices;     /* how many this machine has, without virtual ones */
    char reason[544];    /* why there is none; "" where there are some */
    char libraries[256]; /* those that it rests on, with versions; "" where that is not known */
} cfx_backend_info;
/* How many kinds there are, with those whose plugin is missing. */
CFX_API int32_t cfx_backend_count(void);
/* Kind i, from 0.  Loads plugins, which may take a part of a second. */
CFX_API cfx_status cfx_backend(int32_t i, cfx_backend_info *out);
/* Describes device `device` (from 0) of kind i in words. */
CFX_API cfx_status cfx_backend_device(int32_t i, int32_t device, char *text, size_t bytes);

/* ---- contexts and devices -------------------------------------------------------------------------- */

typedef struct cfx_context_options {
    size_t size;         /* sizeof(cfx_context_options), here and in other options: fields behind it count as 0 */
    const char *devices; /* a spec such as "cpu*2"; NULL: every visible GPU, or where there is none the CPU */
    int32_t threads;     /* CPU threads to share among CPU devices, 1 to CFX_MAX_THREADS; 0: the cores it may use */
    uint64_t seed;
    size_t memory_limit; /* bytes a device's pool may hold; 0: what the machine has */
} cfx_context_options;

/* Makes a context; `options` NULL: the default of each.  Fails with CFX_EARG for a spec whose devices do not exist. */
CFX_API cfx_status cfx_context_new(const cfx_context_options *options, cfx_context **out);
/* Drops what has not begun (cfx_sync waits for it), then frees everything but tensor handles and tapes still held,
 * which become void. */
CFX_API void cfx_context_free(cfx_context *context);

/* Makes `spec` the run's devices: names separated by commas, "cpu", "cpu:1", "cpu*2".  Refused while a
 * tensor lives on a device that would vanish. */
CFX_API cfx_status cfx_devices_set(cfx_context *context, const char *spec);
/* How many devices the run has. */
CFX_API int32_t cfx_device_count(const cfx_context *context);
/* Device i of the run, from 0; NULL out of range. */
CFX_API cfx_device *cfx_device_at(const cfx_context *context, int32_t i);
/* The device of that name ("cpu" is "cpu:0"). */
CFX_API cfx_status cfx_device_find(cfx_context *context, const char *name, cfx_device **out);
/* Its name, "cpu:0", as long as the device lives. */
CFX_API const char *cfx_device_name(const cfx_device *device);
/* Threads that the device's team may have.  It has fewer where the system makes no more, which is logged. */
CFX_API int32_t cfx_device_threads(const cfx_device *device);
/* The context that the device belongs to. */
CFX_API cfx_context *cfx_device_context(const cfx_device *device);

/* Waits until everything enqueued on `device` (NULL: on all) has run; raises a fault found there. */
CFX_API cfx_status cfx_sync(cfx_context *context, cfx_device *device);
/* Sets the flag that every call and every wait checks.  Async-signal-safe, any thread. */
CFX_API void cfx_interrupt(cfx_context *context);
/* Fails with CFX_EINTERRUPT, once, if cfx_interrupt was called. */
CFX_API cfx_status cfx_check(cfx_context *context);
/* The number that the next commands carry: `line` of the chunk `source`, for faults found later. */
CFX_API void cfx_at_line(cfx_context *context, const char *source, int32_t line);

typedef struct cfx_memory_info {
    double in_use;   /* bytes in live tensors */
    double reserved; /* bytes taken from the system */
    double peak;     /* the most that was ever in use */
    double limit;
    double blocks; /* live blocks */
} cfx_memory_info;
/* The bytes that the device's pool holds now. */
CFX_API void cfx_memory(const cfx_device *device, cfx_memory_info *out);
/* For hosts with a garbage collector: the int32 is not 0 once a pool has grown by more than the threshold since
 * the last cfx_debt_paid.  Look at it before a handle is made, collect, and say so. */
CFX_API const int32_t *cfx_debt(const cfx_context *context);
/* Sets that threshold, in bytes; 8 MiB unless set. */
CFX_API void cfx_debt_threshold(cfx_context *context, double bytes);
/* Says that a collection has run. */
CFX_API void cfx_debt_paid(cfx_context *context);
/* Gives unused memory back to the system. */
CFX_API void cfx_memory_trim(cfx_context *context);

/* A meter counts work by what the devices have done of it, where the host only enqueues it.  It owns nothing: the caller
 * holds it, drops it when it likes, and does not use it once its context has ended. */
typedef struct cfx_meter_point {
    double _count;
    int32_t _n; /* the commands that it waits for, at most one a queue */
    struct {
        void *_queue;
        uint64_t _ticket;
    } _events[130];
} cfx_meter_point;
typedef struct cfx_meter {
    cfx_context *_context;
    double _done;
    int32_t _first, _n; /* the ring's points, oldest first */
    int32_t _each;      /* calls of cfx_meter_count that share a point */
    int32_t _calls;     /* and those that the newest one has */
    cfx_meter_point _points[16];
} cfx_meter;
/* Begins at 0. */
CFX_API void cfx_meter_begin(cfx_context *context, cfx_meter *out);
/* Counts n once all that is enqueued by now is done; never waits.  While many calls are behind, neighbours are counted
 * together, with the last of them. */
CFX_API void cfx_meter_count(cfx_meter *meter, double n);
/* How much is done, as far as the host knows; never waits.  A device that only launches work is asked how far it is, so
 * that a later call knows more. */
CFX_API double cfx_meter_done(cfx_meter *meter);
/* Waits until all that was counted is done; raises the fault that kept some of it from being done. */
CFX_API cfx_status cfx_meter_wait(cfx_meter *meter);

/* Random numbers are Philox 4x32-10 (Salmon et al., SC 2011) by position.  Stream 0 is shared, stream i + 1
 * belongs to device i of the run.  Starts all streams anew, at position 0. */
CFX_API void cfx_seed(cfx_context *context, uint64_t seed);
/* Where a stream is. */
CFX_API void cfx_rng_get(const cfx_context *context, int32_t stream, uint64_t *seed, uint64_t *position);
/* Puts a stream there. */
CFX_API cfx_status cfx_rng_set(cfx_context *context, int32_t stream, uint64_t seed, uint64_t position);

/* "float32" (exact), "tf32" or "bfloat16" for matrix products of float32 tensors, where a device has it. */
CFX_API cfx_status cfx_precision(cfx_context *context, const char *name);

/* ---- tensors --------------------------------------------------------------------------------------- */

/* A tensor of ndim (at most 8) sizes, uninitialised. */
CFX_API cfx_status cfx_empty(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* The same, filled with `value`, which the dtype must be able to hold. */
CFX_API cfx_status cfx_full(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, double value,
                            cfx_tensor *out);
/* Copies `data`, row-major, of the tensor's dtype; the caller may reuse it on return. */
CFX_API cfx_status cfx_from_host(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape,
                                 const void *data, cfx_tensor *out);
/* start, start + step, ...: n values (float64 arithmetic, rounded to dtype). */
CFX_API cfx_status cfx_arange(cfx_device *device, int32_t dtype, int64_t n, double start, double step, cfx_tensor *out);
/* kind: "uniform" on [a, b), "normal" with mean a and deviation b, "integer" from a to b inclusive, or
 * "permutation" of 0 .. shape[0]-1 (int64). */
CFX_API cfx_status cfx_random(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, const char *kind,
                              double a, double b, int32_t stream, cfx_tensor *out);

/* A second handle on the same view.  `out` carries the watch too. */
CFX_API cfx_status cfx_retain(const cfx_tensor *x, cfx_tensor *out);
/* The same view, not watched. */
CFX_API cfx_status cfx_detach(const cfx_tensor *x, cfx_tensor *out);
/* Gives the handle up.  Cannot fail, may be called twice, never waits. */
CFX_API void cfx_release(cfx_tensor *x);
/* The device that holds it; NULL once it was released. */
CFX_API cfx_device *cfx_tensor_device(const cfx_tensor *x);
/* 1 if its elements lie packed, row-major. */
CFX_API int32_t cfx_is_contiguous(const cfx_tensor *x);
/* 1 if the value is there, so that a read would not wait. */
CFX_API int32_t cfx_ready(const cfx_tensor *x);
/* Waits for the value; raises the fault that kept it from being made. */
CFX_API cfx_status cfx_wait(const cfx_tensor *x);
/* Waits, then copies the values, row-major, to `dst` of `bytes` bytes. */
CFX_API cfx_status cfx_read(const cfx_tensor *x, void *dst, size_t bytes);
/* Waits, then gives the address of the first element; NULL out for a device whose memory the host cannot read. */
CFX_API cfx_status cfx_pointer(const cfx_tensor *x, void **out);

/* ---- views: no data moves; out shares x's buffer --------------------------------------------------- */

/* One dimension may be -1.  Copies where no view can show the shape. */
CFX_API cfx_status cfx_reshape(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* Dimension i of out is dimension dims[i] of x. */
CFX_API cfx_status cfx_permute(const cfx_tensor *x, int32_t ndim, const int32_t *dims, cfx_tensor *out);
/* Dimensions a and b exchanged. */
CFX_API cfx_status cfx_transpose(const cfx_tensor *x, int32_t a, int32_t b, cfx_tensor *out);
/* Elements start, start + step, ... of dimension `dim`: n of them. */
CFX_API cfx_status cfx_slice(const cfx_tensor *x, int32_t dim, int64_t start, int64_t n, int64_t step, cfx_tensor *out);
/* Position i of dimension `dim`, which vanishes. */
CFX_API cfx_status cfx_select(const cfx_tensor *x, int32_t dim, int64_t i, cfx_tensor *out);
/* Without dimension `dim`, which has size 1. */
CFX_API cfx_status cfx_squeeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out);
/* With a new dimension of size 1, which becomes dimension `dim`. */
CFX_API cfx_status cfx_unsqueeze(const cfx_tensor *x, int32_t dim, cfx_tensor *out);
/* Dimensions of size 1 stretched to the sizes given, and new ones in front; -1 keeps a size. */
CFX_API cfx_status cfx_expand(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *out);
/* The main diagonal of the last two dimensions. */
CFX_API cfx_status cfx_diagonal(const cfx_tensor *x, cfx_tensor *out);

/* ---- copies ---------------------------------------------------------------------------------------- */

/* x itself (another handle) where nothing changes.  device NULL or dtype -1: as x. */
CFX_API cfx_status cfx_to(const cfx_tensor *x, cfx_device *device, int32_t dtype, cfx_tensor *out);
/* A packed row-major copy. */
CFX_API cfx_status cfx_clone(const cfx_tensor *x, cfx_tensor *out);
/* x itself (another handle) where it is packed, else a packed copy. */
CFX_API cfx_status cfx_contiguous(const cfx_tensor *x, cfx_tensor *out);
/* n tensors, of one shape but for dimension `dim`, one behind the other along it. */
CFX_API cfx_status cfx_concat(int32_t n, const cfx_tensor *const *xs, int32_t dim, cfx_tensor *out);
/* n tensors of one shape along a new dimension `dim`. */
CFX_API cfx_status cfx_stack(int32_t n, const cfx_tensor *const *xs, int32_t dim, cfx_tensor *out);
/* The order reversed along ndims dimensions. */
CFX_API cfx_status cfx_flip(const cfx_tensor *x, int32_t ndims, const int32_t *dims, cfx_tensor *out);
/* before[d] and after[d] elements of `value` around dimension d. */
CFX_API cfx_status cfx_pad(const cfx_tensor *x, const int64_t *before, const int64_t *after, double value,
                           cfx_tensor *out);
/* count[d] copies side by side along dimension d. */
CFX_API cfx_status cfx_tile(const cfx_tensor *x, const int64_t *count, cfx_tensor *out);

/* ---- elementwise ----------------------------------------------------------------------------------- */

/* `op` is a unary row of ops.def; p0 and p1 are its parameters (clamp's bounds, leakyrelu's slope). */
CFX_API cfx_status cfx_unary(int32_t op, const cfx_tensor *x, double p0, double p1, cfx_tensor *out);
/* Broadcasts as NumPy does, and promotes. */
CFX_API cfx_status cfx_binary(int32_t op, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out);
/* With a number on the right, or (reversed) on the left. */
CFX_API cfx_status cfx_binary_scalar(int32_t op, const cfx_tensor *a, double b, int32_t reversed, cfx_tensor *out);
/* a where `condition` is not 0, else b; all three broadcast. */
CFX_API cfx_status cfx_where(const cfx_tensor *condition, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out);
/* In place: y = op(y, x), x broadcast; y keeps its dtype, and what would widen it is refused. */
CFX_API cfx_status cfx_binary_into(int32_t op, cfx_tensor *y, const cfx_tensor *x);
/* In place: y = op(y, value). */
CFX_API cfx_status cfx_binary_scalar_into(int32_t op, cfx_tensor *y, double value);
/* In place: what lies below `low` becomes low, above `high` high. */
CFX_API cfx_status cfx_clamp_into(cfx_tensor *y, double low, double high);
/* In place: every element becomes `value`. */
CFX_API cfx_status cfx_fill(cfx_tensor *y, double value);
/* In place: y takes x's values, converted and broadcast, from any device. */
CFX_API cfx_status cfx_copy(cfx_tensor *y, const cfx_tensor *x);

/* ---- reductions and what orders -------------------------------------------------------------------- */

/* `op`: sum mean prod max min norm any all argmax argmin var std.  ndims 0 reduces over all dimensions.  `param`:
 * the correction of var and std.  argmax and argmin take one dimension, or all. */
CFX_API cfx_status cfx_reduce(int32_t op, const cfx_tensor *x, int32_t ndims, const int32_t *dims, int32_t keepdim,
                              double param, cfx_tensor *out);
/* op: softmax or logsoftmax. */
CFX_API cfx_status cfx_softmax(int32_t op, const cfx_tensor *x, int32_t dim, cfx_tensor *out);
/* The k largest along `dim`, in falling order, and their ids (int64, from 0).  NaN counts as the largest; equal
 * values keep their order. */
CFX_API cfx_status cfx_topk(const cfx_tensor *x, int64_t k, int32_t dim, cfx_tensor *values, cfx_tensor *ids);
/* All values along `dim` in rising, or falling, order, and their ids; NaN and equal values as above. */
CFX_API cfx_status cfx_sort(const cfx_tensor *x, int32_t dim, int32_t descending, cfx_tensor *values, cfx_tensor *ids);
/* Keeps the lower (upper) triangle of the last two dimensions, up to diagonal k. */
CFX_API cfx_status cfx_tri(const cfx_tensor *x, int32_t upper, int64_t k, cfx_tensor *out);
/* [.., n] float32: 1 at the id, else 0. */
CFX_API cfx_status cfx_onehot(const cfx_tensor *ids, int64_t n, cfx_tensor *out);

/* ---- products, layers, losses ---------------------------------------------------------------------- */

/* [.., n, k] x [.., k, m]; batch dimensions broadcast; a vector on either side as NumPy has it. */
CFX_API cfx_status cfx_matmul(const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out);
/* act(x W' + bias): x [.., in], weight [out, in], bias [out] or NULL.  `act`: a unary row, or -1. */
CFX_API cfx_status cfx_dense(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias, int32_t act,
                             cfx_tensor *out);
/* Where a window lies, of convolutions and pools; order: height, width.  pad: top, bottom, left, right. */
typedef struct cfx_window {
    int64_t kernel[2], stride[2], pad[4], dilation[2];
} cfx_window;
/* act(conv(x, weight) + bias + residual): x [n, h, w, in], weight [out, kh, kw, in / groups] (window's kernel is not
 * read), bias [out] or NULL, residual of out's shape or NULL; all of one float type.  `act`: a unary row without
 * numbers, or -1.  A result whose window has an infinity or a NaN is infinite or NaN;
 * of an infinity it may be either. */
CFX_API cfx_status cfx_conv(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias,
                            const cfx_tensor *residual, int32_t act, const cfx_window *window, int64_t groups,
                            cfx_tensor *out);
/* The transposed one, conv's backward by data, run forwards: x [n, h, w, in], weight [in, kh, kw, out / groups],
 * out [n, (h - 1) * stride - pads + dilation * (kh - 1) + output_pad + 1, .., out]. */
CFX_API cfx_status cfx_conv_transpose(const cfx_tensor *x, const cfx_tensor *weight, const cfx_tensor *bias,
                                      int32_t act, const cfx_window *window, const int64_t output_pad[2],
                                      int64_t groups, cfx_tensor *out);
/* Rows of dimension `dim` by ids (of any shape, which replaces that dimension). */
CFX_API cfx_status cfx_index(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, cfx_tensor *out);
/* out[i][j].. = x[ids[i][j]..][j].. along `dim`; ids has x's rank. */
CFX_API cfx_status cfx_gather(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, cfx_tensor *out);
/* A copy of x to which src is added at ids, in the order of ids (deterministic). */
CFX_API cfx_status cfx_scatter_add(const cfx_tensor *x, int32_t dim, const cfx_tensor *ids, const cfx_tensor *src,
                                   cfx_tensor *out);
/* Over the last dimensions, as many as gamma has (Ba et al. 2016).  gamma and beta may be NULL: then over the
 * last dimension alone. */
CFX_API cfx_status cfx_layernorm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, double eps,
                                 cfx_tensor *out);
/* Of batch normalisation, one value a channel [c]: gamma and beta, or NULL both; the running mean and variance, or
 * NULL both; count: int64 [1] of the batches so far, or NULL. */
typedef struct cfx_batch_state {
    const cfx_tensor *gamma, *beta;
    cfx_tensor *mean, *var, *count;
} cfx_batch_state;
/* act(batchnorm(x) + residual) (Ioffe & Szegedy 2015), x [.., c]; residual of x's shape or NULL; act: a unary row,
 * or -1; relu is fused.  training: by the batch's statistics, and the running ones move by momentum (negative: the
 * cumulative mean, 1 / count), count rises by one; else by the running ones. */
CFX_API cfx_status cfx_batchnorm(const cfx_tensor *x, const cfx_batch_state *state, const cfx_tensor *residual,
                                 int32_t act, double eps, double momentum, int32_t training, cfx_tensor *out);
/* Over each sample's groups of channels (Wu & He 2018): x [n, .., c], gamma and beta [c], or NULL both. */
CFX_API cfx_status cfx_groupnorm(const cfx_tensor *x, const cfx_tensor *gamma, const cfx_tensor *beta, int64_t groups,
                                 double eps, cfx_tensor *out);
/* Bytes as numbers: float32 x scale + shift of x [.., c] uint8, by scale and shift [c] float32.  It has no gradient. */
CFX_API cfx_status cfx_normalise(const cfx_tensor *x, const cfx_tensor *scale, const cfx_tensor *shift,
                                 cfx_tensor *out);
/* The largest of each window of x [n, height, width, c]; what lies in the pad is -inf.  A NaN passes, and of equals
 * the first takes the gradient. */
CFX_API cfx_status cfx_maxpool(const cfx_tensor *x, const cfx_window *window, cfx_tensor *out);
/* The mean of each window; count_pad: what lies in the pad counts, as 0. */
CFX_API cfx_status cfx_meanpool(const cfx_tensor *x, const cfx_window *window, int32_t count_pad, cfx_tensor *out);
/* To [n, height, width, c]: the means of windows from floor(i in / out) to ceil((i + 1) in / out). */
CFX_API cfx_status cfx_adaptive_meanpool(const cfx_tensor *x, int64_t height, int64_t width, cfx_tensor *out);
/* Images of another size, [n, height, width, c]: of the nearest pixels, or bilinear between four; PyTorch's interpolate.
 * scale: its scale_factor of height and width, or 0: the ratio of the sizes.  align_corners: the corners' centres stay
 * where they are.  A pixel that weighs nothing is not read, so that its NaN or infinity is in no result. */
CFX_API cfx_status cfx_upsample(const cfx_tensor *x, int64_t height, int64_t width, const double scale[2],
                                int32_t bilinear, int32_t align_corners, cfx_tensor *out);
/* Zeroes with probability p and scales the rest by 1 / (1 - p) (Srivastava et al. 2014). */
CFX_API cfx_status cfx_dropout(const cfx_tensor *x, double p, int32_t stream, cfx_tensor *out);

typedef enum cfx_reduction { CFX_NONE = 0, CFX_MEAN = 1, CFX_SUM = 2 } cfx_reduction;
/* logits [.., classes]; target: ids [..] or probabilities [.., classes].  Rows whose id is `ignore` count
 * neither in the sum nor in the mean. */
CFX_API cfx_status cfx_crossentropy(const cfx_tensor *logits, const cfx_tensor *target, double smoothing,
                                    int64_t ignore, int32_t reduction, cfx_tensor *out);
/* op: mse, mae, huber (param: delta) or bce (x are logits, y in [0, 1]); same shapes. */
CFX_API cfx_status cfx_loss(int32_t op, const cfx_tensor *x, const cfx_tensor *y, double param, int32_t reduction,
                            cfx_tensor *out);

/* ---- gradients ------------------------------------------------------------------------------------- */

/* Watches the n handles until the tape ends.  The caller owns *out, and gives it back with cfx_tape_end: also after
 * the context has ended, which voids it. */
CFX_API cfx_status cfx_tape_begin(cfx_context *context, int32_t n, cfx_tensor *const *watched, cfx_tape **out);
/* Walks back from the scalar `loss`.  grads[i] receives the gradient of watched[i]: an empty handle gets a
 * new tensor, one that has a buffer (of watched[i]'s shape and dtype) is written, or with `accumulate` added
 * to.  On CFX_CUSTOM run the backward of cfx_tape_custom(), give its results and call cfx_tape_resume.  Out of memory
 * (CFX_EMEMORY) loses nothing: the same call goes on where it stopped, once memory was freed. */
CFX_API cfx_status cfx_tape_backward(cfx_tape *tape, const cfx_tensor *loss, cfx_tensor *const *grads,
                                     int32_t accumulate);
/* Goes on after CFX_CUSTOM, or out of memory; may return either again. */
CFX_API cfx_status cfx_tape_resume(cfx_tape *tape);
/* Ends the tape, whatever it was doing, and zeroes the pointer: its watches are void, what it kept is released.  Cannot
 * fail; an empty pointer does nothing, so that a collector may call it too. */
CFX_API void cfx_tape_end(cfx_tape **tape);
/* 1 if a live tape watches x. */
CFX_API int32_t cfx_is_watched(const cfx_tensor *x);
/* Records `out` as made by host code from n inputs; `id` comes back from cfx_tape_custom.  Until then inputs, `out` and
 * the nkept tensors that the host's backward reads besides cannot change in place. */
CFX_API cfx_status cfx_tape_record(int32_t id, int32_t n, const cfx_tensor *const *inputs, int32_t nkept,
                                   const cfx_tensor *const *kept, cfx_tensor *out);
/* After CFX_CUSTOM: the id, and in `grad` the gradient of the recorded output. */
CFX_API cfx_status cfx_tape_custom(cfx_tape *tape, int32_t *id, cfx_tensor *grad);
/* Gives the gradient of input i (from 0) of the custom node at hand. */
CFX_API cfx_status cfx_tape_give(cfx_tape *tape, int32_t i, const cfx_tensor *grad);

/* ---- layouts: flat buffers ------------------------------------------------------------------------- */

/* Lays n tensors out in one buffer per dtype, 256-byte aligned, in the order given, and records their paths.
 * Tied handles (same view) share a place. */
CFX_API cfx_status cfx_layout_new(int32_t n, const cfx_tensor *const *tensors, const char *const *paths,
                                  cfx_layout **out);
/* Gives the layout up; buffers made from it keep what they need.  NULL does nothing. */
CFX_API void cfx_layout_free(cfx_layout *layout);
/* Moves the values of the n handles into new buffers of the layout on `device`; the handles stay, their
 * buffers change.  A buffer that others than these handles refer to is refused by path. */
CFX_API cfx_status cfx_layout_pack(cfx_layout *layout, cfx_device *device, cfx_tensor *const *handles);
/* New buffers on `device`: the n empty handles become views into them.  zero: filled with 0 (else only the
 * gaps are). */
CFX_API cfx_status cfx_layout_make(cfx_layout *layout, cfx_device *device, int32_t dtype, int32_t zero,
                                   cfx_tensor *const *handles);
/* New buffers on `device` with the values of the n tensors x, which are of the places' shapes and dtypes; the n empty
 * handles become views into them.  Tensors that are neighbours in x, too, as in a copy of this layout, are copied at
 * once. */
CFX_API cfx_status cfx_layout_copy(cfx_layout *layout, cfx_device *device, const cfx_tensor *const *x,
                                   cfx_tensor *const *handles);
/* The layout that the tensor's buffer has, or NULL. */
CFX_API cfx_layout *cfx_tensor_layout(const cfx_tensor *x);
/* 1 if the n handles are exactly the layout's places, in order. */
CFX_API int32_t cfx_layout_holds(const cfx_layout *layout, int32_t n, const cfx_tensor *const *handles);

/* ---- optimisers ------------------------------------------------------------------------------------ */

/* rule: descent momentum nesterov rmsprop adam adamw adagrad adadelta nadam lion.  Formulas are PyTorch's;
 * Lion is Chen et al. 2023. */
typedef struct cfx_rule {
    size_t size; /* sizeof(cfx_rule) */
    const char *name;
    double rate, decay; /* decay: added to the gradient, or (adamw, lion) applied to the parameter */
    double beta1, beta2, eps;
    double clip_norm, clip_value; /* 0: off */
} cfx_rule;
/* How many state tensors a parameter has under the rule (0 to 2), or -1 for an unknown name. */
CFX_API int32_t cfx_rule_states(const char *name);
/* One update of n parameters in place, of update count `step` (from 1).  states: first all first states,
 * then all second ones.  scale and decay (NULL: 1 each) multiply the rule's rate and decay per parameter; missed (NULL:
 * 0 each) says in how many of the step - 1 updates before a parameter took no part, which its rule does not count.
 * Neighbours in flat buffers are updated by one command.  Parameters may lie on several devices: a norm is that of
 * all. */
CFX_API cfx_status cfx_optim_update(const cfx_rule *rule, int64_t step, int32_t n, cfx_tensor *const *params,
                                    const cfx_tensor *const *grads, cfx_tensor *const *states, const double *scale,
                                    const double *decay, const int64_t *missed);
/* The 2-norm of all n tensors together, as one float32 scalar on their device. */
CFX_API cfx_status cfx_norm(int32_t n, const cfx_tensor *const *xs, cfx_tensor *out);

/* ---- worlds: many processes that train together ------------------------------------------------------- */

typedef struct cfx_world_options {
    size_t size;    /* sizeof(cfx_world_options) */
    double timeout; /* seconds after which a rank that others wait for is given up; 0: 600; infinity: none is */
} cfx_world_options;

/* A context's place in its world; size 0: it is in none. */
typedef struct cfx_world_info {
    int32_t rank, size;             /* of all processes, from 0 */
    int32_t local_rank, local_size; /* of those of this host */
} cfx_world_info;

/* Joins the world of the processes that conflux-run has started together, or if it has started none, a world of this one
 * alone; returns when all have come.  options NULL: all as it is unless told.  From here on a collective joins the
 * replicas of all ranks, in the order of the ranks, and `root` counts them all. */
CFX_API cfx_status cfx_world_join(cfx_context *context, const cfx_world_options *options);
/* Ends what is under way, and leaves.  A context that ends leaves, too. */
CFX_API cfx_status cfx_world_leave(cfx_context *context);
/* Where the world is broken: makes a world of the ranks that still live and call this, in their order; the others are
 * given up, as late ones are.  Tensors that the broken collective was writing stay void.  A failure leaves the world. */
CFX_API cfx_status cfx_world_shrink(cfx_context *context);
/* Where the context stands. */
CFX_API void cfx_world(const cfx_context *context, cfx_world_info *out);
/* is_local 1: from here on collectives join this process's replicas alone; 0: those of all ranks. */
CFX_API void cfx_world_scope(cfx_context *context, int32_t is_local);
/* Tells all ranks that this one cannot go on: their collectives fail with the reason, and this one's. */
CFX_API void cfx_world_fail(cfx_context *context, const char *why);

/* ---- collectives over replicas --------------------------------------------------------------------- */

/* leaves: [replicas][n] handles, replica by replica; place i of every replica must have one shape and dtype, and each
 * replica one device.  op: "sum" "prod" "max" "min" "avg".  The order of addition is that of the replicas, so equal
 * runs give equal bits.  A tensor that is written is not expanded, replicas share no element, and tensors of one
 * replica do so likewise in all replicas: one is the other, or lies in it. */
CFX_API cfx_status cfx_allreduce(const char *op, int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* Only replica `root` (from 0) changes. */
CFX_API cfx_status cfx_reduce_to(const char *op, int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* The mean over samples of which replica r has had weights[r], in all replicas, or where root is not -1 in that alone:
 * the sum of weights[r] x[r], over the sum of the weights.  They are finite, not below 0, and not all 0.  A replica of
 * weight 0 is not read: NaN there counts nothing.  Equal weights, and NULL, give the bits of "avg". */
CFX_API cfx_status cfx_weighted_mean(const double *weights, int32_t root, int32_t replicas, int32_t n,
                                     cfx_tensor *const *leaves);
/* Before the leaves of all replicas get one value in another way: as after an allreduce, a replica that skips, because
 * of a fault of its own, what the others then change by that value is refused until it is synchronized. */
CFX_API cfx_status cfx_common(int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* The tensors of replica `root` are copied to all others. */
CFX_API cfx_status cfx_broadcast(int32_t root, int32_t replicas, int32_t n, cfx_tensor *const *leaves);
/* out[r], of every replica, is the concatenation of all in[s] along dimension 0.  No out shares an element with
 * another or with an in, but in[r] may be its own rows of out[r]. */
CFX_API cfx_status cfx_allgather(int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out);
/* out[r] is part r of the reduction of all in[s], cut evenly along dimension 0.  out[r] may be part r of in[r]; else
 * no out shares an element with another or with an in. */
CFX_API cfx_status cfx_reduce_scatter(const char *op, int32_t replicas, const cfx_tensor *const *in,
                                      cfx_tensor *const *out);
/* CFX_OK if `function` may write such leaves in replica `root`, or with -1 in all; else CFX_EARG, whose message calls
 * place i paths[i] (NULL: by its number).  The functions above ask this themselves. */
CFX_API cfx_status cfx_check_replicas(const char *function, int32_t root, int32_t replicas, int32_t n,
                                      cfx_tensor *const *leaves, const char *const *paths);
/* How replicas on these devices are joined: "self", "local" (in each other's memory), "nccl", "local + nccl", or
 * "none" where they cannot be. */
CFX_API cfx_status cfx_group(int32_t n, cfx_device *const *devices, char *out, size_t bytes);

/* ---- data ------------------------------------------------------------------------------------------ */

/* An IDX file (LeCun's MNIST format), plain or gzip, as a tensor on `device`. */
CFX_API cfx_status cfx_idx_read(cfx_device *device, const char *path, cfx_tensor *out);
/* Numbers separated by `separator`, one row a line, as float32 or float64 [rows, columns]; `skip` lines first. */
CFX_API cfx_status cfx_csv_read(cfx_device *device, const char *path, int32_t separator, int32_t skip, int32_t dtype,
                                cfx_tensor *out);

typedef struct cfx_loader_options {
    size_t size;      /* sizeof(cfx_loader_options) */
    int64_t batch;    /* samples a device takes each step */
    int32_t devices;  /* how many of the run's devices, from the first */
    int32_t shuffle;  /* 1: the order of an epoch is the permutation of (seed, epoch) */
    int32_t last;     /* 0 drop, 1 pad (with the epoch's first samples), 2 keep */
    int32_t prefetch; /* steps made ahead */
    uint64_t seed;
    int32_t threads;  /* that make samples; 0: one, and of pictures half the cores */
    int32_t skip_bad; /* a bad sample is 0: replaced by the next of the epoch's order that is good; 1: left out */
    double max_bad;   /* bad samples an epoch may have, as a share of all; 0: the first one is an error */
    int32_t shards;   /* devices of all processes that share each step; 0: these `devices` alone do */
    int32_t first;    /* of them the place of this process's first */
} cfx_loader_options;
/* A loader over n CPU tensors of equal length, which it holds, and which cannot be written in place meanwhile.  Its own
 * threads gather the samples. */
CFX_API cfx_status cfx_loader_new(const cfx_loader_options *options, int32_t n, const cfx_tensor *const *columns,
                                  cfx_device *const *devices, cfx_loader **out);
/* Stops the loader's threads, gives its samples up, and zeroes the pointer; an empty one does nothing, so that a
 * collector may call it too.  A loader that outlives its context can only be freed. */
CFX_API void cfx_loader_free(cfx_loader **loader);
/* Steps of an epoch. */
CFX_API int32_t cfx_loader_steps(const cfx_loader *loader);
/* Starts `epoch` at `step` (from 0), and cancels one under way. */
CFX_API cfx_status cfx_loader_begin(cfx_loader *loader, int64_t epoch, int64_t step);
/* The next step: counts[d] samples for device d and its n tensors in batch[d * n + column].  *more is 0 at the
 * end. */
CFX_API cfx_status cfx_loader_next(cfx_loader *loader, int64_t *counts, cfx_tensor *const *batch, int32_t *more);
/* How many bad samples the steps taken in this epoch had, and why of the first n of the first ten: names of files with
 * reasons, NULL beyond the last, valid until the next call on the loader.  The log is told of them at the epoch's end. */
CFX_API cfx_status cfx_loader_bad(const cfx_loader *loader, int64_t *count, int32_t n, const char **named);

/* ---- pictures -------------------------------------------------------------------------------------- */

/* Steps of a transform, in torchvision's words: one that resizes, then crops, then a flip and a jitter. */
typedef enum cfx_image_kind {
    CFX_IMAGE_RESIZE = 1,        /* to height x width; height 0: the shorter side to width */
    CFX_IMAGE_RANDOMRESIZEDCROP, /* values: shares of the area from and to, ratios from and to */
    CFX_IMAGE_CENTRECROP,        /* height x width, black where the picture is smaller */
    CFX_IMAGE_FLIP,              /* left and right change places; values[0]: how often, 0 to 1 */
    CFX_IMAGE_JITTER             /* values: most change of brightness, contrast, saturation, hue */
} cfx_image_kind;
typedef struct cfx_image_step {
    int32_t kind, height, width;
    double values[4];
} cfx_image_step;
typedef struct cfx_image_options {
    size_t size; /* sizeof(cfx_image_options) */
    cfx_image_step steps[8];
    int32_t n;      /* of them */
    int32_t dtype;  /* CFX_UINT8: bytes; CFX_FLOAT32: (byte / 255 - mean) / deviation */
    int32_t whole;  /* 1: pictures are decoded at full size also where less would do */
    double mean[3]; /* of red, green, blue */
    double deviation[3];
} cfx_image_options;
/* Reads a JPEG file as [height, width, 3], drawing the numbers of (seed, epoch 0, sample 0).  CFX_EIO: it is no picture
 * that can be decoded. */
CFX_API cfx_status cfx_image_read(cfx_device *device, const char *path, const cfx_image_options *options, uint64_t seed,
                                  cfx_tensor *out);
/* Writes x, uint8 of [height, width], [height, width, 1] or [height, width, 3], as a JPEG file. */
CFX_API cfx_status cfx_image_write(const char *path, const cfx_tensor *x, int32_t quality);

/* A list of picture files with a class for each. */
typedef struct cfx_images cfx_images;
/* The files below each folder of `root`, whose name is their class, sorted by bytes. */
CFX_API cfx_status cfx_images_folders(cfx_context *context, const char *root, cfx_images **out);
/* ImageNet as Kaggle has it.  split: "train" or "val"; solutions: the CSV file, NULL: root's own; classes: n names of
 * synsets, whose pictures alone are taken, in the order of their ids; NULL: all of the mapping. */
CFX_API cfx_status cfx_images_imagenet(cfx_context *context, const char *root, const char *split, const char *solutions,
                                       int32_t n, const char *const *classes, cfx_images **out);
/* Some of the pictures, with repeats as they come; positions from 0. */
CFX_API cfx_status cfx_images_select(const cfx_images *images, int64_t n, const int64_t *positions, cfx_images **out);
/* n pictures drawn at random, with replacement. */
CFX_API cfx_status cfx_images_draw(const cfx_images *images, int64_t n, uint64_t seed, cfx_images **out);
CFX_API void cfx_images_free(cfx_images **images);
/* How many pictures and classes there are, and how many rows were left out because they name several classes. */
CFX_API cfx_status cfx_images_count(const cfx_images *images, int64_t *pictures, int32_t *classes, int64_t *left_out);
/* Picture i from 0: its path, put together in `path`, which has room for `bytes`, and its class's id, from 0. */
CFX_API cfx_status cfx_images_at(const cfx_images *images, int64_t i, char *path, size_t bytes, int32_t *id);
/* Class k from 0; strings of `images`, the description empty where there is none. */
CFX_API cfx_status cfx_images_class(const cfx_images *images, int32_t k, const char **name, const char **description);
/* The classes of root's mapping alone, without pictures. */
CFX_API cfx_status cfx_images_labels(cfx_context *context, const char *root, cfx_images **out);
/* A loader over pictures, which it keeps alive: columns are the pictures, of one size, and their ids, int64. */
CFX_API cfx_status cfx_loader_images(const cfx_loader_options *options, cfx_images *images,
                                     const cfx_image_options *image, cfx_device *const *devices, cfx_loader **out);

/* ---- files ----------------------------------------------------------------------------------------- */

/* Writes a safetensors file: n tensors by name, and `metadata`, n_meta pairs of strings.  Written beside the
 * path, fsynced, then renamed. */
CFX_API cfx_status cfx_safetensors_write(const char *path, int32_t n, const cfx_tensor *const *tensors,
                                         const char *const *names, int32_t n_meta, const char *const *keys,
                                         const char *const *values);
typedef struct cfx_safetensors cfx_safetensors;
/* Opens a file and checks its header against its size: CFX_EIO where they do not fit. */
CFX_API cfx_status cfx_safetensors_open(const char *path, cfx_safetensors **out);
/* Closes it; names and metadata are gone with it.  NULL does nothing. */
CFX_API void cfx_safetensors_close(cfx_safetensors *file);
/* How many tensors it holds. */
CFX_API int32_t cfx_safetensors_count(const cfx_safetensors *file);
/* Name of tensor i, NULL out of range. */
CFX_API const char *cfx_safetensors_name(const cfx_safetensors *file, int32_t i);
/* The value of a metadata key, or NULL. */
CFX_API const char *cfx_safetensors_meta(const cfx_safetensors *file, const char *key);
/* How many keys the metadata has, and key i, NULL out of range. */
CFX_API int32_t cfx_safetensors_meta_count(const cfx_safetensors *file);
CFX_API const char *cfx_safetensors_meta_key(const cfx_safetensors *file, int32_t i);
/* Tensor i, on `device`; int8, int16 and uint16 as int32. */
CFX_API cfx_status cfx_safetensors_read(const cfx_safetensors *file, int32_t i, cfx_device *device, cfx_tensor *out);

/* cdef: end */

/* The text of the part above, for ffi.cdef. */
CFX_API const char *cfx_cdef(void);

/* Takes each message of Conflux, which prints none itself; level 0 error, 1 warning, 2 info.  May run on a worker
 * thread; must not call Conflux. */
typedef void (*cfx_log_hook)(void *data, int level, const char *message);
/* Sets that hook, for the process; NULL drops what is said. */
CFX_API void cfx_log_to(cfx_log_hook hook, void *data);
/* Sends the messages of the calling thread, and of the contexts that it makes from here on, to `log` instead; a hook of
 * NULL: to the process's again.  Returns the log that it had before. */
typedef struct cfx_log {
    cfx_log_hook hook;
    void *data;
} cfx_log;
CFX_API cfx_log cfx_log_here(cfx_log log);

/* A tensor over `memory`, `bytes` bytes of the caller's own, row-major: nothing is copied, commands read and write there.
 * For devices that work in the host's memory (CPUs); memory is aligned as its elements are in C.  `released` (or NULL)
 * runs once, with `data`, when nobody holds the tensor or a view of it any more and the last command that uses it has
 * ended, at the latest in cfx_context_free: perhaps on a worker thread, so it must not call Conflux.  Until then the
 * memory has to stay.  The caller may read it after cfx_wait, and write to it after cfx_sync. */
typedef void (*cfx_release_hook)(void *data);
CFX_API cfx_status cfx_share(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, void *memory,
                             size_t bytes, cfx_release_hook released, void *data, cfx_tensor *out);

/* ---- engines: Conflux and Lua inside another program (libconflux_host) ------------------------------- */

/* The least stack, in bytes, that a thread has left where it calls a function of an engine's; with less, the call fails
 * with CFX_ESTATE.  Lua functions that call each other too deep take two thirds of it, LuaJIT's parser 130 KiB for the
 * deepest text that it accepts.  Conflux cannot see how much is left of a stack of the program's own making (a
 * fiber's): it must have as much. */
enum { CFX_STACK_BYTES = 512 * 1024 };

/* A Lua state with Conflux in it, and its context.  Several live side by side, each used by one thread at a time: a
 * call while another one is under way fails with CFX_ESTATE and changes nothing.  Devices, threads, seed and limits are
 * those of its options, whatever the environment says; an engine installs no signal handlers and prints nothing but what
 * its scripts print.  Scripts compute in C's default floating-point environment; the caller's is the same after each
 * call, and is there while functions and the progress hook of the host's run. */
typedef struct cfx_engine cfx_engine;

/* How far a script is that uses cf.progress. */
typedef struct cfx_progress {
    const char *label;  /* "" where the script gives none */
    double done, total; /* done: by the devices, not only enqueued */
    double rate;        /* of `done`, per second */
    double seconds;     /* since it began */
    double loss;        /* the last one that is known; NaN: none is */
    int32_t finished;   /* 1: this was the last time */
} cfx_progress;
/* Runs in the thread of the call, at most ten times a second and at the end.  Must not call Conflux, except for
 * cfx_engine_interrupt. */
typedef void (*cfx_progress_hook)(void *data, const cfx_progress *progress);

typedef struct cfx_engine_options {
    size_t size;         /* sizeof(cfx_engine_options) */
    const char *devices; /* as in cfx_context_options, like the next three */
    int32_t threads;
    uint64_t seed;
    size_t memory_limit;
    size_t lua_memory_limit; /* bytes of Lua's heap, tensors' values not counted: more is an error at the script's next
                                line, if a collection does not help; until then it may be twice as many.  0: no limit */
    const char *lua_path;    /* templates such as "/app/lua/?.lua", for require to search first; NULL: none */
    cfx_log log;             /* hook NULL: what it has to say goes where that of the calling thread goes */
    cfx_progress_hook progress; /* NULL: no progress is shown */
    void *progress_data;
} cfx_engine_options;

/* options NULL: the default of each. */
CFX_API cfx_status cfx_engine_new(const cfx_engine_options *options, cfx_engine **out);
/* Frees the engine with all that it made.  Tensors that the caller still holds become void, but are to be released all
 * the same.  CFX_ESTATE, and nothing is freed, while a call is under way.  NULL: does nothing. */
CFX_API cfx_status cfx_engine_free(cfx_engine *engine);
/* Its context (NULL: none), to make tensors for the engine's functions.  While a call is under way, only functions that
 * the script calls may use it.  It ends with the engine. */
CFX_API cfx_context *cfx_engine_context(const cfx_engine *engine);
/* The error of the last call that failed, with Lua's traceback, in full; cfx_error() has as much as fits there.  "" if
 * nothing has.  Lasts until the next call.  It does not tell of CFX_ESTATE, for then the engine is someone else's;
 * cfx_error() does. */
CFX_API const char *cfx_engine_error(const cfx_engine *engine);

/* Run a script: CFX_EIO if there is no such file, CFX_ESCRIPT if it does not parse or raises an error, CFX_EMEMORY if
 * Lua's memory is out, CFX_EINTERRUPT.  The engine can be used again after each.  `name` is what errors call the text of
 * a buffer, which may contain anything.  os.exit is an error: a script does not end the program that it runs in. */
CFX_API cfx_status cfx_engine_run_file(cfx_engine *engine, const char *path);
CFX_API cfx_status cfx_engine_run_string(cfx_engine *engine, const char *text);
CFX_API cfx_status cfx_engine_run_buffer(cfx_engine *engine, const void *text, size_t bytes, const char *name);

/* Ends the call under way, if there is one, with CFX_EINTERRUPT: at once where Conflux is called or waits, else where
 * Lua next takes memory; a loop of the script's that does neither goes on.  A script cannot catch it: what pcall catches
 * is raised again at the next instruction, until the call has returned.  Any thread; async-signal-safe. */
CFX_API void cfx_engine_interrupt(cfx_engine *engine);

/* ---- values to and from Lua ------------------------------------------------------------------------- */

typedef enum cfx_kind { CFX_NIL = 0, CFX_BOOLEAN = 1, CFX_NUMBER = 2, CFX_STRING = 3, CFX_TENSOR = 4 } cfx_kind;

/* The receiver of values owns their strings and tensors, and gives them back with cfx_value_release: the caller of
 * cfx_engine_call the results, the engine those of a function that it called.  Strings to give away are made by
 * cfx_value_string.  Arguments stay with the side that passes them; a function that keeps a tensor takes a handle of
 * its own with cfx_retain. */
typedef struct cfx_value {
    int32_t kind; /* a cfx_kind */
    union {
        int32_t boolean;
        double number;
        struct {
            const char *bytes; /* with a 0 behind the last in what Conflux gives */
            size_t length;
        } string;
        cfx_tensor tensor;
    } as;
} cfx_value;

/* A string that the receiver can own: a copy of `length` bytes. */
CFX_API cfx_status cfx_value_string(const char *bytes, size_t length, cfx_value *out);
/* Gives back what the n values own, and makes them nil. */
CFX_API void cfx_value_release(int32_t n, cfx_value *values);

/* Calls the Lua function of that name, global ("train") or in tables ("model.train"); results that are missing are nil,
 * those too many are dropped, and one that is neither nil, boolean, number, string nor tensor is CFX_EARG.  The call
 * overwrites `results`, whatever they held; after a failure they are nil. */
CFX_API cfx_status cfx_engine_call(cfx_engine *engine, const char *name, int32_t nargs, const cfx_value *args,
                                   int32_t nresults, cfx_value *results);

enum { CFX_MAX_RESULTS = 16 };
/* A function of the host program's, on the thread of the call.  It fills at most `nresults` results, all nil before, and
 * returns how many, or -1 if it failed: then cfx_error_set, or the call of Conflux's that failed, says why, and the
 * error is raised at the line of the script that called it.  It may use tensors of the engine's context, but not the
 * engine; no exception may leave it. */
typedef int32_t (*cfx_function)(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results);
/* Makes it a global of the engine's ("draw"), or a field of tables, which are made where they are missing
 * ("host.draw"). */
CFX_API cfx_status cfx_engine_register(cfx_engine *engine, const char *name, cfx_function function, void *data);

#ifdef __cplusplus
}
#endif
#endif
