/* isas.h: the CPU's kernels, compiled for each instruction set that this machine has. */
#ifndef CF_TEST_ISAS_H
#define CF_TEST_ISAS_H

#include "cpu/cpu.h"

typedef struct isa {
    const char *name;
    const cf_kernel *kernels;
} isa;

/* How many there are, from the oldest on.  A sanitizer, which makes all of them several times slower, looks at their
 * source, which is one: it has the last alone. */
static inline int isas_here(isa list[3]) {
    int n = 0;
    list[n++] = (isa){"base", cf_cpu_kernels_base};
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) list[n++] = (isa){"avx2", cf_cpu_kernels_avx2};
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list[n++] = (isa){"avx512", cf_cpu_kernels_avx512};
#endif
    if (SANITIZED) {
        list[0] = list[n - 1];
        n = 1;
    }
    return n;
}

#endif
