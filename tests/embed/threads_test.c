/* Where the system makes no more threads: OpenMP would end the process, an engine has smaller teams or says so. */
#include "test.h"

#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>

#include "engines.h"

/* ---- a system with few threads ------------------------------------------------------------------------ */

static _Atomic int most = INT_MAX; /* threads that this process may have */

static int threads_now(void) {
    int n = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (!tasks) printf("# no /proc\n"), exit(2);
    for (const struct dirent *task; (task = readdir(tasks));) n += task->d_name[0] != '.';
    closedir(tasks);
    return n;
}

/* The program's own comes before libc's, for every library. */
CFX_API int pthread_create(pthread_t *out, const pthread_attr_t *attributes, void *(*run)(void *), void *argument) {
    typedef int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    static _Atomic(create) next;
    if (!next) {
        void *found = dlsym(RTLD_NEXT, "pthread_create");
        create real;
        memcpy(&real, &found, sizeof real);
        next = real;
    }
    if (atomic_load(&most) != INT_MAX && threads_now() >= atomic_load(&most)) return EAGAIN;
    return next(out, attributes, run, argument);
}

/* Threads that an engine has left behind are about to end, and while threads end the list of them may be short. */
static int threads_at_rest(void) {
    int now = threads_now(), same = 0;
    for (int wait = 0; wait < 1000 && same < 5; wait++) {
        usleep(1000);
        const int before = now;
        now = threads_now();
        same = now == before ? same + 1 : 0;
    }
    return now;
}

/* `room` threads more than there are now. */
static void leave_room(int room) { atomic_store(&most, threads_at_rest() + room); }
static void leave_any(void) { atomic_store(&most, INT_MAX); }

/* ---- engines there ------------------------------------------------------------------------------------ */

enum { THREADS = 8 };

static _Atomic int smaller; /* times that a smaller team was logged */

static void note(void *data, int level, const char *message) {
    (void)data, (void)level;
    if (strstr(message, "the system makes no more threads")) atomic_fetch_add(&smaller, 1);
}

static cfx_status make(const char *devices, cfx_engine **out) {
    const cfx_engine_options options = {
        .size = sizeof options, .devices = devices, .threads = THREADS, .log = {.hook = note}};
    return cfx_engine_new(&options, out);
}

/* With loops of ours and of oneDNN, in teams of all threads. */
static const char work[] = "local cf = require 'conflux'\n"
                           "for i = 1, 3 do\n"
                           "  local x = cf.ones(400, 500)\n"
                           "  assert((x + 1):sum():item() == 400000)\n"
                           "  assert(x:matmul(x:t()):sum():item() == 400 * 400 * 500)\n"
                           "  assert(cf.sort(cf.rand(300, 300)).shape[1] == 300)\n"
                           "end";

/* Whether the environment limits a team, as under ThreadSanitizer. */
static int is_limited(void) {
    const char *limit = getenv("OMP_THREAD_LIMIT");
    return limit && atoi(limit) < THREADS;
}

TEST(an_engine_has_the_threads_that_there_are_or_is_refused) {
    for (int room = 0; room < 2 * THREADS; room++) {
        cfx_engine *engine = NULL;
        atomic_store(&smaller, 0);
        leave_room(room);
        const cfx_status status = make("cpu", &engine);
        if (room == 0) {
            CHECK_STATUS(status, CFX_EMEMORY);
            CHECK(has(cfx_error(), "cannot start the worker of cpu:0: "));
            continue;
        }
        if (!CHECK_STATUS(status, CFX_OK)) break;
        run(engine, work);
        /* beside the team's others there are its worker and, unless the environment rules it out, a watcher over teams */
        if (!is_limited() && room != THREADS) CHECK_EQ(atomic_load(&smaller), room < THREADS);
        leave_any();
        run(engine, work);
        free_engine(engine);
    }
    leave_any();
}

TEST(workers_that_cannot_be_had_are_a_refusal_and_those_that_were_made_are_gone) {
    for (int room = 0; room < 6; room++) {
        cfx_engine *engine = NULL;
        const int before = threads_now();
        leave_room(room);
        const cfx_status status = make("cpu*6", &engine);
        CHECK_STATUS(status, CFX_EMEMORY);
        CHECK(has(cfx_error(), "cannot start the worker of cpu:"));
        for (int wait = 0; wait < 1000 && threads_now() > before; wait++) usleep(1000);
        CHECK(threads_now() <= before); /* some of an earlier engine may still have been about to end */
    }
    leave_any();
}

TEST(threads_that_run_out_while_an_engine_lives_make_its_teams_smaller) {
    cfx_engine *engine = NULL;
    for (int room = 0; room < THREADS; room++) {
        if (!CHECK_STATUS(make("cpu", &engine), CFX_OK)) return;
        run(engine, "x = require('conflux').ones(2) + 1");
        leave_room(room);
        run(engine, work);
        /* a smaller team, and a larger one again */
        CHECK_STATUS(cfx_devices_set(cfx_engine_context(engine), "cpu"), CFX_OK);
        run(engine, work);
        leave_any();
        CHECK_STATUS(cfx_devices_set(cfx_engine_context(engine), "cpu*2"), CFX_OK);
        leave_room(room);
        run(engine, work);
        CHECK_STATUS(cfx_devices_set(cfx_engine_context(engine), "cpu"), CFX_OK);
        run(engine, work);
        leave_any();
        free_engine(engine);
    }
}

TEST(a_loader_whose_thread_cannot_be_had_is_an_error_of_the_script) {
    cfx_engine *engine = NULL;
    if (!CHECK_STATUS(make("cpu", &engine), CFX_OK)) return;
    run(engine, "cf = require 'conflux' x = cf.ones(10) x:sum():item()");
    leave_room(0);
    refuses(engine, "\ncf.data.DataLoader({x}, {batch = 2})", CFX_ESCRIPT,
            "t.lua:2: conflux.DataLoader: cannot start a thread: Resource temporarily unavailable");
    leave_any();
    run(engine, "for _, batch in cf.data.DataLoader({x}, {batch = 2}):epoch(0) do batch[1][1]:sum():item() end");
    free_engine(engine);
}

typedef struct rival {
    pthread_t thread;
    int made;
} rival;

static void *compute(void *data) {
    rival *r = data;
    for (int i = 0; i < 10; i++) {
        cfx_engine *engine = NULL;
        const cfx_status status = make("cpu", &engine);
        if (status != CFX_OK) {
            CHECK_STATUS(status, CFX_EMEMORY);
            continue;
        }
        run(engine, work);
        free_engine(engine);
        r->made++;
    }
    return NULL;
}

TEST(engines_that_take_threads_from_each_other_go_on) {
    rival rivals[4] = {0};
    for (int i = 0; i < 4; i++)
        if (pthread_create(&rivals[i].thread, NULL, compute, &rivals[i]) != 0) printf("# no thread\n"), exit(2);
    leave_room(12);
    for (int i = 0; i < 4; i++) pthread_join(rivals[i].thread, NULL);
    leave_any();
    for (int i = 0; i < 4; i++) CHECK(rivals[i].made > 0);
}
