/* reduce_blocks.c: the loops of reductions.
 *
 * A row of floats is added in 64 lanes that are then merged pairwise; rows are short (a block), and their sums
 * are merged as doubles: so 10^7 ones make exactly 10^7, and the order never depends on the team.  Where a sum is
 * divided or a root is taken, and of products, the lanes are doubles, for the result of numbers that do not fit may. */
#include "cpu/kernels/reduce_blocks.h"

enum { LANES = 64 };

typedef float type_F32;
typedef double type_F64;
typedef int64_t type_I64;
#define FIELD_F32 f
#define FIELD_F64 f
#define FIELD_I64 i

#define ROW_LOOP(name, C, T, L, field, START, STEP, MERGE)                                 \
    static cf_partial name##_row_##C(const void *in, int64_t n, const cf_partial *shift) { \
        const T *x = in;                                                                   \
        const L m = (L)shift->field;                                                       \
        L s[LANES];                                                                        \
        int64_t i = 0;                                                                     \
        (void)m;                                                                           \
        for (int k = 0; k < LANES; k++) s[k] = START;                                      \
        for (; i + LANES <= n; i += LANES)                                                 \
            for (int k = 0; k < LANES; k++) s[k] = STEP(L, s[k], x[i + k], m);             \
        for (int k = 0; k < n - i; k++) s[k] = STEP(L, s[k], x[i + k], m);                 \
        for (int width = LANES / 2; width; width /= 2)                                     \
            for (int k = 0; k < width; k++) s[k] = MERGE(L, s[k], s[k + width]);           \
        return (cf_partial){.field = s[0]};                                                \
    }
#define LOOPS(name, C, T, L, A, field, START, STEP, MERGE)                                           \
    ROW_LOOP(name, C, T, L, field, START, STEP, MERGE)                                               \
    static void name##_column_##C(void *lanes, const void *in, int64_t n, const cf_partial *shift) { \
        L *restrict s = lanes;                                                                       \
        const T *restrict x = in;                                                                    \
        (void)shift;                                                                                 \
        for (int64_t k = 0; k < n; k++) s[k] = STEP(L, s[k], x[k], (L)shift[k].field);               \
    }                                                                                                \
    static void name##_clear_##C(void *lanes, int64_t n) {                                           \
        L *s = lanes;                                                                                \
        for (int64_t k = 0; k < n; k++) s[k] = START;                                                \
    }                                                                                                \
    static void name##_fold_##C(cf_partial *into, const void *lanes, int64_t n) {                    \
        const L *s = lanes;                                                                          \
        for (int64_t k = 0; k < n; k++) into[k].field = MERGE(A, into[k].field, (A)s[k]);            \
    }                                                                                                \
    static void name##_merge_##C(cf_partial *into, const cf_partial *other, int64_t n) {             \
        for (int64_t k = 0; k < n; k++) into[k].field = MERGE(A, into[k].field, other[k].field);     \
    }

#define ADD(T, s, x) ((s) + (x))
#define MUL(T, s, x) ((s) * (x))
#define MAX(T, s, x) ((x) > (s) || (x) != (x) ? (x) : (s))
#define MIN(T, s, x) ((x) < (s) || (x) != (x) ? (x) : (s))
#define SUM_STEP(T, s, x, m) ((s) + (x))
#define SUMSQ_STEP(T, s, x, m) ((s) + (T)(x) * (T)(x))
#define DEVSQ_STEP(T, s, x, m) ((s) + ((x) - (m)) * ((x) - (m)))
#define PROD_STEP(T, s, x, m) ((s) * (x))
#define MAX_STEP(T, s, x, m) MAX(T, s, x)
#define MIN_STEP(T, s, x, m) MIN(T, s, x)
#define FLOATS(C, T)                                            \
    LOOPS(sum, C, T, T, double, f, 0, SUM_STEP, ADD)            \
    LOOPS(mean, C, T, double, double, f, 0, SUM_STEP, ADD)      \
    LOOPS(sumsq, C, T, double, double, f, 0, SUMSQ_STEP, ADD)   \
    LOOPS(devsq, C, T, double, double, f, 0, DEVSQ_STEP, ADD)   \
    LOOPS(prod, C, T, double, double, f, 1, PROD_STEP, MUL)     \
    LOOPS(max, C, T, T, double, f, (T)-INFINITY, MAX_STEP, MAX) \
    LOOPS(min, C, T, T, double, f, (T)INFINITY, MIN_STEP, MIN)
FLOATS(F32, float)
FLOATS(F64, double)

/* Squares are added as floats, which is twice as fast, and again as doubles where one of them may have been too large
 * for a float, or too small to count. */
ROW_LOOP(floats_sumsq, F32, float, float, f, 0, SUMSQ_STEP, ADD)
static cf_partial quick_sumsq_row_F32(const void *x, int64_t n, const cf_partial *shift) {
    const cf_partial quick = floats_sumsq_row_F32(x, n, shift);
    return quick.f > 0x1p-80 && quick.f < INFINITY ? quick : sumsq_row_F32(x, n, shift);
}

