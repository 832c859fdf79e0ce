/* batchnorm_test.c: batch and group normalisation against their formulas in doubles. */
#include "test.h"

#include "machines.h"

static const int float_types[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16};
enum { FLOAT_TYPES = 4 };

typedef struct form {
    int dtype;
    int64_t rows, c;
    int training, affine, residual, relu;
} form;

/* The parameters' dtype, and that of what is kept: float32 of half types. */
static int kept_of(int dtype) { return dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32; }

/* ---- statistics */

static double mean_of(const cf_view *x, int64_t rows, int64_t c, int64_t j) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += get(x, r * c + j);
    return sum / (double)rows;
}
static double away_of(const cf_view *x, int64_t rows, int64_t c, int64_t j, double mean) {
    double sum = 0;
    for (int64_t r = 0; r < rows; r++) sum += pow(get(x, r * c + j) - mean, 2);
    return sum;
}

static uint64_t check_stats(machine *m, int dtype, int64_t rows, int64_t c, double offset, double momentum) {
    const int kept = kept_of(dtype);
    const double had = 3, share = momentum < 0 ? 1 / (had + 1) : momentum;
    cf_view x = MATRIX(dtype, PACKED, rows, c), mean = VECTOR(kept, c), variance = VECTOR(kept, c);
    cf_view running = VECTOR(kept, c), spread = VECTOR(kept, c), count = VECTOR(CFX_INT64, 1);
    fill_random(&x, offset - 1, offset + 1);
    fill(&running, 0.5);
    fill(&spread, 2);
    fill(&count, had);
    CHECK_STATUS(RUN(m, CF_OP_batchnorm_stats, dtype, 2, .v = {mean, variance, x}), CFX_OK);
    CHECK_STATUS(RUN(m, CF_OP_batchnorm_move, dtype, 3, .v = {running, spread, count, mean, variance},
                     .params = &(cf_batchnorm_move_params){momentum, rows, 1, 1}),
                 CFX_OK);
    CHECK_EQ(get(&count, 0), had + 1);
    for (int64_t j = 0; j < c; j++) {
        const double mu = mean_of(&x, rows, c, j), away = away_of(&x, rows, c, j, mu), size = fabs(offset) + 1;
        if (!near_at(m, &mean, j, mu, rounding(kept, size))) break;
        if (!near_at(m, &variance, j, away / (double)rows, rounding(kept, 1))) break;
        if (!near_at(m, &running, j, 0.5 + share * (mu - 0.5), rounding(kept, size))) break;
        if (!near_at(m, &spread, j, 2 + share * (away / (double)(rows - 1) - 2), rounding(kept, 4))) break;
    }
    CHECK(edges_are_kept());
    return bits_of(&mean) ^ 3 * bits_of(&variance) ^ 5 * bits_of(&spread);
}

TEST(batch_statistics_are_right_and_move_what_runs) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++) {
            check_stats(m, float_types[t], 2, 5, 0, 0.1);
            check_stats(m, float_types[t], 77, 3, 0.5, -1);
            check_stats(m, float_types[t], 301, 64, 1, 0.1);
            check_stats(m, float_types[t], 70, 601, -1, 1);
            free_views();
        }
        check_stats(m, CFX_FLOAT32, 1000, 1, 0, 0.1);
    }
}

/* What E[x^2] - E[x]^2 would lose. */
TEST(a_variance_that_is_small_beside_the_mean_is_not_lost) {
    EACH_MACHINE(m) { check_stats(m, CFX_FLOAT32, 5000, 20, 4096, 0.1); }
}

TEST(batch_statistics_have_the_same_bits_with_any_team) {
    static uint64_t kept[3];
    EACH_MACHINE(m) {
        same_as_alone(m, check_stats(m, CFX_FLOAT32, 9000, 6, 0.5, 0.1), &kept[0]);
        same_as_alone(m, check_stats(m, CFX_FLOAT64, 1900, 33, 0.5, 0.1), &kept[1]);
        same_as_alone(m, check_stats(m, CFX_BFLOAT16, 100, 700, 0.5, 0.1), &kept[2]);
    }
}

