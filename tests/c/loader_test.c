/* loader_test.c: which samples come, in which order, on which device; and that leaving early is safe. */
#include "test.h"

#include <signal.h>
#include <sys/time.h>

#include "base/rng.h"
#include "data/loader.h"
#include "files.h"

enum { DROP, PAD, KEEP };
enum { MOST = 200, DEVICES = 2, SEED = 42 };

/* Two columns of n samples: x[i] = {i, -i} in float32 and y[i] = i in int64. */
typedef struct data {
    cfx_tensor x, y;
    const cfx_tensor *columns[2];
    cfx_device *devices[5];
} data;

static void make_data(data *d, int64_t n) {
    float x[MOST][2];
    int64_t y[MOST];
    for (int64_t i = 0; i < n; i++) {
        x[i][0] = (float)i;
        x[i][1] = (float)-i;
        y[i] = i;
    }
    *d = (data){0};
    /* Five devices in the loader's eyes; the context has two. */
    for (int i = 0; i < 5; i++) d->devices[i] = cfx_device_at(test_context(), i % DEVICES);
    CHECK_STATUS(cfx_from_host(d->devices[0], CFX_FLOAT32, 2, (int64_t[]){n, 2}, x, &d->x), CFX_OK);
    CHECK_STATUS(cfx_from_host(d->devices[0], CFX_INT64, 1, &n, y, &d->y), CFX_OK);
    d->columns[0] = &d->x;
    d->columns[1] = &d->y;
}

static void free_data(data *d) {
    cfx_release(&d->x);
    cfx_release(&d->y);
}

static cfx_loader_options options(int64_t batch, int32_t devices, int32_t shuffle, int32_t last) {
    return (cfx_loader_options){.size = sizeof(cfx_loader_options),
                                .batch = batch,
                                .devices = devices,
                                .shuffle = shuffle,
                                .last = last,
                                .prefetch = 2,
                                .seed = SEED,
                                .threads = 3};
}

static cfx_loader *make_loader(const data *d, cfx_loader_options o) {
    cfx_loader *loader = NULL;
    CHECK_STATUS(cfx_loader_new(&o, 2, d->columns, d->devices, &loader), CFX_OK);
    return loader;
}

/* Takes one step: the ids of all devices in order into `ids`, their counts into `counts`.  Checks that both
 * columns agree and that the tensors lie where they should.  Returns the samples, or -1 at the end. */
static int64_t take(const data *d, cfx_loader *loader, int32_t devices, int64_t *ids, int64_t *counts) {
    cfx_tensor tensors[10] = {0}, *batch[10];
    for (int i = 0; i < 10; i++) batch[i] = &tensors[i];
    int32_t more = -1;
    int64_t total = 0;
    if (!CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_OK) || !more) return -1;
    for (int32_t i = 0; i < devices; i++) {
        const cfx_tensor *x = batch[2 * i], *y = batch[2 * i + 1];
        float values[MOST][2];
        CHECK(cfx_tensor_device(x) == d->devices[i] && cfx_tensor_device(y) == d->devices[i]);
        CHECK(x->_dtype == CFX_FLOAT32 && x->_ndim == 2 && x->_shape[0] == counts[i] && x->_shape[1] == 2);
        CHECK(y->_dtype == CFX_INT64 && y->_ndim == 1 && y->_shape[0] == counts[i]);
        CHECK_STATUS(cfx_read(x, values, (size_t)counts[i] * sizeof values[0]), CFX_OK);
        CHECK_STATUS(cfx_read(y, ids + total, (size_t)counts[i] * sizeof *ids), CFX_OK);
        for (int64_t k = 0; k < counts[i]; k++)
            CHECK(values[k][0] == (float)ids[total + k] && values[k][1] == -values[k][0]);
        total += counts[i];
    }
    for (int i = 0; i < 10; i++) cfx_release(batch[i]);
    return total;
}

/* All ids from here to the end of the epoch; returns how many. */
static int64_t take_all(const data *d, cfx_loader *loader, int32_t devices, int64_t *ids) {
    int64_t n = 0, got, counts[5];
    while ((got = take(d, loader, devices, ids + n, counts)) >= 0) n += got;
    return n;
}

