/* elementwise_i64.c: the block loops of integers.  They wrap around, as they do in PyTorch, hence the unsigned
 * arithmetic.  Rows of domain FLOAT have no loop: the dispatcher has made their operands floats. */
#include "cpu/kernels/elementwise_loops.h"

typedef int64_t number;
#define TO_NUMBER(p) cf_integer(p)
#define W(x) ((uint64_t)(x))
#define SIGN(x) (((x) > 0) - ((x) < 0))

UNARY(neg, 0 - W(u))
UNARY(sign, SIGN(u))
UNARY(round, u)
UNARY(floor, u)
UNARY(lnot, u == 0)
UNARY(abs, u < 0 ? 0 - W(u) : W(u))
BINARY(abs_bw, W(u) * W(SIGN(v)))
UNARY(square, W(u) * W(u))
BINARY(square_bw, 2 * W(u) * W(v))

static inline number clamp(number x, number low, number high) {
    const number t = x < low ? low : x;
    return t > high ? high : t;
}
UNARY(clamp, clamp(u, p0, p1))
BINARY(clamp_bw, ((v > p0) & (v < p1)) ? u : 0)
UNARY(relu, u <= 0 ? 0 : u)
BINARY(relu_bw, v <= 0 ? 0 : u)

/* a^b by squaring.  Of negative powers only those of 1 and -1 are integers; the others count as 0. */
static inline number power(number a, number b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t result = 1, square = W(a);
    for (; b; b >>= 1, square *= square)
        if (b & 1) result *= square;
    return (number)result;
}

BINARY(add, W(u) + W(v))
BINARY(sub, W(u) - W(v))
BINARY(mul, W(u) * W(v))
BINARY(pow, power(u, v))
BINARY(maximum, u > v ? u : v)
BINARY(minimum, u < v ? u : v)
BINARY(eq, u == v)
BINARY(ne, u != v)
BINARY(lt, u < v)
BINARY(le, u <= v)
BINARY(gt, u > v)
BINARY(ge, u >= v)
BINARY(land, (u != 0) & (v != 0))
BINARY(lor, (u != 0) | (v != 0))
TERNARY(where, u != 0 ? v : w)

UNARY(pow_cube, W(u) * W(u) * W(u))
UNARY(pow_same, u)

#define ROW_UNARY_ANY(name) [CF_OP_##name] = loop_##name,
#define ROW_UNARY_TRUTH(name) [CF_OP_##name] = loop_##name,
#define ROW_UNARY_FLOAT(name)
#define ROW_BINARY_ANY(name) [CF_OP_##name] = loop_##name,
#define ROW_BINARY_TRUTH(name) [CF_OP_##name] = loop_##name,
#define ROW_BINARY_FLOAT(name)
#define ROW_TERNARY_ANY(name) [CF_OP_##name] = loop_##name,
#define ROW_TERNARY_FLOAT(name)
#define ROW_REDUCE_ANY(name)
#define ROW_REDUCE_TRUTH(name)
#define ROW_REDUCE_FLOAT(name)
#define ROW_LOSS_FLOAT(name)
#define ROW_OTHER_ANY(name)
#define ROW_OTHER_FLOAT(name)
#define CF_OP(name, family, domain, gradient) ROW_##family##_##domain(name)
const cf_block_loop CF_K(loops_i64)[CF_LOOPS] = {
#include "device/ops.def"
    [CF_POW_SQUARE] = loop_square,
    [CF_POW_CUBE] = loop_pow_cube,
    [CF_POW_SAME] = loop_pow_same,
};
#undef CF_OP
