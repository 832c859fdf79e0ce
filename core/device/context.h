/* context.h: a context and its devices.
 *
 * A context owns everything: devices, seeds, and its hub.  One host thread uses it at a time; several contexts live side
 * by side.  The CPU's devices share the cores evenly.  Names are backends.h's.
 */
#ifndef CF_DEVICE_CONTEXT_H
#define CF_DEVICE_CONTEXT_H

#include "device/device.h"

enum { CF_STREAMS = CF_MAX_DEVICES + 1 };

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
    struct cf_name *sources;                      /* cfx_at_line's */
    cf_dependents tapes, loaders, groups, worlds; /* of worlds one at most */
    uint64_t next_tape;
    uint64_t collectives; /* so far */
    int32_t precision;
    cf_arena *arena; /* NULL, or the memory that this process shares with others */
};

static inline cfx_context *cf_context_of(const cfx_device *device) { return (cfx_context *)device->inbox.hub; }

/* If e's queue is poisoned at or before e: drains the context, clears the fault from every queue and fails
 * with its message.  Call after cf_event_wait. */
cfx_status cf_event_raise(cf_event e);

/* Makes the context's arena, if it has none: from here on CPU devices have shareable memory. */
cfx_status cf_context_share(cfx_context *context);

#endif
