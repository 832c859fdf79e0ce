/* rows.cu: softmax, its logarithm, the cross entropy of logits, and layer normalisation.
 *
 * A team of threads makes a row, and reads it again for each sum that it needs: after the first time it comes from
 * the cache.  Elements are computed in the compute type, sums are merged as doubles.
 */
#include "cuda/rows.cuh"

/* ---- softmax ------------------------------------------------------------------------------------------------ */

namespace {

typedef struct softmax_job {
    cf_view out, a, b; /* y <- x; or dx <- dy, y */
    int64_t rows, n;
    int lanes, logarithm;
} softmax_job;

template <class M, int N> __device__ cf_span<M, N> span_of(const softmax_job &j, const cf_view &v, int64_t r) {
    return cf_span<M, N>(v, cf_row_offset(v, r), v.stride[v.ndim - 1], j.n);
}

template <class M, int N> __global__ void softmax_rows(const softmax_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const auto x = span_of<M, N>(j, j.a, r), y = span_of<M, N>(j, j.out, r);
        const cf_row<N> row = {t, j.n, x.begin(), room};
        const C most = cf_row_max(row, x);
        const double sum = cf_row_sum<C>(
            row, [&](C v) { return exp(v - most); }, x);
        const C scale = (C)(1 / sum), rest = (C)log(sum);
        if (j.logarithm)
            cf_row_make(
                row, y, [&](int64_t, C v) { return v - most - rest; }, x);
        else
            cf_row_make(
                row, y, [&](int64_t, C v) { return exp(v - most) * scale; }, x);
    }
}

template <class M, int N> __global__ void softmax_gradient(const softmax_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const auto dy = span_of<M, N>(j, j.a, r), y = span_of<M, N>(j, j.b, r), dx = span_of<M, N>(j, j.out, r);
        const cf_row<N> row = {t, j.n, dy.begin(), room};
        if (j.logarithm) {
            const C sum = (C)cf_row_sum<C>(
                row, [](C g) { return g; }, dy);
            cf_row_make(
                row, dx, [&](int64_t, C g, C v) { return g - exp(v) * sum; }, dy, y);
        } else {
            const C sum = (C)cf_row_sum<C>(
                row, [](C g, C v) { return g * v; }, dy, y);
            cf_row_make(
                row, dx, [&](int64_t, C g, C v) { return v * (g - sum); }, dy, y);
        }
    }
}

