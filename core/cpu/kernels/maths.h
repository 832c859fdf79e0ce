/* maths.h: functions that loops over blocks can call and still be vectorised.
 *
 * GCC calls libmvec only under -ffast-math, which assumes that there is no NaN; declared with the simd
 * attribute, the vector versions are used without it.  Other compilers take the scalar functions.  exp and tanh
 * of floats, the hottest, are our own: no call, no branch, the same bits in a vector as alone.
 */
#ifndef CF_CPU_KERNELS_MATHS_H
#define CF_CPU_KERNELS_MATHS_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__linux__) && defined(__GLIBC__)
#define CF_SIMD __attribute__((simd("notinbranch")))
#if __GLIBC_PREREQ(2, 22)
float logf(float) CF_SIMD;
float sinf(float) CF_SIMD;
float cosf(float) CF_SIMD;
float powf(float, float) CF_SIMD;
double exp(double) CF_SIMD;
double log(double) CF_SIMD;
double sin(double) CF_SIMD;
double cos(double) CF_SIMD;
double pow(double, double) CF_SIMD;
#endif
#if __GLIBC_PREREQ(2, 35)
float erff(float) CF_SIMD;
float log1pf(float) CF_SIMD;
float expm1f(float) CF_SIMD;
double erf(double) CF_SIMD;
double log1p(double) CF_SIMD;
double expm1(double) CF_SIMD;
double tanh(double) CF_SIMD;
#endif
#endif

/* 2^n for -126 <= n <= 127; anything for other n. */
static inline float cf_two_to(int32_t n) {
    const uint32_t bits = ((uint32_t)n + 127u) << 23;
    float f;
    memcpy(&f, &bits, 4);
    return f;
}

/* e^x within 1 ulp: x = n log 2 + r, e^r by its series to r^7; 2^n in two factors, for subnormals and infinity. */
static inline float cf_exp(float x) {
    const float low = x < -104.0f ? -104.0f : x, t = low > 89.0f ? 89.0f : low;
    const float shifted = t * 1.44269504f + 0x1.8p23f, n = shifted - 0x1.8p23f; /* n: rounded to an integer */
    const float r = (t - n * 0x1.62e4p-1f) - n * 0x1.7f7d1cp-20f;
    float p = 1.9841270e-4f;
    p = p * r + 1.3888889e-3f;
    p = p * r + 8.3333333e-3f;
    p = p * r + 4.1666668e-2f;
    p = p * r + 1.6666667e-1f;
    p = p * r + 0.5f;
    p = (p * r) * r + r + 1.0f;
    uint32_t bits;
    memcpy(&bits, &shifted, 4);
    const int32_t whole = (int32_t)(bits - 0x4B400000u), half = whole >> 1;
    return p * cf_two_to(half) * cf_two_to(whole - half);
}

/* tanh x within 4e-7 of itself, by Eigen's rational approximation x p(x^2) / q(x^2). */
static inline float cf_tanh(float x) {
    const float limit = 9.02f; /* tanh rounds to 1 */
    const float low = x < -limit ? -limit : x, t = low > limit ? limit : low, s = t * t;
    float p = -2.76076847742355e-16f;
    p = p * s + 2.00018790482477e-13f;
    p = p * s + -8.60467152213735e-11f;
    p = p * s + 5.12229709037114e-08f;
    p = p * s + 1.48572235717979e-05f;
    p = p * s + 6.37261928875436e-04f;
    p = p * s + 4.89352455891786e-03f;
    float q = 1.19825839466702e-06f;
    q = q * s + 1.18534705686654e-04f;
    q = q * s + 2.26843463243900e-03f;
    q = q * s + 4.89352518554385e-03f;
    const float y = t * (p / q);
    return y > 1.0f ? 1.0f : y < -1.0f ? -1.0f : y;
}

#endif
