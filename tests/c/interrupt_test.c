/* cfx_interrupt: every call and every wait looks for it. */
#include "test.h"

#include "queues.h"

static void check_interrupted(cfx_status status) {
    CHECK_STATUS(status, CFX_EINTERRUPT);
    CHECK_STR(cfx_error(), "interrupted");
}

TEST(an_interrupt_ends_a_read_that_waits_and_the_value_can_be_read_later) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    for (int i = 0; i < 50; i++) {
        gate g = {0};
        helper h;
        shut_gate(&g, cpu, CF_COMPUTE);
        cfx_tensor x = full(cpu, 8, 3);
        start_helper(&h, interrupt_when_host_sleeps, context, NULL);
        check_interrupted(cfx_wait(&x));
        join_helper(&h);
        open_gate(&g);
        CHECK_EQ(value_of(&x), 3);
        cfx_release(&x);
    }
    cfx_context_free(context);
}

TEST(an_interrupt_ends_a_sync) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    helper h;
    shut_gate(&g, cfx_device_at(context, 1), CF_COMM);
    start_helper(&h, interrupt_when_host_sleeps, context, NULL);
    check_interrupted(cfx_sync(context, NULL));
    join_helper(&h);
    open_gate(&g);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    cfx_context_free(context);
}

TEST(an_interrupt_ends_an_op_that_is_parked_on_a_full_ring_and_nothing_of_it_is_left) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    cfx_tensor x = full(cpu, 4, 0), y = {0};
    shut_gate(&g, cpu, CF_COMPUTE);
    const int64_t blocks = blocks_of(cpu);
    int done = 0;
    cfx_status status = CFX_OK;
    start_helper(&h, interrupt_when_host_sleeps, context, NULL);
    for (; done < 1000000 && status == CFX_OK; done += status == CFX_OK)
        status = cfx_binary_scalar_into(CF_OP_add, &x, 1);
    join_helper(&h);
    check_interrupted(status);
    CHECK(done > 16384);
    start_helper(&h, interrupt_when_host_sleeps, context, NULL);
    check_interrupted(cfx_unary(CF_OP_neg, &x, 0, 0, &y));
    join_helper(&h);
    CHECK(y._buffer == NULL);
    CHECK_EQ(blocks_of(cpu), blocks);
    open_gate(&g);
    CHECK_EQ(value_of(&x), done);
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(an_interrupt_before_a_call_fails_that_call_and_only_that) {
    cfx_context *context = new_context("cpu");
    cfx_tensor x = full(cfx_device_at(context, 0), 4, 1), y = {0};
    cfx_interrupt(context);
    cfx_interrupt(context);
    check_interrupted(cfx_unary(CF_OP_neg, &x, 0, 0, &y));
    CHECK(y._buffer == NULL);
    CHECK_STATUS(cfx_unary(CF_OP_neg, &x, 0, 0, &y), CFX_OK);
    cfx_interrupt(context);
    check_interrupted(cfx_check(context));
    CHECK_STATUS(cfx_check(context), CFX_OK);
    cfx_interrupt(context);
    check_interrupted(cfx_sync(context, NULL));
    cfx_interrupt(context);
    cfx_release(&x); /* cannot fail, and does not take the interrupt */
    check_interrupted(cfx_check(context));
    CHECK_EQ(value_of(&y), -1);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(an_interrupted_raise_raises_at_the_next_read) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *a = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE); /* the raise waits for all queues */
    fault(a);
    cfx_tensor x = full(a, 4, 1);
    CHECK_STATUS(cf_event_wait(last_of(a, CF_COMPUTE)), CFX_OK);
    start_helper(&h, interrupt_when_host_sleeps, context, NULL);
    check_interrupted(cfx_wait(&x));
    join_helper(&h);
    open_gate(&g);
    CHECK_STATUS(cfx_wait(&x), CFX_EFAULT);
    CHECK(says("made to fail"));
    cfx_release(&x);
    cfx_context_free(context);
}

/* Interrupts the host once it sleeps, and then lets it go on. */
static void *interrupt_and_open(void *arg) {
    const helper *h = arg;
    wait_until_host_sleeps(h->context);
    cfx_interrupt(h->context);
    open_gate(h->gate);
    return NULL;
}

TEST(an_interrupt_between_two_parts_of_a_collective_waits_until_all_are_enqueued) {
    enum { N = 32000 }; /* more parts than a ring has room for at once */
    cfx_context *context = new_context("cpu*2");
    static cfx_tensor x[2][N], *leaves[2 * N];
    gate g = {0};
    helper h;
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < N; k++) {
            x[r][k] = full(cfx_device_at(context, r), 1, r + 1);
            leaves[r * N + k] = &x[r][k];
        }
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, cfx_device_at(context, 0), CF_COMPUTE);
    start_helper(&h, interrupt_and_open, context, &g);
    CHECK_STATUS(cfx_allreduce("sum", 2, N, leaves), CFX_OK);
    join_helper(&h);
    check_interrupted(cfx_check(context));
    int differ = 0;
    for (int k = 0; k < 2 * N; k++) {
        float value = 0;
        CHECK_STATUS(cfx_read(leaves[k], &value, sizeof value), CFX_OK);
        differ += value != 3;
        cfx_release(leaves[k]);
    }
    CHECK_EQ(differ, 0);
    cfx_context_free(context);
}

