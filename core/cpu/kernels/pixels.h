/* pixels.h: kernels that make images [n, height, width, c] pixel by pixel, each by loops over its channels. */
#ifndef CF_CPU_KERNELS_PIXELS_H
#define CF_CPU_KERNELS_PIXELS_H

#include "cpu/kernels/block.h"

/* Both views are flat.  is_direct: x is of the compute type. */
typedef struct cf_pixels {
    cf_compute compute;
    int64_t c;
    cf_view y, x; /* made; read */
    int is_direct;
} cf_pixels;

/* The work at hand: n channels of a pixel.  Work is shared out by lines of an image. */
typedef struct cf_spot {
    int64_t image, row, col, channel, n;
} cf_spot;

static inline cf_view cf_flat(const cf_view *v) {
    return (cf_view){.data = v->data, .dtype = v->dtype, .ndim = 1, .shape = {cf_view_numel(v)}, .stride = {1}};
}
static inline cf_pixels cf_pixels_of(int dtype, const cf_view *y, const cf_view *x) {
    cf_pixels p = {.compute = cf_compute_of(dtype), .c = y->shape[3], .y = cf_flat(y), .x = cf_flat(x)};
    p.is_direct = cf_direct(&p.x, p.compute);
    return p;
}

static inline void cf_take_channels(const cf_pixels *p, cf_spot *s, int64_t from) {
    s->channel = from;
    s->n = cf_least(CF_BLOCK, p->c - from);
}
static inline cf_spot cf_first_spot(const cf_pixels *p, int64_t line, int64_t height) {
    cf_spot s = {.image = line / height, .row = line % height};
    cf_take_channels(p, &s, 0);
    return s;
}
static inline void cf_next_spot(const cf_pixels *p, cf_spot *s) {
    const int64_t next = s->channel + s->n;
    s->col += next == p->c;
    cf_take_channels(p, s, next == p->c ? 0 : next);
}
/* Where pixel (row, col) of the spot's image of height and width lies. */
static inline int64_t cf_spot_at(const cf_pixels *p, const cf_spot *s, int64_t height, int64_t width, int64_t row,
                                 int64_t col) {
    return ((s->image * height + row) * width + col) * p->c + s->channel;
}
static inline const void *cf_spot_read(const cf_pixels *p, int64_t at, int64_t n, cf_block_memory *temp) {
    return p->is_direct ? cf_at(&p->x, at) : CF_K(read)(&p->x, p->compute, at, n, temp);
}
static inline void cf_spot_write(const cf_pixels *p, int64_t at, int64_t n, const cf_block_memory *block) {
    CF_K(write)(&p->y, p->compute, at, n, block);
}

/* Loops over channels: out <- value; sum += x scale. */
#define CF_PIXEL_LOOPS(name, T)                                                                  \
    static inline void cf_spot_set_##name(double value, int64_t n, void *out) {                  \
        for (int64_t i = 0; i < n; i++) ((T *)out)[i] = (T)value;                                \
    }                                                                                            \
    static inline void cf_spot_add_##name(const void *in, double scale, int64_t n, void *sum_) { \
        const T *x = in, s = (T)scale;                                                           \
        T *restrict sum = sum_;                                                                  \
        for (int64_t i = 0; i < n; i++) sum[i] += x[i] * s;                                      \
    }
CF_PIXEL_LOOPS(f32, float)
CF_PIXEL_LOOPS(f64, double)
#define CF_PIXEL(p, name, ...) ((p)->compute == CF_F64 ? name##_f64(__VA_ARGS__) : name##_f32(__VA_ARGS__))

#endif
