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
#include "device/dependents.h"
#include "device/hub.h"
#include "device/pool.h"
#include "device/queue.h"
#include "device/staging.h"

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
    cf_dependents buffers;
    cfx_device *next_closed;
    /* the worker */
    pthread_t thread;        /* 0: not started, or closed */
    _Atomic int32_t threads; /* of its team */
    _Alignas(64) cf_sleeper worker;
    _Atomic int32_t stop;
};

typedef struct cf_rng_stream {
    uint64_t seed, position;
} cf_rng_stream;

struct cfx_context {
    cf_hub hub;       /* first: cf_context_of finds the context by it */
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
    struct cf_name *sources; /* cfx_at_line's */
    cf_dependents tapes, loaders;
    uint64_t next_tape;
    uint64_t collectives; /* so far */
    int32_t precision;
};

static inline cfx_context *cf_context_of(const cfx_device *device) { return device->context; }

/* The worker's thread: takes commands of both queues as their events happen. */
cfx_status cf_worker_start(cfx_device *device);
void cf_worker_stop(cfx_device *device); /* runs what is enqueued, then joins */
#endif
