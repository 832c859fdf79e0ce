/* resize.c: see resize.h. */
#include "data/resize.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/processors.h"

enum { CHANNELS = 3, SPARE = 8 /* values behind a row, which are read and not used */ };

/* Four neighbouring values of a row: a pixel, and what lies behind it. */
typedef float pixel __attribute__((vector_size(16), aligned(4)));

/* ---- weights --------------------------------------------------------------------------------------- */

/* Pixel i of the result is the sum of `count[i]` pixels from first[i] on, each with its weight. */
typedef struct weights {
    int32_t *first, *count;
    float *weight; /* [pixels of the result, most]; behind a pixel's own they are 0 */
    int32_t most;  /* room for so many each */
    int32_t taps;  /* the largest count */
} weights;

static double step_of(const cf_scale *s) { return (s->to - s->from) / s->size; }
static double reach_of(const cf_scale *s) { return step_of(s) > 1 ? step_of(s) : 1; }

/* The pixels under the triangle of pixel i. */
static void reach(const cf_scale *s, int32_t i, double *center, int32_t *from, int32_t *to) {
    *center = s->from + (i + 0.5) * step_of(s);
    const double low = *center - reach_of(s) + 0.5, high = *center + reach_of(s) + 0.5;
    *from = low > 0 ? (int32_t)low : 0;
    *to = high < s->pixels ? (int32_t)high : s->pixels;
}

void cf_scale_needs(const cf_scale *s, int32_t *from, int32_t *to) {
    double center;
    int32_t unused;
    reach(s, s->first, &center, from, &unused);
    reach(s, s->first + s->count - 1, &center, &unused, to);
}

/* Of the triangle over pixel k. */
static double height(const cf_scale *s, int32_t k, double center) {
    const double away = fabs(k - center + 0.5) / reach_of(s);
    return away < 1 ? 1 - away : 0;
}

static int32_t most_weights(const cf_scale *s) { return (int32_t)ceil(reach_of(s)) * 2 + 1; }

static void fill_weights(const cf_scale *s, weights *w) {
    int32_t begin, end;
    cf_scale_needs(s, &begin, &end);
    for (int32_t i = 0; i < s->count; i++) {
        double center, sum = 0;
        int32_t from, to;
        reach(s, s->first + i, &center, &from, &to);
        float *weight = w->weight + (size_t)i * (size_t)w->most;
        for (int32_t k = from; k < to; k++) sum += height(s, k, center);
        for (int32_t k = from; k < to; k++) weight[k - from] = (float)(height(s, k, center) / sum);
        for (int32_t k = to - from; k < w->most; k++) weight[k] = 0;
        w->first[i] = from - begin;
        w->count[i] = to - from;
        if (w->taps < to - from) w->taps = to - from;
    }
}

/* ---- the two directions ---------------------------------------------------------------------------- */

/* The weighted sum of `count` rows of n bytes; three at a time, which is most often all. */
CF_FOR_PROCESSORS static void join_rows(const unsigned char *restrict in, size_t n, const float *weight, int32_t count,
                                        float *restrict out) {
    const unsigned char *b = in + (count > 1 ? n : 0), *c = in + (count > 2 ? 2 * n : 0);
    const float wa = weight[0], wb = count > 1 ? weight[1] : 0, wc = count > 2 ? weight[2] : 0;
    for (size_t i = 0; i < n; i++) out[i] = wa * (float)in[i] + wb * (float)b[i] + wc * (float)c[i];
    for (int32_t k = 3; k < count; k++) {
        const unsigned char *more = in + (size_t)k * n;
        const float w = weight[k];
        for (size_t i = 0; i < n; i++) out[i] += w * (float)more[i];
    }
}

/* The pixels of one row.  A pixel's fourth value is the next one's first, and is written over.  All have as many terms,
 * some of them 0, so that the loop over few is unrolled where `taps` is a constant. */
static inline __attribute__((always_inline)) void join(const float *restrict in, const weights *w, int32_t n,
                                                       int32_t taps, float *restrict out) {
    for (int32_t i = 0; i < n; i++) {
        const float *from = in + (size_t)w->first[i] * CHANNELS, *weight = w->weight + (size_t)i * (size_t)w->most;
        pixel sum = weight[0] * *(const pixel *)from;
        for (int32_t k = 1; k < taps; k++) sum += weight[k] * *(const pixel *)(from + (size_t)k * CHANNELS);
        *(pixel *)(out + (size_t)i * CHANNELS) = sum;
    }
}

CF_FOR_PROCESSORS static void join_columns(const float *restrict in, const weights *w, int32_t n, float *restrict out) {
    switch (w->taps) {
    case 2: join(in, w, n, 2, out); break;
    case 3: join(in, w, n, 3, out); break;
    case 4: join(in, w, n, 4, out); break;
    default: join(in, w, n, w->taps, out);
    }
}

/* Sums lie between 0 and 255 but for the rounding of weights. */
CF_FOR_PROCESSORS static void to_bytes(const float *restrict in, size_t n, unsigned char *restrict out) {
    for (size_t i = 0; i < n; i++) {
        const int32_t x = (int32_t)(in[i] + 0.5f);
        out[i] = (unsigned char)(x > 255 ? 255 : x);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static size_t weights_bytes(const cf_scale *s) {
    return (size_t)s->count * (2 * sizeof(int32_t) + (size_t)most_weights(s) * sizeof(float));
}

static char *place_weights(const cf_scale *s, char *at, weights *out) {
    out->first = (int32_t *)at;
    out->count = out->first + s->count;
    out->weight = (float *)(out->count + s->count);
    out->most = most_weights(s);
    out->taps = 0;
    fill_weights(s, out);
    return at + weights_bytes(s);
}

void cf_resize_free(cf_resize *r) {
    free(r->memory);
    *r = (cf_resize){0};
}

cfx_status cf_resize_run(cf_resize *r, const cf_scale *rows, const cf_scale *columns, const unsigned char *in,
                         unsigned char *out) {
    int32_t from, to;
    cf_scale_needs(columns, &from, &to);
    const size_t n = (size_t)(to - from) * CHANNELS, wide = (size_t)columns->count * CHANNELS;
    const size_t spare = (size_t)most_weights(columns) * CHANNELS + SPARE;
    const size_t need = weights_bytes(rows) + weights_bytes(columns) + (n + spare + wide + SPARE) * sizeof(float);
    if (need > r->bytes) {
        CF_TRY(cf_realloc(&r->memory, need));
        r->bytes = need;
    }
    weights down, across;
    char *at = place_weights(rows, r->memory, &down);
    float *row = (float *)place_weights(columns, at, &across), *joined = row + n + spare;
    memset(row + n, 0, spare * sizeof *row);
    for (int32_t y = 0; y < rows->count; y++, out += wide) {
        join_rows(in + (size_t)down.first[y] * n, n, down.weight + (size_t)y * (size_t)down.most, down.count[y], row);
        join_columns(row, &across, columns->count, joined);
        to_bytes(joined, wide, out);
    }
    return CFX_OK;
}
