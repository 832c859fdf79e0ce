/* halves.h: the half types by the definition of their bits, of which the first `mantissa` are the fraction's: 10 of a
 * float16, 7 of a bfloat16. */
#ifndef CF_TEST_HALVES_H
#define CF_TEST_HALVES_H

#include <math.h>
#include <stdint.h>

static inline double half_meaning(uint16_t bits, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const int e = bits >> mantissa & ((1 << exponents) - 1), m = bits & ((1 << mantissa) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (e == (1 << exponents) - 1) return m ? NAN : sign * INFINITY;
    return sign * ldexp(e ? m + (1 << mantissa) : m, (e ? e : 1) - bias - mantissa);
}

/* half_meaning of all values, worked out once: tests read far more elements than there are values. */
static inline double half_value(uint16_t bits, int mantissa) {
    static double table[2][1 << 16];
    double *values = table[mantissa == 7];
    if (values[1] == 0) /* which is the least above 0 */
        for (int k = 0; k < 1 << 16; k++) values[k] = half_meaning((uint16_t)k, mantissa);
    return values[bits];
}

/* The nearest half, of two the even one. */
static inline uint16_t half_bits(double x, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinite = (uint16_t)(((1 << exponents) - 1) << mantissa);
    if (isnan(x)) return (uint16_t)(sign | infinite | 1 << (mantissa - 1));
    if (x == 0) return sign;
    int e = isinf(x) ? 1000 : ilogb(x);
    if (e < 1 - bias) e = 1 - bias;
    if (e > bias) return sign | infinite;
    const double units = rint(ldexp(fabs(x), mantissa - e));               /* rounds half to even */
    return (uint16_t)(sign | ((int)units + ((e + bias - 1) << mantissa))); /* a carry moves the exponent */
}

#endif
