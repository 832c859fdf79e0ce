/* jpeg.h: pictures from JPEG bytes and to them, on libjpeg-turbo; jpeg_none.c stands where there is none.
 *
 * Pixels are those of Pillow, bit for bit: the slow integer DCT, fancy upsampling, CMYK as Adobe writes it (inverted).
 * Only the part of a picture that is asked for is decoded, as far as the format allows.  Upsampling looks at the pixels
 * around, so that a margin is decoded with the part: its bytes are those of a full decode.  Orientation is not looked at.
 *
 * A picture of which libjpeg only warns (damaged data, with grey where it is lost) is one, as for Pillow.  A file without its
 * end marker is truncated, and bad, even where the part lies before the cut: whether a file is bad must not depend on the
 * part.
 */
#ifndef CF_DATA_JPEG_H
#define CF_DATA_JPEG_H

#include "base/status.h"

/* More is bad: a small file may ask for any amount of memory or time.  The first is Pillow's limit. */
enum { CF_JPEG_MOST_PIXELS = 178956970, CF_JPEG_MOST_SCANS = 500 };

typedef struct cf_rect {
    int32_t x, y, width, height;
} cf_rect;

/* A decoder, of one thread at a time. */
typedef struct cf_jpeg cf_jpeg;
cfx_status cf_jpeg_new(cf_jpeg **out);
void cf_jpeg_free(cf_jpeg *jpeg); /* NULL: there is none */

/* Reads the header and tells the picture's size.  The bytes stay the caller's, and where they are until the next call of
 * open.  CFX_EIO: it is no picture that can be decoded. */
cfx_status cf_jpeg_open(cf_jpeg *jpeg, const unsigned char *bytes, size_t n, int32_t *width, int32_t *height);
/* Begins to decode a part of the picture that was opened last, scaled down by 1, 2, 4 or 8 (its sides rounded up):
 * `part` is of the scaled picture.  Once for each open.  CFX_EIO: it is bad. */
cfx_status cf_jpeg_begin(cf_jpeg *jpeg, int32_t scale, cf_rect part);
/* Decodes the part's next row, of part.height in all.  CFX_EIO: it is bad. */
cfx_status cf_jpeg_next(cf_jpeg *jpeg, unsigned char *rgb /* [width, 3] */);
/* Both, for all rows of the part. */
cfx_status cf_jpeg_decode(cf_jpeg *jpeg, int32_t scale, cf_rect part, unsigned char *rgb /* [height, width, 3] */);

/* Encodes a picture of 1 or 3 channels as a file, with full chroma from quality 90 on, which is at most 100. */
cfx_status cf_jpeg_write(const char *path, const unsigned char *pixels /* [height, width, channels] */, int32_t height,
                         int32_t width, int32_t channels, int32_t quality);

/* The library with its version, or that there is none. */
const char *cf_jpeg_about(void);

#endif
