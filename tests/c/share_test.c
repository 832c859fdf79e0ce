/* cfx_share: tensors over the host program's memory, and when it gets that back. */
#include "test.h"

#include "base/log.h"
#include "queues.h"

typedef struct owner {
    _Atomic int given_back;
    pthread_t in;
} owner;

static void give_back(void *data) {
    owner *o = data;
    o->in = pthread_self();
    atomic_fetch_add(&o->given_back, 1);
}

static cfx_tensor share(cfx_device *device, int64_t n, float *memory, owner *o) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_share(device, CFX_FLOAT32, 1, &n, memory, (size_t)n * sizeof *memory, give_back, o, &x), CFX_OK);
    return x;
}

static void fill(float *memory, int64_t n, float value) {
    for (int64_t i = 0; i < n; i++) memory[i] = value;
}

TEST(commands_read_and_write_the_callers_own_memory) {
    cfx_context *context = new_context("cpu");
    float memory[1001];
    owner o = {0};
    void *address;
    fill(memory, 1001, 2);
    cfx_memory_info before, after;
    cfx_memory(cfx_device_at(context, 0), &before);
    cfx_tensor x = share(cfx_device_at(context, 0), 1001, memory, &o), y = {0};
    cfx_memory(cfx_device_at(context, 0), &after);
    CHECK_EQ(after.in_use, before.in_use);
    CHECK_STATUS(cfx_pointer(&x, &address), CFX_OK);
    CHECK(address == memory);
    CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &x, 3, 0, &y), CFX_OK);
    CHECK_EQ(value_of(&y), 6);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 5), CFX_OK);
    CHECK_STATUS(cfx_wait(&x), CFX_OK);
    CHECK_EQ(memory[0], 7);
    CHECK_EQ(memory[1000], 7);
    cfx_release(&x);
    cfx_release(&y);
    CHECK_EQ(o.given_back, 1);
    cfx_context_free(context);
    CHECK_EQ(o.given_back, 1);
}

TEST(a_view_keeps_the_memory) {
    cfx_context *context = new_context("cpu");
    float memory[6];
    owner o = {0};
    fill(memory, 6, 4);
    cfx_tensor x = share(cfx_device_at(context, 0), 6, memory, &o), part = {0};
    CHECK_STATUS(cfx_slice(&x, 0, 2, 3, 1, &part), CFX_OK);
    cfx_release(&x);
    CHECK_EQ(o.given_back, 0);
    CHECK_EQ(value_of(&part), 4);
    cfx_release(&part);
    CHECK_EQ(o.given_back, 1);
    cfx_context_free(context);
}

TEST(memory_comes_back_behind_the_last_command_that_uses_it_and_no_release_waits) {
    cfx_context *context = new_context("cpu*3");
    float memory[4];
    gate g = {0};
    owner o = {0};
    fill(memory, 4, 1);
    cfx_device *cpu = cfx_device_at(context, 0), *other = cfx_device_at(context, 1);
    cfx_tensor x = share(cpu, 4, memory, &o), y = {0};
    hold_queue(&g, cfx_device_at(context, 2), other, CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, other, -1, &y), CFX_OK); /* the other device reads it */
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    cfx_release(&x);
    CHECK_EQ(o.given_back, 0);
    CHECK(memory[0] == 1);
    open_gate(&g);
    CHECK_EQ(value_of(&y), 1);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(o.given_back, 1);
    CHECK(!pthread_equal(o.in, pthread_self()));
    CHECK_EQ(memory[0], 2);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(a_poisoned_queue_gives_memory_back_too_and_its_poison_does_not_spread_by_that) {
    cfx_context *context = new_context("cpu*3");
    float memory[4];
    gate g = {0};
    owner o = {0};
    fill(memory, 4, 1);
    cfx_device *cpu = cfx_device_at(context, 0), *other = cfx_device_at(context, 1);
    cfx_tensor x = share(cpu, 4, memory, &o), y = {0}, z = {0};
    hold_queue(&g, cfx_device_at(context, 2), other, CF_COMPUTE);
    fault(other);
    CHECK_STATUS(cfx_to(&x, other, -1, &y), CFX_OK);
    CHECK_STATUS(cfx_binary_scalar(CF_OP_add, &x, 1, 0, &z), CFX_OK);
    cfx_release(&x);
    open_gate(&g);
    CHECK_STATUS(cf_event_wait(last_of(other, CF_COMPUTE)), CFX_OK);
    CHECK_EQ(value_of(&z), 2);
    for (int q = 0; q < CF_QUEUES; q++) CHECK_STATUS(cf_event_wait(last_of(cpu, q)), CFX_OK);
    CHECK_EQ(o.given_back, 1);
    CHECK_STATUS(cfx_wait(&y), CFX_EFAULT);
    cfx_tensor w = full(cpu, 4, 3);
    CHECK_EQ(value_of(&w), 3);
    cfx_release(&w);
    cfx_release(&y);
    cfx_release(&z);
    cfx_context_free(context);
}

