/* Devices whose kernels only launch work, core/device and core/tensor/values.c and transfer.c, by a backend that runs
 * the CPU's kernels in memory that it calls its own, and whose work has happened when a test says so. */
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#include "fake.h"

/* ---- names ------------------------------------------------------------------------------------------- */

TEST(devices_of_a_backend_are_counted_and_split) {
    cfx_context *context = context_of("fake*2");
    CHECK_STR(cfx_device_name(cfx_device_at(context, 1)), "fake:1");
    CHECK_STATUS(cfx_devices_set(context, "fake:2*3, cpu"), CFX_OK);
    CHECK_EQ(cfx_device_count(context), 4);
    CHECK_STR(cfx_device_name(cfx_device_at(context, 0)), "fake:2.0");
    CHECK_STR(cfx_device_name(cfx_device_at(context, 2)), "fake:2.2");
    CHECK_EQ(cfx_device_at(context, 2)->index, 2);
    CHECK_STATUS(cfx_devices_set(context, "fake:3.1"), CFX_OK);
    CHECK_STR(cfx_device_name(cfx_device_at(context, 0)), "fake:3.1");
    CHECK_STATUS(cfx_devices_set(context, "fake:5"), CFX_EARG);
    CHECK(says("'fake:5' does not exist: fake has 5 devices"));
    CHECK_STATUS(cfx_devices_set(context, "fake*6"), CFX_EARG);
    CHECK_STATUS(cfx_devices_set(context, "fake.1"), CFX_EARG);
    CHECK_STATUS(cfx_devices_set(context, "fake:0.1*2"), CFX_EARG);
    CHECK(says("expected a name"));
    cfx_context_free(context);
}

TEST(a_plugin_that_is_missing_is_named_with_the_reason) {
    cfx_context *context = context_of("cpu");
    if (cfx_devices_set(context, "cuda") != CFX_OK) CHECK(says("'cuda' does not exist: "));
    CHECK_STATUS(cfx_devices_set(context, "rocm"), CFX_EARG);
    CHECK(says("the backends are cpu and cuda"));
    cfx_context_free(context);
}

/* ---- values ------------------------------------------------------------------------------------------ */

TEST(values_go_up_and_come_down_and_kernels_run_between) {
    cfx_context *context = context_of("fake*2");
    cfx_device *device = cfx_device_at(context, 0);
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[2] = {2, 3};
    float got[6];
    void *pointer;
    cfx_tensor x = {0}, t = {0};
    CHECK_STATUS(cfx_from_host(device, CFX_FLOAT32, 2, shape, values, &x), CFX_OK);
    CHECK_STATUS(cfx_pointer(&x, &pointer), CFX_OK);
    CHECK(pointer == NULL);
    cfx_tensor y = plus(&x, 10);
    CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], values[i] + 10);
    CHECK_STATUS(cfx_transpose(&y, 0, 1, &t), CFX_OK); /* not as it lies */
    CHECK_STATUS(cfx_read(&t, got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], values[i % 2 * 3 + i / 2] + 10);
    CHECK(atomic_load(&copies) >= 3);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&t);
    cfx_context_free(context);
}

