/* rows.cuh: what kernels over the rows and columns of float matrices share.
 *
 * A row has a team of threads: a warp if it is short, else a block.  Columns are summed in strips: a block has a
 * warp's width of columns, so that memory is read in order, and a few lanes of rows; its partial sums lie on a grid
 * of row blocks that the number of rows alone fixes.
 */
#ifndef CF_CUDA_ROWS_CUH
#define CF_CUDA_ROWS_CUH

#include "cuda/kernel.cuh"

/* ---- memory ------------------------------------------------------------------------------------------------- */

/* Views of one dtype T, or of any, as the compute type C. */
template <class C_, class T> struct cf_typed {
    typedef C_ C;
    __device__ static inline C get(const cf_view &v, int64_t at) { return cf_as<C>(((const T *)v.data)[at]); }
    __device__ static inline void put(const cf_view &v, int64_t at, C x) { ((T *)v.data)[at] = cf_store<T>::from(x); }
};
template <class C_> struct cf_untyped {
    typedef C_ C;
    __device__ static inline C get(const cf_view &v, int64_t at) { return cf_get<C>(v.data, v.dtype, at); }
    __device__ static inline void put(const cf_view &v, int64_t at, C x) { cf_put<C>(v.data, v.dtype, at, x); }
};

/* The dtype of the n views, or -1 if they differ. */
static inline int cf_common_dtype(const cf_view *const *v, int n) {
    for (int k = 1; k < n; k++)
        if (v[k]->dtype != v[0]->dtype) return -1;
    return v[0]->dtype;
}

/* Runs `f<M>(...)`, M being how views of the dtype `common` are seen by what computes in `dtype`. */
#define CF_MEMORY(dtype, common, f, ...)                                                                           \
    ((dtype) == CFX_FLOAT64                                                                                        \
         ? (common) == CFX_FLOAT64 ? f<cf_typed<double, double>>(__VA_ARGS__) : f<cf_untyped<double>>(__VA_ARGS__) \
     : (common) == CFX_FLOAT32  ? f<cf_typed<float, float>>(__VA_ARGS__)                                           \
     : (common) == CFX_BFLOAT16 ? f<cf_typed<float, cf_bf16>>(__VA_ARGS__)                                         \
     : (common) == CFX_FLOAT16  ? f<cf_typed<float, cf_f16>>(__VA_ARGS__)                                          \
                                : f<cf_untyped<float>>(__VA_ARGS__))

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

/* The sum of f(k) for k < n, k being this lane's; in C up to CF_ROW_FOLD elements, then in double. */
template <class C, class F> __device__ inline double cf_lane_sum(const cf_team &t, int64_t n, F f) {
    double sum = 0;
    for (int64_t k = t.lane; k < n;) {
        const int64_t fold = k + (int64_t)CF_ROW_FOLD * t.lanes, end = fold < n ? fold : n;
        C part = 0;
        for (; k < end; k += t.lanes) part += f(k);
        sum += (double)part;
    }
    return sum;
}
template <class C, class F> __device__ inline double cf_row_sum(const cf_team &t, int64_t n, double *room, F f) {
    return cf_team_sum(t, cf_lane_sum<C>(t, n, f), room);
}
/* -inf for an empty row; a NaN may be passed over. */
template <class C, class F> __device__ inline C cf_row_max(const cf_team &t, int64_t n, double *room, F f) {
    C most = -(C)INFINITY;
    for (int64_t k = t.lane; k < n; k += t.lanes) {
        const C x = f(k);
        most = x > most ? x : most;
    }
    return cf_team_max(t, most, room);
}

/* ---- columns ------------------------------------------------------------------------------------------------ */

enum {
    CF_STRIP = CF_WARP,
    CF_STRIP_LANES = CF_THREADS / CF_STRIP,
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
static inline int64_t cf_strips(int64_t cols) { return (cols + CF_STRIP - 1) / CF_STRIP; }

/* The sum over the lanes of each column of the strip, in order; lane 0 gets it.  room [CF_THREADS] is shared, and
 * free again when it returns.  All threads of the block must call it. */
__device__ static inline double cf_strip_sum(double x, double *room) {
    room[threadIdx.x] = x;
    __syncthreads();
    if (threadIdx.x < CF_STRIP)
        for (int k = 1; k < CF_STRIP_LANES; k++) x += room[k * CF_STRIP + (int)threadIdx.x];
    __syncthreads();
    return x;
}

/* out [cols] <- the sums of partial [blocks, cols]; a block a strip. */
template <class P>
__global__ void cf_join_strips(const P *__restrict__ partial, int64_t blocks, int64_t cols, const cf_view out) {
    __shared__ double room[CF_THREADS];
    const int64_t col = (int64_t)blockIdx.x * CF_STRIP + threadIdx.x % CF_STRIP;
    double sum = 0;
    if (col < cols)
        for (int64_t b = threadIdx.x / CF_STRIP; b < blocks; b += CF_STRIP_LANES)
            sum += (double)partial[b * cols + col];
    sum = cf_strip_sum(sum, room);
    if (threadIdx.x < CF_STRIP && col < cols) cf_write<double>(out, col, sum);
}

#endif
