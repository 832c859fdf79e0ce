/* elementwise_float.h: the block loops of floats; elementwise_f32.c and elementwise_f64.c include it with
 * `number`, M (the function of that type), EXP, TANH and LOOPS defined.
 *
 * u, v, w are the operands in their order, p0 and p1 the call's numbers.  A twin _bw gets (dy, x) or (dy, y).
 * Comparisons are so written that a NaN goes through.  A function is called for every element and its
 * argument made harmless where its result is not wanted: under a condition the call would not vectorise. */

#define TO_NUMBER(p) ((number)(p))
#define SIGN(x) ((x) > 0 ? (number)1 : (x) < 0 ? (number)-1 : (x))
#define SIGMOID(x) (1 / (1 + EXP(-(x))))
#define SQRT1_2 ((number)0.70710678118654752440)
#define ONE_SQRT2PI ((number)0.39894228040143267794)
#define TWO_SQRTPI ((number)1.12837916709551257390)
#define OVER_0(x) ((x) < 0 ? 0 : (x))  /* the positive part; NaN stays */
#define UNDER_0(x) ((x) > 0 ? 0 : (x)) /* the negative part; NaN stays */

UNARY(neg, -u)
UNARY(sign, SIGN(u))
UNARY(round, M(rint)(u))
UNARY(floor, M(floor)(u))
UNARY(lnot, u == 0)
UNARY(abs, M(fabs)(u))
BINARY(abs_bw, u *SIGN(v))
UNARY(square, u *u)
BINARY(square_bw, 2 * u * v)

static inline number clamp(number x, number low, number high) {
    const number t = x < low ? low : x;
    return t > high ? high : t;
}
UNARY(clamp, clamp(u, p0, p1))
BINARY(clamp_bw, (((v > p0) | (p0 == -(number)INFINITY)) & ((v < p1) | (p1 == (number)INFINITY))) ? u : 0)
UNARY(relu, u <= 0 ? 0 : u)
BINARY(relu_bw, v <= 0 ? 0 : u)
UNARY(leakyrelu, u > 0 ? u : u * p0)
BINARY(leakyrelu_bw, v > 0 ? u : u * p0)
UNARY(elu, OVER_0(u) + p0 * M(expm1)(UNDER_0(u)))
BINARY(elu_bw, v > 0 ? u : u * (p0 * EXP(UNDER_0(v))))
UNARY(gelu, (number)0.5 * u * (1 + M(erf)(u * SQRT1_2)))
BINARY(gelu_bw, u *((number)0.5 * (1 + M(erf)(v * SQRT1_2)) + v * ONE_SQRT2PI * EXP((number)-0.5 * v * v)))
UNARY(silu, u *SIGMOID(u))

static inline number silu_bw(number dy, number x) {
    const number s = SIGMOID(x);
    return dy * s * (1 + x * (1 - s));
}
BINARY(silu_bw, silu_bw(u, v))
UNARY(softplus, OVER_0(u) + M(log1p)(EXP(-M(fabs)(u))))
BINARY(softplus_bw, u *SIGMOID(v))
UNARY(tanh, TANH(u))
BINARY(tanh_bw, u *(1 - v * v))
UNARY(sigmoid, SIGMOID(u))
BINARY(sigmoid_bw, u *(1 - v) * v)
UNARY(exp, EXP(u))
BINARY(exp_bw, u *v)
UNARY(log, M(log)(u))
BINARY(log_bw, u / v)
UNARY(sqrt, M(sqrt)(u))
BINARY(sqrt_bw, u / (2 * v))
UNARY(rsqrt, 1 / M(sqrt)(u))
BINARY(rsqrt_bw, (number)-0.5 * u * v * v * v)
UNARY(sin, M(sin)(u))
BINARY(sin_bw, u *M(cos)(v))
UNARY(cos, M(cos)(u))
BINARY(cos_bw, -u *M(sin)(v))
UNARY(erf, M(erf)(u))
BINARY(erf_bw, u *TWO_SQRTPI *EXP(-v *v))

BINARY(add, u + v)
BINARY(sub, u - v)
BINARY(mul, u *v)
BINARY(div, u / v)
BINARY(pow, M(pow)(u, v))
BINARY(maximum, ((u > v) | (u != u)) ? u : v)
BINARY(minimum, ((u < v) | (u != u)) ? u : v)
BINARY(eq, u == v)
BINARY(ne, u != v)
BINARY(lt, u < v)
BINARY(le, u <= v)
BINARY(gt, u > v)
BINARY(ge, u >= v)
BINARY(land, (u != 0) & (v != 0))
BINARY(lor, (u != 0) | (v != 0))

TERNARY(where, u != 0 ? v : w)
TERNARY(div_db, -u *((v / w) / w))
TERNARY(pow_da, u *w *M(pow)(w == 0 ? 1 : v, w - 1))

static inline number pow_db(number dy, number a, number b) {
    const number base = ((a == 0) & (b >= 0)) ? 1 : a; /* log 1 is 0 */
    return dy * (M(pow)(base, b) * M(log)(base));
}
TERNARY(pow_db, pow_db(u, v, w))
TERNARY(maximum_da, v < w ? 0 : v == w ? u * (number)0.5 : u)
TERNARY(minimum_da, v > w ? 0 : v == w ? u * (number)0.5 : u)

UNARY(pow_cube, u *u *u)
UNARY(pow_same, u)
UNARY(pow_inverse, 1 / u)
BINARY(pow_da_cube, 3 * u * v * v)
BINARY(pow_da_inverse, -u / (v * v))
BINARY(pow_da_sqrt, (number)0.5 * u / M(sqrt)(v))

#define ROW_UNARY(name) [CF_OP_##name] = loop_##name,
#define ROW_BINARY(name) [CF_OP_##name] = loop_##name,
#define ROW_TERNARY(name) [CF_OP_##name] = loop_##name,
#define ROW_REDUCE(name)
#define ROW_LOSS(name)
#define ROW_OTHER(name)
#define CF_OP(name, family, domain, gradient) ROW_##family(name)
const cf_block_loop LOOPS[CF_LOOPS] = {
#include "device/ops.def"
    [CF_POW_SQUARE] = loop_square,
    [CF_POW_CUBE] = loop_pow_cube,
    [CF_POW_SAME] = loop_pow_same,
    [CF_POW_INVERSE] = loop_pow_inverse,
    [CF_POW_SQRT] = loop_sqrt,
    [CF_POW_DA_CUBE] = loop_pow_da_cube,
    [CF_POW_DA_INVERSE] = loop_pow_da_inverse,
    [CF_POW_DA_SQRT] = loop_pow_da_sqrt,
};
#undef CF_OP
