/* emulated_runtime.cpp: streams as threads, events between them.  See emulated_runtime.h. */
#include "emulated_runtime.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cuda/kernel.cuh"

/* One lock for all: what matters here is order, not speed.  They are never destroyed: a stream that could not be still
 * waits when the process ends. */
static std::mutex &lock = *new std::mutex();
static std::condition_variable &changed = *new std::condition_variable();

thread_local cudaError_t cf_emulated_error;
thread_local int cf_emulated_device;

struct stream : cf_emulated_stream {
    std::deque<std::function<void()>> work;
    uint64_t given = 0, done = 0;
    bool ends = false;
    const int device = cf_emulated_device;
    std::thread thread;
};

/* Recorded `asked` times, of which `happened` have; versions make a later record no business of an earlier wait.
 * Streams may outlive the event. */
struct versions {
    uint64_t asked = 0, happened = 0;
    std::set<std::pair<void *, uint64_t>> waited; /* stream, version: which waits for which */
};
struct cf_emulated_event {
    std::shared_ptr<versions> is = std::make_shared<versions>();
    const int device = cf_emulated_device;
};

static std::vector<stream *> streams;

/* ---- counts ------------------------------------------------------------------------------------------------- */

/* Counts of calls, for the file that CONFLUX_EMULATED_COUNTS names. */
struct counts {
    std::map<std::string, long> of;
    const char *path = getenv("CONFLUX_EMULATED_COUNTS");
    ~counts() {
        FILE *f = path ? fopen(path, "w") : NULL;
        if (!f) return;
        int device = -1;
        cudaGetDevice(&device);
        fprintf(f, "the host's GPU %d\n", device);
        for (const auto &one : of) fprintf(f, "%s %ld\n", one.first.c_str(), one.second);
        fclose(f);
    }
};
static counts counted;

void cf_emulate_count(const char *what) {
    if (!counted.path) return;
    std::lock_guard<std::mutex> guard(lock);
    counted.of[what]++;
}

/* ---- streams ------------------------------------------------------------------------------------------------ */

static void delay(unsigned *random, unsigned most) {
    *random = *random * 1664525u + 1013904223u;
    if (most > 0 && *random >> 28 == 0) usleep((*random >> 8) % most);
}

static void work_off(stream *s) {
    const char *text = getenv("CONFLUX_EMULATED_DELAY");
    const unsigned most = text ? (unsigned)atoi(text) : 0;
    unsigned random = (unsigned)(uintptr_t)s;
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
        changed.wait(guard, [&] { return s->ends || !s->work.empty(); });
        if (s->work.empty()) return;
        const auto work = std::move(s->work.front());
        s->work.pop_front();
        guard.unlock();
        delay(&random, most);
        work();
        guard.lock();
        s->done++;
        changed.notify_all();
    }
}

static void give(cf_emulated_stream *to, std::function<void()> work) {
    stream *s = (stream *)to;
    std::lock_guard<std::mutex> guard(lock);
    s->work.push_back(std::move(work));
    s->given++;
    changed.notify_all();
}

bool cf_emulated_launch_fails(void *on) {
    const bool is_elsewhere = on && ((stream *)(cudaStream_t)on)->device != cf_emulated_device;
    if (is_elsewhere) cf_emulated_fail(cudaErrorInvalidResourceHandle);
    else if (cf_emulated_fails("launch")) cf_emulated_fail(cudaErrorUnknown);
    else return false;
    return true;
}

