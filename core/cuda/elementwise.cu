/* elementwise.cu: the one engine of the UNARY, BINARY and TERNARY rows.
 *
 * The output's dimensions are put in the order of its strides and merged where all views lie alike, so that most calls
 * come down to one dimension.  Two kernels are made of each formula: one for packed tensors of one float dtype, which
 * moves 16 bytes at a time, and one for the rest, which finds every element by its strides and converts from and to
 * any dtype.  An operand may be the output: a thread reads its elements before it writes them.
 */
#include "cuda/elementwise.cuh"

#include <string.h>

#include "cuda/formulas.cuh"

namespace {

enum { MAX_IN = 3 };

/* Division of n < 2^31 by a size that the host knows (Granlund and Montgomery 1994): a product and a shift, where the
 * division itself is some twenty instructions. */
struct divisor {
    uint32_t size, factor, shift;
};
inline divisor divisor_of(int64_t size) {
    uint32_t shift = 0;
    while ((INT64_C(1) << shift) < size) shift++;
    const uint64_t rest = (UINT64_C(1) << shift) - (uint64_t)size;
    return {(uint32_t)size, (uint32_t)((rest << 32) / (uint64_t)size + 1), shift};
}
__device__ inline uint32_t divide(uint32_t n, const divisor &by) { return (__umulhi(n, by.factor) + n) >> by.shift; }

template <class C> struct operand {
    const void *data; /* NULL: `number` for every element */
    C number;
    int32_t dtype;
    int32_t same; /* one value for all elements */
};

template <class C> struct job {
    C p0, p1;
    operand<C> x[MAX_IN];
    void *y;
    int64_t n;
    int32_t dtype;   /* of y */
    int32_t aligned; /* all that is not the same lies on 16 bytes */
    int32_t ndim;    /* from here on: for strided views */
    divisor size[CFX_MAX_DIMS];
    int64_t stride[MAX_IN + 1][CFX_MAX_DIMS]; /* of the operands, then of y */
};

template <class F, class C> __device__ inline C apply(const C (&x)[F::ARITY], const job<C> &j) {
    return F::of(x[0], x[F::ARITY > 1 ? 1 : 0], x[F::ARITY > 2 ? 2 : 0], j.p0, j.p1);
}

template <class C> __device__ inline C read_one(const operand<C> &x, int64_t at, bool truth) {
    if (!x.data) return x.number;
    if (!truth) return cf_get<C>(x.data, x.dtype, at);
    /* Not by way of C: 0.5 is true, and so is a double that is too small for a float. */
    if (x.dtype == CFX_FLOAT64) return ((const double *)x.data)[at] != 0;
    return cf_get<float>(x.data, x.dtype, at) != 0;
}

/* ---- any view ------------------------------------------------------------------------------------------------ */

template <class F, class C> __global__ void elementwise_strided(job<C> j) {
    for (CF_EACH(i, j.n)) {
        uint32_t rest = (uint32_t)i;
        int64_t at[F::ARITY] = {}, y_at = 0;
        for (int d = j.ndim - 1; d >= 0; d--) {
            const uint32_t up = divide(rest, j.size[d]), here = rest - up * j.size[d].size;
            for (int k = 0; k < F::ARITY; k++) at[k] += here * j.stride[k][d];
            y_at += here * j.stride[MAX_IN][d];
            rest = up;
        }
        C x[F::ARITY];
        for (int k = 0; k < F::ARITY; k++) x[k] = read_one(j.x[k], at[k], F::TRUTHS >> k & 1);
        cf_put<C>(j.y, j.dtype, y_at, apply<F>(x, j));
    }
}

/* ---- packed views of one float dtype ------------------------------------------------------------------------- */

/* A block takes whole pieces.  Of a piece a thread has one or two vectors of 16 bytes, CF_THREADS vectors apart; where
 * it cannot be moved so, because it is the last or lies askew, elements that are CF_THREADS apart.  Either way a warp's
 * accesses lie together, and the formula is the same code, so that an element's bits are too. */
template <class C> struct piece {
    enum { ITEMS = sizeof(C) == 4 ? 8 : 2, SIZE = CF_THREADS * ITEMS };
};
template <class T> struct alignas(16) vector { T item[16 / sizeof(T)]; };

template <class T, class C, int N> __device__ inline void load_vectors(const T *from, C (&to)[N]) {
    const int width = 16 / sizeof(T);
    for (int k = 0; k < N; k += width) {
        const vector<T> v = ((const vector<T> *)from)[k / width * CF_THREADS + threadIdx.x];
        for (int m = 0; m < width; m++) to[k + m] = cf_as<C>(v.item[m]);
    }
}
template <class T, class C, int N> __device__ inline void store_vectors(T *to, const C (&from)[N]) {
    const int width = 16 / sizeof(T);
    for (int k = 0; k < N; k += width) {
        vector<T> v;
        for (int m = 0; m < width; m++) v.item[m] = cf_store<T>::from(from[k + m]);
        ((vector<T> *)to)[k / width * CF_THREADS + threadIdx.x] = v;
    }
}
template <class T, class C, int N>
__device__ inline void load_piece(const T *from, int64_t left, bool vectors, C (&to)[N]) {
    if (vectors) return load_vectors(from, to);
    for (int k = 0; k < N; k++) {
        const int at = k * CF_THREADS + (int)threadIdx.x;
        to[k] = at < left ? cf_as<C>(from[at]) : C(1);
    }
}
template <class T, class C, int N>
__device__ inline void store_piece(T *to, int64_t left, bool vectors, const C (&from)[N]) {
    if (vectors) return store_vectors(to, from);
    for (int k = 0; k < N; k++) {
        const int at = k * CF_THREADS + (int)threadIdx.x;
        if (at < left) to[at] = cf_store<T>::from(from[k]);
    }
}

template <int N>
__device__ inline void load_any(const void *from, int dtype, int64_t at, int64_t left, bool vectors, float (&to)[N]) {
    if (dtype == CFX_FLOAT32) load_piece((const float *)from + at, left, vectors, to);
    else if (dtype == CFX_BFLOAT16) load_piece((const cf_bf16 *)from + at, left, vectors, to);
    else load_piece((const cf_f16 *)from + at, left, vectors, to);
}
template <int N>
__device__ inline void store_any(void *to, int dtype, int64_t at, int64_t left, bool vectors, const float (&from)[N]) {
    if (dtype == CFX_FLOAT32) store_piece((float *)to + at, left, vectors, from);
    else if (dtype == CFX_BFLOAT16) store_piece((cf_bf16 *)to + at, left, vectors, from);
    else store_piece((cf_f16 *)to + at, left, vectors, from);
}
template <int N>
__device__ inline void load_any(const void *from, int, int64_t at, int64_t left, bool vectors, double (&to)[N]) {
    load_piece((const double *)from + at, left, vectors, to);
}
template <int N>
__device__ inline void store_any(void *to, int, int64_t at, int64_t left, bool vectors, const double (&from)[N]) {
    store_piece((double *)to + at, left, vectors, from);
}

template <class F, class C> __global__ void elementwise_packed(job<C> j) {
    const int64_t size = piece<C>::SIZE;
    C same[F::ARITY];
    for (int k = 0; k < F::ARITY; k++) same[k] = j.x[k].same ? read_one(j.x[k], 0, F::TRUTHS >> k & 1) : C(0);
    for (int64_t at = blockIdx.x * size; at < j.n; at += gridDim.x * size) {
        const int64_t left = j.n - at;
        const bool vectors = j.aligned && left >= size;
        C x[F::ARITY][piece<C>::ITEMS], y[piece<C>::ITEMS];
        for (int k = 0; k < F::ARITY; k++) {
            if (!j.x[k].same) load_any(j.x[k].data, j.dtype, at, left, vectors, x[k]);
            else
                for (int m = 0; m < piece<C>::ITEMS; m++) x[k][m] = same[k];
        }
        for (int m = 0; m < piece<C>::ITEMS; m++) {
            C one[F::ARITY];
            for (int k = 0; k < F::ARITY; k++) one[k] = x[k][m];
            y[m] = apply<F>(one, j);
        }
        store_any(j.y, j.dtype, at, left, vectors, y);
    }
}

/* ---- the rows ------------------------------------------------------------------------------------------------ */

/* A formula as a type. */
#define CF_FORMULA(name, arity, domain, cost, ...)                                               \
    struct name##_row {                                                                          \
        static constexpr int ARITY = arity, DOMAIN = CF_OF_##domain, TRUTHS = CF_TRUTHS(DOMAIN); \
        template <class T> __device__ static inline T of(T u, T v, T w, T p0, T p1) {            \
            (void)v, (void)w, (void)p0, (void)p1;                                                \
            return (T)(__VA_ARGS__);                                                             \
        }                                                                                        \
    };
