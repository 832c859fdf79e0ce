/* shareable.c: see shareable.h. */
#include "tensor/shareable.h"

#include "tensor/primitive.h"

bool cf_can_share(const cfx_tensor *x) {
    const cf_buffer *buffer = x->_buffer;
    if (buffer->fixed || buffer->block->give || !buffer->device->shareable.arena) return false;
    for (const cf_hold *hold = buffer->holds; hold; hold = hold->next)
        if (!hold->op) return false; /* a thread of a DataLoader reads it */
    return true;
}

static void swap_uses(cf_uses *a, cf_uses *b) {
    const cf_uses kept = *a;
    *a = *b;
    *b = kept;
}

/* The buffers change places: commands under way go on in the old memory, and later ones wait for the copy. */
static void trade(cf_buffer *a, cf_buffer *b) {
    cf_block *block = a->block;
    char *data = a->data;
    a->block = b->block;
    a->data = b->data;
    b->block = block;
    b->data = data;
    swap_uses(&a->writes, &b->writes);
    swap_uses(&a->reads, &b->reads);
    swap_uses(&a->made, &b->made);
}

cfx_status cf_make_shareable(const cfx_tensor *x) {
    cf_buffer *buffer = x->_buffer;
    const int64_t bytes = (int64_t)buffer->bytes;
    cfx_tensor old = {0}, made = {0};
    cf_block *block;
    if (cf_is_shareable(x)) return CFX_OK;
    CF_TRY(cf_pool_take(&buffer->device->shareable, buffer->bytes, &block));
    cfx_status status = cf_buffer_over(buffer->device, block, buffer->bytes, &made._buffer);
    if (status != CFX_OK) {
        cf_pool_give(block->pool, block);
        return status;
    }
    old._buffer = buffer;
    cf_cover(&old, CFX_UINT8, 1, &bytes);
    cf_cover(&made, CFX_UINT8, 1, &bytes);
    if (bytes > 0 && !buffer->fresh && !buffer->empty) status = cf_copy_make(&made, &old);
    if (status == CFX_OK) {
        trade(buffer, made._buffer);
        buffer->nbuckets = 0;
    }
    cf_buffer_release(made._buffer);
    return status;
}
