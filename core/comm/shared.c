/* shared.c: see shared.h. */
#include "comm/shared.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/carry.h"
#include "comm/shares.h"
#include "comm/world.h"
#include "device/scratch.h"

/* Parts whose data are all there are published so many at once, before the first is joined; less than the slots. */
enum { AHEAD = CF_WORLD_SLOTS / 2 };

/* A part of so many bytes travels in its notice. */
static size_t small_bytes(const cf_group *group) { return group->size <= CF_SMALL_REPLICAS ? CF_SMALL_BYTES : 0; }

/* Elements of a slice are a multiple of it. */
enum { UNIT = 1024 };

/* One part, as the commands of a rank know it. */
typedef struct step {
    cf_world *world;
    const cf_timeline *timeline; /* of its queue */
    uint64_t number;             /* of the part, in the world */
    uint64_t call, check;
    int64_t n;
    int32_t dtype, op, root;
    int32_t replicas, replica; /* of this rank; a slice: which of them is its device's */
    bool is_small;
    struct {
        char *data;
        double weight; /* of CF_COMBINE_WEIGHTED */
    } own[];           /* [replicas] */
} step;

static size_t step_bytes(const cf_group *group) {
    return sizeof(step) + (size_t)group->size * sizeof *((step *)NULL)->own;
}

static cf_notice *notice_of(const step *s, int32_t rank) {
    return &s->world->control->peer[rank].notice[s->number % CF_WORLD_SLOTS];
}

static char *small_of(const step *s, int32_t rank, int32_t replica) {
    return s->world->control->peer[rank].small[s->number % CF_WORLD_SLOTS][replica];
}

static size_t bytes_of(const step *s) { return (size_t)(s->n * cf_dtype_size(s->dtype)); }

/* All parts of a world are published, and done, in one queue, in their order: cpu:0's, which every context has. */
static cf_queue *lead_of(const cf_world *world) { return cf_queue_at(world->context->open[0], CF_COMM); }

/* ---- publishing -------------------------------------------------------------------------------------- */

static cfx_status fail_broken(cf_world *world) { return cf_fail(CFX_EFAULT, "%s", cf_control_breach(world->control)); }

/* This rank's queue was poisoned before the command: the others hear why, for they would wait for it. */
static cfx_status tell_fault(const step *s) {
    cf_world *world = s->world;
    const int32_t rank = world->meeting.rank;
    const cf_fault *fault = cf_timeline_fault(s->timeline);
    char where[160] = "";
    if (fault && fault->line > 0) snprintf(where, sizeof where, " at %s:%d", fault->source, (int)fault->line);
    cf_control_break(world->control, rank, "rank %d of %d (pid %d) failed%s: %s", (int)rank, (int)world->meeting.size,
                     (int)world->control->peer[rank].pid, where, fault ? fault->message : "its work was skipped");
    return CFX_OK;
}

static cfx_status run_publish(cf_worker *worker, void *payload, bool poisoned) {
    step *s = payload;
    cf_world *world = s->world;
    const int32_t rank = world->meeting.rank;
    (void)worker;
    if (poisoned) return tell_fault(s);
    if (cf_control_breach(world->control)) return fail_broken(world);
    cf_notice *notice = notice_of(s, rank);
    notice->call = s->call;
    notice->check = s->check;
    notice->replicas = s->replicas;
    for (int32_t r = 0; r < s->replicas; r++) {
        notice->weight[r] = s->own[r].weight;
        if (s->is_small) memcpy(small_of(s, rank, r), s->own[r].data, bytes_of(s));
        else notice->offset[r] = s->own[r].data - world->arena[rank];
    }
    cf_control_publish(world->control, rank);
    return CFX_OK;
}

/* ---- joining ----------------------------------------------------------------------------------------- */

