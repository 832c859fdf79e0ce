/* elementwise.cuh: the formulas of the UNARY, BINARY and TERNARY rows, those of core/cpu/kernels/elementwise_*.
 *
 * u, v, w are the operands in their order, p0 and p1 the call's numbers, T the type that is computed in.  A twin _bw
 * gets (dy, x) or (dy, y).  Comparisons are so written that a NaN goes through.
 *
 * An element's bits must not depend on the kernel that met it, yet nvcc fuses products into sums as each kernel
 * suggests: where a sum has two products, fma says which one.
 */
#ifndef CF_CUDA_ELEMENTWISE_CUH
#define CF_CUDA_ELEMENTWISE_CUH

#include "cuda/kernel.cuh"

namespace {

/* Bit k of `truths`: operand k is read as 0 or 1. */
#define FORMULA(name, arity, truths, ...)                                             \
    struct name##_row {                                                               \
        enum { ARITY = arity, TRUTHS = truths };                                      \
        template <class T> __device__ static inline T of(T u, T v, T w, T p0, T p1) { \
            (void)v, (void)w, (void)p0, (void)p1;                                     \
            return (T)(__VA_ARGS__);                                                  \
        }                                                                             \
    };
#define UNARY(name, ...) FORMULA(name, 1, 0, __VA_ARGS__)
#define BINARY(name, ...) FORMULA(name, 2, 0, __VA_ARGS__)
#define TERNARY(name, ...) FORMULA(name, 3, 0, __VA_ARGS__)

/* ---- any type ------------------------------------------------------------------------------------------------ */

template <class T> __device__ inline T clamped(T x, T low, T high) {
    const T t = x < low ? low : x;
    return t > high ? high : t;
}
UNARY(clamp, clamped(u, p0, p1))
BINARY(clamp_bw, (v > p0 || (double)p0 == -INFINITY) && (v < p1 || (double)p1 == INFINITY) ? u : 0)
UNARY(relu, u <= 0 ? 0 : u)
BINARY(relu_bw, v <= 0 ? 0 : u)
FORMULA(lnot, 1, 1, u == 0)
BINARY(maximum, u > v || u != u ? u : v)
BINARY(minimum, u < v || u != u ? u : v)
BINARY(eq, u == v)
BINARY(ne, u != v)
BINARY(lt, u < v)
BINARY(le, u <= v)
BINARY(gt, u > v)
BINARY(ge, u >= v)
FORMULA(land, 2, 3, u != 0 && v != 0)
FORMULA(lor, 2, 3, u != 0 || v != 0)
FORMULA(where, 3, 1, u != 0 ? v : w)
UNARY(pow_same, u)

/* ---- floats -------------------------------------------------------------------------------------------------- */

