/* dnnl_conv.c: see dnnl_conv.h. */
#include "cpu/dnnl_conv.h"

#include <stdio.h>
#include <string.h>

#include "base/status.h"
#include "cpu/dnnl.h"
#include "cpu/dnnl_act.h"

#define TRY(call) \
    if ((status = (call)) != dnnl_success) goto done

/* ---- descriptions ------------------------------------------------------------------------------------------- */

/* Of [n, h, w, c], which oneDNN calls [n, c, h, w] whatever lies where. */
static dnnl_status_t image(cf_dnnl_desc *out, dnnl_data_type_t type, int64_t n, const int64_t *size, int64_t c) {
    return cf_dnnl_desc_new(out, 4, (dnnl_dims_t){n, c, size[0], size[1]}, type,
                            (dnnl_dims_t){size[0] * size[1] * c, 1, size[1] * c, c});
}

/* The weight's dimensions, [groups, out, in, kh, kw] of one group, and how far apart they lie; without groups the
 * first is left out. */
static int weight_dims(const cf_conv *c, dnnl_dims_t shape, dnnl_dims_t stride) {
    const int64_t in = c->in / c->groups, out = c->out / c->groups, taps = c->kernel[0] * c->kernel[1];
    const dnnl_dims_t shapes = {c->groups, out, in, c->kernel[0], c->kernel[1]};
    const dnnl_dims_t strides = {out * taps * in, taps * in, 1, c->kernel[1] * in, in};
    const int skip = c->groups == 1, ndims = 5 - skip;
    memcpy(shape, shapes + skip, (size_t)ndims * sizeof *shape);
    memcpy(stride, strides + skip, (size_t)ndims * sizeof *stride);
    return ndims;
}

/* The pad behind the image is what the result's size asks for: it may be less than the caller's, or below 0. */
static cf_dnnl_window window_of(const cf_conv *c) {
    cf_dnnl_window w;
    for (int d = 0; d < 2; d++) {
        const int64_t reach = c->dilation[d] * (c->kernel[d] - 1) + 1;
        w.stride[d] = c->stride[d];
        w.dilation[d] = c->dilation[d] - 1;
        w.before[d] = c->pad[d];
        w.after[d] = (c->y[d] - 1) * c->stride[d] + reach - c->x[d] - c->pad[d];
    }
    return w;
}

static cf_dnnl_direction direction_of(const cf_conv *c) {
    return c->op == CF_OP_conv           ? CF_DNNL_FORWARD
           : c->op == CF_OP_conv_bw_data ? CF_DNNL_BACKWARD_DATA
                                         : CF_DNNL_BACKWARD_WEIGHTS;
}

static dnnl_data_type_t type_of(const cf_conv *c) { return c->dtype == CFX_BFLOAT16 ? dnnl_bf16 : dnnl_f32; }

static dnnl_status_t describe(dnnl_engine_t engine, const cf_conv *c, dnnl_primitive_desc_t *out) {
    const dnnl_data_type_t type = type_of(c);
    const cf_dnnl_window window = window_of(c);
    cf_dnnl_desc x, weight, bias, y;
    dnnl_dims_t shape, stride;
    dnnl_post_ops_t ops = NULL;
    dnnl_status_t status;
    memset(&x, 0, sizeof x);
    memset(&weight, 0, sizeof weight);
    memset(&bias, 0, sizeof bias);
    memset(&y, 0, sizeof y);
    TRY(dnnl_post_ops_create(&ops));
    if (c->act >= 0) TRY(cf_dnnl_append_row(ops, c->act, c->p0));
    TRY(image(&x, type, c->n, c->x, c->in));
    TRY(image(&y, type, c->n, c->y, c->out));
    TRY(cf_dnnl_desc_any(&weight, weight_dims(c, shape, stride), shape, type));
    if (c->bias) TRY(cf_dnnl_desc_new(&bias, 1, (dnnl_dims_t){c->out}, type, (dnnl_dims_t){1}));
    TRY(cf_dnnl_conv_desc(out, engine, direction_of(c), &x, &weight, &bias, &y, &window, ops));
done:
    if (ops) dnnl_post_ops_destroy(ops);
    cf_dnnl_desc_free(&x);
    cf_dnnl_desc_free(&weight);
    cf_dnnl_desc_free(&bias);
    cf_dnnl_desc_free(&y);
    return status;
}

/* ---- primitives --------------------------------------------------------------------------------------------- */

enum { X, WEIGHT, Y, BIAS }; /* the order of arguments */

