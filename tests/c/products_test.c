/* products_test.c: matrix products and the dense layer against plain sums of doubles. */
#include "test.h"

#include "machines.h"

static const int number_types[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16, CFX_INT32, CFX_INT64};
enum { NUMBER_TYPES = 6, FLOAT_TYPES = 4 };

/* y [.., n, m] <- a [.., n, k] b [.., k, m] for views of one rank whose batch dimensions are y's or 1. */
static int check_product(const machine *m, const cf_view *y, const cf_view *a, const cf_view *b, double before) {
    const int last = y->ndim - 1;
    const int64_t rows = y->shape[last - 1], cols = y->shape[last], k = a->shape[last];
    cf_view first = *a, second = *b;
    int64_t batch = 1;
    for (int d = 0; d < last - 1; d++) {
        batch *= y->shape[d];
        if (a->shape[d] == 1) first.stride[d] = 0;
        if (b->shape[d] == 1) second.stride[d] = 0;
        first.shape[d] = second.shape[d] = y->shape[d];
    }
    double *as = numbers_of(&first), *bs = numbers_of(&second);
    int good = 1;
    for (int64_t e = 0; e < batch * rows * cols && good; e++) {
        const double *row = as + e / cols * k, *column = bs + e / (rows * cols) * k * cols + e % cols;
        double sum = before, size = fabs(before);
        for (int64_t l = 0; l < k; l++) {
            const double term = row[l] * column[l * cols];
            sum += term;
            size += fabs(term);
        }
        good = near_at(m, y, e, sum, rounding(y->dtype, size));
    }
    free(as);
    free(bs);
    return good;
}

static void check_matmul(machine *m, int dtype, int64_t n, int64_t k, int64_t cols, pattern pa, pattern pb, pattern py,
                         int add) {
    cf_view a = MATRIX(dtype, pa, n, k), b = MATRIX(dtype, pb, k, cols), y = MATRIX(dtype, py, n, cols);
    fill_random(&a, -3, 3);
    fill_random(&b, -3, 3);
    fill(&y, add ? 2 : NAN);
    CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {y, a, b}, .params = &(cf_matmul_params){.add = add}), CFX_OK);
    if (!check_product(m, &y, &a, &b, add ? 2 : 0))
        printf("# [%lld, %lld] x [%lld, %lld], patterns %d %d %d\n", (long long)n, (long long)k, (long long)k,
               (long long)cols, pa, pb, py);
    free_views();
}

TEST(products_of_any_type_strides_and_small_shape_are_right) {
    static const int64_t sizes[] = {1, 2, 5, 17, 40};
    EACH_MACHINE(m) {
        for (int t = 0; t < NUMBER_TYPES; t++)
            for (int s = 0; s < 125; s++) {
                const int r = (int)(random_bits() % 64);
                check_matmul(m, number_types[t], sizes[s % 5], sizes[s / 5 % 5], sizes[s / 25], r % 4, r / 4 % 4,
                             r / 16, s & 1);
            }
    }
}

TEST(products_larger_than_a_block_are_right) {
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int t = 0; t < NUMBER_TYPES; t++) {
            check_matmul(m, number_types[t], 16, 300, 70, PACKED, TURNED, PACKED, 0);
            check_matmul(m, number_types[t], 205, 270, 33, TURNED, PACKED, PACKED, 1);
        }
        check_matmul(m, CFX_FLOAT64, 30, 40, 550, PADDED, TURNED, TURNED, 0);
        check_matmul(m, CFX_FLOAT32, 300, 16, 90, PACKED, PADDED, TURNED, 1);
    }
}

TEST(vectors_in_products_of_float32_take_the_short_way_and_are_right) {
    static const int64_t shapes[][3] = {{16, 1, 256}, {16, 256, 1}, {256, 16, 1},  {1, 16, 256}, {1, 300, 1},
                                        {70, 1, 1},   {1, 1, 70},   {1, 700, 600}, {600, 700, 1}};
    EACH_MACHINE(m) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            for (int p = 0; p < 9; p++)
                check_matmul(m, CFX_FLOAT32, shapes[s][0], shapes[s][1], shapes[s][2], p % 3, p / 3, PACKED, p & 1);
    }
}

