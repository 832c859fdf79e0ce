/* stretch.h: what lies side by side is done at once.
 *
 * Collectives and optimisers work on lists of tensors: replicas, or parameters with gradients and states.
 * Where the k-th tensors of all lists lie likewise in flat buffers, neighbours are joined into one stretch,
 * gaps included (they are zero), so that a whole model is one command.
 */
#ifndef CF_TENSOR_STRETCH_H
#define CF_TENSOR_STRETCH_H

#include "tensor/buffer.h"

/* In every list: n elements from the offset of tensor `leaf`. */
typedef struct cf_stretch {
    int32_t leaf;
    int64_t n;
} cf_stretch;

/* leaves: [lists][n] packed tensors, alike in shape; lists may differ in dtype.  Only leaves of one group
 * (NULL: all are) are joined.  *out is freed by the caller; tied and empty leaves are dropped.  The stretches are in the
 * order of the list and, within a buffer, of the place: the same in every run. */
cfx_status cf_stretches(int32_t lists, int32_t n, cfx_tensor *const *leaves, const int32_t *group, cf_stretch **out,
                        int32_t *count);

#endif
