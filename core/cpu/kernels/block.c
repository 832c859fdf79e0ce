/* block.c: reading and writing views by blocks. */
#include "cpu/kernels/block.h"

#include <omp.h>

/* ---- half types ------------------------------------------------------------------------------------------ */

static inline float as_float(uint32_t w) {
    float f;
    memcpy(&f, &w, 4);
    return f;
}
static inline uint32_t as_bits(float f) {
    uint32_t w;
    memcpy(&w, &f, 4);
    return w;
}

/* Both float16 conversions let the multiplier round and handle subnormals (after Dukhan's FP16 library), so
 * that they have no branch and vectorise on every machine. */
static inline float from_float16(uint16_t h) {
    const uint32_t w = (uint32_t)h << 16, sign = w & 0x80000000u, twice = w + w;
    const float normal = as_float((twice >> 4) + (0xE0u << 23)) * 0x1p-112f;
    const float small = as_float((twice >> 17) | (126u << 23)) - 0.5f;
    return as_float(sign | (twice < (1u << 27) ? as_bits(small) : as_bits(normal)));
}

static inline uint16_t to_float16(float f) {
    const uint32_t w = as_bits(f), twice = w + w, exponent = twice & 0xFF000000u;
    const uint32_t bias = exponent < 0x71000000u ? 0x71000000u : exponent;
    const float rounded = as_float((bias >> 1) + 0x07800000u) + (as_float(w & 0x7FFFFFFFu) * 0x1p+112f) * 0x1p-110f;
    const uint32_t bits = as_bits(rounded), magnitude = ((bits >> 13) & 0x7C00u) + (bits & 0xFFFu);
    return (uint16_t)((w >> 31 << 15) | (twice > 0xFF000000u ? 0x7E00u : magnitude));
}

static inline float from_bfloat16(uint16_t h) { return as_float((uint32_t)h << 16); }

static inline uint16_t to_bfloat16(float f) {
    const uint32_t w = as_bits(f), rounded = (w + 0x7FFFu + ((w >> 16) & 1u)) >> 16;
    return (uint16_t)((w & 0x7FFFFFFFu) > 0x7F800000u ? (w >> 16) | 0x40u : rounded);
}

/* ---- conversions ----------------------------------------------------------------------------------------- */

static inline int64_t integer_same(int64_t v) { return v; }
#define INTEGER(v) _Generic((v), float : cf_integer, double : cf_integer, default : integer_same)(v)

/* How a dtype lies in memory, its value, and the store of a value. */
#define CF_DTYPES(X) X(BOOL) X(UINT8) X(INT32) X(INT64) X(FLOAT16) X(BFLOAT16) X(FLOAT32) X(FLOAT64)
typedef uint8_t mem_BOOL, mem_UINT8;
typedef int32_t mem_INT32;
typedef int64_t mem_INT64;
typedef uint16_t mem_FLOAT16, mem_BFLOAT16;
typedef float mem_FLOAT32;
typedef double mem_FLOAT64;
#define VALUE_BOOL(m) ((m) != 0)
#define VALUE_UINT8(m) (m)
#define VALUE_INT32(m) (m)
#define VALUE_INT64(m) (m)
#define VALUE_FLOAT16(m) from_float16(m)
#define VALUE_BFLOAT16(m) from_bfloat16(m)
#define VALUE_FLOAT32(m) (m)
#define VALUE_FLOAT64(m) (m)
#define STORE_BOOL(v) ((v) != 0)
#define STORE_UINT8(v) (uint8_t) INTEGER(v)
#define STORE_INT32(v) (int32_t) INTEGER(v)
#define STORE_INT64(v) INTEGER(v)
#define STORE_FLOAT16(v) to_float16((float)(v))
#define STORE_BFLOAT16(v) to_bfloat16((float)(v))
#define STORE_FLOAT32(v) (float)(v)
#define STORE_FLOAT64(v) (double)(v)

typedef float type_F32;
typedef double type_F64;
typedef int64_t type_I64;
#define COMPUTE_F32(v) (float)(v)
#define COMPUTE_F64(v) (double)(v)
#define COMPUTE_I64(v) INTEGER(v)

