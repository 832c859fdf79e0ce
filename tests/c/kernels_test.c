/* kernels_test.c: the elementwise rows against plain double arithmetic, in every instruction set this machine has. */
#include "test.h"

#include "kernels.h"

static double sign_of(double x) { return x > 0 ? 1 : x < 0 ? -1 : x; }
static double sigmoid_of(double x) { return 1 / (1 + exp(-x)); }
static double gelu_cdf(double x) { return 0.5 * erfc(-x / sqrt(2)); }

/* The result for operands a, b, c and numbers p0, p1. */
static double meaning(int op, double a, double b, double c, double p0, double p1) {
    switch (op) {
    case CF_OP_neg: return -a;
    case CF_OP_sign: return sign_of(a);
    case CF_OP_round: return nearbyint(a);
    case CF_OP_floor: return floor(a);
    case CF_OP_lnot: return a == 0;
    case CF_OP_abs: return fabs(a);
    case CF_OP_abs_bw: return a * sign_of(b);
    case CF_OP_square: return a * a;
    case CF_OP_square_bw: return 2 * a * b;
    case CF_OP_clamp: return fmin(fmax(a, p0), p1);
    case CF_OP_clamp_bw: return b > p0 && b < p1 ? a : 0;
    case CF_OP_relu: return a > 0 ? a : 0;
    case CF_OP_relu_bw: return b > 0 ? a : 0;
    case CF_OP_leakyrelu: return a > 0 ? a : p0 * a;
    case CF_OP_leakyrelu_bw: return b > 0 ? a : p0 * a;
    case CF_OP_elu: return a > 0 ? a : p0 * expm1(a);
    case CF_OP_elu_bw: return b > 0 ? a : a * p0 * exp(b);
    case CF_OP_gelu: return a * gelu_cdf(a);
    case CF_OP_gelu_bw: return a * (gelu_cdf(b) + b * exp(-b * b / 2) / sqrt(2 * M_PI));
    case CF_OP_silu: return a * sigmoid_of(a);
    case CF_OP_silu_bw: return a * sigmoid_of(b) * (1 + b * (1 - sigmoid_of(b)));
    case CF_OP_softplus: return log1p(exp(a));
    case CF_OP_softplus_bw: return a * sigmoid_of(b);
    case CF_OP_tanh: return tanh(a);
    case CF_OP_tanh_bw: return a * (1 - b * b);
    case CF_OP_sigmoid: return sigmoid_of(a);
    case CF_OP_sigmoid_bw: return a * b * (1 - b);
    case CF_OP_exp: return exp(a);
    case CF_OP_exp_bw: return a * b;
    case CF_OP_log: return log(a);
    case CF_OP_log_bw: return a / b;
    case CF_OP_sqrt: return sqrt(a);
    case CF_OP_sqrt_bw: return a / (2 * b);
    case CF_OP_rsqrt: return 1 / sqrt(a);
    case CF_OP_rsqrt_bw: return -0.5 * a * b * b * b;
    case CF_OP_sin: return sin(a);
    case CF_OP_sin_bw: return a * cos(b);
    case CF_OP_cos: return cos(a);
    case CF_OP_cos_bw: return -a * sin(b);
    case CF_OP_erf: return erf(a);
    case CF_OP_erf_bw: return a * 2 / sqrt(M_PI) * exp(-b * b);
    case CF_OP_add: return a + b;
    case CF_OP_sub: return a - b;
    case CF_OP_mul: return a * b;
    case CF_OP_div: return a / b;
    case CF_OP_pow: return pow(a, b);
    case CF_OP_maximum: return fmax(a, b);
    case CF_OP_minimum: return fmin(a, b);
    case CF_OP_eq: return a == b;
    case CF_OP_ne: return a != b;
    case CF_OP_lt: return a < b;
    case CF_OP_le: return a <= b;
    case CF_OP_gt: return a > b;
    case CF_OP_ge: return a >= b;
    case CF_OP_land: return a != 0 && b != 0;
    case CF_OP_lor: return a != 0 || b != 0;
    case CF_OP_where: return a != 0 ? b : c;
    case CF_OP_div_db: return -a * b / (c * c);
    case CF_OP_pow_da: return c == 0 ? 0 : a * c * pow(b, c - 1);
    case CF_OP_pow_db: return b == 0 && c >= 0 ? 0 : a * pow(b, c) * log(b);
    case CF_OP_maximum_da: return b > c ? a : b == c ? a / 2 : 0;
    case CF_OP_minimum_da: return b < c ? a : b == c ? a / 2 : 0;
    default: return 0.0 / 0.0;
    }
}

