/* dnnl_primitive.h: a oneDNN primitive, and the memory objects that it runs on.
 *
 * oneDNN 2.x and 3.x make primitives by different C calls and run them by the same ones; dnnl_primitive.c is the only
 * file that knows the difference.  An operation is described by functions of one face for both, which dnnl_primitive.c
 * has one of for each kind of operation that somebody needs: products, convolutions, and reorders between formats.
 */
#ifndef CF_CPU_DNNL_PRIMITIVE_H
#define CF_CPU_DNNL_PRIMITIVE_H

#include <dnnl.h>
#include <stdbool.h>

#include "conflux.h"

enum { CF_DNNL_ARGS = 8 };

/* The addresses of its arguments are set anew for each run, the scratchpad's too. */
typedef struct cf_dnnl_primitive {
    dnnl_primitive_t primitive;
    int nargs;
    dnnl_exec_arg_t args[CF_DNNL_ARGS]; /* in the order that it was made with; the last is the scratchpad */
    size_t pad_bytes;
} cf_dnnl_primitive;

/* Of what `desc` describes, with these n arguments (DNNL_ARG_SRC, ...), each in the format that `desc` has for it.  Of a
 * failure *out keeps what was made so far: cf_dnnl_primitive_free takes it, as it takes zeros. */
dnnl_status_t cf_dnnl_primitive_new(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int n, const int *args,
                                    cf_dnnl_primitive *out);
void cf_dnnl_primitive_free(cf_dnnl_primitive *p);

/* Runs on this stream: data [nargs - 1] are the arguments' addresses, `pad` is the scratchpad's [pad_bytes]. */
dnnl_status_t cf_dnnl_primitive_run(cf_dnnl_primitive *p, dnnl_stream_t stream, void *const *data, void *pad);

/* Bytes of its k-th argument, in the format that it has for it. */
size_t cf_dnnl_primitive_bytes(const cf_dnnl_primitive *p, int k);

/* CFX_OK; CFX_EMEMORY; or CFX_ESTATE: oneDNN has no such operation. */
cfx_status cf_dnnl_made(dnnl_status_t status, const char *what);

/* ---- descriptions ------------------------------------------------------------------------------------------ */

/* A tensor's shape and format; with oneDNN 2 a struct, with 3 a pointer.  All zeros: there is none. */
typedef dnnl_memory_desc_t cf_dnnl_desc;

dnnl_status_t cf_dnnl_desc_new(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type,
                               const dnnl_dims_t stride);
/* In whichever format the operation likes best. */
dnnl_status_t cf_dnnl_desc_any(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type);
void cf_dnnl_desc_free(cf_dnnl_desc *desc);

/* Steps that oneDNN takes before it writes a result: it adds y, or takes an activation. */
dnnl_status_t cf_dnnl_append_sum(dnnl_post_ops_t ops);
dnnl_status_t cf_dnnl_append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t act, float alpha);

/* y = a b + bias, with what `ops` (NULL: nothing) says done to it. */
dnnl_status_t cf_dnnl_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *a,
                                  const cf_dnnl_desc *b, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                  const_dnnl_post_ops_t ops);

/* Where a convolution's window lies; `before`, `after`: pads.  Of a dilation of 1 oneDNN says 0. */
typedef struct cf_dnnl_window {
    dnnl_dims_t stride, dilation, before, after;
} cf_dnnl_window;

/* Of y = conv(x, weight) + bias, with what `ops` says done to it; or of its backward by data or by weights, which have
 * neither bias nor `ops`. */
typedef enum cf_dnnl_direction { CF_DNNL_FORWARD, CF_DNNL_BACKWARD_DATA, CF_DNNL_BACKWARD_WEIGHTS } cf_dnnl_direction;
dnnl_status_t cf_dnnl_conv_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cf_dnnl_direction direction,
                                const cf_dnnl_desc *x, const cf_dnnl_desc *weight, const cf_dnnl_desc *bias,
                                const cf_dnnl_desc *y, const cf_dnnl_window *window, const_dnnl_post_ops_t ops);
/* Of a copy of what is in the format `plain` into that which `desc` has for its argument `arg`; or, `back`, from there. */
dnnl_status_t cf_dnnl_reorder_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *plain,
                                   const_dnnl_primitive_desc_t desc, int arg, bool back);

/* Whether oneDNN has but its reference loop for it, which is thousands of times slower than its others. */
bool cf_dnnl_is_reference(const_dnnl_primitive_desc_t desc);

#endif
