/* emulated_runtime.h: the part of CUDA's runtime that core/cuda uses, on the host: one GPU whose streams are threads.
 *
 * What does not wait for an event may so come too early or too late, as it may on a GPU.  CONFLUX_EMULATED_DELAY=N
 * makes a stream now and then sleep for up to N microseconds, so that it does.
 */
#ifndef CF_EMULATED_RUNTIME_H
#define CF_EMULATED_RUNTIME_H

#include <stdlib.h>
#include <string.h>

typedef enum cudaError_t { cudaSuccess, cudaErrorMemoryAllocation, cudaErrorNotReady, cudaErrorUnknown } cudaError_t;
typedef struct cf_emulated_stream *cudaStream_t;
typedef struct cf_emulated_event *cudaEvent_t;
enum { cudaDevAttrMultiProcessorCount, cudaHostAllocMapped, cudaStreamNonBlocking, cudaEventDisableTiming };
enum { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost };

cudaError_t cf_emulated_memory(void **out, size_t bytes, bool pinned);
void cf_emulated_free(void *p); /* behind all streams */
static inline cudaError_t cudaGetLastError(void) { return cudaSuccess; }
static inline const char *cudaGetErrorString(cudaError_t) { return "an emulated error"; }
static inline cudaError_t cudaGetDeviceCount(int *n) { return *n = 1, cudaSuccess; }
static inline cudaError_t cudaRuntimeGetVersion(int *version) { return *version = 0, cudaSuccess; }
static inline cudaError_t cudaDriverGetVersion(int *version) { return *version = 0, cudaSuccess; }
static inline size_t cublasLtGetVersion(void) { return 0; }
struct cudaDeviceProp {
    char name[256];
    int major, minor;
    size_t totalGlobalMem;
};
static inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp *p, int) {
    return *p = cudaDeviceProp{"a CPU that pretends to be a GPU", 0, 0, (size_t)4 << 30}, cudaSuccess;
}
static inline cudaError_t cudaSetDevice(int) { return cudaSuccess; }
static inline cudaError_t cudaDeviceGetAttribute(int *value, int, int) { return *value = 4, cudaSuccess; }
static inline cudaError_t cudaMemGetInfo(size_t *available, size_t *total) {
    return *available = *total = (size_t)4 << 30, cudaSuccess;
}
template <class T> cudaError_t cudaMalloc(T **out, size_t bytes) {
    return cf_emulated_memory((void **)out, bytes, false);
}
static inline cudaError_t cudaHostAlloc(void **out, size_t bytes, int) { return cf_emulated_memory(out, bytes, true); }
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
/* Memory of the host that cudaHostAlloc did not make is read before this returns, or has been written. */
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream);

#endif
