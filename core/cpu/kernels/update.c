/* update.c: optimiser rules.
 *
 * They are bound by memory: each element is read once and written once, by blocks that stay in the first-level cache.
 */
#include "cpu/kernels/block.h"
#include "device/rules.h"

typedef struct numbers {
    double rate, decay, shrink, clip, limit, eps, beta1, beta2, a, b, c; /* a, b, c: of the step */
} numbers;

/* A rule is a loop over the block; g is the gradient, clipped, and with decay in it unless it is decoupled. */
#define RULE(T, with_decay, ...)           \
    for (int64_t i = 0; i < n; i++) {      \
        T g = grad[i] * clip;              \
        g = g > limit ? limit : g;         \
        g = g < -limit ? -limit : g;       \
        if (with_decay) g += decay * p[i]; \
        __VA_ARGS__                        \
    }                                      \
    break

/* The type is a parameter, for float and double; shrink is 1 - rate decay. */
#define RULES(T, name, root)                                                                                           \
    static void name(int rule, const numbers *s, int64_t n, T *restrict p, T *restrict m, T *restrict v,               \
                     const T *restrict grad) {                                                                         \
        const T rate = (T)s->rate, decay = (T)s->decay, shrink = (T)s->shrink, clip = (T)s->clip;                      \
        const T limit = (T)s->limit, eps = (T)s->eps, a = (T)s->a, b = (T)s->b, c = (T)s->c;                           \
        const T beta1 = (T)s->beta1, beta2 = (T)s->beta2, rest1 = (T)(1 - s->beta1), rest2 = (T)(1 - s->beta2);        \
        switch (rule) {                                                                                                \
        case CF_RULE_DESCENT: RULE(T, 1, p[i] -= rate * g;);                                                           \
        case CF_RULE_MOMENTUM: RULE(T, 1, m[i] = beta1 * m[i] + g; p[i] -= rate * m[i];);                              \
        case CF_RULE_NESTEROV: RULE(T, 1, m[i] = beta1 * m[i] + g; p[i] -= rate * (g + beta1 * m[i]););                \
        case CF_RULE_RMSPROP: RULE(T, 1, m[i] = beta1 * m[i] + rest1 * g * g; p[i] -= rate * g / (root(m[i]) + eps);); \
        case CF_RULE_ADAM:                                                                                             \
            RULE(T, 1, m[i] = beta1 * m[i] + rest1 * g; v[i] = beta2 * v[i] + rest2 * g * g;                           \
                 p[i] -= a * m[i] / (root(v[i]) * b + eps););                                                          \
        case CF_RULE_ADAMW:                                                                                            \
            RULE(T, 0, m[i] = beta1 * m[i] + rest1 * g; v[i] = beta2 * v[i] + rest2 * g * g;                           \
                 p[i] = p[i] * shrink - a * m[i] / (root(v[i]) * b + eps););                                           \
        case CF_RULE_ADAGRAD: RULE(T, 1, m[i] += g * g; p[i] -= rate * g / (root(m[i]) + eps););                       \
        case CF_RULE_ADADELTA:                                                                                         \
            RULE(T, 1, m[i] = beta1 * m[i] + rest1 * g * g; const T d = root(v[i] + eps) / root(m[i] + eps) * g;       \
                 v[i] = beta1 * v[i] + rest1 * d * d; p[i] -= rate * d;);                                              \
        case CF_RULE_NADAM:                                                                                            \
            RULE(T, 1, m[i] = beta1 * m[i] + rest1 * g; v[i] = beta2 * v[i] + rest2 * g * g;                           \
                 p[i] -= (a * g + b * m[i]) / (root(v[i] * c) + eps););                                                \
        case CF_RULE_LION:                                                                                             \
            RULE(T, 0, const T u = beta1 * m[i] + rest1 * g; p[i] = p[i] * shrink - (u > 0   ? rate                    \
                                                                                     : u < 0 ? -rate                   \
                                                                                             : u);                     \
                 m[i] = beta2 * m[i] + rest2 * g;);                                                                    \
        }                                                                                                              \
    }
RULES(float, rule_f32, sqrtf)
RULES(double, rule_f64, sqrt)

typedef struct updating {
    const cf_call *call;
    int rule, states;
    cf_compute compute;
    numbers numbers;
} updating;

static void update_part(void *context, int64_t from, int64_t to) {
    const updating *u = context;
    const cf_view *v = u->call->v, *grad = cf_call_in(u->call, 0);
    int direct = cf_direct(grad, u->compute);
    for (int k = 0; k <= u->states; k++) direct = direct && cf_direct(&v[k], u->compute);
    const int64_t step = direct ? CF_DIRECT : CF_BLOCK;
    cf_block_memory temp[4];
    for (int64_t i = from; i < to; i += step) {
        const int64_t n = cf_least(step, to - i);
        void *x[3] = {NULL, NULL, NULL};
        for (int k = 0; k <= u->states; k++) x[k] = (void *)CF_K(read)(&v[k], u->compute, i, n, &temp[k]);
        const void *g = CF_K(read)(grad, u->compute, i, n, &temp[3]);
        if (u->compute == CF_F64) rule_f64(u->rule, &u->numbers, n, x[0], x[1], x[2], g);
        else rule_f32(u->rule, &u->numbers, n, x[0], x[1], x[2], g);
        for (int k = 0; k <= u->states; k++) CF_K(write)(&v[k], u->compute, i, n, x[k]);
    }
}

static cfx_status update_one(cf_worker *worker, const cf_call *call) {
    const double *slot = cf_call_in(call, 1)->data, *p = call->p;
    const int64_t n = cf_view_numel(&call->v[0]);
    const int rule = (int)call->i[0];
    if (rule < 0 || rule >= CF_RULES) return cf_fail(CFX_EFAULT, "there is no update rule %d", rule);
    updating u = {
        .call = call, .rule = rule, .states = cf_rule_kind_states(rule), .compute = cf_compute_of(call->dtype)};
    numbers *s = &u.numbers;
    *s = (numbers){.rate = slot[0] * p[0],
                   .decay = p[1],
                   .clip = slot[7],
                   .limit = p[2] > 0 ? p[2] : INFINITY,
                   .eps = p[3],
                   .beta1 = slot[1],
                   .beta2 = slot[2]};
    s->shrink = 1 - s->rate * s->decay;
    if (rule == CF_RULE_ADAM || rule == CF_RULE_ADAMW) {
        s->a = s->rate / slot[3];
        s->b = 1 / sqrt(slot[4]);
    } else if (rule == CF_RULE_NADAM) {
        s->a = s->rate * slot[3];
        s->b = s->rate * slot[4];
        s->c = 1 / slot[5];
    }
    if (call->nout != 1 + u.states)
        return cf_fail(CFX_EFAULT, "update rule %d has %d states, not %d", rule, u.states, call->nout - 1);
    CF_K(parallel)(cf_cpu_team(worker, n * 2), n, 64, update_part, &u);
    return CFX_OK;
}

cfx_status CF_K(update)(cf_worker *worker, const cf_call *call) {
    for (; call; call = cf_call_next(call)) CF_TRY(update_one(worker, call));
    return CFX_OK;
}
