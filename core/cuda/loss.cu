/* loss.cu: losses of two tensors of one shape, and their gradients.
 *
 * The loss of each element is made in the compute type; of integers in float, as the dispatcher would have it.  A
 * mean or a sum is made in two passes: blocks add chunks of a grid that the size alone fixes, one block adds these.
 */
#include "cuda/formulas.cuh"
#include "cuda/items.cuh"

namespace {

enum {
    FOLD = 64,            /* elements of a thread that are added before they go into its sum, a double */
    THREAD_ELEMENTS = 16, /* of a chunk, at least, for each thread */
    MOST_CHUNKS = 1024
};

/* i[1] of a gradient's call: which input it is for. */
enum { OF_X = 0, OF_Y = 1 };

typedef struct job {
    cf_view out, x, y, dy;
    int64_t n;
    int op, of_y, packed; /* packed: all views are, so that element e lies at e */
    int reduction;
    double p;
} job;

/* N elements of a view, all of it: 1 where it is not packed. */
template <class M, int N> struct elements : cf_span<M, N> {
    int packed;
    __device__ elements(const job &j, const cf_view &v) : cf_span<M, N>(v, 0, 1, j.n), packed(j.packed) {}
    __device__ __forceinline__ int64_t offset(int64_t e) const { return packed ? e : cf_offset(this->v, e); }
    __device__ __forceinline__ cf_items<typename M::C, N> items(int64_t e) const {
        return cf_span<M, N>::items(N == 1 ? offset(e) : e);
    }
    __device__ __forceinline__ void put(int64_t e, const cf_items<typename M::C, N> &x) const {
        cf_span<M, N>::put(N == 1 ? offset(e) : e, x);
    }
};

template <class T> __device__ inline T loss_of(const job &j, T a, T b) {
    const T d = a - b, delta = (T)j.p;
#define CF_LOSS(name, cost, value, by_x, by_y) \
    if (j.op == CF_OP_##name) return value;
#include "device/formulas.def"
    return d;
}

/* Times g. */
template <class T> __device__ inline T slope_of(const job &j, T a, T b, T g) {
    const T d = a - b, delta = (T)j.p;
#define CF_LOSS(name, cost, value, by_x, by_y) \
    if (j.op == CF_OP_##name##_bw) return j.of_y ? (by_y) : (by_x);
#include "device/formulas.def"
    return d;
}

/* for (EACH_PIECE(e, x, n, N)): where the pieces of this thread begin, in elements of x. */
#define EACH_PIECE(e, x, n, N)                                                      \
    int64_t e = x.begin() + ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * (N); \
    e < (n);                                                                        \
    e += (int64_t)gridDim.x * blockDim.x * (N)

template <class M, int N> __global__ void losses(const job j) {
    typedef typename M::C C;
    const elements<M, N> x(j, j.x), y(j, j.y), out(j, j.out);
    for (EACH_PIECE(e, x, j.n, N)) {
        cf_items<C, N> a = x.items(e);
        const cf_items<C, N> b = y.items(e);
        for (int k = 0; k < N; k++) a.x[k] = loss_of(j, a.x[k], b.x[k]);
        out.put(e, a);
    }
}

/* Block k adds chunk k into partial[k]. */
template <class M, int N> __global__ void loss_chunks(const job j, int64_t chunk, double *__restrict__ partial) {
    typedef typename M::C C;
    __shared__ double room[CF_THREADS / CF_WARP];
    const elements<M, N> x(j, j.x), y(j, j.y);
    const int64_t from = blockIdx.x * chunk, end = from + chunk < j.n ? from + chunk : j.n;
    double sum = 0;
    for (int64_t e = from + x.begin() + (int64_t)threadIdx.x * N; e < end;) {
        const int64_t fold = e + (int64_t)FOLD * CF_THREADS, until = fold < end ? fold : end;
        C part = 0;
        for (; e < until; e += CF_THREADS * N) {
            const cf_items<C, N> a = x.items(e), b = y.items(e);
            for (int k = 0; k < N; k++)
                if (N == 1 || (e + k >= from && e + k < end)) part += loss_of(j, a.x[k], b.x[k]);
        }
        sum += (double)part;
    }
    sum = cf_block_sum(sum, room);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block. */
__global__ void join_losses(const job j, int64_t chunks, const double *__restrict__ partial) {
    __shared__ double room[CF_THREADS / CF_WARP];
    double sum = 0;
    for (int64_t k = threadIdx.x; k < chunks; k += CF_THREADS) sum += partial[k];
    sum = cf_block_sum(sum, room);
    if (threadIdx.x == 0) cf_write<double>(j.out, 0, j.reduction == CFX_MEAN ? sum / (double)j.n : sum);
}

/* dy: one number, or one for each element. */
template <class M, int N> __global__ void loss_gradient(const job j) {
    typedef typename M::C C;
    const elements<M, N> x(j, j.x), y(j, j.y), dy(j, j.dy), out(j, j.out);
    C scale = 0;
    if (j.reduction != CFX_NONE) {
        const double all = cf_read<double>(j.dy, 0);
        scale = (C)(j.reduction == CFX_MEAN ? all / (double)j.n : all);
    }
    for (EACH_PIECE(e, x, j.n, N)) {
        cf_items<C, N> a = x.items(e), g;
        const cf_items<C, N> b = y.items(e);
        for (int k = 0; k < N; k++) g.x[k] = scale;
        if (j.reduction == CFX_NONE) g = dy.items(e);
        for (int k = 0; k < N; k++) a.x[k] = slope_of(j, a.x[k], b.x[k], g.x[k]);
        out.put(e, a);
    }
}

/* ---- the host's part ---------------------------------------------------------------------------------------- */

static job job_of(const cf_call *call) {
    job j = {};
    j.op = call->op;
    j.of_y = CF_PARAMS(call, loss)->of_y == OF_Y;
    j.reduction = CF_PARAMS(call, loss)->reduction;
    j.p = CF_PARAMS(call, loss)->param;
    j.out = call->v[0];
    return j;
}

/* Whether these views, all packed, can be moved 16 bytes at a time. */
static bool fits(const job &j, const cf_view *const *v, int n) {
    bool fit = j.packed;
    for (int k = 1; k < n; k++) fit = fit && ((uintptr_t)v[k]->data - (uintptr_t)v[0]->data) % 16 == 0;
    return fit;
}

static int64_t blocks_of(const cf_worker *worker, const job &j, bool wide, int width) {
    return cf_cuda_blocks(worker, wide ? j.n / width + 2 : j.n); /* a piece at either end is not whole */
}

template <class M> static cfx_status run_losses(cf_worker *worker, const job &j, bool wide) {
    const auto loss = wide ? losses<M, M::WIDTH> : losses<M, 1>;
    CF_LAUNCH(loss, blocks_of(worker, j, wide, M::WIDTH), CF_THREADS, worker, j);
    return cf_cuda_launched("a kernel");
}

template <class M> static cfx_status run_sum(cf_worker *worker, const job &j, bool wide) {
    const int64_t least = (int64_t)THREAD_ELEMENTS * CF_THREADS;
    const int64_t even = ((j.n + MOST_CHUNKS - 1) / MOST_CHUNKS + 7) / 8 * 8; /* whole pieces of 16 bytes */
    const int64_t chunk = even > least ? even : least, chunks = (j.n + chunk - 1) / chunk;
    double *const partial = (double *)cf_cuda_scratch(worker, MOST_CHUNKS * sizeof(double));
    if (!partial) return CFX_EMEMORY;
    const auto loss = wide ? loss_chunks<M, M::WIDTH> : loss_chunks<M, 1>;
    if (chunks) CF_LAUNCH_TEAM(loss, chunks, CF_THREADS, worker, j, chunk, partial);
    CF_LAUNCH_TEAM(join_losses, 1, CF_THREADS, worker, j, chunks, partial);
    return cf_cuda_launched("a kernel");
}

template <class M> static cfx_status run_gradient(cf_worker *worker, const job &j, bool wide) {
    const auto loss_bw = wide ? loss_gradient<M, M::WIDTH> : loss_gradient<M, 1>;
    CF_LAUNCH(loss_bw, blocks_of(worker, j, wide, M::WIDTH), CF_THREADS, worker, j);
    return cf_cuda_launched("a kernel");
}

static cfx_status forward(cf_worker *worker, const cf_call *call) {
    job j = job_of(call);
    const cf_view *const v[] = {&j.x, &j.y, &j.out};
    const int views = j.reduction == CFX_NONE ? 3 : 2;
    j.x = *cf_call_in(call, 0);
    j.y = *cf_call_in(call, 1);
    j.n = cf_view_numel(&j.x);
    cf_view_expand(&j.y, &j.x);
    j.packed = cf_view_packed(&j.x) && cf_view_packed(&j.y) && (views == 2 || cf_view_packed(&j.out));
    const int common = cf_common_dtype(v, views);
    const bool wide = fits(j, v, views);
    if (j.reduction != CFX_NONE) return CF_MEMORY(call->dtype, common, run_sum, worker, j, wide);
    return j.n ? CF_MEMORY(call->dtype, common, run_losses, worker, j, wide) : CFX_OK;
}

static cfx_status backward(cf_worker *worker, const cf_call *call) {
    job j = job_of(call);
    const cf_view *const v[] = {&j.out, &j.x, &j.y, &j.dy};
    const int views = j.reduction == CFX_NONE ? 4 : 3;
    j.dy = *cf_call_in(call, 0);
    j.x = *cf_call_in(call, 1);
    j.y = *cf_call_in(call, 2);
    j.n = cf_view_numel(&j.out);
    if (!j.n) return CFX_OK;
    cf_view_expand(&j.x, &j.out);
    cf_view_expand(&j.y, &j.out);
    if (j.reduction == CFX_NONE) cf_view_expand(&j.dy, &j.out);
    j.packed = cf_view_packed(&j.out) && cf_view_packed(&j.x) && cf_view_packed(&j.y) &&
               (j.reduction != CFX_NONE || cf_view_packed(&j.dy));
    return CF_MEMORY(call->dtype, cf_common_dtype(v, views), run_gradient, worker, j, fits(j, v, views));
}

} // namespace

extern "C" {
cfx_status cf_cuda_loss(cf_worker *worker, const cf_call *call) { return forward(worker, call); }

#define CF_LOSS(name, ...) \
    cfx_status cf_cuda_##name##_bw(cf_worker *worker, const cf_call *call) { return backward(worker, call); }
#include "device/formulas.def"
}
