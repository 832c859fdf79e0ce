/* machine.c: see machine.h. */
#include "cpu/machine.h"

#include <stdint.h>
#include <unistd.h>

cf_cpu_isa cf_cpu_isa_here(void) {
#ifdef CF_HAVE_X86_ISAS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return CF_CPU_AVX512;
    /* A CPU with AVX2 has F16C, too, for which clang 14 cannot ask. */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"))
        return CF_CPU_AVX2;
#endif
    return CF_CPU_BASE;
}

const char *cf_cpu_isa_name(cf_cpu_isa isa) {
    static const char *const names[CF_CPU_ISAS] = {"baseline", "AVX2", "AVX-512"};
    return names[isa];
}

size_t cf_cpu_memory(void) {
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
}
