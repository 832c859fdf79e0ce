/* elementwise.cuh: the engine of the UNARY, BINARY and TERNARY rows, for kernels that end in one. */
#ifndef CF_CUDA_ELEMENTWISE_CUH
#define CF_CUDA_ELEMENTWISE_CUH

#include "cuda/kernel.cuh"

extern "C" cfx_status cf_cuda_elementwise(cf_worker *worker, const cf_call *call);

#endif
