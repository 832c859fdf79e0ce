/* make.cu: tensors from numbers, copies between views, and the small rows that training keeps on the device.
 *
 * The order of elements does not matter to a copy or a fill, so both views are turned until y runs forwards through
 * memory with as few dimensions as can be.  Then copies of one dtype move the widest words that lie whole in both
 * views, up to 16 bytes; transposes go by squares through shared memory.
 */
#include "cuda/make.cuh"

#include <stdlib.h>
#include <string.h>

namespace {

/* ---- words -------------------------------------------------------------------------------------------------- */

/* The widest word that a thread moves. */
struct alignas(16) quad {
    uint64_t low, high;
    quad() = default;
    __device__ explicit quad(uint64_t both) : low(both), high(both) {}
};

/* ---- two views as one walk ---------------------------------------------------------------------------------- */

/* n elements of y, and of x where there is one, with strides in elements. */
typedef struct pair {
    char *y;
    const char *x;
    int64_t n, y_size, x_size;
    int64_t shape[CFX_MAX_DIMS], ys[CFX_MAX_DIMS], xs[CFX_MAX_DIMS];
    int ndim;
} pair;

/* In row-major order; x is repeated along dimensions that it lacks or has once. */
static pair pair_of(const cf_view *y, const cf_view *x) {
    pair p = {};
    p.y = (char *)y->data;
    p.x = x ? (const char *)x->data : NULL;
    p.n = cf_view_numel(y);
    p.y_size = cf_dtype_size(y->dtype);
    p.x_size = x ? cf_dtype_size(x->dtype) : 0;
    p.ndim = y->ndim;
    memcpy(p.shape, y->shape, sizeof p.shape);
    memcpy(p.ys, y->stride, sizeof p.ys);
    if (!x) return p;
    cf_view wide = *x;
    cf_view_expand(&wide, y);
    memcpy(p.xs, wide.stride, sizeof p.xs);
    return p;
}

/* Joins neighbours that are one dimension in both views, and drops those of size 1. */
static void merge(pair *p) {
    int64_t *const strides[] = {p->ys, p->xs};
    p->ndim = cf_dims_collapse(p->ndim, p->shape, 2, strides);
}

static void swap_dims(pair *p, int a, int b) {
    const int64_t shape = p->shape[a], ys = p->ys[a], xs = p->xs[a];
    p->shape[a] = p->shape[b], p->ys[a] = p->ys[b], p->xs[a] = p->xs[b];
    p->shape[b] = shape, p->ys[b] = ys, p->xs[b] = xs;
}

/* Turns both views until y runs forwards, its largest strides first. */
static void sort_dims(pair *p) {
    int64_t *const strides[] = {p->ys, p->xs};
    for (int d = 0; d < p->ndim; d++) {
        if (p->ys[d] >= 0) continue;
        p->y += (p->shape[d] - 1) * p->ys[d] * p->y_size;
        p->x += (p->shape[d] - 1) * p->xs[d] * p->x_size;
        p->ys[d] = -p->ys[d];
        p->xs[d] = -p->xs[d];
    }
    p->ndim = cf_dims_sort(p->ndim, p->shape, 2, strides);
    merge(p);
}

/* Whether y, and x where there is one, lie without gaps. */
static bool is_packed(const pair *p) {
    return p->ndim == 0 || (p->ndim == 1 && p->ys[0] == 1 && (!p->x || p->xs[0] == 1));
}

/* Takes two elements as one for as long as both views allow it. */
static void widen(pair *p) {
    while (p->y_size < (int64_t)sizeof(quad) && p->ndim > 0) {
        const int last = p->ndim - 1;
        const uintptr_t twice = (uintptr_t)p->y_size * 2;
        if (p->ys[last] != 1 || (p->x && p->xs[last] != 1) || p->shape[last] % 2) return;
        if ((uintptr_t)p->y % twice || (uintptr_t)p->x % twice) return;
        for (int d = 0; d < last; d++)
            if (p->ys[d] % 2 || p->xs[d] % 2) return;
        for (int d = 0; d < last; d++) p->ys[d] /= 2, p->xs[d] /= 2;
        p->shape[last] /= 2;
        p->n /= 2;
        p->y_size *= 2;
        p->x_size *= 2;
    }
}

/* Where element e lies in both views.  I is the narrowest type that counts the elements: the device divides 32 bits
 * several times as fast as 64. */
template <class I> __device__ static inline void place(const pair &p, I e, int64_t *y, int64_t *x) {
    int64_t in_y = 0, in_x = 0;
    for (int d = p.ndim - 1; d > 0; d--) {
        const I size = (I)p.shape[d], rest = e / size;
        const int64_t at = (int64_t)(e - rest * size);
        in_y += at * p.ys[d];
        in_x += at * p.xs[d];
        e = rest;
    }
    if (p.ndim > 0) {
        in_y += (int64_t)e * p.ys[0];
        in_x += (int64_t)e * p.xs[0];
    }
    *y = in_y;
    *x = in_x;
}

/* Runs f<.., I>(..) with the type that counts n elements. */
#define BY_COUNT(n, f, T, ...) ((n) <= INT32_MAX ? f<T, uint32_t>(__VA_ARGS__) : f<T, uint64_t>(__VA_ARGS__))

/* Runs f<word>(..) with the word of `size` bytes. */
#define BY_SIZE(size, n, f, ...)                           \
    ((size) == 1   ? BY_COUNT(n, f, uint8_t, __VA_ARGS__)  \
     : (size) == 2 ? BY_COUNT(n, f, uint16_t, __VA_ARGS__) \
     : (size) == 4 ? BY_COUNT(n, f, uint32_t, __VA_ARGS__) \
     : (size) == 8 ? BY_COUNT(n, f, uint64_t, __VA_ARGS__) \
                   : BY_COUNT(n, f, quad, __VA_ARGS__))

/* ---- copies of one dtype ------------------------------------------------------------------------------------ */

template <class T, class I> __global__ void move_kernel(pair p) {
    for (CF_EACH(e, p.n)) {
        int64_t y, x;
        place(p, (I)e, &y, &x);
        ((T *)p.y)[y] = ((const T *)p.x)[x];
    }
}
template <class T, class I> static void move_by(cf_worker *worker, const pair &p) {
    const auto kernel = move_kernel<T, I>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, p.n), CF_THREADS, worker, p);
}

