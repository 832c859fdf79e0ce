/* pictures.c: samples that are decoded from files, each with its class's id. */
#include "data/images.h"
#include "data/loader.h"
#include "data/picture.h"

#include <stdlib.h>

#include "base/cores.h"

typedef struct pictures {
    cf_samples samples;
    cfx_images *images;
    cf_transform transform;
    uint64_t seed;
    cf_row rows[2];
} pictures;

static cfx_status write_picture(cf_samples *samples, void **own, int64_t epoch, int64_t sample,
                                unsigned char *const *rows) {
    const pictures *s = (pictures *)samples;
    cf_picture *p = *own;
    char path[CF_PATH_BYTES];
    int32_t id;
    if (!p) {
        CF_TRY(cf_alloc_zero(1, sizeof *p, own));
        p = *own;
        p->transform = &s->transform;
    }
    CF_TRY(cfx_images_at(s->images, sample, path, sizeof path, &id));
    CF_TRY(cf_picture_open(p, path, (cf_draw){s->seed, (uint64_t)epoch, (uint64_t)sample}));
    const cfx_status status = cf_picture_write(p, rows[0]);
    if (status != CFX_OK) return cf_fail_in(status, path);
    const int64_t wide = id;
    memcpy(rows[1], &wide, sizeof wide);
    return CFX_OK;
}

static void disown(void *own) {
    if (!own) return;
    cf_picture_free(own);
    free(own);
}

static void end(cf_samples *samples) {
    pictures *s = (pictures *)samples;
    cfx_images_free(&s->images);
    free(s);
}

/* A picture each is much work, so that threads take them one by one. */
static void fill(pictures *s, cfx_images *images, uint64_t seed) {
    const cf_transform *t = &s->transform;
    const size_t pixels = (size_t)t->height * (size_t)t->width * 3;
    s->samples = (cf_samples){images->n, 2, s->rows, 1, write_picture, disown, end};
    s->images = cf_images_hold(images);
    s->seed = seed;
    s->rows[0] = (cf_row){t->dtype, 4, {0, t->height, t->width, 3}, pixels * (size_t)cfx_dtype_size(t->dtype)};
    s->rows[1] = (cf_row){CFX_INT64, 1, {0}, sizeof(int64_t)};
}

static cfx_status make(const cfx_loader_options *given, cfx_images *images, const cfx_image_options *image,
                       cfx_device *const *devices, cfx_loader **out) {
    cfx_loader_options options;
    cf_transform transform;
    cf_jpeg *jpeg;
    pictures *s = NULL;
    if (!images) return cf_fail(CFX_EARG, "images is NULL");
    CF_TRY(cf_loader_options_read(given, devices, out, &options));
    if (options.threads == 0) options.threads = cf_cores_usable() > 1 ? cf_cores_usable() / 2 : 1;
    CF_TRY(cf_transform_read(image, &transform));
    if (transform.height == 0)
        return cf_fail(CFX_EARG, "the transform does not end in one size for all; expected a randomresizedcrop, a "
                                 "centrecrop or a resize to height and width");
    if (images->n == 0) return cf_fail(CFX_EARG, "there are no pictures");
    CF_TRY(cf_jpeg_new(&jpeg)); /* where there is no library it says so */
    cf_jpeg_free(jpeg);
    CF_TRY(cf_alloc_zero(1, sizeof *s, (void **)&s));
    s->transform = transform;
    fill(s, images, options.seed);
    return cf_loader_make(&options, &s->samples, devices, out);
}

CFX_API cfx_status cfx_loader_images(const cfx_loader_options *options, cfx_images *images,
                                     const cfx_image_options *image, cfx_device *const *devices, cfx_loader **out) {
    const cfx_status status = make(options, images, image, devices, out);
    return status == CFX_OK ? CFX_OK : cf_fail_in(status, "loader_images");
}
