/* staging.h: host memory through which values pass on their way to and from a device.
 *
 * A device that the host's memory does not reach by itself copies fast, and without holding up its caller, only to and
 * from memory that its driver has pinned, and pinning costs more than a copy.  So each such device pins one block,
 * once, when the first value passes; pieces of it are handed out round and round.  A piece is handed out again when the
 * event of its last use has happened: only a host that has more than the whole block under way waits for it.
 *
 * All calls are the host's.
 */
#ifndef CF_DEVICE_STAGING_H
#define CF_DEVICE_STAGING_H

#include "device/pool.h"

enum { CF_STAGING_BYTES = 64 << 20, CF_STAGING_PIECE = 8 << 20, CF_STAGING_PIECES = 1024 };

typedef struct cf_staging {
    const cf_backend *backend;
    void *state;  /* the backend's, of this device */
    char *memory; /* [CF_STAGING_BYTES], NULL before the first piece */
    size_t next;  /* where the next piece starts */
    struct cf_staged {
        size_t from, to;
        cf_event last;           /* use of it */
    } pieces[CF_STAGING_PIECES]; /* a ring: [head, tail), oldest first */
    uint64_t head, tail;
} cf_staging;

/* A piece of `bytes`, at most CF_STAGING_PIECE, that nothing uses. Parks, interruptibly, until there is one. */
cfx_status cf_staging_take(cf_staging *staging, size_t bytes, void **out);
/* The last use of the piece taken last. Without this call it is free again at once. */
void cf_staging_used(cf_staging *staging, cf_event last);
/* When nothing is under way. */
void cf_staging_free(cf_staging *staging);

#endif
