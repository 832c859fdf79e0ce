/* part.h: rows of the op table that a kernel runs as parts of its own: a copy, an activation that was not fused. */
#ifndef CF_CPU_KERNELS_PART_H
#define CF_CPU_KERNELS_PART_H

#include "cpu/kernels/elementwise.h"
#include "cpu/kernels/make.h"

/* A call of one output and at most two inputs. */
typedef union cf_part_call {
    cf_call call;
    char room[sizeof(cf_call) + 3 * sizeof(cf_view) + sizeof(cf_formula_params)];
} cf_part_call;
_Static_assert(sizeof(cf_fill_params) <= sizeof(cf_formula_params), "fill has no more");

/* y <- op(x [n]); params: the row's, or NULL, if it has none. */
static inline cfx_status cf_part_run(cf_worker *worker, cf_kernel kernel, int op, int dtype, const cf_view *y, int n,
                                     const cf_view *x, const void *params) {
    cf_part_call c = {.call = {.op = (uint16_t)op, .nout = 1, .nin = (uint8_t)n, .dtype = (uint8_t)dtype}};
    cf_view *v = (cf_view *)(c.room + sizeof(cf_call));
    v[0] = *y;
    for (int k = 0; k < n; k++) v[1 + k] = x[k];
    if (params) memcpy(c.room + cf_call_bytes(1 + n, 0), params, cf_op_table[op].params_bytes);
    return kernel(worker, &c.call);
}

static inline cfx_status cf_part_copy(cf_worker *worker, const cf_view *y, const cf_view *x) {
    return cf_part_run(worker, CF_K(copy), CF_OP_copy, y->dtype, y, 1, x, NULL);
}

static inline cfx_status cf_part_zero(cf_worker *worker, const cf_view *y) {
    const cf_fill_params nothing = {0};
    return cf_part_run(worker, CF_K(fill), CF_OP_fill, y->dtype, y, 0, NULL, &nothing);
}

/* y <- op(x [n]) of an elementwise row; y may be one of them. */
static inline cfx_status cf_part_apply(cf_worker *worker, int op, int dtype, const cf_view *y, int n, const cf_view *x,
                                       const double p[2]) {
    const cf_formula_params params = {.p = {p[0], p[1]}};
    return cf_part_run(worker, CF_K(elementwise), op, dtype, y, n, x, &params);
}

#endif
