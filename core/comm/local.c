/* local.c: slices, each joined by one device's worker.  See local.h. */
#include "comm/local.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

/* A slice of fewer bytes than this takes less time than a second worker needs to hear of it, and all to hear of its end.
 * So small parts are one slice; those of a list go to one device until they are as many bytes, and then to the next. */
enum { SLICE_BYTES = 96 << 10 };

/* A worker takes its slice by pieces of so many bytes for each of its threads; elements: a multiple of UNIT. */
enum { PIECE_BYTES = 64 << 10, UNIT = 1024 };

/* About as long as a piece takes. */
enum { SPINS = 400 };

/* ---- pieces ----------------------------------------------------------------------------------------- */

/* The pieces [from, to) of a slice that no worker has taken: to << 32 | from; in a cache line of its own. */
typedef struct rest {
    _Atomic uint64_t pieces;
    char apart[56];
} rest;

/* Shared by the slices of a part.  A worker that is through with its own slice, whose pieces it takes from the front,
 * goes on with the last pieces of the others'.  The worker of the first slice ends it when all pieces are done, so that
 * it alone is waited for, and a worker that sleeps, or is kept from its core, holds up nobody: when it comes, nothing
 * is left for it.  The share is the group's, and serves another part once the last slice has ended. */
typedef struct shared {
    struct shared *next;    /* of a ring */
    _Atomic int32_t users;  /* slices that have not ended */
    _Atomic int32_t failed; /* 1: a piece did */
    _Atomic int64_t pieces; /* that are not done */
    rest rests[];           /* [slices] */
} shared;

static cfx_status share_new(cf_group *group, shared **out) {
    shared *last = group->own; /* the one that was taken last */
    void *memory;
    if (last && atomic_load_explicit(&last->next->users, memory_order_acquire) == 0) {
        *out = group->own = last->next;
        return CFX_OK;
    }
    CF_TRY(cf_alloc_zero(1, sizeof(shared) + (size_t)group->size * sizeof(rest), &memory));
    shared *made = memory;
    made->next = last ? last->next : made;
    if (last) last->next = made;
    *out = group->own = made;
    return CFX_OK;
}

static void end_shares(cf_group *group) {
    for (shared *first = group->own, *at = first, *next; at; at = next == first ? NULL : next) {
        next = at->next;
        free(at);
    }
}

/* One piece, the first of a worker's own slice, the last of another's; false: none is left. */
static bool take_piece(rest *of, bool own, int64_t *out) {
    uint64_t pieces = atomic_load_explicit(&of->pieces, memory_order_relaxed), left;
    do {
        const uint64_t from = pieces & UINT32_MAX, to = pieces >> 32;
        if (from >= to) return false;
        *out = (int64_t)(own ? from : to - 1);
        left = own ? pieces + 1 : pieces - (UINT64_C(1) << 32);
    } while (
        !atomic_compare_exchange_weak_explicit(&of->pieces, &pieces, left, memory_order_relaxed, memory_order_relaxed));
    return true;
}

/* Waits for the pieces that other workers have begun: they are in the middle of them, and wait for nothing. */
static void wait_for_pieces(shared *share) {
    for (int spins = 0; atomic_load_explicit(&share->pieces, memory_order_acquire) > 0; spins++) {
        if (spins < SPINS) cf_relax();
        else sched_yield();
    }
}

/* ---- a slice ---------------------------------------------------------------------------------------- */

typedef struct slice {
    shared *share; /* NULL: there is one slice, or its device only launches: the call is all of it */
    int32_t number, slices;
    int64_t n, piece; /* elements of the part, and of a piece; the call's views begin where the part does */
    cf_call call;
} slice;

static cfx_status run_piece(cf_worker *worker, slice *s, int64_t number) {
    cf_call *call = &s->call;
    const int64_t from = number * s->piece, left = s->n - from, offset = from * cf_dtype_size(call->dtype);
    for (int k = 0; k < call->nout; k++) {
        call->v[k].data = (char *)call->v[k].data + offset;
        call->v[k].shape[0] = left < s->piece ? left : s->piece;
    }
    const cfx_status status = worker->backend->kernels[CF_OP_combine](worker, call);
    for (int k = 0; k < call->nout; k++) call->v[k].data = (char *)call->v[k].data - offset;
    return status;
}

