/* conv.cuh: convolutions; cudnn_none.cu takes the place of conv.cu where there is no cuDNN to build with. */
#ifndef CF_CUDA_CONV_CUH
#define CF_CUDA_CONV_CUH

#include "cuda/device.cuh"

/* cuDNN's version, or why there is none. */
void cf_cuda_cudnn_about(char *text, size_t bytes);

/* Ends device->convolutions, which the first convolution begins. */
void cf_cuda_convolutions_end(cf_cuda_device *device);

#endif
