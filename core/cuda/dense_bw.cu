/* dense_bw.cu: the dense layer's backward up to its products: the gradient before the activation, from that at the
 * output, and the sums of its columns, the bias's gradient, in one pass.
 */
#include "cuda/formulas.cuh"
#include "cuda/rows.cuh"

namespace {

typedef struct job {
    cf_view dpre, dy, y; /* [rows, cols] */
    int64_t rows, cols, block_rows, blocks;
    int act;
    double p0;
    double *sums; /* [blocks, cols], or NULL */
} job;

/* The gradient by the activation's output v. */
template <class T> __device__ inline T slope_times(int act, T p0, T g, T v) {
#define CF_SLOPE(name, ...) \
    if (act == CF_OP_##name) return __VA_ARGS__;
#include "device/formulas.def"
    return g;
}

/* A block makes a row block of a strip of columns. */
template <class M, int N> __global__ void dense_gradient(const job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS * N];
    const C p0 = (C)j.p0;
    for (int64_t item = blockIdx.x; item < j.blocks * cf_strips<N>(j.cols); item += gridDim.x) {
        const cf_strip_part p = cf_strip_part_of<N>(item, j.rows, j.cols, j.block_rows);
        double sums[N] = {};
        for (int64_t r = p.from; r < p.end && p.col < j.cols; r += CF_STRIP_LANES) {
            cf_items<C, N> g = cf_row_span<M, N>(j.dy, r).items(p.col);
            if (j.act >= 0) {
                const cf_items<C, N> y = cf_row_span<M, N>(j.y, r).items(p.col);
                for (int k = 0; k < N; k++) g.x[k] = slope_times(j.act, p0, g.x[k], y.x[k]);
                cf_row_span<M, N>(j.dpre, r).put(p.col, g);
            }
            for (int k = 0; k < N; k++) sums[k] += (double)g.x[k];
        }
        if (!j.sums) continue; /* all threads alike */
        const double sum = cf_strip_sum(sums, room);
        if (p.sum_col >= 0) j.sums[p.block * j.cols + p.sum_col] = sum;
    }
}

template <class M> static void run(cf_worker *worker, const job &j, bool wide) {
    const auto dense_bw = wide ? dense_gradient<M, M::WIDTH> : dense_gradient<M, 1>;
    const int64_t strips = wide ? cf_strips<M::WIDTH>(j.cols) : cf_strips<1>(j.cols);
    CF_LAUNCH_TEAM(dense_bw, cf_cuda_blocks(worker, j.blocks * strips * CF_THREADS), CF_THREADS, worker, j);
}

} // namespace

extern "C" cfx_status cf_cuda_dense_bw(cf_worker *worker, const cf_call *call) {
    const cf_view *dbias = call->nout > 1 ? &call->v[1] : NULL;
    job j = {};
    j.dy = *cf_call_in(call, 0);
    j.rows = j.dy.shape[0];
    j.cols = j.dy.shape[1];
    j.act = CF_PARAMS(call, dense)->act;
    j.p0 = CF_PARAMS(call, dense)->p[0];
    j.block_rows = cf_row_block(j.rows);
    j.blocks = cf_row_blocks(j.rows); /* without rows there is one of none, whose sums are zero */
    if (j.cols == 0 || (j.act < 0 && !dbias)) return CFX_OK;
    if (j.act >= 0) j.dpre = call->v[0], j.y = *cf_call_in(call, 1);
    if (dbias) {
        j.sums = (double *)cf_cuda_scratch(worker, (size_t)(j.blocks * j.cols) * sizeof(double));
        if (!j.sums) return CFX_EMEMORY;
    }
    const cf_view *const v[] = {&j.dy, &j.dpre, &j.y};
    const int views = j.act >= 0 ? 3 : 1;
    CF_MEMORY(call->dtype, cf_common_dtype(v, views), run, worker, j, cf_columns_fit(v, views));
    if (dbias)
        CF_LAUNCH_TEAM(cf_join_strips<double>, cf_strips<1>(j.cols), CF_THREADS, worker, j.sums, j.blocks, j.cols,
                       *dbias);
    return cf_cuda_launched("dense_bw");
}