TEST(without_shuffling_samples_come_as_they_lie) {
    data d;
    int64_t ids[MOST], counts[5];
    make_data(&d, 10);
    cfx_loader *loader = make_loader(&d, options(2, 2, 0, DROP));
    CHECK_EQ(cfx_loader_steps(loader), 2);
    CHECK_STATUS(cfx_loader_begin(loader, 1, 0), CFX_OK);
    CHECK_EQ(take(&d, loader, 2, ids, counts), 4);
    CHECK(counts[0] == 2 && counts[1] == 2);
    for (int i = 0; i < 4; i++) CHECK_EQ(ids[i], i);
    CHECK_EQ(take(&d, loader, 2, ids, counts), 4);
    for (int i = 0; i < 4; i++) CHECK_EQ(ids[i], 4 + i);
    CHECK_EQ(take(&d, loader, 2, ids, counts), -1);
    CHECK_EQ(take(&d, loader, 2, ids, counts), -1); /* and stays at the end */
    cfx_loader_free(&loader);
    free_data(&d);
}

TEST(the_order_is_one_permutation_whatever_the_number_of_devices) {
    data d;
    enum { N = 60 };
    int64_t expected[N], ids[MOST];
    make_data(&d, N);
    for (int64_t epoch = 0; epoch < 3; epoch++) {
        cf_permutation(SEED, (uint64_t)epoch, N, expected);
        const int32_t worlds[][2] = {{12, 1}, {4, 3}, {2, 5}, {60, 1}};
        for (int w = 0; w < 4; w++) {
            cfx_loader *loader = make_loader(&d, options(worlds[w][0], worlds[w][1], 1, DROP));
            CHECK_STATUS(cfx_loader_begin(loader, epoch, 0), CFX_OK);
            CHECK_EQ(take_all(&d, loader, worlds[w][1], ids), N);
            CHECK(memcmp(ids, expected, sizeof expected) == 0);
            cfx_loader_free(&loader);
        }
    }
    free_data(&d);
}

TEST(processes_share_each_step_as_the_devices_of_one_do) {
    data d;
    enum { N = 23 };
    make_data(&d, N);
    for (int32_t last = DROP; last <= KEEP; last++) {
        cfx_loader *all = make_loader(&d, options(2, 5, 1, last)), *parts[2];
        for (int32_t r = 0; r < 2; r++) {
            cfx_loader_options o = options(2, r ? 3 : 2, 1, last);
            o.shards = 5;
            o.first = r ? 2 : 0;
            parts[r] = make_loader(&d, o);
            CHECK_EQ(cfx_loader_steps(parts[r]), cfx_loader_steps(all));
            CHECK_STATUS(cfx_loader_begin(parts[r], 4, 1), CFX_OK);
        }
        CHECK_STATUS(cfx_loader_begin(all, 4, 1), CFX_OK);
        int64_t wanted[MOST], counts[5], ids[MOST], own[5], n;
        while ((n = take(&d, all, 5, wanted, counts)) >= 0) {
            const int64_t first = take(&d, parts[0], 2, ids, own);
            CHECK_EQ(first + take(&d, parts[1], 3, ids + first, own + 2), n);
            for (int64_t k = 0; k < n; k++) CHECK_EQ(ids[k], wanted[k]);
            for (int i = 0; i < 5; i++) CHECK_EQ(own[i], counts[i]);
        }
        for (int32_t r = 0; r < 2; r++) {
            CHECK_EQ(take(&d, parts[r], r ? 3 : 2, ids, own), -1);
            cfx_loader_free(&parts[r]);
        }
        cfx_loader_free(&all);
    }
    free_data(&d);
}

TEST(drop_leaves_the_short_step_out) {
    data d;
    int64_t ids[MOST];
    make_data(&d, 11);
    cfx_loader *loader = make_loader(&d, options(2, 2, 1, DROP));
    CHECK_EQ(cfx_loader_steps(loader), 2);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_EQ(take_all(&d, loader, 2, ids), 8);
    cfx_loader_free(&loader);
    free_data(&d);
}

TEST(pad_fills_the_short_step_with_the_epochs_first_samples) {
    data d;
    int64_t ids[MOST], order[11];
    make_data(&d, 11);
    for (int shuffle = 0; shuffle < 2; shuffle++) {
        for (int64_t i = 0; i < 11; i++) order[i] = i;
        if (shuffle) cf_permutation(SEED, 3, 11, order);
        cfx_loader *loader = make_loader(&d, options(2, 2, shuffle, PAD));
        CHECK_EQ(cfx_loader_steps(loader), 3);
        CHECK_STATUS(cfx_loader_begin(loader, 3, 0), CFX_OK);
        CHECK_EQ(take_all(&d, loader, 2, ids), 12);
        for (int i = 0; i < 12; i++) CHECK_EQ(ids[i], order[i % 11]);
        cfx_loader_free(&loader);
        /* A step larger than the data takes every sample more than once. */
        loader = make_loader(&d, options(5, 5, shuffle, PAD));
        CHECK_EQ(cfx_loader_steps(loader), 1);
        CHECK_STATUS(cfx_loader_begin(loader, 3, 0), CFX_OK);
        CHECK_EQ(take_all(&d, loader, 5, ids), 25);
        for (int i = 0; i < 25; i++) CHECK_EQ(ids[i], order[i % 11]);
        cfx_loader_free(&loader);
    }
    free_data(&d);
}

