/* The collectives of comm_test.c between devices of which some share memory and some do not, and what can go wrong
 * between those that do not. */
#define COMM_SPECS \
    { "fake", "fake:0*2", "fake:0*2,fake:1", "fake:0*2,fake:1*2", "fake:0*2,fake:1*2,fake:2" }
#include "comm_test.c"

TEST(the_group_is_named) {
    cfx_device *list[4];
    char name[32];
    cfx_context *c = context_of("fake:0*2,fake:1,cpu:0");
    for (int i = 0; i < 4; i++) list[i] = cfx_device_at(c, i);
    static const struct {
        int from, n;
        const char *name;
    } cases[] = {{0, 1, "self"}, {0, 2, "local"}, {1, 2, "fakeccl"}, {0, 3, "local + fakeccl"}, {0, 4, "none"}};
    for (int k = 0; k < 5; k++) {
        CHECK_STATUS(cfx_group(cases[k].n, list + cases[k].from, name, sizeof name), CFX_OK);
        CHECK_STR(name, cases[k].name);
    }
    CHECK_STATUS(cfx_group(0, list, name, sizeof name), CFX_EARG);
    cfx_context_free(c);
}

static void two(const char *spec, cfx_tensor x[2]) {
    context = context_of(spec);
    for (int r = 0; r < 2; r++) {
        device[r] = cfx_device_at(context, r);
        x[r] = full(device[r], 1000, r + 1);
    }
}

TEST(devices_of_different_kinds_are_refused_and_nothing_moves) {
    cfx_tensor x[2];
    two("cpu,fake", x);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_EARG);
    CHECK(says("allreduce: cpu:0 and fake:0 share no memory"));
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), r + 1);
    release(2, x);
    cfx_context_free(context);
}

TEST(where_there_is_no_group_its_reason_is_given_or_slices_serve) {
    cfx_tensor x[2];
    two("fake*2", x);
    cfx_tensor *leaves[] = {&x[0], &x[1]};
    atomic_store(&fake_group_fails, 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, leaves), CFX_EFAULT);
    CHECK(says("fake collectives: no network"));
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), r + 1);
    atomic_store(&fake_reaches, 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, leaves), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 3);
    atomic_store(&fake_group_fails, 0);
    atomic_store(&fake_reaches, 0);
    release(2, x);
    cfx_context_free(context);
}

TEST(a_participant_whose_queue_is_poisoned_still_comes_and_all_learn_of_its_fault) {
    cfx_tensor x[2];
    two("fake*2", x);
    float got[1000];
    fault(device[1]);
    cfx_tensor y = plus(&x[1], 1); /* skipped */
    atomic_store(&launches, 0);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &y}), CFX_OK);
    CHECK_STATUS(cfx_read(&x[0], got, sizeof got), CFX_EFAULT);
    CHECK(says("made to fail"));
    CHECK_EQ(atomic_load(&launches), 2);
    cfx_tensor z = plus(&x[1], 1);
    CHECK_EQ(value_of(&z), 3);
    cfx_release(&y);
    cfx_release(&z);
    release(2, x);
    cfx_context_free(context);
}

TEST(a_collective_that_fails_on_one_device_fails_on_all_and_names_itself) {
    cfx_tensor x[2];
    two("fake*2", x);
    float got[1000];
    for (int rank = 0; rank < 2; rank++) {
        atomic_store(&fake_join_fails, rank + 1);
        CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_OK);
        CHECK_STATUS(cfx_read(&x[1 - rank], got, sizeof got), CFX_EFAULT);
        CHECK(says("allreduce: fake collectives: cable cut"));
        CHECK_STATUS(cfx_sync(context, NULL), CFX_OK); /* it is raised once */
        atomic_store(&fake_join_fails, 0);
        for (int r = 0; r < 2; r++) {
            cfx_release(&x[r]);
            x[r] = full(device[r], 1000, r + 1);
        }
    }
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 3);
    release(2, x);
    cfx_context_free(context);
}

/* Device 0 joins and waits for device 1, whose part waits for work that device 0 has still to do. */
TEST(a_device_that_waits_for_others_works_on) {
    cfx_tensor x[2];
    two("fake*2", x);
    gate g = {0};
    cfx_tensor slow = full(device[0], 10, 5), moved = {0};
    hold_queue(&g, device[1], device[0], CF_COMPUTE);
    cfx_tensor later = plus(&slow, 1);
    CHECK_STATUS(cfx_to(&later, device[1], -1, &moved), CFX_OK); /* ahead of the collective on device 1 */
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_OK);
    usleep(2000);
    open_gate(&g);
    CHECK_EQ(value_of(&moved), 6);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 3);
    cfx_release(&slow);
    cfx_release(&later);
    cfx_release(&moved);
    release(2, x);
    cfx_context_free(context);
}
