/* threads.c: see threads.h. */
#include "cpu/threads.h"

#include <omp.h>

#include "base/log.h"
#include "cpu/crowd.h"
#include "cpu/team.h"

/* The team of this thread's worker, as crowd.h knows it. */
static _Thread_local int team;

static void set_team(int threads) {
    omp_set_num_threads(threads); /* of this thread's teams, oneDNN's among them */
    cf_crowd_team(team, threads);
    team = threads;
}

void cf_cpu_threads_begin(cf_worker *worker) {
    /* Loops divide their work among the team that they ask for: it must be the one that they get. */
    const int most = omp_get_thread_limit();
    if (worker->threads > most) worker->threads = most;
    omp_set_dynamic(0);
    set_team(worker->threads);
}

void cf_cpu_threads_end(void) {
    cf_crowd_team(team, 0);
    team = 0;
}

void cf_cpu_make_team(cf_worker *worker) {
    const int wanted = worker->threads, got = cf_team_open(worker->made > 0 ? worker->made : 1, wanted, 1);
    worker->threads = worker->made = got;
    if (got == wanted) return;
    set_team(got);
    cf_log(1, "a device's team has %d thread%s instead of %d: the system makes no more threads", got,
           got == 1 ? "" : "s", wanted);
}
