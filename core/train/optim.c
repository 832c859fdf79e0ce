/* optim.c: optimisers, fused over flat buffers.
 *
 * What changes every step (rate, bias corrections, clip scale) lies in a slot on the device, a small float64
 * tensor that one command writes; the update reads it.  Clipping by the global norm never touches the gradients:
 * its scale is one of the slot's numbers.  device/rules.h says what each rule computes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "device/rules.h"
#include "tensor/stretch.h"

enum { MAX_STATES = 2 };

static const char *const rules[CF_RULES] = {
    [CF_RULE_DESCENT] = "descent", [CF_RULE_MOMENTUM] = "momentum", [CF_RULE_NESTEROV] = "nesterov",
    [CF_RULE_RMSPROP] = "rmsprop", [CF_RULE_ADAM] = "adam",         [CF_RULE_ADAMW] = "adamw",
    [CF_RULE_ADAGRAD] = "adagrad", [CF_RULE_ADADELTA] = "adadelta", [CF_RULE_NADAM] = "nadam",
    [CF_RULE_LION] = "lion",
};

static int32_t rule_find(const char *name) {
    for (int32_t k = 0; k < CF_RULES; k++)
        if (strcmp(rules[k], name) == 0) return k;
    return -1;
}

CFX_API int32_t cfx_rule_states(const char *name) {
    const int32_t k = rule_find(name);
    return k < 0 ? -1 : cf_rule_kind_states(k);
}

/* NAdam's products of mu_i = beta1 (1 - 0.96^(0.004 i) / 2), i up to t (Dozat 2016, as PyTorch has it). */
static void nadam_terms(double beta1, int64_t t, double slot[8]) {
    const double ratio = pow(0.96, 0.004);
    double power = 1, product = 1, mu = 0;
    /* the product is 0 in float64 long before a long run's t */
    const int64_t terms = t < 20000 ? t : 20000;
    for (int64_t i = 1; i <= terms; i++) {
        power *= ratio;
        mu = beta1 * (1 - 0.5 * power);
        product *= mu;
    }
    if (t > terms) mu = beta1 * (1 - 0.5 * pow(0.96, 0.004 * (double)t));
    const double next = beta1 * (1 - 0.5 * pow(0.96, 0.004 * (double)(t + 1)));
    slot[3] = (1 - mu) / (1 - product);
    slot[4] = next / (1 - product * next);
}

static void slot_numbers(int32_t kind, const cfx_rule *rule, int64_t step, double slot[8]) {
    const double t = (double)step;
    slot[0] = rule->rate;
    slot[1] = rule->beta1;
    slot[2] = rule->beta2;
    slot[3] = 1 - pow(rule->beta1, t);
    slot[4] = 1 - pow(rule->beta2, t);
    slot[5] = 1 - pow(rule->beta2, t);
    slot[6] = t;
    slot[7] = 1;
    if (kind == CF_RULE_NADAM) nadam_terms(rule->beta1, step, slot);
}

/* Borrowed: a stretch as one dimension. */
static void stretch_of(const cfx_tensor *first, int64_t n, cfx_tensor *out) {
    *out = *first;
    cf_set_packed(out, 1, &n);
}

static cfx_status make_slot(cfx_device *device, int32_t kind, const cfx_rule *rule, int64_t step, cfx_tensor *slot) {
    double numbers[8];
    const int64_t n = 8;
    slot_numbers(kind, rule, step, numbers);
    CF_TRY(cf_new(device, CFX_FLOAT64, 1, &n, slot));
    cf_issue issue = {.op = CF_OP_slot, .dtype = CFX_FLOAT64, .nout = 1, .t = {slot}};
    memcpy(issue.p, numbers, sizeof issue.p);
    memcpy(issue.i, numbers + 4, 4 * sizeof *issue.i); /* as bits */
    return cf_issue_run(&issue);
}

/* The sum of squares of all stretches, a float64 scalar. */
static cfx_status sum_squares(cfx_tensor *const *xs, int32_t count, const cf_stretch *stretches, cfx_tensor *out) {
    cfx_device *device = cf_device(xs[stretches[0].leaf]);
    CF_TRY(cf_new(device, CFX_FLOAT64, 0, NULL, out));
    for (int32_t k = 0; k < count; k++) {
        cfx_tensor x;
        stretch_of(xs[stretches[k].leaf], stretches[k].n, &x);
        CF_TRY(cf_issue_run(
            &(cf_issue){.op = CF_OP_sumsq, .dtype = x._dtype, .nout = 1, .nin = 1, .t = {out, &x}, .i = {k > 0}}));
    }
    return CFX_OK;
}

