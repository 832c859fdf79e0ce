/* Rings, events and waits: core/device/ring.c, event.c and worker.c. */
#include "test.h"

#include "queues.h"

static void check_order(diary *in, int n, const int *ids) {
    CHECK_EQ(atomic_load(&in->n), n);
    for (int i = 0; i < n; i++) CHECK_EQ(in->ids[i], ids[i]);
}

TEST(a_queue_runs_its_commands_in_order) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    diary d = {0};
    for (int i = 0; i < 5; i++) write_entry(&d, i, cpu, CF_COMPUTE, NULL, 0);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    check_order(&d, 5, (int[]){0, 1, 2, 3, 4});
    cfx_context_free(context);
}

TEST(a_command_waits_for_events_of_other_devices) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    diary d = {0};
    const cf_event shut = shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    const cf_event first = write_entry(&d, 1, cfx_device_at(context, 1), CF_COMPUTE, NULL, 0);
    CHECK(!cf_event_done(shut));
    write_entry(&d, 2, cfx_device_at(context, 0), CF_COMPUTE, &first, 1);
    open_gate(&g);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    check_order(&d, 2, (int[]){1, 2});
    cfx_context_free(context);
}

TEST(a_ready_communication_command_runs_while_the_compute_queue_waits) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *a = cfx_device_at(context, 0), *b = cfx_device_at(context, 1);
    gate g = {0};
    diary d = {0};
    hold_queue(&g, b, a, CF_COMPUTE);
    const cf_event held = write_entry(&d, 1, a, CF_COMPUTE, NULL, 0);
    const cf_event ready = write_entry(&d, 2, a, CF_COMM, NULL, 0);
    CHECK_STATUS(cf_event_wait(ready), CFX_OK);
    CHECK(!cf_event_done(held));
    open_gate(&g);
    CHECK_STATUS(cf_event_wait(held), CFX_OK);
    check_order(&d, 2, (int[]){2, 1});
    cfx_context_free(context);
}

TEST(a_reservation_that_is_not_committed_has_not_happened) {
    cfx_context *context = new_context("cpu");
    cf_queue *queue = cf_queue_at(cfx_device_at(context, 0), CF_COMPUTE);
    diary d = {0};
    void *payload;
    for (int round = 0; round < 40000; round++) { /* around the ring more than once */
        CHECK_STATUS(cf_queue_reserve(queue, run_fault, "never", 0, NULL, 0, 900, &payload), CFX_OK);
        atomic_store(&d.n, 0);
        write_entry(&d, round, cfx_device_at(context, 0), CF_COMPUTE, NULL, 0);
        if (round % 1000 == 0) CHECK_STATUS(cf_event_wait(cf_queue_last(queue)), CFX_OK);
        if (round % 64 == 0) CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    }
    CHECK_EQ(queue->last, 40000);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    cfx_context_free(context);
}

/* ---- full rings ------------------------------------------------------------------------------------- */

typedef struct counted {
    _Atomic int *count;
    int expect;
    char filler[500];
} counted;

static cfx_status run_counted(cf_worker *worker, void *payload, bool poisoned) {
    const counted *c = payload;
    (void)worker;
    (void)poisoned;
    if (atomic_fetch_add(c->count, 1) != c->expect) return cf_fail(CFX_EFAULT, "out of order");
    return CFX_OK;
}

TEST(a_ring_holds_a_step_of_16000_commands_without_waiting) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    gate g = {0};
    _Atomic int count = 0;
    shut_gate(&g, cpu, CF_COMPUTE); /* a host that waited now would wait for ever */
    for (int i = 0; i < 16000; i++) {
        const counted c = {.count = &count, .expect = i};
        enqueue(cpu, CF_COMPUTE, run_counted, 0, NULL, 0, &c, sizeof c);
    }
    CHECK_EQ(atomic_load(&count), 0);
    open_gate(&g);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(atomic_load(&count), 16000);
    cfx_context_free(context);
}

