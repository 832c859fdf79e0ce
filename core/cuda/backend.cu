/* backend.cu: NVIDIA GPUs as devices: memory, streams, marks.
 *
 * Each device has a stream for each of its two queues; virtual devices of one GPU have streams of their own.  Where both
 * have kernels for the GPU those of the communication stream go first, because other GPUs wait for them.  A mark is a
 * cudaEvent; events are reused once they have happened.  Nothing here waits for the GPU.
 */
#include <stdio.h>

#include <new>

#include "cuda/about.cuh"
#include "cuda/conv.cuh"
#include "cuda/halt.cuh"
#include "cuda/matmul.cuh"
#include "cuda/nccl.cuh"
#include "cuda/table.cuh"

/* ---- devices ------------------------------------------------------------------------------------------------ */

static int32_t cuda_count(char *why, size_t why_bytes) {
    int n = 0; /* a failure leaves it as it is */
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) return n;
    cudaGetLastError();
    snprintf(why, why_bytes, "%s", error == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(error));
    return 0;
}

static void cuda_close(void *state) {
    cf_cuda_device *device = (cf_cuda_device *)state;
    const cf_cuda_here here(device->index);
    cf_cuda_joined_end(device);
    cf_cuda_products_end(device);
    cf_cuda_convolutions_end(device);
    for (int q = 0; q < CF_QUEUES; q++) {
        cf_cuda_queue *queue = &device->queue[q];
        for (int k = 0; k < CF_CUDA_MARKS; k++)
            if (queue->marks[k].event) cudaEventDestroy(queue->marks[k].event);
        cf_cuda_flight_is(&queue->flight, CF_CUDA_LANDED);
        if (queue->stream) cudaStreamDestroy(queue->stream);
        cf_cuda_free_outgrown(queue, UINT64_MAX);
        cf_cuda_free(device->index, queue->scratch);
        cf_cuda_free_pinned(device->index, queue->faults);
    }
    cf_cuda_free(device->index, device->words);
    cudaGetLastError(); /* an error in freeing is no business of the next call */
    delete device;
}

/* With unified addresses the device knows what lies here by the same address. */
static cfx_status open_faults(cf_cuda_queue *queue, uint64_t *words) {
    void *memory;
    const size_t bytes = CF_LAUNCH_AHEAD * sizeof(cf_cuda_fault) + sizeof(uint64_t) + sizeof(int32_t);
    CF_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(memory, 0, bytes);
    queue->faults = (cf_cuda_fault *)memory;
    queue->halt.shown = (uint64_t *)(queue->faults + CF_LAUNCH_AHEAD);
    queue->halt.word = words;
    queue->received = words + 1;
    int32_t *some = (int32_t *)(queue->halt.shown + 1);
    queue->some = some;
    for (int k = 0; k < CF_LAUNCH_AHEAD; k++) {
        queue->faults[k].some = some;
        queue->faults[k].halt = queue->halt;
    }
    return CFX_OK;
}

enum { WORDS = 2 * CF_QUEUES };

static cfx_status open_streams(cf_cuda_device *device) {
    const cf_cuda_here here(device->index);
    size_t available = 0;
    int least, greatest; /* greatest: the smaller number */
    void *words;
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    CF_CUDA(cudaMemGetInfo(&available, &device->memory));
    CF_CUDA(cudaDeviceGetAttribute(&device->shared.sms, cudaDevAttrMultiProcessorCount, device->index));
    CF_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    CF_TRY(cf_cuda_check(cf_cuda_malloc(WORDS * sizeof *device->words, &words), "a device's words"));
    device->words = (uint64_t *)words;
    CF_CUDA(cudaMemset(device->words, 0, WORDS * sizeof *device->words));
    CF_TRY(cf_cuda_check(cudaDeviceSynchronize(), "cudaMemset"));
    for (int q = 0; q < CF_QUEUES; q++) {
        CF_CUDA(cudaStreamCreateWithPriority(&device->queue[q].stream, cudaStreamNonBlocking,
                                             q == CF_COMM ? greatest : least));
        device->queue[q].flight.index = device->index;
        device->queue[q].flight.stream = device->queue[q].stream;
        CF_TRY(open_faults(&device->queue[q], device->words + 2 * q));
    }
    return cf_cuda_products_begin(device);
}

