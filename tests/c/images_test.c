/* images_test.c: what is done with images [n, height, width, c], against plain loops in doubles. */
#include "test.h"

#include "machines.h"

static const int float_types[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16};
enum { FLOAT_TYPES = 4 };

#define IMAGES(dtype, n, h, w, c) view(dtype, PACKED, 4, (int64_t[]){n, h, w, c})

static int64_t at(const cf_view *v, int64_t n, int64_t h, int64_t w, int64_t c) {
    return ((n * v->shape[1] + h) * v->shape[2] + w) * v->shape[3] + c;
}

/* ---- pools */

/* Window o covers elements first, first + step, .. of an axis, `kernel` of them, of which some may lie outside. */
static void window_of(const cf_pool_params *p, int d, int64_t in, int64_t out, int64_t o, int64_t *first,
                      int64_t *kernel, int64_t *step) {
    *step = p->adaptive ? 1 : p->window.dilation[d];
    *first = p->adaptive ? o * in / out : o * p->window.stride[d] - p->window.pad[2 * d];
    *kernel = p->adaptive ? ((o + 1) * in + out - 1) / out - *first : p->window.kernel[d];
}

typedef struct pool {
    int dtype, taps; /* taps: their dtype; of a meanpool 0 */
    int64_t n, h, w, c, out_h, out_w;
    cf_pool_params p;
} pool;

/* dx by plain loops [n h w c], given which element (or -1: all of the window) takes the gradient. */
static void spread(const pool *l, const cf_view *dy, int64_t o, int64_t i, int64_t k, int64_t c, int64_t n,
                   double share, int64_t chosen, const cf_view *x, double *dx) {
    int64_t fh, kh, sh, fw, kw, sw;
    window_of(&l->p, 0, l->h, l->out_h, i, &fh, &kh, &sh);
    window_of(&l->p, 1, l->w, l->out_w, k, &fw, &kw, &sw);
    for (int64_t a = 0; a < kh; a++)
        for (int64_t b = 0; b < kw; b++) {
            const int64_t row = fh + a * sh, col = fw + b * sw;
            if (row < 0 || row >= l->h || col < 0 || col >= l->w) continue;
            if (chosen < 0 || chosen == at(x, n, row, col, c)) dx[at(x, n, row, col, c)] += get(dy, o) * share;
        }
}

static uint64_t check_pool(machine *m, pool l) {
    cf_view x = IMAGES(l.dtype, l.n, l.h, l.w, l.c), dx = IMAGES(l.dtype, l.n, l.h, l.w, l.c), tap = {0};
    cf_view y = IMAGES(l.dtype, l.n, l.out_h, l.out_w, l.c), dy = IMAGES(l.dtype, l.n, l.out_h, l.out_w, l.c);
    double *expected = calloc((size_t)cf_view_numel(&x) + 1, sizeof *expected);
    if (l.taps) tap = IMAGES(l.taps, l.n, l.out_h, l.out_w, l.c);
    for (int64_t e = 0; e < cf_view_numel(&x); e++) set(&x, e, floor(random_between(-4, 4) * 4) / 4); /* with equals */
    fill_random(&dy, -1, 1);
    fill(&dx, 9);
    CHECK_STATUS(RUN(m, l.taps ? CF_OP_maxpool : CF_OP_meanpool, l.dtype, l.taps ? 2 : 1,
                     .v = {y, l.taps ? tap : x, l.taps ? x : (cf_view){0}}, .params = &l.p),
                 CFX_OK);
    for (int64_t o = 0; o < cf_view_numel(&y); o++) {
        const int64_t c = o % l.c, k = o / l.c % l.out_w, i = o / l.c / l.out_w % l.out_h,
                      n = o / l.c / l.out_w / l.out_h;
        int64_t fh, kh, sh, fw, kw, sw, count = 0, chosen = -1;
        double most = -INFINITY, sum = 0;
        window_of(&l.p, 0, l.h, l.out_h, i, &fh, &kh, &sh);
        window_of(&l.p, 1, l.w, l.out_w, k, &fw, &kw, &sw);
        for (int64_t a = 0; a < kh; a++)
            for (int64_t b = 0; b < kw; b++) {
                const int64_t row = fh + a * sh, col = fw + b * sw;
                count += l.p.count_pad;
                if (row < 0 || row >= l.h || col < 0 || col >= l.w) continue;
                const double v = get(&x, at(&x, n, row, col, c));
                count += !l.p.count_pad;
                sum += v;
                if (v > most) most = v, chosen = at(&x, n, row, col, c);
            }
        if (!near_at(m, &y, o, l.taps ? most : sum / (double)count, l.taps ? 0 : rounding(l.dtype, 8))) break;
        spread(&l, &dy, o, i, k, c, n, l.taps ? 1 : 1 / (double)count, l.taps ? chosen : -1, &x, expected);
    }
    CHECK_STATUS(RUN(m, l.taps ? CF_OP_maxpool_bw : CF_OP_meanpool_bw, l.dtype, 1, .v = {dx, dy, tap}, .params = &l.p),
                 CFX_OK);
    for (int64_t e = 0; e < cf_view_numel(&x); e++)
        if (!near_at(m, &dx, e, expected[e], rounding(l.dtype, 16))) break;
    CHECK(edges_are_kept());
    free(expected);
    const uint64_t bits = bits_of(&y) ^ 3 * bits_of(&dx);
    free_views();
    return bits;
}

