/* dnnl_conv.h: convolutions by oneDNN, in each direction.
 *
 * Activations lie as they are everywhere, [n, h, w, channels].  A weight lies [out, kh, kw, in / groups], which oneDNN
 * has but its reference loop for; so the primitive says which format it likes, and each run reorders the weight into
 * that before, or its gradient from that after.
 */
#ifndef CF_CPU_DNNL_CONV_H
#define CF_CPU_DNNL_CONV_H

#include "device/backend.h"

/* All of a convolution but its data: x [n, x[0], x[1], in], weight [out, kernel[0], kernel[1], in / groups],
 * y [n, y[0], y[1], out], each packed, and bias [out].  Pairs are of height and width; pad: before the image.  The bytes
 * of the struct, which has no padding, are a key. */
typedef struct cf_conv {
    int64_t n, in, out, groups, x[2], y[2], kernel[2], stride[2], pad[2], dilation[2];
    double p0;
    int32_t op;    /* CF_OP_conv, _conv_bw_data or _conv_bw_weights */
    int32_t dtype; /* of all */
    int32_t act;   /* a row that cf_dnnl_fuses, taken last, with its number p0; or -1 */
    int32_t bias;  /* whether there is one */
} cf_conv;

struct cf_dnnl_primitive;
typedef struct cf_dnnl_conv {
    struct cf_dnnl_primitive *conv, *reorder;
    size_t room; /* bytes of the weight in oneDNN's format */
} cf_dnnl_conv;

/* The primitives of a convolution of float32 or bfloat16.  CFX_ESTATE: oneDNN has none that is right, or its reference
 * alone (the caller then takes its own loop). */
cfx_status cf_dnnl_conv_find(cf_worker *worker, const cf_conv *conv, cf_dnnl_conv *out);
/* Runs them, before others are looked for.  One of x, weight and y is written, as conv->op says; room [found->room]. */
cfx_status cf_dnnl_conv_run(cf_worker *worker, const cf_conv *conv, const cf_dnnl_conv *found, void *x, void *weight,
                            void *bias, void *y, void *room);

#endif
