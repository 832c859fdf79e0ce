/* device.cu: what kernels ask of their device: whether CUDA failed, and scratch memory.  See device.cuh. */
#include "cuda/device.cuh"

#include <new>

cfx_status cf_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return CFX_OK;
    cudaGetLastError(); /* the next call is not to blame */
    if (error == cudaErrorMemoryAllocation) return cf_fail(CFX_EMEMORY, "CUDA has no memory left: %s", what);
    return cf_fail(CFX_EFAULT, "CUDA: %s: %s", what, cudaGetErrorString(error));
}

cfx_status cf_cuda_launched(const char *what) { return cf_cuda_check(cudaGetLastError(), what); }

/* Kernels launched before may still use the old memory: it goes once they have run. */
static cfx_status grow_scratch(cf_cuda_queue *queue, size_t bytes) {
    void *memory;
    cf_cuda_outgrown *old = new (std::nothrow) cf_cuda_outgrown{queue->outgrown, queue->scratch, queue->ticket};
    if (!old) return cf_fail(CFX_EMEMORY, "out of host memory: a list of scratch memory");
    const cfx_status status = cf_cuda_check(cf_cuda_malloc(bytes, &memory), "scratch memory");
    if (status != CFX_OK) {
        delete old;
        return status;
    }
    queue->outgrown = old;
    queue->scratch = memory;
    queue->scratch_bytes = bytes;
    return CFX_OK;
}

void *cf_cuda_scratch(cf_worker *worker, size_t bytes) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    cf_cuda_queue *queue = &device->queue[device->selected];
    const size_t least = bytes > 0 ? bytes : 1; /* a call of nothing gets memory, too */
    if (least > queue->scratch_bytes && grow_scratch(queue, least + least / 2) != CFX_OK) return NULL;
    return queue->scratch;
}

void cf_cuda_free_outgrown(cf_cuda_queue *queue, uint64_t ticket) {
    for (cf_cuda_outgrown **at = &queue->outgrown; *at;) {
        cf_cuda_outgrown *old = *at;
        if (old->ticket > ticket) {
            at = &old->next;
            continue;
        }
        *at = old->next;
        cf_cuda_free(queue->flight.index, old->memory);
        delete old;
    }
}
