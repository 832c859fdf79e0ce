/* emulated_runtime.h: the part of CUDA's runtime that core/cuda uses, on the host: GPUs whose streams are threads;
 * CONFLUX_EMULATED_GPUS of them, or one, which reach each other's memory if CONFLUX_EMULATED_PEERS is set.
 *
 * What does not wait for an event may so come too early or too late, as it may on a GPU.  CONFLUX_EMULATED_DELAY=N
 * makes a stream now and then sleep for up to N microseconds, so that it does.
 */
#ifndef CF_EMULATED_RUNTIME_H
#define CF_EMULATED_RUNTIME_H

#include <stdlib.h>
#include <string.h>

#include <functional>

typedef enum cudaError_t {
    cudaSuccess,
    cudaErrorMemoryAllocation,
    cudaErrorNotReady,
    cudaErrorPeerAccessAlreadyEnabled,
    cudaErrorUnknown
} cudaError_t;
/* What others need of a stream: a door for work, which it does in order. */
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

cudaError_t cf_emulated_memory(void **out, size_t bytes);
void cf_emulated_free(void *p); /* behind all streams */
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t) { return "an emulated error"; }
static inline cudaError_t cudaGetDeviceCount(int *n) {
    const char *gpus = getenv("CONFLUX_EMULATED_GPUS");
    return *n = gpus ? atoi(gpus) : 1, cudaSuccess;
}
static inline cudaError_t cudaDeviceCanAccessPeer(int *can, int, int) {
    return *can = getenv("CONFLUX_EMULATED_PEERS") != NULL, cudaSuccess;
}
static inline cudaError_t cudaDeviceEnablePeerAccess(int, int) { return cudaErrorPeerAccessAlreadyEnabled; }
static inline cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 0, cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int *version) { return *version = 0, cudaSuccess; }
struct cudaDeviceProp {
    char name[256];
    int major, minor;
    size_t totalGlobalMem;
};
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    return *p = cudaDeviceProp{"a CPU that pretends to be a GPU", 0, 0, (size_t)4 << 30}, cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaMemset(void *to, int value, size_t bytes) {
    return memset(to, value, bytes), cudaSuccess;
}
static inline cudaError_t cudaDeviceSynchronize(void) { return cudaSuccess; } /* here the host's own work is done */
static inline cudaError_t cudaDeviceGetAttribute(int *value, int, int) { return *value = 4, cudaSuccess; }
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    return *available = *total = (size_t)4 << 30, cudaSuccess;
}
template <class T> cudaError_t cudaMalloc(T **out, size_t bytes) { return cf_emulated_memory((void **)out, bytes); }
static inline cudaError_t cudaHostAlloc(void **out, size_t bytes, int) { return cf_emulated_memory(out, bytes); }
static inline cudaError_t cudaFree(void *p) { return cf_emulated_free(p), cudaSuccess; }
static inline cudaError_t cudaFreeHost(void *p) { return cf_emulated_free(p), cudaSuccess; }

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, int);
cudaError_t cudaStreamDestroy(cudaStream_t stream);
cudaError_t cudaStreamSynchronize(cudaStream_t stream);
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int);
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, int);
cudaError_t cudaEventDestroy(cudaEvent_t event);
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream);
cudaError_t cudaEventQuery(cudaEvent_t event);
/* Memory of the host is cudaHostAlloc's: what else core/cuda may not copy asynchronously. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);

#endif
