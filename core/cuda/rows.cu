/* rows.cu: softmax, its logarithm, the cross entropy of logits, and layer normalisation.
 *
 * A team of threads makes a row, and reads it again for each sum that it needs: after the first time it comes from
 * the cache.  Elements are computed in the compute type, sums are joined as doubles.
 */
#include "cuda/rows.cuh"

/* ---- softmax ------------------------------------------------------------------------------------------------ */

namespace {

typedef struct softmax_job {
    cf_view out, a, b; /* y <- x; or dx <- dy, y */
    int64_t rows, n;
    int lanes, logarithm;
} softmax_job;

template <class M> __global__ void softmax_rows(const softmax_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const int64_t step = j.a.stride[j.a.ndim - 1], out_step = j.out.stride[j.out.ndim - 1];
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const int64_t at = cf_row_offset(j.a, r), out = cf_row_offset(j.out, r);
        const auto x = [&](int64_t k) { return M::get(j.a, at + k * step); };
        const C most = cf_row_max<C>(t, j.n, room, x);
        const double sum = cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return exp(x(k) - most); });
        const C scale = (C)(1 / sum), rest = (C)log(sum);
        for (int64_t k = t.lane; k < j.n; k += t.lanes)
            M::put(j.out, out + k * out_step, j.logarithm ? x(k) - most - rest : exp(x(k) - most) * scale);
    }
}

template <class M> __global__ void softmax_gradient(const softmax_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const int64_t dy_step = j.a.stride[j.a.ndim - 1], y_step = j.b.stride[j.b.ndim - 1];
    const int64_t out_step = j.out.stride[j.out.ndim - 1];
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const int64_t dy_at = cf_row_offset(j.a, r), y_at = cf_row_offset(j.b, r), out = cf_row_offset(j.out, r);
        const auto dy = [&](int64_t k) { return M::get(j.a, dy_at + k * dy_step); };
        const auto y = [&](int64_t k) { return M::get(j.b, y_at + k * y_step); };
        const C sum = (C)cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return j.logarithm ? dy(k) : dy(k) * y(k); });
        for (int64_t k = t.lane; k < j.n; k += t.lanes)
            M::put(j.out, out + k * out_step, j.logarithm ? dy(k) - exp(y(k)) * sum : y(k) * (dy(k) - sum));
    }
}

template <class M> static cfx_status run_softmax(cf_worker *worker, const softmax_job &j) {
    CF_LAUNCH_TEAM(softmax_rows<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
    return cf_cuda_launched(j.logarithm ? "logsoftmax" : "softmax");
}
template <class M> static cfx_status run_softmax_bw(cf_worker *worker, const softmax_job &j) {
    CF_LAUNCH_TEAM(softmax_gradient<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
    return cf_cuda_launched(j.logarithm ? "logsoftmax_bw" : "softmax_bw");
}

static cfx_status softmax(cf_worker *worker, const cf_call *call, int backward, int logarithm) {
    const cf_view *const v[] = {&call->v[0], &call->v[1], &call->v[backward ? 2 : 1]};
    const int64_t elements = cf_view_numel(v[0]);
    if (elements == 0) return CFX_OK;
    softmax_job j = {};
    j.out = *v[0];
    j.a = *v[1];
    j.b = *v[2];
    j.n = j.out.shape[j.out.ndim - 1];
    j.rows = elements / j.n;
    j.lanes = cf_row_lanes(j.n);
    j.logarithm = logarithm;
    const int common = cf_common_dtype(v, 3);
    return backward ? CF_MEMORY(call->dtype, common, run_softmax_bw, worker, j)
                    : CF_MEMORY(call->dtype, common, run_softmax, worker, j);
}

} // namespace

extern "C" {
cfx_status cf_cuda_softmax(cf_worker *worker, const cf_call *call) { return softmax(worker, call, 0, 0); }
cfx_status cf_cuda_softmax_bw(cf_worker *worker, const cf_call *call) { return softmax(worker, call, 1, 0); }
cfx_status cf_cuda_logsoftmax(cf_worker *worker, const cf_call *call) { return softmax(worker, call, 0, 1); }
cfx_status cf_cuda_logsoftmax_bw(cf_worker *worker, const cf_call *call) { return softmax(worker, call, 1, 1); }
}

/* ---- cross entropy ------------------------------------------------------------------------------------------ */

namespace {

typedef struct entropy_job {
    cf_view x, target, lse, weight; /* [n, c], ids [n] or probabilities [n, c], [n], [] */
    cf_view loss;                   /* [] or [n] */
    cf_view dy, dx;                 /* [] or [n], [n, c] */
    int64_t rows, n, ignore;
    int lanes, ids, reduction, op;
    double smoothing;
    double *losses; /* [n] */
    cf_cuda_fault *fault;
} entropy_job;

__device__ static inline bool ignored(const entropy_job &j, int64_t r) {
    return j.ids && j.ignore != INT64_MIN && cf_read<int64_t>(j.target, r) == j.ignore;
}

/* A row of logits or probabilities. */
template <class M> struct line {
    const cf_view &v;
    int64_t at, step;
    __device__ line(const cf_view &view, int64_t r) : v(view), at(r * view.stride[0]), step(view.stride[1]) {}
    __device__ typename M::C operator()(int64_t k) const { return M::get(v, at + k * step); }
};

/* -sum over classes of t (x - lse), where t is one at `id` or the row p; smoothed as PyTorch does: (1 - s) t + s / n.
 */
template <class M> __device__ inline double row_loss(const entropy_job &j, const cf_team &t, int64_t r, double *room) {
    typedef typename M::C C;
    const line<M> x(j.x, r);
    const C most = cf_row_max<C>(t, j.n, room, x);
    const double rest = log(cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return exp(x(k) - most); }));
    if (t.lane == 0) cf_write<double>(j.lse, r, (double)most + rest);
    if (j.ids) {
        const int64_t id = cf_checked_id(j.fault, j.op, cf_read<int64_t>(j.target, r), r, j.n);
        const double loss = j.n > 0 ? rest + ((double)most - (double)x(id)) : 0;
        if (j.smoothing == 0) return loss;
        const double mean = cf_row_sum<C>(t, j.n, room, x) / (double)j.n;
        return (1 - j.smoothing) * loss + j.smoothing * (rest + ((double)most - mean));
    }
    const line<M> p(j.target, r);
    const C keep = (C)(1 - j.smoothing), share = (C)(j.smoothing / (double)j.n);
    const double sum = cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return p(k) * keep + share; });
    const double below = cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return (p(k) * keep + share) * (most - x(k)); });
    return below + rest * sum;
}