namespace real {

template <class T> __device__ inline T sign_of(T x) { return x > 0 ? T(1) : x < 0 ? T(-1) : x; }
template <class T> __device__ inline T sigmoid_of(T x) { return 1 / (1 + exp(-x)); }
template <class T> __device__ inline T over_0(T x) { return x < 0 ? T(0) : x; }
template <class T> __device__ inline T under_0(T x) { return x > 0 ? T(0) : x; }
template <class T> __device__ inline T normal_cdf(T x) { return T(0.5) * (1 + erf(x * T(0.70710678118654752440))); }
#define ONE_SQRT2PI T(0.39894228040143267794)
#define TWO_SQRTPI T(1.12837916709551257390)

UNARY(neg, -u)
UNARY(sign, sign_of(u))
UNARY(round, rint(u))
UNARY(floor, ::floor(u))
UNARY(abs, fabs(u))
BINARY(abs_bw, u *sign_of(v))
UNARY(square, u *u)
BINARY(square_bw, 2 * u * v)
UNARY(leakyrelu, u > 0 ? u : u * p0)
BINARY(leakyrelu_bw, v > 0 ? u : u * p0)
UNARY(elu, over_0(u) + p0 * expm1(under_0(u)))
BINARY(elu_bw, v > 0 ? u : u * (p0 * exp(v)))
UNARY(gelu, u *normal_cdf(u))
BINARY(gelu_bw, u *fma(v *ONE_SQRT2PI, exp(T(-0.5) * v * v), normal_cdf(v)))
UNARY(silu, u *sigmoid_of(u))

template <class T> __device__ inline T silu_slope(T x) {
    const T s = sigmoid_of(x);
    return s * (1 + x * (1 - s));
}
BINARY(silu_bw, u *silu_slope(v))
UNARY(softplus, over_0(u) + log1p(exp(-fabs(u))))
BINARY(softplus_bw, u *sigmoid_of(v))
UNARY(tanh, ::tanh(u))
BINARY(tanh_bw, u *(1 - v * v))
UNARY(sigmoid, sigmoid_of(u))
BINARY(sigmoid_bw, u *(1 - v) * v)
UNARY(exp, ::exp(u))
BINARY(exp_bw, u *v)
UNARY(log, ::log(u))
BINARY(log_bw, u / v)
UNARY(sqrt, ::sqrt(u))
BINARY(sqrt_bw, u / (2 * v))
UNARY(rsqrt, 1 / ::sqrt(u))
BINARY(rsqrt_bw, T(-0.5) * u * v * v * v)
UNARY(sin, ::sin(u))
BINARY(sin_bw, u * ::cos(v))
UNARY(cos, ::cos(u))
BINARY(cos_bw, -u * ::sin(v))
UNARY(erf, ::erf(u))
BINARY(erf_bw, u *TWO_SQRTPI * ::exp(-v *v))

BINARY(add, u + v)
BINARY(sub, u - v)
BINARY(mul, u *v)
BINARY(div, u / v)
BINARY(pow, ::pow(u, v))

TERNARY(div_db, -u *((v / w) / w))
TERNARY(pow_da, u *w * ::pow(w == 0 ? T(1) : v, w - 1))

template <class T> __device__ inline T pow_slope(T a, T b) {
    const T base = a == 0 && b >= 0 ? T(1) : a; /* log 1 is 0 */
    return ::pow(base, b) * ::log(base);
}
TERNARY(pow_db, u *pow_slope(v, w))
TERNARY(maximum_da, v < w ? 0 : v == w ? u * T(0.5) : u)
TERNARY(minimum_da, v > w ? 0 : v == w ? u * T(0.5) : u)

UNARY(pow_cube, u *u *u)
UNARY(pow_inverse, 1 / u)
BINARY(pow_da_cube, 3 * u * v * v)
BINARY(pow_da_inverse, -u / (v * v))
BINARY(pow_da_sqrt, T(0.5) * u / ::sqrt(v))

} // namespace real

/* ---- integers: they wrap around, hence the unsigned arithmetic ----------------------------------------------- */

namespace whole {

#define W(x) ((uint64_t)(x))

__device__ inline int64_t sign_of(int64_t x) { return (x > 0) - (x < 0); }

UNARY(neg, 0 - W(u))
UNARY(sign, sign_of(u))
UNARY(round, u)
UNARY(floor, u)
UNARY(abs, u < 0 ? 0 - W(u) : W(u))
BINARY(abs_bw, W(u) * W(sign_of(v)))
UNARY(square, W(u) * W(u))
BINARY(square_bw, 2 * W(u) * W(v))
BINARY(add, W(u) + W(v))
BINARY(sub, W(u) - W(v))
BINARY(mul, W(u) * W(v))

/* a^b by squaring.  Of negative powers only those of 1 and -1 are integers; the others count as 0. */
__device__ inline int64_t power(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t result = 1, square = W(a);
    for (; b; b >>= 1, square *= square)
        if (b & 1) result *= square;
    return (int64_t)result;
}
BINARY(pow, power(u, v))
UNARY(pow_cube, W(u) * W(u) * W(u))

} // namespace whole
} // namespace

#endif
