/* dnnl_primitive.c: oneDNN 2.x describes an operation in a struct first; 3.x makes its primitive descriptor in one
 * call and has memory descriptors behind pointers.  The first part of this file gives both the same face. */
#include "cpu/dnnl_primitive.h"

#include <string.h>

#include "base/status.h"

#if DNNL_VERSION_MAJOR >= 3

/* A format that another object holds. */
typedef const_dnnl_memory_desc_t format;
static format format_of(const cf_dnnl_desc *desc) { return *desc; }

dnnl_status_t cf_dnnl_desc_new(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type,
                               const dnnl_dims_t stride) {
    return dnnl_memory_desc_create_with_strides(out, ndims, shape, type, stride);
}

dnnl_status_t cf_dnnl_desc_any(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type) {
    return dnnl_memory_desc_create_with_tag(out, ndims, shape, type, dnnl_format_tag_any);
}

void cf_dnnl_desc_free(cf_dnnl_desc *desc) {
    if (*desc) dnnl_memory_desc_destroy(*desc);
    *desc = NULL;
}

dnnl_status_t cf_dnnl_append_sum(dnnl_post_ops_t ops) {
    return dnnl_post_ops_append_sum(ops, 1, 0, dnnl_data_type_undef);
}

dnnl_status_t cf_dnnl_append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t act, float alpha) {
    return dnnl_post_ops_append_eltwise(ops, act, alpha, 0);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *a,
                                 const cf_dnnl_desc *b, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                 const_dnnl_primitive_attr_t attr) {
    return dnnl_matmul_primitive_desc_create(out, engine, *a, *b, *bias, *y, attr);
}

static dnnl_status_t forward_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *x,
                                  const cf_dnnl_desc *weight, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                  const cf_dnnl_window *w, const_dnnl_primitive_attr_t attr) {
    return dnnl_convolution_forward_primitive_desc_create(out, engine, dnnl_forward_training, dnnl_convolution_direct,
                                                          *x, *weight, *bias, *y, w->stride, w->dilation, w->before,
                                                          w->after, attr);
}

static dnnl_status_t backward_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cf_dnnl_direction direction,
                                   const cf_dnnl_desc *x, const cf_dnnl_desc *weight, const cf_dnnl_desc *y,
                                   const cf_dnnl_window *w, const_dnnl_primitive_desc_t forward,
                                   const_dnnl_primitive_attr_t attr) {
    if (direction == CF_DNNL_BACKWARD_DATA)
        return dnnl_convolution_backward_data_primitive_desc_create(out, engine, dnnl_convolution_direct, *x, *weight,
                                                                    *y, w->stride, w->dilation, w->before, w->after,
                                                                    forward, attr);
    return dnnl_convolution_backward_weights_primitive_desc_create(out, engine, dnnl_convolution_direct, *x, *weight,
                                                                   NULL, *y, w->stride, w->dilation, w->before,
                                                                   w->after, forward, attr);
}

#else

typedef const dnnl_memory_desc_t *format;
static format format_of(const cf_dnnl_desc *desc) { return desc; }

dnnl_status_t cf_dnnl_desc_new(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type,
                               const dnnl_dims_t stride) {
    return dnnl_memory_desc_init_by_strides(out, ndims, shape, type, stride);
}

dnnl_status_t cf_dnnl_desc_any(cf_dnnl_desc *out, int ndims, const dnnl_dims_t shape, dnnl_data_type_t type) {
    return dnnl_memory_desc_init_by_tag(out, ndims, shape, type, dnnl_format_tag_any);
}

void cf_dnnl_desc_free(cf_dnnl_desc *desc) { memset(desc, 0, sizeof *desc); }

dnnl_status_t cf_dnnl_append_sum(dnnl_post_ops_t ops) { return dnnl_post_ops_append_sum(ops, 1); }

