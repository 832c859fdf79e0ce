/* transfer.c: values on their way between the host, devices, and devices of another kind.
 *
 * The host reads memory that it can see once the value's own write has happened, not behind all else.  What lies in
 * memory that it cannot see passes through staging memory, in pieces, by commands on the communication queues of the
 * devices on either side: no worker waits for the other's memory, and nobody for more than the value.
 */
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

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

CFX_API cfx_status cfx_pointer(const cfx_tensor *x, void **out) {
    CF_TRY(cfx_wait(x));
    *out = cf_device(x)->backend->host_memory ? cf_data(x) : NULL;
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

/* ---- one piece of bytes, as a command ---------------------------------------------------------------- */

typedef struct piece {
    char *to;
    const char *from;
    size_t bytes;
} piece;

static cfx_status run_piece(cf_worker *worker, void *payload, bool poisoned) {
    const cf_streams *streams = worker->backend->streams;
    const piece *p = payload;
    (void)poisoned;
    if (streams) return streams->copy(worker, p->to, p->from, p->bytes);
    memcpy(p->to, p->from, p->bytes);
    return CFX_OK;
}

static cfx_status enqueue(const char *op, const cf_waits *waits, piece p, cf_event *out) {
    cf_queue *queue = cf_queue_of(waits->own);
    void *payload;
    CF_TRY(cf_queue_reserve(queue, run_piece, op, 0, waits->items, waits->n, sizeof p, &payload));
    *(piece *)payload = p;
    *out = cf_queue_commit(queue);
    return CFX_OK;
}

static size_t piece_bytes(size_t at, size_t bytes) {
    return bytes - at < CF_STAGING_PIECE ? bytes - at : (size_t)CF_STAGING_PIECE;
}

/* ---- to the host ------------------------------------------------------------------------------------ */

typedef struct fetched {
    void *memory;
    cf_event here;
} fetched;

static cfx_status fetch(const cfx_tensor *x, size_t at, size_t bytes, fetched *out) {
    cf_waits waits = {.own = &cf_queue_at(cf_device(x), CF_COMM)->timeline};
    CF_TRY(cf_wait_to_read(&waits, x));
    CF_TRY(cf_staging_take(&cf_device(x)->staging, bytes, &out->memory));
    CF_TRY(enqueue("read", &waits, (piece){out->memory, (char *)cf_data(x) + at, bytes}, &out->here));
    cf_staging_used(&cf_device(x)->staging, out->here);
    cf_did_read(x, out->here);
    return CFX_OK;
}

/* Two pieces are under way at a time.  A device may find out late that what it computed is wrong: x is asked again once
 * its bytes are here. */
static cfx_status download_packed(const cfx_tensor *x, char *to, size_t bytes) {
    fetched under_way[2];
    const size_t pieces = (bytes + CF_STAGING_PIECE - 1) / CF_STAGING_PIECE;
    for (size_t k = 0; k <= pieces; k++) {
        const size_t at = k * CF_STAGING_PIECE;
        if (k < pieces) CF_TRY(fetch(x, at, piece_bytes(at, bytes), &under_way[k % 2]));
        if (k == 0) continue;
        const fetched *f = &under_way[(k - 1) % 2];
        CF_TRY(cf_event_wait(f->here));
        CF_TRY(cf_event_raise(f->here));
        CF_TRY(cfx_wait(x));
        memcpy(to + at - CF_STAGING_PIECE, f->memory, piece_bytes(at - CF_STAGING_PIECE, bytes));
    }
    return CFX_OK;
}

static cfx_status download(const cfx_tensor *x, void *dst, size_t bytes) {
    cfx_tensor packed = {0};
    CF_TRY(cfx_contiguous(x, &packed));
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
    cf_queue *queue = cf_queue_at(cf_device(y), CF_COMPUTE);
    cf_waits waits = {.own = &queue->timeline};
    void *copy, *payload;
    CF_TRY(cf_wait_to_write(&waits, y));
    CF_TRY(cf_alloc(bytes, &copy));
    const cfx_status status =
        cf_queue_reserve(queue, run_parcel, "from", CF_ALWAYS, waits.items, waits.n, sizeof(parcel), &payload);
    if (status != CFX_OK) {
        free(copy);
        return status;
    }
    *(parcel *)payload = (parcel){cf_data(y), memcpy(copy, from, bytes), bytes};
    cf_did_write(y, cf_queue_commit(queue), CF_MAKE);
    return CFX_OK;
}

/* Few bytes go up in the order of what is computed, for their copy takes less time than waits between two streams. */
enum { FEW_BYTES = 64 << 10 };

/* On the communication queue, so that the copy runs beside what is computed meanwhile. */
static cfx_status upload(cfx_tensor *y, const char *from, size_t bytes) {
    cf_staging *staging = &cf_device(y)->staging;
    cf_queue *queue = cf_queue_at(cf_device(y), bytes <= FEW_BYTES ? CF_COMPUTE : CF_COMM);
    for (size_t at = 0; at < bytes; at += CF_STAGING_PIECE) {
        cf_waits waits = {.own = &queue->timeline};
        const size_t n = piece_bytes(at, bytes);
        cf_event sent;
        void *memory;
        CF_TRY(cf_wait_to_write(&waits, y));
        CF_TRY(cf_staging_take(staging, n, &memory));
        memcpy(memory, from + at, n);
        CF_TRY(enqueue("from", &waits, (piece){(char *)cf_data(y) + at, memory, n}, &sent));
        cf_staging_used(staging, sent);
        cf_did_write(y, sent, CF_MAKE);
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

/* ---- between devices of another memory -------------------------------------------------------------- */

bool cf_is_far(const cfx_device *a, const cfx_device *b) {
    if (a->backend->host_memory && b->backend->host_memory) return false;
    return a->backend != b->backend || a->index != b->index; /* virtual devices of one GPU share it */
}

/* Between the memories of one backend's devices the backend copies. */
static cfx_status transfer_directly(const cfx_tensor *x, cfx_tensor *y, size_t bytes) {
    cf_waits waits = {.own = &cf_queue_at(cf_device(y), CF_COMM)->timeline};
    cf_event e;
    CF_TRY(cf_wait_to_read(&waits, x));
    CF_TRY(cf_wait_to_write(&waits, y));
    CF_TRY(enqueue("to", &waits, (piece){cf_data(y), cf_data(x), bytes}, &e));
    cf_did_read(x, e);
    cf_did_write(y, e, CF_MAKE);
    return CFX_OK;
}

/* One of the two is the host's: its worker copies to or from staging memory, the other's worker the other half. */
static cfx_status transfer_piece(const cfx_tensor *x, cfx_tensor *y, cf_staging *staging, size_t at, size_t bytes) {
    cf_waits reads = {.own = &cf_queue_at(cf_device(x), CF_COMM)->timeline},
             writes = {.own = &cf_queue_at(cf_device(y), CF_COMM)->timeline};
    cf_event read, written;
    void *memory;
    CF_TRY(cf_wait_to_read(&reads, x));
    CF_TRY(cf_staging_take(staging, bytes, &memory));
    CF_TRY(enqueue("to", &reads, (piece){memory, (char *)cf_data(x) + at, bytes}, &read));
    cf_staging_used(staging, read);
    cf_did_read(x, read);
    cf_waits_event(&writes, read, CF_DATA);
    CF_TRY(cf_wait_to_write(&writes, y));
    CF_TRY(enqueue("to", &writes, (piece){(char *)cf_data(y) + at, memory, bytes}, &written));
    cf_staging_used(staging, written);
    cf_did_write(y, written, CF_MAKE);
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
        CF_TRY(transfer_piece(x, y, staging, at, piece_bytes(at, bytes)));
    return CFX_OK;
}
