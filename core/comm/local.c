/* local.c: slices, each joined by one device's worker.  See local.h. */
#include "comm/local.h"

#include <stdlib.h>
#include <string.h>

/* A slice of fewer bytes than this costs more to hand out than to do. */
enum { SLICE_BYTES = 32 << 10, SLICE_UNIT = 1024 };

static int32_t slices_of(const cf_group *group, const cf_part *part) {
    const int64_t worth = part->n * cf_dtype_size(part->dtype) / SLICE_BYTES;
    return worth < 1 ? 1 : worth < group->size ? (int32_t)worth : group->size;
}

static size_t extra_bytes(const cf_group *group, const cf_collective *how) {
    return how->weights ? (size_t)group->size * sizeof *how->weights : 0;
}

static cfx_status enqueue_slice(const cf_group *group, const cf_collective *how, const cf_part *part, int32_t s,
                                int32_t slices, cf_event *done) {
    const int32_t replicas = group->size;
    cf_queue *queue = cf_queue_at(group->devices[s], CF_COMM);
    cf_waits waits = {.own = &queue->timeline, .n = 0};
    const size_t extra = extra_bytes(group, how);
    void *payload;
    /* in every replica the stretch's own writes, and where it writes, all reads */
    for (int32_t r = 0; r < replicas; r++)
        CF_TRY(cf_part_waits(&waits, part, r, cf_combine_reads(how->op, how->root, r),
                             cf_combine_writes(how->op, how->root, r)));
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
                      .i = {how->op, how->root}};
    if (extra) memcpy(cf_call_extra(call), how->weights, extra);
    for (int32_t r = 0; r < replicas; r++) {
        cf_view *view = &call->v[r];
        view->data = cf_part_data(part, r) + from * size;
        view->dtype = part->dtype;
        view->ndim = 1;
        view->shape[0] = (end < part->n ? end : part->n) - from;
        view->stride[0] = 1;
    }
    *done = cf_queue_commit(queue);
    return CFX_OK;
}

static cfx_status combine(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    const int32_t replicas = group->size;
    const size_t payload = cf_call_bytes(replicas, extra_bytes(group, how));
    void *memory;
    if (nparts == 0) return CFX_OK;
    CF_TRY(cf_alloc_zero((size_t)nparts * (size_t)replicas, sizeof(cf_event), &memory));
    cf_event *events = memory;
    cfx_status status = cf_parts_notable(group, how, nparts, parts, replicas);
    int32_t k = 0, end = 0;
    while (k < nparts && status == CFX_OK) {
        status = cf_parts_room(group, payload, slices_of, k, nparts, parts, &end);
        for (; k < end && status == CFX_OK; k++) {
            const int32_t slices = slices_of(group, &parts[k]);
            for (int32_t s = 0; s < slices && status == CFX_OK; s++)
                status = enqueue_slice(group, how, &parts[k], s, slices, &events[k * replicas + s]);
        }
    }
    cf_parts_done(group);
    /* Orders are noted after all is enqueued, so parts of one buffer do not wait for each other; and also where an
     * interrupt came between, of what was enqueued before. */
    for (k = 0; k < end; k++)
        for (int32_t r = 0; r < replicas; r++) cf_part_note(how, &parts[k], r, replicas, &events[k * replicas]);
    free(memory);
    return status;
}

const cf_way cf_way_local = {.name = "local", .combine = combine};
