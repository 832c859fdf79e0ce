/* Contexts and their devices: core/device/context.c. */
#include "test.h"

#include <unistd.h>

#include "queues.h"

static void check_names(const cfx_context *context, int n, const char *const *names) {
    CHECK_EQ(cfx_device_count(context), n);
    for (int i = 0; i < n && i < cfx_device_count(context); i++)
        CHECK_STR(cfx_device_name(cfx_device_at(context, i)), names[i]);
}

TEST(a_spec_names_the_devices_of_the_run) {
    cfx_context *context = new_context("cpu*3");
    check_names(context, 3, (const char *[]){"cpu:0", "cpu:1", "cpu:2"});
    CHECK(cfx_device_at(context, 3) == NULL);
    CHECK(cfx_device_at(context, -1) == NULL);
    CHECK_STATUS(cfx_devices_set(context, "cpu:4, cpu:2"), CFX_OK);
    check_names(context, 2, (const char *[]){"cpu:4", "cpu:2"});
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    check_names(context, 1, (const char *[]){"cpu:0"});
    cfx_context_free(context);
}

TEST(a_bad_spec_is_refused_and_changes_nothing) {
    cfx_context *context = new_context("cpu*2");
    static const char *const bad[][2] = {
        {"", "expected a name"},
        {"cpu:", "expected a name"},
        {"cpu*0", "expected a name"},
        {"cpu:1*2", "expected a name"},
        {"cpu,,cpu:1", "expected a name"},
        {"cpu:-1", "expected a name"},
        {"tpu", "does not exist"},
        {"cpu,cpu:0", "named twice"},
        {"cpu*65", "more than 64"},
        {"cpu:1x", "expected a name"},
        {"a name that is far too long for any device, and more of it", "device"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_STATUS(cfx_devices_set(context, bad[i][0]), CFX_EARG);
        CHECK(says(bad[i][1]));
        CHECK_EQ(cfx_device_count(context), 2);
    }
    cfx_context_free(context);
}

TEST(cpu_is_always_there_and_found_by_its_names) {
    cfx_context *context = new_context("cpu:1,cpu:2");
    cfx_device *cpu, *zero, *one;
    CHECK_STATUS(cfx_device_find(context, "cpu", &cpu), CFX_OK);
    CHECK_STATUS(cfx_device_find(context, "cpu:0", &zero), CFX_OK);
    CHECK_STATUS(cfx_device_find(context, "cpu:1", &one), CFX_OK);
    CHECK(cpu == zero && cpu != one);
    cfx_tensor x = full(cpu, 4, 1);
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
    CHECK_STATUS(cfx_device_find(context, "cpu:7", &one), CFX_EARG);
    CHECK(says("this run has cpu:0, cpu:1, cpu:2"));
    CHECK_STATUS(cfx_device_find(context, "cpu*2", &one), CFX_EARG);
    cfx_context_free(context);
}

TEST(devices_share_the_threads_evenly_and_each_has_one) {
    const cfx_context_options options = {.size = sizeof options, .devices = "cpu*3", .threads = 7};
    cfx_context *context;
    CHECK_STATUS(cfx_context_new(&options, &context), CFX_OK);
    CHECK_EQ(cfx_device_threads(cfx_device_at(context, 0)), 3);
    CHECK_EQ(cfx_device_threads(cfx_device_at(context, 1)), 2);
    CHECK_EQ(cfx_device_threads(cfx_device_at(context, 2)), 2);
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    CHECK_EQ(cfx_device_threads(cfx_device_at(context, 0)), 7);
    CHECK_STATUS(cfx_devices_set(context, "cpu*9"), CFX_OK);
    for (int i = 0; i < 9; i++) CHECK_EQ(cfx_device_threads(cfx_device_at(context, i)), 1);
    cfx_context_free(context);
}

TEST(devices_do_not_vanish_under_tensors) {
    cfx_context *context = new_context("cpu*3");
    cfx_device *second = cfx_device_at(context, 1);
    cfx_tensor x = full(second, 4, 6);
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_ESTATE);
    CHECK(says("tensors live on cpu:1, which 'cpu' does not name"));
    CHECK_EQ(cfx_device_count(context), 3);
    CHECK_STATUS(cfx_devices_set(context, "cpu*2"), CFX_OK); /* cpu:1 stays, and so does what is on it */
    CHECK(cfx_device_at(context, 1) == second);
    CHECK_EQ(value_of(&x), 6);
    cfx_release(&x);
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    CHECK_STATUS(cfx_devices_set(context, "cpu*4"), CFX_OK);
    cfx_tensor y = full(cfx_device_at(context, 3), 4, 7);
    CHECK_EQ(value_of(&y), 7);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(tensors_outlive_devices_that_once_used_them) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *cpu = cfx_device_at(context, 0);
    cfx_tensor x = full(cpu, 1000, 1), freed = full(cpu, 5000, 1);
    for (int i = 0; i < 20; i++) {
        CHECK_STATUS(cfx_devices_set(context, "cpu*2"), CFX_OK);
        cfx_tensor y = {0}, z = {0};
        CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK); /* x is read there */
        CHECK_STATUS(cfx_to(&freed, cfx_device_at(context, 1), -1, &z), CFX_OK);
        CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x, &y}), CFX_OK); /* and written */
        cfx_release(&freed);
        cfx_release(&y);
        cfx_release(&z);
        CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_mul, &x, 0.5), CFX_OK);
        freed = full(cpu, 5000, 2);
        CHECK_EQ(value_of(&x), 1);
        CHECK_EQ(value_of(&freed), 2);
    }
    cfx_release(&x);
    cfx_release(&freed);
    cfx_context_free(context);
}

