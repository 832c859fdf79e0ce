/* remote.c: replicas on devices that do not reach each other's memory, by their backend's collectives.
 *
 * Every replica of a part is one command on its device's communication queue.  It is launched when the stretch is there
 * in every replica, though its own would do: so a fault in one is known to all.  It is launched in a poisoned queue,
 * too, because the others could not finish without it.  Its own end is all that the next user of the replica waits for.
 */
#include <stdlib.h>

#include "comm/comm.h"

typedef struct join_command {
    void *group;
    int32_t rank;
    cf_join join;
} join_command;

static cfx_status run_join(cf_worker *worker, void *payload, bool poisoned) {
    const join_command *c = payload;
    (void)poisoned;
    return worker->backend->collectives->join(worker, c->group, c->rank, &c->join);
}

static cfx_status group_of(int32_t n, cfx_device *const *devices, void **out) {
    void *states[CF_MAX_DEVICES];
    for (int32_t r = 0; r < n; r++) states[r] = devices[r]->state;
    return devices[0]->backend->collectives->group(n, states, out);
}

/* Reserves all before it commits the first, so that no participant is left to wait for one that does not come. */
static cfx_status enqueue_all(const char *op, int32_t n, cfx_device *const *devices, const cf_waits *waits,
                              const join_command *commands, cf_event *events) {
    void *payload[CF_MAX_DEVICES];
    for (int32_t r = 0; r < n; r++) {
        CF_TRY(cf_queue_reserve(cf_queue_at(devices[r], CF_COMM), run_join, op, CF_ALWAYS | CF_JOINS, waits[r].items,
                                waits[r].n, sizeof *commands, &payload[r]));
        *(join_command *)payload[r] = commands[r];
    }
    for (int32_t r = 0; r < n; r++) events[r] = cf_queue_commit(cf_queue_at(devices[r], CF_COMM));
    return CFX_OK;
}

/* What a collective of n participants is put together in. */
typedef struct work {
    void *group;
    cf_join like;
    int32_t n;
    cfx_device **devices;   /* [n] */
    cf_waits *waits;        /* [n] */
    join_command *commands; /* [n] */
    cf_event *events;       /* [nparts][n] */
} work;

static cfx_status work_new(int32_t n, int32_t nparts, const cf_join *like, work **out) {
    const size_t bytes =
        sizeof(cf_waits) + sizeof(join_command) + sizeof(cfx_device *) + (size_t)nparts * sizeof(cf_event);
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(work) + (size_t)n * bytes, &memory));
    work *w = *out = memory;
    w->like = *like;
    w->n = n;
    w->waits = (cf_waits *)(w + 1);
    w->commands = (join_command *)(w->waits + n);
    w->events = (cf_event *)(w->commands + n);
    w->devices = (cfx_device **)(w->events + (size_t)nparts * (size_t)n);
    return CFX_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static cfx_status enqueue_part(work *w, const cf_part *part, cf_event *events) {
    const cf_combine op = (cf_combine)w->like.op;
    const int32_t root = w->like.root;
    for (int32_t r = 0; r < w->n; r++) {
        w->waits[r].own = &cf_queue_at(w->devices[r], CF_COMM)->timeline;
        w->waits[r].n = 0;
        for (int32_t s = 0; s < w->n; s++)
            CF_TRY(cf_part_waits(&w->waits[r], part, s, cf_combine_reads(op, root, s),
                                 s == r && cf_combine_writes(op, root, s)));
        w->commands[r] = (join_command){w->group, r, w->like};
        w->commands[r].join.dtype = part->dtype;
        w->commands[r].join.n = part->n;
        w->commands[r].join.in = w->commands[r].join.out = cf_part_buffer(part, r)->data + part->offset[r];
    }
    return enqueue_all("allreduce", w->n, w->devices, w->waits, w->commands, events);
}

