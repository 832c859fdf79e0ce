/* channels.cuh: sums over the channels of packed tensors [samples, rows, c], and what is made of x by numbers of each
 * channel: what batch and group normalisation consist of.
 *
 * The tensors are matrices [samples rows, c], summed by strips (rows.cuh) of each sample's row blocks.  A channel's
 * mean and variance are those of its group: of a batch normalisation each channel is one.
 */
#ifndef CF_CUDA_CHANNELS_CUH
#define CF_CUDA_CHANNELS_CUH

#include "cuda/rows.cuh"

typedef struct cf_channel_grid {
    int64_t samples, rows, c, groups;
    int64_t block_rows, blocks; /* of a sample */
} cf_channel_grid;

static inline cf_channel_grid cf_channels_of(int64_t samples, int64_t rows, int64_t c, int64_t groups) {
    cf_channel_grid g = {samples, rows, c, groups, cf_row_block(rows), cf_row_blocks(rows)};
    return g;
}
/* How many partial sums there are of one kind. */
__host__ __device__ static inline int64_t cf_channels_room(const cf_channel_grid &g) {
    return g.samples * g.blocks * g.c;
}

/* The work: what lies where no view is is NULL. */
typedef struct cf_channel_job {
    cf_channel_grid g;
    cf_view x, y, residual, dy, dx, dresidual; /* [samples rows, c] */
    cf_view mean, variance;                    /* of samples groups */
    cf_view gamma, beta;                       /* [c] */
    int relu, gate;
    double eps;
    double *partial;        /* [2][samples, blocks, c] */
    double *first, *second; /* [samples, c]: the sums; then of dx = scale g - first - (x - mean) second; or NULL */
} cf_channel_job;

/* A gate lets the gradient through: everywhere; where relu came last, where y > 0, or where that holds of the y that x
 * gives. */
enum { CF_GATE_NONE, CF_GATE_OUTPUT, CF_GATE_INPUT };

/* This thread's part of a strip, of rows of the whole matrix. */
template <int N>
__device__ inline cf_strip_part cf_channel_part(const cf_channel_grid &g, int64_t item, int64_t *sample) {
    const int64_t of_sample = g.blocks * cf_strips<N>(g.c);
    cf_strip_part p = cf_strip_part_of<N>(item % of_sample, g.rows, g.c, g.block_rows);
    *sample = item / of_sample;
    p.from += *sample * g.rows;
    p.end += *sample * g.rows;
    return p;
}
template <int N> __host__ __device__ static inline int64_t cf_channel_items(const cf_channel_grid &g) {
    return g.samples * g.blocks * cf_strips<N>(g.c);
}

/* The numbers of N channels of a sample. */
template <class C, int N> struct cf_channel_coefficients {
    C mean[N], scale[N], shift[N];
    __device__ cf_channel_coefficients(const cf_channel_job &j, int64_t sample, int64_t col) {
        for (int k = 0; k < N; k++) {
            const int64_t c = col + k < j.g.c ? col + k : j.g.c - 1,
                          at = sample * j.g.groups + c / (j.g.c / j.g.groups);
            mean[k] = cf_read<C>(j.mean, at);
            scale[k] = (C)(1 / sqrt(cf_read<double>(j.variance, at) + j.eps) *
                           (j.gamma.data ? cf_read<double>(j.gamma, c) : 1));
            shift[k] = j.beta.data ? cf_read<C>(j.beta, c) : (C)0;
        }
    }
    __device__ C normal(int k, C x) const { return (x - mean[k]) * scale[k] + shift[k]; }
    __device__ C past(int gate, int k, C g, C x, C y) const {
        if (gate == CF_GATE_OUTPUT) return y <= 0 ? (C)0 : g;
        if (gate == CF_GATE_INPUT) return normal(k, x) <= 0 ? (C)0 : g;
        return g;
    }
};

/* ---- sums --------------------------------------------------------------------------------------------------- */

/* Of the rows of each row block the mean, and the sum of the squares of what is left without it: by sums of what is
 * left without the block's first row. */
