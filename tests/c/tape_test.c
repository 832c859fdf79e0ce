/* Recording and walking back: core/ops/tape.c. */
#include "test.h"

#include "queues.h"

static cfx_context *context;
static cfx_device *cpu;
static void setup(void) {
    context = new_context("cpu*2");
    cpu = cfx_device_at(context, 0);
}
static void teardown(void) {
    CHECK_EQ(blocks_of(cpu), 0);
    CHECK_EQ(blocks_of(cfx_device_at(context, 1)), 0);
    CHECK(context->tapes.first == NULL);
    cfx_context_free(context);
}

static cfx_tensor made(cfx_status status, cfx_tensor x) {
    CHECK_STATUS(status, CFX_OK);
    return x;
}
/* x op y, released by the caller. */
static cfx_tensor op2(int op, const cfx_tensor *x, const cfx_tensor *y) {
    cfx_tensor out = {0};
    const cfx_status status = cfx_binary(op, x, y, &out);
    return made(status, out);
}
/* The sum of x, which is released. */
static cfx_tensor sum_of(cfx_tensor x) {
    cfx_tensor out = {0};
    const cfx_status status = cfx_reduce(CF_OP_sum, &x, 0, NULL, 0, 0, &out);
    cfx_release(&x);
    return made(status, out);
}
static cfx_tape *watch(int n, cfx_tensor *const *xs) {
    cfx_tape *tape = NULL;
    CHECK_STATUS(cfx_tape_begin(context, n, xs, &tape), CFX_OK);
    return tape;
}
/* Walks back, ends the tape and releases the loss. */
static void back(cfx_tape *tape, cfx_tensor *loss, cfx_tensor *const *grads) {
    CHECK_STATUS(cfx_tape_backward(tape, loss, grads, 0), CFX_OK);
    cfx_tape_end(&tape);
    cfx_release(loss);
}

TEST(contributions_of_a_tensor_used_several_times_add_up) {
    setup();
    cfx_tensor w = full(cpu, 5, 3), g = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    cfx_tensor square = op2(CF_OP_mul, &w, &w), cube = op2(CF_OP_mul, &square, &w), more = op2(CF_OP_add, &cube, &w);
    cfx_tensor loss = sum_of(more);
    cfx_release(&square);
    cfx_release(&cube);
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK_EQ(value_of(&g), 28); /* 3 w^2 + 1 */
    cfx_release(&w);
    cfx_release(&g);
    teardown();
}

TEST(a_gradient_has_the_shape_of_its_parameter_whatever_was_broadcast) {
    setup();
    const int64_t tall[2] = {4, 1}, wide[3] = {2, 4, 3};
    cfx_tensor column = {0}, row = full(cpu, 3, 2), one = full(cpu, 1, 5), x = {0}, g[3] = {0};
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 2, tall, 3, &column), CFX_OK);
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 3, wide, 1, &x), CFX_OK);
    cfx_tape *tape = watch(3, (cfx_tensor *[]){&column, &row, &one});
    cfx_tensor a = op2(CF_OP_mul, &x, &column), b = op2(CF_OP_mul, &a, &row), c = op2(CF_OP_add, &b, &one);
    cfx_tensor loss = sum_of(c);
    cfx_release(&a);
    cfx_release(&b);
    back(tape, &loss, (cfx_tensor *[]){&g[0], &g[1], &g[2]});
    CHECK(cf_same_shape(&g[0], &column) && cf_same_shape(&g[1], &row) && cf_same_shape(&g[2], &one));
    CHECK_EQ(value_of(&g[0]), 2 * 3 * 2);
    CHECK_EQ(value_of(&g[1]), 2 * 4 * 3);
    CHECK_EQ(value_of(&g[2]), 24);
    for (int i = 0; i < 3; i++) cfx_release(&g[i]);
    cfx_release(&column);
    cfx_release(&row);
    cfx_release(&one);
    cfx_release(&x);
    teardown();
}

TEST(gradients_of_different_leaves_never_share_memory) {
    setup();
    cfx_tensor a = full(cpu, 5, 1), b = full(cpu, 5, 2), g[2] = {0};
    cfx_tape *tape = watch(2, (cfx_tensor *[]){&a, &b});
    cfx_tensor y = op2(CF_OP_add, &a, &b), z = op2(CF_OP_mul, &y, &y), loss = sum_of(z);
    cfx_release(&y);
    back(tape, &loss, (cfx_tensor *[]){&g[0], &g[1]});
    CHECK(g[0]._buffer != g[1]._buffer);
    CHECK_STATUS(cfx_fill(&g[0], 100), CFX_OK);
    CHECK_EQ(value_of(&g[1]), 6);
    cfx_release(&a);
    cfx_release(&b);
    cfx_release(&g[0]);
    cfx_release(&g[1]);
    teardown();
}

