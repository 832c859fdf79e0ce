/* world.c: see world.h. */
#include "comm/world.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

void cf_world_unmap(cf_world *world) {
    const int32_t size = world->meeting.size;
    if (world->control && !world->is_in_arena) munmap(world->control, cf_control_bytes(size));
    world->control = NULL;
    for (int32_t r = 0; r < size && world->meeting.is_slurms; r++) {
        if (world->meeting.socket[r] >= 0) close(world->meeting.socket[r]);
        world->meeting.socket[r] = -1;
    }
    for (int32_t r = 0; r < size; r++) {
        if (r != world->meeting.rank && world->arena[r]) munmap(world->arena[r], world->bytes[r]);
        world->arena[r] = NULL;
    }
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

void cf_world_outlast_writers(const cf_world *world) {
    const double until = now() + world->timeout;
    for (int32_t r = 0; r < world->meeting.size; r++) {
        cf_peer *peer = &world->control->peer[r];
        if (r == world->meeting.rank || atomic_load(&peer->writers) == 0) continue;
        const int process = (int)syscall(SYS_pidfd_open, peer->pid, 0);
        struct pollfd ended = {.fd = process, .events = POLLIN};
        while (process >= 0 && atomic_load(&peer->writers) > 0 && poll(&ended, 1, 1) == 0)
            if (world->timeout > 0 && now() > until) syscall(SYS_pidfd_send_signal, process, SIGKILL, NULL, 0);
        if (process >= 0) close(process);
    }
}

/* ---- records ----------------------------------------------------------------------------------------- */

uint64_t cf_world_record(cf_world *world, const cf_record *like) {
    cf_peer *peer = &world->control->peer[world->meeting.rank];
    const uint64_t call = atomic_load_explicit(&peer->calls, memory_order_relaxed) + 1;
    cf_record *record = &peer->record[call % CF_WORLD_RECORDS];
    const cf_hub *hub = &world->context->hub;
    atomic_store_explicit(&record->call, 0, memory_order_seq_cst);
    record->at = now();
    record->n = like->n;
    record->op = like->op;
    record->root = like->root;
    record->dtype = like->dtype;
    record->nparts = like->nparts;
    record->line = hub->line;
    const size_t most = sizeof record->source - 1, length = strnlen(hub->source, most);
    memcpy(record->source, hub->source, length);
    record->source[length] = '\0';
    atomic_store_explicit(&record->call, call, memory_order_release);
    atomic_store_explicit(&peer->calls, call, memory_order_release);
    return call;
}

void cf_world_describe(cf_control *control, int32_t rank, uint64_t call, char *text, size_t bytes) {
    static const char *const names[] = {
        [CF_COMBINE_SUM] = "sum",          [CF_COMBINE_PROD] = "prod", [CF_COMBINE_MAX] = "max",
        [CF_COMBINE_MIN] = "min",          [CF_COMBINE_AVG] = "avg",   [CF_COMBINE_COPY] = "synchronize",
        [CF_COMBINE_WEIGHTED] = "weighted"};
    cf_record *record = &control->peer[rank].record[call % CF_WORLD_RECORDS];
    const cf_record r = *record;
    char root[32] = "", what[96], at[160] = "";
    if (call == 0 || r.call != call || atomic_load(&record->call) != call || r.op < 0 || r.op > CF_COMBINE_WEIGHTED) {
        snprintf(text, bytes, "one of long ago");
        return;
    }
    if (r.root >= 0) snprintf(root, sizeof root, " with root %d", (int)r.root);
    if (r.nparts == 1) snprintf(what, sizeof what, "%lld %s", (long long)r.n, cfx_dtype_name(r.dtype));
    else snprintf(what, sizeof what, "%d pieces, %lld bytes", (int)r.nparts, (long long)r.n);
    if (r.line > 0) snprintf(at, sizeof at, " at %.*s:%d", (int)sizeof r.source, r.source, (int)r.line);
    snprintf(text, bytes, "%s%s of %s%s", names[r.op], root, what, at);
}

int32_t cf_world_devices(const cfx_context *context) {
    const cf_world *world = cf_world_of(context);
    int32_t n = 0;
    for (int32_t r = 0; r < world->meeting.size; r++) n += world->control->peer[r].ndevices;
    return n;
}
