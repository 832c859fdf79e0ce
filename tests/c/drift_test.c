/* Replicas that a fault of their own leaves behind the others, core/tensor/drift.c: on CPUs, and by drift_remote_test.c
 * on devices that share no memory, or some of it. */
#include "test.h"

#include "comm.h"
#include "tensor/drift.h"

enum { LEAVES = 2 };
static const int64_t SIZES[LEAVES] = {300, 100};

/* Parameters, gradients and velocities, in flat buffers. */
typedef struct trainer {
    model params, grads, states;
    int replicas, step;
} trainer;

static void begin(trainer *t, int replicas) {
    t->replicas = replicas;
    t->step = 0;
    setup(replicas);
    make_model(&t->params, replicas, LEAVES, SIZES);
    make_model(&t->grads, replicas, LEAVES, SIZES);
    make_model(&t->states, replicas, LEAVES, SIZES);
    for (int k = 0; k < replicas * LEAVES; k++) {
        CHECK_STATUS(cfx_fill(t->params.leaves[k], 8), CFX_OK);
        CHECK_STATUS(cfx_fill(t->states.leaves[k], 0), CFX_OK);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
}
static void finish(trainer *t) {
    free_model(&t->params);
    free_model(&t->grads);
    free_model(&t->states);
    teardown();
}

static void backward(trainer *t, int r) {
    for (int k = 0; k < LEAVES; k++) CHECK_STATUS(cfx_fill(t->grads.leaves[r * LEAVES + k], r + 1), CFX_OK);
}
static cfx_status join(trainer *t) { return cfx_allreduce("sum", t->replicas, LEAVES, t->grads.leaves); }
static cfx_status update_with(trainer *t, int r, double clip) {
    const cfx_rule rule = {.size = sizeof rule, .name = "momentum", .rate = 1, .beta1 = 0.5, .clip_norm = clip};
    cfx_tensor **p = &t->params.leaves[r * LEAVES], **g = &t->grads.leaves[r * LEAVES],
               **s = &t->states.leaves[r * LEAVES];
    return cfx_optim_update(&rule, t->step + 1, LEAVES, p, (const cfx_tensor *const *)g, s, NULL, NULL, NULL);
}
static cfx_status update(trainer *t, int r) { return update_with(t, r, 0); }

/* One step; `failing` (or -1) faults between the collective and its update. */
static void step(trainer *t, int failing, bool collective) {
    for (int r = 0; r < t->replicas; r++) backward(t, r);
    if (collective) CHECK_STATUS(join(t), CFX_OK);
    for (int r = 0; r < t->replicas; r++) {
        if (r == failing) {
            cfx_at_line(context, "train.lua", 12);
            fault(device[r]);
            cfx_at_line(context, "train.lua", 99);
        }
        CHECK_STATUS(update(t, r), CFX_OK);
    }
    t->step++;
}

static void raise_fault(void) {
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
}
static void check_behind(cfx_status status, int replica) {
    char text[64];
    CHECK_STATUS(status, CFX_EFAULT);
    snprintf(text, sizeof text, "replica %d ($%d)", replica + 1, replica);
    CHECK(says_of(text));
    CHECK(says("test: made to fail, enqueued at train.lua:12"));
    CHECK(says("synchronize"));
}
static void check_equal(trainer *t) {
    const double value = value_of(t->params.leaves[0]), state = value_of(t->states.leaves[0]);
    for (int k = 0; k < t->replicas * LEAVES; k++) {
        CHECK_EQ(value_of(t->params.leaves[k]), value);
        CHECK_EQ(value_of(t->states.leaves[k]), state);
    }
}
static cfx_status synchronize(trainer *t, model *m) { return cfx_broadcast(0, t->replicas, LEAVES, m->leaves); }

static const int COUNTS[] = {2, 3, 5};

TEST(a_replica_that_skipped_what_the_others_made_is_refused_until_it_is_synchronized) {
    for (int c = 0; c < 3; c++) {
        for (int failing = 0; failing < COUNTS[c]; failing += COUNTS[c] - 1) {
            trainer t;
            begin(&t, COUNTS[c]);
            step(&t, -1, true);
            step(&t, failing, true);
            raise_fault();
            for (int r = 0; r < t.replicas; r++) backward(&t, r);
            CHECK_STATUS(join(&t), CFX_OK); /* gradients are as they were */
            check_behind(update(&t, failing), failing);
            CHECK(says("update: "));
            CHECK(says("the model skipped"));
            check_behind(cfx_allreduce("avg", t.replicas, LEAVES, t.params.leaves), failing);
            CHECK(says("allreduce: "));
            check_behind(cfx_reduce_to("sum", 0, t.replicas, LEAVES, t.states.leaves), failing);
            CHECK(says("reduce: "));
            for (int r = 0; r < t.replicas; r++)
                if (r != failing) CHECK_STATUS(update(&t, r), CFX_OK);
            CHECK_STATUS(synchronize(&t, &t.params), CFX_OK);
            check_behind(update(&t, failing), failing);
            CHECK(says("the state skipped"));
            CHECK_STATUS(synchronize(&t, &t.states), CFX_OK);
            step(&t, -1, true);
            check_equal(&t);
            finish(&t);
        }
    }
}

TEST(a_fault_that_passed_through_the_collective_leaves_nobody_behind) {
    for (int c = 0; c < 3; c++) {
        trainer t;
        begin(&t, COUNTS[c]);
        step(&t, -1, true);
        fault(device[1]);
        step(&t, -1, true);
        raise_fault();
        free_model(&t.grads); /* void; a new step has new ones */
        make_model(&t.grads, t.replicas, LEAVES, SIZES);
        step(&t, -1, true);
        check_equal(&t);
        finish(&t);
    }
}

TEST(without_a_collective_a_skip_is_a_replicas_own_affair) {
    trainer t;
    for (int n = 1; n <= 2; n++) {
        begin(&t, n);
        step(&t, 0, n == 1); /* a collective of one joins nothing */
        raise_fault();
        step(&t, -1, n == 1);
        CHECK_EQ(value_of(t.params.leaves[0]), 7);
        finish(&t);
    }
}

TEST(a_skip_is_found_however_late_its_fault_is_raised) {
    for (int c = 0; c < 3; c++) {
        trainer t;
        begin(&t, COUNTS[c]);
        step(&t, -1, true);
        step(&t, 1, true);
        cf_event last = last_of(device[0], CF_COMPUTE);
        CHECK_STATUS(cf_event_wait(last), CFX_OK); /* the others have made it */
        for (int r = 0; r < t.replicas; r++) backward(&t, r);
        CHECK_STATUS(join(&t), CFX_OK); /* passes the fault on: this one all of them skip */
        for (int r = 0; r < t.replicas; r++) CHECK_STATUS(update(&t, r), CFX_OK);
        raise_fault();
        check_behind(update(&t, 1), 1);
        for (int r = 0; r < t.replicas; r++)
            if (r != 1) CHECK_STATUS(cfx_allreduce("sum", 1, LEAVES, &t.params.leaves[r * LEAVES]), CFX_OK);
        finish(&t);
    }
}

TEST(another_fault_takes_no_mark_away) {
    trainer t;
    begin(&t, 3);
    step(&t, 1, true);
    raise_fault();
    for (int k = 0; k < 3; k++) {
        fault(device[k]);
        raise_fault();
    }
    check_behind(update(&t, 1), 1);
    /* a synchronization that is skipped makes void what it should have made equal */
    fault(device[0]);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, t.params.leaves[0], 1), CFX_OK);
    CHECK_STATUS(synchronize(&t, &t.params), CFX_OK);
    raise_fault();
    CHECK_STATUS(update(&t, 1), CFX_EFAULT);
    finish(&t);
}

