/* Worlds of several processes, which a test starts itself and which end by what happens, never by a clock.
 *
 * Ranks are children of the test, which has no context and no thread of its own meanwhile; what fails in one of them is
 * counted in its exit code.
 */
#include "test.h"

#include <dirent.h>
#include <malloc.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/world.h"
#include "queues.h"

/* ---- ranks ------------------------------------------------------------------------------------------- */

enum { MAX = 4, LATE_S = 120 };

/* What a test may share with its ranks: pipes that hold a rank until the test lets it go, and the other way. */
static int gates[MAX][2], told[MAX][2];

typedef struct ranks {
    int n;
    pid_t pid[MAX];
} ranks;

static void set_number(const char *name, int n) {
    char text[16];
    snprintf(text, sizeof text, "%d", n);
    setenv(name, text, 1);
}

static void forget_launchers(void) {
    static const char *const names[] = {
        "CONFLUX_RANK", "CONFLUX_WORLD_SIZE", "CONFLUX_SOCKETS",     "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE",
        "RANK",         "WORLD_SIZE",         "SLURM_STEP_NUM_TASKS"};
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) unsetenv(names[k]);
}

static void become(int rank, int n, int (*sockets)[2]) {
    char text[64] = "";
    alarm(LATE_S); /* a test that hangs ends */
    forget_launchers();
    set_number("CONFLUX_RANK", rank);
    set_number("CONFLUX_WORLD_SIZE", n);
    for (int r = 1; r < n; r++) {
        const int own = rank == 0 ? 0 : r == rank ? 1 : -1;
        for (int end = 0; end < 2; end++)
            if (end != own) close(sockets[r][end]);
        if (own >= 0) sprintf(text + strlen(text), "%s%d", *text ? "," : "", sockets[r][own]);
    }
    setenv("CONFLUX_SOCKETS", text, 1);
    for (int r = 0; r < n; r++) { /* so that the end of a process ends what waits for it */
        close(gates[r][1]);
        close(told[r][0]);
        if (r != rank) close(gates[r][0]), close(told[r][1]);
    }
}

static ranks start(int n, void (*rank)(int)) {
    ranks all = {.n = n};
    int sockets[MAX][2];
    for (int r = 0; r < n; r++) {
        CHECK_EQ(pipe(gates[r]), 0);
        CHECK_EQ(pipe(told[r]), 0);
        if (r > 0) CHECK_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets[r]), 0);
    }
    fflush(stdout);
    for (int r = 0; r < n; r++) {
        all.pid[r] = fork();
        if (all.pid[r] == 0) {
            become(r, n, sockets);
            test_faults = 0;
            rank(r);
            fflush(stdout);
            _exit(test_faults != 0);
        }
    }
    for (int r = 0; r < n; r++) {
        close(gates[r][0]);
        close(told[r][1]);
        if (r > 0) close(sockets[r][0]), close(sockets[r][1]);
    }
    return all;
}

static void wait_to_go(int rank) {
    char byte;
    CHECK_EQ(read(gates[rank][0], &byte, 1), 1);
}
static void let_go(int rank) { CHECK_EQ(write(gates[rank][1], "", 1), 1); }
static void tell(int rank) { CHECK_EQ(write(told[rank][1], "", 1), 1); }
static void wait_to_hear(int rank) {
    char byte;
    CHECK_EQ(read(told[rank][0], &byte, 1), 1);
}

/* Rank r's status, as waitpid tells it; its end closes what it had. */
static int end_of(ranks *all, int r) {
    int status = -1;
    CHECK_EQ(waitpid(all->pid[r], &status, 0), all->pid[r]);
    all->pid[r] = 0;
    return status;
}

/* All that have not ended yet end with nothing wrong. */
static void finish(ranks *all) {
    for (int r = 0; r < all->n; r++) {
        if (all->pid[r]) CHECK_EQ(end_of(all, r), 0);
        close(gates[r][1]);
        close(told[r][0]);
    }
}

