/* ranks.c: see ranks.h. */
#include "launch/ranks.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/command.h"
#include "base/cores.h"
#include "base/terminal.h"

/* ---- in the rank, before it begins ------------------------------------------------------------------------ */

static bool set_number(const char *name, int value) {
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    return setenv(name, text, 1) == 0;
}

/* An even part of the launcher's cores, or all of them where ranks are more.  Cores that are shared, by ranks or by a
 * cgroup's quota, are counted for Conflux, unless the user has done so. */
static bool share_cores(int rank, int n) {
    cpu_set_t all, own;
    if (sched_getaffinity(0, sizeof all, &all) != 0) return true; /* a machine of more cores than a set has */
    const int cores = CPU_COUNT(&all), usable = cf_cores_usable();
    if ((n > usable || usable < cores) && !getenv("CONFLUX_NUM_THREADS") &&
        !set_number("CONFLUX_NUM_THREADS", n < usable ? usable / n : 1))
        return false;
    if (n > cores) return true;
    const int from = (int)((long)cores * rank / n), to = (int)((long)cores * (rank + 1) / n);
    CPU_ZERO(&own);
    for (int core = 0, k = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &all)) continue;
        if (k >= from && k < to) CPU_SET(core, &own);
        k++;
    }
    return sched_setaffinity(0, sizeof own, &own) == 0;
}

static bool set_environment(int rank, int n, const cf_start *how) {
    static const bool nowhere[3];
    return set_number("CONFLUX_RANK", rank) && set_number("CONFLUX_WORLD_SIZE", n) &&
           set_number("CONFLUX_LOCAL_RANK", rank) && set_number("CONFLUX_LOCAL_SIZE", n) &&
           (!how->devices || setenv("CONFLUX_DEVICES", how->devices, 1) == 0) &&
           cf_terminal_set(rank == 0 ? how->behind : nowhere, how->columns);
}

/* Leaves the rank's ends of sockets open across exec, and tells their numbers: rank 0 has one to each other rank. */
static bool tell_sockets(int rank, int n, int (*sockets)[2]) {
    enum { DIGITS = 12 };
    char *text = calloc((size_t)n + 1, DIGITS);
    bool is_well = text != NULL;
    size_t used = 0;
    for (int r = 1; r < n && is_well; r++) {
        if (rank != 0 && r != rank) continue;
        const int end = sockets[r][rank != 0];
        used += (size_t)snprintf(text + used, DIGITS, "%s%d", used ? "," : "", end);
        is_well = fcntl(end, F_SETFD, 0) == 0;
    }
    is_well = is_well && (used == 0 || setenv("CONFLUX_SOCKETS", text, 1) == 0);
    free(text);
    return is_well;
}

/* Becomes the program; returns errno where that fails. */
static int become(int rank, const cf_ranks *ranks, pid_t launcher, const int streams[3], const cf_start *how) {
    const int n = ranks->n;
    setpgid(0, ranks->group);
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0) return errno;
    if (getppid() != launcher) _exit(EXIT_FAILURE); /* it had ended before that */
    for (int fd = 0; fd < 3; fd++) {
        if (dup2(streams[fd], fd) < 0) return errno;
    }
    if (!set_environment(rank, n, how) || !tell_sockets(rank, n, ranks->sockets) || !share_cores(rank, n)) return errno;
    cf_inherited_restore(how->inherited);
    execvp(how->words[0], how->words);
    return errno;
}

/* ---- starting ------------------------------------------------------------------------------------------------ */

enum { INPUT, OUTPUT, ERROR, REPORT, PIPES };

static void shut(int *fd) {
    if (*fd >= 0) close(*fd);
    *fd = -1;
}

/* The pipes of a rank: ours are ends [0] but for its input, where only rank 0 has a pipe and others read nothing. */
static bool make_pipes(int rank, int pipes[PIPES][2]) {
    for (int k = 0; k < PIPES; k++) pipes[k][0] = pipes[k][1] = -1;
    if (rank > 0 && (pipes[INPUT][0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) < 0) return false;
    for (int k = rank > 0; k < PIPES; k++) {
        if (pipe2(pipes[k], O_CLOEXEC) != 0) return false;
    }
    return true;
}

/* Starts a rank.  Returns 0, or errno; *has_forked: the program could not be executed. */
static int start(cf_ranks *ranks, int r, const cf_start *how, bool *has_forked) {
    cf_rank *rank = &ranks->rank[r];
    const pid_t launcher = getpid();
    int pipes[PIPES][2], error = 0;
    *has_forked = false;
    const pid_t pid = make_pipes(r, pipes) ? fork() : -1;
    if (pid == 0) {
        error = become(r, ranks, launcher, (int[3]){pipes[INPUT][0], pipes[OUTPUT][1], pipes[ERROR][1]}, how);
        _exit(write(pipes[REPORT][1], &error, sizeof error) == sizeof error ? CF_START_MISSING : EXIT_FAILURE);
    }
    if (pid < 0) error = errno;
    shut(&pipes[REPORT][1]);
    if (pid > 0) {
        *has_forked = true;
        if (ranks->group == 0) ranks->group = pid;
        setpgid(pid, ranks->group); /* both do, for neither knows which is first */
        rank->pid = pid;
        ranks->alive++;
        ssize_t n;
        while ((n = read(pipes[REPORT][0], &error, sizeof error)) < 0 && errno == EINTR) {}
        if (n == 0) { /* the pipe was closed by exec */
            rank->out = pipes[OUTPUT][0];
            rank->err = pipes[ERROR][0];
            if (r == 0) ranks->input = pipes[INPUT][1];
            pipes[OUTPUT][0] = pipes[ERROR][0] = pipes[INPUT][1] = -1;
        }
    }
    for (int k = 0; k < PIPES; k++) {
        shut(&pipes[k][0]);
        shut(&pipes[k][1]);
    }
    return error;
}

/* Ends those that have been started. */
static void end_all(cf_ranks *ranks) {
    if (ranks->group == 0) return;
    cf_ranks_signal(ranks, SIGKILL);
    while (waitid(P_PGID, (id_t)ranks->group, &(siginfo_t){0}, WEXITED) == 0 || errno == EINTR) {}
}

/* A pair between rank 0 and each other: there they meet. */
static bool make_sockets(cf_ranks *ranks) {
    ranks->sockets = calloc((size_t)ranks->n, sizeof *ranks->sockets);
    for (int r = 0; ranks->sockets && r < ranks->n; r++) ranks->sockets[r][0] = ranks->sockets[r][1] = -1;
    for (int r = 1; ranks->sockets && r < ranks->n; r++)
        if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ranks->sockets[r]) != 0) return false;
    return ranks->sockets != NULL;
}

