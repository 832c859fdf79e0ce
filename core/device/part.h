/* part.h: the call of a row that a kernel runs as a part of its own: a copy, an activation that was not fused. */
#ifndef CF_DEVICE_PART_H
#define CF_DEVICE_PART_H

#include "device/backend.h"

enum { CF_PART_INPUTS = 2, CF_PART_PARAMS = 24 };

typedef union cf_part_call {
    cf_call call;
    char room[sizeof(cf_call) + (1 + CF_PART_INPUTS) * sizeof(cf_view) + CF_PART_PARAMS];
} cf_part_call;

/* y <- op(x [n]), computed in `dtype`, with the row's parameters, of which those behind `bytes` are 0; in *part. */
static inline const cf_call *cf_part_of(cf_part_call *part, int op, int dtype, const cf_view *y, int n,
                                        const cf_view *x, const void *params, size_t bytes) {
    memset(part, 0, sizeof *part);
    part->call.op = (uint16_t)op;
    part->call.nout = 1;
    part->call.nin = (uint8_t)n;
    part->call.dtype = (uint8_t)dtype;
    memcpy(part->room + cf_call_bytes(0, 0), y, sizeof *y);
    if (n > 0) memcpy(part->room + cf_call_bytes(1, 0), x, (size_t)n * sizeof *x);
    if (bytes) memcpy(part->room + cf_call_bytes(1 + n, 0), params, bytes);
    return &part->call;
}

#endif
