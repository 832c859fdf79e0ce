/* member.c: joining a world, and leaving it: the public functions of world.h. */
#include <math.h>
#include <stdlib.h>

#include "base/options.h"
#include "base/status.h"
#include "comm/bootstrap.h"
#include "comm/shrink.h"
#include "comm/watch.h"

/* ---- bells ------------------------------------------------------------------------------------------- */

typedef struct move_command {
    cf_hub *hub;
    cf_sleeper *worker;
    cf_bell *bell;
} move_command;

static cfx_status run_move(cf_worker *worker, void *payload, bool poisoned) {
    const move_command *c = payload;
    (void)worker;
    (void)poisoned;
    cf_hub_move(c->hub, c->worker, c->bell);
    return CFX_OK;
}

/* The workers of the CPU's devices sleep from here on where other ranks can wake them, or at home again.  Workers that
 * launch never wait for a rank. */
static cfx_status move_workers(cf_world *world, bool home) {
    cfx_context *context = world->context;
    cf_peer *peer = &world->control->peer[world->meeting.rank];
    int32_t n = 0;
    for (int32_t d = 0; d < context->nopen && n < CF_MAX_DEVICES; d++) {
        cfx_device *device = context->open[d];
        void *payload;
        if (!device->backend->host_memory) continue;
        CF_TRY(cf_queue_reserve(cf_queue_at(device, CF_COMM), run_move, "join", CF_ALWAYS, NULL, 0,
                                sizeof(move_command), &payload));
        *(move_command *)payload = (move_command){&context->hub, &device->inbox.worker, home ? NULL : &peer->bell[n]};
        n++;
        if (!home) atomic_store(&peer->nbells, n); /* before its worker sleeps there */
        cf_event_settle(cf_queue_commit(cf_queue_at(device, CF_COMM)));
    }
    return CFX_OK;
}

/* ---- joining and leaving ----------------------------------------------------------------------------- */

typedef struct member {
    cf_world world; /* first: the context's dependent begins it */
    cf_watcher *watcher;
} member;

static cfx_status read_options(const cfx_world_options *given, cfx_world_options *out) {
    static const cf_field last[] = {CF_FIELD(cfx_world_options, size), CF_FIELD(cfx_world_options, timeout)};
    enum { DEFAULT_S = 600 };
    *out = (cfx_world_options){.size = sizeof *out};
    if (given) CF_TRY(cf_options_read("world: options", given, last, sizeof last / sizeof *last, out, sizeof *out));
    if (!(out->timeout >= 0))
        return cf_fail(CFX_EARG, "world: timeout: expected 0 or more seconds, got %g", out->timeout);
    if (out->timeout == 0) out->timeout = DEFAULT_S;
    if (isinf(out->timeout)) out->timeout = 0;
    return CFX_OK;
}

/* This rank's place in the world is as bootstrap or shrink has made it. */
static cfx_status begin(member *self) {
    cf_world *world = &self->world;
    cf_hub *hub = &world->context->hub;
    world->parts = 0;
    world->ready = (cf_timeline){.hub = hub, .progress = &world->control->ready};
    world->done = (cf_timeline){.hub = hub, .progress = &world->control->done};
    CF_TRY(cf_watcher_start(world, &self->watcher));
    const cfx_status status = move_workers(world, false);
    if (status == CFX_OK) return CFX_OK;
    cf_watcher_stop(self->watcher);
    return status;
}

/* Work that others wait for is done first; a rank that does not come is the watcher's business. */
static void end(member *self) {
    cfx_context *context = self->world.context;
    cf_world *world = &self->world;
    for (int32_t i = 0; i < context->nopen; i++) {
        const cf_event last = cf_queue_last(cf_queue_at(context->open[i], CF_COMM));
        if (cf_event_wait(last) == CFX_OK) continue;
        cf_control_break(world->control, world->meeting.rank, "rank %d of %d was interrupted with work under way",
                         (int)world->meeting.rank, (int)world->meeting.size);
        cf_event_settle(last);
    }
    (void)move_workers(&self->world, true); /* the queues are empty, so there is room */
    cf_watcher_stop(self->watcher);
    self->watcher = NULL;
}

