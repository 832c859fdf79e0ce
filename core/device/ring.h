/* ring.h: commands in order.
 *
 * A queue is a ring of commands that the host fills and its device's worker empties, in order.  A command carries the
 * events that it waits for; they always name work already enqueued, so no order of commands can deadlock.  The queue's
 * timeline says which commands are finished, and which were skipped because of a fault: event.h.
 *
 * The host is one thread at a time; the worker is one thread; nothing else touches a queue, but for its timeline.
 */
#ifndef CF_DEVICE_RING_H
#define CF_DEVICE_RING_H

#include "device/backend.h"
#include "device/event.h"

/* Does a command's work, on the worker's thread.  `poisoned`: its queue is poisoned and only commands enqueued
 * with CF_ALWAYS get here. */
typedef cfx_status (*cf_run)(cf_worker *worker, void *payload, bool poisoned);

enum {
    CF_ALWAYS = 1,               /* runs even in a poisoned queue */
    CF_JOINS = 2,                /* a part of a collective: the queue goes on once backend->link says so */
    CF_RING_BYTES = 16384 * 640, /* a step's commands: 16,384 of three views each */
    CF_FOLLOWED = 1024           /* data that a queue's stream has followed and that have not happened yet */
};

typedef struct cf_command {
    cf_run run; /* NULL: fills the ring up to its end */
    uint32_t bytes;
    uint16_t nwaits, flags;
    cf_origin origin; /* for a fault's message */
    cf_wait waits[];
} cf_command;

/* Fields lie in cache lines by the thread that writes them. */
typedef struct cf_queue {
    _Alignas(64) _Atomic uint64_t published; /* tail, as the worker may see it */
    char *ring;
    /* the host's */
    _Alignas(64) uint64_t tail; /* bytes ever enqueued */
    uint64_t last;              /* ticket of the command enqueued last */
    uint64_t reserved;          /* tail once the reservation is committed */
    size_t promised;            /* bytes that cf_queue_room has made sure of and that are not enqueued yet */
    cf_timeline timeline;
    /* the worker's */
    _Alignas(64) cf_progress progress;
    _Atomic uint64_t head;     /* bytes consumed; the host may read it */
    uint64_t launched, marked; /* tickets, where kernels only launch */
    int32_t behind;            /* so many of the head command's waits need not be looked at again */
    bool joins;                /* the next command runs, and waits for its other participants */
    cf_origin *asked;  /* [CF_LAUNCH_AHEAD], by ticket: of what has not happened yet; NULL where a kernel is done */
    uint64_t asked_at; /* the clock when the worker asked for the participants last, in nanoseconds */
    uint64_t happened; /* ticket: the device is through with it */
    struct cf_followed {
        uint64_t ticket; /* was launched behind these data of another queue: if they turn out wrong, it was wrong */
        cf_event data;
    } * followed; /* [CF_FOLLOWED], a ring: [judged, noted), in the order of their tickets */
    uint64_t judged, noted;
} cf_queue;

_Static_assert(offsetof(cf_queue, progress) % 64 == 0 && offsetof(cf_queue, behind) % 64 == 0,
               "what the worker writes with each command fills a cache line");

/* The queue of that timeline. */
static inline cf_queue *cf_queue_of(const cf_timeline *timeline) {
    return (cf_queue *)((char *)timeline - offsetof(cf_queue, timeline));
}

/* The worker, of a device of that backend, runs it as its queue q. */
void cf_queue_init(cf_queue *queue, cf_hub *hub, cf_sleeper *worker, int q, const cf_backend *backend);
/* The ring, between which events of the queue can still be asked for. */
cfx_status cf_queue_open(cf_queue *queue);
void cf_queue_close(cf_queue *queue);
void cf_queue_free(cf_queue *queue);

/* Makes sure that commands of `bytes` in all can be enqueued, one after another, without waiting; parks,
 * interruptibly, while the ring is full.  At most CF_RING_BYTES / 2. */
cfx_status cf_queue_room(cf_queue *queue, size_t bytes);
/* The bytes that one command takes. */
size_t cf_queue_bytes(int nwaits, size_t payload);

/* Enqueues in two halves: reserve gives the payload to fill (16-byte aligned), commit makes it visible and
 * returns the command's event.  A reservation that is not committed has not happened. */
cfx_status cf_queue_reserve(cf_queue *queue, cf_run run, const char *op, int flags, const cf_wait *waits, int nwaits,
                            size_t payload, void **out);
cf_event cf_queue_commit(cf_queue *queue);

/* The event of the command enqueued last. */
static inline cf_event cf_queue_last(cf_queue *queue) { return (cf_event){&queue->timeline, queue->last}; }

#endif