/* Two parameters and their gradients in flat buffers. */
typedef struct flat {
    cfx_tensor w[2], g[2];
    cfx_tensor *watched[2], *grads[2];
    cfx_layout *layout;
} flat;
static void make_flat(flat *f, int64_t n) {
    memset(f, 0, sizeof *f);
    for (int i = 0; i < 2; i++) {
        f->w[i] = full(cpu, n, i + 2);
        f->watched[i] = &f->w[i];
        f->grads[i] = &f->g[i];
    }
    CHECK_STATUS(cfx_layout_new(2, (const cfx_tensor *const *)f->watched, (const char *[]){"0", "1"}, &f->layout),
                 CFX_OK);
    CHECK_STATUS(cfx_layout_make(f->layout, cpu, -1, 0, f->grads), CFX_OK);
}
static void free_flat(flat *f) {
    for (int i = 0; i < 2; i++) {
        cfx_release(&f->w[i]);
        cfx_release(&f->g[i]);
    }
    cfx_layout_free(f->layout);
}

TEST(places_in_flat_buffers_are_written_and_stay_where_they_are) {
    setup();
    flat f;
    make_flat(&f, 5);
    const void *at[2] = {cf_data(&f.g[0]), cf_data(&f.g[1])};
    const int64_t blocks = blocks_of(cpu);
    for (int round = 0; round < 3; round++) {
        cfx_tape *tape = watch(2, f.watched);
        cfx_tensor y = op2(CF_OP_mul, &f.w[0], &f.w[1]), loss = sum_of(y);
        back(tape, &loss, f.grads);
        CHECK_EQ(value_of(&f.g[0]), 3);
        CHECK_EQ(value_of(&f.g[1]), 2);
        for (int i = 0; i < 2; i++) CHECK(cf_data(&f.g[i]) == at[i]);
        CHECK_EQ(blocks_of(cpu), blocks);
    }
    free_flat(&f);
    teardown();
}

TEST(accumulating_adds_to_what_the_places_hold) {
    setup();
    flat f;
    make_flat(&f, 5);
    for (int i = 0; i < 2; i++) CHECK_STATUS(cfx_fill(&f.g[i], 10), CFX_OK);
    for (int round = 1; round <= 3; round++) {
        cfx_tape *tape = watch(2, f.watched);
        cfx_tensor y = op2(CF_OP_mul, &f.w[0], &f.w[0]), loss = sum_of(y);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, f.grads, 1), CFX_OK);
        cfx_tape_end(&tape);
        cfx_release(&loss);
        CHECK_EQ(value_of(&f.g[0]), 10 + 4 * round);
        CHECK_EQ(value_of(&f.g[1]), 10);
    }
    free_flat(&f);
    teardown();
}

TEST(leaves_that_the_loss_did_not_touch_have_a_zero_gradient) {
    setup();
    flat f;
    make_flat(&f, 5);
    cfx_tensor free_standing = full(cpu, 1, 1), g = {0};
    cfx_tensor *watched[3] = {&f.w[0], &f.w[1], &free_standing}, *grads[3] = {&f.g[0], &f.g[1], &g};
    for (int i = 0; i < 2; i++) CHECK_STATUS(cfx_fill(&f.g[i], 10), CFX_OK);
    cfx_tape *tape = watch(3, watched);
    cfx_tensor y = op2(CF_OP_mul, &f.w[0], &f.w[0]), unused = op2(CF_OP_mul, &f.w[1], &free_standing), loss = sum_of(y);
    back(tape, &loss, grads);
    CHECK_EQ(value_of(&f.g[0]), 4);
    CHECK_EQ(value_of(&f.g[1]), 0);
    CHECK_EQ(value_of(&g), 0);
    CHECK_EQ(cf_numel(&g), 1);
    cfx_release(&unused);
    cfx_release(&free_standing);
    cfx_release(&g);
    free_flat(&f);
    teardown();
}

TEST(a_leaf_that_is_reached_but_gets_no_contribution_has_a_zero_gradient) {
    setup();
    flat f;
    make_flat(&f, 5);
    for (int i = 0; i < 2; i++) CHECK_STATUS(cfx_fill(&f.g[i], 10), CFX_OK);
    cfx_tensor other = full(cpu, 5, 7), y = {0};
    cfx_tape *tape = watch(2, f.watched);
    CHECK_STATUS(cfx_where(&f.w[0], &f.w[1], &other, &y), CFX_OK); /* a condition has none */
    cfx_tensor loss = sum_of(y);
    back(tape, &loss, f.grads);
    CHECK_EQ(value_of(&f.g[0]), 0);
    CHECK_EQ(value_of(&f.g[1]), 1);
    cfx_release(&other);
    free_flat(&f);
    teardown();
}

