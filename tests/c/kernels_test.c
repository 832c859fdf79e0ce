/* kernels_test.c: the CPU kernels against plain double arithmetic, in every instruction set this machine has. */
#include "test.h"

#include <stdlib.h>

#include "base/rng.h"
#include "cpu/cpu.h"

/* ---- tensors: memory with a view over it ------------------------------------------------------------------- */

typedef struct tensor {
    cf_view v;
    char *memory;
    size_t bytes;
} tensor;

static const size_t sizes[CFX_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8};

/* A half type's value, by its definition. */
static double half_value(uint16_t bits, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const int e = bits >> mantissa & ((1 << exponents) - 1), m = bits & ((1 << mantissa) - 1);
    const double sign = bits >> 15 ? -1 : 1;
    if (e == (1 << exponents) - 1) return m ? NAN : sign * INFINITY;
    return sign * ldexp(e ? m + (1 << mantissa) : m, (e ? e : 1) - bias - mantissa);
}

static uint16_t half_bits(double x, int mantissa) {
    const int exponents = 15 - mantissa, bias = (1 << (exponents - 1)) - 1;
    const uint16_t sign = signbit(x) ? 0x8000 : 0, infinite = (uint16_t)(((1 << exponents) - 1) << mantissa);
    if (isnan(x)) return (uint16_t)(sign | infinite | 1 << (mantissa - 1));
    if (x == 0) return sign;
    int e = isinf(x) ? 1000 : ilogb(x);
    if (e < 1 - bias) e = 1 - bias;
    if (e > bias) return sign | infinite;
    const double units = rint(ldexp(fabs(x), mantissa - e)); /* rounds half to even */
    return (uint16_t)(sign | ((int)units + ((e + bias - 1) << mantissa))); /* a carry moves the exponent */
}

static double load(int dtype, const void *p) {
    switch (dtype) {
    case CFX_BOOL: return *(const uint8_t *)p != 0;
    case CFX_UINT8: return *(const uint8_t *)p;
    case CFX_INT32: return *(const int32_t *)p;
    case CFX_INT64: return (double)*(const int64_t *)p;
    case CFX_FLOAT16: return half_value(*(const uint16_t *)p, 10);
    case CFX_BFLOAT16: return half_value(*(const uint16_t *)p, 7);
    case CFX_FLOAT32: return *(const float *)p;
    default: return *(const double *)p;
    }
}

static void store(int dtype, void *p, double x) {
    switch (dtype) {
    case CFX_BOOL: *(uint8_t *)p = x != 0; break;
    case CFX_UINT8: *(uint8_t *)p = (uint8_t)(int64_t)x; break;
    case CFX_INT32: *(int32_t *)p = (int32_t)(int64_t)x; break;
    case CFX_INT64: *(int64_t *)p = (int64_t)x; break;
    case CFX_FLOAT16: *(uint16_t *)p = half_bits((float)x, 10); break;
    case CFX_BFLOAT16: *(uint16_t *)p = half_bits((float)x, 7); break;
    case CFX_FLOAT32: *(float *)p = (float)x; break;
    default: *(double *)p = x; break;
    }
}

static char *element(const cf_view *v, int64_t index) {
    int64_t offset = 0;
    for (int d = v->ndim - 1; d >= 0; d--) {
        offset += index % v->shape[d] * v->stride[d];
        index /= v->shape[d];
    }
    return (char *)v->data + offset * (int64_t)sizes[v->dtype];
}
static double get(const tensor *t, int64_t index) { return load(t->v.dtype, element(&t->v, index)); }
static void set(tensor *t, int64_t index, double x) { store(t->v.dtype, element(&t->v, index), x); }
static int64_t numel(const tensor *t) { return cf_view_numel(&t->v); }

/* How the elements of a shape lie. */
enum layout { PACKED, REVERSED, TURNED, SPREAD, REPEATED, LAYOUTS };

static tensor make_as(enum layout layout, int dtype, int ndim, const int64_t *shape) {
    tensor t = {.v = {.dtype = dtype, .ndim = ndim}};
    int64_t step = layout == SPREAD ? 3 : 1;
    for (int k = 0; k < ndim; k++) {
        const int d = layout == TURNED ? k : ndim - 1 - k;
        t.v.shape[d] = shape[d];
        t.v.stride[d] = layout == REPEATED && d == 0 ? 0 : step;
        if (t.v.stride[d]) step *= shape[d];
    }
    t.bytes = (size_t)(step ? step : 1) * sizes[dtype] + 64;
    t.memory = calloc(1, t.bytes);
    t.v.data = t.memory;
    if (layout == REVERSED)
        for (int d = 0; d < ndim; d++) {
            if (shape[d]) t.v.data = (char *)t.v.data + (shape[d] - 1) * t.v.stride[d] * (int64_t)sizes[dtype];
            t.v.stride[d] = -t.v.stride[d];
        }
    return t;
}
#define SHAPE(...) (int)(sizeof((int64_t[]){__VA_ARGS__}) / 8), (const int64_t[]){__VA_ARGS__}
static tensor make(int dtype, int ndim, const int64_t *shape) { return make_as(PACKED, dtype, ndim, shape); }
static tensor scalar(int dtype) { return make(dtype, 0, NULL); }

