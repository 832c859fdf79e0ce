/* hub.h: what a context's host and its workers share: where they sleep, why the host is to stop, and their faults.
 *
 * The host is one thread at a time.  It sleeps in one place, whatever it waits for; so do the workers.  A thread that
 * has news for others wakes all that sleep there: each looks again for what it waits for.
 */
#ifndef CF_DEVICE_HUB_H
#define CF_DEVICE_HUB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/park.h"
#include "conflux.h"

/* Where a thread sleeps while there is nothing for it.  It has no pointers, so that it can lie in memory that processes
 * share. */
typedef struct cf_bell {
    cf_word wake;
    _Atomic int32_t asleep; /* 1: parked, wants to hear of commands and of alarms */
} cf_bell;

static inline void cf_bell_ring(cf_bell *bell, bool shared) {
    if (atomic_load_explicit(&bell->asleep, memory_order_seq_cst)) cf_unpark_all(&bell->wake, shared);
}

typedef struct cf_sleeper {
    cf_bell own;
    _Atomic(cf_bell *) shared; /* NULL, or where it sleeps instead: other processes ring there */
    struct cf_sleeper *next;   /* of the hub's */
} cf_sleeper;

static inline cf_bell *cf_sleeper_bell(cf_sleeper *sleeper) {
    cf_bell *shared = atomic_load_explicit(&sleeper->shared, memory_order_acquire);
    return shared ? shared : &sleeper->own;
}

/* Wakes it if it sleeps.  The host, or with the hub's lock any thread. */
static inline void cf_sleeper_wake(cf_sleeper *sleeper) {
    cf_bell *bell = cf_sleeper_bell(sleeper);
    cf_bell_ring(bell, bell != &sleeper->own);
}

/* A command's op, and the line of the script that enqueued it; line 0: not known. */
typedef struct cf_origin {
    const char *op, *source;
    int32_t line;
} cf_origin;

/* The first error of a fault; shared by all queues that inherit it. */
typedef struct cf_fault {
    struct cf_fault *next;
    uint32_t number; /* in its hub */
    cfx_status status;
    int32_t line;
    char source[128];
    char message[384];
} cf_fault;

enum { CF_INTERRUPTED = 1, CF_FORKED = 2 }; /* cf_hub's `stops` */

typedef struct cf_hub {
    cf_sleeper host;
    _Atomic(const void *) awaited; /* the timeline that it sleeps for; NULL: it is awake */
    _Atomic uint64_t until;        /* and the ticket */
    _Atomic int32_t stops;         /* CF_INTERRUPTED, CF_FORKED: why a call is to fail */
    bool holds;                    /* interrupts wait: what the host does now is done as a whole */
    int32_t line;
    const char *source;         /* and line: of the commands enqueued from here on */
    pthread_mutex_t lock;       /* of `workers` */
    cf_sleeper *workers;        /* of the open devices */
    _Atomic(cf_fault *) faults; /* newest first, kept until the hub ends */
    cfx_log log;                /* of the thread that made it, and of its workers */
    struct cf_hub *next_live;   /* of all in the process: fork.h's */
    _Atomic int32_t ending;     /* kernels are skipped: nobody will read what they write */
} cf_hub;

cfx_status cf_hub_init(cf_hub *hub);
/* After all its workers have ended. */
void cf_hub_free(cf_hub *hub);

/* A worker that is added hears of each wake-up until it is removed, if it has been added. */
void cf_hub_add(cf_hub *hub, cf_sleeper *worker);
void cf_hub_remove(cf_hub *hub, cf_sleeper *worker);
/* Wakes the workers that sleep: a ticket that one of them waits for has happened.  Any thread. */
void cf_hub_wake(cf_hub *hub);
/* From here on the worker, which calls this itself, sleeps at that bell; NULL: at its own. */
void cf_hub_move(cf_hub *hub, cf_sleeper *worker, cf_bell *bell);

/* ---- interrupts --------------------------------------------------------------------------------------- */

/* Fails, once, if the host was interrupted; always, where this process is a child of fork. */
cfx_status cf_interrupted(cf_hub *hub);
/* From here on, until cf_interrupts_resume, no interrupt is taken: a collective whose first part is enqueued has to
 * enqueue all. */
static inline void cf_interrupts_hold(cf_hub *hub) { hub->holds = true; }
static inline void cf_interrupts_resume(cf_hub *hub) { hub->holds = false; }
static inline bool cf_is_forked(cf_hub *hub) {
    return (atomic_load_explicit(&hub->stops, memory_order_relaxed) & CF_FORKED) != 0;
}

/* ---- faults ------------------------------------------------------------------------------------------- */

/* Keeps a fault of that command, or if it is NULL, of none in particular; the thread's message is its text.  Returns its
 * number.  Any thread. */
uint32_t cf_fault_keep(cf_hub *hub, cfx_status status, const cf_origin *command);
/* The fault of that number; NULL: there is none, as for 0. */
const cf_fault *cf_fault_of(cf_hub *hub, uint32_t number);
/* Fails with the fault's message behind `prefix`, and the line that it was enqueued at. */
cfx_status cf_fault_raise(const cf_fault *fault, const char *prefix);

#endif