TEST(keep_deals_the_short_step_out_evenly) {
    data d;
    int64_t ids[MOST], counts[5];
    make_data(&d, 19);
    cfx_loader *loader = make_loader(&d, options(2, 5, 0, KEEP)); /* 10, then 9 */
    CHECK_EQ(cfx_loader_steps(loader), 2);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_EQ(take(&d, loader, 5, ids, counts), 10);
    CHECK_EQ(take(&d, loader, 5, ids + 10, counts), 9);
    for (int i = 0; i < 5; i++) CHECK_EQ(counts[i], i < 4 ? 2 : 1);
    for (int i = 0; i < 19; i++) CHECK_EQ(ids[i], i);
    CHECK_EQ(take(&d, loader, 5, ids, counts), -1);
    cfx_loader_free(&loader);
    /* Fewer samples than devices: the last ones get empty tensors. */
    loader = make_loader(&d, options(4, 4, 0, KEEP)); /* 16, then 3 */
    CHECK_STATUS(cfx_loader_begin(loader, 0, 1), CFX_OK);
    CHECK_EQ(take(&d, loader, 4, ids, counts), 3);
    for (int i = 0; i < 4; i++) CHECK_EQ(counts[i], i < 3);
    cfx_loader_free(&loader);
    /* A batch beyond the data takes no memory beyond it. */
    loader = make_loader(&d, options(INT64_C(1) << 40, 2, 0, KEEP));
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_EQ(take(&d, loader, 2, ids, counts), 19);
    CHECK(counts[0] == 10 && counts[1] == 9);
    cfx_loader_free(&loader);
    free_data(&d);
}

TEST(an_epoch_starts_at_any_step) {
    data d;
    int64_t all[MOST], rest[MOST];
    make_data(&d, 40);
    cfx_loader *loader = make_loader(&d, options(2, 2, 1, DROP));
    CHECK_STATUS(cfx_loader_begin(loader, 7, 0), CFX_OK);
    CHECK_EQ(take_all(&d, loader, 2, all), 40);
    CHECK_STATUS(cfx_loader_begin(loader, 7, 6), CFX_OK);
    CHECK_EQ(take_all(&d, loader, 2, rest), 16);
    CHECK(memcmp(rest, all + 24, 16 * sizeof *all) == 0);
    CHECK_STATUS(cfx_loader_begin(loader, 7, 10), CFX_OK);
    CHECK_EQ(take_all(&d, loader, 2, rest), 0);
    CHECK_STATUS(cfx_loader_begin(loader, 7, 11), CFX_EARG);
    CHECK_STATUS(cfx_loader_begin(loader, 7, -1), CFX_EARG);
    CHECK_STATUS(cfx_loader_begin(loader, -1, 0), CFX_EARG);
    cfx_loader_free(&loader);
    free_data(&d);
}

/* Samples gathered ahead for an epoch that was left must not come in the next one. */
TEST(a_new_epoch_cancels_the_one_under_way) {
    data d;
    int64_t ids[MOST], expected[MOST], counts[5];
    make_data(&d, 120);
    for (int32_t prefetch = 0; prefetch < 5; prefetch++) {
        cfx_loader_options o = options(2, 2, 1, DROP);
        o.prefetch = prefetch;
        cfx_loader *loader = make_loader(&d, o);
        for (int64_t epoch = 0; epoch < 200; epoch++) {
            CHECK_STATUS(cfx_loader_begin(loader, epoch, 0), CFX_OK);
            cf_permutation(SEED, (uint64_t)epoch, 120, expected);
            for (int s = 0; s < (int)(epoch % 4); s++) {
                CHECK_EQ(take(&d, loader, 2, ids, counts), 4);
                CHECK(memcmp(ids, expected + 4 * s, 4 * sizeof *ids) == 0);
            }
        }
        cfx_loader_free(&loader); /* in the middle of an epoch */
    }
    cfx_loader *idle = make_loader(&d, options(2, 2, 1, DROP));
    cfx_loader_free(&idle); /* before any */
    cfx_loader_free(NULL);
    free_data(&d);
}