static tensor values(int dtype, int n, const double *x) {
    const int64_t shape[] = {n};
    tensor t = make(dtype, 1, shape);
    for (int i = 0; i < n; i++) set(&t, i, x[i]);
    return t;
}
#define VALUES(dtype, ...) \
    values(dtype, (int)(sizeof((double[]){__VA_ARGS__}) / sizeof(double)), (double[]){__VA_ARGS__})

static uint64_t seed = 20240607;
static double uniform(double low, double high) {
    uint32_t w[4];
    cf_philox(1, 2, seed++, w);
    return low + (high - low) * cf_uniform_f64(w[0], w[1]);
}

static void randomize(tensor *t, double low, double high) {
    const int is_float = cf_is_float(t->v.dtype);
    for (int64_t i = 0; i < numel(t); i++) {
        const double x = uniform(low, high);
        set(t, i, is_float ? x : t->v.dtype <= CFX_UINT8 ? fabs(rint(x)) : rint(x));
    }
}

static void drop(tensor *t) { free(t->memory); }

/* ---- calls ------------------------------------------------------------------------------------------------- */

typedef struct table {
    const char *name;
    const cf_kernel *kernels;
} table;

static const table *tables(void) {
    static table list[4];
    int n = 0;
    list[n++] = (table){"base", cf_cpu_kernels_base};
#ifdef __x86_64__
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        list[n++] = (table){"avx2", cf_cpu_kernels_avx2};
    if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
        list[n++] = (table){"avx512", cf_cpu_kernels_avx512};
#endif
    list[n] = (table){0};
    return list;
}
#define EACH_TABLE(t) for (const table *t = tables(); t->name; t++)

static cf_worker worker = {.threads = 2};
static const int teams[] = {1, 2, 3, 7};

/* A call with room for its views, and the data behind them. */
typedef union call {
    cf_call head;
    char room[sizeof(cf_call) + 6 * sizeof(cf_view) + 64];
} call;

static call call_of(int op, int dtype, int nout, int nin, const tensor *const *t) {
    call c = {.room = {0}};
    c.head.op = (uint16_t)op;
    c.head.nout = (uint8_t)nout;
    c.head.nin = (uint8_t)nin;
    c.head.dtype = (uint8_t)dtype;
    for (int k = 0; k < nout + nin; k++) memcpy(c.room + cf_call_bytes(k, 0), &t[k]->v, sizeof(cf_view));
    return c;
}
#define CALL(op, dtype, nout, ...)                                                                            \
    call_of(op, dtype, nout, (int)(sizeof((const tensor *[]){__VA_ARGS__}) / sizeof(tensor *)) - (nout),      \
            (const tensor *[]){__VA_ARGS__})
static cfx_status run(const table *t, const call *c) { return t->kernels[c->head.op](&worker, &c->head); }

/* |got - expected| within what the dtype can tell apart, times `units`. */
static int close_to(int dtype, double got, double expected, double units) {
    static const double unit[CFX_DTYPES] = {0, 0, 0, 0, 1e-3, 8e-3, 2.5e-7, 5e-16};
    static const double tiny[CFX_DTYPES] = {0, 0, 0, 0, 1e-6, 1e-6, 1e-7, 1e-15};
    if (isnan(expected) || isnan(got)) return isnan(expected) && isnan(got);
    if (got == expected) return 1;
    return fabs(got - expected) <= units * (unit[dtype] * fabs(expected) + tiny[dtype]);
}

static int same_elements(const tensor *a, const tensor *b) {
    for (int64_t i = 0; i < numel(a); i++)
        if (memcmp(element(&a->v, i), element(&b->v, i), sizes[a->v.dtype])) return 0;
    return 1;
}

/* ---- elementwise: what each row means ------------------------------------------------------------------------ */

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
    case CF_OP_clamp_bw: return b >= p0 && b <= p1 ? a : 0;
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
static int takes(int op, int dtype) { return cf_is_float(dtype) || cf_op_table[op].domain != CF_FLOAT; }
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

#define EACH_ELEMENTWISE(op, dtype)                  \
    for (int op = 0; op < CF_OPS; op++)              \
        for (int dtype = 0; arity_of(op) && dtype < CFX_DTYPES; dtype++) \
            if (takes(op, dtype))

static call elementwise(int op, int dtype, const tensor *y, const tensor *x) {
    const tensor *t[] = {y, &x[0], &x[1], &x[2]};
    call c = call_of(op, dtype, 1, arity_of(op), t);
    c.head.p[0] = op == CF_OP_clamp || op == CF_OP_clamp_bw ? -1 : 0.5;
    c.head.p[1] = 1;
    return c;
}

