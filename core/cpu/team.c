/* team.c: opens teams.  See team.h. */
#include "cpu/team.h"

#include <omp.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/park.h"
#include "base/thread.h"

typedef struct probe {
    _Atomic int over;
    cf_word end;
} probe;

typedef struct probed {
    probe *probe;
    pthread_t thread;
    _Atomic pid_t id;
} probed;

static void *wait_for_end(void *arg) {
    probed *p = arg;
    atomic_store(&p->id, (pid_t)syscall(SYS_gettid));
    for (;;) {
        const uint32_t seen = cf_word_read(&p->probe->end);
        if (atomic_load(&p->probe->over)) return NULL;
        cf_park(&p->probe->end, seen);
    }
}

/* A thread that was joined counts until the kernel has taken it off its list, a moment later. */
static void wait_until_gone(pid_t id) {
    enum { TRIES = 1000, PAUSE_US = 100 };
    const pid_t process = getpid();
    for (int k = 0; k < TRIES && syscall(SYS_tgkill, process, id, 0) == 0; k++) usleep(PAUSE_US);
}

/* How many of `more` threads can be made. */
static int count(int more) {
    probe all = {.over = 0};
    probed *list = calloc((size_t)more, sizeof *list);
    int n = 0;
    for (; list && n < more; n++) {
        list[n].probe = &all;
        if (pthread_create(&list[n].thread, NULL, wait_for_end, &list[n]) != 0) break;
    }
    atomic_store(&all.over, 1);
    cf_unpark(&all.end);
    for (int k = 0; k < n; k++) pthread_join(list[k].thread, NULL);
    for (int k = 0; k < n; k++) wait_until_gone(atomic_load(&list[k].id));
    free(list);
    return n;
}

/* The runtime makes the threads now, and keeps them for this thread's teams of that size. */
static int open_now(int threads) {
    int got = 1;
    omp_set_dynamic(0);
#pragma omp parallel num_threads(threads)
    {
#pragma omp master
        got = omp_get_num_threads();
    }
    return got;
}

int cf_team_open(int had, int wanted, int least) {
    cf_threads_hold();
    const int more = wanted - had, can = more > 0 ? count(more) : 0;
    const int threads = more <= 0 || can == more ? wanted : had + can / 2;
    const int got = threads < least ? 0 : open_now(threads);
    cf_threads_release();
    return got;
}
