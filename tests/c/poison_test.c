/* Faults inside queues: where poison starts, how it travels, how it ends. */
#include "test.h"

#include "queues.h"

static cfx_context *context;
static cfx_device *a, *b;
static void setup(void) {
    context = new_context("cpu*2");
    a = cfx_device_at(context, 0);
    b = cfx_device_at(context, 1);
}

static void release(int n, cfx_tensor *const *xs) {
    for (int i = 0; i < n; i++) cfx_release(xs[i]);
}
#define RELEASE(...) \
    release((int)(sizeof((cfx_tensor *[]){__VA_ARGS__}) / sizeof(cfx_tensor *)), (cfx_tensor *[]){__VA_ARGS__})

static void check_raises(const cfx_tensor *x) {
    CHECK_STATUS(cfx_wait(x), CFX_EFAULT);
    CHECK(says("made to fail"));
}

TEST(what_came_before_a_fault_is_readable_and_what_comes_after_raises) {
    setup();
    gate g = {0};
    shut_gate(&g, a, CF_COMPUTE);
    cfx_tensor before = full(a, 8, 1);
    fault(a);
    cfx_tensor after = full(a, 8, 2);
    open_gate(&g);
    CHECK_STATUS(cf_event_wait(last_of(a, CF_COMPUTE)), CFX_OK);
    CHECK_EQ(value_of(&before), 1);
    CHECK_EQ(value_of(&before), 1);
    check_raises(&after);
    CHECK_EQ(value_of(&before), 1);
    RELEASE(&before, &after);
    cfx_context_free(context);
}

TEST(a_fault_is_raised_with_its_op_and_line) {
    setup();
    const int64_t ids[2] = {1, 12}, n = 2;
    cfx_tensor x = full(a, 10, 1), at = {0}, y = {0};
    CHECK_STATUS(cfx_from_host(a, CFX_INT64, 1, &n, ids, &at), CFX_OK);
    cfx_at_line(context, "train.lua", 12);
    CHECK_STATUS(cfx_index(&x, 0, &at, &y), CFX_OK);
    cfx_at_line(context, "train.lua", 99);
    cfx_tensor late = full(a, 1, 1);
    CHECK_STATUS(cfx_wait(&late), CFX_EFAULT);
    CHECK(says("index: "));
    CHECK(says("12"));
    CHECK(says("train.lua:12)"));
    RELEASE(&x, &at, &y, &late);
    cfx_context_free(context);
}

TEST(a_fault_of_another_device_comes_only_through_waits_at_or_after_it) {
    setup();
    gate g = {0};
    shut_gate(&g, a, CF_COMPUTE);
    cfx_tensor early = full(a, 8, 1), from_early = {0}, from_late = {0};
    fault(a);
    cfx_tensor late = full(a, 8, 2);
    CHECK_STATUS(cfx_to(&early, b, -1, &from_early), CFX_OK);
    cfx_tensor own = full(b, 8, 3);
    CHECK_STATUS(cfx_to(&late, b, -1, &from_late), CFX_OK);
    cfx_tensor behind = full(b, 8, 4);
    open_gate(&g);
    CHECK_STATUS(cf_event_wait(last_of(b, CF_COMPUTE)), CFX_OK);
    CHECK_EQ(value_of(&from_early), 1);
    CHECK_EQ(value_of(&own), 3);
    check_raises(&behind);
    CHECK_STATUS(cfx_wait(&from_late), CFX_EFAULT); /* void */
    RELEASE(&early, &late, &from_early, &from_late, &own, &behind);
    cfx_context_free(context);
}

TEST(waiting_for_a_poisoned_past_inherits_too) {
    setup();
    fault(a);
    cfx_tensor late = full(a, 8, 2), copy = {0};
    CHECK_STATUS(cf_event_wait(last_of(a, CF_COMPUTE)), CFX_OK); /* it is over before b hears of it */
    CHECK_STATUS(cfx_to(&late, b, -1, &copy), CFX_OK);
    check_raises(&copy);
    RELEASE(&late, &copy);
    cfx_context_free(context);
}

/* ---- waits for order alone -------------------------------------------------------------------------- */

