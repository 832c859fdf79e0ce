/* make.c: tensors from numbers, copies between views, and the small rows that training keeps on the device. */
#include "cpu/kernels/make.h"

#include "cpu/kernels/block.h"

/* ---- copies of bytes -------------------------------------------------------------------------------------- */

/* Copies elements of one size: [rows, cols] with strides in elements. */
typedef void (*mover)(char *y, const char *x, int64_t rows, int64_t cols, int64_t y_row, int64_t y_col, int64_t x_row,
                      int64_t x_col);

#define MOVER(T)                                                                                               \
    static void move_##T(char *to, const char *from, int64_t rows, int64_t cols, int64_t y_row, int64_t y_col, \
                         int64_t x_row, int64_t x_col) {                                                       \
        for (int64_t r = 0; r < rows; r++) {                                                                   \
            T *restrict y = (T *)to + r * y_row;                                                               \
            const T *restrict x = (const T *)from + r * x_row;                                                 \
            if (y_col == 1 && x_col == 1) {                                                                    \
                for (int64_t c = 0; c < cols; c++) y[c] = x[c];                                                \
            } else if (y_col == 1 && x_col == 0) {                                                             \
                const T value = *x;                                                                            \
                for (int64_t c = 0; c < cols; c++) y[c] = value;                                               \
            } else {                                                                                           \
                for (int64_t c = 0; c < cols; c++) y[c * y_col] = x[c * x_col];                                \
            }                                                                                                  \
        }                                                                                                      \
    }
MOVER(uint8_t)
MOVER(uint16_t)
MOVER(uint32_t)
MOVER(uint64_t)

static mover mover_of(int64_t size) {
    return size == 1 ? move_uint8_t : size == 2 ? move_uint16_t : size == 4 ? move_uint32_t : move_uint64_t;
}

/* A transpose is copied by squares, through a buffer: so each side is touched by whole cache lines, which matters
 * most where a power of two as stride puts all of a column into one set of the cache. */
enum { SQUARE = 32 };

/* y <- x of one dtype: sheets of [rows, cols], which are the last two dimensions. */
typedef struct job {
    mover move;
    cf_view y, x;
    int64_t size, rows, cols;
    int squares;
} job;

static void sheet(const job *j, char *y, const char *x, int64_t first, int64_t end) {
    const int d = j->y.ndim - 1;
    const int64_t yr = j->y.stride[d - 1], yc = j->y.stride[d], xr = j->x.stride[d - 1], xc = j->x.stride[d];
    if (!j->squares) {
        j->move(y + first * yr * j->size, x + first * xr * j->size, end - first, j->cols, yr, yc, xr, xc);
        return;
    }
    uint64_t square[SQUARE * SQUARE]; /* [cols, rows] */
    for (int64_t r = first; r < end; r += SQUARE)
        for (int64_t c = 0; c < j->cols; c += SQUARE) {
            const int64_t rows = cf_least(SQUARE, end - r), cols = cf_least(SQUARE, j->cols - c);
            j->move((char *)square, x + (r * xr + c * xc) * j->size, cols, rows, SQUARE, 1, xc, xr);
            j->move(y + (r * yr + c * yc) * j->size, (const char *)square, rows, cols, yr, yc, 1, SQUARE);
        }
}

/* Items are rows of all sheets. */
static void copy_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    while (from < to) {
        const int64_t row = from % j->rows, end = cf_least(j->rows, row + to - from);
        int64_t index = from / j->rows, y = 0, x = 0;
        for (int d = j->y.ndim - 3; d >= 0; d--) {
            const int64_t at = index % j->y.shape[d];
            index /= j->y.shape[d];
            y += at * j->y.stride[d];
            x += at * j->x.stride[d];
        }
        sheet(j, (char *)j->y.data + y * j->size, (const char *)j->x.data + x * j->size, row, end);
        from += end - row;
    }
}

