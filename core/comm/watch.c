/* watch.c: see watch.h. */
#include "comm/watch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/log.h"
#include "base/status.h"
#include "base/thread.h"

/* It looks so often at how far the others are; it warns once after WARN_S.  A rank that is killed is waited for so long,
 * and so much longer for the rank that is to kill it. */
enum { LOOK_MS = 100, WARN_S = 30, KILL_MS = 10000, KILLER_S = 20 };

struct cf_watcher {
    cf_world *world;
    cfx_log log;
    pthread_t thread;
    int stop;                  /* an event: the thread is to end */
    int process[CF_MAX_RANKS]; /* descriptors of the others' processes; -1: there is none */
    uint64_t ready, done;      /* the counts at the last look */
    double still;              /* seconds of looks since they moved, while this rank waits for others */
    bool has_warned;
    bool has_ended[CF_MAX_RANKS]; /* its process, or its socket; it is told once */
    bool is_over;                 /* the world is broken, and all that wait have been told */
};

/* ---- words ------------------------------------------------------------------------------------------- */

/* "stopped" where the system says so, else "running" or "gone". */
static const char *state_of(int pid) {
    char path[64], line[512];
    snprintf(path, sizeof path, "/proc/%d/stat", pid);
    FILE *file = fopen(path, "re");
    if (!file) return "gone";
    const size_t n = fread(line, 1, sizeof line - 1, file);
    fclose(file);
    line[n] = '\0';
    const char *name_end = strrchr(line, ')');
    const char state = name_end && name_end[1] ? name_end[2] : ' ';
    return state == 'T' || state == 't' ? "stopped" : state == 'Z' || state == 'X' ? "gone" : "running";
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The counts that rank r is at: of the parts told of, or of those it is through with. */
static uint64_t count_of(cf_control *control, int32_t r, bool published) {
    cf_peer *peer = &control->peer[r];
    return atomic_load(published ? &peer->published : &peer->finished);
}

/* The first rank that the next part waits for, or -1.  *published: whether to be told of it, or to be done with. */
static int32_t late(cf_world *world, bool *published) {
    cf_control *control = world->control;
    const int32_t own = world->meeting.rank;
    for (int step = 0; step < 2; step++) {
        const uint64_t have = cf_counted(step == 0 ? &control->ready : &control->done);
        *published = step == 0;
        if (count_of(control, own, *published) <= have) continue;
        for (int32_t r = 0; r < control->size; r++)
            if (count_of(control, r, *published) <= have) return r;
    }
    return -1;
}

/* "rank 1 of 4 (pid 4711, stopped) has not come to collective 1204 (avg, 2.1 MB at train.lua:38); its last was 1203, avg
 * at train.lua:31, 61.2 s ago" */
static void describe_late(cf_world *world, int32_t r, bool published, char *text, size_t bytes) {
    cf_control *control = world->control;
    cf_peer *peer = &control->peer[r];
    const cf_peer *own = &control->peer[world->meeting.rank];
    const uint64_t part = cf_counted(published ? &control->ready : &control->done) + 1;
    const uint64_t call = own->notice[part % CF_WORLD_SLOTS].call, last = atomic_load(&peer->calls);
    char here[256], there[640] = "it has come to none", left[64] = "";
    cf_world_describe(control, world->meeting.rank, call, here, sizeof here);
    if (last > 0) {
        char what[256];
        cf_world_describe(control, r, last, what, sizeof what);
        cf_format(there, sizeof there, "its last was %llu (%s), %.1f s ago", (unsigned long long)last, what,
                  now() - peer->record[last % CF_WORLD_RECORDS].at);
    }
    if (atomic_load(&peer->state) == CF_RANK_LEFT) snprintf(left, sizeof left, "left the world");
    snprintf(text, bytes, "rank %d of %d (pid %d, %s) has not %s collective %llu (%s); %s", (int)r, (int)control->size,
             (int)peer->pid, left[0] ? left : state_of(peer->pid), published ? "come to" : "done its part of",
             (unsigned long long)call, here, there);
}

/* ---- looks ------------------------------------------------------------------------------------------- */

/* Ends a rank, so that it writes into nobody's memory any more, whatever wakes it later.  False: it could not be ended, or
 * nobody can say. */
static bool kill_rank(const cf_watcher *w, int32_t r) {
    struct pollfd process = {.fd = w->process[r], .events = POLLIN};
    if (process.fd < 0) return false;
#ifdef SYS_pidfd_send_signal
    if (syscall(SYS_pidfd_send_signal, process.fd, SIGKILL, NULL, 0) != 0 && errno != ESRCH) return false;
#endif
    const double until = now() + 1e-3 * KILL_MS;
    int n;
    while ((n = poll(&process, 1, LOOK_MS)) <= 0 && now() < until) {}
    return n > 0;
}

/* Others that wait for the rank find at the same time that it is late: one of them kills it and tells why. */
static void give_up(const cf_watcher *w, int32_t r, bool published) {
    cf_control *control = w->world->control;
    char text[960];
    int32_t in = CF_RANK_IN;
    const bool is_first = atomic_compare_exchange_strong(&control->peer[r].state, &in, CF_RANK_GIVEN_UP);
    if (!is_first && w->still < w->world->timeout + KILLER_S) return;
    describe_late(w->world, r, published, text, sizeof text);
    const bool is_dead = kill_rank(w, r);
    cf_control_break(control, r, "%s: given up after %g s, and %s", text, w->world->timeout,
                     is_dead ? "killed" : "not to be killed: its process may still write to memory of other ranks");
}

static void look(cf_watcher *w, double passed) {
    cf_world *world = w->world;
    cf_control *control = world->control;
    char text[960];
    bool published;
    if (cf_control_breach(control)) {
        if (!w->is_over) cf_control_stop(control); /* the rank that broke it may have died over it */
        w->is_over = true;
        return;
    }
    cf_control_help(control, world->meeting.rank); /* a rank may be stopped between its own count and the common one */
    const int32_t r = late(world, &published);
    const uint64_t ready = cf_counted(&control->ready), done = cf_counted(&control->done);
    if (r < 0 || ready != w->ready || done != w->done) {
        w->ready = ready;
        w->done = done;
        w->still = 0;
        w->has_warned = false;
        if (r < 0) return;
    }
    const bool has_left = atomic_load(&control->peer[r].state) == CF_RANK_LEFT;
    /* Time in which this thread did not run either, for the machine slept or a debugger had it, does not count. */
    w->still += passed < 10 * LOOK_MS * 1e-3 ? passed : LOOK_MS * 1e-3;
    if (has_left && w->still > 0) { /* it told of all that it did before it left */
        describe_late(world, r, published, text, sizeof text);
        cf_control_break(control, r, "%s", text);
    } else if (world->timeout > 0 && w->still > world->timeout) {
        give_up(w, r, published);
    } else if (w->still > WARN_S && !w->has_warned) {
        describe_late(world, r, published, text, sizeof text);
        cf_log(1, "%s", text);
        w->has_warned = true;
    }
}

/* A rank's process, or its socket, has ended. */
static void ended(cf_watcher *w, int32_t r) {
    cf_control *control = w->world->control;
    cf_peer *peer = &control->peer[r];
    w->has_ended[r] = true;
    if (atomic_load(&peer->state) != CF_RANK_IN) return; /* it has left, or the rank that killed it tells why */
    const uint64_t last = atomic_load(&peer->calls);
    char what[256] = "";
    if (last > 0) cf_world_describe(control, r, last, what, sizeof what);
    if (last == 0)
        cf_control_break(control, r, "rank %d of %d (pid %d) has died, before its first collective", (int)r,
                         (int)control->size, (int)peer->pid);
    else
        cf_control_break(control, r, "rank %d of %d (pid %d) has died; its last collective was %llu (%s)", (int)r,
                         (int)control->size, (int)peer->pid, (unsigned long long)last, what);
}

static void *watch(void *argument) {
    cf_watcher *w = argument;
    const cf_meeting *m = &w->world->meeting;
    double before = now();
    cfx_log_here(w->log);
    for (;;) {
        struct pollfd polled[1 + 2 * CF_MAX_RANKS] = {{.fd = w->stop, .events = POLLIN}};
        int32_t of[1 + 2 * CF_MAX_RANKS];
        nfds_t n = 1;
        for (int32_t r = 0; r < m->size; r++) {
            if (w->has_ended[r]) continue;
            const int files[] = {w->process[r], m->socket[r]};
            for (int k = 0; k < 2; k++) {
                if (files[k] < 0) continue;
                /* of a socket its end alone is news: letters are the next meeting's */
                polled[n] = (struct pollfd){.fd = files[k], .events = k == 0 ? POLLIN : 0};
                of[n++] = r;
            }
        }
        if (poll(polled, n, LOOK_MS) < 0 && errno != EINTR) usleep(LOOK_MS * 1000);
        if (polled[0].revents) break;
        for (nfds_t k = 1; k < n; k++)
            if (polled[k].revents & (POLLIN | POLLHUP | POLLERR)) ended(w, of[k]);
        const double at = now();
        look(w, at - before);
        before = at;
    }
    return NULL;
}

/* ---- beginning and end ------------------------------------------------------------------------------- */

static void close_all(cf_watcher *w) {
    if (w->stop >= 0) close(w->stop);
    for (int32_t r = 0; r < CF_MAX_RANKS; r++)
        if (w->process[r] >= 0) close(w->process[r]);
    free(w);
}

cfx_status cf_watcher_start(cf_world *world, cf_watcher **out) {
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(cf_watcher), &memory));
    cf_watcher *w = memory;
    w->world = world;
    w->log = world->context->hub.log;
    for (int32_t r = 0; r < CF_MAX_RANKS; r++) w->process[r] = -1;
#ifdef SYS_pidfd_open
    for (int32_t r = 0; r < world->meeting.size; r++)
        if (r != world->meeting.rank) {
            w->process[r] = (int)syscall(SYS_pidfd_open, world->control->peer[r].pid, 0);
            if (w->process[r] < 0 && errno == ESRCH) ended(w, r); /* since it has met the others */
        }
#endif
    w->stop = eventfd(0, EFD_CLOEXEC);
    const int error = w->stop < 0 ? errno : cf_thread_start(&w->thread, watch, w);
    if (error) {
        close_all(w);
        return cf_fail(CFX_EMEMORY, "cannot start the thread that watches the other ranks: %s", cf_strerror(error));
    }
    *out = w;
    return CFX_OK;
}

void cf_watcher_stop(cf_watcher *w) {
    const uint64_t one = 1;
    if (!w) return;
    if (cf_is_forked(&w->world->context->hub)) { /* the thread is the parent's */
        close_all(w);
        return;
    }
    while (write(w->stop, &one, sizeof one) < 0 && errno == EINTR) {}
    pthread_join(w->thread, NULL);
    close_all(w);
}
