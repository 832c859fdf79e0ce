/* formulas.cuh: the words of device/formulas.def and device/rules.def, for kernels. */
#ifndef CF_CUDA_FORMULAS_CUH
#define CF_CUDA_FORMULAS_CUH

#include "cuda/kernel.cuh"

extern "C" {
#include "device/formulas.h"
}

#define EXP(x) ::exp(x)
#define LOG(x) ::log(x)
#define TANH(x) ::tanh(x)
#define ERF(x) ::erf(x)
#define EXPM1(x) ::expm1(x)
#define LOG1P(x) ::log1p(x)
#define SQRT(x) ::sqrt(x)
#define SIN(x) ::sin(x)
#define COS(x) ::cos(x)
#define ABS(x) cf_word::abs(x)
#define RINT(x) cf_word::rint(x)
#define FLOOR(x) cf_word::floor(x)
#define POW(x, y) cf_word::pow<T>(x, y)
#define W(x) cf_word::wrapping(x)
#define MUL_ADD(a, b, c) ::fma(T(a), T(b), T(c))

namespace cf_word {
template <class T> __device__ inline T abs(T x) { return ::fabs(x); }
template <class T> __device__ inline T rint(T x) { return ::rint(x); }
template <class T> __device__ inline T floor(T x) { return ::floor(x); }
template <class T> __device__ inline T pow(T x, T y) { return ::pow(x, y); }
template <class T> __device__ inline T wrapping(T x) { return x; }
template <> __device__ inline int64_t abs(int64_t x) { return cf_whole_abs(x); }
template <> __device__ inline int64_t rint(int64_t x) { return x; }
template <> __device__ inline int64_t floor(int64_t x) { return x; }
template <> __device__ inline int64_t pow(int64_t x, int64_t y) { return cf_whole_pow(x, y); }
__device__ inline uint64_t wrapping(int64_t x) { return (uint64_t)x; }
} // namespace cf_word

#endif
