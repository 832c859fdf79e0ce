/* queue.c: the ring, events, waits and poison.  See queue.h for the rules. */
#include "device/queue.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"
#include "device/context.h"

enum { RECORD_ALIGN = 16 };

static size_t round_record(size_t bytes) { return (bytes + RECORD_ALIGN - 1) & ~(size_t)(RECORD_ALIGN - 1); }

void cf_queue_init(cf_queue *queue, cfx_device *device) {
    memset(queue, 0, sizeof *queue);
    queue->device = device;
    atomic_store(&queue->alarm, UINT64_MAX);
    atomic_store(&queue->wanted, UINT64_MAX);
    atomic_store(&queue->poisoned_at, UINT64_MAX);
}

cfx_status cf_queue_open(cf_queue *queue) {
    /* mmap: pages that no step ever reaches cost nothing */
    void *ring = mmap(NULL, CF_RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) return cf_fail(CFX_EMEMORY, "out of host memory: %d bytes for a queue", CF_RING_BYTES);
    queue->ring = ring;
    if (!queue->device->backend->streams) return CFX_OK;
    void *asked, *followed;
    CF_TRY(cf_alloc_zero(CF_LAUNCH_AHEAD, sizeof *queue->asked, &asked));
    queue->asked = asked;
    CF_TRY(cf_alloc_zero(CF_FOLLOWED, sizeof *queue->followed, &followed));
    queue->followed = followed;
    return CFX_OK;
}

void cf_queue_close(cf_queue *queue) {
    if (queue->ring) munmap(queue->ring, CF_RING_BYTES);
    queue->ring = NULL;
    free(queue->asked);
    free(queue->followed);
    queue->asked = NULL;
    queue->followed = NULL;
}

void cf_queue_free(cf_queue *queue) {
    cf_queue_close(queue);
    free(queue->voids);
    memset(queue, 0, sizeof *queue);
}

size_t cf_queue_bytes(int nwaits, size_t payload) {
    return round_record(sizeof(cf_command) + (size_t)nwaits * sizeof(cf_wait)) + round_record(payload);
}

static size_t ring_free(cf_queue *queue) {
    return CF_RING_BYTES - (size_t)(queue->tail - atomic_load_explicit(&queue->head, memory_order_acquire));
}

cfx_status cf_queue_room(cf_queue *queue, size_t bytes) {
    /* A record never wraps: what is left at the ring's end may be lost, less than one record. */
    const size_t need = 2 * bytes;
    if (need > CF_RING_BYTES) return cf_fail(CFX_EARG, "a command of %zu bytes does not fit its queue", bytes);
    while (ring_free(queue) < need) {
        const uint64_t done = atomic_load_explicit(&queue->finished, memory_order_acquire);
        CF_TRY(cf_event_wait((cf_event){queue, done + (queue->last - done + 1) / 2}));
    }
    queue->promised = bytes;
    return CFX_OK;
}

/* Where the next record goes, and where the tail will be behind it; fills the ring's end where it does not fit. */
static cf_command *place(cf_queue *queue, size_t bytes) {
    size_t at = (size_t)(queue->tail % CF_RING_BYTES);
    /* An empty ring starts anew at its front, whose pages and cache lines are warm.  Until the worker has passed
     * the fill there is room only up to it: enough for this record and for all that was promised. */
    const bool restart = at > CF_RING_BYTES / 256 && bytes <= at && queue->promised <= at &&
                         atomic_load_explicit(&queue->head, memory_order_acquire) == queue->tail;
    queue->reserved = queue->tail + bytes;
    if (at + bytes > CF_RING_BYTES || restart) {
        cf_command *fill = (cf_command *)(queue->ring + at);
        memset(fill, 0, sizeof *fill < CF_RING_BYTES - at ? sizeof *fill : CF_RING_BYTES - at);
        queue->reserved += CF_RING_BYTES - at;
        at = 0;
    }
    return (cf_command *)(queue->ring + at);
}

cfx_status cf_queue_reserve(cf_queue *queue, cf_run run, const char *op, int flags, const cf_wait *waits, int nwaits,
                            size_t payload, void **out) {
    const size_t bytes = cf_queue_bytes(nwaits, payload);
    const cf_hub *hub = &queue->device->context->hub;
    if (ring_free(queue) < 2 * bytes) CF_TRY(cf_queue_room(queue, bytes));
    cf_command *command = place(queue, bytes);
    command->run = run;
    command->bytes = (uint32_t)bytes;
    command->nwaits = (uint16_t)nwaits;
    command->flags = (uint16_t)flags;
    command->origin = (cf_origin){op, hub->source, hub->line};
    if (nwaits) memcpy(command->waits, waits, (size_t)nwaits * sizeof *waits);
    *out = (char *)command + round_record(sizeof *command + (size_t)nwaits * sizeof *waits);
    return CFX_OK;
}

cf_event cf_queue_commit(cf_queue *queue) {
    const size_t taken = (size_t)(queue->reserved - queue->tail);
    queue->promised -= taken < queue->promised ? taken : queue->promised;
    queue->tail = queue->reserved;
    queue->last++;
    atomic_store_explicit(&queue->published, queue->tail, memory_order_seq_cst);
    cf_sleeper_wake(&queue->device->worker);
    return (cf_event){queue, queue->last};
}

