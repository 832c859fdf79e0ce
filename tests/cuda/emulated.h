/* emulated.h: enough of CUDA to run the kernels of core/cuda on a CPU, for tests.
 *
 * A launch is work for its stream, a thread of its own (emulated_runtime.h), and runs its blocks one after another.
 * Threads that never meet run one after another too; those of CF_LAUNCH_TEAM are fibers, which switch where they meet, so
 * that a missing or divergent barrier shows: what waits for ever is reported.  Device memory is the host's.
 */
#ifndef CF_EMULATED_H
#define CF_EMULATED_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <functional>

#define __global__ static
#define __device__
#define __host__
#define __shared__ static thread_local
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __restrict__
#define CF_ROLLED

struct cf_dim {
    unsigned x;
};
struct alignas(16) uint4 {
    uint32_t x, y, z, w;
};
extern thread_local cf_dim threadIdx, blockIdx, blockDim, gridDim;

/* Fibers; emulated.cpp. */
void cf_emulate_team(void (*body)(void *), void *context);
void cf_emulate_meet_block(void);
void cf_emulate_meet_warp(void);
extern thread_local unsigned char cf_emulate_lanes[2][1024][16], cf_emulate_turns[1024];

template <class F> void cf_emulate_blocks(int64_t blocks, int64_t threads, bool team, F f) {
    gridDim.x = (unsigned)blocks;
    blockDim.x = (unsigned)threads;
    for (int64_t b = 0; b < blocks; b++) {
        blockIdx.x = (unsigned)b;
        if (team) {
            cf_emulate_team([](void *context) { (*(F *)context)(); }, &f);
            continue;
        }
        for (int64_t t = 0; t < threads; t++) {
            threadIdx.x = (unsigned)t;
            f();
        }
    }
}

/* Runs the work behind all that the stream was given before; at once where there is no stream. */
void cf_emulate_on(void *stream, std::function<void()> work);

/* Counts what happened, such as the launch of a kernel by its name: see CONFLUX_EMULATED_COUNTS. */
void cf_emulate_count(const char *what);

/* Whether a launch on this stream fails: the next cudaGetLastError says so. */
bool cf_emulated_launch_fails(void *stream);

/* The arguments are copied at the launch, as CUDA does it. */
template <class K, class... A>
void cf_emulate(const char *name, void *stream, int64_t blocks, int64_t threads, bool team, K kernel, A... arguments) {
    if (threads > 1024 || blocks < 1 || threads < 1 || blocks > INT32_MAX) abort(); /* CUDA refuses it */
    if (cf_emulated_launch_fails(stream)) return;
    cf_emulate_count(name);
    cf_emulate_on(stream, [=] { cf_emulate_blocks(blocks, threads, team, [&] { kernel(arguments...); }); });
}
#define CF_LAUNCH_AS(team, kernel, blocks, threads, worker, ...)                                             \
    cf_emulate(                                                                                              \
        #kernel, cf_cuda_of(worker)->stream, blocks, threads, team, [=](const auto &...a) { kernel(a...); }, \
        __VA_ARGS__)
#define CF_LAUNCH(...) CF_LAUNCH_AS(false, __VA_ARGS__)
#define CF_LAUNCH_TEAM(...) CF_LAUNCH_AS(true, __VA_ARGS__)

static inline void __threadfence_system(void) { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
static inline void __syncthreads(void) { cf_emulate_meet_block(); }
static inline void __syncwarp(void) { cf_emulate_meet_warp(); }

/* By turns in one of two places, so that the next value does not meet one that is still to be read. */
template <class T> T cf_emulate_shuffle(T x, unsigned from) {
    static_assert(sizeof(T) <= 16, "a shuffled value is at most 16 bytes");
    auto &lanes = cf_emulate_lanes[cf_emulate_turns[threadIdx.x]++ % 2];
    memcpy(lanes[threadIdx.x], &x, sizeof x);
    cf_emulate_meet_warp();
    memcpy(&x, lanes[from], sizeof x);
    return x;
}
template <class T> T __shfl_xor_sync(unsigned, T x, int mask) {
    return cf_emulate_shuffle(x, threadIdx.x ^ (unsigned)mask);
}
template <class T> T __shfl_down_sync(unsigned, T x, unsigned by) {
    return cf_emulate_shuffle(x, threadIdx.x % 32 + by < 32 ? threadIdx.x + by : threadIdx.x);
}
template <class T> T __shfl_up_sync(unsigned, T x, unsigned by) {
    return cf_emulate_shuffle(x, threadIdx.x % 32 >= by ? threadIdx.x - by : threadIdx.x);
}
template <class T> T __shfl_sync(unsigned, T x, int lane) {
    return cf_emulate_shuffle(x, threadIdx.x / 32 * 32 + (unsigned)lane % 32);
}

template <class T> T atomicExch(T *at, T x) {
    const T old = *at;
    *at = x;
    return old;
}
template <class T> T atomicAdd(T *at, T x) { /* integers: the order must not matter */
    static_assert((T)0.5 == (T)0, "no floating-point atomics");
    const T old = *at;
    *at = old + x;
    return old;
}
template <class T> T atomicMax(T *at, T x) {
    const T old = *at;
    if (x > old) *at = x;
    return old;
}

static inline void __stwb(uint4 *to, uint4 x) {
    if ((uintptr_t)to % sizeof x != 0) abort(); /* a GPU refuses it */
    *to = x;
}
static inline float rsqrtf(float x) { return 1 / sqrtf(x); }
static inline double rsqrt(double x) { return 1 / sqrt(x); }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
static inline uint64_t __umul64hi(uint64_t a, uint64_t b) { return (uint64_t)((unsigned __int128)a * b >> 64); }

/* ---- half types, by their bits */

struct cf_f16;
struct cf_bf16;
float cf_to_float(cf_f16 x);
float cf_to_float(cf_bf16 x);
cf_f16 cf_to_f16(float x);
cf_bf16 cf_to_bf16(float x);

#endif
