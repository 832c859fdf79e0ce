/* random.cu: random tensors by position.
 *
 * Element e, in row-major order, is made from the words at `position` + e (two words where it needs 64 bits), as
 * base/rng.h has it; a thread makes the elements of one block of four words.  Bits and uniforms are those of the CPU:
 * what is scaled is so rounded that a fused multiply-add gives the same.  Normals agree with the CPU's to rounding.
 */
#include "cuda/kernel.cuh"

#define CF_HERE __device__
#include "base/rng.h"

namespace {

/* ---- words -------------------------------------------------------------------------------------------------- */

/* The sequence of a call, from the block of its first word on. */
typedef struct sequence {
    uint64_t seed, stream, first;
} sequence;

static sequence sequence_of(const cf_position &at) { return {at.seed, at.stream, at.position / 4}; }

__device__ static inline void words(const sequence &s, uint64_t block, uint32_t (&out)[4]) {
    cf_philox(s.seed, s.stream, block + s.first, out);
}
__device__ static inline float unit(uint32_t word) { return cf_uniform_f32(word); }
__device__ static inline double unit(uint32_t high, uint32_t low) { return cf_uniform_f64(high, low); }

/* ---- runs: the elements of one block of words --------------------------------------------------------------- */

/* A view whose runs may lie whole and aligned in memory, so that a thread moves one at once. */
typedef struct target {
    cf_view v;
    bool whole;
} target;

static target target_of(const cf_view *v) {
    enum { ALIGNED = 32 }; /* the largest run: four doubles */
    target t = {*v, cf_view_packed(v) && (uintptr_t)v->data % ALIGNED == 0};
    cf_view_flatten(&t.v);
    return t;
}

/* 16 bytes are the most that an instruction moves, so longer runs are not aligned to more. */
template <class T, int N> struct alignas(N * sizeof(T) < 16 ? N * sizeof(T) : 16) run { T v[N]; };

template <class T, class C, int N> __device__ static inline void put_whole(void *y, int64_t e, const C (&x)[N]) {
    run<T, N> r;
    for (int k = 0; k < N; k++) r.v[k] = cf_store<T>::from(x[k]);
    ((run<T, N> *)y)[e / N] = r;
}
template <class T, class C, int N> __device__ static inline void get_whole(const void *y, int64_t e, C (&x)[N]) {
    const run<T, N> r = ((const run<T, N> *)y)[e / N];
    for (int k = 0; k < N; k++) x[k] = cf_as<C>(r.v[k]);
}

/* Elements [e, e + N) of n, where they are. */
template <class C, int N>
__device__ static inline void put_run(const target &y, int64_t e, int64_t n, const C (&x)[N]) {
    if (y.whole && e + N <= n) {
        switch (y.v.dtype) {
        case CFX_FLOAT16: put_whole<cf_f16>(y.v.data, e, x); return;
        case CFX_BFLOAT16: put_whole<cf_bf16>(y.v.data, e, x); return;
        case CFX_FLOAT32: put_whole<float>(y.v.data, e, x); return;
        case CFX_FLOAT64: put_whole<double>(y.v.data, e, x); return;
        default: break;
        }
    }
    for (int k = 0; k < N; k++)
        if (e + k < n) cf_write<C>(y.v, e + k, x[k]);
}
template <class C, int N> __device__ static inline void get_run(const target &y, int64_t e, int64_t n, C (&x)[N]) {
    if (y.whole && e + N <= n) {
        switch (y.v.dtype) {
        case CFX_FLOAT16: get_whole<cf_f16>(y.v.data, e, x); return;
        case CFX_BFLOAT16: get_whole<cf_bf16>(y.v.data, e, x); return;
        case CFX_FLOAT32: get_whole<float>(y.v.data, e, x); return;
        case CFX_FLOAT64: get_whole<double>(y.v.data, e, x); return;
        default: break;
        }
    }
    for (int k = 0; k < N; k++) x[k] = e + k < n ? cf_read<C>(y.v, e + k) : C(0);
}

/* ---- uniform ------------------------------------------------------------------------------------------------ */

__global__ void uniform_f32_kernel(target y, int64_t n, sequence s, float low, float span, float limit) {
    for (CF_EACH(b, (n + 3) / 4)) {
        uint32_t w[4];
        float v[4];
        words(s, (uint64_t)b, w);
        for (int k = 0; k < 4; k++) {
            /* A product of two floats is exact as a double; with low 0 the float product is the same number. */
            v[k] = low == 0 && span > 0 ? unit(w[k]) * span : (float)((double)unit(w[k]) * span + (double)low);
            if (v[k] > limit) v[k] = limit;
        }
        put_run(y, 4 * b, n, v);
    }
}

__global__ void uniform_f64_kernel(target y, int64_t n, sequence s, double low, double span, double limit) {
    for (CF_EACH(b, (n + 1) / 2)) {
        uint32_t w[4];
        double v[2];
        words(s, (uint64_t)b, w);
        for (int k = 0; k < 2; k++) {
            v[k] = fma(unit(w[2 * k], w[2 * k + 1]), span, low);
            if (v[k] > limit) v[k] = limit;
        }
        put_run(y, 2 * b, n, v);
    }
}

/* The largest value of a float dtype below x. */
static double below(int dtype, double x) {
    static const struct {
        int digits, least; /* bits of the significand, exponent of the smallest normal number */
        double most;
    } formats[] = {{11, -14, 65504}, {8, -126, 0x1.FEp127}, {24, -126, 0x1.FFFFFEp127}, {53, -1022, HUGE_VAL}};
    const auto &f = formats[dtype - CFX_FLOAT16];
    const int exponent = x == 0 || ilogb(x) < f.least ? f.least : ilogb(x);
    double step = ldexp(1, exponent - f.digits + 1);
    if (x == ldexp(1, exponent) && exponent > f.least) step /= 2; /* numbers lie closer below a power of two */
    const double next = (ceil(x / step) - 1) * step;
    return next < f.most ? next : f.most;
}

/* ---- normal: pairs, elements 2j and 2j + 1 (Box and Muller 1958) -------------------------------------------- */

/* u in (0, 1], v in [0, 1). */
__device__ static inline void normals(float u, float v, float mean, float deviation, float *y) {
    const float r = deviation * sqrtf(-2 * logf(u));
    float sine, cosine;
    sincosf(6.28318530718f * v, &sine, &cosine);
    y[0] = mean + r * cosine;
    y[1] = mean + r * sine;
}
__device__ static inline void normals(double u, double v, double mean, double deviation, double *y) {
    const double r = deviation * sqrt(-2 * log(u));
    double sine, cosine;
    sincos(6.28318530717958647692 * v, &sine, &cosine);
    y[0] = mean + r * cosine;
    y[1] = mean + r * sine;
}

__global__ void normal_f32_kernel(target y, int64_t n, sequence s, float mean, float deviation) {
    for (CF_EACH(b, (n + 3) / 4)) {
        uint32_t w[4];
        float v[4];
        words(s, (uint64_t)b, w);
        for (int k = 0; k < 4; k += 2) normals(1 - unit(w[k]), unit(w[k + 1]), mean, deviation, v + k);
        put_run(y, 4 * b, n, v);
    }
}

__global__ void normal_f64_kernel(target y, int64_t n, sequence s, double mean, double deviation) {
    for (CF_EACH(b, (n + 1) / 2)) {
        uint32_t w[4];
        double v[2];
        words(s, (uint64_t)b, w);
        normals(1 - unit(w[0], w[1]), unit(w[2], w[3]), mean, deviation, v);
        put_run(y, 2 * b, n, v);
    }
}

/* ---- integers ----------------------------------------------------------------------------------------------- */

/* A number in [0, bound) from 64 random bits (rng.c); a bound of 0 stands for 2^64. */
__device__ static inline uint64_t bounded(uint32_t high, uint32_t low, uint64_t bound) {
    const uint64_t bits = (uint64_t)high << 32 | low;
    return bound ? __umul64hi(bits, bound) : bits;
}

__global__ void randint_kernel(cf_view y, int64_t n, sequence s, double first, double last) {
    const uint64_t low = (uint64_t)cf_integer(first), range = (uint64_t)cf_integer(last) - low + 1; /* 0: all 2^64 */
    for (CF_EACH(b, (n + 1) / 2)) {
        uint32_t w[4];
        words(s, (uint64_t)b, w);
        for (int k = 0; k < 2; k++)
            if (2 * b + k < n) cf_write<int64_t>(y, 2 * b + k, (int64_t)(low + bounded(w[2 * k], w[2 * k + 1], range)));
    }
}

/* ---- permutation -------------------------------------------------------------------------------------------- */

/* The swaps of Fisher and Yates, i with a j <= i for i from n - 1 down to 1, are known beforehand, and two of them
 * can change places in time unless they share an element (Shun, Gu, Blelloch, Fineman, Gibbons, "Sequential random
 * permutation, list contraction and tree contraction are highly parallel", SODA 2015).  So one block takes TEAM of
 * them, and in each round does those that are the first of the rest at both of their elements.  Far from the end
 * nearly all are, in the first round.
 *
 * Claims lie in a table of shared memory where elements may share a place: then the later swap waits for a round
 * in which it need not, which changes nothing else. */
enum { TEAM = 1024, CLAIMS = 8192 };

__global__ void __launch_bounds__(TEAM) permute_kernel(int64_t *ids, int64_t n, sequence s) {
    __shared__ int claims[CLAIMS], left;
    const int rank = TEAM - (int)threadIdx.x; /* the first swap has the largest; 0: unclaimed */
    for (int k = (int)threadIdx.x; k < CLAIMS; k += TEAM) claims[k] = 0;
    __syncthreads();
    for (int64_t top = n - 1; top > 0; top -= TEAM) {
        const int64_t i = top - (int64_t)threadIdx.x;
        int64_t j = 0;
        bool waits = i > 0, more = true;
        if (waits) {
            uint32_t w[4];
            words(s, (uint64_t)i, w);
            j = (int64_t)bounded(w[0], w[1], (uint64_t)i + 1);
        }
        int *const a = &claims[(uint64_t)i % CLAIMS], *const b = &claims[(uint64_t)j % CLAIMS];
        while (more) {
            if (waits) {
                atomicMax(a, rank);
                atomicMax(b, rank);
            }
            if (threadIdx.x == 0) left = 0;
            __syncthreads();
            const bool now = waits && *a == rank && *b == rank;
            if (now) {
                const int64_t t = ids[i];
                ids[i] = ids[j];
                ids[j] = t;
            }
            waits = waits && !now;
            if (waits) left = 1;
            __syncthreads();
            if (now) *a = *b = 0;
            more = left != 0;
            __syncthreads();
        }
    }
}

__global__ void count_kernel(int64_t *ids, int64_t n) {
    for (CF_EACH(e, n)) ids[e] = e;
}
__global__ void write_ids_kernel(cf_view y, const int64_t *ids, int64_t n) {
    for (CF_EACH(e, n)) cf_write<int64_t>(y, e, ids[e]);
}

/* ---- dropout ------------------------------------------------------------------------------------------------ */

template <class C> __global__ void dropout_kernel(target y, target x, int64_t n, sequence s, uint32_t least, C scale) {
    for (CF_EACH(b, (n + 3) / 4)) {
        uint32_t w[4];
        C v[4];
        words(s, (uint64_t)b, w);
        get_run(x, 4 * b, n, v);
        for (int k = 0; k < 4; k++) v[k] = (w[k] >> 8) >= least ? v[k] * scale : C(0);
        put_run(y, 4 * b, n, v);
    }
}

template <class C> static void dropout_by(cf_worker *worker, const cf_call *call, int64_t n) {
    const cf_dropout_params *params = CF_PARAMS(call, dropout);
    const double p = params->p;
    /* A uniform number w 2^-24 is kept if it is at least p. */
    const uint32_t least = (uint32_t)ceil(p * 0x1p24);
    CF_LAUNCH(dropout_kernel<C>, cf_cuda_blocks(worker, (n + 3) / 4), CF_THREADS, worker, target_of(&call->v[0]),
              target_of(cf_call_in(call, 0)), n, sequence_of(params->at), least, (C)(p < 1 ? 1 / (1 - p) : 0));
}

} // namespace

