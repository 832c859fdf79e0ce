/* matmul.c: matrix products and the dense layer; its backward is dense_bw.c.
 *
 * oneDNN makes the products of float32 and bfloat16; tiny ones are made here, where its overhead would cost more
 * than the work, and so are those of types that it does not have.  float16 goes through float32, uint8 and
 * bool through int32.
 */
#include <omp.h>

#include "cpu/kernels/matmul.h"

#include "cpu/dnnl_act.h"
#include "cpu/kernels/block.h"
#include "cpu/kernels/part.h"

/* The tile kernel keeps MR rows by two vectors in registers. */
#if defined(__AVX512F__)
enum { GEMM_BYTES = 64, GEMM_MR = 8 };
#elif defined(__AVX2__)
enum { GEMM_BYTES = 32, GEMM_MR = 6 };
#else
enum { GEMM_BYTES = 16, GEMM_MR = 4 };
#endif
/* A block of a [MC, KC] stays in the second-level cache, a panel of b [KC, NR] in the first. */
enum { GEMM_MC = 192, GEMM_NC = 512, GEMM_KC = 256 };

#define T float
#define GEMM(name) f32_##name
#include "cpu/kernels/gemm.h"
#define T double
#define GEMM(name) f64_##name
#include "cpu/kernels/gemm.h"
#define T uint32_t
#define GEMM(name) u32_##name
#include "cpu/kernels/gemm.h"
#define T uint64_t
#define GEMM(name) u64_##name
#include "cpu/kernels/gemm.h"

/* An activation that was not fused, in place. */
static cfx_status activate(cf_worker *worker, const cf_product *p) {
    const cf_view y = {.data = p->y, .dtype = p->dtype, .ndim = 2, .shape = {p->n, p->m}, .stride = {p->y_row, 1}};
    return cf_part_apply(worker, p->act, p->dtype, &y, 1, &y, (double[]){p->p0, p->p1});
}

/* ---- float32 by a direct loop ---------------------------------------------------------------------------- */

/* Up to this many multiplications a direct loop beats oneDNN, whose run costs 0.3 microseconds before its work. */
enum { DIRECT = 8192, CHUNK = 64, DOTS = 16 };

/* y [m] of one row = start + a [k] b [k, m]; b's rows are contiguous. */
static void direct_row(const cf_product *p, const float *a, const float *b, float *y) {
    const float *bias = p->bias;
    for (int64_t j = 0; j < p->m; j += CHUNK) {
        const int64_t n = cf_least(CHUNK, p->m - j);
        float sum[CHUNK];
        if (n == CHUNK) {
            for (int i = 0; i < CHUNK; i++) sum[i] = (bias ? bias[j + i] : 0) + (p->add ? y[j + i] : 0);
            for (int64_t l = 0; l < p->k; l++)
                for (int i = 0; i < CHUNK; i++) sum[i] += a[l * p->a_col] * b[l * p->b_row + j + i];
            for (int i = 0; i < CHUNK; i++) y[j + i] = sum[i];
        } else {
            for (int64_t i = 0; i < n; i++) sum[i] = (bias ? bias[j + i] : 0) + (p->add ? y[j + i] : 0);
            for (int64_t l = 0; l < p->k; l++)
                for (int64_t i = 0; i < n; i++) sum[i] += a[l * p->a_col] * b[l * p->b_row + j + i];
            for (int64_t i = 0; i < n; i++) y[j + i] = sum[i];
        }
    }
}

static float dot(const float *restrict a, const float *restrict b, int64_t k) {
    float lane[DOTS] = {0}, sum = 0;
    int64_t l = 0;
    for (; l + DOTS <= k; l += DOTS)
        for (int i = 0; i < DOTS; i++) lane[i] += a[l + i] * b[l + i];
    for (; l < k; l++) sum += a[l] * b[l];
    for (int width = DOTS / 2; width > 0; width /= 2)
        for (int i = 0; i < width; i++) lane[i] += lane[i + width];
    return sum + lane[0];
}

/* y = start + a b where rows of a and columns of b are contiguous. */
static void direct_dots(const cf_product *p, const float *a, const float *b, float *y) {
    const float *bias = p->bias;
    for (int64_t i = 0; i < p->n; i++)
        for (int64_t j = 0; j < p->m; j++) {
            float *at = &y[i * p->y_row + j];
            *at = (bias ? bias[j] : 0) + (p->add ? *at : 0) + dot(a + i * p->a_row, b + j * p->b_col, p->k);
        }
}