template <class M, int N> __global__ void cf_channel_moments(const cf_channel_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS * N];
    for (int64_t item = blockIdx.x; item < cf_channel_items<N>(j.g); item += gridDim.x) {
        int64_t sample;
        const cf_strip_part p = cf_channel_part<N>(j.g, item, &sample);
        const int64_t top = sample * j.g.rows + p.block * j.g.block_rows;
        double sums[N] = {}, squares[N] = {};
        cf_items<C, N> shift = {};
        if (p.col < j.g.c && top < p.end) shift = cf_row_span<M, N>(j.x, top).items(p.col);
        for (int64_t r = p.from; r < p.end && p.col < j.g.c;) {
            const int64_t fold = r + (int64_t)CF_ROW_FOLD * CF_STRIP_LANES, end = fold < p.end ? fold : p.end;
            C sum[N] = {}, square[N] = {};
            for (; r < end; r += CF_STRIP_LANES) {
                const cf_items<C, N> x = cf_row_span<M, N>(j.x, r).items(p.col);
                for (int k = 0; k < N; k++) {
                    const C d = x.x[k] - shift.x[k];
                    sum[k] += d;
                    square[k] += d * d;
                }
            }
            for (int k = 0; k < N; k++) sums[k] += (double)sum[k], squares[k] += (double)square[k];
        }
        const double sum = cf_strip_sum(sums, room), square = cf_strip_sum(squares, room);
        if (p.sum_col < 0) continue;
        const double n = (double)(p.end - top), left = n > 0 ? sum / n : 0;
        const int64_t at = (sample * j.g.blocks + p.block) * j.g.c + p.sum_col;
        j.partial[at] = n > 0 ? left + (double)cf_row_span<M, 1>(j.x, top)(p.sum_col) : 0;
        j.partial[cf_channels_room(j.g) + at] = square - left * sum;
    }
}

/* Of the gradient g past the gate, and of g (x - mean). */
template <class M, int N> __global__ void cf_channel_slopes(const cf_channel_job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS * N];
    for (int64_t item = blockIdx.x; item < cf_channel_items<N>(j.g); item += gridDim.x) {
        int64_t sample;
        const cf_strip_part p = cf_channel_part<N>(j.g, item, &sample);
        const cf_channel_coefficients<C, N> numbers(j, sample, p.col);
        double sums[N] = {}, sums_x[N] = {};
        for (int64_t r = p.from; r < p.end && p.col < j.g.c; r += CF_STRIP_LANES) {
            const cf_items<C, N> dy = cf_row_span<M, N>(j.dy, r).items(p.col),
                                 x = cf_row_span<M, N>(j.x, r).items(p.col);
            cf_items<C, N> y = {};
            if (j.gate == CF_GATE_OUTPUT) y = cf_row_span<M, N>(j.y, r).items(p.col);
            for (int k = 0; k < N; k++) {
                const C g = numbers.past(j.gate, k, dy.x[k], x.x[k], y.x[k]);
                sums[k] += (double)g;
                sums_x[k] += (double)(g * (x.x[k] - numbers.mean[k]));
            }
        }
        const double sum = cf_strip_sum(sums, room), sum_x = cf_strip_sum(sums_x, room);
        if (p.sum_col < 0) continue;
        const int64_t at = (sample * j.g.blocks + p.block) * j.g.c + p.sum_col;
        j.partial[at] = sum;
        j.partial[cf_channels_room(j.g) + at] = sum_x;
    }
}

/* A block joins the row blocks of CF_WARP channels of a sample, in order; this thread's channel is `col`. */
struct cf_channel_join {
    int64_t sample, col, lane;
    const double *first, *second; /* [blocks, c] */
};
__device__ static inline cf_channel_join cf_channel_join_of(const cf_channel_job &j, int64_t item) {
    cf_channel_join t;
    t.sample = item / cf_strips<1>(j.g.c);
    t.col = item % cf_strips<1>(j.g.c) * CF_WARP + threadIdx.x % CF_WARP;
    t.lane = threadIdx.x / CF_WARP;
    t.first = j.partial + t.sample * j.g.blocks * j.g.c + t.col;
    t.second = t.first + cf_channels_room(j.g);
    return t;
}