TEST(two_replicas_that_skipped_for_faults_of_their_own_are_both_behind_a_third) {
    trainer t;
    begin(&t, 3);
    for (int r = 0; r < 3; r++) backward(&t, r);
    CHECK_STATUS(join(&t), CFX_OK);
    cfx_at_line(context, "train.lua", 12);
    for (int r = 0; r < 2; r++) fault(device[r]);
    for (int r = 0; r < 3; r++) CHECK_STATUS(update(&t, r), CFX_OK);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    (void)cfx_sync(context, NULL); /* the same fault, as far as one can tell */
    check_behind(update(&t, 0), 0);
    check_behind(update(&t, 1), 1);
    CHECK_STATUS(cfx_broadcast(2, 3, LEAVES, t.params.leaves), CFX_OK);
    CHECK_STATUS(cfx_broadcast(2, 3, LEAVES, t.states.leaves), CFX_OK);
    step(&t, -1, true);
    check_equal(&t);
    finish(&t);
}

TEST(a_new_value_of_all_that_was_skipped_clears_the_mark_and_one_of_a_part_does_not) {
    trainer t;
    begin(&t, 2);
    step(&t, 1, true);
    raise_fault();
    for (int which = 0; which < 2; which++) {
        model *m = which ? &t.states : &t.params;
        cfx_tensor one = {0};
        cfx_tensor *some = m->leaves[LEAVES];
        CHECK_STATUS(cfx_slice(some, 0, 10, 20, 1, &one), CFX_OK);
        CHECK_STATUS(cfx_fill(&one, 3), CFX_OK); /* amid it */
        check_behind(update(&t, 1), 1);
        CHECK_STATUS(cfx_fill(some, 3), CFX_OK);
        check_behind(update(&t, 1), 1);
        CHECK_STATUS(cfx_copy(m->leaves[LEAVES + 1], m->leaves[1]), CFX_OK);
        cfx_release(&one);
    }
    CHECK_STATUS(update(&t, 1), CFX_OK);
    finish(&t);
}