/* Whether all ranks have published the same; else the world breaks, with both sides. */
static bool agree(const step *s) {
    cf_world *world = s->world;
    const int32_t own = world->meeting.rank;
    for (int32_t r = 0; r < world->meeting.size; r++) {
        const cf_notice *notice = notice_of(s, r);
        if (notice->check == s->check && notice->replicas > 0 && notice->replicas <= CF_MAX_DEVICES) continue;
        const int32_t first = r < own ? r : own, second = r < own ? own : r; /* in the same words in all ranks */
        char a[256], b[256];
        const uint64_t calls[] = {notice_of(s, first)->call, notice_of(s, second)->call};
        cf_world_describe(world->control, first, calls[0], a, sizeof a);
        cf_world_describe(world->control, second, calls[1], b, sizeof b);
        cf_control_break(world->control, -1,
                         "ranks disagree: collective %llu of rank %d is %s, and collective %llu of rank %d is %s",
                         (unsigned long long)calls[0], (int)first, a, (unsigned long long)calls[1], (int)second, b);
        return false;
    }
    return true;
}

/* Where all replicas of all ranks are; *first: this rank's first of them.  False: a rank told of memory that it has not. */
static bool gather_views(const step *s, cf_call *call, int32_t *first) {
    cf_world *world = s->world;
    int32_t members = 0;
    for (int32_t r = 0; r < world->meeting.size; r++) {
        const cf_notice *notice = notice_of(s, r);
        if (r == world->meeting.rank) *first = members;
        for (int32_t k = 0; k < notice->replicas; k++, members++) {
            if (members == CF_MAX_DEVICES) return false;
            char *data = small_of(s, r, k);
            if (!s->is_small) {
                const int64_t at = notice->offset[k];
                if (at < 0 || (uint64_t)at > world->bytes[r] || bytes_of(s) > world->bytes[r] - (uint64_t)at)
                    return false;
                data = world->arena[r] + at;
            }
            call->v[members] = (cf_view){.data = data, .dtype = s->dtype, .ndim = 1, .shape = {s->n}, .stride = {1}};
        }
    }
    call->nout = (uint8_t)members;
    return members > 0;
}

static void narrow(cf_call *call, int64_t from, int64_t n) {
    for (int k = 0; k < call->nout; k++) {
        call->v[k].data = (char *)call->v[k].data + from * cf_dtype_size(call->dtype);
        call->v[k].shape[0] = n;
    }
}

typedef union join_call {
    cf_call call;
    char room[sizeof(cf_call) + CF_MAX_DEVICES * (sizeof(cf_view) + sizeof(double)) + sizeof(cf_combine_params)];
} join_call;

/* The mean of equal weights is the plain one, to the bit. */
static cfx_status fill_params(const step *s, join_call *c) {
    cf_combine_params *params = cf_call_params(&c->call);
    double weights[CF_MAX_DEVICES];
    int32_t n = 0;
    *params = (cf_combine_params){.op = s->op, .root = s->root};
    if (s->op != CF_COMBINE_WEIGHTED) return CFX_OK;
    for (int32_t r = 0; r < s->world->meeting.size; r++)
        for (int32_t k = 0; k < notice_of(s, r)->replicas; k++) weights[n++] = notice_of(s, r)->weight[k];
    const cf_shares kind = cf_shares_of(n, weights, params->weight);
    if (kind == CF_SHARES_EVEN) params->op = CF_COMBINE_AVG;
    return kind == CF_SHARES_NONE ? cf_fail(CFX_EARG, "all weights are 0: there is nothing to average") : CFX_OK;
}

/* The whole of a small part, for this rank's replicas, in memory of its own: all ranks do so at once. */
static cfx_status join_small(cf_worker *worker, step *s, join_call *c, int32_t first) {
    char *own = cf_worker_scratch(worker, (size_t)c->call.nout * CF_SMALL_BYTES);
    if (!own) return cf_fail(CFX_EMEMORY, "out of host memory: %d small parts", c->call.nout);
    for (int32_t k = 0; k < c->call.nout; k++) {
        char *copy = own + (size_t)k * CF_SMALL_BYTES;
        c->call.v[k].data = memcpy(copy, c->call.v[k].data, bytes_of(s));
    }
    CF_TRY(worker->backend->kernels[CF_OP_combine](worker, &c->call));
    for (int32_t r = 0; r < s->replicas; r++)
        if (cf_combine_writes((cf_combine)s->op, s->root, first + r))
            memcpy(s->own[r].data, c->call.v[first + r].data, bytes_of(s));
    return CFX_OK;
}

