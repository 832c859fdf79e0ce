/* Memory that processes share: slabs of one sealed file. */
#include "test.h"

#include <fcntl.h>
#include <malloc.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "device/arena.h"

enum { MIB = 1 << 20, UNIT = 2 * MIB };

static cf_arena *arena_of(size_t bytes) {
    cf_arena *arena = NULL;
    CHECK_STATUS(cf_arena_new(bytes, &arena), CFX_OK);
    return arena;
}

static char *take(cf_arena *arena, size_t bytes) {
    void *slab = NULL;
    CHECK_STATUS(cf_arena_take(arena, bytes, &slab), CFX_OK);
    return slab;
}

static int says(const char *part) { return strstr(cfx_error(), part) != NULL; }

TEST(slabs_lie_apart_until_the_arena_is_full) {
    cf_arena *arena = arena_of(8 * UNIT);
    void *more;
    char *slab[8];
    for (int k = 0; k < 8; k++) {
        slab[k] = take(arena, k % 2 ? UNIT : 5);
        CHECK_EQ(slab[k] - cf_arena_base(arena), k * UNIT);
        memset(slab[k], k + 1, k % 2 ? UNIT : 5);
    }
    for (int k = 0; k < 8; k++) CHECK_EQ(slab[k][4], k + 1);
    CHECK_STATUS(cf_arena_take(arena, 1, &more), CFX_EMEMORY);
    CHECK(says("the memory to share has no 1 bytes left of 16777216"));
    cf_arena_free(arena);
}

TEST(gaps_join_whatever_the_order_of_what_is_given_back) {
    static const int orders[][3] = {{0, 1, 2}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}};
    cf_arena *arena = arena_of(4 * UNIT);
    for (size_t o = 0; o < sizeof orders / sizeof *orders; o++) {
        char *slab[3];
        for (int k = 0; k < 3; k++) slab[k] = take(arena, UNIT);
        for (int k = 0; k < 3; k++) cf_arena_give(arena, slab[orders[o][k]], UNIT);
        char *all = take(arena, 4 * UNIT);
        CHECK(all == cf_arena_base(arena));
        cf_arena_give(arena, all, 4 * UNIT);
    }
    cf_arena_free(arena);
}

/* Against a map of the units: what a slab holds is its own, and a slab that fits is given. */
TEST(any_order_of_slabs_finds_its_room) {
    enum { UNITS = 16, STEPS = 2000 };
    cf_arena *arena = arena_of(UNITS * UNIT);
    char *slab[UNITS] = {0};
    int units[UNITS] = {0}, used[UNITS] = {0};
    uint32_t seed = 7;
    for (int step = 0; step < STEPS; step++) {
        seed = seed * 1664525u + 1013904223u;
        const int k = (int)(seed >> 16) % UNITS, n = 1 + (int)(seed >> 24) % 4;
        if (slab[k]) {
            const int at = (int)((slab[k] - cf_arena_base(arena)) / UNIT);
            CHECK_EQ(slab[k][0], k);
            cf_arena_give(arena, slab[k], (size_t)units[k] * UNIT);
            slab[k] = NULL;
            for (int u = 0; u < units[k]; u++) used[at + u] = 0;
            continue;
        }
        int longest = 0;
        for (int u = 0, run = 0; u < UNITS; u++) {
            run = used[u] ? 0 : run + 1;
            if (run > longest) longest = run;
        }
        void *made = NULL;
        if (!CHECK_STATUS(cf_arena_take(arena, (size_t)n * UNIT, &made), longest >= n ? CFX_OK : CFX_EMEMORY)) break;
        if (!made) continue;
        slab[k] = made;
        units[k] = n;
        CHECK_EQ(slab[k][0], 0); /* its pages are new */
        slab[k][0] = (char)k;
        for (int u = 0; u < n; u++) CHECK_EQ(used[(slab[k] - cf_arena_base(arena)) / UNIT + u]++, 0);
    }
    cf_arena_free(arena);
}