TEST(every_elementwise_row_means_what_its_formula_says_in_every_dtype) {
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        tensor x[3], y = make(result_dtype(op, dtype), SHAPE(67));
        for (int k = 0; k < 3; k++) x[k] = make(dtype, SHAPE(67));
        fill_operands(op, x, 3);
        const call c = elementwise(op, dtype, &y, x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        for (int64_t i = 0; i < 67; i++) {
            const double a = get(&x[0], i), b = get(&x[1], i), w = get(&x[2], i);
            double expected = meaning(op, a, b, w, c.head.p[0], c.head.p[1]);
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
    static const int64_t shapes[][3] = {{1, 1, 1}, {1, 3, 5}, {1, 1, 17}, {3, 5, 7}, {2, 1, 511}, {5, 41, 5}, {2, 700, 1}, {1, 1, 5003}};
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++) {
            tensor packed[3], plain = make(result_dtype(op, dtype), 3, shapes[s]);
            for (int k = 0; k < 3; k++) packed[k] = make(dtype, 3, shapes[s]);
            fill_operands(op, packed, 3);
            for (enum layout layout = REVERSED; layout < LAYOUTS; layout++) {
                tensor x[3], y = make_as(layout == REPEATED ? PACKED : layout, plain.v.dtype, 3, shapes[s]);
                for (int k = 0; k < 3; k++) {
                    x[k] = make_as(k == 1 && layout != REPEATED ? PACKED : layout, dtype, 3, shapes[s]);
                    for (int64_t i = 0; i < numel(&plain); i++) set(&x[k], i, get(&packed[k], i));
                    for (int64_t i = 0; i < numel(&plain); i++) set(&packed[k], i, get(&x[k], i));
                }
                call c = elementwise(op, dtype, &plain, packed);
                CHECK_STATUS(run(t, &c), CFX_OK);
                c = elementwise(op, dtype, &y, x);
                CHECK_STATUS(run(t, &c), CFX_OK);
                if (!CHECK(same_elements(&y, &plain)))
                    printf("# %s %s %s layout %d shape %zu\n", t->name, cf_op_table[op].name, cfx_dtype_name(dtype), layout, s);
                /* An element of its own has the bits that it had among the others. */
                const int64_t last = numel(&plain) - 1;
                tensor one[3], alone = make(plain.v.dtype, SHAPE(1));
                for (int k = 0; k < 3; k++) {
                    one[k] = make(dtype, SHAPE(1));
                    memcpy(one[k].memory, element(&packed[k].v, last), sizes[dtype]);
                }
                c = elementwise(op, dtype, &alone, one);
                CHECK_STATUS(run(t, &c), CFX_OK);
                CHECK(memcmp(alone.memory, element(&plain.v, last), sizes[plain.v.dtype]) == 0);
                for (int k = 0; k < 3; k++) drop(&one[k]), drop(&x[k]);
                drop(&alone), drop(&y);
            }
            for (int k = 0; k < 3; k++) drop(&packed[k]);
            drop(&plain);
        }
    }
}

