/* reduce_blocks.h: the loops over a block that reductions are made of. */
#ifndef CF_CPU_KERNELS_REDUCE_BLOCKS_H
#define CF_CPU_KERNELS_REDUCE_BLOCKS_H

#include "cpu/kernels/block.h"

/* MEAN: a sum that is divided.  DEVSQ: the squares of what is left after subtracting `shift`. */
typedef enum cf_step {
    CF_STEP_SUM,
    CF_STEP_MEAN,
    CF_STEP_SUMSQ,
    CF_STEP_DEVSQ,
    CF_STEP_PROD,
    CF_STEP_MAX,
    CF_STEP_MIN,
    CF_STEPS
} cf_step;

/* A partial result: of floats and doubles a double, of integers an int64. */
typedef union cf_partial {
    double f;
    int64_t i;
} cf_partial;

typedef struct cf_reduce_loops {
    /* n elements -> one; a fixed order. */
    cf_partial (*row)(const void *x, int64_t n, const cf_partial *shift);
    /* lanes[k] <- lanes[k] merged with x[k], for k < n: one row of n columns; shift [n]. */
    void (*column)(void *lanes, const void *x, int64_t n, const cf_partial *shift);
    /* lanes[k] <- what merges to nothing. */
    void (*clear)(void *lanes, int64_t n);
    /* into[k] <- into[k] merged with lanes[k]. */
    void (*fold)(cf_partial *into, const void *lanes, int64_t n);
    /* into[k] <- into[k] merged with other[k]. */
    void (*merge)(cf_partial *into, const cf_partial *other, int64_t n);
    cf_partial nothing;
} cf_reduce_loops;

extern const cf_reduce_loops CF_K(reduce_loops)[CF_COMPUTES][CF_STEPS];

/* Where the first extreme lies (a NaN is one): x [n]; at is counted from `first`.  Nothing changes unless x has a
 * better one than *best, of index *at (-1: none yet). */
void CF_K(arg_row)(cf_compute c, int is_max, const void *x, int64_t n, int64_t first, cf_partial *best, int64_t *at);
/* The same for row `first` of n columns: best [n], at [n]. */
void CF_K(arg_column)(cf_compute c, int is_max, const void *x, int64_t n, int64_t first, cf_partial *best, int64_t *at);
/* Whether b is better than a. */
int CF_K(arg_better)(cf_compute c, int is_max, cf_partial a, cf_partial b);

/* The sum and the sum of squares of n floats or doubles in a fixed order. */
double CF_K(block_sum)(cf_compute c, const void *x, int64_t n);
double CF_K(block_sumsq)(cf_compute c, const void *x, int64_t n);

#endif