TEST(a_parameter_may_be_the_loss) {
    setup();
    cfx_tensor w = full(cpu, 1, 3), g = {0}, place = full(cpu, 1, 9), loss = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_retain(&w, &loss), CFX_OK);
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK_EQ(value_of(&g), 1);
    tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_retain(&w, &loss), CFX_OK);
    back(tape, &loss, (cfx_tensor *[]){&place});
    CHECK_EQ(value_of(&place), 1);
    cfx_release(&w);
    cfx_release(&g);
    cfx_release(&place);
    teardown();
}

TEST(tied_parameters_have_one_gradient_the_sum_of_all_uses) {
    setup();
    cfx_tensor w = full(cpu, 5, 3), tied = {0}, other = full(cpu, 5, 2);
    CHECK_STATUS(cfx_detach(&w, &tied), CFX_OK);
    cfx_tensor *watched[4] = {&w, &other, &tied, &w}, g[4] = {0}, *grads[4] = {&g[0], &g[1], &g[2], &g[3]};
    cfx_layout *layout;
    CHECK_STATUS(
        cfx_layout_new(4, (const cfx_tensor *const *)watched, (const char *[]){"w", "other", "tied", "w2"}, &layout),
        CFX_OK);
    for (int flat = 0; flat < 2; flat++) {
        if (flat) CHECK_STATUS(cfx_layout_make(layout, cpu, -1, 0, grads), CFX_OK);
        cfx_tape *tape = watch(4, watched);
        cfx_tensor y = op2(CF_OP_mul, &w, &other), z = op2(CF_OP_mul, &y, &tied), loss = sum_of(z);
        cfx_release(&y);
        back(tape, &loss, grads);
        CHECK_EQ(value_of(&g[1]), 9);
        for (int i = 0; i < 4; i++) {
            if (i != 1) CHECK_EQ(value_of(&g[i]), 12);
            cfx_release(&g[i]);
        }
    }
    cfx_layout_free(layout);
    cfx_release(&w);
    cfx_release(&tied);
    cfx_release(&other);
    teardown();
}

TEST(one_parameter_in_two_roles_of_one_layer_gets_both_gradients) {
    setup();
    const int64_t shape[2] = {2, 4};
    const float values[8] = {1, 2, 3, 4, 4, 3, 2, 1};
    cfx_tensor x = {0}, w = full(cpu, 4, 1), y = {0}, apart[2] = {full(cpu, 4, 1), full(cpu, 4, 1)}, g[3] = {0},
               place = full(cpu, 4, 0);
    float both[4], gamma[4], beta[4];
    CHECK_STATUS(cfx_from_host(cpu, CFX_FLOAT32, 2, shape, values, &x), CFX_OK);
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_layernorm(&x, &w, &w, 1e-5, &y), CFX_OK);
    cfx_tensor z = op2(CF_OP_mul, &y, &x), loss = sum_of(z);
    cfx_release(&y);
    back(tape, &loss, (cfx_tensor *[]){&place});
    tape = watch(2, (cfx_tensor *[]){&apart[0], &apart[1]});
    CHECK_STATUS(cfx_layernorm(&x, &apart[0], &apart[1], 1e-5, &y), CFX_OK);
    z = op2(CF_OP_mul, &y, &x), loss = sum_of(z);
    cfx_release(&y);
    back(tape, &loss, (cfx_tensor *[]){&g[0], &g[1]});
    CHECK_STATUS(cfx_read(&place, both, sizeof both), CFX_OK);
    CHECK_STATUS(cfx_read(&g[0], gamma, sizeof gamma), CFX_OK);
    CHECK_STATUS(cfx_read(&g[1], beta, sizeof beta), CFX_OK);
    for (int i = 0; i < 4; i++) CHECK_NEAR(both[i], gamma[i] + beta[i], 1e-6);
    for (int i = 0; i < 2; i++) {
        cfx_release(&apart[i]);
        cfx_release(&g[i]);
    }
    cfx_release(&x);
    cfx_release(&w);
    cfx_release(&place);
    teardown();
}