static cfx_status clip(cfx_tensor *slot, double limit, cfx_tensor *const *grads, int32_t count,
                       const cf_stretch *stretches) {
    cfx_tensor total = {0};
    cfx_status status = sum_squares(grads, count, stretches, &total);
    if (status == CFX_OK)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_clip,
                                          .dtype = CFX_FLOAT64,
                                          .nout = 1,
                                          .nin = 1,
                                          .t = {slot, &total},
                                          .p = {limit},
                                          .kind = CF_UPDATE});
    cfx_release(&total);
    return status;
}

static cfx_status check_update(int32_t states, int32_t n, cfx_tensor *const *params, cfx_tensor *const *lists) {
    char have[256], want[256];
    for (int32_t k = 0; k < n; k++) {
        const cfx_tensor *p = params[k];
        CF_TRY(cf_check_tensor("update", "model", p));
        CF_TRY(cf_check_writable("update", p));
        CF_TRY(cf_refuse_behind("update", "the model", p));
        for (int32_t r = 1; r < 2 + states; r++) {
            const cfx_tensor *x = lists[(int64_t)r * n + k];
            CF_TRY(cf_check_tensor("update", r == 1 ? "gradient" : "state", x));
            CF_TRY(cf_check_same_device("update", r == 1 ? "gradient" : "state", p, x));
            CF_TRY(cf_refuse_behind("update", r == 1 ? "the gradient" : "the state", x));
            const int32_t half = p->_dtype == CFX_FLOAT16 || p->_dtype == CFX_BFLOAT16;
            const int32_t dtype = r > 1 && half ? CFX_FLOAT32 : p->_dtype;
            if (!cf_same_shape(p, x) || x->_dtype != dtype)
                return cf_fail(CFX_EARG, "update: %s %d: expected a %s's shape (%s), got %s",
                               r == 1 ? "gradient" : "state", k + 1, cf_describe(p, want), cfx_dtype_name(dtype),
                               cf_describe(x, have));
        }
        if (!cf_is_float(p->_dtype))
            return cf_fail(CFX_EARG, "update: parameter %d: expected floats, got %s", k + 1, cf_describe(p, have));
        if (cf_device(p) != cf_device(params[0]))
            return cf_fail(CFX_EARG, "update: parameter %d: expected all on %s, got %s", k + 1,
                           cf_device(params[0])->name, cf_describe(p, have));
        for (int32_t r = 0; r < 2 + states; r++)
            if (!cfx_is_contiguous(lists[(int64_t)r * n + k]))
                return cf_fail(CFX_EARG, "update: tensor %d: expected packed tensors, got a strided %s", k + 1,
                               cf_describe(lists[(int64_t)r * n + k], have));
    }
    return CFX_OK;
}

/* Leaves with the same scale and decay are of one group. */
static void group_leaves(int32_t n, const double *scale, const double *decay, int32_t *group) {
    for (int32_t k = 0; k < n; k++) {
        int32_t j = 0;
        while (j < k && ((scale && scale[j] != scale[k]) || (decay && decay[j] != decay[k]))) j++;
        group[k] = j < k ? group[j] : k;
    }
}

static cfx_status run_update(int32_t kind, const cfx_rule *rule, int64_t step, int32_t n, cfx_tensor *const *lists,
                             const double *scale, const double *decay, int32_t count, const cf_stretch *stretches) {
    const int32_t states = cf_rule_kind_states(kind);
    cfx_tensor slot = {0};
    cfx_status status = make_slot(cf_device(lists[0]), kind, rule, step, &slot);
    if (status == CFX_OK && rule->clip_norm > 0) status = clip(&slot, rule->clip_norm, lists + n, count, stretches);
    for (int32_t k = 0; k < count && status == CFX_OK; k++) {
        const int32_t leaf = stretches[k].leaf;
        cfx_tensor x[2 + MAX_STATES];
        cf_issue issue = {
            .op = CF_OP_update,
            .nout = 1 + states,
            .nin = 2,
            .kind = CF_UPDATE,
            .i = {kind},
            .p = {scale ? scale[leaf] : 1, rule->decay * (decay ? decay[leaf] : 1), rule->clip_value, rule->eps}};
        for (int32_t r = 0; r < 2 + states; r++) stretch_of(lists[(int64_t)r * n + leaf], stretches[k].n, &x[r]);
        issue.dtype = x[0]._dtype;
        issue.t[0] = &x[0];
        for (int32_t s = 0; s < states; s++) issue.t[1 + s] = &x[2 + s];
        issue.t[1 + states] = &x[1];
        issue.t[2 + states] = &slot;
        status = cf_issue_run(&issue);
    }
    cfx_release(&slot);
    return status;
}

