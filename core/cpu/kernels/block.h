/* block.h: any view as a row of blocks of one of three compute types.
 *
 * Eight dtypes would ask for hundreds of loops; three compute types (float for float32 and the half types,
 * double, int64_t for bool and the integers) ask for one loop each.  A view, flattened, is read as elements
 * [from, from + n) in row-major order: where it already is a contiguous run of the compute type the block is
 * the memory itself, else it is gathered, repeated and converted into a temporary of the caller.
 *
 * Values are converted exactly where they fit and round to nearest even where they do not; a NaN stays one.
 * Floats become integers by truncation (out of range: the nearest int64, NaN: 0), integers wrap into smaller
 * ones, and whatever is not zero is true.
 */
#ifndef CF_CPU_KERNELS_BLOCK_H
#define CF_CPU_KERNELS_BLOCK_H

#include <math.h>
#include <stdlib.h>

#include "cpu/cpu.h"

/* Loops run over multiples of UNIT, so that a tail goes through the same vector code as the body and gets the
 * same bits.  BLOCK elements of four operands stay in the first-level cache; DIRECT is for blocks that need no
 * temporary. */
enum { CF_UNIT = 16, CF_BLOCK = 512, CF_DIRECT = 4096 };

typedef enum cf_compute { CF_F32, CF_F64, CF_I64, CF_COMPUTES } cf_compute;

static inline cf_compute cf_compute_of(int dtype) {
    return dtype == CFX_FLOAT64 ? CF_F64 : cf_is_float(dtype) ? CF_F32 : CF_I64;
}
static inline int cf_compute_dtype(cf_compute c) {
    return c == CF_F32 ? CFX_FLOAT32 : c == CF_F64 ? CFX_FLOAT64 : CFX_INT64;
}
static inline int64_t cf_compute_size(cf_compute c) { return c == CF_F32 ? 4 : 8; }
static inline int64_t cf_round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }
static inline int64_t cf_least(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t cf_most(int64_t a, int64_t b) { return a > b ? a : b; }

/* The integer that a double becomes. */
static inline int64_t cf_integer(double v) {
    return v >= 0x1p63 ? INT64_MAX : v < -0x1p63 ? INT64_MIN : v != v ? 0 : (int64_t)v;
}

/* A temporary block of any compute type. */
typedef union cf_block_memory {
    float f32[CF_BLOCK];
    double f64[CF_BLOCK];
    int64_t i64[CF_BLOCK];
} __attribute__((aligned(64))) cf_block_memory;

/* Whether the elements lie one after the other as the compute type. */
static inline int cf_direct(const cf_view *v, cf_compute c) {
    return v->dtype == cf_compute_dtype(c) && v->ndim == 1 && (v->stride[0] == 1 || v->shape[0] == 1);
}
static inline char *cf_at(const cf_view *v, int64_t element) {
    return (char *)v->data + element * cf_dtype_size(v->dtype);
}

/* Elements [from, from + n) of a flattened view (cf_view_flatten): the memory itself, or `temp` [n]. */
const void *CF_K(read)(const cf_view *v, cf_compute c, int64_t from, int64_t n, void *temp);
/* The same as 0 and 1. */
const void *CF_K(read_truth)(const cf_view *v, cf_compute c, int64_t from, int64_t n, void *temp);
/* Elements [from, from + n) <- block [n]; nothing if the block is their memory. */
void CF_K(write)(const cf_view *v, cf_compute c, int64_t from, int64_t n, const void *block);

/* One element, as a double. */
double CF_K(number)(const cf_view *v);

/* n items cut into parts of whole units, one for each of at most `team` threads. */
typedef void (*cf_part)(void *context, int64_t from, int64_t to);
void CF_K(parallel)(int team, int64_t n, int64_t unit, cf_part part, void *context);

/* A sum over [0, n) that no team size changes: chunks of GRID elements, merged in order. */
enum { CF_GRID = 65536 };
typedef double (*cf_chunk)(void *context, int64_t from, int64_t n);
cfx_status CF_K(grid_sum)(cf_worker *worker, int64_t n, int cost, cf_chunk chunk, void *context, double *out);

/* A loop whose iterations do not depend on each other even where its pointers are equal. */
#ifdef __clang__
#pragma clang diagnostic ignored "-Wpass-failed"
#define CF_VECTOR _Pragma("clang loop vectorize(assume_safety)")
#else
#define CF_VECTOR _Pragma("GCC ivdep")
#endif

#endif
