/* crowd.c: the watcher, and what steers libgomp.  See crowd.h. */
#include "cpu/crowd.h"

#include <dlfcn.h>
#include <math.h>
#include <omp.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/cores.h"
#include "base/locale.h"
#include "base/log.h"
#include "base/park.h"
#include "base/thread.h"
#include "cpu/team.h"

/* ---- the runtime ---------------------------------------------------------------------------------------- */

/* The file name of OpenMP's runtime: "libgomp.so.1". */
static const char *runtime(void) {
    Dl_info info;
    if (!dladdr((void *)(size_t)&omp_get_thread_limit, &info) || !info.dli_fname) return "unknown";
    const char *slash = strrchr(info.dli_fname, '/');
    return slash ? slash + 1 : info.dli_fname;
}

/* The name of a variable by which the user has told libgomp how to wait, or NULL. */
static const char *user_setting(void) {
    static const char *const names[] = {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"};
    for (int k = 0; k < 2; k++) {
        const char *value = getenv(names[k]);
        if (value && *value) return names[k];
    }
    return NULL;
}

static bool is_libgomp(void) { return strncmp(runtime(), "libgomp", 7) == 0; }

/* The cores that libgomp counted when it was loaded, which is when this library was. */
static int cores_at_load;
__attribute__((constructor)) static void count_cores(void) {
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof mine, &mine) == 0) cores_at_load = CPU_COUNT(&mine);
}

/* ---- a team that only counts ---------------------------------------------------------------------------- */

/* A limit on a team's size may ask for several. */
enum { MOST_LEADERS = 64 };

typedef struct crew {
    pthread_t leaders[MOST_LEADERS];
    int n;
    int wanted;        /* threads that the next leader opens a region with */
    _Atomic int got;   /* how many it has; 0: it has not said; -1: the system has not so many */
    cf_word said;      /* the watcher waits here for it */
    _Atomic bool over; /* leaders wait here to end */
    cf_word end;
} crew;

static void *wait_for_end(void *arg) {
    crew *c = arg;
    for (;;) {
        const uint32_t seen = cf_word_read(&c->end);
        if (atomic_load(&c->over)) return NULL;
        cf_park(&c->end, seen);
    }
}

static void *lead(void *arg) {
    crew *c = arg;
    const int got = cf_team_open(1, c->wanted, c->wanted);
    atomic_store(&c->got, got > 0 ? got : -1);
    cf_unpark(&c->said);
    return wait_for_end(c); /* its team is libgomp's until this thread ends */
}

static void dismiss(crew *c) {
    atomic_store(&c->over, true);
    cf_unpark(&c->end);
    for (int k = 0; k < c->n; k++) pthread_join(c->leaders[k], NULL);
    c->n = 0;
    atomic_store(&c->over, false);
}

/* Makes libgomp manage `more` threads more.  False, with none, where it cannot be had. */
static bool enlist(crew *c, int more) {
    while (more > 0 && c->n < MOST_LEADERS) {
        c->wanted = more + 1;
        atomic_store(&c->got, 0);
        if (cf_thread_start(&c->leaders[c->n], lead, c) != 0) break;
        c->n++;
        for (;;) {
            const uint32_t seen = cf_word_read(&c->said);
            if (atomic_load(&c->got)) break;
            cf_park(&c->said, seen);
        }
        if (atomic_load(&c->got) < 2) break;
        more -= atomic_load(&c->got) - 1;
    }
    if (more > 0) dismiss(c);
    return more <= 0;
}

/* ---- the watcher ---------------------------------------------------------------------------------------- */

/* It looks every 100 ms while this process works, else once a second; and never so often that looking takes more than a
 * two-hundredth of its time: /proc/stat is long on large machines. */
static const double PERIOD = 0.1, IDLE_PERIOD = 1, LOOK_SHARE = 0.005;
/* Ticks of 10 ms make one look inexact; what counts is the mean of some time. */
static const double MEMORY = 0.3;
/* This process is idle below so many cores. */
static const double IDLE = 0.02;

static struct {
    pthread_mutex_t turn; /* one team changes at a time, and waits for the watcher's end if it must */
    bool steers, watches;
    pthread_t watcher;
    pthread_mutex_t lock; /* of what follows, which the watcher reads */
    pthread_cond_t changed;
    int teams, threads; /* of more than one thread; their threads in all */
    bool stops;
    /* read by anybody */
    _Atomic bool is_short, is_blind, is_stuck;
} all = {.turn = PTHREAD_MUTEX_INITIALIZER, .lock = PTHREAD_MUTEX_INITIALIZER, .changed = PTHREAD_COND_INITIALIZER};

/* Beside one endless loop or more, on two cores, 0.5 to 2 of two threads lack a core, whether their waits are short or
 * long; beside a program that takes turns with this one, 0.2 at most.  Leaving a state takes less than entering it. */
bool cf_crowd_judge(bool is_short, double lacking) { return lacking > (is_short ? 0.25 : 0.4); }