TEST(elementwise_rows_give_the_same_bits_with_every_team) {
    EACH_TABLE(t) EACH_ELEMENTWISE(op, dtype) {
        if (dtype != CFX_FLOAT32 && dtype != CFX_BFLOAT16 && dtype != CFX_INT32) continue;
        tensor x[3], y[4];
        for (int k = 0; k < 3; k++) x[k] = make(dtype, SHAPE(130003));
        fill_operands(op, x, 3);
        for (int k = 0; k < 4; k++) {
            y[k] = make(result_dtype(op, dtype), SHAPE(130003));
            const call c = elementwise(op, dtype, &y[k], x);
            worker.threads = teams[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(memcmp(y[0].memory, y[k].memory, y[0].bytes) == 0);
        }
        worker.threads = 2;
        for (int k = 0; k < 3; k++) drop(&x[k]);
        for (int k = 0; k < 4; k++) drop(&y[k]);
    }
}

TEST(a_number_stands_for_the_operand_that_is_missing) {
    EACH_TABLE(t) {
        tensor x = VALUES(CFX_FLOAT32, 1, 2, 4), z = VALUES(CFX_FLOAT32, 3, 5, 7), y = make(CFX_FLOAT32, SHAPE(3));
        call c = CALL(CF_OP_sub, CFX_FLOAT32, 1, &y, &x);
        c.head.p[0] = 10;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 2), -6);
        c.head.i[0] = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 2), 6);
        c = CALL(CF_OP_maximum_da, CFX_FLOAT32, 1, &y, &x, &z);
        c.head.p[0] = 5;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 0);
        CHECK_EQ(get(&y, 1), 1);
        CHECK_EQ(get(&y, 2), 4);
        const double powers[] = {2, 3, 1, 0.5, -1, 2.5, 0};
        for (size_t k = 0; k < sizeof powers / sizeof *powers; k++) {
            c = CALL(CF_OP_pow, CFX_FLOAT32, 1, &y, &z);
            c.head.p[0] = powers[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(close_to(CFX_FLOAT32, get(&y, 1), pow(5, powers[k]), 4));
            c = CALL(CF_OP_pow_da, CFX_FLOAT32, 1, &y, &x, &z);
            c.head.p[0] = powers[k];
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
        tensor x = make(CFX_FLOAT32, SHAPE(70, 3)), row = VALUES(CFX_INT32, 1, 2, 3), y = make(CFX_FLOAT32, SHAPE(70, 3));
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
    static const int ops[] = {CF_OP_neg, CF_OP_sign, CF_OP_round, CF_OP_floor, CF_OP_abs, CF_OP_square, CF_OP_clamp,
                              CF_OP_relu, CF_OP_leakyrelu, CF_OP_elu, CF_OP_gelu, CF_OP_silu, CF_OP_softplus, CF_OP_tanh,
                              CF_OP_sigmoid, CF_OP_exp, CF_OP_log, CF_OP_sqrt, CF_OP_rsqrt, CF_OP_sin, CF_OP_cos,
                              CF_OP_erf, CF_OP_add, CF_OP_mul, CF_OP_div, CF_OP_maximum, CF_OP_minimum};
    EACH_TABLE(t) for (size_t k = 0; k < sizeof ops / sizeof *ops; k++)
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
            c.head.p[0] = 1;
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
        tensor half = make(dtype, SHAPE(65536)), single = make(CFX_FLOAT32, SHAPE(65536)), back = make(dtype, SHAPE(65536));
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

/* ---- reductions ---------------------------------------------------------------------------------------------- */

static double reduce_meaning(int op, const double *x, int64_t n, double correction) {
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
    switch (op) {
    case CF_OP_sum: return sum;
    case CF_OP_mean: return mean;
    case CF_OP_prod: return prod;
    case CF_OP_max: return x[most];
    case CF_OP_min: return x[least];
    case CF_OP_norm: return sqrt(squares);
    case CF_OP_var: return var / ((double)n - correction);
    case CF_OP_any: return some;
    case CF_OP_all: return all;
    case CF_OP_argmax: return (double)most;
    default: return (double)least;
    }
}

static int reduce_dtype(int op, int dtype) {
    if (op == CF_OP_any || op == CF_OP_all) return CFX_BOOL;
    if (op == CF_OP_argmax || op == CF_OP_argmin) return CFX_INT64;
    return !cf_is_float(dtype) && (op == CF_OP_sum || op == CF_OP_prod) ? CFX_INT64 : dtype;
}

TEST(every_reduction_means_what_its_formula_says_in_every_layout) {
    static const struct {
        int64_t shape[3];
        int reduced;
    } cases[] = {{{3, 5, 7}, 1}, {{3, 5, 7}, 2}, {{3, 5, 7}, 3}, {{4, 100, 3}, 1}, {{70, 40, 1}, 2}, {{1, 700, 9}, 1},
                 {{2, 3, 1500}, 1}, {{600, 1, 2}, 2}, {{1, 1, 1}, 3}, {{2, 1, 70000}, 1}, {{70, 2, 1000}, 1}, {{2, 2, 40000}, 2}};
    EACH_TABLE(t) for (int op = CF_OP_sum; op <= CF_OP_argmin; op++) for (int dtype = 0; dtype < CFX_DTYPES; dtype++) {
        if (!takes(op, dtype)) continue;
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++)
            for (enum layout layout = PACKED; layout < LAYOUTS; layout++) {
                const int64_t *shape = cases[k].shape;
                const int kept = 3 - cases[k].reduced;
                tensor x = make_as(layout, dtype, 3, shape), y = make(reduce_dtype(op, dtype), kept, shape);
                const int64_t n = numel(&x) / numel(&y), is_prod = op == CF_OP_prod;
                if (n > 2000 && (layout == REPEATED || (dtype != CFX_FLOAT32 && dtype != CFX_INT64))) { drop(&x), drop(&y); continue; }
                randomize(&x, is_prod ? 0.9 : -50, is_prod ? 1.1 : 50);
                call c = CALL(op, reduce_dtype(op, dtype), 1, &y, &x);
                if (op >= CF_OP_any) c.head.dtype = (uint8_t)dtype;
                c.head.i[0] = cases[k].reduced;
                c.head.p[0] = n > 1;
                CHECK_STATUS(run(t, &c), CFX_OK);
                double *row = malloc((size_t)n * sizeof *row), scale = 0;
                int bad = 0;
                for (int64_t r = 0; r < numel(&y); r++) {
                    for (int64_t i = 0; i < n; i++) row[i] = get(&x, r * n + i);
                    double expected = reduce_meaning(op, row, n, c.head.p[0]), got = get(&y, r);
                    if (is_prod && n > 2000) continue; /* its rounding grows */
                    scale = op == CF_OP_sum ? 50 * sqrt((double)n) : op == CF_OP_mean ? 50 / sqrt((double)n) : fabs(expected);
                    const double units = is_prod ? 2 + (double)n / 4 : 8;
                    if (!cf_is_float(y.v.dtype) ? got == expected
                                                : close_to(y.v.dtype, got, expected, units) ||
                                                      fabs(got - expected) < (dtype == CFX_FLOAT64 ? 1e-13 : 1e-6) * scale) continue;
                    if (bad++) continue;
                    printf("# %s %s %s case %zu layout %d result %lld: %.9g, not %.9g\n", t->name, cf_op_table[op].name,
                           cfx_dtype_name(dtype), k, layout, (long long)r, got, expected);
                }
                CHECK_EQ(bad, 0);
                free(row), drop(&x), drop(&y);
            }
    }
}

TEST(reductions_give_the_same_bits_with_every_team) {
    static const int64_t shapes[][2] = {{1, 700001}, {3, 200001}, {200001, 3}, {3000, 100}, {100, 3000}};
    EACH_TABLE(t) for (int op = CF_OP_sum; op <= CF_OP_argmin; op++) for (int s = 0; s < 5; s++) for (int turned = 0; turned < 2; turned++) {
        tensor x = make_as(turned ? TURNED : PACKED, CFX_FLOAT32, 2, shapes[s]), y[4];
        for (int64_t i = 0; i < numel(&x); i++) {
            uint32_t w[4];
            cf_philox(3, 4, (uint64_t)i, w);
            ((float *)x.memory)[i] = op == CF_OP_prod ? 1 + 1e-4f * cf_uniform_f32(w[0]) : cf_uniform_f32(w[0]) - 0.5f;
        }
        for (int k = 0; k < 4; k++) {
            y[k] = make(reduce_dtype(op, CFX_FLOAT32), 1, shapes[s]);
            call c = CALL(op, CFX_FLOAT32, 1, &y[k], &x);
            c.head.i[0] = 1;
            c.head.p[0] = 1;
            worker.threads = teams[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(memcmp(y[0].memory, y[k].memory, y[0].bytes) == 0);
        }
        worker.threads = 2;
        for (int k = 0; k < 4; k++) drop(&y[k]);
        drop(&x);
    }
}

TEST(ten_million_ones_make_ten_million) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(10000000)), y = scalar(CFX_FLOAT32);
        call c = CALL(CF_OP_fill, CFX_FLOAT32, 1, &x);
        c.head.p[0] = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = CALL(CF_OP_sum, CFX_FLOAT32, 1, &y, &x);
        c.head.i[0] = 1;
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
        c.head.i[0] = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_NEAR(get(&y, 1), 1.25, 1e-5);
        drop(&x), drop(&y);
    }
}