static int arity_of(int op) {
    const cf_family family = cf_op_table[op].family;
    return family == CF_UNARY ? 1 : family == CF_BINARY ? 2 : family == CF_TERNARY ? 3 : 0;
}

static int result_dtype(int op, int dtype) { return cf_op_table[op].domain == CF_TRUTH ? CFX_BOOL : dtype; }

/* Operands on which a row is defined and well-conditioned. */
static void fill_operands(int op, tensor *x, int n) {
    for (int k = 0; k < n; k++) {
        const int positive = op == CF_OP_log || op == CF_OP_sqrt || op == CF_OP_rsqrt || op == CF_OP_log_bw ||
                             op == CF_OP_sqrt_bw || op == CF_OP_div || op == CF_OP_div_db || op == CF_OP_pow_da ||
                             op == CF_OP_pow_db || op == CF_OP_pow;
        randomize(&x[k], positive ? 0.25 : -3, positive ? 2 : 3);
    }
}

#define EACH_ELEMENTWISE(op, dtype)                                      \
    for (int op = 0; op < CF_OPS; op++)                                  \
        for (int dtype = 0; arity_of(op) && dtype < CFX_DTYPES; dtype++) \
            if (takes(op, dtype))

static call elementwise(int op, int dtype, const tensor *y, const tensor *x) {
    const tensor *t[] = {y, &x[0], &x[1], &x[2]};
    const cf_formula_params numbers = {.p = {op == CF_OP_clamp || op == CF_OP_clamp_bw ? -1 : 0.5, 1}};
    call c = call_of(op, dtype, 1, arity_of(op), t);
    memcpy(cf_call_params(&c.head), &numbers, sizeof numbers);
    return c;
}

TEST(every_elementwise_row_means_what_its_formula_says_in_every_dtype) {
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        tensor x[3], y = make(result_dtype(op, dtype), SHAPE(67));
        for (int k = 0; k < 3; k++) x[k] = make(dtype, SHAPE(67));
        fill_operands(op, x, 3);
        const call c = elementwise(op, dtype, &y, x);
        const double *p = CF_PARAMS(&c.head, formula)->p;
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        for (int64_t i = 0; i < 67; i++) {
            const double a = get(&x[0], i), b = get(&x[1], i), w = get(&x[2], i);
            double expected = meaning(op, a, b, w, p[0], p[1]);
            uint64_t memory = 0; /* as the dtype holds it: integers wrap */
            store(y.v.dtype, &memory, expected);
            if (!cf_is_float(y.v.dtype)) expected = load(y.v.dtype, &memory);
            if (close_to(dtype, get(&y, i), expected, 12) || bad++) continue;
            printf("# %s %s %s: (%g, %g, %g) gives %.9g, not %.9g\n", t->name, cf_op_table[op].name,
                   cfx_dtype_name(dtype), a, b, w, get(&y, i), expected);
        }
        CHECK_EQ(bad, 0);
        for (int k = 0; k < 3; k++) drop(&x[k]);
        drop(&y);
    }
}

