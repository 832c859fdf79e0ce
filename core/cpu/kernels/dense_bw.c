/* dense_bw.c: the dense layer's backward up to its products: the gradient before the activation, from that at the
 * output, and the sums of its columns, the bias's gradient, in one pass.
 */
#include "cpu/kernels/block.h"
#include "cpu/kernels/formulas.h"

/* dpre and the sums of its columns are made in one pass.  Partial sums lie on a grid of SUM_ROWS rows, and are
 * merged in its order. */
enum { SUM_ROWS = 256, SUM_COLS = 256 };

/* One piece of a row: the gradient by the activation's output y, unless there is no activation, and its sums. */
typedef void (*slope_loop)(double p, int64_t n, const void *dy, const void *y, void *dpre, void *restrict sums);

#define LOOP(name, type, makes, ...)                                                                        \
    static void name(double p, int64_t n, const void *dy, const void *y, void *dpre, void *restrict sums) { \
        typedef type T;                                                                                     \
        const T *grad = dy, *in = y, p0 = (T)p;                                                             \
        T *out = dpre, *sum = sums;                                                                         \
        (void)p0;                                                                                           \
        CF_VECTOR                                                                                           \
        for (int64_t i = 0; i < n; i++) {                                                                   \
            const T g = grad[i], v = in[i], d = __VA_ARGS__;                                                \
            (void)v;                                                                                        \
            if (makes) out[i] = d;                                                                          \
            sum[i] += d;                                                                                    \
        }                                                                                                   \
    }
#define CF_SLOPE(act, ...)                 \
    LOOP(act##_f32, float, 1, __VA_ARGS__) \
    LOOP(act##_f64, double, 1, __VA_ARGS__)
#include "device/formulas.def"
LOOP(none_f32, float, 0, g)
LOOP(none_f64, double, 0, g)

static slope_loop loop_of(int act, int is_double) {
#define CF_SLOPE(name, ...) \
    if (act == CF_OP_##name) return is_double ? name##_f64 : name##_f32;
#include "device/formulas.def"
    return is_double ? none_f64 : none_f32;
}

typedef struct dense_bw {
    const cf_view *dpre, *dy, *y; /* dpre and y: NULL if only dbias is made */
    cf_compute compute;
    slope_loop loop;
    double p0;
    int64_t rows, cols, strips; /* strips: of SUM_COLS columns */
    char *sums;                 /* [row blocks, cols] */
} dense_bw;

static cf_view piece(const cf_view *v, int64_t row, int64_t col, int64_t n) {
    return (cf_view){.data = cf_at(v, row * v->stride[0] + col * v->stride[1]),
                     .dtype = v->dtype,
                     .ndim = 1,
                     .shape = {n},
                     .stride = {v->stride[1]}};
}

static void dense_bw_part(void *context, int64_t from, int64_t to) {
    const dense_bw *d = context;
    const int64_t size = cf_compute_size(d->compute);
    cf_block_memory temp[3];
    for (int64_t item = from; item < to; item++) {
        const int64_t block = item / d->strips, col = item % d->strips * SUM_COLS;
        const int64_t n = cf_least(SUM_COLS, d->cols - col);
        char *sum = d->sums + (block * d->cols + col) * size;
        memset(sum, 0, (size_t)(n * size));
        for (int64_t r = block * SUM_ROWS; r < cf_least(d->rows, (block + 1) * SUM_ROWS); r++) {
            const cf_view dy = piece(d->dy, r, col, n);
            const void *g = CF_K(read)(&dy, d->compute, 0, n, &temp[0]), *v = g;
            void *out = &temp[2];
            cf_view dpre;
            if (d->dpre) {
                const cf_view y = piece(d->y, r, col, n);
                v = CF_K(read)(&y, d->compute, 0, n, &temp[1]);
                dpre = piece(d->dpre, r, col, n);
                if (cf_direct(&dpre, d->compute)) out = dpre.data;
            }
            d->loop(d->p0, n, g, v, out, sum);
            if (d->dpre) CF_K(write)(&dpre, d->compute, 0, n, out);
        }
    }
}

typedef struct joining {
    cf_compute compute;
    int64_t blocks, cols;
    char *sums;
} joining;

/* Adds all row blocks to the first, in order. */
static void join_part(void *context, int64_t from, int64_t to) {
    const joining *j = context;
    for (int64_t b = 1; b < j->blocks; b++) {
        if (j->compute == CF_F64) {
            double *restrict y = (double *)j->sums, *restrict x = y + b * j->cols;
            for (int64_t i = from; i < to; i++) y[i] += x[i];
        } else {
            float *restrict y = (float *)j->sums, *restrict x = y + b * j->cols;
            for (int64_t i = from; i < to; i++) y[i] += x[i];
        }
    }
}

cfx_status CF_K(dense_bw)(cf_worker *worker, const cf_call *call) {
    const cf_dense_params *params = cf_call_params(call);
    const int act = params->act;
    const cf_view *dy = cf_call_in(call, 0), *dbias = call->nout > 1 ? &call->v[1] : NULL;
    if (act < 0 && !dbias) return CFX_OK;
    dense_bw d = {.dy = dy,
                  .compute = cf_compute_of(call->dtype),
                  .loop = loop_of(act, call->dtype == CFX_FLOAT64),
                  .p0 = params->p[0],
                  .rows = dy->shape[0],
                  .cols = dy->shape[1]};
    if (act >= 0) d.dpre = &call->v[0], d.y = cf_call_in(call, 1);
    d.strips = (d.cols + SUM_COLS - 1) / SUM_COLS;
    /* without rows there is one block of none, whose sums are zero */
    const int64_t blocks = cf_most(1, (d.rows + SUM_ROWS - 1) / SUM_ROWS), size = cf_compute_size(d.compute);
    if (d.cols == 0) return CFX_OK;
    d.sums = cf_worker_scratch(worker, (size_t)(blocks * d.cols * size));
    if (!d.sums) return cf_fail(CFX_EMEMORY, "no memory for the sums of %lld columns", (long long)d.cols);
    const int team = cf_cpu_team(worker, d.rows * d.cols);
    CF_K(parallel)(team, blocks * d.strips, 1, dense_bw_part, &d);
    if (!dbias) return CFX_OK;
    joining j = {d.compute, blocks, d.cols, d.sums};
    if (blocks > 1) CF_K(parallel)(cf_cpu_team(worker, blocks * d.cols), d.cols, 16, join_part, &j);
    CF_K(write)(dbias, d.compute, 0, d.cols, d.sums);
    return CFX_OK;
}