/* Whether this product is one for a direct loop; if so, it is made. */
static int direct(const cf_product *given) {
    cf_product p = *given;
    if (p.n * p.m * p.k > DIRECT) return 0;
    if (p.m == 1 && p.n > 1 && p.y_row == 1 && !p.bias) { /* y' = b' a' has long rows */
        const cf_product q = p;
        p.n = 1, p.m = q.n, p.y_row = q.n;
        p.a = q.b, p.a_row = q.b_col, p.a_col = q.b_row, p.a_batch = q.b_batch;
        p.b = q.a, p.b_row = q.a_col, p.b_col = q.a_row, p.b_batch = q.a_batch;
    }
    const int rows = p.b_col == 1, dots = p.a_col == 1 && p.b_row == 1;
    if (!rows && !dots) return 0;
    for (int64_t b = 0; b < p.batch; b++) {
        const float *at_a = (const float *)p.a + b * p.a_batch, *at_b = (const float *)p.b + b * p.b_batch;
        float *y = (float *)p.y + b * p.y_batch;
        if (dots && (!rows || p.k >= 4 * DOTS)) direct_dots(&p, at_a, at_b, y);
        else
            for (int64_t i = 0; i < p.n; i++) direct_row(&p, at_a + i * p.a_row, at_b, y + i * p.y_row);
    }
    return 1;
}

/* ---- float32 with few rows, by oneDNN --------------------------------------------------------------------- */

/* oneDNN 2.6 copies b into panels before it multiplies where b is column-major or has 512 columns or more, and
 * few rows of a do not pay for the copy.  Two detours avoid it (measured on Zen 5, one thread, 16 rows): a wide b
 * is taken in pieces (16x256x512: 25.6 -> 20.0 us), and with a column-major b, a dense layer's, y' = b' a' is
 * made and turned (16x512x256: 27.2 -> 21.0 us). */
enum {
    PIECE = 256,
    PIECES_ROWS = GEMM_BYTES == 64 ? 64 : 0, /* measured for AVX-512 alone */
    TURNED_ROWS = GEMM_BYTES == 64 ? 32 : 0,
    TURNED_LANES = 16, /* rows of x lie in the lanes of a vector: all of them must be used */
    LEAST_COLS = 128,
    LEAST_DEPTH = 64
};

static int is_turned(const cf_product *p) {
    return p->batch == 1 && p->n <= TURNED_ROWS && p->n % TURNED_LANES == 0 && p->b_row == 1 && p->b_col != 1 &&
           p->a_col == 1 && p->m >= LEAST_COLS && p->k >= LEAST_DEPTH;
}

static int is_wide(const cf_product *p) {
    return p->batch == 1 && p->n <= PIECES_ROWS && p->b_col == 1 && p->m >= 2 * PIECE && p->k >= 2 * LEAST_DEPTH;
}

/* y = start + t' for t [m, n]. */
static void turn(const cf_product *p, const float *restrict t) {
    const float *bias = p->bias;
    for (int64_t i = 0; i < p->n; i++) {
        float *restrict y = (float *)p->y + i * p->y_row;
        if (!p->add && bias)
            for (int64_t j = 0; j < p->m; j++) y[j] = t[j * p->n + i] + bias[j];
        else if (!p->add)
            for (int64_t j = 0; j < p->m; j++) y[j] = t[j * p->n + i];
        else
            for (int64_t j = 0; j < p->m; j++) y[j] += t[j * p->n + i] + (bias ? bias[j] : 0);
    }
}

static cfx_status few_rows(cf_worker *worker, const cf_product *p, float *room) {
    cf_product q = *p;
    if (is_turned(p)) {
        q = (cf_product){.dtype = p->dtype,
                         .batch = 1,
                         .n = p->m,
                         .m = p->n,
                         .k = p->k,
                         .a = p->b,
                         .b = p->a,
                         .y = room,
                         .a_row = p->b_col,
                         .a_col = p->b_row,
                         .b_row = p->a_col,
                         .b_col = p->a_row,
                         .y_row = p->n,
                         .act = -1};
        CF_TRY(cf_dnnl_product(worker, &q));
        turn(p, room);
        return p->act >= 0 ? activate(worker, p) : CFX_OK;
    }
    for (int64_t j = 0; j < p->m; j += q.m) {
        q.m = p->m - j < 2 * PIECE ? p->m - j : PIECE;
        q.b = (const float *)p->b + j;
        q.y = (float *)p->y + j;
        q.bias = p->bias ? (const float *)p->bias + j : NULL;
        CF_TRY(cf_dnnl_product(worker, &q));
    }
    return CFX_OK;
}

