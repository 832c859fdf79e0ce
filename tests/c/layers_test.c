/* layers_test.c: softmax, cross entropy, layer normalisation and dropout against their formulas in doubles. */
#include "test.h"

#include "base/rng.h"
#include "machines.h"

static const int float_types[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16};
enum { FLOAT_TYPES = 4 };

static double log_sum(const cf_view *x, int64_t r, int64_t n) {
    double most = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n; j++) most = fmax(most, get(x, r * n + j));
    for (int64_t j = 0; j < n; j++) sum += exp(get(x, r * n + j) - most);
    return most + log(sum);
}

static uint64_t check_softmax(machine *m, int dtype, int logarithm, int64_t rows, int64_t n, pattern p) {
    const int64_t shape[3] = {2, rows, n};
    cf_view x = view(dtype, p, 3, shape), y = view(dtype, (p + 1) % PATTERNS, 3, shape);
    cf_view dy = view(dtype, (p + 2) % PATTERNS, 3, shape), dx = view(dtype, p, 3, shape);
    const double wide = cf_is_float(dtype) && dtype != CFX_FLOAT16 && dtype != CFX_BFLOAT16 ? 20 : 4;
    fill_random(&x, -wide, wide);
    fill_random(&dy, -1, 1);
    fill(&dx, 9);
    CHECK_STATUS(RUN(m, logarithm ? CF_OP_logsoftmax : CF_OP_softmax, dtype, 1, .v = {y, x}), CFX_OK);
    CHECK_STATUS(RUN(m, logarithm ? CF_OP_logsoftmax_bw : CF_OP_softmax_bw, dtype, 1, .v = {dx, dy, y}), CFX_OK);
    for (int64_t r = 0; r < 2 * rows; r++) {
        const double lse = log_sum(&x, r, n);
        double sum = 0;
        for (int64_t j = 0; j < n; j++) {
            const double l = get(&x, r * n + j) - lse, got = get(&y, r * n + j);
            if (!near_at(m, &y, r * n + j, logarithm ? l : exp(l), rounding(dtype, logarithm ? 2 * wide : 1))) return 0;
            sum += get(&dy, r * n + j) * (logarithm ? 1 : got);
        }
        for (int64_t j = 0; j < n; j++) {
            const double got = get(&y, r * n + j), g = get(&dy, r * n + j);
            const double expected = logarithm ? g - exp(got) * sum : got * (g - sum);
            if (!near_at(m, &dx, r * n + j, expected, rounding(dtype, 1 + fabs(sum)))) return 0;
        }
    }
    return bits_of(&y) ^ bits_of(&dx);
}

TEST(softmax_and_its_logarithm_are_right_in_both_directions) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int p = 0; p < PATTERNS; p++)
                for (int l = 0; l < 2; l++) {
                    check_softmax(m, float_types[t], l, 3, 10, p);
                    check_softmax(m, float_types[t], l, 2, 700, p);
                    check_softmax(m, float_types[t], l, 3, 1, p);
                }
        check_softmax(m, CFX_FLOAT32, 0, 0, 10, PACKED);
        check_softmax(m, CFX_FLOAT32, 0, 3, 0, PACKED);
    }
}

TEST(softmax_has_the_same_bits_with_any_team) {
    static uint64_t kept[4];
    EACH_MACHINE(m) {
        for (int k = 0; k < 4; k++)
            same_as_alone(m, check_softmax(m, k & 1 ? CFX_FLOAT64 : CFX_FLOAT32, k >> 1, 150, 101, PACKED), &kept[k]);
    }
}

