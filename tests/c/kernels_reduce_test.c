/* kernels_reduce_test.c: reductions and losses against plain double arithmetic, in every instruction set. */
#include "test.h"

#include "kernels.h"

/* ---- reductions ---------------------------------------------------------------------------------------------- */

enum { FIRST = CF_OP_sum, LAST = CF_OP_argmin };

/* What each reduction makes of the same numbers. */
typedef struct meanings {
    double of[LAST + 1];
} meanings;

static meanings reduce_meanings(const double *x, int64_t n, double correction) {
    double sum = 0, prod = 1, squares = 0, some = 0, all = 1, mean, var = 0;
    int64_t most = 0, least = 0;
    for (int64_t i = 0; i < n; i++) {
        sum += x[i], prod *= x[i], squares += x[i] * x[i];
        some = some || x[i] != 0, all = all && x[i] != 0;
        if (x[i] > x[most]) most = i;
        if (x[i] < x[least]) least = i;
    }
    mean = sum / (double)n;
    for (int64_t i = 0; i < n; i++) var += (x[i] - mean) * (x[i] - mean);
    var /= (double)n - correction;
    return (meanings){.of = {[CF_OP_sum] = sum,
                             [CF_OP_mean] = mean,
                             [CF_OP_prod] = prod,
                             [CF_OP_max] = x[most],
                             [CF_OP_min] = x[least],
                             [CF_OP_norm] = sqrt(squares),
                             [CF_OP_var] = var,
                             [CF_OP_std] = sqrt(var),
                             [CF_OP_any] = some,
                             [CF_OP_all] = all,
                             [CF_OP_argmax] = (double)most,
                             [CF_OP_argmin] = (double)least}};
}

static int reduce_dtype(int op, int dtype) {
    if (op == CF_OP_any || op == CF_OP_all) return CFX_BOOL;
    if (op == CF_OP_argmax || op == CF_OP_argmin) return CFX_INT64;
    return !cf_is_float(dtype) && (op == CF_OP_sum || op == CF_OP_prod) ? CFX_INT64 : dtype;
}

/* One reduction of the last `reduced` dimensions of x, whose rows mean so much. */
static void check_reduction(const table *t, int op, const tensor *x, int reduced, double correction,
                            const meanings *rows) {
    const int dtype = x->v.dtype;
    const int64_t *shape = x->v.shape;
    tensor y = make(reduce_dtype(op, dtype), 3 - reduced, shape);
    const int64_t n = numel(x) / numel(&y), is_prod = op == CF_OP_prod;
    call c = CALL(op, reduce_dtype(op, dtype), 1, &y, x);
    if (op >= CF_OP_any) c.head.dtype = (uint8_t)dtype;
    CF_PARAMS(&c.head, reduce)->dims = reduced;
    CF_PARAMS(&c.head, reduce)->correction = correction;
    CHECK_STATUS(run(t, &c), CFX_OK);
    int bad = 0;
    for (int64_t r = 0; r < numel(&y); r++) {
        const double expected = rows[r].of[op], got = get(&y, r);
        if (is_prod && n > 2000) continue; /* its rounding grows */
        const double scale = op == CF_OP_sum    ? 50 * sqrt((double)n)
                             : op == CF_OP_mean ? 50 / sqrt((double)n)
                                                : fabs(expected);
        const double units = is_prod ? 2 + (double)n / 4 : 8;
        if (!cf_is_float(y.v.dtype) ? got == expected
                                    : close_to(y.v.dtype, got, expected, units) ||
                                          fabs(got - expected) < (dtype == CFX_FLOAT64 ? 1e-13 : 1e-6) * scale)
            continue;
        if (bad++) continue;
        printf("# %s %s %s [%lld, %lld, %lld] by %d, begins at %d, result %lld: %.9g, not %.9g\n", t->name,
               cf_op_table[op].name, cfx_dtype_name(dtype), (long long)shape[0], (long long)shape[1],
               (long long)shape[2], reduced, begins, (long long)r, got, expected);
    }
    CHECK_EQ(bad, 0);
    drop(&y);
}