dnnl_status_t cf_dnnl_append_act(dnnl_post_ops_t ops, dnnl_alg_kind_t act, float alpha) {
    return dnnl_post_ops_append_eltwise(ops, 1, act, alpha, 0);
}

static dnnl_status_t matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *a,
                                 const cf_dnnl_desc *b, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                 const_dnnl_primitive_attr_t attr) {
    dnnl_matmul_desc_t matmul;
    const dnnl_status_t status = dnnl_matmul_desc_init(&matmul, a, b, bias->ndims ? bias : NULL, y);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &matmul, attr, engine, NULL);
}

static dnnl_status_t forward_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *x,
                                  const cf_dnnl_desc *weight, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                  const cf_dnnl_window *w, const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t conv;
    const dnnl_status_t status = dnnl_dilated_convolution_forward_desc_init(
        &conv, dnnl_forward_training, dnnl_convolution_direct, x, weight, bias->ndims ? bias : NULL, y, w->stride,
        w->dilation, w->before, w->after);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &conv, attr, engine, NULL);
}

static dnnl_status_t backward_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cf_dnnl_direction direction,
                                   const cf_dnnl_desc *x, const cf_dnnl_desc *weight, const cf_dnnl_desc *y,
                                   const cf_dnnl_window *w, const_dnnl_primitive_desc_t forward,
                                   const_dnnl_primitive_attr_t attr) {
    dnnl_convolution_desc_t conv;
    const dnnl_status_t status =
        direction == CF_DNNL_BACKWARD_DATA
            ? dnnl_dilated_convolution_backward_data_desc_init(&conv, dnnl_convolution_direct, x, weight, y, w->stride,
                                                               w->dilation, w->before, w->after)
            : dnnl_dilated_convolution_backward_weights_desc_init(&conv, dnnl_convolution_direct, x, weight, NULL, y,
                                                                  w->stride, w->dilation, w->before, w->after);
    return status != dnnl_success ? status : dnnl_primitive_desc_create(out, &conv, attr, engine, forward);
}

#endif

/* ---- descriptions ------------------------------------------------------------------------------------------- */

#define TRY(call) \
    if ((status = (call)) != dnnl_success) goto done

/* The caller of every primitive brings its scratchpad. */
static dnnl_status_t attr_new(const_dnnl_post_ops_t ops, dnnl_primitive_attr_t *out) {
    dnnl_status_t status;
    TRY(dnnl_primitive_attr_create(out));
    TRY(dnnl_primitive_attr_set_scratchpad_mode(*out, dnnl_scratchpad_mode_user));
    if (ops) TRY(dnnl_primitive_attr_set_post_ops(*out, ops));
done:
    return status;
}

dnnl_status_t cf_dnnl_matmul_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *a,
                                  const cf_dnnl_desc *b, const cf_dnnl_desc *bias, const cf_dnnl_desc *y,
                                  const_dnnl_post_ops_t ops) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status;
    TRY(attr_new(ops, &attr));
    TRY(matmul_desc(out, engine, a, b, bias, y, attr));
done:
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

dnnl_status_t cf_dnnl_conv_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, cf_dnnl_direction direction,
                                const cf_dnnl_desc *x, const cf_dnnl_desc *weight, const cf_dnnl_desc *bias,
                                const cf_dnnl_desc *y, const cf_dnnl_window *window, const_dnnl_post_ops_t ops) {
    dnnl_primitive_attr_t attr = NULL;
    dnnl_primitive_desc_t forward = NULL; /* a backward's is made after that of its forward */
    dnnl_status_t status;
    TRY(attr_new(ops, &attr));
    TRY(forward_desc(&forward, engine, x, weight, bias, y, window, attr));
    if (direction == CF_DNNL_FORWARD) {
        *out = forward;
        forward = NULL;
    } else {
        TRY(backward_desc(out, engine, direction, x, weight, y, window, forward, attr));
    }
done:
    if (forward) dnnl_primitive_desc_destroy(forward);
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

dnnl_status_t cf_dnnl_reorder_desc(dnnl_primitive_desc_t *out, dnnl_engine_t engine, const cf_dnnl_desc *plain,
                                   const_dnnl_primitive_desc_t desc, int arg, bool back) {
    const format other = dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg);
    const format from = back ? other : format_of(plain), to = back ? format_of(plain) : other;
    dnnl_primitive_attr_t attr = NULL;
    dnnl_status_t status;
    TRY(attr_new(NULL, &attr));
    TRY(dnnl_reorder_primitive_desc_create(out, from, engine, to, engine, attr));
done:
    if (attr) dnnl_primitive_attr_destroy(attr);
    return status;
}