/* ---- what ranks do ----------------------------------------------------------------------------------- */

static cfx_context *context;
static cfx_device *device;

static void open_context(void) {
    context = new_context_of("cpu", (size_t)64 << 20);
    device = cfx_device_at(context, 0);
    cfx_tensor x = full(device, 1, 1); /* the worker has read the environment before a test changes it */
    CHECK_EQ(value_of(&x), 1);
    cfx_release(&x);
}

static cfx_status join_in(double timeout) {
    const cfx_world_options options = {.size = sizeof options, .timeout = timeout};
    if (!context) open_context();
    return cfx_world_join(context, &options);
}

static void join(void) { CHECK_STATUS(join_in(0), CFX_OK); }

static void leave(void) {
    (void)cfx_world_leave(context); /* a broken world is left, too, and says what was not raised before */
    cfx_world_info info;
    cfx_world(context, &info);
    CHECK_EQ(info.size, 0);
    cfx_context_free(context);
    context = NULL;
}

static cfx_status allreduce(const char *op, cfx_tensor *x) { return cfx_allreduce(op, 1, 1, (cfx_tensor *const[]){x}); }

/* The collective's own status, or that of the value that it was to make. */
static cfx_status sum_of(int64_t n, double value) {
    cfx_tensor x = full(device, n, value);
    float *all = malloc((size_t)n * sizeof *all);
    cfx_status status = allreduce("sum", &x);
    if (status == CFX_OK) status = cfx_read(&x, all, (size_t)n * sizeof *all);
    free(all);
    cfx_release(&x);
    return status;
}

static void check_sums(int rank, int n) {
    static const int64_t sizes[] = {1, 3, 1024, 1025, 4097, 300000}; /* small ones travel with what is published */
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
        cfx_tensor x = full(device, sizes[k], rank + 1);
        CHECK_STATUS(allreduce("sum", &x), CFX_OK);
        CHECK_NEAR(value_of(&x), n * (n + 1) / 2, 0);
        CHECK_STATUS(allreduce("avg", &x), CFX_OK);
        CHECK_NEAR(value_of(&x), n * (n + 1) / 2, 0);
        cfx_release(&x);
    }
}

/* A fault that is known only when a value is read; it is raised there, or by the collective that comes after it. */
static void check_broken(const char *why) {
    CHECK(sum_of(2000, 1) != CFX_OK);
    CHECK(says(why));
    const char *breach = cf_control_breach(cf_world_of(context)->control);
    CHECK(breach && strstr(breach, why));
    CHECK_STATUS(sum_of(1, 1), CFX_ESTATE); /* from then on every call says so */
    CHECK(says("the world is broken") && says(why));
}

/* ---- who is of the world ----------------------------------------------------------------------------- */

static void check_refused(const char *why) {
    CHECK(join_in(0) != CFX_OK);
    CHECK(says(why));
    cfx_world_info info;
    cfx_world(context, &info);
    CHECK_EQ(info.size, 0);
    forget_launchers();
}