TEST(tensors_move_between_kinds_of_devices_with_their_dtype_and_order) {
    cfx_context *context = context_of("fake:0,cpu:0");
    cfx_device *far = cfx_device_at(context, 0), *cpu = cfx_device_at(context, 1);
    const float values[6] = {1, 2, 3, 4, 5, 6};
    const int64_t shape[2] = {2, 3};
    cfx_tensor x = {0}, t = {0}, up = {0}, down = {0};
    double got[6];
    CHECK_STATUS(cfx_from_host(cpu, CFX_FLOAT32, 2, shape, values, &x), CFX_OK);
    CHECK_STATUS(cfx_transpose(&x, 0, 1, &t), CFX_OK);
    CHECK_STATUS(cfx_to(&t, far, CFX_FLOAT64, &up), CFX_OK);
    cfx_tensor sum = plus(&up, 1);
    CHECK_STATUS(cfx_to(&sum, cpu, -1, &down), CFX_OK);
    CHECK_STATUS(cfx_read(&down, got, sizeof got), CFX_OK);
    for (int i = 0; i < 6; i++) CHECK_EQ(got[i], values[i % 2 * 3 + i / 2] + 1);
    cfx_tensor into = full(far, 6, 0), from = full(cpu, 6, 4);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    const int before = atomic_load(&copies);
    CHECK_STATUS(cfx_copy(&into, &from), CFX_OK);
    CHECK_EQ(value_of(&into), 4);
    CHECK_EQ(atomic_load(&copies), before + 2); /* up, and down to be read */
    cfx_tensor *all[] = {&x, &t, &up, &sum, &down, &into, &from};
    for (int i = 0; i < 7; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

TEST(parameters_are_packed_from_a_device_that_is_far_and_not_from_another_context) {
    cfx_context *context = context_of("fake:0,cpu:0"), *other = context_of("cpu");
    cfx_device *far = cfx_device_at(context, 0), *cpu = cfx_device_at(context, 1);
    cfx_tensor w = full(cpu, 100, 3), foreign = full(cfx_device_at(other, 0), 100, 4);
    cfx_tensor *handle = &w, *wrong = &foreign;
    cfx_layout *layout = NULL;
    CHECK_STATUS(cfx_layout_new(1, (const cfx_tensor *[]){&w}, (const char *[]){"w"}, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, far, &wrong), CFX_EARG);
    CHECK(says("pack: parameter 'w' belongs to another context"));
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    const int before = atomic_load(&copies);
    CHECK_STATUS(cfx_layout_pack(layout, far, &handle), CFX_OK);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(atomic_load(&copies), before + 1); /* a kernel does not reach what lies on the CPU */
    CHECK(cfx_tensor_device(&w) == far);
    CHECK_EQ(value_of(&w), 3);
    cfx_release(&w);
    cfx_release(&foreign);
    cfx_layout_free(layout);
    cfx_context_free(context);
    cfx_context_free(other);
}

TEST(a_copy_into_a_tensor_of_another_context_is_refused) {
    cfx_context *one = context_of("fake"), *other = context_of("cpu");
    cfx_tensor far = full(cfx_device_at(one, 0), 6, 1), near = full(cfx_device_at(other, 0), 6, 2);
    CHECK_STATUS(cfx_copy(&far, &near), CFX_EARG);
    CHECK(says("copy_: its tensors belong to two contexts"));
    CHECK_STATUS(cfx_copy(&near, &far), CFX_EARG);
    CHECK_EQ(value_of(&far), 1);
    CHECK_EQ(value_of(&near), 2);
    cfx_release(&far);
    cfx_release(&near);
    cfx_context_free(one);
    cfx_context_free(other);
}

/* More than the staging memory holds, in pieces that go round it. */
TEST(values_larger_than_staging_memory_pass_whole) {
    enum { N = (CF_STAGING_BYTES + 3 * CF_STAGING_PIECE) / 4 + 5 };
    cfx_context *context = context_of("fake*2,cpu:0");
    const int64_t shape[1] = {N};
    int32_t *values = malloc(N * sizeof *values), *got = malloc(N * sizeof *got);
    for (int32_t i = 0; i < N; i++) values[i] = i * 7;
    cfx_tensor x = {0}, y = {0}, z = {0}, up = {0};
    CHECK_STATUS(cfx_from_host(cfx_device_at(context, 0), CFX_INT32, 1, shape, values, &x), CFX_OK);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK);
    CHECK_STATUS(cfx_to(&y, cfx_device_at(context, 2), -1, &z), CFX_OK);
    CHECK_STATUS(cfx_to(&z, cfx_device_at(context, 0), -1, &up), CFX_OK);
    CHECK_STATUS(cfx_read(&up, got, N * sizeof *got), CFX_OK);
    CHECK(memcmp(got, values, N * sizeof *got) == 0);
    CHECK_STATUS(cfx_read(&z, got, N * sizeof *got), CFX_OK);
    CHECK(memcmp(got, values, N * sizeof *got) == 0);
    free(values);
    free(got);
    cfx_tensor *all[] = {&x, &y, &z, &up};
    for (int i = 0; i < 4; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

TEST(many_small_values_wait_for_nothing_until_staging_memory_is_full) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    cfx_tensor x[100];
    hold(0, CF_COMPUTE);
    for (int i = 0; i < 100; i++) {
        const float value = (float)i;
        x[i] = (cfx_tensor){0};
        CHECK_STATUS(cfx_from_host(device, CFX_FLOAT32, 0, NULL, &value, &x[i]), CFX_OK);
    }
    let_happen(0, CF_COMPUTE);
    for (int i = 0; i < 100; i++) CHECK_EQ(value_of(&x[i]), i);
    for (int i = 0; i < 100; i++) cfx_release(&x[i]);
    cfx_context_free(context);
}

/* Whether x is ready at last; nobody waits for it. */
static int gets_ready(const cfx_tensor *x) {
    for (int i = 0; i < 50000 && !cfx_ready(x); i++) usleep(100);
    return cfx_ready(x);
}

TEST(many_values_go_up_and_come_down_beside_what_is_computed) {
    enum { N = 100000 };
    static float sevens[N];
    const int64_t n = N;
    for (int i = 0; i < N; i++) sevens[i] = 7;
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    cfx_tensor x = {0}, again = {0};
    hold(0, CF_COMPUTE);
    atomic_store(&streams[0][CF_COMPUTE].followers, 0);
    cfx_tensor busy = full(device, N, 1), old = full(device, N, 2);
    CHECK_STATUS(cfx_from_host(device, CFX_FLOAT32, 1, &n, sevens, &x), CFX_OK);
    if (CHECK(gets_ready(&x))) CHECK_EQ(value_of(&x), 7);
    CHECK(!cfx_ready(&busy));
    cfx_release(&old); /* the command that still writes its memory goes first */
    CHECK_STATUS(cfx_from_host(device, CFX_FLOAT32, 1, &n, sevens, &again), CFX_OK);
    cf_alarm_set(last_of(device, CF_COMM));
    while (atomic_load(&streams[0][CF_COMPUTE].followers) == 0) usleep(100);
    let_happen(0, CF_COMPUTE);
    CHECK_EQ(value_of(&again), 7);
    CHECK_EQ(value_of(&busy), 1);
    cfx_release(&x);
    cfx_release(&again);
    cfx_release(&busy);
    cfx_context_free(context);
}

/* ---- time -------------------------------------------------------------------------------------------- */

TEST(a_caller_who_only_asks_whether_a_value_is_ready_hears_of_it) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    hold(0, CF_COMPUTE);
    cfx_tensor x = full(device, 4, 1);
    while (atomic_load(&streams[0][CF_COMPUTE].marked) == 0) usleep(100);
    do usleep(2000); /* nobody waits */
    while (!atomic_load(&device->inbox.worker.own.asleep));
    CHECK(!cfx_ready(&x));
    let_happen(0, CF_COMPUTE);
    CHECK(gets_ready(&x));
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(what_was_launched_has_not_happened_until_the_device_says_so) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    hold(0, CF_COMPUTE);
    cfx_tensor x = full(device, 4, 1), y = plus(&x, 1);
    while (atomic_load(&streams[0][CF_COMPUTE].marked) < 2) usleep(100);
    usleep(2000);
    CHECK(!cfx_ready(&y));
    let_happen(0, CF_COMPUTE);
    CHECK_EQ(value_of(&y), 2);
    CHECK(cfx_ready(&y));
    cfx_release(&x);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(streams_follow_each_other_without_the_host) {
    cfx_context *context = context_of("fake:0*2");
    cfx_device *one = cfx_device_at(context, 0), *two = cfx_device_at(context, 1);
    hold(0, CF_COMPUTE);
    atomic_store(&streams[0][CF_COMPUTE].followers, 0);
    cfx_tensor x = full(one, 4, 1), y = {0};
    CHECK_STATUS(cfx_to(&x, two, -1, &y), CFX_OK);
    cfx_tensor z = plus(&y, 1);
    cf_alarm_set(last_of(two, CF_COMPUTE));
    while (atomic_load(&streams[1][CF_COMPUTE].marked) < last_of(two, CF_COMPUTE).ticket) usleep(100);
    CHECK(!cfx_ready(&x)); /* the second device has launched all, though the first one's work has not happened */
    CHECK(!cfx_ready(&z)); /* and may yet turn out wrong */
    CHECK(atomic_load(&streams[0][CF_COMPUTE].followers) > 0);
    let_happen(0, CF_COMPUTE);
    CHECK_EQ(value_of(&z), 2);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
    cfx_context_free(context);
}

/* A device finds out late that its second command, in whose place others come in the tests below, was wrong. */
TEST(a_stream_that_followed_data_inherits_what_is_found_wrong_with_them_later) {
    cfx_context *context = context_of("fake:0*2");
    cfx_device *one = cfx_device_at(context, 0), *two = cfx_device_at(context, 1);
    float got[4];
    hold(0, CF_COMPUTE);
    cfx_tensor x = full(one, 4, 1), own = full(two, 4, 5), good = {0}, copy = {0};
    CHECK_STATUS(cfx_to(&x, two, -1, &good), CFX_OK);
    cfx_at_line(context, "some.lua", 12);
    cfx_tensor y = plus(&x, 1);
    cfx_at_line(context, "some.lua", 13);
    atomic_store(&streams[0][CF_COMPUTE].broken, last_of(one, CF_COMPUTE).ticket);
    cfx_tensor before = plus(&own, 1);
    CHECK_STATUS(cfx_to(&y, two, -1, &copy), CFX_OK);
    cfx_tensor after = plus(&copy, 1);
    cf_alarm_set(last_of(two, CF_COMPUTE));
    while (atomic_load(&streams[1][CF_COMPUTE].marked) < last_of(two, CF_COMPUTE).ticket) usleep(100);
    let_happen(0, CF_COMPUTE);
    CHECK_EQ(value_of(&before), 6);
    CHECK_EQ(value_of(&good), 1); /* of what came before it nothing is lost */
    CHECK_STATUS(cfx_read(&after, got, sizeof got), CFX_EFAULT);
    CHECK(says("add: id 7 is wrong (enqueued at some.lua:12)"));
    CHECK_STATUS(cfx_read(&copy, got, sizeof got), CFX_EFAULT);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK); /* it was one fault */
    cfx_tensor *all[] = {&x, &own, &good, &copy, &y, &before, &after};
    for (int i = 0; i < 7; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

TEST(a_stream_that_followed_for_the_order_alone_does_not) {
    cfx_context *context = context_of("fake:0*2");
    cfx_device *one = cfx_device_at(context, 0), *two = cfx_device_at(context, 1);
    float got[4];
    cfx_tensor x = full(one, 4, 1), table = full(two, 4, 1), copy = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    hold(1, CF_COMPUTE);
    cfx_tensor wrong = plus(&table, 1);
    atomic_store(&streams[1][CF_COMPUTE].broken, last_of(two, CF_COMPUTE).ticket);
    CHECK_STATUS(cfx_to(&x, two, -1, &copy), CFX_OK);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 4), CFX_OK); /* once `two` has read it */
    cf_alarm_set(last_of(one, CF_COMPUTE));
    while (atomic_load(&streams[0][CF_COMPUTE].marked) < last_of(one, CF_COMPUTE).ticket) usleep(100);
    let_happen(1, CF_COMPUTE);
    CHECK_EQ(value_of(&x), 5);
    CHECK_STATUS(cfx_read(&copy, got, sizeof got), CFX_EFAULT);
    CHECK(says("id 7 is wrong"));
    CHECK_EQ(value_of(&x), 5);
    cfx_tensor *all[] = {&x, &table, &copy, &wrong};
    for (int i = 0; i < 4; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

TEST(a_cpu_waits_until_it_has_happened) {
    cfx_context *context = context_of("fake:0,cpu:0");
    cfx_tensor x = full(cfx_device_at(context, 0), 4, 1), y = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    hold(0, CF_COMM);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK);
    cfx_tensor z = plus(&y, 1);
    while (atomic_load(&streams[0][CF_COMM].marked) == 0) usleep(100);
    usleep(2000);
    CHECK(!cfx_ready(&y) && !cfx_ready(&z));
    let_happen(0, CF_COMM);
    CHECK_EQ(value_of(&z), 2);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
    cfx_context_free(context);
}

TEST(a_long_run_of_commands_is_marked_now_and_then) {
    cfx_context *context = context_of("fake");
    cfx_tensor x = full(cfx_device_at(context, 0), 4, 0);
    for (int i = 0; i < 20000; i++) CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    CHECK_EQ(value_of(&x), 20000);
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(what_a_device_finds_wrong_late_is_raised_at_the_read_with_its_command_and_takes_nothing_before_it) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    float got[4];
    cfx_tensor x = full(device, 4, 1);
    CHECK_EQ(value_of(&x), 1);
    hold(0, CF_COMPUTE);
    cfx_tensor before = plus(&x, 5);
    cfx_at_line(context, "some.lua", 12);
    cfx_tensor y = plus(&x, 1);
    cfx_at_line(context, "some.lua", 13);
    cfx_tensor after = plus(&x, 3);
    atomic_store(&streams[0][CF_COMPUTE].broken, last_of(device, CF_COMPUTE).ticket - 1);
    atomic_store(&forgiven, 0);
    let_happen(0, CF_COMPUTE);
    CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_EFAULT);
    CHECK(says("add: id 7 is wrong (enqueued at some.lua:12)"));
    CHECK_EQ(atomic_load(&forgiven), 1);
    CHECK_EQ(value_of(&before), 6);
    cfx_tensor z = plus(&x, 2);
    CHECK_EQ(value_of(&z), 3);
    CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_EFAULT);
    CHECK_STATUS(cfx_read(&after, got, sizeof got), CFX_EFAULT); /* it was launched, and may have read y */
    cfx_tensor *all[] = {&x, &y, &z, &before, &after};
    for (int i = 0; i < 5; i++) cfx_release(all[i]);
    cfx_context_free(context);
}