TEST(writing_what_a_poisoned_queue_read_does_not_inherit) {
    setup();
    cfx_tensor x = full(a, 8, 1), copy = {0};
    fault(b);
    CHECK_STATUS(cfx_to(&x, b, -1, &copy), CFX_OK);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 4), CFX_OK);
    CHECK_EQ(value_of(&x), 5);
    check_raises(&copy);
    CHECK_EQ(value_of(&x), 5);
    RELEASE(&x, &copy);
    cfx_context_free(context);
}

TEST(a_block_that_a_poisoned_queue_used_poisons_no_later_owner) {
    setup();
    const int64_t n = 8;
    const float data[8] = {6, 6, 6, 6, 6, 6, 6, 6};
    for (int from_host = 0; from_host < 2; from_host++) {
        gate g = {0};
        cfx_tensor x = full(a, n, 1), copy = {0}, next = {0};
        const void *block = x._buffer->data;
        shut_gate(&g, b, CF_COMPUTE);
        fault(b);
        CHECK_STATUS(cfx_to(&x, b, -1, &copy), CFX_OK);
        RELEASE(&x);
        if (from_host) CHECK_STATUS(cfx_from_host(a, CFX_FLOAT32, 1, &n, data, &next), CFX_OK);
        else next = full(a, n, 6);
        CHECK(next._buffer->data == block); /* else this shows nothing */
        open_gate(&g);
        CHECK_EQ(value_of(&next), 6);
        check_raises(&copy);
        CHECK_EQ(value_of(&next), 6);
        RELEASE(&next, &copy);
    }
    cfx_context_free(context);
}

/* x lies on a and was written last, but for the fault of b, by both communication queues. */
static cfx_tensor written_by_a_poisoned_collective(void) {
    cfx_tensor x = full(a, 8, 1), y = full(b, 8, 2);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    fault(b);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &y, 1), CFX_OK);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x, &y}), CFX_OK);
    RELEASE(&y);
    return x;
}

TEST(giving_a_new_value_to_the_whole_of_a_poisoned_write_does_not_inherit) {
    setup();
    cfx_tensor source = full(a, 8, 3), x = written_by_a_poisoned_collective();
    CHECK_STATUS(cfx_unary(CF_OP_neg, &source, 0, 0, &x), CFX_OK);
    CHECK_EQ(value_of(&x), -3);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    CHECK_EQ(value_of(&x), -3);
    RELEASE(&x, &source);
    cfx_context_free(context);
}

TEST(writing_a_part_of_a_poisoned_write_inherits) {
    setup();
    cfx_tensor source = full(a, 4, 3), x = written_by_a_poisoned_collective(), part = {0};
    CHECK_STATUS(cfx_slice(&x, 0, 0, 4, 1, &part), CFX_OK);
    CHECK_STATUS(cfx_unary(CF_OP_neg, &source, 0, 0, &part), CFX_OK);
    check_raises(&x);
    check_raises(&x);
    RELEASE(&x, &source, &part);
    cfx_context_free(context);
}

TEST(changing_a_poisoned_write_in_place_inherits) {
    setup();
    cfx_tensor x = written_by_a_poisoned_collective();
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    check_raises(&x);
    RELEASE(&x);
    cfx_context_free(context);
}

TEST(a_wait_for_data_is_judged_by_their_ticket_where_another_of_its_queue_is_for_order) {
    setup();
    cfx_tensor x = full(a, 8, 1), early = full(b, 8, 7), copy = {0}, late = {0};
    fault(b);
    CHECK_STATUS(cfx_to(&x, b, -1, &copy), CFX_OK);
    CHECK_STATUS(cfx_copy(&x, &early), CFX_OK); /* reads what b made before the fault, writes what b read after it */
    CHECK_EQ(value_of(&x), 7);
    CHECK_STATUS(cfx_to(&copy, a, -1, &late), CFX_OK);
    check_raises(&late);
    RELEASE(&x, &early, &copy, &late);
    cfx_context_free(context);
}

/* ---- how it ends ------------------------------------------------------------------------------------ */

