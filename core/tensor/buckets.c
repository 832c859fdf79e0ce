/* buckets.c: cutting a gradient buffer, and counting what it gets.  See buckets.h. */
#include "tensor/buckets.h"

#include <stdlib.h>

/* Buckets of 25 MiB keep a network busy, as in PyTorch DDP (Li et al., VLDB 2020); the first is small so that
 * reduction starts early, and what would be less than a quarter of it at the end is not worth another meeting. */
enum { FIRST_BUCKET = 1 << 20, BUCKET = 25 << 20, LAST_BUCKET = 1 << 18 };

/* At the places' borders. */
cfx_status cf_buckets_cut(cf_buffer *buffer) {
    if (buffer->buckets) return CFX_OK;
    const cfx_layout *layout = buffer->layout;
    const int64_t size = cf_dtype_size(buffer->layout_dtype);
    int32_t n = 0;
    void *memory;
    CF_TRY(cf_alloc_zero((size_t)layout->n + 1, sizeof(cf_bucket), &memory));
    cf_bucket *buckets = memory;
    for (int32_t i = 0; i < layout->n; i++) {
        const cf_layout_place *place = &layout->places[i];
        if (place->dtype != buffer->layout_dtype || place->tied >= 0) continue;
        const int64_t at = place->offset * size;
        if (n == 0) buckets[n++].from = 0;
        else if (at - buckets[n - 1].from >= (n == 1 ? FIRST_BUCKET : BUCKET) &&
                 (int64_t)buffer->bytes - at >= LAST_BUCKET) {
            buckets[n - 1].to = at;
            buckets[n++].from = at;
        }
    }
    if (n) buckets[n - 1].to = (int64_t)buffer->bytes;
    buckets[n].from = -1; /* the end of the list */
    buffer->buckets = buckets;
    return CFX_OK;
}

static cf_bucket *bucket_of(const cfx_tensor *place) {
    const int64_t at = place->_offset * cf_dtype_size(place->_dtype);
    cf_bucket *b = place->_buffer->buckets;
    while (b->from >= 0 && b->to <= at) b++;
    return b->from >= 0 ? b : NULL;
}

cfx_status cf_buckets_open(const cfx_tensor *place, bool expected) {
    cf_buffer *buffer = place->_buffer;
    if (!buffer->layout || place->_dtype != buffer->layout_dtype) return CFX_OK;
    CF_TRY(cf_buckets_cut(buffer));
    if (buffer->counting++ == 0) {
        for (cf_bucket *b = buffer->buckets; b->from >= 0; b++) {
            b->pending = 0;
            b->event = (cf_event){NULL, 0};
        }
        buffer->nbuckets = -1;
    }
    cf_bucket *b = bucket_of(place);
    if (b && expected) b->pending++;
    return CFX_OK;
}

void cf_bucket_count(const cfx_tensor *place) {
    cf_buffer *buffer = place->_buffer;
    if (!buffer->counting) return;
    cf_bucket *b = bucket_of(place);
    if (b && --b->pending == 0) b->event = cf_queue_last(cf_queue_at(buffer->device, CF_COMPUTE));
}

void cf_buckets_close(const cfx_tensor *place) {
    cf_buffer *buffer = place->_buffer;
    if (!buffer->counting || --buffer->counting > 0) return;
    int32_t n = 0;
    for (cf_bucket *b = buffer->buckets; b->from >= 0; b++, n++)
        if (!b->event.timeline) b->event = cf_queue_last(cf_queue_at(buffer->device, CF_COMPUTE));
    /* A backward that wrote nothing here has not waited for those who did before it. */
    buffer->nbuckets = buffer->nbuckets < 0 ? 0 : n;
}

void cf_buckets_abort(const cfx_tensor *place) { place->_buffer->counting = 0; }
