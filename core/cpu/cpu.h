/* cpu.h: what the CPU backend's files share.
 *
 * Kernels lie in kernels/ and are compiled once for each instruction set (CF_ISA: base, avx2, avx512), with
 * names that end in it; backend.c picks one table when the first device is opened.  A kernel is called on its
 * device's worker thread and may use a team of worker->threads OpenMP threads.  Results must not depend on
 * chance: partial results lie on a fixed grid and are merged in order, never by an OpenMP reduction clause.
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

#endif
