/* table.c: the kernel of each row, for one instruction set.  A row without one fails to link. */
#include "cpu/kernels/table.h"

#include "cpu/cpu.h"

/* Elementwise rows share one engine, and so do reductions and losses. */
#define CF_ENGINE_UNARY(name) CF_K(elementwise)
#define CF_ENGINE_BINARY(name) CF_K(elementwise)
#define CF_ENGINE_TERNARY(name) CF_K(elementwise)
#define CF_ENGINE_REDUCE(name) CF_K(reduce)
#define CF_ENGINE_LOSS(name) CF_K(loss)
#define CF_ENGINE_OTHER(name) CF_K(name)

#define CF_OP(name, family, ...) cfx_status CF_ENGINE_##family(name)(cf_worker * worker, const cf_call *call);
#include "device/ops.def"
#undef CF_OP

extern const cf_kernel CF_PASTE(cf_cpu_kernels, CF_ISA)[CF_OPS];
const cf_kernel CF_PASTE(cf_cpu_kernels, CF_ISA)[CF_OPS] = {
#define CF_OP(name, family, ...) [CF_OP_##name] = CF_ENGINE_##family(name),
#include "device/ops.def"
#undef CF_OP
};

#define WORKSPACES(ROW) ROW(permutation) ROW(topk) ROW(sort) ROW(prod_bw)

#define DECLARE(name) size_t CF_K(name##_workspace)(const cf_call *call);
WORKSPACES(DECLARE)

cf_workspace CF_PASTE(cf_cpu_workspace, CF_ISA)(cf_op op) {
    switch (op) {
#define CASE(name) \
    case CF_OP_##name: return CF_K(name##_workspace);
        WORKSPACES(CASE)
    default: return NULL;
    }
}