static cfx_status join_slice(cf_worker *worker, const step *s, join_call *c, int32_t first) {
    const int64_t units = (s->n + UNIT - 1) / UNIT, members = c->call.nout, at = first + s->replica;
    assert(members > 0);
    const int64_t from = units * at / members * UNIT, to = units * (at + 1) / members * UNIT;
    if (from >= s->n || from == to) return CFX_OK;
    narrow(&c->call, from, (to < s->n ? to : s->n) - from);
    /* Either this sees that the world is broken, or those who know it see the writer, and wait for it. */
    _Atomic int32_t *writers = &s->world->control->peer[s->world->meeting.rank].writers;
    atomic_fetch_add(writers, 1);
    const cfx_status status = cf_control_breach(s->world->control)
                                  ? fail_broken(s->world)
                                  : worker->backend->kernels[CF_OP_combine](worker, &c->call);
    atomic_fetch_sub(writers, 1);
    return status;
}

/* All ranks have published, or the world is broken. */
static cfx_status join(cf_worker *worker, step *s) {
    cf_world *world = s->world;
    join_call c;
    int32_t first = 0;
    if (cf_counted(&world->control->ready) < s->number) return fail_broken(world);
    if (!agree(s)) return fail_broken(world);
    c.call = (cf_call){.op = CF_OP_combine, .dtype = (uint8_t)s->dtype, .threads = (uint16_t)worker->threads};
    if (!gather_views(s, &c.call, &first)) {
        cf_control_break(world->control, -1, "the ranks have more than %d devices, or memory that is not theirs",
                         CF_MAX_DEVICES);
        return fail_broken(world);
    }
    CF_TRY(fill_params(s, &c));
    if (s->is_small) return s->replica == 0 ? join_small(worker, s, &c, first) : CFX_OK;
    return join_slice(worker, s, &c, first);
}

static cfx_status run_join(cf_worker *worker, void *payload, bool poisoned) {
    step *s = payload;
    if (poisoned) return tell_fault(s);
    const cfx_status status = join(worker, s);
    if (status != CFX_OK)
        cf_control_break(s->world->control, s->world->meeting.rank,
                         "rank %d of %d failed in its part of a collective: %s", (int)s->world->meeting.rank,
                         (int)s->world->meeting.size, cfx_error());
    return status;
}

/* Behind the slices of all devices of this rank. */
static cfx_status run_finish(cf_worker *worker, void *payload, bool poisoned) {
    const step *s = payload;
    (void)worker;
    if (poisoned) return tell_fault(s);
    cf_control_finish(s->world->control, s->world->meeting.rank);
    return CFX_OK;
}

/* Behind the slices of all ranks: what was broken before their end is void. */
static cfx_status run_done(cf_worker *worker, void *payload, bool poisoned) {
    const step *s = payload;
    (void)worker;
    if (cf_counted(&s->world->control->done) >= s->number) return CFX_OK;
    cf_world_outlast_writers(s->world); /* behind this command the memory may be another tensor's */
    return poisoned ? CFX_OK : fail_broken(s->world);
}

/* ---- records ----------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value) {
    hash = (hash ^ value) * UINT64_C(0x9e3779b97f4a7c15);
    return hash ^ hash >> 29;
}

static uint64_t check_of(bool is_small, const cf_collective *how, uint64_t call, int32_t nparts, int32_t k,
                         const cf_part *part) {
    const uint64_t all[] = {call,        (uint64_t)how->op, (uint64_t)(int64_t)how->root, (uint64_t)nparts,
                            (uint64_t)k, (uint64_t)part->n, (uint64_t)part->dtype,        is_small};
    uint64_t hash = 1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) hash = mix(hash, all[i]);
    return hash;
}

static uint64_t record(cf_world *world, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    cf_record call = {
        .n = parts[0].n, .op = (int32_t)how->op, .root = how->root, .dtype = parts[0].dtype, .nparts = nparts};
    for (int32_t k = 0; k < nparts && nparts > 1; k++)
        call.n = (k ? call.n : 0) + parts[k].n * cf_dtype_size(parts[k].dtype);
    return cf_world_record(world, &call);
}

static const char *function_of(const cf_collective *how) {
    return how->op == CF_COMBINE_COPY ? "synchronize" : how->root >= 0 ? "reduce" : "allreduce";
}

/* ---- commands ---------------------------------------------------------------------------------------- */

