/* Flat buffers: core/tensor/layout.c, buckets.c and stretch.c. */
#include "test.h"

#include "queues.h"
#include "tensor/stretch.h"

static cfx_context *context;
static cfx_device *a, *b;
static void setup(void) {
    context = new_context("cpu*2");
    a = cfx_device_at(context, 0);
    b = cfx_device_at(context, 1);
}
static void teardown(void) {
    CHECK_EQ(blocks_of(a), 0);
    CHECK_EQ(blocks_of(b), 0);
    cfx_context_free(context);
}

static cfx_tensor of(cfx_device *device, int32_t dtype, int64_t n, double value) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(device, dtype, 1, &n, value, &x), CFX_OK);
    return x;
}
static cfx_layout *layout_of(int n, cfx_tensor *const *xs) {
    static const char *const paths[] = {"1.weight", "1.bias", "2.weight", "2.bias", "3.weight"};
    cfx_layout *layout = NULL;
    CHECK_STATUS(cfx_layout_new(n, (const cfx_tensor *const *)xs, paths, &layout), CFX_OK);
    return layout;
}
static void release(int n, cfx_tensor *const *xs) {
    for (int i = 0; i < n; i++) cfx_release(xs[i]);
}

/* All of the buffer behind x, as bytes. */
static unsigned char *bytes_of(const cfx_tensor *x) {
    unsigned char *bytes = malloc(x->_buffer->bytes + 1);
    CHECK_STATUS(cfx_wait(x), CFX_OK);
    memcpy(bytes, x->_buffer->data, x->_buffer->bytes);
    return bytes;
}