void cf_emulate_on(void *to, std::function<void()> work) {
    if (to) give((cudaStream_t)to, std::move(work));
    else work();
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *out, int, int priority) {
    CF_MAY_FAIL;
    cf_emulate_count(("a stream of priority " + std::to_string(priority)).c_str());
    stream *s = new stream();
    s->give = give;
    s->thread = std::thread(work_off, s);
    *out = s;
    std::lock_guard<std::mutex> guard(lock);
    streams.push_back(s);
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t which) {
    CF_MAY_FAIL;
    const stream *s = (stream *)which;
    std::lock_guard<std::mutex> guard(lock);
    return s->done == s->given ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamDestroy(cudaStream_t which) {
    CF_MAY_FAIL;
    stream *s = (stream *)which;
    {
        std::lock_guard<std::mutex> guard(lock);
        for (size_t k = 0; k < streams.size(); k++)
            if (streams[k] == s) streams.erase(streams.begin() + (long)k--);
        s->ends = true;
        changed.notify_all();
    }
    s->thread.join(); /* which does what is left first */
    delete s;
    return cudaSuccess;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, int) {
    CF_MAY_FAIL;
    return *out = new cf_emulated_event(), cudaSuccess;
}

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    CF_MAY_FAIL;
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t to) {
    CF_MAY_FAIL;
    if (((stream *)to)->device != event->device) return cf_emulated_fail(cudaErrorInvalidResourceHandle);
    cf_emulate_count("an event recorded");
    const auto is = event->is;
    uint64_t version;
    {
        std::lock_guard<std::mutex> guard(lock);
        version = ++is->asked;
    }
    cf_emulate_on(to, [=] {
        std::lock_guard<std::mutex> guard(lock);
        is->happened = version;
        changed.notify_all();
    });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    CF_MAY_FAIL;
    cf_emulate_count("an event asked for");
    std::lock_guard<std::mutex> guard(lock);
    return event->is->happened == event->is->asked ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int) {
    CF_MAY_FAIL;
    const auto is = event->is;
    uint64_t version;
    bool is_again;
    {
        std::lock_guard<std::mutex> guard(lock);
        version = is->asked;
        is_again = !is->waited.insert({stream, version}).second;
    }
    cf_emulate_count(is_again ? "a wait again" : "a wait");
    cf_emulate_on(stream, [=] {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return is->happened >= version; });
    });
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

enum { HOST = -1 };
struct memory {
    int device;
    size_t bytes;
};
static std::map<void *, memory> &memories = *new std::map<void *, memory>();

size_t cf_emulated_room(void) {
    const char *text = getenv("CONFLUX_EMULATED_MEMORY");
    return text ? (size_t)atoll(text) : (size_t)4 << 30;
}

static cudaError_t allocate(void **out, int device, size_t bytes) {
    size_t used = bytes;
    std::unique_lock<std::mutex> guard(lock);
    for (const auto &one : memories)
        if (one.second.device == device) used += one.second.bytes;
    const bool fits = device == HOST || used <= cf_emulated_room();
    *out = fits ? aligned_alloc(256, (bytes + 255) & ~(size_t)255) : NULL;
    if (!*out) return cf_emulated_fail(cudaErrorMemoryAllocation);
    memories[*out] = {device, bytes};
    guard.unlock();
    memset(*out, 0xA5, bytes); /* CUDA's memory is not zero either */
    return cudaSuccess;
}

cudaError_t cf_emulated_malloc(void **out, size_t bytes) { return allocate(out, cf_emulated_device, bytes); }
cudaError_t cf_emulated_host_alloc(void **out, size_t bytes) { return allocate(out, HOST, bytes); }

static bool is_live(const stream *which) {
    for (const auto *live : streams)
        if (live == which) return true;
    return false;
}

/* The streams must have done all work that they were given before. */
void cf_emulated_free(void *p) {
    std::unique_lock<std::mutex> guard(lock);
    const int device = memories[p].device;
    std::vector<std::pair<stream *, uint64_t>> given;
    for (auto *one : streams)
        if (device == HOST || one->device == device) given.push_back({one, one->given});
    changed.wait(guard, [&] {
        for (const auto &one : given)
            if (is_live(one.first) && one.first->done < one.second) return false;
        return true;
    });
    memories.erase(p);
    free(p);
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int, cudaStream_t stream) {
    CF_MAY_FAIL;
    cf_emulate_on(stream, [=] { memcpy(to, from, bytes); });
    return cudaSuccess;
}
