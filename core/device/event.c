/* event.c: waiting, voids, uses and waits.  See event.h for the rules. */
#include "device/event.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void cf_timeline_init(cf_timeline *timeline, cf_hub *hub, cf_progress *progress, cf_sleeper *worker, int q,
                      bool launches) {
    *timeline = (cf_timeline){.hub = hub, .worker = worker, .q = (int8_t)q, .launches = launches, .progress = progress};
    atomic_store(&progress->finished, 0);
    atomic_store(&progress->alarm, UINT64_MAX);
    atomic_store(&progress->wanted, UINT64_MAX);
    atomic_store(&progress->poisoned_at, UINT64_MAX);
    atomic_store(&progress->fault, 0);
}

void cf_timeline_free(cf_timeline *timeline) { free(timeline->voids); }

/* ---- waiting --------------------------------------------------------------------------------------- */

cfx_status cf_event_wait(cf_event e) {
    if (cf_event_done(e)) return CFX_OK;
    cf_hub *hub = e.timeline->hub;
    cfx_status status = CFX_OK;
    atomic_store_explicit(&hub->until, e.ticket, memory_order_relaxed);
    atomic_store_explicit(&hub->awaited, e.timeline, memory_order_seq_cst);
    for (;;) {
        const uint32_t seen = cf_word_read(&hub->host.own.wake);
        atomic_store_explicit(&hub->host.own.asleep, 1, memory_order_seq_cst);
        cf_alarm_set(e);
        if (cf_event_done(e)) break;
        status = cf_interrupted(hub);
        if (status != CFX_OK) break;
        cf_park(&hub->host.own.wake, seen);
    }
    atomic_store_explicit(&hub->host.own.asleep, 0, memory_order_seq_cst);
    atomic_store_explicit(&hub->awaited, NULL, memory_order_relaxed);
    return status;
}

void cf_event_settle(cf_event e) {
    if (!e.timeline) return;
    cf_hub *hub = e.timeline->hub;
    const bool held = hub->holds;
    hub->holds = true;
    (void)cf_event_wait(e); /* fails in a child of fork alone */
    hub->holds = held;
}

void cf_alarm_set(cf_event e) {
    _Atomic uint64_t *at = &e.timeline->progress->alarm;
    uint64_t alarm = atomic_load_explicit(at, memory_order_seq_cst);
    while (e.ticket < alarm &&
           !atomic_compare_exchange_weak_explicit(at, &alarm, e.ticket, memory_order_seq_cst, memory_order_seq_cst)) {}
    /* A worker that launches polls its stream only while somebody waits for it. */
    if (e.timeline->launches) cf_sleeper_wake(e.timeline->worker);
}

const cf_fault *cf_event_void(cf_event e) {
    if (!e.timeline) return NULL;
    for (int32_t i = e.timeline->nvoids - 1; i >= 0; i--) { /* in order, and most events are newer than all */
        const cf_void *v = &e.timeline->voids[i];
        if (e.ticket > v->to) return NULL;
        if (e.ticket >= v->from) return v->fault;
    }
    return NULL;
}

const cf_fault *cf_timeline_fault(const cf_timeline *timeline) {
    return cf_fault_of(timeline->hub, atomic_load(&timeline->progress->fault));
}

cfx_status cf_timeline_room(cf_timeline *timeline) {
    void *voids = timeline->voids;
    CF_TRY(cf_realloc(&voids, (size_t)(timeline->nvoids + 1) * sizeof *timeline->voids));
    timeline->voids = voids;
    return CFX_OK;
}

void cf_timeline_clear(cf_timeline *timeline, uint64_t last) {
    timeline->voids[timeline->nvoids++] =
        (cf_void){atomic_load(&timeline->progress->poisoned_at), last, cf_timeline_fault(timeline)};
    atomic_store(&timeline->progress->poisoned_at, UINT64_MAX);
    atomic_store(&timeline->progress->fault, 0);
}

/* ---- uses and waits -------------------------------------------------------------------------------- */

static cf_event *items(cf_uses *u) { return u->items ? u->items : u->first; }

cfx_status cf_uses_room(cf_uses *uses, int32_t n) {
    const int32_t capacity = uses->items ? uses->capacity : 2;
    if (uses->n + n <= capacity) return CFX_OK;
    const int32_t wanted = uses->n + n > capacity * 2 ? uses->n + n : capacity * 2;
    void *more;
    CF_TRY(cf_alloc((size_t)wanted * sizeof *uses->items, &more));
    memcpy(more, items(uses), (size_t)uses->n * sizeof *uses->items);
    free(uses->items);
    uses->items = more;
    uses->capacity = wanted;
    return CFX_OK;
}

void cf_uses_note(cf_uses *uses, cf_event e) {
    if (!e.timeline) return;
    cf_event *all = items(uses);
    for (int32_t i = 0; i < uses->n; i++) {
        if (all[i].timeline != e.timeline) continue;
        if (e.ticket > all[i].ticket) all[i].ticket = e.ticket;
        return;
    }
    all[uses->n++] = e;
}

cfx_status cf_uses_add(cf_uses *uses, cf_event e) {
    CF_TRY(cf_uses_room(uses, 1));
    cf_uses_note(uses, e);
    return CFX_OK;
}

void cf_uses_clear(cf_uses *uses) {
    free(uses->items);
    uses->items = NULL;
    uses->n = uses->capacity = 0;
}

void cf_uses_prune(cf_uses *uses) {
    cf_event *all = items(uses);
    int32_t kept = 0;
    for (int32_t i = 0; i < uses->n; i++)
        if (!cf_event_done(all[i])) all[kept++] = all[i];
    uses->n = kept;
}

void cf_waits_event(cf_waits *waits, cf_event e, cf_reason reason) {
    const uint64_t data = reason == CF_DATA ? e.ticket : 0;
    if (!e.timeline || e.timeline == waits->own) return;
    /* Data of a poisoned queue's past are still waited for: that is how the poison is inherited. */
    if (cf_event_done(e) && !cf_event_is_poisoned((cf_event){e.timeline, data})) return;
    for (int i = 0; i < waits->n; i++) {
        cf_wait *wait = &waits->items[i];
        if (wait->until.timeline != e.timeline) continue;
        if (e.ticket > wait->until.ticket) wait->until.ticket = e.ticket;
        if (data > wait->data) wait->data = data;
        return;
    }
    /* One wait a queue, and a context has at most CF_MAX_DEVICES * CF_QUEUES of them. */
    waits->items[waits->n++] = (cf_wait){e, data};
}

void cf_waits_uses(cf_waits *waits, const cf_uses *uses, cf_reason reason) {
    const cf_event *all = cf_uses_items(uses);
    for (int32_t i = 0; i < uses->n; i++) cf_waits_event(waits, all[i], reason);
}
