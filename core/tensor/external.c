/* external.c: tensors over the host program's own memory.
 *
 * Such a tensor is like any other, but that its block belongs to no pool.  When nobody holds it any more, the hook that
 * gives the memory back has to wait for the commands that still use it, and a release never waits: each queue that may
 * use it gets one more command, and the last of these runs the hook.
 */
#include <stdlib.h>

#include "tensor/dispatch.h"

typedef struct share {
    cf_block block; /* first */
    cfx_release_hook released;
    void *data;
    _Atomic int32_t left; /* queues that still use the memory, once nobody holds it */
} share;

/* ---- the end ---------------------------------------------------------------------------------------- */

static void end(share *own) {
    if (own->released) own->released(own->data);
    free(own);
}

/* The last queue to get here ends it.  These commands wait for no event, for a wait would take over the poison of what
 * it waits for. */
static cfx_status run_end(cf_worker *worker, void *payload, bool poisoned) {
    share *own = *(share **)payload;
    (void)worker;
    (void)poisoned;
    if (atomic_fetch_sub(&own->left, 1) == 1) end(own);
    return CFX_OK;
}

/* Room is waited for only where a ring is full, and an interrupt of that wait is kept for the next call.  In a child of
 * fork nobody would run the command: the memory stays. */
static void enqueue_end(cf_queue *queue, share *own) {
    cf_hub *hub = queue->timeline.hub;
    const bool held = hub->holds;
    void *payload;
    cf_dispatch d;
    hub->holds = true;
    cf_dispatch_begin(&d, queue, run_end, "share", CF_ALWAYS, NULL);
    if (cf_dispatch_reserve(&d, sizeof own, &payload) == CFX_OK) {
        *(share **)payload = own;
        cf_dispatch_end(&d);
    }
    hub->holds = held;
}

static void give(cf_block *block, bool ended) {
    share *own = (share *)block;
    cf_uses uses = block->uses; /* own may go while its commands are enqueued */
    cf_uses_prune(&uses);
    if (ended || uses.n == 0) {
        end(own);
    } else {
        atomic_init(&own->left, uses.n);
        for (int32_t i = 0; i < uses.n; i++) enqueue_end(cf_queue_of(cf_uses_items(&uses)[i].timeline), own);
    }
    cf_uses_clear(&uses);
}

/* ---- the beginning ---------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_share(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, void *memory,
                             size_t bytes, cfx_release_hook released, void *data, cfx_tensor *out) {
    CF_TRY(cf_check_shape("share", dtype, ndim, shape));
    CF_TRY(cf_check_device("share", device));
    char text[192];
    void *made;
    const size_t size = (size_t)cfx_dtype_size(dtype);
    size_t need = 0;
    cf_shape_bytes(dtype, ndim, shape, &need); /* checked above */
    if (out->_buffer) return cf_fail(CFX_EARG, "share: argument 'out': expected an empty handle");
    if (!cf_device_is_open(device)) return cf_fail(CFX_ESTATE, "device %s is no longer one of this run", device->name);
    if (!device->backend->host_memory || device->backend->streams)
        return cf_fail(CFX_EARG, "share: %s cannot work in the host's memory: copy it there, with cfx_from_host",
                       device->name);
    if (bytes < need)
        return cf_fail(CFX_EARG, "share: argument 'bytes': expected at least %zu for %s (%s), got %zu", need,
                       cf_shape_text(ndim, shape, text), cfx_dtype_name(dtype), bytes);
    if (need > 0 && (!memory || (uintptr_t)memory % size != 0))
        return cf_fail(CFX_EARG, "share: argument 'memory': expected the address of a %s, a multiple of %zu, got %p",
                       cfx_dtype_name(dtype), size, memory);
    CF_TRY(cf_alloc_zero(1, sizeof(share), &made));
    share *own = made;
    *own = (share){.block = {.data = memory, .size = need, .give = give}, .released = released, .data = data};
    const cfx_status status = cf_buffer_over(device, &own->block, need, &out->_buffer);
    if (status != CFX_OK) {
        free(own);
        return status;
    }
    out->_buffer->fresh = 0; /* the value is there */
    cf_cover(out, dtype, ndim, shape);
    return CFX_OK;
}
