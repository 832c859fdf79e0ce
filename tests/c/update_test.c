/* update_test.c: every update rule against PyTorch's formulas in doubles, and combine. */
#include "test.h"

#include "device/rules.h"
#include "machines.h"

enum { STEPS = 5 };

/* One parameter through STEPS updates as PyTorch writes them, in doubles. */
typedef struct plain {
    double p, m, v, mu_product;
} plain;

typedef struct settings {
    double rate, beta1, beta2, eps, decay, scale, clip_value, clip_scale;
} settings;

static void plain_step(int rule, const settings *s, int t, double grad, plain *x) {
    const double lr = s->rate * s->scale, b1 = s->beta1, b2 = s->beta2;
    double g = grad * s->clip_scale;
    if (s->clip_value > 0) g = fmax(-s->clip_value, fmin(s->clip_value, g));
    if (rule == CF_RULE_adamw || rule == CF_RULE_lion) x->p *= 1 - lr * s->decay;
    else g += s->decay * x->p;
    switch (rule) {
    case CF_RULE_descent: x->p -= lr * g; break;
    case CF_RULE_momentum:
        x->m = t == 1 ? g : b1 * x->m + g;
        x->p -= lr * x->m;
        break;
    case CF_RULE_nesterov:
        x->m = t == 1 ? g : b1 * x->m + g;
        x->p -= lr * (g + b1 * x->m);
        break;
    case CF_RULE_rmsprop:
        x->m = b1 * x->m + (1 - b1) * g * g;
        x->p -= lr * g / (sqrt(x->m) + s->eps);
        break;
    case CF_RULE_adam:
    case CF_RULE_adamw:
        x->m += (1 - b1) * (g - x->m);
        x->v = b2 * x->v + (1 - b2) * g * g;
        x->p -= lr / (1 - pow(b1, t)) * x->m / (sqrt(x->v) / sqrt(1 - pow(b2, t)) + s->eps);
        break;
    case CF_RULE_adagrad:
        x->m += g * g;
        x->p -= lr * g / (sqrt(x->m) + s->eps);
        break;
    case CF_RULE_adadelta: {
        x->m = b1 * x->m + (1 - b1) * g * g;
        const double delta = sqrt(x->v + s->eps) / sqrt(x->m + s->eps) * g;
        x->v = b1 * x->v + (1 - b1) * delta * delta;
        x->p -= lr * delta;
        break;
    }
    case CF_RULE_nadam: {
        const double mu = b1 * (1 - 0.5 * pow(0.96, t * 0.004)), next = b1 * (1 - 0.5 * pow(0.96, (t + 1) * 0.004));
        x->mu_product = (t == 1 ? 1 : x->mu_product) * mu;
        x->m += (1 - b1) * (g - x->m);
        x->v = b2 * x->v + (1 - b2) * g * g;
        const double denominator = sqrt(x->v / (1 - pow(b2, t))) + s->eps;
        x->p -= lr * (1 - mu) / (1 - x->mu_product) * g / denominator;
        x->p -= lr * next / (1 - x->mu_product * next) * x->m / denominator;
        break;
    }
    case CF_RULE_lion: {
        const double u = b1 * x->m + (1 - b1) * g;
        x->p -= lr * ((u > 0) - (u < 0));
        x->m = b2 * x->m + (1 - b2) * g;
        break;
    }
    }
}

/* The numbers of step t, as rules.h defines them. */
static void fill_slot(double *slot, int rule, const settings *s, int t) {
    memset(slot, 0, 8 * sizeof *slot);
    slot[0] = s->rate, slot[1] = s->beta1, slot[2] = s->beta2, slot[7] = s->clip_scale;
    if (rule == CF_RULE_adam || rule == CF_RULE_adamw) {
        slot[3] = 1 - pow(s->beta1, t);
        slot[4] = 1 - pow(s->beta2, t);
    } else if (rule == CF_RULE_nadam) {
        double product = 1, mu = 0;
        for (int k = 1; k <= t; k++) product *= mu = s->beta1 * (1 - 0.5 * pow(0.96, k * 0.004));
        const double next = s->beta1 * (1 - 0.5 * pow(0.96, (t + 1) * 0.004));
        slot[3] = (1 - mu) / (1 - product);
        slot[4] = next / (1 - product * next);
        slot[5] = 1 - pow(s->beta2, t);
    }
}