static const int args[][4] = {
    [CF_DNNL_FORWARD] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DST, DNNL_ARG_BIAS},
    [CF_DNNL_BACKWARD_DATA] = {DNNL_ARG_DIFF_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_DIFF_DST},
    [CF_DNNL_BACKWARD_WEIGHTS] = {DNNL_ARG_SRC, DNNL_ARG_DIFF_WEIGHTS, DNNL_ARG_DIFF_DST},
};

/* A 1x1 convolution with a stride first gathers the pixels that it uses.  The backward by weights, of any version so far,
 * writes them past their room where a pixel has fewer channels than a block, of 8 with AVX2 and 16 with AVX-512
 * (github.com/uxlfoundation/oneDNN/issues/6035). */
static bool is_overrun(const cf_conv *c) {
    enum { BLOCK = 16 };
    return c->op == CF_OP_conv_bw_weights && c->kernel[0] * c->kernel[1] == 1 && c->stride[0] * c->stride[1] > 1 &&
           c->in / c->groups < BLOCK;
}

static cfx_status make_conv(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    const cf_conv *c = key;
    dnnl_primitive_desc_t desc = NULL;
    dnnl_status_t status;
    TRY(describe(engine, c, &desc));
    if (cf_dnnl_is_reference(desc) || is_overrun(c)) status = dnnl_unimplemented;
    else status = cf_dnnl_primitive_new(engine, desc, c->bias ? 4 : 3, args[direction_of(c)], out);
done:
    if (desc) dnnl_primitive_desc_destroy(desc);
    return cf_dnnl_made(status, "such a convolution");
}

/* Between the weight as it lies and as the convolution likes it. */
static cfx_status make_reorder(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    static const int ends[] = {DNNL_ARG_FROM, DNNL_ARG_TO};
    const cf_conv *c = key;
    const cf_dnnl_direction direction = direction_of(c);
    dnnl_primitive_desc_t conv = NULL, desc = NULL;
    cf_dnnl_desc plain;
    dnnl_dims_t shape, stride;
    dnnl_status_t status;
    memset(&plain, 0, sizeof plain);
    const int ndims = weight_dims(c, shape, stride);
    TRY(describe(engine, c, &conv));
    TRY(cf_dnnl_desc_new(&plain, ndims, shape, type_of(c), stride));
    TRY(cf_dnnl_reorder_desc(&desc, engine, &plain, conv, args[direction][WEIGHT],
                             direction == CF_DNNL_BACKWARD_WEIGHTS));
    TRY(cf_dnnl_primitive_new(engine, desc, 2, ends, out));
done:
    cf_dnnl_desc_free(&plain);
    if (desc) dnnl_primitive_desc_destroy(desc);
    if (conv) dnnl_primitive_desc_destroy(conv);
    return cf_dnnl_made(status, "such a format of weights");
}

cfx_status cf_dnnl_conv_find(cf_worker *worker, const cf_conv *conv, cf_dnnl_conv *out) {
    CF_TRY(cf_dnnl_find(worker, make_conv, conv, sizeof *conv, &out->conv));
    CF_TRY(cf_dnnl_find(worker, make_reorder, conv, sizeof *conv, &out->reorder));
    out->room = cf_dnnl_primitive_bytes(out->conv, WEIGHT);
    return CFX_OK;
}

/* ---- runs --------------------------------------------------------------------------------------------------- */

static cfx_status run(cf_worker *worker, const cf_dnnl_conv *found, int op, void *x, void *weight, void *bias, void *y,
                      void *room) {
    if (op != CF_OP_conv_bw_weights) CF_TRY(cf_dnnl_run(worker, found->reorder, (void *[]){weight, room}));
    CF_TRY(cf_dnnl_run(worker, found->conv, (void *[]){[X] = x, [WEIGHT] = room, [Y] = y, [BIAS] = bias}));
    return op == CF_OP_conv_bw_weights ? cf_dnnl_run(worker, found->reorder, (void *[]){room, weight}) : CFX_OK;
}

cfx_status cf_dnnl_conv_run(cf_worker *worker, const cf_conv *conv, const cf_dnnl_conv *found, void *x, void *weight,
                            void *bias, void *y, void *room) {
    const cfx_status status = run(worker, found, conv->op, x, weight, bias, y, room);
    if (status != CFX_EFAULT) return status;
    char what[160];
    snprintf(what, sizeof what, "a convolution of [%lld, %lld, %lld, %lld] to %lld channels", (long long)conv->n,
             (long long)conv->x[0], (long long)conv->x[1], (long long)conv->in, (long long)conv->out);
    return cf_fail_in(status, what);
}
