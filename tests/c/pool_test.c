/* Device memory: core/device/pool.c. */
#include "test.h"

#include <stdlib.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/asan_interface.h>
#endif

#include "cpu/backend.h"
#include "queues.h"

static cf_pool new_pool(size_t limit) {
    cf_pool pool;
    CHECK_STATUS(cf_pool_init(&pool, cf_backend_cpu(), NULL, limit), CFX_OK);
    return pool;
}

static cf_block *take(cf_pool *pool, size_t bytes) {
    cf_block *block = NULL;
    CHECK_STATUS(cf_pool_take(pool, bytes, &block), CFX_OK);
    return block;
}

TEST(every_size_gets_an_aligned_block_that_wastes_at_most_a_quarter) {
    cf_pool pool = new_pool((size_t)1 << 40);
    for (size_t bytes = 0; bytes < 40000000; bytes = bytes * 17 / 16 + 1) {
        cf_block *block = take(&pool, bytes);
        if (!CHECK(block != NULL)) return;
        CHECK((uintptr_t)block->data % CF_ALIGN == 0);
        CHECK(block->size >= bytes && block->size % CF_ALIGN == 0);
        CHECK(block->size <= (bytes + CF_ALIGN) * 5 / 4);
        memset(block->data, 1, bytes); /* the address sanitizer looks */
        cf_pool_give(&pool, block);
        cf_block *again = take(&pool, bytes);
        CHECK(again == block);
        cf_pool_give(&pool, again);
    }
    CHECK_EQ(pool.in_use, 0);
    CHECK_EQ(pool.blocks, 0);
    cf_pool_free(&pool);
}

TEST(blocks_that_live_together_never_overlap) {
    enum { N = 300 };
    cf_pool pool = new_pool((size_t)1 << 40);
    cf_block *blocks[N];
    for (int i = 0; i < N; i++) {
        blocks[i] = take(&pool, (size_t)(i * 97));
        memset(blocks[i]->data, i, blocks[i]->size);
    }
    for (int i = 0; i < N; i++) {
        const unsigned char *data = blocks[i]->data;
        int whole = 1;
        for (size_t k = 0; k < blocks[i]->size; k++) whole = whole && data[k] == (unsigned char)i;
        CHECK(whole);
        cf_pool_give(&pool, blocks[i]);
    }
    cf_pool_free(&pool);
}

TEST(a_long_run_takes_no_more_memory_than_its_first_steps) {
    enum { LIVE = 20 };
    cf_pool pool = new_pool((size_t)1 << 40);
    cf_block *live[LIVE] = {0};
    size_t reserved = 0;
    for (int step = 0; step < 100000; step++) {
        cf_block **at = &live[step % LIVE];
        if (*at) cf_pool_give(&pool, *at);
        *at = take(&pool, (size_t)(step % LIVE) * 5000 + (size_t)(step % 7));
        if (step == 10 * LIVE) reserved = pool.reserved;
    }
    CHECK_EQ(pool.reserved, reserved);
    CHECK_EQ(pool.blocks, LIVE);
    for (int i = 0; i < LIVE; i++) cf_pool_give(&pool, live[i]);
    cf_pool_free(&pool);
}

TEST(trimming_gives_back_what_nobody_owns_and_keeps_the_rest) {
    cf_pool pool = new_pool((size_t)1 << 40);
    cf_block *keep = take(&pool, 1000), *beside = take(&pool, 1000), *large = take(&pool, 10 << 20);
    memset(keep->data, 7, 1000);
    cf_pool_give(&pool, beside);
    cf_pool_give(&pool, large);
    const size_t before = pool.reserved;
    cf_pool_trim(&pool);
    CHECK_EQ(before - pool.reserved, 10 << 20);
    CHECK_EQ(((char *)keep->data)[999], 7);
    cf_block *again = take(&pool, 1000);
    CHECK(again == beside); /* its slab was still needed */
    cf_pool_give(&pool, again);
    cf_pool_give(&pool, keep);
    cf_pool_trim(&pool);
    CHECK_EQ(pool.reserved, 0);
    cf_block *fresh = take(&pool, 1000);
    memset(fresh->data, 8, 1000);
    cf_pool_give(&pool, fresh);
    cf_pool_free(&pool);
}