/* The reductions from one to another, each of the same numbers: products of such as do not grow out of their dtype. */
static void check_reductions(const table *t, int from, int to, int dtype, const int64_t shape[3], int reduced,
                             enum layout layout) {
    for (int prod = 0; prod < 2; prod++) {
        if (prod ? from > CF_OP_prod || to < CF_OP_prod : from == CF_OP_prod && to == CF_OP_prod) continue;
        tensor x = make_as(layout, dtype, 3, shape);
        randomize(&x, prod ? 0.9 : -50, prod ? 1.1 : 50);
        double *numbers = numbers_of(&x);
        int64_t count = 1;
        for (int d = 0; d < 3 - reduced; d++) count *= shape[d];
        const int64_t n = numel(&x) / count;
        meanings *rows = malloc((size_t)count * sizeof *rows);
        for (int64_t r = 0; r < count; r++) rows[r] = reduce_meanings(numbers + r * n, n, n > 1);
        for (int op = from; op <= to; op++)
            if (takes(op, dtype) && (op == CF_OP_prod) == prod) check_reduction(t, op, &x, reduced, n > 1, rows);
        free(numbers), free(rows), drop(&x);
    }
}

TEST(every_reduction_means_what_its_formula_says_in_every_layout) {
    static const struct {
        int64_t shape[3];
        int reduced;
    } cases[] = {{{3, 5, 7}, 1},   {{3, 5, 7}, 2},     {{3, 5, 7}, 3},     {{4, 100, 3}, 1},
                 {{70, 40, 1}, 2}, {{1, 700, 9}, 1},   {{2, 3, 1500}, 1},  {{600, 1, 2}, 2},
                 {{1, 1, 1}, 3},   {{2, 1, 70000}, 1}, {{70, 2, 1000}, 1}, {{2, 2, 40000}, 2}};
    EACH_TABLE(t)
    for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            for (enum layout layout = PACKED; layout < LAYOUTS; layout++) {
                int64_t n = 1;
                for (int d = 3 - cases[k].reduced; d < 3; d++) n *= cases[k].shape[d];
                if (n <= 2000 || (layout != REPEATED && (dtype == CFX_FLOAT32 || dtype == CFX_INT64)))
                    check_reductions(t, FIRST, LAST, dtype, cases[k].shape, cases[k].reduced, layout);
            }
}

/* Backends move whole pieces of memory where they can: rows begin and end within them. */
TEST(a_reduction_of_rows_is_right_wherever_they_begin_and_end) {
    static const int64_t longer[] = {127, 128, 129, 257, 1023, 1025, 1031, 9001};
    EACH_TABLE(t) for (int op = CF_OP_sum; op <= CF_OP_argmin; op++) for (int dtype = 0; dtype < CFX_DTYPES; dtype++) {
        if (!takes(op, dtype)) continue;
        for (begins = 0; begins < 4; begins++) {
            for (int64_t n = 1 + (op + dtype + 2 * begins) % 6; n <= 70; n += 6)
                check_reductions(t, op, op, dtype, (int64_t[]){1, 3, n}, 1, PACKED);
            for (int k = (op + dtype + begins) % 4; k < 8; k += 4)
                check_reductions(t, op, op, dtype, (int64_t[]){1, 3, longer[k]}, 1, PACKED);
        }
        begins = 0;
    }
}