/* Ordering a million samples takes the loader's thread some 20 ms, so that the first epoch is left while its
 * first step is being made. */
TEST(a_step_made_for_an_epoch_that_was_left_does_not_come) {
    enum { N = 1000000, BATCH = 8 };
    int32_t *values = malloc(N * sizeof *values), got[BATCH];
    int64_t *expected = malloc(N * sizeof *expected), n = N, counts[1];
    for (int32_t i = 0; i < N; i++) values[i] = i;
    cf_permutation(SEED, 1, N, expected);
    cfx_device *device = cfx_device_at(test_context(), 0);
    cfx_tensor x = {0}, y = {0}, *batch[] = {&y};
    const cfx_tensor *columns[] = {&x};
    CHECK_STATUS(cfx_from_host(device, CFX_INT32, 1, &n, values, &x), CFX_OK);
    const cfx_loader_options o = options(BATCH, 1, 1, DROP);
    cfx_loader *loader = NULL;
    int32_t more;
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, &device, &loader), CFX_OK);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    usleep(2000);
    CHECK_STATUS(cfx_loader_begin(loader, 1, 0), CFX_OK);
    for (int s = 0; s < 3; s++) {
        CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_OK);
        CHECK_STATUS(cfx_read(&y, got, sizeof got), CFX_OK);
        for (int i = 0; i < BATCH; i++) CHECK_EQ(got[i], expected[s * BATCH + i]);
        cfx_release(&y);
    }
    cfx_loader_free(&loader);
    cfx_release(&x);
    free(values);
    free(expected);
}

TEST(the_loader_holds_its_columns) {
    data d;
    int64_t ids[MOST];
    make_data(&d, 40);
    cfx_loader *loader = make_loader(&d, options(4, 2, 0, DROP));
    free_data(&d);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_EQ(take_all(&d, loader, 2, ids), 40);
    for (int i = 0; i < 40; i++) CHECK_EQ(ids[i], i);
    cfx_loader_free(&loader);
}

TEST(next_is_refused_before_begin_and_onto_live_handles) {
    data d;
    make_data(&d, 10);
    cfx_loader *loader = make_loader(&d, options(2, 2, 0, DROP));
    cfx_tensor tensors[4] = {0}, *batch[4] = {&tensors[0], &tensors[1], &tensors[2], &tensors[3]};
    int64_t counts[2];
    int32_t more;
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_ESTATE);
    CHECK(test_says("no epoch was begun"));
    CHECK_STATUS(cfx_loader_next(NULL, counts, batch, &more), CFX_EARG);
    CHECK_STATUS(cfx_loader_next(loader, NULL, batch, &more), CFX_EARG);
    CHECK_STATUS(cfx_loader_begin(NULL, 0, 0), CFX_EARG);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_OK);
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_EARG);
    CHECK(test_says("batch[0] still holds a tensor"));
    for (int i = 0; i < 4; i++) cfx_release(batch[i]);
    cfx_loader_free(&loader);
    free_data(&d);
}

/* The step that was interrupted comes at the next call. */
TEST(an_interrupt_loses_no_step) {
    data d;
    make_data(&d, 10);
    int64_t ids[MOST], counts[2];
    cfx_loader *loader = make_loader(&d, options(2, 2, 0, DROP));
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    cfx_tensor tensors[4] = {0}, *batch[4] = {&tensors[0], &tensors[1], &tensors[2], &tensors[3]};
    int32_t more;
    cfx_interrupt(test_context());
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_EINTERRUPT);
    for (int i = 0; i < 4; i++) CHECK(!tensors[i]._buffer);
    CHECK_EQ(take(&d, loader, 2, ids, counts), 4);
    CHECK_EQ(ids[0], 0);
    cfx_loader_free(&loader);
    free_data(&d);
}

static void interrupt(int signal) {
    (void)signal;
    cfx_interrupt(test_context());
}

