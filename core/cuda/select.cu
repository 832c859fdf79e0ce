/* select.cu: taking and adding elements by ids.
 *
 * All four rows are one loop over the elements of the tensor that has the ids' shape (the part), each of which has a
 * place in the other (the whole): for index the ids' dimensions stand in the place of one dimension, for gather the
 * ids have all dimensions.  That is a matter of strides alone, so one layout describes both.
 *
 * Ids are checked by a kernel of their own, whose result the one that moves looks at first, so that nothing moves
 * where one is wrong, and nobody waits.
 *
 * Where several ids name one position, what is added there is added in the order of the ids, by one thread.  Either a
 * thread owns a column (all dimensions but that of the positions) and walks its ids, or the ids are sorted by position,
 * stably, and each run of equal ones has its own threads.
 */
#include "cuda/items.cuh"
#include "cuda/sort.cuh"

namespace {

/* ---- layouts ------------------------------------------------------------------------------------------------- */

/* Dimensions with what a step along each means, in elements: in the part, in the whole, in the ids, and in the places
 * as they are numbered for sorting. */
typedef struct layout {
    int ndim;
    int64_t count, shape[CFX_MAX_DIMS], part[CFX_MAX_DIMS], whole[CFX_MAX_DIMS], ids[CFX_MAX_DIMS],
        number[CFX_MAX_DIMS];
} layout;

typedef struct offsets {
    int64_t part, whole, ids, number;
} offsets;

/* Adds a dimension inside the others. */
void push(layout *t, int64_t size, int64_t part, int64_t whole, int64_t ids, int64_t number) {
    const int at = t->ndim++;
    t->shape[at] = size;
    t->part[at] = part;
    t->whole[at] = whole;
    t->ids[at] = ids;
    t->number[at] = number;
}

/* All dimensions are there: they are counted, and merged where they are one run in every respect. */
void finish(layout *t) {
    int64_t *const strides[] = {t->part, t->whole, t->ids, t->number};
    t->count = cf_shape_numel(t->ndim, t->shape);
    t->ndim = cf_dims_collapse(t->ndim, t->shape, 4, strides);
}

/* Dividing 64-bit numbers takes five times as long, and few need it. */
__device__ inline int64_t divided(int64_t a, int64_t by) {
    return ((uint64_t)a | (uint64_t)by) >> 32 ? a / by : (int64_t)((uint32_t)a / (uint32_t)by);
}
__device__ inline uint32_t divided(uint32_t a, int64_t by) { return a / (uint32_t)by; }

/* I: int64_t, or uint32_t for a layout of fewer elements than that counts. */
template <class I> __device__ inline offsets locate(const layout &t, I e) {
    offsets at = {0, 0, 0, 0};
    for (int d = t.ndim - 1; d >= 0; d--) {
        const I rest = d > 0 ? divided(e, t.shape[d]) : 0;
        const int64_t k = (int64_t)e - (int64_t)rest * t.shape[d];
        at.part += k * t.part[d];
        at.whole += k * t.whole[d];
        at.ids += k * t.ids[d];
        at.number += k * t.number[d];
        e = rest;
    }
    return at;
}

/* A call, brought into one form. */
typedef struct picking {
    void *part, *whole;
    const void *ids;
    int dtype, ids_dtype, op;
    int64_t size, step;  /* of the dimension that ids name: its size and its stride in the whole */
    layout all;          /* the part, in row-major order */
    layout walk, column; /* the same, cut in two: along the positions, in the order of ids; and across */
    layout flat;         /* the ids alone, in row-major order */
    cf_item *items;      /* [2 walk]: ids are sorted in there; NULL: columns walk */
} picking;

__device__ inline int64_t id_at(const void *ids, int dtype, int64_t at) { return cf_get<int64_t>(ids, dtype, at); }

/* ---- checking ------------------------------------------------------------------------------------------------ */

/* Blocks that check, no more than the lanes of a warp, which merges their findings. */
enum { CHECKS = CF_WARP, CHECKS_EACH = 4 * CF_THREADS };

/* A block's finding: n - position of its first wrong id, or 0. */
typedef struct checks {
    int64_t *found; /* [count] */
    int count;
} checks;

__device__ inline int64_t warp_most(int64_t x) {
    for (int width = CF_WARP / 2; width > 0; width /= 2) {
        const int64_t other = __shfl_xor_sync(0xFFFFFFFFu, x, width);
        x = other > x ? other : x;
    }
    return x;
}

__global__ void __launch_bounds__(CF_THREADS)
    check_ids(const void *ids, int dtype, layout flat, int64_t size, checks c) {
    __shared__ int64_t room[CF_THREADS / CF_WARP];
    int64_t most = 0;
    for (CF_EACH(i, flat.count)) {
        const int64_t id = id_at(ids, dtype, locate(flat, i).ids);
        if ((id < 0 || id >= size) && flat.count - i > most) most = flat.count - i;
    }
    most = warp_most(most);
    if (threadIdx.x % CF_WARP == 0) room[threadIdx.x / CF_WARP] = most;
    __syncthreads();
    if (threadIdx.x > 0) return;
    for (int k = 1; k < CF_THREADS / CF_WARP; k++)
        if (room[k] > most) most = room[k];
    c.found[blockIdx.x] = most;
}

/* Whether all ids are in range; the first that is not is noted, by one thread of the launch.  Whole warps call it. */
__device__ inline bool ids_are_fine(const picking &p, const checks &c, cf_cuda_fault *fault) {
    const int lane = (int)threadIdx.x % CF_WARP;
    const int64_t most = warp_most(lane < c.count ? c.found[lane] : 0);
    if (most == 0) return true;
    if (blockIdx.x == 0 && threadIdx.x == 0) {
        const int64_t position = p.flat.count - most;
        cf_checked_id(fault, p.op, id_at(p.ids, p.ids_dtype, locate(p.flat, position).ids), position, p.size);
    }
    return false;
}

/* `memory` has room for CHECKS results. */
checks launch_check(cf_worker *worker, const picking *p, void *memory) {
    const int64_t blocks = (p->flat.count + CHECKS_EACH - 1) / CHECKS_EACH;
    const checks c = {(int64_t *)memory, (int)(blocks < CHECKS ? blocks : (int64_t)CHECKS)};
    CF_LAUNCH_TEAM(check_ids, c.count, CF_THREADS, worker, p->ids, p->ids_dtype, p->flat, p->size, c);
    return c;
}

/* ---- taking -------------------------------------------------------------------------------------------------- */

/* How many elements of the innermost dimension of `t` can be one word of at most 16 bytes, in part and whole. */
int widest(const picking *p, const layout *t) {
    const int last = t->ndim - 1, size = cfx_dtype_size(p->dtype);
    if (last < 0 || t->part[last] != 1 || t->whole[last] != 1 || t->ids[last] != 0) return 1;
    uint64_t bits = (uint64_t)t->shape[last] | (uint64_t)p->step | ((uintptr_t)p->part | (uintptr_t)p->whole) / size;
    const layout *both[2] = {t, t == &p->column ? &p->walk : t};
    for (int k = 0; k < 2; k++)
        for (int d = 0; d < both[k]->ndim; d++)
            if (both[k] != t || d != last) bits |= (uint64_t)both[k]->part[d] | (uint64_t)both[k]->whole[d];
    int n = 1;
    while (n * 2 * size <= 16 && bits % ((uint64_t)n * 2) == 0) n *= 2;
    return n;
}

/* Counts in words of n elements instead; `inner` has the dimension that is `widest`. */
void widen_strides(layout *t, int n, bool inner) {
    for (int d = 0; d < t->ndim; d++) {
        if (inner && d == t->ndim - 1) {
            t->shape[d] /= n;
            t->count /= n;
        } else {
            t->part[d] /= n;
            t->whole[d] /= n;
        }
    }
}

template <class W> __global__ void __launch_bounds__(CF_THREADS) take(picking p, checks c, cf_cuda_fault *fault) {
    if (!ids_are_fine(p, c, fault)) return;
    for (CF_EACH(e, p.all.count)) {
        const offsets at = locate(p.all, e);
        const int64_t id = id_at(p.ids, p.ids_dtype, at.ids);
        ((W *)p.part)[at.part] = ((const W *)p.whole)[at.whole + id * p.step];
    }
}

template <class W> void launch_take(cf_worker *worker, const picking *p, const checks *c) {
    const auto kernel = take<W>;
    CF_LAUNCH_TEAM(kernel, cf_cuda_blocks(worker, p->all.count), CF_THREADS, worker, *p, *c, cf_cuda_of(worker)->fault);
}

cfx_status take_all(cf_worker *worker, picking *p) {
    finish(&p->all);
    void *memory = cf_cuda_scratch(worker, CHECKS * sizeof(int64_t));
    if (!memory) return cf_fail(CFX_EMEMORY, "no memory to check ids");
    const checks c = launch_check(worker, p, memory);
    const int n = widest(p, &p->all);
    widen_strides(&p->all, n, true);
    p->step /= n;
    switch (n * cfx_dtype_size(p->dtype)) {
    case 1: launch_take<uint8_t>(worker, p, &c); break;
    case 2: launch_take<uint16_t>(worker, p, &c); break;
    case 4: launch_take<uint32_t>(worker, p, &c); break;
    case 8: launch_take<uint64_t>(worker, p, &c); break;
    default: launch_take<cf_pack<uint64_t, 2>>(worker, p, &c);
    }
    return CFX_OK;
}

/* ---- adding -------------------------------------------------------------------------------------------------- */

/* Bool as it is stored. */
struct truth {
    uint8_t bits;
};

/* Rounded to what is stored at each step, as on the CPU; integers wrap. */
template <class T> __device__ inline T sum(T a, T b) { return (T)(a + b); }
__device__ inline cf_f16 sum(cf_f16 a, cf_f16 b) { return cf_to_f16(cf_to_float(a) + cf_to_float(b)); }
__device__ inline cf_bf16 sum(cf_bf16 a, cf_bf16 b) { return cf_to_bf16(cf_to_float(a) + cf_to_float(b)); }
__device__ inline truth sum(truth a, truth b) { return truth{(uint8_t)(a.bits || b.bits)}; }

/* A thread for each column. */
template <class T>
__global__ void __launch_bounds__(CF_THREADS) add_columns(picking p, checks c, cf_cuda_fault *fault) {
    if (!ids_are_fine(p, c, fault)) return;
    const T *part = (const T *)p.part;
    for (CF_EACH(e, p.column.count)) {
        const offsets column = locate(p.column, e);
        T *whole = (T *)p.whole + column.whole;
        for (int64_t w = 0; w < p.walk.count; w++) {
            const offsets at = locate(p.walk, w);
            T *to = whole + id_at(p.ids, p.ids_dtype, column.ids + at.ids) * p.step;
            *to = sum(*to, part[column.part + at.part]);
        }
    }
}

/* Positions of ids as items, sorted in tiles of `segment` items.  Wrong ids make wrong items, which are never looked
 * at. */
__global__ void __launch_bounds__(CF_THREADS) sort_positions(picking p, cf_item *items /* [walk] */, int segment) {
    __shared__ cf_item tile[CF_TILE];
    const int64_t n = p.walk.count;
    for (int64_t from = (int64_t)blockIdx.x * segment; from < n; from += (int64_t)gridDim.x * segment) {
        for (int k = (int)threadIdx.x; k < segment; k += CF_THREADS) {
            tile[k] = cf_item_last<cf_item>();
            if (from + k >= n) continue;
            const offsets at = locate(p.walk, (uint32_t)(from + k));
            const int64_t position = at.number + id_at(p.ids, p.ids_dtype, at.ids);
            tile[k] = (uint64_t)position << 32 | (uint64_t)(from + k);
        }
        cf_sort_tile(tile, segment, segment);
        for (int k = (int)threadIdx.x; k < segment; k += CF_THREADS)
            if (from + k < n) items[from + k] = tile[k];
        __syncthreads();
    }
}

__device__ inline uint32_t position_of(cf_item item) { return (uint32_t)(item >> 32); }

/* A thread for each (item, column), N elements wide; those of a run's first item add the whole run. */
template <class T, int N>
__global__ void __launch_bounds__(CF_THREADS, 3)
    add_runs(picking p, const cf_item *items /* [walk], sorted */, checks c, cf_cuda_fault *fault) {
    /* How many items are read ahead: a run is one sum, but its reads need not wait for one another. */
    enum { AHEAD = N > 4 ? 2 : 4 };
    typedef cf_pack<T, N> word;
    if (!ids_are_fine(p, c, fault)) return;
    const int n = (int)p.walk.count;
    for (CF_EACH(e, n * p.column.count)) {
        const int first = (int)divided(e, p.column.count);
        const uint32_t position = position_of(items[first]);
        if (first > 0 && position_of(items[first - 1]) == position) continue;
        const offsets column = locate(p.column, e - first * p.column.count);
        const offsets item = locate(p.walk, (uint32_t)items[first]);
        word *to = (word *)p.whole + column.whole + item.whole + id_at(p.ids, p.ids_dtype, item.ids) * p.step;
        const word *part = (const word *)p.part + column.part;
        word total = *to;
        bool more = true;
        for (int at = first; more; at += AHEAD) {
            word next[AHEAD];
            int have = 0;
            for (int k = 0; k < AHEAD; k++) {
                if (at + k >= n || position_of(items[at + k]) != position) continue; /* and so is what follows */
                next[k] = part[locate(p.walk, (uint32_t)items[at + k]).part];
                have = k + 1;
            }
            for (int k = 0; k < AHEAD; k++)
                for (int j = 0; j < N; j++)
                    if (k < have) total.x[j] = sum(total.x[j], next[k].x[j]);
            more = have == AHEAD;
        }
        *to = total;
    }
}

/* Walking this far takes no longer than to sort. */
enum { SHORT_WALK = 32 };
/* Columns that occupy a device well enough to walk any way. */
enum { MANY_COLUMNS = 8192 };

template <class T> cfx_status add_typed(cf_worker *worker, picking *p) {
    const int64_t n = p->walk.count;
    void *const memory = cf_cuda_scratch(worker, CHECKS * sizeof(int64_t));
    if (!memory) return CFX_EMEMORY; /* cf_cuda_scratch said so */
    const checks c = launch_check(worker, p, memory);
    cf_cuda_fault *fault = cf_cuda_of(worker)->fault;
    if (!p->items) {
        const auto kernel = add_columns<T>;
        CF_LAUNCH_TEAM(kernel, cf_cuda_blocks(worker, p->column.count), CF_THREADS, worker, *p, c, fault);
        return CFX_OK;
    }
    cf_item *items = p->items;
    const int segment = cf_tile_for(n);
    CF_LAUNCH_TEAM(sort_positions, cf_cuda_blocks(worker, (n + segment - 1) / segment * CF_THREADS), CF_THREADS, worker,
                   *p, items, segment);
    items = cf_merge_all(worker, items, items + n, 1, n);
    constexpr int N = 16 / sizeof(T);
    const bool wide = widest(p, &p->column) == N;
    if (wide) {
        widen_strides(&p->column, N, true);
        widen_strides(&p->walk, N, false);
        p->step /= N;
    }
    const auto kernel = wide ? add_runs<T, N> : add_runs<T, 1>;
    CF_LAUNCH_TEAM(kernel, cf_cuda_blocks(worker, n * p->column.count), CF_THREADS, worker, *p, (const cf_item *)items,
                   c, fault);
    return CFX_OK;
}

cfx_status add_all(cf_worker *worker, picking *p) {
    finish(&p->walk);
    finish(&p->column);
    switch (p->dtype) {
    case CFX_BOOL: return add_typed<truth>(worker, p);
    case CFX_UINT8: return add_typed<uint8_t>(worker, p);
    case CFX_INT32: return add_typed<uint32_t>(worker, p);
    case CFX_INT64: return add_typed<uint64_t>(worker, p);
    case CFX_FLOAT16: return add_typed<cf_f16>(worker, p);
    case CFX_BFLOAT16: return add_typed<cf_bf16>(worker, p);
    case CFX_FLOAT32: return add_typed<float>(worker, p);
    default: return add_typed<double>(worker, p);
    }
}

/* ---- the rows ------------------------------------------------------------------------------------------------ */

cfx_status check_dtypes(const cf_view *y, const cf_view *x) {
    if (y->dtype == x->dtype) return CFX_OK;
    return cf_fail(CFX_EFAULT, "%s cannot be put into %s", cfx_dtype_name(x->dtype), cfx_dtype_name(y->dtype));
}

/* The memory that n ids of so many positions are sorted in; 0: a cf_item cannot tell those apart. */
size_t sorting_bytes(int64_t n, int64_t positions) {
    return positions > 0 && positions < UINT32_MAX && n < INT32_MAX / 2 ? 2 * (size_t)n * sizeof(cf_item) : 0;
}

picking picking_of(const cf_call *call, const cf_view *whole, const cf_view *part, const cf_view *ids) {
    picking p = {};
    p.part = part->data;
    p.whole = whole->data;
    p.ids = ids->data;
    p.dtype = whole->dtype;
    p.ids_dtype = ids->dtype;
    p.op = call->op;
    const int64_t dim = CF_PARAMS(call, select)->dim;
    p.size = whole->ndim ? whole->shape[dim] : 1;
    p.step = whole->ndim ? whole->stride[dim] : 1;
    p.items = (cf_item *)call->workspace;
    for (int d = 0; d < ids->ndim; d++) push(&p.flat, ids->shape[d], 0, 0, ids->stride[d], 0);
    finish(&p.flat);
    return p;
}

/* The dimensions of the ids stand in the place of dimension dim of the whole. */
cfx_status run_index(cf_worker *worker, const cf_call *call, const cf_view *whole, const cf_view *part,
                     const cf_view *ids, bool adds) {
    const int dim = (int)CF_PARAMS(call, select)->dim;
    CF_TRY(check_dtypes(whole, part));
    const int64_t n = cf_view_numel(ids);
    if (n == 0) return CFX_OK;
    picking p = picking_of(call, whole, part, ids);
    int at = 0;
    for (int d = 0; d < dim; d++, at++) {
        push(&p.all, part->shape[at], part->stride[at], whole->stride[d], 0, 0);
        push(&p.column, part->shape[at], part->stride[at], whole->stride[d], 0, 0);
    }
    for (int d = 0; d < ids->ndim; d++, at++) {
        push(&p.all, part->shape[at], part->stride[at], 0, ids->stride[d], 0);
        push(&p.walk, part->shape[at], part->stride[at], 0, ids->stride[d], 0);
    }
    for (int d = dim + 1; d < whole->ndim; d++, at++) {
        push(&p.all, part->shape[at], part->stride[at], whole->stride[d], 0, 0);
        push(&p.column, part->shape[at], part->stride[at], whole->stride[d], 0, 0);
    }
    if (!adds) return take_all(worker, &p);
    return add_all(worker, &p);
}

/* All three have one rank; the ids have the part's shape. */
cfx_status run_gather(cf_worker *worker, const cf_call *call, const cf_view *whole, const cf_view *part,
                      const cf_view *ids, bool adds) {
    const int dim = (int)CF_PARAMS(call, select)->dim;
    CF_TRY(check_dtypes(whole, part));
    const int64_t n = cf_view_numel(ids);
    if (n == 0) return CFX_OK;
    picking p = picking_of(call, whole, part, ids);
    for (int d = 0; d < ids->ndim; d++)
        push(&p.all, ids->shape[d], part->stride[d], d == dim ? 0 : whole->stride[d], ids->stride[d], 0);
    if (!adds) return take_all(worker, &p);
    if (!p.items) {
        for (int d = 0; d < ids->ndim; d++)
            push(d == dim ? &p.walk : &p.column, ids->shape[d], part->stride[d], d == dim ? 0 : whole->stride[d],
                 ids->stride[d], 0);
        return add_all(worker, &p);
    }
    int64_t number[CFX_MAX_DIMS], positions = p.size;
    for (int d = ids->ndim - 1; d >= 0; d--) {
        number[d] = d == dim ? 0 : positions;
        if (d != dim) positions *= ids->shape[d];
    }
    for (int d = 0; d < ids->ndim; d++)
        push(&p.walk, ids->shape[d], part->stride[d], d == dim ? 0 : whole->stride[d], ids->stride[d], number[d]);
    return add_all(worker, &p);
}

} // namespace