static uint64_t check_rule(machine *m, int rule, int dtype, int64_t n, const settings *s) {
    const int states = cf_rule_kind_states(rule), state_type = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    cf_view p = VECTOR(dtype, n), grad = VECTOR(dtype, n), slot = VECTOR(CFX_FLOAT64, 8);
    cf_view state[2] = {VECTOR(state_type, n), VECTOR(state_type, n)}, none = {0};
    fill_random(&p, -1, 1);
    fill(&state[0], 0);
    fill(&state[1], 0);
    plain *exact = calloc((size_t)n + 1, sizeof *exact);
    for (int64_t e = 0; e < n; e++) exact[e].p = get(&p, e);
    for (int t = 1; t <= STEPS; t++) {
        fill_random(&grad, -1, 1);
        fill_slot(slot.data, rule, s, t);
        cf_view v[5] = {p};
        for (int k = 0; k < states; k++) v[1 + k] = state[k];
        v[1 + states] = grad;
        v[2 + states] = slot;
        CHECK_STATUS(RUN(m, CF_OP_update, dtype, 1 + states,
                         .v = {v[0], v[1], v[2], states > 0 ? v[3] : none, states > 1 ? v[4] : none},
                         .params = &(cf_update_params){s->scale, s->decay, s->clip_value, s->eps, rule}),
                     CFX_OK);
        for (int64_t e = 0; e < n; e++) {
            plain_step(rule, s, t, get(&grad, e), &exact[e]);
            if (dtype != CFX_FLOAT16 && dtype != CFX_BFLOAT16) continue;
            if (!near_at(m, &p, e, exact[e].p, rounding(dtype, 1) + 2 * s->rate * (rule == CF_RULE_lion))) break;
            exact[e].p = get(&p, e); /* rounded at every step */
        }
    }
    int wrong = 0;
    for (int64_t e = 0; e < n && !wrong; e++) {
        /* A sign, or a division by a tiny root, magnifies the rounding of what is almost 0. */
        wrong = !near_at(m, &p, e, exact[e].p, rounding(dtype, 4));
        if (states > 0)
            wrong |=
                !near_at(m, &state[0], e, exact[e].m,
                         rounding(state_type == CFX_FLOAT64 ? dtype : CFX_FLOAT32, 4) + (state_type != dtype) * 1e-2);
    }
    if (wrong) printf("# rule %d\n", rule);
    free(exact);
    return bits_of(&p) ^ bits_of(&state[0]) ^ 3 * bits_of(&state[1]);
}