TEST(nothing_has_a_sum_a_product_and_no_mean) {
    EACH_TABLE(t) {
        static const struct { int op; double expected; } cases[] = {
            {CF_OP_sum, 0}, {CF_OP_prod, 1}, {CF_OP_mean, NAN}, {CF_OP_norm, 0}, {CF_OP_any, 0}, {CF_OP_all, 1}};
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            tensor x = make(CFX_FLOAT32, SHAPE(2, 0)), y = make(reduce_dtype(cases[k].op, CFX_FLOAT32), SHAPE(2));
            call c = CALL(cases[k].op, CFX_FLOAT32, 1, &y, &x);
            c.head.i[0] = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_NEAR(get(&y, 1), cases[k].expected, 0);
            drop(&x), drop(&y);
        }
    }
}

TEST(a_nan_is_the_extreme_and_the_first_of_equals_is_found) {
    EACH_TABLE(t) for (int turned = 0; turned < 2; turned++) {
        tensor x = make_as(turned ? TURNED : PACKED, CFX_FLOAT32, SHAPE(100, 700)), y = make(CFX_INT64, SHAPE(100)), m = make(CFX_FLOAT32, SHAPE(100));
        for (int64_t i = 0; i < 70000; i++) set(&x, i, (double)(i % 7));
        set(&x, 1 * 700 + 650, NAN), set(&x, 1 * 700 + 651, NAN);
        for (int op = CF_OP_argmax; op <= CF_OP_argmin; op++) {
            call c = CALL(op, CFX_FLOAT32, 1, &y, &x);
            c.head.i[0] = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_EQ(get(&y, 0), op == CF_OP_argmax ? 6 : 0);
            CHECK_EQ(get(&y, 1), 650);
            CHECK_EQ(get(&y, 99), op == CF_OP_argmax ? 6 : 0);
        }
        for (int op = CF_OP_max; op <= CF_OP_min; op++) {
            call c = CALL(op, CFX_FLOAT32, 1, &m, &x);
            c.head.i[0] = 1;
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(isnan(get(&m, 1)));
            CHECK_EQ(get(&m, 0), op == CF_OP_max ? 6 : 0);
        }
        drop(&x), drop(&y), drop(&m);
    }
}

TEST(the_gradient_of_a_product_is_right_with_zeros) {
    EACH_TABLE(t) {
        tensor x = make(CFX_FLOAT32, SHAPE(3, 3)), dy = VALUES(CFX_FLOAT32, 1, 2, 3), dx = make_as(TURNED, CFX_FLOAT32, SHAPE(3, 3));
        const double in[] = {2, 3, 4, 2, 0, 4, 0, 0, 4}, expected[] = {12, 8, 6, 0, 16, 0, 0, 0, 0};
        for (int i = 0; i < 9; i++) set(&x, i, in[i]);
        call c = CALL(CF_OP_prod_bw, CFX_FLOAT32, 1, &dx, &dy, &x);
        c.head.i[0] = 1;
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
        c.head.i[0] = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&y, 0), 1600000);
        drop(&x), drop(&y);
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

TEST(losses_and_their_gradients_follow_their_formulas) {
    EACH_TABLE(t) for (int k = 0; k < 4; k++) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
        for (int reduction = CFX_NONE; reduction <= CFX_SUM; reduction++) for (enum layout layout = PACKED; layout < REPEATED; layout++) {
            tensor x = make_as(layout, dtype, SHAPE(31, 19)), y = make(dtype, SHAPE(31, 19));
            tensor out = reduction ? scalar(dtype) : make_as(layout, dtype, SHAPE(31, 19)), dx = make_as(layout, dtype, SHAPE(31, 19));
            tensor dy = reduction ? scalar(dtype) : make(dtype, SHAPE(31, 19));
            randomize(&x, -3, 3), randomize(&y, 0, 1), randomize(&dy, 0.5, 1.5);
            const double delta = 0.75, n = (double)numel(&x);
            call c = CALL(losses[k], dtype, 1, &out, &x, &y);
            c.head.i[0] = reduction;
            c.head.p[0] = delta;
            CHECK_STATUS(run(t, &c), CFX_OK);
            double sum = 0;
            int bad = 0;
            for (int64_t i = 0; i < numel(&x); i++) {
                const double loss = loss_meaning(losses[k], get(&x, i), get(&y, i), delta);
                sum += loss;
                bad += !reduction && !close_to(dtype, get(&out, i), loss, 8);
            }
            if (reduction) CHECK(close_to(dtype, get(&out, 0), reduction == CFX_MEAN ? sum / n : sum, 8));
            for (int of_y = 0; of_y < 2; of_y++) {
                c = CALL(losses_bw[k], dtype, 1, &dx, &dy, &x, &y);
                c.head.i[0] = reduction;
                c.head.i[1] = of_y;
                c.head.p[0] = delta;
                CHECK_STATUS(run(t, &c), CFX_OK);
                for (int64_t i = 0; i < numel(&x); i++) { /* against a difference quotient */
                    const double a = get(&x, i), b = get(&y, i), h = 1e-6, g = reduction ? get(&dy, 0) : get(&dy, i);
                    if (fabs(a - b) < 1e-5) continue;
                    const double up = loss_meaning(losses[k], a + (of_y ? 0 : h), b + (of_y ? h : 0), delta);
                    const double down = loss_meaning(losses[k], a - (of_y ? 0 : h), b - (of_y ? h : 0), delta);
                    const double expected = g * (up - down) / (2 * h) / (reduction == CFX_MEAN ? n : 1);
                    bad += fabs(get(&dx, i) - expected) > (dtype < CFX_FLOAT32 ? 2e-2 : 2e-6) * (fabs(expected) + (reduction == CFX_MEAN ? 1 / n : 1));
                }
            }
            if (!CHECK_EQ(bad, 0)) printf("# %s %s %s %d %d\n", t->name, cf_op_table[losses[k]].name, cfx_dtype_name(dtype), reduction, layout);
            drop(&x), drop(&y), drop(&out), drop(&dx), drop(&dy);
        }
}