/* One reduction of each row, by each team. */
static void check_teams(const table *t, int op, const tensor *x) {
    tensor y[TEAMS];
    for (int k = 0; k < TEAMS; k++) {
        y[k] = make(reduce_dtype(op, CFX_FLOAT32), 1, x->v.shape);
        call c = CALL(op, CFX_FLOAT32, 1, &y[k], x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CF_PARAMS(&c.head, reduce)->correction = 1;
        worker.threads = teams[k];
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(memcmp(y[0].memory, y[k].memory, y[0].bytes) == 0);
    }
    worker.threads = 2;
    for (int k = 0; k < TEAMS; k++) drop(&y[k]);
}

TEST(reductions_give_the_same_bits_with_every_team) {
    static const int64_t shapes[][2] = {{1, 700001}, {3, 200001}, {200001, 3}, {3000, 100}, {100, 3000}};
    for (int s = 0; s < 5; s++)
        for (int turned = 0; turned < 2; turned++) {
            tensor x = make_as(turned ? TURNED : PACKED, CFX_FLOAT32, 2, shapes[s]);
            tensor near_one = make_as(turned ? TURNED : PACKED, CFX_FLOAT32, 2, shapes[s]);
            for (int64_t i = 0; i < numel(&x); i++) {
                const float u = (float)uniform(0, 1);
                ((float *)x.memory)[i] = u - 0.5f;
                ((float *)near_one.memory)[i] = 1 + 1e-4f * u;
            }
            EACH_TABLE(t)
            for (int op = FIRST; op <= LAST; op++) check_teams(t, op, op == CF_OP_prod ? &near_one : &x);
            drop(&x), drop(&near_one);
        }
}

TEST(ten_million_ones_make_ten_million) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(10000000)), y = scalar(CFX_FLOAT32);
        call c = CALL(CF_OP_fill, CFX_FLOAT32, 1, &x);
        CF_PARAMS(&c.head, fill)->value = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = CALL(CF_OP_sum, CFX_FLOAT32, 1, &y, &x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 10000000);
        drop(&x), drop(&y);
    }
}

TEST(the_variance_of_large_numbers_keeps_its_digits) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(2, 4000)), y = make(CFX_FLOAT32, SHAPE(2));
        for (int64_t i = 0; i < 8000; i++) set(&x, i, 10000 + (double)(i % 4)); /* variance 1.25 */
        call c = CALL(CF_OP_var, CFX_FLOAT32, 1, &y, &x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_NEAR(get(&y, 1), 1.25, 1e-5);
        drop(&x), drop(&y);
    }
}

/* Of n numbers around `scale`, as rows and as columns, against long doubles. */
static void check_near_limits(const table *t, int dtype, double scale, int64_t n, int turned) {
    static const int ops[] = {CF_OP_mean, CF_OP_norm, CF_OP_var, CF_OP_std};
    tensor x = make_as(turned ? TURNED : PACKED, dtype, SHAPE(3, n)), few = make(dtype, SHAPE(4));
    long double sum = 0, squares = 0, around = 0;
    for (int64_t i = 0; i < 4; i++) set(&few, i, scale * (1 - 0.25 * (double)i));
    for (int64_t i = 0; i < 3 * n; i++) memcpy(element(&x.v, i), element(&few.v, i % 4), sizes[dtype]);
    for (int64_t i = 0; i < n; i++) {
        const long double e = get(&few, i % 4);
        sum += e, squares += e * e;
    }
    for (int64_t i = 0; i < n; i++) {
        const long double away = get(&few, i % 4) - sum / n;
        around += away * away;
    }
    const long double var = around / (n - 1);
    const double expected[] = {(double)(sum / n), (double)sqrtl(squares), (double)var, (double)sqrtl(var)};
    for (int k = 0; k < 4; k++) {
        tensor y = make(cf_is_float(dtype) ? dtype : CFX_FLOAT32, SHAPE(3));
        tensor rounded = VALUES(y.v.dtype, expected[k]); /* infinite where it does not fit */
        call c = CALL(ops[k], y.v.dtype, 1, &y, &x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CF_PARAMS(&c.head, reduce)->correction = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        const double unit = get(&rounded, 0) * (dtype == CFX_BFLOAT16 ? 8e-3 : dtype == CFX_FLOAT16 ? 1e-3 : 3e-7);
        const double tiny = dtype == CFX_FLOAT16 ? 6e-8 : dtype == CFX_BFLOAT16 ? 1e-40 : 1e-44;
        if (!CHECK_NEAR(get(&y, 0), get(&rounded, 0), unit + tiny))
            printf("# %s %s of %lld %s around %g, %s\n", t->name, cf_op_table[ops[k]].name, (long long)n,
                   cfx_dtype_name(dtype), scale, turned ? "columns" : "rows");
        drop(&y), drop(&rounded);
    }
    drop(&x), drop(&few);
}

TEST(a_mean_a_spread_and_a_norm_fit_wherever_their_value_does) {
    static const struct {
        int dtype;
        double scale;
    } cases[] = {{CFX_FLOAT16, 1e-6},  {CFX_FLOAT16, 2e-4},  {CFX_FLOAT16, 1000},  {CFX_FLOAT16, 60000},
                 {CFX_INT32, 2e9},     {CFX_INT64, 9e18},    {CFX_UINT8, 255},     {CFX_BFLOAT16, 1e-30},
                 {CFX_FLOAT32, 1e-38}, {CFX_FLOAT32, 1e-30}, {CFX_FLOAT32, 1e19},  {CFX_FLOAT32, 1e30},
                 {CFX_BFLOAT16, 1e30}, {CFX_FLOAT32, 3e38},  {CFX_BFLOAT16, 3e38}, {CFX_FLOAT64, 1e100}};
    static const int64_t counts[] = {2, 100, 3000, 200000};
    EACH_TABLE(t)
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
        for (int n = 0; n < 8; n++) check_near_limits(t, cases[k].dtype, cases[k].scale, counts[n / 2], n % 2);
}

TEST(a_product_fits_wherever_its_value_does) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(2000)), y = make(CFX_FLOAT32, SHAPE(1));
        for (int64_t i = 0; i < 2000; i++) set(&x, i, i < 16 ? 16 : i < 1000 ? 1 : i < 1016 ? 0.0625 : 1);
        x.v.ndim = 2, x.v.shape[1] = 2000, x.v.shape[0] = 1, x.v.stride[1] = 1;
        for (int64_t i = 0; i < 8; i++) set(&x, i, 1e30), set(&x, 1000 + i, 1e-30);
        call c = CALL(CF_OP_prod, CFX_FLOAT32, 1, &y, &x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_NEAR(get(&y, 0), 1, 1e-5);
        drop(&x), drop(&y);
    }
}

