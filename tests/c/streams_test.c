/* Devices whose kernels only launch work, core/device and core/tensor/transfer.c, by a backend that runs the CPU's
 * kernels in memory that it calls its own, and whose work has happened when a test says so. */
#include "test.h"

#include <stdlib.h>
#include <unistd.h>

#include "cpu/cpu.h"
#include "queues.h"

/* ---- the backend ------------------------------------------------------------------------------------- */

enum { DEVICES = 4 };

typedef struct stream {
    _Atomic uint64_t marked, allowed; /* tickets up to `allowed` happen by themselves */
    _Atomic int followers, broken;
} stream;

/* In the order in which a context opens its devices. */
static int opened;
static stream streams[2 * DEVICES][CF_QUEUES];
static _Atomic int selected, uploads, downloads;

static int32_t fake_count(char *why, size_t why_bytes) {
    (void)why;
    (void)why_bytes;
    return DEVICES;
}
static cfx_status fake_open(int32_t index, void **state) {
    stream *s = streams[opened++ % (2 * DEVICES)];
    (void)index;
    *state = s;
    for (int q = 0; q < CF_QUEUES; q++) {
        atomic_store(&s[q].marked, 0);
        atomic_store(&s[q].allowed, UINT64_MAX);
        atomic_store(&s[q].broken, 0);
    }
    return CFX_OK;
}
static void fake_close(void *state) { (void)state; }
static size_t fake_memory(void *state) {
    (void)state;
    return 1 << 28;
}
static cfx_status fake_slab_new(void *state, size_t bytes, void **out) {
    (void)state;
    *out = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return *out ? CFX_OK : cf_fail(CFX_EMEMORY, "no memory");
}
static void fake_slab_free(void *state, void *slab, size_t bytes) {
    (void)state;
    (void)bytes;
    free(slab);
}
static cfx_status fake_begin(cf_worker *worker) { return cf_backend_cpu()->thread_begin(worker); }
static void fake_end(cf_worker *worker) { cf_backend_cpu()->thread_end(worker); }
static void fake_select(cf_worker *worker, int q) {
    (void)worker;
    atomic_store(&selected, q);
}
static cfx_status fake_mark(cf_worker *worker, int q, uint64_t ticket) {
    stream *s = worker->state;
    atomic_store(&s[q].marked, ticket);
    return CFX_OK;
}
static cfx_status fake_poll(cf_worker *worker, int q, uint64_t *done) {
    stream *s = worker->state;
    const uint64_t marked = atomic_load(&s[q].marked), allowed = atomic_load(&s[q].allowed);
    if (marked <= allowed) *done = marked;
    else if (allowed > *done) *done = allowed;
    return atomic_exchange(&s[q].broken, 0) ? cf_fail(CFX_EFAULT, "index: id 7 is wrong") : CFX_OK;
}
static bool fake_follow(cf_worker *worker, int q, void *other, int of, uint64_t ticket) {
    stream *s = other;
    (void)worker;
    (void)q;
    if (atomic_load(&s[of].marked) < ticket) return false;
    atomic_fetch_add(&s[of].followers, 1);
    return true;
}
static cfx_status fake_upload(cf_worker *worker, void *to, const void *from, size_t bytes) {
    (void)worker;
    atomic_fetch_add(&uploads, 1);
    memcpy(to, from, bytes);
    return CFX_OK;
}
static cfx_status fake_download(cf_worker *worker, void *to, const void *from, size_t bytes) {
    (void)worker;
    atomic_fetch_add(&downloads, 1);
    memcpy(to, from, bytes);
    return CFX_OK;
}

static const cf_streams fake_streams = {fake_select, fake_mark, fake_poll, fake_follow, fake_upload, fake_download};
static const cf_backend fake = {.abi = CFX_ABI_VERSION,
                                .name = "fake",
                                .host_memory = 0,
                                .count = fake_count,
                                .open = fake_open,
                                .close = fake_close,
                                .memory = fake_memory,
                                .slab_new = fake_slab_new,
                                .slab_free = fake_slab_free,
                                .thread_begin = fake_begin,
                                .thread_end = fake_end,
                                .kernels = cf_cpu_kernels_base,
                                .streams = &fake_streams};

