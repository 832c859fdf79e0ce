/* resize.h: pictures of bytes at another size, row by row.
 *
 * Each pixel of the result is the mean of the pixels under a triangle that is as wide as the result's pixels, or, where
 * the picture grows, as its own (Pillow's BILINEAR, torchvision's antialias = True).  Rows are joined first, a whole row
 * at a time, then the columns of what is left; nothing is rounded between the two, where Pillow rounds to bytes, so that
 * results are within 1 of Pillow's.  Rows of the picture are asked for when they are needed, and only those that one
 * row of the result needs are kept: they stay in the nearest cache, and a large picture takes little memory.
 */
#ifndef CF_DATA_RESIZE_H
#define CF_DATA_RESIZE_H

#include "base/status.h"

/* How one side is resized. */
typedef struct cf_scale {
    int32_t pixels;       /* of the picture at hand */
    double from, to;      /* of them, those that are resized */
    int32_t size;         /* to so many */
    int32_t first, count; /* of which only these are wanted */
} cf_scale;

/* Which of the picture's pixels the wanted ones need: [*from, *to). */
void cf_scale_needs(const cf_scale *s, int32_t *from, int32_t *to);

/* Where the picture's rows come from.  `next` writes the next one, of the columns that are needed, [columns, 3]. */
typedef struct cf_row_source {
    cfx_status (*next)(void *picture, unsigned char *row);
    void *picture;
} cf_row_source;

/* Pixel i of the result is the sum of `count[i]` pixels from first[i] on, each with its weight. */
typedef struct cf_weights {
    int32_t *first, *count;
    float *weight; /* [pixels of the result, most]; behind a pixel's own they are 0 */
    int32_t most;  /* room for so many each */
    int32_t taps;  /* the largest count */
} cf_weights;

/* A resize of one picture after the other, whose memory is kept from one to the next; starts as zero. */
typedef struct cf_resize {
    void *memory;
    size_t bytes;
    cf_row_source source;
    cf_weights down, across;
    unsigned char *rows;   /* the last down.most of the picture, [down.most, values] */
    float *row, *joined;   /* of the result: before columns are joined, and after */
    size_t values;         /* of a row of the picture */
    int32_t columns, have; /* of the result; rows of the picture by now */
    int32_t y;             /* the next row of the result */
} cf_resize;
void cf_resize_free(cf_resize *r);

/* Begins to resize by both scales.  `source` gives the rows that they need, from the first needed one on, and no other.
 * `mirrored`: columns come from right to left. */
cfx_status cf_resize_begin(cf_resize *r, const cf_scale *rows, const cf_scale *columns, int mirrored,
                           cf_row_source source);
/* The next row of the result, of rows->count, before it is rounded: columns->count pixels of 3 values from 0 to 255,
 * but for the rounding of weights.  It stays until the next call. */
cfx_status cf_resize_next(cf_resize *r, const float **row);

#endif