/* A call that is being enqueued. */
typedef struct work {
    cf_group *group;
    cf_world *world;
    const cf_collective *how;
    const cf_part *parts;
    int32_t nparts;
    uint64_t call, first; /* first: the number of its first part */
    cf_event *joined;     /* [group->size]: of the part under way */
    cf_event *done;       /* [nparts] */
} work;

static cf_queue *lead(const work *w) { return lead_of(w->world); }

static void fill_step(const work *w, int32_t k, int32_t replica, step *s) {
    const cf_part *part = &w->parts[k];
    *s = (step){.world = w->world,
                .number = w->first + (uint64_t)k,
                .call = w->call,
                .check = check_of(part->n * cf_dtype_size(part->dtype) <= (int64_t)small_bytes(w->group), w->how,
                                  w->call, w->nparts, k, part),
                .n = part->n,
                .dtype = part->dtype,
                .op = (int32_t)w->how->op,
                .root = w->how->root,
                .replicas = w->group->size,
                .replica = replica};
    s->is_small = bytes_of(s) <= small_bytes(w->group);
    for (int32_t r = 0; r < w->group->size; r++) {
        s->own[r].data = cf_part_data(part, r);
        s->own[r].weight = w->how->weights ? w->how->weights[r] : 1;
    }
}

static cfx_status enqueue(const work *w, cf_dispatch *d, int32_t k, int32_t replica, cf_event *out) {
    void *payload;
    CF_TRY(cf_dispatch_reserve(d, step_bytes(w->group), &payload));
    fill_step(w, k, replica, payload);
    ((step *)payload)->timeline = &d->queue->timeline;
    *out = cf_dispatch_end(d);
    return CFX_OK;
}

static uint64_t number_of(const work *w, int32_t k) { return w->first + (uint64_t)k; }

/* Its slot is free once the part that had it is done. */
static cfx_status enqueue_publish(const work *w, int32_t k) {
    cf_dispatch d;
    cf_event unnoted;
    cf_dispatch_begin(&d, lead(w), run_publish, function_of(w->how), CF_ALWAYS, NULL);
    for (int32_t r = 0; r < w->group->size; r++) CF_TRY(cf_part_add(&d, &w->parts[k], r, true, true));
    const uint64_t number = number_of(w, k);
    if (number > CF_WORLD_SLOTS)
        cf_waits_event(&d.waits, (cf_event){&w->world->done, number - CF_WORLD_SLOTS}, CF_ORDER);
    return enqueue(w, &d, k, 0, &unnoted);
}

/* It comes behind the publishing of all ranks, which came behind all that it reads or writes. */
static cfx_status enqueue_join(const work *w, int32_t k) {
    cf_dispatch d;
    cf_event unnoted;
    for (int32_t r = 0; r < w->group->size; r++) {
        cf_dispatch_begin(&d, cf_queue_at(w->group->devices[r], CF_COMM), run_join, function_of(w->how), CF_ALWAYS,
                          NULL);
        cf_waits_event(&d.waits, (cf_event){&w->world->ready, number_of(w, k)}, CF_ORDER);
        CF_TRY(enqueue(w, &d, k, r, &w->joined[r]));
    }
    cf_dispatch_begin(&d, lead(w), run_finish, function_of(w->how), CF_ALWAYS, NULL);
    for (int32_t r = 0; r < w->group->size; r++) cf_dispatch_after(&d, w->joined[r]);
    return enqueue(w, &d, k, 0, &unnoted);
}

static cfx_status enqueue_done(const work *w, int32_t k) {
    cf_dispatch d;
    cf_dispatch_begin(&d, lead(w), run_done, function_of(w->how), CF_ALWAYS, NULL);
    cf_waits_event(&d.waits, (cf_event){&w->world->done, number_of(w, k)}, CF_ORDER);
    return enqueue(w, &d, k, 0, &w->done[k]);
}

/* Makes sure of room for the commands of a stretch of parts, which are then enqueued without a wait.  From then on
 * interrupts wait until the caller of the group resumes them. */