/* Moves dimension d to the place before the last: the order of elements does not matter to a copy. */
static void swap_up(cf_view *v, int d) {
    const int up = v->ndim - 2;
    const int64_t shape = v->shape[d], stride = v->stride[d];
    v->shape[d] = v->shape[up];
    v->stride[d] = v->stride[up];
    v->shape[up] = shape;
    v->stride[up] = stride;
}

typedef struct bytes_job {
    char *y;
    const char *x;
} bytes_job;

static void bytes_part(void *context, int64_t from, int64_t to) {
    const bytes_job *j = context;
    if (j->x) memcpy(j->y + from, j->x + from, (size_t)(to - from));
    else memset(j->y + from, 0, (size_t)(to - from));
}

static void copy_bytes(cf_worker *worker, void *y, const void *x, int64_t bytes) {
    bytes_job j = {y, x};
    CF_K(parallel)(cf_cpu_team(worker, bytes / 4), bytes, 4096, bytes_part, &j);
}

/* y <- x of one dtype and shape. */
static void copy_same(cf_worker *worker, cf_view y, cf_view x) {
    const int64_t n = cf_view_numel(&y), size = cf_dtype_size(y.dtype);
    cf_view v[2] = {y, x};
    cf_views_sort(v, 2);
    cf_views_collapse(v, 2);
    if (v[0].ndim == 0 || (v[0].ndim == 1 && v[0].stride[0] == 1 && v[1].stride[0] == 1)) {
        copy_bytes(worker, y.data, x.data, n * size);
        return;
    }
    job j = {.move = mover_of(size), .size = size};
    if (v[0].ndim == 1) { /* cut into rows, so that a team can share it; the rest follows */
        const int64_t cols = 4096, rows = v[0].shape[0] / cols;
        for (int k = 0; k < 2; k++) {
            v[k].stride[1] = v[k].stride[0];
            v[k].stride[0] *= cols;
            v[k].shape[0] = rows;
            v[k].shape[1] = cols;
            v[k].ndim = 2;
        }
        const int64_t done = rows * cols, ys = v[0].stride[1], xs = v[1].stride[1];
        j.move((char *)y.data + done * ys * size, (const char *)x.data + done * xs * size, 1, n - done, 0, ys, 0, xs);
    }
    const int last = v[0].ndim - 1;
    if (llabs(v[1].stride[last]) > 1) {
        int least = last;
        for (int d = 0; d < last; d++)
            if (v[1].stride[d] && llabs(v[1].stride[d]) < llabs(v[1].stride[least])) least = d;
        if (least < last) {
            swap_up(&v[0], least);
            swap_up(&v[1], least);
            j.squares = 1;
        }
    }
    j.y = v[0], j.x = v[1];
    j.rows = v[0].shape[last - 1];
    j.cols = v[0].shape[last];
    if (!j.rows) return;
    CF_K(parallel)(cf_cpu_team(worker, n), cf_view_numel(&j.y) / j.cols, j.squares ? SQUARE : 1, copy_part, &j);
}

/* ---- copy and fill ---------------------------------------------------------------------------------------- */

typedef struct convert_job {
    cf_compute compute;
    cf_view y, x;
} convert_job;

static void convert_part(void *context, int64_t from, int64_t to) {
    const convert_job *j = context;
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        CF_K(write)(&j->y, j->compute, from, n, CF_K(read)(&j->x, j->compute, from, n, &temp));
    }
}

cfx_status CF_K(copy)(cf_worker *worker, const cf_call *call) {
    cf_view v[2] = {call->v[0], *cf_call_in(call, 0)};
    const int64_t n = cf_view_numel(&v[0]);
    if (!n) return CFX_OK;
    cf_view_expand(&v[1], &v[0]);
    const int a = v[0].dtype, b = v[1].dtype;
    if (a == b) {
        copy_same(worker, v[0], v[1]);
        return CFX_OK;
    }
    /* Through the widest of the three that keeps the value: an integer is rounded to a float once. */
    convert_job j = {.compute = a == CFX_FLOAT64 || b == CFX_FLOAT64 ? CF_F64
                                : cf_is_float(a) || cf_is_float(b)   ? CF_F32
                                                                     : CF_I64};
    cf_views_sort(v, 2);
    cf_view_flatten(&v[0]);
    cf_view_flatten(&v[1]);
    j.y = v[0], j.x = v[1];
    CF_K(parallel)(cf_cpu_team(worker, n), n, CF_BLOCK, convert_part, &j);
    return CFX_OK;
}