TEST(memory_that_a_command_still_uses_is_not_trimmed) {
    cfx_context *context = new_context("cpu*2");
    cfx_device *a = cfx_device_at(context, 0);
    gate g = {0};
    cfx_tensor x = full(a, 1 << 20, 1), y = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK);
    cfx_release(&x);
    cfx_memory_trim(context);
    CHECK_EQ(a->pool.reserved, 4 << 20);
    open_gate(&g);
    CHECK_EQ(value_of(&y), 1);
    cfx_memory_trim(context);
    CHECK_EQ(a->pool.reserved, 0);
    cfx_release(&y);
    cfx_context_free(context);
}

TEST(beyond_the_limit_a_take_fails_with_byte_counts) {
    cf_pool pool = new_pool(1 << 20);
    cf_block *block = take(&pool, 600 << 10), *more = NULL;
    CHECK_STATUS(cf_pool_take(&pool, 500 << 10, &more), CFX_EMEMORY);
    CHECK_STR(cfx_error(), "out of memory: 512000 bytes asked for, 655360 in use, 655360 reserved, limit 1048576");
    CHECK(more == NULL);
    CHECK_STATUS(cf_pool_take(&pool, SIZE_MAX, &more), CFX_EMEMORY);
    cf_pool_give(&pool, block);
    more = take(&pool, 500 << 10); /* unused slabs went back first */
    CHECK_EQ(pool.in_use, pool.reserved);
    cf_pool_give(&pool, more);
    cf_pool_free(&pool);
}

TEST(a_limit_can_be_used_up_by_small_blocks) {
    cf_pool pool = new_pool(1 << 20);
    cf_block *blocks[5], *more;
    for (int i = 0; i < 4; i++) blocks[i] = take(&pool, 256 << 10);
    CHECK_STATUS(cf_pool_take(&pool, 256 << 10, &more), CFX_EMEMORY);
    for (int i = 0; i < 4; i++) cf_pool_give(&pool, blocks[i]);
    cf_pool_trim(&pool);
    blocks[0] = take(&pool, 850 << 10);
    blocks[1] = take(&pool, 3000); /* a slab of several would not fit any more */
    for (int i = 0; i < 2; i++) cf_pool_give(&pool, blocks[i]);
    cf_pool_free(&pool);
}

TEST(where_nothing_else_is_left_an_unused_larger_block_serves_and_keeps_its_class) {
    cf_pool pool = new_pool((size_t)1 << 40);
    cf_block *a = take(&pool, 300 << 10), *b = take(&pool, 300 << 10), *c = take(&pool, 300 << 10);
    pool.limit = pool.reserved;
    const size_t in_use = pool.in_use, size = c->size;
    cf_block *fresh = take(&pool, 4); /* of what no block was cut from yet */
    if (!CHECK(fresh != NULL)) return;
    CHECK_EQ(fresh->size, size);
    CHECK_EQ(pool.in_use, in_use + size);
    cf_pool_give(&pool, fresh);
    CHECK(take(&pool, 300 << 10) == fresh);
    cf_pool_give(&pool, c); /* b holds their slab */
    cf_block *small = take(&pool, 4);
    if (!CHECK(small == c)) return;
    cf_pool_give(&pool, fresh);
    CHECK_EQ(pool.in_use, in_use);
    CHECK_EQ(pool.blocks, 3);
    CHECK_EQ(small->size, size);
    cf_pool_give(&pool, small);
    CHECK_EQ(pool.in_use, in_use - size);
    cf_block *again = take(&pool, 300 << 10);
    CHECK(again == c);
    cf_pool_give(&pool, again);
    cf_pool_give(&pool, b);
    cf_pool_give(&pool, a);
    cf_pool_trim(&pool);
    CHECK_EQ(pool.reserved, 0);
    cf_pool_free(&pool);
}

TEST(a_small_block_does_not_hold_a_large_one_that_could_be_given_back) {
    cf_pool pool = new_pool(2 << 20);
    cf_block *large = take(&pool, 1 << 20), *keep = take(&pool, 1 << 20);
    cf_pool_give(&pool, large);
    cf_block *small = take(&pool, 4);
    CHECK_EQ(small->size, CF_ALIGN);
    cf_pool_give(&pool, small);
    cf_pool_give(&pool, keep);
    cf_pool_free(&pool);
}

