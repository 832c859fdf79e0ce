/* values.c: values on their way to the host and from it.
 *
 * The host reads memory that it can see once the value's own write has happened, not behind all else.  A value in
 * memory that it cannot see passes through staging memory, in pieces: see transfer.h.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/primitive.h"
#include "tensor/transfer.h"

CFX_API cfx_status cfx_pointer(const cfx_tensor *x, void **out) {
    CF_TRY(cfx_wait(x));
    *out = cf_device(x)->backend->host_memory ? cf_data(x) : NULL;
    x->_buffer->fixed = 1;
    return CFX_OK;
}

/* Row-major values of a strided view in host memory. */
static void gather(const cfx_tensor *x, int dim, const char *from, char **to) {
    const int64_t size = cfx_dtype_size(x->_dtype), step = x->_stride[dim] * size;
    for (int64_t i = 0; i < x->_shape[dim]; i++, from += step) {
        if (dim + 1 < x->_ndim) gather(x, dim + 1, from, to);
        else *to = (char *)memcpy(*to, from, (size_t)size) + size;
    }
}

/* ---- to the host ------------------------------------------------------------------------------------ */

typedef struct fetched {
    void *memory;
    cf_event here;
} fetched;

static cfx_status fetch(const cfx_tensor *x, size_t at, size_t bytes, fetched *out) {
    cf_staging *staging = &cf_device(x)->staging;
    cf_touch touch;
    cf_dispatch d;
    cf_piece_begin(&d, "read", cf_queue_at(cf_device(x), CF_COMM), &touch);
    CF_TRY(cf_dispatch_view(&d, x, CF_READ));
    CF_TRY(cf_staging_take(staging, bytes, &out->memory));
    CF_TRY(cf_piece_end(&d, (cf_piece){out->memory, cf_data(x) + at, bytes}, &out->here));
    cf_staging_used(staging, out->here);
    return CFX_OK;
}

/* Two pieces are under way at a time.  A device may find out late that what it computed is wrong: x is asked again once
 * its bytes are here. */
static cfx_status download_packed(const cfx_tensor *x, char *to, size_t bytes) {
    fetched under_way[2];
    const size_t pieces = (bytes + CF_STAGING_PIECE - 1) / CF_STAGING_PIECE;
    for (size_t k = 0; k <= pieces; k++) {
        const size_t at = k * CF_STAGING_PIECE;
        if (k < pieces) CF_TRY(fetch(x, at, cf_piece_bytes(at, bytes), &under_way[k % 2]));
        if (k == 0) continue;
        const fetched *f = &under_way[(k - 1) % 2];
        CF_TRY(cf_event_wait(f->here));
        CF_TRY(cf_event_raise(f->here));
        CF_TRY(cfx_wait(x));
        memcpy(to + at - CF_STAGING_PIECE, f->memory, cf_piece_bytes(at - CF_STAGING_PIECE, bytes));
    }
    return CFX_OK;
}

static cfx_status download(const cfx_tensor *x, void *dst, size_t bytes) {
    cfx_tensor packed = {0};
    CF_TRY(cf_packed(x, &packed));
    const cfx_status status = download_packed(&packed, dst, bytes);
    cfx_release(&packed);
    return status;
}

CFX_API cfx_status cfx_read(const cfx_tensor *x, void *dst, size_t bytes) {
    CF_TRY(cf_check_tensor("read", "x", x));
    const size_t need = (size_t)cf_numel(x) * (size_t)cfx_dtype_size(x->_dtype);
    if (bytes != need) return cf_fail(CFX_EARG, "read: expected room for %zu bytes, got %zu", need, bytes);
    if (need > 0 && !cf_device(x)->backend->host_memory) return download(x, dst, need);
    CF_TRY(cfx_wait(x));
    if (need == 0) return CFX_OK;
    char *to = dst;
    if (cfx_is_contiguous(x)) memcpy(dst, cf_data(x), need);
    else gather(x, 0, cf_data(x), &to);
    return CFX_OK;
}

/* ---- from the host ---------------------------------------------------------------------------------- */

/* Bytes on their way to memory that the host sees but that commands may still use: the command frees them. */
typedef struct parcel {
    char *to, *from;
    size_t bytes;
} parcel;

static cfx_status run_parcel(cf_worker *worker, void *payload, bool poisoned) {
    const parcel *p = payload;
    (void)worker;
    if (!poisoned) memcpy(p->to, p->from, p->bytes);
    free(p->from);
    return CFX_OK;
}

static cfx_status send_parcel(cfx_tensor *y, const char *from, size_t bytes) {
    void *copy, *payload;
    cf_touch touch;
    cf_dispatch d;
    cf_dispatch_begin(&d, cf_queue_at(cf_device(y), CF_COMPUTE), run_parcel, "from", CF_ALWAYS, &touch);
    CF_TRY(cf_dispatch_view(&d, y, CF_MAKE));
    CF_TRY(cf_alloc(bytes, &copy));
    const cfx_status status = cf_dispatch_reserve(&d, sizeof(parcel), &payload);
    if (status != CFX_OK) {
        free(copy);
        return status;
    }
    *(parcel *)payload = (parcel){cf_data(y), memcpy(copy, from, bytes), bytes};
    cf_dispatch_end(&d);
    return CFX_OK;
}

/* By staging memory, in pieces. */
static cfx_status upload(cfx_tensor *y, const char *from, size_t bytes) {
    cf_staging *staging = &cf_device(y)->staging;
    cf_queue *queue = cf_upload_queue(cf_device(y), bytes);
    for (size_t at = 0; at < bytes; at += CF_STAGING_PIECE) {
        const size_t n = cf_piece_bytes(at, bytes);
        cf_event sent;
        void *memory;
        CF_TRY(cf_staging_take(staging, n, &memory));
        memcpy(memory, from + at, n);
        CF_TRY(cf_send(y, at, memory, n, queue, &sent));
        cf_staging_used(staging, sent);
    }
    return CFX_OK;
}

/* Host memory is written at once unless commands may still use the block; else the bytes wait in the queue, so
 * that the host does not. */
CFX_API cfx_status cfx_from_host(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape,
                                 const void *data, cfx_tensor *out) {
    CF_TRY(cf_check_shape("from", dtype, ndim, shape));
    CF_TRY(cf_check_device("from", device));
    if (out->_buffer) return cf_fail(CFX_EARG, "from: argument 'out': expected an empty handle");
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    cf_buffer *buffer = out->_buffer;
    cfx_status status = CFX_OK;
    buffer->fresh = 0;
    cf_uses_prune(&buffer->block->uses);
    if (buffer->bytes == 0) return CFX_OK;
    if (!device->backend->host_memory) status = upload(out, data, buffer->bytes);
    else if (buffer->block->uses.n > 0) status = send_parcel(out, data, buffer->bytes);
    else memcpy(buffer->data, data, buffer->bytes);
    if (status != CFX_OK) cfx_release(out);
    return status;
}
