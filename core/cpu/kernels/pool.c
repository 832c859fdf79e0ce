/* pool.c: the largest and the mean of windows of images [n, height, width, c], and their gradients.
 *
 * A result is a pixel's channels: the loops run over these, window by window.  A gradient is gathered: each pixel of
 * the input goes over the windows that have it, in order, so no two threads add to one place.
 */
#include "cpu/kernels/pixels.h"
#include "device/windows.h"

typedef struct pool {
    cf_pixels p;
    cf_axis h, w;
    int count_pad;
    cf_view tap; /* flat; data NULL: there is none */
} pool;

/* ---- loops over channels --------------------------------------------------------------------------------- */

/* Taps are numbers of the compute type, too, as wide as what they are chosen with. */
#define LOOPS(name, T)                                                                                        \
    static void larger_##name(const void *in, int64_t tap, int64_t n, void *best_, void *at_) {               \
        const T *x = in, k = (T)tap;                                                                          \
        T *restrict best = best_, *restrict at = at_;                                                         \
        for (int64_t i = 0; i < n; i++) {                                                                     \
            const int better = (x[i] > best[i]) | (x[i] != x[i]);                                             \
            best[i] = better ? x[i] : best[i];                                                                \
            at[i] = better ? k : at[i];                                                                       \
        }                                                                                                     \
    }                                                                                                         \
    static void divide_##name(double count, int64_t n, const void *sum, void *out) {                          \
        for (int64_t i = 0; i < n; i++) ((T *)out)[i] = ((const T *)sum)[i] / (T)count;                       \
    }                                                                                                         \
    static void add_where_u8_##name(const void *in, const uint8_t *at, int64_t tap, int64_t n, void *sum_) {  \
        const T *x = in;                                                                                      \
        T *restrict sum = sum_;                                                                               \
        for (int64_t i = 0; i < n; i++) sum[i] += at[i] == (uint8_t)tap ? x[i] : 0;                           \
    }                                                                                                         \
    static void add_where_i32_##name(const void *in, const int32_t *at, int64_t tap, int64_t n, void *sum_) { \
        const T *x = in;                                                                                      \
        T *restrict sum = sum_;                                                                               \
        for (int64_t i = 0; i < n; i++) sum[i] += at[i] == (int32_t)tap ? x[i] : 0;                           \
    }                                                                                                         \
    static void put_taps_##name(const void *at, int64_t n, const cf_view *tap, int64_t from) {                \
        if (tap->dtype == CFX_UINT8)                                                                          \
            for (int64_t i = 0; i < n; i++) ((uint8_t *)tap->data + from)[i] = (uint8_t)((const T *)at)[i];   \
        else                                                                                                  \
            for (int64_t i = 0; i < n; i++) ((int32_t *)tap->data + from)[i] = (int32_t)((const T *)at)[i];   \
    }
LOOPS(f32, float)
LOOPS(f64, double)

/* ---- results --------------------------------------------------------------------------------------------- */

static void largest(const pool *l, const cf_spot *s) {
    cf_block_memory temp, best, at;
    const cf_taps h = cf_taps_of(&l->h, s->row), w = cf_taps_of(&l->w, s->col);
    const int64_t out = cf_spot_at(&l->p, s, l->h.out, l->w.out, s->row, s->col);
    CF_PIXEL(&l->p, cf_spot_set, -INFINITY, s->n, &best);
    CF_PIXEL(&l->p, cf_spot_set, (double)(h.from * l->w.kernel + w.from), s->n, &at);
    for (int64_t i = h.from; i < h.to; i++)
        for (int64_t k = w.from; k < w.to; k++) {
            const int64_t in = cf_spot_at(&l->p, s, l->h.in, l->w.in, h.first + i * h.step, w.first + k * w.step);
            CF_PIXEL(&l->p, larger, cf_spot_read(&l->p, in, s->n, &temp), i * l->w.kernel + k, s->n, &best, &at);
        }
    cf_spot_write(&l->p, out, s->n, &best);
    if (l->tap.data) CF_PIXEL(&l->p, put_taps, &at, s->n, &l->tap, out);
}

/* Each row of a window is added up by itself, so that in a large one no long sum grows from small numbers. */
static void mean(const pool *l, const cf_spot *s) {
    cf_block_memory temp, sum, row;
    const cf_taps h = cf_taps_of(&l->h, s->row), w = cf_taps_of(&l->w, s->col);
    const int64_t count = cf_window_count(&l->h, s->row, l->count_pad) * cf_window_count(&l->w, s->col, l->count_pad);
    CF_PIXEL(&l->p, cf_spot_set, 0, s->n, &sum);
    for (int64_t i = h.from; i < h.to; i++) {
        CF_PIXEL(&l->p, cf_spot_set, 0, s->n, &row);
        for (int64_t k = w.from; k < w.to; k++) {
            const int64_t in = cf_spot_at(&l->p, s, l->h.in, l->w.in, h.first + i * h.step, w.first + k * w.step);
            CF_PIXEL(&l->p, cf_spot_add, cf_spot_read(&l->p, in, s->n, &temp), 1, s->n, &row);
        }
        CF_PIXEL(&l->p, cf_spot_add, &row, 1, s->n, &sum);
    }
    CF_PIXEL(&l->p, divide, (double)count, s->n, &sum, &sum);
    cf_spot_write(&l->p, cf_spot_at(&l->p, s, l->h.out, l->w.out, s->row, s->col), s->n, &sum);
}