/* In a poisoned queue the pieces of the first slice, and what is left of the others', are taken and left undone. */
static cfx_status run_slice(cf_worker *worker, void *payload, bool poisoned) {
    slice *s = payload;
    shared *share = s->share;
    if (!share) return worker->backend->kernels[CF_OP_combine](worker, &s->call);
    cfx_status status = CFX_OK;
    int64_t taken = 0, piece;
    for (int32_t k = 0; k < s->slices && (s->number == 0 || !poisoned); k++) {
        rest *of = &share->rests[(s->number + k) % s->slices];
        for (; take_piece(of, k == 0, &piece); taken++)
            if (status == CFX_OK && !poisoned) status = run_piece(worker, s, piece);
    }
    if (status != CFX_OK) atomic_store_explicit(&share->failed, 1, memory_order_relaxed);
    atomic_fetch_sub_explicit(&share->pieces, taken, memory_order_release);
    if (s->number == 0) {
        wait_for_pieces(share);
        if (status == CFX_OK && atomic_load_explicit(&share->failed, memory_order_relaxed))
            status = cf_fail(CFX_EFAULT, "another device failed in its part");
    }
    atomic_fetch_sub_explicit(&share->users, 1, memory_order_release);
    return status;
}

/* ---- parts ------------------------------------------------------------------------------------------ */

/* How a part is cut: into slices, for the devices from `first` on, or all; into pieces, or not. */
typedef struct cut {
    int32_t first, slices;
    int64_t piece, pieces;
} cut;

static cut cut_for(const cf_group *group, const cf_part *part, int64_t *bytes_before) {
    const int64_t size = cf_dtype_size(part->dtype), bytes = part->n * size, worth = bytes / SLICE_BYTES;
    cut c = {.first = (int32_t)(*bytes_before / SLICE_BYTES % group->size), .slices = worth < 1 ? 1 : (int32_t)worth};
    *bytes_before += bytes;
    if (worth >= group->size) c = (cut){.slices = group->size};
    int64_t threads = 1;
    for (int32_t r = 0; r < group->size; r++) {
        const int32_t own = cfx_device_threads(group->devices[r]);
        if (own > threads) threads = own;
    }
    c.piece = (PIECE_BYTES * threads / size + UNIT - 1) / UNIT * UNIT;
    if (c.slices == 1 || group->devices[0]->backend->streams) c.piece = UNIT;
    c.pieces = (part->n + c.piece - 1) / c.piece;
    return c;
}

/* The first piece of slice s. */
static int64_t piece_at(const cut *c, int32_t s) { return c->pieces * s / c->slices; }

static size_t params_bytes(const cf_group *group, const cf_collective *how) {
    return sizeof(cf_combine_params) + (how->weights ? (size_t)group->size * sizeof *how->weights : 0);
}

static size_t payload_bytes(const cf_group *group, const cf_collective *how) {
    return sizeof(slice) - sizeof(cf_call) + cf_call_bytes(group->size, params_bytes(group, how));
}

static void fill_call(const cf_group *group, const cf_collective *how, const cf_part *part, int64_t from, int64_t n,
                      cf_call *call) {
    *call = (cf_call){.op = CF_OP_combine, .nout = (uint8_t)group->size, .dtype = (uint8_t)part->dtype};
    cf_combine_params *params = cf_call_params(call);
    *params = (cf_combine_params){.op = how->op, .root = how->root};
    if (how->weights) memcpy(params->weight, how->weights, (size_t)group->size * sizeof *how->weights);
    for (int32_t r = 0; r < group->size; r++)
        call->v[r] = (cf_view){.data = cf_part_data(part, r) + from * cf_dtype_size(part->dtype),
                               .dtype = part->dtype,
                               .ndim = 1,
                               .shape = {n},
                               .stride = {1}};
}