static const settings usual[CF_RULES] = {
    [CF_RULE_descent] = {.rate = 0.1},
    [CF_RULE_momentum] = {.rate = 0.1, .beta1 = 0.9},
    [CF_RULE_nesterov] = {.rate = 0.1, .beta1 = 0.9},
    [CF_RULE_rmsprop] = {.rate = 0.01, .beta1 = 0.99, .eps = 1e-8},
    [CF_RULE_adam] = {.rate = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    [CF_RULE_adamw] = {.rate = 0.001, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    [CF_RULE_adagrad] = {.rate = 0.01, .eps = 1e-10},
    [CF_RULE_adadelta] = {.rate = 1, .beta1 = 0.9, .eps = 1e-6},
    [CF_RULE_nadam] = {.rate = 0.002, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8},
    [CF_RULE_lion] = {.rate = 0.0001, .beta1 = 0.9, .beta2 = 0.99},
};

static settings settings_of(int rule, double decay, double scale, double clip_value, double clip_scale) {
    settings s = usual[rule];
    s.decay = decay, s.scale = scale, s.clip_value = clip_value, s.clip_scale = clip_scale;
    return s;
}

TEST(every_rule_follows_its_formula) {
    static const int dtypes[] = {CFX_FLOAT32, CFX_FLOAT64};
    EACH_MACHINE(m) {
        for (int rule = 0; rule < CF_RULES; rule++)
            for (int t = 0; t < 2; t++) {
                const settings bare = settings_of(rule, 0, 1, 0, 1), full = settings_of(rule, 0.01, 0.5, 0.25, 0.7);
                check_rule(m, rule, dtypes[t], 100, &bare);
                check_rule(m, rule, dtypes[t], 100, &full);
                check_rule(m, rule, dtypes[t], 0, &bare);
            }
    }
}

TEST(half_parameters_are_updated_in_float) {
    EACH_MACHINE(m) {
        for (int rule = 0; rule < CF_RULES; rule++) {
            if (rule == CF_RULE_adadelta || rule == CF_RULE_lion) continue; /* ill-conditioned: see check_rule */
            const settings s = settings_of(rule, 0, 1, 0, 1);
            check_rule(m, rule, CFX_BFLOAT16, 100, &s);
            check_rule(m, rule, CFX_FLOAT16, 700, &s);
        }
    }
}

TEST(updates_have_the_same_bits_with_any_team) {
    static uint64_t kept[CF_RULES];
    EACH_MACHINE(m) {
        for (int rule = 0; rule < CF_RULES; rule++) {
            const settings s = settings_of(rule, 0.01, 1, 0, 1);
            same_as_alone(m, check_rule(m, rule, CFX_FLOAT32, 60001, &s), &kept[rule]);
            free_views();
        }
    }
}

static cf_view part_of(const cf_view *all, int64_t from, int64_t n) {
    cf_view v = *all;
    v.data = address(all, from);
    v.shape[0] = n;
    return v;
}

/* Tensors of 0 to 70 elements, one by one packed on 16 bytes, and as a list that begins anywhere: the same bits. */
static void check_list(machine *m, int rule, int dtype) {
    enum { LIST = 130, ROOM = 80 };
    const int states = cf_rule_kind_states(rule), state_type = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    const settings s = settings_of(rule, 0, 1, 0.5, 0.75);
    static run list[LIST];
    static cf_view kept[LIST][3];
    static cf_update_params numbers[LIST];
    cf_view slots[2] = {VECTOR(CFX_FLOAT64, 8), VECTOR(CFX_FLOAT64, 8)};
    fill_slot(slots[0].data, rule, &s, 1);
    fill_slot(slots[1].data, rule, &s, 3);
    for (int k = 0; k < LIST; k++) {
        const int64_t n = k * 7 % 71, from = k / 4 % 4;
        numbers[k] = (cf_update_params){1 + k % 3, k % 5 * 0.125, s.clip_value, s.eps, rule};
        run alone = {.params = &numbers[k]};
        run *one = &list[k];
        *one = alone;
        for (int r = 0; r < 2 + states; r++) {
            const int type = r == 0 || r == 1 + states ? dtype : state_type;
            cf_view all = VECTOR(type, ROOM);
            alone.v[r] = VECTOR(type, n);
            fill(&all, 7);
            one->v[r] = part_of(&all, r == 1 + states ? k % 4 : from, n);
            fill_random(&alone.v[r], r == 0 || r == 1 + states ? -1 : 0, 1);
            for (int64_t e = 0; e < n; e++) set(&one->v[r], e, get(&alone.v[r], e));
            if (r <= states) kept[k][r] = alone.v[r];
        }
        alone.v[2 + states] = one->v[2 + states] = slots[k > 100];
        CHECK_STATUS(run_call(m, CF_OP_update, dtype, 1 + states, alone), CFX_OK);
    }
    CHECK_STATUS(run_calls(m, CF_OP_update, dtype, 1 + states, list, LIST), CFX_OK);
    for (int k = 0; k < LIST; k++)
        for (int r = 0; r <= states; r++) {
            const cf_view *got = &list[k].v[r];
            cf_view around = *got;
            const int64_t n = got->shape[0], from = k / 4 % 4;
            around.data = (char *)got->data - (size_t)from * dtype_bytes(got->dtype);
            around.shape[0] = ROOM;
            int wrong = bits_of(got) != bits_of(&kept[k][r]);
            for (int64_t e = 0; e < ROOM; e++) wrong += (e < from || e >= from + n) && get(&around, e) != 7;
            if (!CHECK_EQ(wrong, 0)) printf("# rule %d, tensor %d, result %d, dtype %d\n", rule, k, r, dtype);
        }
    free_views();
}

TEST(a_list_of_updates_is_what_each_is_alone) {
    static const int dtypes[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16};
    EACH_MACHINE(m) {
        for (int rule = 0; rule < CF_RULES; rule++) check_list(m, rule, dtypes[rule % 4]);
        for (int t = 0; t < 4; t++) check_list(m, CF_RULE_adamw, dtypes[t]);
    }
}

TEST(an_update_with_the_wrong_states_is_refused) {
    EACH_MACHINE(m) {
        cf_view p = VECTOR(CFX_FLOAT32, 3), g = VECTOR(CFX_FLOAT32, 3), slot = VECTOR(CFX_FLOAT64, 8);
        CHECK_STATUS(RUN(m, CF_OP_update, CFX_FLOAT32, 1, .v = {p, g, slot},
                         .params = &(cf_update_params){.rule = CF_RULE_adam}),
                     CFX_EFAULT);
        CHECK_STATUS(
            RUN(m, CF_OP_update, CFX_FLOAT32, 1, .v = {p, g, slot}, .params = &(cf_update_params){.rule = CF_RULES}),
            CFX_EFAULT);
    }
}

TEST(a_gradient_that_is_not_a_number_reaches_the_parameter) {
    EACH_MACHINE(m) {
        cf_view p = VECTOR(CFX_FLOAT32, 3), g = VECTOR(CFX_FLOAT32, 3), slot = VECTOR(CFX_FLOAT64, 8);
        const settings s = settings_of(CF_RULE_descent, 0, 1, 0.5, 1);
        fill_slot(slot.data, CF_RULE_descent, &s, 1);
        fill(&p, 1);
        fill(&g, NAN);
        CHECK_STATUS(RUN(m, CF_OP_update, CFX_FLOAT32, 1, .v = {p, g, slot},
                         .params = &(cf_update_params){.scale = 1, .clip_value = 0.5}),
                     CFX_OK);
        CHECK(isnan(get(&p, 0)) && isnan(get(&p, 2)));
    }
}

/* ---- combine */

static uint64_t check_combine(machine *m, int dtype, int how, int count, int64_t n, int root) {
    cf_view v[5];
    double *before = malloc(sizeof(double) * 5 * (size_t)(n + 1));
    for (int k = 0; k < 5; k++) {
        v[k] = VECTOR(dtype, n);
        for (int64_t e = 0; e < n; e++) {
            set(&v[k], e, how == CF_COMBINE_PROD ? 1 + random_bits() % 3 : random_bits() % 9);
            if (how == CF_COMBINE_AVG) set(&v[k], e, get(&v[k], e) / 3);
            before[k * n + e] = get(&v[k], e);
        }
    }
    cf_view none = {0};
    CHECK_STATUS(RUN(m, CF_OP_combine, dtype, count,
                     .v = {v[0], count > 1 ? v[1] : none, count > 2 ? v[2] : none, count > 3 ? v[3] : none,
                           count > 4 ? v[4] : none},
                     .params = &(cf_combine_params){.op = how, .root = root}),
                 CFX_OK);
    uint64_t bits = 0;
    for (int k = 0; k < count; k++) {
        for (int64_t e = 0; e < n; e++) {
            double x = before[e];
            for (int j = 1; j < count; j++) {
                const double y = before[j * n + e];
                x = how == CF_COMBINE_PROD  ? x * y
                    : how == CF_COMBINE_MAX ? fmax(x, y)
                    : how == CF_COMBINE_MIN ? fmin(x, y)
                                            : x + y;
                if (dtype == CFX_BOOL) x = x != 0;
            }
            if (how == CF_COMBINE_AVG) x /= count;
            if (how == CF_COMBINE_COPY) x = before[root * n + e];
            else if (root >= 0 && k != root) x = before[k * n + e];
            if (!near_at(m, &v[k], e, x, rounding(dtype, x))) {
                printf("# how %d, count %d, root %d\n", how, count, root);
                e = n;
            }
        }
        bits = 31 * bits + bits_of(&v[k]);
    }
    free(before);
    free_views();
    return bits;
}

TEST(combine_joins_replicas_of_every_type_in_every_way) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int how = 0; how <= CF_COMBINE_COPY; how++) {
                if (how == CF_COMBINE_AVG && !cf_is_float(dtype)) continue;
                for (int count = 1; count <= 5; count++)
                    for (int root = how == CF_COMBINE_COPY ? 0 : -1; root < count; root += 2)
                        check_combine(m, dtype, how, count, 530, root);
                if (how != CF_COMBINE_COPY) check_combine(m, dtype, how, 2, 0, -1);
            }
    }
}

