/* How waits are fitted to what else the machine does: base/cores.h and cpu/crowd.h. */
#include <omp.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/cores.h"
#include "cpu/crowd.h"
#include "test.h"

/* ---- figures of the system ------------------------------------------------------------------------------ */

static const char four_cores[] = "cpu  1000 0 0 0 0 0 0 0 0 0\n"
                                 "cpu0 10 1 2 900 50 3 4 999 7 0\n"
                                 "cpu1 100 0 0 900 0 0 0 0 0 0\n"
                                 "cpu2 200 0 0 900 0 0 0 0 0 0\n"
                                 "cpu3 400 0 0 900 0 0 0 0 0 0\n"
                                 "intr 5\n";

static bool parse(const char *text, const cpu_set_t *mine, double *ticks, int *cores) {
    FILE *f = fmemopen((char *)text, strlen(text), "r");
    const bool is_read = cf_cores_parse(f, mine, ticks, cores);
    fclose(f);
    return is_read;
}

TEST(the_work_of_the_cores_that_are_ours_is_counted) {
    cpu_set_t mine;
    double ticks;
    int cores;
    CPU_ZERO(&mine);
    CPU_SET(0, &mine);
    CPU_SET(2, &mine);
    CHECK(parse(four_cores, &mine, &ticks, &cores));
    CHECK_EQ(cores, 2);
    CHECK_EQ(ticks, 10 + 1 + 2 + 3 + 4 + 200); /* neither idle nor stolen time is work */
}

TEST(where_cores_are_counted_otherwise_than_in_the_mask_all_that_are_listed_count) {
    cpu_set_t mine;
    double ticks;
    int cores;
    CPU_ZERO(&mine);
    CPU_SET(6, &mine);
    CPU_SET(7, &mine);
    CHECK(parse(four_cores, &mine, &ticks, &cores));
    CHECK_EQ(cores, 4);
    CHECK_EQ(ticks, 20 + 100 + 200 + 400);
}

TEST(a_file_that_tells_nothing_is_told_apart) {
    cpu_set_t mine;
    double ticks;
    int cores;
    CPU_ZERO(&mine);
    CPU_SET(0, &mine);
    CHECK(!parse("cpu  1 2 3\nintr 5\n", &mine, &ticks, &cores));
    CHECK(!parse("cpu0 1 2\n", &mine, &ticks, &cores));
    CHECK(!parse("intr 5\n", &mine, &ticks, &cores));
}

/* ---- conclusions ---------------------------------------------------------------------------------------- */

TEST(threads_lack_the_cores_that_others_use) {
    const cf_cores before = {.at = 10, .cores = 4, .busy = 100, .own = 50, .waited = -1};
    cf_cores now = {.at = 12, .cores = 4, .busy = 104, .own = 54, .waited = -1}; /* two cores busy, with our own work */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 0, 1e-9);
    now.busy += 3; /* and others on one and a half */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 1.5, 1e-9);
    CHECK_NEAR(cf_cores_lacking(&before, &now, 2), -0.5, 1e-9); /* half a core is idle still */
}

TEST(of_a_quota_the_others_of_the_same_cgroup_take) {
    const cf_cores before = {.at = 10, .cores = 64, .busy = 0, .own = 0, .quota = 2, .group = 0, .waited = -1};
    cf_cores now = {.at = 11, .cores = 64, .busy = 40, .own = 2, .quota = 2, .group = 2, .waited = -1};
    CHECK_NEAR(cf_cores_lacking(&before, &now, 2), 0, 1e-9); /* the machine is busy, but not ours */
    now.group += 0.5;
    CHECK_NEAR(cf_cores_lacking(&before, &now, 2), 0.5, 1e-9);
}

