/* backend.h: what a kind of device must provide.
 *
 * A backend supplies memory (slabs for the pool of core/device) and one kernel a row of the op table.  It does
 * not know tensors, tapes or replicas.  The CPU backend is linked in; others are shared objects that export
 * `const cf_backend *cf_backend_entry(void)` and are loaded with dlopen, never closed.
 */
#ifndef CF_DEVICE_BACKEND_H
#define CF_DEVICE_BACKEND_H

#include <stdbool.h>

#include "device/ops.h"

/* The thread that runs a device's queues, as a kernel sees it. */
typedef struct cf_worker {
    const struct cf_backend *backend;
    void *state; /* what backend->open made */
    int threads; /* the device's team; thread_begin may lower it to what there can be */
    void *local; /* the backend's own, made by thread_begin */
    void *scratch;
    size_t scratch_bytes;
} cf_worker;

/* Runs one call.  A failure (cf_fail with CFX_EFAULT or CFX_EMEMORY) poisons the queue.  Outputs may be the
 * same memory as inputs only where the row says "in place" or is elementwise. */
typedef cfx_status (*cf_kernel)(cf_worker *worker, const cf_call *call);

typedef struct cf_backend {
    int32_t abi;         /* CFX_ABI_VERSION */
    const char *name;    /* "cpu", "cuda" */
    int32_t host_memory; /* the host may read and write its slabs */
    /* How many devices there are, with the reason in `why` where none. */
    int32_t (*count)(char *why, size_t why_bytes);
    cfx_status (*open)(int32_t index, void **state);
    void (*close)(void *state);
    size_t (*memory)(void *state); /* bytes the device has */
    cfx_status (*slab_new)(void *state, size_t bytes, void **out);
    void (*slab_free)(void *state, void *slab, size_t bytes);
    /* On the worker's own thread, before its first and after its last command, and after `threads` changed. */
    cfx_status (*thread_begin)(cf_worker *worker);
    void (*thread_end)(cf_worker *worker);
    const cf_kernel *kernels;         /* [CF_OPS] */
    const struct cf_streams *streams; /* NULL: a kernel that returns is done */
} cf_backend;

/* Backends whose kernels only launch work, on a stream for each of the device's queues, and return.  All calls are on
 * the worker's thread. */
typedef struct cf_streams {
    /* What is launched from here on belongs to queue q. */
    void (*select)(cf_worker *worker, int q);
    /* What was launched on queue q so far is up to `ticket`: poll and follow can tell when it has happened. */
    cfx_status (*mark)(cf_worker *worker, int q, uint64_t ticket);
    /* The last marked ticket of queue q that has happened.  A failure says that something up to it went wrong. */
    cfx_status (*poll)(cf_worker *worker, int q, uint64_t *done);
    /* Makes queue q wait, without the worker, for `ticket` of queue `of` of the device whose state is `other`; false if
     * no mark covers it yet. */
    bool (*follow)(cf_worker *worker, int q, void *other, int of, uint64_t ticket);
    /* Bytes between host and device memory, in the order of the queue; the host memory may be reused on return. */
    cfx_status (*upload)(cf_worker *worker, void *to, const void *from, size_t bytes);
    cfx_status (*download)(cf_worker *worker, void *to, const void *from, size_t bytes);
} cf_streams;

/* At least `bytes` of 64-byte aligned memory that lasts until the next call of this; NULL when there is none. */
void *cf_worker_scratch(cf_worker *worker, size_t bytes);

const cf_backend *cf_backend_cpu(void);

#endif