/* ---- the rows ----------------------------------------------------------------------------------------------- */

extern "C" cfx_status cf_cuda_uniform(cf_worker *worker, const cf_call *call) {
    const int dtype = call->v[0].dtype;
    const int64_t n = cf_view_numel(&call->v[0]);
    const cf_random_params *params = CF_PARAMS(call, random);
    const double p0 = params->a, p1 = params->b;
    if (!cf_is_float(dtype)) return cf_fail(CFX_EFAULT, "needs a float dtype");
    if (!n) return CFX_OK;
    const double limit = p0 < p1 ? below(dtype, p1) : p0;
    const target y = target_of(&call->v[0]);
    const sequence s = sequence_of(params->at);
    if (dtype == CFX_FLOAT64)
        CF_LAUNCH(uniform_f64_kernel, cf_cuda_blocks(worker, (n + 1) / 2), CF_THREADS, worker, y, n, s, p0, p1 - p0,
                  limit);
    else
        CF_LAUNCH(uniform_f32_kernel, cf_cuda_blocks(worker, (n + 3) / 4), CF_THREADS, worker, y, n, s, (float)p0,
                  (float)p1 - (float)p0, (float)limit);
    return cf_cuda_launched("uniform");
}

extern "C" cfx_status cf_cuda_normal(cf_worker *worker, const cf_call *call) {
    const cf_random_params *params = CF_PARAMS(call, random);
    const int dtype = call->v[0].dtype;
    const int64_t n = cf_view_numel(&call->v[0]);
    if (!cf_is_float(dtype)) return cf_fail(CFX_EFAULT, "needs a float dtype");
    if (!n) return CFX_OK;
    const target y = target_of(&call->v[0]);
    const sequence s = sequence_of(params->at);
    if (dtype == CFX_FLOAT64)
        CF_LAUNCH(normal_f64_kernel, cf_cuda_blocks(worker, (n + 1) / 2), CF_THREADS, worker, y, n, s, params->a,
                  params->b);
    else
        CF_LAUNCH(normal_f32_kernel, cf_cuda_blocks(worker, (n + 3) / 4), CF_THREADS, worker, y, n, s, (float)params->a,
                  (float)params->b);
    return cf_cuda_launched("normal");
}