static cfx_status room_for(const work *w, int32_t nparts) {
    const cfx_context *context = w->world->context;
    const size_t commands = 3 + (size_t)w->group->size; /* on the lead queue, where all replicas are its device's */
    const size_t each =
        commands * cf_queue_bytes(context->nopen * CF_QUEUES + 2, step_bytes(w->group)) * (size_t)nparts;
    CF_TRY(cf_queue_room(lead(w), each));
    for (int32_t r = 0; r < w->group->size; r++)
        CF_TRY(cf_queue_room(cf_queue_at(w->group->devices[r], CF_COMM), each));
    cf_interrupts_hold(&w->world->context->hub);
    return CFX_OK;
}

/* The parts of one backward come one after another, and each is joined while the next is made; parts that are all there
 * are published before the first of them is joined, so that no rank waits for another between two of them. */
static cfx_status enqueue_all(work *w) {
    for (int32_t k = 0; k < w->nparts;) {
        int32_t end = k + 1;
        while (end < w->nparts && end - k < AHEAD && w->parts[k].bucket < 0 && w->parts[end].bucket < 0) end++;
        CF_TRY(room_for(w, end - k));
        for (int32_t i = k; i < end; i++) CF_TRY(enqueue_publish(w, i));
        for (int32_t i = k; i < end; i++) CF_TRY(enqueue_join(w, i));
        for (int32_t i = k; i < end; i++) CF_TRY(enqueue_done(w, i));
        k = end;
    }
    return CFX_OK;
}

static cfx_status enqueue_call(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    cf_world *world = cf_world_of(cf_context_of(group->devices[0]));
    const cf_collective noted = {.op = CF_COMBINE_SUM,
                                 .root = -1}; /* each replica, for the root is a place in all ranks */
    void *memory;
    CF_TRY(cf_alloc_zero((size_t)nparts + (size_t)group->size, sizeof(cf_event), &memory));
    work w = {.group = group, .world = world, .how = how, .parts = parts, .nparts = nparts, .joined = memory};
    w.done = w.joined + group->size;
    cfx_status status = cf_parts_notable(group, &noted, nparts, parts, 1);
    if (status == CFX_OK) {
        w.call = record(world, how, nparts, parts);
        w.first = world->parts + 1;
        status = enqueue_all(&w);
        world->parts += (uint64_t)nparts;
        if (status != CFX_OK) /* the others would wait for the rest of it */
            cf_control_break(world->control, world->meeting.rank, "rank %d of %d: %s", (int)world->meeting.rank,
                             (int)world->meeting.size, cfx_error());
        if (status != CFX_OK) cf_world_outlast_writers(world);
        lead(&w)->promised = 0;
        cf_parts_done(group);
        for (int32_t k = 0; k < nparts; k++)
            for (int32_t r = 0; r < group->size; r++) cf_part_note(&noted, &parts[k], r, 1, &w.done[k]);
    }
    free(memory);
    return status;
}

/* ---- the call ---------------------------------------------------------------------------------------- */

static cfx_status combine(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    cfx_context *context = cf_context_of(group->devices[0]);
    const char *breach = cf_control_breach(cf_world_of(context)->control);
    cf_carried c;
    if (breach) return cf_fail(CFX_ESTATE, "the world is broken: %s", breach);
    if (cf_are_reachable(group, nparts, parts, (int64_t)small_bytes(group)))
        return enqueue_call(group, how, nparts, parts);
    CF_TRY(cf_carry(group, nparts, parts, (int64_t)small_bytes(group), &c));
    cfx_status status = cf_group_open(&cf_way_shared, group->size, c.devices, &group);
    if (status == CFX_OK) status = enqueue_call(group, how, nparts, c.parts);
    if (status == CFX_OK && cf_carry_back(&c) != CFX_OK) { /* once it has run, nobody may make the call again */
        cf_world *world = cf_world_of(context);
        status = cf_fail(CFX_EFAULT, "%s", cfx_error());
        cf_control_break(world->control, world->meeting.rank, "rank %d of %d: %s", (int)world->meeting.rank,
                         (int)world->meeting.size, cfx_error());
    }
    cf_carried_free(&c);
    return status;
}

const cf_way cf_way_shared = {.name = "shared", .by_layout = true, .combine = combine};
