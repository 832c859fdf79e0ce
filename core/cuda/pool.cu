/* pool.cu: the largest and the mean of windows of images [n, height, width, c], and their gradients.
 *
 * A thread makes a pixel's channel, or the N of 16 bytes.  A gradient is gathered: each pixel of the input goes over
 * the windows that have it, in order.
 */
#include "cuda/pixels.cuh"

extern "C" {
#include "device/windows.h"
}

namespace {

typedef struct job {
    cf_pixel_job p;
    cf_view tap; /* packed; data NULL: there is none */
    cf_axis h, w;
    int count_pad;
} job;

__device__ static inline int64_t tap_at(const job &j, int64_t e) {
    return j.tap.dtype == CFX_UINT8 ? ((const uint8_t *)j.tap.data)[e] : ((const int32_t *)j.tap.data)[e];
}
__device__ static inline void put_tap(const job &j, int64_t e, int64_t tap) {
    if (j.tap.dtype == CFX_UINT8) ((uint8_t *)j.tap.data)[e] = (uint8_t)tap;
    else ((int32_t *)j.tap.data)[e] = (int32_t)tap;
}

template <class M, int N> __global__ void largest(const job j) {
    typedef typename M::C C;
    const cf_span<M, N> x = cf_pixels_in<M, N>(j.p), y = cf_pixels_out<M, N>(j.p);
    for (CF_EACH(item, j.p.elements / N)) {
        const cf_pixel s = cf_pixel_of(item * N, j.h.out, j.w.out, j.p.c);
        const cf_taps h = cf_taps_of(&j.h, s.row), w = cf_taps_of(&j.w, s.col);
        cf_items<C, N> best;
        int64_t tap[N];
        for (int k = 0; k < N; k++) best.x[k] = -(C)INFINITY, tap[k] = h.from * j.w.kernel + w.from;
        for (int64_t a = h.from; a < h.to; a++)
            for (int64_t b = w.from; b < w.to; b++) {
                const int64_t at = cf_pixel_at(s, j.h.in, j.w.in, h.first + a * h.step, w.first + b * w.step, j.p.c);
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
    const cf_span<M, N> x = cf_pixels_in<M, N>(j.p), y = cf_pixels_out<M, N>(j.p);
    for (CF_EACH(item, j.p.elements / N)) {
        const cf_pixel s = cf_pixel_of(item * N, j.h.out, j.w.out, j.p.c);
        const cf_taps h = cf_taps_of(&j.h, s.row), w = cf_taps_of(&j.w, s.col);
        const C count = (C)(cf_window_count(&j.h, s.row, j.count_pad) * cf_window_count(&j.w, s.col, j.count_pad));
        cf_items<C, N> sum = {};
        for (int64_t a = h.from; a < h.to; a++) {
            cf_items<C, N> line = {};
            for (int64_t b = w.from; b < w.to; b++) {
                const int64_t at = cf_pixel_at(s, j.h.in, j.w.in, h.first + a * h.step, w.first + b * w.step, j.p.c);
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
    const cf_span<M, N> dy = cf_pixels_in<M, N>(j.p), dx = cf_pixels_out<M, N>(j.p);
    for (CF_EACH(item, j.p.elements / N)) {
        const cf_pixel s = cf_pixel_of(item * N, j.h.in, j.w.in, j.p.c);
        int64_t top, bottom, left, right;
        cf_windows_of(&j.h, s.row, &top, &bottom);
        cf_windows_of(&j.w, s.col, &left, &right);
        cf_items<C, N> sum = {};
        for (int64_t a = top; a < bottom; a++)
            for (int64_t b = left; b < right; b++) {
                const int64_t tap_h = cf_tap_of(&j.h, a, s.row), tap_w = cf_tap_of(&j.w, b, s.col);
                if (tap_h < 0 || tap_w < 0) continue;
                const int64_t at = cf_pixel_at(s, j.h.out, j.w.out, a, b, j.p.c), tap = tap_h * j.w.kernel + tap_w;
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
    j.p = cf_pixel_job_of(&call->v[0], cf_call_in(call, 0));
    j.h = cf_pool_axis(params, 0, in->shape[1], out->shape[1]);
    j.w = cf_pool_axis(params, 1, in->shape[2], out->shape[2]);
    j.count_pad = params->count_pad;
    return j;
}

CF_PIXELS_RUN(run_largest, largest, job)
CF_PIXELS_RUN(run_means, means, job)
CF_PIXELS_RUN(run_gradient, gradient, job)

} // namespace

extern "C" cfx_status cf_cuda_maxpool(cf_worker *worker, const cf_call *call) {
    job j = job_of(call, cf_call_in(call, 0), call->v);
    if (call->nout > 1) j.tap = call->v[1];
    CF_PIXELS_LAUNCH(run_largest, worker, call, j, "maxpool");
}
extern "C" cfx_status cf_cuda_maxpool_bw(cf_worker *worker, const cf_call *call) {
    job j = job_of(call, call->v, cf_call_in(call, 0));
    j.tap = *cf_call_in(call, 1);
    CF_PIXELS_LAUNCH(run_gradient, worker, call, j, "maxpool_bw");
}
extern "C" cfx_status cf_cuda_meanpool(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, cf_call_in(call, 0), call->v);
    CF_PIXELS_LAUNCH(run_means, worker, call, j, "meanpool");
}
extern "C" cfx_status cf_cuda_meanpool_bw(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, call->v, cf_call_in(call, 0));
    CF_PIXELS_LAUNCH(run_gradient, worker, call, j, "meanpool_bw");
}