TEST(an_interrupt_of_a_wait_that_cannot_fail_stays_for_the_next_call) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    const cf_event shut = shut_gate(&g, cpu, CF_COMPUTE);
    start_helper(&h, interrupt_and_open, context, &g);
    cf_event_settle(shut);
    join_helper(&h);
    CHECK(cf_event_done(shut));
    check_interrupted(cfx_check(context));
    cfx_context_free(context);
}

TEST(an_interrupt_of_one_context_is_not_one_of_another) {
    cfx_context *one = new_context("cpu"), *two = new_context("cpu");
    cfx_interrupt(one);
    CHECK_STATUS(cfx_check(two), CFX_OK);
    check_interrupted(cfx_check(one));
    cfx_context_free(one);
    cfx_context_free(two);
}

/* ---- a storm ---------------------------------------------------------------------------------------- */

typedef struct storm {
    cfx_context *context;
    _Atomic int stop;
} storm;

static void *run_storm(void *arg) {
    storm *s = arg;
    uint32_t pause = 1;
    while (!atomic_load(&s->stop)) {
        cfx_interrupt(s->context);
        pause = pause * 1664525 + 1013904223;
        for (uint32_t k = 0; k < pause % 20000; k++) cf_relax();
    }
    return NULL;
}

/* One training step on both devices; wherever it fails, everything is given back. */
static cfx_status train_step(cfx_context *context, cfx_layout *layout, cfx_tensor w[2][2], cfx_tensor x[2]) {
    cfx_tensor h[2] = {0}, y[2] = {0}, loss[2] = {0}, g[2][2] = {0};
    cfx_tensor *leaves[4] = {&g[0][0], &g[0][1], &g[1][0], &g[1][1]};
    cfx_status status = CFX_OK;
    float got;
    for (int d = 0; d < 2 && status == CFX_OK; d++) {
        cfx_tape *tape = NULL;
        status = cfx_layout_make(layout, cfx_device_at(context, d), -1, 0, &leaves[2 * d]);
        if (status == CFX_OK) status = cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[d][0], &w[d][1]}, &tape);
        if (status == CFX_OK) status = cfx_dense(&x[d], &w[d][0], &w[d][1], CF_OP_tanh, &h[d]);
        if (status == CFX_OK) status = cfx_binary(CF_OP_mul, &h[d], &h[d], &y[d]);
        if (status == CFX_OK) status = cfx_reduce(CF_OP_mean, &y[d], 0, NULL, 0, 0, &loss[d]);
        if (status == CFX_OK) status = cfx_tape_backward(tape, &loss[d], &leaves[2 * d], 0);
        cfx_tape_end(&tape);
    }
    if (status == CFX_OK) status = cfx_allreduce("avg", 2, 2, leaves);
    if (status == CFX_OK) status = cfx_read(&loss[0], &got, sizeof got);
    for (int d = 0; d < 2; d++) {
        cfx_release(&h[d]);
        cfx_release(&y[d]);
        cfx_release(&loss[d]);
        cfx_release(&g[d][0]);
        cfx_release(&g[d][1]);
    }
    return status;
}

TEST(a_storm_of_interrupts_leaves_nothing_behind) {
    cfx_context *context = new_context("cpu*2");
    cfx_tensor w[2][2] = {0}, x[2] = {0};
    cfx_layout *layout;
    storm s = {.context = context};
    pthread_t thread;
    int finished = 0, interrupted = 0;
    for (int d = 0; d < 2; d++) {
        const int64_t shape[2] = {5, 3}, batch[2] = {4, 3}, n = 5;
        CHECK_STATUS(cfx_full(cfx_device_at(context, d), CFX_FLOAT32, 2, shape, 0.1, &w[d][0]), CFX_OK);
        CHECK_STATUS(cfx_full(cfx_device_at(context, d), CFX_FLOAT32, 1, &n, 0.2, &w[d][1]), CFX_OK);
        CHECK_STATUS(cfx_full(cfx_device_at(context, d), CFX_FLOAT32, 2, batch, 0.3, &x[d]), CFX_OK);
    }
    CHECK_STATUS(
        cfx_layout_new(2, (const cfx_tensor *[]){&w[0][0], &w[0][1]}, (const char *[]){"weight", "bias"}, &layout),
        CFX_OK);
    const int64_t blocks[2] = {blocks_of(cfx_device_at(context, 0)), blocks_of(cfx_device_at(context, 1))};
    if (pthread_create(&thread, NULL, run_storm, &s) != 0) return;
    for (int i = 0; i < 20000 && (interrupted < 500 || finished < 20); i++) {
        const cfx_status status = train_step(context, layout, w, x);
        CHECK(status == CFX_OK || status == CFX_EINTERRUPT);
        *(status == CFX_OK ? &finished : &interrupted) += 1;
    }
    atomic_store(&s.stop, 1);
    pthread_join(thread, NULL);
    cfx_check(context);
    CHECK(interrupted > 0);
    for (int d = 0; d < 2; d++) CHECK_EQ(blocks_of(cfx_device_at(context, d)), blocks[d]);
    CHECK_STATUS(train_step(context, layout, w, x), CFX_OK);
    cfx_layout_free(layout);
    for (int d = 0; d < 2; d++)
        for (int k = 0; k < 3; k++) cfx_release(k < 2 ? &w[d][k] : &x[d]);
    cfx_context_free(context);
}