/* Moves rows x cols elements between a packed block and memory with strides. */
typedef void (*move)(void *block, void *memory, int64_t rows, int64_t cols, int64_t row_stride, int64_t col_stride);

#define LOAD(name, C, D, value)                                                                       \
    static void name(void *block, void *memory, int64_t rows, int64_t cols, int64_t rs, int64_t cs) { \
        type_##C *restrict out = block;                                                               \
        for (int64_t r = 0; r < rows; r++, out += cols) {                                             \
            const mem_##D *in = (const mem_##D *)memory + r * rs;                                     \
            if (cs == 1) {                                                                            \
                for (int64_t k = 0; k < cols; k++) {                                                  \
                    const mem_##D m = in[k];                                                          \
                    out[k] = value;                                                                   \
                }                                                                                     \
            } else {                                                                                  \
                for (int64_t k = 0; k < cols; k++) {                                                  \
                    const mem_##D m = in[k * cs];                                                     \
                    out[k] = value;                                                                   \
                }                                                                                     \
            }                                                                                         \
        }                                                                                             \
    }
#define STORE(name, C, D)                                                                             \
    static void name(void *block, void *memory, int64_t rows, int64_t cols, int64_t rs, int64_t cs) { \
        const type_##C *restrict in = block;                                                          \
        for (int64_t r = 0; r < rows; r++, in += cols) {                                              \
            mem_##D *out = (mem_##D *)memory + r * rs;                                                \
            if (cs == 1) {                                                                            \
                for (int64_t k = 0; k < cols; k++) out[k] = STORE_##D(in[k]);                         \
            } else {                                                                                  \
                for (int64_t k = 0; k < cols; k++) out[k * cs] = STORE_##D(in[k]);                    \
            }                                                                                         \
        }                                                                                             \
    }

