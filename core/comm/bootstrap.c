/* bootstrap.c: see bootstrap.h. */
#include "comm/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "base/locale.h"
#include "base/status.h"
#include "comm/letter.h"
#include "comm/slurm.h"

/* ---- which rank -------------------------------------------------------------------------------------- */

static bool read_number(const char **at, long most, int *out) {
    char *end;
    const long n = strtol(*at, &end, 10);
    if (end == *at || n < 0 || n > most) return false;
    *at = end;
    *out = (int)n;
    return true;
}

static bool number_of(const char *name, int *out) {
    const char *at = getenv(name);
    return at && read_number(&at, 1 << 20, out) && *at == '\0';
}

/* Names of variables by which other launchers say how many processes there are. */
static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE"};

static cfx_status refuse_others(void) {
    int n, rank;
    for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++)
        if (number_of(sizes[k], &n) && n > 1)
            return cf_fail(
                CFX_ESTATE,
                "%s is %d: several processes were started, by a launcher that Conflux cannot join yet; start "
                "them with conflux-run",
                sizes[k], n);
    if (number_of("RANK", &rank) && number_of("WORLD_SIZE", &n) && n > 1)
        return cf_fail(
            CFX_ESTATE,
            "RANK is %d and WORLD_SIZE %d: several processes were started, by a launcher that Conflux cannot "
            "join yet; start them with conflux-run",
            rank, n);
    return CFX_OK;
}

static cfx_status bad_sockets(const char *text) {
    return cf_fail(CFX_ESTATE, "CONFLUX_SOCKETS is '%s', which conflux-run has not set", text);
}

/* The sockets are the process's: one context at a time meets there, and a letter says in which of its meetings. */
static _Atomic int32_t is_taken, meetings;

void cf_bootstrap_release(void) { atomic_store(&is_taken, 0); }

cfx_status cf_bootstrap_find(cf_meeting *out) {
    *out = (cf_meeting){.size = 1};
    for (int r = 0; r < CF_MAX_RANKS; r++) out->socket[r] = -1;
    int rank, size;
    if (!number_of("CONFLUX_RANK", &rank) || !number_of("CONFLUX_WORLD_SIZE", &size)) {
        CF_TRY(cf_slurm_find(out));
        return out->size > 1 ? CFX_OK : refuse_others();
    }
    if (size > CF_MAX_RANKS) return cf_fail(CFX_EARG, "expected at most %d processes, got %d", CF_MAX_RANKS, size);
    if (rank >= size) return cf_fail(CFX_ESTATE, "CONFLUX_RANK is %d, of CONFLUX_WORLD_SIZE %d", rank, size);
    out->rank = rank;
    out->size = size;
    if (size == 1) return CFX_OK;
    const char *text = getenv("CONFLUX_SOCKETS"), *at = text;
    if (!text) return cf_fail(CFX_ESTATE, "CONFLUX_WORLD_SIZE is %d, and there is no CONFLUX_SOCKETS", size);
    const int n = rank == 0 ? size - 1 : 1;
    for (int k = 0; k < n; k++) {
        int socket, type;
        socklen_t bytes = sizeof type;
        if (k > 0 && *at++ != ',') return bad_sockets(text);
        if (!read_number(&at, 1 << 20, &socket) || getsockopt(socket, SOL_SOCKET, SO_TYPE, &type, &bytes) != 0 ||
            type != SOCK_SEQPACKET)
            return bad_sockets(text);
        fcntl(socket, F_SETFD, FD_CLOEXEC); /* else a program that it starts would keep it open */
        setsockopt(socket, SOL_SOCKET, SO_PASSCRED, &(int){1}, sizeof(int));
        out->socket[rank == 0 ? k + 1 : 0] = socket;
    }
    return *at == '\0' ? CFX_OK : bad_sockets(text);
}

/* ---- waiting ----------------------------------------------------------------------------------------- */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void refuse_all(const cf_world *world, const char *why) {
    cf_letter refusal = {.kind = CF_REFUSED, .meeting = atomic_load(&meetings)};
    snprintf(refusal.why, sizeof refusal.why, "%s", why);
    for (int32_t r = 0; r < world->meeting.size; r++)
        if (world->meeting.socket[r] >= 0) (void)cf_letter_send(world->meeting.socket[r], &refusal, 0, NULL);
}

