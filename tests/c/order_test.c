/* Order between queues is a property of data: core/tensor/dispatch.c over core/device. */
#include "test.h"

#include "queues.h"

enum { N = 5000, ROUNDS = 100 };

static cfx_context *context;
static cfx_device *a, *b;
static void setup(const char *devices) {
    context = new_context(devices);
    a = cfx_device_at(context, 0);
    b = cfx_device_at(context, 1);
}

TEST(a_writer_waits_for_readers_on_other_devices) {
    setup("cpu*2");
    for (int i = 0; i < ROUNDS; i++) {
        gate g = {0};
        cfx_tensor x = full(a, N, 1), y = {0};
        shut_gate(&g, b, CF_COMPUTE);
        CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
        CHECK_STATUS(cfx_fill(&x, 2), CFX_OK);
        CHECK(!cf_event_done(last_of(a, CF_COMPUTE)));
        open_gate(&g);
        CHECK_EQ(value_of(&y), 1);
        CHECK_EQ(value_of(&x), 2);
        cfx_release(&x);
        cfx_release(&y);
    }
    cfx_context_free(context);
}

TEST(a_reader_on_another_device_waits_for_the_write) {
    setup("cpu*2");
    for (int i = 0; i < ROUNDS; i++) {
        gate g = {0};
        cfx_tensor x = full(a, N, 1), y = {0};
        shut_gate(&g, a, CF_COMPUTE);
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 4), CFX_OK);
        CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
        CHECK(!cfx_ready(&y));
        open_gate(&g);
        CHECK_EQ(value_of(&y), 5);
        CHECK(cfx_ready(&y));
        cfx_release(&x);
        cfx_release(&y);
    }
    cfx_context_free(context);
}

TEST(a_second_writer_on_another_queue_waits_for_the_first) {
    setup("cpu*3");
    for (int i = 0; i < ROUNDS; i++) {
        gate g = {0};
        cfx_tensor x = full(a, N, 1), y = full(b, N, 7), z = {0};
        shut_gate(&g, b, CF_COMPUTE);
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_mul, &y, 2), CFX_OK);
        CHECK_STATUS(cfx_copy(&x, &y), CFX_OK); /* on a, behind the gate of b */
        CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 2), -1, &z), CFX_OK);
        CHECK_STATUS(cfx_fill(&y, 0), CFX_OK);
        open_gate(&g);
        CHECK_EQ(value_of(&z), 14);
        CHECK_EQ(value_of(&x), 14);
        CHECK_EQ(value_of(&y), 0);
        cfx_release(&x);
        cfx_release(&y);
        cfx_release(&z);
    }
    cfx_context_free(context);
}

TEST(a_block_freed_while_a_peer_reads_it_is_not_written_before_that_read) {
    setup("cpu*2");
    for (int i = 0; i < ROUNDS; i++) {
        gate g = {0};
        cfx_tensor x = full(a, N, 1), y = {0};
        const void *block = x._buffer->data;
        shut_gate(&g, b, CF_COMPUTE);
        CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
        cfx_release(&x);
        cfx_tensor next = full(a, N, 9);
        CHECK(next._buffer->data == block); /* else this shows nothing */
        CHECK(!cf_event_done(last_of(a, CF_COMPUTE)));
        open_gate(&g);
        CHECK_EQ(value_of(&y), 1);
        CHECK_EQ(value_of(&next), 9);
        cfx_release(&next);
        cfx_release(&y);
    }
    cfx_context_free(context);
}

TEST(what_a_freed_block_waits_for_outlives_owners_that_never_write_it) {
    setup("cpu*2");
    gate g = {0};
    const int64_t n = N;
    cfx_tensor x = full(a, N, 1), y = {0}, unwritten = {0};
    const void *block = x._buffer->data;
    shut_gate(&g, b, CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
    cfx_release(&x);
    CHECK_STATUS(cfx_empty(a, CFX_FLOAT32, 1, &n, &unwritten), CFX_OK);
    CHECK(unwritten._buffer->data == block);
    cfx_release(&unwritten);
    cfx_tensor next = full(a, N, 9);
    CHECK(next._buffer->data == block);
    CHECK(!cf_event_done(last_of(a, CF_COMPUTE)));
    open_gate(&g);
    CHECK_EQ(value_of(&y), 1);
    CHECK_EQ(value_of(&next), 9);
    cfx_release(&next);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(host_data_for_a_block_in_use_lands_after_that_use_and_does_not_wait) {
    setup("cpu*2");
    gate g = {0};
    const int64_t n = N;
    float *data = malloc(N * sizeof *data);
    cfx_tensor x = full(a, N, 1), y = {0}, next = {0};
    const void *block = x._buffer->data;
    for (int i = 0; i < N; i++) data[i] = 3;
    shut_gate(&g, b, CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
    cfx_release(&x);
    CHECK_STATUS(cfx_from_host(a, CFX_FLOAT32, 1, &n, data, &next), CFX_OK);
    for (int i = 0; i < N; i++) data[i] = 4; /* the caller's again */
    CHECK(next._buffer->data == block);
    CHECK(!cfx_ready(&next));
    open_gate(&g);
    CHECK_EQ(value_of(&y), 1);
    CHECK_EQ(value_of(&next), 3);
    cfx_release(&next);
    cfx_release(&y);
    free(data);
    cfx_context_free(context);
}

TEST(a_read_waits_for_its_own_value_and_not_for_the_end_of_the_queue) {
    setup("cpu*2");
    gate g = {0};
    const int64_t shape[2] = {2, 3};
    cfx_tensor x = full(a, N, 1), m = {0}, t = {0}, row = {0};
    float got[6];
    CHECK_STATUS(cfx_arange(a, CFX_FLOAT32, 6, 0, 1, &row), CFX_OK);
    CHECK_STATUS(cfx_reshape(&row, 2, shape, &m), CFX_OK);
    CHECK_STATUS(cfx_transpose(&m, 0, 1, &t), CFX_OK);
    shut_gate(&g, a, CF_COMPUTE);
    cfx_tensor late = full(a, N, 2);
    CHECK_EQ(value_of(&x), 1); /* the gate is shut: waiting for the queue would never end */
    CHECK_STATUS(cfx_read(&t, got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], i % 2 * 3 + i / 2);
    CHECK(!cfx_ready(&late));
    open_gate(&g);
    CHECK_EQ(value_of(&late), 2);
    cfx_release(&x);
    cfx_release(&late);
    cfx_release(&row);
    cfx_release(&m);
    cfx_release(&t);
    cfx_context_free(context);
}

TEST(a_read_of_the_wrong_size_is_refused) {
    setup("cpu");
    cfx_tensor x = full(a, 3, 1);
    float got[2];
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_EARG);
    CHECK(says("expected room for 12 bytes, got 8"));
    cfx_release(&x);
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_EARG);
    CHECK(says("released"));
    cfx_context_free(context);
}

TEST(host_data_does_not_go_into_a_handle_that_is_taken) {
    setup("cpu");
    const int64_t n = 1;
    const float two = 2;
    cfx_tensor x = full(a, 1, 1);
    CHECK_STATUS(cfx_from_host(a, CFX_FLOAT32, 1, &n, &two, &x), CFX_EARG);
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
    cfx_release(&x); /* does nothing */
    cfx_context_free(context);
}
