/* upsample.cu: images of another size, and their gradients, which each pixel gathers from the results that it is in.
 *
 * A thread makes a pixel's channel, or the N of 16 bytes.
 */
#include "cuda/pixels.cuh"

extern "C" {
#include "device/sampling.h"
}

namespace {

typedef struct job {
    cf_pixel_job p;
    cf_sampling h, w;
} job;

template <class M, int N> __global__ void between(const job j) {
    typedef typename M::C C;
    const cf_span<M, N> x = cf_pixels_in<M, N>(j.p), y = cf_pixels_out<M, N>(j.p);
    for (CF_EACH(item, j.p.elements / N)) {
        const cf_pixel s = cf_pixel_of(item * N, j.h.out, j.w.out, j.p.c);
        const cf_between h = cf_between_of(&j.h, s.row), w = cf_between_of(&j.w, s.col);
        cf_items<C, N> sum = {};
        for (int i = 0; i < 4; i++) {
            const double share = (i / 2 ? h.share : 1 - h.share) * (i % 2 ? w.share : 1 - w.share);
            if (share == 0) continue;
            const int64_t row = i / 2 ? h.second : h.first, col = i % 2 ? w.second : w.first;
            const cf_items<C, N> v = x.items(cf_pixel_at(s, j.h.in, j.w.in, row, col, j.p.c));
            for (int k = 0; k < N; k++) sum.x[k] += v.x[k] * (C)share;
        }
        y.put(item * N, sum);
    }
}

/* x is dy, y is dx. */
template <class M, int N> __global__ void gradient(const job j) {
    typedef typename M::C C;
    const cf_span<M, N> dy = cf_pixels_in<M, N>(j.p), dx = cf_pixels_out<M, N>(j.p);
    for (CF_EACH(item, j.p.elements / N)) {
        const cf_pixel s = cf_pixel_of(item * N, j.h.in, j.w.in, j.p.c);
        const int64_t top = cf_first_result(&j.h, s.row), bottom = cf_end_result(&j.h, s.row);
        const int64_t left = cf_first_result(&j.w, s.col), right = cf_end_result(&j.w, s.col);
        cf_items<C, N> sum = {};
        for (int64_t a = top; a < bottom; a++) {
            const double of_row = cf_share_of(&j.h, a, s.row);
            for (int64_t b = left; b < right; b++) {
                const double share = of_row * cf_share_of(&j.w, b, s.col);
                if (share == 0) continue;
                const cf_items<C, N> g = dy.items(cf_pixel_at(s, j.h.out, j.w.out, a, b, j.p.c));
                for (int k = 0; k < N; k++) sum.x[k] += g.x[k] * (C)share;
            }
        }
        dx.put(item * N, sum);
    }
}

/* in, out: the images before and after, whichever is made. */
static job job_of(const cf_call *call, const cf_view *in, const cf_view *out) {
    const cf_upsample_params *params = CF_PARAMS(call, upsample);
    const job j = {cf_pixel_job_of(&call->v[0], cf_call_in(call, 0)),
                   cf_sampling_of(params, 0, in->shape[1], out->shape[1], call->dtype),
                   cf_sampling_of(params, 1, in->shape[2], out->shape[2], call->dtype)};
    return j;
}

CF_PIXELS_RUN(run_between, between, job)
CF_PIXELS_RUN(run_gradient, gradient, job)

} // namespace

extern "C" cfx_status cf_cuda_upsample(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, cf_call_in(call, 0), call->v);
    CF_PIXELS_LAUNCH(run_between, worker, call, j, "upsample");
}
extern "C" cfx_status cf_cuda_upsample_bw(cf_worker *worker, const cf_call *call) {
    const job j = job_of(call, call->v, cf_call_in(call, 0));
    CF_PIXELS_LAUNCH(run_gradient, worker, call, j, "upsample_bw");
}
