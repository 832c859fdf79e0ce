/* windows.h: the windows of pools: which elements of an axis one has, and which ones an element is in. */
#ifndef CF_DEVICE_WINDOWS_H
#define CF_DEVICE_WINDOWS_H

#include "device/ops.h"

/* Windows of `kernel` elements, `dilation` apart; an adaptive axis has `out` windows that cover it. */
typedef struct cf_axis {
    int64_t in, out, kernel, stride, pad, dilation;
    int32_t adaptive;
} cf_axis;

/* Taps [from, to) of a window are elements of the axis: tap k is first + k step. */
typedef struct cf_taps {
    int64_t first, step, from, to;
} cf_taps;

/* On the host.  d: 0 for the height, 1 for the width. */
static inline cf_axis cf_pool_axis(const cf_pool_params *p, int d, int64_t in, int64_t out) {
    cf_axis a;
    a.in = in;
    a.out = out;
    a.kernel = p->window.kernel[d];
    a.stride = p->window.stride[d];
    a.pad = p->window.pad[2 * d];
    a.dilation = p->adaptive ? 1 : p->window.dilation[d];
    a.adaptive = p->adaptive;
    return a;
}

CF_KERNEL_FUNCTION int64_t cf_ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

CF_KERNEL_FUNCTION cf_taps cf_taps_of(const cf_axis *a, int64_t window) {
    cf_taps t;
    t.step = a->dilation;
    t.from = 0;
    if (a->adaptive) {
        t.first = window * a->in / a->out;
        t.to = cf_ceil_div((window + 1) * a->in, a->out) - t.first;
        return t;
    }
    t.first = window * a->stride - a->pad;
    if (t.first < 0) t.from = cf_ceil_div(-t.first, t.step);
    t.to = t.first < a->in ? cf_ceil_div(a->in - t.first, t.step) : 0;
    if (t.to > a->kernel) t.to = a->kernel;
    if (t.from > t.to) t.from = t.to;
    return t;
}

/* The windows [*from, *to) that may have the element: those of them where cf_tap_of is not negative. */
CF_KERNEL_FUNCTION void cf_windows_of(const cf_axis *a, int64_t element, int64_t *from, int64_t *to) {
    if (a->adaptive) {
        *from = element * a->out / a->in;
        *to = cf_ceil_div((element + 1) * a->out, a->in);
        return;
    }
    const int64_t last = element + a->pad, first = last - (a->kernel - 1) * a->dilation;
    *from = first > 0 ? cf_ceil_div(first, a->stride) : 0;
    *to = last / a->stride + 1;
    if (*to > a->out) *to = a->out;
}

/* Which tap of the window, one of cf_windows_of, the element is; -1: none. */
CF_KERNEL_FUNCTION int64_t cf_tap_of(const cf_axis *a, int64_t window, int64_t element) {
    if (a->adaptive) return element - window * a->in / a->out;
    const int64_t away = element + a->pad - window * a->stride;
    if (a->dilation == 1) return away; /* spares divisions */
    return away % a->dilation ? -1 : away / a->dilation;
}

/* How many elements a mean over the window is divided by, along this axis. */
CF_KERNEL_FUNCTION int64_t cf_window_count(const cf_axis *a, int64_t window, int count_pad) {
    const cf_taps t = cf_taps_of(a, window);
    return count_pad && !a->adaptive ? a->kernel : t.to - t.from;
}

#endif
