/* matmul.cuh: what products keep with a device: cuBLASLt's handle and workspaces, and its plans. */
#ifndef CF_CUDA_MATMUL_CUH
#define CF_CUDA_MATMUL_CUH

#include "cuda/device.cuh"

/* device->products; of a failure the device keeps what was made so far. */
cfx_status cf_cuda_products_begin(cf_cuda_device *device);
void cf_cuda_products_end(cf_cuda_device *device);

#endif