TEST(an_elementwise_result_has_the_same_bits_wherever_its_element_lies) {
    static const int64_t shapes[][3] = {{1, 1, 1},   {1, 3, 5},  {1, 1, 17},  {3, 5, 7},
                                        {2, 1, 511}, {5, 41, 5}, {2, 700, 1}, {1, 1, 5003}};
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        const int arity = arity_of(op);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            tensor packed[3] = {0}, plain = make(result_dtype(op, dtype), 3, shapes[s]);
            for (int k = 0; k < arity; k++) packed[k] = make(dtype, 3, shapes[s]);
            fill_operands(op, packed, arity);
            for (enum layout layout = REVERSED; layout < LAYOUTS; layout++) {
                tensor x[3] = {0}, y = make_as(layout == REPEATED ? PACKED : layout, plain.v.dtype, 3, shapes[s]);
                for (int k = 0; k < arity; k++) {
                    x[k] = make_as(k == 1 && layout != REPEATED ? PACKED : layout, dtype, 3, shapes[s]);
                    for (int64_t i = 0; i < numel(&plain); i++) set(&x[k], i, get(&packed[k], i));
                    for (int64_t i = 0; i < numel(&plain); i++) set(&packed[k], i, get(&x[k], i));
                }
                call c = elementwise(op, dtype, &plain, packed);
                CHECK_STATUS(run(t, &c), CFX_OK);
                c = elementwise(op, dtype, &y, x);
                CHECK_STATUS(run(t, &c), CFX_OK);
                if (!CHECK(same_elements(&y, &plain)))
                    printf("# %s %s %s layout %d shape %zu\n", t->name, cf_op_table[op].name, cfx_dtype_name(dtype),
                           layout, s);
                /* An element of its own has the bits that it had among the others. */
                const int64_t last = numel(&plain) - 1;
                tensor one[3] = {0}, alone = make(plain.v.dtype, SHAPE(1));
                for (int k = 0; k < arity; k++) {
                    one[k] = make(dtype, SHAPE(1));
                    memcpy(one[k].memory, element(&packed[k].v, last), sizes[dtype]);
                }
                c = elementwise(op, dtype, &alone, one);
                CHECK_STATUS(run(t, &c), CFX_OK);
                CHECK(memcmp(alone.memory, element(&plain.v, last), sizes[plain.v.dtype]) == 0);
                for (int k = 0; k < arity; k++) drop(&one[k]), drop(&x[k]);
                drop(&alone), drop(&y);
            }
            for (int k = 0; k < arity; k++) drop(&packed[k]);
            drop(&plain);
        }
    }
}

TEST(elementwise_rows_give_the_same_bits_with_every_team) {
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        if (dtype != CFX_FLOAT32 && dtype != CFX_BFLOAT16 && dtype != CFX_INT32) continue;
        const int arity = arity_of(op);
        tensor x[3] = {0}, y[TEAMS];
        for (int k = 0; k < arity; k++) x[k] = make(dtype, SHAPE(130003));
        fill_operands(op, x, arity);
        for (int k = 0; k < TEAMS; k++) {
            y[k] = make(result_dtype(op, dtype), SHAPE(130003));
            const call c = elementwise(op, dtype, &y[k], x);
            worker.threads = teams[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(memcmp(y[0].memory, y[k].memory, y[0].bytes) == 0);
        }
        worker.threads = 2;
        for (int k = 0; k < arity; k++) drop(&x[k]);
        for (int k = 0; k < TEAMS; k++) drop(&y[k]);
    }
}

TEST(a_number_stands_for_the_operand_that_is_missing) {
    EACH_TABLE(t) {
        tensor x = VALUES(CFX_FLOAT32, 1, 2, 4), z = VALUES(CFX_FLOAT32, 3, 5, 7), y = make(CFX_FLOAT32, SHAPE(3));
        call c = CALL(CF_OP_sub, CFX_FLOAT32, 1, &y, &x);
        CF_PARAMS(&c.head, formula)->p[0] = 10;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 2), -6);
        CF_PARAMS(&c.head, formula)->reversed = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 2), 6);
        c = CALL(CF_OP_maximum_da, CFX_FLOAT32, 1, &y, &x, &z);
        CF_PARAMS(&c.head, formula)->p[0] = 5;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 0);
        CHECK_EQ(get(&y, 1), 1);
        CHECK_EQ(get(&y, 2), 4);
        const double powers[] = {2, 3, 1, 0.5, -1, 2.5, 0};
        for (size_t k = 0; k < sizeof powers / sizeof *powers; k++) {
            c = CALL(CF_OP_pow, CFX_FLOAT32, 1, &y, &z);
            CF_PARAMS(&c.head, formula)->p[0] = powers[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(close_to(CFX_FLOAT32, get(&y, 1), pow(5, powers[k]), 4));
            c = CALL(CF_OP_pow_da, CFX_FLOAT32, 1, &y, &x, &z);
            CF_PARAMS(&c.head, formula)->p[0] = powers[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(close_to(CFX_FLOAT32, get(&y, 1), 2 * powers[k] * pow(5, powers[k] - 1), 4));
        }
        drop(&x), drop(&y), drop(&z);
    }
}

