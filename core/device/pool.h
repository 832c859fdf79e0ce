/* pool.h: device memory, cached.
 *
 * Blocks come in size classes, four to a doubling, so that a block is taken and given back in constant time and
 * a training loop reuses the same ones: small and medium classes are cut from slabs, large blocks are slabs of
 * their own.  A block goes back while commands may still use it; it carries their events along, and its next
 * owner's first write waits for them.  One implementation serves every backend; all calls are the host's.
 *
 * CONFLUX_POOL=plain makes a pool for the search of faults: each block is a slab of exactly its bytes, and the pool
 * gives it back to the system as soon as nothing uses it.  So compute-sanitizer on a GPU, and AddressSanitizer on a
 * CPU, see what reads past a block, or after its end.
 */
#ifndef CF_DEVICE_POOL_H
#define CF_DEVICE_POOL_H

#include "device/arena.h"
#include "device/backend.h"
#include "device/event.h"

enum {
    CF_ALIGN = 256,
    CF_CLASSES = 160 /* four to a doubling, from 256 bytes to 2^48 */
};

typedef struct cf_slab cf_slab;
typedef struct cf_pool cf_pool;

typedef struct cf_block {
    void *data;
    size_t size;   /* of its class; of a plain pool: as asked for */
    cf_uses uses;  /* of earlier owners, not known to have happened */
    cf_slab *slab; /* of the pool it is from; NULL: it is from none */
    cf_pool *pool; /* and that */
    /* NULL: the pool takes it back.  Else this does, once its uses are over; ended: no worker is left, so they are. */
    void (*give)(struct cf_block *block, bool ended);
    struct cf_block *next;
} cf_block;

struct cf_pool {
    const cf_backend *backend;
    void *state;     /* the backend's, of this device */
    cf_arena *arena; /* NULL, or where its slabs lie instead of in the backend's memory */
    cf_pool *beside; /* NULL, or another that counts for the same limit */
    bool plain;
    cf_block *bins[CF_CLASSES]; /* of a plain pool: the first has what is still used */
    cf_slab *slabs;
    cf_slab *open[CF_CLASSES]; /* the slab that a class's blocks are cut from; the first: those of all small ones */
    cf_block *unused;          /* block headers without memory */
    size_t in_use, reserved, peak, limit;
    size_t at_collection; /* in_use when the host collected last */
    int64_t blocks;
};

/* CFX_EARG if CONFLUX_POOL asks for what is not known. */
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
