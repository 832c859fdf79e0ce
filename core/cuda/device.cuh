/* device.cuh: a GPU as core/cuda keeps it: streams, marks, scratch.  backend.cu makes it, product.cu adds to it. */
#ifndef CF_CUDA_DEVICE_CUH
#define CF_CUDA_DEVICE_CUH

#include <chrono>
#include <mutex>

#include "cuda/kernel.cuh"
#ifdef CF_EMULATED
#include "emulated_runtime.h"
#endif

enum { CF_CUDA_QUEUES = 2, CF_CUDA_MARKS = 1024 };

/* Fails with what CUDA says of `what`. */
cfx_status cf_cuda_check(cudaError_t error, const char *what);
#define CF_CUDA(call) CF_TRY(cf_cuda_check((call), #call))

/* One queue's stream, and its marks that have not happened yet, in order.  Workers of other devices follow marks. */
struct cf_cuda_queue {
    cudaStream_t stream;
    std::mutex lock;
    struct {
        uint64_t ticket;
        cudaEvent_t event;
    } marks[CF_CUDA_MARKS]; /* a ring: [head, tail) */
    uint64_t head, tail, done;
    cf_cuda_fault *faults; /* [CF_LAUNCH_AHEAD], by ticket: host memory that the device writes */
    volatile int32_t *some;
    void *scratch;
    size_t scratch_bytes;
    struct cf_cuda_group *joined; /* nccl.cu's: of the collective launched last, until its kernel has run */
    int rank;
    uint64_t covering;                           /* the first mark after it; UINT64_MAX: it is not launched yet */
    std::chrono::steady_clock::time_point since; /* it was launched, or something of the queue ran */
};

/* What the (virtual) devices of one context on one GPU share: a word of device memory that keeps updates off while a
 * fault is not known to the host. */
struct cf_cuda_halt {
    cf_cuda_halt *next;
    const void *run;
    int index, owners;
    int32_t *word;
};

/* What backend->open makes, one a (virtual) device.  `shared` is what kernels see, worker->local. */
struct cf_cuda_device {
    cf_cuda shared;
    int index, selected;
    cf_cuda_halt *halt;
    cf_cuda_queue queue[CF_CUDA_QUEUES];
    struct cf_cuda_products *products; /* product.cu's */
};

static inline cf_cuda_device *cf_cuda_device_of(const cf_worker *worker) { return (cf_cuda_device *)worker->state; }

void cf_cuda_about(int32_t device, char *text, size_t bytes);
void cf_cuda_nccl_about(char *text, size_t bytes); /* its version, or why there is none */

/* nccl.cu: fails, on all its devices, a collective of queue q that a participant left alone, or that NCCL gave up. */
cfx_status cf_cuda_joined_watch(cf_cuda_device *device, int q, bool progressed);
/* Ends the groups of a device that closes. */
void cf_cuda_joined_end(cf_cuda_device *device);

cfx_status cf_cuda_products_begin(cf_cuda_device *device);
void cf_cuda_products_end(cf_cuda_device *device);

#endif
