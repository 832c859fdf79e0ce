/* elementwise_loops.h: the type of a block loop, and the tables from which the engine (elementwise.c) chooses. */
#ifndef CF_CPU_KERNELS_ELEMENTWISE_LOOPS_H
#define CF_CPU_KERNELS_ELEMENTWISE_LOOPS_H

#include "cpu/kernels/block.h"

/* y [n] = f(a [n], b [n], c [n]; p), n a multiple of CF_UNIT, in one compute type.  y may be any operand. */
typedef void (*cf_block_loop)(const void *a, const void *b, const void *c, void *y, int64_t n, const double *p);

/* The loops of one compute type: [CF_OPS] by op, then those of special powers; NULL: there is none. */
enum {
    CF_POW_SQUARE = CF_OPS, /* the power 2 */
    CF_POW_CUBE,
    CF_POW_SAME,
    CF_POW_INVERSE,
    CF_POW_SQRT,
    CF_POW_DA_CUBE, /* pow_da of the power 3 */
    CF_POW_DA_INVERSE,
    CF_POW_DA_SQRT,
    CF_LOOPS
};
extern const cf_block_loop CF_K(loops_f32)[CF_LOOPS];
extern const cf_block_loop CF_K(loops_f64)[CF_LOOPS];
extern const cf_block_loop CF_K(loops_i64)[CF_LOOPS];

/* What makes a loop: u, v, w are the operands, p0 and p1 the numbers. */
#define CF_LOOP(name, nin, ...)                                                                                   \
    static void loop_##name(const void *a, const void *b, const void *c, void *out, int64_t n, const double *p) { \
        const number *in0 = a, *in1 = nin > 1 ? b : a, *in2 = nin > 2 ? c : a;                                    \
        number *y = out;                                                                                          \
        const number p0 = TO_NUMBER(p[0]), p1 = TO_NUMBER(p[1]);                                                  \
        n -= n % CF_UNIT;                                                                                         \
        (void)b, (void)c, (void)p0, (void)p1;                                                                     \
        CF_VECTOR                                                                                                 \
        for (int64_t i = 0; i < n; i++) {                                                                         \
            const number u = in0[i], v = in1[i], w = in2[i];                                                      \
            (void)v, (void)w;                                                                                     \
            y[i] = (number)(__VA_ARGS__);                                                                         \
        }                                                                                                         \
    }
#define UNARY(name, ...) CF_LOOP(name, 1, __VA_ARGS__)
#define BINARY(name, ...) CF_LOOP(name, 2, __VA_ARGS__)
#define TERNARY(name, ...) CF_LOOP(name, 3, __VA_ARGS__)

#endif
