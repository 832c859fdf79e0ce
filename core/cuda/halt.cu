/* halt.cu: what keeps updates off while a fault is not known to the host.
 *
 * A kernel finds a fault long before a worker can: what was launched behind it must not change parameters by values that
 * are void.  So each queue has a word of device memory: the ticket of its first fault, or 0; it is what `poisoned_at` will
 * be once the workers know.  Kernels of the queue's own stream alone write it, so that it does not change while one of
 * them runs.  Where a queue goes on behind another's data without the worker, the word comes along if it is of them: a
 * kernel compares the tickets, as the worker will.
 */
#include "cuda/halt.cuh"

typedef struct sources {
    const volatile uint64_t *word[CF_CUDA_SOURCES];
    uint64_t ticket[CF_CUDA_SOURCES];
    int n;
} sources;

__global__ void take_halts(sources of, cf_cuda_halt mine, uint64_t ticket) {
    for (int k = 0; k < of.n; k++) {
        const uint64_t theirs = *of.word[k];
        if (theirs > 0 && theirs <= of.ticket[k]) cf_set_halt(mine, ticket);
    }
}

static void launch(cf_cuda_queue *queue, cf_worker *worker, const sources *of, uint64_t ticket) {
    cf_cuda_of(worker)->stream = queue->stream;
    CF_LAUNCH(take_halts, 1, 1, worker, *of, queue->halt, ticket);
}

cfx_status cf_cuda_inherit(cf_worker *worker, int q, uint64_t ticket, int n, const cf_source *all) {
    cf_cuda_device *device = cf_cuda_device_of(worker);
    for (int k = 0; k < n;) {
        sources of = {};
        for (; k < n && of.n < CF_CUDA_SOURCES; k++, of.n++) {
            const cf_cuda_device *other = (const cf_cuda_device *)all[k].state;
            const cf_cuda_halt *theirs = &other->queue[all[k].q].halt;
            of.word[of.n] = other->index == device->index ? theirs->word : theirs->shown;
            of.ticket[of.n] = all[k].ticket;
        }
        launch(&device->queue[q], worker, &of, ticket);
    }
    return cf_cuda_launched("passing a fault on");
}

/* `received` is the largest of the participants' words. */
cfx_status cf_cuda_inherit_received(cf_worker *worker, int q) {
    cf_cuda_queue *queue = &cf_cuda_device_of(worker)->queue[q];
    sources of = {};
    of.word[0] = queue->received;
    of.ticket[0] = UINT64_MAX;
    of.n = 1;
    launch(queue, worker, &of, queue->ticket);
    return cf_cuda_launched("passing a fault on");
}
