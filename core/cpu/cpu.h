/* cpu.h: what the CPU backend's files share.
 *
 * Kernels lie in kernels/ and are compiled once for each instruction set (CF_ISA: base, avx2, avx512), with
 * names that end in it; backend.c picks one table when the first device is opened.  A kernel is called on its
 * device's worker thread and may use a team of worker->threads OpenMP threads.  Results must not depend on
 * chance: partial results lie on a fixed grid and are joined in order, never by an OpenMP reduction clause.
 */
#ifndef CF_CPU_CPU_H
#define CF_CPU_CPU_H

#include <string.h>

#include "base/status.h"
#include "device/backend.h"

#define CF_PASTE_(a, b) a##_##b
#define CF_PASTE(a, b) CF_PASTE_(a, b)
/* CF_K(sum) is cf_k_sum_avx2 in the AVX2 build. */
#define CF_K(name) CF_PASTE(cf_k_##name, CF_ISA)

extern const cf_kernel cf_cpu_kernels_base[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx2[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx512[CF_OPS];

/* The instruction set of the kernels that run here, for people. */
const char *cf_cpu_instructions(void);

/* Makes the threads of the worker's team, when a loop first needs them, and lowers worker->threads to as many as there
 * are. */
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

/* oneDNN's product, kept in core/cpu/dnnl.c: y [n, m] = (add ? y : 0) + a [n, k] b [k, m], batched over `batch`
 * with given batch strides (0 repeats); row and column strides of a and b, one of them 1; y row-major with row
 * stride ldy.  bias [m] or NULL; act: CF_OP_relu, _tanh, ... with parameters, or -1.  CFX_ESTATE: oneDNN has no
 * such product (the caller then takes its own loop). */
typedef struct cf_product {
    int dtype; /* of a, b and y: float32 or bfloat16 */
    int64_t batch, n, m, k;
    const void *a, *b, *bias;
    void *y;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, y_batch, y_row;
    int add, act;
    double p0, p1;
} cf_product;
cfx_status cf_dnnl_product(cf_worker *worker, const cf_product *product);
/* Whether cf_dnnl_product can fuse this activation. */
int cf_dnnl_fuses(int act);
/* The oneDNN state of a worker (engine, stream, cached primitives): made by thread_begin. */
cfx_status cf_dnnl_begin(cf_worker *worker);
void cf_dnnl_end(cf_worker *worker);

/* backend->about; about.c. */
void cf_cpu_about(int32_t device, char *text, size_t bytes);

#endif
