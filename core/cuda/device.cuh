/* device.cuh: a GPU as core/cuda keeps it: streams, marks, memory.  backend.cu makes it, product.cu adds to it. */
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
    struct cf_cuda_group *joined; /* nccl.cu's: of the collective launched last, until its kernel has run */
    int rank;
    uint64_t joined_ticket;                      /* that collective's */
    uint64_t covering;                           /* the first mark after it; UINT64_MAX: it is not launched yet */
    std::chrono::steady_clock::time_point since; /* it was launched, or something of the queue ran */
};

/* What backend->open makes, one a (virtual) device.  `shared` is what kernels see, worker->local. */
struct cf_cuda_device {
    cf_cuda shared;
    int index, selected;
    size_t memory;   /* bytes that it has */
    uint64_t *words; /* of device memory: the queues' halts, and what they receive */
    cf_cuda_queue queue[CF_QUEUES];
    struct cf_cuda_products *products; /* product.cu's */
};

static inline cf_cuda_device *cf_cuda_device_of(const cf_worker *worker) { return (cf_cuda_device *)worker->state; }

/* halt.cu.  Queue q goes on, from `ticket` on, behind these tickets of other queues; or behind a collective. */
cfx_status cf_cuda_inherit(cf_worker *worker, int q, uint64_t ticket, int n, const cf_source *all);
cfx_status cf_cuda_inherit_received(cf_worker *worker, int q);

void cf_cuda_about(int32_t device, char *text, size_t bytes);
void cf_cuda_nccl_about(char *text, size_t bytes); /* its version, or why there is none */

/* nccl.cu: fails, on all its devices, a collective of queue q that a participant left alone, or that NCCL gave up;
 * *faulted is then its ticket. */
cfx_status cf_cuda_joined_watch(cf_cuda_device *device, int q, bool progressed, uint64_t *faulted);
/* The queue's collective is over, or will not come to an end. */
void cf_cuda_joined_over(cf_cuda_queue *queue);
/* Ends the groups of a device that closes. */
void cf_cuda_joined_end(cf_cuda_device *device);

cfx_status cf_cuda_products_begin(cf_cuda_device *device);
void cf_cuda_products_end(cf_cuda_device *device);

#endif