TEST(combine_weighs_replicas_and_does_not_read_those_of_weight_0) {
    static const double weights[] = {0.25, 0, 0.5, 0, 0.125};
    static uint64_t kept[4];
    EACH_MACHINE(m) {
        for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
            for (int root = -1; root < 5; root += 3) {
                enum { N = 5003 };
                cf_view v[5];
                for (int k = 0; k < 5; k++) {
                    v[k] = VECTOR(dtype, N);
                    for (int64_t e = 0; e < N; e++) set(&v[k], e, k % 2 ? NAN : (double)(16 * k + e % 16));
                }
                CHECK_STATUS(RUN(m, CF_OP_combine, dtype, 5, .v = {v[0], v[1], v[2], v[3], v[4]},
                                 .params = &(cf_combine_params){.op = CF_COMBINE_WEIGHTED, .root = root},
                                 .items = {weights[0], weights[1], weights[2], weights[3], weights[4]}),
                             CFX_OK);
                for (int k = 0; k < 5; k++)
                    for (int64_t e = 0; e < N; e++) {
                        double sum = 0;
                        for (int j = 0; j < 5; j += 2) sum += weights[j] * (double)(16 * j + e % 16);
                        if (root >= 0 && k != root) sum = k % 2 ? NAN : (double)(16 * k + e % 16);
                        if (!near_at(m, &v[k], e, sum, rounding(dtype, sum))) e = N;
                    }
                if (root < 0) same_as_alone(m, bits_of(&v[0]), &kept[dtype - CFX_FLOAT16]);
                cf_view none[2] = {VECTOR(dtype, 40), VECTOR(dtype, 40)};
                for (int k = 0; k < 2; k++) fill(&none[k], NAN);
                CHECK_STATUS(RUN(m, CF_OP_combine, dtype, 2, .v = {none[0], none[1]},
                                 .params = &(cf_combine_params){.op = CF_COMBINE_WEIGHTED, .root = -1}),
                             CFX_OK);
                CHECK(get(&none[0], 0) == 0 && get(&none[1], 39) == 0);
                free_views();
            }
        cf_view a = VECTOR(CFX_INT64, 3);
        CHECK_STATUS(RUN(m, CF_OP_combine, CFX_INT64, 1, .v = {a},
                         .params = &(cf_combine_params){.op = CF_COMBINE_WEIGHTED, .root = -1}),
                     CFX_EFAULT);
    }
}

