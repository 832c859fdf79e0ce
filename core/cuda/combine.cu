/* combine.cu: replicas that share one GPU are combined.
 *
 * It is bound by memory: a thread reads 16 bytes of each replica, and writes them, once.  The replicas are added in their
 * order.
 */
#include "cuda/items.cuh"

extern "C" {
#include "device/backends.h"
}

namespace {

/* Bool as it is stored: any byte that is not 0 is true. */
struct truth {
    uint8_t bits;
};

} // namespace

template <class C> __device__ inline C cf_as(truth x) { return (C)(x.bits != 0); }
template <> struct cf_store<truth> {
    template <class C> __device__ static inline truth from(C x) { return truth{(uint8_t)(x != 0)}; }
};

namespace {

/* The replicas' tensors, each packed; as many as a call can name.  They travel in the launch. */
typedef struct tensors {
    void *x[UINT8_MAX];
    int count, root; /* root: the one that gets the result, or -1: all */
} tensors;

template <class T> struct combined_in { typedef uint64_t type; /* integers wrap */ };
template <> struct combined_in<float> { typedef float type; };
template <> struct combined_in<cf_f16> { typedef float type; };
template <> struct combined_in<cf_bf16> { typedef float type; };
template <> struct combined_in<double> { typedef double type; };

__device__ inline bool less(uint64_t a, uint64_t b) { return (int64_t)a < (int64_t)b; }
__device__ inline bool less(float a, float b) { return a < b; }
__device__ inline bool less(double a, double b) { return a < b; }

/* NaN wins over any number, as it does in a sum. */
template <class C> __device__ __forceinline__ C combined(int how, C a, C b) {
    switch (how) {
    case CF_COMBINE_PROD: return a * b;
    case CF_COMBINE_MAX: return less(b, a) || a != a ? a : b;
    case CF_COMBINE_MIN: return less(a, b) || a != a ? a : b;
    default: return a + b;
    }
}

template <class T, class C> __device__ inline T stored(C x) { return cf_store<T>::from(x); }
template <class T> __device__ inline T stored(uint64_t x) { return cf_store<T>::from((int64_t)x); }

/* N elements at i of every tensor, added in the order of the tensors. */
template <class T, int N> __device__ __forceinline__ void combine_pack(int how, const tensors &t, int64_t i) {
    typedef typename combined_in<T>::type C;
    C sum[N];
    const cf_pack<T, N> first = ((const cf_pack<T, N> *)t.x[0])[i];
    for (int j = 0; j < N; j++) sum[j] = (C)cf_as<C>(first.x[j]);
    for (int k = 1; k < t.count; k++) {
        const cf_pack<T, N> next = ((const cf_pack<T, N> *)t.x[k])[i];
        for (int j = 0; j < N; j++) sum[j] = combined(how, sum[j], cf_as<C>(next.x[j]));
    }
    cf_pack<T, N> out;
    const C by = (C)(1 / (double)t.count);
    for (int j = 0; j < N; j++) out.x[j] = stored<T>(how == CF_COMBINE_AVG ? sum[j] * by : sum[j]);
    if (t.root >= 0) {
        ((cf_pack<T, N> *)t.x[t.root])[i] = out;
        return;
    }
    for (int k = 0; k < t.count; k++) ((cf_pack<T, N> *)t.x[k])[i] = out;
}

template <class T, int HOW> __global__ void combine_packs(tensors t, int64_t n) {
    constexpr int N = 16 / sizeof(T);
    const int64_t packs = n / N, rest = packs * N;
    for (CF_EACH(i, packs)) combine_pack<T, N>(HOW, t, i);
    for (CF_EACH(i, n - rest)) combine_pack<T, 1>(HOW, t, rest + i);
}

/* Tensors that do not start at multiples of 16 bytes. */
template <class T> __global__ void combine_elements(int how, tensors t, int64_t n) {
    for (CF_EACH(i, n)) combine_pack<T, 1>(how, t, i);
}

template <class T> void launch_combine(cf_worker *worker, int how, const tensors *t, int64_t n) {
    bool whole = true;
    for (int k = 0; k < t->count; k++) whole = whole && cf_aligned(t->x[k]);
    if (!whole) {
        const auto kernel = combine_elements<T>;
        CF_LAUNCH(kernel, cf_cuda_blocks(worker, n), CF_THREADS, worker, how, *t, n);
        return;
    }
    const auto kernel = how == CF_COMBINE_PROD  ? combine_packs<T, CF_COMBINE_PROD>
                        : how == CF_COMBINE_MAX ? combine_packs<T, CF_COMBINE_MAX>
                        : how == CF_COMBINE_MIN ? combine_packs<T, CF_COMBINE_MIN>
                        : how == CF_COMBINE_AVG ? combine_packs<T, CF_COMBINE_AVG>
                                                : combine_packs<T, CF_COMBINE_SUM>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, n / (16 / (int)sizeof(T)) + 1), CF_THREADS, worker, *t, n);
}

