/* rules.h: the update rules that every backend's `update` knows (rules.def has the formulas), and what it is told.
 *
 * The row update is (param, m?, v?) <- (grad, slot), in place on param and states, which are packed as the gradient is;
 * or a list of these, for a model's tensors.  A rule's numbers lie in the call where they stay (cf_update_params), and
 * in the float64 slot [8], which the row slot writes, where they change from step to step:
 *
 *     slot[0]  the rate of this step
 *     slot[1]  beta1: momentum, rho or beta1
 *     slot[2]  beta2
 *     slot[3], slot[4], slot[5]  numbers of the step count t, from 1:
 *              of adam, adamw  1 - beta1^t;  1 - beta2^t
 *              of nadam  (1 - mu(t)) / (1 - M(t));  mu(t + 1) / (1 - M(t + 1));  1 - beta2^t, with
 *                        mu(t) = beta1 (1 - 0.5 0.96^(0.004 t)) and M(t) = mu(1) mu(2) .. mu(t)
 *     slot[7]  what gradients are multiplied with first; 1 unless clipped by norm
 *
 * States start at zero and are of the parameter's type, but float32 for half types.
 */
#ifndef CF_DEVICE_RULES_H
#define CF_DEVICE_RULES_H

#include <math.h>

#include "device/ops.h"

typedef enum cf_rule_kind {
#define CF_RULE(name, ...) CF_RULE_##name,
#include "device/rules.def"
    CF_RULES
} cf_rule_kind;

/* How many states a rule has: m, or m and v. */
static inline int cf_rule_kind_states(int rule) {
    static const unsigned char all[CF_RULES] = {
#define CF_RULE(name, states, ...) states,
#include "device/rules.def"
    };
    return all[rule];
}

/* The names in the formulas.  rate: of this step and parameter; shrink: 1 - rate decay, for rules whose g has no decay
 * in it; clip: what a gradient is multiplied with first, limit: what it is cut to then; rest1 is 1 - beta1, rest2 is
 * 1 - beta2; a, b, c: of the step. */
#define CF_RULE_NUMBERS(X) \
    X(rate) X(decay) X(shrink) X(clip) X(limit) X(eps) X(beta1) X(beta2) X(rest1) X(rest2) X(a) X(b) X(c)

typedef struct cf_rule_numbers {
#define CF_RULE_NUMBER(name) double name;
    CF_RULE_NUMBERS(CF_RULE_NUMBER)
#undef CF_RULE_NUMBER
} cf_rule_numbers;

CF_KERNEL_FUNCTION cf_rule_numbers cf_rule_numbers_of(int rule, const cf_update_params *p, const double *slot) {
    cf_rule_numbers s = {};
    s.rate = slot[0] * p->scale;
    s.decay = p->decay;
    s.shrink = 1 - s.rate * s.decay;
    s.clip = slot[7];
    s.limit = p->clip_value > 0 ? p->clip_value : INFINITY;
    s.eps = p->eps;
    s.beta1 = slot[1];
    s.beta2 = slot[2];
    s.rest1 = 1 - s.beta1;
    s.rest2 = 1 - s.beta2;
    if (rule == CF_RULE_adam || rule == CF_RULE_adamw) {
        s.a = s.rate / slot[3];
        s.b = 1 / sqrt(slot[4]);
    } else if (rule == CF_RULE_nadam) {
        s.a = s.rate * slot[3];
        s.b = s.rate * slot[4];
        s.c = 1 / slot[5];
    }
    return s;
}

#endif
