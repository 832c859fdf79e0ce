/* batchnorm.cu: batch normalisation. */
#include "cuda/channels.cuh"

/* ---- statistics --------------------------------------------------------------------------------------------- */

namespace {

/* Makes a channel's moments its mean and variance. */
struct stats {
    cf_view mean, variance;
    int64_t rows;
    __device__ void operator()(int64_t, int64_t channel, double mu, double away) const {
        cf_write<double>(mean, channel, mu);
        cf_write<double>(variance, channel, rows > 0 ? away / (double)rows : 0);
    }
};

__global__ void count_batch(const cf_view count) {
    if (threadIdx.x == 0) cf_write<int64_t>(count, 0, cf_read<int64_t>(count, 0) + 1);
}

/* A running number moves towards scale times that of the batch. */
__device__ static inline void move_one(const cf_view &running, const cf_view &batch, int64_t i, double share,
                                       double scale) {
    const double had = cf_read<double>(running, i);
    cf_write<double>(running, i, had + share * (scale * cf_read<double>(batch, i) - had));
}

typedef struct running {
    cf_view mean, variance, batch_mean, batch_variance, count; /* count: data NULL: there is none */
    double momentum, scale;
    int64_t c;
} running;

__global__ void move_all(const running r) {
    const double share = r.momentum < 0 ? 1 / cf_read<double>(r.count, 0) : r.momentum;
    for (CF_EACH(i, r.c)) {
        move_one(r.mean, r.batch_mean, i, share, 1);
        move_one(r.variance, r.batch_variance, i, share, r.scale);
    }
}

} // namespace

extern "C" cfx_status cf_cuda_batchnorm_stats(cf_worker *worker, const cf_call *call) {
    cf_channel_job j = {};
    j.x = *cf_call_in(call, 0);
    const int64_t rows = j.x.shape[0], c = j.x.shape[1];
    const stats s = {call->v[0], call->v[1], rows};
    if (c == 0) return CFX_OK;
    j.g = cf_channels_of(1, rows, c, c);
    j.partial = (double *)cf_cuda_scratch(worker, (size_t)(2 * cf_channels_room(j.g)) * sizeof(double));
    if (!j.partial) return CFX_EMEMORY;
    CF_CHANNELS(call->dtype, cf_run_moments, worker, j, &j.x);
    CF_LAUNCH_TEAM(cf_channel_join_moments<stats>, cf_join_blocks(worker, j.g), CF_THREADS, worker, j, s);
    return cf_cuda_launched("batchnorm_stats");
}

/* The variance that runs is unbiased. */
extern "C" cfx_status cf_cuda_batchnorm_move(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_move_params *params = CF_PARAMS(call, batchnorm_move);
    running r = {};
    r.batch_mean = *cf_call_in(call, 0);
    r.batch_variance = *cf_call_in(call, 1);
    r.momentum = params->momentum;
    r.c = r.batch_mean.shape[0];
    if (params->counted) {
        r.count = call->v[call->nout - 1];
        CF_LAUNCH(count_batch, 1, CF_WARP, worker, r.count);
    }
    if (params->tracked && r.c > 0 && params->rows > 0) {
        r.mean = call->v[0];
        r.variance = call->v[1];
        r.scale = (double)params->rows / (double)(params->rows - 1);
        CF_LAUNCH(move_all, cf_cuda_blocks(worker, r.c), CF_THREADS, worker, r);
    }
    return cf_cuda_launched("batchnorm_move");
}

/* ---- the map and its gradient ------------------------------------------------------------------------------- */

namespace {

/* mean: the first of the views [mean, variance, gamma?, beta?]. */
static cf_channel_job job_of(const cf_view *x, const cf_view *mean, int affine, double eps) {
    cf_channel_job j = {};
    j.x = *x;
    j.g = cf_channels_of(1, x->shape[0], x->shape[1], x->shape[1]);
    j.mean = mean[0];
    j.variance = mean[1];
    j.eps = eps;
    if (affine) j.gamma = mean[2], j.beta = mean[3];
    return j;
}

/* Makes of a channel's sums the gradients of gamma and beta, and dx = scale g - flat - (x - mean) slope with
 * flat = scale mean of g and slope = scale rstd^2 mean of g (x - mean). */
struct slopes {
    cf_view variance, gamma, dgamma, dbeta; /* data NULL: there is none */
    double *flat, *slope;                   /* NULL: the statistics were not the batch's */
    int64_t rows;
    double eps;
    __device__ void operator()(int64_t, int64_t channel, double sum_g, double sum_gx) const {
        const double r = 1 / sqrt(cf_read<double>(variance, channel) + eps), n = (double)rows;
        if (dgamma.data) {
            cf_write<double>(dgamma, channel, sum_gx * r);
            cf_write<double>(dbeta, channel, sum_g);
        }
        if (!flat) return;
        const double scale = gamma.data ? cf_read<double>(gamma, channel) * r : r;
        flat[channel] = scale * sum_g / n;
        slope[channel] = scale * r * r * sum_gx / n;
    }
};

} // namespace

extern "C" cfx_status cf_cuda_batchnorm(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_params *params = CF_PARAMS(call, batchnorm);
    cf_channel_job j = job_of(cf_call_in(call, 0), cf_call_in(call, 1), params->affine, params->eps);
    if (j.g.rows * j.g.c == 0) return CFX_OK;
    j.y = call->v[0];
    j.relu = params->relu;
    if (params->residual) j.residual = *cf_call_in(call, params->affine ? 5 : 3);
    CF_CHANNELS(call->dtype, cf_run_map, worker, j, &j.x, &j.y, &j.residual);
    return cf_cuda_launched("batchnorm");
}

extern "C" cfx_status cf_cuda_batchnorm_bw(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_bw_params *params = CF_PARAMS(call, batchnorm_bw);
    cf_channel_job j = job_of(cf_call_in(call, 1), cf_call_in(call, 2), params->affine, params->eps);
    const cf_view *out = call->v;
    slopes s = {};
    if (j.g.c == 0) return CFX_OK;
    j.dy = *cf_call_in(call, 0);
    if (params->dx) j.dx = *out++;
    if (params->dresidual) j.dresidual = *out++;
    if (params->dgamma) s.dgamma = out[0], s.dbeta = out[1];
    if (params->y) j.y = *cf_call_in(call, params->affine ? 6 : 4);
    j.gate = params->y ? CF_GATE_OUTPUT : params->relu ? CF_GATE_INPUT : CF_GATE_NONE;
    s.variance = j.variance;
    s.eps = j.eps;
    s.gamma = j.gamma;
    s.rows = j.g.rows;
    if (params->dgamma || params->training) {
        const int64_t numbers = 2 * cf_channels_room(j.g) + 2 * j.g.c;
        j.partial = (double *)cf_cuda_scratch(worker, (size_t)numbers * sizeof(double));
        if (!j.partial) return CFX_EMEMORY;
        if (params->training) {
            s.flat = j.first = j.partial + 2 * cf_channels_room(j.g);
            s.slope = j.second = j.first + j.g.c;
        }
        CF_CHANNELS(call->dtype, cf_run_slopes, worker, j, &j.x, &j.dy, &j.y);
        CF_LAUNCH_TEAM(cf_channel_join_sums<slopes>, cf_join_blocks(worker, j.g), CF_THREADS, worker, j, s);
    }
    if (j.g.rows > 0 && (params->dx || params->dresidual))
        CF_CHANNELS(call->dtype, cf_run_gradient, worker, j, &j.x, &j.dy, &j.y, &j.dx, &j.dresidual);
    return cf_cuda_launched("batchnorm_bw");
}