TEST(gradients_cross_devices) {
    setup();
    cfx_device *second = cfx_device_at(context, 1);
    cfx_tensor w = full(cpu, 5, 3), there = {0}, g = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_to(&w, second, -1, &there), CFX_OK);
    cfx_tensor y = op2(CF_OP_mul, &there, &there), loss = sum_of(y);
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK(cf_device(&g) == cpu);
    CHECK_EQ(value_of(&g), 6);
    cfx_release(&there);
    cfx_release(&w);
    cfx_release(&g);
    teardown();
}

/* ---- refusals --------------------------------------------------------------------------------------- */

TEST(recorded_and_saved_tensors_do_not_change_in_place) {
    setup();
    cfx_tensor w = full(cpu, 8, 3), x = full(cpu, 8, 2), low = {0}, high = {0}, g = {0};
    CHECK_STATUS(cfx_slice(&x, 0, 0, 4, 1, &low), CFX_OK);
    CHECK_STATUS(cfx_slice(&x, 0, 4, 4, 1, &high), CFX_OK);
    cfx_tensor w_low = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_slice(&w, 0, 0, 4, 1, &w_low), CFX_OK);
    cfx_tensor y = op2(CF_OP_mul, &w_low, &low);
    CHECK_STATUS(cfx_fill(&w, 0), CFX_ESTATE);
    CHECK_STATUS(cfx_fill(&w_low, 0), CFX_ESTATE);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &y, 1), CFX_ESTATE);
    CHECK(says("add_: the tensor is part of a gradient being recorded"));
    CHECK_STATUS(cfx_fill(&low, 0), CFX_ESTATE);
    CHECK(says("mul needs the tensor's values"));
    CHECK_STATUS(cfx_fill(&x, 0), CFX_ESTATE); /* reaches into it */
    CHECK_STATUS(cfx_allreduce("sum", 1, 1, (cfx_tensor *[]){&low}), CFX_ESTATE);
    CHECK_STATUS(cfx_fill(&high, 50), CFX_OK); /* does not */
    CHECK_STATUS(cfx_binary_into(CF_OP_add, &high, &w_low), CFX_ESTATE);
    CHECK(says("is watched by a gradient, which an in-place operation would lose"));
    cfx_tensor loss = sum_of(y);
    back(tape, &loss, (cfx_tensor *[]){&g});
    float got[8];
    CHECK_STATUS(cfx_read(&g, got, sizeof got), CFX_OK);
    for (int i = 0; i < 8; i++) CHECK_EQ(got[i], i < 4 ? 2 : 0);
    CHECK_STATUS(cfx_fill(&w, 0), CFX_OK); /* the tape has ended */
    CHECK_STATUS(cfx_fill(&x, 0), CFX_OK);
    cfx_tensor *all[] = {&w, &x, &low, &high, &w_low, &g};
    for (int i = 0; i < 6; i++) cfx_release(all[i]);
    teardown();
}

TEST(values_that_no_gradient_needs_may_change_in_place) {
    setup();
    cfx_tensor w = full(cpu, 8, 3), x = full(cpu, 8, 2), g = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    cfx_tensor y = op2(CF_OP_add, &w, &x);
    CHECK_STATUS(cfx_fill(&x, 100), CFX_OK);
    cfx_tensor loss = sum_of(y);
    CHECK_EQ(value_of(&loss), 40);
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK_EQ(value_of(&g), 1);
    cfx_release(&w);
    cfx_release(&x);
    cfx_release(&g);
    teardown();
}

TEST(a_place_that_the_gradient_itself_needs_is_refused) {
    setup();
    cfx_tensor w = full(cpu, 8, 3), x = full(cpu, 8, 2);
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    cfx_tensor y = op2(CF_OP_mul, &w, &x), loss = sum_of(y);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, (cfx_tensor *[]){&x}, 0), CFX_ESTATE);
    cfx_tape_end(&tape);
    CHECK_EQ(value_of(&x), 2);
    cfx_release(&loss);
    cfx_release(&w);
    cfx_release(&x);
    teardown();
}