/* Ordering four million samples takes the thread 100 ms or more; the signal comes after 10. */
TEST(an_interrupt_ends_the_wait_for_a_step) {
    int64_t n = 4000000, counts[1];
    uint8_t *values = calloc((size_t)n, 1);
    cfx_device *device = cfx_device_at(test_context(), 0);
    cfx_tensor x = {0}, y = {0}, *batch[] = {&y};
    const cfx_tensor *columns[] = {&x};
    const cfx_loader_options o = options(8, 1, 1, DROP);
    cfx_loader *loader = NULL;
    int32_t more;
    CHECK_STATUS(cfx_from_host(device, CFX_UINT8, 1, &n, values, &x), CFX_OK);
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, &device, &loader), CFX_OK);
    signal(SIGALRM, interrupt);
    setitimer(ITIMER_REAL, &(struct itimerval){.it_value = {.tv_usec = 10000}}, NULL);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_EINTERRUPT);
    CHECK_STATUS(cfx_loader_next(loader, counts, batch, &more), CFX_OK);
    CHECK(more && counts[0] == 8);
    signal(SIGALRM, SIG_DFL);
    cfx_loader_free(&loader);
    cfx_release(&x);
    cfx_release(&y);
    free(values);
}

/* ---- bad samples ----------------------------------------------------------------------------------- */

/* A source of n samples, each of which is its number, and of which every fifth from 3 on is bad; and none after one
 * that needs memory that there is not. */
enum { BAD_FROM = 3, BAD_EVERY = 5 };
typedef struct numbers {
    cf_samples samples;
    _Atomic int64_t fatal;
    _Atomic int writers, ended;
} numbers;

static cfx_status write_number(cf_samples *samples, void **own, int64_t epoch, int64_t sample,
                               unsigned char *const *rows) {
    numbers *n = (numbers *)samples;
    (void)epoch;
    if (!*own) {
        *own = malloc(1);
        n->writers++;
    }
    memset(rows[0], 0xFF, sizeof sample); /* what a sample that fails in its middle leaves */
    if (sample == n->fatal) return cf_fail(CFX_EMEMORY, "no memory for sample %d", (int)sample);
    if (sample % BAD_EVERY == BAD_FROM) return cf_fail(CFX_EIO, "sample %d", (int)sample);
    memcpy(rows[0], &sample, sizeof sample);
    return CFX_OK;
}
static void end_numbers(cf_samples *samples) { ((numbers *)samples)->ended++; }

static const cf_row number_row = {.dtype = CFX_INT64, .ndim = 1, .bytes = sizeof(int64_t)};

static cfx_loader *make_numbers(numbers *n, int64_t samples, cfx_loader_options o) {
    cfx_device *devices[DEVICES] = {cfx_device_at(test_context(), 0), cfx_device_at(test_context(), 1)};
    cfx_loader *loader = NULL;
    *n = (numbers){{samples, 1, &number_row, 2, write_number, free, end_numbers}, -1, 0, 0};
    CHECK_STATUS(cf_loader_make(&o, &n->samples, devices, &loader), CFX_OK);
    return loader;
}

/* The numbers of a step on two devices. */
static cfx_status take_numbers(cfx_loader *loader, int64_t *ids, int64_t counts[2], int32_t *more) {
    cfx_tensor tensors[2] = {0}, *batch[2] = {&tensors[0], &tensors[1]};
    CF_TRY(cfx_loader_next(loader, counts, batch, more));
    for (int i = 0; i < 2 && *more; i++)
        CHECK_STATUS(cfx_read(batch[i], ids + (i ? counts[0] : 0), (size_t)counts[i] * sizeof *ids), CFX_OK);
    for (int i = 0; i < 2; i++) cfx_release(batch[i]);
    return CFX_OK;
}

static int64_t take_all_numbers(cfx_loader *loader, int64_t *ids) {
    int64_t n = 0, counts[2];
    int32_t more = 1;
    while (more && CHECK_STATUS(take_numbers(loader, ids + n, counts, &more), CFX_OK)) n += counts[0] + counts[1];
    return n;
}

static char told[4096];
static void tell(void *data, int level, const char *message) {
    (void)data, (void)level;
    strcat(strcat(told, message), "\n");
}

