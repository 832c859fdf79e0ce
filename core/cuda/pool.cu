/* pool.cu: the largest and the mean of windows of images [n, height, width, c], and their gradients.
 *
 * A thread makes a pixel's channel, or the N of 16 bytes.  A gradient is gathered: each pixel of the input goes over the
 * windows that have it, in order.
 */
#include "cuda/items.cuh"

extern "C" {
#include "device/windows.h"
}

namespace {

typedef struct job {
    cf_view y, x, tap; /* packed; what is made, of what; tap: data NULL: there is none */
    cf_axis h, w;
    int64_t c, elements; /* elements: of y */
    int count_pad;
} job;

/* Element e of images of height and width. */
typedef struct spot {
    int64_t image, row, col, channel;
} spot;
__device__ static inline spot spot_of(int64_t e, int64_t height, int64_t width, int64_t c) {
    const int64_t pixel = e / c;
    return spot{pixel / width / height, pixel / width % height, pixel % width, e % c};
}
__device__ static inline int64_t place(const spot &s, int64_t height, int64_t width, int64_t row, int64_t col,
                                       int64_t c) {
    return ((s.image * height + row) * width + col) * c + s.channel;
}
template <class M, int N> __device__ cf_span<M, N> span_of(const cf_view &v, int64_t n) {
    return cf_span<M, N>(v, 0, 1, n);
}
__device__ static inline int64_t tap_at(const job &j, int64_t e) {
    return j.tap.dtype == CFX_UINT8 ? ((const uint8_t *)j.tap.data)[e] : ((const int32_t *)j.tap.data)[e];
}
__device__ static inline void put_tap(const job &j, int64_t e, int64_t tap) {
    if (j.tap.dtype == CFX_UINT8) ((uint8_t *)j.tap.data)[e] = (uint8_t)tap;
    else ((int32_t *)j.tap.data)[e] = (int32_t)tap;
}

template <class M, int N> __global__ void largest(const job j) {
    typedef typename M::C C;
    const auto x = span_of<M, N>(j.x, INT64_MAX), y = span_of<M, N>(j.y, j.elements);
    for (CF_EACH(item, j.elements / N)) {
        const spot s = spot_of(item * N, j.h.out, j.w.out, j.c);
        const cf_taps h = cf_taps_of(&j.h, s.row), w = cf_taps_of(&j.w, s.col);
        cf_items<C, N> best;
        int64_t tap[N];
        for (int k = 0; k < N; k++) best.x[k] = -(C)INFINITY, tap[k] = h.from * j.w.kernel + w.from;
        for (int64_t a = h.from; a < h.to; a++)
            for (int64_t b = w.from; b < w.to; b++) {
                const int64_t at = place(s, j.h.in, j.w.in, h.first + a * h.step, w.first + b * w.step, j.c);
                const cf_items<C, N> v = x.items(at);
                for (int k = 0; k < N; k++)
                    if (v.x[k] > best.x[k] || v.x[k] != v.x[k]) best.x[k] = v.x[k], tap[k] = a * j.w.kernel + b;
            }
        y.put(item * N, best);
        for (int k = 0; j.tap.data && k < N; k++) put_tap(j, item * N + k, tap[k]);
    }
}

/* Each row of a window is added up by itself, as on the CPU. */
template <class M, int N> __global__ void means(const job j) {
    typedef typename M::C C;
    const auto x = span_of<M, N>(j.x, INT64_MAX), y = span_of<M, N>(j.y, j.elements);
    for (CF_EACH(item, j.elements / N)) {
        const spot s = spot_of(item * N, j.h.out, j.w.out, j.c);
        const cf_taps h = cf_taps_of(&j.h, s.row), w = cf_taps_of(&j.w, s.col);
        const C count = (C)(cf_window_count(&j.h, s.row, j.count_pad) * cf_window_count(&j.w, s.col, j.count_pad));
        cf_items<C, N> sum = {};
        for (int64_t a = h.from; a < h.to; a++) {
            cf_items<C, N> line = {};
            for (int64_t b = w.from; b < w.to; b++) {
                const int64_t at = place(s, j.h.in, j.w.in, h.first + a * h.step, w.first + b * w.step, j.c);
                const cf_items<C, N> v = x.items(at);
                for (int k = 0; k < N; k++) line.x[k] += v.x[k];
            }
            for (int k = 0; k < N; k++) sum.x[k] += line.x[k];
        }
        for (int k = 0; k < N; k++) sum.x[k] /= count;
        y.put(item * N, sum);
    }
}

/* x is dy, y is dx.  With taps a window gives all to the one it names, else each its share. */
template <class M, int N> __global__ void gradient(const job j) {
    typedef typename M::C C;
    const auto dy = span_of<M, N>(j.x, INT64_MAX), dx = span_of<M, N>(j.y, j.elements);
    for (CF_EACH(item, j.elements / N)) {
        const spot s = spot_of(item * N, j.h.in, j.w.in, j.c);
        int64_t top, bottom, left, right;
        cf_windows_of(&j.h, s.row, &top, &bottom);
        cf_windows_of(&j.w, s.col, &left, &right);
        cf_items<C, N> sum = {};
        for (int64_t a = top; a < bottom; a++)
            for (int64_t b = left; b < right; b++) {
                const int64_t tap_h = cf_tap_of(&j.h, a, s.row), tap_w = cf_tap_of(&j.w, b, s.col);
                if (tap_h < 0 || tap_w < 0) continue;
                const int64_t at = place(s, j.h.out, j.w.out, a, b, j.c), tap = tap_h * j.w.kernel + tap_w;
                const cf_items<C, N> g = dy.items(at);
                if (j.tap.data) {
                    for (int k = 0; k < N; k++) sum.x[k] += tap_at(j, at + k) == tap ? g.x[k] : (C)0;
                    continue;
                }
                const C share =
                    (C)(1 / (double)(cf_window_count(&j.h, a, j.count_pad) * cf_window_count(&j.w, b, j.count_pad)));
                for (int k = 0; k < N; k++) sum.x[k] += g.x[k] * share;
            }
        dx.put(item * N, sum);
    }
}

/* in, out: the larger and the smaller image of the pool, whichever is made. */
static job job_of(const cf_call *call, const cf_view *in, const cf_view *out) {
    const cf_pool_params *params = CF_PARAMS(call, pool);
    job j = {};
    j.y = call->v[0];
    j.x = *cf_call_in(call, 0);
    j.h = cf_pool_axis(params, 0, in->shape[1], out->shape[1]);
    j.w = cf_pool_axis(params, 1, in->shape[2], out->shape[2]);
    j.c = j.y.shape[3];
    j.elements = cf_view_numel(&j.y);
    j.count_pad = params->count_pad;
    return j;
}

/* Whether a pixel's channels can be moved 16 bytes at a time. */
static bool is_wide(const job &j) {
    return j.x.dtype == j.y.dtype && j.c * cf_float_size(j.x.dtype) % 16 == 0 && cf_aligned(j.x.data) &&
           cf_aligned(j.y.data);
}

#define RUN(name, kernel)                                                             \
    template <class M> static void name(cf_worker *worker, const job &j, bool wide) { \
        const auto run_ = wide ? kernel<M, M::WIDTH> : kernel<M, 1>;                  \
        const int64_t items = wide ? j.elements / M::WIDTH : j.elements;              \
        CF_LAUNCH(run_, cf_cuda_blocks(worker, items), CF_THREADS, worker, j);        \
    }
RUN(run_largest, largest)
RUN(run_means, means)
RUN(run_gradient, gradient)

#define LAUNCH(f, worker, call, j, name)                                            \
    do {                                                                            \
        const cf_view *const v_[] = {&(j).x, &(j).y};                               \
        if ((j).elements == 0) return CFX_OK;                                       \
        CF_MEMORY((call)->dtype, cf_common_dtype(v_, 2), f, worker, j, is_wide(j)); \
        return cf_cuda_launched(name);                                              \
    } while (0)

} // namespace

extern "C" cfx_status cf_cuda_maxpool(cf_worker *worker, const cf_call *call) {
    job j = job_of(call, cf_call_in(call, 0), call->v);
    if (call->nout > 1) j.tap = call->v[1];
    LAUNCH(run_largest, worker, call, j, "maxpool");
}
extern "C" cfx_status cf_cuda_maxpool_bw(cf_worker *worker, const cf_call *call) {
    job j = job_of(call, call->v, cf_call_in(call, 0));
    j.tap = *cf_call_in(call, 1);
    LAUNCH(run_gradient, worker, call, j, "maxpool_bw");
}
extern "C" cfx_status cf_cuda_meanpool(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, cf_call_in(call, 0), call->v);
    LAUNCH(run_means, worker, call, j, "meanpool");
}
extern "C" cfx_status cf_cuda_meanpool_bw(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, call->v, cf_call_in(call, 0));
    LAUNCH(run_gradient, worker, call, j, "meanpool_bw");
}
