/* queue.h: commands in order, and points in that order that others can wait for.
 *
 * A queue is a ring of commands that the host fills and its device's worker empties, in order.  An event is a
 * (queue, ticket) pair: a queue finishes its commands in order, so "has this happened?" is one comparison with
 * its counter of finished tickets, and an event needs no storage of its own: it is copied by value and never
 * freed.  A command carries the events that it waits for; they always name work already enqueued, so no order
 * of commands can deadlock.
 *
 * A command that fails poisons its queue from its ticket on: later commands are skipped (but for those that
 * must run regardless) until the host has raised the fault and cleared it.  A command that waits for data of the
 * poisoned part of another queue poisons its own; a command that waits for order alone (it writes what others read, or
 * gives a new value to what they wrote) does not: nothing of theirs comes into what it makes.
 *
 * The host is one thread at a time; the worker is one thread; nothing else touches a queue, but for `finished`
 * and `poisoned_at`, which every worker may read.
 */
#ifndef CF_DEVICE_QUEUE_H
#define CF_DEVICE_QUEUE_H

#include <stdatomic.h>
#include <stdbool.h>

#include "device/backend.h"
#include "device/hub.h"

typedef struct cf_queue cf_queue;

typedef struct cf_event {
    cf_queue *queue; /* NULL: has always happened */
    uint64_t ticket;
} cf_event;

/* Why a command waits: for what the event's command made, or only so that it comes later. */
typedef enum cf_reason { CF_ORDER, CF_DATA } cf_reason;

/* One queue's part in what a command waits for.  The two tickets differ where it waits for an early one's data and for
 * a later one's end. */
typedef struct cf_wait {
    cf_event until;
    uint64_t data; /* poison at or before this ticket is inherited; 0: order alone */
} cf_wait;

/* What a command does, on the worker's thread.  `poisoned`: its queue is poisoned and only commands enqueued
 * with CF_ALWAYS get here. */
typedef cfx_status (*cf_run)(cf_worker *worker, void *payload, bool poisoned);

enum {
    CF_ALWAYS = 1,               /* runs even in a poisoned queue */
    CF_JOINS = 2,                /* a part of a collective: the queue goes on once backend->collectives says so */
    CF_RING_BYTES = 16384 * 640, /* a step's commands: 16,384 of three views each */
    CF_MAX_WAITS = 130,          /* (CF_MAX_DEVICES + cpu:0) * CF_QUEUES */
    CF_FOLLOWED = 1024           /* data that a queue's stream has followed and that have not happened yet */
};

typedef struct cf_command {
    cf_run run; /* NULL: fills the ring up to its end */
    uint32_t bytes;
    uint16_t nwaits, flags;
    cf_origin origin; /* for a fault's message */
    cf_wait waits[];
} cf_command;

/* A stretch of tickets whose commands were skipped. */
typedef struct cf_void {
    uint64_t from, to;
    const cf_fault *fault;
} cf_void;

struct cf_queue {
    struct cfx_device *device;
    char *ring;
    /* host side */
    uint64_t tail;     /* bytes ever enqueued */
    uint64_t last;     /* ticket of the command enqueued last */
    uint64_t reserved; /* tail once the reservation is committed */
    size_t promised;   /* bytes that cf_queue_room has made sure of and that are not enqueued yet */
    cf_void *voids;    /* faults raised so far, oldest first */
    int32_t nvoids;
    /* shared */
    _Alignas(64) _Atomic uint64_t published; /* tail, as the worker may see it */
    _Alignas(64) _Atomic uint64_t head;      /* bytes consumed */
    _Atomic uint64_t finished;               /* ticket of the command finished last */
    _Atomic uint64_t alarm;                  /* someone sleeps until this ticket; UINT64_MAX: no one */
    _Atomic uint64_t wanted;                 /* another worker wants this ticket marked; UINT64_MAX: none does */
    _Atomic uint64_t poisoned_at;            /* first skipped ticket; UINT64_MAX: healthy */
    _Atomic uint32_t fault;                  /* of the poison; 0: none */
    /* the worker's */
    uint64_t launched, marked; /* tickets, where kernels only launch */
    int32_t behind;            /* so many of the head command's waits need not be looked at again */
    cf_origin *asked;  /* [CF_LAUNCH_AHEAD], by ticket: of what has not happened yet; NULL where a kernel is done */
    bool joins;        /* the next command runs, and waits for its other participants */
    uint64_t asked_at; /* the clock when the worker asked for them last, in nanoseconds */
    uint64_t happened; /* ticket: the device is through with it */
    struct cf_followed {
        uint64_t ticket; /* was launched behind these data of another queue: if they turn out wrong, it was wrong */
        cf_event data;
    } * followed; /* [CF_FOLLOWED], a ring: [judged, noted), in the order of their tickets */
    uint64_t judged, noted;
};

void cf_queue_init(cf_queue *queue, struct cfx_device *device);
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
static inline cf_event cf_queue_last(cf_queue *queue) { return (cf_event){queue, queue->last}; }

/* seq_cst, because who looks before he sleeps must not look before he has said that he will: the load may not
 * pass the store of `alarm` or `asleep` ahead of it. */
static inline bool cf_event_done(cf_event e) {
    return !e.queue || atomic_load_explicit(&e.queue->finished, memory_order_seq_cst) >= e.ticket;
}

/* Asks e's queue to wake the sleepers of its context when it gets to e. */
void cf_alarm_set(cf_event e);

/* Parks the host until e has happened. CFX_EINTERRUPT if interrupted.  Says nothing about faults. */
cfx_status cf_event_wait(cf_event e);
/* The same for a caller that cannot fail: an interrupt stays for the next call.  In a child of fork it returns at once,
 * for there nothing happens any more. */
void cf_event_settle(cf_event e);

/* The fault that kept the command of e from running, if the host has raised it already. */
const cf_fault *cf_event_void(cf_event e);

/* If e's queue is poisoned at or before e: drains the context, clears the fault from every queue and fails
 * with its message.  Call after cf_event_wait. */
cfx_status cf_event_raise(cf_event e);

/* ---- uses: which events a later reader or writer has to wait for --------------------------------------- */

/* At most one event a queue.  Small ones need no allocation. */
typedef struct cf_uses {
    int32_t n, capacity;
    cf_event *items; /* or `first`, while n <= 2 */
    cf_event first[2];
} cf_uses;

/* Makes room for the events of n more queues, so that noting them cannot fail: before their commands are committed, for
 * a use that is not noted would be waited for by nobody. */
cfx_status cf_uses_room(cf_uses *uses, int32_t n);
/* Adds e, or moves its queue's event forward to it.  There is room. */
void cf_uses_note(cf_uses *uses, cf_event e);
/* Both. */
cfx_status cf_uses_add(cf_uses *uses, cf_event e);
cfx_status cf_uses_merge(cf_uses *into, const cf_uses *from);
void cf_uses_clear(cf_uses *uses); /* and frees */
/* Drops what has happened. */
void cf_uses_prune(cf_uses *uses);
static inline const cf_event *cf_uses_items(const cf_uses *u) { return u->items ? u->items : u->first; }

/* A command's waits while it is put together: foreign, unfinished or poisoned, one a queue. */
typedef struct cf_waits {
    const cf_queue *own;
    int n;
    cf_wait items[CF_MAX_WAITS];
} cf_waits;

void cf_waits_event(cf_waits *waits, cf_event e, cf_reason reason);
void cf_waits_uses(cf_waits *waits, const cf_uses *uses, cf_reason reason);

#endif