CFX_API cfx_status cfx_optim_update(const cfx_rule *rule, int64_t step, int32_t n, cfx_tensor *const *params,
                                    const cfx_tensor *const *grads, cfx_tensor *const *states, const double *scale,
                                    const double *decay) {
    if (rule->size != sizeof *rule)
        return cf_fail(CFX_EARG, "update: a rule of %zu bytes, expected %zu", rule->size, sizeof *rule);
    const int32_t kind = rule_find(rule->name);
    if (kind < 0) return cf_fail(CFX_EARG, "update: there is no rule '%s'", rule->name);
    if (step < 1) return cf_fail(CFX_EARG, "update: argument 'step': expected 1 or more, got %lld", (long long)step);
    if (n == 0) return CFX_OK;
    const int32_t nlists = 2 + cf_rule_kind_states(kind);
    void *memory;
    CF_TRY(cf_alloc((size_t)n * (size_t)nlists * sizeof(void *) + (size_t)n * sizeof(int32_t), &memory));
    cfx_tensor **lists = memory; /* [parameters, gradients, states..][n] */
    int32_t *group = (int32_t *)(lists + (int64_t)n * nlists), count = 0;
    memcpy(lists, params, (size_t)n * sizeof *lists);
    memcpy(lists + n, grads, (size_t)n * sizeof *lists);
    if (nlists > 2) memcpy(lists + 2 * (int64_t)n, states, (size_t)n * (size_t)(nlists - 2) * sizeof *lists);
    group_leaves(n, scale, decay, group);
    cf_stretch *stretches = NULL;
    cfx_status status = check_update(cf_rule_kind_states(kind), n, params, lists);
    if (status == CFX_OK) status = cf_stretches(nlists, n, lists, scale || decay ? group : NULL, &stretches, &count);
    if (status == CFX_OK && count) status = run_update(kind, rule, step, n, lists, scale, decay, count, stretches);
    free(stretches);
    free(memory);
    return status;
}

CFX_API cfx_status cfx_norm(int32_t n, const cfx_tensor *const *xs, cfx_tensor *out) {
    cf_stretch *stretches = NULL;
    int32_t count = 0;
    char have[256];
    if (n < 1) return cf_fail(CFX_EARG, "norm: expected one tensor or more, got none");
    for (int32_t k = 0; k < n; k++) {
        CF_TRY(cf_check_tensor("norm", "x", xs[k]));
        CF_TRY(cf_check_same_device("norm", "x", xs[0], xs[k]));
        if (!cf_is_float(xs[k]->_dtype) || !cfx_is_contiguous(xs[k]))
            return cf_fail(CFX_EARG, "norm: tensor %d: expected packed floats, got %s", k + 1,
                           cf_describe(xs[k], have));
    }
    cfx_tensor total = {0}, root = {0};
    cfx_status status = cf_stretches(1, n, (cfx_tensor *const *)xs, NULL, &stretches, &count);
    if (status == CFX_OK && count == 0) status = cfx_full(cf_device(xs[0]), CFX_FLOAT64, 0, NULL, 0, &total);
    else if (status == CFX_OK) status = sum_squares((cfx_tensor *const *)xs, count, stretches, &total);
    if (status == CFX_OK) status = cfx_unary(CF_OP_sqrt, &total, 0, 0, &root);
    if (status == CFX_OK) status = cfx_to(&root, NULL, CFX_FLOAT32, out);
    cfx_release(&total);
    cfx_release(&root);
    free(stretches);
    return status;
}
