/* loss.cu: losses of two tensors of one shape, and their gradients.
 *
 * The loss of each element is made in the compute type; of integers in float, as the dispatcher would have it.  A
 * mean or a sum is made in two passes: blocks add chunks of a grid that the size alone fixes, one block adds these.
 */
#include "cuda/kernel.cuh"

namespace {

enum {
    FOLD = 64,            /* elements of a thread that are added before they join its sum, a double */
    THREAD_ELEMENTS = 16, /* of a chunk, at least, for each thread */
    MOST_CHUNKS = 1024
};

/* i[1] of a gradient's call: which input it is for. */
enum { OF_X = 0, OF_Y = 1 };

typedef enum kind { MSE, MAE, HUBER, BCE } kind;

typedef struct job {
    cf_view out, x, y, dy;
    int64_t n;
    int kind, of_y, packed; /* packed: all views are, so that element e lies at e */
    int reduction;
    double p;
} job;

template <class C> __device__ inline C element(const job &j, const cf_view &v, int64_t e) {
    return cf_get<C>(v.data, v.dtype, j.packed ? e : cf_offset(v, e));
}
template <class C> __device__ inline void put(const job &j, int64_t e, C x) {
    cf_put<C>(j.out.data, j.out.dtype, j.packed ? e : cf_offset(j.out, e), x);
}

template <class C> __device__ inline C loss_of(const job &j, int64_t e) {
    const C a = element<C>(j, j.x, e), b = element<C>(j, j.y, e), d = a - b, far = fabs(d), delta = (C)j.p;
    switch (j.kind) {
    case MSE: return d * d;
    case MAE: return far;
    case HUBER: return far < delta ? (C)0.5 * d * d : delta * (far - (C)0.5 * delta);
    default: return (a < 0 ? 0 : a) - a * b + log1p(exp(-fabs(a)));
    }
}

/* By x; by y it has the other sign, but for bce. */
template <class C> __device__ inline C slope_of(const job &j, int64_t e) {
    const C a = element<C>(j, j.x, e), b = element<C>(j, j.y, e), d = a - b, delta = (C)j.p;
    switch (j.kind) {
    case MSE: return j.of_y ? -2 * d : 2 * d;
    case MAE: return (j.of_y ? -1 : 1) * (d > 0 ? (C)1 : d < 0 ? (C)-1 : d);
    case HUBER: return (j.of_y ? -1 : 1) * (d > delta ? delta : d < -delta ? -delta : d);
    default: return j.of_y ? -a : 1 / (1 + exp(-a)) - b;
    }
}

template <class C> __global__ void losses(const job j) {
    for (CF_EACH(e, j.n)) put<C>(j, e, loss_of<C>(j, e));
}

/* Block k adds chunk k into partial[k]. */
template <class C> __global__ void loss_chunks(const job j, int64_t chunk, double *__restrict__ partial) {
    __shared__ double room[CF_THREADS / CF_WARP];
    const int64_t from = blockIdx.x * chunk, end = from + chunk < j.n ? from + chunk : j.n;
    double sum = 0;
    for (int64_t e = from + threadIdx.x; e < end;) {
        const int64_t fold = e + (int64_t)FOLD * CF_THREADS, until = fold < end ? fold : end;
        C part = 0;
        for (; e < until; e += CF_THREADS) part += loss_of<C>(j, e);
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
template <class C> __global__ void loss_gradient(const job j) {
    C scale = 0;
    if (j.reduction != CFX_NONE) {
        const double dy = cf_read<double>(j.dy, 0);
        scale = (C)(j.reduction == CFX_MEAN ? dy / (double)j.n : dy);
    }
    for (CF_EACH(e, j.n)) put<C>(j, e, slope_of<C>(j, e) * (j.reduction == CFX_NONE ? element<C>(j, j.dy, e) : scale));
}

/* ---- the host's part ---------------------------------------------------------------------------------------- */

/* v as a view of y's shape: repeated along dimensions that it lacks or has once. */
static void expand(cf_view *v, const cf_view *y) {
    const int lacks = y->ndim - v->ndim;
    for (int d = y->ndim - 1; d >= 0; d--) {
        v->stride[d] = d < lacks || v->shape[d - lacks] != y->shape[d] ? 0 : v->stride[d - lacks];
        v->shape[d] = y->shape[d];
    }
    v->ndim = y->ndim;
}

static kind kind_of(int op) {
    switch (op) {
    case CF_OP_mse:
    case CF_OP_mse_bw: return MSE;
    case CF_OP_mae:
    case CF_OP_mae_bw: return MAE;
    case CF_OP_huber:
    case CF_OP_huber_bw: return HUBER;
    default: return BCE;
    }
}

static job job_of(const cf_call *call) {
    job j = {};
    j.kind = kind_of(call->op);
    j.of_y = call->i[1] == OF_Y;
    j.reduction = (int)call->i[0];
    j.p = call->p[0];
    j.out = call->v[0];
    return j;
}

template <class C> static cfx_status forward(cf_worker *worker, const cf_call *call) {
    job j = job_of(call);
    j.x = *cf_call_in(call, 0);
    j.y = *cf_call_in(call, 1);
    j.n = cf_view_numel(&j.x);
    expand(&j.y, &j.x);
    j.packed = cf_view_packed(&j.x) && cf_view_packed(&j.y);
    if (j.reduction == CFX_NONE) {
        if (!j.n) return CFX_OK;
        j.packed = j.packed && cf_view_packed(&j.out);
        CF_LAUNCH(losses<C>, cf_cuda_blocks(worker, j.n), CF_THREADS, worker, j);
        return cf_cuda_launched("a kernel");
    }
    const int64_t least = (int64_t)THREAD_ELEMENTS * CF_THREADS, even = (j.n + MOST_CHUNKS - 1) / MOST_CHUNKS;
    const int64_t chunk = even > least ? even : least, chunks = (j.n + chunk - 1) / chunk;
    double *const partial = (double *)cf_cuda_scratch(worker, MOST_CHUNKS * sizeof(double));
    if (!partial) return CFX_EMEMORY;
    if (chunks) CF_LAUNCH_TEAM(loss_chunks<C>, chunks, CF_THREADS, worker, j, chunk, partial);
    CF_LAUNCH_TEAM(join_losses, 1, CF_THREADS, worker, j, chunks, partial);
    return cf_cuda_launched("a kernel");
}

template <class C> static cfx_status backward(cf_worker *worker, const cf_call *call) {
    job j = job_of(call);
    j.dy = *cf_call_in(call, 0);
    j.x = *cf_call_in(call, 1);
    j.y = *cf_call_in(call, 2);
    j.n = cf_view_numel(&j.out);
    if (!j.n) return CFX_OK;
    expand(&j.x, &j.out);
    expand(&j.y, &j.out);
    if (j.reduction == CFX_NONE) expand(&j.dy, &j.out);
    j.packed = cf_view_packed(&j.out) && cf_view_packed(&j.x) && cf_view_packed(&j.y) &&
               (j.reduction != CFX_NONE || cf_view_packed(&j.dy));
    CF_LAUNCH(loss_gradient<C>, cf_cuda_blocks(worker, j.n), CF_THREADS, worker, j);
    return cf_cuda_launched("a kernel");
}

} // namespace

extern "C" {
cfx_status cf_cuda_loss(cf_worker *worker, const cf_call *call) {
    return call->dtype == CFX_FLOAT64 ? forward<double>(worker, call) : forward<float>(worker, call);
}

#define BACKWARD_ROW(name)                                                                                  \
    cfx_status cf_cuda_##name##_bw(cf_worker *worker, const cf_call *call) {                                \
        return call->dtype == CFX_FLOAT64 ? backward<double>(worker, call) : backward<float>(worker, call); \
    }
BACKWARD_ROW(mse)
BACKWARD_ROW(mae)
BACKWARD_ROW(huber)
BACKWARD_ROW(bce)
}
