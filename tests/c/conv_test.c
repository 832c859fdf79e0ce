/* conv_test.c: convolutions and their gradients against one plain loop over doubles. */
#include "test.h"

#include "forms.h"

static const int float_types[] = {CFX_FLOAT32, CFX_FLOAT64, CFX_BFLOAT16, CFX_FLOAT16};
enum { FLOAT_TYPES = 4 };

static void run_all(machine *m, int dtype, const tensors *t) {
    CHECK_STATUS(RUN(m, CF_OP_conv, dtype, 1, .v = {t->y, t->x, t->w}, .params = &t->params), CFX_OK);
    CHECK_STATUS(RUN(m, CF_OP_conv_bw_data, dtype, 1, .v = {t->dx, t->dy, t->w}, .params = &t->params), CFX_OK);
    CHECK_STATUS(RUN(m, CF_OP_conv_bw_weights, dtype, 1, .v = {t->dw, t->dy, t->x}, .params = &t->params), CFX_OK);
}

static uint64_t bits_of_all(const tensors *t) { return bits_of(&t->y) ^ 3 * bits_of(&t->dx) ^ 5 * bits_of(&t->dw); }

static void say(const machine *m, int dtype, const form *f) {
    printf(
        "# %s, team %d, dtype %d: [%lld, %lld, %lld, %lld] to %lld, groups %lld, kernel %lld %lld, stride %lld %lld, "
        "pad %lld %lld %lld %lld, dilation %lld %lld\n",
        m->isa, m->team, dtype, (long long)f->n, (long long)f->size[0], (long long)f->size[1], (long long)f->in,
        (long long)f->out, (long long)f->groups, (long long)f->kernel[0], (long long)f->kernel[1],
        (long long)f->stride[0], (long long)f->stride[1], (long long)f->pad[0], (long long)f->pad[1],
        (long long)f->pad[2], (long long)f->pad[3], (long long)f->dilation[0], (long long)f->dilation[1]);
}

static uint64_t check_form(machine *m, int dtype, const form *f) {
    tensors t = tensors_of(f, dtype);
    exact e = exact_of(f, &t.x, &t.w, &t.dy);
    const cf_view *const got[] = {&t.y, &t.dx, &t.dw};
    int right = 1;
    run_all(m, dtype, &t);
    for (int k = 0; k < 3 && right; k++)
        for (int64_t at = 0; at < cf_view_numel(got[k]) && right; at++)
            right = near_at(m, got[k], at, e.value[k][at], rounding(dtype, e.magnitude[k][at]));
    if (!right) say(m, dtype, f);
    if (!CHECK(edges_are_kept())) say(m, dtype, f);
    exact_free(&e);
    return bits_of_all(&t);
}

static form random_form(void) {
    for (;;) {
        form f = {.n = one_of(1, 3), .groups = one_of(1, 3)};
        f.in = f.groups * one_of(1, 5);
        f.out = f.groups * one_of(1, 5);
        if (random_bits() % 4 == 0) f.groups = f.in = f.out = one_of(1, 20); /* depthwise */
        for (int d = 0; d < 2; d++) {
            f.size[d] = one_of(1, 9);
            f.kernel[d] = one_of(1, 4);
            f.stride[d] = one_of(1, 3);
            f.dilation[d] = one_of(1, 3);
        }
        for (int side = 0; side < 4; side++) f.pad[side] = one_of(0, 3);
        int fits = 1;
        for (int d = 0; d < 2; d++)
            if (f.dilation[d] * (f.kernel[d] - 1) + 1 > f.size[d] + f.pad[2 * d] + f.pad[2 * d + 1]) fits = 0;
        if (fits) return f;
    }
}

TEST(convolutions_of_any_shape_are_right_in_all_directions) {
    EACH_MACHINE(m) {
        for (int k = 0; k < (SANITIZED ? 8 : 20); k++) {
            const form f = random_form();
            for (int t = 0; t < FLOAT_TYPES; t++) {
                check_form(m, float_types[t], &f);
                free_views();
            }
        }
    }
}

#define SQUARE(n, size, in, out, groups, kernel, stride, pad, dilation)                               \
    {                                                                                                 \
        n, {size, size}, in, out, groups, {kernel, kernel}, {stride, stride}, {pad, pad, pad, pad}, { \
            dilation, dilation                                                                        \
        }                                                                                             \
    }

