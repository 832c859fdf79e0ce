/* forms.h: convolutions for tests: their tensors, and what these should become, by one plain loop over doubles. */
#ifndef CF_TEST_FORMS_H
#define CF_TEST_FORMS_H

#include "machines.h"

static inline int64_t one_of(int64_t low, int64_t high) { return low + random_bits() % (high - low + 1); }

/* pad: top, bottom, left, right */
typedef struct form {
    int64_t n, size[2], in, out, groups, kernel[2], stride[2], pad[4], dilation[2];
} form;

/* What a form's tensors are, and what they should become: sums, and of each the magnitude of what was added. */
typedef struct exact {
    int64_t y[2];
    double *value[3], *magnitude[3]; /* of y, dx, dweight */
} exact;

static int64_t result_size(const form *f, int d) {
    const int64_t reach = f->dilation[d] * (f->kernel[d] - 1) + 1;
    return (f->size[d] + f->pad[2 * d] + f->pad[2 * d + 1] - reach) / f->stride[d] + 1;
}

static void exact_add(exact *e, int which, int64_t at, double term) {
    e->value[which][at] += term;
    e->magnitude[which][at] += fabs(term);
}

/* One loop over all (pixel of y, channel of y, tap, channel of x) makes all three. */
static inline exact exact_of(const form *f, const cf_view *x, const cf_view *w, const cf_view *dy) {
    exact e = {.y = {dy->shape[1], dy->shape[2]}};
    const cf_view *const of[] = {dy, x, w};
    for (int k = 0; k < 3; k++) {
        e.value[k] = calloc((size_t)cf_view_numel(of[k]) + 1, sizeof(double));
        e.magnitude[k] = calloc((size_t)cf_view_numel(of[k]) + 1, sizeof(double));
    }
    double *xs = numbers_of(x), *ws = numbers_of(w), *dys = numbers_of(dy);
    const int64_t in = f->in / f->groups, out = f->out / f->groups;
    for (int64_t p = 0; p < f->n * e.y[0] * e.y[1]; p++) {
        const int64_t image = p / (e.y[0] * e.y[1]), row = p / e.y[1] % e.y[0], col = p % e.y[1];
        for (int64_t tap = 0; tap < f->kernel[0] * f->kernel[1]; tap++) {
            const int64_t i = row * f->stride[0] - f->pad[0] + tap / f->kernel[1] * f->dilation[0];
            const int64_t j = col * f->stride[1] - f->pad[2] + tap % f->kernel[1] * f->dilation[1];
            if (i < 0 || i >= f->size[0] || j < 0 || j >= f->size[1]) continue;
            for (int64_t o = 0; o < f->out; o++)
                for (int64_t c = 0; c < in; c++) {
                    const int64_t at_x = ((image * f->size[0] + i) * f->size[1] + j) * f->in + o / out * in + c;
                    const int64_t at_w = (o * f->kernel[0] * f->kernel[1] + tap) * in + c, at_y = p * f->out + o;
                    exact_add(&e, 0, at_y, xs[at_x] * ws[at_w]);
                    exact_add(&e, 1, at_x, dys[at_y] * ws[at_w]);
                    exact_add(&e, 2, at_w, dys[at_y] * xs[at_x]);
                }
        }
    }
    free(xs), free(ws), free(dys);
    return e;
}

static inline void exact_free(exact *e) {
    for (int k = 0; k < 3; k++) free(e->value[k]), free(e->magnitude[k]);
}

typedef struct tensors {
    cf_view x, w, dy, y, dx, dw;
    cf_conv_params params;
} tensors;

static inline tensors tensors_of(const form *f, int dtype) {
    const int64_t size[2] = {result_size(f, 0), result_size(f, 1)};
    const int64_t x[] = {f->n, f->size[0], f->size[1], f->in}, y[] = {f->n, size[0], size[1], f->out};
    const int64_t w[] = {f->out, f->kernel[0], f->kernel[1], f->in / f->groups};
    tensors t = {.x = view(dtype, PACKED, 4, x),
                 .w = view(dtype, PACKED, 4, w),
                 .dy = view(dtype, PACKED, 4, y),
                 .y = view(dtype, PACKED, 4, y),
                 .dx = view(dtype, PACKED, 4, x),
                 .dw = view(dtype, PACKED, 4, w),
                 .params = {.stride = {f->stride[0], f->stride[1]},
                            .pad = {f->pad[0], f->pad[2]},
                            .dilation = {f->dilation[0], f->dilation[1]},
                            .groups = f->groups,
                            .p = {0.25},
                            .act = -1}};
    fill_random(&t.x, -1, 1);
    fill_random(&t.w, -1, 1);
    fill_random(&t.dy, -1, 1);
    fill(&t.y, NAN);
    fill(&t.dx, NAN);
    fill(&t.dw, NAN);
    return t;
}

#endif
