/* about.cu: what CUDA and its GPUs are, for people. */
#include "cuda/about.cuh"

#include <stdio.h>

#include "base/locale.h"
#include "cuda/conv.cuh"
#include "cuda/nccl.cuh"

#include <cublasLt.h> // after what the emulated one rests on

static void libraries(char *text, size_t bytes) {
    int runtime = 0, driver = 0; /* a failure leaves them as they are */
    cudaRuntimeGetVersion(&runtime);
    cudaDriverGetVersion(&driver);
    const size_t lt = cublasLtGetVersion();
    char with[32] = "no driver";
    if (driver > 0) snprintf(with, sizeof with, "driver for %d.%d", driver / 1000, driver % 1000 / 10);
    char nccl[160], cudnn[160];
    cf_cuda_nccl_about(nccl, sizeof nccl);
    cf_cuda_cudnn_about(cudnn, sizeof cudnn);
    snprintf(text, bytes, "CUDA runtime %d.%d, %s, cuBLASLt %d.%d.%d, %s, %s", runtime / 1000, runtime % 1000 / 10,
             with, (int)(lt / 10000), (int)(lt / 100 % 100), (int)(lt % 100), cudnn, nccl);
}

void cf_cuda_about(int32_t device, char *text, size_t bytes) {
    cudaDeviceProp p;
    if (device < 0) {
        libraries(text, bytes);
        return;
    }
    const cudaError_t error = cudaGetDeviceProperties(&p, device);
    if (error == cudaSuccess)
        cf_format(text, bytes, "%s, compute capability %d.%d, %.1f GiB", p.name, p.major, p.minor,
                  (double)p.totalGlobalMem / (1 << 30));
    else snprintf(text, bytes, "%s", cudaGetErrorString(error));
    cudaGetLastError(); /* the next call is not to blame */
}