TEST(a_bad_sample_is_replaced_by_the_next_good_one_of_the_order_whatever_the_threads) {
    enum { N = 30 };
    const int64_t bad_count = N / BAD_EVERY;
    int64_t order[N], ids[N], bad;
    numbers source;
    const char *named[11];
    for (int32_t threads = 1; threads < 8; threads += 3) {
        cfx_loader_options o = options(2, 2, 1, KEEP);
        o.threads = threads;
        o.max_bad = 0.5;
        cfx_loader *loader = make_numbers(&source, N, o);
        for (int64_t epoch = 0; epoch < 20; epoch++) {
            int named_bad = 0;
            told[0] = '\0';
            cfx_log_to(tell, NULL);
            cf_permutation(SEED, (uint64_t)epoch, N, order);
            CHECK_STATUS(cfx_loader_begin(loader, epoch, 0), CFX_OK);
            CHECK_EQ(take_all_numbers(loader, ids), N);
            cfx_log_to(NULL, NULL);
            CHECK_STATUS(cfx_loader_bad(loader, &bad, 11, named), CFX_OK);
            CHECK_EQ(bad, bad_count);
            for (int i = 0; i < N; i++) {
                int k = i;
                while (order[k % N] % BAD_EVERY == BAD_FROM) k++;
                CHECK_EQ(ids[i], order[k % N]);
                if (k == i) continue;
                char name[32];
                snprintf(name, sizeof name, "sample %d", (int)order[i]);
                CHECK_STR(named[named_bad++], name);
                CHECK(strstr(told, name));
            }
            CHECK(!named[bad_count]);
            CHECK(strstr(told, "6 of 30 samples are bad and were replaced"));
        }
        cfx_loader_free(&loader);
        CHECK_EQ(source.ended, 1);
        CHECK(source.writers <= threads);
    }
}

TEST(bad_samples_are_left_out_where_that_is_asked_for) {
    int64_t ids[30], counts[2], bad;
    int32_t more;
    numbers source;
    cfx_loader_options o = options(2, 2, 0, KEEP);
    o.skip_bad = 1;
    o.max_bad = 1;
    cfx_loader *loader = make_numbers(&source, 30, o);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_OK); /* 0 1 2 (3) */
    CHECK(counts[0] == 2 && counts[1] == 1 && ids[2] == 2);
    CHECK_EQ(take_all_numbers(loader, ids + 3), 21);
    for (int64_t i = 0, id = 0; i < 24; i++, id++) {
        if (id % BAD_EVERY == BAD_FROM) id++;
        CHECK_EQ(ids[i], id);
    }
    CHECK_STATUS(cfx_loader_bad(loader, &bad, 0, NULL), CFX_OK);
    CHECK_EQ(bad, 6);
    cfx_loader_free(&loader);
    o.last = PAD; /* 8 is bad; 36 samples: what fills the last step up counts once */
    o.batch = 9;
    loader = make_numbers(&source, 30, o);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    int64_t padded[36];
    CHECK_EQ(take_all_numbers(loader, padded), 24 + 5);
    CHECK_STATUS(cfx_loader_bad(loader, &bad, 0, NULL), CFX_OK);
    CHECK_EQ(bad, 6);
    cfx_loader_free(&loader);
}

/* A step whose bad samples are left out has fewer rows than were claimed of it. */
TEST(bad_samples_are_left_out_by_any_number_of_threads_and_steps_ahead) {
    int64_t ids[30];
    numbers source;
    for (int threads = 1; threads <= 5; threads += 2) {
        for (int ahead = 0; ahead < 4; ahead++) {
            cfx_loader_options o = options(5, 2, 0, KEEP); /* two bad samples a step */
            o.skip_bad = 1;
            o.max_bad = 1;
            o.threads = threads;
            o.prefetch = ahead;
            cfx_loader *loader = make_numbers(&source, 30, o);
            for (int64_t epoch = 0; epoch < 20; epoch++) {
                CHECK_STATUS(cfx_loader_begin(loader, epoch, 0), CFX_OK);
                CHECK_EQ(take_all_numbers(loader, ids), 24);
                for (int64_t i = 0, id = 0; i < 24; i++, id++) {
                    if (id % BAD_EVERY == BAD_FROM) id++;
                    CHECK_EQ(ids[i], id);
                }
            }
            cfx_loader_free(&loader);
        }
    }
}

TEST(more_bad_samples_than_allowed_are_an_error_with_the_last_one) {
    int64_t ids[30], counts[2];
    int32_t more;
    numbers source;
    cfx_loader_options o = options(1, 2, 0, KEEP);
    o.max_bad = 0.1;
    cfx_loader *loader = make_numbers(&source, 30, o);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    for (int step = 0; step < 9; step++) CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_OK);
    for (int again = 0; again < 2; again++) { /* 3, 8 and 13 are fine, 18 is not */
        CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_EIO);
        CHECK(test_says("loader_next: bad samples by now: 4, and max_bad allows 3 of 30: sample 18"));
    }
    cfx_loader_free(&loader);
    o.max_bad = 0;
    loader = make_numbers(&source, 30, o);
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_OK);
    CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_EIO);
    CHECK(test_says("more bad samples in a row than max_bad allows, which is 0 of 30: sample 3"));
    cfx_loader_free(&loader);
}