TEST(without_rows_a_batch_counts_and_moves_nothing) {
    EACH_MACHINE(m) {
        cf_view x = MATRIX(CFX_FLOAT32, PACKED, 0, 3), mean = VECTOR(CFX_FLOAT32, 3), variance = VECTOR(CFX_FLOAT32, 3);
        cf_view running = VECTOR(CFX_FLOAT32, 3), spread = VECTOR(CFX_FLOAT32, 3), count = VECTOR(CFX_INT64, 1);
        fill(&running, 2);
        fill(&spread, 3);
        fill(&count, 7);
        CHECK_STATUS(RUN(m, CF_OP_batchnorm_stats, CFX_FLOAT32, 2, .v = {mean, variance, x}), CFX_OK);
        CHECK_STATUS(RUN(m, CF_OP_batchnorm_move, CFX_FLOAT32, 3, .v = {running, spread, count, mean, variance},
                         .params = &(cf_batchnorm_move_params){0.1, 0, 1, 1}),
                     CFX_OK);
        CHECK_EQ(get(&count, 0), 8);
        CHECK_STATUS(RUN(m, CF_OP_batchnorm_move, CFX_FLOAT32, 1, .v = {count, mean, variance},
                         .params = &(cf_batchnorm_move_params){0.1, 5, 0, 1}),
                     CFX_OK);
        CHECK_EQ(get(&count, 0), 9);
        for (int j = 0; j < 3; j++) {
            near_at(m, &mean, j, 0, 0);
            near_at(m, &running, j, 2, 0);
            near_at(m, &spread, j, 3, 0);
        }
    }
}

/* ---- the map and its gradient */

typedef struct world {
    cf_view x, y, dy, dx, mean, variance, gamma, beta, residual, dresidual, dgamma, dbeta;
} world;

static world make_world(const form *f) {
    const int kept = kept_of(f->dtype);
    world w;
    cf_view *rows[] = {&w.x, &w.y, &w.dy, &w.dx, &w.residual, &w.dresidual};
    cf_view *channels[] = {&w.mean, &w.variance, &w.gamma, &w.beta, &w.dgamma, &w.dbeta};
    for (int k = 0; k < 6; k++) {
        *rows[k] = MATRIX(f->dtype, PACKED, f->rows, f->c);
        *channels[k] = VECTOR(kept, f->c);
        fill_random(rows[k], -1, 3);
        fill_random(channels[k], 0.5, 2);
    }
    fill_random(&w.dy, -1, 1);
    return w;
}

/* An input that is there, in its place. */
static void add(cf_view *list, int *n, int is_there, cf_view v) {
    if (is_there) list[(*n)++] = v;
}

enum { EPS = 1 }; /* so large that it shows */
static double rstd_of(const world *w, int64_t j) { return 1 / sqrt(get(&w->variance, j) + EPS); }

static double before_relu(const form *f, const world *w, int64_t r, int64_t j) {
    const double xhat = (get(&w->x, r * f->c + j) - get(&w->mean, j)) * rstd_of(w, j);
    const double y = f->affine ? xhat * get(&w->gamma, j) + get(&w->beta, j) : xhat;
    return f->residual ? y + get(&w->residual, r * f->c + j) : y;
}

static void run_map(machine *m, const form *f, const world *w) {
    run call = {.params = &(cf_batchnorm_params){EPS, f->affine, f->residual, f->relu}};
    int n = 0;
    add(call.v, &n, 1, w->y);
    add(call.v, &n, 1, w->x);
    add(call.v, &n, 1, w->mean);
    add(call.v, &n, 1, w->variance);
    add(call.v, &n, f->affine, w->gamma);
    add(call.v, &n, f->affine, w->beta);
    add(call.v, &n, f->residual, w->residual);
    CHECK_STATUS(run_call(m, CF_OP_batchnorm, f->dtype, 1, call), CFX_OK);
}

