/* memory.cu: GPU memory, and when it is given back.
 *
 * cudaFree waits until its GPU is idle.  The kernel of a collective that waits for another participant keeps it from
 * that, and the thread that waits may hold a lock of the driver that the participant needs in order to come.  So while a
 * collective is in flight on any queue of the process nothing is freed: memory goes on a list, and the first call here
 * that finds nothing in flight frees what is on it.  A collective begins only when no free is under way.
 */
#include <new>

#include "cuda/device.cuh"

struct leftover {
    leftover *next;
    int index;
    void *memory;
    bool is_pinned;
};

static std::mutex lock; /* of all below, and of each queue's `flight` */
static leftover *leftovers;
static cf_cuda_queue *flights;

/* ---- the calling thread's GPU ------------------------------------------------------------------------------- */

cf_cuda_here::cf_cuda_here(int index) : before(index) {
    error = cudaGetDevice(&before);
    if (error == cudaSuccess && before != index) error = cudaSetDevice(index);
    if (error != cudaSuccess) cudaGetLastError(); /* the caller has it: no business of the next call */
}

cf_cuda_here::~cf_cuda_here() {
    int now = before;
    if (cudaGetDevice(&now) == cudaSuccess && now != before) cudaSetDevice(before);
}

/* ---- collectives in flight ---------------------------------------------------------------------------------- */

static void land(cf_cuda_queue *queue) {
    cf_cuda_queue **at = &flights;
    while (*at && *at != queue) at = &(*at)->next_flight;
    if (*at) *at = queue->next_flight;
    queue->flight = CF_CUDA_LANDED;
}

void cf_cuda_flight(cf_cuda_queue *queue, cf_cuda_flight_state state) {
    std::lock_guard<std::mutex> guard(lock);
    if (state == CF_CUDA_LANDED) {
        land(queue);
        return;
    }
    if (queue->flight == CF_CUDA_LANDED) {
        queue->next_flight = flights;
        flights = queue;
    }
    queue->flight = state;
}

/* The workers say when collectives have landed, but not at once: a worker whose results nobody waits for sleeps. */
static bool is_in_flight(void) {
    for (cf_cuda_queue *queue = flights, *next; queue; queue = next) {
        next = queue->next_flight;
        const cf_cuda_here here(queue->index);
        if (queue->flight == CF_CUDA_FLIES && cudaStreamQuery(queue->stream) != cudaErrorNotReady) land(queue);
    }
    cudaGetLastError();
    return flights != NULL;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

static void free_now(int index, void *memory, bool is_pinned) {
    const cf_cuda_here here(index);
    if (is_pinned) cudaFreeHost(memory);
    else cudaFree(memory);
    cudaGetLastError(); /* of a GPU that is lost, whose next command says so */
}

static void free_leftovers(void) {
    while (leftovers && !is_in_flight()) {
        leftover *first = leftovers;
        leftovers = first->next;
        free_now(first->index, first->memory, first->is_pinned);
        delete first;
    }
}

static void give_back(int index, void *memory, bool is_pinned) {
    if (!memory) return;
    std::lock_guard<std::mutex> guard(lock);
    leftover *last = new (std::nothrow) leftover{leftovers, index, memory, is_pinned};
    if (last) leftovers = last;
    else free_now(index, memory, is_pinned); /* there is no memory to remember it */
    free_leftovers();
}

void cf_cuda_free(int index, void *memory) { give_back(index, memory, false); }
void cf_cuda_free_pinned(int index, void *memory) { give_back(index, memory, true); }

cfx_status cf_cuda_malloc(int index, size_t bytes, const char *what, void **out) {
    const cf_cuda_here here(index);
    CF_TRY(cf_cuda_check(here.error, "cudaSetDevice"));
    std::lock_guard<std::mutex> guard(lock);
    free_leftovers();
    return cf_cuda_check(cudaMalloc(out, bytes), what);
}