/* ---- one product of any type ----------------------------------------------------------------------------- */

size_t CF_K(product_room)(const cf_worker *worker, const cf_product *p) {
    int64_t bytes;
    switch (p->dtype) {
    case CFX_FLOAT32: bytes = 4 * f32_room(p); break;
    case CFX_INT32: bytes = 4 * u32_room(p); break;
    case CFX_FLOAT64: bytes = 8 * f64_room(p); break;
    default: bytes = 8 * u64_room(p);
    }
    return (size_t)bytes * (size_t)worker->threads;
}

void CF_K(product)(cf_worker *worker, const cf_product *given, void *room) {
    cf_product p = *given;
    if (p.bias) { /* y starts as the bias in every row (batch is 1) */
        const size_t bytes = (size_t)(p.m * cf_dtype_size(p.dtype));
        for (int64_t i = 0; i < p.n; i++)
            memcpy((char *)p.y + (size_t)(i * p.y_row * cf_dtype_size(p.dtype)), p.bias, bytes);
        p.add = 1;
    }
    switch (p.dtype) {
    case CFX_FLOAT32: f32_product(worker, &p, room); break;
    case CFX_INT32: u32_product(worker, &p, room); break;
    case CFX_FLOAT64: f64_product(worker, &p, room); break;
    default: u64_product(worker, &p, room);
    }
}

/* CFX_ESTATE only for bfloat16, which this machine's oneDNN may not have. */
static cfx_status one_product(cf_worker *worker, const cf_product *given, void *room) {
    cf_product p = *given;
    if (p.dtype == CFX_FLOAT32 && direct(&p)) return p.act >= 0 ? activate(worker, &p) : CFX_OK;
    if (p.dtype == CFX_FLOAT32 || p.dtype == CFX_BFLOAT16) {
        if (p.act >= 0 && !cf_dnnl_fuses(p.act, p.p0)) p.act = -1;
        const int few = p.dtype == CFX_FLOAT32 && (is_turned(&p) || is_wide(&p));
        const cfx_status status = few ? few_rows(worker, &p, room) : cf_dnnl_product(worker, &p);
        if (status == CFX_OK && p.act != given->act) return activate(worker, given);
        if (status != CFX_ESTATE || p.dtype == CFX_BFLOAT16) return status;
        p.act = given->act;
    }
    CF_K(product)(worker, &p, room);
    return p.act >= 0 ? activate(worker, &p) : CFX_OK;
}

/* ---- from views to products ------------------------------------------------------------------------------ */

/* The operands of a product: y <- act(a b + bias), computed in `dtype`. */
typedef struct task {
    cf_view y, a, b;     /* y [.., n, m], a [.., n, k], b [.., k, m] of one rank */
    const cf_view *bias; /* [m] or NULL; then there is no batch */
    int dtype, add, act;
    double p0, p1;
} task;

static int64_t row_count(const cf_view *v) { return v->shape[v->ndim - 2]; }
static int64_t col_count(const cf_view *v) { return v->shape[v->ndim - 1]; }
static int64_t row_of(const cf_view *v) { return v->stride[v->ndim - 2]; }
static int64_t col_of(const cf_view *v) { return v->stride[v->ndim - 1]; }

/* A stride over a single element is set to what a packed matrix has. */
static void tidy(cf_view *v) {
    const int r = v->ndim - 2, c = v->ndim - 1;
    if (v->shape[c] == 1) v->stride[c] = 1;
    if (v->shape[r] == 1) v->stride[r] = v->stride[c] == 1 ? v->shape[c] : 1;
}

/* Row-major, or (where `either`) column-major, without overlap. */
static int is_plain(const cf_view *v, int dtype, int either) {
    if (v->dtype != dtype) return 0;
    if (col_of(v) == 1 && (row_of(v) >= col_count(v) || row_count(v) == 1)) return 1;
    return either && row_of(v) == 1 && (col_of(v) >= row_count(v) || col_count(v) == 1);
}

