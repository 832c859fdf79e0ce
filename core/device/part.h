/* part.h: a row of the op table that a kernel runs as a part of its own: a copy, an activation that was not fused. */
#ifndef CF_DEVICE_PART_H
#define CF_DEVICE_PART_H

#include "device/backend.h"

enum { CF_PART_VIEWS = 3, CF_PART_PARAMS = 24 };

/* y <- op(x [n]), of at most two inputs, computed in `dtype`, with the row's parameters, of which those behind `bytes`
 * are 0. */
static inline cfx_status cf_part_run(cf_worker *worker, cf_kernel kernel, int op, int dtype, const cf_view *y, int n,
                                     const cf_view *x, const void *params, size_t bytes) {
    union {
        cf_call call;
        char room[sizeof(cf_call) + CF_PART_VIEWS * sizeof(cf_view) + CF_PART_PARAMS];
    } c;
    memset(&c, 0, sizeof c);
    c.call.op = (uint16_t)op;
    c.call.nout = 1;
    c.call.nin = (uint8_t)n;
    c.call.dtype = (uint8_t)dtype;
    memcpy(c.room + cf_call_bytes(0, 0), y, sizeof *y);
    if (n > 0) memcpy(c.room + cf_call_bytes(1, 0), x, (size_t)n * sizeof *x);
    if (bytes) memcpy(c.room + cf_call_bytes(1 + n, 0), params, bytes);
    return kernel(worker, &c.call);
}

#endif