static int64_t below(int64_t n) { return (int64_t)(random_bits() % (uint32_t)n); }

/* A window that fits on an axis, and how many of them there are. */
static int64_t random_window(cf_pool_params *p, int d, int64_t in) {
    for (;;) {
        const int64_t kernel = 1 + below(4), dilation = 1 + (below(3) == 0), span = (kernel - 1) * dilation + 1;
        const int64_t before = below(span / 2 + 1), after = below(span / 2 + 1);
        if (span > in + before + after) continue;
        p->window.kernel[d] = kernel;
        p->window.stride[d] = 1 + below(3);
        p->window.dilation[d] = dilation;
        p->window.pad[2 * d] = before;
        p->window.pad[2 * d + 1] = after;
        return (in + before + after - span) / p->window.stride[d] + 1;
    }
}

static pool random_pool(int dtype) {
    pool l = {.dtype = dtype,
              .n = 1 + below(2),
              .h = 1 + below(8),
              .w = 1 + below(8),
              .c = (int64_t[]){1, 3, 8, 20}[below(4)]};
    if (below(3) == 0) {
        l.p.adaptive = 1;
        l.out_h = 1 + below(9);
        l.out_w = 1 + below(9);
        return l;
    }
    l.out_h = random_window(&l.p, 0, l.h);
    l.out_w = random_window(&l.p, 1, l.w);
    l.p.count_pad = (int32_t)below(2);
    return l;
}

/* A window that touches no element has no mean. */
static int has_empty_window(const pool *l) {
    for (int d = 0; d < 2; d++)
        for (int64_t o = 0; o < (d ? l->out_w : l->out_h); o++) {
            int64_t first, kernel, step, some = 0;
            window_of(&l->p, d, d ? l->w : l->h, d ? l->out_w : l->out_h, o, &first, &kernel, &step);
            for (int64_t k = 0; k < kernel; k++) some += first + k * step >= 0 && first + k * step < (d ? l->w : l->h);
            if (!some) return 1;
        }
    return 0;
}

TEST(pools_of_any_window_are_right_in_both_directions) {
    EACH_MACHINE(m) {
        for (int k = 0; k < (SANITIZED ? 60 : 200); k++) {
            pool l = random_pool(float_types[k % FLOAT_TYPES]);
            if (!l.p.adaptive && k % 2) l.taps = k % 4 == 1 ? CFX_UINT8 : CFX_INT32;
            if (l.taps) l.p.count_pad = 0;
            if (!has_empty_window(&l)) check_pool(m, l);
        }
        check_pool(m, (pool){CFX_FLOAT32, CFX_UINT8, 0, 4, 4, 3, 2, 2, {.window = {{2, 2}, {2, 2}, {0}, {1, 1}}}});
        check_pool(m, (pool){CFX_FLOAT32, 0, 2, 3, 5, 1030, 1, 1, {.adaptive = 1}});
        check_pool(m, (pool){CFX_FLOAT32, CFX_INT32, 1, 20, 20, 2, 2, 2, {.window = {{17, 17}, {2, 2}, {0}, {1, 1}}}});
    }
}

