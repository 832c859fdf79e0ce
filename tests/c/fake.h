/* fake.h: a backend for tests, "fake", whose kernels only launch work: it runs the CPU's kernels in memory that it calls
 * its own, what it ran has happened when a test says so, and its devices share no memory but those that are parts of
 * one.  Include it after test.h.
 */
#ifndef CF_TEST_FAKE_H
#define CF_TEST_FAKE_H

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

#include "cpu/backend.h"
#include "cpu/cpu.h"
#include "cpu/kernels/table.h"
#include "queues.h"

enum { DEVICES = 5 };

typedef struct stream {
    _Atomic uint64_t marked, allowed; /* tickets up to `allowed` happen by themselves */
    _Atomic int followers;
    _Atomic uint64_t broken; /* the ticket that turns out to have been wrong */
    struct fake_group *joined;
} stream;

/* In the order in which a context opens its devices. */
static int opened;
static stream streams[2 * DEVICES][CF_QUEUES];
static _Atomic int selected, copies, forgiven;

static int32_t fake_count(char *why, size_t why_bytes) {
    (void)why;
    (void)why_bytes;
    return DEVICES;
}
static cfx_status fake_open(int32_t index, void **state) {
    stream *s = streams[opened++ % (2 * DEVICES)];
    (void)index;
    *state = s;
    for (int q = 0; q < CF_QUEUES; q++) {
        atomic_store(&s[q].marked, 0);
        atomic_store(&s[q].allowed, UINT64_MAX);
        atomic_store(&s[q].broken, 0);
    }
    return CFX_OK;
}
static void fake_close(void *state) { (void)state; }
static size_t fake_memory(void *state) {
    (void)state;
    return 1 << 28;
}
static cfx_status fake_slab_new(void *state, size_t bytes, void **out) {
    (void)state;
    *out = aligned_alloc(4096, (bytes + 4095) & ~(size_t)4095);
    return *out ? CFX_OK : cf_fail(CFX_EMEMORY, "no memory");
}
static void fake_slab_free(void *state, void *slab, size_t bytes) {
    (void)state;
    (void)bytes;
    free(slab);
}
static cfx_status fake_begin(cf_worker *worker) { return cf_backend_cpu()->thread_begin(worker); }
static void fake_end(cf_worker *worker) { cf_backend_cpu()->thread_end(worker); }
static void fake_select(cf_worker *worker, int q, uint64_t ticket) {
    (void)worker;
    (void)ticket;
    atomic_store(&selected, q);
}
static cfx_status fake_mark(cf_worker *worker, int q, uint64_t ticket) {
    stream *s = worker->state;
    atomic_store(&s[q].marked, ticket);
    return CFX_OK;
}
static cfx_status fake_poll(cf_worker *worker, int q, uint64_t *done, uint64_t *faulted) {
    stream *s = worker->state;
    const uint64_t marked = atomic_load(&s[q].marked), allowed = atomic_load(&s[q].allowed);
    if (marked <= allowed) *done = marked;
    else if (allowed > *done) *done = allowed;
    const uint64_t broken = atomic_load(&s[q].broken);
    if (broken == 0 || broken > *done) return CFX_OK;
    *faulted = broken;
    atomic_store(&s[q].broken, 0);
    return cf_fail(CFX_EFAULT, "id 7 is wrong");
}
static bool fake_follow(cf_worker *worker, int q, void *other, int of, uint64_t ticket) {
    stream *s = other;
    (void)worker;
    (void)q;
    if (atomic_load(&s[of].marked) < ticket) return false;
    atomic_fetch_add(&s[of].followers, 1);
    return true;
}
static cfx_status fake_copy(cf_worker *worker, void *to, const void *from, size_t bytes) {
    (void)worker;
    atomic_fetch_add(&copies, 1);
    memcpy(to, from, bytes);
    return CFX_OK;
}
static cfx_status fake_pin(void *state, size_t bytes, void **out) { return fake_slab_new(state, bytes, out); }
static void fake_unpin(void *state, void *memory) { fake_slab_free(state, memory, 0); }

/* ---- its link ---------------------------------------------------------------------------------------- */

/* Participants meet: the last one to come does the work of all. */
typedef struct fake_group {
    pthread_mutex_t lock;
    int n, came;
    void *states[16];
    cf_join joins[16];
    int rounds, round[16]; /* done; that a participant is in */
    uint64_t sequence;     /* of the last one */
    char why[256];         /* it was given up */
} fake_group;