TEST(batches_are_broadcast) {
    EACH_MACHINE(m) {
        for (int t = 0; t < NUMBER_TYPES; t++) {
            const int dtype = number_types[t];
            static const int64_t a_shapes[][4] = {{2, 3, 5, 7}, {1, 3, 5, 7}, {2, 1, 5, 7}, {1, 1, 5, 7}};
            static const int64_t b_shapes[][4] = {{2, 3, 7, 4}, {2, 1, 7, 4}, {1, 3, 7, 4}, {1, 1, 7, 4}};
            for (int s = 0; s < 16; s++)
                for (int c = 0; c < 2 * PATTERNS; c++) {
                    const int p = c % PATTERNS; /* each with its opposite, and with what libraries like */
                    cf_view a = view(dtype, p, 4, a_shapes[s % 4]),
                            b = view(dtype, c < PATTERNS ? PATTERNS - 1 - p : PACKED, 4, b_shapes[s / 4]);
                    int64_t shape[4] = {1, 1, 5, 4};
                    for (int d = 0; d < 2; d++) shape[d] = a.shape[d] > b.shape[d] ? a.shape[d] : b.shape[d];
                    cf_view y = view(dtype, c < PATTERNS ? p : PACKED, 4, shape);
                    fill_random(&a, -3, 3);
                    fill_random(&b, -3, 3);
                    CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {y, a, b}), CFX_OK);
                    if (!check_product(m, &y, &a, &b, 0)) printf("# broadcast %d, pattern %d\n", s, p);
                    if (p < PATTERNS - 1 && c != PATTERNS) continue;
                    for (int d = 0; d < 2; d++) { /* the same by strides of 0 */
                        if (a.shape[d] == 1) a.stride[d] = 0, a.shape[d] = shape[d];
                        if (b.shape[d] == 1) b.stride[d] = 0, b.shape[d] = shape[d];
                    }
                    fill(&y, 9);
                    CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {y, a, b}), CFX_OK);
                    if (!check_product(m, &y, &a, &b, 0)) printf("# repeated %d\n", s);
                }
            free_views();
        }
    }
}

TEST(products_of_bytes_and_of_other_types_than_their_result_are_right) {
    EACH_MACHINE(m) {
        cf_view a = MATRIX(CFX_UINT8, PACKED, 5, 7), b = MATRIX(CFX_UINT8, PACKED, 7, 3),
                y = MATRIX(CFX_UINT8, PACKED, 5, 3);
        fill_random(&a, 0, 5);
        fill_random(&b, 0, 5);
        CHECK_STATUS(RUN(m, CF_OP_matmul, CFX_UINT8, 1, .v = {y, a, b}), CFX_OK);
        check_product(m, &y, &a, &b, 0);
        cf_view wide = MATRIX(CFX_FLOAT64, PACKED, 5, 3), half = MATRIX(CFX_FLOAT16, TURNED, 7, 3);
        fill_random(&half, -2, 2);
        CHECK_STATUS(RUN(m, CF_OP_matmul, CFX_FLOAT64, 1, .v = {wide, a, half}), CFX_OK);
        check_product(m, &wide, &a, &half, 0);
    }
}

TEST(an_empty_sum_is_zero_and_an_empty_result_nothing) {
    EACH_MACHINE(m) {
        for (int t = 0; t < NUMBER_TYPES; t++) {
            const int dtype = number_types[t];
            cf_view a = MATRIX(dtype, PACKED, 3, 0), b = MATRIX(dtype, PACKED, 0, 2), y = MATRIX(dtype, PADDED, 3, 2);
            fill(&y, 5);
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {y, a, b}, .params = &(cf_matmul_params){.add = 1}),
                         CFX_OK);
            for (int e = 0; e < 6; e++) near_at(m, &y, e, 5, 0);
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {y, a, b}), CFX_OK);
            for (int e = 0; e < 6; e++) near_at(m, &y, e, 0, 0);
            cf_view none = MATRIX(dtype, PACKED, 0, 2), rows = MATRIX(dtype, PACKED, 0, 4),
                    c = MATRIX(dtype, PACKED, 4, 2);
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtype, 1, .v = {none, rows, c}), CFX_OK);
        }
    }
}