TEST(a_device_that_comes_back_keeps_its_order) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *a = cfx_device_at(context, 0);
    for (int i = 0; i < 5; i++) {
        gate g = {0};
        cfx_device *b = cfx_device_at(context, 1);
        cfx_tensor x = full(a, 1000, 1), y = {0};
        shut_gate(&g, b, CF_COMPUTE);
        CHECK_STATUS(cfx_to(&x, b, -1, &y), CFX_OK);
        CHECK_STATUS(cfx_fill(&x, 2), CFX_OK);
        CHECK(!cf_event_done(last_of(b, CF_COMPUTE)));
        open_gate(&g);
        CHECK_EQ(value_of(&y), 1);
        CHECK_EQ(value_of(&x), 2);
        cfx_release(&x);
        cfx_release(&y);
        CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
        CHECK_STATUS(cfx_devices_set(context, "cpu*2"), CFX_OK);
    }
    cfx_context_free(context);
}

TEST(a_device_that_went_takes_no_tensor) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *gone = cfx_device_at(context, 1);
    const int64_t n = 4;
    cfx_tensor x = full(cfx_device_at(context, 0), 4, 1), y = {0};
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    CHECK_STATUS(cfx_full(gone, CFX_FLOAT32, 1, &n, 0, &y), CFX_ESTATE);
    CHECK(says("cpu:1 is no longer one of this run"));
    CHECK_STATUS(cfx_to(&x, gone, -1, &y), CFX_ESTATE);
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(sixty_four_devices_give_way_to_sixty_four_others) {
    char others[1024] = "cpu:100";
    cfx_context *context = new_context("cpu*64");
    for (int i = 101; i < 164; i++) sprintf(others + strlen(others), ",cpu:%d", i);
    CHECK_STATUS(cfx_devices_set(context, others), CFX_OK);
    CHECK_EQ(cfx_device_count(context), 64);
    CHECK_EQ(context->nopen, 65); /* and cpu:0 */
    cfx_tensor first = full(cfx_device_at(context, 0), 8, 1), sum = full(cfx_device_at(context, 63), 8, 0);
    for (int i = 1; i < 64; i++) CHECK_STATUS(cfx_copy(&sum, &first), CFX_OK);
    CHECK_EQ(value_of(&sum), 1);
    cfx_release(&first);
    cfx_release(&sum);
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    CHECK_EQ(context->nopen, 1);
    cfx_context_free(context);
}