/* Squares of the last two dimensions [rows, cols], of which x runs along the rows and y along the columns.  A side is
 * 64 where 32 elements were less than a line of memory.  The extra columns keep each side's words in different banks.
 */
template <class T> struct square {
    enum { SIDE = sizeof(T) < 4 ? 64 : 32, PITCH = SIDE + (sizeof(T) < 4 ? 4 / sizeof(T) : 1) };
};

template <class T> __global__ void transpose_kernel(pair p, int64_t down, int64_t across, int64_t squares) {
    enum { SIDE = square<T>::SIDE, STEP = CF_THREADS / SIDE };
    __shared__ T tile[SIDE][square<T>::PITCH]; /* [cols, rows] */
    const int row = p.ndim - 2, col = p.ndim - 1;
    const int64_t rows = p.shape[row], cols = p.shape[col];
    const int lane = (int)threadIdx.x % SIDE, line = (int)threadIdx.x / SIDE;
    for (int64_t s = blockIdx.x; s < squares; s += gridDim.x) {
        const int64_t r0 = s / across % down * SIDE, c0 = s % across * SIDE;
        int64_t index = s / across / down, in_y = r0 * p.ys[row] + c0 * p.ys[col],
                in_x = r0 * p.xs[row] + c0 * p.xs[col];
        for (int d = row - 1; d >= 0; d--) {
            in_y += index % p.shape[d] * p.ys[d];
            in_x += index % p.shape[d] * p.xs[d];
            index /= p.shape[d];
        }
        T *y = (T *)p.y + in_y;
        const T *x = (const T *)p.x + in_x;
        for (int c = line; c < SIDE; c += STEP)
            if (r0 + lane < rows && c0 + c < cols) tile[c][lane] = x[lane * p.xs[row] + c * p.xs[col]];
        __syncthreads();
        for (int r = line; r < SIDE; r += STEP)
            if (r0 + r < rows && c0 + lane < cols) y[r * p.ys[row] + lane * p.ys[col]] = tile[lane][r];
        __syncthreads();
    }
}
template <class T> static void transpose(cf_worker *worker, const pair &p) {
    const int64_t side = square<T>::SIDE, rows = p.shape[p.ndim - 2], cols = p.shape[p.ndim - 1];
    const int64_t down = (rows + side - 1) / side, across = (cols + side - 1) / side;
    const int64_t squares = p.n / (rows * cols) * down * across;
    const int64_t most = (int64_t)cf_cuda_of(worker)->sms * 16;
    CF_LAUNCH_TEAM(transpose_kernel<T>, squares < most ? squares : most, CF_THREADS, worker, p, down, across, squares);
}