static void leave(cf_dependent *dependent) {
    member *self = (member *)dependent;
    cf_world *world = &self->world;
    if (world->control && cf_is_forked(&world->context->hub)) { /* the parent stays in the world */
        cf_watcher_stop(self->watcher);
        cf_world_unmap(world);
    } else if (world->control) {
        end(self);
        atomic_store(&world->control->peer[world->meeting.rank].state, CF_RANK_LEFT);
        cf_world_unmap(world);
        cf_bootstrap_release();
    }
    cf_depend_no_more(&world->dependent);
    free(self);
}

static cfx_status enter(member *self) {
    cf_world *world = &self->world;
    if (world->meeting.size == 1) return CFX_OK;
    CF_TRY(cf_bootstrap_meet(world));
    const cfx_status status = begin(self);
    if (status == CFX_OK) return CFX_OK;
    cf_control_break(world->control, world->meeting.rank, "rank %d of %d could not join: %s", (int)world->meeting.rank,
                     (int)world->meeting.size, cfx_error());
    cf_world_unmap(world);
    cf_bootstrap_release();
    return status;
}

CFX_API cfx_status cfx_world_join(cfx_context *context, const cfx_world_options *given) {
    cfx_world_options options;
    void *memory;
    CF_TRY(read_options(given, &options));
    if (cf_world_of(context)) return cf_fail(CFX_ESTATE, "world: this context is in one already");
    CF_TRY(cfx_sync(context, NULL));
    CF_TRY(cf_alloc_zero(1, sizeof(member), &memory));
    member *self = memory;
    cf_world *world = &self->world;
    world->context = context;
    world->timeout = options.timeout;
    cfx_status status = cf_bootstrap_find(&world->meeting);
    if (status == CFX_OK) status = enter(self);
    if (status != CFX_OK) {
        free(self);
        return status;
    }
    cf_depend(&context->worlds, &world->dependent, leave);
    return CFX_OK;
}

CFX_API cfx_status cfx_world_leave(cfx_context *context) {
    cf_world *world = cf_world_of(context);
    if (!world) return cf_fail(CFX_ESTATE, "world: this context is in none");
    const cfx_status status = cfx_sync(context, NULL);
    if (status != CFX_EINTERRUPT) leave(&world->dependent); /* a broken world is left, too */
    return status;
}

CFX_API cfx_status cfx_world_shrink(cfx_context *context) {
    member *self = (member *)cf_world_of(context);
    if (!self) return cf_fail(CFX_ESTATE, "world: this context is in none");
    cf_world *world = &self->world;
    if (!world->control) return CFX_OK; /* alone */
    if (!cf_control_breach(world->control))
        return cf_fail(CFX_ESTATE, "world: all its ranks are there: nothing is to be left out");
    if (cf_is_forked(&context->hub)) return cf_interrupted(&context->hub);
    for (int32_t k = 0; k <= context->nopen * CF_QUEUES; k++) { /* each raises why one queue, or more, broke */
        const cfx_status synced = cfx_sync(context, NULL);
        if (synced == CFX_EINTERRUPT) return synced;
        if (synced == CFX_OK) break;
    }
    end(self);
    cfx_status status = cf_shrink(world);
    if (status == CFX_OK) status = begin(self);
    if (status != CFX_OK) leave(&world->dependent);
    return status;
}

CFX_API void cfx_world(const cfx_context *context, cfx_world_info *out) {
    const cf_world *world = cf_world_of(context);
    *out = (cfx_world_info){.size = world ? world->meeting.size : 0, .rank = world ? world->meeting.rank : 0};
    out->local_size = out->size;
    out->local_rank = out->rank;
}

CFX_API void cfx_world_scope(cfx_context *context, int32_t is_local) {
    cf_world *world = cf_world_of(context);
    if (world) world->is_local = is_local != 0;
}

CFX_API void cfx_world_fail(cfx_context *context, const char *why) {
    cf_world *world = cf_world_of(context);
    if (!world || !world->control || cf_is_forked(&context->hub)) return;
    cf_control_break(world->control, world->meeting.rank, "rank %d of %d (pid %d): %s", (int)world->meeting.rank,
                     (int)world->meeting.size, (int)world->control->peer[world->meeting.rank].pid, why);
}
