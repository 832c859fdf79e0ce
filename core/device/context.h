/* context.h: a context, its devices and their workers.
 *
 * A context owns everything: devices, queues, pools, seeds, faults, the interrupt flag.  One host thread uses
 * it at a time; several contexts live side by side.  A device is a worker thread, two queues and a pool.
 *
 * A device that the run no longer names is closed: its worker ends and its memory goes, but its queues' counters
 * stay, because events of its work lie in tensors of other devices; the name reopens the same device.
 *
 * The CPU's devices share the cores evenly.  Names are backends.h's.
 */
#ifndef CF_DEVICE_CONTEXT_H
#define CF_DEVICE_CONTEXT_H

#include <pthread.h>

#include "device/backends.h"
#include "device/pool.h"
#include "device/queue.h"
#include "device/staging.h"

enum { CF_INTERRUPTED = 1, CF_FORKED = 2 }; /* cfx_context's `stops` */

enum { CF_STREAMS = CF_MAX_DEVICES + 1 };

struct cfx_device {
    char name[CF_NAME_BYTES];
    int32_t index; /* backend's number of it */
    cfx_context *context;
    const cf_backend *backend;
    void *state;
    cf_pool pool;
    cf_staging staging; /* of a device whose memory the host does not see */
    cf_queue queue[CF_QUEUES];
    struct cf_buffer *buffers;          /* live ones, newest first */
    void (*orphan)(cfx_device *device); /* set with the first buffer: makes those still held void */
    cfx_device *next_closed;
    /* the worker */
    pthread_t thread;        /* 0: not started, or closed */
    _Atomic int32_t threads; /* of its team */
    _Alignas(64) cf_word wake;
    _Atomic int32_t asleep; /* 1: parked, wants to hear of commands and of alarms */
    _Atomic int32_t stop;
};

typedef struct cf_rng_stream {
    uint64_t seed, position;
} cf_rng_stream;

struct cfx_context {
    int32_t ndevices; /* of the run; at most CF_MAX_DEVICES */
    cfx_device *devices[CF_MAX_DEVICES];
    int32_t nopen;                            /* of the run, and those opened besides */
    cfx_device *open[2 * CF_MAX_DEVICES + 1]; /* while the run changes, old and new ones, and cpu:0 */
    cfx_device *closed;
    int32_t threads; /* to share among CPU devices */
    size_t memory_limit;
    double debt_threshold;
    int32_t debt; /* 1: a pool has grown by more than that since the host collected */
    cf_rng_stream streams[CF_STREAMS];
    cf_fault *faults;
    pthread_mutex_t lock; /* of `faults`, and of `open` against workers that ring */
    const char *source;   /* interned; of the commands enqueued from here on */
    int32_t line;
    struct cf_name *sources;
    struct cfx_tape *tapes;                  /* live ones */
    void (*end_tapes)(cfx_context *context); /* set with the first tape */
    struct cfx_loader *loaders;
    void (*end_loaders)(cfx_context *context); /* set with the first loader */
    uint64_t next_tape;
    uint64_t collectives; /* so far */
    int32_t precision;
    cfx_log log;  /* of the thread that made it, and of its workers */
    cf_word host; /* the host parks here */
    _Atomic int32_t host_asleep;
    _Atomic int32_t stops;         /* CF_INTERRUPTED, CF_FORKED: why a call is to fail */
    bool holds;                    /* interrupts wait: what the host does now is done as a whole */
    struct cfx_context *next_live; /* of all in the process */
    _Atomic int32_t ending;        /* kernels are skipped: nobody will read what they write */
};

/* Fails, once, if the context was interrupted; always, where this process is a child of fork. */
cfx_status cf_interrupted(cfx_context *context);
/* From here on, until cf_interrupts_resume, no interrupt is taken: a collective whose first part is enqueued has to
 * enqueue all. */
static inline void cf_interrupts_hold(cfx_context *context) { context->holds = true; }
static inline void cf_interrupts_resume(cfx_context *context) { context->holds = false; }

/* fork.c: tells the live contexts when they find themselves in a child, which has none of their threads. */
cfx_status cf_fork_watch(cfx_context *context);
void cf_fork_forget(cfx_context *context);
static inline bool cf_is_forked(cfx_context *context) {
    return (atomic_load_explicit(&context->stops, memory_order_relaxed) & CF_FORKED) != 0;
}

/* Wakes whoever sleeps until a ticket of this queue that has happened.  Any thread. */
void cf_context_ring(cfx_context *context);

/* Keeps a fault; the thread's message is its text. */
const cf_fault *cf_fault_keep(cfx_context *context, cfx_status status, const cf_command *command);

/* The worker's thread: takes commands of both queues as their events happen. */
cfx_status cf_worker_start(cfx_device *device);
void cf_worker_stop(cfx_device *device); /* runs what is enqueued, then joins */
/* Tells the worker that there are commands. */
static inline void cf_worker_wake(cfx_device *device) {
    if (atomic_load_explicit(&device->asleep, memory_order_seq_cst)) cf_unpark(&device->wake);
}

#endif
