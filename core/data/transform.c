/* transform.c: see transform.h.  Definitions and names are torchvision's. */
#include "data/transform.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/options.h"
#include "base/rng.h"

enum { MOST_SIDE = 16384, TRIES = 10 };

/* ---- options --------------------------------------------------------------------------------------- */

static int is_number(double x) { return x - x == 0; }

static cfx_status check_size(const cfx_image_step *s, int short_side) {
    const int least = short_side ? 0 : 1;
    if (s->width < 1 || s->width > MOST_SIDE || s->height < least || s->height > MOST_SIDE)
        return cf_fail(CFX_EARG, "a size of %" PRId32 " x %" PRId32 "; expected 1 to %d", s->height, s->width,
                       MOST_SIDE);
    return CFX_OK;
}

static cfx_status check_random_crop(const cfx_image_step *s) {
    const double *v = s->values;
    CF_TRY(check_size(s, 0));
    if (!(v[0] > 0 && v[0] <= v[1] && v[1] <= 1))
        return cf_fail(CFX_EARG, "randomresizedcrop: scale %g to %g; expected two shares of the area, ascending", v[0],
                       v[1]);
    if (!(v[2] > 0 && v[2] <= v[3] && is_number(v[3])))
        return cf_fail(CFX_EARG, "randomresizedcrop: ratio %g to %g; expected two ratios above 0, ascending", v[2],
                       v[3]);
    return CFX_OK;
}

static cfx_status check_jitter(const cfx_image_step *s) {
    for (int i = 0; i < CF_COLOURS; i++)
        if (!(s->values[i] >= 0 && is_number(s->values[i]) && (i < CF_HUE || s->values[i] <= 0.5)))
            return cf_fail(CFX_EARG, "jitter: value %d is %g; expected at least 0, and at most 0.5 for the hue", i + 1,
                           s->values[i]);
    return CFX_OK;
}

static cfx_status check_step(const cfx_image_step *s) {
    switch (s->kind) {
    case CFX_IMAGE_RESIZE: return check_size(s, 1);
    case CFX_IMAGE_CENTRECROP: return check_size(s, 0);
    case CFX_IMAGE_RANDOMRESIZEDCROP: return check_random_crop(s);
    case CFX_IMAGE_FLIP:
        return s->values[0] >= 0 && s->values[0] <= 1 ? CFX_OK
                                                      : cf_fail(CFX_EARG, "flip: %g; expected 0 to 1", s->values[0]);
    case CFX_IMAGE_JITTER: return check_jitter(s);
    default: return cf_fail(CFX_EARG, "step of kind %" PRId32, s->kind);
    }
}

/* Resizing comes first, then crops, then what leaves the size as it is, each of that once. */
static cfx_status check_order(const cf_transform *t, int32_t i) {
    static const int32_t places[] = {[CFX_IMAGE_RESIZE] = 0,
                                     [CFX_IMAGE_RANDOMRESIZEDCROP] = 0,
                                     [CFX_IMAGE_CENTRECROP] = 1,
                                     [CFX_IMAGE_FLIP] = 2,
                                     [CFX_IMAGE_JITTER] = 2};
    for (int32_t k = 0; k < i; k++) {
        const int32_t before = places[t->steps[k].kind], here = places[t->steps[i].kind];
        if (before > here || (before == here && here == 0) || (here == 2 && t->steps[k].kind == t->steps[i].kind))
            return cf_fail(CFX_EARG,
                           "step %" PRId32 " cannot come behind step %" PRId32
                           "; expected one resize or randomresizedcrop, then centrecrops, then one flip and one jitter",
                           i + 1, k + 1);
    }
    return CFX_OK;
}

/* A resize of the short side leaves the other one open. */
static void find_size(cf_transform *t) {
    t->height = t->width = 0;
    for (int32_t i = 0; i < t->n; i++) {
        const cfx_image_step *s = &t->steps[i];
        if (s->kind == CFX_IMAGE_FLIP || s->kind == CFX_IMAGE_JITTER) continue;
        t->height = s->height;
        t->width = s->height > 0 ? s->width : 0;
    }
}

