/* reduce.cu: reductions over dimensions.
 *
 * The input is split into kept and reduced dimensions, each flattened by itself.  A block of threads makes `width`
 * results from a chunk of their elements, with `lanes` threads for each result: neighbours in a warp where the
 * elements of a result lie together ("rows"), and a warp apart where the results do ("columns": the gradients of
 * biases), so that both read memory in order.  Few results of many elements are cut into chunks on a grid that the
 * shape alone fixes; a second kernel merges their partial results.
 *
 * A thread adds up to FOLD floats before it merges their sum to a double: so 10^7 ones make exactly 10^7.
 */
#include <type_traits>

#include "cuda/items.cuh"

namespace {

enum {
    FOLD = 64,
    SHORT_ROW = 1024,      /* longer ones have a whole block */
    LANE_ELEMENTS = 8,     /* of a short row for each of its threads */
    CHUNK_ELEMENTS = 32,   /* at least, for each thread */
    MOST_CHUNKS = 1024,    /* with those of other results: enough to fill a large device */
    MANY_RESULTS = 1 << 16 /* these fill a device with a thread each */
};

/* ---- operations on two elements ----------------------------------------------------------------------------- */

/* The type in which sums of C are merged. */
template <class C> struct wide { typedef double type; };
template <> struct wide<int64_t> { typedef int64_t type; };

template <class C> __device__ inline C lowest() { return -(C)INFINITY; }
template <> __device__ inline int64_t lowest<int64_t>() { return INT64_MIN; }
template <class C> __device__ inline C highest() { return (C)INFINITY; }
template <> __device__ inline int64_t highest<int64_t>() { return INT64_MAX; }

/* Integers wrap around. */
template <class A> __device__ inline A plus(A a, A b) { return a + b; }
template <> __device__ inline int64_t plus(int64_t a, int64_t b) { return (int64_t)((uint64_t)a + (uint64_t)b); }
template <class A> __device__ inline A times(A a, A b) { return a * b; }
template <> __device__ inline int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }
/* A NaN stays one. */
template <class A> __device__ inline A larger(A a, A b) { return b > a || b != b ? b : a; }
template <class A> __device__ inline A smaller(A a, A b) { return b < a || b != b ? b : a; }

/* A step merges an element x to `part`, and the parts of a result to a `whole`.  m: the mean that is subtracted.
 * Where a sum is divided or a root is taken, and of products, parts are wide: the result of numbers that do not fit
 * may. */
#define STEP(name, PART, START, MERGE, ELEMENT)                                               \
    template <class C> struct name {                                                          \
        typedef C compute;                                                                    \
        typedef typename wide<C>::type whole;                                                 \
        typedef PART part;                                                                    \
        __device__ static inline part start() { return START; }                               \
        __device__ static inline part next(part s, C x, int64_t, double m) {                  \
            return (void)m, MERGE<part>(s, ELEMENT);                                          \
        }                                                                                     \
        __device__ static inline whole merge(whole a, whole b) { return MERGE<whole>(a, b); } \
    };
STEP(step_sum, C, 0, plus, x)
STEP(step_mean, whole, 0, plus, (whole)x)
STEP(step_sumsq, whole, 0, plus, times<whole>((whole)x, (whole)x))
STEP(step_devsq, whole, 0, plus, ((whole)x - m) * ((whole)x - m))
STEP(step_prod, whole, 1, times, (whole)x)
STEP(step_max, C, lowest<C>(), larger, x)
STEP(step_min, C, highest<C>(), smaller, x)
STEP(step_any, C, 0, larger, x != 0 ? 1 : 0)
STEP(step_all, C, 1, smaller, x != 0 ? 1 : 0)

/* An element and where it is; at -1: none yet. */
template <class C> struct found {
    C value;
    int64_t at;
};

