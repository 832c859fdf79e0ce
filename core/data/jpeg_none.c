/* jpeg_none.c: Conflux without libjpeg-turbo.  See jpeg.h. */
#include "data/jpeg.h"

static cfx_status none(void) {
    return cf_fail(CFX_ESTATE, "Conflux was built without libjpeg-turbo (Debian: libjpeg62-turbo-dev): no JPEG files");
}

cfx_status cf_jpeg_new(cf_jpeg **out) {
    *out = NULL;
    return none();
}

void cf_jpeg_free(cf_jpeg *jpeg) { (void)jpeg; }

cfx_status cf_jpeg_open(cf_jpeg *jpeg, const unsigned char *bytes, size_t n, int32_t *width, int32_t *height) {
    (void)jpeg, (void)bytes, (void)n, (void)width, (void)height;
    return none();
}

cfx_status cf_jpeg_begin(cf_jpeg *jpeg, int32_t scale, cf_rect part) {
    (void)jpeg, (void)scale, (void)part;
    return none();
}

cfx_status cf_jpeg_next(cf_jpeg *jpeg, unsigned char *rgb) {
    (void)jpeg, (void)rgb;
    return none();
}

cfx_status cf_jpeg_decode(cf_jpeg *jpeg, int32_t scale, cf_rect part, unsigned char *rgb) {
    (void)jpeg, (void)scale, (void)part, (void)rgb;
    return none();
}

cfx_status cf_jpeg_write(const char *path, const unsigned char *pixels, int32_t height, int32_t width, int32_t channels,
                         int32_t quality) {
    (void)path, (void)pixels, (void)height, (void)width, (void)channels, (void)quality;
    return none();
}

const char *cf_jpeg_about(void) { return "no libjpeg-turbo: JPEG files cannot be read"; }