cfx_status cf_transform_read(const cfx_image_options *given, cf_transform *out) {
    static const cf_field last[] = {CF_FIELD(cfx_image_options, deviation)};
    cfx_image_options o;
    if (!given) return cf_fail(CFX_EARG, "image options are NULL");
    CF_TRY(cf_options_read("image options", given, last, 1, &o, sizeof o));
    *out = (cf_transform){.n = o.n, .whole = o.whole, .dtype = o.dtype};
    if (o.dtype != CFX_UINT8 && o.dtype != CFX_FLOAT32)
        return cf_fail(CFX_EARG, "dtype %" PRId32 "; expected uint8 or float32", o.dtype);
    if (o.n < 0 || o.n > CF_MOST_STEPS)
        return cf_fail(CFX_EARG, "%" PRId32 " steps; expected 0 to %d", o.n, CF_MOST_STEPS);
    for (int32_t i = 0; i < o.n; i++) {
        out->steps[i] = o.steps[i];
        CF_TRY(check_step(&o.steps[i]));
        CF_TRY(check_order(out, i));
    }
    for (int c = 0; c < 3; c++) {
        if (!(o.deviation[c] > 0) || !is_number(o.deviation[c]) || !is_number(o.mean[c]))
            return cf_fail(CFX_EARG, "mean %g and deviation %g; expected numbers, the deviation above 0", o.mean[c],
                           o.deviation[c]);
        out->scale[c] = (float)(1 / (255 * o.deviation[c]));
        out->shift[c] = (float)(-o.mean[c] / o.deviation[c]);
    }
    find_size(out);
    return CFX_OK;
}

/* ---- random numbers -------------------------------------------------------------------------------- */

/* Blocks of a sample: tries of a crop, then these.  The highest bit of the stream keeps them apart from the epoch's
 * order. */
enum { DRAW_FLIP = TRIES, DRAW_FACTORS, DRAW_ORDER, DRAWS = 16 };

static void draw_words(cf_draw d, uint32_t which, uint32_t out[4]) {
    cf_philox(d.seed, d.epoch | UINT64_C(1) << 63, d.sample * DRAWS + which, out);
}

static double between(uint32_t word, double low, double high) { return low + (high - low) * (word * 0x1p-32); }
static int32_t below(uint32_t word, int32_t n) { return (int32_t)(((uint64_t)word * (uint64_t)n) >> 32); }

/* ---- steps ----------------------------------------------------------------------------------------- */

static cf_rect whole_of(int32_t height, int32_t width) { return (cf_rect){0, 0, width, height}; }

/* Halves are rounded to even, as Python rounds them. */
static int32_t round_even(double x) { return (int32_t)nearbyint(x); }

/* Where no try fits: the largest part in the middle whose ratio is allowed. */
static cf_rect middle_part(const cfx_image_step *s, int32_t height, int32_t width) {
    const double ratio = (double)width / height;
    cf_rect r = whole_of(height, width);
    if (ratio < s->values[2]) r.height = round_even(width / s->values[2]);
    else if (ratio > s->values[3]) r.width = round_even(height * s->values[3]);
    if (r.height < 1) r.height = 1;
    if (r.width < 1) r.width = 1;
    r.x = (width - r.width) / 2;
    r.y = (height - r.height) / 2;
    return r;
}

static cf_rect random_part(const cfx_image_step *s, int32_t height, int32_t width, cf_draw draw) {
    for (uint32_t k = 0; k < TRIES; k++) {
        uint32_t w[4];
        draw_words(draw, k, w);
        const double area = between(w[0], s->values[0], s->values[1]) * height * width;
        const double ratio = exp(between(w[1], log(s->values[2]), log(s->values[3])));
        const double wide = nearbyint(sqrt(area * ratio)), high = nearbyint(sqrt(area / ratio));
        if (!(wide > 0 && wide <= width && high > 0 && high <= height)) continue;
        const int32_t x = below(w[3], width - (int32_t)wide + 1), y = below(w[2], height - (int32_t)high + 1);
        return (cf_rect){x, y, (int32_t)wide, (int32_t)high};
    }
    return middle_part(s, height, width);
}

