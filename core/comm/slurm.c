/* slurm.c: see slurm.h. */
#include "comm/slurm.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"
#include "comm/letter.h"

enum { TRY_MS = 20 };

static bool number_of(const char *name, long *out) {
    const char *text = getenv(name);
    char *end;
    if (!text || *text == '\0') return false;
    *out = strtol(text, &end, 10);
    return *end == '\0' && *out >= 0;
}

/* SLURM_NTASKS is the job's, which a batch script sees, too, of which one process runs. */
cfx_status cf_slurm_find(cf_meeting *out) {
    long rank, size, hosts;
    if (!number_of("SLURM_STEP_NUM_TASKS", &size) || size < 2) return CFX_OK;
    if (!number_of("SLURM_PROCID", &rank) || rank >= size || !getenv("SLURM_JOB_ID") || !getenv("SLURM_STEP_ID"))
        return cf_fail(CFX_ESTATE,
                       "SLURM_STEP_NUM_TASKS is %ld, and SLURM_PROCID, SLURM_JOB_ID or SLURM_STEP_ID does not "
                       "tell which of them this is",
                       size);
    if (number_of("SLURM_STEP_NUM_NODES", &hosts) && hosts > 1)
        return cf_fail(CFX_ESTATE, "SLURM_STEP_NUM_NODES is %ld: processes of several hosts cannot join yet", hosts);
    if (size > CF_MAX_RANKS) return cf_fail(CFX_EARG, "expected at most %d processes, got %ld", CF_MAX_RANKS, size);
    out->rank = (int32_t)rank;
    out->size = (int32_t)size;
    out->is_slurms = true;
    return CFX_OK;
}

/* Of the system's own names, which end with their sockets; another user's job has another name. */
static socklen_t name_of(struct sockaddr_un *out) {
    *out = (struct sockaddr_un){.sun_family = AF_UNIX};
    const int n = snprintf(out->sun_path + 1, sizeof out->sun_path - 1, "conflux-%u-%s.%s", (unsigned)geteuid(),
                           getenv("SLURM_JOB_ID"), getenv("SLURM_STEP_ID"));
    const size_t most = sizeof out->sun_path - 2, used = (size_t)n < most ? (size_t)n : most;
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + used);
}

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static cfx_status wait_a_little(const cf_world *world, double until, int socket) {
    struct pollfd polled = {.fd = socket, .events = POLLIN};
    if (until > 0 && now() > until)
        return cf_fail(CFX_EFAULT, "the processes of this Slurm step have not all come in %g s", world->timeout);
    CF_TRY(cf_interrupted(&world->context->hub));
    poll(&polled, 1, TRY_MS);
    return CFX_OK;
}

static int open_socket(void) {
    const int s = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (s >= 0) setsockopt(s, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
    return s;
}

/* Lets one process in that says which rank it is, and is this user's. */
static cfx_status let_in(cf_world *world, double until, int socket) {
    cf_received got;
    int came;
    setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
    while ((came = cf_letter_receive(socket, &got)) == 0) CF_TRY(wait_a_little(world, until, socket));
    if (came < 0) {
        close(socket); /* a stranger, or one that has ended: another may come in its place */
        return CFX_OK;
    }
    cf_letter_close_files(&got);
    const int32_t r = got.letter.rank;
    if (got.letter.kind != CF_KNOCK || r < 1 || r >= world->meeting.size || world->meeting.socket[r] >= 0) {
        close(socket);
        return cf_fail(CFX_EFAULT, "a process of this Slurm step came as rank %d, which another one is", (int)r);
    }
    world->meeting.socket[r] = socket;
    return CFX_OK;
}

static cfx_status listen_for(cf_world *world, double until, int listener) {
    struct sockaddr_un name;
    const socklen_t bytes = name_of(&name);
    int32_t missing = world->meeting.size - 1;
    if (fcntl(listener, F_SETFL, O_NONBLOCK) != 0 || bind(listener, (struct sockaddr *)&name, bytes) != 0 ||
        listen(listener, CF_MAX_RANKS) != 0)
        return cf_fail(CFX_ESTATE, "cannot listen at @%s: %s", name.sun_path + 1, cf_strerror(errno));
    while (missing > 0) {
        CF_TRY(wait_a_little(world, until, listener));
        const int came = accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (came < 0) continue;
        CF_TRY(let_in(world, until, came));
        missing = 0;
        for (int32_t r = 1; r < world->meeting.size; r++) missing += world->meeting.socket[r] < 0;
    }
    return CFX_OK;
}

static cfx_status knock(cf_world *world, double until) {
    const cf_letter letter = {.kind = CF_KNOCK, .abi = CFX_ABI_VERSION, .rank = world->meeting.rank};
    struct sockaddr_un name;
    struct ucred host;
    socklen_t bytes = name_of(&name), size = sizeof host;
    const int s = world->meeting.socket[0];
    while (connect(s, (struct sockaddr *)&name, bytes) != 0) {
        if (errno != ECONNREFUSED && errno != EINTR && errno != EAGAIN)
            return cf_fail(CFX_ESTATE, "cannot come to @%s: %s", name.sun_path + 1, cf_strerror(errno));
        CF_TRY(wait_a_little(world, until, -1)); /* rank 0 does not listen yet */
    }
    if (getsockopt(s, SOL_SOCKET, SO_PEERCRED, &host, &size) != 0 || host.uid != geteuid())
        return cf_fail(CFX_ESTATE, "@%s is another user's", name.sun_path + 1);
    return cf_letter_send(s, &letter, 0, NULL) ? CFX_OK
                                               : cf_fail(CFX_EFAULT, "rank 0 ended before all had come to init");
}

cfx_status cf_slurm_connect(cf_world *world, double until) {
    const int s = open_socket();
    if (s < 0) return cf_fail(CFX_EMEMORY, "cannot make a socket: %s", cf_strerror(errno));
    if (world->meeting.rank > 0) {
        world->meeting.socket[0] = s; /* the world closes it */
        return knock(world, until);
    }
    const cfx_status status = listen_for(world, until, s);
    close(s);
    return status;
}
