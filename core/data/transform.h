/* transform.h: from a picture of any size to a sample.
 *
 * A transform is a list of steps, in torchvision's words.  For one picture the steps become a plan: which part of it is
 * resized to which size, which window of that is the sample, and how its colours change.  So a picture is decoded as far
 * as the plan needs it, and resized once.  Random numbers are those of (seed, epoch, sample) alone.
 */
#ifndef CF_DATA_TRANSFORM_H
#define CF_DATA_TRANSFORM_H

#include "data/jitter.h"
#include "data/jpeg.h"

enum { CF_MOST_STEPS = 8 };

typedef struct cf_transform {
    cfx_image_step steps[CF_MOST_STEPS];
    int32_t n;
    int32_t whole;            /* pictures are decoded at their full size */
    int32_t dtype;            /* of a sample: CFX_UINT8, or CFX_FLOAT32 */
    float scale[3], shift[3]; /* float32: byte * scale + shift */
    int32_t height, width;    /* of every sample; 0: it depends on the picture */
} cf_transform;

/* Which numbers a picture draws. */
typedef struct cf_draw {
    uint64_t seed, epoch, sample;
} cf_draw;

typedef struct cf_plan {
    int32_t decode;        /* the picture at 1/decode: 1, 2, 4, 8 */
    cf_rect box;           /* of the picture at its full size: */
    int32_t height, width; /* is resized to this */
    cf_rect window;        /* of it; what lies outside is black */
    int32_t flip;
    int32_t colours;              /* changes, in this order: */
    cf_colour colour[CF_COLOURS]; /* */
    double by[CF_COLOURS];
} cf_plan;

/* Checks a caller's options. */
cfx_status cf_transform_read(const cfx_image_options *given, cf_transform *out);
/* The plan for a picture of that size.  CFX_EIO: what it would be resized to is too large. */
cfx_status cf_transform_plan(const cf_transform *t, int32_t height, int32_t width, cf_draw draw, cf_plan *out);

#endif