TEST(what_a_live_tape_watches_is_not_watched_again_and_two_tapes_do_not_mix) {
    setup();
    cfx_tensor w = full(cpu, 4, 3), v = full(cpu, 4, 2), ids = {0}, out = {0}, g = {0};
    const int64_t n = 4;
    cfx_tape *first = watch(1, (cfx_tensor *[]){&w}), *second = NULL;
    CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&v, &w}, &second), CFX_ESTATE);
    CHECK(says("parameter 2 is watched by a gradient being recorded"));
    CHECK(!cfx_is_watched(&v));
    CHECK_STATUS(cfx_full(cpu, CFX_INT64, 1, &n, 1, &ids), CFX_OK);
    CHECK_STATUS(cfx_tape_begin(context, 1, (cfx_tensor *[]){&ids}, &second), CFX_EARG);
    CHECK(says("expected a float tensor, got int64"));
    second = watch(1, (cfx_tensor *[]){&v});
    CHECK_STATUS(cfx_binary(CF_OP_mul, &w, &v, &out), CFX_ESTATE);
    CHECK(says("watched by two gradients"));
    CHECK(out._buffer == NULL);
    cfx_tensor y = op2(CF_OP_mul, &v, &v), loss = sum_of(y); /* one inside the other is fine */
    CHECK_STATUS(cfx_tape_backward(first, &loss, (cfx_tensor *[]){&g}, 0), CFX_EARG);
    CHECK(says("does not depend on the model's parameters"));
    back(second, &loss, (cfx_tensor *[]){&g});
    CHECK_EQ(value_of(&g), 4);
    cfx_tape_end(&first);
    cfx_release(&w);
    cfx_release(&v);
    cfx_release(&g);
    cfx_release(&ids);
    teardown();
}

TEST(a_loss_is_one_number_that_depends_on_the_parameters) {
    setup();
    cfx_tensor w = full(cpu, 4, 3), x = full(cpu, 1, 1), g = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    cfx_tensor y = op2(CF_OP_mul, &w, &w);
    CHECK_STATUS(cfx_tape_backward(tape, &y, (cfx_tensor *[]){&g}, 0), CFX_EARG);
    CHECK(says("expected its first result to be one number, got [4] (float32, cpu:0)"));
    CHECK_STATUS(cfx_tape_backward(tape, &x, (cfx_tensor *[]){&g}, 0), CFX_EARG);
    cfx_tensor loss = sum_of(y);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, (cfx_tensor *[]){&x}, 0), CFX_EARG);
    CHECK(says("place 1: expected [4] (float32, cpu:0), got [1] (float32, cpu:0)"));
    cfx_tape_end(&tape);
    tape = watch(1, (cfx_tensor *[]){&w});
    CHECK_STATUS(cfx_tape_backward(tape, &loss, (cfx_tensor *[]){&g}, 0), CFX_EARG); /* of a tape that ended */
    cfx_tape_end(&tape);
    cfx_release(&loss);
    cfx_release(&x);
    cfx_release(&w);
    teardown();
}

TEST(watches_are_void_once_the_tape_has_ended) {
    setup();
    cfx_tensor w = full(cpu, 4, 3), g = {0}, escaped;
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    escaped = op2(CF_OP_mul, &w, &w);
    CHECK(cfx_is_watched(&w) && cfx_is_watched(&escaped));
    cfx_tape_end(&tape); /* as after an error: nothing else is to be cleaned up */
    CHECK(!cfx_is_watched(&w) && !cfx_is_watched(&escaped));
    tape = watch(1, (cfx_tensor *[]){&w});
    cfx_tensor y = op2(CF_OP_mul, &w, &escaped), loss = sum_of(y);
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK_EQ(value_of(&g), 9); /* a tensor that escaped is a constant */
    CHECK_STATUS(cfx_fill(&escaped, 1), CFX_OK);
    cfx_release(&escaped);
    cfx_release(&w);
    cfx_release(&g);
    teardown();
}

/* ---- operations of the host's own -------------------------------------------------------------------- */

TEST(a_custom_operation_gets_the_gradient_of_its_output_and_gives_those_of_its_inputs) {
    setup();
    cfx_tensor a = full(cpu, 4, 3), b = full(cpu, 4, 5), out = full(cpu, 4, 1), dy = {0}, ga = {0}, g[2] = {0};
    int32_t id = 0;
    cfx_tape *tape = watch(2, (cfx_tensor *[]){&a, &b});
    CHECK_STATUS(cfx_tape_record(77, 2, (const cfx_tensor *[]){&a, &b}, 0, NULL, &out), CFX_OK);
    CHECK_STATUS(cfx_tape_record(78, 1, (const cfx_tensor *[]){&a}, 0, NULL, &out), CFX_ESTATE);
    cfx_tensor y = op2(CF_OP_mul, &out, &b), loss = sum_of(y);
    CHECK_STATUS(cfx_tape_custom(tape, &id, &dy), CFX_ESTATE);
    CHECK_STATUS(cfx_tape_resume(tape), CFX_ESTATE);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, (cfx_tensor *[]){&g[0], &g[1]}, 0), CFX_CUSTOM);
    CHECK_STATUS(cfx_tape_custom(tape, &id, &dy), CFX_OK);
    CHECK_EQ(id, 77);
    CHECK_EQ(value_of(&dy), 5);
    CHECK(!cfx_is_watched(&dy));
    CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &dy, 10, 0, &ga), CFX_OK);
    CHECK_STATUS(cfx_tape_give(tape, 2, &ga), CFX_EARG);
    CHECK_STATUS(cfx_tape_give(tape, 0, &loss), CFX_EARG);
    CHECK(says("expected the input's shape [4]"));
    CHECK_STATUS(cfx_tape_give(tape, 0, &ga), CFX_OK);
    CHECK_STATUS(cfx_tape_resume(tape), CFX_OK); /* b was given none, which is zero */
    cfx_tape_end(&tape);
    CHECK_STATUS(cfx_fill(&ga, 0), CFX_OK); /* the host's own still */
    CHECK_EQ(value_of(&g[0]), 50);
    CHECK_EQ(value_of(&g[1]), 1);
    cfx_tensor *all[] = {&a, &b, &out, &dy, &ga, &g[0], &g[1], &loss};
    for (int i = 0; i < 8; i++) cfx_release(all[i]);
    teardown();
}

