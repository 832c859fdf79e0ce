/* norm.c: layer normalisation and dropout. */
#include "cpu/kernels/maths.h"
#include "cpu/kernels/philox.h"
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

/* ---- layer normalisation --------------------------------------------------------------------------------- */

/* Sums over rows lie on a grid of at most MOST_BLOCKS blocks of rows, which is of the shape alone. */
enum { MOST_BLOCKS = 64, LEAST_ROWS = 16 };

typedef struct norm {
    cf_rows rows;
    const void *gamma, *beta; /* [n] of the compute type, or NULL */
    double eps;
    int64_t count, block_rows; /* rows; rows of a block */
    const cf_view *dx, *dy, *x, *mean, *rstd;
    char *sums; /* [blocks][2][n], or NULL */
} norm;

static double number_at(const cf_view *v, int64_t i) {
    cf_view one = *v;
    one.data = cf_at(v, i * v->stride[0]);
    one.ndim = 0;
    return CF_K(number)(&one);
}

static void number_put(const cf_view *v, int64_t i, double value) {
    const cf_view one = {.data = cf_at(v, i * v->stride[0]), .dtype = v->dtype, .ndim = 1, .shape = {1}, .stride = {1}};
    CF_K(write)(&one, CF_F64, 0, 1, &value);
}

/* Slots for the team, and after them gamma, beta and the sums. */
static cfx_status norm_begin(cf_worker *worker, norm *s, int team, const cf_view *gamma, const cf_view *beta,
                             int64_t blocks) {
    cf_rows *rows = &s->rows;
    rows->buffer_count = 4;
    rows->buffer_bytes = cf_rows_buffer_bytes(rows->compute, rows->n);
    const int64_t buffers = (int64_t)team * rows->buffer_count;
    rows->buffers = cf_worker_scratch(worker, (size_t)((buffers + 2 + 2 * blocks) * rows->buffer_bytes));
    if (!rows->buffers) return cf_fail(CFX_EMEMORY, "no memory for rows of %lld elements", (long long)rows->n);
    char *at = rows->buffers + buffers * rows->buffer_bytes;
    if (gamma) s->gamma = CF_K(read)(gamma, rows->compute, 0, rows->n, at);
    if (beta) s->beta = CF_K(read)(beta, rows->compute, 0, rows->n, at + rows->buffer_bytes);
    if (blocks) s->sums = at + 2 * rows->buffer_bytes;
    return CFX_OK;
}

static void layernorm_part(void *context, int64_t from, int64_t to) {
    const norm *s = context;
    const cf_rows *rows = &s->rows;
    const cf_view *y = &rows->call->v[0];
    for (int64_t r = from; r < to; r++) {
        const void *x = cf_row_read(rows, s->x, r, 0);
        void *out = cf_row_target(rows, y, r, 1);
        double mean, rstd;
        if (rows->compute == CF_F64) f64_layernorm(x, s->gamma, s->beta, rows->n, s->eps, out, &mean, &rstd);
        else f32_layernorm(x, s->gamma, s->beta, rows->n, s->eps, out, &mean, &rstd);
        cf_row_write(rows, y, r, out);
        number_put(s->mean, r, mean);
        number_put(s->rstd, r, rstd);
    }
}

cfx_status CF_K(layernorm)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    norm s = {.rows = {.call = call, .compute = cf_compute_of(call->dtype), .n = x->shape[1]},
              .eps = CF_PARAMS(call, layernorm)->eps,
              .count = x->shape[0],
              .x = x,
              .mean = &call->v[1],
              .rstd = &call->v[2]};
    if (s.rows.n == 0) { /* a mean over nothing */
        for (int64_t r = 0; r < s.count; r++) {
            number_put(s.mean, r, NAN);
            number_put(s.rstd, r, NAN);
        }
    }
    if (s.count == 0 || s.rows.n == 0) return CFX_OK;
    const int team = cf_cpu_team(worker, s.count * s.rows.n * 2), affine = call->nin > 1;
    CF_TRY(norm_begin(worker, &s, team, affine ? cf_call_in(call, 1) : NULL, affine ? cf_call_in(call, 2) : NULL, 0));
    CF_K(parallel)(team, s.count, 1, layernorm_part, &s);
    return CFX_OK;
}

/* Items are blocks of rows. */
static void layernorm_bw_part(void *context, int64_t from, int64_t to) {
    const norm *s = context;
    const cf_rows *rows = &s->rows;
    for (int64_t b = from; b < to; b++) {
        char *dgamma = s->sums ? s->sums + 2 * b * rows->buffer_bytes : NULL;
        char *dbeta = s->sums ? dgamma + rows->buffer_bytes : NULL;
        if (s->sums) memset(dgamma, 0, (size_t)(2 * rows->buffer_bytes));
        for (int64_t r = b * s->block_rows; r < cf_least(s->count, (b + 1) * s->block_rows); r++) {
            const void *dy = cf_row_read(rows, s->dy, r, 0), *x = cf_row_read(rows, s->x, r, 1);
            void *dx = cf_row_target(rows, s->dx, r, 2), *xhat = cf_rows_buffer(rows, 3);
            const double mean = number_at(s->mean, r), rstd = number_at(s->rstd, r);
            if (rows->compute == CF_F64)
                f64_layernorm_bw(dy, x, s->gamma, mean, rstd, rows->n, xhat, dx, (double *)dgamma, (double *)dbeta);
            else f32_layernorm_bw(dy, x, s->gamma, mean, rstd, rows->n, xhat, dx, (float *)dgamma, (float *)dbeta);
            cf_row_write(rows, s->dx, r, dx);
        }
    }
}

