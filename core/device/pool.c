/* pool.c: size classes, slabs, trimming.  See pool.h. */
#include "device/pool.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

struct cf_slab {
    cf_slab *next;
    char *data;
    size_t bytes, used; /* used: cut into blocks so far */
    int32_t open;       /* its place in the pool's `open` */
    int32_t live;       /* blocks not in a bin */
    int32_t cut;
};

/* Small blocks, whatever their class, are cut from slabs of SLAB_BYTES, a CPU's huge page; medium ones lie four in a slab
 * of several such pages, and large ones each in its own. */
enum { SMALL_BYTES = 1 << 18, MEDIUM_BYTES = 1 << 23, SLAB_BYTES = 1 << 21, BLOCKS = 4 };
static const size_t MOST_BYTES = (size_t)1 << 47; /* more than a process can address */

/* Classes 4k .. 4k+3 are 256 * 2^k times 1, 1.25, 1.5, 1.75; `size` is what the class's blocks have.  Sizes are
 * multiples of the alignment first, so that a block's own size gives its class again. */
static int class_of(size_t bytes, size_t *size) {
    int k = 0;
    bytes = bytes ? (bytes + CF_ALIGN - 1) & ~(size_t)(CF_ALIGN - 1) : CF_ALIGN;
    while (k < CF_CLASSES / 4 - 2 && ((size_t)CF_ALIGN << (k + 1)) <= bytes) k++;
    const size_t base = (size_t)CF_ALIGN << k, quarter = base / 4;
    const size_t q = (bytes - base + quarter - 1) / quarter;
    *size = base + q * quarter;
    return 4 * k + (int)q;
}

cfx_status cf_pool_init(cf_pool *pool, const cf_backend *backend, void *state, size_t limit) {
    const char *mode = getenv("CONFLUX_POOL");
    memset(pool, 0, sizeof *pool);
    pool->plain = mode && strcmp(mode, "plain") == 0;
    if (mode && *mode && !pool->plain)
        return cf_fail(CFX_EARG, "CONFLUX_POOL is '%s': expected 'plain', or nothing", mode);
    pool->backend = backend;
    pool->state = state;
    pool->limit = limit;
    return CFX_OK;
}

static cfx_status header(cf_pool *pool, cf_block **out) {
    if (pool->unused) {
        *out = pool->unused;
        pool->unused = (*out)->next;
        memset(*out, 0, sizeof **out);
        return CFX_OK;
    }
    void *block;
    CF_TRY(cf_alloc_zero(1, sizeof **out, &block));
    *out = block;
    return CFX_OK;
}

static void header_free(cf_pool *pool, cf_block *block) {
    cf_uses_clear(&block->uses);
    block->next = pool->unused;
    pool->unused = block;
}

/* Where the host sees a plain pool's blocks they come from malloc, whose ends AddressSanitizer watches. */
static bool is_malloced(const cf_pool *pool) { return pool->plain && pool->backend->host_memory; }

static cfx_status memory_new(const cf_pool *pool, size_t bytes, void **out) {
    if (pool->arena) return cf_arena_take(pool->arena, bytes, out);
    if (!is_malloced(pool)) return pool->backend->slab_new(pool->state, bytes, out);
    if (posix_memalign(out, CF_ALIGN, bytes) == 0) return CFX_OK;
    return cf_fail(CFX_EMEMORY, "the system has no %zu bytes", bytes);
}

static void memory_free(const cf_pool *pool, void *memory, size_t bytes) {
    if (pool->arena) cf_arena_give(pool->arena, memory, bytes);
    else if (is_malloced(pool)) free(memory);
    else pool->backend->slab_free(pool->state, memory, bytes);
}

static cfx_status slab_new(cf_pool *pool, size_t bytes, int open, cf_slab **out) {
    void *slab, *data;
    const size_t reserved = pool->reserved + (pool->beside ? pool->beside->reserved : 0);
    if (bytes > pool->limit || reserved > pool->limit - bytes)
        return cf_fail(CFX_EMEMORY, "limit of %zu bytes reached", pool->limit);
    CF_TRY(cf_alloc_zero(1, sizeof(cf_slab), &slab));
    const cfx_status status = memory_new(pool, bytes, &data);
    if (status != CFX_OK) {
        free(slab);
        return status;
    }
    *out = slab;
    **out = (cf_slab){.next = pool->slabs, .data = data, .bytes = bytes, .open = open};
    pool->slabs = slab;
    pool->reserved += bytes;
    return CFX_OK;
}

