/* items.cuh: how kernels see the elements of views: of one dtype or of any, one by one or 16 bytes at a time.
 *
 * A kernel that moves 16 bytes has a parameter N, the elements in them, and takes the items of its pieces, each N
 * elements from an address that is a multiple of 16; with N = 1 it is the kernel for any view.  A span of elements may
 * begin and end within a piece: what lies outside of it is neither read nor written.
 */
#ifndef CF_CUDA_ITEMS_CUH
#define CF_CUDA_ITEMS_CUH

#include "cuda/kernel.cuh"

template <class C, int N> struct cf_items { C x[N]; };
/* As they lie in memory, at a multiple of 16. */
template <class T> struct cf_vector { T x[16 / sizeof(T)]; };
template <class T> __device__ __forceinline__ cf_vector<T> cf_load_vector(const T *from) {
    cf_vector<T> v;
    const uint4 bits = *(const uint4 *)from;
    memcpy(&v, &bits, sizeof v);
    return v;
}
/* By an intrinsic: where nvcc sees elements here and the same ones in the branch beside it, it stores them one by one. */
template <class T> __device__ __forceinline__ void cf_store_vector(T *to, const cf_vector<T> &v) {
    uint4 bits;
    memcpy(&bits, &v, sizeof bits);
    __stwb((uint4 *)to, bits);
}

/* n elements that are loaded and stored together, 16 bytes at a time. */
template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) cf_pack { T x[N]; };

/* Of a float dtype, in bytes. */
static inline int cf_float_size(int dtype) { return dtype == CFX_FLOAT64 ? 8 : dtype == CFX_FLOAT32 ? 4 : 2; }

static inline bool cf_aligned(const void *data) { return (uintptr_t)data % 16 == 0; }

/* How many elements before `from` its piece begins. */
template <class T> __device__ inline int cf_head(const T *from) {
    return (int)((uintptr_t)from / sizeof(T) % (16 / sizeof(T)));
}

/* x[at .. at + N), as far as that is within [from, end): zeros elsewhere. */
template <class C, int N, class T>
__device__ __forceinline__ cf_items<C, N> cf_take(const T *x, int64_t at, int64_t from, int64_t end) {
    cf_items<C, N> items;
    if (at >= from && at + N <= end) {
        const cf_vector<T> v = cf_load_vector(x + at);
        for (int k = 0; k < N; k++) items.x[k] = cf_as<C>(v.x[k]);
    } else {
        for (int k = 0; k < N; k++) items.x[k] = at + k >= from && at + k < end ? cf_as<C>(x[at + k]) : (C)0;
    }
    return items;
}
template <class C, int N, class T>
__device__ __forceinline__ void cf_leave(T *x, int64_t at, int64_t from, int64_t end, const cf_items<C, N> &items) {
    if (at >= from && at + N <= end) {
        cf_vector<T> v;
        for (int k = 0; k < N; k++) v.x[k] = cf_store<T>::from(items.x[k]);
        cf_store_vector(x + at, v);
    } else {
        for (int k = 0; k < N; k++)
            if (at + k >= from && at + k < end) x[at + k] = cf_store<T>::from(items.x[k]);
    }
}

/* Views of one dtype T, or of any, as the compute type C.  WIDTH: elements in 16 bytes; 1: they are taken singly. */
template <class C_, class T_> struct cf_typed {
    typedef C_ C;
    typedef T_ T;
    enum { WIDTH = 16 / sizeof(T) };
    __device__ static inline C get(const cf_view &v, int64_t at) { return cf_as<C>(((const T *)v.data)[at]); }
    __device__ static inline void put(const cf_view &v, int64_t at, C x) { ((T *)v.data)[at] = cf_store<T>::from(x); }
};
template <class C_> struct cf_untyped {
    typedef C_ C, T;
    enum { WIDTH = 1 };
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

/* n elements that lie `step` apart, 1 where N is more. */
template <class M, int N> struct cf_span {
    typedef typename M::C C;
    typedef typename M::T T;
    const cf_view &v;
    int64_t at, step, n;
    __device__ cf_span(const cf_view &view, int64_t at_, int64_t step_, int64_t n_)
        : v(view), at(at_), step(step_), n(n_) {}
    __device__ __forceinline__ C operator()(int64_t k) const { return M::get(v, at + k * step); }
    __device__ __forceinline__ cf_items<C, N> items(int64_t k) const {
        if constexpr (N > 1) return cf_take<C, N>((const T *)v.data + at, k, 0, n);
        else return cf_items<C, N>{{(*this)(k)}};
    }
    __device__ __forceinline__ void put(int64_t k, const cf_items<C, N> &x) const {
        if constexpr (N > 1) cf_leave<C, N>((T *)v.data + at, k, 0, n, x);
        else M::put(v, at + k * step, x.x[0]);
    }
    /* Where the first piece begins: at this element or up to N - 1 before the first. */
    __device__ __forceinline__ int64_t begin() const {
        if constexpr (N > 1) return -(int64_t)cf_head((const T *)v.data + at);
        else return 0;
    }
};
#endif