TEST(handles_may_outlive_their_context) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    float got;
    cfx_tensor x = full(cfx_device_at(context, 0), 1, 1), y = full(cfx_device_at(context, 1), 1, 1), view = {0},
               out = {0};
    cfx_tensor w = full(cfx_device_at(context, 0), 64, 1);
    cfx_tape *tape = NULL;
    int32_t id;
    cfx_layout *layout;
    CHECK_STATUS(cfx_layout_new(1, (const cfx_tensor *[]){&w}, (const char *[]){"w"}, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, cfx_device_at(context, 0), (cfx_tensor *[]){&w}), CFX_OK);
    CHECK_STATUS(cfx_tape_begin(context, 1, (cfx_tensor *[]){&w}, &tape), CFX_OK);
    CHECK_STATUS(cfx_binary(CF_OP_mul, &w, &w, &out), CFX_OK);
    cfx_release(&out);
    CHECK_STATUS(cfx_reshape(&x, 0, NULL, &view), CFX_OK);
    hold_queue(&g, cfx_device_at(context, 0), cfx_device_at(context, 1), CF_COMPUTE);
    CHECK_STATUS(cfx_fill(&y, 2), CFX_OK);
    open_gate(&g);
    cfx_context_free(context); /* runs what is enqueued, and voids the tape */
    CHECK_STATUS(cfx_read(&x, &got, sizeof got), CFX_EARG);
    CHECK(says("context has ended"));
    CHECK_STATUS(cfx_unary(CF_OP_neg, &y, 0, 0, &out), CFX_EARG);
    CHECK(cfx_tensor_device(&y) == NULL);
    CHECK(cfx_ready(&y));
    CHECK_EQ(cfx_is_watched(&w), 0);
    CHECK_STATUS(cfx_tape_backward(tape, &w, (cfx_tensor *[]){&out}, 0), CFX_EARG);
    CHECK(says("the tape's context has ended"));
    CHECK_STATUS(cfx_tape_resume(tape), CFX_EARG);
    CHECK_STATUS(cfx_tape_custom(tape, &id, &out), CFX_EARG);
    CHECK_STATUS(cfx_tape_give(tape, 0, &w), CFX_EARG);
    cfx_tape_end(&tape);
    CHECK(tape == NULL);
    cfx_tape_end(&tape);
    CHECK_STATUS(cfx_retain(&view, &out), CFX_EARG);
    cfx_release(&view);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&w);
    cfx_layout_free(layout);
}

TEST(freeing_a_context_runs_what_must_run) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    diary d = {0};
    cf_event shut = shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    for (int i = 0; i < 10; i++) {
        const entry e = {&d, i};
        shut = enqueue(cfx_device_at(context, i % 2), i % 2, run_entry, CF_ALWAYS, &shut, 1, &e, sizeof e);
    }
    open_gate(&g);
    cfx_context_free(context);
    CHECK_EQ(atomic_load(&d.n), 10);
    for (int i = 0; i < 10; i++) CHECK_EQ(d.ids[i], i);
    cfx_context_free(NULL);
}

static _Atomic int ran;
static cfx_status run_a_while(cf_worker *worker, void *payload, bool poisoned) {
    (void)worker;
    (void)payload;
    (void)poisoned;
    usleep(1000);
    atomic_fetch_add(&ran, 1);
    return CFX_OK;
}

TEST(freeing_a_context_drops_work_that_nobody_will_read) {
    cfx_context *context = new_context("cpu*2");
    for (int k = 0; k < 5000; k++) enqueue(cfx_device_at(context, 1), CF_COMPUTE, run_a_while, 0, NULL, 0, "", 0);
    cfx_context_free(context);
    CHECK(atomic_load(&ran) < 5000);
}

TEST(options_of_another_size_are_refused) {
    cfx_context *context;
    const cfx_context_options options = {.size = 9};
    CHECK_STATUS(cfx_context_new(&options, &context), CFX_EARG);
    CHECK(says("context: options: size: expected "));
    const cfx_context_options bad = {.size = sizeof bad, .devices = "nothing"};
    CHECK_STATUS(cfx_context_new(&bad, &context), CFX_EARG);
}