TEST(a_loss_has_the_same_bits_with_every_team) {
    EACH_TABLE(t) for (int k = 0; k < 4; k++) {
        tensor x = make(CFX_FLOAT32, SHAPE(400, 999)), y = make_as(TURNED, CFX_FLOAT32, SHAPE(400, 999)), out = scalar(CFX_FLOAT32);
        randomize(&x, -3, 3), randomize(&y, 0, 1);
        float first = 0;
        for (int m = 0; m < 4; m++) {
            call c = CALL(losses[k], CFX_FLOAT32, 1, &out, &x, &y);
            c.head.i[0] = CFX_MEAN;
            c.head.p[0] = 1;
            worker.threads = teams[m];
            CHECK_STATUS(run(t, &c), CFX_OK);
            if (!m) first = *(float *)out.memory;
            CHECK(memcmp(&first, out.memory, 4) == 0);
        }
        worker.threads = 2;
        drop(&x), drop(&y), drop(&out);
    }
}

/* ---- make and move ------------------------------------------------------------------------------------------- */

TEST(a_copy_converts_between_all_dtypes_and_layouts) {
    EACH_TABLE(t) for (int from = 0; from < CFX_DTYPES; from++) for (int to = 0; to < CFX_DTYPES; to++)
        for (enum layout a = PACKED; a < LAYOUTS; a++) for (enum layout b = PACKED; b < REPEATED; b++) {
            tensor x = make_as(a, from, SHAPE(3, 37, 41)), y = make_as(b, to, SHAPE(3, 37, 41));
            randomize(&x, 0, 100);
            set(&x, 5, 0);
            const call c = CALL(CF_OP_copy, to, 1, &y, &x);
            CHECK_STATUS(run(t, &c), CFX_OK);
            int bad = 0;
            for (int64_t i = 0; i < numel(&x); i++) {
                uint64_t memory = 0;
                store(to, &memory, get(&x, i));
                bad += memcmp(&memory, element(&y.v, i), sizes[to]) != 0;
            }
            if (!CHECK_EQ(bad, 0)) printf("# %s %s to %s, layouts %d and %d\n", t->name, cfx_dtype_name(from), cfx_dtype_name(to), a, b);
            drop(&x), drop(&y);
        }
}

TEST(a_copy_has_the_same_result_with_every_team) {
    EACH_TABLE(t) for (int m = 0; m < 4; m++) {
        worker.threads = teams[m];
        tensor x = make_as(TURNED, CFX_FLOAT32, SHAPE(301, 503)), y = make(CFX_FLOAT32, SHAPE(301, 503)), z = make_as(SPREAD, CFX_INT64, SHAPE(301 * 503));
        randomize(&x, -100, 100);
        call c = CALL(CF_OP_copy, CFX_FLOAT32, 1, &y, &x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(same_elements(&y, &x));
        tensor flat = {.v = y.v};
        flat.v.ndim = 1;
        flat.v.shape[0] = 301 * 503;
        flat.v.stride[0] = 1;
        c = CALL(CF_OP_copy, CFX_INT64, 1, &z, &flat);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&z, 100000), trunc(get(&flat, 100000)));
        drop(&x), drop(&y), drop(&z);
    }
    worker.threads = 2;
}

