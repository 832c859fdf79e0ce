/* slots.c: see slots.h. */
#include "data/slots.h"

#include <stdlib.h>

#include "tensor/transfer.h"

/* ---- memory ---------------------------------------------------------------------------------------- */

static size_t round_up(size_t bytes) { return (bytes + CF_ALIGN - 1) & ~(size_t)(CF_ALIGN - 1); }

/* Bytes of a column in one slot. */
static cfx_status column_bytes(const cf_slots *s, int32_t column, size_t *out) {
    if (!cf_mul_size((size_t)s->capacity, s->samples->rows[column].bytes, out) || *out > SIZE_MAX / 2)
        return cf_fail(CFX_EMEMORY, "a step of columns[%d] is too large", (int)column);
    *out = round_up(*out);
    return CFX_OK;
}

static cfx_status slot_bytes(const cf_slots *s, size_t *out) {
    *out = 0;
    for (int32_t c = 0; c < s->samples->columns; c++) {
        size_t bytes;
        CF_TRY(column_bytes(s, c, &bytes));
        if (!cf_add_size(*out, bytes, out)) return cf_fail(CFX_EMEMORY, "a step is too large");
    }
    return CFX_OK;
}

static cfx_status take_memory(cf_slots *s) {
    size_t each, all;
    void *memory = NULL;
    CF_TRY(slot_bytes(s, &each));
    if (!cf_mul_size((size_t)s->n, each, &all)) return cf_fail(CFX_EMEMORY, "the steps made ahead are too large");
    if (s->pins && all) CF_TRY(s->pins->backend->streams->pin(s->pins->state, all, &memory));
    else CF_TRY(cf_alloc(all, &memory));
    s->memory = memory;
    unsigned char *at = s->memory;
    for (int64_t i = 0; i < s->n; i++) {
        cf_slot *slot = &s->slot[i];
        CF_TRY(cf_alloc_zero((size_t)s->samples->columns, sizeof *slot->rows, (void **)&slot->rows));
        CF_TRY(cf_alloc_zero((size_t)s->capacity, sizeof *slot->bad, (void **)&slot->bad));
        for (int32_t c = 0; c < s->samples->columns; c++) {
            size_t bytes;
            CF_TRY(column_bytes(s, c, &bytes));
            slot->rows[c] = at;
            at += bytes;
        }
    }
    return CFX_OK;
}

cfx_status cf_slots_new(const cf_samples *samples, int64_t n, int64_t capacity, int32_t count,
                        cfx_device *const *devices, cf_slots *out) {
    *out = (cf_slots){.samples = samples, .n = n, .capacity = capacity};
    for (int32_t d = 0; d < count && !out->pins; d++)
        if (!devices[d]->backend->host_memory) out->pins = devices[d];
    if (out->pins) out->n++;
    CF_TRY(cf_alloc_zero((size_t)out->n, sizeof *out->slot, (void **)&out->slot));
    return take_memory(out);
}

static void forget(const cf_slots *s, cf_slot *slot) {
    for (int64_t r = 0; slot->bad && r < s->capacity; r++) {
        free(slot->bad[r]);
        slot->bad[r] = NULL;
    }
    free(slot->why);
    slot->why = NULL;
    slot->status = CFX_OK;
}

void cf_slots_free(cf_slots *s) {
    for (int64_t i = 0; s->slot && i < s->n; i++) {
        cf_slot *slot = &s->slot[i];
        for (int32_t k = 0; k < slot->copies.n; k++) cf_event_settle(cf_uses_items(&slot->copies)[k]);
        cf_uses_clear(&slot->copies);
        forget(s, slot);
        free(slot->rows);
        free(slot->bad);
    }
    if (!s->pins) free(s->memory);
    else if (s->memory && !cf_is_forked(&cfx_device_context(s->pins)->hub))
        s->pins->backend->streams->unpin(s->pins->state, s->memory);
    free(s->slot);
    *s = (cf_slots){0};
}

/* ---- a step's rows --------------------------------------------------------------------------------- */

void cf_slot_open(cf_slots *s, cf_slot *slot, int64_t samples) {
    forget(s, slot);
    slot->samples = slot->left = samples;
}

void cf_slot_fail(cf_slot *slot, int64_t row, cfx_status status) {
    if (slot->status != CFX_OK && slot->failed <= row) return;
    slot->status = status;
    slot->failed = row;
    free(slot->why);
    slot->why = strdup(cfx_error()); /* NULL: there is no memory for it; the status is kept */
}

void cf_slot_close_up(const cf_slots *s, cf_slot *slot) {
    int64_t kept = 0;
    for (int64_t r = 0; r < slot->samples; r++) {
        if (slot->bad[r]) continue;
        for (int32_t c = 0; kept < r && c < s->samples->columns; c++) {
            const size_t bytes = s->samples->rows[c].bytes;
            memcpy(slot->rows[c] + (size_t)kept * bytes, slot->rows[c] + (size_t)r * bytes, bytes);
        }
        kept++;
    }
    slot->samples = kept;
}

/* ---- to devices ------------------------------------------------------------------------------------ */

cfx_status cf_slot_send(const cf_slots *s, cf_slot *slot, int32_t column, int64_t first, int64_t count,
                        cfx_device *device, cfx_tensor *out) {
    const cf_row *row = &s->samples->rows[column];
    const unsigned char *from = slot->rows[column] + (size_t)first * row->bytes;
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, row->shape, sizeof shape);
    shape[0] = count;
    if (device->backend->host_memory) return cfx_from_host(device, row->dtype, row->ndim, shape, from, out);
    const size_t bytes = (size_t)count * row->bytes;
    CF_TRY(cf_new(device, row->dtype, row->ndim, shape, out));
    out->_buffer->fresh = 0;
    if (!bytes) return CFX_OK;
    cf_event sent;
    CF_TRY(cf_uses_room(&slot->copies, 1));
    CF_TRY(cf_send(out, 0, from, bytes, cf_upload_queue(device, bytes), &sent));
    cf_uses_note(&slot->copies, sent);
    return CFX_OK;
}

bool cf_slot_is_free(cf_slot *slot) {
    cf_uses_prune(&slot->copies);
    return slot->copies.n == 0;
}

cfx_status cf_slot_wait(cf_slot *slot) {
    for (int32_t k = 0; k < slot->copies.n; k++) CF_TRY(cf_event_wait(cf_uses_items(&slot->copies)[k]));
    cf_uses_prune(&slot->copies);
    return CFX_OK;
}