/* Appends "1, 3" for the ranks that are still waited for. */
static const char *missing(const cf_world *world, const bool *has_come, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int32_t r = 0; r < world->meeting.size && used < bytes; r++)
        if (world->meeting.socket[r] >= 0 && !has_come[r])
            used += (size_t)snprintf(text + used, bytes - used, "%s%d", used ? ", " : "", (int)r);
    return text;
}

/* Waits for one letter of that kind from every rank that this one has a socket to. */
static cfx_status await(cf_world *world, uint32_t kind, double until, cf_received *all) {
    const cf_meeting *m = &world->meeting;
    bool has_come[CF_MAX_RANKS] = {false};
    char text[256];
    for (;;) {
        struct pollfd polled[CF_MAX_RANKS];
        int n = 0;
        for (int32_t r = 0; r < m->size; r++) {
            if (m->socket[r] < 0 || has_come[r]) continue;
            int got = cf_letter_receive(m->socket[r], &all[r]);
            while (got > 0 && all[r].letter.meeting != atomic_load(&meetings)) { /* of one that failed */
                cf_letter_close_files(&all[r]);
                got = cf_letter_receive(m->socket[r], &all[r]);
            }
            if (got < 0)
                return cf_fail(CFX_EFAULT, "rank %d of %d ended before all had come to init", (int)r, (int)m->size);
            if (got > 0 && all[r].letter.kind == CF_REFUSED) return cf_fail(CFX_EFAULT, "%s", all[r].letter.why);
            if (got > 0 && all[r].letter.kind == kind) {
                has_come[r] = true;
                continue;
            }
            if (got > 0) cf_letter_close_files(&all[r]); /* of a world that is over */
            polled[n++] = (struct pollfd){.fd = m->socket[r], .events = POLLIN};
        }
        if (n == 0) return CFX_OK;
        if (until > 0 && now() > until)
            return cf_fail(CFX_EFAULT, "rank %s of %d has not come in %g s",
                           missing(world, has_come, text, sizeof text), (int)m->size, world->timeout);
        CF_TRY(cf_interrupted(&world->context->hub));
        poll(polled, (nfds_t)n, 100);
    }
}

/* ---- meeting ----------------------------------------------------------------------------------------- */

static cfx_status map_control(cf_world *world, int file) {
    char *control;
    CF_TRY(cf_arena_map(file, cf_control_bytes(world->meeting.size), &control));
    world->control = (cf_control *)control;
    return CFX_OK;
}

static cfx_status map_arenas(cf_world *world, const uint64_t *bytes, const int *files) {
    for (int32_t r = 0; r < world->meeting.size; r++) {
        world->bytes[r] = (size_t)bytes[r];
        if (r == world->meeting.rank) world->arena[r] = cf_arena_base(world->context->arena);
        else CF_TRY(cf_arena_map(files[r], world->bytes[r], &world->arena[r]));
    }
    return CFX_OK;
}

static cfx_status check_hello(const cf_world *world, int32_t r, const cf_received *got) {
    const cf_letter *hello = &got->letter;
    if (hello->abi == CFX_ABI_VERSION && hello->rank == r && hello->size == world->meeting.size && got->nfiles == 1 &&
        hello->ndevices > 0 && hello->ndevices <= CF_MAX_DEVICES)
        return CFX_OK;
    return cf_fail(CFX_EFAULT, "rank %d runs another version of Conflux, or is another program", (int)r);
}