static cfx_status cuda_open(int32_t index, void **state) {
    cf_cuda_device *device = new (std::nothrow) cf_cuda_device();
    if (!device) return cf_fail(CFX_EMEMORY, "out of host memory: a CUDA device");
    device->index = index;
    const cfx_status status = open_streams(device);
    if (status != CFX_OK) {
        cuda_close(device);
        return status;
    }
    *state = device;
    return CFX_OK;
}

static size_t cuda_memory(void *state) { return ((cf_cuda_device *)state)->memory; }

static cfx_status cuda_slab_new(void *state, size_t bytes, void **out) {
    const cf_cuda_here here(((cf_cuda_device *)state)->index);
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    return cf_cuda_check(cf_cuda_malloc(bytes, out), "a slab");
}

static void cuda_slab_free(void *state, void *slab, size_t bytes) {
    (void)bytes;
    cf_cuda_free(((cf_cuda_device *)state)->index, slab);
}

static cfx_status cuda_thread_begin(cf_worker *worker) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    worker->threads = 1;
    worker->local = &device->shared;
    return cf_cuda_check(cudaSetDevice(device->index), "cudaSetDevice");
}

static void cuda_thread_end(cf_worker *worker) { worker->local = NULL; }

/* ---- streams ------------------------------------------------------------------------------------------------ */

static void cuda_select(cf_worker *worker, int q, uint64_t ticket) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    device->selected = q;
    device->shared.stream = device->queue[q].stream;
    device->shared.fault = &device->queue[q].faults[ticket % CF_LAUNCH_AHEAD];
    device->shared.fault->ticket = device->queue[q].ticket = ticket;
    device->shared.halt = device->queue[q].halt.word;
}

/* An event belongs to the GPU that is current, and the worker's thread may not have begun. */
static cfx_status event_new(const cf_cuda_device *device, cudaEvent_t *out) {
    const cf_cuda_here here(device->index);
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    return cf_cuda_check(cudaEventCreateWithFlags(out, cudaEventDisableTiming), "an event");
}

/* Events fail, too, once anything has failed for good (an illegal address, a GPU that fell off the bus). */
static cfx_status record(const cf_cuda_device *device, cf_cuda_queue *queue, uint64_t ticket) {
    if (queue->tail - queue->head == CF_CUDA_MARKS) { /* the last one covers what comes after it, too */
        auto *last = &queue->marks[(queue->tail - 1) % CF_CUDA_MARKS];
        CF_CUDA(cudaEventRecord(last->event, queue->stream));
        last->ticket = ticket;
        return CFX_OK;
    }
    auto *mark = &queue->marks[queue->tail % CF_CUDA_MARKS];
    if (!mark->event) CF_TRY(event_new(device, &mark->event));
    CF_CUDA(cudaEventRecord(mark->event, queue->stream));
    mark->ticket = ticket;
    queue->tail++;
    return CFX_OK;
}

static cfx_status cuda_mark(cf_worker *worker, int q, uint64_t ticket) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    cf_cuda_queue *queue = &device->queue[q];
    std::lock_guard<std::mutex> guard(queue->lock);
    const cfx_status status = record(device, queue, ticket);
    if (status != CFX_OK) queue->lost = ticket;
    return status;
}

/* The first fault of tickets (from, to]. */
static cfx_status look_for_fault(cf_cuda_queue *queue, uint64_t from, uint64_t to, uint64_t *faulted) {
    if (!*queue->some) return CFX_OK;
    *queue->some = 0;
    for (uint64_t ticket = from + 1; ticket <= to; ticket++) {
        cf_cuda_fault *fault = &queue->faults[ticket % CF_LAUNCH_AHEAD];
        if (!((volatile cf_cuda_fault *)fault)->set) continue;
        *faulted = ticket;
        return cf_cuda_raise(fault);
    }
    *queue->some = 1; /* it is of a command that has not ended */
    return CFX_OK;
}

