/* update.c: optimiser rules.
 *
 * They are bound by memory: each element is read once and written once, by blocks that stay in the first-level cache.
 */
#include <assert.h>

#include "cpu/kernels/block.h"
#include "cpu/kernels/formulas.h"
#include "device/rules.h"

/* A rule as a loop over a block.  m and v are touched by rules that have them. */
typedef void (*rule_loop)(const cf_rule_numbers *s, int64_t n, void *restrict p, void *restrict m, void *restrict v,
                          const void *restrict grad);

#define NUMBER(name)           \
    const T name = (T)s->name; \
    (void)name;
#define LOOP(name, type, states, decays, ...)                                                                      \
    static void name(const cf_rule_numbers *s, int64_t n, void *restrict p_, void *restrict m_, void *restrict v_, \
                     const void *restrict grad_) {                                                                 \
        typedef type T;                                                                                            \
        T *ps = p_, *ms = m_, *vs = v_;                                                                            \
        const T *grad = grad_;                                                                                     \
        CF_RULE_NUMBERS(NUMBER)                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                                          \
            T p = ps[i], m = 0, v = 0, g = grad[i] * clip;                                                         \
            if (states > 0) m = ms[i];                                                                             \
            if (states > 1) v = vs[i];                                                                             \
            g = g > limit ? limit : g;                                                                             \
            g = g < -limit ? -limit : g;                                                                           \
            if (decays) g += decay * p;                                                                            \
            __VA_ARGS__                                                                                            \
            ps[i] = p;                                                                                             \
            if (states > 0) ms[i] = m;                                                                             \
            if (states > 1) vs[i] = v;                                                                             \
        }                                                                                                          \
    }
#define CF_RULE(name, ...) LOOP(name##_f32, float, __VA_ARGS__) LOOP(name##_f64, double, __VA_ARGS__)
#include "device/rules.def"

static const rule_loop loops[CF_RULES][2] = {
#define CF_RULE(name, ...) {name##_f32, name##_f64},
#include "device/rules.def"
};

typedef struct updating {
    const cf_call *call;
    int states;
    cf_compute compute;
    rule_loop loop;
    cf_rule_numbers numbers;
} updating;

static void update_part(void *context, int64_t from, int64_t to) {
    const updating *u = context;
    const cf_view *v = u->call->v, *grad = cf_call_in(u->call, 0);
    const int states = u->states; /* x has room for two */
    int direct = cf_direct(grad, u->compute);
    for (int k = 0; k <= states; k++) direct = direct && cf_direct(&v[k], u->compute);
    const int64_t step = direct ? CF_DIRECT : CF_BLOCK;
    cf_block_memory temp[4];
    assert(states <= 2);
    for (int64_t i = from; i < to; i += step) {
        const int64_t n = cf_least(step, to - i);
        void *x[3] = {NULL, NULL, NULL};
        for (int k = 0; k <= states; k++) x[k] = (void *)CF_K(read)(&v[k], u->compute, i, n, &temp[k]);
        const void *g = CF_K(read)(grad, u->compute, i, n, &temp[3]);
        u->loop(&u->numbers, n, x[0], x[1], x[2], g);
        for (int k = 0; k <= states; k++) CF_K(write)(&v[k], u->compute, i, n, x[k]);
    }
}

static cfx_status update_one(cf_worker *worker, const cf_call *call) {
    const int64_t n = cf_view_numel(&call->v[0]);
    const cf_update_params *params = cf_call_params(call);
    const int rule = (int)params->rule;
    if (rule < 0 || rule >= CF_RULES) return cf_fail(CFX_EFAULT, "there is no update rule %d", rule);
    updating u = {.call = call, .states = cf_rule_kind_states(rule), .compute = cf_compute_of(call->dtype)};
    u.loop = loops[rule][u.compute == CF_F64];
    u.numbers = cf_rule_numbers_of(rule, params, cf_call_in(call, 1)->data);
    if (call->nout != 1 + u.states)
        return cf_fail(CFX_EFAULT, "update rule %d has %d states, not %d", rule, u.states, call->nout - 1);
    CF_K(parallel)(cf_cpu_team(worker, n * 2), n, 64, update_part, &u);
    return CFX_OK;
}

cfx_status CF_K(update)(cf_worker *worker, const cf_call *call) {
    for (; call; call = cf_call_next(call)) CF_TRY(update_one(worker, call));
    return CFX_OK;
}