TEST(a_custom_operation_that_gives_nothing_leaves_zeros_in_flat_places) {
    setup();
    flat f;
    make_flat(&f, 64);
    cfx_tensor out = full(cpu, 64, 1);
    for (int i = 0; i < 2; i++) CHECK_STATUS(cfx_fill(&f.g[i], 10), CFX_OK);
    cfx_tape *tape = watch(2, f.watched);
    CHECK_STATUS(cfx_tape_record(1, 2, (const cfx_tensor *[]){&f.w[0], &f.w[1]}, 0, NULL, &out), CFX_OK);
    cfx_tensor loss = sum_of(out);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, f.grads, 0), CFX_CUSTOM);
    CHECK_STATUS(cfx_tape_resume(tape), CFX_OK);
    cfx_tape_end(&tape);
    CHECK_EQ(value_of(&f.g[0]), 0);
    CHECK_EQ(value_of(&f.g[1]), 0);
    cfx_release(&loss);
    free_flat(&f);
    teardown();
}

TEST(recording_that_fails_leaves_the_result_to_its_owner) {
    setup();
    cfx_tensor w = full(cpu, 4, 3), v = full(cpu, 4, 2), out = full(cpu, 4, 6);
    cfx_tape *first = watch(1, (cfx_tensor *[]){&w}), *second = watch(1, (cfx_tensor *[]){&v});
    CHECK_STATUS(cfx_tape_record(1, 2, (const cfx_tensor *[]){&w, &v}, 0, NULL, &out), CFX_ESTATE);
    CHECK_EQ(value_of(&out), 6);
    cfx_tape_end(&second);
    cfx_tape_end(&first);
    cfx_release(&w);
    cfx_release(&v);
    cfx_release(&out);
    teardown();
}

/* ---- failures in the middle ------------------------------------------------------------------------- */

enum { WIDE = 5 };

/* The tensors of wide_step. */
typedef struct wide {
    cfx_tensor w[WIDE], g[WIDE], x, ids, *watched[WIDE], *grads[WIDE];
    cfx_layout *layout;
} wide;

/* Walks back, and whenever there is no memory gives a little and goes on.  Returns how often that was. */
static int walk_in_want(cfx_tape *tape, const cfx_tensor *loss, cfx_tensor *const *grads, int accumulate) {
    int failed = 0;
    hoard *h = malloc(sizeof *h);
    const size_t limit = cpu->pool.limit;
    fill_hoard(cpu, h);
    cfx_status status = cfx_tape_backward(tape, loss, grads, accumulate);
    for (; status == CFX_EMEMORY; failed++) {
        if (h->n > 0) {
            const int k = (failed * 7919 + 1) % h->n; /* large ones and small ones */
            cf_pool_give(&cpu->pool, h->blocks[k]);
            h->blocks[k] = h->blocks[--h->n];
        } else {
            cpu->pool.limit += 1024;
        }
        status = cfx_tape_backward(tape, loss, grads, accumulate);
    }
    CHECK_STATUS(status, CFX_OK);
    empty_hoard(cpu, h);
    cpu->pool.limit = limit;
    free(h);
    return failed;
}

/* A step through layers of all kinds, into flat places.  Every handle is released whatever happens.  failed (or NULL)
 * receives how often the walk had no memory. */
