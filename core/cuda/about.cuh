/* about.cuh: what CUDA and its GPUs are, for people. */
#ifndef CF_CUDA_ABOUT_CUH
#define CF_CUDA_ABOUT_CUH

#include <stddef.h>
#include <stdint.h>

/* backend->about. */
void cf_cuda_about(int32_t device, char *text, size_t bytes);

#endif
