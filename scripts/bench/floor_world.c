/* floor_world.c: what a collective between processes, and the news of a process's death, would take without Conflux.
 *
 * A part of the library of floor.c.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "comm/world.h"
#include "cpu/backend.h"

#define FLOOR_API __attribute__((visibility("default")))

enum { MAX_THREADS = 256, UNIT = 1024 };

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- an all-reduce ---------------------------------------------------------------------------------------- */

/* Where x lies in its rank's shared memory; -1: it does not. */
FLOOR_API double conflux_floor_world_offset(const cfx_context *context, const char *x) {
    const cf_world *world = cf_world_of(context);
    if (!world || !world->control) return -1;
    const int32_t rank = world->meeting.rank;
    const bool is_in = x >= world->arena[rank] && x < world->arena[rank] + world->bytes[rank];
    return is_in ? (double)(x - world->arena[rank]) : -1;
}

typedef struct slice {
    const cf_world *world;
    const double *offsets;
    int64_t from, to;
    int32_t repeats;
} slice;

static int combine(cf_worker *worker, const slice *s) {
    union {
        cf_call call;
        char bytes[sizeof(cf_call) + CF_MAX_RANKS * sizeof(cf_view) + sizeof(cf_combine_params) + 64];
    } room;
    const int32_t n = s->world->meeting.size;
    room.call = (cf_call){.op = CF_OP_combine, .nout = (uint8_t)n, .dtype = CFX_FLOAT32, .threads = 1};
    for (int32_t r = 0; r < n; r++)
        room.call.v[r] = (cf_view){.data = s->world->arena[r] + (int64_t)s->offsets[r] + s->from * 4,
                                   .dtype = CFX_FLOAT32,
                                   .ndim = 1,
                                   .shape = {s->to - s->from},
                                   .stride = {1}};
    *(cf_combine_params *)cf_call_params(&room.call) = (cf_combine_params){.op = CF_COMBINE_AVG, .root = -1};
    return s->from == s->to || worker->backend->kernels[CF_OP_combine](worker, &room.call) == CFX_OK;
}

static void *run_slice(void *arg) {
    const slice *s = arg;
    cf_worker worker = {.backend = cf_backend_cpu(), .threads = 1};
    for (int32_t k = 0; k < s->repeats; k++)
        if (!combine(&worker, s)) return NULL;
    return arg;
}

/* Microseconds that this rank's slice of n floats takes, in memory of all ranks at those offsets: the mean of `repeats`, by
 * as many threads as the rank's device has.  No rank waits for another.  -1 if it cannot be run. */
FLOOR_API double conflux_floor_world_allreduce(const cfx_context *context, const double *offsets, int64_t n,
                                               int32_t threads, int32_t repeats) {
    const cf_world *world = cf_world_of(context);
    slice slices[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    if (!world || !world->control || threads < 1 || threads > MAX_THREADS) return -1;
    const int64_t units = (n + UNIT - 1) / UNIT, parts = (int64_t)world->meeting.size * threads;
    for (int32_t t = 0; t < threads; t++) {
        const int64_t at = (int64_t)world->meeting.rank * threads + t;
        const int64_t from = units * at / parts * UNIT, to = units * (at + 1) / parts * UNIT;
        slices[t] = (slice){world, offsets, from < n ? from : n, to < n ? to : n, repeats};
    }
    const double start = now();
    int32_t started = 1, good;
    while (started < threads && pthread_create(&thread[started], NULL, run_slice, &slices[started]) == 0) started++;
    good = run_slice(&slices[0]) != NULL;
    for (int32_t t = 1; t < started; t++) {
        void *result;
        pthread_join(thread[t], &result);
        good &= result != NULL;
    }
    return started == threads && good ? (now() - start) / repeats : -1;
}

/* ---- a death ---------------------------------------------------------------------------------------------- */

/* Kills a process and waits for its end, by a poll of its descriptor.  times [2]: when the signal was sent, and when its
 * end was known; microseconds of the clock that only goes forward.  0, or errno. */
FLOOR_API int32_t conflux_floor_death(int32_t pid, double *times) {
    const int file = (int)syscall(SYS_pidfd_open, pid, 0);
    if (file < 0) return errno;
    struct pollfd polled = {.fd = file, .events = POLLIN};
    int error = 0;
    times[0] = now();
    if (kill(pid, SIGKILL) != 0) error = errno;
    while (!error && poll(&polled, 1, -1) < 0)
        if (errno != EINTR) error = errno;
    times[1] = now();
    close(file);
    return error;
}
