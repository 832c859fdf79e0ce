/* winograd.h: convolutions of float32 by Winograd's method: 3x3 windows that move by one pixel. */
#ifndef CF_CPU_KERNELS_WINOGRAD_H
#define CF_CPU_KERNELS_WINOGRAD_H

#include "cpu/cpu.h"
#include "cpu/dnnl_conv.h"

/* The operands of a convolution, as cf_conv lays them out; the one that its op makes is written.  A convolution run
 * forwards adds `bias` [out] and `residual` [like y], and takes its positive part if `relu`; NULL: none. */
typedef struct cf_winograd {
    cf_conv form;
    float *x, *weight, *y;
    const float *bias, *residual;
    bool relu;
} cf_winograd;

/* Whether it is such a convolution, and large enough for the method to win. */
bool CF_K(winograd_takes)(const cf_conv *form);
/* Bytes of its room, which is 64-byte aligned. */
size_t CF_K(winograd_room)(cf_worker *worker, const cf_conv *form);
void CF_K(winograd)(cf_worker *worker, const cf_winograd *conv, void *room);

#endif
