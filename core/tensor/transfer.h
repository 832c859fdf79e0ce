/* transfer.h: bytes between memories that no kernel reaches both of.
 *
 * A value in memory that the host cannot see passes through staging memory, in pieces, by commands on the
 * communication queues of the devices on either side: no worker waits for the other's memory, and no reader for more
 * than the value.
 */
#ifndef CF_TENSOR_TRANSFER_H
#define CF_TENSOR_TRANSFER_H

#include "tensor/dispatch.h"

/* A command that copies bytes: views are added between its two halves. */
typedef struct cf_piece {
    char *to;
    const char *from;
    size_t bytes;
} cf_piece;
void cf_piece_begin(cf_dispatch *d, const char *op, cf_queue *queue, cf_touch *touches);
cfx_status cf_piece_end(cf_dispatch *d, cf_piece piece, cf_event *out);

/* Of `bytes`, how many the piece that starts at `at` has. */
static inline size_t cf_piece_bytes(size_t at, size_t bytes) {
    return bytes - at < CF_STAGING_PIECE ? bytes - at : (size_t)CF_STAGING_PIECE;
}

/* The bytes of packed x into packed y, of one dtype and shape, on a device that is far. */
cfx_status cf_transfer(const cfx_tensor *x, cfx_tensor *y);

#endif