TEST(a_full_ring_parks_the_host_and_goes_on) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    _Atomic int count = 0;
    const int n = 50000;
    shut_gate(&g, cpu, CF_COMPUTE);
    start_helper(&h, open_when_host_sleeps, context, &g);
    for (int i = 0; i < n; i++) {
        const counted c = {.count = &count, .expect = i};
        enqueue(cpu, CF_COMPUTE, run_counted, 0, NULL, 0, &c, sizeof c);
    }
    join_helper(&h);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(atomic_load(&count), n);
    cfx_context_free(context);
}

TEST(room_that_was_promised_is_there_even_if_the_worker_is_busy) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    cf_queue *queue = cf_queue_at(cpu, CF_COMM);
    gate g = {0};
    _Atomic int count = 0;
    const counted plain = {.count = &count};
    const size_t bytes = cf_queue_bytes(0, sizeof plain);
    for (int i = 0; i < 1000; i++) { /* away from the ring's front */
        const counted c = {.count = &count, .expect = i};
        enqueue(cpu, CF_COMM, run_counted, 0, NULL, 0, &c, sizeof c);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, cpu, CF_COMPUTE); /* a host that waited now would wait for ever */
    CHECK_STATUS(cf_queue_room(queue, 7000 * bytes), CFX_OK);
    for (int i = 1000; i < 8000; i++) {
        const counted c = {.count = &count, .expect = i};
        enqueue(cpu, CF_COMM, run_counted, 0, NULL, 0, &c, sizeof c);
    }
    open_gate(&g);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(atomic_load(&count), 8000);
    cfx_context_free(context);
}

static cfx_status run_large(cf_worker *worker, void *payload, bool poisoned) {
    const uint32_t *words = payload;
    (void)worker;
    (void)poisoned;
    for (uint32_t i = 1; i < words[0]; i++)
        if (words[i] != i) return cf_fail(CFX_EFAULT, "word %u is %u", i, words[i]);
    return CFX_OK;
}

TEST(large_commands_go_through_a_ring_at_any_place) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    uint32_t *words = malloc(4 << 20);
    for (int round = 0; round < (SANITIZED ? 24 : 60); round++) {
        words[0] = round % 3 == 0 ? 100 : round % 3 == 1 ? 1 << 20 : 70000;
        for (uint32_t i = 1; i < words[0]; i++) words[i] = i;
        enqueue(cpu, CF_COMPUTE, run_large, 0, NULL, 0, words, words[0] * sizeof *words);
        if (round % 4) CHECK_STATUS(cfx_sync(context, NULL), CFX_OK); /* so that the ring is often empty */
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    void *payload;
    CHECK_STATUS(cf_queue_reserve(cf_queue_at(cpu, 0), run_large, "big", 0, NULL, 0, CF_RING_BYTES, &payload),
                 CFX_EARG);
    CHECK(says("does not fit its queue"));
    free(words);
    cfx_context_free(context);
}

/* ---- waking up -------------------------------------------------------------------------------------- */

enum { DEVICES = 3 };