#define MOVES(D)                                          \
    LOAD(load_F32_##D, F32, D, COMPUTE_F32(VALUE_##D(m))) \
    LOAD(load_F64_##D, F64, D, COMPUTE_F64(VALUE_##D(m))) \
    LOAD(load_I64_##D, I64, D, COMPUTE_I64(VALUE_##D(m))) \
    LOAD(truth_F32_##D, F32, D, IS_TRUE_##D(m))           \
    LOAD(truth_F64_##D, F64, D, IS_TRUE_##D(m))           \
    LOAD(truth_I64_##D, I64, D, IS_TRUE_##D(m))           \
    STORE(store_F32_##D, F32, D)                          \
    STORE(store_F64_##D, F64, D)                          \
    STORE(store_I64_##D, I64, D)
#define IS_TRUE_BOOL(m) ((m) != 0)
#define IS_TRUE_UINT8(m) ((m) != 0)
#define IS_TRUE_INT32(m) ((m) != 0)
#define IS_TRUE_INT64(m) ((m) != 0)
#define IS_TRUE_FLOAT16(m) (((m)&0x7FFF) != 0)
#define IS_TRUE_BFLOAT16(m) (((m)&0x7FFF) != 0)
#define IS_TRUE_FLOAT32(m) ((m) != 0)
#define IS_TRUE_FLOAT64(m) ((m) != 0)
CF_DTYPES(MOVES)

#define ROW(what, C)                                                                                   \
    [CF_##C] = {what##_##C##_BOOL,    what##_##C##_UINT8,    what##_##C##_INT32,   what##_##C##_INT64, \
                what##_##C##_FLOAT16, what##_##C##_BFLOAT16, what##_##C##_FLOAT32, what##_##C##_FLOAT64}
static const move loads[CF_COMPUTES][CFX_DTYPES] = {ROW(load, F32), ROW(load, F64), ROW(load, I64)};
static const move truths[CF_COMPUTES][CFX_DTYPES] = {ROW(truth, F32), ROW(truth, F64), ROW(truth, I64)};
static const move stores[CF_COMPUTES][CFX_DTYPES] = {ROW(store, F32), ROW(store, F64), ROW(store, I64)};

/* ---- views ----------------------------------------------------------------------------------------------- */

/* Walks elements [from, from + n) by pieces of whole rows of the last dimension, and parts of one at the ends. */
static void walk(const cf_view *v, cf_compute c, int64_t from, int64_t n, char *block, move f) {
    const int64_t bytes = cf_compute_size(c), size = cf_dtype_size(v->dtype);
    const int last = v->ndim - 1, up = last - 1;
    const int64_t cols = v->shape[last], cs = v->stride[last];
    char *memory = v->data;
    if (up < 0) {
        f(block, memory + from * cs * size, 1, n, 0, cs);
        return;
    }
    int64_t at[CFX_MAX_DIMS], row = from / cols, col = from % cols, offset = 0;
    for (int d = up; d >= 0; d--) {
        at[d] = row % v->shape[d];
        row /= v->shape[d];
        offset += at[d] * v->stride[d];
    }
    while (n > 0) {
        const int part = col > 0 || n < cols;
        const int64_t rows = part ? 1 : cf_least(n / cols, v->shape[up] - at[up]);
        const int64_t width = part ? cf_least(cols - col, n) : cols;
        f(block, memory + (offset + col * cs) * size, rows, width, v->stride[up], cs);
        block += rows * width * bytes;
        n -= rows * width;
        col = 0; /* a piece that ends inside a row is the last */
        at[up] += rows;
        offset += rows * v->stride[up];
        for (int d = up; d > 0 && at[d] == v->shape[d]; d--) {
            offset += v->stride[d - 1] - at[d] * v->stride[d];
            at[d] = 0;
            at[d - 1]++;
        }
    }
}

const void *CF_K(read)(const cf_view *v, cf_compute c, int64_t from, int64_t n, void *temp) {
    if (cf_direct(v, c)) return cf_at(v, from);
    walk(v, c, from, n, temp, loads[c][v->dtype]);
    return temp;
}

const void *CF_K(read_truth)(const cf_view *v, cf_compute c, int64_t from, int64_t n, void *temp) {
    walk(v, c, from, n, temp, truths[c][v->dtype]);
    return temp;
}

void CF_K(write)(const cf_view *v, cf_compute c, int64_t from, int64_t n, const void *block) {
    if (cf_direct(v, c) && block == cf_at(v, from)) return;
    walk(v, c, from, n, (char *)block, stores[c][v->dtype]);
}

double CF_K(number)(const cf_view *v) {
    double out;
    loads[CF_F64][v->dtype](&out, v->data, 1, 1, 0, 0);
    return out;
}

/* ---- teams ----------------------------------------------------------------------------------------------- */

void CF_K(parallel)(int team, int64_t n, int64_t unit, cf_part part, void *context) {
    if (n <= 0) return;
    if (team <= 1) {
        part(context, 0, n);
        return;
    }
#pragma omp parallel num_threads(team)
    {
        int64_t from, to;
        cf_cpu_share(n, unit, omp_get_num_threads(), omp_get_thread_num(), &from, &to);
        if (from < to) part(context, from, to);
    }
}

typedef struct grid {
    cf_chunk chunk;
    void *context;
    int64_t n;
    double *sums; /* [chunks] */
} grid;

static void grid_part(void *context, int64_t from, int64_t to) {
    const grid *g = context;
    for (int64_t k = from; k < to; k++)
        g->sums[k] = g->chunk(g->context, k * CF_GRID, cf_least(CF_GRID, g->n - k * CF_GRID));
}

cfx_status CF_K(grid_sum)(cf_worker *worker, int64_t n, int cost, cf_chunk chunk, void *context, double *out) {
    const int64_t chunks = (n + CF_GRID - 1) / CF_GRID;
    double few[64];
    grid g = {chunk, context, n, few};
    if (chunks > 64) {
        g.sums = cf_worker_scratch(worker, (size_t)chunks * sizeof(double));
        if (!g.sums) return cf_fail(CFX_EMEMORY, "no memory for the partial sums of %lld elements", (long long)n);
    }
    CF_K(parallel)(cf_cpu_team(worker, n * cost), chunks, 1, grid_part, &g);
    double sum = 0;
    for (int64_t k = 0; k < chunks; k++) sum += g.sums[k];
    *out = sum;
    return CFX_OK;
}