extern "C" cfx_status cf_cuda_index(cf_worker *worker, const cf_call *call) {
    CF_TRY(run_index(worker, call, cf_call_in(call, 0), &call->v[0], cf_call_in(call, 1), false));
    return cf_cuda_launched("index");
}

extern "C" size_t cf_cuda_index_add_workspace(const cf_call *call) {
    const cf_view *whole = &call->v[0];
    const int64_t n = cf_view_numel(cf_call_in(call, call->nin - 2));
    return n <= SHORT_WALK ? 0 : sorting_bytes(n, whole->ndim ? whole->shape[CF_PARAMS(call, select)->dim] : 1);
}

/* y [.., size, ..] += src at (ids, src). */
extern "C" cfx_status cf_cuda_index_add(cf_worker *worker, const cf_call *call) {
    CF_TRY(
        run_index(worker, call, &call->v[0], cf_call_in(call, call->nin - 1), cf_call_in(call, call->nin - 2), true));
    return cf_cuda_launched("index_add");
}

extern "C" cfx_status cf_cuda_gather(cf_worker *worker, const cf_call *call) {
    CF_TRY(run_gather(worker, call, cf_call_in(call, 0), &call->v[0], cf_call_in(call, 1), false));
    return cf_cuda_launched("gather");
}

/* Each element has a position of its own: a column's number, and the id in it. */
extern "C" size_t cf_cuda_scatter_add_workspace(const cf_call *call) {
    const cf_view *whole = &call->v[0], *ids = cf_call_in(call, call->nin - 2);
    const int64_t dim = CF_PARAMS(call, select)->dim, n = cf_view_numel(ids);
    const int64_t length = ids->ndim ? ids->shape[dim] : 1, size = whole->ndim ? whole->shape[dim] : 1;
    if (n == 0 || length <= SHORT_WALK || size == 0) return 0;
    const int64_t columns = n / length;
    return columns >= MANY_COLUMNS || columns > (int64_t)UINT32_MAX / size ? 0 : sorting_bytes(n, columns * size);
}

/* y += src at (ids, src). */
extern "C" cfx_status cf_cuda_scatter_add(cf_worker *worker, const cf_call *call) {
    CF_TRY(
        run_gather(worker, call, &call->v[0], cf_call_in(call, call->nin - 1), cf_call_in(call, call->nin - 2), true));
    return cf_cuda_launched("scatter_add");
}