/* Whether a copy is a transpose; if so, moves the dimension along which x runs to the place before the last. */
static bool turn(pair *p) {
    enum { WORTH = 16 }; /* shorter sides leave most of a square empty */
    const int last = p->ndim - 1;
    if (last < 1 || p->ys[last] != 1 || p->xs[last] == 0 || llabs(p->xs[last]) == 1 || p->shape[last] < WORTH)
        return false;
    for (int d = 0; d < last; d++)
        if (llabs(p->xs[d]) == 1 && p->shape[d] >= WORTH) {
            swap_dims(p, d, last - 1);
            return true;
        }
    return false;
}

static void copy_same(cf_worker *worker, pair p) {
#ifndef CF_EMULATED
    if (is_packed(&p)) {
        cudaMemcpyAsync(p.y, p.x, (size_t)(p.n * p.y_size), cudaMemcpyDeviceToDevice,
                        (cudaStream_t)cf_cuda_of(worker)->stream);
        return;
    }
#endif
    if (turn(&p)) {
        if (p.y_size == 1) transpose<uint8_t>(worker, p);
        else if (p.y_size == 2) transpose<uint16_t>(worker, p);
        else if (p.y_size == 4) transpose<uint32_t>(worker, p);
        else transpose<uint64_t>(worker, p);
        return;
    }
    widen(&p);
    BY_SIZE(p.y_size, p.n, move_by, worker, p);
}

/* ---- copies that convert ------------------------------------------------------------------------------------ */

template <class C, class I> __global__ void convert_kernel(pair p, int y_dtype, int x_dtype) {
    for (CF_EACH(e, p.n)) {
        int64_t y, x;
        place(p, (I)e, &y, &x);
        cf_put<C>(p.y, y_dtype, y, cf_get<C>(p.x, x_dtype, x));
    }
}
template <class C, class I> static void convert_by(cf_worker *worker, const pair &p, int y_dtype, int x_dtype) {
    const auto kernel = convert_kernel<C, I>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, p.n), CF_THREADS, worker, p, y_dtype, x_dtype);
}

/* Between the floats of 32 and 16 bits, which mixed precision does every step: four elements at once. */
enum { RUN = 4 };
template <class T> struct alignas(RUN * sizeof(T)) run { T v[RUN]; };

template <class To, class From> __global__ void convert_runs_kernel(To *y, const From *x, int64_t n) {
    const int64_t runs = n / RUN, tail = n % RUN;
    for (CF_EACH(k, runs + tail)) {
        if (k < runs) {
            const run<From> in = ((const run<From> *)x)[k];
            run<To> out;
            for (int i = 0; i < RUN; i++) out.v[i] = cf_store<To>::from(cf_as<float>(in.v[i]));
            ((run<To> *)y)[k] = out;
        } else {
            const int64_t e = runs * RUN + k - runs;
            y[e] = cf_store<To>::from(cf_as<float>(x[e]));
        }
    }
}
template <class To, class From> static bool convert_runs(cf_worker *worker, const pair &p) {
    if ((uintptr_t)p.y % sizeof(run<To>) || (uintptr_t)p.x % sizeof(run<From>)) return false;
    const auto kernel = convert_runs_kernel<To, From>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, (p.n + RUN - 1) / RUN), CF_THREADS, worker, (To *)p.y, (const From *)p.x,
              p.n);
    return true;
}
template <class To> static bool convert_runs_to(cf_worker *worker, const pair &p, int x_dtype) {
    return x_dtype == CFX_FLOAT16    ? convert_runs<To, cf_f16>(worker, p)
           : x_dtype == CFX_BFLOAT16 ? convert_runs<To, cf_bf16>(worker, p)
           : x_dtype == CFX_FLOAT32  ? convert_runs<To, float>(worker, p)
                                     : false;
}