TEST(nothing_has_a_sum_a_product_and_no_mean) {
    EACH_TABLE(t) {
        static const struct {
            int op;
            double expected;
        } cases[] = {{CF_OP_sum, 0},  {CF_OP_prod, 1}, {CF_OP_mean, NAN},
                     {CF_OP_norm, 0}, {CF_OP_any, 0},  {CF_OP_all, 1}};
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            tensor x = make(CFX_FLOAT32, SHAPE(2, 0)), y = make(reduce_dtype(cases[k].op, CFX_FLOAT32), SHAPE(2));
            call c = CALL(cases[k].op, CFX_FLOAT32, 1, &y, &x);
            CF_PARAMS(&c.head, reduce)->dims = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_NEAR(get(&y, 1), cases[k].expected, 0);
            drop(&x), drop(&y);
        }
    }
}

TEST(a_nan_is_the_extreme_and_the_first_of_equals_is_found) {
    EACH_TABLE(t) for (int turned = 0; turned < 2; turned++) {
        tensor x = make_as(turned ? TURNED : PACKED, CFX_FLOAT32, SHAPE(100, 700)), y = make(CFX_INT64, SHAPE(100)),
               m = make(CFX_FLOAT32, SHAPE(100));
        for (int64_t i = 0; i < 70000; i++) set(&x, i, (double)(i % 7));
        set(&x, 1 * 700 + 650, NAN), set(&x, 1 * 700 + 651, NAN);
        for (int op = CF_OP_argmax; op <= CF_OP_argmin; op++) {
            call c = CALL(op, CFX_FLOAT32, 1, &y, &x);
            CF_PARAMS(&c.head, reduce)->dims = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_EQ(get(&y, 0), op == CF_OP_argmax ? 6 : 0);
            CHECK_EQ(get(&y, 1), 650);
            CHECK_EQ(get(&y, 99), op == CF_OP_argmax ? 6 : 0);
        }
        for (int op = CF_OP_max; op <= CF_OP_min; op++) {
            call c = CALL(op, CFX_FLOAT32, 1, &m, &x);
            CF_PARAMS(&c.head, reduce)->dims = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(isnan(get(&m, 1)));
            CHECK_EQ(get(&m, 0), op == CF_OP_max ? 6 : 0);
        }
        drop(&x), drop(&y), drop(&m);
    }
}

