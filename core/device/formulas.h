/* formulas.h: the formulas of formulas.def by number, and which one a call takes. */
#ifndef CF_DEVICE_FORMULAS_H
#define CF_DEVICE_FORMULAS_H

#include "device/ops.h"

typedef enum cf_formula {
#define CF_FORMULA(name, ...) CF_FORMULA_##name,
#include "device/formulas.def"
    CF_FORMULAS
} cf_formula;

/* The domain of a formula, as formulas.def says. */
typedef enum cf_formula_domain { CF_OF_ANY, CF_OF_FLOAT, CF_OF_TRUTH, CF_OF_LOGIC, CF_OF_CHOICE } cf_formula_domain;
/* Bit k: operand k is read as 0 or 1. */
#define CF_TRUTHS(domain) ((domain) == CF_OF_LOGIC ? 7 : (domain) == CF_OF_CHOICE ? 1 : 0)

typedef struct cf_formula_info {
    uint8_t arity, domain, cost;
} cf_formula_info;

static inline const cf_formula_info *cf_formula_info_of(int formula) {
    static const cf_formula_info all[CF_FORMULAS] = {
#define CF_FORMULA(name, arity, domain, cost, ...) {arity, CF_OF_##domain, cost},
#include "device/formulas.def"
    };
    return &all[formula];
}

/* That of a UNARY, BINARY or TERNARY row of ops.def.  A row without one does not compile. */
static inline int cf_formula_of_row(int op) {
#define CF_FORMULA_UNARY(name) CF_FORMULA_##name,
#define CF_FORMULA_BINARY(name) CF_FORMULA_##name,
#define CF_FORMULA_TERNARY(name) CF_FORMULA_##name,
#define CF_FORMULA_REDUCE(name) CF_FORMULAS,
#define CF_FORMULA_LOSS(name) CF_FORMULAS,
#define CF_FORMULA_OTHER(name) CF_FORMULAS,
    static const uint8_t all[CF_OPS] = {
#define CF_OP(name, family, ...) CF_FORMULA_##family(name)
#include "device/ops.def"
#undef CF_OP
    };
    return all[op];
}

/* The row's own; or, for a power that is a number on the right, a product, which is faster than pow, and exact. */
static inline int cf_formula_of(const cf_call *call) {
    const cf_formula_params *params = CF_PARAMS(call, formula);
    const double p = params->p[0];
    if (call->op == CF_OP_pow && call->nin == 1 && !params->reversed) {
        if (p == 2) return CF_FORMULA_square;
        if (p == 3) return CF_FORMULA_pow_cube;
        if (p == 1) return CF_FORMULA_pow_same;
        if (p == -1 && cf_is_float(call->dtype)) return CF_FORMULA_pow_inverse;
        if (p == 0.5 && cf_is_float(call->dtype)) return CF_FORMULA_sqrt;
    }
    if (call->op == CF_OP_pow_da && call->nin == 2) {
        if (p == 2) return CF_FORMULA_square_bw;
        if (p == 3) return CF_FORMULA_pow_da_cube;
        if (p == 1) return CF_FORMULA_pow_same;
        if (p == -1) return CF_FORMULA_pow_da_inverse;
        if (p == 0.5) return CF_FORMULA_pow_da_sqrt;
    }
    return cf_formula_of_row(call->op);
}

/* Of integers: a^b by squaring.  Of negative powers only those of 1 and -1 are integers; the others count as 0. */
CF_KERNEL_FUNCTION int64_t cf_whole_pow(int64_t a, int64_t b) {
    if (b < 0) return a == 1 ? 1 : a == -1 ? (b % 2 ? -1 : 1) : 0;
    uint64_t result = 1, square = (uint64_t)a;
    for (; b; b >>= 1, square *= square)
        if (b & 1) result *= square;
    return (int64_t)result;
}
CF_KERNEL_FUNCTION int64_t cf_whole_abs(int64_t x) { return (int64_t)(x < 0 ? 0 - (uint64_t)x : (uint64_t)x); }

#endif