TEST(pools_have_the_same_bits_with_any_team) {
    static uint64_t kept[3];
    EACH_MACHINE(m) {
        const cf_pool_params p = {.window = {{3, 3}, {2, 2}, {1, 1, 1, 1}, {1, 1}}, .count_pad = 1};
        same_as_alone(m, check_pool(m, (pool){CFX_FLOAT32, CFX_UINT8, 2, 33, 31, 8, 17, 16, p}), &kept[0]);
        same_as_alone(m, check_pool(m, (pool){CFX_FLOAT32, 0, 2, 33, 31, 8, 17, 16, p}), &kept[1]);
        same_as_alone(m, check_pool(m, (pool){CFX_FLOAT64, 0, 3, 40, 41, 5, 7, 3, {.adaptive = 1}}), &kept[2]);
    }
}

TEST(a_maximum_passes_NaN_takes_the_first_of_equals_and_never_the_pad) {
    EACH_MACHINE(m) {
        const cf_pool_params p = {.window = {{1, 2}, {1, 2}, {0, 0, 1, 1}, {1, 1}}};
        cf_view x = IMAGES(CFX_FLOAT32, 1, 1, 6, 1), y = IMAGES(CFX_FLOAT32, 1, 1, 4, 1);
        cf_view tap = IMAGES(CFX_UINT8, 1, 1, 4, 1);
        put_all(&x, (double[]){-3, 2, 2, NAN, 5, -INFINITY});
        CHECK_STATUS(RUN(m, CF_OP_maxpool, CFX_FLOAT32, 2, .v = {y, tap, x}, .params = &p), CFX_OK);
        near_at(m, &y, 0, -3, 0);
        near_at(m, &y, 1, 2, 0);
        CHECK(isnan(get(&y, 2)));
        near_at(m, &y, 3, -INFINITY, 0);
        for (int k = 0; k < 4; k++) near_at(m, &tap, k, (double[]){1, 0, 0, 0}[k], 0);
        CHECK_STATUS(RUN(m, CF_OP_maxpool, CFX_FLOAT32, 1, .v = {y, x}, .params = &p), CFX_OK); /* taps not wanted */
        near_at(m, &y, 0, -3, 0);
    }
}

/* ---- another size */

typedef struct resize {
    int dtype;
    int64_t n, h, w, c, out_h, out_w;
    cf_upsample_params p;
} resize;

/* PyTorch's rule: the elements that result o is made of, and the second one's share. */
static void between(const resize *l, int d, int64_t o, int64_t *first, int64_t *second, double *share) {
    const int64_t in = d ? l->w : l->h, out = d ? l->out_w : l->out_h;
    const double ratio = l->p.scale[d] > 0 ? 1 / l->p.scale[d] : (double)in / (double)out;
    if (!l->p.bilinear) {
        *first = *second = (int64_t)fmin(floor((double)((float)o * (float)ratio)), (double)(in - 1));
        *share = 0;
        return;
    }
    const double at = l->p.align_corners ? (out > 1 ? (double)(o * (in - 1)) / (double)(out - 1) : 0)
                                         : fmax(((double)o + 0.5) * ratio - 0.5, 0);
    *first = (int64_t)fmin(floor(at), (double)(in - 1));
    *second = *first + (*first < in - 1);
    *share = fmin(at - (double)*first, 1);
}