static cfx_status wide_step(wide *o, int accumulate, int *failed) {
    cfx_tensor *w = o->w;
    const cfx_tensor *x = &o->x, *ids = &o->ids;
    cfx_tensor t[12] = {0};
    cfx_tape *tape = NULL;
    const int32_t last = -1;
    cfx_status status = cfx_tape_begin(context, WIDE, o->watched, &tape);
    if (status == CFX_OK) status = cfx_dense(x, &w[0], &w[1], CF_OP_tanh, &t[0]);
    if (status == CFX_OK) status = cfx_layernorm(&t[0], &w[2], &w[3], 1e-5, &t[1]);
    if (status == CFX_OK) status = cfx_matmul(&t[1], &w[4], &t[2]);
    if (status == CFX_OK) status = cfx_unary(CF_OP_neg, &t[2], 0, 0, &t[3]);
    if (status == CFX_OK) status = cfx_softmax(CF_OP_softmax, &t[3], 1, &t[4]);
    if (status == CFX_OK) status = cfx_index(&w[4], 0, ids, &t[5]);
    if (status == CFX_OK) status = cfx_binary(CF_OP_div, &t[4], &t[5], &t[6]);
    if (status == CFX_OK) status = cfx_reduce(CF_OP_norm, &t[6], 1, &last, 0, 0, &t[7]);
    if (status == CFX_OK) status = cfx_crossentropy(&t[4], ids, 0.1, -1, CFX_MEAN, &t[8]);
    if (status == CFX_OK) status = cfx_reduce(CF_OP_max, &t[7], 0, NULL, 0, 0, &t[9]);
    if (status == CFX_OK) status = cfx_binary(CF_OP_sub, &t[8], &t[9], &t[10]);
    if (status == CFX_OK) status = cfx_loss(CF_OP_huber, &t[10], &t[10], 1, CFX_SUM, &t[11]);
    if (status == CFX_OK && failed) *failed = walk_in_want(tape, &t[11], o->grads, accumulate);
    else if (status == CFX_OK) status = cfx_tape_backward(tape, &t[11], o->grads, accumulate);
    cfx_tape_end(&tape);
    for (int i = 0; i < 12; i++) cfx_release(&t[i]);
    return status;
}

static void make_wide(wide *o) {
    const int64_t shapes[5][2] = {{300, 200}, {300}, {300}, {300}, {300, 40}}, batch[2] = {50, 200}, n = 50;
    const int32_t ranks[5] = {2, 1, 1, 1, 2};
    const char *paths[WIDE] = {"0", "1", "2", "3", "4"};
    *o = (wide){0};
    for (int i = 0; i < WIDE; i++) {
        CHECK_STATUS(cfx_random(cpu, CFX_FLOAT32, ranks[i], shapes[i], "uniform", -1, 1, 0, &o->w[i]), CFX_OK);
        o->watched[i] = &o->w[i];
        o->grads[i] = &o->g[i];
    }
    CHECK_STATUS(cfx_random(cpu, CFX_FLOAT32, 2, batch, "uniform", -1, 1, 0, &o->x), CFX_OK);
    CHECK_STATUS(cfx_random(cpu, CFX_INT64, 1, &n, "integer", 0, 39, 0, &o->ids), CFX_OK);
    CHECK_STATUS(cfx_layout_new(WIDE, (const cfx_tensor *const *)o->watched, paths, &o->layout), CFX_OK);
    CHECK_STATUS(cfx_layout_make(o->layout, cpu, -1, 0, o->grads), CFX_OK);
}

static void free_wide(wide *o) {
    for (int i = 0; i < WIDE; i++) {
        cfx_release(&o->w[i]);
        cfx_release(&o->g[i]);
    }
    cfx_release(&o->x);
    cfx_release(&o->ids);
    cfx_layout_free(o->layout);
}

/* Each tensor is memory of its own, so that a limit is met at every allocation. */
static void setup_plain(void) {
    setenv("CONFLUX_POOL", "plain", 1);
    setup();
    unsetenv("CONFLUX_POOL");
}

