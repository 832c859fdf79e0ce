/* shrink.c: see shrink.h. */
#include "comm/shrink.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"

enum { NAP_MS = 2, MAKER_S = 5 };

/* The others, while it is found out which of them are left. */
typedef struct others {
    cf_world *world;
    int process[CF_MAX_RANKS]; /* descriptors; -1: it had ended before */
} others;

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A rank is gone only where the system says so. */
static cfx_status others_open(others *o, cf_world *world) {
    o->world = world;
    for (int32_t r = 0; r < CF_MAX_RANKS; r++) o->process[r] = -1;
    for (int32_t r = 0; r < world->meeting.size; r++) {
        if (r == world->meeting.rank) continue;
        o->process[r] = (int)syscall(SYS_pidfd_open, world->control->peer[r].pid, 0);
        if (o->process[r] < 0 && errno != ESRCH)
            return cf_fail(CFX_ESTATE, "it cannot be known whether rank %d (pid %d) lives: %s", (int)r,
                           (int)world->control->peer[r].pid, cf_strerror(errno));
    }
    return CFX_OK;
}

static void others_close(others *o) {
    for (int32_t r = 0; r < o->world->meeting.size; r++)
        if (o->process[r] >= 0) close(o->process[r]);
}

static bool is_gone(const others *o, int32_t r) {
    if (r == o->world->meeting.rank) return false;
    if (o->process[r] < 0 || atomic_load(&o->world->control->peer[r].state) == CF_RANK_LEFT) return true;
    struct pollfd ended = {.fd = o->process[r], .events = POLLIN};
    return poll(&ended, 1, 0) > 0;
}

static bool has_asked(const others *o, int32_t r) {
    return atomic_load(&o->world->control->peer[r].state) == CF_RANK_SHRINKS;
}

/* The first rank that is left: the one that makes the new world. */
static int32_t first_of(const others *o) {
    int32_t r = 0;
    while (is_gone(o, r)) r++;
    return r;
}

/* Waits a little, interruptibly. */
static cfx_status nap(const others *o) {
    CF_TRY(cf_interrupted(&o->world->context->hub));
    poll(NULL, 0, NAP_MS);
    return CFX_OK;
}

/* ---- the first rank ---------------------------------------------------------------------------------- */

/* Until every rank has asked or is gone. */
static cfx_status wait_for_all(const others *o) {
    const cf_world *world = o->world;
    const double until = now() + world->timeout;
    for (int32_t r = 0; r < world->meeting.size; r++) {
        while (!has_asked(o, r) && !is_gone(o, r)) {
            if (world->timeout > 0 && now() > until) syscall(SYS_pidfd_send_signal, o->process[r], SIGKILL, NULL, 0);
            CF_TRY(nap(o));
        }
    }
    return CFX_OK;
}

static cfx_status make_next(const others *o, cf_next *next) {
    cf_world *world = o->world;
    cf_arena *arena = world->context->arena;
    void *memory;
    CF_TRY(wait_for_all(o));
    next->size = 0;
    for (int32_t r = 0; r < world->meeting.size; r++)
        if (has_asked(o, r) && !is_gone(o, r)) next->rank[next->size++] = r;
    /* It is never given back: others may use it longer than this process is in the world. */
    CF_TRY(cf_arena_take(arena, cf_control_bytes(next->size), &memory));
    cf_control *control = memory;
    cf_control_init(control, next->size);
    for (int32_t k = 0; k < next->size; k++) {
        const cf_peer *old = &world->control->peer[next->rank[k]];
        control->peer[k].pid = old->pid;
        control->peer[k].ndevices = old->ndevices;
        atomic_store(&control->peer[k].state, CF_RANK_IN);
    }
    next->offset = (char *)memory - cf_arena_base(arena);
    return CFX_OK;
}

/* ---- all of them ------------------------------------------------------------------------------------- */

/* Waits until the next world is made, by this rank if it is the first. */
static cfx_status await_next(const others *o) {
    cf_world *world = o->world;
    cf_next *next = &world->control->next;
    const double until = now() + world->timeout + MAKER_S; /* the maker waits for as long itself */
    for (;;) {
        int32_t state = atomic_load(&next->state);
        if (state == CF_NEXT_MADE) return CFX_OK;
        const int32_t maker = state > 0 ? state - 1 : first_of(o);
        if (world->timeout > 0 && now() > until && maker != world->meeting.rank && o->process[maker] >= 0)
            syscall(SYS_pidfd_send_signal, o->process[maker], SIGKILL, NULL, 0);
        const bool is_free = state == 0 || is_gone(o, state - 1); /* the one that was to make it died */
        if (is_free && first_of(o) == world->meeting.rank &&
            atomic_compare_exchange_strong(&next->state, &state, world->meeting.rank + 1)) {
            const cfx_status status = make_next(o, next);
            atomic_store(&next->state, status == CFX_OK ? CF_NEXT_MADE : 0);
            return status;
        }
        CF_TRY(nap(o));
    }
}

/* Makes the world what `next` says. */
static cfx_status change(cf_world *world) {
    const cf_next made = world->control->next, *next = &made;
    cf_meeting meeting = world->meeting;
    char *arena[CF_MAX_RANKS] = {NULL};
    size_t bytes[CF_MAX_RANKS] = {0};
    meeting.size = next->size;
    meeting.rank = -1;
    for (int32_t k = 0; k < next->size; k++) {
        if (next->rank[k] == world->meeting.rank) meeting.rank = k;
        arena[k] = world->arena[next->rank[k]];
        bytes[k] = world->bytes[next->rank[k]];
        world->arena[next->rank[k]] = NULL;
    }
    if (meeting.rank < 0) return cf_fail(CFX_EFAULT, "the other ranks went on without this one");
    for (int r = 0; r < CF_MAX_RANKS; r++) meeting.socket[r] = -1; /* deaths are seen by processes from here on */
    cf_world_unmap(world);
    world->control = (cf_control *)(arena[0] + next->offset);
    world->is_in_arena = true;
    memcpy(world->arena, arena, sizeof arena);
    memcpy(world->bytes, bytes, sizeof bytes);
    world->meeting = meeting;
    return CFX_OK;
}

cfx_status cf_shrink(cf_world *world) {
    others o;
    cfx_status status = others_open(&o, world);
    atomic_store(&world->control->peer[world->meeting.rank].state, CF_RANK_SHRINKS);
    if (status == CFX_OK) status = await_next(&o);
    others_close(&o);
    return status == CFX_OK ? change(world) : status;
}