/* Rank 0: gathers all ranks' arenas, makes the control segment, and tells all. */
static cfx_status invite(cf_world *world, double until, cf_received *all) {
    const cf_meeting *m = &world->meeting;
    cf_letter welcome = {
        .kind = CF_WELCOME, .meeting = atomic_load(&meetings), .abi = CFX_ABI_VERSION, .size = m->size};
    int files[CF_LETTER_FILES] = {0}, control = -1;
    CF_TRY(await(world, CF_HELLO, until, all));
    for (int32_t r = 1; r < m->size; r++) CF_TRY(check_hello(world, r, &all[r]));
    CF_TRY(cf_arena_file_new("conflux-world", cf_control_bytes(m->size), &control));
    cfx_status status = map_control(world, control);
    files[0] = control;
    files[1] = cf_arena_file(world->context->arena);
    welcome.bytes[0] = cf_arena_bytes(world->context->arena);
    for (int32_t r = 1; r < m->size; r++) {
        files[r + 1] = all[r].file[0];
        welcome.bytes[r] = all[r].letter.bytes[0];
    }
    if (status == CFX_OK) status = map_arenas(world, welcome.bytes, files + 1);
    if (status == CFX_OK) {
        cf_control_init(world->control, m->size);
        for (int32_t r = 0; r < m->size; r++) {
            cf_peer *peer = &world->control->peer[r];
            peer->pid = r == 0 ? getpid() : all[r].pid;
            peer->ndevices = r == 0 ? world->context->ndevices : all[r].letter.ndevices;
            atomic_store(&peer->state, CF_RANK_IN);
        }
    }
    for (int32_t r = 1; r < m->size && status == CFX_OK; r++)
        if (!cf_letter_send(m->socket[r], &welcome, m->size + 1, files))
            status = cf_fail(CFX_EFAULT, "rank %d of %d cannot be told of the others: %s", (int)r, (int)m->size,
                             cf_strerror(errno));
    close(control);
    return status;
}

static cfx_status host(cf_world *world, double until, cf_received *all) {
    const cf_meeting *m = &world->meeting;
    const cf_letter go = {.kind = CF_GO, .meeting = atomic_load(&meetings)};
    CF_TRY(invite(world, until, all));
    for (int32_t r = 1; r < m->size; r++) cf_letter_close_files(&all[r]);
    CF_TRY(await(world, CF_READY, until, all));
    for (int32_t r = 1; r < m->size; r++) (void)cf_letter_send(m->socket[r], &go, 0, NULL); /* its end is seen later */
    return CFX_OK;
}

static cfx_status visit(cf_world *world, double until, cf_received *all) {
    const cf_meeting *m = &world->meeting;
    const int file = cf_arena_file(world->context->arena);
    cf_letter hello = {.kind = CF_HELLO,
                       .meeting = atomic_load(&meetings),
                       .abi = CFX_ABI_VERSION,
                       .rank = m->rank,
                       .size = m->size,
                       .ndevices = world->context->ndevices,
                       .bytes = {cf_arena_bytes(world->context->arena)}};
    if (!cf_letter_send(m->socket[0], &hello, 1, &file))
        return cf_fail(CFX_EFAULT, "rank 0 of %d ended before all had come to init", (int)m->size);
    CF_TRY(await(world, CF_WELCOME, until, all));
    cf_received *got = &all[0];
    if (got->letter.abi != CFX_ABI_VERSION || got->letter.size != m->size || got->nfiles != m->size + 1)
        return cf_fail(CFX_EFAULT, "rank 0 runs another version of Conflux, or is another program");
    CF_TRY(map_control(world, got->file[0]));
    CF_TRY(map_arenas(world, got->letter.bytes, got->file + 1));
    hello.kind = CF_READY;
    if (!cf_letter_send(m->socket[0], &hello, 0, NULL))
        return cf_fail(CFX_EFAULT, "rank 0 of %d ended before all had come to init", (int)m->size);
    cf_letter_close_files(got);
    return await(world, CF_GO, until, all);
}

cfx_status cf_bootstrap_meet(cf_world *world) {
    const double until = world->timeout > 0 ? now() + world->timeout : 0;
    void *memory;
    if (world->meeting.size == 1) return CFX_OK;
    if (atomic_exchange(&is_taken, 1))
        return cf_fail(CFX_ESTATE, "another context of this process is in the world already");
    atomic_fetch_add(&meetings, 1);
    if (cf_alloc_zero(CF_MAX_RANKS, sizeof(cf_received), &memory) != CFX_OK) {
        cf_bootstrap_release();
        return CFX_EMEMORY;
    }
    cf_received *all = memory;
    cfx_status status = world->meeting.is_slurms ? cf_slurm_connect(world, until) : CFX_OK;
    if (status == CFX_OK) status = cf_context_share(world->context); /* if it fails all hear why */
    if (status == CFX_OK) status = world->meeting.rank == 0 ? host(world, until, all) : visit(world, until, all);
    for (int32_t r = 0; r < CF_MAX_RANKS; r++) cf_letter_close_files(&all[r]);
    free(memory);
    if (status == CFX_OK) return CFX_OK;
    refuse_all(world, cfx_error());
    cf_world_unmap(world);
    cf_bootstrap_release();
    return status;
}