/* Calls finish(sample, channel, mean, sum of squares). */
template <class F> __global__ void cf_channel_join_moments(const cf_channel_job j, const F finish) {
    __shared__ double room[CF_THREADS], means[CF_WARP];
    const cf_channel_grid g = j.g;
    for (int64_t item = blockIdx.x; item < g.samples * cf_strips<1>(g.c); item += gridDim.x) {
        const cf_channel_join t = cf_channel_join_of(j, item);
        const auto rows = [&](int64_t b) {
            return (double)(b < g.blocks - 1 ? g.block_rows : g.rows - b * g.block_rows);
        };
        double sum[1] = {0}, away[1] = {0};
        for (int64_t b = t.lane; b < g.blocks && t.col < g.c; b += CF_STRIP_LANES) sum[0] += rows(b) * t.first[b * g.c];
        const double mean = cf_strip_sum(sum, room) / (double)(g.rows > 0 ? g.rows : 1);
        if (threadIdx.x < CF_WARP) means[threadIdx.x] = mean;
        __syncthreads();
        for (int64_t b = t.lane; b < g.blocks && t.col < g.c; b += CF_STRIP_LANES) {
            const double apart = t.first[b * g.c] - means[threadIdx.x % CF_WARP];
            away[0] += t.second[b * g.c] + rows(b) * apart * apart;
        }
        const double all = cf_strip_sum(away, room);
        if (threadIdx.x < CF_WARP && t.col < g.c) finish(t.sample, t.col, mean, all);
    }
}

/* Calls finish(sample, channel, sum, other sum). */
template <class F> __global__ void cf_channel_join_sums(const cf_channel_job j, const F finish) {
    __shared__ double room[CF_THREADS];
    for (int64_t item = blockIdx.x; item < j.g.samples * cf_strips<1>(j.g.c); item += gridDim.x) {
        const cf_channel_join t = cf_channel_join_of(j, item);
        double sum[1] = {0}, other[1] = {0};
        for (int64_t b = t.lane; b < j.g.blocks && t.col < j.g.c; b += CF_STRIP_LANES) {
            sum[0] += t.first[b * j.g.c];
            other[0] += t.second[b * j.g.c];
        }
        const double a = cf_strip_sum(sum, room), b = cf_strip_sum(other, room);
        if (threadIdx.x < CF_WARP && t.col < j.g.c) finish(t.sample, t.col, a, b);
    }
}

/* ---- maps --------------------------------------------------------------------------------------------------- */

/* y = (x - mean) scale + shift + residual, then relu. */
template <class M, int N> __global__ void cf_channel_map(const cf_channel_job j) {
    typedef typename M::C C;
    for (int64_t item = blockIdx.x; item < cf_channel_items<N>(j.g); item += gridDim.x) {
        int64_t sample;
        const cf_strip_part p = cf_channel_part<N>(j.g, item, &sample);
        const cf_channel_coefficients<C, N> numbers(j, sample, p.col);
        for (int64_t r = p.from; r < p.end && p.col < j.g.c; r += CF_STRIP_LANES) {
            cf_items<C, N> x = cf_row_span<M, N>(j.x, r).items(p.col), residual = {};
            if (j.residual.data) residual = cf_row_span<M, N>(j.residual, r).items(p.col);
            for (int k = 0; k < N; k++) {
                const C y = numbers.normal(k, x.x[k]) + residual.x[k];
                x.x[k] = j.relu && y <= 0 ? (C)0 : y;
            }
            cf_row_span<M, N>(j.y, r).put(p.col, x);
        }
    }
}

