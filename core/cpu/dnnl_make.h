/* dnnl_make.h: makes one oneDNN matmul primitive.
 *
 * oneDNN 2.x and 3.x make primitives by different C calls and run them by the same ones; dnnl_make.c is the
 * only file that knows the difference.
 */
#ifndef CF_CPU_DNNL_MAKE_H
#define CF_CPU_DNNL_MAKE_H

#include <dnnl.h>

#include "cpu/cpu.h"

/* A primitive and the memory objects it runs on.  Their addresses are set anew for each run. */
typedef struct cf_dnnl_matmul {
    dnnl_primitive_t primitive;
    dnnl_memory_t a, b, bias, y, pad; /* bias: NULL without one */
    size_t pad_bytes;                 /* of the scratchpad, which the caller brings */
} cf_dnnl_matmul;

/* CFX_ESTATE: oneDNN has no such product; *out is then zero. */
cfx_status cf_dnnl_matmul_new(dnnl_engine_t engine, const cf_product *product, cf_dnnl_matmul *out);
void cf_dnnl_matmul_free(cf_dnnl_matmul *matmul);

/* oneDNN's number of an activation, or dnnl_alg_kind_undef. */
dnnl_alg_kind_t cf_dnnl_act(int act);

#endif