/* ---- fill and zero_ranges ----------------------------------------------------------------------------------- */

/* The value that a fill writes; of a large int64 the bits, which no double holds. */
typedef struct number {
    double value;
    int64_t integer;
    int32_t dtype, exact;
} number;

/* Its element, repeated through eight bytes. */
__device__ static inline uint64_t pattern_of(number v) {
    const uint64_t bytes = 0x0101010101010101u, pairs = 0x0001000100010001u, halves = 0x0000000100000001u;
    const float f = (float)v.value;
    uint32_t word;
    uint64_t bits;
    switch (v.dtype) {
    case CFX_BOOL: return (v.value != 0) * bytes;
    case CFX_UINT8: return (uint8_t)cf_integer(v.value) * bytes;
    case CFX_INT32: return (uint32_t)cf_integer(v.value) * halves;
    case CFX_INT64: return (uint64_t)(v.exact ? v.integer : cf_integer(v.value));
    case CFX_FLOAT16: return cf_to_f16(f).bits * pairs;
    case CFX_BFLOAT16: return cf_to_bf16(f).bits * pairs;
    case CFX_FLOAT32: memcpy(&word, &f, sizeof word); return word * halves;
    default: memcpy(&bits, &v.value, sizeof bits); return bits;
    }
}

template <class T, class I> __global__ void fill_kernel(pair p, number v) {
    const T value = T(pattern_of(v));
    for (CF_EACH(e, p.n)) {
        int64_t y, x;
        place(p, (I)e, &y, &x);
        ((T *)p.y)[y] = value;
    }
}
template <class T, class I> static void fill_by(cf_worker *worker, const pair &p, const number &v) {
    const auto kernel = fill_kernel<T, I>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, p.n), CF_THREADS, worker, p, v);
}

/* Ranges of bytes, as arguments of a kernel: their list is host memory that ends with the command. */
enum { RANGES = 64 };
typedef struct ranges {
    char *y;
    int64_t count;
    int64_t range[RANGES][2]; /* first byte, bytes; both whole elements */
} ranges;

/* `each` blocks share a range: its 16-byte words, and bytes before and after them. */
__global__ void ranges_kernel(ranges s, int64_t each, number v) {
    const uint64_t pattern = pattern_of(v);
    const int64_t which = blockIdx.x / each, thread = blockIdx.x % each * blockDim.x + threadIdx.x;
    const int64_t threads = each * blockDim.x, bytes = s.range[which][1];
    char *y = s.y + s.range[which][0];
    const int64_t gap = (int64_t)(-(uintptr_t)y % sizeof(quad)), head = gap < bytes ? gap : bytes;
    const int64_t quads = (bytes - head) / (int64_t)sizeof(quad), end = head + quads * (int64_t)sizeof(quad);
    for (int64_t k = thread; k < quads; k += threads) ((quad *)(y + head))[k] = quad(pattern);
    for (int64_t k = thread; k < head + bytes - end; k += threads) {
        const int64_t at = k < head ? k : end + k - head;
        y[at] = (char)(pattern >> (at % 8 * 8));
    }
}
static void fill_ranges(cf_worker *worker, const ranges *s, const number &v) {
    int64_t most = 0;
    for (int64_t k = 0; k < s->count; k++)
        if (s->range[k][1] > most) most = s->range[k][1];
    if (!most) return;
    const int64_t wanted = cf_cuda_blocks(worker, most / (int64_t)sizeof(quad));
    const int64_t fair = (int64_t)cf_cuda_of(worker)->sms * 16 / s->count;
    const int64_t each = wanted < fair ? wanted : fair > 0 ? fair : 1;
    CF_LAUNCH(ranges_kernel, s->count * each, CF_THREADS, worker, *s, each, v);
}