static uint64_t check_resize(machine *m, resize l) {
    cf_view x = IMAGES(l.dtype, l.n, l.h, l.w, l.c), dx = IMAGES(l.dtype, l.n, l.h, l.w, l.c);
    cf_view y = IMAGES(l.dtype, l.n, l.out_h, l.out_w, l.c), dy = IMAGES(l.dtype, l.n, l.out_h, l.out_w, l.c);
    double *expected = calloc((size_t)cf_view_numel(&x) + 1, sizeof *expected);
    fill_random(&x, -2, 2);
    fill_random(&dy, -1, 1);
    CHECK_STATUS(RUN(m, CF_OP_upsample, l.dtype, 1, .v = {y, x}, .params = &l.p), CFX_OK);
    CHECK_STATUS(RUN(m, CF_OP_upsample_bw, l.dtype, 1, .v = {dx, dy}, .params = &l.p), CFX_OK);
    for (int64_t o = 0; o < cf_view_numel(&y); o++) {
        const int64_t c = o % l.c, n = o / l.c / l.out_w / l.out_h;
        int64_t rows[2], cols[2];
        double down, right, sum = 0;
        between(&l, 0, o / l.c / l.out_w % l.out_h, &rows[0], &rows[1], &down);
        between(&l, 1, o / l.c % l.out_w, &cols[0], &cols[1], &right);
        for (int k = 0; k < 4; k++) {
            const double share = (k / 2 ? down : 1 - down) * (k % 2 ? right : 1 - right);
            const int64_t e = at(&x, n, rows[k / 2], cols[k % 2], c);
            sum += share * get(&x, e);
            expected[e] += share * get(&dy, o);
        }
        if (!near_at(m, &y, o, sum, rounding(l.dtype, 40))) break; /* places are rounded, too */
    }
    for (int64_t e = 0; e < cf_view_numel(&x); e++)
        if (!near_at(m, &dx, e, expected[e], rounding(l.dtype, 300))) break;
    CHECK(edges_are_kept());
    free(expected);
    const uint64_t bits = bits_of(&y) ^ 3 * bits_of(&dx);
    free_views();
    return bits;
}

TEST(images_of_another_size_are_right_in_both_directions) {
    EACH_MACHINE(m) {
        for (int k = 0; k < (SANITIZED ? 40 : 120); k++) {
            resize l = {.dtype = float_types[k % FLOAT_TYPES], .n = 1 + below(2), .h = 1 + below(6), .w = 1 + below(6)};
            l.c = 1 + 3 * below(4);
            l.p.bilinear = (int32_t)below(2);
            l.p.align_corners = l.p.bilinear && below(2);
            l.out_h = 1 + below(13);
            l.out_w = 1 + below(13);
            if (below(3) == 0) { /* as where the size follows from a factor */
                l.p.scale[0] = 0.5 + 0.5 * (double)below(5);
                l.p.scale[1] = 1.5;
                l.out_h = (int64_t)fmax(floor((double)l.h * l.p.scale[0]), 1);
                l.out_w = (int64_t)((double)l.w * 1.5);
            }
            check_resize(m, l);
        }
        check_resize(m, (resize){CFX_FLOAT32, 0, 2, 2, 3, 4, 4, {.bilinear = 1}});
        check_resize(m, (resize){CFX_FLOAT32, 1, 3, 2, 600, 2, 4, {.bilinear = 1}});
    }
}

TEST(images_of_another_size_have_the_same_bits_with_any_team) {
    static uint64_t kept[2];
    EACH_MACHINE(m) {
        same_as_alone(m, check_resize(m, (resize){CFX_FLOAT32, 2, 17, 31, 8, 30, 41, {.bilinear = 1}}), &kept[0]);
        same_as_alone(m, check_resize(m, (resize){CFX_FLOAT64, 3, 31, 17, 5, 62, 34, {.bilinear = 0}}), &kept[1]);
    }
}

/* ---- bytes as numbers */

TEST(bytes_become_numbers_by_their_channel) {
    EACH_MACHINE(m) {
        for (int64_t c = 1; c < 700; c = c * 3 + 1)
            for (int64_t rows = 0; rows < 300; rows = rows * 5 + 1) {
                cf_view x = MATRIX(CFX_UINT8, PACKED, rows, c), y = MATRIX(CFX_FLOAT32, PACKED, rows, c);
                cf_view scale = VECTOR(CFX_FLOAT32, c), shift = VECTOR(CFX_FLOAT32, c);
                fill_random(&x, 0, 256);
                fill_random(&scale, 0.25, 1);
                fill_random(&shift, -2, 2);
                CHECK_STATUS(RUN(m, CF_OP_normalise, CFX_FLOAT32, 1, .v = {y, x, scale, shift}), CFX_OK);
                for (int64_t e = 0; e < rows * c; e++)
                    if (!near_at(m, &y, e, get(&x, e) * get(&scale, e % c) + get(&shift, e % c), 0)) break;
                CHECK(edges_are_kept());
                free_views();
            }
    }
}