#include "device/formulas.def"

/* The kernels of a formula in one compute type; NULL: there is none.  Bool is no float. */
template <class C> struct row { void (*packed)(job<C>), (*strided)(job<C>); };
template <class F, class C> constexpr row<C> row_of() {
    constexpr bool whole = C(0.5) == 0;
    row<C> r = {nullptr, nullptr};
    if constexpr (!whole && F::DOMAIN != CF_OF_TRUTH && F::DOMAIN != CF_OF_LOGIC) r.packed = elementwise_packed<F, C>;
    if constexpr (!whole || F::DOMAIN != CF_OF_FLOAT) r.strided = elementwise_strided<F, C>;
    return r;
}
template <class C>
const row<C> rows[CF_FORMULAS] = {
#define CF_FORMULA(name, ...) row_of<name##_row, C>(),
#include "device/formulas.def"
};

/* ---- views, on the host -------------------------------------------------------------------------------------- */

int same_everywhere(const cf_view *x, int ndim) {
    for (int d = 0; d < ndim; d++)
        if (x->stride[d]) return 0;
    return 1;
}

template <class C> C number_of(double x) { return (C)x; }
template <> int64_t number_of<int64_t>(double x) {
    return x >= 0x1p63 ? INT64_MAX : x < -0x1p63 ? INT64_MIN : x != x ? 0 : (int64_t)x;
}

