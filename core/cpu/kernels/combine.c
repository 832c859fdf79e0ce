/* combine.c: replicas are combined.
 *
 * It is bound by memory: each element of a replica is read once and written once.  The replicas are added in their order.
 */
#include "cpu/kernels/block.h"

/* y = a combined with b; y may be a.  W: the type in which sums and products wrap.  NaN wins over numbers, as in
 * a sum. */
#define COMBINE(T, W, name)                                                                   \
    static void name(int how, int64_t n, const T *a, const T *b, T *y) {                      \
        switch (how) {                                                                        \
        case CF_COMBINE_PROD:                                                                 \
            CF_VECTOR                                                                         \
            for (int64_t i = 0; i < n; i++) y[i] = (T)((W)a[i] * (W)b[i]);                    \
            break;                                                                            \
        case CF_COMBINE_MAX:                                                                  \
            CF_VECTOR                                                                         \
            for (int64_t i = 0; i < n; i++) y[i] = a[i] > b[i] || a[i] != a[i] ? a[i] : b[i]; \
            break;                                                                            \
        case CF_COMBINE_MIN:                                                                  \
            CF_VECTOR                                                                         \
            for (int64_t i = 0; i < n; i++) y[i] = a[i] < b[i] || a[i] != a[i] ? a[i] : b[i]; \
            break;                                                                            \
        default:                                                                              \
            CF_VECTOR                                                                         \
            for (int64_t i = 0; i < n; i++) y[i] = (T)((W)a[i] + (W)b[i]);                    \
        }                                                                                     \
    }
COMBINE(float, float, combine_f32)
COMBINE(double, double, combine_f64)
COMBINE(int64_t, uint64_t, combine_i64)

typedef struct combining {
    const cf_call *call;
    const double *weights; /* [nout], of a weighted sum */
    int how, root;
    cf_compute compute;
} combining;

static void combine_two(const combining *c, int64_t n, const void *a, const void *b, void *y) {
    if (c->compute == CF_F32) combine_f32(c->how, n, a, b, y);
    else if (c->compute == CF_F64) combine_f64(c->how, n, a, b, y);
    else combine_i64(c->how, n, a, b, y);
}

static void scale(const combining *c, int64_t n, void *x) {
    const double by = 1 / (double)c->call->nout;
    if (c->compute == CF_F32)
        for (int64_t i = 0; i < n; i++) ((float *)x)[i] *= (float)by;
    else
        for (int64_t i = 0; i < n; i++) ((double *)x)[i] *= by;
}

/* Two tensors of floats, the common case: one loop that reads both and writes both. */
static void sum_two(int64_t n, float *restrict a, float *restrict b, float by) {
    for (int64_t i = 0; i < n; i++) {
        const float sum = (a[i] + b[i]) * by;
        a[i] = sum;
        b[i] = sum;
    }
}

/* sum = the weighted sum of n elements at i; what has weight 0 may hold anything. */
static void weigh(const combining *c, int64_t i, int64_t n, double *sum, cf_block_memory *temp) {
    memset(sum, 0, (size_t)(n * cf_compute_size(c->compute)));
    for (int k = 0; k < c->call->nout; k++) {
        const double by = c->weights[k];
        if (by == 0) continue;
        const void *x = CF_K(read)(&c->call->v[k], c->compute, i, n, temp);
        if (c->compute == CF_F32)
            for (int64_t j = 0; j < n; j++) ((float *)sum)[j] += (float)by * ((const float *)x)[j];
        else
            for (int64_t j = 0; j < n; j++) sum[j] += by * ((const double *)x)[j];
    }
}

static void add_up(const combining *c, int64_t i, int64_t n, double *sum, cf_block_memory *temp) {
    const cf_view *v = c->call->v;
    memcpy(sum, CF_K(read)(&v[0], c->compute, i, n, temp), (size_t)(n * cf_compute_size(c->compute)));
    for (int k = 1; k < c->call->nout; k++) combine_two(c, n, sum, CF_K(read)(&v[k], c->compute, i, n, temp), sum);
    if (c->how == CF_COMBINE_AVG) scale(c, n, sum);
}

enum { WIDE = 2048 };

static void combine_part(void *context, int64_t from, int64_t to) {
    const combining *c = context;
    const cf_view *v = c->call->v;
    const int count = c->call->nout;
    const int sums = c->how == CF_COMBINE_SUM || c->how == CF_COMBINE_AVG;
    if (count == 2 && sums && c->root < 0 && c->call->dtype == CFX_FLOAT32) {
        sum_two(to - from, (float *)v[0].data + from, (float *)v[1].data + from, c->how == CF_COMBINE_AVG ? 0.5f : 1);
        return;
    }
    /* Tensors of the compute type are blocks already, and those may be larger than a temporary's. */
    const int direct = c->call->dtype == cf_compute_dtype(c->compute);
    const int64_t step = direct ? WIDE : CF_BLOCK, size = cf_compute_size(c->compute);
    double sum[WIDE];
    cf_block_memory temp;
    for (int64_t i = from; i < to; i += step) {
        const int64_t n = cf_least(step, to - i);
        if (c->weights) weigh(c, i, n, sum, &temp);
        else add_up(c, i, n, sum, &temp);
        for (int k = 0; k < count; k++) {
            if (c->root >= 0 && k != c->root) continue;
            if (direct) memcpy(cf_at(&v[k], i), sum, (size_t)(n * size));
            else CF_K(write)(&v[k], c->compute, i, n, sum);
        }
    }
}

static void copy_part(void *context, int64_t from, int64_t to) {
    const combining *c = context;
    const cf_view *v = c->call->v;
    const size_t bytes = (size_t)((to - from) * cf_dtype_size(c->call->dtype));
    for (int k = 0; k < c->call->nout; k++)
        if (k != c->root) memcpy(cf_at(&v[k], from), cf_at(&v[c->root], from), bytes);
}

cfx_status CF_K(combine)(cf_worker *worker, const cf_call *call) {
    const cf_combine_params *params = cf_call_params(call);
    combining c = {.call = call, .how = params->op, .root = params->root, .compute = cf_compute_of(call->dtype)};
    const int64_t n = cf_view_numel(&call->v[0]);
    const int copies = c.how == CF_COMBINE_COPY;
    if (c.root >= call->nout || (copies && c.root < 0))
        return cf_fail(CFX_EFAULT, "there is no replica %d among %d", c.root, call->nout);
    if (c.how == CF_COMBINE_WEIGHTED) c.weights = params->weight;
    if ((c.how == CF_COMBINE_AVG || c.weights) && c.compute == CF_I64)
        return cf_fail(CFX_EFAULT, "integers have no average (%s)", cfx_dtype_name(call->dtype));
    CF_K(parallel)(cf_cpu_team(worker, n * call->nout), n, 64, copies ? copy_part : combine_part, &c);
    return CFX_OK;
}
