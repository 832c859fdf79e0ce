/* dnnl_test.c: the cache of oneDNN's primitives: core/cpu/dnnl.c. */
#include "test.h"

#include "base/status.h"
#include "cpu/backend.h"
#include "cpu/dnnl.h"

static int made;             /* so often one of the functions below was asked */
static cfx_status made_with; /* its status */

/* A product of packed square matrices, y [n, n] = a [n, n] b [n, n]. */
static cfx_status make_square_of(dnnl_engine_t engine, int64_t n, cf_dnnl_primitive *out) {
    const int args[] = {DNNL_ARG_DST, DNNL_ARG_SRC, DNNL_ARG_WEIGHTS};
    cf_dnnl_desc square, none;
    dnnl_primitive_desc_t desc = NULL;
    memset(&none, 0, sizeof none);
    dnnl_status_t status = cf_dnnl_desc_new(&square, 2, (dnnl_dims_t){n, n}, dnnl_f32, (dnnl_dims_t){n, 1});
    if (status == dnnl_success) status = cf_dnnl_matmul_desc(&desc, engine, &square, &square, &none, &square, NULL);
    if (status == dnnl_success) status = cf_dnnl_primitive_new(engine, desc, 3, args, out);
    cf_dnnl_desc_free(&square);
    if (desc) dnnl_primitive_desc_destroy(desc);
    return cf_dnnl_made(status, "such a square");
}

static cfx_status make_square(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    return make_square_of(engine, *(const int64_t *)key, out);
}

/* Makes something to free for any key, also where it says that it failed. */
static cfx_status make_some(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    (void)key;
    made++;
    CHECK_STATUS(make_square_of(engine, 2, out), CFX_OK);
    return made_with == CFX_OK ? CFX_OK : cf_fail(made_with, "not made");
}

static cfx_status make_other(dnnl_engine_t engine, const void *key, cf_dnnl_primitive *out) {
    return make_some(engine, key, out);
}

static cf_worker begin(int threads) {
    cf_worker worker = {.backend = cf_backend_cpu(), .threads = threads};
    CHECK_STATUS(worker.backend->thread_begin(&worker), CFX_OK);
    made = 0;
    made_with = CFX_OK;
    return worker;
}

static void end(cf_worker *worker) {
    worker->backend->thread_end(worker);
    CHECK(!worker->local);
}

static cf_dnnl_primitive *find(cf_worker *worker, int64_t key) {
    cf_dnnl_primitive *found = NULL;
    CHECK_STATUS(cf_dnnl_find(worker, make_some, &key, sizeof key, &found), CFX_OK);
    return found;
}

TEST(the_same_bytes_find_the_same_primitive) {
    cf_worker worker = begin(1);
    cf_dnnl_primitive *first = find(&worker, 1), *second = find(&worker, 2);
    CHECK(first != second);
    CHECK_EQ(made, 2);
    CHECK(find(&worker, 1) == first && find(&worker, 2) == second);
    CHECK_EQ(made, 2);
    end(&worker);
}

TEST(a_key_is_all_its_bytes_and_its_function) {
    cf_worker worker = begin(1);
    char key[19] = {1}; /* a length that is no whole number of words */
    cf_dnnl_primitive *found, *again, *differs;
    CHECK_STATUS(cf_dnnl_find(&worker, make_some, key, sizeof key, &found), CFX_OK);
    for (size_t at = 0; at < sizeof key; at++) {
        key[at] ^= 64;
        CHECK_STATUS(cf_dnnl_find(&worker, make_some, key, sizeof key, &differs), CFX_OK);
        key[at] ^= 64;
        CHECK(differs != found);
    }
    CHECK_STATUS(cf_dnnl_find(&worker, make_some, key, sizeof key - 1, &differs), CFX_OK);
    CHECK(differs != found);
    CHECK_STATUS(cf_dnnl_find(&worker, make_other, key, sizeof key, &differs), CFX_OK);
    CHECK(differs != found);
    CHECK_EQ(made, 1 + sizeof key + 2);
    CHECK_STATUS(cf_dnnl_find(&worker, make_some, key, sizeof key, &again), CFX_OK);
    CHECK(again == found);
    end(&worker);
}

TEST(a_primitive_is_of_one_team) {
    cf_worker worker = begin(1);
    cf_dnnl_primitive *of_one = find(&worker, 1);
    worker.threads = 2;
    CHECK_STATUS(worker.backend->thread_begin(&worker), CFX_OK);
    CHECK((find(&worker, 1) != of_one) == (worker.threads == 2)); /* OMP_THREAD_LIMIT may allow one */
    worker.threads = 1;
    CHECK_STATUS(worker.backend->thread_begin(&worker), CFX_OK);
    CHECK(find(&worker, 1) == of_one);
    end(&worker);
}