template <class M> __global__ void entropy_rows(const entropy_job j) {
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const bool skip = ignored(j, r); /* alike in all of the team */
        const double loss = skip ? 0 : row_loss<M>(j, t, r, room);
        if (t.lane > 0) continue;
        if (skip) cf_write<double>(j.lse, r, 0);
        if (j.reduction == CFX_NONE) cf_write<double>(j.loss, r, loss);
        j.losses[r] = loss;
    }
}

/* One block.  A mean over no rows is 0 * inf: NaN, as PyTorch has it. */
__global__ void entropy_sum(const entropy_job j) {
    __shared__ double room[CF_THREADS / CF_WARP];
    double sum = 0, counted = 0;
    for (int64_t r = threadIdx.x; r < j.rows; r += CF_THREADS) {
        sum += j.losses[r];
        counted += !ignored(j, r);
    }
    sum = cf_block_sum(sum, room);
    counted = cf_block_sum(counted, room);
    if (threadIdx.x > 0) return;
    const double weight = j.reduction == CFX_MEAN ? 1 / counted : 1;
    if (j.reduction != CFX_NONE) cf_write<double>(j.loss, 0, j.reduction == CFX_MEAN ? sum * weight : sum);
    cf_write<double>(j.weight, 0, weight);
}

/* dx = g (softmax(x) sum(t) - t). */
template <class M> __global__ void entropy_gradient(const entropy_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const C keep = (C)(1 - j.smoothing), share = (C)(j.smoothing / (double)j.n);
    const double weight = cf_read<double>(j.weight, 0);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const int64_t out = r * j.dx.stride[0], step = j.dx.stride[1];
        if (ignored(j, r)) {
            for (int64_t k = t.lane; k < j.n; k += t.lanes) M::put(j.dx, out + k * step, (C)0);
            continue;
        }
        const line<M> x(j.x, r);
        const C all = (C)cf_read<double>(j.lse, r);
        const C scale = (C)(cf_read<double>(j.dy, j.dy.ndim ? r : 0) * weight);
        if (j.ids) {
            const int64_t id = cf_checked_id(j.fault, j.op, cf_read<int64_t>(j.target, r), r, j.n);
            for (int64_t k = t.lane; k < j.n; k += t.lanes)
                M::put(j.dx, out + k * step, scale * (exp(x(k) - all) - share - (k == id ? keep : 0)));
            continue;
        }
        const line<M> p(j.target, r);
        const C sum = (C)((1 - j.smoothing) * cf_row_sum<C>(t, j.n, room, p) + j.smoothing);
        for (int64_t k = t.lane; k < j.n; k += t.lanes)
            M::put(j.dx, out + k * step, scale * (exp(x(k) - all) * sum - (p(k) * keep + share)));
    }
}

