/* emulated_runtime.cpp: streams as threads, events between them.  See emulated_runtime.h. */
#include "emulated_runtime.h"

#include <unistd.h>

#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "cuda/kernel.cuh"

/* One lock for all: what matters here is order, not speed. */
static std::mutex lock;
static std::condition_variable changed;

struct cf_emulated_stream {
    std::deque<std::function<void()>> work;
    uint64_t given = 0, done = 0;
    bool ends = false;
    std::thread thread;
};

/* Recorded `asked` times, of which `happened` have; versions make a later record no business of an earlier wait.
 * Streams may outlive the event. */
struct versions {
    uint64_t asked = 0, happened = 0;
};
struct cf_emulated_event {
    std::shared_ptr<versions> is = std::make_shared<versions>();
};

static std::vector<cf_emulated_stream *> streams;
static std::map<const char *, size_t> pinned; /* from cudaHostAlloc */

/* ---- streams ------------------------------------------------------------------------------------------------ */

static void delay(unsigned *random, unsigned most) {
    *random = *random * 1664525u + 1013904223u;
    if (most > 0 && *random >> 28 == 0) usleep((*random >> 8) % most);
}

static void work_off(cf_emulated_stream *stream) {
    const char *text = getenv("CONFLUX_EMULATED_DELAY");
    const unsigned most = text ? (unsigned)atoi(text) : 0;
    unsigned random = (unsigned)(uintptr_t)stream;
    std::unique_lock<std::mutex> guard(lock);
    for (;;) {
        changed.wait(guard, [&] { return stream->ends || !stream->work.empty(); });
        if (stream->work.empty()) return;
        const auto work = std::move(stream->work.front());
        stream->work.pop_front();
        guard.unlock();
        delay(&random, most);
        work();
        guard.lock();
        stream->done++;
        changed.notify_all();
    }
}

/* Waits until the stream has done what it was given so far. */
static void drain(std::unique_lock<std::mutex> &guard, cf_emulated_stream *stream) {
    const uint64_t given = stream->given;
    changed.wait(guard, [&] { return stream->done >= given; });
}

void cf_emulate_on(void *stream, std::function<void()> work) {
    if (!stream) {
        work();
        return;
    }
    std::lock_guard<std::mutex> guard(lock);
    ((cf_emulated_stream *)stream)->work.push_back(std::move(work));
    ((cf_emulated_stream *)stream)->given++;
    changed.notify_all();
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *out, int) {
    *out = new cf_emulated_stream();
    (*out)->thread = std::thread(work_off, *out);
    std::lock_guard<std::mutex> guard(lock);
    streams.push_back(*out);
    return cudaSuccess;
}

cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    std::unique_lock<std::mutex> guard(lock);
    drain(guard, stream);
    return cudaSuccess;
}

cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    {
        std::lock_guard<std::mutex> guard(lock);
        for (size_t k = 0; k < streams.size(); k++)
            if (streams[k] == stream) streams.erase(streams.begin() + (long)k--);
        stream->ends = true;
        changed.notify_all();
    }
    stream->thread.join(); /* which does what is left first */
    delete stream;
    return cudaSuccess;
}

/* ---- events ------------------------------------------------------------------------------------------------- */

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *out, int) { return *out = new cf_emulated_event(), cudaSuccess; }

cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    const auto is = event->is;
    uint64_t version;
    {
        std::lock_guard<std::mutex> guard(lock);
        version = ++is->asked;
    }
    cf_emulate_on(stream, [=] {
        std::lock_guard<std::mutex> guard(lock);
        is->happened = version;
        changed.notify_all();
    });
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t event) {
    std::lock_guard<std::mutex> guard(lock);
    return event->is->happened == event->is->asked ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, int) {
    const auto is = event->is;
    uint64_t version;
    {
        std::lock_guard<std::mutex> guard(lock);
        version = is->asked;
    }
    cf_emulate_on(stream, [=] {
        std::unique_lock<std::mutex> guard(lock);
        changed.wait(guard, [&] { return is->happened >= version; });
    });
    return cudaSuccess;
}

/* ---- memory ------------------------------------------------------------------------------------------------- */

cudaError_t cf_emulated_memory(void **out, size_t bytes, bool pins) {
    *out = aligned_alloc(256, (bytes + 255) & ~(size_t)255);
    if (!*out) return cudaErrorMemoryAllocation;
    memset(*out, 0xA5, bytes); /* CUDA's memory is not zero either */
    std::lock_guard<std::mutex> guard(lock);
    if (pins) pinned[(const char *)*out] = bytes;
    return cudaSuccess;
}

static bool is_live(const cf_emulated_stream *stream) {
    for (const auto *live : streams)
        if (live == stream) return true;
    return false;
}

/* cudaFree waits for the device, too. */
void cf_emulated_free(void *p) {
    std::unique_lock<std::mutex> guard(lock);
    const auto all = streams;
    std::vector<uint64_t> given;
    for (const auto *stream : all) given.push_back(stream->given);
    changed.wait(guard, [&] {
        for (size_t k = 0; k < all.size(); k++)
            if (is_live(all[k]) && all[k]->done < given[k]) return false;
        return true;
    });
    pinned.erase((const char *)p);
    free(p);
}

static bool is_pinned(const void *p) {
    std::lock_guard<std::mutex> guard(lock);
    auto at = pinned.upper_bound((const char *)p);
    if (at == pinned.begin()) return false;
    --at;
    return (const char *)p < at->first + at->second;
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, int kind, cudaStream_t stream) {
    if (kind == cudaMemcpyHostToDevice && !is_pinned(from)) {
        const std::vector<char> copy((const char *)from, (const char *)from + bytes);
        cf_emulate_on(stream, [=] { memcpy(to, copy.data(), copy.size()); });
        return cudaSuccess;
    }
    cf_emulate_on(stream, [=] { memcpy(to, from, bytes); });
    return kind == cudaMemcpyDeviceToHost && !is_pinned(to) ? cudaStreamSynchronize(stream) : cudaSuccess;
}
