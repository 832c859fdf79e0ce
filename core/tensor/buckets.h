/* buckets.h: stretches of a gradient buffer that are complete before the rest, so that their reduction can start
 * while backward still runs.
 */
#ifndef CF_TENSOR_BUCKETS_H
#define CF_TENSOR_BUCKETS_H

#include "tensor/buffer.h"

/* open: once a leaf; `expected`: it will get contributions.  count: it has got its last.  close: backward is enqueued,
 * and bucket events hold until the next write. */
cfx_status cf_buckets_open(const cfx_tensor *place, bool expected);
void cf_bucket_count(const cfx_tensor *place);
void cf_buckets_close(const cfx_tensor *place);
/* Backward did not end: no bucket holds. */
void cf_buckets_abort(const cfx_tensor *place);

#endif
