/* A child of fork: it has none of the threads, and every call says so. */
#include "test.h"

#include <sys/wait.h>

#include "queues.h"

/* Runs `check` in a child, which an alarm ends if it hangs: how many of its checks fail, or the signal. */
static int in_child(void (*check)(void *), void *data) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        alarm(60);
        test_faults = 0;
        check(data);
        fflush(stdout);
        _exit(test_faults);
    }
    int status = 0;
    CHECK_EQ(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

typedef struct world {
    cfx_context *context;
    cfx_device *device;
    cfx_tensor x, y;
    cfx_loader *loader;
} world;

static world new_world(void) {
    world w = {.context = new_context("cpu*2")};
    w.device = cfx_device_at(w.context, 1);
    w.x = full(w.device, 1000, 2);
    w.y = full(cfx_device_at(w.context, 0), 6, 2);
    cfx_loader_options options = {.size = sizeof options, .batch = 1, .devices = 1, .last = 2};
    cfx_device *devices[1] = {w.device};
    const cfx_tensor *columns[1] = {&w.y};
    CHECK_STATUS(cfx_loader_new(&options, 1, columns, devices, &w.loader), CFX_OK);
    return w;
}

static void free_world(world *w) {
    cfx_loader_free(&w->loader);
    cfx_release(&w->x);
    cfx_release(&w->y);
    cfx_context_free(w->context);
}

#define CHECK_FORKED(call) (CHECK_STATUS(call, CFX_ESTATE), CHECK(says("was forked")))

static void call_everything(void *data) {
    world *w = data;
    float values[1000];
    const int64_t n = 3;
    int64_t counts[1];
    int32_t more;
    cfx_tensor z = {0}, *batch[1] = {&z}, *leaves[2] = {&w->x, &w->y};
    cfx_tape *tape = NULL;
    for (int k = 0; k < 2; k++) { /* not once, as an interrupt */
        CHECK_FORKED(cfx_check(w->context));
        CHECK_FORKED(cfx_wait(&w->x));
        CHECK_FORKED(cfx_read(&w->x, values, sizeof values));
        CHECK_FORKED(cfx_sync(w->context, NULL));
        CHECK_FORKED(cfx_unary(CF_OP_neg, &w->x, 0, 0, &z));
        CHECK_FORKED(cfx_full(w->device, CFX_FLOAT32, 1, &n, 0, &z));
        CHECK_FORKED(cfx_empty(w->device, CFX_FLOAT32, 1, &n, &z));
        CHECK_FORKED(cfx_from_host(w->device, CFX_FLOAT32, 1, &n, values, &z));
        CHECK_FORKED(cfx_arange(w->device, CFX_FLOAT32, 3, 0, 1, &z));
        CHECK_FORKED(cfx_random(w->device, CFX_FLOAT32, 1, &n, "normal", 0, 1, 0, &z));
        CHECK_FORKED(cfx_allreduce("sum", 2, 1, leaves));
        CHECK_FORKED(cfx_tape_begin(w->context, 1, leaves, &tape));
        CHECK_FORKED(cfx_devices_set(w->context, "cpu*3"));
        CHECK_FORKED(cfx_loader_begin(w->loader, 0, 0));
        CHECK_FORKED(cfx_loader_next(w->loader, counts, batch, &more));
        cfx_interrupt(w->context); /* as a signal may come */
    }
    CHECK(!z._buffer);
    cfx_memory_trim(w->context);
    cfx_loader_free(&w->loader);
    cfx_release(&w->x);
    cfx_context_free(w->context);
    CHECK_STATUS(cfx_wait(&w->y), CFX_EARG);
    CHECK(says("context has ended"));
    cfx_release(&w->y);
}

TEST(a_child_is_told_that_it_has_no_threads_and_ends_cleanly) {
    world w = new_world();
    CHECK_EQ(in_child(call_everything, &w), 0);
    CHECK_EQ(value_of(&w.x), 2); /* the parent goes on */
    CHECK_EQ(in_child(call_everything, &w), 0);
    free_world(&w);
}

static void release_and_end(void *data) {
    world *w = data;
    cfx_release(&w->x);
    cfx_context_free(w->context);
    cfx_release(&w->y);
}

TEST(a_child_forked_while_work_is_under_way_ends_cleanly) {
    world w = new_world();
    gate g = {0};
    cfx_tensor z = {0};
    shut_gate(&g, w.device, CF_COMPUTE);
    CHECK_STATUS(cfx_unary(CF_OP_neg, &w.x, 0, 0, &z), CFX_OK);
    CHECK_EQ(in_child(release_and_end, &w), 0);
    open_gate(&g);
    CHECK_EQ(value_of(&z), -2);
    cfx_release(&z);
    free_world(&w);
}

#ifndef __SANITIZE_THREAD__ /* which ends a child of several threads that makes one */
static void use_own(void *data) {
    (void)data;
    cfx_context *context = new_context("cpu*2");
    cfx_tensor x = full(cfx_device_at(context, 1), 5, 4);
    CHECK_EQ(value_of(&x), 4);
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(a_child_may_make_a_context_of_its_own) {
    CHECK_EQ(in_child(use_own, NULL), 0);
    world w = new_world();
    CHECK_EQ(in_child(use_own, NULL), 0);
    free_world(&w);
    CHECK_EQ(in_child(use_own, NULL), 0);
}
#endif