TEST(an_operand_may_be_the_result) {
    EACH_TABLE(t) {
        for (enum layout layout = PACKED; layout < REPEATED; layout++) {
            tensor x = make_as(layout, CFX_FLOAT32, SHAPE(37, 29)), z = make(CFX_FLOAT32, SHAPE(37, 29));
            randomize(&x, -2, 2), randomize(&z, -2, 2);
            const double a = get(&x, 1000), b = get(&z, 1000);
            call c = CALL(CF_OP_sub, CFX_FLOAT32, 1, &x, &x, &z);
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_EQ(get(&x, 1000) == (float)(a - b), 1);
            c = CALL(CF_OP_mul, CFX_FLOAT32, 1, &x, &z, &x);
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_NEAR(get(&x, 1000), b * (a - b), 1e-6);
            drop(&x), drop(&z);
        }
    }
}

TEST(smaller_operands_are_broadcast) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(70, 3)), row = VALUES(CFX_INT32, 1, 2, 3),
               y = make(CFX_FLOAT32, SHAPE(70, 3));
        tensor column = make(CFX_FLOAT64, SHAPE(70, 1));
        randomize(&x, -1, 1), randomize(&column, -1, 1);
        call c = CALL(CF_OP_add, CFX_FLOAT32, 1, &y, &x, &row);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 210; i++) CHECK_NEAR(get(&y, i), get(&x, i) + get(&row, i % 3), 1e-6);
        c = CALL(CF_OP_mul, CFX_FLOAT32, 1, &y, &column, &row);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 210; i++) CHECK_NEAR(get(&y, i), get(&column, i / 3) * get(&row, i % 3), 1e-6);
        drop(&x), drop(&row), drop(&y), drop(&column);
    }
}

TEST(an_empty_tensor_is_left_alone) {
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        tensor x[3], y = make(result_dtype(op, dtype), SHAPE(4, 0));
        for (int k = 0; k < 3; k++) x[k] = make(dtype, SHAPE(4, 0));
        const call c = elementwise(op, dtype, &y, x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int k = 0; k < 3; k++) drop(&x[k]);
        drop(&y);
    }
}

TEST(a_nan_goes_through) {
    static const int ops[] = {CF_OP_neg,      CF_OP_sign,    CF_OP_round,     CF_OP_floor, CF_OP_abs,  CF_OP_square,
                              CF_OP_clamp,    CF_OP_relu,    CF_OP_leakyrelu, CF_OP_elu,   CF_OP_gelu, CF_OP_silu,
                              CF_OP_softplus, CF_OP_tanh,    CF_OP_sigmoid,   CF_OP_exp,   CF_OP_log,  CF_OP_sqrt,
                              CF_OP_rsqrt,    CF_OP_sin,     CF_OP_cos,       CF_OP_erf,   CF_OP_add,  CF_OP_mul,
                              CF_OP_div,      CF_OP_maximum, CF_OP_minimum};
    EACH_TABLE(t)
    for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
        for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
            for (int place = 0; place < 2; place++) {
                tensor x[3], y = make(dtype, SHAPE(20));
                for (int m = 0; m < 3; m++) {
                    x[m] = make(dtype, SHAPE(20));
                    randomize(&x[m], 0.5, 1);
                }
                set(&x[arity_of(ops[k]) == 2 ? place : 0], 18, NAN);
                const call c = elementwise(ops[k], dtype, &y, x);
                CHECK_STATUS(run(t, &c), CFX_OK);
                if (!CHECK(isnan(get(&y, 18)) && !isnan(get(&y, 17)))) printf("# %s\n", cf_op_table[ops[k]].name);
                for (int m = 0; m < 3; m++) drop(&x[m]);
                drop(&y);
            }
}

TEST(functions_reach_their_limits) {
    EACH_TABLE(t) for (int dtype = CFX_FLOAT32; dtype < CFX_DTYPES; dtype++) {
        tensor x = VALUES(dtype, -INFINITY, -1000, -20, 20, 1000, INFINITY), y = make(dtype, SHAPE(6));
        static const int ops[] = {CF_OP_tanh, CF_OP_sigmoid, CF_OP_exp, CF_OP_softplus, CF_OP_erf, CF_OP_elu};
        for (size_t k = 0; k < sizeof ops / sizeof *ops; k++) {
            call c = CALL(ops[k], dtype, 1, &y, &x);
            CF_PARAMS(&c.head, formula)->p[0] = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            for (int i = 0; i < 6; i++) {
                const double a = get(&x, i);
                double expected = ops[k] == CF_OP_softplus && a > 100 ? a : meaning(ops[k], a, 0, 0, 1, 0);
                if (dtype == CFX_FLOAT32) expected = (float)expected;
                if (!CHECK(close_to(dtype, get(&y, i), expected, 4)))
                    printf("# %s %s(%g) = %g, not %g\n", t->name, cf_op_table[ops[k]].name, a, get(&y, i), expected);
            }
        }
        drop(&x), drop(&y);
    }
}