static void note(const work *w, const cf_part *part, const cf_event *events) {
    for (int32_t r = 0; r < w->n; r++) {
        cf_buffer *buffer = cf_part_buffer(part, r);
        const bool writes = cf_combine_writes(w->like.op, w->like.root, r);
        cf_uses_note(writes ? &buffer->writes : &buffer->reads, events[r]);
        if (!writes) continue;
        cf_uses_note(&buffer->made, events[r]);
        cf_part_written(part, r);
    }
}

static int32_t one_each(const cf_part *part, int32_t replicas) {
    (void)part;
    return replicas;
}

cfx_status cf_remote_combine(cf_combine op, double scale, int32_t root, int32_t replicas, int32_t nparts,
                             const cf_part *parts) {
    const cf_join like = {.kind = CF_JOIN_REDUCE, .op = op, .root = root, .scale = scale};
    work *w;
    if (nparts == 0) return CFX_OK;
    CF_TRY(work_new(replicas, nparts, &like, &w));
    for (int32_t r = 0; r < replicas; r++) w->devices[r] = cf_part_device(&parts[0], r);
    cfx_status status = group_of(replicas, w->devices, &w->group);
    if (status == CFX_OK) status = cf_parts_notable(op, root, replicas, nparts, parts, 1);
    int32_t k = 0, end = 0;
    while (k < nparts && status == CFX_OK) {
        status = cf_parts_room(replicas, sizeof(join_command), one_each, k, nparts, parts, &end);
        for (; k < end && status == CFX_OK; k++) status = enqueue_part(w, &parts[k], &w->events[k * replicas]);
    }
    cf_parts_done(replicas, parts);
    /* noted after all is enqueued, as in local.c */
    for (k = 0; k < end; k++) note(w, &parts[k], &w->events[k * replicas]);
    free(w);
    return status;
}

static cfx_status combine(cf_combine op, const double *weights, int32_t root, int32_t replicas, int32_t nparts,
                          const cf_part *parts) {
    (void)weights;
    return cf_remote_combine(op, 1, root, replicas, nparts, parts);
}

const cf_group cf_group_remote = {"remote", combine};

/* ---- gather and scatter ----------------------------------------------------------------------------- */

static cfx_status join_apart(const char *name, const cf_join *like, int32_t n, const cfx_tensor *const *in,
                             cfx_tensor *const *out) {
    work *w;
    CF_TRY(work_new(n, 1, like, &w));
    for (int32_t r = 0; r < n; r++) w->devices[r] = cf_device(in[r]);
    cfx_status status = group_of(n, w->devices, &w->group);
    for (int32_t r = 0; r < n && status == CFX_OK; r++) {
        w->waits[r].own = &cf_queue_at(w->devices[r], CF_COMM)->timeline;
        for (int32_t s = 0; s < n && status == CFX_OK; s++) status = cf_wait_to_read(&w->waits[r], in[s]);
        if (status == CFX_OK) status = cf_wait_to_write(&w->waits[r], out[r]);
        w->commands[r] = (join_command){w->group, r, *like};
        w->commands[r].join.in = cf_data(in[r]);
        w->commands[r].join.out = cf_data(out[r]);
    }
    if (status == CFX_OK) status = enqueue_all(name, n, w->devices, w->waits, w->commands, w->events);
    for (int32_t r = 0; r < n && status == CFX_OK; r++) {
        cf_did_read(in[r], w->events[r]);
        cf_did_write(out[r], w->events[r], CF_MAKE);
    }
    free(w);
    return status;
}

cfx_status cf_remote_gather(int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out) {
    const cf_join like = {.kind = CF_JOIN_GATHER, .root = -1, .dtype = in[0]->_dtype, .n = cf_numel(in[0]), .scale = 1};
    return join_apart("allgather", &like, replicas, in, out);
}

cfx_status cf_remote_scatter(cf_combine op, int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out) {
    const cf_join like = {
        .kind = CF_JOIN_SCATTER, .op = op, .root = -1, .dtype = in[0]->_dtype, .n = cf_numel(out[0]), .scale = 1};
    return join_apart("reducescatter", &like, replicas, in, out);
}
