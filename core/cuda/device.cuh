/* device.cuh: a GPU as core/cuda keeps it: streams, marks, memory.  backend.cu makes it, matmul.cu, conv.cu and nccl.cu add
 * to it what they alone know. */
#ifndef CF_CUDA_DEVICE_CUH
#define CF_CUDA_DEVICE_CUH

#include <chrono>
#include <mutex>

#include "cuda/kernel.cuh"
#include "cuda/memory.cuh"

enum { CF_CUDA_MARKS = 1024, CF_CUDA_SOURCES = 32 };

/* Fails with what CUDA says of `what`. */
cfx_status cf_cuda_check(cudaError_t error, const char *what);
#define CF_CUDA(call) CF_TRY(cf_cuda_check((call), #call))

/* Scratch memory that was too small, and that commands up to `ticket` may still use. */
struct cf_cuda_outgrown {
    cf_cuda_outgrown *next;
    void *memory;
    uint64_t ticket;
};

/* One queue's stream, and its marks that have not happened yet, in order.  Workers of other devices follow marks. */
struct cf_cuda_queue {
    cudaStream_t stream;
    std::mutex lock;
    struct {
        uint64_t ticket;
        cudaEvent_t event;
    } marks[CF_CUDA_MARKS]; /* a ring: [head, tail) */
    uint64_t head, tail, done;
    uint64_t lost;   /* a ticket that could not be marked: the stream itself is asked for it; 0: none */
    uint64_t ticket; /* of the command that runs */
    cf_cuda_halt halt;
    uint64_t *received;    /* of device memory: the word of a collective's participants together */
    cf_cuda_fault *faults; /* [CF_LAUNCH_AHEAD], by ticket: host memory that the device writes */
    volatile int32_t *some;
    void *scratch;
    size_t scratch_bytes;
    cf_cuda_outgrown *outgrown;
    cf_cuda_flight flight;
    void *joined; /* nccl.cu's: the group of the collective launched last, until its kernel has run */
    int rank;
    uint64_t joined_ticket, sequence;            /* that collective's */
    uint64_t covering;                           /* the first mark after it; UINT64_MAX: it is not launched yet */
    std::chrono::steady_clock::time_point since; /* it was launched, or something of the queue ran */
};

/* backend->open makes one for each (virtual) device.  `shared` is what kernels see, worker->local. */
struct cf_cuda_device {
    cf_cuda shared;
    int index, selected;
    size_t memory;   /* bytes that it has */
    uint64_t *words; /* of device memory: the queues' halts, and what they receive */
    cf_cuda_queue queue[CF_QUEUES];
    void *products;     /* matmul.cu's */
    void *convolutions; /* conv.cu's */
};

/* Frees the queue's scratch memory that was too small and that only commands up to `ticket` use. */
void cf_cuda_free_outgrown(cf_cuda_queue *queue, uint64_t ticket);

static inline cf_cuda_device *cf_cuda_device_of(const cf_worker *worker) { return (cf_cuda_device *)worker->state; }

#endif