bool cf_dnnl_is_reference(const_dnnl_primitive_desc_t desc) {
    const char *name = NULL;
    const dnnl_status_t status = dnnl_primitive_desc_query(desc, dnnl_query_impl_info_str, 0, &name);
    return status == dnnl_success && strncmp(name, "ref", 3) == 0;
}

/* ---- primitives --------------------------------------------------------------------------------------------- */

static dnnl_status_t add_arg(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int arg, cf_dnnl_primitive *out) {
    if (out->nargs == CF_DNNL_ARGS) return dnnl_invalid_arguments;
    dnnl_exec_arg_t *at = &out->args[out->nargs];
    const dnnl_status_t status = dnnl_memory_create(
        &at->memory, dnnl_primitive_desc_query_md(desc, dnnl_query_exec_arg_md, arg), engine, DNNL_MEMORY_NONE);
    if (status != dnnl_success) return status;
    at->arg = arg;
    out->nargs++;
    return dnnl_success;
}

dnnl_status_t cf_dnnl_primitive_new(dnnl_engine_t engine, const_dnnl_primitive_desc_t desc, int n, const int *args,
                                    cf_dnnl_primitive *out) {
    dnnl_status_t status;
    memset(out, 0, sizeof *out);
    TRY(dnnl_primitive_create(&out->primitive, desc));
    for (int i = 0; i < n; i++) TRY(add_arg(engine, desc, args[i], out));
    TRY(add_arg(engine, desc, DNNL_ARG_SCRATCHPAD, out));
    out->pad_bytes = dnnl_memory_desc_get_size(dnnl_primitive_desc_query_md(desc, dnnl_query_scratchpad_md, 0));
done:
    return status;
}

void cf_dnnl_primitive_free(cf_dnnl_primitive *p) {
    for (int i = 0; i < p->nargs; i++) dnnl_memory_destroy(p->args[i].memory);
    if (p->primitive) dnnl_primitive_destroy(p->primitive);
    memset(p, 0, sizeof *p);
}

dnnl_status_t cf_dnnl_primitive_run(cf_dnnl_primitive *p, dnnl_stream_t stream, void *const *data, void *pad) {
    const int last = p->nargs - 1;
    dnnl_status_t status;
    for (int i = 0; i < last; i++) TRY(dnnl_memory_set_data_handle(p->args[i].memory, data[i]));
    TRY(dnnl_memory_set_data_handle(p->args[last].memory, pad));
    TRY(dnnl_primitive_execute(p->primitive, stream, p->nargs, p->args));
done:
    return status;
}

size_t cf_dnnl_primitive_bytes(const cf_dnnl_primitive *p, int k) {
    format of = NULL;
    return dnnl_memory_get_memory_desc(p->args[k].memory, &of) == dnnl_success ? dnnl_memory_desc_get_size(of) : 0;
}

cfx_status cf_dnnl_made(dnnl_status_t status, const char *what) {
    if (status == dnnl_success) return CFX_OK;
    if (status == dnnl_out_of_memory) return cf_fail(CFX_EMEMORY, "oneDNN has no memory for %s", what);
    return cf_fail(CFX_ESTATE, "oneDNN does not have %s (status %d)", what, (int)status);
}
