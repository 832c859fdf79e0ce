/* world.c: see world.h. */
#include "comm/world.h"

#include <poll.h>
#include <signal.h>
#include <stdio.h>
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

uint64_t cf_world_record(cf_world *world, const char *what) {
    cf_peer *peer = &world->control->peer[world->meeting.rank];
    const uint64_t call = atomic_load_explicit(&peer->calls, memory_order_relaxed) + 1;
    cf_record *record = &peer->record[call % CF_WORLD_RECORDS];
    const cf_hub *hub = &world->context->hub;
    struct timespec at;
    atomic_store(&record->call, 0);
    clock_gettime(CLOCK_MONOTONIC, &at);
    record->at = (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
    record->line = hub->line;
    snprintf(record->what, sizeof record->what, "%s", what);
    snprintf(record->source, sizeof record->source, "%s", hub->source);
    atomic_store(&record->call, call);
    atomic_store(&peer->calls, call);
    return call;
}

void cf_world_describe(cf_control *control, int32_t rank, uint64_t call, char *text, size_t bytes) {
    cf_record *record = &control->peer[rank].record[call % CF_WORLD_RECORDS];
    if (call == 0 || atomic_load(&record->call) != call) snprintf(text, bytes, "one of long ago");
    else if (record->line <= 0) snprintf(text, bytes, "%s", record->what);
    else snprintf(text, bytes, "%s at %s:%d", record->what, record->source, (int)record->line);
}

int32_t cf_world_devices(const cfx_context *context) {
    const cf_world *world = cf_world_of(context);
    int32_t n = 0;
    for (int32_t r = 0; r < world->meeting.size; r++) n += world->control->peer[r].ndevices;
    return n;
}