/* Lines [from, to) of what is made, spot by spot. */
typedef void (*maker)(const pool *l, const cf_spot *s);
static inline void make_lines(const pool *l, int64_t from, int64_t to, int64_t height, int64_t width, maker make) {
    for (int64_t line = from; line < to; line++)
        for (cf_spot s = cf_first_spot(&l->p, line, height); s.col < width; cf_next_spot(&l->p, &s)) make(l, &s);
}
static void maxpool_part(void *context, int64_t from, int64_t to) {
    const pool *l = context;
    make_lines(l, from, to, l->h.out, l->w.out, largest);
}
static void meanpool_part(void *context, int64_t from, int64_t to) {
    const pool *l = context;
    make_lines(l, from, to, l->h.out, l->w.out, mean);
}

/* ---- gradients: x is dy, y is dx ------------------------------------------------------------------------- */

/* Adds what the window (row, col), whose tap the pixel is, gives to it. */
typedef void (*giver)(const pool *l, const cf_spot *s, int64_t row, int64_t col, int64_t tap, const void *dy,
                      int64_t at, void *sum);

static void give_chosen(const pool *l, const cf_spot *s, int64_t row, int64_t col, int64_t tap, const void *dy,
                        int64_t at, void *sum) {
    (void)row, (void)col;
    if (l->tap.dtype == CFX_UINT8) CF_PIXEL(&l->p, add_where_u8, dy, (const uint8_t *)l->tap.data + at, tap, s->n, sum);
    else CF_PIXEL(&l->p, add_where_i32, dy, (const int32_t *)l->tap.data + at, tap, s->n, sum);
}
static void give_share(const pool *l, const cf_spot *s, int64_t row, int64_t col, int64_t tap, const void *dy,
                       int64_t at, void *sum) {
    (void)tap, (void)at;
    const int64_t count = cf_window_count(&l->h, row, l->count_pad) * cf_window_count(&l->w, col, l->count_pad);
    CF_PIXEL(&l->p, cf_spot_add, dy, 1 / (double)count, s->n, sum);
}

static inline void gather(const pool *l, const cf_spot *s, giver give) {
    cf_block_memory temp, sum;
    int64_t top, bottom, left, right;
    cf_windows_of(&l->h, s->row, &top, &bottom);
    cf_windows_of(&l->w, s->col, &left, &right);
    CF_PIXEL(&l->p, cf_spot_set, 0, s->n, &sum);
    for (int64_t i = top; i < bottom; i++)
        for (int64_t k = left, tap_h = cf_tap_of(&l->h, i, s->row); k < right; k++) {
            const int64_t tap_w = cf_tap_of(&l->w, k, s->col), at = cf_spot_at(&l->p, s, l->h.out, l->w.out, i, k);
            if (tap_h >= 0 && tap_w >= 0)
                give(l, s, i, k, tap_h * l->w.kernel + tap_w, cf_spot_read(&l->p, at, s->n, &temp), at, &sum);
        }
    cf_spot_write(&l->p, cf_spot_at(&l->p, s, l->h.in, l->w.in, s->row, s->col), s->n, &sum);
}
static void gather_chosen(const pool *l, const cf_spot *s) { gather(l, s, give_chosen); }
static void gather_shares(const pool *l, const cf_spot *s) { gather(l, s, give_share); }
static void maxpool_bw_part(void *context, int64_t from, int64_t to) {
    const pool *l = context;
    make_lines(l, from, to, l->h.in, l->w.in, gather_chosen);
}
static void meanpool_bw_part(void *context, int64_t from, int64_t to) {
    const pool *l = context;
    make_lines(l, from, to, l->h.in, l->w.in, gather_shares);
}

/* ---- kernels --------------------------------------------------------------------------------------------- */

/* in, out: the larger and the smaller image of the pool, whichever is made. */
static cfx_status run(cf_worker *worker, const cf_call *call, const cf_view *in, const cf_view *out, const cf_view *tap,
                      cf_part part) {
    const cf_pool_params *params = cf_call_params(call);
    const cf_view *y = &call->v[0];
    if (cf_view_numel(y) == 0) return CFX_OK;
    pool l = {.p = cf_pixels_of(call->dtype, y, cf_call_in(call, 0)),
              .h = cf_pool_axis(params, 0, in->shape[1], out->shape[1]),
              .w = cf_pool_axis(params, 1, in->shape[2], out->shape[2]),
              .count_pad = params->count_pad};
    if (tap) l.tap = cf_flat(tap);
    CF_K(parallel)(cf_cpu_team(worker, cf_view_numel(in) * 4), y->shape[0] * y->shape[1], 1, part, &l);
    return CFX_OK;
}

cfx_status CF_K(maxpool)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, cf_call_in(call, 0), call->v, call->nout > 1 ? &call->v[1] : NULL, maxpool_part);
}
cfx_status CF_K(maxpool_bw)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, call->v, cf_call_in(call, 0), cf_call_in(call, 1), maxpool_bw_part);
}
cfx_status CF_K(meanpool)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, cf_call_in(call, 0), call->v, NULL, meanpool_part);
}
cfx_status CF_K(meanpool_bw)(cf_worker *worker, const cf_call *call) {
    return run(worker, call, call->v, cf_call_in(call, 0), NULL, meanpool_bw_part);
}