TEST(integer_products_wrap) {
    EACH_MACHINE(m) {
        cf_view a = MATRIX(CFX_INT64, PACKED, 1, 1), b = MATRIX(CFX_INT64, PACKED, 1, 1),
                y = MATRIX(CFX_INT64, PACKED, 1, 1);
        *(int64_t *)a.data = INT64_MAX;
        *(int64_t *)b.data = 2;
        CHECK_STATUS(RUN(m, CF_OP_matmul, CFX_INT64, 1, .v = {y, a, b}), CFX_OK);
        CHECK_EQ(*(int64_t *)y.data, -2);
    }
}

TEST(own_products_have_the_same_bits_with_any_team) {
    static const int dtypes[] = {CFX_FLOAT64, CFX_INT32, CFX_INT64};
    static uint64_t kept[3][2];
    EACH_MACHINE(m) {
        for (int t = 0; t < 3; t++) {
            cf_view a = MATRIX(dtypes[t], PACKED, 130, 270), b = MATRIX(dtypes[t], TURNED, 270, 75);
            cf_view y = MATRIX(dtypes[t], PACKED, 130, 75), ys = view(dtypes[t], PACKED, 3, (int64_t[]){9, 40, 30});
            cf_view as = view(dtypes[t], PACKED, 3, (int64_t[]){9, 40, 60}),
                    bs = view(dtypes[t], TURNED, 3, (int64_t[]){9, 60, 30});
            fill_random(&a, -9, 9);
            fill_random(&b, -9, 9);
            fill_random(&as, -9, 9);
            fill_random(&bs, -9, 9);
            if (dtypes[t] == CFX_FLOAT64) /* numbers whose sums are rounded */
                for (int64_t e = 0; e < cf_view_numel(&a); e++) set(&a, e, get(&a, e) / 3);
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtypes[t], 1, .v = {y, a, b}), CFX_OK);
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtypes[t], 1, .v = {ys, as, bs}), CFX_OK);
            same_as_alone(m, bits_of(&y), &kept[t][0]);
            same_as_alone(m, bits_of(&ys), &kept[t][1]);
        }
    }
}

TEST(a_product_run_twice_has_the_same_bits) {
    EACH_MACHINE(m) {
        cf_view a = MATRIX(CFX_FLOAT32, PACKED, 16, 512), b = MATRIX(CFX_FLOAT32, TURNED, 512, 256);
        cf_view y = MATRIX(CFX_FLOAT32, PACKED, 16, 256);
        fill_random(&a, -9, 9);
        fill_random(&b, -9, 9);
        for (int64_t e = 0; e < 16 * 512; e++) set(&a, e, get(&a, e) / 3);
        uint64_t bits = 0;
        for (int k = 0; k < 20; k++) {
            CHECK_STATUS(RUN(m, CF_OP_matmul, CFX_FLOAT32, 1, .v = {y, a, b}), CFX_OK);
            if (k == 0) bits = bits_of(&y);
            CHECK(bits == bits_of(&y));
        }
    }
}

TEST(long_sums_of_half_types_are_rounded_once) {
    static const int dtypes[] = {CFX_BFLOAT16, CFX_FLOAT16};
    EACH_MACHINE(m) {
        for (int t = 0; t < 2; t++) { /* of integers, so that the sums are exact in float32 */
            cf_view a = MATRIX(dtypes[t], PACKED, 5, 900), b = MATRIX(dtypes[t], PACKED, 900, 6);
            cf_view y = MATRIX(dtypes[t], PACKED, 5, 6), exact = MATRIX(dtypes[t], PACKED, 5, 6);
            for (int64_t e = 0; e < cf_view_numel(&a); e++) set(&a, e, random_bits() % 16);
            for (int64_t e = 0; e < cf_view_numel(&b); e++) set(&b, e, random_bits() % 16);
            for (int64_t i = 0; i < 5; i++)
                for (int64_t j = 0; j < 6; j++) {
                    double sum = 0;
                    for (int64_t l = 0; l < 900; l++) sum += get(&a, i * 900 + l) * get(&b, l * 6 + j);
                    set(&exact, i * 6 + j, sum);
                }
            CHECK_STATUS(RUN(m, CF_OP_matmul, dtypes[t], 1, .v = {y, a, b}), CFX_OK);
            for (int64_t e = 0; e < 30; e++) near_at(m, &y, e, get(&exact, e), 0);
        }
    }
}

