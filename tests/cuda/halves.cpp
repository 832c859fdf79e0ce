/* halves.cpp: the half types of emulated.h, rounded to nearest even. */
#include "cuda/kernel.cuh"

static float wide(uint16_t bits, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const int e = bits >> mantissa & ((1 << exponents) - 1), m = bits & ((1 << mantissa) - 1);
    const float sign = bits >> 15 ? -1.0f : 1.0f;
    if (e == (1 << exponents) - 1) return m ? NAN : sign * INFINITY;
    return sign * ldexpf((float)(e ? m + (1 << mantissa) : m), (e ? e : 1) - bias - mantissa);
}
static uint16_t narrow(float x, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinite = (uint16_t)(((1 << exponents) - 1) << mantissa);
    if (isnan(x)) return (uint16_t)(sign | infinite | 1 << (mantissa - 1));
    if (x == 0) return sign;
    int e = isinf(x) ? 1000 : ilogbf(x);
    if (e < 1 - bias) e = 1 - bias;
    if (e > bias) return sign | infinite;
    const double units = rint(ldexp(fabs((double)x), mantissa - e));
    return (uint16_t)(sign | ((int)units + ((e + bias - 1) << mantissa)));
}
static const struct tables {
    float f16[1 << 16], bf16[1 << 16];
    tables() {
        for (int k = 0; k < 1 << 16; k++) f16[k] = wide((uint16_t)k, 10), bf16[k] = wide((uint16_t)k, 7);
    }
} table;
float cf_to_float(cf_f16 x) { return table.f16[x.bits]; }
float cf_to_float(cf_bf16 x) { return table.bf16[x.bits]; }
cf_f16 cf_to_f16(float x) { return cf_f16{narrow(x, 10)}; }
cf_bf16 cf_to_bf16(float x) { return cf_bf16{narrow(x, 7)}; }
