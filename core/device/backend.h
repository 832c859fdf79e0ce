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

/* A device's queues: of what is computed, and of what comes from elsewhere or goes there. */
enum { CF_COMPUTE = 0, CF_COMM = 1, CF_QUEUES = 2 };

/* The thread that runs a device's queues, as a kernel sees it. */
typedef struct cf_worker {
    const struct cf_backend *backend;
    void *state;   /* backend->open made it */
    int threads;   /* the device's team; the backend may lower it to what there can be */
    int made;      /* threads of it that the backend has made; of another size than `threads`, or 0: there is no team */
    void *local;   /* the backend's own, made by thread_begin */
    void *scratch; /* scratch.h's */
    size_t scratch_bytes;
    bool begun; /* thread_begin has succeeded */
} cf_worker;

/* Runs one call.  A failure (cf_fail with CFX_EFAULT or CFX_EMEMORY) poisons the queue.  Outputs may be the
 * same memory as inputs only where the row says "in place" or is elementwise. */
typedef cfx_status (*cf_kernel)(cf_worker *worker, const cf_call *call);

/* How many bytes a call's workspace has, 0 for none.  The call has all but addresses.  Host thread, when the command is
 * dispatched. */
typedef size_t (*cf_workspace)(const cf_call *call);

typedef struct cf_backend {
    int32_t abi;         /* CFX_ABI_VERSION */
    const char *name;    /* "cpu", "cuda" */
    int32_t host_memory; /* the host may read and write its slabs */
    int32_t host_cores;  /* its devices compute on the host's cores, which those of a run share */
    /* How many devices there are, with the reason in `why` where none. */
    int32_t (*count)(char *why, size_t why_bytes);
    cfx_status (*open)(int32_t index, void **state);
    void (*close)(void *state);
    size_t (*memory)(void *state); /* bytes the device has */
    cfx_status (*slab_new)(void *state, size_t bytes, void **out);
    void (*slab_free)(void *state, void *slab, size_t bytes);
    /* On the worker's own thread, before its first and after its last command, and after `threads` changed.  A thread
     * that cannot begin tries again before each command, which fails with its message if it cannot either. */
    cfx_status (*thread_begin)(cf_worker *worker);
    void (*thread_end)(cf_worker *worker);
    const cf_kernel *kernels; /* [CF_OPS] */
    /* Of a row whose kernel works in memory that grows with its views; NULL: it does not.  No row that takes a list. */
    cf_workspace (*workspace)(cf_op op);
    const struct cf_streams *streams; /* NULL: a kernel that returns is done */
    const struct cf_link *link;       /* NULL: its devices all reach each other's memory */
    /* Says in words which device it is; device -1: the libraries it rests on, with versions.  NULL: it says nothing. */
    void (*about)(int32_t device, char *text, size_t bytes);
} cf_backend;

/* So many commands of a queue may be launched and not have happened: a driver queues about a thousand launches, and a
 * launch beyond that blocks. */
enum { CF_LAUNCH_AHEAD = 512 };

/* Work up to `ticket` of queue q of the device whose state it is. */
typedef struct cf_source {
    void *state;
    int q;
    uint64_t ticket;
} cf_source;

/* Backends whose kernels only launch work, on a stream for each of the device's queues, and return.  Calls are on the
 * worker's thread unless they say otherwise. */
typedef struct cf_streams {
    /* Launches from here on belong to `ticket` of queue q, at most CF_LAUNCH_AHEAD after the last that has happened. */
    void (*select)(cf_worker *worker, int q, uint64_t ticket);
    /* The launches on queue q so far are those up to `ticket`: poll and follow can tell when they have happened. */
    cfx_status (*mark)(cf_worker *worker, int q, uint64_t ticket);
    /* *done: the last marked ticket of queue q that was known to have happened, and now the last that has.  A failure
     * says that something between went wrong: *faulted, or if that is not known, and stays 0, any of them. */
    cfx_status (*poll)(cf_worker *worker, int q, uint64_t *done, uint64_t *faulted);
    /* All faults are known to the host, and nothing is under way: what keeps updates off may go.  Host thread. */
    cfx_status (*forgive)(void *state);
    /* Makes queue q wait, without the worker, for `ticket` of queue `of` of the device whose state is `other`; false if
     * no mark covers it yet. */
    bool (*follow)(cf_worker *worker, int q, void *other, int of, uint64_t ticket);
    /* Launches on queue q from `ticket` on use what these made, which may not have happened yet: if they turn
     * out wrong before the worker knows, updates keep off. */
    cfx_status (*inherit)(cf_worker *worker, int q, uint64_t ticket, int n, const cf_source *of);
    /* Bytes between memories of this backend's devices, or of one and pinned memory, in the order of the queue. */
    cfx_status (*copy)(cf_worker *worker, void *to, const void *from, size_t bytes);
    /* Host memory for such copies.  On the host's thread. */
    cfx_status (*pin)(void *state, size_t bytes, void **out);
    void (*unpin)(void *state, void *memory);
} cf_streams;

/* One participant's part in a collective. */
typedef enum cf_join_kind { CF_JOIN_REDUCE, CF_JOIN_GATHER, CF_JOIN_SCATTER } cf_join_kind;
typedef struct cf_join {
    cf_join_kind kind;
    int32_t op;   /* REDUCE, SCATTER: cf_combine */
    int32_t root; /* REDUCE: -1: all receive the result; else as cf_collective says */
    int32_t dtype;
    int64_t n;         /* elements: REDUCE: of both; GATHER: of `in`; SCATTER: of `out` */
    double scale;      /* of each element before it is added; 1 unless op is a sum of floats */
    uint64_t sequence; /* the group's: which collective this is, with all participants */
    const void *in;    /* REDUCE: the same as `out` */
    void *out;
} cf_join;

/* Carries data between devices that do not reach each other's memory. */
typedef struct cf_link {
    const char *name; /* "nccl" */
    /* The link's state for a group of these devices, in this order; made at its first use and kept while they are open
     * and it is not given up.  Host thread. */
    cfx_status (*open)(int32_t n, void *const *states, void **out);
    /* Whether kernels of either device may use the other's memory after all; makes it so.  Host thread. */
    bool (*reach)(void *state, void *other);
    /* Launches the part of participant `rank` on the selected queue.  All participants start a group's collectives in
     * one order. */
    cfx_status (*start)(cf_worker *worker, void *group, int32_t rank, const cf_join *join);
    /* Whether what was started last on queue q has been launched; a failure: it will not be. */
    cfx_status (*test)(cf_worker *worker, int q, bool *is);
    /* Gives the group up, because of participant `rank`: this call, and what any of them has started or will start, fails
     * with the first such reason. */
    cfx_status (*abort)(cf_worker *worker, void *group, int32_t rank, const char *why);
} cf_link;

#endif