static fake_group fake_groups[32];
static int nfake_groups;
static _Atomic int fake_group_fails, fake_join_fails, fake_reaches, launches;

static cfx_status fake_open_group(int32_t n, void *const *states, void **out) {
    if (atomic_load(&fake_group_fails)) return cf_fail(CFX_EFAULT, "fake collectives: no network");
    for (int k = 0; k < nfake_groups; k++) {
        *out = &fake_groups[k];
        if (fake_groups[k].n == n && memcmp(fake_groups[k].states, states, (size_t)n * sizeof *states) == 0 &&
            !*fake_groups[k].why)
            return CFX_OK;
    }
    if (nfake_groups == 32) return cf_fail(CFX_EMEMORY, "too many fake groups");
    fake_group *group = *out = &fake_groups[nfake_groups++];
    memset(group, 0, sizeof *group);
    pthread_mutex_init(&group->lock, NULL);
    group->n = n;
    memcpy(group->states, states, (size_t)n * sizeof *states);
    return CFX_OK;
}
static bool fake_reach(void *state, void *other) {
    (void)state;
    (void)other;
    return atomic_load(&fake_reaches);
}

/* One participant's numbers through the CPU's kernel for replicas in one memory. */
static cfx_status fake_combine(cf_worker *worker, const fake_group *g, int64_t offset_in, int64_t n, int root) {
    const cf_join *like = &g->joins[0];
    const int size = cfx_dtype_size(like->dtype);
    cf_call *call = calloc(1, cf_call_bytes(g->n, sizeof(cf_combine_params)));
    *call = (cf_call){.op = CF_OP_combine, .nout = (uint8_t)g->n, .dtype = (uint8_t)like->dtype};
    *CF_PARAMS(call, combine) = (cf_combine_params){.op = like->op, .root = root};
    for (int r = 0; r < g->n; r++)
        call->v[r] = (cf_view){.data = (char *)g->joins[r].in + offset_in * size,
                               .dtype = like->dtype,
                               .ndim = 1,
                               .shape = {n},
                               .stride = {1}};
    const cfx_status status = cf_cpu_kernels_base[CF_OP_combine](worker, call);
    free(call);
    return status;
}
/* y = x, of any dtypes. */
static cfx_status fake_convert(cf_worker *worker, void *y, int to, void *x, int from, int64_t n) {
    cf_call *call = calloc(1, cf_call_bytes(2, 0));
    *call = (cf_call){.op = CF_OP_copy, .nout = 1, .nin = 1, .dtype = (uint8_t)to};
    call->v[0] = (cf_view){.data = y, .dtype = to, .ndim = 1, .shape = {n}, .stride = {1}};
    call->v[1] = (cf_view){.data = x, .dtype = from, .ndim = 1, .shape = {n}, .stride = {1}};
    const cfx_status status = cf_cpu_kernels_base[CF_OP_copy](worker, call);
    free(call);
    return status;
}
static cfx_status fake_scale(cf_worker *worker, const fake_group *g) {
    const int64_t n = g->joins[0].n;
    const int dtype = g->joins[0].dtype;
    double *wide = malloc((size_t)n * sizeof *wide);
    cfx_status status = CFX_OK;
    for (int r = 0; r < g->n && g->joins[r].scale != 1 && status == CFX_OK; r++) {
        status = fake_convert(worker, wide, CFX_FLOAT64, g->joins[r].out, dtype, n);
        for (int64_t i = 0; i < n; i++) wide[i] *= g->joins[r].scale;
        if (status == CFX_OK) status = fake_convert(worker, g->joins[r].out, dtype, wide, CFX_FLOAT64, n);
    }
    free(wide);
    return status;
}
static cfx_status fake_meet(cf_worker *worker, fake_group *g) {
    const cf_join *like = &g->joins[0];
    const size_t bytes = (size_t)like->n * (size_t)cfx_dtype_size(like->dtype);
    cfx_status status = CFX_OK;
    for (int r = 0; r < g->n; r++)
        if (g->joins[r].sequence != like->sequence || like->sequence <= g->sequence)
            return cf_fail(CFX_EFAULT, "participant %d is out of step", r);
    g->sequence = like->sequence;
    if (like->kind == CF_JOIN_REDUCE) {
        status = fake_scale(worker, g);
        if (status != CFX_OK) return status;
        return fake_combine(worker, g, 0, like->n, like->root);
    }
    for (int r = 0; r < g->n && status == CFX_OK; r++) {
        if (like->kind == CF_JOIN_GATHER) {
            for (int s = 0; s < g->n; s++) memcpy((char *)g->joins[r].out + (size_t)s * bytes, g->joins[s].in, bytes);
            continue;
        }
        /* its input must stay: the root's stretch is put back */
        char *from = (char *)g->joins[r].in + (size_t)r * bytes, *keep = malloc(bytes);
        memcpy(keep, from, bytes);
        status = fake_combine(worker, g, r * like->n, like->n, r);
        memmove(g->joins[r].out, from, bytes);
        if (g->joins[r].out != from) memcpy(from, keep, bytes);
        free(keep);
    }
    return status;
}
static cfx_status fake_start(cf_worker *worker, void *group, int32_t rank, const cf_join *join) {
    fake_group *g = group;
    cfx_status status = CFX_OK;
    atomic_fetch_add(&launches, 1);
    if (atomic_load(&fake_join_fails) == rank + 1) return cf_fail(CFX_EFAULT, "fake collectives: cable cut");
    pthread_mutex_lock(&g->lock);
    if (*g->why) {
        status = cf_fail(CFX_EFAULT, "%s", g->why);
        pthread_mutex_unlock(&g->lock);
        return status;
    }
    g->joins[rank] = *join;
    g->round[rank] = g->rounds + 1;
    ((stream *)worker->state)[CF_COMM].joined = g;
    if (++g->came == g->n) {
        status = fake_meet(worker, g);
        g->came = 0;
        g->rounds++;
    }
    pthread_mutex_unlock(&g->lock);
    return status;
}
static cfx_status fake_test(cf_worker *worker, int q, bool *is) {
    fake_group *g = ((stream *)worker->state)[q].joined;
    pthread_mutex_lock(&g->lock);
    for (int r = 0; r < g->n; r++)
        if (g->states[r] == worker->state) *is = g->rounds >= g->round[r];
    const cfx_status status = *g->why ? cf_fail(CFX_EFAULT, "%s", g->why) : CFX_OK;
    pthread_mutex_unlock(&g->lock);
    return status;
}
static cfx_status fake_abort(cf_worker *worker, void *group, int32_t rank, const char *why) {
    fake_group *g = group;
    (void)worker;
    pthread_mutex_lock(&g->lock);
    if (!*g->why) snprintf(g->why, sizeof g->why, "%s (%d)", why, rank);
    const cfx_status status = cf_fail(CFX_EFAULT, "%s", g->why);
    pthread_mutex_unlock(&g->lock);
    return status;
}

