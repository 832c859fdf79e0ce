/* dense_bw.cu: the dense layer's backward up to its products: the gradient before the activation, from that at the
 * output, and the sums of its columns, the bias's gradient, in one pass.
 */
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
template <class C> __device__ inline C slope_times(int act, C p0, C g, C v) {
    switch (act) {
    case CF_OP_relu: return v > 0 ? g : 0;
    case CF_OP_leakyrelu: return v > 0 ? g : g * p0;
    case CF_OP_tanh: return g * (1 - v * v);
    case CF_OP_sigmoid: return g * v * (1 - v);
    default: return v > 0 ? g : g * (v + p0); /* elu */
    }
}

/* A block makes a row block of a strip of columns. */
template <class M> __global__ void dense_gradient(const job j) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS];
    const int64_t strips = (j.cols + CF_STRIP - 1) / CF_STRIP;
    const C p0 = (C)j.p0;
    for (int64_t item = blockIdx.x; item < j.blocks * strips; item += gridDim.x) {
        const int64_t b = item / strips, col = item % strips * CF_STRIP + threadIdx.x % CF_STRIP;
        const int64_t from = b * j.block_rows, end = from + j.block_rows < j.rows ? from + j.block_rows : j.rows;
        double sum = 0;
        for (int64_t r = from + threadIdx.x / CF_STRIP; r < end && col < j.cols; r += CF_STRIP_LANES) {
            C g = M::get(j.dy, r * j.dy.stride[0] + col * j.dy.stride[1]);
            if (j.act >= 0) {
                g = slope_times(j.act, p0, g, M::get(j.y, r * j.y.stride[0] + col * j.y.stride[1]));
                M::put(j.dpre, r * j.dpre.stride[0] + col * j.dpre.stride[1], g);
            }
            sum += (double)g;
        }
        if (!j.sums) continue; /* all threads alike */
        sum = cf_strip_sum(sum, room);
        if (threadIdx.x < CF_STRIP && col < j.cols) j.sums[b * j.cols + col] = sum;
    }
}

template <class M> static void run(cf_worker *worker, const job &j) {
    CF_LAUNCH_TEAM(dense_gradient<M>, cf_cuda_blocks(worker, j.blocks * cf_strips(j.cols) * CF_THREADS), CF_THREADS,
                   worker, j);
}

} // namespace

extern "C" cfx_status cf_cuda_dense_bw(cf_worker *worker, const cf_call *call) {
    const cf_view *dbias = call->nout > 1 ? &call->v[1] : NULL;
    job j = {};
    j.dy = *cf_call_in(call, 0);
    j.rows = j.dy.shape[0];
    j.cols = j.dy.shape[1];
    j.act = (int)call->i[0];
    j.p0 = call->p[0];
    j.block_rows = cf_row_block(j.rows);
    j.blocks = cf_row_blocks(j.rows); /* without rows there is one of none, whose sums are zero */
    if (j.cols == 0 || (j.act < 0 && !dbias)) return CFX_OK;
    if (j.act >= 0) j.dpre = call->v[0], j.y = *cf_call_in(call, 1);
    if (dbias) {
        j.sums = (double *)cf_cuda_scratch(worker, (size_t)(j.blocks * j.cols) * sizeof(double));
        if (!j.sums) return CFX_EMEMORY;
    }
    const cf_view *const v[] = {&j.dy, &j.dpre, &j.y};
    CF_MEMORY(call->dtype, cf_common_dtype(v, j.act >= 0 ? 3 : 1), run, worker, j);
    if (dbias)
        CF_LAUNCH_TEAM(cf_join_strips<double>, cf_strips(j.cols), CF_THREADS, worker, j.sums, j.blocks, j.cols, *dbias);
    return cf_cuda_launched("dense_bw");
}