/* Integers wrap around. */
#define WADD(T, s, x) ((T)((uint64_t)(s) + (uint64_t)(x)))
#define WMUL(T, s, x) ((T)((uint64_t)(s) * (uint64_t)(x)))
#define IMAX(T, s, x) ((x) > (s) ? (x) : (s))
#define IMIN(T, s, x) ((x) < (s) ? (x) : (s))
#define WSUM_STEP(T, s, x, m) WADD(T, s, x)
#define WPROD_STEP(T, s, x, m) WMUL(T, s, x)
#define IMAX_STEP(T, s, x, m) IMAX(T, s, x)
#define IMIN_STEP(T, s, x, m) IMIN(T, s, x)
LOOPS(sum, I64, int64_t, int64_t, int64_t, i, 0, WSUM_STEP, WADD)
LOOPS(prod, I64, int64_t, int64_t, int64_t, i, 1, WPROD_STEP, WMUL)
LOOPS(max, I64, int64_t, int64_t, int64_t, i, INT64_MIN, IMAX_STEP, IMAX)
LOOPS(min, I64, int64_t, int64_t, int64_t, i, INT64_MAX, IMIN_STEP, IMIN)

#define ROW(name, row, C, field, start)                                                                           \
    {                                                                                                             \
        row##_row_##C, name##_column_##C, name##_clear_##C, name##_fold_##C, name##_merge_##C, { .field = start } \
    }
#define FLOAT_ROWS(C, squares)                                                                        \
    {                                                                                                 \
        [CF_STEP_SUM] = ROW(sum, sum, C, f, 0), [CF_STEP_MEAN] = ROW(mean, mean, C, f, 0),            \
        [CF_STEP_SUMSQ] = ROW(sumsq, squares, C, f, 0), [CF_STEP_DEVSQ] = ROW(devsq, devsq, C, f, 0), \
        [CF_STEP_PROD] = ROW(prod, prod, C, f, 1), [CF_STEP_MAX] = ROW(max, max, C, f, -INFINITY),    \
        [CF_STEP_MIN] = ROW(min, min, C, f, INFINITY)                                                 \
    }
const cf_reduce_loops CF_K(reduce_loops)[CF_COMPUTES][CF_STEPS] = {
    [CF_F32] = FLOAT_ROWS(F32, quick_sumsq),
    [CF_F64] = FLOAT_ROWS(F64, sumsq),
    [CF_I64] = {[CF_STEP_SUM] = ROW(sum, sum, I64, i, 0),
                [CF_STEP_PROD] = ROW(prod, prod, I64, i, 1),
                [CF_STEP_MAX] = ROW(max, max, I64, i, INT64_MIN),
                [CF_STEP_MIN] = ROW(min, min, I64, i, INT64_MAX)},
};

/* ---- argmax and argmin ----------------------------------------------------------------------------------- */

/* A NaN is better than every number, the first one best of all. */
#define BETTER(is_max, a, b) ((is_max ? (b) > (a) : (b) < (a)) || ((b) != (b) && (a) == (a)))

#define ARG(C, T, field)                                                                                          \
    static void arg_row_##C(int is_max, const T *x, int64_t n, int64_t first, cf_partial *best, int64_t *at) {    \
        const cf_reduce_loops *loops = &CF_K(reduce_loops)[CF_##C][is_max ? CF_STEP_MAX : CF_STEP_MIN];           \
        const cf_partial none = {0}, found = loops->row(x, n, &none);                                             \
        if (*at >= 0 && !BETTER(is_max, best->field, found.field)) return;                                        \
        const T value = (T)found.field;                                                                           \
        int64_t i = 0;                                                                                            \
        while (!(x[i] == value || (value != value && x[i] != x[i]))) i++;                                         \
        *best = found;                                                                                            \
        *at = first + i;                                                                                          \
    }                                                                                                             \
    static void arg_column_##C(int is_max, const T *x, int64_t n, int64_t first, cf_partial *best, int64_t *at) { \
        for (int64_t k = 0; k < n; k++) {                                                                         \
            if (at[k] >= 0 && !BETTER(is_max, best[k].field, x[k])) continue;                                     \
            best[k].field = x[k];                                                                                 \
            at[k] = first;                                                                                        \
        }                                                                                                         \
    }
ARG(F32, float, f)
ARG(F64, double, f)
ARG(I64, int64_t, i)

void CF_K(arg_row)(cf_compute c, int is_max, const void *x, int64_t n, int64_t first, cf_partial *best, int64_t *at) {
    if (c == CF_F32) arg_row_F32(is_max, x, n, first, best, at);
    else if (c == CF_F64) arg_row_F64(is_max, x, n, first, best, at);
    else arg_row_I64(is_max, x, n, first, best, at);
}

void CF_K(arg_column)(cf_compute c, int is_max, const void *x, int64_t n, int64_t first, cf_partial *best,
                      int64_t *at) {
    if (c == CF_F32) arg_column_F32(is_max, x, n, first, best, at);
    else if (c == CF_F64) arg_column_F64(is_max, x, n, first, best, at);
    else arg_column_I64(is_max, x, n, first, best, at);
}

int CF_K(arg_better)(cf_compute c, int is_max, cf_partial a, cf_partial b) {
    return c == CF_I64 ? BETTER(is_max, a.i, b.i) : BETTER(is_max, a.f, b.f);
}

double CF_K(block_sum)(cf_compute c, const void *x, int64_t n) {
    const cf_partial none = {0};
    return CF_K(reduce_loops)[c][CF_STEP_SUM].row(x, n, &none).f;
}

double CF_K(block_sumsq)(cf_compute c, const void *x, int64_t n) {
    const cf_partial none = {0};
    return CF_K(reduce_loops)[c][CF_STEP_SUMSQ].row(x, n, &none).f;
}
