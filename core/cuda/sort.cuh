/* sort.cuh: sorting of items of which no two are equal, for sort and topk, and for ids whose additions must meet.
 *
 * An item holds a key and then its position, so that equal keys keep their order without any care for stability, and
 * every way to sort gives the same result.  A tile of items is sorted in shared memory by a bitonic network (Batcher
 * 1968); sorted runs are merged pairwise in global memory, where each item finds its place by binary search in the
 * other run.
 */
#ifndef CF_CUDA_SORT_CUH
#define CF_CUDA_SORT_CUH

#include "cuda/kernel.cuh"

/* Items that a block sorts: 16 KiB of shared memory for those of 8 bytes. */
enum { CF_TILE = 2048 };

/* 32 bits of key, 32 bits of position. */
typedef uint64_t cf_item;
typedef struct cf_wide_item {
    uint64_t key;
    int64_t id;
} cf_wide_item;

__device__ static inline bool cf_before(cf_item a, cf_item b) { return a < b; }
__device__ static inline bool cf_before(const cf_wide_item &a, const cf_wide_item &b) {
    return a.key != b.key ? a.key < b.key : a.id < b.id;
}

/* Comes after all items: for places of a tile that have none. */
template <class K> __device__ K cf_item_last(void);
template <> __device__ inline cf_item cf_item_last<cf_item>(void) { return UINT64_MAX; }
template <> __device__ inline cf_wide_item cf_item_last<cf_wide_item>(void) {
    return cf_wide_item{UINT64_MAX, INT64_MAX};
}

/* Sorts each segment of a tile that the block has just filled; `segment` is a power of two that divides `count`.  All
 * threads must call it, and may read the tile when it returns. */
template <class K> __device__ inline void cf_sort_tile(K *tile /* [count] shared */, int count, int segment) {
    __syncthreads();
    for (int size = 2; size <= segment; size *= 2)
        for (int step = size / 2; step > 0; step /= 2) {
            for (int p = (int)threadIdx.x; p < count / 2; p += (int)blockDim.x) {
                const int low = (p & ~(step - 1)) * 2 | (p & (step - 1)), high = low + step;
                const bool rising = size == segment || (low & size) == 0;
                const K a = tile[low], b = tile[high];
                if (cf_before(b, a) != rising) continue;
                tile[low] = b;
                tile[high] = a;
            }
            __syncthreads();
        }
}

/* The smallest power of two that is not below n, or CF_TILE. */
static inline int cf_tile_for(int64_t n) {
    int size = 1;
    while (size < n && size < CF_TILE) size *= 2;
    return size;
}

namespace {

/* Merges neighbours among sorted runs of `width` items; the last run of a row may be shorter, or alone. */
template <class K>
__global__ void cf_merge_runs(const K *from /* [rows, n] */, K *to /* [rows, n] */, int64_t rows, int64_t n,
                              int64_t width) {
    for (CF_EACH(e, rows * n)) {
        const int64_t row = e / n * n, at = e - row, pair = at / (2 * width) * (2 * width);
        const int64_t middle = pair + width < n ? pair + width : n;
        const int64_t end = middle + width < n ? middle + width : n;
        const bool left = at < middle;
        int64_t low = left ? middle : pair, high = left ? end : middle;
        const int64_t other = low;
        const K mine = from[e];
        while (low < high) { /* how many of the other run come before */
            const int64_t half = low + (high - low) / 2;
            if (cf_before(from[row + half], mine)) low = half + 1;
            else high = half;
        }
        to[row + pair + (at - (left ? pair : middle)) + (low - other)] = mine;
    }
}

/* Rows of sorted runs of CF_TILE items in `a` become sorted rows, which lie in the one that is returned. */
template <class K> inline K *cf_merge_all(cf_worker *worker, K *a, K *b, int64_t rows, int64_t n) {
    const auto kernel = cf_merge_runs<K>;
    for (int64_t width = CF_TILE; width < n; width *= 2) {
        CF_LAUNCH(kernel, cf_cuda_blocks(worker, rows * n), CF_THREADS, worker, (const K *)a, b, rows, n, width);
        K *const swap = a;
        a = b;
        b = swap;
    }
    return a;
}

} // namespace

#endif
