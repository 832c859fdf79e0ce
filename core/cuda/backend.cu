/* backend.cu: NVIDIA GPUs as devices: memory, streams, marks.
 *
 * Each device has a stream for each of its two queues; virtual devices of one GPU have streams of their own.  A mark is
 * a cudaEvent; events are reused once they have happened.  Nothing here waits for the GPU but the growth of scratch
 * memory.
 */
#include <stdarg.h>
#include <stdio.h>

#include <new>

#include "cuda/device.cuh"

/* ---- messages ----------------------------------------------------------------------------------------------- */

/* The engine keeps the messages; this side only writes them. */
extern "C" void cf_message(const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cfx_error_set(text);
}

cfx_status cf_cuda_check(cudaError_t error, const char *what) {
    if (error == cudaSuccess) return CFX_OK;
    cudaGetLastError(); /* the next call is not to blame */
    if (error == cudaErrorMemoryAllocation) return cf_fail(CFX_EMEMORY, "CUDA has no memory left: %s", what);
    return cf_fail(CFX_EFAULT, "CUDA: %s: %s", what, cudaGetErrorString(error));
}

cfx_status cf_cuda_launched(const char *what) { return cf_cuda_check(cudaGetLastError(), what); }

/* ---- devices ------------------------------------------------------------------------------------------------ */

static int32_t cuda_count(char *why, size_t why_bytes) {
    int n = 0; /* a failure leaves it as it is */
    const cudaError_t error = cudaGetDeviceCount(&n);
    if (error == cudaSuccess && n > 0) return n;
    cudaGetLastError();
    snprintf(why, why_bytes, "%s", error == cudaSuccess ? "no GPU is visible" : cudaGetErrorString(error));
    return 0;
}

static std::mutex halts_lock;
static cf_cuda_halt *halts;

static cfx_status take_halt(cf_cuda_device *device, const void *run) {
    std::lock_guard<std::mutex> guard(halts_lock);
    cf_cuda_halt *halt = halts;
    while (halt && (halt->run != run || halt->index != device->index)) halt = halt->next;
    if (!halt) {
        halt = new (std::nothrow) cf_cuda_halt();
        if (!halt) return cf_fail(CFX_EMEMORY, "out of host memory: a CUDA device");
        halt->run = run;
        halt->index = device->index;
        halt->next = halts;
        halts = halt;
    }
    halt->owners++;
    device->halt = halt;
    if (halt->word) return CFX_OK;
    CF_CUDA(cudaMalloc(&halt->word, sizeof *halt->word));
    CF_CUDA(cudaMemset(halt->word, 0, sizeof *halt->word));
    return cf_cuda_check(cudaDeviceSynchronize(), "cudaMemset");
}

static void give_halt(cf_cuda_device *device) {
    std::lock_guard<std::mutex> guard(halts_lock);
    if (!device->halt || --device->halt->owners > 0) return;
    cf_cuda_halt **at = &halts;
    while (*at != device->halt) at = &(*at)->next;
    *at = device->halt->next;
    if (device->halt->word) cudaFree(device->halt->word);
    delete device->halt;
}

static void cuda_close(void *state) {
    cf_cuda_device *device = (cf_cuda_device *)state;
    cudaSetDevice(device->index);
    cf_cuda_joined_end(device);
    cf_cuda_products_end(device);
    for (int q = 0; q < CF_CUDA_QUEUES; q++) {
        cf_cuda_queue *queue = &device->queue[q];
        for (int k = 0; k < CF_CUDA_MARKS; k++)
            if (queue->marks[k].event) cudaEventDestroy(queue->marks[k].event);
        if (queue->scratch) cudaFree(queue->scratch);
        if (queue->stream) cudaStreamDestroy(queue->stream);
        if (queue->faults) cudaFreeHost(queue->faults);
    }
    give_halt(device);
    delete device;
}