/* The longer side of a picture whose shorter one becomes `size`. */
static double longer(int32_t size, int32_t longer_side, int32_t shorter_side) {
    return (double)size * longer_side / shorter_side;
}

static cfx_status plan_resize(const cfx_image_step *s, cf_plan *p) {
    double height = s->height, width = s->width;
    if (s->height == 0) {
        const cf_rect b = p->box;
        height = b.width <= b.height ? longer(s->width, b.height, b.width) : s->width;
        width = b.width <= b.height ? s->width : longer(s->width, b.width, b.height);
    }
    if (height > INT32_MAX / 2 || width > INT32_MAX / 2)
        return cf_fail(CFX_EIO, "%g x %g pixels once it is resized", height, width);
    p->height = (int32_t)height;
    p->width = (int32_t)width;
    p->window = whole_of(p->height, p->width);
    return CFX_OK;
}

/* Black around a small picture is shared out, the odd pixel going to the end. */
static int32_t centre(int32_t from, int32_t length, int32_t wanted) {
    return wanted > length ? from - (wanted - length) / 2 : from + round_even((length - wanted) / 2.0);
}

static void plan_centre(const cfx_image_step *s, cf_plan *p) {
    p->window.y = centre(p->window.y, p->window.height, s->height);
    p->window.x = centre(p->window.x, p->window.width, s->width);
    p->window.height = s->height;
    p->window.width = s->width;
}

/* Twice the target remains: what a smaller decode loses is not seen. */
static void plan_decode(const cf_transform *t, cf_plan *p) {
    for (int32_t by = 8; by > 1 && !t->whole && p->decode == 1; by /= 2)
        if (p->box.width / by >= 2 * p->width && p->box.height / by >= 2 * p->height) p->decode = by;
}

static void plan_jitter(const cfx_image_step *s, cf_draw draw, cf_plan *p) {
    uint32_t factors[4], order[4];
    draw_words(draw, DRAW_FACTORS, factors);
    draw_words(draw, DRAW_ORDER, order);
    cf_colour all[CF_COLOURS] = {CF_BRIGHTNESS, CF_CONTRAST, CF_SATURATION, CF_HUE};
    for (int32_t i = CF_COLOURS - 1; i >= 0; i--) {
        const int32_t k = below(order[i], i + 1);
        const cf_colour which = all[k];
        const double most = s->values[which];
        all[k] = all[i];
        if (most == 0) continue;
        const double low = which == CF_HUE ? -most : most < 1 ? 1 - most : 0;
        p->by[p->colours] = between(factors[which], low, which == CF_HUE ? most : 1 + most);
        p->colour[p->colours++] = which;
    }
}

static cfx_status plan_step(const cf_transform *t, const cfx_image_step *s, cf_draw draw, cf_plan *p) {
    uint32_t w[4];
    switch (s->kind) {
    case CFX_IMAGE_RANDOMRESIZEDCROP:
        p->box = random_part(s, p->height, p->width, draw);
        CF_TRY(plan_resize(s, p));
        plan_decode(t, p);
        break;
    case CFX_IMAGE_RESIZE: return plan_resize(s, p);
    case CFX_IMAGE_CENTRECROP: plan_centre(s, p); break;
    case CFX_IMAGE_FLIP:
        draw_words(draw, DRAW_FLIP, w);
        p->flip = between(w[0], 0, 1) < s->values[0];
        break;
    default: plan_jitter(s, draw, p);
    }
    return CFX_OK;
}

cfx_status cf_transform_plan(const cf_transform *t, int32_t height, int32_t width, cf_draw draw, cf_plan *out) {
    *out = (cf_plan){.decode = 1, .box = whole_of(height, width), .height = height, .width = width};
    out->window = out->box;
    for (int32_t i = 0; i < t->n; i++) CF_TRY(plan_step(t, &t->steps[i], draw, out));
    return CFX_OK;
}