TEST(the_end_of_a_context_gives_back_what_is_still_held_and_what_is_under_way) {
    cfx_context *context = new_context("cpu");
    float memory[2][4];
    owner o[2] = {{0}, {0}};
    fill(memory[0], 8, 1);
    cfx_tensor x = share(cfx_device_at(context, 0), 4, memory[0], &o[0]);
    cfx_tensor y = share(cfx_device_at(context, 0), 4, memory[1], &o[1]);
    for (int i = 0; i < 100; i++) CHECK_STATUS(cfx_binary_into(CF_OP_add, &x, &y), CFX_OK);
    cfx_release(&y);
    cfx_context_free(context);
    CHECK_EQ(o[0].given_back, 1);
    CHECK_EQ(o[1].given_back, 1);
    cfx_release(&x); /* void, and still to be released */
    CHECK_EQ(o[0].given_back, 1);
}

static void *interrupt_and_open_when_host_sleeps(void *arg) {
    const helper *h = arg;
    interrupt_when_host_sleeps(arg);
    open_gate(h->gate);
    return NULL;
}

TEST(a_full_ring_and_an_interrupt_lose_no_memory) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    float memory[4];
    gate g = {0};
    owner o = {0};
    helper h;
    fill(memory, 4, 0);
    cfx_tensor x = share(cpu, 4, memory, &o);
    shut_gate(&g, cpu, CF_COMPUTE);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &x, 1), CFX_OK);
    void *payload; /* as large as that of the command that gives memory back */
    start_helper(&h, interrupt_when_host_sleeps, context, NULL);
    while (cf_queue_reserve(cf_queue_at(cpu, CF_COMPUTE), run_nothing, "test", 0, NULL, 0, sizeof payload, &payload) ==
           CFX_OK)
        cf_queue_commit(cf_queue_at(cpu, CF_COMPUTE));
    join_helper(&h);
    start_helper(&h, interrupt_and_open_when_host_sleeps, context, &g);
    cfx_release(&x);
    join_helper(&h);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EINTERRUPT);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(o.given_back, 1);
    cfx_context_free(context);
}

TEST(what_cannot_be_shared_is_refused_and_its_hook_does_not_run) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    float memory[5];
    owner o = {0};
    const int64_t shape[2] = {2, 2}, negative = -1;
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, shape, memory, 15, give_back, &o, &x), CFX_EARG);
    CHECK_STR(cfx_error(), "share: argument 'bytes': expected at least 16 for [2, 2] (float32), got 15");
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, shape, (char *)memory + 2, 16, give_back, &o, &x), CFX_EARG);
    CHECK(says("share: argument 'memory': expected the address of a float32, a multiple of 4, got 0x"));
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, shape, NULL, 16, give_back, &o, &x), CFX_EARG);
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 1, &negative, memory, 16, give_back, &o, &x), CFX_EARG);
    CHECK_STATUS(cfx_share(cpu, CFX_DTYPES, 2, shape, memory, 16, give_back, &o, &x), CFX_EARG);
    CHECK(!x._buffer);
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, shape, memory, 16, NULL, NULL, &x), CFX_OK);
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, shape, memory, 16, give_back, &o, &x), CFX_EARG);
    CHECK(says("an empty handle"));
    cfx_release(&x);
    const int64_t none[2] = {0, 3};
    CHECK_STATUS(cfx_share(cpu, CFX_FLOAT32, 2, none, NULL, 0, NULL, NULL, &x), CFX_OK);
    CHECK_STATUS(cfx_read(&x, NULL, 0), CFX_OK);
    cfx_release(&x);
    CHECK_EQ(o.given_back, 0);
    cfx_context_free(context);
}

TEST(training_packs_a_parameter_that_was_shared_and_gives_its_memory_back) {
    cfx_context *context = new_context("cpu");
    float memory[4];
    owner o = {0};
    fill(memory, 4, 3);
    cfx_tensor x = share(cfx_device_at(context, 0), 4, memory, &o), *handle = &x;
    const cfx_tensor *tensor = &x;
    const char *path = "w";
    cfx_layout *layout = NULL;
    CHECK_STATUS(cfx_layout_new(1, &tensor, &path, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, cfx_device_at(context, 0), &handle), CFX_OK);
    CHECK_EQ(value_of(&x), 3);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(o.given_back, 1);
    cfx_release(&x);
    cfx_layout_free(layout);
    cfx_context_free(context);
}

/* ---- log ------------------------------------------------------------------------------------------- */

static void note(void *data, int level, const char *message) { snprintf(data, 64, "%d %s", level, message); }

static cfx_status run_log(cf_worker *worker, void *payload, bool poisoned) {
    (void)worker;
    (void)payload;
    (void)poisoned;
    cf_log(1, "from a worker");
    return CFX_OK;
}

TEST(what_a_context_has_to_say_goes_where_that_of_its_maker_went) {
    char own[64] = "", others[64] = "";
    cfx_log_to(note, others);
    const cfx_log before = cfx_log_here((cfx_log){note, own});
    CHECK(!before.hook);
    cfx_context *context = new_context("cpu");
    cf_log(2, "from here");
    CHECK_STR(own, "2 from here");
    const cfx_log mine = cfx_log_here(before);
    CHECK(mine.hook == note && mine.data == own);
    cf_log(0, "from here again");
    CHECK_STR(others, "0 from here again");
    enqueue(cfx_device_at(context, 0), CF_COMPUTE, run_log, 0, NULL, 0, "", 0);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_STR(own, "1 from a worker");
    cfx_context_free(context);
    cfx_log_to(NULL, NULL);
}