/* With unified addresses the device knows the faults by the same address. */
static cfx_status open_faults(cf_cuda_queue *queue, int32_t *halt) {
    void *memory;
    const size_t bytes = CF_LAUNCH_AHEAD * sizeof(cf_cuda_fault) + sizeof(int32_t);
    CF_CUDA(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
    memset(memory, 0, bytes);
    queue->faults = (cf_cuda_fault *)memory;
    int32_t *some = (int32_t *)(queue->faults + CF_LAUNCH_AHEAD);
    queue->some = some;
    for (int k = 0; k < CF_LAUNCH_AHEAD; k++) {
        queue->faults[k].some = some;
        queue->faults[k].halt = halt;
    }
    return CFX_OK;
}

static cfx_status open_streams(cf_cuda_device *device, const void *run) {
    CF_CUDA(cudaSetDevice(device->index));
    CF_CUDA(cudaDeviceGetAttribute(&device->shared.sms, cudaDevAttrMultiProcessorCount, device->index));
    CF_TRY(take_halt(device, run));
    device->shared.halt = device->halt->word;
    for (int q = 0; q < CF_CUDA_QUEUES; q++) {
        CF_CUDA(cudaStreamCreateWithFlags(&device->queue[q].stream, cudaStreamNonBlocking));
        CF_TRY(open_faults(&device->queue[q], device->halt->word));
    }
    return cf_cuda_products_begin(device);
}

static cfx_status cuda_open(int32_t index, const void *run, void **state) {
    cf_cuda_device *device = new (std::nothrow) cf_cuda_device();
    if (!device) return cf_fail(CFX_EMEMORY, "out of host memory: a CUDA device");
    device->index = index;
    const cfx_status status = open_streams(device, run);
    if (status != CFX_OK) {
        cuda_close(device);
        return status;
    }
    *state = device;
    return CFX_OK;
}

static size_t cuda_memory(void *state) {
    size_t available = 0, total = 0;
    cudaSetDevice(((cf_cuda_device *)state)->index);
    return cudaMemGetInfo(&available, &total) == cudaSuccess ? total : 0;
}

static cfx_status cuda_slab_new(void *state, size_t bytes, void **out) {
    CF_CUDA(cudaSetDevice(((cf_cuda_device *)state)->index));
    const cudaError_t error = cudaMalloc(out, bytes);
    if (error == cudaSuccess) return CFX_OK;
    cudaGetLastError();
    return cf_fail(CFX_EMEMORY, "the GPU has no %zu bytes", bytes);
}

static void cuda_slab_free(void *state, void *slab, size_t bytes) {
    (void)bytes;
    cudaSetDevice(((cf_cuda_device *)state)->index);
    cudaFree(slab);
}

static cfx_status cuda_thread_begin(cf_worker *worker) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    worker->threads = 1;
    worker->local = &device->shared;
    return cf_cuda_check(cudaSetDevice(device->index), "cudaSetDevice");
}

static void cuda_thread_end(cf_worker *worker) { worker->local = NULL; }

void *cf_cuda_scratch(cf_worker *worker, size_t bytes) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    cf_cuda_queue *queue = &device->queue[device->selected];
    if (bytes <= queue->scratch_bytes) return queue->scratch;
    cudaStreamSynchronize(queue->stream); /* kernels launched before may still use the old one */
    if (queue->scratch) cudaFree(queue->scratch);
    queue->scratch = NULL;
    queue->scratch_bytes = 0;
    const size_t room = bytes + bytes / 2;
    const cudaError_t error = cudaMalloc(&queue->scratch, room);
    if (error == cudaSuccess) {
        queue->scratch_bytes = room;
        return queue->scratch;
    }
    cudaGetLastError();
    cf_message("the GPU has no %zu bytes of scratch memory", room);
    return NULL;
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

static void cuda_select(cf_worker *worker, int q, uint64_t ticket) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    device->selected = q;
    device->shared.stream = device->queue[q].stream;
    device->shared.fault = &device->queue[q].faults[ticket % CF_LAUNCH_AHEAD];
}