static cfx_status poll_marks(cf_cuda_device *device, int q, uint64_t *done, uint64_t *faulted) {
    cf_cuda_queue *queue = &device->queue[q];
    const uint64_t before = *done;
    std::lock_guard<std::mutex> guard(queue->lock);
    while (queue->head < queue->tail) {
        const auto *mark = &queue->marks[queue->head % CF_CUDA_MARKS];
        const cudaError_t error = cudaEventQuery(mark->event);
        if (error == cudaErrorNotReady) break;
        *done = queue->done = mark->ticket;
        queue->head++;
        if (error != cudaSuccess) return cf_cuda_check(error, "a kernel");
    }
    if (queue->lost > *done && queue->head == queue->tail && cudaStreamQuery(queue->stream) != cudaErrorNotReady) {
        *done = queue->done = queue->lost;
        cf_cuda_joined_over(queue);
    }
    cudaGetLastError();
    CF_TRY(look_for_fault(queue, before, *done, faulted));
    return queue->joined ? cf_cuda_joined_watch(device, q, *done != before, faulted) : CFX_OK;
}

static cfx_status cuda_poll(cf_worker *worker, int q, uint64_t *done, uint64_t *faulted) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    const cfx_status status = poll_marks(device, q, done, faulted);
    if (device->queue[q].outgrown) cf_cuda_free_outgrown(&device->queue[q], *done);
    return status;
}

static cfx_status cuda_forgive(void *state) {
    cf_cuda_device *device = (cf_cuda_device *)state;
    const cf_cuda_here here(device->index);
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    CF_CUDA(cudaMemset(device->words, 0, WORDS * sizeof *device->words));
    CF_TRY(cf_cuda_check(cudaDeviceSynchronize(), "cudaMemset"));
    for (int q = 0; q < CF_QUEUES; q++) {
        *device->queue[q].some = 0;
        *device->queue[q].halt.shown = 0;
        for (int k = 0; k < CF_LAUNCH_AHEAD; k++) device->queue[q].faults[k].set = 0;
    }
    return CFX_OK;
}

static bool cuda_follow(cf_worker *worker, int q, void *other, int of, uint64_t ticket) {
    cf_cuda_queue *queue = &((cf_cuda_device *)other)->queue[of];
    std::lock_guard<std::mutex> guard(queue->lock);
    if (queue->done >= ticket) return true;
    for (uint64_t k = queue->head; k < queue->tail; k++) {
        const auto *mark = &queue->marks[k % CF_CUDA_MARKS];
        if (mark->ticket < ticket) continue;
        if (cudaStreamWaitEvent(cf_cuda_device_of(worker)->queue[q].stream, mark->event, 0) == cudaSuccess) return true;
        cudaGetLastError(); /* the worker waits for it by itself */
        return false;
    }
    return false;
}

/* With unified addresses CUDA knows by itself where either lies. */
static cfx_status cuda_copy(cf_worker *worker, void *to, const void *from, size_t bytes) {
    cudaStream_t stream = (cudaStream_t)cf_cuda_of(worker)->stream;
    return cf_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "a copy");
}

static cfx_status cuda_pin(void *state, size_t bytes, void **out) {
    const cf_cuda_here here(((cf_cuda_device *)state)->index);
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    return cf_cuda_check(cudaHostAlloc(out, bytes, cudaHostAllocPortable), "pinned host memory");
}

static void cuda_unpin(void *state, void *memory) { cf_cuda_free_pinned(((cf_cuda_device *)state)->index, memory); }

/* ---- the table ---------------------------------------------------------------------------------------------- */

static const cf_streams streams = {cuda_select,     cuda_mark, cuda_poll, cuda_forgive, cuda_follow,
                                   cf_cuda_inherit, cuda_copy, cuda_pin,  cuda_unpin};

extern "C" __attribute__((visibility("default"))) const cf_backend *cf_backend_entry(void) {
    static const cf_backend backend = {CFX_ABI_VERSION,
                                       "cuda",
                                       0,
                                       0,
                                       cuda_count,
                                       cuda_open,
                                       cuda_close,
                                       cuda_memory,
                                       cuda_slab_new,
                                       cuda_slab_free,
                                       cuda_thread_begin,
                                       cuda_thread_end,
                                       cf_cuda_kernels,
                                       cf_cuda_workspace,
                                       &streams,
                                       &cf_cuda_nccl,
                                       cf_cuda_about};
    return &backend;
}
