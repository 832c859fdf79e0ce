/* halt.cuh: what keeps updates off while a fault is not known to the host. */
#ifndef CF_CUDA_HALT_CUH
#define CF_CUDA_HALT_CUH

#include "cuda/device.cuh"

/* Queue q goes on, from `ticket` on, behind these tickets of other queues; or behind a collective. */
cfx_status cf_cuda_inherit(cf_worker *worker, int q, uint64_t ticket, int n, const cf_source *all);
cfx_status cf_cuda_inherit_received(cf_worker *worker, int q);

#endif
