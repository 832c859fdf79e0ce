/* staging.c: see staging.h. */
#include "device/staging.h"

#include <string.h>

#include "base/status.h"

/* Waits for the oldest pieces until none of them lies in [from, to). */
static cfx_status clear(cf_staging *staging, size_t from, size_t to) {
    for (uint64_t k = staging->head; k < staging->tail; k++) {
        const struct cf_staged *piece = &staging->pieces[k % CF_STAGING_PIECES];
        if (piece->from >= to || piece->to <= from) continue;
        while (staging->head <= k) { /* the older ones have happened before it, or almost */
            CF_TRY(cf_event_wait(staging->pieces[staging->head % CF_STAGING_PIECES].last));
            staging->head++;
        }
    }
    return CFX_OK;
}

cfx_status cf_staging_take(cf_staging *staging, size_t bytes, void **out) {
    const size_t room = (bytes + CF_ALIGN - 1) & ~(size_t)(CF_ALIGN - 1);
    void *memory;
    if (room > CF_STAGING_PIECE) return cf_fail(CFX_EARG, "staging: a piece of %zu bytes", bytes);
    if (!staging->memory) {
        CF_TRY(staging->backend->streams->pin(staging->state, CF_STAGING_BYTES, &memory));
        staging->memory = memory;
    }
    size_t from = staging->next;
    if (from + room > CF_STAGING_BYTES) from = 0;
    CF_TRY(clear(staging, from, from + room));
    if (staging->tail - staging->head == CF_STAGING_PIECES) {
        CF_TRY(cf_event_wait(staging->pieces[staging->head % CF_STAGING_PIECES].last));
        staging->head++;
    }
    staging->pieces[staging->tail++ % CF_STAGING_PIECES] = (struct cf_staged){from, from + room, {NULL, 0}};
    staging->next = from + room;
    *out = staging->memory + from;
    return CFX_OK;
}

void cf_staging_used(cf_staging *staging, cf_event last) {
    staging->pieces[(staging->tail - 1) % CF_STAGING_PIECES].last = last;
}

void cf_staging_free(cf_staging *staging) {
    if (staging->memory) staging->backend->streams->unpin(staging->state, staging->memory);
    staging->memory = NULL;
    staging->head = staging->tail = staging->next = 0;
}
