/* pool.h: device memory, cached.
 *
 * Blocks come in size classes, four to a doubling, so that a block is taken and given back in constant time and
 * a training loop reuses the same ones: small and medium classes are cut from slabs, large blocks are slabs of
 * their own.  A block goes back while commands may still use it; it carries their events along, and its next
 * owner's first write waits for them.  One implementation serves every backend; all calls are the host's.
 */
#ifndef CF_DEVICE_POOL_H
#define CF_DEVICE_POOL_H

#include "device/queue.h"

enum {
    CF_ALIGN = 256,
    CF_CLASSES = 160 /* four to a doubling, from 256 bytes to 2^48 */
};

typedef struct cf_slab cf_slab;
typedef struct cf_pool cf_pool;

typedef struct cf_block {
    void *data;
    size_t size;   /* of its class */
    cf_uses uses;  /* of earlier owners, not known to have happened */
    cf_slab *slab; /* NULL: the host program's memory, of no pool (tensor/share.c) */
    struct cf_block *next;
} cf_block;

struct cf_pool {
    const cf_backend *backend;
    void *state; /* the backend's, of this device */
    cf_block *bins[CF_CLASSES];
    cf_slab *slabs;
    cf_slab *open[CF_CLASSES]; /* the slab that a small class is cut from */
    cf_block *unused;          /* block headers without memory */
    size_t in_use, reserved, peak, limit;
    size_t at_collection; /* in_use when the host collected last */
    int64_t blocks;
};

cfx_status cf_pool_init(cf_pool *pool, const cf_backend *backend, void *state, size_t limit);
void cf_pool_free(cf_pool *pool);

/* At least `bytes`; bytes 0 gives a block of the smallest class, and where there is no memory for one of its class an
 * unused larger one serves.  CFX_EMEMORY, with byte counts, after what is
 * unused was given back to the system. */
cfx_status cf_pool_take(cf_pool *pool, size_t bytes, cf_block **out);
/* Cannot fail.  The block's `uses` must name what still reads or writes it. */
void cf_pool_give(cf_pool *pool, cf_block *block);
/* Gives slabs without a live block back to the system, once their last uses have happened. */
void cf_pool_trim(cf_pool *pool);

#endif
