/* groupnorm.cu: group normalisation. */
#include "cuda/channels.cuh"

namespace {

/* Two numbers of each channel of each sample. */
struct keep {
    double *first, *second;
    int64_t c;
    __device__ void operator()(int64_t sample, int64_t channel, double a, double b) const {
        first[sample * c + channel] = a;
        second[sample * c + channel] = b;
    }
};

/* A group's moments follow from those of its channels, which lie in first and second. */
__global__ void join_groups(const cf_channel_job j) {
    const int64_t n = j.g.c / j.g.groups;
    for (CF_EACH(k, j.g.samples * j.g.groups)) {
        const double *means = j.first + k * n, *aways = j.second + k * n;
        double sum = 0, all = 0;
        for (int64_t i = 0; i < n; i++) sum += means[i];
        const double mean = sum / (double)n;
        for (int64_t i = 0; i < n; i++) all += aways[i] + (double)j.g.rows * (means[i] - mean) * (means[i] - mean);
        cf_write<double>(j.mean, k, mean);
        cf_write<double>(j.variance, k, all / (double)(j.g.rows > 0 ? n * j.g.rows : 1)); /* of nothing: 0 */
    }
}

__device__ static inline double rstd_of(const cf_channel_job &j, int64_t k) {
    return 1 / sqrt(cf_read<double>(j.variance, k) + j.eps);
}

/* The sums over samples of a channel's sums: of dy, and of dy (x - mean) rstd. */
__global__ void sum_samples(const cf_channel_job j, const cf_view dgamma, const cf_view dbeta) {
    const int64_t n = j.g.c / j.g.groups;
    for (CF_EACH(i, j.g.c)) {
        double gamma = 0, beta = 0;
        for (int64_t s = 0; s < j.g.samples; s++) {
            gamma += j.second[s * j.g.c + i] * rstd_of(j, s * j.g.groups + i / n);
            beta += j.first[s * j.g.c + i];
        }
        cf_write<double>(dgamma, i, gamma);
        cf_write<double>(dbeta, i, beta);
    }
}

/* The sums become numbers of dx = scale dy - first - (x - mean) second: rstd h and rstd^3 hx, with the means h of
 * gamma dy and hx of gamma dy (x - mean) over a group. */
__global__ void make_slopes(const cf_channel_job j) {
    const int64_t n = j.g.c / j.g.groups;
    for (CF_EACH(k, j.g.samples * j.g.groups)) {
        double *sums = j.first + k * n, *sums_x = j.second + k * n, h = 0, hx = 0;
        const double rstd = rstd_of(j, k), share = rstd / (double)(n * j.g.rows);
        for (int64_t i = 0; i < n; i++) {
            const double gamma = j.gamma.data ? cf_read<double>(j.gamma, k % j.g.groups * n + i) : 1;
            h += gamma * sums[i];
            hx += gamma * sums_x[i];
        }
        for (int64_t i = 0; i < n; i++) sums[i] = share * h, sums_x[i] = share * rstd * rstd * hx;
    }
}

/* [n, rows, c] as a matrix. */
static cf_view matrix_of(const cf_view *v) {
    cf_view m = *v;
    m.ndim = 2;
    m.shape[0] = v->shape[0] * v->shape[1];
    m.shape[1] = m.stride[0] = v->shape[2];
    m.stride[1] = 1;
    return m;
}

/* Room for the sums of channels, and their partial ones. */
static cfx_status job_begin(cf_worker *worker, const cf_view *x, const cf_view *mean, const cf_view *variance,
                            double eps, cf_channel_job *j) {
    j->x = matrix_of(x);
    j->g = cf_channels_of(x->shape[0], x->shape[1], x->shape[2], mean->shape[1]);
    j->mean = *mean;
    j->variance = *variance;
    j->eps = eps;
    const int64_t sums = j->g.samples * j->g.c, numbers = 2 * cf_channels_room(j->g) + 2 * sums;
    j->partial = (double *)cf_cuda_scratch(worker, (size_t)(numbers > 0 ? numbers : 1) * sizeof(double));
    if (!j->partial) return CFX_EMEMORY;
    j->first = j->partial + 2 * cf_channels_room(j->g);
    j->second = j->first + sums;
    return CFX_OK;
}

} // namespace

extern "C" cfx_status cf_cuda_groupnorm(cf_worker *worker, const cf_call *call) {
    const cf_groupnorm_params *params = CF_PARAMS(call, groupnorm);
    const cf_view *x = cf_call_in(call, 0);
    const int64_t groups = x->shape[0] * call->v[1].shape[1];
    cf_channel_job j = {};
    if (x->shape[2] == 0 || x->shape[0] == 0) return CFX_OK;
    CF_TRY(job_begin(worker, x, &call->v[1], &call->v[2], params->eps, &j));
    j.y = matrix_of(&call->v[0]);
    if (params->affine) j.gamma = *cf_call_in(call, 1), j.beta = *cf_call_in(call, 2);
    const keep finish = {j.first, j.second, j.g.c};
    CF_CHANNELS(call->dtype, cf_run_moments, worker, j, &j.x);
    CF_LAUNCH_TEAM(cf_channel_join_moments<keep>, cf_join_blocks(worker, j.g), CF_THREADS, worker, j, finish);
    CF_LAUNCH(join_groups, cf_cuda_blocks(worker, groups), CF_THREADS, worker, j);
    if (j.g.rows > 0) CF_CHANNELS(call->dtype, cf_run_map, worker, j, &j.x, &j.y);
    return cf_cuda_launched("groupnorm");
}

extern "C" cfx_status cf_cuda_groupnorm_bw(cf_worker *worker, const cf_call *call) {
    const cf_groupnorm_bw_params *params = CF_PARAMS(call, groupnorm_bw);
    const cf_view *x = cf_call_in(call, 1), *mean = cf_call_in(call, 2), *out = call->v;
    const int64_t groups = x->shape[0] * mean->shape[1];
    cf_channel_job j = {};
    if (x->shape[2] == 0) return CFX_OK;
    CF_TRY(job_begin(worker, x, mean, cf_call_in(call, 3), params->eps, &j));
    j.dy = matrix_of(cf_call_in(call, 0));
    if (params->dx) j.dx = matrix_of(out++);
    if (params->affine) j.gamma = *cf_call_in(call, 4);
    const keep finish = {j.first, j.second, j.g.c};
    CF_CHANNELS(call->dtype, cf_run_slopes, worker, j, &j.x, &j.dy);
    CF_LAUNCH_TEAM(cf_channel_join_sums<keep>, cf_join_blocks(worker, j.g), CF_THREADS, worker, j, finish);
    if (params->dgamma) CF_LAUNCH(sum_samples, cf_cuda_blocks(worker, j.g.c), CF_THREADS, worker, j, out[0], out[1]);
    if (params->dx && j.g.samples * j.g.rows > 0) {
        CF_LAUNCH(make_slopes, cf_cuda_blocks(worker, groups), CF_THREADS, worker, j);
        CF_CHANNELS(call->dtype, cf_run_gradient, worker, j, &j.x, &j.dy, &j.dx);
    }
    return cf_cuda_launched("groupnorm_bw");
}
