/* rules.h: the update rules that every backend's `update` knows, and what it is told.
 *
 * The row update is (param, m?, v?) <- (grad, slot), in place on param and states, which are packed as the gradient is;
 * or a list of these, for a model's tensors.  What a rule's numbers are
 * lies in the call where they stay (i[0]: the rule; p[0]: the parameter's share of the rate, p[1]: weight decay,
 * p[2]: clip value or 0, p[3]: eps) and in the float64 slot [8] where they change from step to step:
 *
 *     slot[0]  the rate of this step
 *     slot[1]  beta1: momentum, rho or beta1
 *     slot[2]  beta2
 *     slot[3], slot[4], slot[5]  numbers of the step count t, from 1, as the rules below say
 *     slot[7]  what gradients are multiplied with first; 1 unless clipped by norm
 *
 * Every rule starts with  lr = slot[0] p[0]  and  g = clamp(grad slot[7], -clip value, +clip value), and all but
 * adamw and lion with  g += decay param.  States start at zero and are of the parameter's type, but float32 for
 * half types.  Formulas are PyTorch's; lion is Chen et al. 2023.
 */
#ifndef CF_DEVICE_RULES_H
#define CF_DEVICE_RULES_H

typedef enum cf_rule_kind {
    /* param -= lr g */
    CF_RULE_DESCENT,
    /* m = beta1 m + g;  param -= lr m */
    CF_RULE_MOMENTUM,
    /* m = beta1 m + g;  param -= lr (g + beta1 m) */
    CF_RULE_NESTEROV,
    /* m = beta1 m + (1 - beta1) g^2;  param -= lr g / (sqrt(m) + eps) */
    CF_RULE_RMSPROP,
    /* m = beta1 m + (1 - beta1) g;  v = beta2 v + (1 - beta2) g^2
     * param -= lr / slot[3] m / (sqrt(v) / sqrt(slot[4]) + eps)
     * slot[3] = 1 - beta1^t, slot[4] = 1 - beta2^t */
    CF_RULE_ADAM,
    /* param *= 1 - lr decay;  then as adam, whose g has no decay in it */
    CF_RULE_ADAMW,
    /* m += g^2;  param -= lr g / (sqrt(m) + eps) */
    CF_RULE_ADAGRAD,
    /* m = beta1 m + (1 - beta1) g^2;  d = sqrt(v + eps) / sqrt(m + eps) g
     * v = beta1 v + (1 - beta1) d^2;  param -= lr d */
    CF_RULE_ADADELTA,
    /* m, v as adam;  d = sqrt(v / slot[5]) + eps;  param -= lr (slot[3] g / d + slot[4] m / d)
     * With mu(t) = beta1 (1 - 0.5 0.96^(0.004 t)) and M(t) = mu(1) mu(2) .. mu(t):
     * slot[3] = (1 - mu(t)) / (1 - M(t)), slot[4] = mu(t + 1) / (1 - M(t + 1)), slot[5] = 1 - beta2^t */
    CF_RULE_NADAM,
    /* param *= 1 - lr decay;  param -= lr sign(beta1 m + (1 - beta1) g);  m = beta2 m + (1 - beta2) g */
    CF_RULE_LION,
    CF_RULES
} cf_rule_kind;

/* How many states a rule has: m, or m and v. */
static inline int cf_rule_kind_states(int rule) {
    static const unsigned char states[CF_RULES] = {0, 1, 1, 1, 2, 2, 1, 2, 2, 1};
    return states[rule];
}

#endif
