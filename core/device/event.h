/* event.h: points in the order of a queue that others can wait for.
 *
 * A queue finishes its commands in order, so an event is a (timeline, ticket) pair: "has this happened?" is one
 * comparison with the timeline's counter of finished tickets, and an event needs no storage of its own: it is copied by
 * value and never freed.
 *
 * A queue whose command fails is poisoned from its ticket on: later commands are skipped (but for those that must run
 * regardless) until the host has raised the fault and cleared it; which were skipped stays known.  A command that waits
 * for data of the poisoned part of another queue poisons its own; a command that waits for order alone (it writes what
 * others read, or gives a new value to what they wrote) does not: nothing of theirs comes into what it makes.
 */
#ifndef CF_DEVICE_EVENT_H
#define CF_DEVICE_EVENT_H

#include "device/hub.h"

/* How far a queue is.  It has no pointers, so that it can lie in memory that processes share: then no queue is behind
 * it, and whatever moves it wakes those that it concerns. */
typedef struct cf_progress {
    _Atomic uint64_t finished;    /* ticket of the command finished last */
    _Atomic uint64_t alarm;       /* someone sleeps until this ticket; UINT64_MAX: no one */
    _Atomic uint64_t wanted;      /* another worker wants this ticket marked; UINT64_MAX: none does */
    _Atomic uint64_t poisoned_at; /* first skipped ticket; UINT64_MAX: healthy */
    _Atomic uint32_t fault;       /* of the poison: its number in the hub; 0: none */
} cf_progress;

/* A range of tickets whose commands were skipped. */
typedef struct cf_void {
    uint64_t from, to;
    const cf_fault *fault;
} cf_void;

/* A queue, as far as events of it go.  Any thread may read the first four fields. */
typedef struct cf_timeline {
    cf_hub *hub;
    cf_sleeper *worker; /* which runs the queue; NULL: none does */
    int8_t q;           /* which of that worker's queues it is */
    bool launches;      /* a command that has run may not have happened: the worker asks how far its device is */
    int32_t nvoids;
    cf_void *voids; /* faults raised so far, oldest first; the host's */
    cf_progress *progress;
} cf_timeline;

typedef struct cf_event {
    cf_timeline *timeline; /* NULL: has always happened */
    uint64_t ticket;
} cf_event;

/* Sets *progress to nothing finished. */
void cf_timeline_init(cf_timeline *timeline, cf_hub *hub, cf_progress *progress, cf_sleeper *worker, int q,
                      bool launches);
void cf_timeline_free(cf_timeline *timeline);

/* seq_cst: a thread that is about to sleep says so, in `alarm` or `asleep`, and then looks once more.  The load may not
 * pass that store. */
static inline bool cf_event_done(cf_event e) {
    return !e.timeline || atomic_load_explicit(&e.timeline->progress->finished, memory_order_seq_cst) >= e.ticket;
}

/* Whether e's queue is poisoned at or before e.  A thread that saw that e has happened sees it. */
static inline bool cf_event_is_poisoned(cf_event e) {
    return atomic_load_explicit(&e.timeline->progress->poisoned_at, memory_order_acquire) <= e.ticket;
}

/* Asks e's queue to wake the hub when it gets to e. */
void cf_alarm_set(cf_event e);

/* Parks the host until e has happened. CFX_EINTERRUPT if interrupted.  Says nothing about faults. */
cfx_status cf_event_wait(cf_event e);
/* The same for a caller that cannot fail: an interrupt stays for the next call.  In a child of fork it returns at once,
 * for there nothing happens any more. */
void cf_event_settle(cf_event e);

/* The fault that kept the command of e from running, if the host has raised it already. */
const cf_fault *cf_event_void(cf_event e);
/* The fault that the queue is poisoned by now, or NULL. */
const cf_fault *cf_timeline_fault(const cf_timeline *timeline);
/* Makes room for one more void, so that clearing cannot fail. */
cfx_status cf_timeline_room(cf_timeline *timeline);
/* Turns the poison into a void up to ticket `last`: what was skipped stays known, what comes now runs. */
void cf_timeline_clear(cf_timeline *timeline, uint64_t last);

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
void cf_uses_clear(cf_uses *uses); /* and frees */
/* Drops what has happened. */
void cf_uses_prune(cf_uses *uses);
static inline const cf_event *cf_uses_items(const cf_uses *u) { return u->items ? u->items : u->first; }

/* ---- waits: what a command that is put together has to wait for ---------------------------------------- */

/* Why a command waits: for what the event's command made, or only so that it comes later. */
typedef enum cf_reason { CF_ORDER, CF_DATA } cf_reason;

/* One queue's part in what a command waits for.  The two tickets differ where it waits for an early one's data and for
 * a later one's end. */
typedef struct cf_wait {
    cf_event until;
    uint64_t data; /* poison at or before this ticket is inherited; 0: order alone */
} cf_wait;

enum { CF_MAX_WAITS = 130 }; /* (CF_MAX_DEVICES + cpu:0) * CF_QUEUES */

/* Foreign events, unfinished or poisoned, one a queue. */
typedef struct cf_waits {
    const cf_timeline *own; /* of the command's queue */
    int n;
    cf_wait items[CF_MAX_WAITS];
} cf_waits;

void cf_waits_event(cf_waits *waits, cf_event e, cf_reason reason);
void cf_waits_uses(cf_waits *waits, const cf_uses *uses, cf_reason reason);

#endif