TEST(a_chain_that_clips_by_the_norm_is_as_any_update) {
    trainer t;
    begin(&t, 2);
    for (int r = 0; r < 2; r++) backward(&t, r);
    CHECK_STATUS(join(&t), CFX_OK);
    CHECK_STATUS(update_with(&t, 0, 1), CFX_OK);
    cfx_at_line(context, "train.lua", 12);
    fault(device[1]);
    CHECK_STATUS(update_with(&t, 1, 1), CFX_OK);
    raise_fault();
    CHECK_STATUS(update_with(&t, 0, 1), CFX_OK);
    check_behind(update_with(&t, 1, 1), 1);
    finish(&t);
}

TEST(of_a_list_that_was_skipped_from_some_place_on_the_rest_is_behind) {
    setup(2);
    cfx_tensor p[2][2], g[2][2], *gs[4];
    const cfx_rule rule = {.size = sizeof rule, .name = "descent", .rate = 1};
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < 2; k++) {
            p[r][k] = full(device[r], 50, 1);
            g[r][k] = full(device[r], 50, 1);
            gs[2 * r + k] = &g[r][k];
        }
    }
    CHECK_STATUS(cfx_allreduce("avg", 2, 2, gs), CFX_OK);
    cfx_at_line(context, "train.lua", 12);
    for (int k = 0; k < 2; k++) {
        for (int r = 0; r < 2; r++) {
            cfx_tensor *const one[1] = {&p[r][k]};
            if (k == 1 && r == 1) fault(device[r]);
            CHECK_STATUS(
                cfx_optim_update(&rule, 1, 1, one, (const cfx_tensor *const *)&gs[2 * r + k], NULL, NULL, NULL, NULL),
                CFX_OK);
        }
    }
    raise_fault();
    CHECK_STATUS(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&p[0][0], &p[1][0]}), CFX_OK);
    check_behind(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&p[0][1], &p[1][1]}), 1);
    for (int r = 0; r < 2; r++) {
        release(2, p[r]);
        release(2, g[r]);
    }
    teardown();
}

TEST(packing_takes_the_mark_along) {
    setup(2);
    cfx_tensor p[2], g[2];
    const cfx_rule rule = {.size = sizeof rule, .name = "descent", .rate = 1};
    const char *paths[1] = {"w"};
    cfx_layout *layout;
    for (int r = 0; r < 2; r++) {
        p[r] = full(device[r], 50, 1);
        g[r] = full(device[r], 50, 1);
    }
    CHECK_STATUS(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&g[0], &g[1]}), CFX_OK);
    cfx_at_line(context, "train.lua", 12);
    fault(device[1]);
    for (int r = 0; r < 2; r++) {
        cfx_tensor *const one[1] = {&p[r]};
        const cfx_tensor *const by[1] = {&g[r]};
        CHECK_STATUS(cfx_optim_update(&rule, 1, 1, one, by, NULL, NULL, NULL, NULL), CFX_OK);
    }
    raise_fault();
    cfx_tensor *const one[1] = {&p[1]};
    CHECK_STATUS(cfx_layout_new(1, (const cfx_tensor *const *)one, paths, &layout), CFX_OK);
    CHECK_STATUS(cfx_layout_pack(layout, device[1], one), CFX_OK);
    cfx_layout_free(layout);
    check_behind(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&p[0], &p[1]}), 1);
    release(2, p);
    release(2, g);
    teardown();
}

TEST(a_long_run_keeps_nothing_of_the_changes_that_were_made) {
    trainer t;
    begin(&t, 2);
    for (int k = 0; k < 500; k++) step(&t, -1, true);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    CHECK_STATUS(update(&t, 0), CFX_OK);
    CHECK(cf_changes_kept(t.params.leaves[0]) <= 1);
    CHECK(cf_changes_kept(t.states.leaves[0]) <= 1);
    finish(&t);
}

/* Such as running statistics that were averaged once: nobody asks whether they are behind. */
TEST(a_long_run_in_place_after_one_collective_keeps_no_more_than_what_is_under_way) {
    enum { TIMES = 4000, EACH = 50 };
    setup(2);
    cfx_tensor x[2] = {full(device[0], 3, 1), full(device[1], 3, 1)};
    CHECK_STATUS(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), CFX_OK);
    for (int k = 1; k <= TIMES; k++) {
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_mul, &x[0], 0.5), CFX_OK);
        CHECK_STATUS(cfx_binary_into(CF_OP_add, &x[0], &x[0]), CFX_OK);
        if (k % EACH == 0) CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    }
    CHECK(x[0]._buffer->drift.changes->room <= 16 * EACH);
    CHECK(x[0]._buffer->drift.round->room <= 16 * EACH);
    CHECK_EQ(value_of(&x[0]), 1);
    /* what was counted and forgotten still tells that the other replica made less of the round's changes */
    cfx_at_line(context, "train.lua", 12);
    fault(device[1]);
    CHECK_STATUS(cfx_binary_into(CF_OP_add, &x[1], &x[1]), CFX_OK);
    raise_fault();
    check_behind(cfx_allreduce("avg", 2, 1, (cfx_tensor *[]){&x[0], &x[1]}), 1);
    release(1, &x[0]);
    release(1, &x[1]);
    teardown();
}
