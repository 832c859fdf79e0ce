/* backend.c: the CPU as a device: memory, threads, and the choice of an instruction set. */
#include <omp.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "cpu/crowd.h"
#include "cpu/team.h"

enum { HUGE_BYTES = 1 << 21 };

static int32_t count(char *why, size_t why_bytes) {
    (void)why;
    (void)why_bytes;
    return 1; /* and as many virtual ones as are asked for */
}

static cfx_status cpu_open(int32_t index, void **state) {
    (void)index;
    *state = NULL;
    return CFX_OK;
}

static void cpu_close(void *state) { (void)state; }

static size_t memory(void *state) {
    (void)state;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    return pages > 0 && page > 0 ? (size_t)pages * (size_t)page : SIZE_MAX;
}

/* mmap gives pages that are zero and not yet there: a large slab costs what is touched of it.  Slabs of whole huge
 * pages lie on their boundaries and ask for them: a step walks over all parameters and their gradients, and with
 * pages of 4 KiB spends a tenth of its time on their addresses (784-512-256-10 at batch 64 on two devices). */
static cfx_status slab_new(void *state, size_t bytes, void **out) {
    (void)state;
    const int huge = bytes % HUGE_BYTES == 0;
    const size_t room = huge ? bytes + HUGE_BYTES : bytes;
    char *slab = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (slab == MAP_FAILED) return cf_fail(CFX_EMEMORY, "the system has no %zu bytes", bytes);
    if (huge) {
        const size_t before = -(uintptr_t)slab % HUGE_BYTES;
        if (before) munmap(slab, before);
        munmap(slab + before + bytes, HUGE_BYTES - before);
        slab += before;
#ifdef MADV_HUGEPAGE
        madvise(slab, bytes, MADV_HUGEPAGE); /* a wish: without them it is slower */
#endif
    }
    *out = slab;
    return CFX_OK;
}

static void slab_free(void *state, void *slab, size_t bytes) {
    (void)state;
    munmap(slab, bytes);
}

/* The team of this thread's worker, as crowd.h knows it. */
static _Thread_local int team;

static void set_team(int threads) {
    omp_set_num_threads(threads); /* of this thread's teams, oneDNN's among them */
    cf_crowd_team(team, threads);
    team = threads;
}

void cf_cpu_make_team(cf_worker *worker) {
    const int wanted = worker->threads, got = cf_team_open(worker->made > 0 ? worker->made : 1, wanted, 1);
    worker->threads = worker->made = got;
    if (got == wanted) return;
    set_team(got);
    cf_log(1, "a device's team has %d thread%s instead of %d: the system makes no more threads", got,
           got == 1 ? "" : "s", wanted);
}

static cfx_status thread_begin(cf_worker *worker) {
    /* Loops divide their work among the team that they ask for: it must be the one that they get. */
    const int most = omp_get_thread_limit();
    if (worker->threads > most) worker->threads = most;
    omp_set_dynamic(0);
    set_team(worker->threads);
    return worker->local ? CFX_OK : cf_dnnl_begin(worker);
}

static void thread_end(cf_worker *worker) {
    cf_crowd_team(team, 0);
    team = 0;
    cf_dnnl_end(worker);
}

#define BACKEND(table)                                                                                                 \
    {                                                                                                                  \
        .abi = CFX_ABI_VERSION, .name = "cpu", .host_memory = 1, .count = count, .open = cpu_open, .close = cpu_close, \
        .memory = memory, .slab_new = slab_new, .slab_free = slab_free, .thread_begin = thread_begin,                  \
        .thread_end = thread_end, .kernels = (table), .about = cf_cpu_about                                            \
    }

static const cf_backend base = BACKEND(cf_cpu_kernels_base);
#ifdef CF_HAVE_X86_ISAS
static const cf_backend avx2 = BACKEND(cf_cpu_kernels_avx2);
static const cf_backend avx512 = BACKEND(cf_cpu_kernels_avx512);
#endif

const cf_backend *cf_backend_cpu(void) {
#ifdef CF_HAVE_X86_ISAS
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &avx512;
    /* who has AVX2 has F16C, which clang 14 cannot ask for */
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2")) return &avx2;
#endif
    return &base;
}

const char *cf_cpu_instructions(void) {
#ifdef CF_HAVE_X86_ISAS
    if (cf_backend_cpu() == &avx512) return "AVX-512";
    if (cf_backend_cpu() == &avx2) return "AVX2";
#endif
    return "baseline";
}