/* A NaN is better than every number, and of equals the first is best. */
template <class C_, bool is_max> struct step_arg {
    typedef C_ compute;
    typedef found<C_> part, whole;
    __device__ static inline bool better(C_ a, C_ b) { return (is_max ? b > a : b < a) || (b != b && a == a); }
    __device__ static inline part start() { return part{0, -1}; }
    __device__ static inline part next(part s, C_ x, int64_t e, double) {
        return s.at < 0 || better(s.value, x) ? part{x, e} : s;
    }
    __device__ static inline whole merge(whole a, whole b) {
        if (a.at < 0 || b.at < 0) return a.at < 0 ? b : a;
        if (better(a.value, b.value)) return b;
        return better(b.value, a.value) || a.at < b.at ? a : b;
    }
};

template <class A> __device__ inline A exchange(A x, int mask) { return __shfl_xor_sync(0xFFFFFFFFu, x, mask); }
template <class C> __device__ inline found<C> exchange(found<C> x, int mask) {
    return found<C>{exchange(x.value, mask), exchange(x.at, mask)};
}

/* ---- the kernels -------------------------------------------------------------------------------------------- */

typedef struct job {
    cf_view kept, rest, y;   /* of x: kept and rest share its data */
    int64_t results, length; /* elements of kept, of rest */
    int64_t chunk, chunks;   /* elements of a chunk, and how many there are */
    int lanes, by_rows;
    int op;
    double correction;
} job;

/* A thread's share of result r: elements from, from + lanes, .. below `to`. */
template <class S, class At>
__device__ inline typename S::whole walk(const job &j, int64_t from, int64_t to, double mean, At at) {
    typename S::whole all = (typename S::whole)S::start();
    for (int64_t e = from; e < to;) {
        const int64_t fold = e + (int64_t)FOLD * j.lanes, end = fold < to ? fold : to;
        typename S::part part = S::start();
        for (; e < end; e += j.lanes) part = S::next(part, at(e), e, mean);
        all = S::merge(all, (typename S::whole)part);
    }
    return all;
}
/* The same of elements that lie together: a lane takes 16 bytes at a time. */
template <class S, class T>
__device__ inline typename S::whole walk_pieces(const job &j, const T *x, int lane, int64_t from, int64_t to,
                                                double mean) {
    constexpr int N = 16 / sizeof(T);
    typename S::whole all = (typename S::whole)S::start();
    for (int64_t e = from - cf_head(x + from) + lane * N; e < to;) {
        const int64_t fold = e + (int64_t)FOLD * j.lanes, end = fold < to ? fold : to;
        typename S::part part = S::start();
        for (; e < end; e += j.lanes * N) {
            const auto items = cf_take<typename S::compute, N>(x, e, from, to);
            for (int k = 0; k < N; k++)
                if (e + k >= from && e + k < to) part = S::next(part, items.x[k], e + k, mean);
        }
        all = S::merge(all, (typename S::whole)part);
    }
    return all;
}
template <class S, class T>
__device__ inline typename S::whole walk_line(const job &j, int64_t r, int lane, int64_t from, int64_t to,
                                              double mean) {
    const T *x = (const T *)j.kept.data + cf_offset(j.kept, r);
    const int64_t stride = j.rest.stride[0];
    if (j.by_rows && stride == 1 && j.length >= 16 / (int)sizeof(T)) return walk_pieces<S>(j, x, lane, from, to, mean);
    return walk<S>(j, from + lane, to, mean, [=](int64_t e) { return cf_as<typename S::compute>(x[e * stride]); });
}