TEST(softmax_neither_overflows_nor_hides_what_is_not_a_number) {
    EACH_MACHINE(m) {
        cf_view x = MATRIX(CFX_FLOAT32, PACKED, 4, 3), y = MATRIX(CFX_FLOAT32, PACKED, 4, 3);
        put_all(&x, (double[]){1e30, 1e30, 0, -INFINITY, 0, 0, 0, NAN, 0, -INFINITY, -INFINITY, -INFINITY});
        CHECK_STATUS(RUN(m, CF_OP_softmax, CFX_FLOAT32, 1, .v = {y, x}), CFX_OK);
        CHECK_NEAR(get(&y, 0), 0.5, 0);
        CHECK_NEAR(get(&y, 2), 0, 0);
        CHECK_NEAR(get(&y, 3), 0, 0);
        CHECK_NEAR(get(&y, 4), 0.5, 0);
        for (int e = 6; e < 12; e++) CHECK(isnan(get(&y, e)));
    }
}

/* ---- cross entropy */

typedef struct entropy {
    int dtype, id_type; /* id_type -1: probabilities */
    int64_t n, c, ignore;
    cfx_reduction reduction;
    double smoothing;
    pattern p;
} entropy;

/* t(j) of row r as PyTorch smooths it. */
static double target_of(const entropy *s, const cf_view *target, int64_t r, int64_t j) {
    const double t = s->id_type < 0 ? get(target, r * s->c + j) : get(target, r) == (double)j;
    return t * (1 - s->smoothing) + s->smoothing / (double)s->c;
}

static int is_ignored(const entropy *s, const cf_view *target, int64_t r) {
    return s->id_type >= 0 && get(target, r) == (double)s->ignore;
}

static uint64_t check_crossentropy(machine *m, entropy s) {
    const int out = s.dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32, ids = s.id_type >= 0;
    cf_view x = MATRIX(s.dtype, s.p, s.n, s.c), dx = MATRIX(s.dtype, s.p, s.n, s.c);
    cf_view target = ids ? VECTOR(s.id_type, s.n) : MATRIX(s.dtype, (s.p + 1) % PATTERNS, s.n, s.c);
    cf_view loss = s.reduction == CFX_NONE ? VECTOR(s.dtype, s.n) : SCALAR(s.dtype);
    cf_view dy = s.reduction == CFX_NONE ? VECTOR(s.dtype, s.n) : SCALAR(s.dtype);
    cf_view lse = VECTOR(out, s.n), weight = SCALAR(out);
    fill_random(&x, -4, 4);
    fill_random(&dy, 0.5, 2);
    if (ids)
        for (int64_t r = 0; r < s.n; r++)
            set(&target, r, s.ignore != INT64_MIN && r % 3 == 1 ? (double)s.ignore : random_bits() % (uint32_t)s.c);
    else fill_random(&target, 0, 1);
    CHECK_STATUS(RUN(m, CF_OP_crossentropy, s.dtype, 3, .v = {loss, lse, weight, x, target},
                     .params = &(cf_crossentropy_params){s.smoothing, s.ignore, s.reduction}),
                 CFX_OK);
    CHECK_STATUS(RUN(m, CF_OP_crossentropy_bw, s.dtype, 1, .v = {dx, dy, x, target, lse, weight},
                     .params = &(cf_crossentropy_params){s.smoothing, s.ignore, s.reduction}),
                 CFX_OK);
    double sum = 0, counted = 0;
    for (int64_t r = 0; r < s.n; r++) counted += !is_ignored(&s, &target, r);
    for (int64_t r = 0; r < s.n; r++) {
        const double l = log_sum(&x, r, s.c), over = s.reduction == CFX_MEAN ? counted : 1;
        double row = 0, all = 0;
        for (int64_t j = 0; j < s.c; j++) {
            row += target_of(&s, &target, r, j) * (l - get(&x, r * s.c + j));
            all += target_of(&s, &target, r, j);
        }
        const int ignored = is_ignored(&s, &target, r);
        if (ignored) row = 0;
        sum += row;
        if (s.reduction == CFX_NONE && !near_at(m, &loss, r, row, rounding(s.dtype, 8 * (all + 1)))) return 0;
        if (!ignored && !near_at(m, &lse, r, l, rounding(out, 8))) return 0;
        const double g = get(&dy, s.reduction == CFX_NONE ? r : 0) / over;
        for (int64_t j = 0; j < s.c; j++) {
            const double t = target_of(&s, &target, r, j), e = exp(get(&x, r * s.c + j) - l);
            if (!near_at(m, &dx, r * s.c + j, ignored ? 0 : g * (e * all - t), rounding(s.dtype, 8 * g * (all + 1))))
                return 0;
        }
    }
    CHECK_NEAR(get(&weight, 0), s.reduction == CFX_MEAN ? 1 / counted : 1, 1e-6);
    if (s.reduction == CFX_MEAN) sum /= counted;
    if (s.reduction != CFX_NONE) near_at(m, &loss, 0, sum, rounding(s.dtype, 8 * (fabs(sum) + 1)));
    return bits_of(&loss) ^ bits_of(&dx);
}

