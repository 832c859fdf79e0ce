/* table.cuh: CUDA's kernels, and their workspaces, by row. */
#ifndef CF_CUDA_TABLE_CUH
#define CF_CUDA_TABLE_CUH

#include "cuda/kernel.cuh"

extern "C" const cf_kernel cf_cuda_kernels[CF_OPS];
extern "C" cf_workspace cf_cuda_workspace(cf_op op);

#endif