/* The dtypes that a compute type is mostly made from have loops of their own. */
template <class S>
__device__ inline typename S::whole walk_result(const job &j, int64_t r, int lane, int64_t from, int64_t to,
                                                double mean) {
    typedef typename S::compute C;
    const int dtype = j.rest.ndim == 1 ? j.rest.dtype : -1;
    if constexpr (std::is_same<C, float>::value) {
        if (dtype == CFX_FLOAT32) return walk_line<S, float>(j, r, lane, from, to, mean);
        if (dtype == CFX_FLOAT16) return walk_line<S, cf_f16>(j, r, lane, from, to, mean);
        if (dtype == CFX_BFLOAT16) return walk_line<S, cf_bf16>(j, r, lane, from, to, mean);
    }
    if constexpr (std::is_same<C, double>::value)
        if (dtype == CFX_FLOAT64) return walk_line<S, double>(j, r, lane, from, to, mean);
    if constexpr (std::is_same<C, int64_t>::value) {
        if (dtype == CFX_INT64) return walk_line<S, int64_t>(j, r, lane, from, to, mean);
        if (dtype == CFX_INT32) return walk_line<S, int32_t>(j, r, lane, from, to, mean);
    }
    const int64_t base = cf_offset(j.kept, r);
    return walk<S>(j, from + lane, to, mean,
                   [&](int64_t e) { return cf_get<C>(j.rest.data, j.rest.dtype, base + cf_offset(j.rest, e)); });
}

/* Joins what the lanes of each result have; lane 0 gets it.  All threads of the block must call it. */
template <class S>
__device__ inline typename S::whole merge_lanes(const job &j, int lane, typename S::whole x, typename S::whole *room) {
    const int apart = j.by_rows ? 1 : CF_THREADS / j.lanes, in_warp = j.by_rows && j.lanes > 1 ? CF_WARP : 1;
    const int t = (int)threadIdx.x;
    int lanes = j.lanes;
    if (lanes > in_warp) {
        room[t] = x;
        __syncthreads();
        for (; lanes > in_warp; lanes /= 2) {
            if (lane < lanes / 2) room[t] = S::merge(room[t], room[t + lanes / 2 * apart]);
            __syncthreads();
        }
        x = room[t];
    }
    for (int mask = lanes / 2; mask > 0; mask /= 2) x = S::merge(x, exchange(x, mask));
    return x;
}

/* Partial results become results, and go to y. */
__device__ inline void finish(const job &j, int64_t r, double x) {
    const double count = (double)j.length;
    if (j.op == CF_OP_mean) x /= count;
    else if (j.op == CF_OP_norm) x = sqrt(x);
    else if (j.op == CF_OP_var || j.op == CF_OP_std) {
        const double free = count - j.correction;
        x /= free > 0 ? free : 0;
        if (j.op == CF_OP_std) x = sqrt(x);
    }
    cf_write<double>(j.y, r, x);
}
__device__ inline void finish(const job &j, int64_t r, int64_t x) { cf_write<int64_t>(j.y, r, x); }
template <class C> __device__ inline void finish(const job &j, int64_t r, found<C> x) {
    cf_write<int64_t>(j.y, r, x.at);
}

/* out [chunks, results], or NULL: then there is one chunk, and its results are final.  sums [results]: what gives
 * the mean that the step subtracts, or NULL. */
template <class S>
__global__ void reduce_chunks(const job j, typename S::whole *__restrict__ out, const double *__restrict__ sums) {
    __shared__ typename S::whole room[CF_THREADS];
    const int t = (int)threadIdx.x, width = CF_THREADS / j.lanes;
    const int lane = j.by_rows ? t % j.lanes : t / width, column = j.by_rows ? t / j.lanes : t % width;
    const int64_t blocks = (j.results + width - 1) / width;
    for (int64_t item = blockIdx.x; item < blocks * j.chunks; item += gridDim.x) {
        const int64_t chunk = item / blocks, r = item % blocks * width + column;
        const int64_t from = chunk * j.chunk, end = from + j.chunk < j.length ? from + j.chunk : j.length;
        typename S::whole x = (typename S::whole)S::start();
        if (r < j.results) x = walk_result<S>(j, r, lane, from, end, sums ? sums[r] / (double)j.length : 0);
        x = merge_lanes<S>(j, lane, x, room);
        if (lane > 0 || r >= j.results) continue;
        if (out) out[chunk * j.results + r] = x;
        else finish(j, r, x);
    }
}