TEST(crossentropy_follows_pytorch_for_ids_and_probabilities) {
    static const int targets[] = {CFX_INT64, CFX_INT32, CFX_UINT8, -1};
    static const cfx_reduction reductions[] = {CFX_NONE, CFX_MEAN, CFX_SUM};
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int k = 0; k < 4; k++)
                for (int r = 0; r < 3; r++)
                    for (int s = 0; s < 4; s++)
                        check_crossentropy(m, (entropy){float_types[t], targets[k], 7, s == 3 ? 700 : 10,
                                                        s & 1 && targets[k] != CFX_UINT8 ? -100 : INT64_MIN,
                                                        reductions[r], s & 2 ? 0.1 : 0, s});
        check_crossentropy(m, (entropy){CFX_FLOAT32, CFX_INT64, 7, 10, 3, CFX_MEAN, 0, PACKED});
    }
}

TEST(crossentropy_has_the_same_bits_with_any_team) {
    static uint64_t kept[2];
    EACH_MACHINE(m) {
        same_as_alone(m, check_crossentropy(m, (entropy){CFX_FLOAT32, CFX_INT64, 3000, 10, -1, CFX_MEAN, 0, PACKED}),
                      &kept[0]);
        same_as_alone(m, check_crossentropy(m, (entropy){CFX_FLOAT32, -1, 60, 900, INT64_MIN, CFX_SUM, 0.1, PACKED}),
                      &kept[1]);
    }
}

TEST(crossentropy_names_an_id_out_of_range) {
    EACH_MACHINE(m) {
        cf_view x = MATRIX(CFX_FLOAT32, PACKED, 5, 10), ids = VECTOR(CFX_INT64, 5), loss = SCALAR(CFX_FLOAT32);
        cf_view lse = VECTOR(CFX_FLOAT32, 5), weight = SCALAR(CFX_FLOAT32);
        fill(&x, 0);
        fill(&ids, 9);
        set(&ids, 3, 12);
        CHECK_STATUS(RUN(m, CF_OP_crossentropy, CFX_FLOAT32, 3, .v = {loss, lse, weight, x, ids},
                         .params = &(cf_crossentropy_params){.ignore = -100, .reduction = CFX_MEAN}),
                     CFX_EFAULT);
        CHECK_STR(cfx_error(), "id 12 at row 4 is outside 0 to 9 (10 classes)");
        fill(&ids, -100); /* all rows ignored: a mean over none */
        CHECK_STATUS(RUN(m, CF_OP_crossentropy, CFX_FLOAT32, 3, .v = {loss, lse, weight, x, ids},
                         .params = &(cf_crossentropy_params){.ignore = -100, .reduction = CFX_MEAN}),
                     CFX_OK);
        CHECK(isnan(get(&loss, 0)));
    }
}

/* ---- layer normalisation */

