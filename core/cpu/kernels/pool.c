/* pool.c: the largest and the mean of windows of images [n, height, width, c], and their gradients.
 *
 * A result is a pixel's channels: the loops run over these, window by window.  A gradient is gathered: each pixel of
 * the input goes over the windows that have it, in order, so no two threads add to one place.
 */
#include "cpu/kernels/block.h"
#include "device/windows.h"

typedef struct pool {
    cf_compute compute;
    cf_axis h, w;
    int64_t c, pieces; /* pieces: of a pixel, of at most CF_BLOCK channels */
    int count_pad;
    cf_view y, x, tap; /* flat: what is made, of what; tap: data NULL: there is none */
} pool;

/* The work at hand: n channels of a pixel of an image of height and width. */
typedef struct spot {
    int64_t image, row, col, channel, n;
} spot;

static spot spot_of(const pool *p, int64_t item, int64_t height, int64_t width) {
    const int64_t pixel = item / p->pieces;
    spot s = {pixel / width / height, pixel / width % height, pixel % width, item % p->pieces * CF_BLOCK, 0};
    s.n = cf_least(CF_BLOCK, p->c - s.channel);
    return s;
}
/* Where pixel (row, col) of the spot's image lies. */
static int64_t place(const pool *p, const spot *s, int64_t height, int64_t width, int64_t row, int64_t col) {
    return ((s->image * height + row) * width + col) * p->c + s->channel;
}
static const void *read_x(const pool *p, int64_t at, int64_t n, cf_block_memory *temp) {
    return cf_direct(&p->x, p->compute) ? cf_at(&p->x, at) : CF_K(read)(&p->x, p->compute, at, n, temp);
}

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
    static void set_##name(double value, int64_t n, void *out) {                                              \
        for (int64_t i = 0; i < n; i++) ((T *)out)[i] = (T)value;                                             \
    }                                                                                                         \
    static void add_##name(const void *in, double scale, int64_t n, void *sum_) {                             \
        const T *x = in, s = (T)scale;                                                                        \
        T *restrict sum = sum_;                                                                               \
        for (int64_t i = 0; i < n; i++) sum[i] += x[i] * s;                                                   \
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
#define CALL(p, name, ...) ((p)->compute == CF_F64 ? name##_f64(__VA_ARGS__) : name##_f32(__VA_ARGS__))

/* ---- results --------------------------------------------------------------------------------------------- */

static void maxpool_part(void *context, int64_t from, int64_t to) {
    const pool *p = context;
    cf_block_memory temp, best, at;
    for (int64_t item = from; item < to; item++) {
        const spot s = spot_of(p, item, p->h.out, p->w.out);
        const cf_taps h = cf_taps_of(&p->h, s.row), w = cf_taps_of(&p->w, s.col);
        const int64_t out = place(p, &s, p->h.out, p->w.out, s.row, s.col);
        CALL(p, set, -INFINITY, s.n, &best);
        CALL(p, set, (double)(h.from * p->w.kernel + w.from), s.n, &at);
        for (int64_t i = h.from; i < h.to; i++)
            for (int64_t k = w.from; k < w.to; k++) {
                const int64_t in = place(p, &s, p->h.in, p->w.in, h.first + i * h.step, w.first + k * w.step);
                CALL(p, larger, read_x(p, in, s.n, &temp), i * p->w.kernel + k, s.n, &best, &at);
            }
        CF_K(write)(&p->y, p->compute, out, s.n, &best);
        if (p->tap.data) CALL(p, put_taps, &at, s.n, &p->tap, out);
    }
}

/* Each row of a window is added up by itself, so that in a large one no long sum grows from small numbers. */
static void meanpool_part(void *context, int64_t from, int64_t to) {
    const pool *p = context;
    cf_block_memory temp, sum, line;
    for (int64_t item = from; item < to; item++) {
        const spot s = spot_of(p, item, p->h.out, p->w.out);
        const cf_taps h = cf_taps_of(&p->h, s.row), w = cf_taps_of(&p->w, s.col);
        const int64_t count = cf_window_count(&p->h, s.row, p->count_pad) * cf_window_count(&p->w, s.col, p->count_pad);
        CALL(p, set, 0, s.n, &sum);
        for (int64_t i = h.from; i < h.to; i++) {
            CALL(p, set, 0, s.n, &line);
            for (int64_t k = w.from; k < w.to; k++) {
                const int64_t in = place(p, &s, p->h.in, p->w.in, h.first + i * h.step, w.first + k * w.step);
                CALL(p, add, read_x(p, in, s.n, &temp), 1, s.n, &line);
            }
            CALL(p, add, &line, 1, s.n, &sum);
        }
        CALL(p, divide, (double)count, s.n, &sum, &sum);
        CF_K(write)(&p->y, p->compute, place(p, &s, p->h.out, p->w.out, s.row, s.col), s.n, &sum);
    }
}