TEST(where_others_work_but_no_thread_waits_none_lacks_a_core) {
    const cf_cores before = {.at = 10, .cores = 4, .busy = 100, .own = 50, .waited = 7};
    cf_cores now = {.at = 12, .cores = 4, .busy = 108, .own = 54, .waited = 7.2}; /* two cores busy with others' work */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 0.1, 1e-9);                    /* which took turns with ours */
    now.waited = 13;
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 2,
               1e-9); /* and with the other half its threads waited for each other */
    now.waited = 6;   /* a thread has ended */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 0, 1e-9);
    now.waited = -1; /* the kernel does not count */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), 2, 1e-9);
    now.waited = 13;
    now.busy = 102; /* the others have gone */
    CHECK_NEAR(cf_cores_lacking(&before, &now, 4), -1, 1e-9);
}

TEST(waits_change_only_where_the_load_has_changed_clearly) {
    CHECK(!cf_crowd_judge(false, -1));
    CHECK(!cf_crowd_judge(false, 0.3));
    CHECK(cf_crowd_judge(false, 0.5));
    CHECK(cf_crowd_judge(true, 0.3));
    CHECK(!cf_crowd_judge(true, 0.2));
    CHECK(!cf_crowd_judge(true, -1));
}

/* ---- libgomp's threads ---------------------------------------------------------------------------------- */

enum { LOOPS = 8 };

static void start_loops(pid_t loops[LOOPS]) {
    for (int k = 0; k < LOOPS; k++) {
        loops[k] = fork();
        if (loops[k] != 0) continue;
        setsid();
        alarm(60); /* if this program dies */
        for (volatile unsigned i = 0;;) i = i + 1;
    }
}

static void end_loops(const pid_t loops[LOOPS]) {
    for (int k = 0; k < LOOPS; k++) {
        kill(loops[k], SIGKILL);
        waitpid(loops[k], NULL, 0);
    }
}

/* Seconds of processor time that the second thread of a team spends while it waits for the first, which sleeps. */
static double spent_waiting(void) {
    struct timespec before, after, rest = {.tv_nsec = 30 * 1000000};
    double spent = 0;
    for (int k = 0; k < 10; k++) {
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
#pragma omp parallel num_threads(2)
        if (omp_get_thread_num() == 0) nanosleep(&rest, NULL);
        clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
        spent += (double)(after.tv_sec - before.tv_sec) + (double)(after.tv_nsec - before.tv_nsec) * 1e-9;
    }
    return spent;
}

TEST(teams_wait_shortly_while_others_want_the_cores) {
    const int64_t shape[] = {1 << 18};
    char about[256];
    cfx_context *context;
    cfx_context_options options = {.size = sizeof options, .devices = "cpu", .threads = 2};
    pid_t loops[LOOPS];
    cf_crowd_about(about, sizeof about);
    if (!strstr(about, "are fitted")) { /* another runtime, or a user's own setting: it says so */
        CHECK(strstr(about, "cannot be") || strstr(about, " says"));
        return;
    }
    if (omp_get_num_procs() < 2) return; /* libgomp's waits are short there of themselves */
    const double spent = spent_waiting();
    CHECK(!cf_crowd_is_short());
    CHECK_STATUS(cfx_context_new(&options, &context), CFX_OK);
    start_loops(loops);
    /* nobody says when: the watcher has to come to run, too */
    for (int k = 0; k < 100000 && !cf_crowd_is_short(); k++) {
        cfx_tensor x = {0};
        CHECK_STATUS(cfx_full(cfx_device_at(context, 0), CFX_FLOAT32, 1, shape, 1, &x), CFX_OK);
        CHECK_STATUS(cfx_wait(&x), CFX_OK);
        cfx_release(&x);
    }
    CHECK(cf_crowd_is_short());
    cf_crowd_about(about, sizeof about);
    CHECK(strstr(about, "now short") != NULL);
    CHECK(spent_waiting() < spent / 4);
    end_loops(loops);
    cfx_context_free(context);
    CHECK(!cf_crowd_is_short()); /* without a team there is nobody to steer */
}

TEST(a_child_of_fork_may_have_teams_of_its_own) {
    cfx_context *context;
    cfx_context_options options = {.size = sizeof options, .devices = "cpu", .threads = 2};
    CHECK_STATUS(cfx_context_new(&options, &context), CFX_OK);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        cf_crowd_team(0, 2); /* a watcher of its own */
        cf_crowd_team(2, 0); /* which ends */
        _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    cfx_context_free(context);
}