TEST(a_raise_clears_all_queues_and_what_comes_after_it_runs) {
    setup();
    fault(a);
    cfx_tensor late = full(a, 8, 2), copy = {0};
    CHECK_STATUS(cfx_to(&late, b, -1, &copy), CFX_OK);
    check_raises(&late);
    cfx_tensor x = full(a, 8, 5), y = full(b, 8, 6), z = {0};
    CHECK_STATUS(cfx_to(&x, b, -1, &z), CFX_OK);
    CHECK_EQ(value_of(&x), 5);
    CHECK_EQ(value_of(&y), 6);
    CHECK_EQ(value_of(&z), 5);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    RELEASE(&late, &copy, &x, &y, &z);
    cfx_context_free(context);
}

TEST(tensors_never_written_stay_void_and_raise_again) {
    setup();
    fault(a);
    cfx_tensor x = full(a, 8, 2), y = {0}, copy = {0};
    check_raises(&x);
    for (int i = 0; i < 3; i++) {
        check_raises(&x);
        CHECK(says("never written"));
    }
    CHECK_STATUS(cfx_unary(CF_OP_neg, &x, 0, 0, &y), CFX_EFAULT); /* refused at once: it is known */
    CHECK(says("never written"));
    CHECK(y._buffer == NULL);
    CHECK_STATUS(cfx_to(&x, b, -1, &copy), CFX_EFAULT);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_EFAULT);
    CHECK_EQ(blocks_of(a), 1);
    RELEASE(&x);
    cfx_context_free(context);
}

TEST(updates_that_were_skipped_leave_the_old_value) {
    setup();
    cfx_tensor x = full(a, 8, 1), y = full(a, 8, 1), z = full(a, 8, 1), other = full(a, 8, 7), part = {0}, host = {0};
    const float eight = 8;
    const int64_t one = 1;
    CHECK_STATUS(cfx_from_host(a, CFX_FLOAT32, 1, &one, &eight, &host), CFX_OK);
    CHECK_STATUS(cfx_slice(&z, 0, 2, 3, 1, &part), CFX_OK);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    fault(a);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    CHECK_STATUS(cfx_copy(&y, &other), CFX_OK);
    CHECK_STATUS(cfx_fill(&part, 3), CFX_OK);
    CHECK_STATUS(cfx_fill(&host, 3), CFX_OK);
    check_raises(&x);
    CHECK_EQ(value_of(&x), 1);
    CHECK_EQ(value_of(&y), 1);
    CHECK_EQ(value_of(&z), 1);
    CHECK_EQ(value_of(&host), 8);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    CHECK_EQ(value_of(&x), 2);
    RELEASE(&x, &y, &z, &other, &part, &host);
    cfx_context_free(context);
}

TEST(a_void_tensor_lives_again_once_it_is_filled_whole) {
    setup();
    fault(a);
    cfx_tensor x = full(a, 8, 1), half = {0};
    check_raises(&x);
    CHECK_STATUS(cfx_slice(&x, 0, 0, 4, 1, &half), CFX_OK);
    CHECK_STATUS(cfx_fill(&half, 2), CFX_EFAULT); /* the other half would stay void */
    CHECK_STATUS(cfx_fill(&x, 3), CFX_OK);
    CHECK_EQ(value_of(&x), 3);
    RELEASE(&x, &half);
    cfx_context_free(context);
}

TEST(an_empty_tensor_whose_first_fill_was_skipped_is_void) {
    setup();
    const int64_t n = 8;
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_empty(a, CFX_FLOAT32, 1, &n, &x), CFX_OK);
    fault(a);
    CHECK_STATUS(cfx_fill(&x, 1), CFX_OK);
    check_raises(&x);
    check_raises(&x);
    RELEASE(&x);
    cfx_context_free(context);
}

TEST(two_faults_are_raised_each_by_its_own_reads) {
    setup();
    const int64_t ids[1] = {5}, n = 1;
    cfx_tensor table = full(b, 2, 1), at = {0}, y = {0};
    CHECK_STATUS(cfx_from_host(b, CFX_INT64, 1, &n, ids, &at), CFX_OK);
    fault(a);
    cfx_tensor x = full(a, 8, 1);
    CHECK_STATUS(cfx_index(&table, 0, &at, &y), CFX_OK);
    check_raises(&x);
    CHECK_STATUS(cfx_wait(&y), CFX_EFAULT);
    CHECK(says("index: "));
    cfx_tensor z = full(b, 8, 2);
    CHECK_EQ(value_of(&z), 2);
    check_raises(&x);
    RELEASE(&table, &at, &x, &y, &z);
    cfx_context_free(context);
}