static cfx_status cut(cf_pool *pool, cf_slab *slab, size_t size, cf_block **out) {
    CF_TRY(header(pool, out));
    **out = (cf_block){.data = slab->data + slab->used, .size = size, .slab = slab, .pool = pool};
    slab->used += size;
    slab->cut++;
    return CFX_OK;
}

/* A block of a plain pool: all of a slab. */
static cfx_status grow_plain(cf_pool *pool, size_t bytes, cf_block **out) {
    cf_slab *slab;
    CF_TRY(slab_new(pool, bytes, 0, &slab));
    return cut(pool, slab, bytes, out);
}

/* Where the open slab of a class stands: all small ones have one. */
static int open_of(int c, size_t size) { return size <= SMALL_BYTES ? 0 : c; }

/* A block that no bin had: cut from the class's open slab, or a slab of its own. */
static cfx_status grow(cf_pool *pool, size_t size, int c, cf_block **out) {
    cf_slab *slab = pool->open[open_of(c, size)];
    if (!slab || slab->used + size > slab->bytes) {
        /* few blocks should not reserve much: the first slab is the smallest */
        size_t bytes = size;
        if (size <= SMALL_BYTES) bytes = slab ? SLAB_BYTES : BLOCKS * size;
        else if (size <= MEDIUM_BYTES) bytes = slab ? BLOCKS * size : size;
        if (bytes > SLAB_BYTES / 2) bytes = (bytes + SLAB_BYTES - 1) / SLAB_BYTES * SLAB_BYTES;
        const int at = open_of(c, size);
        if (slab_new(pool, bytes, at, &slab) != CFX_OK) CF_TRY(slab_new(pool, size, at, &slab));
        pool->open[at] = slab;
    }
    return cut(pool, slab, size, out);
}

/* Waits for the last uses of the blocks that nobody owns.  The host may be steps ahead of the device, and what it
 * gave back must not be missing here only because of that. */
static cfx_status wait_for_unused(cf_pool *pool) {
    for (int c = 0; c < CF_CLASSES; c++)
        for (cf_block *b = pool->bins[c]; b; b = b->next)
            for (int32_t i = 0; i < b->uses.n; i++) CF_TRY(cf_event_wait(cf_uses_items(&b->uses)[i]));
    return CFX_OK;
}

/* Slabs that nobody uses go back to the system, of all pools that count for one limit. */
static cfx_status give_back(cf_pool *pool) {
    CF_TRY(wait_for_unused(pool));
    cf_pool_trim(pool);
    if (!pool->beside) return CFX_OK;
    CF_TRY(wait_for_unused(pool->beside));
    cf_pool_trim(pool->beside);
    return CFX_OK;
}

static cfx_status no_room(const cf_pool *pool, size_t bytes) {
    return cf_fail(CFX_EMEMORY, "out of memory: %zu bytes asked for, %zu in use, %zu reserved, limit %zu", bytes,
                   pool->in_use, pool->reserved, pool->limit);
}

static cf_block *pop(cf_pool *pool, int c) {
    cf_block *block = pool->bins[c];
    if (!block) return NULL;
    pool->bins[c] = block->next;
    block->next = NULL;
    return block;
}

static size_t size_of(int c) { return ((size_t)CF_ALIGN << (c / 4)) / 4 * (size_t)(4 + c % 4); }

/* The smallest block of the classes [from, end) that is unused, or not cut yet; it keeps its class, and goes back into
 * that bin.  An open slab that had no room for less has none for more, so the small classes' is not cut here. */
static cf_block *larger(cf_pool *pool, int from, int end) {
    for (int c = from; c < end; c++) {
        cf_block *block = pop(pool, c);
        cf_slab *slab = pool->open[open_of(c, size_of(c))];
        if (!block && slab && slab->used + size_of(c) <= slab->bytes && cut(pool, slab, size_of(c), &block) != CFX_OK)
            return NULL;
        if (block) return block;
    }
    return NULL;
}

/* Where no slab can be made, a block of up to twice the size serves: less is lost by it than by a wait.  A larger one
 * serves only where nothing else is left, for it may be held long by a small tensor. */
