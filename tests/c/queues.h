/* queues.h: commands of a test's own in the product's queues.
 *
 * A gate is a command that does not end before the test opens it: what is enqueued behind it, or waits for it,
 * stands still, so that an order can be shown by events and values, never by time.  It holds its device's worker,
 * both queues of it; to hold one queue alone, let a command of that queue wait for the gate of another device.
 * Include it after test.h.
 */
#ifndef CF_TEST_QUEUES_H
#define CF_TEST_QUEUES_H

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "base/status.h"
#include "device/context.h"
#include "tensor/buffer.h"

/* ---- contexts and tensors --------------------------------------------------------------------------- */

static inline cfx_context *new_context_of(const char *devices, size_t memory_limit) {
    const cfx_context_options options = {
        .size = sizeof options, .devices = devices, .threads = 1, .memory_limit = memory_limit};
    cfx_context *context = NULL;
    if (cfx_context_new(&options, &context) != CFX_OK) printf("# %s\n", cfx_error()), exit(2);
    return context;
}
static inline cfx_context *new_context(const char *devices) { return new_context_of(devices, 0); }

/* float32 [n], each element `value`. */
static inline cfx_tensor full(cfx_device *device, int64_t n, double value) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(device, CFX_FLOAT32, 1, &n, value, &x), CFX_OK);
    return x;
}

/* The only value of all elements of a float32 tensor; NaN if they differ or cannot be read. */
static inline double value_of(const cfx_tensor *x) {
    const size_t n = (size_t)cf_numel(x);
    float *all = malloc(n * sizeof *all + 1);
    double value = NAN;
    if (CHECK_STATUS(cfx_read(x, all, n * sizeof *all), CFX_OK) && n) value = all[0];
    for (size_t i = 0; i < n; i++)
        if (all[i] != value) value = NAN;
    free(all);
    return value;
}

static inline cf_event last_of(cfx_device *device, int queue) { return cf_queue_last(cf_queue_at(device, queue)); }
static inline int64_t blocks_of(cfx_device *device) { return device->pool.blocks; }

/* 1 if the last message holds `part`; else it is printed. */
static inline int says(const char *part) {
    const int holds = strstr(cfx_error(), part) != NULL;
    if (!holds) printf("# expected a message with \"%s\", got \"%s\"\n", part, cfx_error());
    return holds;
}

/* All that the device's pool could still lend: its limit is what it has then. */
typedef struct hoard {
    int n;
    cf_block *blocks[1 << 15];
} hoard;

static inline void fill_hoard(cfx_device *device, hoard *h) {
    CHECK_STATUS(cfx_sync(cf_context_of(device), NULL), CFX_OK);
    cfx_memory_trim(cf_context_of(device));
    device->pool.limit = device->pool.reserved;
    h->n = 0;
    for (size_t bytes = 1 << 22; bytes >= CF_ALIGN; bytes /= 2)
        while (h->n < 1 << 15 && cf_pool_take(&device->pool, bytes, &h->blocks[h->n]) == CFX_OK) h->n++;
}
static inline void empty_hoard(cfx_device *device, hoard *h) {
    while (h->n > 0) cf_pool_give(&device->pool, h->blocks[--h->n]);
}

/* ---- commands --------------------------------------------------------------------------------------- */

/* Enqueues `run` with a copy of `payload`, behind the data of at most 8 events. */
static inline cf_event enqueue(cfx_device *device, int queue, cf_run run, int flags, const cf_event *waits, int nwaits,
                               const void *payload, size_t bytes) {
    void *to;
    cf_queue *q = cf_queue_at(device, queue);
    cf_wait data[8];
    for (int i = 0; i < nwaits; i++) data[i] = (cf_wait){waits[i], waits[i].ticket};
    if (!CHECK_STATUS(cf_queue_reserve(q, run, "test", flags, data, nwaits, bytes, &to), CFX_OK))
        return (cf_event){NULL, 0};
    memcpy(to, payload, bytes);
    return cf_queue_commit(q);
}

typedef struct gate {
    cf_word word;
    _Atomic int open;
} gate;

static inline cfx_status run_gate(cf_worker *worker, void *payload, bool poisoned) {
    gate *g = *(gate **)payload;
    (void)worker;
    (void)poisoned;
    for (;;) {
        const uint32_t seen = cf_word_read(&g->word);
        if (atomic_load(&g->open)) return CFX_OK;
        cf_park(&g->word, seen);
    }
}

static inline cf_event shut_gate(gate *g, cfx_device *device, int queue) {
    return enqueue(device, queue, run_gate, CF_ALWAYS, NULL, 0, &g, sizeof g);
}
static inline void open_gate(gate *g) {
    atomic_store(&g->open, 1);
    cf_unpark(&g->word);
}

/* Holds the compute queue of `device`, and not its worker, until the gate on `holder` opens. */
static inline cfx_status run_nothing(cf_worker *worker, void *payload, bool poisoned) {
    (void)worker;
    (void)payload;
    (void)poisoned;
    return CFX_OK;
}
static inline void hold_queue(gate *g, cfx_device *holder, cfx_device *device, int queue) {
    const cf_event shut = shut_gate(g, holder, CF_COMPUTE);
    enqueue(device, queue, run_nothing, CF_ALWAYS, &shut, 1, "", 0);
}

/* A command that fails. */
static inline cfx_status run_fault(cf_worker *worker, void *payload, bool poisoned) {
    (void)worker;
    (void)payload;
    (void)poisoned;
    return cf_fail(CFX_EFAULT, "made to fail");
}
static inline cf_event fault(cfx_device *device) { return enqueue(device, CF_COMPUTE, run_fault, 0, NULL, 0, "", 0); }

/* A diary of commands in the order in which they ran. */
typedef struct diary {
    _Atomic int n;
    int ids[64];
} diary;
typedef struct entry {
    diary *in;
    int id;
} entry;
static inline cfx_status run_entry(cf_worker *worker, void *payload, bool poisoned) {
    const entry *e = payload;
    (void)worker;
    (void)poisoned;
    e->in->ids[atomic_fetch_add(&e->in->n, 1)] = e->id;
    return CFX_OK;
}
static inline cf_event write_entry(diary *in, int id, cfx_device *device, int queue, const cf_event *waits,
                                   int nwaits) {
    const entry e = {in, id};
    return enqueue(device, queue, run_entry, 0, waits, nwaits, &e, sizeof e);
}

/* ---- a second thread --------------------------------------------------------------------------------- */

/* Waits until the context's host sleeps. */
static inline void wait_until_host_sleeps(cfx_context *context) {
    while (!atomic_load(&context->hub.host.own.asleep)) sched_yield();
}

typedef struct helper {
    pthread_t thread;
    cfx_context *context;
    gate *gate;
} helper;
static inline void *open_when_host_sleeps(void *arg) {
    const helper *h = arg;
    wait_until_host_sleeps(h->context);
    open_gate(h->gate);
    return NULL;
}
static inline void *interrupt_when_host_sleeps(void *arg) {
    const helper *h = arg;
    wait_until_host_sleeps(h->context);
    cfx_interrupt(h->context);
    return NULL;
}
static inline void start_helper(helper *h, void *(*run)(void *), cfx_context *context, gate *g) {
    h->context = context;
    h->gate = g;
    if (pthread_create(&h->thread, NULL, run, h) != 0) printf("# no thread\n"), exit(2);
}
static inline void join_helper(helper *h) { pthread_join(h->thread, NULL); }

#endif