static cfx_status cuda_mark(cf_worker *worker, int q, uint64_t ticket) {
    cf_cuda_queue *queue = &cf_cuda_device_of(worker)->queue[q];
    std::lock_guard<std::mutex> guard(queue->lock);
    if (queue->tail - queue->head == CF_CUDA_MARKS) { /* the last one covers what comes after it, too */
        auto *last = &queue->marks[(queue->tail - 1) % CF_CUDA_MARKS];
        CF_CUDA(cudaEventRecord(last->event, queue->stream));
        last->ticket = ticket;
        return CFX_OK;
    }
    auto *mark = &queue->marks[queue->tail % CF_CUDA_MARKS];
    if (!mark->event) CF_CUDA(cudaEventCreateWithFlags(&mark->event, cudaEventDisableTiming));
    CF_CUDA(cudaEventRecord(mark->event, queue->stream));
    mark->ticket = ticket;
    queue->tail++;
    return CFX_OK;
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

static cfx_status cuda_poll(cf_worker *worker, int q, uint64_t *done, uint64_t *faulted) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    cf_cuda_queue *queue = &device->queue[q];
    const uint64_t before = *done;
    std::lock_guard<std::mutex> guard(queue->lock);
    while (queue->head < queue->tail) {
        const auto *mark = &queue->marks[queue->head % CF_CUDA_MARKS];
        const cudaError_t error = cudaEventQuery(mark->event);
        if (error == cudaErrorNotReady) {
            cudaGetLastError();
            break;
        }
        *done = queue->done = mark->ticket;
        queue->head++;
        if (error != cudaSuccess) return cf_cuda_check(error, "a kernel");
    }
    if (queue->joined) CF_TRY(cf_cuda_joined_watch(device, q, *done != before));
    return look_for_fault(queue, before, *done, faulted);
}

static void cuda_forgive(void *state) {
    cf_cuda_device *device = (cf_cuda_device *)state;
    cudaSetDevice(device->index);
    cudaMemset(device->halt->word, 0, sizeof *device->halt->word);
    cudaDeviceSynchronize();
    for (int q = 0; q < CF_CUDA_QUEUES; q++) {
        *device->queue[q].some = 0;
        for (int k = 0; k < CF_LAUNCH_AHEAD; k++) device->queue[q].faults[k].set = 0;
    }
}

static bool cuda_follow(cf_worker *worker, int q, void *other, int of, uint64_t ticket) {
    cf_cuda_queue *queue = &((cf_cuda_device *)other)->queue[of];
    std::lock_guard<std::mutex> guard(queue->lock);
    if (queue->done >= ticket) return true;
    for (uint64_t k = queue->head; k < queue->tail; k++) {
        const auto *mark = &queue->marks[k % CF_CUDA_MARKS];
        if (mark->ticket < ticket) continue;
        return cudaStreamWaitEvent(cf_cuda_device_of(worker)->queue[q].stream, mark->event, 0) == cudaSuccess;
    }
    return false;
}

/* With unified addresses CUDA knows by itself where either lies. */
static cfx_status cuda_copy(cf_worker *worker, void *to, const void *from, size_t bytes) {
    cudaStream_t stream = (cudaStream_t)cf_cuda_of(worker)->stream;
    return cf_cuda_check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "a copy");
}

static cfx_status cuda_pin(void *state, size_t bytes, void **out) {
    CF_CUDA(cudaSetDevice(((cf_cuda_device *)state)->index));
    return cf_cuda_check(cudaHostAlloc(out, bytes, cudaHostAllocPortable), "pinned host memory");
}

static void cuda_unpin(void *state, void *memory) {
    cudaSetDevice(((cf_cuda_device *)state)->index);
    cudaFreeHost(memory);
}

/* ---- the table ---------------------------------------------------------------------------------------------- */

extern "C" const cf_kernel cf_cuda_kernels[CF_OPS];
extern const cf_collectives cf_cuda_collectives;

static const cf_streams streams = {cuda_select, cuda_mark, cuda_poll, cuda_forgive,
                                   cuda_follow, cuda_copy, cuda_pin,  cuda_unpin};

extern "C" __attribute__((visibility("default"))) const cf_backend *cf_backend_entry(void) {
    static const cf_backend backend = {CFX_ABI_VERSION,
                                       "cuda",
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
                                       &streams,
                                       &cf_cuda_collectives,
                                       cf_cuda_about};
    return &backend;
}