/* A fill is a copy of one element that is repeated. */
cfx_status CF_K(fill)(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0];
    uint64_t memory = 0;
    cf_view x = {.data = &memory, .dtype = y->dtype, .ndim = 1, .shape = {1}, .stride = {1}};
    if (!cf_view_numel(y)) return CFX_OK;
    const cf_fill_params *params = cf_call_params(call);
    if (y->dtype == CFX_INT64 && params->is_exact) memcpy(&memory, &params->exact, sizeof memory);
    else CF_K(write)(&x, CF_F64, 0, 1, &params->value);
    if (!memory && cf_view_packed(y)) {
        copy_bytes(worker, y->data, NULL, cf_view_numel(y) * cf_dtype_size(y->dtype));
        return CFX_OK;
    }
    cf_view_expand(&x, y);
    copy_same(worker, *y, x);
    return CFX_OK;
}

cfx_status CF_K(zero_ranges)(cf_worker *worker, const cf_call *call) {
    const cf_ranges_params *params = cf_call_params(call);
    for (int64_t k = 0; k < params->n; k++)
        copy_bytes(worker, (char *)call->v[0].data + params->range[k].from, NULL, params->range[k].bytes);
    return CFX_OK;
}

/* ---- arange, tri, onehot ---------------------------------------------------------------------------------- */

typedef struct range_job {
    cf_view y;
    double start, step;
} range_job;

static void range_part(void *context, int64_t from, int64_t to) {
    const range_job *j = context;
    cf_block_memory block;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        for (int64_t k = 0; k < n; k++) block.f64[k] = fma((double)(from + k), j->step, j->start);
        CF_K(write)(&j->y, CF_F64, from, n, &block);
    }
}

cfx_status CF_K(arange)(cf_worker *worker, const cf_call *call) {
    range_job j = {call->v[0], CF_PARAMS(call, arange)->start, CF_PARAMS(call, arange)->step};
    const int64_t n = cf_view_numel(&j.y);
    cf_view_flatten(&j.y);
    CF_K(parallel)(cf_cpu_team(worker, n), n, CF_BLOCK, range_part, &j);
    return CFX_OK;
}

typedef struct tri_job {
    cf_view y, x;
    mover move;
    int64_t size, rows, cols, diagonal;
    int upper;
} tri_job;

/* Items are rows of all matrices: part of each is kept, the rest zeroed. */
static void tri_part(void *context, int64_t from, int64_t to) {
    const tri_job *j = context;
    static const uint64_t zero = 0;
    const int last = j->y.ndim - 1;
    const int64_t ys = j->y.stride[last], xs = j->x.stride[last];
    for (int64_t item = from; item < to; item++) {
        int64_t index = item, y_at = 0, x_at = 0;
        for (int d = last - 1; d >= 0; d--) {
            const int64_t at = index % j->y.shape[d];
            index /= j->y.shape[d];
            y_at += at * j->y.stride[d];
            x_at += at * j->x.stride[d];
        }
        char *y = (char *)j->y.data + y_at * j->size;
        const char *x = (const char *)j->x.data + x_at * j->size;
        /* Kept: columns [first, end). */
        const int64_t edge = item % j->rows + j->diagonal + (j->upper ? 0 : 1);
        const int64_t cut = cf_most(0, cf_least(edge, j->cols));
        const int64_t first = j->upper ? cut : 0, end = j->upper ? j->cols : cut;
        j->move(y, (const char *)&zero, 1, first, 0, ys, 0, 0);
        if (y != x) j->move(y + first * ys * j->size, x + first * xs * j->size, 1, end - first, 0, ys, 0, xs);
        j->move(y + end * ys * j->size, (const char *)&zero, 1, j->cols - end, 0, ys, 0, 0);
    }
}

