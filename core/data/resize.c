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

static double step_of(const cf_scale *s) { return (s->to - s->from) / s->size; }
static double reach_of(double step) { return step > 1 ? step : 1; }

/* The pixels under the triangle of pixel i. */
static void reach(const cf_scale *s, double step, int32_t i, double *center, int32_t *from, int32_t *to) {
    *center = s->from + (i + 0.5) * step;
    const double low = *center - reach_of(step) + 0.5, high = *center + reach_of(step) + 0.5;
    *from = low > 0 ? (int32_t)low : 0;
    *to = high < s->pixels ? (int32_t)high : s->pixels;
}

void cf_scale_needs(const cf_scale *s, int32_t *from, int32_t *to) {
    double center;
    int32_t unused;
    reach(s, step_of(s), s->first, &center, from, &unused);
    reach(s, step_of(s), s->first + s->count - 1, &center, &unused, to);
}

static int32_t most_weights(const cf_scale *s) { return (int32_t)ceil(reach_of(step_of(s))) * 2 + 1; }

/* Weights of pixels [from, to) under a triangle of slope `slope`. */
static void fill_triangle(double center, double slope, int32_t from, int32_t to, int32_t most, float *weight) {
    double sum = 0;
    for (int32_t k = from; k < to; k++) {
        const double height = 1 - fabs(k - center + 0.5) * slope;
        weight[k - from] = height > 0 ? (float)height : 0;
        sum += weight[k - from];
    }
    for (int32_t k = 0; k < to - from; k++) weight[k] = (float)(weight[k] / sum);
    for (int32_t k = to - from; k < most; k++) weight[k] = 0;
}

static void fill_weights(const cf_scale *s, int mirrored, cf_weights *w) {
    const double step = step_of(s), slope = 1 / reach_of(step);
    int32_t begin, end;
    cf_scale_needs(s, &begin, &end);
    for (int32_t i = 0; i < s->count; i++) {
        const int32_t at = mirrored ? s->count - 1 - i : i;
        double center;
        int32_t from, to;
        reach(s, step, s->first + i, &center, &from, &to);
        fill_triangle(center, slope, from, to, w->most, w->weight + (size_t)at * (size_t)w->most);
        w->first[at] = from - begin;
        w->count[at] = to - from;
        if (w->taps < to - from) w->taps = to - from;
    }
}

/* ---- the two directions ---------------------------------------------------------------------------- */

/* The weighted sum of rows; where `count` is a constant, all of it in one pass. */
static inline __attribute__((always_inline)) void sum_rows(const unsigned char *const *rows, const float *weight,
                                                           int32_t count, size_t n, float *restrict out) {
    for (size_t i = 0; i < n; i++) {
        float sum = weight[0] * (float)rows[0][i];
        for (int32_t k = 1; k < count; k++) sum += weight[k] * (float)rows[k][i];
        out[i] = sum;
    }
}

enum { ONE_PASS = 4 };

CF_FOR_PROCESSORS static void join_rows(const unsigned char *const *rows, const float *weight, int32_t count, size_t n,
                                        float *restrict out) {
    switch (count) {
    case 1: sum_rows(rows, weight, 1, n, out); break;
    case 2: sum_rows(rows, weight, 2, n, out); break;
    case 3: sum_rows(rows, weight, 3, n, out); break;
    default: sum_rows(rows, weight, ONE_PASS, n, out);
    }
}

CF_FOR_PROCESSORS static void add_row(const unsigned char *restrict row, float weight, size_t n, float *restrict out) {
    for (size_t i = 0; i < n; i++) out[i] += weight * (float)row[i];
}

/* The pixels of one row.  A pixel's fourth value is the next one's first, and is written over.  All have as many terms,
 * some of them 0, so that the loop over few is unrolled where `taps` is a constant. */
static inline __attribute__((always_inline)) void join(const float *restrict in, const cf_weights *w, int32_t n,
                                                       int32_t taps, float *restrict out) {
    for (int32_t i = 0; i < n; i++) {
        const float *from = in + (size_t)w->first[i] * CHANNELS, *weight = w->weight + (size_t)i * (size_t)w->most;
        pixel sum = weight[0] * *(const pixel *)from;
        for (int32_t k = 1; k < taps; k++) sum += weight[k] * *(const pixel *)(from + (size_t)k * CHANNELS);
        *(pixel *)(out + (size_t)i * CHANNELS) = sum;
    }
}

CF_FOR_PROCESSORS static void join_columns(const float *restrict in, const cf_weights *w, int32_t n,
                                           float *restrict out) {
    switch (w->taps) {
    case 2: join(in, w, n, 2, out); break;
    case 3: join(in, w, n, 3, out); break;
    case 4: join(in, w, n, 4, out); break;
    default: join(in, w, n, w->taps, out);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------- */

static size_t weights_bytes(const cf_scale *s) {
    return (size_t)s->count * (2 * sizeof(int32_t) + (size_t)most_weights(s) * sizeof(float));
}

static char *place_weights(const cf_scale *s, int mirrored, char *at, cf_weights *out) {
    out->first = (int32_t *)at;
    out->count = out->first + s->count;
    out->weight = (float *)(out->count + s->count);
    out->most = most_weights(s);
    out->taps = 0;
    fill_weights(s, mirrored, out);
    return at + weights_bytes(s);
}

void cf_resize_free(cf_resize *r) {
    free(r->memory);
    *r = (cf_resize){0};
}

cfx_status cf_resize_begin(cf_resize *r, const cf_scale *rows, const cf_scale *columns, int mirrored,
                           cf_row_source source) {
    int32_t from, to;
    cf_scale_needs(columns, &from, &to);
    const size_t n = (size_t)(to - from) * CHANNELS, wide = (size_t)columns->count * CHANNELS;
    const size_t spare = (size_t)most_weights(columns) * CHANNELS + SPARE;
    const size_t need = weights_bytes(rows) + weights_bytes(columns) + (n + spare + wide + SPARE) * sizeof(float) +
                        (size_t)most_weights(rows) * n;
    if (need > r->bytes) {
        CF_TRY(cf_realloc(&r->memory, need));
        r->bytes = need;
    }
    char *at = place_weights(rows, 0, r->memory, &r->down);
    r->row = (float *)place_weights(columns, mirrored, at, &r->across);
    r->joined = r->row + n + spare;
    r->rows = (unsigned char *)(r->joined + wide + SPARE);
    memset(r->row + n, 0, spare * sizeof *r->row);
    r->source = source;
    r->values = n;
    r->columns = columns->count;
    r->have = r->y = 0;
    return CFX_OK;
}

/* ---- rows ------------------------------------------------------------------------------------------ */

static unsigned char *place_of(const cf_resize *r, int32_t row) {
    return r->rows + (size_t)(row % r->down.most) * r->values;
}

cfx_status cf_resize_next(cf_resize *r, const float **row) {
    const int32_t first = r->down.first[r->y], count = r->down.count[r->y];
    const float *weight = r->down.weight + (size_t)r->y * (size_t)r->down.most;
    const unsigned char *rows[ONE_PASS];
    for (; r->have < first + count; r->have++) CF_TRY(r->source.next(r->source.picture, place_of(r, r->have)));
    for (int32_t k = 0; k < ONE_PASS; k++) rows[k] = place_of(r, k < count ? first + k : first);
    join_rows(rows, weight, count, r->values, r->row);
    for (int32_t k = ONE_PASS; k < count; k++) add_row(place_of(r, first + k), weight[k], r->values, r->row);
    join_columns(r->row, &r->across, r->columns, r->joined);
    *row = r->joined;
    r->y++;
    return CFX_OK;
}
