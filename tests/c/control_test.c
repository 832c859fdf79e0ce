/* What the ranks of a world have in common, with threads in place of ranks. */
#include "test.h"

#include <pthread.h>
#include <sched.h>
#include <stdlib.h>

#include "comm/control.h"

enum { RANKS = 4 };

static cf_control *new_control(int ranks) {
    const size_t bytes = cf_control_bytes(ranks);
    cf_control *control = aligned_alloc(4096, bytes);
    memset(control, 0, bytes);
    cf_control_init(control, ranks);
    for (int r = 0; r < ranks; r++) atomic_store(&control->peer[r].nbells, 1);
    return control;
}

TEST(a_count_moves_with_the_last_rank) {
    cf_control *c = new_control(3);
    cf_control_publish(c, 0);
    cf_control_publish(c, 0);
    cf_control_publish(c, 2);
    CHECK_EQ(cf_counted(&c->ready), 0);
    cf_control_publish(c, 1);
    CHECK_EQ(cf_counted(&c->ready), 1);
    CHECK_EQ(cf_counted(&c->done), 0);
    for (int r = 2; r >= 0; r--) cf_control_finish(c, r);
    CHECK_EQ(cf_counted(&c->done), 1);
    CHECK(cf_control_breach(c) == NULL);
    free(c);
}

TEST(a_world_that_is_broken_stays_as_it_is) {
    cf_control *c = new_control(2);
    for (int r = 0; r < 2; r++) cf_control_publish(c, r);
    cf_control_break(c, 1, "rank %d fell", 1);
    cf_control_break(c, 0, "and so did rank 0");
    CHECK_STR(cf_control_breach(c), "rank 1 fell");
    for (int r = 0; r < 2; r++) cf_control_publish(c, r), cf_control_finish(c, r);
    CHECK_EQ(cf_counted(&c->ready), 1);
    CHECK_EQ(cf_counted(&c->done), 0);
    CHECK(atomic_load(&c->ready.finished) > UINT64_MAX / 2); /* no queue waits for it */
    free(c);
}

TEST(a_rank_that_dies_over_its_reason_keeps_nobody_from_theirs) {
    cf_control *c = new_control(2);
    atomic_fetch_add(&c->breach.taken, 1); /* that is how far it came */
    cf_control_break(c, 0, "rank 0 has seen it");
    CHECK_STR(cf_control_breach(c), "rank 0 has seen it");
    atomic_store(&c->breach.chosen, 0); /* so many began to write one */
    atomic_store(&c->breach.taken, 1000);
    cf_control_break(c, 0, "the last");
    CHECK_STR(cf_control_breach(c), "the last");
    free(c);
}

/* A thread that waits for a count as a worker does. */
typedef struct sleeper {
    cf_control *control;
    uint64_t until;
    _Atomic int sleeps;
} sleeper;

static void *sleep_until(void *argument) {
    sleeper *s = argument;
    cf_bell *bell = &s->control->peer[1].bell[0];
    cf_progress *count = &s->control->ready;
    atomic_store(&bell->asleep, 1);
    for (;;) {
        const uint32_t seen = cf_word_read(&bell->wake);
        atomic_store(&count->alarm, s->until);
        if (atomic_load(&count->finished) >= s->until) break;
        atomic_store(&s->sleeps, 1);
        cf_park_for(&bell->wake, seen, true, -1);
    }
    atomic_store(&bell->asleep, 0);
    return NULL;
}

TEST(a_sleeper_is_woken_by_its_count_and_by_the_end_of_the_world) {
    for (int breaks = 0; breaks < 2; breaks++) {
        cf_control *c = new_control(2);
        sleeper s = {.control = c, .until = 1};
        pthread_t thread;
        CHECK_EQ(pthread_create(&thread, NULL, sleep_until, &s), 0);
        while (!atomic_load(&s.sleeps)) sched_yield();
        cf_control_publish(c, 0);
        if (breaks) cf_control_break(c, 1, "over");
        else cf_control_publish(c, 1);
        pthread_join(thread, NULL);
        free(c);
    }
}

enum { PUBLISHES = SANITIZED ? 20000 : 200000 };

typedef struct publisher {
    cf_control *control;
    int rank;
} publisher;

static void *publish_all(void *argument) {
    const publisher *p = argument;
    for (int k = 0; k < PUBLISHES; k++) cf_control_publish(p->control, p->rank);
    return NULL;
}

TEST(ranks_that_publish_at_once_lose_no_count) {
    cf_control *c = new_control(RANKS);
    publisher p[RANKS];
    pthread_t thread[RANKS], waits;
    sleeper s = {.control = c, .until = PUBLISHES};
    CHECK_EQ(pthread_create(&waits, NULL, sleep_until, &s), 0);
    for (int r = 0; r < RANKS; r++) {
        p[r] = (publisher){c, r};
        CHECK_EQ(pthread_create(&thread[r], NULL, publish_all, &p[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    pthread_join(waits, NULL);
    CHECK_EQ(cf_counted(&c->ready), PUBLISHES);
    free(c);
}

static void *break_one(void *argument) {
    const publisher *p = argument;
    cf_control_break(p->control, p->rank, "rank %d says why, in these words", p->rank);
    return NULL;
}

TEST(of_reasons_that_come_at_once_one_is_told_whole) {
    cf_control *c = new_control(RANKS);
    publisher p[RANKS];
    pthread_t thread[RANKS];
    char text[64];
    for (int r = 0; r < RANKS; r++) {
        p[r] = (publisher){c, r};
        CHECK_EQ(pthread_create(&thread[r], NULL, break_one, &p[r]), 0);
    }
    for (int r = 0; r < RANKS; r++) pthread_join(thread[r], NULL);
    const char *why = cf_control_breach(c);
    if (CHECK(why != NULL)) {
        snprintf(text, sizeof text, "rank %c says why, in these words", why[5]);
        CHECK_STR(why, text);
    }
    free(c);
}
