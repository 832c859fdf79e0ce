/* emulated_runtime.h: the part of CUDA's runtime that core/cuda uses, on the host: GPUs whose streams are threads;
 * CONFLUX_EMULATED_GPUS of them, or one, which reach each other's memory if CONFLUX_EMULATED_PEERS is set.  Each has
 * CONFLUX_EMULATED_MEMORY bytes, or 4 GiB.
 *
 * Kernels and events of one GPU are refused on a stream of another.
 * Work that does not wait for an event may so come too early or too late, as on a GPU.  CONFLUX_EMULATED_DELAY=N
 * makes a stream now and then sleep for up to N microseconds, so that it does.  See fails.h for calls that fail.
 * The file that CONFLUX_EMULATED_COUNTS names gets, at the process's end, how often each kernel was launched, how often
 * events were recorded and asked for, how often a stream was made to wait, for the same thing again, too, which
 * priorities streams have, and the host thread's GPU.
 */
#ifndef CF_EMULATED_RUNTIME_H
#define CF_EMULATED_RUNTIME_H

#include <stdlib.h>
#include <string.h>

#include <functional>

#include "fails.h"

typedef enum cudaError_t {
    cudaSuccess,
    cudaErrorMemoryAllocation,
    cudaErrorNotReady,
    cudaErrorPeerAccessAlreadyEnabled,
    cudaErrorInvalidResourceHandle,
    cudaErrorUnknown
} cudaError_t;
/* A stream, for other files: a door for work, which it does in order. */
struct cf_emulated_stream {
    void (*give)(cf_emulated_stream *stream, std::function<void()> work);
};
typedef struct cf_emulated_stream *cudaStream_t;
typedef struct cf_emulated_event *cudaEvent_t;
enum {
    cudaDevAttrMultiProcessorCount,
    cudaHostAllocMapped = 1,
    cudaHostAllocPortable = 2,
    cudaStreamNonBlocking,
    cudaEventDisableTiming
};
enum { cudaMemcpyDefault };

cudaError_t cf_emulated_malloc(void **out, size_t bytes);
cudaError_t cf_emulated_host_alloc(void **out, size_t bytes);
void cf_emulated_free(void *p);                    /* behind the streams of its GPU; of the host's: behind all */
size_t cf_emulated_room(void);                     /* bytes that a GPU has */
extern thread_local cudaError_t cf_emulated_error; /* of this thread's last call that failed */
static inline cudaError_t cf_emulated_fail(cudaError_t error) { return cf_emulated_error = error; }
#define CF_MAY_FAIL \
    if (cf_emulated_fails(__func__)) return cf_emulated_fail(cudaErrorUnknown)

static inline cudaError_t cudaGetLastError(void) {
    const cudaError_t error = cf_emulated_error;
    return cf_emulated_error = cudaSuccess, error;
}
static inline const char *cudaGetErrorString(cudaError_t error) {
    return error == cudaErrorInvalidResourceHandle ? "a stream of another GPU" : "an emulated error";
}
static inline cudaError_t cudaGetDeviceCount(int *n) {
    CF_MAY_FAIL;
    const char *gpus = getenv("CONFLUX_EMULATED_GPUS");
    return *n = gpus ? atoi(gpus) : 1, cudaSuccess;
}
static inline cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    CF_MAY_FAIL;
    return *can = getenv("CONFLUX_EMULATED_PEERS") != NULL, cudaSuccess;
}
static inline cudaError_t cudaDeviceEnablePeerAccess(int, int) {
    CF_MAY_FAIL;
    return cudaErrorPeerAccessAlreadyEnabled;
}
static inline cudaError_t cudaRuntimeGetVersion(int *version) {
    CF_MAY_FAIL;
    return *version = 0, cudaSuccess;
}
static inline cudaError_t cudaDriverGetVersion(int *version) {
    CF_MAY_FAIL;
    return *version = 0, cudaSuccess;
}
struct cudaDeviceProp {
    char name[256];
    int major, minor;
    size_t totalGlobalMem;
};
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    CF_MAY_FAIL;
    return *p = cudaDeviceProp{"a CPU that pretends to be a GPU", 0, 0, cf_emulated_room()}, cudaSuccess;
}
extern thread_local int cf_emulated_device;
static inline cudaError_t cudaSetDevice(int device) {
    CF_MAY_FAIL;
    return cf_emulated_device = device, cudaSuccess;
}
static inline cudaError_t cudaGetDevice(int *device) {
    CF_MAY_FAIL;
    return *device = cf_emulated_device, cudaSuccess;
}
static inline cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    CF_MAY_FAIL;
    return memset(to, value, bytes), cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize(void) { /* here the host's own work is done */
    CF_MAY_FAIL;
    return cudaSuccess;
}
static inline cudaError_t cudaDeviceGetAttribute(int *value, int, int) {
    CF_MAY_FAIL;
    return *value = 4, cudaSuccess;
}
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    CF_MAY_FAIL;
    return *available = *total = cf_emulated_room(), cudaSuccess;
}
template <class T> cudaError_t cudaMalloc(T **out, size_t bytes) {
    CF_MAY_FAIL;
    return cf_emulated_malloc((void **)out, bytes);
}
static inline cudaError_t cudaHostAlloc(void **out, size_t bytes, int) {
    CF_MAY_FAIL;
    return cf_emulated_host_alloc(out, bytes);
}
static inline cudaError_t cudaFree(void *p) {
    CF_MAY_FAIL;
    return cf_emulated_free(p), cudaSuccess;
}
static inline cudaError_t cudaFreeHost(void *p) {
    CF_MAY_FAIL;
    return cf_emulated_free(p), cudaSuccess;
}

/* A GPU has as many priorities as most have; a smaller number goes first.  Here it changes nothing. */
static inline cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest) {
    CF_MAY_FAIL;
    return *least = 0, *greatest = -5, cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, int flags, int priority);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamQuery(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, int);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
/* Memory of the host is cudaHostAlloc's: what else core/cuda may not copy asynchronously. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);

#endif
