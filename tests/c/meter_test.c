/* Work counted as the devices do it, core/device/meter.c. */
#include "test.h"

#include <unistd.h>

#include "fake.h"

static cfx_meter meter;

TEST(a_meter_counts_at_once_where_nothing_is_behind) {
    cfx_context *context = new_context("cpu");
    cfx_meter_begin(context, &meter);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    cfx_meter_count(&meter, 3);
    cfx_meter_count(&meter, 0.5);
    CHECK(cfx_meter_done(&meter) == 3.5);
    CHECK_STATUS(cfx_meter_wait(&meter), CFX_OK);
    cfx_context_free(context);
}

TEST(a_meter_counts_what_is_done_on_all_devices) {
    cfx_context *context = new_context("cpu*2");
    gate one = {0}, two = {0}, three = {0};
    cfx_meter_begin(context, &meter);
    shut_gate(&one, cfx_device_at(context, 0), CF_COMPUTE);
    cfx_meter_count(&meter, 1);
    const cf_event e = shut_gate(&two, cfx_device_at(context, 1), CF_COMM);
    cfx_meter_count(&meter, 10);
    shut_gate(&three, cfx_device_at(context, 1), CF_COMPUTE);
    cfx_meter_count(&meter, 100);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    open_gate(&two);
    CHECK_STATUS(cf_event_wait(e), CFX_OK);
    CHECK_EQ(cfx_meter_done(&meter), 0); /* in their order */
    open_gate(&one);
    CHECK_STATUS(cf_event_wait(last_of(cfx_device_at(context, 0), CF_COMPUTE)), CFX_OK);
    CHECK_EQ(cfx_meter_done(&meter), 11);
    open_gate(&three);
    CHECK_STATUS(cfx_meter_wait(&meter), CFX_OK);
    CHECK_EQ(cfx_meter_done(&meter), 111);
    cfx_context_free(context);
}

/* Each count behind a gate of its own, many more than there are points: what is done is never overstated, and behind by
 * a small part of what was ahead. */
TEST(a_meter_with_many_counts_ahead_stays_close) {
    enum { COUNTS = 1000, PART = COUNTS / 7 };
    static gate gates[2 * COUNTS];
    cfx_context *context = new_context("cpu");
    cfx_device *device = cfx_device_at(context, 0);
    static cf_event behind[2 * COUNTS];
    memset(gates, 0, sizeof gates);
    cfx_meter_begin(context, &meter);
    for (int i = 0; i < COUNTS; i++) {
        behind[i] = shut_gate(&gates[i], device, CF_COMPUTE);
        cfx_meter_count(&meter, 1);
    }
    for (int i = 0; i < COUNTS; i++) {
        open_gate(&gates[i]);
        CHECK_STATUS(cf_event_wait(behind[i]), CFX_OK);
        const double done = cfx_meter_done(&meter);
        CHECK(done <= i + 1 && done >= i + 1 - PART);
    }
    CHECK_EQ(cfx_meter_done(&meter), COUNTS);
    /* From here on one step ahead: soon it is exact. */
    for (int i = COUNTS; i < 2 * COUNTS; i++) {
        behind[i] = shut_gate(&gates[i], device, CF_COMPUTE);
        if (i > COUNTS) open_gate(&gates[i - 1]), CHECK_STATUS(cf_event_wait(behind[i - 1]), CFX_OK);
        cfx_meter_count(&meter, 1);
        const double done = cfx_meter_done(&meter);
        CHECK(done <= i && (i < COUNTS + 64 || done == i));
    }
    open_gate(&gates[2 * COUNTS - 1]);
    CHECK_STATUS(cfx_meter_wait(&meter), CFX_OK);
    CHECK_EQ(cfx_meter_done(&meter), 2 * COUNTS);
    cfx_context_free(context);
}

TEST(a_device_that_only_launches_is_asked_how_far_it_is) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    hold(0, CF_COMPUTE);
    cfx_meter_begin(context, &meter);
    cfx_tensor x = full(device, 4, 1), y = plus(&x, 1);
    cfx_meter_count(&meter, 1);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    while (atomic_load(&streams[0][CF_COMPUTE].marked) < last_of(device, CF_COMPUTE).ticket) usleep(100);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    let_happen(0, CF_COMPUTE);
    while (cfx_meter_done(&meter) != 1) usleep(100);
    cfx_release(&x);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(waiting_for_a_meter_raises_the_fault_of_its_work) {
    cfx_context *context = new_context("cpu");
    cfx_device *device = cfx_device_at(context, 0);
    gate g = {0};
    cfx_meter_begin(context, &meter);
    shut_gate(&g, device, CF_COMPUTE);
    fault(device);
    cfx_meter_count(&meter, 1);
    open_gate(&g);
    while (!cf_event_done(last_of(device, CF_COMPUTE))) usleep(100);
    CHECK_EQ(cfx_meter_done(&meter), 0); /* it was skipped */
    cfx_meter_count(&meter, 1);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    CHECK_STATUS(cfx_meter_wait(&meter), CFX_EFAULT);
    CHECK_STATUS(cfx_meter_wait(&meter), CFX_OK); /* raised once */
    cfx_context_free(context);
}

TEST(a_meter_outlasts_the_devices_that_it_waited_for) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    cfx_meter_begin(context, &meter);
    shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    cfx_meter_count(&meter, 1);
    CHECK_EQ(cfx_meter_done(&meter), 0);
    open_gate(&g);
    CHECK_STATUS(cfx_devices_set(context, "cpu"), CFX_OK);
    CHECK_EQ(cfx_meter_done(&meter), 1);
    cfx_context_free(context);
}