static void fill(cf_worker *worker, const cf_view *y, const number &v) {
    pair p = pair_of(y, NULL);
    if (!p.n) return;
    sort_dims(&p);
    if (is_packed(&p)) {
        ranges s = {};
        s.y = p.y;
        s.count = 1;
        s.range[0][1] = p.n * p.y_size;
        fill_ranges(worker, &s, v);
        return;
    }
    widen(&p);
    BY_SIZE(p.y_size, p.n, fill_by, worker, p, v);
}

/* ---- arange, tri, onehot ------------------------------------------------------------------------------------ */

__global__ void arange_kernel(pair p, int dtype, double start, double step) {
    for (CF_EACH(e, p.n)) {
        int64_t y, x;
        place(p, (uint64_t)e, &y, &x);
        cf_put<double>(p.y, dtype, y, fma((double)e, step, start));
    }
}

template <class T, class I> __global__ void tri_kernel(pair p, I rows, I cols, bool upper, int64_t diagonal) {
    for (CF_EACH(e, p.n)) {
        const I col = (I)e % cols, row = (I)e / cols % rows;
        const int64_t right = (int64_t)col - (int64_t)row;
        int64_t y, x;
        place(p, (I)e, &y, &x);
        ((T *)p.y)[y] = (upper ? right >= diagonal : right <= diagonal) ? ((const T *)p.x)[x] : T(0);
    }
}
template <class T, class I> static void tri_by(cf_worker *worker, const pair &p, bool upper, int64_t diagonal) {
    const auto kernel = tri_kernel<T, I>;
    CF_LAUNCH(kernel, cf_cuda_blocks(worker, p.n), CF_THREADS, worker, p, (I)p.shape[p.ndim - 2],
              (I)p.shape[p.ndim - 1], upper, diagonal);
}

/* Items are ids; `rows` is y without its last dimension. */
__global__ void onehot_kernel(cf_view rows, cf_view ids, int64_t n, int64_t classes, int64_t stride,
                              cf_cuda_fault *fault) {
    for (CF_EACH(e, n)) {
        const int64_t id = cf_checked_id(fault, CF_OP_onehot, cf_read<int64_t>(ids, e), e, classes);
        if (classes > 0) cf_put<double>(rows.data, rows.dtype, cf_offset(rows, e) + id * stride, 1);
    }
}

/* ---- training: what changes every step lies in a slot of eight doubles (rules.h) ---------------------------- */

enum { SLOT_NUMBERS = 8, SLOT_CLIP = 7 };

typedef struct slot_numbers {
    double x[SLOT_NUMBERS];
} slot_numbers;

__global__ void slot_kernel(double *y, slot_numbers numbers) {
    for (CF_EACH(k, SLOT_NUMBERS)) y[k] = numbers.x[k];
}

__global__ void clip_kernel(double *y, const double *sumsq, double limit) {
    const double scale = limit / (sqrt(*sumsq) + 1e-6);
    y[SLOT_CLIP] = limit > 0 && !(scale > 1) ? scale : 1; /* a NaN stays one */
}

} // namespace

/* ---- the rows ----------------------------------------------------------------------------------------------- */

extern "C" cfx_status cf_cuda_copy(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0], *x = cf_call_in(call, 0);
    pair p = pair_of(y, x);
    const int a = y->dtype, b = x->dtype;
    if (!p.n) return CFX_OK;
    sort_dims(&p);
    if (a == b) {
        copy_same(worker, p);
        return cf_cuda_launched("copy");
    }
    const bool done = is_packed(&p) && (a == CFX_FLOAT16    ? convert_runs_to<cf_f16>(worker, p, b)
                                        : a == CFX_BFLOAT16 ? convert_runs_to<cf_bf16>(worker, p, b)
                                        : a == CFX_FLOAT32  ? convert_runs_to<float>(worker, p, b)
                                                            : false);
    if (done) return cf_cuda_launched("copy");
    /* Through the widest of the three that keeps the value: an integer is rounded to a float once. */
    if (a == CFX_FLOAT64 || b == CFX_FLOAT64) BY_COUNT(p.n, convert_by, double, worker, p, a, b);
    else if (cf_is_float(a) || cf_is_float(b)) BY_COUNT(p.n, convert_by, float, worker, p, a, b);
    else BY_COUNT(p.n, convert_by, int64_t, worker, p, a, b);
    return cf_cuda_launched("copy");
}