/* ---- waiting --------------------------------------------------------------------------------------- */

cfx_status cf_event_wait(cf_event e) {
    if (cf_event_done(e)) return CFX_OK;
    cf_hub *hub = &e.queue->device->context->hub;
    cfx_status status = CFX_OK;
    for (;;) {
        const uint32_t seen = cf_word_read(&hub->host.wake);
        atomic_store_explicit(&hub->host.asleep, 1, memory_order_seq_cst);
        cf_alarm_set(e);
        if (cf_event_done(e)) break;
        status = cf_interrupted(hub);
        if (status != CFX_OK) break;
        cf_park(&hub->host.wake, seen);
    }
    atomic_store_explicit(&hub->host.asleep, 0, memory_order_seq_cst);
    return status;
}

void cf_event_settle(cf_event e) {
    if (!e.queue) return;
    cf_hub *hub = &e.queue->device->context->hub;
    const bool held = hub->holds;
    hub->holds = true;
    (void)cf_event_wait(e); /* fails in a child of fork alone */
    hub->holds = held;
}

void cf_alarm_set(cf_event e) {
    uint64_t alarm = atomic_load_explicit(&e.queue->alarm, memory_order_seq_cst);
    while (e.ticket < alarm && !atomic_compare_exchange_weak_explicit(&e.queue->alarm, &alarm, e.ticket,
                                                                      memory_order_seq_cst, memory_order_seq_cst)) {}
    /* A worker that launches polls its stream only while somebody waits for it. */
    if (e.queue->device->backend->streams) cf_sleeper_wake(&e.queue->device->worker);
}

const cf_fault *cf_event_void(cf_event e) {
    if (!e.queue) return NULL;
    for (int32_t i = e.queue->nvoids - 1; i >= 0; i--) { /* in order, and most events are newer than all */
        const cf_void *v = &e.queue->voids[i];
        if (e.ticket > v->to) return NULL;
        if (e.ticket >= v->from) return v->fault;
    }
    return NULL;
}

static cfx_status make_room_for_void(cf_queue *queue) {
    void *voids = queue->voids;
    CF_TRY(cf_realloc(&voids, (size_t)(queue->nvoids + 1) * sizeof *queue->voids));
    queue->voids = voids;
    return CFX_OK;
}

static const cf_fault *fault_of(const cf_queue *queue) {
    return cf_fault_of(&queue->device->context->hub, atomic_load(&queue->fault));
}

/* Moves the queue's poison to its list of voids: what was skipped stays known, what comes now runs. */
static void clear(cf_queue *queue) {
    queue->voids[queue->nvoids++] = (cf_void){atomic_load(&queue->poisoned_at), queue->last, fault_of(queue)};
    atomic_store(&queue->poisoned_at, UINT64_MAX);
    atomic_store(&queue->fault, 0);
}

/* Or found by each participant of a collective. */
static bool is_same(const cf_fault *a, const cf_fault *b) {
    if (!a || !b) return false;
    return a == b || (a->line == b->line && strcmp(a->source, b->source) == 0 && strcmp(a->message, b->message) == 0);
}

cfx_status cf_event_raise(cf_event e) {
    if (!e.queue || atomic_load_explicit(&e.queue->poisoned_at, memory_order_acquire) > e.ticket) return CFX_OK;
    cfx_context *context = e.queue->device->context;
    /* Every queue runs dry first, so that no command already enqueued can inherit the poison after it was
     * cleared.  Faults are rare: the price does not matter. */
    for (int32_t i = 0; i < context->nopen; i++)
        for (int q = 0; q < CF_QUEUES; q++) CF_TRY(cf_event_wait(cf_queue_last(&context->open[i]->queue[q])));
    const cf_fault *fault = fault_of(e.queue); /* only now: a device may have found an earlier one */
    for (int32_t i = 0; i < context->nopen; i++)
        for (int q = 0; q < CF_QUEUES; q++) CF_TRY(make_room_for_void(&context->open[i]->queue[q]));
    for (int32_t i = 0; i < context->nopen; i++) {
        cfx_device *device = context->open[i];
        /* where the device cannot go on, its queues stay poisoned */
        const cf_streams *streams = device->backend->streams;
        const bool goes_on = !streams || streams->forgive(device->state) == CFX_OK;
        for (int q = 0; goes_on && q < CF_QUEUES; q++)
            if (is_same(fault_of(&device->queue[q]), fault)) clear(&device->queue[q]);
    }
    return cf_fault_raise(fault, "");
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
    if (!e.queue) return;
    cf_event *all = items(uses);
    for (int32_t i = 0; i < uses->n; i++) {
        if (all[i].queue != e.queue) continue;
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

cfx_status cf_uses_merge(cf_uses *into, const cf_uses *from) {
    const cf_event *all = cf_uses_items(from);
    for (int32_t i = 0; i < from->n; i++) CF_TRY(cf_uses_add(into, all[i]));
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
    if (!e.queue || e.queue == waits->own) return;
    /* Data of a poisoned queue's past are still waited for: that is how the poison is inherited. */
    if (cf_event_done(e) && atomic_load_explicit(&e.queue->poisoned_at, memory_order_acquire) > data) return;
    for (int i = 0; i < waits->n; i++) {
        cf_wait *wait = &waits->items[i];
        if (wait->until.queue != e.queue) continue;
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