/* ---- the dense layer */

static const int acts[] = {-1,        CF_OP_relu, CF_OP_leakyrelu, CF_OP_tanh, CF_OP_sigmoid,
                           CF_OP_elu, CF_OP_gelu, CF_OP_silu};
enum { ACTS = 8, FUSED_ACTS = 6 };

static double act_of(int act, double x, double p0) {
    switch (act) {
    case CF_OP_relu: return x > 0 ? x : 0;
    case CF_OP_leakyrelu: return x > 0 ? x : p0 * x;
    case CF_OP_tanh: return tanh(x);
    case CF_OP_sigmoid: return 1 / (1 + exp(-x));
    case CF_OP_elu: return x > 0 ? x : p0 * expm1(x);
    case CF_OP_gelu: return 0.5 * x * (1 + erf(x * sqrt(0.5)));
    case CF_OP_silu: return x / (1 + exp(-x));
    default: return x;
    }
}

static void check_dense(machine *m, int dtype, int act, int64_t n, int64_t in, int64_t out, pattern px, pattern pw,
                        pattern py, int biased) {
    cf_view x = MATRIX(dtype, px, n, in), w = MATRIX(dtype, pw, out, in), y = MATRIX(dtype, py, n, out);
    cf_view bias = view(dtype, px, 1, &out), none = {0};
    fill_random(&x, -1, 1);
    fill_random(&w, -1, 1);
    fill_random(&bias, -1, 1);
    fill(&y, NAN);
    CHECK_STATUS(RUN(m, CF_OP_dense, dtype, 1, .v = {y, x, w, biased ? bias : none},
                     .params = &(cf_dense_params){.act = act, .p = {0.25}}),
                 CFX_OK);
    double *xs = numbers_of(&x), *ws = numbers_of(&w);
    int good = 1;
    for (int64_t e = 0; e < n * out && good; e++) {
        const double *row = xs + e / out * in, *weights = ws + e % out * in;
        double sum = biased ? get(&bias, e % out) : 0, size = fabs(sum);
        for (int64_t l = 0; l < in; l++) {
            sum += row[l] * weights[l];
            size += fabs(row[l] * weights[l]);
        }
        /* Unfused activations see the sum in the half type. */
        good = near_at(m, &y, e, act_of(act, sum, 0.25), 2 * rounding(dtype, size + 1));
    }
    if (!good)
        printf("# act %d, %lld x %lld x %lld, patterns %d %d %d\n", act, (long long)n, (long long)in, (long long)out,
               px, pw, py);
    free(xs);
    free(ws);
    free_views();
}

TEST(dense_is_the_activation_of_product_and_bias) {
    static const int64_t shapes[][3] = {{16, 1, 70}, {3, 20, 5}, {16, 70, 1}, {20, 40, 50}, {1, 33, 9}};
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int k = 0; k < ACTS; k++)
                for (int s = 0; s < 5; s++) {
                    const int r = (int)(random_bits() % 64);
                    check_dense(m, number_types[t], acts[k], shapes[s][0], shapes[s][1], shapes[s][2], r % 4, r / 4 % 4,
                                r / 16, s != k % 5);
                    check_dense(m, number_types[t], acts[k], shapes[s][0], shapes[s][1], shapes[s][2], PACKED, PACKED,
                                PACKED, s == k % 5);
                }
    }
}

