/* jitter.h: changes of a picture's colours, as torchvision's ColorJitter and Pillow's ImageEnhance make them. */
#ifndef CF_DATA_JITTER_H
#define CF_DATA_JITTER_H

#include <stddef.h>

typedef enum cf_colour { CF_BRIGHTNESS, CF_CONTRAST, CF_SATURATION, CF_HUE, CF_COLOURS } cf_colour;

/* Changes n pixels in place.  By 1 nothing changes, by less there is less of it; a hue is turned by `by` of a circle. */
void cf_jitter(cf_colour what, double by, unsigned char *rgb /* [n, 3] */, size_t n);

#endif
