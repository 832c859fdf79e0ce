/* batchnorm.c: batch normalisation. */
#include "cpu/kernels/channels.h"

/* ---- statistics ------------------------------------------------------------------------------------------ */

cfx_status CF_K(batchnorm_stats)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    const int64_t rows = x->shape[0], c = x->shape[1];
    if (c == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, 1, rows, c);
    double *mean = CF_K(channels_room)(worker, 2 * c + cf_channels_room(&g)), *variance = mean + c;
    if (!mean) return CFX_EMEMORY;
    if (rows > 0) CF_K(channels_moments)(worker, &g, x, variance + c, mean, variance);
    else memset(mean, 0, (size_t)(2 * c) * sizeof *mean); /* of nothing, for nothing */
    for (int64_t i = 0; i < c && rows > 0; i++) variance[i] /= (double)rows;
    CF_K(channels_write)(&call->v[0], c, mean);
    CF_K(channels_write)(&call->v[1], c, variance);
    return CFX_OK;
}

/* A running number moves towards scale times that of the batch. */
static void move(const cf_view *running, const cf_view *batch, int64_t c, double share, double scale, double *temp) {
    CF_K(channels_read)(running, c, temp);
    CF_K(channels_read)(batch, c, temp + c);
    for (int64_t i = 0; i < c; i++) temp[i] += share * (scale * temp[c + i] - temp[i]);
    CF_K(channels_write)(running, c, temp);
}

/* The variance that runs is unbiased. */
cfx_status CF_K(batchnorm_move)(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_move_params *params = cf_call_params(call);
    const cf_view *mean = cf_call_in(call, 0), *running = call->v, *count = &call->v[call->nout - 1];
    const int64_t c = mean->shape[0], rows = params->rows;
    const bool moves = params->tracked && c > 0 && rows > 0;
    double share = params->momentum, *temp = CF_K(channels_room)(worker, 2 * c);
    if (!temp) return CFX_EMEMORY;
    if (params->counted) {
        const double counted = CF_K(number)(count) + 1;
        CF_K(write)(count, CF_F64, 0, 1, &counted);
        if (share < 0) share = 1 / counted;
    }
    if (moves) move(&running[0], mean, c, share, 1, temp);
    if (moves) move(&running[1], mean + 1, c, share, (double)rows / (double)(rows - 1), temp);
    return CFX_OK;
}

/* ---- the map and its gradient ---------------------------------------------------------------------------- */

/* A channel's numbers, as doubles [c] and behind them as the compute type [width]. */
typedef struct numbers {
    double *mean, *rstd, *scale, *shift, *flat, *slope;
    char *spread;
    int64_t spread_bytes;
} numbers;

static cfx_status numbers_begin(cf_worker *worker, const cf_channels *g, int64_t more, const cf_view *mean, double eps,
                                const cf_view *gamma, numbers *s, double **rest) {
    double *at = CF_K(channels_room)(worker, 6 * g->c + 5 * g->width + more);
    if (!at) return CFX_EMEMORY;
    *s = (numbers){at, at + g->c, at + 2 * g->c, at + 3 * g->c, at + 4 * g->c, at + 5 * g->c, NULL, 0};
    s->spread = (char *)(at + 6 * g->c);
    s->spread_bytes = g->width * (int64_t)sizeof *at;
    *rest = at + 6 * g->c + 5 * g->width;
    CF_K(channels_read)(mean, g->c, s->mean);
    CF_K(channels_read)(mean + 1, g->c, s->rstd);
    for (int64_t i = 0; i < g->c; i++) s->rstd[i] = 1 / sqrt(s->rstd[i] + eps);
    memset(s->shift, 0, (size_t)g->c * sizeof *at);
    if (gamma) {
        CF_K(channels_read)(gamma, g->c, s->scale);
        CF_K(channels_read)(gamma + 1, g->c, s->shift);
        for (int64_t i = 0; i < g->c; i++) s->scale[i] *= s->rstd[i];
    } else memcpy(s->scale, s->rstd, (size_t)g->c * sizeof *at);
    return CFX_OK;
}