TEST(a_run_that_names_no_devices_has_all_gpus_or_else_the_cpu) {
    cfx_backend_info cpu, cuda;
    CHECK_EQ(cfx_backend_count(), 2);
    CHECK_STATUS(cfx_backend(0, &cpu), CFX_OK);
    CHECK_STATUS(cfx_backend(1, &cuda), CFX_OK);
    CHECK_EQ(cpu.devices, 1);
    CHECK(strcmp(cpu.name, "cpu") == 0 && !*cpu.reason && strstr(cpu.libraries, "oneDNN"));
    CHECK(strcmp(cuda.name, "cuda") == 0 && (cuda.devices > 0) == !*cuda.reason);
    char text[256];
    CHECK_STATUS(cfx_backend_device(0, 0, text, sizeof text), CFX_OK);
    CHECK(strstr(text, "GiB"));
    CHECK_STATUS(cfx_backend_device(0, 1, text, sizeof text), CFX_EARG);
    CHECK_STATUS(cfx_backend(2, &cuda), CFX_EARG);
    CHECK(says("backend: expected 0 to 1, got 2"));

    const cfx_context_options unnamed = {.size = sizeof unnamed};
    const cfx_context_options *const both[] = {NULL, &unnamed};
    for (int i = 0; i < 2; i++) {
        cfx_context *context;
        CHECK_STATUS(cfx_context_new(both[i], &context), CFX_OK);
        CHECK_EQ(cfx_device_count(context), cuda.devices > 0 ? cuda.devices : 1);
        CHECK_STR(cfx_device_name(cfx_device_at(context, 0)), cuda.devices > 0 ? "cuda:0" : "cpu:0");
        cfx_context_free(context);
    }
}

TEST(tensors_of_two_contexts_do_not_meet) {
    cfx_context *one = new_context("cpu"), *two = new_context("cpu*2");
    cfx_tensor x = full(cfx_device_at(one, 0), 4, 1), y = full(cfx_device_at(two, 0), 4, 2), z = {0};
    CHECK_STATUS(cfx_binary(CF_OP_add, &x, &y, &z), CFX_EARG);
    CHECK_STATUS(cfx_copy(&x, &y), CFX_EARG);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(two, 0), -1, &z), CFX_EARG);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x, &y}), CFX_EARG);
    CHECK(z._buffer == NULL);
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
    cfx_release(&y);
    cfx_context_free(one);
    cfx_context_free(two);
}

TEST(random_streams_are_seeded_and_kept) {
    cfx_context *context = new_context("cpu");
    uint64_t seed, position;
    cfx_seed(context, 9);
    CHECK_STATUS(cfx_rng_set(context, 3, 5, 70), CFX_OK);
    cfx_rng_get(context, 3, &seed, &position);
    CHECK(seed == 5 && position == 70);
    cfx_rng_get(context, 0, &seed, &position);
    CHECK(seed == 9 && position == 0);
    CHECK_STATUS(cfx_rng_set(context, CF_STREAMS, 1, 1), CFX_EARG);
    cfx_rng_get(context, -1, &seed, &position);
    CHECK(seed == 0 && position == 0);
    cfx_context_free(context);
}

/* ---- side by side ----------------------------------------------------------------------------------- */

static void *run_alone(void *arg) {
    const int id = (int)(intptr_t)arg;
    for (int round = 0; round < 5; round++) {
        const cfx_context_options options = {.size = sizeof options, .devices = "cpu*2", .threads = 1};
        cfx_context *context;
        int64_t n = 100;
        float got[100];
        cfx_tensor x = {0}, y = {0};
        if (cfx_context_new(&options, &context) != CFX_OK) return "no context";
        cfx_device *a = cfx_device_at(context, 0), *b = cfx_device_at(context, 1);
        if (cfx_full(a, CFX_FLOAT32, 1, &n, id, &x) != CFX_OK) return "no tensor";
        for (int i = 0; i < 200; i++) {
            if (cfx_binary_scalar_into(CF_OP_add, &x, 1) != CFX_OK) return "no sum";
            if (cfx_to(&x, b, -1, &y) != CFX_OK) return "no copy";
            if (i % 10 == 0 && cfx_read(&y, got, sizeof got) != CFX_OK) return "no value";
            if (i % 10 == 0 && got[99] != (float)(id + i + 1)) return "another value";
            cfx_release(&y);
        }
        if (cfx_unary(-1, &x, 0, 0, &y) != CFX_EARG || !strstr(cfx_error(), "(-1)")) return "another message";
        cfx_release(&x);
        cfx_context_free(context);
    }
    return NULL;
}

TEST(contexts_live_side_by_side_in_threads) {
    enum { N = 4 };
    pthread_t threads[N];
    for (int i = 0; i < N; i++) CHECK_EQ(pthread_create(&threads[i], NULL, run_alone, (void *)(intptr_t)(1000 * i)), 0);
    for (int i = 0; i < N; i++) {
        void *why;
        pthread_join(threads[i], &why);
        if (why) printf("# thread %d: %s\n", i, (const char *)why);
        CHECK(!why);
    }
}