/* dx and dresidual, each where it is wanted. */
template <class M, int N> __global__ void cf_channel_gradient(const cf_channel_job j) {
    typedef typename M::C C;
    for (int64_t item = blockIdx.x; item < cf_channel_items<N>(j.g); item += gridDim.x) {
        int64_t sample;
        const cf_strip_part p = cf_channel_part<N>(j.g, item, &sample);
        const cf_channel_coefficients<C, N> numbers(j, sample, p.col);
        C flat[N] = {}, slope[N] = {};
        for (int k = 0; j.first && k < N; k++) {
            const int64_t at = sample * j.g.c + (p.col + k < j.g.c ? p.col + k : j.g.c - 1);
            flat[k] = (C)j.first[at];
            slope[k] = (C)j.second[at];
        }
        for (int64_t r = p.from; r < p.end && p.col < j.g.c; r += CF_STRIP_LANES) {
            const cf_items<C, N> x = cf_row_span<M, N>(j.x, r).items(p.col);
            cf_items<C, N> g = cf_row_span<M, N>(j.dy, r).items(p.col), y = {};
            if (j.gate == CF_GATE_OUTPUT) y = cf_row_span<M, N>(j.y, r).items(p.col);
            for (int k = 0; k < N; k++) g.x[k] = numbers.past(j.gate, k, g.x[k], x.x[k], y.x[k]);
            if (j.dresidual.data) cf_row_span<M, N>(j.dresidual, r).put(p.col, g);
            if (!j.dx.data) continue;
            for (int k = 0; k < N; k++) {
                const C all = j.first ? flat[k] + (x.x[k] - numbers.mean[k]) * slope[k] : (C)0;
                g.x[k] = g.x[k] * numbers.scale[k] - all;
            }
            cf_row_span<M, N>(j.dx, r).put(p.col, g);
        }
    }
}

/* ---- launches ----------------------------------------------------------------------------------------------- */

/* f<M>(worker, j, wide), for M as the n matrices ask; an absent one has no data. */
#define CF_CHANNELS(dtype, f, worker, j, ...)                                                  \
    do {                                                                                       \
        const cf_view *some_[] = {__VA_ARGS__};                                                \
        int n_ = 0;                                                                            \
        for (const cf_view *v_ : some_)                                                        \
            if (v_->data) some_[n_++] = v_;                                                    \
        CF_MEMORY(dtype, cf_common_dtype(some_, n_), f, worker, j, cf_columns_fit(some_, n_)); \
    } while (0)

/* Launches `kernel`, of cf_channel_.., with threads that meet or with threads that do not. */
#define CF_CHANNELS_LAUNCH(launch, kernel, M, worker, j, wide)                                          \
    do {                                                                                                \
        const auto run_ = (wide) ? kernel<M, M::WIDTH> : kernel<M, 1>;                                  \
        const int64_t items_ = (wide) ? cf_channel_items<M::WIDTH>((j).g) : cf_channel_items<1>((j).g); \
        launch(run_, cf_cuda_blocks(worker, items_ *CF_THREADS), CF_THREADS, worker, j);                \
    } while (0)

template <class M> static void cf_run_moments(cf_worker *worker, const cf_channel_job &j, bool wide) {
    CF_CHANNELS_LAUNCH(CF_LAUNCH_TEAM, cf_channel_moments, M, worker, j, wide);
}
template <class M> static void cf_run_slopes(cf_worker *worker, const cf_channel_job &j, bool wide) {
    CF_CHANNELS_LAUNCH(CF_LAUNCH_TEAM, cf_channel_slopes, M, worker, j, wide);
}
template <class M> static void cf_run_map(cf_worker *worker, const cf_channel_job &j, bool wide) {
    CF_CHANNELS_LAUNCH(CF_LAUNCH, cf_channel_map, M, worker, j, wide);
}
template <class M> static void cf_run_gradient(cf_worker *worker, const cf_channel_job &j, bool wide) {
    CF_CHANNELS_LAUNCH(CF_LAUNCH, cf_channel_gradient, M, worker, j, wide);
}
static inline int64_t cf_join_blocks(cf_worker *worker, const cf_channel_grid &g) {
    return cf_cuda_blocks(worker, g.samples * cf_strips<1>(g.c) * CF_THREADS);
}

#endif