TEST(many_faults_are_survived_and_each_void_keeps_its_own) {
    setup();
    enum { N = 50 };
    cfx_tensor x[N], alive[N];
    for (int i = 0; i < N; i++) {
        const int64_t id = i + 10, n = 1;
        cfx_tensor at = {0}, table = full(a, 2, 1);
        x[i] = (cfx_tensor){0};
        CHECK_STATUS(cfx_from_host(a, CFX_INT64, 1, &n, &id, &at), CFX_OK);
        CHECK_STATUS(cfx_index(&table, 0, &at, &x[i]), CFX_OK);
        CHECK_STATUS(cfx_wait(&x[i]), CFX_EFAULT);
        alive[i] = full(a, 4, i);
        RELEASE(&at, &table);
    }
    for (int i = 0; i < N; i++) {
        char id[16];
        snprintf(id, sizeof id, "%d", i + 10);
        CHECK_STATUS(cfx_wait(&x[i]), CFX_EFAULT);
        CHECK(says(id));
        CHECK_EQ(value_of(&alive[i]), i);
        RELEASE(&x[i], &alive[i]);
    }
    cfx_context_free(context);
}

TEST(a_sync_raises_too) {
    setup();
    fault(b);
    CHECK_STATUS(cfx_sync(context, a), CFX_OK);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    cfx_context_free(context);
}

TEST(what_must_run_runs_in_a_poisoned_queue) {
    setup();
    gate g = {0};
    diary d = {0};
    const entry always = {&d, 1};
    cfx_tensor x = full(a, 1000, 1), copy = {0}, next = {0};
    const int64_t n = 1000;
    float data[1000] = {0};
    fault(a);
    write_entry(&d, 2, a, CF_COMPUTE, NULL, 0);
    enqueue(a, CF_COMPUTE, run_entry, CF_ALWAYS, NULL, 0, &always, sizeof always);
    /* bytes on their way to a poisoned device are freed (the address sanitizer looks) */
    shut_gate(&g, b, CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, b, -1, &copy), CFX_OK);
    cfx_release(&x);
    CHECK_STATUS(cfx_from_host(a, CFX_FLOAT32, 1, &n, data, &next), CFX_OK);
    open_gate(&g);
    check_raises(&next);
    CHECK_EQ(atomic_load(&d.n), 1);
    CHECK_EQ(d.ids[0], 1);
    check_raises(&next);
    RELEASE(&copy, &next);
    cfx_context_free(context);
}

TEST(a_gradient_place_that_was_skipped_is_void_afterwards) {
    setup();
    /* two places that fill their buffer: no command writes the gaps, and only backward writes the places */
    cfx_tensor w = full(a, 64, 2), v = full(a, 64, 3), sum = {0}, loss = {0}, g[2] = {0};
    cfx_tensor *watched[2] = {&w, &v}, *grads[2] = {&g[0], &g[1]};
    cfx_layout *layout;
    cfx_tape *tape;
    CHECK_STATUS(cfx_layout_new(2, (const cfx_tensor *const *)watched, (const char *[]){"w", "v"}, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_make(layout, a, -1, 0, grads), CFX_OK);
    CHECK_STATUS(cfx_tape_begin(context, 2, watched, &tape), CFX_OK);
    CHECK_STATUS(cfx_binary(CF_OP_add, &w, &v, &sum), CFX_OK);
    CHECK_STATUS(cfx_reduce(CF_OP_sum, &sum, 0, NULL, 0, 0, &loss), CFX_OK);
    fault(a);
    CHECK_STATUS(cfx_tape_backward(tape, &loss, grads, 0), CFX_OK);
    cfx_tape_end(&tape);
    check_raises(&g[0]);
    check_raises(&g[0]);
    check_raises(&g[1]);
    cfx_layout_free(layout);
    RELEASE(&w, &v, &sum, &loss, &g[0], &g[1]);
    cfx_context_free(context);
}