static void run_gradient(machine *m, const form *f, const world *w) {
    const cf_batchnorm_bw_params params = {.eps = EPS,
                                           .training = f->training,
                                           .relu = f->relu,
                                           .dx = 1,
                                           .dresidual = f->residual,
                                           .dgamma = f->affine,
                                           .affine = f->affine,
                                           .y = f->residual && f->relu};
    run call = {.params = &params};
    int n = 0;
    add(call.v, &n, 1, w->dx);
    add(call.v, &n, f->residual, w->dresidual);
    add(call.v, &n, f->affine, w->dgamma);
    add(call.v, &n, f->affine, w->dbeta);
    const int nout = n;
    add(call.v, &n, 1, w->dy);
    add(call.v, &n, 1, w->x);
    add(call.v, &n, 1, w->mean);
    add(call.v, &n, 1, w->variance);
    add(call.v, &n, f->affine, w->gamma);
    add(call.v, &n, f->affine, w->beta);
    add(call.v, &n, params.y, w->y);
    CHECK_STATUS(run_call(m, CF_OP_batchnorm_bw, f->dtype, nout, call), CFX_OK);
}

static void check_gradient(machine *m, const form *f, const world *w, int64_t j) {
    const double rstd = rstd_of(w, j), mean = get(&w->mean, j), gamma = f->affine ? get(&w->gamma, j) : 1;
    const double rows = (double)f->rows;
    double sum = 0, sum_x = 0, size = 0;
    for (int64_t r = 0; r < f->rows; r++) {
        const double g = f->relu && get(&w->y, r * f->c + j) <= 0 ? 0 : get(&w->dy, r * f->c + j);
        sum += g;
        sum_x += g * (get(&w->x, r * f->c + j) - mean);
        size += fabs(g) * 8;
    }
    for (int64_t r = 0; r < f->rows; r++) {
        const int64_t e = r * f->c + j;
        const double g = f->relu && get(&w->y, e) <= 0 ? 0 : get(&w->dy, e), d = get(&w->x, e) - mean;
        const double all = f->training ? sum / rows + d * rstd * rstd * sum_x / rows : 0;
        if (!near_at(m, &w->dx, e, gamma * rstd * (g - all), rounding(f->dtype, 100))) return;
        if (f->residual && !near_at(m, &w->dresidual, e, g, 0)) return;
    }
    if (!f->affine) return;
    near_at(m, &w->dgamma, j, sum_x * rstd, rounding(kept_of(f->dtype), 2 * size));
    near_at(m, &w->dbeta, j, sum, rounding(kept_of(f->dtype), size));
}

static uint64_t check_batchnorm(machine *m, form f) {
    const world w = make_world(&f);
    run_map(m, &f, &w);
    for (int64_t r = 0; r < f.rows; r++)
        for (int64_t j = 0; j < f.c; j++) {
            const double pre = before_relu(&f, &w, r, j), expected = f.relu && pre <= 0 ? 0 : pre;
            if (!near_at(m, &w.y, r * f.c + j, expected, rounding(f.dtype, 16))) r = f.rows, j = f.c;
        }
    run_gradient(m, &f, &w);
    for (int64_t j = 0; j < f.c; j++) check_gradient(m, &f, &w, j);
    CHECK(edges_are_kept());
    const uint64_t bits = bits_of(&w.y) ^ 3 * bits_of(&w.dx) ^ 5 * bits_of(&w.dgamma) ^ 7 * bits_of(&w.dbeta);
    free_views();
    return bits;
}

TEST(batchnorm_is_right_in_both_directions_in_all_its_forms) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int k = 0; k < 16; k++)
                check_batchnorm(m, (form){float_types[t], 37, (int64_t[]){5, 64, 13, 32}[(k + t) % 4], k & 1,
                                          k >> 1 & 1, k >> 2 & 1, k >> 3 & 1});
        check_batchnorm(m, (form){CFX_FLOAT32, 300, 1, 1, 1, 1, 1});
        check_batchnorm(m, (form){CFX_FLOAT32, 9, 1030, 1, 1, 0, 1});
        check_batchnorm(m, (form){CFX_FLOAT16, 9, 530, 0, 1, 1, 1});
        check_batchnorm(m, (form){CFX_FLOAT32, 0, 5, 1, 1, 1, 1});
        check_batchnorm(m, (form){CFX_FLOAT32, 5, 0, 1, 1, 1, 1});
    }
}

