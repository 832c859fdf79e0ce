/* backend.c: the CPU as a device: memory, threads, and the choice of an instruction set. */
#include "cpu/backend.h"

#include <sys/mman.h>

#include "cpu/about.h"
#include "cpu/cpu.h"
#include "cpu/dnnl.h"
#include "cpu/kernels/table.h"
#include "cpu/machine.h"

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
    return cf_cpu_memory();
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

static cfx_status thread_begin(cf_worker *worker) {
    cf_cpu_threads_begin(worker);
    return worker->local ? CFX_OK : cf_dnnl_begin(worker);
}

static void thread_end(cf_worker *worker) {
    cf_cpu_threads_end();
    cf_dnnl_end(worker);
}

#define BACKEND(isa)                                                                                                \
    {                                                                                                               \
        .abi = CFX_ABI_VERSION, .name = "cpu", .host_memory = 1, .host_cores = 1, .count = count, .open = cpu_open, \
        .close = cpu_close, .memory = memory, .slab_new = slab_new, .slab_free = slab_free,                         \
        .thread_begin = thread_begin, .thread_end = thread_end, .kernels = cf_cpu_kernels_##isa,                    \
        .workspace = cf_cpu_workspace_##isa, .about = cf_cpu_about                                                  \
    }

const cf_backend *cf_backend_cpu(void) {
    static const cf_backend backends[CF_CPU_ISAS] = {
        [CF_CPU_BASE] = BACKEND(base),
#ifdef CF_HAVE_X86_ISAS
        [CF_CPU_AVX2] = BACKEND(avx2),
        [CF_CPU_AVX512] = BACKEND(avx512),
#endif
    };
    return &backends[cf_cpu_isa_here()];
}