TEST(the_gradient_of_a_product_is_right_with_zeros) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(3, 3)), dy = VALUES(CFX_FLOAT32, 1, 2, 3),
               dx = make_as(TURNED, CFX_FLOAT32, SHAPE(3, 3));
        const double in[] = {2, 3, 4, 2, 0, 4, 0, 0, 4}, expected[] = {12, 8, 6, 0, 16, 0, 0, 0, 0};
        for (int i = 0; i < 9; i++) set(&x, i, in[i]);
        call c = CALL(CF_OP_prod_bw, CFX_FLOAT32, 1, &dx, &dy, &x);
        CF_PARAMS(&c.head, reduce)->dims = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int i = 0; i < 9; i++) CHECK_NEAR(get(&dx, i), expected[i], 1e-5);
        drop(&x), drop(&dy), drop(&dx);
    }
}

TEST(a_sum_of_squares_can_be_added_to) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(200000)), y = scalar(CFX_FLOAT64);
        for (int64_t i = 0; i < 200000; i++) set(&x, i, 2);
        call c = CALL(CF_OP_sumsq, CFX_FLOAT32, 1, &y, &x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 800000);
        CF_PARAMS(&c.head, sumsq)->add = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 1600000);
        drop(&x), drop(&y);
    }
}

TEST(a_list_of_tensors_has_one_sum_of_squares) {
    enum { LIST = 130 };
    EACH_TABLE(t)
    for (int adds = 0; adds < 2; adds++) {
        static call list[LIST];
        tensor x[LIST], y = scalar(CFX_FLOAT64);
        double expected = adds ? 3 : 0;
        set(&y, 0, 3);
        for (int k = 0; k < LIST; k++) {
            begins = k % 4;
            x[k] = make(CFX_FLOAT16 + k % 4, SHAPE(k == 5 ? 90001 : k * 7 % 71));
            randomize(&x[k], -3, 3);
            for (int64_t e = 0; e < numel(&x[k]); e++) expected += get(&x[k], e) * get(&x[k], e);
            list[k] = CALL(CF_OP_sumsq, x[k].v.dtype, 1, &y, &x[k]);
            CF_PARAMS(&list[k].head, sumsq)->add = adds || k > 0;
            list[k].head.next = k < LIST - 1 ? sizeof *list : 0;
        }
        begins = 0;
        CHECK_STATUS(run(t, list), CFX_OK);
        const double first = get(&y, 0);
        CHECK_NEAR(first, expected, 1e-6 * expected);
        set(&y, 0, 3);
        CHECK_STATUS(run(t, list), CFX_OK);
        CHECK(get(&y, 0) == first);
        for (int k = 0; k < LIST; k++) drop(&x[k]);
        drop(&y);
    }
}

/* ---- losses -------------------------------------------------------------------------------------------------- */

static const int losses[] = {CF_OP_mse, CF_OP_mae, CF_OP_huber, CF_OP_bce};
static const int losses_bw[] = {CF_OP_mse_bw, CF_OP_mae_bw, CF_OP_huber_bw, CF_OP_bce_bw};

static double loss_meaning(int op, double x, double y, double delta) {
    const double d = x - y;
    switch (op) {
    case CF_OP_mse: return d * d;
    case CF_OP_mae: return fabs(d);
    case CF_OP_huber: return fabs(d) < delta ? d * d / 2 : delta * (fabs(d) - delta / 2);
    default: return fmax(x, 0) - x * y + log1p(exp(-fabs(x)));
    }
}

