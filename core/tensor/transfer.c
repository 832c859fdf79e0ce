/* transfer.c: values on their way between the host, devices, and devices of another kind.
 *
 * The host reads memory that it can see once the value's own write has happened, not behind all else.  Memory that it
 * cannot see is copied by a command on its device's communication queue, which waits for that write alone.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

CFX_API int32_t cfx_ready(const cfx_tensor *x) {
    if (!x || !x->_buffer || !x->_buffer->device) return 1;
    const cf_uses *writes = &x->_buffer->writes;
    for (int32_t i = 0; i < writes->n; i++)
        if (!cf_event_done(cf_uses_items(writes)[i])) return 0;
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

/* Bytes that a device hands to the host.  Whoever lets go last frees them: an interrupted host does not wait. */
typedef struct parcel {
    _Atomic int owners;
    char bytes[];
} parcel;

static void let_go(parcel *p) {
    if (atomic_fetch_sub(&p->owners, 1) == 1) free(p);
}

typedef struct fetch {
    parcel *to;
    const char *from;
    size_t bytes;
} fetch;

static cfx_status run_fetch(cf_worker *worker, void *payload, bool poisoned) {
    const fetch *f = payload;
    const cfx_status status =
        poisoned ? CFX_OK : worker->backend->streams->download(worker, f->to->bytes, f->from, f->bytes);
    let_go(f->to);
    return status;
}

static cfx_status download_packed(const cfx_tensor *x, void *dst, size_t bytes) {
    cf_queue *queue = &cf_device(x)->queue[CF_COMM];
    cf_waits waits = {.own = queue};
    void *memory, *payload;
    CF_TRY(cf_wait_to_read(&waits, x));
    CF_TRY(cf_alloc(sizeof(parcel) + bytes, &memory));
    parcel *p = memory;
    atomic_init(&p->owners, 2);
    cfx_status status =
        cf_queue_reserve(queue, run_fetch, "read", CF_ALWAYS, waits.items, waits.n, sizeof(fetch), &payload);
    if (status != CFX_OK) {
        free(p);
        return status;
    }
    *(fetch *)payload = (fetch){p, cf_data(x), bytes};
    const cf_event e = cf_queue_commit(queue);
    status = cf_did_read(x, e);
    if (status == CFX_OK) status = cf_event_wait(e);
    if (status == CFX_OK) status = cf_event_raise(e);
    if (status == CFX_OK) memcpy(dst, p->bytes, bytes);
    let_go(p);
    return status;
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
    CF_TRY(cfx_wait(x));
    if (need == 0) return CFX_OK;
    if (!cf_device(x)->backend->host_memory) return download(x, dst, need);
    char *to = dst;
    if (cfx_is_contiguous(x)) memcpy(dst, cf_data(x), need);
    else gather(x, 0, cf_data(x), &to);
    return CFX_OK;
}

/* Bytes on their way to a device; too many for a ring, they lie beside it and the command frees them. */
typedef struct upload {
    char *to, *from;
    size_t bytes;
} upload;

static cfx_status run_upload(cf_worker *worker, void *payload, bool poisoned) {
    const cf_streams *streams = worker->backend->streams;
    const upload *u = payload;
    cfx_status status = CFX_OK;
    if (!poisoned && streams) status = streams->upload(worker, u->to, u->from, u->bytes);
    else if (!poisoned) memcpy(u->to, u->from, u->bytes);
    free(u->from);
    return status;
}

/* Host memory is written at once unless commands may still use the block; then a copy waits in the queue, so
 * that the host does not. */
CFX_API cfx_status cfx_from_host(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape,
                                 const void *data, cfx_tensor *out) {
    CF_TRY(cf_check_shape("from", dtype, ndim, shape));
    CF_TRY(cf_interrupted(device->context));
    if (out->_buffer) return cf_fail(CFX_EARG, "from: argument 'out': expected an empty handle");
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    cf_buffer *buffer = out->_buffer;
    buffer->fresh = 0;
    cf_uses_prune(&buffer->block->uses);
    if (buffer->bytes == 0) return CFX_OK;
    if (buffer->block->uses.n == 0 && device->backend->host_memory) {
        memcpy(buffer->data, data, buffer->bytes);
        return CFX_OK;
    }
    cf_waits waits = {.own = &device->queue[CF_COMPUTE]};
    void *copy = NULL, *payload;
    cfx_status status = cf_alloc(buffer->bytes, &copy);
    if (status == CFX_OK) status = cf_wait_to_write(&waits, out);
    if (status == CFX_OK)
        status = cf_queue_reserve(&device->queue[CF_COMPUTE], run_upload, "from", CF_ALWAYS, waits.items, waits.n,
                                  sizeof(upload), &payload);
    if (status != CFX_OK) {
        free(copy);
        cfx_release(out);
        return status;
    }
    memcpy(copy, data, buffer->bytes);
    *(upload *)payload = (upload){buffer->data, copy, buffer->bytes};
    return cf_did_write(out, cf_queue_commit(&device->queue[CF_COMPUTE]), CF_MAKE);
}

/* ---- between devices of another kind ---------------------------------------------------------------- */

typedef struct passage {
    char *to;
    const char *from;
    size_t bytes;
    bool up;
} passage;

static cfx_status run_passage(cf_worker *worker, void *payload, bool poisoned) {
    const passage *p = payload;
    const cf_streams *streams = worker->backend->streams;
    (void)poisoned;
    return p->up ? streams->upload(worker, p->to, p->from, p->bytes)
                 : streams->download(worker, p->to, p->from, p->bytes);
}

bool cf_is_far(const cfx_device *a, const cfx_device *b) {
    if (a->backend->host_memory && b->backend->host_memory) return false;
    return a->backend != b->backend || a->index != b->index; /* virtual devices of one GPU share it */
}

cfx_status cf_transfer(const cfx_tensor *x, cfx_tensor *y) {
    const bool up = !cf_device(y)->backend->host_memory;
    cf_queue *queue = &cf_device(up ? y : x)->queue[CF_COMM];
    cf_waits waits = {.own = queue};
    void *payload;
    if (x->_buffer->device->context != y->_buffer->device->context || !cf_device(up ? y : x)->backend->streams ||
        (up && !cf_device(x)->backend->host_memory))
        return cf_fail(CFX_ESTATE, "to: %s and %s have no memory that both can reach", cf_device(x)->name,
                       cf_device(y)->name);
    CF_TRY(cf_wait_to_read(&waits, x));
    CF_TRY(cf_wait_to_write(&waits, y));
    CF_TRY(cf_queue_reserve(queue, run_passage, "to", 0, waits.items, waits.n, sizeof(passage), &payload));
    *(passage *)payload =
        (passage){cf_data(y), cf_data(x), (size_t)cf_numel(x) * (size_t)cfx_dtype_size(x->_dtype), up};
    const cf_event e = cf_queue_commit(queue);
    CF_TRY(cf_did_read(x, e));
    return cf_did_write(y, e, CF_MAKE);
}