TEST(large_integers_are_copied_and_filled_exactly) {
    EACH_TABLE(t) {
        tensor x = make(CFX_INT64, SHAPE(3)), y = make(CFX_INT64, SHAPE(3)), f = VALUES(CFX_FLOAT64, 1e300, -INFINITY, NAN);
        call c = CALL(CF_OP_fill, CFX_INT64, 1, &x);
        c.head.i[0] = INT64_MAX - 1;
        c.head.i[1] = 1;
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = CALL(CF_OP_copy, CFX_INT64, 1, &y, &x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(((int64_t *)y.memory)[2] == INT64_MAX - 1);
        c = CALL(CF_OP_copy, CFX_INT64, 1, &y, &f);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(((int64_t *)y.memory)[0] == INT64_MAX && ((int64_t *)y.memory)[1] == INT64_MIN && ((int64_t *)y.memory)[2] == 0);
        drop(&x), drop(&y), drop(&f);
    }
}

TEST(a_fill_writes_its_view_and_nothing_else) {
    EACH_TABLE(t) for (int dtype = 0; dtype < CFX_DTYPES; dtype++) for (int k = 0; k < 2; k++) {
        tensor y = make_as(SPREAD, dtype, SHAPE(5, 900));
        memset(y.memory, 0x55, y.bytes);
        call c = CALL(CF_OP_fill, dtype, 1, &y);
        c.head.p[0] = k;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 4500; i++)
            if (get(&y, i) != k) { CHECK(!"filled"); break; }
        CHECK_EQ(y.memory[sizes[dtype]], 0x55);
        CHECK_EQ(y.memory[y.bytes - 1], 0x55);
        drop(&y);
    }
}

TEST(zero_ranges_zeroes_bytes) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT32, SHAPE(100));
        memset(y.memory, 1, y.bytes);
        call c = CALL(CF_OP_zero_ranges, CFX_FLOAT32, 1, &y);
        c.head.i[0] = 2;
        const int64_t ranges[] = {3, 5, 200, 100};
        c.head.extra = sizeof ranges;
        memcpy(cf_call_extra(&c.head), ranges, sizeof ranges);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int zeros = 0;
        for (int i = 0; i < 400; i++) zeros += !y.memory[i];
        CHECK_EQ(zeros, 105);
        CHECK(y.memory[2] && !y.memory[3] && !y.memory[7] && y.memory[8] && y.memory[199] && !y.memory[299] && y.memory[300]);
        drop(&y);
    }
}

TEST(a_range_is_made_in_every_dtype) {
    EACH_TABLE(t) for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(50));
        call c = CALL(CF_OP_arange, dtype, 1, &y);
        c.head.p[0] = 5;
        c.head.p[1] = 2;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int i = 0; i < 50; i++) CHECK_EQ(get(&y, i), 5 + 2 * i);
        drop(&y);
    }
}

TEST(a_triangle_keeps_one_side_of_a_diagonal) {
    EACH_TABLE(t) for (int upper = 0; upper < 2; upper++) for (int64_t diagonal = -6; diagonal <= 6; diagonal++) {
        tensor x = make_as(TURNED, CFX_FLOAT64, SHAPE(2, 4, 5)), y = make(CFX_FLOAT64, SHAPE(2, 4, 5));
        randomize(&x, 1, 2), randomize(&y, 1, 2);
        call c = CALL(CF_OP_tri, CFX_FLOAT64, 1, &y, &x);
        c.head.i[0] = upper;
        c.head.i[1] = diagonal;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 40; i++) {
            const int64_t row = i / 5 % 4, col = i % 5;
            const int keep = upper ? col - row >= diagonal : col - row <= diagonal;
            CHECK(get(&y, i) == (keep ? get(&x, i) : 0));
        }
        drop(&x), drop(&y);
    }
}

TEST(onehot_marks_ids_and_names_one_out_of_range) {
    EACH_TABLE(t) {
        tensor ids = VALUES(CFX_INT32, 2, 0, 9, 5), y = make(CFX_FLOAT32, SHAPE(4, 10));
        randomize(&y, 1, 2);
        const call c = CALL(CF_OP_onehot, CFX_FLOAT32, 1, &y, &ids);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 40; i++) CHECK_EQ(get(&y, i), i % 10 == get(&ids, i / 10));
        set(&ids, 3, 12);
        CHECK_STATUS(run(t, &c), CFX_EFAULT);
        CHECK_STR(cfx_error(), "onehot: id 12 at position 3 is outside 0 to 9");
        drop(&ids), drop(&y);
    }
}

TEST(a_slot_holds_eight_numbers_and_the_clip_scale) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT64, SHAPE(8)), ss = scalar(CFX_FLOAT64);
        call c = CALL(CF_OP_slot, CFX_FLOAT64, 1, &y);
        for (int k = 0; k < 4; k++) {
            const double second = 10 + k;
            c.head.p[k] = k;
            memcpy(&c.head.i[k], &second, 8);
        }
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int k = 0; k < 4; k++) CHECK(get(&y, k) == k && get(&y, 4 + k) == 10 + k);
        set(&ss, 0, 16);
        const double limits[] = {2, 8, 0}, scales[] = {2 / (4 + 1e-6), 1, 1};
        for (int k = 0; k < 3; k++) {
            c = CALL(CF_OP_clip, CFX_FLOAT64, 1, &y, &ss);
            c.head.p[0] = limits[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_NEAR(get(&y, 7), scales[k], 1e-15);
        }
        drop(&y), drop(&ss);
    }
}

/* ---- random numbers ------------------------------------------------------------------------------------------ */

static call random_call(int op, const tensor *y, double p0, double p1) {
    const tensor *t[] = {y};
    call c = call_of(op, y->v.dtype, 1, 0, t);
    c.head.p[0] = p0;
    c.head.p[1] = p1;
    c.head.i[0] = 42;
    c.head.i[1] = 3;
    c.head.i[2] = 4000;
    return c;
}

static uint32_t word_at(uint64_t position) {
    uint32_t w[4];
    cf_philox(42, 3, position / 4, w);
    return w[position % 4];
}