TEST(integers_wrap_and_their_powers_are_exact) {
    EACH_TABLE(t) {
        tensor a = VALUES(CFX_INT64, 3, -2, 1, -1, -1, 2, 0), b = VALUES(CFX_INT64, 39, 3, -5, -3, -4, -1, 0);
        tensor y = make(CFX_INT64, SHAPE(7)), narrow = make(CFX_UINT8, SHAPE(7));
        call c = CALL(CF_OP_pow, CFX_INT64, 1, &y, &a, &b);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(((int64_t *)y.memory)[0] == INT64_C(4052555153018976267));
        const double rest[] = {-8, 1, -1, 1, 0, 1};
        for (int i = 0; i < 6; i++) CHECK_EQ(get(&y, i + 1), rest[i]);
        c = CALL(CF_OP_neg, CFX_UINT8, 1, &narrow, &a);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&narrow, 0), 253);
        drop(&a), drop(&b), drop(&y), drop(&narrow);
    }
}

TEST(a_condition_is_what_is_not_zero) {
    EACH_TABLE(t) {
        tensor c = VALUES(CFX_FLOAT32, 0.1, 0, -0.5), a = VALUES(CFX_INT64, 1, 2, 3), b = VALUES(CFX_INT64, 4, 5, 6);
        tensor y = make(CFX_INT64, SHAPE(3)), truth = make(CFX_BOOL, SHAPE(3));
        call w = CALL(CF_OP_where, CFX_INT64, 1, &y, &c, &a, &b);
        CHECK_STATUS(run(t, &w), CFX_OK);
        CHECK_EQ(get(&y, 0), 1);
        CHECK_EQ(get(&y, 1), 5);
        CHECK_EQ(get(&y, 2), 3);
        w = CALL(CF_OP_land, CFX_INT64, 1, &truth, &c, &a);
        CHECK_STATUS(run(t, &w), CFX_OK);
        CHECK_EQ(get(&truth, 0), 1);
        CHECK_EQ(get(&truth, 1), 0);
        drop(&c), drop(&a), drop(&b), drop(&y), drop(&truth);
    }
}

TEST(half_types_are_converted_exactly_and_rounded_to_even) {
    EACH_TABLE(t) for (int dtype = CFX_FLOAT16; dtype <= CFX_BFLOAT16; dtype++) {
        const int mantissa = dtype == CFX_FLOAT16 ? 10 : 7;
        tensor half = make(dtype, SHAPE(65536)), single = make(CFX_FLOAT32, SHAPE(65536)),
               back = make(dtype, SHAPE(65536));
        for (int i = 0; i < 65536; i++) ((uint16_t *)half.memory)[i] = (uint16_t)i;
        call c = CALL(CF_OP_copy, dtype, 1, &single, &half);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        for (int i = 0; i < 65536; i++) {
            const double expected = half_value((uint16_t)i, mantissa), got = get(&single, i);
            bad += isnan(expected) ? !isnan(got) : got != expected || signbit(got) != signbit(expected);
        }
        CHECK_EQ(bad, 0);
        for (int i = 0; i < 65536; i++) { /* all over the floats, the middles between neighbours among them */
            uint32_t w[4], bits;
            cf_philox(7, 7, (uint64_t)i, w);
            bits = i % 3 ? w[0] : (w[0] & 0xFFFFE000u) | (i % 2 ? 0x1000 : 0);
            if (i % 5 == 0) bits = (bits & 0xFFFF8000u) | 0x8000;
            memcpy(single.memory + 4 * i, &bits, 4);
        }
        c = CALL(CF_OP_copy, dtype, 1, &back, &single);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int i = 0; i < 65536; i++) {
            const double x = get(&single, i), got = get(&back, i);
            bad += isnan(x) ? !isnan(got) : ((uint16_t *)back.memory)[i] != half_bits(x, mantissa);
        }
        CHECK_EQ(bad, 0);
        drop(&half), drop(&single), drop(&back);
    }
}
