/* dnnl.c: matrix products by oneDNN.
 *
 * Making a primitive costs from microseconds (where oneDNN's own cache has it) to milliseconds (where it writes
 * code), so each worker keeps those it has made, keyed by all that shaped them, and only sets addresses for a
 * run.  A program has few shapes; one that has many starts afresh when the table is full.
 *
 * The scratchpad of oneDNN is memory of this file's own: a caller may well pass operands that lie in the
 * worker's scratch, which a second request would take away.
 */
#include <stdlib.h>

#include "cpu/dnnl_make.h"

/* A power of two; half of it is filled at most, so that probing stays short. */
enum { PLACES = 2048, MOST = PLACES / 2 };

/* All that shapes a primitive; compared byte by byte, so without padding. */
typedef struct key {
    int64_t batch, n, m, k, a_batch, a_row, a_col, b_batch, b_row, b_col, y_batch, y_row;
    double p0, p1;
    int32_t dtype, add, act, bias, threads, unused;
} key;

typedef struct place {
    int used; /* 1; or 2 for a product that oneDNN does not have */
    key key;
    cf_dnnl_matmul matmul;
} place;

typedef struct local {
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    place *places; /* [PLACES] */
    int used;
    void *pad;
    size_t pad_bytes;
} local;

static void clear(local *l) {
    for (int i = 0; i < PLACES; i++)
        if (l->places[i].used) cf_dnnl_matmul_free(&l->places[i].matmul);
    memset(l->places, 0, PLACES * sizeof *l->places);
    l->used = 0;
}

cfx_status cf_dnnl_begin(cf_worker *worker) {
    local *l;
    CF_TRY(cf_alloc_zero(1, sizeof *l, (void **)&l));
    worker->local = l;
    cfx_status status = cf_alloc_zero(PLACES, sizeof *l->places, (void **)&l->places);
    if (status == CFX_OK && (dnnl_engine_create(&l->engine, dnnl_cpu, 0) != dnnl_success ||
                             dnnl_stream_create(&l->stream, l->engine, dnnl_stream_default_flags) != dnnl_success))
        status = cf_fail(CFX_EMEMORY, "oneDNN cannot make an engine");
    if (status != CFX_OK) cf_dnnl_end(worker);
    return status;
}

void cf_dnnl_end(cf_worker *worker) {
    local *l = worker->local;
    if (!l) return;
    if (l->places) clear(l);
    free(l->places);
    if (l->stream) dnnl_stream_destroy(l->stream);
    if (l->engine) dnnl_engine_destroy(l->engine);
    free(l->pad);
    free(l);
    worker->local = NULL;
}

int cf_dnnl_fuses(int act) { return cf_dnnl_act(act) != dnnl_alg_kind_undef; }

static uint32_t hash(const key *key) {
    uint64_t words[sizeof *key / 8], h = 0;
    memcpy(words, key, sizeof *key);
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        h = (h ^ words[i]) * 0x9E3779B97F4A7C15u;
        h ^= h >> 29;
    }
    return (uint32_t)(h >> 32);
}

static cfx_status find(local *l, const cf_product *p, int threads, cf_dnnl_matmul **out) {
    key key = {p->batch,   p->n,     p->m,  p->k,  p->a_batch, p->a_row, p->a_col, p->b_batch,      p->b_row, p->b_col,
               p->y_batch, p->y_row, p->p0, p->p1, p->dtype,   p->add,   p->act,   p->bias != NULL, threads,  0};
    uint32_t i = hash(&key) % PLACES;
    for (; l->places[i].used; i = (i + 1) % PLACES) {
        if (memcmp(&l->places[i].key, &key, sizeof key) != 0) continue;
        if (l->places[i].used == 2) return cf_fail(CFX_ESTATE, "oneDNN has no such product");
        *out = &l->places[i].matmul;
        return CFX_OK;
    }
    if (l->used == MOST) {
        clear(l);
        i = hash(&key) % PLACES;
    }
    place *place = &l->places[i];
    const cfx_status status = cf_dnnl_matmul_new(l->engine, p, &place->matmul);
    if (status != CFX_OK && status != CFX_ESTATE) return status;
    place->used = status == CFX_OK ? 1 : 2;
    place->key = key;
    l->used++;
    *out = &place->matmul;
    return status;
}

static cfx_status pad_take(local *l, size_t bytes) {
    if (bytes <= l->pad_bytes) return CFX_OK;
    free(l->pad);
    l->pad_bytes = 0;
    l->pad = aligned_alloc(64, (bytes + 63) & ~(size_t)63);
    if (!l->pad) return cf_fail(CFX_EMEMORY, "the system has no %zu bytes for a product", bytes);
    l->pad_bytes = bytes;
    return CFX_OK;
}

cfx_status cf_dnnl_product(cf_worker *worker, const cf_product *p) {
    local *l = worker->local;
    cf_dnnl_matmul *matmul = NULL;
    if (!l) return cf_fail(CFX_ESTATE, "oneDNN has not begun");
    CF_TRY(find(l, p, cf_cpu_team(worker, INT64_MAX), &matmul)); /* oneDNN may have use for all */
    CF_TRY(pad_take(l, matmul->pad_bytes));
    dnnl_exec_arg_t args[5] = {{DNNL_ARG_SRC, matmul->a},
                               {DNNL_ARG_WEIGHTS, matmul->b},
                               {DNNL_ARG_DST, matmul->y},
                               {DNNL_ARG_SCRATCHPAD, matmul->pad},
                               {DNNL_ARG_BIAS, matmul->bias}};
    const int n = matmul->bias ? 5 : 4;
    void *data[5] = {(void *)p->a, (void *)p->b, p->y, l->pad, (void *)p->bias};
    dnnl_status_t status = dnnl_success;
    for (int i = 0; i < n && status == dnnl_success; i++) status = dnnl_memory_set_data_handle(args[i].memory, data[i]);
    if (status == dnnl_success) status = dnnl_primitive_execute(matmul->primitive, l->stream, n, args);
    if (status == dnnl_success) return CFX_OK;
    return cf_fail(CFX_EFAULT, "oneDNN failed in a product of [%lld, %lld] and [%lld, %lld] (status %d)",
                   (long long)p->n, (long long)p->k, (long long)p->k, (long long)p->m, (int)status);
}