TEST(batchnorm_has_the_same_bits_with_any_team) {
    static uint64_t kept[3];
    EACH_MACHINE(m) {
        same_as_alone(m, check_batchnorm(m, (form){CFX_FLOAT32, 1900, 33, 1, 1, 1, 1}), &kept[0]);
        same_as_alone(m, check_batchnorm(m, (form){CFX_FLOAT64, 8000, 7, 1, 1, 0, 1}), &kept[1]);
        same_as_alone(m, check_batchnorm(m, (form){CFX_FLOAT32, 90, 700, 1, 1, 0, 0}), &kept[2]);
    }
}

/* Backends move whole pieces of memory where they can: tensors begin, and rows end, within them. */
TEST(batchnorm_is_right_wherever_it_begins) {
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (begins = 0; begins < 4; begins++)
            for (int64_t c = 60; c < 72; c++)
                check_batchnorm(m, (form){float_types[(c + begins) % FLOAT_TYPES], 11, c, 1, 1, c % 2, c % 3 > 0});
        begins = -1;
    }
}

TEST(a_NaN_passes_through_batchnorm_and_relu) {
    EACH_MACHINE(m) {
        const form f = {CFX_FLOAT32, 4, 3, 0, 1, 0, 1};
        const world w = make_world(&f);
        set(&w.x, 4, NAN);
        run_map(m, &f, &w);
        CHECK(isnan(get(&w.y, 4)) && !isnan(get(&w.y, 1)));
        run_gradient(m, &f, &w);
        CHECK(isnan(get(&w.dgamma, 1)) && !isnan(get(&w.dgamma, 0)));
    }
}

/* ---- group normalisation */

typedef struct grouped {
    int dtype, affine;
    int64_t n, rows, c, groups;
} grouped;