enum { TWICE = 4 };

static cfx_status take(cf_pool *pool, size_t bytes, cf_block **out) {
    size_t size;
    const int c = class_of(bytes, &size), near = c + TWICE < CF_CLASSES ? c + TWICE + 1 : CF_CLASSES;
    cf_block *block = pop(pool, c);
    if (!block && grow(pool, size, c, &block) != CFX_OK) block = larger(pool, c + 1, near);
    if (!block) {
        CF_TRY(give_back(pool));
        const cfx_status status = grow(pool, size, c, &block);
        if (status != CFX_OK) block = larger(pool, c + 1, CF_CLASSES);
        if (!block) return status;
    }
    *out = block;
    return CFX_OK;
}

static cfx_status take_plain(cf_pool *pool, size_t bytes, cf_block **out) {
    const size_t size = bytes ? bytes : 1; /* a tensor of nothing has an address, too */
    if (grow_plain(pool, size, out) == CFX_OK) return CFX_OK;
    CF_TRY(give_back(pool));
    return grow_plain(pool, size, out);
}

/* The peak of two pools that count for one limit is that of their sum. */
static void count_peak(cf_pool *pool) {
    const size_t in_use = pool->in_use + (pool->beside ? pool->beside->in_use : 0);
    if (in_use <= pool->peak) return;
    pool->peak = in_use;
    if (pool->beside) pool->beside->peak = in_use;
}

cfx_status cf_pool_take(cf_pool *pool, size_t bytes, cf_block **out) {
    cf_block *block = NULL;
    if (bytes > MOST_BYTES) return no_room(pool, bytes);
    const cfx_status status = pool->plain ? take_plain(pool, bytes, &block) : take(pool, bytes, &block);
    if (status != CFX_OK) return status == CFX_EMEMORY ? no_room(pool, bytes) : status;
    block->slab->live++;
    pool->in_use += block->size;
    pool->blocks++;
    count_peak(pool);
    *out = block;
    return CFX_OK;
}

void cf_pool_give(cf_pool *pool, cf_block *block) {
    size_t size;
    const int c = pool->plain ? 0 : class_of(block->size, &size);
    block->slab->live--;
    pool->in_use -= block->size;
    pool->blocks--;
    if (pool->at_collection > pool->in_use) pool->at_collection = pool->in_use;
    block->next = pool->bins[c];
    pool->bins[c] = block;
    if (pool->plain) cf_pool_trim(pool);
}

static bool all_done(cf_uses *uses) {
    cf_uses_prune(uses);
    return uses->n == 0;
}

void cf_pool_trim(cf_pool *pool) {
    /* A slab may go when all its blocks are in the bin and nothing uses them; `cut` counts those down. */
    for (int c = 0; c < CF_CLASSES; c++)
        for (cf_block *b = pool->bins[c]; b; b = b->next)
            if (all_done(&b->uses)) b->slab->cut--;
    for (int c = 0; c < CF_CLASSES; c++) {
        for (cf_block **at = &pool->bins[c]; *at;) {
            cf_block *b = *at;
            if (b->slab->cut == 0 && b->slab->live == 0) {
                *at = b->next;
                header_free(pool, b);
            } else {
                if (b->uses.n == 0) b->slab->cut++;
                at = &b->next;
            }
        }
    }
    for (cf_slab **at = &pool->slabs; *at;) {
        cf_slab *slab = *at;
        if (slab->cut != 0 || slab->live != 0) {
            at = &slab->next;
            continue;
        }
        *at = slab->next;
        if (pool->open[slab->open] == slab) pool->open[slab->open] = NULL;
        pool->reserved -= slab->bytes;
        memory_free(pool, slab->data, slab->bytes);
        free(slab);
    }
}

void cf_pool_free(cf_pool *pool) {
    for (int c = 0; c < CF_CLASSES; c++) {
        for (cf_block *b = pool->bins[c], *next; b; b = next) {
            next = b->next;
            header_free(pool, b);
        }
    }
    for (cf_slab *slab = pool->slabs, *next; slab; slab = next) {
        next = slab->next;
        memory_free(pool, slab->data, slab->bytes);
        free(slab);
    }
    for (cf_block *b = pool->unused, *next; b; b = next) {
        next = b->next;
        free(b);
    }
    memset(pool, 0, sizeof *pool);
}
