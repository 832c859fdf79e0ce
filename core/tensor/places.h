/* places.h: where many tensors lie in one buffer per dtype.
 *
 * A layout is the list of places (path, dtype, shape, offset) that parameters, their gradients and their
 * optimiser states share.  A model's state (buffers, integers) has another one.  It is immutable and counted.  Places are 256-byte aligned; the gaps between them and
 * the tail are zero, and no kernel writes there, so a norm, an update or a reduction is one call over one buffer.
 */
#ifndef CF_TENSOR_PLACES_H
#define CF_TENSOR_PLACES_H

#include "conflux.h"

typedef struct cf_layout_place {
    char *path;
    int32_t dtype, ndim;
    int64_t shape[CFX_MAX_DIMS];
    int64_t offset, numel; /* elements, in the dtype's buffer */
    int32_t tied;          /* an earlier place that this is the same as, or -1 */
} cf_layout_place;

struct cfx_layout {
    int32_t refs, n;
    cf_layout_place *places;
    int64_t total[CFX_DTYPES]; /* elements of each dtype's buffer, gaps included */
};

#endif
