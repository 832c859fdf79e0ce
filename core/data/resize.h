/* resize.h: pictures of bytes at another size.
 *
 * Each pixel of the result is the mean of the pixels under a triangle that is as wide as the result's pixels, or, where
 * the picture grows, as its own (Pillow's BILINEAR, torchvision's antialias = True).  Rows are joined first, a whole row at
 * a time, then the columns of what is left; nothing is rounded between the two, where Pillow rounds to bytes, so that
 * results are within 1 of Pillow's.
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

/* Memory for weights and rows, kept from call to call; starts as zero. */
typedef struct cf_resize {
    void *memory;
    size_t bytes;
} cf_resize;
void cf_resize_free(cf_resize *r);

/* Resizes by both scales.  `in` has the pixels that both need, [rows, columns, 3], and nothing else. */
cfx_status cf_resize_run(cf_resize *r, const cf_scale *rows, const cf_scale *columns, const unsigned char *in,
                         unsigned char *out /* [rows->count, columns->count, 3] */);

#endif