TEST(no_wake_up_is_lost_between_devices) {
    cfx_context *context = new_context("cpu*3");
    _Atomic int count = 0;
    cf_event before = {NULL, 0};
    const int n = SANITIZED ? 20000 : 100000; /* scripts/torture runs it again and again under ThreadSanitizer */
    for (int i = 0; i < n; i++) {             /* each command waits for the one before, on another device */
        const struct {
            _Atomic int *count;
            int expect;
        } c = {&count, i};
        const int device = i % DEVICES, queue = i / 7 % CF_QUEUES;
        cf_waits waits = {.own = &cf_queue_at(cfx_device_at(context, device), queue)->timeline};
        cf_waits_event(&waits, before, CF_DATA);
        before = enqueue(cfx_device_at(context, device), queue, run_counted, 0, &waits.items[0].until, waits.n, &c,
                         sizeof c);
        if (i % 5000 == 4999) CHECK_STATUS(cf_event_wait(before), CFX_OK);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_EQ(atomic_load(&count), n);
    cfx_context_free(context);
}

TEST(no_wake_up_of_the_host_is_lost) {
    cfx_context *context = new_context("cpu*3");
    _Atomic int count = 0;
    for (int i = 0; i < 5000; i++) {
        const struct {
            _Atomic int *count;
            int expect;
        } c = {&count, i};
        const cf_event e = enqueue(cfx_device_at(context, i % DEVICES), i % 2, run_counted, 0, NULL, 0, &c, sizeof c);
        if (i % 3 == 0) /* the worker sleeps, spins or runs when the command comes */
            for (int k = 0; k < i % 997; k++) cf_relax();
        CHECK_STATUS(cf_event_wait(e), CFX_OK);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    cfx_context_free(context);
}

/* ---- uses ------------------------------------------------------------------------------------------- */

TEST(uses_keep_the_last_event_of_each_queue) {
    cfx_context *context = new_context("cpu*4");
    gate gates[4] = {0};
    cf_uses uses = {0};
    for (int i = 0; i < 4; i++) {
        cf_timeline *timeline = &cf_queue_at(cfx_device_at(context, i), 0)->timeline;
        shut_gate(&gates[i], cfx_device_at(context, i), CF_COMPUTE);
        CHECK_STATUS(cf_uses_add(&uses, (cf_event){timeline, 5}), CFX_OK);
        CHECK_STATUS(cf_uses_add(&uses, (cf_event){timeline, 3}), CFX_OK);
        CHECK_STATUS(cf_uses_add(&uses, (cf_event){NULL, 9}), CFX_OK);
    }
    CHECK_EQ(uses.n, 4);
    for (int i = 0; i < 4; i++) CHECK_EQ(cf_uses_items(&uses)[i].ticket, 5);
    CHECK_STATUS(cf_uses_add(&uses, (cf_event){cf_uses_items(&uses)[2].timeline, 1}), CFX_OK);
    cf_uses_prune(&uses);
    CHECK_EQ(uses.n, 4);
    for (int i = 0; i < 4; i++) {
        open_gate(&gates[i]);
        for (int k = 0; k < 4; k++) enqueue(cfx_device_at(context, i), CF_COMPUTE, run_nothing, 0, NULL, 0, "", 0);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    cf_uses_prune(&uses);
    CHECK_EQ(uses.n, 0);
    cf_uses_clear(&uses);
    cfx_context_free(context);
}

TEST(a_command_waits_neither_for_its_own_queue_nor_for_what_has_happened) {
    cfx_context *context = new_context("cpu*2");
    gate g = {0};
    cf_timeline *own = &cf_queue_at(cfx_device_at(context, 0), 0)->timeline;
    cf_timeline *other = &cf_queue_at(cfx_device_at(context, 1), 0)->timeline;
    const cf_event done = enqueue(cfx_device_at(context, 1), CF_COMPUTE, run_nothing, 0, NULL, 0, "", 0);
    CHECK_STATUS(cf_event_wait(done), CFX_OK);
    const cf_event shut = shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    cf_waits waits = {.own = own};
    cf_waits_event(&waits, (cf_event){own, 1}, CF_DATA);
    cf_waits_event(&waits, done, CF_DATA);
    cf_waits_event(&waits, (cf_event){NULL, 0}, CF_DATA);
    CHECK_EQ(waits.n, 0);
    cf_waits_event(&waits, shut, CF_ORDER);
    cf_waits_event(&waits, (cf_event){other, shut.ticket + 1}, CF_DATA);
    cf_waits_event(&waits, (cf_event){other, shut.ticket + 2}, CF_ORDER);
    CHECK_EQ(waits.n, 1);
    CHECK_EQ(waits.items[0].until.ticket, shut.ticket + 2);
    CHECK_EQ(waits.items[0].data, shut.ticket + 1); /* commands behind it count for the order alone */
    open_gate(&g);
    cfx_context_free(context);
}