/* A warp merges the chunks of a result.  out [results], or NULL as above. */
template <class S>
__global__ void merge_chunks(const job j, const typename S::whole *__restrict__ in /* [chunks, results] */,
                             typename S::whole *__restrict__ out) {
    const int64_t warps = (int64_t)gridDim.x * blockDim.x / CF_WARP;
    const int lane = (int)threadIdx.x % CF_WARP;
    for (int64_t r = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / CF_WARP; r < j.results; r += warps) {
        typename S::whole x = (typename S::whole)S::start();
        for (int64_t k = lane; k < j.chunks; k += CF_WARP) x = S::merge(x, in[k * j.results + r]);
        for (int mask = CF_WARP / 2; mask > 0; mask /= 2) x = S::merge(x, exchange(x, mask));
        if (lane > 0) continue;
        if (out) out[r] = x;
        else finish(j, r, x);
    }
}

/* ---- the host's part ---------------------------------------------------------------------------------------- */

template <class S>
static void launch(cf_worker *worker, const job &j, void *partial, typename S::whole *out, const double *sums) {
    typedef typename S::whole whole;
    const int64_t width = CF_THREADS / j.lanes, items = (j.results + width - 1) / width * j.chunks;
    const int64_t grid = items < 1 << 20 ? items : 1 << 20;
    whole *const chunks = j.chunks > 1 ? (whole *)partial : out;
    CF_LAUNCH_TEAM(reduce_chunks<S>, grid, CF_THREADS, worker, j, chunks, sums);
    if (j.chunks > 1)
        CF_LAUNCH_TEAM(merge_chunks<S>, cf_cuda_blocks(worker, j.results * CF_WARP), CF_THREADS, worker, j, chunks,
                       out);
}

template <class S> static cfx_status run(cf_worker *worker, const job &j) {
    void *partial = NULL;
    if (j.chunks > 1) {
        partial = cf_cuda_scratch(worker, (size_t)(j.chunks * j.results) * sizeof(typename S::whole));
        if (!partial) return CFX_EMEMORY;
    }
    launch<S>(worker, j, partial, NULL, NULL);
    return cf_cuda_launched("a kernel");
}

/* A first pass for the mean, and one for the squares of what is left. */
template <class C> static cfx_status run_var(cf_worker *worker, const job &j) {
    const size_t partials = j.chunks > 1 ? (size_t)(j.chunks * j.results) : 0;
    double *const sums = (double *)cf_cuda_scratch(worker, ((size_t)j.results + partials) * sizeof(double));
    if (!sums) return CFX_EMEMORY;
    launch<step_mean<C>>(worker, j, sums + j.results, sums, NULL);
    launch<step_devsq<C>>(worker, j, sums + j.results, NULL, sums);
    return cf_cuda_launched(j.op == CF_OP_std ? "std" : "var");
}

template <class C> static cfx_status run_op(cf_worker *worker, const job &j) {
    switch (j.op) {
    case CF_OP_sum: return run<step_sum<C>>(worker, j);
    case CF_OP_prod: return run<step_prod<C>>(worker, j);
    case CF_OP_max: return run<step_max<C>>(worker, j);
    case CF_OP_min: return run<step_min<C>>(worker, j);
    case CF_OP_argmax: return run<step_arg<C, true>>(worker, j);
    case CF_OP_argmin: return run<step_arg<C, false>>(worker, j);
    }
    if constexpr (!std::is_same<C, int64_t>::value) switch (j.op) {
        case CF_OP_mean: return run<step_mean<C>>(worker, j);
        case CF_OP_norm: return run<step_sumsq<C>>(worker, j);
        case CF_OP_var:
        case CF_OP_std: return run_var<C>(worker, j);
        }
    return cf_fail(CFX_EFAULT, "needs a float operand");
}