typedef struct weights {
    double by[CF_MAX_DEVICES];
} weights;

/* The weighted sum, added in the order of the tensors; what has weight 0 may hold anything. */
template <class T> __global__ void combine_weighted(tensors t, weights w, int64_t n) {
    typedef typename combined_in<T>::type C;
    for (CF_EACH(i, n)) {
        C sum = 0;
        for (int k = 0; k < t.count; k++)
            if (w.by[k] != 0) sum += (C)w.by[k] * (C)cf_as<C>(((const T *)t.x[k])[i]);
        for (int k = 0; k < t.count; k++)
            if (t.root < 0 || k == t.root) ((T *)t.x[k])[i] = stored<T>(sum);
    }
}

template <class T> void launch_weighted(cf_worker *worker, const tensors *t, const weights *w, int64_t n) {
    const auto kernel = combine_weighted<T>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, n), CF_THREADS, worker, *t, *w, n);
}

/* The root's words to the others, and the bytes behind the last word. */
template <class W> __global__ void copy_words(tensors t, int64_t bytes) {
    const int64_t words = bytes / (int64_t)sizeof(W), rest = words * (int64_t)sizeof(W);
    for (CF_EACH(i, words)) {
        const W word = ((const W *)t.x[t.root])[i];
        for (int k = 0; k < t.count; k++)
            if (k != t.root) ((W *)t.x[k])[i] = word;
    }
    for (CF_EACH(i, bytes - rest))
        for (int k = 0; k < t.count; k++)
            if (k != t.root) ((uint8_t *)t.x[k])[rest + i] = ((const uint8_t *)t.x[t.root])[rest + i];
}

template <class W> void launch_copy(cf_worker *worker, const tensors *t, int64_t bytes) {
    const auto kernel = copy_words<W>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, bytes / (int64_t)sizeof(W) + 1), CF_THREADS, worker, *t, bytes);
}

} // namespace

static cfx_status weighted(cf_worker *worker, const cf_call *call, const tensors *t, int64_t n) {
    weights w;
    if (t->count > CF_MAX_DEVICES) return cf_fail(CFX_EFAULT, "%d replicas are more than %d", t->count, CF_MAX_DEVICES);
    for (int k = 0; k < t->count; k++) w.by[k] = CF_PARAMS(call, combine)->weight[k];
    switch (call->dtype) {
    case CFX_FLOAT16: launch_weighted<cf_f16>(worker, t, &w, n); break;
    case CFX_BFLOAT16: launch_weighted<cf_bf16>(worker, t, &w, n); break;
    case CFX_FLOAT32: launch_weighted<float>(worker, t, &w, n); break;
    default: launch_weighted<double>(worker, t, &w, n);
    }
    return cf_cuda_launched("combine");
}

extern "C" cfx_status cf_cuda_combine(cf_worker *worker, const cf_call *call) {
    const int how = CF_PARAMS(call, combine)->op, root = CF_PARAMS(call, combine)->root;
    const int64_t n = cf_view_numel(&call->v[0]);
    if (root >= call->nout || (how == CF_COMBINE_COPY && root < 0))
        return cf_fail(CFX_EFAULT, "there is no replica %d among %d", root, call->nout);
    if ((how == CF_COMBINE_AVG || how == CF_COMBINE_WEIGHTED) && !cf_is_float(call->dtype))
        return cf_fail(CFX_EFAULT, "integers have no average (%s)", cfx_dtype_name(call->dtype));
    if (n == 0) return CFX_OK;
    tensors t;
    uintptr_t bits = 0;
    t.count = call->nout;
    t.root = root;
    for (int k = 0; k < t.count; k++) {
        t.x[k] = call->v[k].data;
        bits |= (uintptr_t)t.x[k];
    }
    if (how == CF_COMBINE_WEIGHTED) return weighted(worker, call, &t, n);
    if (how == CF_COMBINE_COPY) {
        const int64_t bytes = n * cfx_dtype_size(call->dtype);
        if (bits % 16 == 0) launch_copy<cf_pack<uint32_t, 4>>(worker, &t, bytes);
        else if (bits % 4 == 0) launch_copy<uint32_t>(worker, &t, bytes);
        else launch_copy<uint8_t>(worker, &t, bytes);
    } else switch (call->dtype) {
        case CFX_BOOL: launch_combine<truth>(worker, how, &t, n); break;
        case CFX_UINT8: launch_combine<uint8_t>(worker, how, &t, n); break;
        case CFX_INT32: launch_combine<int32_t>(worker, how, &t, n); break;
        case CFX_INT64: launch_combine<int64_t>(worker, how, &t, n); break;
        case CFX_FLOAT16: launch_combine<cf_f16>(worker, how, &t, n); break;
        case CFX_BFLOAT16: launch_combine<cf_bf16>(worker, how, &t, n); break;
        case CFX_FLOAT32: launch_combine<float>(worker, how, &t, n); break;
        default: launch_combine<double>(worker, how, &t, n);
        }
    return cf_cuda_launched("combine");
}