TEST(convolutions_larger_than_a_block_are_right) {
    static const form forms[] = {SQUARE(1, 12, 33, 40, 1, 3, 1, 1, 1), SQUARE(1, 14, 3, 32, 1, 7, 2, 3, 1),
                                 SQUARE(2, 12, 64, 16, 1, 1, 2, 0, 1), SQUARE(1, 30, 24, 24, 24, 3, 1, 1, 1),
                                 SQUARE(1, 17, 32, 48, 4, 3, 1, 2, 2), SQUARE(1, 9, 5, 7, 1, 3, 2, 1, 1),
                                 SQUARE(1, 15, 33, 64, 1, 3, 1, 1, 1)};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
            for (int t = 0; t < FLOAT_TYPES; t++) {
                check_form(m, float_types[t], &forms[k]);
                free_views();
            }
    }
}

/* oneDNN writes past the room for the pixels that it gathers: see is_overrun in dnnl_conv.c. */
TEST(few_channels_are_gathered_by_a_stride_without_harm) {
    static const form forms[] = {SQUARE(32, 32, 4, 8, 1, 1, 2, 0, 1), SQUARE(8, 16, 7, 16, 1, 1, 2, 0, 1),
                                 SQUARE(8, 16, 15, 16, 1, 1, 2, 0, 1), SQUARE(8, 16, 8, 16, 2, 1, 2, 0, 1)};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++) {
            check_form(m, CFX_FLOAT32, &forms[k]);
            free_views();
        }
    }
}

TEST(what_is_empty_is_an_empty_sum) {
    static const form forms[] = {SQUARE(0, 5, 3, 4, 1, 3, 1, 1, 1), SQUARE(2, 5, 0, 4, 2, 3, 1, 1, 1),
                                 SQUARE(2, 5, 4, 0, 2, 3, 1, 1, 1), SQUARE(2, 0, 3, 4, 1, 3, 1, 2, 1)};
    EACH_MACHINE(m) {
        for (size_t k = 0; k < sizeof forms / sizeof *forms; k++)
            for (int t = 0; t < FLOAT_TYPES; t++) check_form(m, float_types[t], &forms[k]);
        free_views();
    }
}

/* As a transposed convolution has it whose output_pad is more than its stride: no library takes that. */
TEST(rows_that_no_window_sees_get_no_gradient) {
    EACH_MACHINE(m) {
        for (int t = 0; t < FLOAT_TYPES; t++) {
            form f = SQUARE(2, 9, 6, 8, 2, 3, 2, 1, 4);
            for (int d = 0; d < 2; d++) f.pad[2 * d + 1] = 0;
            const int dtype = float_types[t];
            tensors whole = tensors_of(&f, dtype);
            f.size[0] = 12; /* three rows more, the same result */
            tensors more = tensors_of(&f, dtype);
            cf_view y = more.y;
            y.shape[1] = whole.y.shape[1];
            cf_dims_pack(4, y.shape, y.stride);
            more.dy = whole.dy;
            more.y = y;
            exact e = exact_of(&f, &more.x, &more.w, &more.dy);
            run_all(m, dtype, &more);
            const cf_view *const got[] = {&more.y, &more.dx, &more.dw};
            for (int k = 0; k < 3; k++)
                for (int64_t at = 0; at < cf_view_numel(got[k]); at++)
                    if (!near_at(m, got[k], at, e.value[k][at], rounding(dtype, e.magnitude[k][at]))) break;
            exact_free(&e);
            free_views();
        }
    }
}

TEST(equal_runs_give_equal_bits_and_own_loops_those_of_any_team) {
    static const form forms[] = {SQUARE(3, 20, 16, 24, 1, 3, 1, 1, 1), SQUARE(2, 25, 20, 20, 5, 3, 2, 1, 1)};
    static uint64_t kept[2];
    EACH_MACHINE(m) {
        for (int k = 0; k < 2; k++)
            for (int t = 0; t < 2; t++) { /* float32, float64 */
                const int dtype = float_types[t];
                tensors a = tensors_of(&forms[k], dtype);
                for (int64_t at = 0; at < cf_view_numel(&a.dy); at++) set(&a.dy, at, get(&a.dy, at) / 3);
                run_all(m, dtype, &a);
                const uint64_t bits = bits_of_all(&a);
                for (int again = 0; again < 3; again++) {
                    run_all(m, dtype, &a);
                    CHECK(bits == bits_of_all(&a));
                }
                if (dtype == CFX_FLOAT64) same_as_alone(m, bits, &kept[k]);
                free_views();
            }
    }
}

/* ---- bias, residual, activation ----------------------------------------------------------------------------- */