cfx_status CF_K(tri)(cf_worker *worker, const cf_call *call) {
    const cf_tri_params *params = cf_call_params(call);
    tri_job j = {.y = call->v[0], .x = *cf_call_in(call, 0), .upper = params->upper != 0, .diagonal = params->diagonal};
    const int64_t n = cf_view_numel(&j.y);
    if (!n) return CFX_OK;
    if (j.y.dtype != j.x.dtype || j.y.ndim < 2) return cf_fail(CFX_EFAULT, "needs two matrices of one dtype");
    j.size = cf_dtype_size(j.y.dtype);
    j.move = mover_of(j.size);
    j.rows = j.y.shape[j.y.ndim - 2];
    j.cols = j.y.shape[j.y.ndim - 1];
    CF_K(parallel)(cf_cpu_team(worker, n), n / j.cols, 1, tri_part, &j);
    return CFX_OK;
}

typedef struct onehot_job {
    cf_view ids, y;
    int64_t classes;
    uint64_t one;
} onehot_job;

static void onehot_part(void *context, int64_t from, int64_t to) {
    const onehot_job *j = context;
    const int64_t size = cf_dtype_size(j->y.dtype);
    const int last = j->y.ndim - 1;
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        const int64_t *ids = CF_K(read)(&j->ids, CF_I64, from, n, &temp);
        for (int64_t k = 0; k < n; k++) {
            const int64_t at = ids[k] * j->y.stride[last] + cf_dims_offset(last, j->y.shape, j->y.stride, from + k);
            memcpy((char *)j->y.data + at * size, &j->one, (size_t)size);
        }
    }
}

cfx_status CF_K(onehot)(cf_worker *worker, const cf_call *call) {
    onehot_job j = {.ids = *cf_call_in(call, 0), .y = call->v[0]};
    const int64_t n = cf_view_numel(&j.ids);
    const double one = 1, zero = 0;
    uint64_t memory = 0;
    cf_block_memory temp;
    cf_view_flatten(&j.ids);
    j.classes = j.y.shape[j.y.ndim - 1];
    for (int64_t from = 0; from < n; from += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, n - from);
        const int64_t *ids = CF_K(read)(&j.ids, CF_I64, from, m, &temp);
        for (int64_t k = 0; k < m; k++) {
            const int64_t position = from + k;
            if (ids[k] < 0 || ids[k] >= j.classes)
                return cf_fail(CFX_EFAULT, "id %lld at position %lld is outside 0 to %lld", (long long)ids[k],
                               (long long)position + 1, (long long)j.classes - 1);
        }
    }
    if (!n) return CFX_OK;
    cf_view x = {.data = &memory, .dtype = j.y.dtype, .ndim = 1, .shape = {1}, .stride = {1}};
    CF_K(write)(&x, CF_F64, 0, 1, &one);
    j.one = memory;
    CF_K(write)(&x, CF_F64, 0, 1, &zero);
    cf_view_expand(&x, &j.y);
    copy_same(worker, j.y, x);
    CF_K(parallel)(cf_cpu_team(worker, n), n, CF_BLOCK, onehot_part, &j);
    return CFX_OK;
}

/* ---- training: what changes every step lies in a slot of eight doubles (rules.h) --------------------------- */

enum { SLOT_CLIP = 7 };

cfx_status CF_K(slot)(cf_worker *worker, const cf_call *call) {
    (void)worker;
    memcpy(call->v[0].data, cf_call_params(call), sizeof(cf_slot_params));
    return CFX_OK;
}

cfx_status CF_K(clip)(cf_worker *worker, const cf_call *call) {
    double *y = call->v[0].data;
    const double limit = CF_PARAMS(call, clip)->norm, norm = sqrt(*(const double *)cf_call_in(call, 0)->data);
    (void)worker;
    const double scale = limit / (norm + 1e-6);
    y[SLOT_CLIP] = limit > 0 && !(scale > 1) ? scale : 1; /* a NaN stays one */
    return CFX_OK;
}
