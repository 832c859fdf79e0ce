/* sampling.h: which pixels an image of another size is made of, along one axis, by PyTorch's rules. */
#ifndef CF_DEVICE_SAMPLING_H
#define CF_DEVICE_SAMPLING_H

#include "device/ops.h"

/* step: from one result to the next, in elements of the axis; in_floats: rounded as a float's arithmetic rounds. */
typedef struct cf_sampling {
    int64_t in, out;
    double step;
    int32_t bilinear, align_corners, in_floats;
} cf_sampling;

/* A result is (1 - share) times element `first` and share times element `second`, which may be one. */
typedef struct cf_between {
    int64_t first, second;
    double share;
} cf_between;

/* On the host.  d: 0 for the height, 1 for the width; dtype: what is computed in. */
static inline cf_sampling cf_sampling_of(const cf_upsample_params *p, int d, int64_t in, int64_t out, int dtype) {
    cf_sampling a;
    a.in = in;
    a.out = out;
    a.bilinear = p->bilinear;
    a.align_corners = p->align_corners;
    a.in_floats = dtype != CFX_FLOAT64 || !p->bilinear;
    if (a.align_corners && a.bilinear) {
        if (out < 2) a.step = 0;
        else a.step = a.in_floats ? (double)((float)(in - 1) / (float)(out - 1)) : (double)(in - 1) / (double)(out - 1);
    } else if (p->scale[d] > 0) a.step = a.in_floats ? (double)(float)(1 / p->scale[d]) : 1 / p->scale[d];
    else a.step = a.in_floats ? (double)((float)in / (float)out) : (double)in / (double)out;
    return a;
}

CF_KERNEL_FUNCTION int64_t cf_nearest(const cf_sampling *a, int64_t o) {
    if (a->out == a->in) return o;
    if (a->out == 2 * a->in) return o / 2;
    const int64_t element = (int64_t)((float)o * (float)a->step);
    return element < a->in - 1 ? element : a->in - 1;
}

/* Where result o lies, counted in elements. */
CF_KERNEL_FUNCTION double cf_sample_place(const cf_sampling *a, int64_t o) {
    if (a->in_floats) {
        const float step = (float)a->step, at = a->align_corners ? step * (float)o : step * ((float)o + 0.5f) - 0.5f;
        return at > 0 ? (double)at : 0;
    }
    const double at = a->align_corners ? a->step * (double)o : a->step * ((double)o + 0.5) - 0.5;
    return at > 0 ? at : 0;
}

CF_KERNEL_FUNCTION cf_between cf_between_of(const cf_sampling *a, int64_t o) {
    cf_between b;
    if (!a->bilinear) {
        b.first = b.second = cf_nearest(a, o);
        b.share = 0;
        return b;
    }
    const double at = cf_sample_place(a, o);
    b.first = (int64_t)at < a->in - 1 ? (int64_t)at : a->in - 1;
    b.second = b.first + (b.first < a->in - 1);
    b.share = at - (double)b.first < 1 ? at - (double)b.first : 1;
    return b;
}

/* The element's share of result o. */
CF_KERNEL_FUNCTION double cf_share_of(const cf_sampling *a, int64_t o, int64_t element) {
    const cf_between b = cf_between_of(a, o);
    return (b.first == element ? 1 - b.share : 0) + (b.second == element ? b.share : 0);
}

/* The first result of which the element, or one behind it, has a part; elements of results never fall. */
CF_KERNEL_FUNCTION int64_t cf_first_result(const cf_sampling *a, int64_t element) {
    int64_t low = 0, high = a->out;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (cf_between_of(a, middle).second >= element) high = middle;
        else low = middle + 1;
    }
    return low;
}
/* One behind the last result whose first element is this one or one before it. */
CF_KERNEL_FUNCTION int64_t cf_end_result(const cf_sampling *a, int64_t element) {
    int64_t low = 0, high = a->out;
    while (low < high) {
        const int64_t middle = (low + high) / 2;
        if (cf_between_of(a, middle).first > element) high = middle;
        else low = middle + 1;
    }
    return low;
}

#endif