TEST(any_other_failure_ends_the_epoch_at_its_step) {
    int64_t ids[30], counts[2];
    int32_t more;
    numbers source;
    cfx_loader_options o = options(2, 2, 0, KEEP);
    o.max_bad = 1;
    cfx_loader *loader = make_numbers(&source, 30, o);
    source.fatal = 5;
    CHECK_STATUS(cfx_loader_begin(loader, 0, 0), CFX_OK);
    CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_OK);
    CHECK_STATUS(take_numbers(loader, ids, counts, &more), CFX_EMEMORY);
    CHECK(test_says("loader_next: no memory for sample 5"));
    source.fatal = -1;
    CHECK_STATUS(cfx_loader_begin(loader, 1, 0), CFX_OK);
    CHECK_EQ(take_all_numbers(loader, ids), 30);
    cfx_loader_free(&loader);
}

/* ---- what is refused ------------------------------------------------------------------------------- */

static void check_refused(const data *d, cfx_loader_options o, const char *message) {
    cfx_loader *loader = NULL;
    CHECK_STATUS(cfx_loader_new(&o, 2, d->columns, d->devices, &loader), CFX_EARG);
    CHECK(test_says(message));
    CHECK(!loader);
}

TEST(wrong_options_are_refused) {
    data d;
    make_data(&d, 10);
    check_refused(&d, options(0, 2, 0, DROP), "batch is 0");
    check_refused(&d, options(-3, 2, 0, DROP), "batch is -3");
    check_refused(&d, options(2, 0, 0, DROP), "devices is 0");
    check_refused(&d, options(2, 2, 0, 3), "last is 3");
    check_refused(&d, options(2, 2, 0, -1), "last is -1");
    check_refused(&d, options(INT64_MAX, 2, 0, KEEP), "is too large");
    check_refused(&d, options(4, 3, 0, DROP), "10 samples are fewer than one step takes: batch 4 on 3 devices is 12");
    cfx_loader_options o = options(2, 2, 0, DROP);
    o.prefetch = -1;
    check_refused(&d, o, "prefetch is -1");
    o = options(2, 2, 0, DROP);
    o.threads = -1;
    check_refused(&d, o, "threads is -1");
    o = options(2, 2, 0, DROP);
    o.max_bad = (double)NAN;
    check_refused(&d, o, "max_bad is nan");
    o = options(2, 2, 0, DROP);
    o.size = 8;
    check_refused(&d, o, "options: size: expected 64, or where one of the last 10 fields ends, got 8");
    o = options(2, 2, 0, DROP);
    o.shards = 3;
    o.first = 2;
    check_refused(&d, o, "first is 2, and devices 2: that many are not among the 3 of shards");
    o.first = -1;
    check_refused(&d, o, "first is -1");
    o.shards = 1;
    o.first = 0;
    check_refused(&d, o, "not among the 1 of shards");
    d.devices[1] = NULL;
    check_refused(&d, options(2, 2, 0, DROP), "devices[1] is NULL");
    cfx_loader *loader = NULL;
    CHECK_STATUS(cfx_loader_new(NULL, 2, d.columns, d.devices, &loader), CFX_EARG);
    o = options(2, 1, 0, DROP);
    CHECK_STATUS(cfx_loader_new(&o, 0, d.columns, d.devices, &loader), CFX_EARG);
    free_data(&d);
}

TEST(columns_that_do_not_fit_are_refused_by_number) {
    data d;
    cfx_tensor other = {0}, turned = {0}, scalar = {0}, none = {0};
    const float values[30] = {0};
    const cfx_loader_options o = options(2, 2, 0, DROP);
    make_data(&d, 10);
    CHECK_STATUS(cfx_from_host(d.devices[0], CFX_FLOAT32, 2, (int64_t[]){3, 10}, values, &other), CFX_OK);
    CHECK_STATUS(cfx_transpose(&other, 0, 1, &turned), CFX_OK);
    CHECK_STATUS(cfx_from_host(d.devices[0], CFX_FLOAT32, 0, NULL, values, &scalar), CFX_OK);
    d.columns[1] = &other;
    check_refused(&d, o, "columns[1] has 3 samples, but columns[0] has 10");
    d.columns[1] = &turned;
    check_refused(&d, o, "columns[1] is not contiguous");
    d.columns[1] = &scalar;
    check_refused(&d, o, "columns[1] is a scalar");
    d.columns[1] = &none;
    check_refused(&d, o, "columns[1] is NULL or has no value");
    d.columns[1] = NULL;
    check_refused(&d, o, "columns[1] is NULL or has no value");
    cfx_release(&other);
    cfx_release(&turned);
    cfx_release(&scalar);
    free_data(&d);
    make_data(&d, 0);
    check_refused(&d, o, "the columns have no samples");
    free_data(&d);
}

