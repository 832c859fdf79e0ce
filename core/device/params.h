/* params.h: what a call says besides its views: a struct for each kind of row.
 *
 * A row of ops.def names its kind.  The struct lies in the call, behind its views (CF_PARAMS of ops.h), so a kind may
 * hold what it needs, and a row without parameters has no bytes of them.  A caller that gives none means zeros.
 * Structs hold values alone, neither addresses nor handles.
 */
#ifndef CF_DEVICE_PARAMS_H
#define CF_DEVICE_PARAMS_H

#include "conflux.h"

typedef struct cf_none_params {
    char nothing[0];
} cf_none_params;

/* UNARY, BINARY, TERNARY: p are the formula's numbers.  Of a call with one input less than the formula has operands,
 * p[0] is the missing one: the last; or, reversed, the first of two. */
typedef struct cf_formula_params {
    double p[2];
    int64_t reversed;
} cf_formula_params;

/* REDUCE: the last `dims` dimensions of the input are reduced.  correction: of var and std. */
typedef struct cf_reduce_params {
    double correction;
    int64_t dims;
} cf_reduce_params;

/* LOSS, and their gradients: reduction is a cfx_reduction, param the loss's own number; of_y: 1 for the gradient of the
 * second input instead of the first. */
typedef struct cf_loss_params {
    double param;
    int32_t reduction, of_y;
} cf_loss_params;

/* ---- make and move */

/* `value`; or, if is_exact and y is int64, `exact`, which a double may not hold. */
typedef struct cf_fill_params {
    double value;
    int64_t exact, is_exact;
} cf_fill_params;

/* Of bytes: [from, from + bytes), n times. */
typedef struct cf_ranges_params {
    int64_t n;
    struct {
        int64_t from, bytes;
    } range[];
} cf_ranges_params;

typedef struct cf_arange_params {
    double start, step;
} cf_arange_params;

/* Where a random sequence begins: the words of `stream` of `seed`, from `position` on.  It stands first in each kind that
 * has one, so that a command which is run again can be given another. */
typedef struct cf_position {
    uint64_t seed, stream, position;
} cf_position;

/* uniform: [a, b); normal: mean a, deviation b; randint: a to b inclusive. */
typedef struct cf_random_params {
    cf_position at;
    double a, b;
} cf_random_params;

typedef struct cf_dropout_params {
    cf_position at;
    double p;
} cf_dropout_params;

typedef struct cf_tri_params {
    int64_t diagonal, upper;
} cf_tri_params;

/* ---- order */

typedef struct cf_topk_params {
    int64_t k;
} cf_topk_params;

typedef struct cf_sort_params {
    int64_t descending;
} cf_sort_params;

/* ---- products.  precision: a cfx_precision, which a backend may make use of */

/* add: to y. */
typedef struct cf_matmul_params {
    int32_t add, precision;
} cf_matmul_params;

/* act: a row, with its numbers p; or -1. */
typedef struct cf_dense_params {
    double p[2];
    int32_t act, precision;
} cf_dense_params;

/* Of height and width; pad: before the image (what lies behind it follows from the result's size).  bias, residual:
 * whether the call has them.  act: a row, with its numbers p; or -1.  The backward rows have none of these. */
typedef struct cf_conv_params {
    int64_t stride[2], pad[2], dilation[2], groups;
    double p[2];
    int32_t act, precision, bias, residual;
} cf_conv_params;

/* ---- selection, layers */

/* Along dimension dim. */
typedef struct cf_select_params {
    int64_t dim;
} cf_select_params;

typedef struct cf_layernorm_params {
    double eps;
} cf_layernorm_params;

/* affine: gamma is there. */
typedef struct cf_layernorm_bw_params {
    int64_t affine;
} cf_layernorm_bw_params;

/* Labels that are `ignore` count for nothing. */
typedef struct cf_crossentropy_params {
    double smoothing;
    int64_t ignore, reduction;
} cf_crossentropy_params;

/* ---- vision */

/* Of a batch of so many rows: momentum is the share of what runs that it replaces, or negative: 1 / count.  tracked,
 * counted: the running mean and variance, and the count, are there. */
typedef struct cf_batchnorm_move_params {
    double momentum;
    int64_t rows;
    int32_t tracked, counted;
} cf_batchnorm_move_params;

/* affine (gamma and beta), residual: these are there; relu: of the result. */
typedef struct cf_batchnorm_params {
    double eps;
    int32_t affine, residual, relu;
} cf_batchnorm_params;

/* training: mean and variance were those of x.  dx, dresidual, dgamma (and dbeta), affine (gamma and beta), y: these
 * are there.  y is where a result with a residual went through relu: without one x says what it was. */
typedef struct cf_batchnorm_bw_params {
    double eps;
    int32_t training, relu, dx, dresidual, dgamma, affine, y;
} cf_batchnorm_bw_params;

/* affine: gamma (and beta) are there. */
typedef struct cf_groupnorm_params {
    double eps;
    int64_t affine;
} cf_groupnorm_params;

/* dx, dgamma (and dbeta), affine (gamma): these are there. */
typedef struct cf_groupnorm_bw_params {
    double eps;
    int32_t dx, dgamma, affine;
} cf_groupnorm_bw_params;

/* adaptive: the windows follow from the sizes, and `window` says nothing. */
typedef struct cf_pool_params {
    cfx_window window;
    int32_t adaptive, count_pad;
} cf_pool_params;

/* scale: of height and width, or 0: it follows from the sizes. */
typedef struct cf_upsample_params {
    double scale[2];
    int32_t bilinear, align_corners;
} cf_upsample_params;

/* ---- training and collectives */

/* The numbers that change with each step of an optimiser (rules.h says which is which).  They stand here alone, for
 * `update` reads the slot. */
typedef struct cf_slot_params {
    double numbers[8];
} cf_slot_params;

/* add: to y. */
typedef struct cf_sumsq_params {
    int64_t add;
} cf_sumsq_params;

typedef struct cf_clip_params {
    double norm;
} cf_clip_params;

/* The numbers that stay from step to step.  scale: the parameter's share of the rate; clip_value: 0 for none. */
typedef struct cf_update_params {
    double scale, decay, clip_value, eps;
    int64_t rule;
} cf_update_params;

/* op: a cf_combine; root: or -1; weight [nout] of CF_COMBINE_WEIGHTED, of the others none. */
typedef struct cf_combine_params {
    int32_t op, root;
    double weight[];
} cf_combine_params;

#endif
