/* Operations as commands: core/tensor/issue.c. */
#include "test.h"

#include "queues.h"
#include "tensor/issue.h"

enum { N = 8, COPIES = 15 };
static cfx_context *context;
static cfx_device *device;
static cfx_tensor old, made[COPIES];
static void setup(void) {
    context = new_context("cpu");
    device = cfx_device_at(context, 0);
    old = full(device, N, 5);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
}
static void teardown(void) {
    for (int k = 0; k < COPIES; k++) cfx_release(&made[k]);
    cfx_release(&old);
    CHECK_EQ(blocks_of(device), 0);
    cfx_context_free(context);
}

/* Copies are made of `old`, which the operation has as its last output, and updates. */
static cfx_status issue_copies(int copies) {
    const int64_t n = N;
    cfx_tensor *t[COPIES + 1];
    for (int k = 0; k < copies; k++) {
        t[k] = &made[k];
        CHECK_STATUS(cf_new(device, CFX_FLOAT32, 1, &n, t[k]), CFX_OK);
    }
    t[copies] = &old;
    return cf_issue_run(&(cf_issue){.op = CF_OP_combine,
                                    .dtype = CFX_FLOAT32,
                                    .nout = copies + 1,
                                    .nupdated = 1,
                                    .t = t,
                                    .params = &(cf_combine_params){.op = CF_COMBINE_COPY, .root = copies}});
}

TEST(an_operation_has_as_many_views_as_it_needs) {
    for (int copies = 1; copies <= COPIES; copies++) {
        setup();
        CHECK_STATUS(issue_copies(copies), CFX_OK);
        for (int k = 0; k < copies; k++) CHECK_EQ(value_of(&made[k]), 5);
        CHECK_EQ(value_of(&old), 5);
        teardown();
    }
}

TEST(of_one_operation_that_is_skipped_what_it_makes_is_void_and_what_it_updates_is_not) {
    setup();
    fault(device);
    CHECK_STATUS(issue_copies(3), CFX_OK);
    CHECK_STATUS(cfx_wait(&old), CFX_EFAULT);
    CHECK(says("made to fail"));
    for (int k = 0; k < 3; k++) {
        CHECK_STATUS(cfx_wait(&made[k]), CFX_EFAULT);
        CHECK(says("never written"));
    }
    CHECK_EQ(value_of(&old), 5);
    teardown();
}

TEST(an_operation_that_is_refused_releases_what_it_was_to_make_and_keeps_what_it_was_to_update) {
    setup();
    const int64_t n = N;
    cfx_context *other = new_context("cpu");
    cfx_tensor far = full(cfx_device_at(other, 0), N, 1);
    for (int k = 0; k < COPIES - 1; k++) CHECK_STATUS(cf_new(device, CFX_FLOAT32, 1, &n, &made[k]), CFX_OK);
    cfx_tensor *t[COPIES + 1];
    for (int k = 0; k < COPIES - 1; k++) t[k] = &made[k];
    t[COPIES - 1] = &old;
    t[COPIES] = &far;
    CHECK_STATUS(cf_issue_run(&(cf_issue){.op = CF_OP_combine,
                                          .dtype = CFX_FLOAT32,
                                          .nout = COPIES,
                                          .nin = 1,
                                          .nupdated = 1,
                                          .t = t,
                                          .params = &(cf_combine_params){.op = CF_COMBINE_COPY, .root = COPIES - 1}}),
                 CFX_EARG);
    CHECK(says("two contexts"));
    for (int k = 0; k < COPIES - 1; k++) CHECK(made[k]._buffer == NULL);
    CHECK_EQ(value_of(&old), 5);
    cfx_release(&far);
    cfx_context_free(other);
    teardown();
}

TEST(a_workspace_is_of_the_pool_and_no_memory_for_it_is_an_error_of_the_call) {
    enum { ITEMS = 1 << 18, MIB = 1 << 20 };
    cfx_tensor x = {0}, values = {0}, ids = {0};
    cfx_memory_info before, after;
    context = new_context_of("cpu", 8 * MIB);
    device = cfx_device_at(context, 0);
    x = full(device, ITEMS, 5);
    CHECK_STATUS(cfx_sort(&x, 0, 0, &values, &ids), CFX_EMEMORY); /* its items alone have 8 MiB */
    CHECK(says("out of memory: 8388608 bytes asked for"));
    CHECK(values._buffer == NULL && ids._buffer == NULL);
    CHECK_EQ(blocks_of(device), 1);
    cfx_release(&x);
    cfx_context_free(context);

    context = new_context("cpu");
    device = cfx_device_at(context, 0);
    x = full(device, ITEMS, 5);
    cfx_memory(device, &before);
    CHECK_STATUS(cfx_sort(&x, 0, 0, &values, &ids), CFX_OK);
    cfx_memory(device, &after);
    CHECK(after.peak >= before.in_use + 8 * MIB);
    CHECK_EQ(blocks_of(device), 3);
    CHECK_EQ(value_of(&values), 5);
    cfx_release(&x);
    cfx_release(&values);
    cfx_release(&ids);
    cfx_context_free(context);
}