static void meet_wrongly(int rank) {
    static const char *const launchers[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "SLURM_STEP_NUM_TASKS"};
    static const char *const sockets[] = {"", "0", "99", "-1", "x", "1,2"};
    (void)rank;
    forget_launchers();
    for (size_t k = 0; k < sizeof launchers / sizeof *launchers; k++) {
        setenv(launchers[k], "4", 1);
        check_refused(launchers[k]);
        CHECK(strcmp(launchers[k], "SLURM_STEP_NUM_TASKS") == 0
                  ? says("does not tell which of them this is")
                  : says("is 4: several processes were started") && says("start them with conflux-run"));
        setenv(launchers[k], "1", 1); /* one process is one, however it was started */
        join();
        CHECK_STATUS(cfx_world_leave(context), CFX_OK);
        forget_launchers();
    }
    setenv("RANK", "1", 1);
    setenv("WORLD_SIZE", "2", 1);
    check_refused("RANK is 1 and WORLD_SIZE 2");
    setenv("SLURM_NTASKS", "4", 1); /* a batch script sees it, too */
    join();
    CHECK_STATUS(cfx_world_leave(context), CFX_OK);
    for (size_t k = 0; k < sizeof sockets / sizeof *sockets; k++) {
        set_number("CONFLUX_RANK", 1);
        set_number("CONFLUX_WORLD_SIZE", 2);
        setenv("CONFLUX_SOCKETS", sockets[k], 1);
        check_refused("which conflux-run has not set");
    }
    set_number("CONFLUX_RANK", 1);
    set_number("CONFLUX_WORLD_SIZE", 2);
    check_refused("there is no CONFLUX_SOCKETS");
    set_number("CONFLUX_RANK", 2);
    set_number("CONFLUX_WORLD_SIZE", 2);
    check_refused("CONFLUX_RANK is 2, of CONFLUX_WORLD_SIZE 2");
    set_number("CONFLUX_RANK", 2);
    set_number("CONFLUX_WORLD_SIZE", CF_MAX_RANKS + 1);
    check_refused("expected at most 64 processes, got 65");
    cfx_context_free(context);
}

TEST(a_process_of_another_launcher_never_trains_alone) {
    ranks all = start(1, meet_wrongly);
    finish(&all);
}

static void leave_twice(int rank) {
    cfx_world_info info;
    (void)rank;
    forget_launchers();
    CHECK_STATUS(join_in(-1), CFX_EARG);
    CHECK_STATUS(cfx_world_leave(context), CFX_ESTATE);
    join();
    CHECK_STATUS(cfx_world_join(context, NULL), CFX_ESTATE);
    CHECK(says("this context is in one already"));
    cfx_world(context, &info);
    CHECK_EQ(info.size, 1);
    check_sums(0, 1);
    leave();
}

TEST(a_process_alone_is_a_world_of_one) {
    ranks all = start(1, leave_twice);
    finish(&all);
}

static void sum_up(int rank) {
    cfx_world_info info;
    join();
    cfx_world(context, &info);
    CHECK_EQ(info.rank, rank);
    check_sums(rank, info.size);
    leave();
}

TEST(ranks_add_up) {
    for (int n = 2; n <= MAX; n++) {
        ranks all = start(n, sum_up);
        finish(&all);
    }
}

/* ---- meeting ----------------------------------------------------------------------------------------- */

static int missing; /* the rank of a test that goes wrong */

static void end_before_joining(int rank) {
    if (rank == missing) return;
    check_refused("ended before all had come to init");
    cfx_context_free(context);
}

TEST(a_rank_that_ends_before_it_joins_is_told_of) {
    for (missing = 0; missing < 3; missing++) {
        ranks all = start(3, end_before_joining);
        finish(&all);
    }
}

/* What a rank says first; as bootstrap.c has it. */
typedef struct hello {
    uint32_t kind;
    int32_t abi, rank, size, ndevices;
    uint64_t bytes[CF_MAX_RANKS];
    char why[1024];
} hello;

static void greet(const hello *what, size_t bytes) {
    char control[CMSG_SPACE(sizeof(struct ucred))] = {0};
    const struct ucred own = {getpid(), geteuid(), getegid()};
    struct iovec body = {(void *)what, bytes};
    struct msghdr message = {
        .msg_iov = &body, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof control};
    *CMSG_FIRSTHDR(&message) = (struct cmsghdr){CMSG_LEN(sizeof own), SOL_SOCKET, SCM_CREDENTIALS};
    memcpy(CMSG_DATA(CMSG_FIRSTHDR(&message)), &own, sizeof own);
    CHECK_EQ(sendmsg(atoi(getenv("CONFLUX_SOCKETS")), &message, 0), bytes);
}

static int strange; /* what rank 1 says */

