/* groupnorm.c: group normalisation, and bytes as numbers: what else is made by numbers of each channel. */
#include "cpu/kernels/channels.h"

/* Arrays of doubles [samples, c], and behind them as many of the compute type [samples, width]. */
enum { MEAN, SCALE, SHIFT, FLAT, SLOPE, ARRAYS };
typedef struct arrays {
    const cf_channels *g;
    double *all, *room; /* room: for two arrays more, and sums */
} arrays;

static double *array(const arrays *a, int which) { return a->all + which * a->g->samples * a->g->c; }
static const void *spread(const arrays *a, int which) {
    double *to = a->all + ARRAYS * a->g->samples * a->g->c + which * a->g->samples * a->g->width;
    CF_K(channels_spread)(a->g, array(a, which), to);
    return to;
}

static cfx_status arrays_begin(cf_worker *worker, const cf_channels *g, arrays *a) {
    const int64_t numbers = ARRAYS * g->samples * (g->c + g->width);
    *a = (arrays){g, CF_K(channels_room)(worker, numbers + 2 * g->samples * g->c + cf_channels_room(g)), NULL};
    if (!a->all) return CFX_EMEMORY;
    a->room = a->all + numbers;
    return CFX_OK;
}

/* ---- group normalisation --------------------------------------------------------------------------------- */

/* A group's moments follow from those of its channels. */
static void join_groups(const cf_channels *g, int64_t groups, const double *mean, const double *away,
                        double *group_mean, double *variance) {
    const int64_t n = g->c / groups;
    for (int64_t k = 0; k < g->samples * groups; k++) {
        double sum = 0, all = 0;
        for (int64_t i = k * n; i < (k + 1) * n; i++) sum += mean[i];
        group_mean[k] = sum / (double)n;
        for (int64_t i = k * n; i < (k + 1) * n; i++)
            all += away[i] + (double)g->rows * (mean[i] - group_mean[k]) * (mean[i] - group_mean[k]);
        variance[k] = all / (double)cf_most(1, n * g->rows); /* of nothing: 0 */
    }
}

/* Each channel's mean and scale, by its group's mean and variance, [samples, groups], and gamma [c] or NULL. */
static void fill(const arrays *a, int64_t groups, double eps, const double *group_mean, const double *variance,
                 const double *gamma) {
    const int64_t c = a->g->c, n = c / groups;
    double *mean = array(a, MEAN), *scale = array(a, SCALE);
    for (int64_t i = 0; i < a->g->samples * c; i++) {
        mean[i] = group_mean[i / n];
        scale[i] = 1 / sqrt(variance[i / n] + eps) * (gamma ? gamma[i % c] : 1);
    }
}

cfx_status CF_K(groupnorm)(cf_worker *worker, const cf_call *call) {
    const cf_groupnorm_params *params = cf_call_params(call);
    const cf_view *x = cf_call_in(call, 0);
    const int64_t samples = x->shape[0], c = x->shape[2], groups = call->v[1].shape[1];
    arrays a;
    if (c == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, samples, x->shape[1], c);
    CF_TRY(arrays_begin(worker, &g, &a));
    double *mean = array(&a, FLAT), *away = array(&a, SLOPE), *group_mean = a.room, *variance = a.room + samples * c;
    memset(mean, 0, (size_t)(samples * c) * sizeof *mean);
    memset(away, 0, (size_t)(samples * c) * sizeof *away);
    if (g.rows > 0) CF_K(channels_moments)(worker, &g, x, a.room, mean, away);
    join_groups(&g, groups, mean, away, group_mean, variance);
    CF_K(channels_write)(&call->v[1], samples * groups, group_mean);
    CF_K(channels_write)(&call->v[2], samples * groups, variance);
    double *gamma = NULL, *shift = array(&a, SHIFT);
    memset(shift, 0, (size_t)(samples * c) * sizeof *shift);
    if (params->affine && samples > 0) {
        CF_K(channels_read)(cf_call_in(call, 1), c, gamma = mean); /* those of channels are not needed any more */
        CF_K(channels_read)(cf_call_in(call, 2), c, shift);
        for (int64_t i = c; i < samples * c; i++) shift[i] = shift[i - c];
    }
    fill(&a, groups, params->eps, group_mean, variance, gamma);
    const cf_channel_numbers map = {.mean = spread(&a, MEAN), .scale = spread(&a, SCALE), .shift = spread(&a, SHIFT)};
    CF_K(channels_map)(worker, &g, 0, x, NULL, &map, &call->v[0]);
    return CFX_OK;
}

/* dx = scale dy - rstd h - (x - mean) rstd^3 hx, with the means h of gamma dy and hx of gamma dy (x - mean) over a
 * group, given the channels' sums of dy and dy (x - mean). */