/* ---- launches ------------------------------------------------------------------------------------------------ */

/* Kernels count in 32 bits, so what is larger is halved until it fits. */
enum { MOST = INT32_MAX };

template <class C>
void launch_strided(cf_worker *worker, const row<C> *kernels, int arity, job<C> j, const int64_t *shape) {
    int largest = 0;
    j.n = 1;
    for (int d = 0; d < j.ndim; d++) {
        j.n *= shape[d];
        if (shape[d] > shape[largest]) largest = d;
    }
    if (j.n <= MOST) {
        for (int d = 0; d < j.ndim; d++) j.size[d] = divisor_of(shape[d]);
        CF_LAUNCH(kernels->strided, cf_cuda_blocks(worker, j.n), CF_THREADS, worker, j);
        return;
    }
    int64_t part[CFX_MAX_DIMS];
    memcpy(part, shape, sizeof part);
    part[largest] /= 2;
    launch_strided(worker, kernels, arity, j, part);
    const int64_t skip = part[largest];
    for (int k = 0; k < arity; k++)
        if (j.x[k].data)
            j.x[k].data = (const char *)j.x[k].data + skip * j.stride[k][largest] * cf_dtype_size(j.x[k].dtype);
    j.y = (char *)j.y + skip * j.stride[MAX_IN][largest] * cf_dtype_size(j.dtype);
    part[largest] = shape[largest] - skip;
    launch_strided(worker, kernels, arity, j, part);
}

int lies_on_16(const void *data) { return (uintptr_t)data % 16 == 0; }

template <class C> cfx_status elementwise(cf_worker *worker, const cf_call *call) {
    const int formula = cf_formula_of(call), arity = cf_formula_info_of(cf_formula_of_row(call->op))->arity;
    const int taken = cf_formula_info_of(formula)->arity; /* less than arity where the number is in the formula */
    const row<C> *kernels = &rows<C>[formula];
    if (!kernels->strided) return cf_fail(CFX_EFAULT, "needs float operands");
    if (call->nin != arity && (arity == 1 || call->nin != arity - 1))
        return cf_fail(CFX_EFAULT, "takes %d operands, got %d", arity, call->nin);
    const cf_formula_params *params = CF_PARAMS(call, formula);
    const int number_at = call->nin == arity ? arity : arity == 2 && params->reversed ? 0 : arity - 1;

    cf_view views[MAX_IN + 1] = {call->v[0]};
    const cf_view *y = &views[0];
    const int64_t n = cf_view_numel(y);
    if (!n) return CFX_OK;
    for (int k = 0, in = 0; k < taken; k++) {
        if (k == number_at) continue;
        views[k + 1] = *cf_call_in(call, in++);
        cf_view_expand(&views[k + 1], y);
    }
    cf_views_sort(views, taken + 1);
    cf_views_collapse(views, taken + 1);

    job<C> j = {};
    j.p0 = number_of<C>(params->p[0]);
    j.p1 = number_of<C>(params->p[1]);
    j.y = y->data;
    j.n = n;
    j.dtype = y->dtype;
    j.ndim = y->ndim;
    j.aligned = lies_on_16(y->data);
    memcpy(j.stride[MAX_IN], y->stride, sizeof y->stride);
    bool packed = kernels->packed && cf_cuda_compute_of(y->dtype) == cf_cuda_compute_of(call->dtype) &&
                  (y->ndim == 0 || (y->ndim == 1 && y->stride[0] == 1));
    for (int k = 0; k < taken; k++) {
        const cf_view *x = &views[k + 1];
        const int same = same_everywhere(x, y->ndim);
        j.x[k] = {x->data, j.p0, x->dtype, same};
        memcpy(j.stride[k], x->stride, sizeof x->stride);
        packed = packed && (same || (x->dtype == y->dtype && x->stride[0] == 1));
        j.aligned = j.aligned && (same || lies_on_16(x->data));
    }
    if (packed) {
        const int64_t items = piece<C>::ITEMS;
        CF_LAUNCH(kernels->packed, cf_cuda_blocks(worker, (n + items - 1) / items), CF_THREADS, worker, j);
    } else {
        launch_strided(worker, kernels, taken, j, y->shape);
    }
    return cf_cuda_launched("elementwise");
}

} // namespace

extern "C" cfx_status cf_cuda_elementwise(cf_worker *worker, const cf_call *call) {
    return CF_COMPUTE(call->dtype, elementwise, worker, call);
}