template <class M> static cfx_status run_softmax(cf_worker *worker, const softmax_job &j, bool wide) {
    const auto softmax = wide ? softmax_rows<M, M::WIDTH> : softmax_rows<M, 1>;
    CF_LAUNCH_TEAM(softmax, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
    return cf_cuda_launched(j.logarithm ? "logsoftmax" : "softmax");
}
template <class M> static cfx_status run_softmax_bw(cf_worker *worker, const softmax_job &j, bool wide) {
    const auto softmax_bw = wide ? softmax_gradient<M, M::WIDTH> : softmax_gradient<M, 1>;
    CF_LAUNCH_TEAM(softmax_bw, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
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
    const bool wide = cf_rows_fit(v, 3, j.lanes);
    return backward ? CF_MEMORY(call->dtype, common, run_softmax_bw, worker, j, wide)
                    : CF_MEMORY(call->dtype, common, run_softmax, worker, j, wide);
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

/* -sum over classes of t (x - lse), where t is one at `id` or the row p; smoothed as PyTorch does: (1 - s) t + s / n.
 */
template <class M, int N>
__device__ inline double row_loss(const entropy_job &j, const cf_team &t, int64_t r, double *room) {
    typedef typename M::C C;
    const auto x = cf_row_span<M, N>(j.x, r);
    const cf_row<N> row = {t, j.n, x.begin(), room};
    const C most = cf_row_max(row, x);
    const double rest = log(cf_row_sum<C>(
        row, [&](C v) { return exp(v - most); }, x));
    if (t.lane == 0) cf_write<double>(j.lse, r, (double)most + rest);
    if (j.ids) {
        const int64_t id = cf_checked_id(j.fault, j.op, cf_read<int64_t>(j.target, r), r, j.n);
        const double loss = j.n > 0 ? rest + ((double)most - (double)x(id)) : 0;
        if (j.smoothing == 0) return loss;
        const double mean = cf_row_sum<C>(
                                row, [](C v) { return v; }, x) /
                            (double)j.n;
        return (1 - j.smoothing) * loss + j.smoothing * (rest + ((double)most - mean));
    }
    const auto p = cf_row_span<M, N>(j.target, r);
    const C keep = (C)(1 - j.smoothing), share = (C)(j.smoothing / (double)j.n);
    const double sum = cf_row_sum<C>(
        row, [&](C q) { return q * keep + share; }, p);
    const double below = cf_row_sum<C>(
        row, [&](C q, C v) { return (q * keep + share) * (most - v); }, p, x);
    return below + rest * sum;
}

template <class M, int N> __global__ void entropy_rows(const entropy_job j) {
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const bool skip = ignored(j, r); /* alike in all of the team */
        const double loss = skip ? 0 : row_loss<M, N>(j, t, r, room);
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
template <class M, int N> __global__ void entropy_gradient(const entropy_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const C keep = (C)(1 - j.smoothing), share = (C)(j.smoothing / (double)j.n);
    const double weight = cf_read<double>(j.weight, 0);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const auto x = cf_row_span<M, N>(j.x, r), dx = cf_row_span<M, N>(j.dx, r);
        const cf_row<N> row = {t, j.n, x.begin(), room};
        if (ignored(j, r)) {
            cf_row_make(row, dx, [](int64_t) { return (C)0; });
            continue;
        }
        const C all = (C)cf_read<double>(j.lse, r);
        const C scale = (C)(cf_read<double>(j.dy, j.dy.ndim ? r : 0) * weight);
        if (j.ids) {
            const int64_t id = cf_checked_id(j.fault, j.op, cf_read<int64_t>(j.target, r), r, j.n);
            const auto slope = [&](int64_t k, C v) { return scale * (exp(v - all) - share - (k == id ? keep : 0)); };
            cf_row_make(row, dx, slope, x);
            continue;
        }
        const auto p = cf_row_span<M, N>(j.target, r);
        const C sum = (C)((1 - j.smoothing) * cf_row_sum<C>(
                                                  row, [](C q) { return q; }, p) +
                          j.smoothing);
        const auto slope = [&](int64_t, C v, C q) { return scale * (exp(v - all) * sum - (q * keep + share)); };
        cf_row_make(row, dx, slope, x, p);
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
    j.reduction = (int)CF_PARAMS(call, crossentropy)->reduction;
    j.ignore = CF_PARAMS(call, crossentropy)->ignore;
    j.smoothing = CF_PARAMS(call, crossentropy)->smoothing;
    j.op = call->op;
    j.fault = cf_cuda_of(worker)->fault;
    return j;
}

template <class M> static void run_entropy(cf_worker *worker, const entropy_job &j, bool wide) {
    const auto crossentropy = wide ? entropy_rows<M, M::WIDTH> : entropy_rows<M, 1>;
    CF_LAUNCH_TEAM(crossentropy, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}
template <class M> static void run_entropy_bw(cf_worker *worker, const entropy_job &j, bool wide) {
    const auto crossentropy_bw = wide ? entropy_gradient<M, M::WIDTH> : entropy_gradient<M, 1>;
    CF_LAUNCH_TEAM(crossentropy_bw, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
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
    if (j.rows) CF_MEMORY(call->dtype, cf_common_dtype(v, 2), run_entropy, worker, j, cf_rows_fit(v, 2, j.lanes));
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
    CF_MEMORY(call->dtype, cf_common_dtype(v, 3), run_entropy_bw, worker, j, cf_rows_fit(v, 3, j.lanes));
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

/* Gamma or beta; ones where there is none. */
template <class M, int N> struct weights : cf_span<M, N> {
    __device__ weights(const cf_view &v, int64_t n) : cf_span<M, N>(v, 0, v.stride[0], n) {}
    __device__ __forceinline__ cf_items<typename M::C, N> items(int64_t k) const {
        if (this->v.data) return cf_span<M, N>::items(k);
        return cf_map_items<typename M::C, N>(k, [](int64_t) { return 1; });
    }
};

/* y = (x - mean) rstd gamma + beta.  A mean over nothing is NaN. */
template <class M, int N> __global__ void norm_rows(const norm_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const weights<M, N> gamma(j.gamma, j.n), beta(j.beta, j.n);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const auto x = cf_row_span<M, N>(j.x, r), y = cf_row_span<M, N>(j.y, r);
        const cf_row<N> row = {t, j.n, x.begin(), room};
        const double mean = cf_row_sum<C>(
                                row, [](C v) { return v; }, x) /
                            (double)j.n;
        const C middle = (C)mean;
        const auto square = [&](C v) {
            const double away = (double)(v - middle); /* its square may not fit C where it does */
            return away * away;
        };
        const double rstd = 1 / sqrt(cf_row_sum<double>(row, square, x) / (double)j.n + j.eps);
        const C scale = (C)rstd;
        const auto normal = [&](int64_t, C v, C g, C b) {
            return j.affine ? (v - middle) * scale * g + b : (v - middle) * scale;
        };
        cf_row_make(row, y, normal, x, gamma, beta);
        if (t.lane > 0) continue;
        cf_write<double>(j.mean, r, mean);
        cf_write<double>(j.rstd, r, rstd);
    }
}

/* dx = rstd (h - mean(h) - xhat mean(h xhat)) with h = dy gamma. */
template <class M, int N> __global__ void norm_gradient(const norm_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const cf_team t = cf_team_of(j.lanes);
    const weights<M, N> gamma(j.gamma, j.n);
    for (int64_t r = t.first; r < j.rows; r += t.step) {
        const auto x = cf_row_span<M, N>(j.x, r), dy = cf_row_span<M, N>(j.dy, r), dx = cf_row_span<M, N>(j.dx, r);
        const cf_row<N> row = {t, j.n, x.begin(), room};
        const C middle = cf_read<C>(j.mean, r), scale = cf_read<C>(j.rstd, r);
        const auto product = [&](C h, C g, C v) { return h * g * ((v - middle) * scale); };
        const C mean_h = (C)(cf_row_sum<C>(
                                 row, [](C h, C g) { return h * g; }, dy, gamma) /
                             (double)j.n);
        const C mean_hx = (C)(cf_row_sum<C>(row, product, dy, gamma, x) / (double)j.n);
        const auto slope = [&](int64_t, C h, C g, C v) {
            return scale * (h * g - mean_h - (v - middle) * scale * mean_hx);
        };
        cf_row_make(row, dx, slope, dy, gamma, x);
    }
}

/* A block sums a row block of a strip. */
template <class M, int N> __global__ void norm_columns(const norm_job j, int64_t blocks) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS * N];
    for (int64_t item = blockIdx.x; item < blocks * cf_strips<N>(j.n); item += gridDim.x) {
        const cf_strip_part p = cf_strip_part_of<N>(item, j.rows, j.n, j.block_rows);
        double dgammas[N] = {}, dbetas[N] = {};
        for (int64_t r = p.from; r < p.end && p.col < j.n; r += CF_STRIP_LANES) {
            const C middle = cf_read<C>(j.mean, r), scale = cf_read<C>(j.rstd, r);
            const cf_items<C, N> dy = cf_row_span<M, N>(j.dy, r).items(p.col),
                                 x = cf_row_span<M, N>(j.x, r).items(p.col);
            for (int k = 0; k < N; k++) {
                dgammas[k] += (double)(dy.x[k] * ((x.x[k] - middle) * scale));
                dbetas[k] += (double)dy.x[k];
            }
        }
        const double dgamma = cf_strip_sum(dgammas, room), dbeta = cf_strip_sum(dbetas, room);
        if (p.sum_col < 0) continue;
        j.sums[p.block * j.n + p.sum_col] = dgamma;
        j.sums[(blocks + p.block) * j.n + p.sum_col] = dbeta;
    }
}

template <class M> static void run_norm(cf_worker *worker, const norm_job &j, bool wide) {
    const auto layernorm = wide ? norm_rows<M, M::WIDTH> : norm_rows<M, 1>;
    CF_LAUNCH_TEAM(layernorm, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
}
template <class M> static void run_norm_bw(cf_worker *worker, const norm_job &j, bool wide) {
    const cf_view *const v[] = {&j.dy, &j.x};
    const bool columns = cf_columns_fit(v, 2);
    const int64_t blocks = cf_row_blocks(j.rows), strips = columns ? cf_strips<M::WIDTH>(j.n) : cf_strips<1>(j.n);
    const auto sums = columns ? norm_columns<M, M::WIDTH> : norm_columns<M, 1>;
    const auto layernorm_bw = wide ? norm_gradient<M, M::WIDTH> : norm_gradient<M, 1>;
    /* before dx is written, which may lie where dy does */
    if (j.sums)
        CF_LAUNCH_TEAM(sums, cf_cuda_blocks(worker, blocks * strips * CF_THREADS), CF_THREADS, worker, j, blocks);
    if (j.rows) CF_LAUNCH_TEAM(layernorm_bw, cf_cuda_blocks(worker, j.rows * j.lanes), CF_THREADS, worker, j);
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
    j.eps = CF_PARAMS(call, layernorm)->eps;
    j.affine = call->nin > 1;
    if (j.affine) j.gamma = *cf_call_in(call, 1), j.beta = *cf_call_in(call, 2);
    if (j.rows == 0) return CFX_OK;
    const int views = j.affine ? 4 : 2;
    CF_MEMORY(call->dtype, cf_common_dtype(v, views), run_norm, worker, j, cf_rows_fit(v, views, j.lanes));
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
    j.affine = CF_PARAMS(call, layernorm_bw)->affine != 0;
    if (j.affine) j.gamma = *cf_call_in(call, 4);
    if (j.n == 0) return CFX_OK;
    if (call->nout > 1) {
        j.sums = (double *)cf_cuda_scratch(worker, (size_t)(2 * blocks * j.n) * sizeof(double));
        if (!j.sums) return CFX_EMEMORY;
    }
    const int views = j.affine ? 4 : 3;
    CF_MEMORY(call->dtype, cf_common_dtype(v, views), run_norm_bw, worker, j, cf_rows_fit(v, views, j.lanes));
    for (int k = 0; j.sums && k < 2; k++)
        CF_LAUNCH_TEAM(cf_join_strips<double>, cf_strips<1>(j.n), CF_THREADS, worker, j.sums + k * blocks * j.n, blocks,
                       j.n, call->v[1 + k]);
    return cf_cuda_launched("layernorm_bw");
}