static void check_loss(const table *t, int k, int dtype, int reduction, enum layout layout, int64_t rows,
                       int64_t cols) {
    const int64_t shape[] = {rows, cols};
    tensor x = make_as(layout, dtype, 2, shape), y = make(dtype, 2, shape);
    tensor out = reduction ? scalar(dtype) : make_as(layout, dtype, 2, shape), dx = make_as(layout, dtype, 2, shape);
    tensor dy = reduction ? scalar(dtype) : make(dtype, 2, shape);
    randomize(&x, -3, 3), randomize(&y, 0, 1), randomize(&dy, 0.5, 1.5);
    const double delta = 0.75, n = (double)numel(&x);
    call c = CALL(losses[k], dtype, 1, &out, &x, &y);
    CF_PARAMS(&c.head, loss)->reduction = reduction;
    CF_PARAMS(&c.head, loss)->param = delta;
    CHECK_STATUS(run(t, &c), CFX_OK);
    double sum = 0;
    int bad = 0;
    for (int64_t i = 0; i < numel(&x); i++) {
        const double loss = loss_meaning(losses[k], get(&x, i), get(&y, i), delta);
        sum += loss;
        bad += !reduction && !close_to(dtype, get(&out, i), loss, 8);
    }
    const double units = n > 1000 ? 64 : 8; /* both sums round */
    if (reduction) CHECK(close_to(dtype, get(&out, 0), reduction == CFX_MEAN ? sum / n : sum, units));
    for (int of_y = 0; of_y < 2; of_y++) {
        c = CALL(losses_bw[k], dtype, 1, &dx, &dy, &x, &y);
        CF_PARAMS(&c.head, loss)->reduction = reduction;
        CF_PARAMS(&c.head, loss)->of_y = of_y;
        CF_PARAMS(&c.head, loss)->param = delta;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < numel(&x); i++) { /* against a difference quotient */
            const double a = get(&x, i), b = get(&y, i), h = 1e-6, g = reduction ? get(&dy, 0) : get(&dy, i);
            if (fabs(a - b) < 1e-5) continue;
            const double up = loss_meaning(losses[k], a + (of_y ? 0 : h), b + (of_y ? h : 0), delta);
            const double down = loss_meaning(losses[k], a - (of_y ? 0 : h), b - (of_y ? h : 0), delta);
            const double expected = g * (up - down) / (2 * h) / (reduction == CFX_MEAN ? n : 1);
            bad += fabs(get(&dx, i) - expected) >
                   (dtype < CFX_FLOAT32 ? 2e-2 : 2e-6) * (fabs(expected) + (reduction == CFX_MEAN ? 1 / n : 1));
        }
    }
    if (!CHECK_EQ(bad, 0))
        printf("# %s %s %s %d %d: [%lld, %lld] at %d\n", t->name, cf_op_table[losses[k]].name, cfx_dtype_name(dtype),
               reduction, layout, (long long)rows, (long long)cols, begins);
    drop(&x), drop(&y), drop(&out), drop(&dx), drop(&dy);
}

TEST(losses_and_their_gradients_follow_their_formulas) {
    EACH_TABLE(t)
    for (int k = 0; k < 4; k++)
        for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
            for (int reduction = CFX_NONE; reduction <= CFX_SUM; reduction++)
                for (enum layout layout = PACKED; layout < REPEATED; layout++)
                    check_loss(t, k, dtype, reduction, layout, 31, 19);
}

TEST(a_loss_is_right_wherever_its_tensors_begin_and_end) {
    EACH_TABLE(t)
    for (int k = 0; k < 4; k++)
        for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
            for (int reduction = CFX_NONE; reduction <= CFX_SUM; reduction++) {
                for (begins = 0; begins < 4; begins++) {
                    for (int64_t n = 1; n <= 70; n++) check_loss(t, k, dtype, reduction, PACKED, 1, n);
                    check_loss(t, k, dtype, reduction, PACKED, 3, 3003); /* more than a chunk */
                }
                begins = 0;
            }
}

TEST(a_loss_has_the_same_bits_with_every_team) {
    EACH_TABLE(t) for (int k = 0; k < 4; k++) {
        tensor x = make(CFX_FLOAT32, SHAPE(400, 999)), y = make_as(TURNED, CFX_FLOAT32, SHAPE(400, 999)),
               out = scalar(CFX_FLOAT32);
        randomize(&x, -3, 3), randomize(&y, 0, 1);
        float first = 0;
        for (int m = 0; m < TEAMS; m++) {
            call c = CALL(losses[k], CFX_FLOAT32, 1, &out, &x, &y);
            CF_PARAMS(&c.head, loss)->reduction = CFX_MEAN;
            CF_PARAMS(&c.head, loss)->param = 1;
            worker.threads = teams[m];
            CHECK_STATUS(run(t, &c), CFX_OK);
            if (!m) first = *(float *)out.memory;
            CHECK(memcmp(&first, out.memory, 4) == 0);
        }
        worker.threads = 2;
        drop(&x), drop(&y), drop(&out);
    }
}