static uint64_t check_groupnorm(machine *m, grouped f) {
    const int kept = kept_of(f.dtype);
    const int64_t shape[3] = {f.n, f.rows, f.c}, cg = f.c / f.groups, size = f.rows * cg;
    cf_view x = view(f.dtype, PACKED, 3, shape), y = view(f.dtype, PACKED, 3, shape), none = {0};
    cf_view dy = view(f.dtype, PACKED, 3, shape), dx = view(f.dtype, PACKED, 3, shape);
    cf_view mean = MATRIX(kept, PACKED, f.n, f.groups), variance = MATRIX(kept, PACKED, f.n, f.groups);
    cf_view gamma = VECTOR(f.dtype, f.c), beta = VECTOR(f.dtype, f.c), dgamma = VECTOR(f.dtype, f.c);
    cf_view dbeta = VECTOR(f.dtype, f.c);
    long double *sums = calloc(3 * (size_t)f.c + 1, sizeof *sums); /* dgamma, dbeta, and a magnitude */
    fill_random(&x, 1, 3);
    fill_random(&dy, -1, 1);
    fill_random(&gamma, 0.5, 2);
    fill_random(&beta, -1, 1);
    if (!f.affine) {
        fill(&gamma, 1);
        fill(&beta, 0);
    }
    CHECK_STATUS(RUN(m, CF_OP_groupnorm, f.dtype, 3,
                     .v = {y, mean, variance, x, f.affine ? gamma : none, f.affine ? beta : none},
                     .params = &(cf_groupnorm_params){EPS, f.affine}),
                 CFX_OK);
    const cf_groupnorm_bw_params params = {EPS, 1, f.affine, f.affine};
    if (f.affine)
        CHECK_STATUS(RUN(m, CF_OP_groupnorm_bw, f.dtype, 3, .v = {dx, dgamma, dbeta, dy, x, mean, variance, gamma},
                         .params = &params),
                     CFX_OK);
    else
        CHECK_STATUS(RUN(m, CF_OP_groupnorm_bw, f.dtype, 1, .v = {dx, dy, x, mean, variance}, .params = &params),
                     CFX_OK);
    for (int64_t k = 0; k < f.n * f.groups && size > 0; k++) {
        const int64_t first = k / f.groups * f.rows * f.c + k % f.groups * cg;
        long double mu = 0, away = 0, h = 0, hx = 0; /* the sums are long */
#define EACH(e, j)                          \
    for (int64_t r_ = 0; r_ < f.rows; r_++) \
        for (int64_t j = k % f.groups * cg, e = first + r_ * f.c; j < (k % f.groups + 1) * cg; j++, e++)
        EACH(e, j) mu += (long double)get(&x, e) / size;
        EACH(e, j) away += powl(get(&x, e) - mu, 2);
        const double rstd = 1 / sqrt((double)(away / size) + EPS);
        near_at(m, &mean, k, (double)mu, rounding(kept, 3));
        near_at(m, &variance, k, (double)(away / size), rounding(kept, 1));
        EACH(e, j) {
            const double xhat = (double)(get(&x, e) - mu) * rstd, g = get(&dy, e);
            if (!near_at(m, &y, e, xhat * get(&gamma, j) + get(&beta, j), rounding(f.dtype, 16))) goto done;
            h += (long double)g * get(&gamma, j) / size;
            hx += (long double)g * get(&gamma, j) * xhat / size;
            sums[j] += g * xhat;
            sums[f.c + j] += g;
            sums[2 * f.c + j] += 4 * fabs(g);
        }
        EACH(e, j) {
            const double expected = (double)(rstd * (get(&dy, e) * get(&gamma, j) - h - (get(&x, e) - mu) * rstd * hx));
            if (!near_at(m, &dx, e, expected, rounding(f.dtype, 32))) goto done;
        }
    }
    for (int64_t j = 0; f.affine && j < f.c; j++) {
        near_at(m, &dgamma, j, (double)sums[j], rounding(f.dtype, (double)sums[2 * f.c + j]));
        near_at(m, &dbeta, j, (double)sums[f.c + j], rounding(f.dtype, (double)sums[2 * f.c + j]));
    }
done:
    CHECK(edges_are_kept());
    free(sums);
    const uint64_t bits = bits_of(&y) ^ 3 * bits_of(&dx) ^ (f.affine ? 5 * bits_of(&dgamma) + 7 * bits_of(&dbeta) : 0);
    free_views();
    return bits;
}

TEST(groupnorm_is_right_in_both_directions) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int affine = 0; affine < 2; affine++) {
                check_groupnorm(m, (grouped){float_types[t], affine, 3, 7, 6, 2});
                check_groupnorm(m, (grouped){float_types[t], affine, 2, 50, 64, 8});
                check_groupnorm(m, (grouped){float_types[t], affine, 2, 5, 10, 10});
                check_groupnorm(m, (grouped){float_types[t], affine, 1, 1, 520, 1});
            }
        check_groupnorm(m, (grouped){CFX_FLOAT32, 1, 0, 5, 4, 2});
        check_groupnorm(m, (grouped){CFX_FLOAT32, 1, 2, 0, 4, 2});
        check_groupnorm(m, (grouped){CFX_FLOAT32, 1, 2, 3, 0, 2});
    }
}

TEST(groupnorm_has_the_same_bits_with_any_team) {
    static uint64_t kept[2];
    EACH_MACHINE(m) {
        same_as_alone(m, check_groupnorm(m, (grouped){CFX_FLOAT32, 1, 5, 900, 12, 3}), &kept[0]);
        same_as_alone(m, check_groupnorm(m, (grouped){CFX_FLOAT64, 1, 1, 3000, 14, 2}), &kept[1]);
    }
}