TEST(a_failure_at_any_allocation_leaves_nothing_behind) {
    setup_plain();
    wide o;
    int failed = 0;
    make_wide(&o);
    const size_t limit = cpu->pool.limit;
    for (int flat = 1; flat >= 0; flat--) { /* into places, and into gradients of their own */
        const int64_t blocks = blocks_of(cpu);
        const int32_t refs = flat ? o.g[0]._buffer->refs : 0;
        for (size_t room = 0; room < 1 << 21; room += SANITIZED ? 4096 : 768) { /* the limit is the seam */
            CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
            cfx_memory_trim(context);
            cpu->pool.limit = cpu->pool.reserved + room;
            const cfx_status status = wide_step(&o, 0, NULL);
            CHECK(status == CFX_OK || status == CFX_EMEMORY);
            failed += status != CFX_OK;
            if (flat) CHECK_EQ(o.g[0]._buffer->refs, refs);
            for (int i = 0; i < WIDE; i++) CHECK(o.w[i]._buffer->holds == NULL);
            for (int i = 0; i < WIDE && !flat; i++) cfx_release(&o.g[i]);
            CHECK_EQ(blocks_of(cpu), blocks);
            if (status == CFX_OK) break;
        }
        CHECK(failed > 10);
        cpu->pool.limit = limit;
        CHECK_STATUS(wide_step(&o, 0, NULL), CFX_OK);
        for (int i = 0; i < WIDE; i++) {
            CHECK_STATUS(cfx_wait(&o.g[i]), CFX_OK);
            cfx_release(&o.g[i]);
        }
    }
    free_wide(&o);
    teardown();
}

/* All gradients, one behind the other. */
static size_t read_grads(const wide *o, float *to) {
    size_t n = 0;
    for (int i = 0; i < WIDE; i++) {
        const size_t numel = (size_t)cf_numel(&o->g[i]);
        CHECK_STATUS(cfx_read(&o->g[i], to + n, numel * sizeof *to), CFX_OK);
        n += numel;
    }
    return n;
}

TEST(a_walk_without_memory_goes_on_where_it_stopped_to_the_same_gradient) {
    setup_plain();
    wide o;
    enum { MOST = 300 * 200 + 3 * 300 + 300 * 40 };
    float *want = malloc(MOST * sizeof *want), *got = malloc(MOST * sizeof *got);
    make_wide(&o);
    for (int mode = 0; mode < 3; mode++) { /* into flat places; added there; into gradients of their own */
        int failed = 0;
        for (int i = 0; i < WIDE && mode == 2; i++) cfx_release(&o.g[i]);
        for (int i = 0; i < WIDE && mode == 1; i++) CHECK_STATUS(cfx_fill(&o.g[i], 1), CFX_OK);
        const int64_t blocks = blocks_of(cpu);
        CHECK_STATUS(wide_step(&o, mode == 1, NULL), CFX_OK);
        const size_t n = read_grads(&o, want);
        for (int i = 0; i < WIDE && mode == 2; i++) cfx_release(&o.g[i]);
        for (int i = 0; i < WIDE && mode == 1; i++) CHECK_STATUS(cfx_fill(&o.g[i], 1), CFX_OK);
        CHECK_EQ(blocks_of(cpu), blocks);
        CHECK_STATUS(wide_step(&o, mode == 1, &failed), CFX_OK);
        CHECK(failed > 10);
        CHECK_EQ(read_grads(&o, got), n);
        CHECK(memcmp(want, got, n * sizeof *got) == 0);
        CHECK_EQ(blocks_of(cpu), blocks + (mode == 2 ? WIDE : 0));
    }
    free(want);
    free(got);
    free_wide(&o);
    teardown();
}

TEST(a_loss_that_is_a_parameter_goes_on_too) {
    setup();
    cfx_tensor w = full(cpu, 1, 3), g = {0};
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    CHECK(walk_in_want(tape, &w, (cfx_tensor *[]){&g}, 0) > 0);
    CHECK_STATUS(cfx_tape_backward(tape, &w, (cfx_tensor *[]){&g}, 0), CFX_ESTATE);
    cfx_tape_end(&tape);
    CHECK_EQ(value_of(&g), 1);
    cfx_release(&w);
    cfx_release(&g);
    teardown();
}

TEST(backward_gives_memory_back_as_it_goes) {
    setup();
    cfx_tensor w = full(cpu, 1 << 16, 1), g = {0}, h = {0};
    CHECK_STATUS(cfx_retain(&w, &h), CFX_OK);
    cfx_tape *tape = watch(1, (cfx_tensor *[]){&w});
    cfx_release(&h);
    CHECK_STATUS(cfx_retain(&w, &h), CFX_OK);
    for (int i = 0; i < 20; i++) {
        cfx_tensor next = {0};
        CHECK_STATUS(cfx_unary(CF_OP_tanh, &h, 0, 0, &next), CFX_OK);
        cfx_release(&h);
        h = next;
    }
    cfx_tensor loss = sum_of(h);
    const size_t before = cpu->pool.in_use;
    cpu->pool.peak = before;
    back(tape, &loss, (cfx_tensor *[]){&g});
    CHECK(cpu->pool.peak <= before + (4 << 18)); /* a few gradients under way, not twenty */
    CHECK_EQ(blocks_of(cpu), 2);
    cfx_release(&w);
    cfx_release(&g);
    teardown();
}
