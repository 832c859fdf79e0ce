/* dispatch.c: what a command waits for, and what waits for it.  See dispatch.h. */
#include "tensor/dispatch.h"

/* Which bytes a write touches: all of the buffer, or of a part as many as it is known to give another value.  That is
 * asked for only where changes are kept that it could end. */
static void find_range(const cfx_tensor *x, cf_touch *touch) {
    const cf_buffer *buffer = x->_buffer;
    touch->whole = cf_is_whole(x);
    touch->from = touch->to = 0;
    if (!buffer->drift.changes) return;
    if (touch->whole) {
        touch->to = (int64_t)buffer->bytes;
    } else if (cfx_is_contiguous(x)) {
        cf_extent(x, &touch->from, &touch->to);
        /* behind a place of a layout lies a gap, where there is nothing to end */
        if (buffer->layout && !(x->_flags & CFX_FLAG_VIEW)) touch->to = (touch->to + CF_ALIGN - 1) & -(int64_t)CF_ALIGN;
    }
}

cfx_status cf_dispatch_view(cf_dispatch *d, const cfx_tensor *x, cf_use use) {
    cf_buffer *buffer = x->_buffer;
    cf_touch *touch = &d->touches[d->n++];
    touch->buffer = buffer;
    touch->use = (uint8_t)use;
    if (use == CF_READ) {
        CF_TRY(cf_refuse_void(x));
        CF_TRY(cf_uses_room(&buffer->reads, 1));
        cf_waits_uses(&d->waits, &buffer->writes, CF_DATA);
        return CFX_OK;
    }
    find_range(x, touch);
    /* A part made in a void buffer would hide that the rest is void. */
    if (!touch->whole || use == CF_UPDATE) CF_TRY(cf_refuse_void(x));
    if (!touch->whole) CF_TRY(cf_uses_room(&buffer->made, 1)); /* else its note takes the place of the others */
    cf_waits_uses(&d->waits, &buffer->writes, touch->whole && use == CF_MAKE ? CF_ORDER : CF_DATA);
    cf_waits_uses(&d->waits, &buffer->reads, CF_ORDER);
    if (buffer->block->uses.n) cf_waits_uses(&d->waits, &buffer->block->uses, CF_ORDER);
    return CFX_OK;
}

static void note_write(const cf_touch *touch, cf_event e) {
    cf_buffer *buffer = touch->buffer;
    /* The write waited for all that came before it, and took over the poison of what it leaves of that, so it stands
     * for all of it. */
    buffer->writes.n = buffer->reads.n = 0;
    buffer->fresh = buffer->empty = 0;
    if (buffer->block->uses.n) cf_uses_clear(&buffer->block->uses);
    buffer->nbuckets = 0;
    if (touch->use == CF_MAKE) {
        if (touch->whole) buffer->made.n = 0;
        cf_uses_note(&buffer->made, e);
        if (touch->from < touch->to) cf_changes_forget(&buffer->drift, touch->from, touch->to);
    }
    cf_uses_note(&buffer->writes, e);
}

cf_event cf_dispatch_end(cf_dispatch *d) {
    const cf_event e = cf_queue_commit(d->queue);
    for (int32_t k = 0; k < d->n; k++) {
        if (d->touches[k].use == CF_READ) cf_uses_note(&d->touches[k].buffer->reads, e);
        else note_write(&d->touches[k], e);
    }
    return e;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

cfx_status cf_dispatch_join(cf_dispatch *d, const cfx_tensor *x, const cf_event *since, bool reads, bool writes) {
    const cf_buffer *buffer = x->_buffer;
    const cf_reason reason = reads ? CF_DATA : CF_ORDER;
    CF_TRY(cf_refuse_void(x));
    if (since) cf_waits_event(&d->waits, *since, reason);
    else cf_waits_uses(&d->waits, &buffer->writes, reason);
    if (!writes) return CFX_OK;
    cf_waits_uses(&d->waits, &buffer->reads, CF_ORDER);
    cf_waits_uses(&d->waits, &buffer->block->uses, CF_ORDER);
    return CFX_OK;
}

cfx_status cf_join_room(const cfx_tensor *x, bool writes, int32_t n) {
    cf_buffer *buffer = x->_buffer;
    if (!writes) return cf_uses_room(&buffer->reads, n);
    CF_TRY(cf_uses_room(&buffer->writes, n));
    return cf_uses_room(&buffer->made, n);
}

/* A write is noted beside the earlier ones, which the rest of the buffer still rests on. */
void cf_did_join(const cfx_tensor *x, bool writes, cf_event e) {
    cf_buffer *buffer = x->_buffer;
    cf_uses_note(writes ? &buffer->writes : &buffer->reads, e);
    if (!writes) return;
    cf_uses_note(&buffer->made, e);
    buffer->fresh = buffer->empty = 0;
    buffer->nbuckets = 0;
}

/* ---- the host's waits ------------------------------------------------------------------------------- */

CFX_API int32_t cfx_ready(const cfx_tensor *x) {
    if (!x || !x->_buffer || !x->_buffer->device) return 1;
    const cf_uses *writes = &x->_buffer->writes;
    for (int32_t i = 0; i < writes->n; i++) {
        const cf_event e = cf_uses_items(writes)[i];
        if (cf_event_done(e)) continue;
        if (e.timeline->launches) cf_alarm_set(e); /* its worker polls only for somebody who waits */
        return 0;
    }
    return 1;
}

CFX_API cfx_status cfx_wait(const cfx_tensor *x) {
    CF_TRY(cf_check_tensor("wait", "x", x));
    const cf_uses *writes = &x->_buffer->writes;
    for (int32_t i = 0; i < writes->n; i++) {
        const cf_event e = cf_uses_items(writes)[i];
        CF_TRY(cf_event_wait(e));
        CF_TRY(cf_event_raise(e));
    }
    return cf_refuse_void(x);
}
