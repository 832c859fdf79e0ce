/* remote.c: one command a member, which the link carries out.  See remote.h. */
#include "comm/remote.h"

#include <stdlib.h>

typedef struct join_command {
    const cf_link *link;
    void *state;
    int32_t rank;
    cf_join join;
} join_command;

/* The others would wait for a member that could not start. */
static cfx_status run_join(cf_worker *worker, void *payload, bool poisoned) {
    const join_command *c = payload;
    (void)poisoned;
    const cfx_status status = c->link->start(worker, c->state, c->rank, &c->join);
    return status == CFX_OK ? CFX_OK : c->link->abort(worker, c->state, c->rank, cfx_error());
}

/* A collective that is being put together. */
typedef struct work {
    cf_group *group;
    cf_join like;
    cf_dispatch *dispatches; /* [size] */
    cf_touch *touches;       /* [size][2] */
    join_command *commands;  /* [size] */
    cf_event *events;        /* [nparts][size] */
} work;

static cfx_status work_new(cf_group *group, int32_t nparts, const cf_join *like, work **out) {
    const size_t n = (size_t)group->size;
    const size_t bytes =
        sizeof(cf_dispatch) + 2 * sizeof(cf_touch) + sizeof(join_command) + (size_t)nparts * sizeof(cf_event);
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(work) + n * bytes, &memory));
    work *w = *out = memory;
    w->group = group;
    w->like = *like;
    w->dispatches = (cf_dispatch *)(w + 1);
    w->touches = (cf_touch *)(w->dispatches + n);
    w->commands = (join_command *)(w->touches + 2 * n);
    w->events = (cf_event *)(w->commands + n);
    return CFX_OK;
}

/* Member r's command, which has nothing to wait for yet. */
static join_command *begin(work *w, const char *op, int32_t r, const void *in, void *out) {
    const cf_group *group = w->group;
    cf_dispatch_begin(&w->dispatches[r], cf_queue_at(group->devices[r], CF_COMM), run_join, op, CF_ALWAYS | CF_JOINS,
                      &w->touches[2 * r]);
    w->commands[r] = (join_command){group->link, group->state, group->rank + r, w->like};
    w->commands[r].join.sequence = group->sequence + 1;
    w->commands[r].join.in = in;
    w->commands[r].join.out = out;
    return &w->commands[r];
}

/* Reserves all before it commits the first, so that no participant is left to wait for one that does not come. */
static cfx_status enqueue_all(work *w, cf_event *events) {
    cf_group *group = w->group;
    void *payload[CF_MAX_DEVICES];
    for (int32_t r = 0; r < group->size; r++) {
        CF_TRY(cf_dispatch_reserve(&w->dispatches[r], sizeof(join_command), &payload[r]));
        *(join_command *)payload[r] = w->commands[r];
    }
    for (int32_t r = 0; r < group->size; r++) events[r] = cf_dispatch_end(&w->dispatches[r]);
    group->sequence++;
    return CFX_OK;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

static cfx_status enqueue_part(work *w, const cf_part *part, cf_event *events) {
    const cf_combine op = (cf_combine)w->like.op;
    const int32_t root = w->like.root;
    for (int32_t r = 0; r < w->group->size; r++) {
        char *data = cf_part_data(part, r);
        join_command *command = begin(w, "allreduce", r, data, data);
        command->join.dtype = part->dtype;
        command->join.n = part->n;
        for (int32_t s = 0; s < w->group->size; s++)
            CF_TRY(cf_part_add(&w->dispatches[r], part, s, cf_combine_reads(op, root, s),
                               s == r && cf_combine_writes(op, root, s)));
    }
    return enqueue_all(w, events);
}

static cfx_status combine(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    const cf_join like = {.kind = CF_JOIN_REDUCE, .op = how->op, .root = how->root, .scale = how->scale};
    const int32_t n = group->size;
    work *w;
    if (nparts == 0) return CFX_OK;
    CF_TRY(work_new(group, nparts, &like, &w));
    cfx_status status = cf_parts_notable(group, how, nparts, parts, 1);
    int32_t k = 0, end = 0;
    while (k < nparts && status == CFX_OK) {
        status = cf_parts_room(group, sizeof(join_command), k, nparts, &end);
        for (; k < end && status == CFX_OK; k++) status = enqueue_part(w, &parts[k], &w->events[k * n]);
    }
    cf_parts_done(group);
    /* noted after all is enqueued, as in local.c */
    for (k = 0; k < end; k++)
        for (int32_t r = 0; r < n; r++) cf_part_note(how, &parts[k], r, 1, &w->events[k * n + r]);
    free(w);
    return status;
}

/* ---- gather and scatter ----------------------------------------------------------------------------- */

static cfx_status join_apart(const char *name, cf_group *group, const cf_join *like, const cfx_tensor *const *in,
                             cfx_tensor *const *out) {
    const int32_t n = group->size;
    work *w;
    CF_TRY(work_new(group, 1, like, &w));
    cfx_status status = CFX_OK;
    for (int32_t r = 0; r < n && status == CFX_OK; r++) {
        cf_dispatch *d = &w->dispatches[r];
        begin(w, name, r, cf_data(in[r]), cf_data(out[r]));
        for (int32_t s = 0; s < n && status == CFX_OK; s++)
            status = s == r ? cf_dispatch_view(d, in[s], CF_READ) : cf_dispatch_join(d, in[s], NULL, true, false);
        if (status == CFX_OK) status = cf_dispatch_view(d, out[r], CF_MAKE);
    }
    if (status == CFX_OK) status = enqueue_all(w, w->events);
    free(w);
    return status;
}

static cfx_status gather(cf_group *group, const cfx_tensor *const *in, cfx_tensor *const *out) {
    const cf_join like = {.kind = CF_JOIN_GATHER, .root = -1, .dtype = in[0]->_dtype, .n = cf_numel(in[0]), .scale = 1};
    return join_apart("allgather", group, &like, in, out);
}

static cfx_status scatter(cf_group *group, cf_combine op, const cfx_tensor *const *in, cfx_tensor *const *out) {
    const cf_join like = {
        .kind = CF_JOIN_SCATTER, .op = op, .root = -1, .dtype = in[0]->_dtype, .n = cf_numel(out[0]), .scale = 1};
    return join_apart("reducescatter", group, &like, in, out);
}

const cf_way cf_way_remote = {
    .name = "remote", .is_linked = true, .combine = combine, .gather = gather, .scatter = scatter};
