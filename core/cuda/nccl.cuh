/* nccl.cuh: the link between GPUs; nccl_none.cu takes the place of nccl.cu where there is no NCCL to build with. */
#ifndef CF_CUDA_NCCL_CUH
#define CF_CUDA_NCCL_CUH

#include "cuda/device.cuh"

extern const cf_link cf_cuda_nccl;

/* NCCL's version, or why there is none. */
void cf_cuda_nccl_about(char *text, size_t bytes);

/* Fails, on all its devices, a collective of queue q that a participant left alone, or that NCCL gave up; *faulted is
 * then its ticket. */
cfx_status cf_cuda_joined_watch(cf_cuda_device *device, int q, bool progressed, uint64_t *faulted);
/* The queue's collective is over, or will not come to an end. */
void cf_cuda_joined_over(cf_cuda_queue *queue);
/* Ends the groups of a device that closes. */
void cf_cuda_joined_end(cf_cuda_device *device);

#endif
