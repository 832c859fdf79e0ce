/* dnnl.c: see dnnl.h. */
#include "cpu/dnnl.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"
#include "cpu/threads.h"

enum { BUCKETS = 1024 };

/* A place in the order of use. */
typedef struct link {
    struct link *newer, *older;
} link;

/* All that tells entries apart but the key's bytes. */
typedef struct identity {
    uint64_t hash; /* of the bytes, too */
    cf_dnnl_make make;
    size_t bytes; /* of the key */
    int threads;  /* of the team that it was made for */
} identity;

typedef struct entry {
    link used;          /* first: a link of the cache's order is an entry's */
    struct entry *next; /* of its bucket */
    identity is;
    bool missing; /* oneDNN does not have it */
    cf_dnnl_primitive primitive;
    _Alignas(8) char key[];
} entry;

typedef struct cache {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    entry *buckets[BUCKETS];
    link used; /* a ring: `newer` of this is the oldest entry, `older` the newest */
    int count;
    void *pad;
    size_t pad_bytes;
} cache;

/* ---- entries ------------------------------------------------------------------------------------------------ */

static void take_off(link *at) {
    at->newer->older = at->older;
    at->older->newer = at->newer;
}

static void put_newest(cache *c, link *at) {
    at->newer = &c->used;
    at->older = c->used.older;
    at->older->newer = c->used.older = at;
}

static void entry_free(entry *e) {
    cf_dnnl_primitive_free(&e->primitive);
    free(e);
}

static void drop_oldest(cache *c) {
    entry *e = (entry *)c->used.newer, **at = &c->buckets[e->is.hash % BUCKETS];
    while (*at != e) at = &(*at)->next;
    *at = e->next;
    take_off(&e->used);
    c->count--;
    entry_free(e);
}

static uint64_t mix(uint64_t h, uint64_t word) {
    h = (h ^ word) * 0x9E3779B97F4A7C15u;
    return h ^ h >> 29;
}

/* Two words at a time, so that one multiplication does not wait for the other. */
static uint64_t hash_of(const identity *id, const char *key) {
    uint64_t a = (uint64_t)(uintptr_t)id->make, b = (uint64_t)id->threads, words[2];
    size_t at = 0;
    for (; at + sizeof words <= id->bytes; at += sizeof words) {
        memcpy(words, key + at, sizeof words);
        a = mix(a, words[0]);
        b = mix(b, words[1]);
    }
    memset(words, 0, sizeof words);
    memcpy(words, key + at, id->bytes - at);
    return mix(mix(a, words[0]), mix(b, words[1])) >> 32; /* the upper bits depend on all */
}

static bool is_same(const identity *a, const identity *b) {
    return a->hash == b->hash && a->make == b->make && a->bytes == b->bytes && a->threads == b->threads;
}

/* Makes an entry and keeps it.  A CFX_ESTATE is no failure here, but an entry that says so. */
static cfx_status entry_new(cache *c, const identity *id, const void *key, entry **out) {
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(entry) + id->bytes, &memory));
    entry *e = memory, **bucket = &c->buckets[id->hash % BUCKETS];
    e->is = *id;
    memcpy(e->key, key, id->bytes);
    const cfx_status status = id->make(c->engine, e->key, &e->primitive);
    if (status != CFX_OK && status != CFX_ESTATE) {
        entry_free(e);
        return status;
    }
    e->missing = status == CFX_ESTATE;
    if (e->missing) cf_dnnl_primitive_free(&e->primitive);
    if (c->count == CF_DNNL_KEPT) drop_oldest(c);
    e->next = *bucket;
    *bucket = *out = e;
    put_newest(c, &e->used);
    c->count++;
    return CFX_OK;
}

cfx_status cf_dnnl_find(cf_worker *worker, cf_dnnl_make make, const void *key, size_t bytes, cf_dnnl_primitive **out) {
    cache *c = worker->local;
    identity id = {.make = make, .bytes = bytes, .threads = cf_cpu_team(worker, INT64_MAX)}; /* it may use all */
    id.hash = hash_of(&id, key);
    entry *e = c->buckets[id.hash % BUCKETS];
    while (e && !(is_same(&e->is, &id) && memcmp(e->key, key, bytes) == 0)) e = e->next;
    if (!e) {
        CF_TRY(entry_new(c, &id, key, &e));
    } else if (c->used.older != &e->used) {
        take_off(&e->used);
        put_newest(c, &e->used);
    }
    if (e->missing) return cf_fail(CFX_ESTATE, "oneDNN has no such operation");
    *out = &e->primitive;
    return CFX_OK;
}

/* ---- runs --------------------------------------------------------------------------------------------------- */

/* One scratchpad for all primitives, which run one after another.  It is memory of this file's own: a caller may well
 * pass operands that lie in the worker's scratch, which a second request would take away. */
static cfx_status pad_take(cache *c, size_t bytes) {
    if (bytes <= c->pad_bytes) return CFX_OK;
    free(c->pad);
    c->pad_bytes = 0;
    c->pad = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!c->pad) return cf_fail(CFX_EMEMORY, "the system has no %zu bytes for oneDNN", bytes);
    c->pad_bytes = bytes;
    return CFX_OK;
}

cfx_status cf_dnnl_run(cf_worker *worker, cf_dnnl_primitive *p, void *const *data) {
    cache *c = worker->local;
    CF_TRY(pad_take(c, p->pad_bytes));
    const dnnl_status_t status = cf_dnnl_primitive_run(p, c->stream, data, c->pad);
    return status == dnnl_success ? CFX_OK : cf_fail(CFX_EFAULT, "oneDNN failed (status %d)", (int)status);
}

/* ---- the worker's ------------------------------------------------------------------------------------------- */

cfx_status cf_dnnl_begin(cf_worker *worker) {
    void *memory;
    CF_TRY(cf_alloc_zero(1, sizeof(cache), &memory));
    cache *c = worker->local = memory;
    c->used.newer = c->used.older = &c->used;
    if (dnnl_engine_create(&c->engine, dnnl_cpu, 0) == dnnl_success &&
        dnnl_stream_create(&c->stream, c->engine, dnnl_stream_default_flags) == dnnl_success)
        return CFX_OK;
    cf_dnnl_end(worker);
    return cf_fail(CFX_EMEMORY, "oneDNN cannot make an engine");
}

void cf_dnnl_end(cf_worker *worker) {
    cache *c = worker->local;
    if (!c) return;
    for (int i = 0; i < BUCKETS; i++) {
        for (entry *e = c->buckets[i], *next; e; e = next) {
            next = e->next;
            entry_free(e);
        }
    }
    if (c->stream) dnnl_stream_destroy(c->stream);
    if (c->engine) dnnl_engine_destroy(c->engine);
    free(c->pad);
    free(c);
    worker->local = NULL;
}
