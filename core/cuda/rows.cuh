/* rows.cuh: what kernels over the rows and columns of float matrices share.
 *
 * A row has a team of threads: a warp if it is short, else a block.  Columns are summed in strips: each thread of a
 * warp has one column, or the N of 16 bytes, so that memory is read in order, and a block has a few lanes of rows; its
 * partial sums lie on a grid of row blocks that the number of rows alone fixes.
 */
#ifndef CF_CUDA_ROWS_CUH
#define CF_CUDA_ROWS_CUH

#include "cuda/items.cuh"

/* Row r of a matrix. */
template <class M, int N> __device__ __forceinline__ cf_span<M, N> cf_row_span(const cf_view &v, int64_t r) {
    return cf_span<M, N>(v, r * v.stride[0], v.stride[1], v.shape[1]);
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

/* Where row r of a view starts: its last dimension is the row. */
__device__ static inline int64_t cf_row_offset(const cf_view &v, int64_t r) {
    int64_t at = 0;
    for (int d = v.ndim - 2; d > 0; d--) {
        at += r % v.shape[d] * v.stride[d];
        r /= v.shape[d];
    }
    return v.ndim > 1 ? at + r * v.stride[0] : 0;
}

/* Threads that share a row of n elements. */
enum { CF_WARP_ROW = 1024, CF_ROW_FOLD = 64 };
static inline int cf_row_lanes(int64_t n) { return n > CF_WARP_ROW ? CF_THREADS : CF_WARP; }

/* This thread's team and the rows that it makes: first, first + step, .. */
typedef struct cf_team {
    int lane, lanes;
    int64_t first, step;
} cf_team;
__device__ static inline cf_team cf_team_of(int lanes) {
    return cf_team{(int)threadIdx.x % lanes, lanes, ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / lanes,
                   (int64_t)gridDim.x * blockDim.x / lanes};
}

/* Over the team; every thread gets it.  room [CF_THREADS / CF_WARP] is shared. */
__device__ static inline double cf_team_sum(const cf_team &t, double x, double *room) {
    return t.lanes == CF_WARP ? cf_warp_sum(x) : cf_block_sum(x, room);
}
template <class C> __device__ inline C cf_team_max(const cf_team &t, C x, double *room) {
    for (int mask = CF_WARP / 2; mask > 0; mask /= 2) {
        const C other = __shfl_xor_sync(0xFFFFFFFFu, x, mask);
        x = other > x ? other : x;
    }
    if (t.lanes == CF_WARP) return x;
    if (threadIdx.x % CF_WARP == 0) room[threadIdx.x / CF_WARP] = (double)x;
    __syncthreads();
    for (int k = 0; k < CF_THREADS / CF_WARP; k++) x = room[k] > (double)x ? (C)room[k] : x;
    __syncthreads();
    return x;
}

/* A row of n elements as its team goes through it, each lane N at a time.  room [CF_THREADS / CF_WARP] is shared. */
template <int N> struct cf_row {
    cf_team team;
    int64_t n, begin; /* begin: of its spans */
    double *room;
    __device__ int64_t first() const { return begin + (int64_t)team.lane * N; }
    __device__ int64_t step() const { return (int64_t)team.lanes * N; }
    /* Pieces at either end of the row may have elements that are not in it. */
    __device__ bool has(int64_t k) const { return N == 1 || (k >= 0 && k < n); }
};

template <class C, int N, class F, class... X>
__device__ __forceinline__ C cf_add_items(const cf_row<N> &row, C sum, int64_t k, F f, const X &...x) {
    for (int i = 0; i < N; i++)
        if (row.has(k + i)) sum += f(x.x[i]...);
    return sum;
}
/* The sum of f(elements of the spans); in C up to CF_ROW_FOLD of a lane, then in double.  Every thread gets it. */
template <class C, int N, class F, class... L>
__device__ inline double cf_row_sum(const cf_row<N> &row, F f, const L &...spans) {
    double sum = 0;
    for (int64_t k = row.first(); k < row.n;) {
        const int64_t fold = k + (int64_t)CF_ROW_FOLD * row.team.lanes, end = fold < row.n ? fold : row.n;
        C part = 0;
        for (; k < end; k += row.step()) part = cf_add_items(row, part, k, f, spans.items(k)...);
        sum += (double)part;
    }
    return cf_team_sum(row.team, sum, row.room);
}
/* -inf for an empty row; a NaN may be passed over. */
template <class L, int N> __device__ inline typename L::C cf_row_max(const cf_row<N> &row, const L &span) {
    typename L::C most = -(typename L::C)INFINITY;
    for (int64_t k = row.first(); k < row.n; k += row.step()) {
        const auto x = span.items(k);
        for (int i = 0; i < N; i++) most = row.has(k + i) && x.x[i] > most ? x.x[i] : most;
    }
    return cf_team_max(row.team, most, row.room);
}

template <class C, int N, class F, class... X>
__device__ __forceinline__ cf_items<C, N> cf_map_items(int64_t k, F f, const X &...x) {
    cf_items<C, N> y;
    for (int i = 0; i < N; i++) y.x[i] = f(k + i, x.x[i]...);
    return y;
}
/* Element k of `out` <- f(k, elements of the spans); out may lie where one of them does. */
template <class Out, int N, class F, class... L>
__device__ inline void cf_row_make(const cf_row<N> &row, const Out &out, F f, const L &...spans) {
    for (int64_t k = row.first(); k < row.n; k += row.step())
        out.put(k, cf_map_items<typename Out::C, N>(k, f, spans.items(k)...));
}

/* Whether the rows of these views can be moved 16 bytes at a time: they are of one dtype, their elements lie together,
 * and of each row all views have the same part of its first 16 bytes.  A view of one dimension is there for every row.
 * In rows so short that more than half of the lanes would have nothing, each lane takes one element. */
static inline bool cf_rows_fit(const cf_view *const *v, int n, int lanes) {
    const cf_view *x = v[0];
    const int64_t size = cf_float_size(x->dtype);
    if (cf_common_dtype(v, n) < 0 || x->shape[x->ndim - 1] * size < 8 * lanes) return false;
    for (int k = 0; k < n; k++) {
        if (v[k]->stride[v[k]->ndim - 1] != 1 || ((uintptr_t)v[k]->data - (uintptr_t)x->data) % 16 != 0) return false;
        for (int d = 0; d < x->ndim - 1; d++) {
            const int64_t stride = d < v[k]->ndim - 1 ? v[k]->stride[d] : 0;
            if (x->shape[d] > 1 && (stride - x->stride[d]) * size % 16 != 0) return false;
        }
    }
    return true;
}

/* ---- columns ------------------------------------------------------------------------------------------------ */

enum {
    CF_STRIP_LANES = CF_THREADS / CF_WARP,
    CF_STRIP_ROWS = 64, /* of a block, at least */
    CF_ROW_BLOCKS = 256 /* at most */
};

/* Rows of a row block, and how many blocks there are: one of none if there are no rows. */
static inline int64_t cf_row_block(int64_t rows) {
    const int64_t even = (rows + CF_ROW_BLOCKS - 1) / CF_ROW_BLOCKS;
    return even > CF_STRIP_ROWS ? even : (int64_t)CF_STRIP_ROWS;
}
static inline int64_t cf_row_blocks(int64_t rows) {
    return rows > 0 ? (rows + cf_row_block(rows) - 1) / cf_row_block(rows) : 1;
}

/* Columns of a strip whose threads have N each, and how many strips there are. */
template <int N> constexpr int64_t cf_strip = CF_WARP *N;
template <int N> __host__ __device__ static inline int64_t cf_strips(int64_t cols) {
    return (cols + cf_strip<N> - 1) / cf_strip<N>;
}

/* This thread's part of a strip of a row block. */
struct cf_strip_part {
    int64_t block, from, end; /* rows from, from + CF_STRIP_LANES, .. below end */
    int64_t col;              /* its first column */
    int64_t sum_col;          /* the column whose sum it gets; -1: none */
};
template <int N>
__device__ inline cf_strip_part cf_strip_part_of(int64_t item, int64_t rows, int64_t cols, int64_t block_rows) {
    const int64_t strips = cf_strips<N>(cols), begin = item % strips * cf_strip<N>, sum_col = begin + threadIdx.x;
    cf_strip_part p;
    p.block = item / strips;
    p.from = p.block * block_rows + threadIdx.x / CF_WARP;
    p.end = (p.block + 1) * block_rows < rows ? (p.block + 1) * block_rows : rows;
    p.col = begin + threadIdx.x % CF_WARP * N;
    p.sum_col = threadIdx.x < cf_strip<N> && sum_col < cols ? sum_col : -1;
    return p;
}

/* The sums over the lanes of each column of the strip, in order; the threads get them one by one: see sum_col.
 * room [CF_THREADS * N] is shared, and free again when it returns.  All threads of the block must call it. */
template <int N> __device__ inline double cf_strip_sum(const double (&x)[N], double *room) {
    for (int k = 0; k < N; k++) room[threadIdx.x * N + k] = x[k];
    __syncthreads();
    double sum = 0;
    if (threadIdx.x < cf_strip<N>) {
        sum = room[threadIdx.x];
        for (int k = 1; k < CF_STRIP_LANES; k++) sum += room[k * cf_strip<N> + threadIdx.x];
    }
    __syncthreads();
    return sum;
}

/* out [cols] <- the sums of partial [blocks, cols]; a block a strip. */
template <class P>
__global__ void cf_join_strips(const P *__restrict__ partial, int64_t blocks, int64_t cols, const cf_view out) {
    __shared__ double room[CF_THREADS];
    const int64_t col = (int64_t)blockIdx.x * CF_WARP + threadIdx.x % CF_WARP;
    double sums[1] = {0};
    if (col < cols)
        for (int64_t b = threadIdx.x / CF_WARP; b < blocks; b += CF_STRIP_LANES)
            sums[0] += (double)partial[b * cols + col];
    const double sum = cf_strip_sum(sums, room);
    if (threadIdx.x < CF_WARP && col < cols) cf_write<double>(out, col, sum);
}

/* Whether columns of these matrices can be moved 16 bytes at a time: they are of one dtype, all rows begin at multiples
 * of 16 and are made of them, and at least half of a strip's threads have some. */
static inline bool cf_columns_fit(const cf_view *const *v, int n) {
    const int64_t size = cf_float_size(v[0]->dtype), bytes = v[0]->shape[1] * size;
    bool fit = cf_common_dtype(v, n) >= 0 && bytes % 16 == 0 && bytes >= CF_WARP * 8;
    for (int k = 0; k < n; k++)
        fit = fit && v[k]->stride[1] == 1 && v[k]->stride[0] * size % 16 == 0 && cf_aligned(v[k]->data);
    return fit;
}

#endif