/* The least power of two that is at least n, and at most `most`, one too. */
static int power_of_two(int64_t n, int most) {
    int power = 1;
    while (power < most && power < n) power *= 2;
    return power;
}

/* How threads share the work: by the shape and strides alone, so that every device gets the same bits. */
static void plan(job *j) {
    const int64_t apart = llabs(j->kept.stride[j->kept.ndim - 1]), stride = llabs(j->rest.stride[j->rest.ndim - 1]);
    j->by_rows = j->results == 1 || (j->length > 1 && stride <= apart);
    if (j->by_rows && j->length > SHORT_ROW) j->lanes = CF_THREADS;
    else if (j->by_rows) j->lanes = power_of_two((j->length + LANE_ELEMENTS - 1) / LANE_ELEMENTS, CF_WARP);
    else if (j->results >= MANY_RESULTS) j->lanes = 1;
    else j->lanes = CF_THREADS / power_of_two(j->results, CF_WARP);
    const int64_t width = CF_THREADS / j->lanes, blocks = (j->results + width - 1) / width;
    const int64_t least = (int64_t)j->lanes * CHUNK_ELEMENTS, most = (j->length + least - 1) / least;
    int64_t chunks = MOST_CHUNKS / blocks < most ? MOST_CHUNKS / blocks : most;
    if (chunks < 1) chunks = 1;
    j->chunk = (j->length + chunks - 1) / chunks;
    j->chunks = j->chunk ? (j->length + j->chunk - 1) / j->chunk : 1;
}

} // namespace

extern "C" cfx_status cf_cuda_reduce(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    job j = {};
    j.op = call->op;
    j.correction = CF_PARAMS(call, reduce)->correction;
    j.y = call->v[0];
    const int is_arg = j.op == CF_OP_argmax || j.op == CF_OP_argmin;
    /* argmax counts positions, so the order of dimensions stays */
    cf_view_split(x, x->ndim - (int)CF_PARAMS(call, reduce)->dims, !is_arg, &j.kept, &j.rest);
    cf_view_flatten(&j.y);
    j.results = cf_view_numel(&j.kept);
    j.length = cf_view_numel(&j.rest);
    if (!j.results) return CFX_OK;
    if (is_arg && !j.length) return cf_fail(CFX_EFAULT, "of no elements");
    plan(&j);
    if (j.op == CF_OP_any) return run<step_any<double>>(worker, j);
    if (j.op == CF_OP_all) return run<step_all<double>>(worker, j);
    /* Where the result is a float, integers are rounded with it, not before. */
    const int is_mean = j.op == CF_OP_mean || j.op == CF_OP_norm || j.op == CF_OP_var || j.op == CF_OP_std;
    const int widens = is_mean && !cf_is_float(x->dtype) && cf_is_float(call->dtype);
    const int dtype = is_arg ? x->dtype : widens ? (int)CFX_FLOAT64 : call->dtype;
    return CF_COMPUTE(dtype, run_op, worker, j);
}

/* ---- sumsq: a list of tensors in one pass over all of them ------------------------------------------------------ */