static entropy_job entropy_of(cf_worker *worker, const cf_call *call, const cf_view *x, const cf_view *target) {
    entropy_job j = {};
    j.x = *x;
    j.target = *target;
    j.rows = x->shape[0];
    j.n = x->shape[1];
    j.lanes = cf_row_lanes(j.n);
    j.ids = !cf_is_float(target->dtype);
    j.reduction = (int)call->i[0];
    j.ignore = call->i[1];
    j.smoothing = call->p[0];
    j.op = call->op;
    j.fault = cf_cuda_of(worker)->fault;
    return j;
}

template <class M> static void run_entropy(cf_worker *worker, const entropy_job &j) {
    CF_LAUNCH_TEAM(entropy_rows<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}
template <class M> static void run_entropy_bw(cf_worker *worker, const entropy_job &j) {
    CF_LAUNCH_TEAM(entropy_gradient<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}

} // namespace

extern "C" cfx_status cf_cuda_crossentropy(cf_worker *worker, const cf_call *call) {
    entropy_job j = entropy_of(worker, call, cf_call_in(call, 0), cf_call_in(call, 1));
    const cf_view *const v[] = {&j.x, j.ids ? &j.x : &j.target};
    j.loss = call->v[0];
    j.lse = call->v[1];
    j.weight = call->v[2];
    j.losses = (double *)cf_cuda_scratch(worker, (size_t)j.rows * sizeof(double));
    if (!j.losses) return CFX_EMEMORY;
    if (j.rows) CF_MEMORY(call->dtype, cf_common_dtype(v, 2), run_entropy, worker, j);
    CF_LAUNCH_TEAM(entropy_sum, 1, CF_THREADS, worker, j);
    return cf_cuda_launched("crossentropy");
}

extern "C" cfx_status cf_cuda_crossentropy_bw(cf_worker *worker, const cf_call *call) {
    entropy_job j = entropy_of(worker, call, cf_call_in(call, 1), cf_call_in(call, 2));
    const cf_view *const v[] = {&j.x, &j.dx, j.ids ? &j.x : &j.target};
    j.dy = *cf_call_in(call, 0);
    j.lse = *cf_call_in(call, 3);
    j.weight = *cf_call_in(call, 4);
    j.dx = call->v[0];
    if (j.rows * j.n == 0) return CFX_OK;
    CF_MEMORY(call->dtype, cf_common_dtype(v, 3), run_entropy_bw, worker, j);
    return cf_cuda_launched("crossentropy_bw");
}

/* ---- layer normalisation ------------------------------------------------------------------------------------ */

namespace {

typedef struct norm_job {
    cf_view x, y, mean, rstd, gamma, beta; /* [rows, n], [rows, n], [rows], [rows], [n], [n] */
    cf_view dy, dx;
    int64_t rows, n, block_rows;
    int lanes, affine; /* affine: gamma is there, and in the forward pass beta */
    double eps;
    double *sums; /* [2, row blocks, n]: of dy xhat, and of dy */
} norm_job;

/* y = (x - mean) rstd gamma + beta.  A mean over nothing is NaN. */
template <class M> __global__ void norm_rows(const norm_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const int64_t step = j.y.stride[1];
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const line<M> x(j.x, r);
        const int64_t out = r * j.y.stride[0];
        const double mean = cf_row_sum<C>(t, j.n, room, x) / (double)j.n;
        const C middle = (C)mean;
        const double squares = cf_row_sum<double>(t, j.n, room, [&](int64_t k) {
            const double away = (double)(x(k) - middle); /* its square may not fit C where it does */
            return away * away;
        });
        const double rstd = 1 / sqrt(squares / (double)j.n + j.eps);
        const C scale = (C)rstd;
        for (int64_t k = t.lane; k < j.n; k += t.lanes) {
            C y = (x(k) - middle) * scale;
            if (j.affine) y = y * M::get(j.gamma, k * j.gamma.stride[0]) + M::get(j.beta, k * j.beta.stride[0]);
            M::put(j.y, out + k * step, y);
        }
        if (t.lane > 0) continue;
        cf_write<double>(j.mean, r, mean);
        cf_write<double>(j.rstd, r, rstd);
    }
}

/* dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = dy gamma. */
template <class M> __global__ void norm_gradient(const norm_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const line<M> x(j.x, r), dy(j.dy, r);
        const C middle = cf_read<C>(j.mean, r), scale = cf_read<C>(j.rstd, r);
        const auto xhat = [&](int64_t k) { return (x(k) - middle) * scale; };
        const auto h = [&](int64_t k) { return j.affine ? dy(k) * M::get(j.gamma, k * j.gamma.stride[0]) : dy(k); };
        const C mean_h = (C)(cf_row_sum<C>(t, j.n, room, h) / (double)j.n);
        const C mean_hx = (C)(cf_row_sum<C>(t, j.n, room, [&](int64_t k) { return h(k) * xhat(k); }) / (double)j.n);
        const int64_t out = r * j.dx.stride[0], step = j.dx.stride[1];
        for (int64_t k = t.lane; k < j.n; k += t.lanes)
            M::put(j.dx, out + k * step, scale * (h(k) - mean_h - xhat(k) * mean_hx));
    }
}

