/* part.h: the rows that kernels of the CPU run as parts of their own. */
#ifndef CF_CPU_KERNELS_PART_H
#define CF_CPU_KERNELS_PART_H

#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/make.h"
#include "device/part.h"

static inline cfx_status cf_part_copy(cf_worker *worker, const cf_view *y, const cf_view *x) {
    cf_part_call part;
    return CF_K(copy)(worker, cf_part_of(&part, CF_OP_copy, y->dtype, y, 1, x, NULL, 0));
}

static inline cfx_status cf_part_zero(cf_worker *worker, const cf_view *y) {
    cf_part_call part;
    return CF_K(fill)(worker, cf_part_of(&part, CF_OP_fill, y->dtype, y, 0, NULL, NULL, 0));
}

/* y <- op(x [n]) of an elementwise row; y may be one of them. */
static inline cfx_status cf_part_apply(cf_worker *worker, int op, int dtype, const cf_view *y, int n, const cf_view *x,
                                       const double p[2]) {
    const cf_formula_params params = {.p = {p[0], p[1]}};
    cf_part_call part;
    return CF_K(elementwise)(worker, cf_part_of(&part, op, dtype, y, n, x, &params, sizeof params));
}

#endif
