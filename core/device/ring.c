/* ring.c: see ring.h. */
#include "device/ring.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/status.h"

enum { RECORD_ALIGN = 16 };

static size_t round_record(size_t bytes) { return (bytes + RECORD_ALIGN - 1) & ~(size_t)(RECORD_ALIGN - 1); }

void cf_queue_init(cf_queue *queue, cf_hub *hub, cf_sleeper *worker, int q, const cf_backend *backend) {
    memset(queue, 0, sizeof *queue);
    cf_timeline_init(&queue->timeline, hub, &queue->progress, worker, q, backend->streams != NULL);
}

cfx_status cf_queue_open(cf_queue *queue) {
    /* mmap: pages that no step ever reaches cost nothing */
    void *ring = mmap(NULL, CF_RING_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (ring == MAP_FAILED) return cf_fail(CFX_EMEMORY, "out of host memory: %d bytes for a queue", CF_RING_BYTES);
    queue->ring = ring;
    if (!queue->timeline.launches) return CFX_OK;
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
    cf_timeline_free(&queue->timeline);
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
        const uint64_t done = atomic_load_explicit(&queue->timeline.progress->finished, memory_order_acquire);
        CF_TRY(cf_event_wait((cf_event){&queue->timeline, done + (queue->last - done + 1) / 2}));
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
    const cf_hub *hub = queue->timeline.hub;
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
    cf_sleeper_wake(queue->timeline.worker);
    return cf_queue_last(queue);
}