extern "C" cfx_status cf_cuda_fill(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0];
    const cf_fill_params *params = CF_PARAMS(call, fill);
    const number v = {params->value, params->exact, y->dtype, params->is_exact != 0};
    fill(worker, y, v);
    return cf_cuda_launched("fill");
}

extern "C" cfx_status cf_cuda_zero_ranges(cf_worker *worker, const cf_call *call) {
    const cf_ranges_params *params = CF_PARAMS(call, ranges);
    const number zero = {0, 0, CFX_UINT8, 0};
    for (int64_t from = 0; from < params->n; from += RANGES) {
        ranges s = {};
        s.y = (char *)call->v[0].data;
        s.count = params->n - from;
        if (s.count > RANGES) s.count = RANGES;
        memcpy(s.range, params->range + from, (size_t)s.count * sizeof s.range[0]);
        fill_ranges(worker, &s, zero);
    }
    return cf_cuda_launched("zero_ranges");
}

extern "C" cfx_status cf_cuda_arange(cf_worker *worker, const cf_call *call) {
    pair p = pair_of(&call->v[0], NULL);
    if (!p.n) return CFX_OK;
    merge(&p);
    CF_LAUNCH(arange_kernel, cf_cuda_blocks(worker, p.n), CF_THREADS, worker, p, call->v[0].dtype,
              CF_PARAMS(call, arange)->start, CF_PARAMS(call, arange)->step);
    return cf_cuda_launched("arange");
}

extern "C" cfx_status cf_cuda_tri(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0], *x = cf_call_in(call, 0);
    const pair p = pair_of(y, x);
    if (!p.n) return CFX_OK;
    if (y->dtype != x->dtype || y->ndim < 2) return cf_fail(CFX_EFAULT, "needs two matrices of one dtype");
    BY_SIZE(p.y_size, p.n, tri_by, worker, p, CF_PARAMS(call, tri)->upper != 0, CF_PARAMS(call, tri)->diagonal);
    return cf_cuda_launched("tri");
}

extern "C" cfx_status cf_cuda_onehot(cf_worker *worker, const cf_call *call) {
    const cf_view *y = &call->v[0], *ids = cf_call_in(call, 0);
    const int64_t n = cf_view_numel(ids);
    const number zero = {0, 0, y->dtype, 0};
    cf_view rows = *y;
    rows.ndim--;
    if (!n) return CFX_OK;
    fill(worker, y, zero);
    CF_LAUNCH(onehot_kernel, cf_cuda_blocks(worker, n), CF_THREADS, worker, rows, *ids, n, y->shape[rows.ndim],
              y->stride[rows.ndim], cf_cuda_of(worker)->fault);
    return cf_cuda_launched("onehot");
}

extern "C" cfx_status cf_cuda_slot(cf_worker *worker, const cf_call *call) {
    slot_numbers numbers;
    memcpy(numbers.x, cf_call_params(call), sizeof numbers.x);
    CF_LAUNCH(slot_kernel, 1, SLOT_NUMBERS, worker, (double *)call->v[0].data, numbers);
    return cf_cuda_launched("slot");
}

extern "C" cfx_status cf_cuda_clip(cf_worker *worker, const cf_call *call) {
    CF_LAUNCH(clip_kernel, 1, 1, worker, (double *)call->v[0].data, (const double *)cf_call_in(call, 0)->data,
              CF_PARAMS(call, clip)->norm);
    return cf_cuda_launched("clip");
}