TEST(a_full_cache_loses_what_was_not_used_for_the_longest_time) {
    cf_worker worker = begin(1);
    for (int64_t key = 1; key <= CF_DNNL_KEPT; key++) find(&worker, key);
    cf_dnnl_primitive *first = find(&worker, 1), *third = find(&worker, 3);
    CHECK_EQ(made, CF_DNNL_KEPT);
    find(&worker, CF_DNNL_KEPT + 1); /* in the place of 2 */
    CHECK(find(&worker, 1) == first && find(&worker, 3) == third);
    CHECK_EQ(made, CF_DNNL_KEPT + 1);
    find(&worker, 2); /* in the place of 4 */
    CHECK_EQ(made, CF_DNNL_KEPT + 2);
    find(&worker, 5);
    CHECK_EQ(made, CF_DNNL_KEPT + 2);
    find(&worker, 4);
    CHECK_EQ(made, CF_DNNL_KEPT + 3);
    /* Twice as many again: each is there until as many others have come. */
    for (int64_t key = 10000; key < 10000 + 2 * CF_DNNL_KEPT; key++) {
        cf_dnnl_primitive *found = find(&worker, key);
        if (key > 10000) find(&worker, key - 1);
        CHECK(find(&worker, key) == found);
    }
    CHECK_EQ(made, 3 * CF_DNNL_KEPT + 3);
    for (int64_t key = 10000 + 2 * CF_DNNL_KEPT - 1; key >= 10000 + CF_DNNL_KEPT; key--) find(&worker, key);
    CHECK_EQ(made, 3 * CF_DNNL_KEPT + 3);
    end(&worker);
}

TEST(what_there_is_not_is_asked_for_once_and_what_failed_again) {
    cf_worker worker = begin(1);
    cf_dnnl_primitive *found = NULL;
    int64_t key = 7;
    made_with = CFX_ESTATE;
    for (int k = 0; k < 3; k++) CHECK_STATUS(cf_dnnl_find(&worker, make_some, &key, sizeof key, &found), CFX_ESTATE);
    CHECK_EQ(made, 1);
    made_with = CFX_EMEMORY;
    key = 8;
    for (int k = 0; k < 3; k++) CHECK_STATUS(cf_dnnl_find(&worker, make_some, &key, sizeof key, &found), CFX_EMEMORY);
    CHECK_EQ(made, 4);
    CHECK(!found);
    made_with = CFX_OK;
    find(&worker, 8);
    CHECK_EQ(made, 5);
    end(&worker);
}

TEST(a_primitive_runs_on_the_addresses_of_the_run) {
    enum { MOST = 70 };
    static float a[MOST * MOST], b[MOST * MOST], y[2][MOST * MOST];
    cf_worker worker = begin(2);
    for (int round = 0; round < 2; round++)
        for (int64_t n = 1; n <= MOST; n += 23) {
            for (int64_t k = 0; k < n * n; k++) {
                a[k] = (float)(k % 7);
                b[k] = k / n == k % n ? 2 : 0;
                y[0][k] = y[1][k] = -1;
            }
            cf_dnnl_primitive *square = NULL;
            if (!CHECK_STATUS(cf_dnnl_find(&worker, make_square, &n, sizeof n, &square), CFX_OK)) continue;
            CHECK_EQ(square->nargs, 4);
            CHECK_STATUS(cf_dnnl_run(&worker, square, (void *[]){y[0], a, b}), CFX_OK);
            CHECK_STATUS(cf_dnnl_run(&worker, square, (void *[]){y[1], b, y[0]}), CFX_OK);
            int64_t wrong = 0;
            for (int64_t k = 0; k < n * n; k++) wrong += y[0][k] != 2 * a[k] || y[1][k] != 4 * a[k];
            CHECK_EQ(wrong, 0);
        }
    end(&worker);
}

TEST(a_primitive_has_no_more_arguments_than_there_is_room_for) {
    const dnnl_dims_t shape = {2, 2}, stride = {2, 1};
    int args[CF_DNNL_ARGS];
    cf_dnnl_desc square, none;
    dnnl_engine_t engine = NULL;
    dnnl_primitive_desc_t desc = NULL;
    cf_dnnl_primitive p;
    memset(&none, 0, sizeof none);
    for (int i = 0; i < CF_DNNL_ARGS; i++) args[i] = DNNL_ARG_SRC;
    CHECK_EQ(dnnl_engine_create(&engine, dnnl_cpu, 0), dnnl_success);
    CHECK_EQ(cf_dnnl_desc_new(&square, 2, shape, dnnl_f32, stride), dnnl_success);
    CHECK_EQ(cf_dnnl_matmul_desc(&desc, engine, &square, &square, &none, &square, NULL), dnnl_success);
    CHECK_EQ(cf_dnnl_primitive_new(engine, desc, CF_DNNL_ARGS - 1, args, &p), dnnl_success);
    CHECK_EQ(p.nargs, CF_DNNL_ARGS); /* and the scratchpad */
    cf_dnnl_primitive_free(&p);
    CHECK_EQ(cf_dnnl_primitive_new(engine, desc, CF_DNNL_ARGS, args, &p), dnnl_invalid_arguments);
    cf_dnnl_primitive_free(&p);
    cf_dnnl_desc_free(&square);
    dnnl_primitive_desc_destroy(desc);
    dnnl_engine_destroy(engine);
}
