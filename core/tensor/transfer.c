/* transfer.c: pieces of bytes, directly or by staging memory.  See transfer.h. */
#include "tensor/transfer.h"

#include <string.h>

/* ---- one piece of bytes, as a command ---------------------------------------------------------------- */

static cfx_status run_piece(cf_worker *worker, void *payload, bool poisoned) {
    const cf_streams *streams = worker->backend->streams;
    const cf_piece *p = payload;
    (void)poisoned;
    if (streams) return streams->copy(worker, p->to, p->from, p->bytes);
    memcpy(p->to, p->from, p->bytes);
    return CFX_OK;
}

void cf_piece_begin(cf_dispatch *d, const char *op, cf_queue *queue, cf_touch *touches) {
    cf_dispatch_begin(d, queue, run_piece, op, 0, touches);
}

cfx_status cf_piece_end(cf_dispatch *d, cf_piece piece, cf_event *out) {
    void *payload;
    CF_TRY(cf_dispatch_reserve(d, sizeof piece, &payload));
    *(cf_piece *)payload = piece;
    *out = cf_dispatch_end(d);
    return CFX_OK;
}

/* ---- from the host's memory -------------------------------------------------------------------------- */

enum { FEW_BYTES = 64 << 10 };

cf_queue *cf_upload_queue(cfx_device *device, size_t bytes) {
    return cf_queue_at(device, bytes <= FEW_BYTES ? CF_COMPUTE : CF_COMM);
}

cfx_status cf_send(cfx_tensor *y, size_t at, const void *from, size_t bytes, cf_queue *queue, cf_event *sent) {
    cf_touch touch;
    cf_dispatch d;
    cf_piece_begin(&d, "from", queue, &touch);
    CF_TRY(cf_dispatch_view(&d, y, CF_MAKE));
    return cf_piece_end(&d, (cf_piece){cf_data(y) + at, from, bytes}, sent);
}

/* ---- between devices of another memory -------------------------------------------------------------- */

/* Between the memories of one backend's devices the backend copies. */
static cfx_status transfer_directly(const cfx_tensor *x, cfx_tensor *y, size_t bytes) {
    cf_touch touches[2];
    cf_dispatch d;
    cf_event e;
    cf_piece_begin(&d, "to", cf_queue_at(cf_device(y), CF_COMM), touches);
    CF_TRY(cf_dispatch_view(&d, x, CF_READ));
    CF_TRY(cf_dispatch_view(&d, y, CF_MAKE));
    return cf_piece_end(&d, (cf_piece){cf_data(y), cf_data(x), bytes}, &e);
}

/* One of the two is the host's: its worker copies to or from staging memory, the other's worker the other half. */
static cfx_status transfer_piece(const cfx_tensor *x, cfx_tensor *y, cf_staging *staging, size_t at, size_t bytes) {
    cf_touch touch;
    cf_dispatch d;
    cf_event read, written;
    void *memory;
    cf_piece_begin(&d, "to", cf_queue_at(cf_device(x), CF_COMM), &touch);
    CF_TRY(cf_dispatch_view(&d, x, CF_READ));
    CF_TRY(cf_staging_take(staging, bytes, &memory));
    CF_TRY(cf_piece_end(&d, (cf_piece){memory, cf_data(x) + at, bytes}, &read));
    cf_staging_used(staging, read);
    cf_piece_begin(&d, "to", cf_queue_at(cf_device(y), CF_COMM), &touch);
    cf_dispatch_after(&d, read);
    CF_TRY(cf_dispatch_view(&d, y, CF_MAKE));
    CF_TRY(cf_piece_end(&d, (cf_piece){cf_data(y) + at, memory, bytes}, &written));
    cf_staging_used(staging, written);
    return CFX_OK;
}

cfx_status cf_transfer(const cfx_tensor *x, cfx_tensor *y) {
    cfx_device *from = cf_device(x), *to = cf_device(y);
    const size_t bytes = (size_t)cf_numel(x) * (size_t)cfx_dtype_size(x->_dtype);
    if (from->backend == to->backend) return transfer_directly(x, y, bytes);
    if (!from->backend->host_memory && !to->backend->host_memory)
        return cf_fail(CFX_ESTATE, "to: %s and %s have no memory that both can reach", from->name, to->name);
    cf_staging *staging = from->backend->host_memory ? &to->staging : &from->staging;
    for (size_t at = 0; at < bytes; at += CF_STAGING_PIECE)
        CF_TRY(transfer_piece(x, y, staging, at, cf_piece_bytes(at, bytes)));
    return CFX_OK;
}