static uint64_t check_layernorm(machine *m, int dtype, int64_t n, int64_t c, int affine, pattern p) {
    const int out = dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    const double eps = 1e-5;
    cf_view x = MATRIX(dtype, p, n, c), y = MATRIX(dtype, (p + 1) % PATTERNS, n, c), none = {0};
    cf_view dy = MATRIX(dtype, p, n, c), dx = MATRIX(dtype, (p + 1) % PATTERNS, n, c);
    cf_view mean = VECTOR(out, n), rstd = VECTOR(out, n);
    cf_view gamma = view(dtype, p, 1, &c), beta = view(dtype, p, 1, &c), dgamma = VECTOR(dtype, c),
            dbeta = VECTOR(dtype, c);
    fill_random(&x, 1, 3);
    fill_random(&dy, -1, 1);
    fill_random(&gamma, 0.5, 2);
    fill_random(&beta, -1, 1);
    if (!affine) {
        fill(&gamma, 1);
        fill(&beta, 0);
    }
    CHECK_STATUS(RUN(m, CF_OP_layernorm, dtype, 3, .v = {y, mean, rstd, x, affine ? gamma : none, affine ? beta : none},
                     .params = &(cf_layernorm_params){eps}),
                 CFX_OK);
    if (affine)
        CHECK_STATUS(RUN(m, CF_OP_layernorm_bw, dtype, 3, .v = {dx, dgamma, dbeta, dy, x, mean, rstd, gamma},
                         .params = &(cf_layernorm_bw_params){1}),
                     CFX_OK);
    else CHECK_STATUS(RUN(m, CF_OP_layernorm_bw, dtype, 1, .v = {dx, dy, x, mean, rstd}), CFX_OK);
    double *sums = calloc(4 * (size_t)c + 1, sizeof *sums); /* dgamma, dbeta, and their magnitudes */
    for (int64_t r = 0; r < n; r++) {
        double mu = c ? 0 : NAN, variance = mu, h = 0, hx = 0; /* a mean over nothing */
        for (int64_t j = 0; j < c; j++) mu += get(&x, r * c + j) / (double)c;
        for (int64_t j = 0; j < c; j++) variance += pow(get(&x, r * c + j) - mu, 2) / (double)c;
        const double scale = 1 / sqrt(variance + eps), size = 4 * fmin(scale, 3);
        near_at(m, &mean, r, mu, rounding(out, 3));
        near_at(m, &rstd, r, scale, rounding(out, 2 * scale));
        for (int64_t j = 0; j < c; j++) {
            const double xhat = (get(&x, r * c + j) - mu) * scale, g = get(&dy, r * c + j);
            if (!near_at(m, &y, r * c + j, xhat * get(&gamma, j) + get(&beta, j), rounding(dtype, 4 * size))) goto done;
            h += g * get(&gamma, j) / (double)c;
            hx += g * get(&gamma, j) * xhat / (double)c;
            sums[j] += g * xhat;
            sums[c + j] += g;
            sums[2 * c + j] += fabs(g * xhat);
            sums[3 * c + j] += fabs(g);
        }
        for (int64_t j = 0; j < c; j++) {
            const double xhat = (get(&x, r * c + j) - mu) * scale;
            const double expected = scale * (get(&dy, r * c + j) * get(&gamma, j) - h - xhat * hx);
            if (!near_at(m, &dx, r * c + j, expected, rounding(dtype, 4 * fmax(size, scale)))) goto done;
        }
    }
    for (int64_t j = 0; affine && j < c; j++) {
        near_at(m, &dgamma, j, sums[j], rounding(dtype, 2 * sums[2 * c + j] + 4 * sums[3 * c + j]));
        near_at(m, &dbeta, j, sums[c + j], rounding(dtype, sums[3 * c + j]));
    }
done:
    free(sums);
    return bits_of(&y) ^ bits_of(&dx) ^ (affine ? 3 * bits_of(&dgamma) + bits_of(&dbeta) : 0);
}

