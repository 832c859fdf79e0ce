/* softmax.c: softmax, its logarithm, and the cross entropy of logits. */
#include "cpu/kernels/maths.h"
#include "cpu/kernels/reduce_blocks.h"
#include "cpu/kernels/rows.h"

#define T float
#define ROW(name) f32_##name
#define ROW_COMPUTE CF_F32
#define ROW_EXP cf_exp
#include "cpu/kernels/row_math.h"
#define T double
#define ROW(name) f64_##name
#define ROW_COMPUTE CF_F64
#define ROW_EXP exp
#include "cpu/kernels/row_math.h"

/* An exponential costs about this many steps of a simple loop. */
enum { EXP_COST = 4 };

static cfx_status rows_begin(cf_worker *worker, cf_rows *rows, int buffers, int team, size_t more, void **at) {
    rows->buffer_count = buffers;
    rows->buffer_bytes = cf_rows_buffer_bytes(rows->compute, rows->n);
    const size_t bytes = (size_t)team * (size_t)buffers * (size_t)rows->buffer_bytes;
    rows->buffers = cf_worker_scratch(worker, bytes + more);
    if (!rows->buffers) return cf_fail(CFX_EMEMORY, "no memory for rows of %lld elements", (long long)rows->n);
    if (at) *at = rows->buffers + bytes;
    return CFX_OK;
}

static cf_rows rows_of(const cf_call *call, const cf_view *v) {
    return (cf_rows){.call = call, .compute = cf_compute_of(call->dtype), .n = v->shape[v->ndim - 1]};
}

/* ---- softmax --------------------------------------------------------------------------------------------- */

static void softmax_part(void *context, int64_t from, int64_t to) {
    const cf_rows *rows = context;
    const cf_view *y = &rows->call->v[0], *x = &rows->call->v[1];
    const int plain = rows->call->op == CF_OP_softmax;
    for (int64_t r = from; r < to; r++) {
        const void *in = cf_row_read(rows, x, r, 0);
        void *out = cf_row_target(rows, y, r, 1);
        if (rows->compute == CF_F64) (plain ? f64_softmax : f64_logsoftmax)(in, rows->n, out);
        else (plain ? f32_softmax : f32_logsoftmax)(in, rows->n, out);
        cf_row_write(rows, y, r, out);
    }
}

static void softmax_bw_part(void *context, int64_t from, int64_t to) {
    const cf_rows *rows = context;
    const cf_view *dx = &rows->call->v[0], *dy = &rows->call->v[1], *y = &rows->call->v[2];
    const int plain = rows->call->op == CF_OP_softmax_bw;
    for (int64_t r = from; r < to; r++) {
        const void *g = cf_row_read(rows, dy, r, 0), *v = cf_row_read(rows, y, r, 1);
        void *out = cf_row_target(rows, dx, r, 2);
        if (rows->compute == CF_F64) (plain ? f64_softmax_bw : f64_logsoftmax_bw)(g, v, rows->n, out);
        else (plain ? f32_softmax_bw : f32_logsoftmax_bw)(g, v, rows->n, out);
        cf_row_write(rows, dx, r, out);
    }
}

static cfx_status softmax(cf_worker *worker, const cf_call *call, cf_part part) {
    const int64_t elements = cf_view_numel(&call->v[0]);
    if (elements == 0) return CFX_OK;
    cf_rows rows = rows_of(call, &call->v[0]);
    const int team = cf_cpu_team(worker, elements * EXP_COST);
    CF_TRY(rows_begin(worker, &rows, 3, team, 0, NULL));
    CF_K(parallel)(team, elements / rows.n, 1, part, &rows);
    return CFX_OK;
}

cfx_status CF_K(softmax)(cf_worker *worker, const cf_call *call) { return softmax(worker, call, softmax_part); }
cfx_status CF_K(logsoftmax)(cf_worker *worker, const cf_call *call) { return softmax(worker, call, softmax_part); }
cfx_status CF_K(softmax_bw)(cf_worker *worker, const cf_call *call) { return softmax(worker, call, softmax_bw_part); }
cfx_status CF_K(logsoftmax_bw)(cf_worker *worker, const cf_call *call) {
    return softmax(worker, call, softmax_bw_part);
}

/* ---- cross entropy --------------------------------------------------------------------------------------- */

/* One number of a view of dtype float32 or float64 (or a half type) with at most one dimension. */
static double number_at(const cf_view *v, int64_t i) {
    cf_view one = *v;
    one.data = cf_at(v, v->ndim ? i * v->stride[0] : 0);
    one.ndim = 0;
    return CF_K(number)(&one);
}

static void number_put(const cf_view *v, int64_t i, double value) {
    const cf_view one = {
        .data = cf_at(v, v->ndim ? i * v->stride[0] : 0), .dtype = v->dtype, .ndim = 1, .shape = {1}, .stride = {1}};
    CF_K(write)(&one, CF_F64, 0, 1, &value);
}

static int64_t id_at(const cf_view *v, int64_t i) {
    const void *at = cf_at(v, i * v->stride[0]);
    return v->dtype == CFX_INT64   ? *(const int64_t *)at
           : v->dtype == CFX_INT32 ? *(const int32_t *)at
                                   : *(const uint8_t *)at;
}

/* Targets are ids [n], or (two-dimensional, floats) probabilities [n, c]. */
static int has_ids(const cf_view *target) { return !cf_is_float(target->dtype); }