/* ---- gradients: x is dy, y is dx ------------------------------------------------------------------------- */

/* Adds what the window (row, col), whose tap the pixel is, gives to it. */
typedef void (*giver)(const pool *p, const spot *s, int64_t row, int64_t col, int64_t tap, const void *dy, int64_t at,
                      void *sum);

static void give_chosen(const pool *p, const spot *s, int64_t row, int64_t col, int64_t tap, const void *dy, int64_t at,
                        void *sum) {
    (void)row, (void)col;
    if (p->tap.dtype == CFX_UINT8) CALL(p, add_where_u8, dy, (const uint8_t *)p->tap.data + at, tap, s->n, sum);
    else CALL(p, add_where_i32, dy, (const int32_t *)p->tap.data + at, tap, s->n, sum);
}
static void give_share(const pool *p, const spot *s, int64_t row, int64_t col, int64_t tap, const void *dy, int64_t at,
                       void *sum) {
    (void)tap, (void)at;
    const int64_t count = cf_window_count(&p->h, row, p->count_pad) * cf_window_count(&p->w, col, p->count_pad);
    CALL(p, add, dy, 1 / (double)count, s->n, sum);
}

static void gather(const pool *p, int64_t from, int64_t to, giver give) {
    cf_block_memory temp, sum;
    for (int64_t item = from; item < to; item++) {
        const spot s = spot_of(p, item, p->h.in, p->w.in);
        int64_t top, bottom, left, right;
        cf_windows_of(&p->h, s.row, &top, &bottom);
        cf_windows_of(&p->w, s.col, &left, &right);
        CALL(p, set, 0, s.n, &sum);
        for (int64_t i = top; i < bottom; i++)
            for (int64_t k = left; k < right; k++) {
                const int64_t tap_h = cf_tap_of(&p->h, i, s.row), tap_w = cf_tap_of(&p->w, k, s.col);
                const int64_t at = place(p, &s, p->h.out, p->w.out, i, k);
                if (tap_h >= 0 && tap_w >= 0)
                    give(p, &s, i, k, tap_h * p->w.kernel + tap_w, read_x(p, at, s.n, &temp), at, &sum);
            }
        CF_K(write)(&p->y, p->compute, place(p, &s, p->h.in, p->w.in, s.row, s.col), s.n, &sum);
    }
}
static void maxpool_bw_part(void *context, int64_t from, int64_t to) { gather(context, from, to, give_chosen); }
static void meanpool_bw_part(void *context, int64_t from, int64_t to) { gather(context, from, to, give_share); }

/* ---- kernels --------------------------------------------------------------------------------------------- */

static cf_view flat_of(const cf_view *v) {
    return (cf_view){.data = v->data, .dtype = v->dtype, .ndim = 1, .shape = {cf_view_numel(v)}, .stride = {1}};
}

/* in, out: the larger and the smaller image of the pool, whichever is made. */
static cfx_status run(cf_worker *worker, const cf_call *call, const cf_view *in, const cf_view *out, const cf_view *tap,
                      cf_part part) {
    const cf_pool_params *params = cf_call_params(call);
    const cf_view *y = &call->v[0];
    const int64_t elements = cf_view_numel(y), c = y->shape[3];
    if (elements == 0) return CFX_OK;
    pool p = {.compute = cf_compute_of(call->dtype),
              .h = cf_pool_axis(params, 0, in->shape[1], out->shape[1]),
              .w = cf_pool_axis(params, 1, in->shape[2], out->shape[2]),
              .c = c,
              .pieces = (c + CF_BLOCK - 1) / CF_BLOCK,
              .count_pad = params->count_pad,
              .y = flat_of(y),
              .x = flat_of(cf_call_in(call, 0))};
    if (tap) p.tap = flat_of(tap);
    CF_K(parallel)(cf_cpu_team(worker, cf_view_numel(in) * 4), elements / c * p.pieces, 1, part, &p);
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