static void meet_a_stranger(int rank) {
    const hello other = {.kind = 0x43464831, .abi = CFX_ABI_VERSION + (strange == 1), .rank = 1, .size = 2};
    if (rank == 1) {
        greet(&other, strange == 0 ? 10 : sizeof other);
        wait_to_go(1);
        return;
    }
    check_refused(strange == 0 ? "ended before all had come to init"
                               : "runs another version of Conflux, or is another");
    cfx_context_free(context);
}

TEST(a_rank_of_another_version_is_refused) {
    for (strange = 0; strange < 3; strange++) { /* other words; another version; no memory with it */
        ranks all = start(2, meet_a_stranger);
        CHECK_EQ(end_of(&all, 0), 0);
        let_go(1);
        finish(&all);
    }
}

static void come_late(int rank) {
    if (rank == 1) {
        wait_to_go(1);
        check_refused("rank 1 of 2 has not come in 0.1 s");
    } else {
        CHECK(join_in(0.1) != CFX_OK);
        CHECK(says("rank 1 of 2 has not come in 0.1 s"));
        tell(0);
        wait_to_go(0);
    }
    cfx_context_free(context);
}

TEST(a_rank_that_does_not_come_is_named_and_hears_of_it) {
    ranks all = start(2, come_late);
    wait_to_hear(0);
    let_go(1);
    CHECK_EQ(end_of(&all, 1), 0);
    let_go(0);
    finish(&all);
}

static int count_descriptors(void) {
    DIR *directory = opendir("/proc/self/fd");
    int n = 0;
    while (readdir(directory)) n++;
    closedir(directory);
    return n;
}

static long pages(void) {
    long n = -1;
    FILE *file = fopen("/proc/self/statm", "r");
    CHECK_EQ(fscanf(file, "%ld", &n), 1);
    fclose(file);
    return n;
}

static void join_and_leave(int rank) {
    enum { WARM = 20, JOINS = SANITIZED ? 50 : 1000 };
    int descriptors = 0;
    size_t used = 0;
    long mapped = 0;
    for (int k = 0; k < WARM + JOINS; k++) {
        if (k == WARM) descriptors = count_descriptors(), mapped = pages(), used = mallinfo2().uordblks;
        if (!CHECK_STATUS(join_in(0), CFX_OK)) return;
        if (k % 10 == 0) CHECK_STATUS(sum_of(2000, rank), CFX_OK);
        CHECK_STATUS(cfx_world_leave(context), CFX_OK);
    }
    CHECK_EQ(count_descriptors(), descriptors);
    if (!SANITIZED) {
        CHECK_NEAR(mallinfo2().uordblks, used, 8192); /* it counts what threads keep for later */
        CHECK_NEAR(pages(), mapped, 16);
    }
    cfx_context_free(context);
}

TEST(joining_and_leaving_again_and_again_leaves_nothing_behind) {
    ranks all = start(2, join_and_leave);
    finish(&all);
}

/* ---- the end of a rank ------------------------------------------------------------------------------- */

static void lose_a_rank(int rank) {
    join();
    CHECK_STATUS(sum_of(2000, 1), CFX_OK);
    if (rank == missing) {
        wait_to_go(rank);
        kill(getpid(), SIGKILL);
    }
    tell(rank);
    char why[64];
    snprintf(why, sizeof why, "rank %d of 3 (pid ", missing);
    check_broken(why);
    CHECK(strstr(cf_control_breach(cf_world_of(context)->control), "has died; its last collective was 1 (sum of 2000"));
    leave();
}

TEST(survivors_hear_of_a_death) {
    for (missing = 0; missing < 3; missing++) {
        ranks all = start(3, lose_a_rank);
        for (int r = 0; r < 3; r++)
            if (r != missing) wait_to_hear(r);
        let_go(missing);
        CHECK_EQ(end_of(&all, missing), SIGKILL);
        finish(&all);
    }
}

