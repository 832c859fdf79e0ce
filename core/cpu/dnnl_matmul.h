/* dnnl_matmul.h: matrix products by oneDNN. */
#ifndef CF_CPU_DNNL_MATMUL_H
#define CF_CPU_DNNL_MATMUL_H

#include "device/backend.h"

/* y [n, m] = (add ? y : 0) + a [n, k] b [k, m] + bias [m], batched over `batch` with given batch strides (0 repeats);
 * row and column strides of a and b, one of them 1; y is row-major.  bias: NULL for none.  act: CF_OP_relu, _tanh, ...,
 * taken last, with parameters; or -1. */
typedef struct cf_product {
    int dtype; /* of a, b and y */
    int64_t batch, n, m, k;
    const void *a, *b, *bias;
    void *y;
    int64_t a_batch, a_row, a_col, b_batch, b_row, b_col, y_batch, y_row;
    int add, act;
    double p0, p1;
} cf_product;

/* Of float32 or bfloat16.  CFX_ESTATE: oneDNN has no such product (the caller then takes its own loop). */
cfx_status cf_dnnl_product(cf_worker *worker, const cf_product *product);

/* The primitive of a product, with the arguments a, b, y and, if there is one, bias; for a caller that keeps it itself
 * (dnnl_primitive.h says how it fails). */
struct dnnl_engine;
struct cf_dnnl_primitive;
cfx_status cf_dnnl_matmul_new(struct dnnl_engine *engine, const cf_product *product, struct cf_dnnl_primitive *out);

#endif