TEST(taking_and_giving_back_leaves_no_memory_behind) {
    cf_arena *arena = arena_of(4 * UNIT);
    cf_arena_give(arena, take(arena, UNIT), UNIT);
    const size_t before = mallinfo2().uordblks;
    for (int k = 0; k < 1000; k++) {
        char *a = take(arena, UNIT), *b = take(arena, UNIT);
        cf_arena_give(arena, a, UNIT);
        cf_arena_give(arena, b, UNIT);
    }
    CHECK_EQ(mallinfo2().uordblks, before); /* a sanitizer counts elsewhere: 0 and 0 */
    cf_arena_free(arena);
}

TEST(a_peer_sees_what_a_slab_holds_and_zeros_once_it_is_given_back) {
    cf_arena *arena = arena_of(2 * UNIT);
    char *peer = NULL, *slab = take(arena, UNIT);
    if (!CHECK_STATUS(cf_arena_map(cf_arena_file(arena), cf_arena_bytes(arena), &peer), CFX_OK)) return;
    slab[100] = 42;
    CHECK_EQ(peer[100], 42);
    peer[101] = 43;
    CHECK_EQ(slab[101], 43);
    cf_arena_give(arena, slab, UNIT);
    CHECK_EQ(peer[100], 0);
    CHECK_EQ(peer[UNIT + 1], 0); /* a place that nobody has taken is no fault */
    munmap(peer, cf_arena_bytes(arena));
    cf_arena_free(arena);
}

TEST(nobody_shrinks_an_arena_and_none_is_mapped_that_could_be) {
    cf_arena *arena = arena_of(2 * UNIT);
    char *base;
    CHECK_EQ(ftruncate(cf_arena_file(arena), 0), -1);
    CHECK_EQ(ftruncate(cf_arena_file(arena), 4 * UNIT), -1);
    CHECK_EQ(fcntl(cf_arena_file(arena), F_ADD_SEALS, F_SEAL_WRITE), -1);
    CHECK_STATUS(cf_arena_map(cf_arena_file(arena), UNIT, &base), CFX_EFAULT); /* of another size */
    CHECK(says("a peer's memory is not a sealed file of 2097152 bytes"));
    cf_arena_free(arena);
    const int plain = memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    CHECK_EQ(ftruncate(plain, UNIT), 0);
    CHECK_STATUS(cf_arena_map(plain, UNIT, &base), CFX_EFAULT);
    close(plain);
    int ends[2];
    CHECK_EQ(pipe(ends), 0);
    CHECK_STATUS(cf_arena_map(ends[0], UNIT, &base), CFX_EFAULT); /* no file at all */
    close(ends[0]);
    close(ends[1]);
}

static void limit_files(rlim_t bytes) {
    const struct rlimit limit = {bytes, RLIM_INFINITY};
    CHECK_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
}

static void make_under_limits(void) {
    void *slab;
    cf_arena *arena = NULL, *wide = arena_of(8 * UNIT);
    limit_files(3 * UNIT + 5);
    CHECK_STATUS(cf_arena_new((size_t)1 << 40, &arena), CFX_OK);
    CHECK_EQ(cf_arena_bytes(arena), 3 * UNIT);
    char *all = take(arena, 3 * UNIT);
    memset(all, 1, 3 * UNIT);
    CHECK_STATUS(cf_arena_take(arena, 1, &slab), CFX_EMEMORY);
    cf_arena_free(arena);
    arena = NULL;
    limit_files(UNIT - 1);
    CHECK_STATUS(cf_arena_new(UNIT, &arena), CFX_EMEMORY);
    CHECK(says("the limit of file sizes (ulimit -f) leaves no memory to share"));
    CHECK(arena == NULL);
    take(wide, 8 * UNIT)[8 * UNIT - 1] = 1; /* it was made before, so it is whole */
    cf_arena_free(wide);
}

TEST(a_limit_of_file_sizes_is_an_error_and_no_signal) {
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        test_faults = 0;
        make_under_limits();
        fflush(stdout);
        _exit(test_faults);
    }
    int status = -1;
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK_EQ(status, 0);
}
