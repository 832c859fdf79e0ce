/* memory.cuh: GPU memory, and when it is given back.
 *
 * cudaFree waits until its GPU is idle.  The kernel of a collective that waits for another participant keeps it from
 * that, and the thread that waits may hold a lock of the driver that the participant needs in order to come.  So while a
 * collective is in flight on any queue of the process nothing is freed: memory goes on a list, and the first call here
 * that finds nothing in flight frees what is on it.  A collective begins only when no free is under way.
 */
#ifndef CF_CUDA_MEMORY_CUH
#define CF_CUDA_MEMORY_CUH

#ifdef CF_EMULATED
#include "emulated_runtime.h"
#else
#include <cuda_runtime.h>
#endif

/* The calling thread's GPU, and back again: it may be a program's that uses CUDA by itself. */
struct cf_cuda_here {
    int before;
    cudaError_t error;
    explicit cf_cuda_here(int index);
    ~cf_cuda_here();
};

/* From the calling thread's GPU; first it frees what is on the list, if it can. */
cudaError_t cf_cuda_malloc(size_t bytes, void **out);
/* Gives memory of a GPU, or pinned memory of the host, back as soon as no collective is in flight.  Cannot fail. */
void cf_cuda_free(int index, void *memory);
void cf_cuda_free_pinned(int index, void *memory);

/* A queue's part in a collective: there is none, or it is over; it is asked for; it is launched. */
enum cf_cuda_flight_state { CF_CUDA_LANDED, CF_CUDA_JOINS, CF_CUDA_FLIES };
struct cf_cuda_flight {
    int index;           /* of the queue's GPU */
    cudaStream_t stream; /* the queue's */
    cf_cuda_flight_state state;
    cf_cuda_flight *next;
};

/* Says how far a part is.  CF_CUDA_JOINS comes before the launch, and waits until no memory is being freed. */
void cf_cuda_flight_is(cf_cuda_flight *flight, cf_cuda_flight_state state);

#endif
