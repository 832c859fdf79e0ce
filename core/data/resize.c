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
    float *weight; /* [pixels of the result, most] */
    int32_t most;
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
        w->first[i] = from - begin;
        w->count[i] = to - from;
    }
}

/* ---- the two directions ---------------------------------------------------------------------------- */

/* The weighted sum of `count` rows of n bytes. */
CF_FOR_PROCESSORS static void join_rows(const unsigned char *in, size_t n, const float *weight, int32_t count,
                                        float *out) {
    const float w = weight[0];
    for (size_t i = 0; i < n; i++) out[i] = w * (float)in[i];
    int32_t k = 1;
    for (; k + 1 < count; k += 2) {
        const unsigned char *a = in + (size_t)k * n, *b = a + n;
        const float wa = weight[k], wb = weight[k + 1];
        for (size_t i = 0; i < n; i++) out[i] += wa * (float)a[i] + wb * (float)b[i];
    }
    for (; k < count; k++) {
        const unsigned char *a = in + (size_t)k * n;
        const float wa = weight[k];
        for (size_t i = 0; i < n; i++) out[i] += wa * (float)a[i];
    }
}

/* Sums lie between 0 and 255 but for the rounding of weights. */
static unsigned char to_byte(float x) { return (unsigned char)(x + 0.5f > 255 ? 255 : x + 0.5f); }

/* The pixels of one row.  A pixel's fourth value is the next one's first, and is dropped. */
CF_FOR_PROCESSORS static void join_columns(const float *in, const weights *w, int32_t n, unsigned char *out) {
    for (int32_t i = 0; i < n; i++, out += CHANNELS) {
        const float *from = in + (size_t)w->first[i] * CHANNELS, *weight = w->weight + (size_t)i * (size_t)w->most;
        pixel sum = {0, 0, 0, 0};
        for (int32_t k = 0; k < w->count[i]; k++) sum += weight[k] * *(const pixel *)(from + (size_t)k * CHANNELS);
        for (int c = 0; c < CHANNELS; c++) out[c] = to_byte(sum[c]);
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
    const size_t n = (size_t)(to - from) * CHANNELS;
    const size_t need = weights_bytes(rows) + weights_bytes(columns) + (n + SPARE) * sizeof(float);
    if (need > r->bytes) {
        CF_TRY(cf_realloc(&r->memory, need));
        r->bytes = need;
    }
    weights down, across;
    char *at = place_weights(rows, r->memory, &down);
    float *row = (float *)place_weights(columns, at, &across);
    memset(row + n, 0, SPARE * sizeof *row);
    for (int32_t y = 0; y < rows->count; y++, out += (size_t)columns->count * CHANNELS) {
        join_rows(in + (size_t)down.first[y] * n, n, down.weight + (size_t)y * (size_t)down.most, down.count[y], row);
        join_columns(row, &across, columns->count, out);
    }
    return CFX_OK;
}