static void fill_slopes(const arrays *a, int64_t groups, const double *sum_g, const double *sum_gx, const double *gamma,
                        const double *rstd) {
    const int64_t c = a->g->c, n = c / groups;
    double *flat = array(a, FLAT), *slope = array(a, SLOPE);
    for (int64_t k = 0; k < a->g->samples * groups; k++) {
        double h = 0, hx = 0;
        for (int64_t i = k * n; i < (k + 1) * n; i++) {
            h += sum_g[i] * (gamma ? gamma[i % c] : 1);
            hx += sum_gx[i] * (gamma ? gamma[i % c] : 1);
        }
        const double share = rstd[k] / (double)(n * a->g->rows);
        for (int64_t i = k * n; i < (k + 1) * n; i++) {
            flat[i] = share * h;
            slope[i] = share * rstd[k] * rstd[k] * hx;
        }
    }
}

/* The sums over samples of sum_gx rstd, and of sum_g. */
static void write_affine(const cf_channels *g, int64_t groups, const double *sum_g, const double *sum_gx,
                         const double *rstd, double *temp, const cf_view *dgamma, const cf_view *dbeta) {
    const int64_t c = g->c, n = c / groups;
    memset(temp, 0, (size_t)(2 * c) * sizeof *temp);
    for (int64_t i = 0; i < g->samples * c; i++) {
        temp[i % c] += sum_gx[i] * rstd[i / n];
        temp[c + i % c] += sum_g[i];
    }
    CF_K(channels_write)(dgamma, c, temp);
    CF_K(channels_write)(dbeta, c, temp + c);
}

cfx_status CF_K(groupnorm_bw)(cf_worker *worker, const cf_call *call) {
    const cf_groupnorm_bw_params *params = cf_call_params(call);
    const cf_view *dy = cf_call_in(call, 0), *x = cf_call_in(call, 1), *mean = cf_call_in(call, 2), *out = call->v;
    const cf_view *dx = params->dx ? out++ : NULL;
    const int64_t samples = x->shape[0], c = x->shape[2], groups = mean->shape[1], all = samples * groups;
    arrays a;
    if (c == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, samples, x->shape[1], c);
    /* more numbers: sums of channels, and of groups the mean and rstd; gamma; two for channels */
    const int64_t numbers = ARRAYS * samples * (c + g.width);
    a = (arrays){&g, CF_K(channels_room)(worker, numbers + 2 * samples * c + 2 * all + 3 * c + cf_channels_room(&g)),
                 NULL};
    if (!a.all) return CFX_EMEMORY;
    double *sum_g = a.all + numbers, *sum_gx = sum_g + samples * c, *group_mean = sum_gx + samples * c;
    double *rstd = group_mean + all, *gamma = rstd + all, *temp = gamma + c;
    CF_K(channels_read)(mean, all, group_mean);
    CF_K(channels_read)(cf_call_in(call, 3), all, rstd);
    if (params->affine) CF_K(channels_read)(cf_call_in(call, 4), c, gamma);
    else gamma = NULL;
    fill(&a, groups, params->eps, group_mean, rstd, gamma);
    for (int64_t k = 0; k < all; k++) rstd[k] = 1 / sqrt(rstd[k] + params->eps);
    cf_channel_numbers map = {.mean = spread(&a, MEAN), .scale = spread(&a, SCALE)};
    CF_K(channels_slopes)(worker, &g, CF_GATE_NONE, dy, x, NULL, &map, temp + 2 * c, sum_g, sum_gx);
    if (params->dgamma) write_affine(&g, groups, sum_g, sum_gx, rstd, temp, &out[0], &out[1]);
    if (!dx) return CFX_OK;
    fill_slopes(&a, groups, sum_g, sum_gx, gamma, rstd);
    map.flat = spread(&a, FLAT);
    map.slope = spread(&a, SLOPE);
    CF_K(channels_gradient)(worker, &g, CF_GATE_NONE, dy, x, NULL, &map, dx, NULL);
    return CFX_OK;
}

/* ---- bytes as numbers ------------------------------------------------------------------------------------ */

cfx_status CF_K(normalise)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    const int64_t c = cf_call_in(call, 1)->shape[0], elements = cf_view_numel(x);
    arrays a;
    if (elements == 0) return CFX_OK;
    const cf_channels g = CF_K(channels)(call->dtype, 1, elements / c, c);
    CF_TRY(arrays_begin(worker, &g, &a));
    memset(array(&a, MEAN), 0, (size_t)c * sizeof *a.all);
    CF_K(channels_read)(cf_call_in(call, 1), c, array(&a, SCALE));
    CF_K(channels_read)(cf_call_in(call, 2), c, array(&a, SHIFT));
    const cf_channel_numbers map = {.mean = spread(&a, MEAN), .scale = spread(&a, SCALE), .shift = spread(&a, SHIFT)};
    CF_K(channels_map)(worker, &g, 0, x, NULL, &map, &call->v[0]);
    return CFX_OK;
}