static cfx_status enqueue_slice(const cf_group *group, const cf_collective *how, const cf_part *part, const cut *c,
                                shared *share, int32_t number, cf_event *done) {
    cf_queue *queue = cf_queue_at(group->devices[(c->first + number) % group->size], CF_COMM);
    cf_dispatch d;
    void *payload;
    cf_dispatch_begin(&d, queue, run_slice, "allreduce", share ? CF_ALWAYS : 0, NULL);
    /* in every replica the stretch's own writes, and where it writes, all reads */
    for (int32_t r = 0; r < group->size; r++)
        CF_TRY(cf_part_add(&d, part, r, cf_combine_reads(how->op, how->root, r),
                           cf_combine_writes(how->op, how->root, r)));
    CF_TRY(cf_dispatch_reserve(&d, payload_bytes(group, how), &payload));
    slice *s = payload;
    s->share = share;
    s->number = number;
    s->slices = c->slices;
    s->piece = c->piece;
    s->n = part->n;
    const int64_t from = piece_at(c, number) * c->piece, to = piece_at(c, number + 1) * c->piece;
    if (share) fill_call(group, how, part, 0, part->n, &s->call);
    else fill_call(group, how, part, from, (to < part->n ? to : part->n) - from, &s->call);
    *done = cf_dispatch_end(&d);
    return CFX_OK;
}

/* All is set before the first slice is enqueued, for its worker may be through with it before the second one is. */
static cfx_status share_for(cf_group *group, const cut *c, shared **out) {
    *out = NULL;
    if (c->slices == 1 || group->devices[0]->backend->streams) return CFX_OK;
    CF_TRY(share_new(group, out));
    for (int32_t s = 0; s < c->slices; s++) {
        const uint64_t from = (uint64_t)piece_at(c, s), to = (uint64_t)piece_at(c, s + 1);
        atomic_store_explicit(&(*out)->rests[s].pieces, to << 32 | from, memory_order_relaxed);
    }
    atomic_store_explicit(&(*out)->users, c->slices, memory_order_relaxed);
    atomic_store_explicit(&(*out)->failed, 0, memory_order_relaxed);
    atomic_store_explicit(&(*out)->pieces, c->pieces, memory_order_relaxed);
    return CFX_OK;
}

static cfx_status enqueue_part(cf_group *group, const cf_collective *how, const cf_part *part, int64_t *bytes_before,
                               cf_event *events) {
    const cut c = cut_for(group, part, bytes_before);
    shared *share;
    CF_TRY(share_for(group, &c, &share));
    cf_event unnoted;
    cfx_status status = CFX_OK;
    int32_t s = 0;
    for (; s < c.slices && status == CFX_OK; s++)
        status = enqueue_slice(group, how, part, &c, share, s, share && s > 0 ? &unnoted : &events[s]);
    if (status != CFX_OK && share) atomic_fetch_sub_explicit(&share->users, c.slices - s + 1, memory_order_release);
    return status;
}

static cfx_status combine(cf_group *group, const cf_collective *how, int32_t nparts, const cf_part *parts) {
    const int32_t replicas = group->size;
    int64_t bytes = 0;
    void *memory;
    if (nparts == 0) return CFX_OK;
    CF_TRY(cf_alloc_zero((size_t)nparts * (size_t)replicas, sizeof(cf_event), &memory));
    cf_event *events = memory;
    cfx_status status = cf_parts_notable(group, how, nparts, parts, replicas);
    int32_t k = 0, end = 0;
    while (k < nparts && status == CFX_OK) {
        status = cf_parts_room(group, payload_bytes(group, how), k, nparts, &end);
        for (; k < end && status == CFX_OK; k++)
            status = enqueue_part(group, how, &parts[k], &bytes, &events[k * replicas]);
    }
    cf_parts_done(group);
    /* Orders are noted after all is enqueued, so parts of one buffer do not wait for each other; and also where an
     * interrupt came between, of what was enqueued before. */
    for (k = 0; k < end; k++)
        for (int32_t r = 0; r < replicas; r++) cf_part_note(how, &parts[k], r, replicas, &events[k * replicas]);
    free(memory);
    return status;
}

const cf_way cf_way_local = {.name = "local", .combine = combine, .end = end_shares};
