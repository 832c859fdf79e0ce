/* shape.h: other shapes of a tensor, for operations that want one; not recorded. */
#ifndef CF_OPS_SHAPE_H
#define CF_OPS_SHAPE_H

#include "tensor/buffer.h"

/* A handle on x with dimension `dim` last. */
void cf_move_last(const cfx_tensor *x, int32_t dim, cfx_tensor *out);
/* x as rows of all but its first `lead` dimensions, packed. */
cfx_status cf_rows_of(const cfx_tensor *x, int lead, cfx_tensor *out);

#endif