static void leave_early(int rank) {
    join();
    CHECK_STATUS(sum_of(5000, 1), CFX_OK);
    if (rank == 0) {
        leave();
        wait_to_go(0);
        return;
    }
    check_broken("left the world) has not come to collective 2 (sum of 2000 float32)");
    leave();
}

TEST(a_rank_that_leaves_is_missed) {
    ranks all = start(3, leave_early);
    for (int r = 1; r < 3; r++) CHECK_EQ(end_of(&all, r), 0);
    let_go(0);
    finish(&all);
}

static void fail_one(int rank) {
    join();
    if (rank == 1) cfx_world_fail(context, "the data are at their end");
    check_broken("(pid ");
    CHECK(says("the data are at their end"));
    leave();
}

TEST(a_rank_that_cannot_go_on_says_why) {
    ranks all = start(3, fail_one);
    finish(&all);
}

static void disagree(int rank) {
    join();
    cfx_tensor x = full(device, 2000 + 100 * rank, 1);
    float value[2100];
    CHECK_STATUS(allreduce("sum", &x), CFX_OK);
    CHECK_STATUS(cfx_read(&x, value, (size_t)(2000 + 100 * rank) * sizeof *value), CFX_EFAULT);
    CHECK(
        says("ranks disagree: collective 1 of rank 0 is sum of 2000 float32, and collective 1 of rank 1 is sum of 2100 "
             "float32"));
    cfx_release(&x);
    leave();
}

TEST(ranks_that_disagree_all_hear_both_sides) {
    ranks all = start(2, disagree);
    finish(&all);
}

/* ---- a rank that is given up ------------------------------------------------------------------------- */

static void give_up(int rank) {
    CHECK_STATUS(join_in(0.2), CFX_OK);
    CHECK_STATUS(sum_of(2000, 1), CFX_OK);
    tell(rank);
    wait_to_go(rank);
    check_broken("of 3 (pid ");
    CHECK(says(", stopped) has not come to collective 2 (sum of 2000 float32); its last was 1 (sum of 2000 float32)"));
    CHECK(says(": given up after 0.2 s, and killed"));
    CHECK_STATUS(cfx_world_shrink(context), CFX_OK);
    cfx_world_info info;
    cfx_world(context, &info);
    CHECK_EQ(info.size, 2);
    for (int k = 0; k < 100; k++) CHECK_STATUS(sum_of(2000, 1), CFX_OK);
    check_sums(info.rank, 2);
    leave();
}

TEST(a_rank_that_is_given_up_never_runs_again_and_the_others_go_on) {
    for (missing = 0; missing < 3; missing++) {
        ranks all = start(3, give_up);
        for (int r = 0; r < 3; r++) wait_to_hear(r);
        CHECK_EQ(kill(all.pid[missing], SIGSTOP), 0);
        CHECK_EQ(waitpid(all.pid[missing], NULL, WUNTRACED), all.pid[missing]);
        for (int r = 0; r < 3; r++) let_go(r);
        for (int r = 0; r < 3; r++)
            if (r != missing) CHECK_EQ(end_of(&all, r), 0);
        CHECK_EQ(kill(all.pid[missing], SIGCONT), 0); /* it is there as long as nobody has asked for its end */
        CHECK_EQ(end_of(&all, missing), SIGKILL);
        finish(&all);
    }
}

/* ---- fork -------------------------------------------------------------------------------------------- */

static void fork_in_a_world(int rank) {
    join();
    CHECK_STATUS(sum_of(2000, 1), CFX_OK);
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        cfx_context_free(context);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &(int){0}, 0), child);
    check_sums(rank, 2); /* the parents are in it still, and watch each other */
    if (rank == 1) kill(getpid(), SIGKILL);
    check_broken("has died");
    leave();
}

TEST(a_child_of_fork_leaves_its_parents_world_alone) {
    ranks all = start(2, fork_in_a_world);
    CHECK_EQ(end_of(&all, 1), SIGKILL);
    finish(&all);
}