TEST(a_device_that_a_loader_serves_stays) {
    data d;
    make_data(&d, 10);
    cfx_loader *loader = make_loader(&d, options(2, 2, 0, DROP));
    CHECK(cfx_devices_set(test_context(), "cpu") != CFX_OK);
    cfx_loader_free(&loader);
    free_data(&d);
}

TEST(a_loader_whose_context_has_ended_says_so_and_can_be_freed) {
    const cfx_context_options one = {.size = sizeof one, .devices = "cpu", .threads = 1};
    cfx_context *context = NULL;
    const int64_t n = 6;
    cfx_tensor x = {0}, y = {0};
    if (!CHECK_STATUS(cfx_context_new(&one, &context), CFX_OK)) return;
    cfx_device *cpu = cfx_device_at(context, 0);
    CHECK_STATUS(cfx_full(cpu, CFX_FLOAT32, 1, &n, 1, &x), CFX_OK);
    const cfx_tensor *columns[] = {&x};
    const cfx_loader_options o = options(2, 1, 1, KEEP);
    cfx_loader *begun = NULL, *idle = NULL;
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, &cpu, &begun), CFX_OK);
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, &cpu, &idle), CFX_OK);
    CHECK_STATUS(cfx_loader_begin(begun, 0, 0), CFX_OK);
    cfx_context_free(context);
    cfx_tensor *batch[] = {&y};
    int64_t count;
    int32_t more;
    CHECK_STATUS(cfx_loader_next(begun, &count, batch, &more), CFX_ESTATE);
    CHECK_STR(cfx_error(), "loader_next: the loader's context has ended");
    CHECK_STATUS(cfx_loader_begin(idle, 0, 0), CFX_ESTATE);
    CHECK_STR(cfx_error(), "loader_begin: the loader's context has ended");
    CHECK_EQ(cfx_loader_steps(begun), 3);
    cfx_loader_free(&begun);
    cfx_loader_free(&idle);
    cfx_release(&x);
}

TEST(columns_of_another_context_are_refused) {
    const cfx_context_options one = {.size = sizeof one, .devices = "cpu", .threads = 1};
    cfx_context *context = NULL;
    const int64_t n = 10;
    cfx_tensor x = {0};
    data d;
    if (!CHECK_STATUS(cfx_context_new(&one, &context), CFX_OK)) return;
    make_data(&d, 10);
    CHECK_STATUS(cfx_full(cfx_device_at(context, 0), CFX_FLOAT32, 1, &n, 1, &x), CFX_OK);
    d.columns[1] = &x;
    check_refused(&d, options(2, 2, 0, DROP), "columns[1] is of another context");
    cfx_release(&x);
    free_data(&d);
    cfx_context_free(context);
}

TEST(what_a_loader_reads_cannot_change_in_place_until_the_last_of_them_is_freed) {
    data d;
    cfx_tensor half = {0}, rest = {0};
    make_data(&d, 10);
    CHECK_STATUS(cfx_slice(&d.x, 0, 0, 5, 1, &half), CFX_OK);
    CHECK_STATUS(cfx_slice(&d.x, 0, 5, 5, 1, &rest), CFX_OK);
    const cfx_tensor *columns[] = {&half};
    const cfx_loader_options o = options(2, 2, 0, DROP);
    cfx_loader *one = NULL, *two = NULL;
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, d.devices, &one), CFX_OK);
    CHECK_STATUS(cfx_loader_new(&o, 1, columns, d.devices, &two), CFX_OK);
    for (int k = 0; k < 2; k++) {
        CHECK_STATUS(cfx_fill(&half, 1), CFX_ESTATE);
        CHECK(strstr(cfx_error(), "a DataLoader reads the tensor") != NULL);
        CHECK_STATUS(cfx_fill(&d.x, 1), CFX_ESTATE);
        CHECK_STATUS(cfx_copy(&half, &rest), CFX_ESTATE);
        CHECK_STATUS(cfx_binary_scalar_into(cfx_op_find("add"), &half, 1), CFX_ESTATE);
        CHECK_STATUS(cfx_fill(&rest, 1), CFX_OK); /* which neither reads */
        cfx_loader_free(k ? &two : &one);
    }
    CHECK_STATUS(cfx_fill(&half, 1), CFX_OK);
    cfx_release(&half);
    cfx_release(&rest);
    free_data(&d);
}