/* v with batch dimensions that repeat their elements kept once. */
static cf_view once(const cf_view *v) {
    cf_view out = *v;
    for (int d = 0; d < v->ndim - 2; d++)
        if (v->stride[d] == 0) out.shape[d] = 1;
    return out;
}

/* v as a view at `data` that is packed but for what is repeated. */
static cf_view packed(const cf_view *v, int dtype, void *data) {
    cf_view out = once(v);
    out.dtype = dtype;
    out.data = data;
    cf_dims_pack(out.ndim, out.shape, out.stride);
    cf_view_expand(&out, v);
    return out;
}

static size_t packed_bytes(const cf_view *v, int dtype) {
    const cf_view kept = once(v);
    return (size_t)cf_round_up(cf_view_numel(&kept) * cf_dtype_size(dtype), 64);
}

static cfx_status copy_once(cf_worker *worker, const cf_view *y, const cf_view *x) {
    const cf_view to = once(y), from = once(x);
    return cf_part_copy(worker, &to, &from);
}

/* Views in plain order -> products. */
static cfx_status run_plain(cf_worker *worker, const task *t, const void *bias, void *room) {
    cf_product p = {.dtype = t->dtype,
                    .batch = 1,
                    .n = row_count(&t->y),
                    .m = col_count(&t->y),
                    .k = col_count(&t->a),
                    .bias = bias,
                    .a_row = row_of(&t->a),
                    .a_col = col_of(&t->a),
                    .b_row = row_of(&t->b),
                    .b_col = col_of(&t->b),
                    .y_row = row_of(&t->y),
                    .add = t->add,
                    .act = t->act,
                    .p0 = t->p0,
                    .p1 = t->p1};
    cf_view y = t->y, a = t->a, b = t->b; /* of which the batch dimensions count from here on */
    int64_t *const strides[] = {y.stride, a.stride, b.stride};
    const int last = cf_dims_collapse(y.ndim - 2, y.shape, 3, strides) - 1;
    if (last >= 0) {
        p.batch = y.shape[last];
        p.a_batch = a.stride[last], p.b_batch = b.stride[last], p.y_batch = y.stride[last];
        if (p.b_batch == 0 && p.a_batch == p.n * p.a_row && p.y_batch == p.n * p.y_row && p.a_col == 1) {
            p.n *= p.batch; /* one b for all: they are rows of one product */
            p.batch = 1;
        }
    }
    const int64_t size = cf_dtype_size(t->dtype), outer = cf_shape_numel(last, y.shape);
    for (int64_t i = 0; i < outer; i++) {
        p.y = (char *)y.data + cf_dims_offset(last, y.shape, y.stride, i) * size;
        p.a = (char *)a.data + cf_dims_offset(last, y.shape, a.stride, i) * size;
        p.b = (char *)b.data + cf_dims_offset(last, y.shape, b.stride, i) * size;
        CF_TRY(one_product(worker, &p, room));
    }
    return CFX_OK;
}

