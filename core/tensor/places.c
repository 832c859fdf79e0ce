/* places.c: the end of a list of places.  See places.h. */
#include "tensor/places.h"

#include <stdlib.h>

CFX_API void cfx_layout_free(cfx_layout *layout) {
    if (!layout || --layout->refs > 0) return;
    for (int32_t i = 0; layout->places && i < layout->n; i++) free(layout->places[i].path);
    free(layout->places);
    free(layout);
}
