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
#include "cpu/threads.h"
#include "device/backend.h"
#include "device/scratch.h"

#define CF_PASTE_(a, b) a##_##b
#define CF_PASTE(a, b) CF_PASTE_(a, b)
/* CF_K(sum) is cf_k_sum_avx2 in the AVX2 build. */
#define CF_K(name) CF_PASTE(cf_k_##name, CF_ISA)

extern const cf_kernel cf_cpu_kernels_base[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx2[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx512[CF_OPS];

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

#endif