TEST(the_smallest_larger_block_serves) {
    cf_pool pool = new_pool((size_t)1 << 40);
    cf_block *blocks[6], *small;
    for (int i = 0; i < 6; i++) blocks[i] = take(&pool, (size_t)(i < 3 ? 500 : 300) << 10);
    pool.limit = pool.reserved;
    cf_pool_give(&pool, blocks[2]);
    cf_pool_give(&pool, blocks[5]);
    small = take(&pool, 100 << 10);
    CHECK(small == blocks[5]);
    for (int i = 0; i < 5; i++)
        if (i != 2) cf_pool_give(&pool, blocks[i]);
    cf_pool_give(&pool, small);
    cf_pool_free(&pool);
}

TEST(a_host_that_runs_ahead_does_not_run_out_of_memory) {
    cfx_context *context = new_context_of("cpu*2", 12 << 20);
    cfx_device *a = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    cfx_tensor x = full(a, 2 << 20, 1), y = {0}; /* 8 MiB */
    shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK);
    cfx_release(&x);
    start_helper(&h, open_when_host_sleeps, context, &g);
    cfx_tensor z = full(a, 2500000, 2); /* of another class: x's memory must go back, and is in use */
    join_helper(&h);
    CHECK_EQ(value_of(&z), 2);
    CHECK_EQ(value_of(&y), 1);
    cfx_release(&y);
    cfx_release(&z);
    cfx_context_free(context);
}

TEST(an_op_without_memory_fails_and_names_the_bytes) {
    cfx_context *context = new_context_of("cpu", 1 << 20);
    cfx_device *cpu = cfx_device_at(context, 0);
    cfx_tensor x = full(cpu, 150000, 1), y = {0};
    CHECK_STATUS(cfx_unary(CF_OP_neg, &x, 0, 0, &y), CFX_EMEMORY);
    CHECK(says("600000 bytes asked for, 655360 in use, 655360 reserved, limit 1048576"));
    CHECK(y._buffer == NULL);
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
    cfx_context_free(context);
}

TEST(the_debt_flag_rises_with_the_threshold_and_falls_when_paid) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    const int32_t *debt = cfx_debt(context);
    cfx_tensor x[4];
    cfx_debt_threshold(context, 3 << 20);
    for (int i = 0; i < 3; i++) {
        x[i] = full(cpu, 1 << 18, 0);
        CHECK_EQ(*debt, 0);
    }
    x[3] = full(cpu, 1 << 18, 0);
    CHECK_EQ(*debt, 1);
    cfx_debt_paid(context); /* nothing was garbage */
    CHECK_EQ(*debt, 0);
    for (int i = 0; i < 100; i++) { /* no growth, no debt */
        cfx_release(&x[3]);
        x[3] = full(cpu, 1 << 18, 0);
    }
    CHECK_EQ(*debt, 0);
    for (int i = 0; i < 4; i++) cfx_release(&x[i]); /* their blocks may be taken again, and count again */
    for (int i = 0; i < 4; i++) x[i] = full(cpu, 1 << 18, 0);
    CHECK_EQ(*debt, 1);
    for (int i = 0; i < 4; i++) cfx_release(&x[i]);
    cfx_context_free(context);
}

TEST(the_memory_of_a_device_is_counted) {
    cfx_context *context = new_context_of("cpu", 64 << 20);
    cfx_device *cpu = cfx_device_at(context, 0);
    cfx_memory_info info;
    cfx_tensor x = full(cpu, 1 << 20, 0);
    cfx_memory(cpu, &info);
    CHECK_EQ(info.in_use, 4 << 20);
    CHECK_EQ(info.blocks, 1);
    CHECK_EQ(info.limit, 64 << 20);
    cfx_release(&x);
    cfx_memory(cpu, &info);
    CHECK_EQ(info.in_use, 0);
    CHECK_EQ(info.peak, 4 << 20);
    CHECK_EQ(info.reserved, 4 << 20);
    cfx_context_free(context);
}

/* ---- a plain pool ------------------------------------------------------------------------------------- */

static cfx_status init_as(const char *mode, size_t limit, cf_pool *pool) {
    setenv("CONFLUX_POOL", mode, 1);
    const cfx_status status = cf_pool_init(pool, cf_backend_cpu(), NULL, limit);
    unsetenv("CONFLUX_POOL");
    return status;
}

static cf_pool new_plain_pool(size_t limit) {
    cf_pool pool;
    CHECK_STATUS(init_as("plain", limit, &pool), CFX_OK);
    return pool;
}

/* Whether the address sanitizer, where there is one, would stop a read of the byte. */
static int is_guarded(const char *byte) {
#ifdef __SANITIZE_ADDRESS__
    return __asan_address_is_poisoned(byte);
#else
    (void)byte;
    return 1;
#endif
}