TEST(a_NaN_goes_through_dense_with_any_activation) {
    static const int64_t shapes[][3] = {{3, 5, 4}, {8, 64, 64}, {16, 256, 512}, {64, 200, 300}};
    static const double slopes[] = {0.25, 0, -0.0, 1e-60};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int c = 0; c < ACTS + 3; c++) {
                const int act = c < ACTS ? acts[c] : CF_OP_leakyrelu, s = (t + c) % 4;
                const int64_t n = shapes[s][0], in = shapes[s][1], out = shapes[s][2];
                const double slope = slopes[c < ACTS ? 0 : c - ACTS + 1];
                cf_view x = MATRIX(number_types[t], PACKED, n, in), w = MATRIX(number_types[t], PACKED, out, in);
                cf_view y = MATRIX(number_types[t], PACKED, n, out), bias = VECTOR(number_types[t], out);
                fill_random(&x, -1, 1);
                fill_random(&w, -1, 1);
                fill_random(&bias, -1, 1);
                set(&x, in + 2, NAN); /* of the second row */
                CHECK_STATUS(RUN(m, CF_OP_dense, number_types[t], 1, .v = {y, x, w, bias},
                                 .params = &(cf_dense_params){.act = act, .p = {slope}}),
                             CFX_OK);
                int64_t bad = 0;
                for (int64_t e = 0; e < n * out; e++) bad += isnan(get(&y, e)) != (e / out == 1);
                if (!CHECK_EQ(bad, 0)) printf("# %s, act %d, slope %g, shape %d\n", m->isa, act, slope, s);
                free_views();
            }
    }
}

TEST(a_bias_of_dense_may_begin_anywhere) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int act = 0; act < 2; act++) {
                const int dtype = number_types[t];
                cf_view x = MATRIX(dtype, PACKED, 6, 8), w = MATRIX(dtype, PACKED, 16, 8);
                cf_view y = MATRIX(dtype, PACKED, 6, 16), room = VECTOR(dtype, 32);
                fill_random(&x, -1, 1);
                fill_random(&w, -1, 1);
                fill_random(&room, -1, 1);
                for (int64_t from = 0; from < 16; from++) { /* the others lie where they lay */
                    cf_view bias = room;
                    bias.shape[0] = 16;
                    bias.data = address(&room, from);
                    fill(&y, NAN);
                    CHECK_STATUS(RUN(m, CF_OP_dense, dtype, 1, .v = {y, x, w, bias},
                                     .params = &(cf_dense_params){.act = acts[act]}),
                                 CFX_OK);
                    for (int64_t e = 0; e < 6 * 16; e++) {
                        double sum = get(&bias, e % 16);
                        for (int64_t l = 0; l < 8; l++) sum += get(&x, e / 16 * 8 + l) * get(&w, e % 16 * 8 + l);
                        if (!near_at(m, &y, e, act_of(acts[act], sum, 0), 2 * rounding(dtype, 9))) break;
                    }
                }
            }
    }
}

TEST(dense_without_inputs_is_the_activation_of_the_bias) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            check_dense(m, number_types[t], CF_OP_tanh, 3, 0, 5, PACKED, PACKED, PACKED, 1);
        check_dense(m, CFX_FLOAT32, -1, 3, 0, 5, PACKED, PACKED, PACKED, 0);
        check_dense(m, CFX_FLOAT32, CF_OP_relu, 0, 4, 5, PACKED, PACKED, PACKED, 1);
    }
}

static double slope_of(int act, double y, double p0) {
    switch (act) {
    case CF_OP_relu: return y > 0;
    case CF_OP_leakyrelu: return y > 0 ? 1 : p0;
    case CF_OP_tanh: return 1 - y * y;
    case CF_OP_sigmoid: return y * (1 - y);
    case CF_OP_elu: return y > 0 ? 1 : y + p0;
    default: return 1;
    }
}

static uint64_t check_dense_bw(machine *m, int dtype, int act, int64_t n, int64_t out, pattern p, int biased) {
    cf_view dpre = MATRIX(dtype, p, n, out), dbias = view(dtype, p, 1, &out), none = {0};
    cf_view dy = MATRIX(dtype, (p + 1) % PATTERNS, n, out), y = MATRIX(dtype, p, n, out);
    fill_random(&dy, -1, 1);
    fill_random(&y, -0.25, 1);
    fill(&dpre, 3);
    fill(&dbias, NAN);
    if (biased)
        CHECK_STATUS(RUN(m, CF_OP_dense_bw, dtype, 2, .v = {dpre, dbias, dy, y},
                         .params = &(cf_dense_params){.act = act, .p = {0.25}}),
                     CFX_OK);
    else
        CHECK_STATUS(RUN(m, CF_OP_dense_bw, dtype, 1, .v = {dpre, dy, y, none},
                         .params = &(cf_dense_params){.act = act, .p = {0.25}}),
                     CFX_OK);
    for (int64_t j = 0; j < out; j++) {
        double sum = 0, size = 0;
        for (int64_t i = 0; i < n; i++) {
            const double g = get(&dy, i * out + j) * slope_of(act, get(&y, i * out + j), 0.25);
            sum += g;
            size += fabs(g);
            if (!near_at(m, &dpre, i * out + j, act < 0 ? 3 : g, rounding(dtype, 1))) return 0;
        }
        if (biased && !near_at(m, &dbias, j, sum, rounding(dtype, size))) return 0;
    }
    return bits_of(&dbias) ^ bits_of(&dpre);
}