TEST(uniform_numbers_are_the_words_at_their_positions) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT32, SHAPE(1003)), z = make(CFX_FLOAT64, SHAPE(1003));
        call c = random_call(CF_OP_uniform, &y, 0, 1);
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = random_call(CF_OP_uniform, &z, 0, 1);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        for (uint64_t e = 0; e < 1003; e++) {
            bad += get(&y, (int64_t)e) != cf_uniform_f32(word_at(4000 + e));
            bad += get(&z, (int64_t)e) != cf_uniform_f64(word_at(4000 + 2 * e), word_at(4000 + 2 * e + 1));
        }
        CHECK_EQ(bad, 0);
        drop(&y), drop(&z);
    }
}

TEST(a_uniform_number_is_never_its_upper_bound) {
    static const double bounds[][2] = {{0, 1}, {-1, 0}, {5, 7}, {-3, -2}, {0, 1e-3}, {1000, 1000.5}};
    EACH_TABLE(t) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) for (int k = 0; k < 6; k++) {
        tensor y = make(dtype, SHAPE(20000));
        const call c = random_call(CF_OP_uniform, &y, bounds[k][0], bounds[k][1]);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        double sum = 0;
        for (int64_t e = 0; e < 20000; e++) {
            bad += !(get(&y, e) >= bounds[k][0] && get(&y, e) < bounds[k][1]);
            sum += get(&y, e);
        }
        CHECK_EQ(bad, 0);
        if (dtype >= CFX_FLOAT32) CHECK_NEAR(sum / 20000, (bounds[k][0] + bounds[k][1]) / 2, 0.01 * (bounds[k][1] - bounds[k][0]));
        drop(&y);
    }
}

TEST(uniforms_are_the_same_in_every_instruction_set) {
    tensor first = make(CFX_FLOAT32, SHAPE(5000)), y = make(CFX_FLOAT32, SHAPE(5000));
    EACH_TABLE(t) {
        const call c = random_call(CF_OP_uniform, t == tables() ? &first : &y, -0.1, 0.3);
        CHECK_STATUS(run(t, &c), CFX_OK);
        if (t != tables()) CHECK(memcmp(first.memory, y.memory, y.bytes) == 0);
    }
    drop(&first), drop(&y);
}

TEST(normal_numbers_have_their_mean_and_deviation) {
    EACH_TABLE(t) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(100001)), one = make(dtype, SHAPE(1));
        call c = random_call(CF_OP_normal, &y, 3, 2);
        CHECK_STATUS(run(t, &c), CFX_OK);
        double sum = 0, squares = 0, cubes = 0;
        for (int64_t e = 0; e < 100001; e++) {
            const double x = (get(&y, e) - 3) / 2;
            sum += x, squares += x * x, cubes += x * x * x;
        }
        CHECK_NEAR(sum / 100001, 0, 0.012);
        CHECK_NEAR(squares / 100001, 1, 0.02);
        CHECK_NEAR(cubes / 100001, 0, 0.05);
        c = random_call(CF_OP_normal, &one, 3, 2);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(memcmp(one.memory, y.memory, sizes[dtype]) == 0);
        if (dtype == CFX_FLOAT32) {
            const double u = 1 - cf_uniform_f32(word_at(4006)), v = cf_uniform_f32(word_at(4007));
            CHECK_NEAR(get(&y, 6), 3 + 2 * sqrt(-2 * log(u)) * cos(2 * M_PI * v), 1e-5);
            CHECK_NEAR(get(&y, 7), 3 + 2 * sqrt(-2 * log(u)) * sin(2 * M_PI * v), 1e-5);
        }
        drop(&y), drop(&one);
    }
}

TEST(random_integers_reach_both_ends) {
    EACH_TABLE(t) for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(4001));
        const call c = random_call(CF_OP_randint, &y, 2, 7);
        int count[10] = {0};
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t e = 0; e < 4001; e++) count[(int)get(&y, e)]++;
        for (int k = 2; k <= 7; k++) CHECK(count[k] > 500);
        CHECK_EQ(count[1] + count[8], 0);
        drop(&y);
    }
}

TEST(a_permutation_holds_every_id_once) {
    EACH_TABLE(t) for (int dtype = CFX_INT32; dtype <= CFX_INT64; dtype++) {
        tensor y = make(dtype, SHAPE(1000));
        const call c = random_call(CF_OP_permutation, &y, 0, 0);
        int64_t seen[1000] = {0}, expected[1000];
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int e = 0; e < 1000; e++) seen[(int)get(&y, e)]++;
        for (int e = 0; e < 1000; e++) CHECK_EQ(seen[e], 1);
        cf_permutation(42, 3 + ((uint64_t)4000 << 8), 1000, expected);
        CHECK_EQ(get(&y, 77), expected[77]);
        drop(&y);
    }
}

TEST(random_numbers_have_the_same_bits_with_every_team) {
    static const int ops[] = {CF_OP_uniform, CF_OP_normal, CF_OP_randint};
    EACH_TABLE(t) for (int k = 0; k < 3; k++) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) {
        tensor y[4];
        for (int m = 0; m < 4; m++) {
            y[m] = make(dtype, SHAPE(50001));
            const call c = random_call(ops[k], &y[m], 0, 10);
            worker.threads = teams[m];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(memcmp(y[0].memory, y[m].memory, y[0].bytes) == 0);
        }
        worker.threads = 2;
        for (int m = 0; m < 4; m++) drop(&y[m]);
    }
}