TEST(combine_has_the_same_bits_with_any_team) {
    static uint64_t kept[4];
    EACH_MACHINE(m) {
        for (int count = 2; count <= 5; count++)
            same_as_alone(m, check_combine(m, CFX_FLOAT32, CF_COMBINE_AVG, count, 30011, -1), &kept[count - 2]);
    }
}

TEST(combine_keeps_a_value_that_is_not_a_number) {
    EACH_MACHINE(m) {
        for (int how = 0; how <= CF_COMBINE_AVG; how++)
            for (int at = 0; at < 3; at++) {
                cf_view v[3] = {VECTOR(CFX_FLOAT32, 40), VECTOR(CFX_FLOAT32, 40), VECTOR(CFX_FLOAT32, 40)};
                for (int k = 0; k < 3; k++) fill(&v[k], k == at ? NAN : 1);
                CHECK_STATUS(RUN(m, CF_OP_combine, CFX_FLOAT32, 3, .v = {v[0], v[1], v[2]},
                                 .params = &(cf_combine_params){.op = how, .root = -1}),
                             CFX_OK);
                CHECK(isnan(get(&v[0], 0)) && isnan(get(&v[1], 39)));
            }
    }
}

TEST(integers_have_no_average) {
    EACH_MACHINE(m) {
        cf_view a = VECTOR(CFX_INT64, 3), b = VECTOR(CFX_INT64, 3);
        CHECK_STATUS(RUN(m, CF_OP_combine, CFX_INT64, 2, .v = {a, b},
                         .params = &(cf_combine_params){.op = CF_COMBINE_AVG, .root = -1}),
                     CFX_EFAULT);
        CHECK_STR(cfx_error(), "integers have no average (int64)");
    }
}