extern "C" cfx_status cf_cuda_randint(cf_worker *worker, const cf_call *call) {
    const cf_random_params *params = CF_PARAMS(call, random);
    const int64_t n = cf_view_numel(&call->v[0]);
    if (!n) return CFX_OK;
    CF_LAUNCH(randint_kernel, cf_cuda_blocks(worker, (n + 1) / 2), CF_THREADS, worker, target_of(&call->v[0]).v, n,
              sequence_of(params->at), params->a, params->b);
    return cf_cuda_launched("randint");
}

/* Where the ids cannot be made in place. */
extern "C" size_t cf_cuda_permutation_workspace(const cf_call *call) {
    const cf_view *y = &call->v[0];
    return y->dtype == CFX_INT64 && cf_view_packed(y) ? 0 : (size_t)cf_view_numel(y) * sizeof(int64_t);
}

extern "C" cfx_status cf_cuda_permutation(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0];
    const int64_t n = cf_view_numel(y);
    const cf_position *at = &CF_PARAMS(call, random)->at;
    const sequence s = {at->seed, at->stream + (at->position << 8), 0};
    if (!n) return CFX_OK;
    const bool direct = !call->workspace;
    int64_t *ids = (int64_t *)(direct ? y->data : call->workspace);
    CF_LAUNCH(count_kernel, cf_cuda_blocks(worker, n), CF_THREADS, worker, ids, n);
    CF_LAUNCH_TEAM(permute_kernel, 1, TEAM, worker, ids, n, s);
    if (!direct) CF_LAUNCH(write_ids_kernel, cf_cuda_blocks(worker, n), CF_THREADS, worker, target_of(y).v, ids, n);
    return cf_cuda_launched("permutation");
}

extern "C" cfx_status cf_cuda_dropout(cf_worker *worker, const cf_call *call) {
    const int64_t n = cf_view_numel(&call->v[0]);
    if (!n) return CFX_OK;
    if (cf_cuda_compute_of(call->dtype) == CF_CUDA_F64) dropout_by<double>(worker, call, n);
    else dropout_by<float>(worker, call, n);
    return cf_cuda_launched("dropout");
}