/* Copies what is not in plain order, or of another type, into scratch; runs; copies the result out. */
static cfx_status run(cf_worker *worker, const task *given) {
    task t = *given;
    tidy(&t.y), tidy(&t.a), tidy(&t.b);
    const int copy_a = !is_plain(&t.a, t.dtype, 1), copy_b = !is_plain(&t.b, t.dtype, 1);
    const int copy_y = !is_plain(&t.y, t.dtype, 0);
    const int copy_bias = t.bias && (t.bias->dtype != t.dtype || (t.bias->stride[0] != 1 && t.bias->shape[0] > 1));
    const int panels = t.dtype != CFX_BFLOAT16;
    const cf_product shape = {.dtype = t.dtype,
                              .n = cf_view_numel(&t.y) / col_count(&t.y),
                              .m = col_count(&t.y),
                              .k = col_count(&t.a)}; /* n: run_plain may take all rows of a batch at once */
    const size_t a_bytes = copy_a ? packed_bytes(&t.a, t.dtype) : 0, b_bytes = copy_b ? packed_bytes(&t.b, t.dtype) : 0;
    const size_t y_bytes = copy_y ? packed_bytes(&t.y, t.dtype) : 0;
    const size_t bias_bytes = copy_bias ? (size_t)cf_round_up(shape.m * cf_dtype_size(t.dtype), 64) : 0;
    const size_t turned = shape.n <= TURNED_ROWS ? (size_t)(4 * shape.n * shape.m) : 0; /* few_rows' */
    const size_t room = panels ? CF_K(product_room)(worker, &shape) : 0;
    const size_t all = a_bytes + b_bytes + y_bytes + bias_bytes + (turned > room ? turned : room);
    char *at = all ? cf_worker_scratch(worker, all) : NULL;
    if (all && !at) return cf_fail(CFX_EMEMORY, "no memory for a product: %zu bytes", all);

    if (copy_a) {
        t.a = packed(&given->a, t.dtype, at);
        CF_TRY(copy_once(worker, &t.a, &given->a));
        tidy(&t.a);
    }
    if (copy_b) {
        t.b = packed(&given->b, t.dtype, at + a_bytes);
        CF_TRY(copy_once(worker, &t.b, &given->b));
        tidy(&t.b);
    }
    if (copy_y) {
        t.y = packed(&given->y, t.dtype, at + a_bytes + b_bytes);
        if (t.add) CF_TRY(cf_part_copy(worker, &t.y, &given->y));
    }
    const void *bias = t.bias ? t.bias->data : NULL;
    if (copy_bias) {
        cf_view to = *t.bias;
        to.data = at + a_bytes + b_bytes + y_bytes;
        to.dtype = t.dtype;
        to.stride[0] = 1;
        CF_TRY(cf_part_copy(worker, &to, t.bias));
        bias = to.data;
    }
    CF_TRY(run_plain(worker, &t, bias, at + a_bytes + b_bytes + y_bytes + bias_bytes));
    return copy_y ? cf_part_copy(worker, &given->y, &t.y) : CFX_OK;
}

/* The type that products of `dtype` are made in at last. */
static int wide(int dtype) {
    if (dtype == CFX_FLOAT16 || dtype == CFX_BFLOAT16) return CFX_FLOAT32;
    return dtype == CFX_UINT8 || dtype == CFX_BOOL ? CFX_INT32 : dtype;
}

static cfx_status multiply(cf_worker *worker, task *t) {
    if (cf_view_numel(&t->y) == 0) return CFX_OK;
    if (t->dtype == CFX_BFLOAT16) {
        const cfx_status status = run(worker, t);
        if (status != CFX_ESTATE) return status;
    }
    t->dtype = wide(t->dtype);
    return run(worker, t);
}

cfx_status CF_K(matmul)(cf_worker *worker, const cf_call *call) {
    task t = {.y = call->v[0],
              .a = *cf_call_in(call, 0),
              .b = *cf_call_in(call, 1),
              .dtype = call->dtype,
              .add = CF_PARAMS(call, matmul)->add != 0,
              .act = -1};
    if (col_count(&t.a) == 0) /* an empty sum */
        return t.add ? CFX_OK : cf_part_zero(worker, &t.y);
    /* A batch dimension of size 1 is repeated where y has more. */
    const int batch = t.y.ndim - 2;
    cf_dims_expand(batch, t.a.shape, t.a.stride, batch, t.y.shape);
    cf_dims_expand(batch, t.b.shape, t.b.stride, batch, t.y.shape);
    return multiply(worker, &t);
}

cfx_status CF_K(dense)(cf_worker *worker, const cf_call *call) {
    const cf_dense_params *params = cf_call_params(call);
    task t = {.y = call->v[0],
              .a = *cf_call_in(call, 0),
              .b = *cf_call_in(call, 1),
              .dtype = call->dtype,
              .bias = call->nin > 2 ? cf_call_in(call, 2) : NULL,
              .act = params->act,
              .p0 = params->p[0],
              .p1 = params->p[1]};
    cf_dims_pick(2, (int32_t[]){1, 0}, t.b.shape, t.b.stride);
    if (col_count(&t.a) == 0) { /* an empty sum and the bias */
        if (t.bias) {
            cf_view bias = *t.bias;
            cf_view_expand(&bias, &t.y);
            CF_TRY(cf_part_copy(worker, &t.y, &bias));
        } else {
            CF_TRY(cf_part_zero(worker, &t.y));
        }
        return t.act < 0 ? CFX_OK : cf_part_apply(worker, t.act, call->dtype, &t.y, 1, &t.y, (double[]){t.p0, t.p1});
    }
    return multiply(worker, &t);
}