namespace {

/* A block adds a chunk of one tensor; the chunks lie on a grid that the tensors' sizes alone fix. */
typedef struct squares {
    cf_list list;
    struct {
        const void *x;
        int64_t n, chunk;
        int32_t dtype;
    } of[CF_LIST];
} squares;
static_assert(sizeof(squares) <= 4000, "a launch has 4 KiB of parameters");

/* This thread's part of x[from .. end). */
template <class T> __device__ inline double sum_part(const void *data, int64_t from, int64_t end) {
    constexpr int N = 16 / sizeof(T);
    const T *x = (const T *)data;
    double sum = 0;
    for (int64_t at = from - cf_head(x + from) + (int64_t)threadIdx.x * N; at < end; at += CF_THREADS * N) {
        const auto items = cf_take<double, N>(x, at, from, end); /* zeros outside */
        for (int k = 0; k < N; k++) sum += items.x[k] * items.x[k];
    }
    return sum;
}

/* partial [blocks] */
__global__ void square_chunks(const squares s, double *__restrict__ partial) {
    __shared__ double room[CF_THREADS / CF_WARP];
    const int t = cf_list_find(s.list);
    const int64_t from = ((int)blockIdx.x - s.list.first[t]) * s.of[t].chunk;
    const int64_t end = from + s.of[t].chunk < s.of[t].n ? from + s.of[t].chunk : s.of[t].n;
    double sum;
    switch (s.of[t].dtype) {
    case CFX_FLOAT16: sum = sum_part<cf_f16>(s.of[t].x, from, end); break;
    case CFX_BFLOAT16: sum = sum_part<cf_bf16>(s.of[t].x, from, end); break;
    case CFX_FLOAT32: sum = sum_part<float>(s.of[t].x, from, end); break;
    default: sum = sum_part<double>(s.of[t].x, from, end);
    }
    sum = cf_block_sum(sum, room);
    if (threadIdx.x == 0) partial[blockIdx.x] = sum;
}

/* One block.  add: to what y holds. */
__global__ void merge_squares(int blocks, const double *__restrict__ partial /* [blocks] */, double *y, int add) {
    __shared__ double room[CF_THREADS / CF_WARP];
    double sum = 0;
    for (int k = (int)threadIdx.x; k < blocks; k += CF_THREADS) sum += partial[k];
    sum = cf_block_sum(sum, room);
    if (threadIdx.x == 0) *y = add ? *y + sum : sum;
}

int64_t chunk_of(const cf_call *call) {
    const int64_t least = (int64_t)CHUNK_ELEMENTS * CF_THREADS, n = cf_view_numel(cf_call_in(call, 0));
    const int64_t even = ((n + MOST_CHUNKS - 1) / MOST_CHUNKS + 7) / 8 * 8; /* whole pieces of 16 bytes */
    return even > least ? even : least;
}

void add_tensor(const cf_call *call, squares *s) {
    const cf_view *x = cf_call_in(call, 0);
    const int64_t n = cf_view_numel(x), chunk = chunk_of(call), chunks = (n + chunk - 1) / chunk;
    if (n == 0) return;
    s->of[s->list.n] = {x->data, n, chunk, x->dtype};
    s->list.first[s->list.n + 1] = s->list.first[s->list.n] + (int32_t)chunks;
    s->list.n++;
}

} // namespace

extern "C" cfx_status cf_cuda_sumsq(cf_worker *worker, const cf_call *call) {
    for (const cf_call *c = call; c; c = cf_call_next(c)) {
        const cf_view *x = cf_call_in(c, 0);
        if (!cf_is_float(x->dtype) || !cf_view_packed(x))
            return cf_fail(CFX_EFAULT, "a sum of squares is of packed floats");
    }
    double *const partial = (double *)cf_cuda_scratch(worker, (size_t)CF_LIST * MOST_CHUNKS * sizeof(double));
    if (!partial) return CFX_EMEMORY;
    while (call) {
        const cf_call *const first = call;
        squares s = {};
        for (; call && s.list.n < CF_LIST; call = cf_call_next(call)) {
            if (call != first && (!CF_PARAMS(call, sumsq)->add || call->v[0].data != first->v[0].data)) break;
            add_tensor(call, &s);
        }
        const int blocks = s.list.first[s.list.n];
        if (blocks > 0) CF_LAUNCH_TEAM(square_chunks, blocks, CF_THREADS, worker, s, partial);
        CF_LAUNCH_TEAM(merge_squares, 1, CF_THREADS, worker, blocks, partial, (double *)first->v[0].data,
                       (int)CF_PARAMS(first, sumsq)->add);
    }
    return cf_cuda_launched("sumsq");
}

/* ---- prod_bw ------------------------------------------------------------------------------------------------ */