static const void *spread(const cf_channels *g, const numbers *s, int place, const double *number) {
    void *to = s->spread + place * s->spread_bytes;
    CF_K(channels_spread)(g, number, to);
    return to;
}
static cf_channel_numbers spread_map(const cf_channels *g, const numbers *s) {
    return (cf_channel_numbers){
        .mean = spread(g, s, 0, s->mean), .scale = spread(g, s, 1, s->scale), .shift = spread(g, s, 2, s->shift)};
}

cfx_status CF_K(batchnorm)(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_params *params = cf_call_params(call);
    const cf_view *x = cf_call_in(call, 0), *gamma = params->affine ? cf_call_in(call, 3) : NULL;
    const cf_view *residual = params->residual ? cf_call_in(call, params->affine ? 5 : 3) : NULL;
    numbers s;
    double *rest;
    if (x->shape[1] == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, 1, x->shape[0], x->shape[1]);
    CF_TRY(numbers_begin(worker, &g, 0, cf_call_in(call, 1), params->eps, gamma, &s, &rest));
    const cf_channel_numbers map = spread_map(&g, &s);
    CF_K(channels_map)(worker, &g, params->relu, x, residual, &map, &call->v[0]);
    return CFX_OK;
}

/* dgamma = rstd sum of g (x - mean), dbeta = sum of g; and where the statistics were the batch's
 * dx = scale (g - mean of g - (x - mean) rstd^2 mean of g (x - mean)), else dx = scale g. */
cfx_status CF_K(batchnorm_bw)(cf_worker *worker, const cf_call *call) {
    const cf_batchnorm_bw_params *params = cf_call_params(call);
    const cf_view *dy = cf_call_in(call, 0), *x = cf_call_in(call, 1), *out = call->v;
    const cf_view *gamma = params->affine ? cf_call_in(call, 4) : NULL;
    const cf_view *y = params->y ? cf_call_in(call, params->affine ? 6 : 4) : NULL;
    const cf_view *dx = params->dx ? out++ : NULL, *dresidual = params->dresidual ? out++ : NULL;
    const cf_gate gate = y ? CF_GATE_OUTPUT : params->relu ? CF_GATE_INPUT : CF_GATE_NONE;
    const int64_t rows = x->shape[0], c = x->shape[1];
    numbers s;
    double *sum_g;
    if (c == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, 1, rows, c);
    CF_TRY(
        numbers_begin(worker, &g, 2 * c + cf_channels_room(&g), cf_call_in(call, 2), params->eps, gamma, &s, &sum_g));
    double *sum_gx = sum_g + c;
    cf_channel_numbers map = spread_map(&g, &s);
    if (params->dgamma || params->training)
        CF_K(channels_slopes)(worker, &g, gate, dy, x, y, &map, sum_gx + c, sum_g, sum_gx);
    if (params->training) {
        const double share = 1 / (double)rows;
        for (int64_t i = 0; i < c; i++) {
            s.flat[i] = s.scale[i] * sum_g[i] * share;
            s.slope[i] = s.scale[i] * s.rstd[i] * s.rstd[i] * sum_gx[i] * share;
        }
        map.flat = spread(&g, &s, 3, s.flat);
        map.slope = spread(&g, &s, 4, s.slope);
    }
    if (dx || dresidual) CF_K(channels_gradient)(worker, &g, gate, dy, x, y, &map, dx, dresidual);
    if (!params->dgamma) return CFX_OK;
    for (int64_t i = 0; i < c; i++) sum_gx[i] *= s.rstd[i];
    CF_K(channels_write)(&out[0], c, sum_gx);
    CF_K(channels_write)(&out[1], c, sum_g);
    return CFX_OK;
}