bool cf_crowd_is_short(void) { return atomic_load(&all.is_short); }

static void steer(crew *c, bool to_short) {
    if (to_short == atomic_load(&all.is_short)) return;
    if (to_short) {
        /* More than it has cores, whatever teams there are: those of a size may come and go. */
        const int procs = omp_get_num_procs(), cores = procs > cores_at_load ? procs : cores_at_load;
        const bool is_had = enlist(c, cores);
        atomic_store(&all.is_stuck, !is_had); /* it tries again at the next look */
        if (!is_had) return;
    } else {
        dismiss(c);
    }
    atomic_store(&all.is_short, to_short);
}

/* Sleeps for that time, or less if the watcher is to stop, which is the result; `threads` is what teams have now. */
static bool sleeps(double seconds, int *threads) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    const double ns = (double)until.tv_nsec + seconds * 1e9;
    until.tv_sec += (time_t)(ns / 1e9);
    until.tv_nsec = (long)fmod(ns, 1e9);
    pthread_mutex_lock(&all.lock);
    if (!all.stops) pthread_cond_timedwait(&all.changed, &all.lock, &until);
    const bool stops = all.stops;
    *threads = all.threads;
    pthread_mutex_unlock(&all.lock);
    return stops;
}

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static void *watch(void *arg) {
    crew crew = {.n = 0};
    cf_cores before, now;
    double lacking = 0, period = PERIOD;
    int threads = 0;
    (void)arg;
    bool sees = cf_cores_look(&before);
    while (!sleeps(period, &threads)) {
        const double start = seconds();
        const bool saw = sees;
        sees = cf_cores_look(&now);
        const double took = seconds() - start, gap = sees && saw ? now.at - before.at : 0;
        if (gap > 0) {
            const double own = (now.own - before.own) / gap;
            /* a file of zeros tells of nobody's work, not even of ours */
            atomic_store(&all.is_blind, now.busy - before.busy <= 0 && own > IDLE);
            if (own > IDLE) lacking += (1 - exp(-gap / MEMORY)) * (cf_cores_lacking(&before, &now, threads) - lacking);
            steer(&crew, cf_crowd_judge(atomic_load(&all.is_short), lacking));
            period = own > IDLE ? PERIOD : IDLE_PERIOD;
        }
        if (!sees) atomic_store(&all.is_blind, true);
        if (period < took / LOOK_SHARE) period = took / LOOK_SHARE;
        before = now;
    }
    dismiss(&crew);
    atomic_store(&all.is_short, false);
    return NULL;
}

/* In a child of fork there are no teams and no watcher. */
static void before_fork(void) {
    pthread_mutex_lock(&all.turn);
    pthread_mutex_lock(&all.lock);
}
static void after_fork(void) {
    pthread_mutex_unlock(&all.lock);
    pthread_mutex_unlock(&all.turn);
}
static void in_child(void) {
    all.teams = all.threads = 0;
    all.watches = false;
    atomic_store(&all.is_short, false);
    after_fork();
}
static void prepare(void) {
    all.steers = is_libgomp() && !user_setting() && pthread_atfork(before_fork, after_fork, in_child) == 0;
}

static void start(void) {
    all.stops = false;
    const int error = cf_thread_start(&all.watcher, watch, NULL);
    all.watches = error == 0;
    if (error) cf_log(1, "teams wait long, whatever else runs: no thread can watch: %s", cf_strerror(error));
}

static void stop(void) {
    pthread_mutex_lock(&all.lock);
    all.stops = true;
    pthread_cond_signal(&all.changed);
    pthread_mutex_unlock(&all.lock);
    pthread_join(all.watcher, NULL);
    all.watches = false;
}

void cf_crowd_team(int before, int now) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, prepare);
    if (!all.steers) return;
    pthread_mutex_lock(&all.turn);
    pthread_mutex_lock(&all.lock);
    all.teams += (now > 1) - (before > 1);
    all.threads += (now > 1 ? now : 0) - (before > 1 ? before : 0);
    const bool needed = all.teams > 0;
    pthread_mutex_unlock(&all.lock);
    if (needed && !all.watches) start();
    if (!needed && all.watches) stop();
    pthread_mutex_unlock(&all.turn);
}

void cf_crowd_about(char *text, size_t bytes) {
    const char *name = runtime(), *set = user_setting();
    if (!is_libgomp()) snprintf(text, bytes, "%s: waits cannot be fitted to the machine's load", name);
    else if (set) snprintf(text, bytes, "%s: waits as %s says", name, set);
    else if (atomic_load(&all.is_blind))
        snprintf(text, bytes, "%s: waits cannot be fitted to the machine's load, which /proc/stat does not tell", name);
    else if (atomic_load(&all.is_stuck))
        snprintf(text, bytes, "%s: waits are long though others use the cores: no threads to be had", name);
    else
        snprintf(text, bytes, "%s: waits are fitted to the machine's load, now %s", name,
                 cf_crowd_is_short() ? "short" : "long");
}