TEST(layernorm_is_right_in_both_directions_with_and_without_gamma) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int p = 0; p < PATTERNS; p++)
                for (int affine = 0; affine < 2; affine++) {
                    check_layernorm(m, float_types[t], 5, 40, affine, p);
                    check_layernorm(m, float_types[t], 40, 7, affine, p);
                    check_layernorm(m, float_types[t], 2, 600, affine, p);
                }
        check_layernorm(m, CFX_FLOAT32, 0, 5, 1, PACKED);
        check_layernorm(m, CFX_FLOAT32, 5, 0, 1, PACKED);
    }
}

TEST(layernorm_has_the_same_bits_with_any_team) {
    static uint64_t kept[2];
    EACH_MACHINE(m) {
        same_as_alone(m, check_layernorm(m, CFX_FLOAT32, 1900, 33, 1, PACKED), &kept[0]);
        same_as_alone(m, check_layernorm(m, CFX_FLOAT64, 100, 600, 1, PACKED), &kept[1]);
    }
}

/* ---- dropout */

/* Backends move whole pieces of memory where they can: rows begin and end within them. */
TEST(rows_are_right_wherever_they_begin_and_end) {
    static const int64_t longer[] = {127, 128, 129, 200, 255, 256, 257, 1025, 1030, 2051};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (begins = 0; begins < 4; begins++)
            for (int64_t k = begins % (SANITIZED ? 3 : 1); k < 80; k += SANITIZED ? 3 : 1) {
                const int64_t n = k < 70 ? k + 1 : longer[k - 70];
                const int dtype = float_types[(k + begins) % FLOAT_TYPES];
                check_softmax(m, dtype, k % 2, 2, n, PACKED);
                check_layernorm(m, dtype, 3, n, k % 3 > 0, PACKED);
                check_crossentropy(
                    m, (entropy){dtype, k % 2 ? -1 : CFX_INT64, 3, n, INT64_MIN, CFX_MEAN, k % 3 ? 0.1 : 0, PACKED});
                if (!CHECK(edges_are_kept())) printf("# rows of %lld that begin at %d\n", (long long)n, begins);
                free_views();
            }
        begins = -1;
    }
}

TEST(dropout_keeps_by_the_word_of_each_position) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int p = 0; p < PATTERNS; p++) {
                const uint64_t seed = 77 + ((uint64_t)5 << 40), stream = 3, position = ((uint64_t)1 << 36) + 8;
                cf_view x = view(float_types[t], p, 3, (int64_t[]){3, 50, 91});
                cf_view y = view(float_types[t], (p + 1) % PATTERNS, 3, (int64_t[]){3, 50, 91});
                fill_random(&x, -2, 2);
                CHECK_STATUS(RUN(m, CF_OP_dropout, float_types[t], 1, .v = {y, x},
                                 .params = &(cf_dropout_params){{seed, stream, position}, 0.3}),
                             CFX_OK);
                for (int64_t e = 0; e < 3 * 50 * 91; e++) {
                    uint32_t words[4];
                    cf_philox(seed, stream, (position + (uint64_t)e) / 4, words);
                    const int kept = cf_uniform_f32(words[e % 4]) >= 0.3;
                    if (!near_at(m, &y, e, kept ? get(&x, e) / 0.7 : 0, rounding(float_types[t], 3))) return;
                }
                free_views();
            }
    }
}

TEST(dropout_of_all_is_zero_and_of_none_the_same) {
    EACH_MACHINE(m) {
        cf_view x = VECTOR(CFX_FLOAT32, 99), y = VECTOR(CFX_FLOAT32, 99);
        fill(&x, INFINITY);
        CHECK_STATUS(RUN(m, CF_OP_dropout, CFX_FLOAT32, 1, .v = {y, x}, .params = &(cf_dropout_params){.p = 1}),
                     CFX_OK);
        for (int e = 0; e < 99; e++) near_at(m, &y, e, 0, 0);
        CHECK_STATUS(RUN(m, CF_OP_dropout, CFX_FLOAT32, 1, .v = {y, x}, .params = &(cf_dropout_params){.p = 0}),
                     CFX_OK);
        for (int e = 0; e < 99; e++) near_at(m, &y, e, INFINITY, 0);
    }
}