static const int acts[] = {-1, CF_OP_relu, CF_OP_leakyrelu, CF_OP_tanh, CF_OP_sigmoid, CF_OP_elu};
enum { ACTS = 6 };

static double act_of(int act, double x, double p0) {
    switch (act) {
    case CF_OP_relu: return x > 0 ? x : 0;
    case CF_OP_leakyrelu: return x > 0 ? x : p0 * x;
    case CF_OP_tanh: return tanh(x);
    case CF_OP_sigmoid: return 1 / (1 + exp(-x));
    case CF_OP_elu: return x > 0 ? x : p0 * expm1(x);
    default: return x;
    }
}

/* y <- (x, w, bias?, residual?). */
static cfx_status run_layer(machine *m, int dtype, const tensors *t, int act, const cf_view *bias,
                            const cf_view *residual) {
    cf_conv_params params = t->params;
    run r = {.v = {t->y, t->x, t->w}, .params = &params};
    int n = 3;
    params.act = act;
    params.bias = bias != NULL;
    params.residual = residual != NULL;
    if (bias) r.v[n++] = *bias;
    if (residual) r.v[n++] = *residual;
    return run_call(m, CF_OP_conv, dtype, 1, r);
}

/* k & 1: with a bias; k & 2: with a residual. */
static void check_layer(machine *m, int dtype, const form *f, int act, int k) {
    tensors t = tensors_of(f, dtype);
    cf_view bias = VECTOR(dtype, f->out), residual = view(dtype, PACKED, 4, t.y.shape);
    fill_random(&bias, -1, 1);
    fill_random(&residual, -1, 1);
    const uint64_t before = bits_of(&residual);
    exact e = exact_of(f, &t.x, &t.w, &t.dy);
    CHECK_STATUS(run_layer(m, dtype, &t, act, k & 1 ? &bias : NULL, k & 2 ? &residual : NULL), CFX_OK);
    for (int64_t at = 0; at < cf_view_numel(&t.y); at++) {
        const double b = k & 1 ? get(&bias, at % f->out) : 0, r = k & 2 ? get(&residual, at) : 0;
        /* What is not fused sees sums in the half type. */
        const double tolerance = 3 * rounding(dtype, e.magnitude[0][at] + fabs(b) + fabs(r) + 1);
        if (near_at(m, &t.y, at, act_of(act, e.value[0][at] + b + r, 0.25), tolerance)) continue;
        printf("# act %d, bias and residual %d\n", act, k & 3);
        break;
    }
    CHECK(before == bits_of(&residual));
    exact_free(&e);
    free_views();
}

TEST(bias_residual_and_activation_come_in_this_order) {
    static const form f = SQUARE(2, 7, 6, 12, 2, 3, 1, 1, 1), large = SQUARE(1, 12, 32, 64, 1, 3, 1, 1, 1);
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int type = 0; type < FLOAT_TYPES; type++)
            for (int k = 0; k < ACTS * 4; k++) check_layer(m, float_types[type], &f, acts[k / 4], k);
        for (int k = 0; k < ACTS; k++) check_layer(m, CFX_FLOAT32, &large, acts[k], 3);
    }
}

TEST(a_NaN_goes_through_convolutions_with_any_activation) {
    static const form forms[] = {SQUARE(1, 6, 16, 16, 1, 1, 1, 0, 1), SQUARE(2, 8, 3, 8, 1, 1, 1, 0, 1)};
    EACH_MACHINE(m) {
        if (m->team > 2) continue;
        for (int type = 0; type < FLOAT_TYPES; type++)
            for (int k = 0; k < 4 * ACTS; k++) {
                const form *f = &forms[k & 1];
                const int dtype = float_types[type], act = acts[k / 4], by_residual = k & 2;
                tensors t = tensors_of(f, dtype);
                cf_view residual = view(dtype, PACKED, 4, t.y.shape);
                fill_random(&residual, -1, 1);
                if (by_residual) set(&residual, 5 * f->out + 1, NAN);
                else set(&t.x, 5 * f->in + 2, NAN); /* of pixel 5 */
                CHECK_STATUS(run_layer(m, dtype, &t, act, NULL, by_residual ? &residual : NULL), CFX_OK);
                int64_t bad = 0;
                for (int64_t at = 0; at < cf_view_numel(&t.y); at++)
                    bad += isnan(get(&t.y, at)) != (by_residual ? at == 5 * f->out + 1 : at / f->out == 5);
                if (!CHECK_EQ(bad, 0)) printf("# %s, dtype %d, act %d, shape %d\n", m->isa, dtype, act, k & 1);
                free_views();
            }
    }
}