/* Block (b, s) sums row block b of strip s. */
template <class M> __global__ void norm_columns(const norm_job j, int64_t blocks) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS];
    const int64_t strips = (j.n + CF_STRIP - 1) / CF_STRIP;
    for (int64_t item = blockIdx.x; item < blocks * strips; item += gridDim.x) {
        const int64_t b = item / strips, col = item % strips * CF_STRIP + threadIdx.x % CF_STRIP;
        const int64_t from = b * j.block_rows, end = from + j.block_rows < j.rows ? from + j.block_rows : j.rows;
        double dgamma = 0, dbeta = 0;
        for (int64_t r = from + threadIdx.x / CF_STRIP; r < end && col < j.n; r += CF_STRIP_LANES) {
            const C dy = M::get(j.dy, r * j.dy.stride[0] + col * j.dy.stride[1]);
            const C x = M::get(j.x, r * j.x.stride[0] + col * j.x.stride[1]);
            dgamma += (double)(dy * ((x - cf_read<C>(j.mean, r)) * cf_read<C>(j.rstd, r)));
            dbeta += (double)dy;
        }
        dgamma = cf_strip_sum(dgamma, room);
        dbeta = cf_strip_sum(dbeta, room);
        if (threadIdx.x >= CF_STRIP || col >= j.n) continue;
        j.sums[b * j.n + col] = dgamma;
        j.sums[(blocks + b) * j.n + col] = dbeta;
    }
}

template <class M> static void run_norm(cf_worker *worker, const norm_job &j) {
    CF_LAUNCH_TEAM(norm_rows<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}
template <class M> static void run_norm_bw(cf_worker *worker, const norm_job &j) {
    const int64_t blocks = cf_row_blocks(j.rows);
    /* before dx is written, which may lie where dy does */
    if (j.sums)
        CF_LAUNCH_TEAM(norm_columns<M>, cf_cuda_blocks(worker, blocks * cf_strips(j.n) * CF_THREADS), CF_THREADS,
                       worker, j, blocks);
    if (j.rows) CF_LAUNCH_TEAM(norm_gradient<M>, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}

static norm_job norm_of(const cf_view *x) {
    norm_job j = {};
    j.x = *x;
    j.rows = x->shape[0];
    j.n = x->shape[1];
    j.lanes = cf_row_lanes(j.n);
    j.block_rows = cf_row_block(j.rows);
    return j;
}

} // namespace

extern "C" cfx_status cf_cuda_layernorm(cf_worker *worker, const cf_call *call) {
    norm_job j = norm_of(cf_call_in(call, 0));
    const cf_view *const v[] = {&j.x, &j.y, &j.gamma, &j.beta};
    j.y = call->v[0];
    j.mean = call->v[1];
    j.rstd = call->v[2];
    j.eps = call->p[0];
    j.affine = call->nin > 1;
    if (j.affine) j.gamma = *cf_call_in(call, 1), j.beta = *cf_call_in(call, 2);
    if (j.rows == 0) return CFX_OK;
    CF_MEMORY(call->dtype, cf_common_dtype(v, j.affine ? 4 : 2), run_norm, worker, j);
    return cf_cuda_launched("layernorm");
}

extern "C" cfx_status cf_cuda_layernorm_bw(cf_worker *worker, const cf_call *call) {
    norm_job j = norm_of(cf_call_in(call, 1));
    const cf_view *const v[] = {&j.x, &j.dx, &j.dy, &j.gamma};
    const int64_t blocks = cf_row_blocks(j.rows);
    j.dx = call->v[0];
    j.dy = *cf_call_in(call, 0);
    j.mean = *cf_call_in(call, 2);
    j.rstd = *cf_call_in(call, 3);
    j.affine = call->i[0] != 0;
    if (j.affine) j.gamma = *cf_call_in(call, 4);
    if (j.n == 0) return CFX_OK;
    if (call->nout > 1) {
        j.sums = (double *)cf_cuda_scratch(worker, (size_t)(2 * blocks * j.n) * sizeof(double));
        if (!j.sums) return CFX_EMEMORY;
    }
    CF_MEMORY(call->dtype, cf_common_dtype(v, j.affine ? 4 : 3), run_norm_bw, worker, j);
    for (int k = 0; j.sums && k < 2; k++)
        CF_LAUNCH_TEAM(cf_join_strips<double>, cf_strips(j.n), CF_THREADS, worker, j.sums + k * blocks * j.n, blocks,
                       j.n, call->v[1 + k]);
    return cf_cuda_launched("layernorm_bw");
}
