/* formulas.h: the words of device/formulas.def and device/rules.def, for loops on the CPU: each takes the function of
 * its argument's type. */
#ifndef CF_CPU_KERNELS_FORMULAS_H
#define CF_CPU_KERNELS_FORMULAS_H

#include "cpu/kernels/maths.h"
#include "device/formulas.h"

static inline int64_t cf_whole_same(int64_t x) { return x; }

#define OF_FLOAT(x, f32, f64) _Generic((x), float : f32, default : f64)(x)
#define OF_ANY(x, f32, f64, i64) _Generic((x), float : f32, double : f64, int64_t : i64)
#define EXP(x) OF_FLOAT(x, cf_exp, exp)
#define LOG(x) OF_FLOAT(x, logf, log)
#define TANH(x) OF_FLOAT(x, cf_tanh, tanh)
#define ERF(x) OF_FLOAT(x, erff, erf)
#define EXPM1(x) OF_FLOAT(x, expm1f, expm1)
#define LOG1P(x) OF_FLOAT(x, log1pf, log1p)
#define SQRT(x) OF_FLOAT(x, sqrtf, sqrt)
#define SIN(x) OF_FLOAT(x, sinf, sin)
#define COS(x) OF_FLOAT(x, cosf, cos)
#define ABS(x) OF_ANY(x, fabsf, fabs, cf_whole_abs)(x)
#define RINT(x) OF_ANY(x, rintf, rint, cf_whole_same)(x)
#define FLOOR(x) OF_ANY(x, floorf, floor, cf_whole_same)(x)
#define POW(x, y) OF_ANY(x, powf, pow, cf_whole_pow)(x, y)
#define W(x) _Generic((x), int64_t : (uint64_t)(x), default : (x))
#define MUL_ADD(a, b, c) ((a) * (b) + (c))

#endif