namespace {

typedef struct prod_job {
    cf_view dy, kept, rest, dx_kept, dx_rest;
    int64_t results, length;
    int lanes; /* threads for a result: 1 or a block */
    int64_t blocks;
    double *before; /* [teams, length] */
} prod_job;

enum { SERIAL_LENGTH = 32, MOST_TEAMS = 256 };

int64_t teams_of(const prod_job *j) { return j->blocks * (CF_THREADS / j->lanes); }

prod_job prod_of(const cf_call *call) {
    const int kept = call->v[0].ndim - (int)CF_PARAMS(call, reduce)->dims;
    prod_job j = {};
    j.dy = *cf_call_in(call, 0);
    cf_view_flatten(&j.dy);
    cf_view_split(cf_call_in(call, 1), kept, false, &j.kept, &j.rest);
    cf_view_split(&call->v[0], kept, false, &j.dx_kept, &j.dx_rest);
    j.results = cf_view_numel(&j.kept);
    j.length = cf_view_numel(&j.rest);
    j.lanes = j.length > SERIAL_LENGTH ? CF_THREADS : 1;
    const int64_t width = CF_THREADS / j.lanes, items = (j.results + width - 1) / width;
    j.blocks = items < MOST_TEAMS ? items : (int64_t)MOST_TEAMS;
    j.before = (double *)call->workspace;
    return j;
}

/* dx = dy times the product of all others: of those before, by a walk up, and those after, by a walk down.  Each
 * lane has a run of elements of its own, and starts from the products of the other lanes' runs. */
__global__ void prod_gradient(const prod_job j) {
    __shared__ double product[CF_THREADS];
    const int lane = (int)threadIdx.x % j.lanes;
    const int64_t team = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) / j.lanes;
    const int64_t teams = (int64_t)gridDim.x * blockDim.x / j.lanes;
    const int64_t run = (j.length + j.lanes - 1) / j.lanes, from = lane * run;
    const int64_t end = from + run < j.length ? from + run : j.length;
    double *const before = j.before + team * j.length;
    for (int64_t r = team; r < j.results; r += teams) {
        const int64_t x_at = cf_offset(j.kept, r), dx_at = cf_offset(j.dx_kept, r);
        double up = cf_read<double>(j.dy, r), down = 1;
        if (j.lanes > 1) {
            double own = 1;
            for (int64_t e = from; e < end; e++)
                own *= cf_get<double>(j.rest.data, j.rest.dtype, x_at + cf_offset(j.rest, e));
            product[lane] = own;
            __syncthreads();
            for (int k = 0; k < lane; k++) up *= product[k];
            for (int k = j.lanes - 1; k > lane; k--) down *= product[k];
            __syncthreads();
        }
        for (int64_t e = from; e < end; e++) {
            before[e] = up;
            up *= cf_get<double>(j.rest.data, j.rest.dtype, x_at + cf_offset(j.rest, e));
        }
        for (int64_t e = end - 1; e >= from; e--) {
            const double x = cf_get<double>(j.rest.data, j.rest.dtype, x_at + cf_offset(j.rest, e));
            cf_put<double>(j.dx_rest.data, j.dx_rest.dtype, dx_at + cf_offset(j.dx_rest, e), before[e] * down);
            down *= x;
        }
    }
}

} // namespace

extern "C" size_t cf_cuda_prod_bw_workspace(const cf_call *call) {
    const prod_job j = prod_of(call);
    return (size_t)(teams_of(&j) * j.length) * sizeof(double);
}

extern "C" cfx_status cf_cuda_prod_bw(cf_worker *worker, const cf_call *call) {
    const prod_job j = prod_of(call);
    if (!j.results || !j.length) return CFX_OK;
    CF_LAUNCH_TEAM(prod_gradient, j.blocks, CF_THREADS, worker, j);
    return cf_cuda_launched("prod_bw");
}
