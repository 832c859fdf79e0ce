/* threads.h: the threads that the loops of a worker's kernels run on: an OpenMP team of the worker's thread. */
#ifndef CF_CPU_THREADS_H
#define CF_CPU_THREADS_H

#include "device/backend.h"

/* On the worker's thread: its loops run on worker->threads threads from here on, or on as many as OpenMP allows.  They
 * are made when a loop first needs them. */
void cf_cpu_threads_begin(cf_worker *worker);
void cf_cpu_threads_end(void);

/* Makes the threads of the worker's team, and lowers worker->threads to as many as there are. */
void cf_cpu_make_team(cf_worker *worker);

/* How many threads a loop of `work` elementary steps is worth: one, or where two had CF_GRAIN steps each, all.  Never
 * some: libgomp ends the threads that a smaller team leaves over, and makes new ones for the next larger team. */
enum { CF_GRAIN = 16384 };
static inline int cf_cpu_team(cf_worker *worker, int64_t work) {
    if (work / CF_GRAIN < 2) return 1;
    if (worker->made != worker->threads) cf_cpu_make_team(worker);
    return worker->threads;
}

/* The part [*from, *to) of n items that thread `t` of `team` takes; parts are multiples of `unit` but the last. */
static inline void cf_cpu_share(int64_t n, int64_t unit, int team, int t, int64_t *from, int64_t *to) {
    const int64_t units = (n + unit - 1) / unit, a = units * t / team, b = units * (t + 1) / team;
    *from = a * unit < n ? a * unit : n;
    *to = b * unit < n ? b * unit : n;
}

#endif
