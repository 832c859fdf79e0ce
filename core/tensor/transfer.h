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

/* The queue on which bytes go up to a device: the communication queue, so that the copy runs beside what is computed
 * meanwhile; but few bytes go in the order of what is computed, for their copy takes less time than waits between two
 * streams. */
cf_queue *cf_upload_queue(cfx_device *device, size_t bytes);
/* Host memory that the device can copy from, into packed y from byte `at` on.  It is in use until *sent has happened. */
cfx_status cf_send(cfx_tensor *y, size_t at, const void *from, size_t bytes, cf_queue *queue, cf_event *sent);

/* The bytes of packed x into packed y, of one dtype and shape, on a device that is far. */
cfx_status cf_transfer(const cfx_tensor *x, cfx_tensor *y);

#endif
