/* sort.c: sort and topk along the last dimension.
 *
 * A value becomes an unsigned key of the same order, in which NaN is the largest and -0 equals 0; falling order
 * is that of the complement.  Keys are sorted with their positions by radix, stably, so equal values keep their
 * order; topk keeps a heap of the k first.
 */
#include "cpu/kernels/rows.h"

typedef struct item {
    uint64_t key;
    int64_t id;
} item;

static inline uint64_t key_f32(float x) {
    uint32_t bits;
    x = x == 0 ? 0 : x;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return UINT32_MAX;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

static inline uint64_t key_f64(double x) {
    uint64_t bits;
    x = x == 0 ? 0 : x;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return UINT64_MAX;
    return bits >> 63 ? ~bits : bits | (uint64_t)1 << 63;
}

/* Elements [from, from + n) of a row as items. */
static void items_read(const cf_view *row, int falling, int64_t from, int64_t n, item *out) {
    const cf_compute compute = cf_compute_of(row->dtype);
    cf_block_memory temp;
    const void *x = CF_K(read)(row, compute, from, n, &temp);
    for (int64_t i = 0; i < n; i++) {
        uint64_t key;
        if (compute == CF_F32) key = key_f32(((const float *)x)[i]) ^ (falling ? UINT32_MAX : 0);
        else {
            key = compute == CF_F64 ? key_f64(((const double *)x)[i])
                                    : (uint64_t)((const int64_t *)x)[i] ^ (uint64_t)1 << 63;
            if (falling) key = ~key;
        }
        out[i] = (item){key, from + i};
    }
}

static void insertion(item *items, int64_t n) {
    for (int64_t i = 1; i < n; i++) {
        const item one = items[i];
        int64_t at = i;
        for (; at > 0 && items[at - 1].key > one.key; at--) items[at] = items[at - 1];
        items[at] = one;
    }
}

/* Sorts by key, stably; returns where the result lies: in items or in other [n]. */
enum { FEW = 48 };
static item *radix(item *items, item *other, int64_t n, int bytes) {
    if (n <= FEW) {
        insertion(items, n);
        return items;
    }
    int64_t count[8][256];
    memset(count, 0, (size_t)bytes * sizeof count[0]);
    for (int64_t i = 0; i < n; i++)
        for (int b = 0; b < bytes; b++) count[b][items[i].key >> (8 * b) & 255]++;
    for (int b = 0; b < bytes; b++) {
        if (count[b][items[0].key >> (8 * b) & 255] == n) continue; /* all alike */
        int64_t at = 0;
        for (int v = 0; v < 256; v++) {
            const int64_t have = count[b][v];
            count[b][v] = at;
            at += have;
        }
        for (int64_t i = 0; i < n; i++) other[count[b][items[i].key >> (8 * b) & 255]++] = items[i];
        item *const swap = items;
        items = other;
        other = swap;
    }
    return items;
}

static inline int after(item a, item b) { return a.key != b.key ? a.key > b.key : a.id > b.id; }

/* heap [n]: each item is after its children; the last one sinks from `at`. */
static void sink(item *heap, int64_t n, int64_t at) {
    const item one = heap[at];
    for (;;) {
        int64_t child = 2 * at + 1;
        if (child >= n) break;
        if (child + 1 < n && after(heap[child + 1], heap[child])) child++;
        if (!after(heap[child], one)) break;
        heap[at] = heap[child];
        at = child;
    }
    heap[at] = one;
}

/* The first k of a row of n, in order. */
static void first(const cf_view *row, int falling, int64_t n, int64_t k, item *heap) {
    item block[CF_BLOCK];
    int64_t have = 0;
    for (int64_t from = 0; from < n; from += CF_BLOCK) {
        const int64_t part = cf_least(CF_BLOCK, n - from);
        items_read(row, falling, from, part, block);
        for (int64_t i = 0; i < part; i++) {
            if (have < k) {
                heap[have++] = block[i];
                if (have == k)
                    for (int64_t at = k / 2; at-- > 0;) sink(heap, k, at);
            } else if (block[i].key < heap[0].key) { /* an equal one comes later */
                heap[0] = block[i];
                sink(heap, k, 0);
            }
        }
    }
    for (int64_t left = k - 1; left > 0; left--) {
        const item last = heap[0];
        heap[0] = heap[left];
        heap[left] = last;
        sink(heap, left, 0);
    }
}

static void put(const cf_view *values, const cf_view *ids, const cf_view *x, int64_t r, const item *items, int64_t k) {
    const cf_view from = cf_row(x, r), to = cf_row(values, r), id = cf_row(ids, r);
    const int64_t xs = from.stride[0], ys = to.stride[0], size = cf_dtype_size(x->dtype);
    for (int64_t i = 0; i < k; i++) ((int64_t *)id.data)[i * id.stride[0]] = items[i].id;
#define PUT_CASE(T)                                                                                    \
    for (int64_t i = 0; i < k; i++) ((T *)to.data)[i * ys] = ((const T *)from.data)[items[i].id * xs]; \
    break
    switch (size) {
    case 1: PUT_CASE(uint8_t);
    case 2: PUT_CASE(uint16_t);
    case 4: PUT_CASE(uint32_t);
    default: PUT_CASE(uint64_t);
    }
}

typedef struct sorting {
    const cf_view *values, *ids, *x;
    int64_t n, k;
    int falling, heap, bytes;
    item *items; /* [team][items_of(n, k)] */
} sorting;

/* A heap is worth it for up to one value in HEAP_SHARE. */
enum { HEAP_SHARE = 8, SORT_COST = 16 };
static int takes_heap(int64_t n, int64_t k) { return k * HEAP_SHARE <= n; }
/* That a thread works on. */
static int64_t items_of(int64_t n, int64_t k) { return takes_heap(n, k) ? k : 2 * n; }

static void sort_part(void *context, int64_t from, int64_t to) {
    const sorting *o = context;
    item *mine = o->items + omp_get_thread_num() * items_of(o->n, o->k);
    for (int64_t r = from; r < to; r++) {
        const cf_view row = cf_row(o->x, r);
        const item *sorted = mine;
        if (o->heap) first(&row, o->falling, o->n, o->k, mine);
        else {
            for (int64_t i = 0; i < o->n; i += CF_BLOCK)
                items_read(&row, o->falling, i, cf_least(CF_BLOCK, o->n - i), mine + i);
            sorted = radix(mine, mine + o->n, o->n, o->bytes);
        }
        put(o->values, o->ids, o->x, r, sorted, o->k);
    }
}

static int64_t row_of(const cf_view *x) { return x->ndim ? x->shape[x->ndim - 1] : 1; }

static cfx_status sort_rows(cf_worker *worker, const cf_call *call, int64_t k, int falling) {
    cf_view views[3] = {call->v[0], call->v[1], *cf_call_in(call, 0)};
    for (int i = 0; i < 3; i++)
        if (views[i].ndim == 0) cf_view_flatten(&views[i]);
    const int64_t n = views[2].shape[views[2].ndim - 1];
    if (cf_view_numel(&views[0]) == 0) return CFX_OK;
    if (views[0].dtype != views[2].dtype || views[1].dtype != CFX_INT64)
        return cf_fail(CFX_EFAULT, "values are of %s and ids of int64, not of %s and %s",
                       cfx_dtype_name(views[2].dtype), cfx_dtype_name(views[0].dtype), cfx_dtype_name(views[1].dtype));
    sorting o = {.values = &views[0],
                 .ids = &views[1],
                 .x = &views[2],
                 .n = n,
                 .k = k,
                 .falling = falling,
                 .heap = takes_heap(n, k),
                 .items = call->workspace,
                 .bytes = cf_compute_of(views[2].dtype) == CF_F32 ? 4 : 8};
    const int64_t rows = cf_view_numel(&views[2]) / n;
    const int team = (int)cf_least(cf_cpu_team(worker, rows * n * SORT_COST), call->threads);
    CF_K(parallel)(team, rows, 1, sort_part, &o);
    return CFX_OK;
}

static size_t workspace(const cf_call *call, int64_t k) {
    const int64_t n = row_of(cf_call_in(call, 0));
    return cf_view_numel(&call->v[0]) ? (size_t)(call->threads * items_of(n, k)) * sizeof(item) : 0;
}

size_t CF_K(topk_workspace)(const cf_call *call) { return workspace(call, CF_PARAMS(call, topk)->k); }

size_t CF_K(sort_workspace)(const cf_call *call) { return workspace(call, row_of(cf_call_in(call, 0))); }

cfx_status CF_K(topk)(cf_worker *worker, const cf_call *call) {
    return sort_rows(worker, call, CF_PARAMS(call, topk)->k, 1);
}

cfx_status CF_K(sort)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    return sort_rows(worker, call, row_of(x), CF_PARAMS(call, sort)->descending != 0);
}