TEST(the_environment_chooses_the_pool) {
    cf_pool pool;
    CHECK_STATUS(init_as("", 1 << 20, &pool), CFX_OK);
    CHECK(!pool.plain);
    CHECK_STATUS(init_as("plain", 1 << 20, &pool), CFX_OK);
    CHECK(pool.plain);
    CHECK_STATUS(init_as("plan", 1 << 20, &pool), CFX_EARG);
    CHECK_STR(cfx_error(), "CONFLUX_POOL is 'plan': expected 'plain', or nothing");
}

TEST(blocks_of_a_plain_pool_are_slabs_of_just_their_bytes) {
    static const size_t bytes[] = {0, 1, 1, 255, 256, 256, 257, 1000, 300000, 300000, 9 << 20};
    enum { N = sizeof bytes / sizeof *bytes };
    cf_pool pool = new_plain_pool((size_t)1 << 40);
    cf_block *blocks[N];
    size_t all = 0;
    for (int i = 0; i < N; i++) {
        const size_t size = bytes[i] ? bytes[i] : 1;
        blocks[i] = take(&pool, bytes[i]);
        all += size;
        CHECK_EQ(blocks[i]->size, size);
        CHECK((uintptr_t)blocks[i]->data % CF_ALIGN == 0);
        memset(blocks[i]->data, i, size);
        CHECK(is_guarded((char *)blocks[i]->data + size));
        for (int k = 0; k < i; k++) CHECK(blocks[k]->slab != blocks[i]->slab);
    }
    CHECK_EQ(pool.in_use, all);
    CHECK_EQ(pool.reserved, all);
    CHECK_EQ(pool.blocks, N);
    for (int i = 0; i < N; i++) {
        const size_t size = blocks[i]->size;
        const char *data = blocks[i]->data;
        CHECK_EQ(data[size - 1], i);
        cf_pool_give(&pool, blocks[i]);
        all -= size;
        CHECK_EQ(pool.reserved, all); /* it is the system's again */
        CHECK(is_guarded(data));
    }
    CHECK_EQ(pool.in_use, 0);
    CHECK_EQ(pool.peak, 1 + 1 + 1 + 255 + 256 + 256 + 257 + 1000 + 600000 + (9 << 20));
    cf_pool_free(&pool);
}

TEST(a_plain_pool_keeps_to_its_limit) {
    cf_pool pool = new_plain_pool(1000);
    cf_block *block = take(&pool, 600), *more = NULL;
    CHECK_STATUS(cf_pool_take(&pool, 401, &more), CFX_EMEMORY);
    CHECK_STR(cfx_error(), "out of memory: 401 bytes asked for, 600 in use, 600 reserved, limit 1000");
    CHECK_STATUS(cf_pool_take(&pool, SIZE_MAX, &more), CFX_EMEMORY);
    more = take(&pool, 400);
    cf_pool_give(&pool, block);
    block = take(&pool, 599);
    CHECK_EQ(pool.peak, 1000);
    cf_pool_give(&pool, more);
    cf_pool_give(&pool, block);
    cf_pool_free(&pool);
}

TEST(a_plain_pool_keeps_what_a_command_still_uses) {
    setenv("CONFLUX_POOL", "plain", 1);
    cfx_context *context = new_context_of("cpu*2", 6 << 20);
    unsetenv("CONFLUX_POOL");
    cfx_device *a = cfx_device_at(context, 0);
    gate g = {0};
    helper h;
    cfx_tensor x = full(a, 1 << 20, 1), other = full(a, 10, 2), y = {0}; /* 4 MiB, and 40 bytes */
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, cfx_device_at(context, 1), CF_COMPUTE);
    CHECK_STATUS(cfx_to(&x, cfx_device_at(context, 1), -1, &y), CFX_OK);
    cfx_release(&x);
    cfx_release(&other);
    cfx_memory_trim(context);
    CHECK_EQ(a->pool.in_use, 0);
    CHECK_EQ(a->pool.reserved, 4 << 20);
    start_helper(&h, open_when_host_sleeps, context, &g);
    x = full(a, 1 << 20, 3); /* beside what x was it has no room */
    join_helper(&h);
    CHECK_EQ(value_of(&y), 1);
    CHECK_EQ(value_of(&x), 3);
    cfx_release(&x);
    CHECK_EQ(a->pool.reserved, 0);
    cfx_release(&y);
    cfx_context_free(context);
}
