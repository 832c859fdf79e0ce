/* isas.h: the CPU's kernels, compiled for each instruction set that this machine has. */
#ifndef CF_TEST_ISAS_H
#define CF_TEST_ISAS_H

#include "cpu/cpu.h"
#include "cpu/kernels/table.h"

typedef struct isa {
    const char *name;
    const cf_kernel *kernels;
    cf_workspace (*workspace)(cf_op op);
} isa;

/* Runs a call as a command would: with a workspace, if it asks for one, that is gone when it has run. */
static inline cfx_status run_row(const isa *of, cf_worker *worker, cf_call *call) {
    const cf_workspace bytes_of = of->workspace((cf_op)call->op);
    call->threads = (uint16_t)worker->threads;
    const size_t bytes = bytes_of ? bytes_of(call) : 0;
    call->workspace = bytes ? malloc(bytes) : NULL;
    if (bytes) memset(call->workspace, 0xA5, bytes); /* a kernel finds no zeros there */
    const cfx_status status = of->kernels[call->op](worker, call);
    free(call->workspace);
    return status;
}

/* How many there are, from the oldest on.  A sanitizer's build has one. */
static inline int isas_here(isa list[3]) {
    int n = 0;
    list[n++] = (isa){"base", cf_cpu_kernels_base, cf_cpu_workspace_base};
#if defined(__x86_64__) && !SANITIZED
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        list[n++] = (isa){"avx2", cf_cpu_kernels_avx2, cf_cpu_workspace_avx2};
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list[n++] = (isa){"avx512", cf_cpu_kernels_avx512, cf_cpu_workspace_avx512};
#endif
    return n;
}

#endif