TEST(dense_backward_is_the_slope_at_the_output_and_its_column_sums) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int k = 0; k < FUSED_ACTS; k++)
                for (int p = 0; p < PATTERNS; p++) {
                    check_dense_bw(m, number_types[t], acts[k], 7, 300, p, (p + k) % 2);
                    check_dense_bw(m, number_types[t], acts[k], 600, 3, p, 1);
                    free_views();
                }
        check_dense_bw(m, CFX_FLOAT32, CF_OP_relu, 0, 5, PACKED, 1);
        check_dense_bw(m, CFX_FLOAT32, -1, 5, 0, PACKED, 1);
    }
}

TEST(a_NaN_goes_back_through_dense_with_any_activation) {
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int t = 0; t < FLOAT_TYPES; t++)
            for (int k = 0; k < FUSED_ACTS; k++) {
                const int64_t n = 7, out = 64;
                cf_view dpre = MATRIX(number_types[t], PACKED, n, out), dbias = VECTOR(number_types[t], out);
                cf_view dy = MATRIX(number_types[t], PACKED, n, out), y = MATRIX(number_types[t], PACKED, n, out);
                fill_random(&dy, -1, 1);
                fill_random(&y, -0.25, 1);
                set(&dy, 2 * out + 5, NAN);
                set(&y, 2 * out + 5, NAN);
                CHECK_STATUS(RUN(m, CF_OP_dense_bw, number_types[t], 2, .v = {dpre, dbias, dy, y},
                                 .params = &(cf_dense_params){.act = acts[k], .p = {0.25}}),
                             CFX_OK);
                int64_t bad = 0;
                for (int64_t e = 0; acts[k] >= 0 && e < n * out; e++) bad += isnan(get(&dpre, e)) != (e == 2 * out + 5);
                for (int64_t j = 0; j < out; j++) bad += isnan(get(&dbias, j)) != (j == 5);
                if (!CHECK_EQ(bad, 0)) printf("# %s, act %d, type %d\n", m->isa, acts[k], number_types[t]);
                free_views();
            }
    }
}

TEST(dense_backward_is_right_wherever_its_columns_lie) {
    static const int64_t columns[] = {1, 31, 32, 33, 64, 66, 68, 127, 128, 129, 132, 136, 260, 264, 520};
    EACH_MACHINE(m) {
        for (begins = 0; begins < 4; begins++)
            for (size_t k = 0; k < sizeof columns / sizeof *columns; k++)
                for (int t = 0; t < FLOAT_TYPES; t++) {
                    check_dense_bw(m, number_types[t], acts[(k + (size_t)t) % FUSED_ACTS], 70, columns[k], PACKED, 1);
                    if (!CHECK(edges_are_kept())) printf("# %d columns at %d\n", (int)columns[k], begins);
                    free_views();
                }
        begins = -1;
    }
}

TEST(dense_backward_has_the_same_bits_with_any_team) {
    static uint64_t kept[3];
    EACH_MACHINE(m) {
        same_as_alone(m, check_dense_bw(m, CFX_FLOAT32, CF_OP_tanh, 3000, 37, PACKED, 1), &kept[0]);
        same_as_alone(m, check_dense_bw(m, CFX_FLOAT32, CF_OP_tanh, 130, 900, PACKED, 1), &kept[1]);
        same_as_alone(m, check_dense_bw(m, CFX_FLOAT64, -1, 3000, 37, PACKED, 1), &kept[2]);
    }
}
