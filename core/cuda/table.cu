/* table.cu: the kernel of each row.  A row without one fails to link. */
#include "cuda/table.cuh"

#define CF_ENGINE_UNARY(name) cf_cuda_elementwise
#define CF_ENGINE_BINARY(name) cf_cuda_elementwise
#define CF_ENGINE_TERNARY(name) cf_cuda_elementwise
#define CF_ENGINE_REDUCE(name) cf_cuda_reduce
#define CF_ENGINE_LOSS(name) cf_cuda_loss
#define CF_ENGINE_OTHER(name) cf_cuda_##name

extern "C" {
#define CF_OP(name, family, ...) cfx_status CF_ENGINE_##family(name)(cf_worker * worker, const cf_call *call);
#include "device/ops.def"
#undef CF_OP
const cf_kernel cf_cuda_kernels[CF_OPS] = {
#define CF_OP(name, family, ...) CF_ENGINE_##family(name),
#include "device/ops.def"
#undef CF_OP
};

#define WORKSPACES(ROW) ROW(permutation) ROW(topk) ROW(sort) ROW(index_add) ROW(scatter_add) ROW(prod_bw)

#define DECLARE(name) size_t cf_cuda_##name##_workspace(const cf_call *call);
WORKSPACES(DECLARE)

cf_workspace cf_cuda_workspace(cf_op op) {
    switch (op) {
#define CASE(name) \
    case CF_OP_##name: return cf_cuda_##name##_workspace;
        WORKSPACES(CASE)
    default: return NULL;
    }
}
}