static cfx_status check_ids(const cf_view *target, int64_t rows, int64_t classes, int64_t ignore) {
    for (int64_t r = 0; r < rows; r++) {
        const int64_t id = id_at(target, r);
        if ((id < 0 || id >= classes) && (id != ignore || ignore == INT64_MIN))
            return cf_fail(CFX_EFAULT, "id %lld at row %lld is outside 0 to %lld (%lld classes)", (long long)id,
                           (long long)r + 1, (long long)classes - 1, (long long)classes);
    }
    return CFX_OK;
}

typedef struct crossentropy {
    cf_rows rows;
    const cf_view *x, *target, *lse, *dx;
    int64_t ignore;
    double smoothing;
    double *losses;    /* forward: [rows] */
    const cf_view *dy; /* backward */
    double weight;
} crossentropy;

static int ignored(const crossentropy *c, int64_t r) {
    return has_ids(c->target) && c->ignore != INT64_MIN && id_at(c->target, r) == c->ignore;
}

static void crossentropy_part(void *context, int64_t from, int64_t to) {
    const crossentropy *c = context;
    const cf_rows *rows = &c->rows;
    for (int64_t r = from; r < to; r++) {
        double lse = 0;
        c->losses[r] = 0;
        if (!ignored(c, r)) {
            const void *x = cf_row_read(rows, c->x, r, 0);
            const int ids = has_ids(c->target);
            const void *p = ids ? NULL : cf_row_read(rows, c->target, r, 1);
            const int64_t id = ids ? id_at(c->target, r) : 0;
            c->losses[r] = rows->compute == CF_F64 ? f64_crossentropy(x, p, id, rows->n, c->smoothing, &lse)
                                                   : f32_crossentropy(x, p, id, rows->n, c->smoothing, &lse);
        }
        number_put(c->lse, r, lse);
    }
}

cfx_status CF_K(crossentropy)(cf_worker *worker, const cf_call *call) {
    const cf_crossentropy_params *params = cf_call_params(call);
    const cf_view *loss = &call->v[0], *x = cf_call_in(call, 0);
    const int64_t n = x->shape[0], classes = x->shape[1];
    crossentropy c = {.rows = rows_of(call, x),
                      .x = x,
                      .target = cf_call_in(call, 1),
                      .lse = &call->v[1],
                      .ignore = params->ignore,
                      .smoothing = params->smoothing};
    const int reduction = (int)params->reduction;
    if (has_ids(c.target)) CF_TRY(check_ids(c.target, n, classes, c.ignore));
    const int team = cf_cpu_team(worker, n * classes * EXP_COST);
    CF_TRY(rows_begin(worker, &c.rows, 2, team, (size_t)n * sizeof(double) + 64, (void **)&c.losses));
    CF_K(parallel)(team, n, 1, crossentropy_part, &c);

    double sum = 0;
    int64_t counted = 0;
    for (int64_t r = 0; r < n; r++) {
        if (reduction == CFX_NONE) number_put(loss, r, c.losses[r]);
        sum += c.losses[r];
        counted += !ignored(&c, r);
    }
    const double weight = reduction == CFX_MEAN ? 1 / (double)counted : 1;
    /* A mean over no rows is 0 * inf: NaN, as PyTorch has it. */
    if (reduction != CFX_NONE) number_put(loss, 0, reduction == CFX_MEAN ? sum * weight : sum);
    number_put(&call->v[2], 0, weight);
    return CFX_OK;
}

static void crossentropy_bw_part(void *context, int64_t from, int64_t to) {
    const crossentropy *c = context;
    const cf_rows *rows = &c->rows;
    for (int64_t r = from; r < to; r++) {
        void *dx = cf_row_target(rows, c->dx, r, 2);
        if (ignored(c, r)) {
            memset(dx, 0, (size_t)(rows->n * cf_compute_size(rows->compute)));
        } else {
            const void *x = cf_row_read(rows, c->x, r, 0);
            const int ids = has_ids(c->target);
            const void *p = ids ? NULL : cf_row_read(rows, c->target, r, 1);
            const int64_t id = ids ? id_at(c->target, r) : 0;
            const double lse = number_at(c->lse, r), g = number_at(c->dy, r) * c->weight;
            if (rows->compute == CF_F64) f64_crossentropy_bw(x, p, id, rows->n, c->smoothing, lse, g, dx);
            else f32_crossentropy_bw(x, p, id, rows->n, c->smoothing, lse, g, dx);
        }
        cf_row_write(rows, c->dx, r, dx);
    }
}

cfx_status CF_K(crossentropy_bw)(cf_worker *worker, const cf_call *call) {
    const cf_crossentropy_params *params = cf_call_params(call);
    const cf_view *x = cf_call_in(call, 1);
    const int64_t n = x->shape[0], classes = x->shape[1];
    crossentropy c = {.rows = rows_of(call, x),
                      .x = x,
                      .target = cf_call_in(call, 2),
                      .lse = cf_call_in(call, 3),
                      .dx = &call->v[0],
                      .ignore = params->ignore,
                      .smoothing = params->smoothing,
                      .dy = cf_call_in(call, 0)};
    c.weight = CF_K(number)(cf_call_in(call, 4));
    if (n * classes == 0) return CFX_OK;
    const int team = cf_cpu_team(worker, n * classes * EXP_COST);
    CF_TRY(rows_begin(worker, &c.rows, 3, team, 0, NULL));
    CF_K(parallel)(team, n, 1, crossentropy_bw_part, &c);
    return CFX_OK;
}
