/* shareable.h: tensors in memory that other processes reach. */
#ifndef CF_TENSOR_SHAREABLE_H
#define CF_TENSOR_SHAREABLE_H

#include "tensor/buffer.h"

/* Whether x lies there. */
static inline bool cf_is_shareable(const cfx_tensor *x) { return x->_buffer->block->pool == &cf_device(x)->shareable; }
/* Whether its buffer could be moved there: the memory is a pool's, the host sees it, and nobody was told its address. */
bool cf_can_share(const cfx_tensor *x);
/* Moves x's buffer, once, with all that it holds. */
cfx_status cf_make_shareable(const cfx_tensor *x);

#endif