static void close_sockets(cf_ranks *ranks) {
    for (int r = 0; ranks->sockets && r < ranks->n; r++) {
        shut(&ranks->sockets[r][0]);
        shut(&ranks->sockets[r][1]);
    }
    free(ranks->sockets);
    ranks->sockets = NULL;
}

int cf_ranks_start(cf_ranks *ranks, int n, const cf_start *how, char *why) {
    *ranks = (cf_ranks){.n = n, .input = -1, .rank = calloc((size_t)n, sizeof(cf_rank))};
    if (!ranks->rank) {
        snprintf(why, CF_WHY, "not enough memory for %d ranks", n);
        return CF_START_FAILED;
    }
    for (int r = 0; r < n; r++) ranks->rank[r].out = ranks->rank[r].err = -1;
    if (!make_sockets(ranks)) {
        snprintf(why, CF_WHY, "cannot make the sockets of %d ranks: %s", n, strerror(errno));
        close_sockets(ranks);
        return CF_START_FAILED;
    }
    for (int r = 0; r < n; r++) {
        bool has_forked;
        const int error = start(ranks, r, how, &has_forked);
        if (error == 0) continue;
        close_sockets(ranks);
        end_all(ranks);
        if (has_forked) snprintf(why, CF_WHY, "cannot execute '%s': %s", how->words[0], strerror(error));
        else snprintf(why, CF_WHY, "cannot start rank %d of %d: %s", r, n, strerror(error));
        return !has_forked ? CF_START_FAILED : error == ENOENT ? CF_START_MISSING : CF_START_REFUSED;
    }
    close_sockets(ranks); /* else no rank would see that another has ended */
    return 0;
}

void cf_ranks_free(cf_ranks *ranks) {
    for (int r = 0; ranks->rank && r < ranks->n; r++) {
        shut(&ranks->rank[r].out);
        shut(&ranks->rank[r].err);
    }
    shut(&ranks->input);
    free(ranks->rank);
    ranks->rank = NULL;
}

/* ---- while they run ------------------------------------------------------------------------------------------- */

void cf_ranks_signal(const cf_ranks *ranks, int signal) {
    kill(-ranks->group, signal);
    for (int r = 0; r < ranks->n; r++) {
        const cf_rank *rank = &ranks->rank[r];
        if (rank->pid == 0 || rank->has_ended) continue;
        if (getpgid(rank->pid) != ranks->group) kill(rank->pid, signal); /* it has left the group */
    }
}

static int find(const cf_ranks *ranks, pid_t pid) {
    for (int r = 0; r < ranks->n; r++) {
        if (ranks->rank[r].pid == pid && !ranks->rank[r].has_ended) return r;
    }
    return -1;
}

bool cf_ranks_next(cf_ranks *ranks, cf_news *out) {
    siginfo_t info = {0};
    while (waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WCONTINUED | WNOHANG | WNOWAIT) == 0 && info.si_pid != 0) {
        const pid_t pid = info.si_pid;
        const int r = find(ranks, pid), code = info.si_code;
        const bool has_ended = code == CLD_EXITED || code == CLD_KILLED || code == CLD_DUMPED;
        /* Until the last is reaped, the group's number is no other's. */
        if (r >= 0 && has_ended && --ranks->alive == 0) kill(-ranks->group, SIGKILL);
        const int status = info.si_status;
        waitid(P_PID, (id_t)pid, &info, has_ended ? WEXITED | WNOHANG : WSTOPPED | WCONTINUED | WNOHANG);
        if (r >= 0) {
            cf_rank *rank = &ranks->rank[r];
            rank->has_ended = has_ended;
            *out = (cf_news){.rank = r,
                             .what = has_ended             ? CF_RANK_ENDED
                                     : code == CLD_STOPPED ? CF_RANK_STOPPED
                                                           : CF_RANK_CONTINUED};
            if (has_ended) out->signal = code == CLD_EXITED ? 0 : status;
            if (has_ended) out->code = code == CLD_EXITED ? status : 128 + status;
            return true;
        }
        info = (siginfo_t){0};
    }
    return false;
}

bool cf_ranks_are_gone(const cf_ranks *ranks) {
    siginfo_t info;
    return ranks->alive == 0 && waitid(P_PGID, (id_t)ranks->group, &info, WEXITED | WNOHANG | WNOWAIT) != 0 &&
           errno == ECHILD;
}
