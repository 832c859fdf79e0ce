/* picture.h: one sample from one file.
 *
 * A thread has a cf_picture, with a decoder and buffers that it keeps from file to file.  Opening one reads the file and
 * makes the plan (transform.h); writing decodes what the plan needs, resizes it and gives it its dtype, row by row.
 */
#ifndef CF_DATA_PICTURE_H
#define CF_DATA_PICTURE_H

#include "data/resize.h"
#include "data/transform.h"

typedef struct cf_picture {
    const cf_transform *transform;
    cf_jpeg *jpeg;
    cf_resize resize;
    struct cf_bytes {
        unsigned char *data;
        size_t room;
    } file, resized;      /* resized: bytes on their way to float32 */
    float *scale, *shift; /* [columns, 3] */
    int32_t columns;
    cf_plan plan;
    int32_t height, width; /* of the file's picture */
} cf_picture;

/* Begins as zero but for the transform, which stays the caller's. */
cfx_status cf_picture_open(cf_picture *p, const char *path, cf_draw draw);
/* The sample of the picture opened last, [plan.window.height, plan.window.width, 3] of the transform's dtype. */
cfx_status cf_picture_write(cf_picture *p, void *out);
void cf_picture_free(cf_picture *p);

#endif