/* Joins the blocks' sums in order into the first, element range [from, to) of both. */
static void join_part(void *context, int64_t from, int64_t to) {
    const norm *s = context;
    const int64_t blocks = (s->count + s->block_rows - 1) / s->block_rows, bytes = s->rows.buffer_bytes;
    for (int64_t b = 1; b < blocks; b++)
        for (int k = 0; k < 2; k++) {
            char *y = s->sums + k * bytes, *x = s->sums + (2 * b + k) * bytes;
            if (s->rows.compute == CF_F64)
                for (int64_t i = from; i < to; i++) ((double *)y)[i] += ((double *)x)[i];
            else
                for (int64_t i = from; i < to; i++) ((float *)y)[i] += ((float *)x)[i];
        }
}

cfx_status CF_K(layernorm_bw)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 1);
    norm s = {.rows = {.call = call, .compute = cf_compute_of(call->dtype), .n = x->shape[1]},
              .count = x->shape[0],
              .dx = &call->v[0],
              .dy = cf_call_in(call, 0),
              .x = x,
              .mean = cf_call_in(call, 2),
              .rstd = cf_call_in(call, 3)};
    const int64_t n = s.rows.n;
    const int sums = call->nout > 1;
    if (n == 0) return CFX_OK;
    s.block_rows = cf_most(LEAST_ROWS, (s.count + MOST_BLOCKS - 1) / MOST_BLOCKS);
    const int64_t blocks = (s.count + s.block_rows - 1) / s.block_rows;
    const int team = cf_cpu_team(worker, s.count * n * 2);
    CF_TRY(norm_begin(worker, &s, team, CF_PARAMS(call, layernorm_bw)->affine ? cf_call_in(call, 4) : NULL, NULL,
                      sums ? cf_most(blocks, 1) : 0));
    if (sums && blocks == 0) memset(s.sums, 0, (size_t)(2 * s.rows.buffer_bytes));
    CF_K(parallel)(team, blocks, 1, layernorm_bw_part, &s);
    if (!sums) return CFX_OK;
    CF_K(parallel)(cf_cpu_team(worker, blocks * n), n, 16, join_part, &s);
    CF_K(write)(&call->v[1], s.rows.compute, 0, n, s.sums);
    CF_K(write)(&call->v[2], s.rows.compute, 0, n, s.sums + s.rows.buffer_bytes);
    return CFX_OK;
}

/* ---- dropout --------------------------------------------------------------------------------------------- */

typedef struct dropout {
    cf_view y, x;
    cf_compute compute;
    uint64_t seed, stream, block; /* of the first element */
    uint32_t least;               /* 24-bit words from here on are kept */
    double scale;
} dropout;

static void dropout_part(void *context, int64_t from, int64_t to) {
    const dropout *d = context;
    cf_block_memory in, out;
    uint32_t word[CF_BLOCK];                        /* a multiple of the group of words */
    for (int64_t e = from; e < to; e += CF_BLOCK) { /* parts start at multiples of CF_BLOCK */
        const int64_t n = cf_least(CF_BLOCK, to - e);
        cf_philox_words(d->seed, d->stream, d->block + (uint64_t)e / 4, n, word);
        const void *x = CF_K(read)(&d->x, d->compute, e, n, &in);
        void *y = cf_direct(&d->y, d->compute) ? cf_at(&d->y, e) : (void *)&out;
        if (d->compute == CF_F64) {
            const double *a = x;
            double *b = y;
            CF_VECTOR
            for (int64_t i = 0; i < n; i++) b[i] = (word[i] >> 8) >= d->least ? a[i] * d->scale : 0;
        } else {
            const float *a = x, scale = (float)d->scale;
            float *b = y;
            CF_VECTOR
            for (int64_t i = 0; i < n; i++) b[i] = (word[i] >> 8) >= d->least ? a[i] * scale : 0;
        }
        CF_K(write)(&d->y, d->compute, e, n, y);
    }
}

cfx_status CF_K(dropout)(cf_worker *worker, const cf_call *call) {
    const cf_dropout_params *params = cf_call_params(call);
    const double p = params->p;
    const int64_t n = cf_view_numel(&call->v[0]);
    dropout d = {.y = call->v[0],
                 .x = *cf_call_in(call, 0),
                 .compute = cf_compute_of(call->dtype),
                 .seed = params->at.seed,
                 .stream = params->at.stream,
                 .block = params->at.position / 4};
    if (n == 0) return CFX_OK;
    /* A uniform number w 2^-24 is kept if it is at least p. */
    d.least = (uint32_t)ceil(p * 0x1p24);
    d.scale = p < 1 ? 1 / (1 - p) : 0;
    cf_view_flatten(&d.y);
    cf_view_flatten(&d.x);
    CF_K(parallel)(cf_cpu_team(worker, n * 4), n, CF_BLOCK, dropout_part, &d);
    return CFX_OK;
}