static const cf_link fake_link = {"fakeccl", fake_open_group, fake_reach, fake_start, fake_test, fake_abort};

static cfx_status fake_forgive(void *state) {
    (void)state;
    atomic_fetch_add(&forgiven, 1);
    return CFX_OK;
}
static cfx_status fake_inherit(cf_worker *worker, int q, uint64_t ticket, int n, const cf_source *of) {
    (void)worker, (void)q, (void)ticket, (void)n, (void)of;
    return CFX_OK; /* its updates look at nothing */
}

static const cf_streams fake_streams = {fake_select,  fake_mark, fake_poll, fake_forgive, fake_follow,
                                        fake_inherit, fake_copy, fake_pin,  fake_unpin};
static const cf_backend fake = {.abi = CFX_ABI_VERSION,
                                .name = "fake",
                                .host_memory = 0,
                                .count = fake_count,
                                .open = fake_open,
                                .close = fake_close,
                                .memory = fake_memory,
                                .slab_new = fake_slab_new,
                                .slab_free = fake_slab_free,
                                .thread_begin = fake_begin,
                                .thread_end = fake_end,
                                .kernels = cf_cpu_kernels_base,
                                .workspace = cf_cpu_workspace_base,
                                .streams = &fake_streams,
                                .link = &fake_link};

static inline cfx_context *context_of(const char *spec) {
    static int is_known;
    if (!is_known) CHECK_STATUS(cf_backend_add(&fake), CFX_OK);
    is_known = 1;
    opened = nfake_groups = 0;
    return new_context(spec);
}

static inline void hold(int device, int q) { atomic_store(&streams[device][q].allowed, 0); }
static inline void let_happen(int device, int q) { atomic_store(&streams[device][q].allowed, UINT64_MAX); }

static inline cfx_tensor plus(const cfx_tensor *x, double by) {
    cfx_tensor y = {0};
    CHECK_STATUS(cfx_binary_scalar(CF_OP_add, x, by, 0, &y), CFX_OK);
    return y;
}

#endif
