/* make.cuh: the rows of make.cu that other kernels begin or end with. */
#ifndef CF_CUDA_MAKE_CUH
#define CF_CUDA_MAKE_CUH

#include "cuda/kernel.cuh"

extern "C" cfx_status cf_cuda_copy(cf_worker *worker, const cf_call *call);
extern "C" cfx_status cf_cuda_fill(cf_worker *worker, const cf_call *call);

#endif
