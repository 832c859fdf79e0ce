/* sort.cu: sort and topk along the last dimension.
 *
 * As on the CPU, a value becomes an unsigned key of the same order, in which NaN is the largest and -0 equals 0, and
 * falling order is that of the complement.  Keys are sorted with their positions (sort.cuh); values are then copied
 * from where they lie, bit by bit.  Rows that fit into a tile are done in one launch, several short ones by a block.
 * Longer ones are cut into sorted tiles, which are merged; or topk keeps the k first of each tile and sorts those.
 */
#include "cuda/sort.cuh"

namespace {

/* Rows of n elements: the last dimension of a view, and the others, merged. */
typedef struct rows {
    cf_view lead;
    int64_t step; /* along the row */
} rows;

rows rows_of(const cf_view *v) {
    rows out = {*v, v->ndim ? v->stride[v->ndim - 1] : 1};
    if (v->ndim) out.lead.ndim--;
    cf_views_collapse(&out.lead, 1);
    return out;
}

typedef struct sorting {
    rows values, ids, x;
    int64_t count, n, k; /* rows, elements of a row, and how many of them are wanted */
    int falling;
} sorting;

__device__ inline uint32_t key_of(float x) {
    union {
        float value;
        uint32_t bits;
    } u;
    u.value = x == 0 ? 0 : x;
    if (x != x) return UINT32_MAX;
    return u.bits >> 31 ? ~u.bits : u.bits | 0x80000000u;
}
__device__ inline uint64_t key_of(double x) {
    union {
        double value;
        uint64_t bits;
    } u;
    u.value = x == 0 ? 0 : x;
    if (x != x) return UINT64_MAX;
    return u.bits >> 63 ? ~u.bits : u.bits | (uint64_t)1 << 63;
}
__device__ inline uint64_t key_of(int64_t x) { return (uint64_t)x ^ (uint64_t)1 << 63; }

/* Element i of row r as an item. */
template <class K> __device__ K item_of(const sorting &o, int64_t r, int64_t i);
template <> __device__ inline cf_item item_of<cf_item>(const sorting &o, int64_t r, int64_t i) {
    const int64_t at = cf_offset(o.x.lead, r) + i * o.x.step;
    const int dtype = o.x.lead.dtype;
    const uint32_t key = dtype >= CFX_FLOAT16
                             ? key_of(cf_get<float>(o.x.lead.data, dtype, at))
                             : (uint32_t)(int32_t)cf_get<int64_t>(o.x.lead.data, dtype, at) ^ 0x80000000u;
    return (uint64_t)(o.falling ? ~key : key) << 32 | (uint64_t)i;
}
template <> __device__ inline cf_wide_item item_of<cf_wide_item>(const sorting &o, int64_t r, int64_t i) {
    const int64_t at = cf_offset(o.x.lead, r) + i * o.x.step;
    const int dtype = o.x.lead.dtype;
    const uint64_t key = dtype >= CFX_FLOAT16 ? key_of(cf_get<double>(o.x.lead.data, dtype, at))
                                              : key_of(cf_get<int64_t>(o.x.lead.data, dtype, at));
    return cf_wide_item{o.falling ? ~key : key, i};
}

__device__ inline int64_t id_of(cf_item item) { return (int64_t)(item & UINT32_MAX); }
__device__ inline int64_t id_of(const cf_wide_item &item) { return item.id; }

/* Place i of row r gets element `id` of it. */
__device__ inline void put(const sorting &o, int64_t r, int64_t i, int64_t id) {
    const int64_t to = cf_offset(o.values.lead, r) + i * o.values.step;
    const int64_t from = cf_offset(o.x.lead, r) + id * o.x.step;
    const void *x = o.x.lead.data;
    void *y = o.values.lead.data;
    ((int64_t *)o.ids.lead.data)[cf_offset(o.ids.lead, r) + i * o.ids.step] = id;
    switch (o.x.lead.dtype) {
    case CFX_BOOL:
    case CFX_UINT8: ((uint8_t *)y)[to] = ((const uint8_t *)x)[from]; break;
    case CFX_FLOAT16:
    case CFX_BFLOAT16: ((uint16_t *)y)[to] = ((const uint16_t *)x)[from]; break;
    case CFX_INT32:
    case CFX_FLOAT32: ((uint32_t *)y)[to] = ((const uint32_t *)x)[from]; break;
    default: ((uint64_t *)y)[to] = ((const uint64_t *)x)[from];
    }
}

/* Rows of up to CF_TILE elements; a block takes `group` of them at a time, each in a segment of its tile. */
template <class K> __global__ void __launch_bounds__(CF_THREADS) sort_short(sorting o, int segment, int group) {
    __shared__ K tile[CF_TILE];
    const int used = segment * group;
    for (int64_t first = (int64_t)blockIdx.x * group; first < o.count; first += (int64_t)gridDim.x * group) {
        for (int p = (int)threadIdx.x; p < used; p += CF_THREADS) {
            const int64_t r = first + p / segment, i = p % segment;
            tile[p] = r < o.count && i < o.n ? item_of<K>(o, r, i) : cf_item_last<K>();
        }
        cf_sort_tile(tile, used, segment);
        for (int p = (int)threadIdx.x; p < used; p += CF_THREADS) {
            const int64_t r = first + p / segment, i = p % segment;
            if (r < o.count && i < o.k) put(o, r, i, id_of(tile[p]));
        }
        __syncthreads();
    }
}

/* Sorts each tile of each row and writes its `keep` first items, or all of a shorter last tile.  A tile is cut from the
 * values of x, or, once items are there, from the items [rows, n]; `kept` are left of a row. */
template <class K>
__global__ void __launch_bounds__(CF_THREADS)
    sort_cut(sorting o, const K *items, int64_t n, int keep, K *out /* [rows, kept] */, int64_t kept) {
    __shared__ K tile[CF_TILE];
    const int64_t tiles = (n + CF_TILE - 1) / CF_TILE;
    for (int64_t b = blockIdx.x; b < o.count * tiles; b += gridDim.x) {
        const int64_t r = b / tiles, t = b % tiles, from = t * CF_TILE;
        const int have = n - from < CF_TILE ? (int)(n - from) : (int)CF_TILE;
        for (int p = (int)threadIdx.x; p < CF_TILE; p += CF_THREADS)
            tile[p] = p >= have ? cf_item_last<K>() : items ? items[r * n + from + p] : item_of<K>(o, r, from + p);
        cf_sort_tile(tile, CF_TILE, CF_TILE);
        for (int p = (int)threadIdx.x; p < keep && p < have; p += CF_THREADS) out[r * kept + t * keep + p] = tile[p];
        __syncthreads();
    }
}

template <class K> __global__ void sort_put(sorting o, const K *sorted /* [rows, n] */, int64_t n) {
    for (CF_EACH(e, o.count * o.k)) {
        const int64_t r = e / o.k, i = e % o.k;
        put(o, r, i, id_of(sorted[r * n + i]));
    }
}

template <class K> cfx_status sort_typed(cf_worker *worker, const sorting *o, void *workspace) {
    const int64_t most = (int64_t)cf_cuda_of(worker)->sms * 16;
    if (o->n <= CF_TILE) {
        /* As many rows a block as fill it, but no fewer blocks than the device runs at once. */
        const int segment = cf_tile_for(o->n);
        int group = 1;
        while (group * 2 * segment <= CF_TILE && o->count / (group * 2) >= cf_cuda_of(worker)->sms * 4) group *= 2;
        const int64_t blocks = (o->count + group - 1) / group;
        const auto kernel = sort_short<K>;
        CF_LAUNCH_TEAM(kernel, blocks < most ? blocks : most, CF_THREADS, worker, *o, segment, group);
        return CFX_OK;
    }
    K *items = (K *)workspace, *other = items + o->count * o->n;
    /* To keep more than half of each tile would take more rounds than merging them. */
    const int keep = o->k <= CF_TILE / 2 ? (int)o->k : (int)CF_TILE;
    const auto cut = sort_cut<K>;
    const K *source = NULL;
    int64_t n = o->n;
    for (bool sorted = false; !sorted;) {
        const int64_t tiles = (n + CF_TILE - 1) / CF_TILE, rest = n - (tiles - 1) * CF_TILE;
        const int64_t kept = (tiles - 1) * keep + (rest < keep ? rest : keep), blocks = o->count * tiles;
        CF_LAUNCH_TEAM(cut, blocks < most ? blocks : most, CF_THREADS, worker, *o, source, n, keep, items, kept);
        sorted = tiles == 1 || keep == CF_TILE;
        source = items;
        items = other;
        other = (K *)source;
        n = kept;
    }
    if (keep == CF_TILE) source = cf_merge_all(worker, other, items, o->count, n);
    const auto put_all = sort_put<K>;
    CF_LAUNCH(put_all, cf_cuda_blocks(worker, o->count * o->k), CF_THREADS, worker, *o, source, n);
    return CFX_OK;
}

int64_t row_of(const cf_view *x) { return x->ndim ? x->shape[x->ndim - 1] : 1; }

/* Whether an item of a row takes 8 bytes, not 16. */
bool is_narrow(const cf_view *x) { return x->dtype != CFX_INT64 && x->dtype != CFX_FLOAT64 && row_of(x) < UINT32_MAX; }

/* Of rows that do not fit into a tile: all items, twice. */
size_t workspace(const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    if (row_of(x) <= CF_TILE || cf_view_numel(&call->v[0]) == 0) return 0;
    return 2 * (size_t)cf_view_numel(x) * (is_narrow(x) ? sizeof(cf_item) : sizeof(cf_wide_item));
}

cfx_status sort_rows(cf_worker *worker, const cf_call *call, int64_t k, int falling) {
    const cf_view *values = &call->v[0], *ids = &call->v[1], *x = cf_call_in(call, 0);
    if (cf_view_numel(values) == 0) return CFX_OK;
    if (values->dtype != x->dtype || ids->dtype != CFX_INT64)
        return cf_fail(CFX_EFAULT, "values are of %s and ids of int64, not of %s and %s", cfx_dtype_name(x->dtype),
                       cfx_dtype_name(values->dtype), cfx_dtype_name(ids->dtype));
    sorting o = {};
    o.values = rows_of(values);
    o.ids = rows_of(ids);
    o.x = rows_of(x);
    o.n = row_of(x);
    o.count = cf_view_numel(x) / o.n;
    o.k = k;
    o.falling = falling;
    CF_TRY(is_narrow(x) ? sort_typed<cf_item>(worker, &o, call->workspace)
                        : sort_typed<cf_wide_item>(worker, &o, call->workspace));
    return cf_cuda_launched("a kernel");
}

} // namespace

extern "C" size_t cf_cuda_topk_workspace(const cf_call *call) { return workspace(call); }
extern "C" size_t cf_cuda_sort_workspace(const cf_call *call) { return workspace(call); }

extern "C" cfx_status cf_cuda_topk(cf_worker *worker, const cf_call *call) {
    return sort_rows(worker, call, CF_PARAMS(call, topk)->k, 1);
}

extern "C" cfx_status cf_cuda_sort(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    return sort_rows(worker, call, row_of(x), CF_PARAMS(call, sort)->descending != 0);
}