static cfx_context *context_of(const char *spec) {
    static int is_known;
    if (!is_known) CHECK_STATUS(cf_backend_add(&fake), CFX_OK);
    is_known = 1;
    opened = 0;
    return new_context(spec);
}

static void hold(int device, int q) { atomic_store(&streams[device][q].allowed, 0); }
static void let_happen(int device, int q) { atomic_store(&streams[device][q].allowed, UINT64_MAX); }

static cfx_tensor plus(const cfx_tensor *x, double by) {
    cfx_tensor y = {0};
    CHECK_STATUS(cfx_binary_scalar(CF_OP_add, x, by, 0, &y), CFX_OK);
    return y;
}

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
    CHECK_STATUS(cfx_devices_set(context, "fake:4"), CFX_EARG);
    CHECK(says("'fake:4' does not exist: fake has 4 devices"));
    CHECK_STATUS(cfx_devices_set(context, "fake*5"), CFX_EARG);
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
    CHECK(atomic_load(&uploads) > 0 && atomic_load(&downloads) > 0);
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
    const int before = atomic_load(&uploads);
    CHECK_STATUS(cfx_copy(&into, &from), CFX_OK);
    CHECK_EQ(value_of(&into), 4);
    CHECK_EQ(atomic_load(&uploads), before + 1);
    cfx_tensor *all[] = {&x, &t, &up, &sum, &down, &into, &from};
    for (int i = 0; i < 7; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

/* ---- time -------------------------------------------------------------------------------------------- */

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
    CHECK_EQ(value_of(&z), 2); /* though the first device's work has not happened */
    CHECK(!cfx_ready(&x));
    CHECK(atomic_load(&streams[0][CF_COMPUTE].followers) > 0);
    let_happen(0, CF_COMPUTE);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
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

TEST(what_a_device_finds_wrong_late_is_raised_at_the_read_and_work_goes_on) {
    cfx_context *context = context_of("fake");
    cfx_device *device = cfx_device_at(context, 0);
    float got[4];
    cfx_tensor x = full(device, 4, 1);
    CHECK_EQ(value_of(&x), 1);
    hold(0, CF_COMPUTE);
    atomic_store(&streams[0][CF_COMPUTE].broken, 1);
    cfx_tensor y = plus(&x, 1);
    let_happen(0, CF_COMPUTE);
    CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_EFAULT);
    CHECK(says("index: id 7 is wrong"));
    cfx_tensor z = plus(&x, 2);
    CHECK_EQ(value_of(&z), 3);
    CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_EFAULT);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
    cfx_context_free(context);
}

TEST(devices_without_common_memory_are_refused) {
    cfx_context *context = context_of("cpu,fake*2");
    cfx_tensor x[3], y = {0};
    for (int r = 0; r < 3; r++) x[r] = full(cfx_device_at(context, r), 100, r + 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_EARG);
    CHECK(says("cpu:0 and fake:0 share no memory"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x[1], &x[2]}), CFX_EARG);
    CHECK_STATUS(cfx_to(&x[1], cfx_device_at(context, 2), -1, &y), CFX_ESTATE);
    CHECK(says("fake:0 and fake:1 have no memory that both can reach"));
    CHECK(y._buffer == NULL);
    for (int r = 0; r < 3; r++) CHECK_EQ(value_of(&x[r]), r + 1);
    for (int r = 0; r < 3; r++) cfx_release(&x[r]);
    cfx_context_free(context);
}

TEST(replicas_on_virtual_devices_are_reduced) {
    cfx_context *context = context_of("fake:0*3");
    cfx_tensor x[3];
    cfx_tensor *leaves[3];
    for (int r = 0; r < 3; r++) {
        x[r] = full(cfx_device_at(context, r), 100000, r + 1);
        leaves[r] = &x[r];
    }
    CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
    for (int r = 0; r < 3; r++) CHECK_EQ(value_of(&x[r]), 6);
    for (int r = 0; r < 3; r++) cfx_release(&x[r]);
    cfx_context_free(context);
}
