/* memory.cu: the list of what is to be freed, and of what is in flight.  See memory.cuh. */
#include "cuda/memory.cuh"

#include <mutex>
#include <new>

struct leftover {
    leftover *next;
    int index;
    void *memory;
    bool is_pinned;
};

static std::mutex lock; /* of all below, and of each flight */
static leftover *leftovers;
static cf_cuda_flight *flights;

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

static void land(cf_cuda_flight *flight) {
    cf_cuda_flight **at = &flights;
    while (*at && *at != flight) at = &(*at)->next;
    if (*at) *at = flight->next;
    flight->state = CF_CUDA_LANDED;
}

void cf_cuda_flight_is(cf_cuda_flight *flight, cf_cuda_flight_state state) {
    std::lock_guard<std::mutex> guard(lock);
    if (state == CF_CUDA_LANDED) {
        land(flight);
        return;
    }
    if (flight->state == CF_CUDA_LANDED) {
        flight->next = flights;
        flights = flight;
    }
    flight->state = state;
}

/* The workers say when collectives have landed, but not at once: a worker whose results nobody waits for sleeps. */
static bool is_in_flight(void) {
    for (cf_cuda_flight *flight = flights, *next; flight; flight = next) {
        next = flight->next;
        const cf_cuda_here here(flight->index);
        if (flight->state == CF_CUDA_FLIES && cudaStreamQuery(flight->stream) != cudaErrorNotReady) land(flight);
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

cudaError_t cf_cuda_malloc(size_t bytes, void **out) {
    std::lock_guard<std::mutex> guard(lock);
    free_leftovers();
    return cudaMalloc(out, bytes);
}
