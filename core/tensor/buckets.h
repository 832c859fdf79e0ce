/* buckets.h: stretches of a gradient buffer that are complete before the rest, so that their reduction can start
 * while backward still runs.
 */
#ifndef CF_TENSOR_BUCKETS_H
#define CF_TENSOR_BUCKETS_H

#include "tensor/buffer.h"

/* The borders between a layout buffer's buckets, which its layout alone decides: buffer->buckets, until a `from` of -1.
 * Their events hold only while buffer->nbuckets says so. */
cfx_status cf_buckets_cut(cf_buffer *buffer);

/* open: once a leaf; `expected`: it will get contributions.  count: it has got its last.  close: backward is enqueued,
 * and bucket events hold until the next write. */
cfx_status cf_buckets_open(const cfx_tensor *place, bool expected);
void cf_bucket_count(const cfx_tensor *place);
void cf_buckets_close(const cfx_tensor *place);
/* Backward did not end: no bucket holds. */
void cf_buckets_abort(const cfx_tensor *place);

#endif