TEST(places_are_aligned_in_the_order_given_one_buffer_a_dtype) {
    setup();
    cfx_tensor x[5] = {of(a, CFX_FLOAT32, 100, 1), of(a, CFX_FLOAT64, 3, 2), of(a, CFX_FLOAT32, 64, 3),
                       of(a, CFX_FLOAT32, 1, 4), of(a, CFX_FLOAT64, 33, 5)};
    cfx_tensor *xs[5] = {&x[0], &x[1], &x[2], &x[3], &x[4]};
    const double values[5] = {1, 2, 3, 4, 5};
    cfx_layout *layout = layout_of(5, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK(x[0]._buffer == x[2]._buffer && x[0]._buffer == x[3]._buffer && x[1]._buffer == x[4]._buffer);
    CHECK(x[0]._buffer != x[1]._buffer);
    CHECK_EQ(x[0]._offset, 0);
    CHECK_EQ(x[2]._offset, 128);
    CHECK_EQ(x[3]._offset, 192);
    CHECK_EQ(x[4]._offset, 32);
    CHECK_EQ(x[0]._buffer->bytes, 256 * 4);
    CHECK_EQ(x[1]._buffer->bytes, 256 * 3);
    for (int i = 0; i < 5; i++) {
        double got[100];
        float few[100];
        CHECK((uintptr_t)cf_data(&x[i]) % CF_ALIGN == 0);
        if (x[i]._dtype == CFX_FLOAT32) {
            CHECK_STATUS(cfx_read(&x[i], few, (size_t)cf_numel(&x[i]) * 4), CFX_OK);
            CHECK_EQ(few[cf_numel(&x[i]) - 1], values[i]);
        } else {
            CHECK_STATUS(cfx_read(&x[i], got, (size_t)cf_numel(&x[i]) * 8), CFX_OK);
            CHECK_EQ(got[cf_numel(&x[i]) - 1], values[i]);
        }
    }
    CHECK(cfx_tensor_layout(&x[0]) == layout);
    CHECK_EQ(cfx_layout_holds(layout, 5, (const cfx_tensor *const *)xs), 1);
    CHECK_EQ(cfx_layout_holds(layout, 4, (const cfx_tensor *const *)xs), 0);
    cfx_layout_free(layout); /* the buffers hold it */
    CHECK_EQ(cfx_layout_holds(cfx_tensor_layout(&x[0]), 5, (const cfx_tensor *const *)xs), 1);
    release(5, xs);
    teardown();
}

TEST(gaps_and_tails_are_zero_even_in_memory_used_before) {
    setup();
    for (int round = 0; round < 2; round++) {
        cfx_tensor dirt = of(a, CFX_FLOAT32, 256, 7); /* leaves its block behind */
        const void *block = dirt._buffer->data;
        cfx_release(&dirt);
        cfx_tensor x[3] = {of(b, CFX_FLOAT32, 10, 1), of(b, CFX_FLOAT32, 65, 1), of(b, CFX_FLOAT32, 3, 1)}, y[3] = {0};
        cfx_tensor *xs[3] = {&x[0], &x[1], &x[2]}, *ys[3] = {&y[0], &y[1], &y[2]};
        cfx_layout *layout = layout_of(3, xs);
        if (round == 0) {
            CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
        } else {
            CHECK_STATUS(cfx_layout_make(layout, a, -1, 0, ys), CFX_OK);
            for (int i = 0; i < 3; i++) CHECK_STATUS(cfx_fill(ys[i], 1), CFX_OK);
        }
        const cfx_tensor *first = round ? &y[0] : &x[0];
        CHECK(first->_buffer->data == block);
        unsigned char *bytes = bytes_of(first);
        const float *values = (const float *)bytes;
        for (int i = 0; i < 256; i++)
            CHECK_EQ(values[i], i < 10 || (i >= 64 && i < 64 + 65) || (i >= 192 && i < 195) ? 1 : 0);
        free(bytes);
        release(3, xs);
        release(3, ys);
        cfx_layout_free(layout);
    }
    teardown();
}

TEST(a_layout_is_made_again_for_gradients_and_states) {
    setup();
    cfx_tensor x[2] = {of(a, CFX_FLOAT32, 10, 1), of(a, CFX_BFLOAT16, 65, 1)}, y[2] = {0}, z[2] = {0};
    cfx_tensor *xs[2] = {&x[0], &x[1]}, *ys[2] = {&y[0], &y[1]}, *zs[2] = {&z[0], &z[1]};
    cfx_layout *layout = layout_of(2, xs);
    CHECK_STATUS(cfx_layout_make(layout, b, -1, 1, ys), CFX_OK);
    CHECK_STATUS(cfx_layout_make(layout, b, CFX_FLOAT32, 1, zs), CFX_OK);
    CHECK_EQ(y[1]._dtype, CFX_BFLOAT16);
    CHECK_EQ(z[1]._dtype, CFX_FLOAT32);
    for (int i = 0; i < 2; i++) CHECK_EQ(value_of(i ? &z[1] : &y[0]), 0);
    CHECK_EQ(cfx_layout_holds(layout, 2, (const cfx_tensor *const *)ys), 1);
    release(2, xs);
    release(2, ys);
    release(2, zs);
    cfx_layout_free(layout);
    teardown();
}

TEST(tied_tensors_share_a_place_and_stay_tied) {
    setup();
    cfx_tensor x[4] = {of(a, CFX_FLOAT32, 10, 1), of(a, CFX_FLOAT32, 20, 2)};
    CHECK_STATUS(cfx_retain(&x[0], &x[2]), CFX_OK);
    cfx_tensor *xs[4] = {&x[0], &x[1], &x[2], &x[1]}; /* another handle, and the same one again */
    cfx_layout *layout = layout_of(4, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_EQ(x[0]._buffer->bytes, 512);
    CHECK_EQ(x[2]._offset, x[0]._offset);
    CHECK(x[2]._buffer == x[0]._buffer);
    CHECK_EQ(x[0]._buffer->refs, 3);
    CHECK_STATUS(cfx_fill(&x[0], 5), CFX_OK);
    CHECK_EQ(value_of(&x[2]), 5);
    CHECK_EQ(value_of(&x[1]), 2);
    release(4, xs);
    cfx_layout_free(layout);
    teardown();
}

TEST(packing_keeps_handles_marks_and_values_and_may_go_to_another_device) {
    setup();
    cfx_tensor x[2] = {of(a, CFX_FLOAT32, 10, 1), of(a, CFX_FLOAT32, 20, 2)}, *xs[2] = {&x[0], &x[1]};
    x[0]._flags = CFX_FLAG_FROZEN;
    x[1]._flags = CFX_FLAG_BUFFER;
    cfx_layout *layout = layout_of(2, xs);
    for (int round = 0; round < 4; round++) { /* and again, of the same layout */
        CHECK_STATUS(cfx_layout_pack(layout, round % 2 ? a : b, xs), CFX_OK);
        CHECK(cf_device(&x[0]) == (round % 2 ? a : b) && cf_device(&x[1]) == cf_device(&x[0]));
        CHECK_EQ(x[0]._flags, CFX_FLAG_FROZEN);
        CHECK_EQ(x[1]._flags, CFX_FLAG_BUFFER);
        CHECK_EQ(value_of(&x[0]), 1);
        CHECK_EQ(value_of(&x[1]), 2);
        CHECK_EQ(x[0]._buffer->refs, 2);
    }
    release(2, xs);
    cfx_layout_free(layout);
    teardown();
}

TEST(strided_parameters_are_packed_row_major) {
    setup();
    const int64_t shape[2] = {2, 3};
    cfx_tensor line = {0}, grid = {0}, x = {0}, *xs[1] = {&x};
    float got[6];
    CHECK_STATUS(cfx_arange(a, CFX_FLOAT32, 6, 0, 1, &line), CFX_OK);
    CHECK_STATUS(cfx_reshape(&line, 2, shape, &grid), CFX_OK);
    CHECK_STATUS(cfx_transpose(&grid, 0, 1, &x), CFX_OK);
    cfx_release(&line);
    cfx_release(&grid);
    cfx_layout *layout = layout_of(1, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK(cfx_is_contiguous(&x));
    CHECK_STATUS(cfx_read(&x, got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], i % 2 * 3 + i / 2);
    cfx_release(&x);
    cfx_layout_free(layout);
    teardown();
}

TEST(a_view_outside_the_model_is_refused_by_path_and_nothing_moves) {
    setup();
    cfx_tensor x[3] = {of(a, CFX_FLOAT32, 10, 1), of(a, CFX_FLOAT32, 20, 2), of(a, CFX_FLOAT32, 5, 3)}, outside = {0};
    cfx_tensor *xs[3] = {&x[0], &x[1], &x[2]};
    cfx_layout *layout = layout_of(3, xs);
    CHECK_STATUS(cfx_slice(&x[1], 0, 3, 2, 1, &outside), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_ESTATE);
    CHECK(says("pack: parameter '1.bias' shares its memory with a tensor outside the model"));
    x[1]._flags = CFX_FLAG_BUFFER;
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_ESTATE);
    CHECK(says("pack: buffer '1.bias' shares its memory with a tensor outside the model"));
    CHECK(x[0]._buffer != x[2]._buffer);
    cfx_release(&outside);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    release(3, xs);
    cfx_layout_free(layout);
    teardown();
}

TEST(parameters_that_are_views_of_one_buffer_may_be_packed_together) {
    setup();
    cfx_tensor whole = of(a, CFX_FLOAT32, 12, 4), x[2] = {0}, *xs[2] = {&x[0], &x[1]};
    CHECK_STATUS(cfx_slice(&whole, 0, 0, 6, 1, &x[0]), CFX_OK);
    CHECK_STATUS(cfx_slice(&whole, 0, 6, 6, 1, &x[1]), CFX_OK);
    cfx_release(&whole);
    cfx_layout *layout = layout_of(2, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_EQ(x[1]._offset, 64);
    CHECK_EQ(value_of(&x[1]), 4);
    release(2, xs);
    cfx_layout_free(layout);
    teardown();
}

TEST(tensors_that_do_not_fit_the_layout_are_refused) {
    setup();
    cfx_tensor x[2] = {of(a, CFX_FLOAT32, 10, 1), of(a, CFX_FLOAT32, 20, 2)}, *xs[2] = {&x[0], &x[1]};
    cfx_layout *layout = layout_of(2, xs);
    cfx_tensor *swapped[2] = {&x[1], &x[0]};
    CHECK_STATUS(cfx_layout_pack(layout, a, swapped), CFX_EARG);
    CHECK(says("pack: parameter '1.weight': expected [10] (float32), got [20] (float32, cpu:0)"));
    cfx_layout_free(layout);
    cfx_tensor *same[2] = {&x[0], &x[0]};
    layout = layout_of(2, same);
    cfx_tensor other = of(a, CFX_FLOAT32, 10, 9), *apart[2] = {&x[0], &other};
    CHECK_STATUS(cfx_layout_pack(layout, a, apart), CFX_EARG);
    CHECK(says("'1.bias': expected the same tensor as '1.weight'"));
    cfx_layout_free(layout);
    cfx_release(&other);
    release(2, xs);
    teardown();
}

TEST(a_thousand_parameters_are_packed_at_once) {
    setup();
    enum { N = 3000 };
    cfx_tensor *x = calloc(N, sizeof *x), **xs = malloc(N * sizeof *xs);
    const char **paths = malloc(N * sizeof *paths);
    cfx_layout *layout;
    for (int i = 0; i < N; i++) {
        x[i] = of(a, CFX_FLOAT32, 1 + i % 100, i);
        xs[i] = &x[i];
        paths[i] = "p";
    }
    CHECK_STATUS(cfx_layout_new(N, (const cfx_tensor *const *)xs, paths, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_EQ(blocks_of(a), 1);
    int right = 1;
    for (int i = 0; i < N; i++) right = right && value_of(&x[i]) == i;
    CHECK(right);
    release(N, xs);
    cfx_layout_free(layout);
    free(x);
    free(xs);
    free(paths);
    teardown();
}

TEST(empty_parameters_have_places_too) {
    setup();
    cfx_tensor x[2] = {of(a, CFX_FLOAT32, 0, 0), of(a, CFX_FLOAT64, 0, 0)}, y[2] = {0};
    cfx_tensor *xs[2] = {&x[0], &x[1]}, *ys[2] = {&y[0], &y[1]};
    cfx_layout *layout = layout_of(2, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_STATUS(cfx_layout_make(layout, b, -1, 1, ys), CFX_OK);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&x[0], &x[1], &y[0], &y[1]}), CFX_OK);
    CHECK_EQ(cf_numel(&y[1]), 0);
    CHECK_EQ(y[1]._dtype, CFX_FLOAT64);
    release(2, xs);
    release(2, ys);
    cfx_layout_free(layout);
    teardown();
}

TEST(a_model_is_not_packed_while_a_tape_watches_it) {
    setup();
    cfx_tensor x[1] = {of(a, CFX_FLOAT32, 10, 1)}, *xs[1] = {&x[0]};
    cfx_tape *tape;
    cfx_layout *layout = layout_of(1, xs);
    CHECK_STATUS(cfx_tape_begin(context, 1, xs, &tape), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_ESTATE);
    cfx_tape_end(&tape);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    release(1, xs);
    cfx_layout_free(layout);
    teardown();
}

TEST(packing_without_memory_changes_nothing) {
    setup();
    cfx_tensor x[2] = {of(a, CFX_FLOAT32, 100000, 1), of(a, CFX_FLOAT32, 100000, 2)}, *xs[2] = {&x[0], &x[1]};
    cfx_layout *layout = layout_of(2, xs);
    const int64_t blocks = blocks_of(a);
    const size_t limit = a->pool.limit;
    a->pool.limit = a->pool.reserved;
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_EMEMORY);
    CHECK_EQ(blocks_of(a), blocks);
    CHECK(cfx_tensor_layout(&x[0]) == NULL);
    CHECK_EQ(layout->refs, 1);
    a->pool.limit = limit;
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_EQ(value_of(&x[1]), 2);
    release(2, xs);
    cfx_layout_free(layout);
    teardown();
}

/* ---- copies ----------------------------------------------------------------------------------------- */

/* A model's state: 36 layers of two statistics and a count, and of another float type two more. */
enum { STATE = 36 * 4 };
static void make_state(cfx_tensor *x, cfx_tensor **xs, const char **paths) {
    static const int32_t dtypes[4] = {CFX_FLOAT32, CFX_FLOAT32, CFX_INT64, CFX_FLOAT64};
    for (int i = 0; i < STATE; i++) {
        const int32_t dtype = dtypes[i % 4];
        x[i] = dtype == CFX_INT64 ? (cfx_tensor){0} : of(a, dtype, 1 + i % 100, i);
        if (dtype == CFX_INT64) CHECK_STATUS(cfx_full(a, dtype, 0, NULL, i, &x[i]), CFX_OK);
        xs[i] = &x[i];
        paths[i] = "s";
    }
}
static double number_of(const cfx_tensor *x) {
    cfx_tensor number = {0};
    CHECK_STATUS(cfx_to(x, NULL, CFX_FLOAT32, &number), CFX_OK);
    const double value = value_of(&number);
    cfx_release(&number);
    return value;
}
static int holds_values(const cfx_tensor *x, int more) {
    int right = 1;
    for (int i = 0; i < STATE; i++)
        right = right && number_of(&x[i]) == i + more && cf_numel(&x[i]) == (i % 4 == 2 ? 1 : 1 + i % 100);
    return right;
}
static uint64_t commands_of(cfx_device *device) {
    return last_of(device, CF_COMPUTE).ticket + last_of(device, CF_COMM).ticket;
}

TEST(what_is_packed_is_copied_by_one_command_a_dtype) {
    setup();
    cfx_tensor x[STATE], y[STATE] = {0}, z[STATE] = {0}, *xs[STATE], *ys[STATE], *zs[STATE];
    const char *paths[STATE];
    cfx_layout *layout;
    make_state(x, xs, paths);
    for (int i = 0; i < STATE; i++) ys[i] = &y[i], zs[i] = &z[i];
    CHECK_STATUS(cfx_layout_new(STATE, (const cfx_tensor *const *)xs, paths, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_copy(layout, b, (const cfx_tensor *const *)xs, ys), CFX_OK);
    CHECK(holds_values(y, 0));
    CHECK_EQ(blocks_of(b), 3);
    CHECK_EQ(cfx_layout_holds(layout, STATE, (const cfx_tensor *const *)ys), 1);
    const uint64_t before = commands_of(a);
    CHECK_STATUS(cfx_layout_copy(layout, a, (const cfx_tensor *const *)ys, zs), CFX_OK);
    CHECK_EQ(commands_of(a) - before, 2 * 3); /* the gaps, and the values */
    CHECK(holds_values(z, 0));
    /* nor are they more for a synchronisation of packed replicas */
    cfx_tensor *leaves[2 * STATE];
    for (int i = 0; i < STATE; i++) {
        leaves[i] = &y[i];
        leaves[STATE + i] = &z[i];
        CHECK_STATUS(cfx_fill(&y[i], 1000 + i), CFX_OK);
    }
    const uint64_t idle = commands_of(a) + commands_of(b);
    CHECK_STATUS(cfx_broadcast(0, 2, STATE, leaves), CFX_OK);
    CHECK_EQ(commands_of(a) + commands_of(b) - idle, 3);
    CHECK(holds_values(z, 1000));
    release(STATE, xs);
    release(STATE, ys);
    release(STATE, zs);
    cfx_layout_free(layout);
    teardown();
}

TEST(a_copy_is_packed_whatever_it_is_of_and_what_is_tied_stays_tied) {
    setup();
    const int64_t shape[2] = {2, 3};
    cfx_tensor line = {0}, grid = {0}, x[4] = {0}, y[4] = {0};
    CHECK_STATUS(cfx_arange(a, CFX_FLOAT32, 6, 0, 1, &line), CFX_OK);
    CHECK_STATUS(cfx_reshape(&line, 2, shape, &grid), CFX_OK);
    CHECK_STATUS(cfx_transpose(&grid, 0, 1, &x[0]), CFX_OK); /* strided */
    CHECK_STATUS(cfx_slice(&line, 0, 1, 4, 1, &x[1]), CFX_OK);
    CHECK_STATUS(cfx_retain(&x[1], &x[2]), CFX_OK);
    x[3] = of(a, CFX_UINT8, 0, 0);
    cfx_tensor *xs[4] = {&x[0], &x[1], &x[2], &x[3]}, *ys[4] = {&y[0], &y[1], &y[2], &y[3]};
    cfx_layout *layout = layout_of(4, xs);
    CHECK_STATUS(cfx_layout_copy(layout, b, (const cfx_tensor *const *)xs, ys), CFX_OK);
    float got[6], few[4];
    CHECK(cfx_is_contiguous(&y[0]));
    CHECK_STATUS(cfx_read(&y[0], got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], i % 2 * 3 + i / 2);
    CHECK_STATUS(cfx_read(&y[1], few, sizeof few), CFX_OK);
    for (int i = 0; i < 4; i++) CHECK_EQ(few[i], 1 + i);
    CHECK_EQ(y[2]._offset, y[1]._offset);
    CHECK_EQ(y[0]._buffer->bytes, 2 * CF_ALIGN);
    CHECK_EQ(cf_numel(&y[3]), 0);
    CHECK_STATUS(cfx_layout_copy(layout, b, (const cfx_tensor *[]){&x[0], &x[0], &x[2], &x[3]}, ys), CFX_EARG);
    CHECK(says("layout: tensor '1.bias': expected [4] (float32), got [3, 2] (float32, cpu:0)"));
    release(4, xs);
    release(4, ys);
    cfx_release(&line);
    cfx_release(&grid);
    cfx_layout_free(layout);
    teardown();
}

/* ---- stretches -------------------------------------------------------------------------------------- */

static int count_stretches(int n, cfx_tensor *const *xs, int64_t *first) {
    cf_stretch *list;
    int32_t count;
    CHECK_STATUS(cf_stretches(1, n, xs, NULL, &list, &count), CFX_OK);
    *first = count ? list[0].n : 0;
    free(list);
    return count;
}

TEST(neighbours_in_a_layout_are_one_stretch_and_views_of_parts_are_not) {
    setup();
    int64_t n;
    cfx_tensor x[3] = {of(a, CFX_FLOAT32, 100, 1), of(a, CFX_FLOAT32, 60, 2), of(a, CFX_FLOAT32, 64, 3)}, part[2] = {0};
    cfx_tensor *xs[3] = {&x[0], &x[1], &x[2]};
    cfx_layout *layout = layout_of(3, xs);
    CHECK_STATUS(cfx_layout_pack(layout, a, xs), CFX_OK);
    CHECK_EQ(count_stretches(3, xs, &n), 1);
    CHECK_EQ(n, 128 + 64 + 64);
    CHECK_EQ(count_stretches(3, (cfx_tensor *[]){&x[2], &x[0], &x[2]}, &n), 2);
    /* the elements between these two are no gap: they are the rest of the first parameter */
    CHECK_STATUS(cfx_slice(&x[0], 0, 0, 60, 1, &part[0]), CFX_OK);
    CHECK_STATUS(cfx_slice(&x[0], 0, 64, 36, 1, &part[1]), CFX_OK);
    CHECK_EQ(count_stretches(2, (cfx_tensor *[]){&part[0], &part[1]}, &n), 2);
    CHECK_EQ(n, 60);
    CHECK_EQ(count_stretches(2, (cfx_tensor *[]){&part[1], &x[1]}, &n), 2);
    release(3, xs);
    release(2, (cfx_tensor *[]){&part[0], &part[1]});
    cfx_layout_free(layout);
    teardown();
}

/* Their addresses rise in one of the two lists at most. */
TEST(stretches_follow_the_list_and_the_places_whatever_their_addresses) {
    setup();
    enum { N = 8 };
    cfx_tensor x[N], part[2][2] = {0};
    cfx_tensor *list[2][N];
    for (int k = 0; k < N; k++) {
        x[k] = of(a, CFX_FLOAT32, 8, k);
        list[0][k] = list[1][N - 1 - k] = &x[k];
    }
    for (int way = 0; way < 2; way++) {
        cf_stretch *found;
        int32_t count;
        CHECK_STATUS(cf_stretches(1, N, list[way], NULL, &found, &count), CFX_OK);
        CHECK_EQ(count, N);
        for (int k = 0; k < N; k++) CHECK_EQ(found[k].leaf, k);
        free(found);
        /* parts of two buffers by turns: each buffer comes with its first part, and in it what lies first */
        cfx_tensor *parts[4];
        for (int k = 0; k < 4; k++) {
            parts[k] = &part[k % 2][k / 2];
            CHECK_STATUS(cfx_slice(list[way][k % 2], 0, k < 2 ? 4 : 1, 2, 1, parts[k]), CFX_OK);
        }
        CHECK_STATUS(cf_stretches(1, 4, parts, NULL, &found, &count), CFX_OK);
        CHECK_EQ(count, 4);
        for (int k = 0; k < 4; k++) CHECK_EQ(found[k].leaf, ((int[]){2, 0, 3, 1})[k]);
        free(found);
        release(4, parts);
    }
    release(N, list[0]);
    teardown();
}

/* ---- many ------------------------------------------------------------------------------------------- */

TEST(a_layout_of_many_places_has_gaps_of_zeros_and_finds_what_is_tied) {
    enum { MANY = 400000, TIED = 1000 };
    setup();
    void *memory;
    CHECK_STATUS(cf_alloc_zero(MANY, 2 * sizeof(cfx_tensor) + 3 * sizeof(void *), &memory), CFX_OK);
    cfx_tensor *views = memory, *made = views + MANY, all = of(a, CFX_FLOAT32, MANY, 1);
    cfx_tensor **handles = (cfx_tensor **)(made + MANY), **from = handles + MANY;
    const char **paths = (const char **)(from + MANY);
    cfx_tensor ones = of(a, CFX_FLOAT32, (MANY - TIED) * 64, 1); /* the layout gets its memory */
    CHECK_STATUS(cfx_wait(&ones), CFX_OK);
    const void *block = ones._buffer->data;
    cfx_release(&ones);
    for (int i = 0; i < MANY; i++) {
        views[i] = all; /* borrowed: its elements one by one, the last of them once more */
        views[i]._offset = i < MANY - TIED ? i : i - TIED;
        views[i]._ndim = 0;
        from[i] = &views[i];
        handles[i] = &made[i];
        paths[i] = "";
    }
    cfx_layout *layout;
    CHECK_STATUS(cfx_layout_new(MANY, (const cfx_tensor *const *)from, paths, &layout), CFX_OK);
    if (CHECK_STATUS(cfx_layout_make(layout, a, -1, 0, handles), CFX_OK)) {
        CHECK_EQ(made[0]._buffer->bytes, (size_t)(MANY - TIED) * 256);
        CHECK(made[0]._buffer->data == block); /* else this shows nothing */
        unsigned char *bytes = bytes_of(&made[0]);
        int64_t set = 0;
        for (size_t k = 0; k < made[0]._buffer->bytes; k++) set += k % 256 >= 4 && bytes[k] != 0;
        CHECK_EQ(set, 0);
        for (int i = 0; i < MANY; i++) set += made[i]._offset != 64 * views[i]._offset;
        CHECK_EQ(set, 0);
        free(bytes);
        release(MANY, handles);
    }
    cfx_layout_free(layout);
    cfx_release(&all);
    free(memory);
    teardown();
}

TEST(each_of_many_parameters_is_updated_by_its_own_scale_and_decay) {
    enum { MANY = 20000 };
    setup();
    void *memory;
    CHECK_STATUS(cf_alloc_zero(MANY, 2 * sizeof(cfx_tensor) + 2 * sizeof(void *) + 2 * sizeof(double), &memory),
                 CFX_OK);
    cfx_tensor *views = memory, *grads = views + MANY, all = of(a, CFX_FLOAT32, MANY, 16),
               by = of(a, CFX_FLOAT32, MANY, 1);
    cfx_tensor **params = (cfx_tensor **)(grads + MANY), **gs = params + MANY;
    double *scale = (double *)(gs + MANY), *decay = scale + MANY;
    float *got = malloc(MANY * sizeof *got);
    const cfx_rule rule = {.size = sizeof rule, .name = "descent", .rate = 1, .decay = 0.25};
    const int64_t one = 1;
    for (int i = 0; i < MANY; i++) {
        views[i] = all; /* borrowed */
        grads[i] = by;
        views[i]._offset = grads[i]._offset = i;
        views[i]._shape[0] = grads[i]._shape[0] = one;
        params[i] = &views[i];
        gs[i] = &grads[i];
        scale[i] = i * 7919 % 10007 % 512 / 512.0;
        decay[i] = i * 104729 % 1009 % 4;
    }
    CHECK_STATUS(cfx_optim_update(&rule, 1, MANY, params, (const cfx_tensor *const *)gs, NULL, scale, decay, NULL),
                 CFX_OK);
    CHECK_STATUS(cfx_read(&all, got, MANY * sizeof *got), CFX_OK);
    int wrong = 0;
    for (int i = 0; i < MANY; i++) wrong += fabs(got[i] - (16 - scale[i] * (1 + 0.25 * decay[i] * 16))) > 1e-4;
    CHECK_EQ(wrong, 0);
    cfx_release(&all);
    cfx_release(&by);
    free(got);
    free(memory);
    teardown();
}
