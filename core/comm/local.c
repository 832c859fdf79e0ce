/* local.c: replicas in one process join in each other's memory.
 *
 * Every part is cut into one slice a device.  A slice is one command on its device's communication queue: it
 * waits until the stretch is there in every replica, adds the replicas in their order, and writes the result to
 * all.  Whoever uses a replica next waits for all slices.  Nothing is copied and no thread meets another.
 */
#include <stdlib.h>
#include <string.h>

#include "comm/comm.h"

/* A slice of fewer bytes than this costs more to hand out than to do. */
enum { SLICE_BYTES = 32 << 10, SLICE_UNIT = 1024 };

static int32_t slices_of(const cf_part *part, int32_t replicas) {
    const int64_t worth = part->n * cf_dtype_size(part->dtype) / SLICE_BYTES;
    return worth < 1 ? 1 : worth < replicas ? (int32_t)worth : replicas;
}

static size_t extra_bytes(const double *weights, int32_t replicas) {
    return weights ? (size_t)replicas * sizeof *weights : 0;
}

static cfx_status enqueue_slice(cf_combine op, const double *weights, int32_t root, int32_t replicas,
                                const cf_part *part, int32_t s, int32_t slices, cf_event *done) {
    cf_queue *queue = cf_queue_at(cf_part_device(part, s), CF_COMM);
    cf_waits waits = {.own = &queue->timeline, .n = 0};
    const size_t extra = extra_bytes(weights, replicas);
    void *payload;
    /* in every replica the stretch's own writes, and where it writes, all reads */
    for (int32_t r = 0; r < replicas; r++)
        CF_TRY(cf_part_waits(&waits, part, r, cf_combine_reads(op, root, r), cf_combine_writes(op, root, r)));
    CF_TRY(cf_queue_reserve(queue, cf_run_call, "allreduce", 0, waits.items, waits.n, cf_call_bytes(replicas, extra),
                            &payload));
    const int64_t units = (part->n + SLICE_UNIT - 1) / SLICE_UNIT;
    const int64_t from = units * s / slices * SLICE_UNIT, end = units * (s + 1) / slices * SLICE_UNIT;
    const int64_t size = cf_dtype_size(part->dtype);
    cf_call *call = payload;
    *call = (cf_call){.op = CF_OP_combine,
                      .nout = (uint8_t)replicas,
                      .dtype = (uint8_t)part->dtype,
                      .extra = (uint32_t)extra,
                      .i = {op, root}};
    if (extra) memcpy(cf_call_extra(call), weights, extra);
    for (int32_t r = 0; r < replicas; r++) {
        cf_view *view = &call->v[r];
        view->data = cf_part_buffer(part, r)->data + part->offset[r] + from * size;
        view->dtype = part->dtype;
        view->ndim = 1;
        view->shape[0] = (end < part->n ? end : part->n) - from;
        view->stride[0] = 1;
    }
    *done = cf_queue_commit(queue);
    return CFX_OK;
}

/* The next users of what was written wait for all slices, and for what the slices did not have to wait for. */
static void note(cf_combine op, int32_t root, const cf_part *part, int32_t replicas, const cf_event *events) {
    for (int32_t r = 0; r < replicas; r++) {
        cf_buffer *buffer = cf_part_buffer(part, r);
        const bool writes = cf_combine_writes(op, root, r);
        for (int32_t s = 0; s < replicas; s++) { /* an event of no queue is no slice */
            cf_uses_note(writes ? &buffer->writes : &buffer->reads, events[s]);
            if (writes) cf_uses_note(&buffer->made, events[s]);
        }
        if (writes) cf_part_written(part, r);
    }
}

static cfx_status combine(cf_combine op, const double *weights, int32_t root, int32_t replicas, int32_t nparts,
                          const cf_part *parts) {
    const size_t payload = cf_call_bytes(replicas, extra_bytes(weights, replicas));
    void *memory;
    if (nparts == 0) return CFX_OK;
    CF_TRY(cf_alloc_zero((size_t)nparts * (size_t)replicas, sizeof(cf_event), &memory));
    cf_event *events = memory;
    cfx_status status = cf_parts_notable(op, root, replicas, nparts, parts, replicas);
    int32_t k = 0, end = 0;
    while (k < nparts && status == CFX_OK) {
        status = cf_parts_room(replicas, payload, slices_of, k, nparts, parts, &end);
        for (; k < end && status == CFX_OK; k++) {
            const int32_t slices = slices_of(&parts[k], replicas);
            for (int32_t s = 0; s < slices && status == CFX_OK; s++)
                status = enqueue_slice(op, weights, root, replicas, &parts[k], s, slices, &events[k * replicas + s]);
        }
    }
    cf_parts_done(replicas, parts);
    /* Orders are noted after all is enqueued, so parts of one buffer do not wait for each other; and also where an
     * interrupt came between, of what was enqueued before. */
    for (k = 0; k < end; k++) note(op, root, &parts[k], replicas, &events[k * replicas]);
    free(memory);
    return status;
}

const cf_group cf_group_local = {"local", combine};
