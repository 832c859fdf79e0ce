/* drift.c: replicas that a fault left behind the others.
 *
 * What comes out of a collective is the same in all replicas, and what they then change by it in place stays so, unless
 * one of them skips the change: a fault of its own came between.  So the buffers that a collective gave a value name the
 * round that did it; a command that changes a tensor by them is noted in the round, and in the tensor as a change.  A
 * change that was skipped, as the host learns when the fault is raised, has left its replica behind if another one made
 * more of the round's changes: that tensor is refused until all of it was given a new value.  Where all of them skipped
 * (the fault came through the collective) nobody is behind.
 *
 * A change is forgotten once it is known to have been made.  All of this is the host's.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/tensor.h"

/* What came out of one collective. */
struct cf_round {
    int32_t refs;
    int32_t holders; /* buffers that have the value: as long as there are any, changes by it may come */
    int32_t n, room;
    uint64_t call; /* of the collectives of its context, which one */
    struct cf_noted {
        int32_t replica;
        cf_event event;
    } * noted; /* commands that changed something by it, in the order of each replica */
};

typedef struct change {
    cf_round *round;
    int32_t replica;
    cf_event event;
    int64_t from, to;      /* bytes of the buffer */
    const cf_fault *fault; /* the replica is behind because of it; NULL: not known, or not so */
} change;

struct cf_changes {
    int32_t n, room, behind; /* behind: of these, how many have a fault */
    change items[];
};

/* ---- rounds ----------------------------------------------------------------------------------------- */

static void round_drop(cf_round *round) {
    if (--round->refs > 0) return;
    free(round->noted);
    free(round);
}

static void leave_round(cf_buffer *buffer) {
    if (!buffer->round) return;
    buffer->round->holders--;
    round_drop(buffer->round);
    buffer->round = NULL;
}

static void join_round(cf_buffer *buffer, cf_round *round, int32_t replica) {
    leave_round(buffer);
    round->refs++;
    round->holders++;
    buffer->round = round;
    buffer->replica = replica;
}

cfx_status cf_rounds_begin(int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    const uint64_t call = ++cf_context(leaves[0])->collectives;
    for (int32_t k = 0; k < n; k++) {
        cf_round *round = leaves[k]->_buffer->round;
        if (!round || round->call != call) {
            void *memory;
            CF_TRY(cf_alloc_zero(1, sizeof *round, &memory));
            round = memory;
            round->call = call;
        }
        round->refs++;
        for (int32_t r = 0; r < replicas; r++) {
            cf_buffer *buffer = leaves[(int64_t)r * n + k]->_buffer;
            if (!buffer->round || buffer->round->call != call) join_round(buffer, round, r);
        }
        round_drop(round);
    }
    return CFX_OK;
}

static cfx_status round_room(cf_round *round, int32_t more) {
    const int32_t need = round->n + more;
    if (need <= round->room) return CFX_OK;
    const int32_t room = 2 * round->room > need ? 2 * round->room : need + 7;
    void *noted = round->noted;
    CF_TRY(cf_realloc(&noted, (size_t)room * sizeof *round->noted));
    round->noted = noted;
    round->room = room;
    return CFX_OK;
}

static bool was_skipped(cf_event e) { return cf_event_void(e) || cf_event_is_poisoned(e); }

/* Whether another replica made more of the round's changes than this one. */
static cfx_status is_behind(const cf_round *round, int32_t replica, bool *is) {
    int32_t made[CF_MAX_DEVICES] = {0};
    *is = false;
    for (int32_t k = 0; k < round->n; k++) {
        const struct cf_noted *noted = &round->noted[k];
        CF_TRY(cf_event_wait(noted->event));
        made[noted->replica] += !was_skipped(noted->event);
    }
    for (int32_t r = 0; r < CF_MAX_DEVICES; r++) *is = *is || made[r] > made[replica];
    return CFX_OK;
}

/* ---- changes ---------------------------------------------------------------------------------------- */

static cfx_status changes_room(cf_buffer *buffer, int32_t more) {
    cf_changes *all = buffer->changes;
    const int32_t n = all ? all->n : 0, need = n + more;
    if (all && need <= all->room) return CFX_OK;
    const int32_t room = all && 2 * all->room > need ? 2 * all->room : need + 3;
    void *memory = all;
    CF_TRY(cf_realloc(&memory, sizeof *all + (size_t)room * sizeof *all->items));
    cf_changes *wider = memory;
    if (!all) wider->n = wider->behind = 0;
    wider->room = room;
    buffer->changes = wider;
    return CFX_OK;
}

static void change_add(cf_buffer *buffer, const change *c) {
    c->round->refs++;
    buffer->changes->behind += c->fault != NULL;
    buffer->changes->items[buffer->changes->n++] = *c;
}

static void change_drop(cf_changes *all, int32_t k) {
    all->behind -= all->items[k].fault != NULL;
    round_drop(all->items[k].round);
    all->n--;
    memmove(&all->items[k], &all->items[k + 1], (size_t)(all->n - k) * sizeof *all->items);
}

/* What the command of these tensors takes of a round; NULL: nothing. */
static const cf_buffer *round_of(int nout, int nin, cfx_tensor *const *t) {
    for (int k = nout; k < nout + nin; k++)
        if (t[k]->_buffer->round) return t[k]->_buffer;
    return NULL;
}

cfx_status cf_change_room(int nout, int nin, cfx_tensor *const *t, int32_t commands) {
    const cf_buffer *source = round_of(nout, nin, t);
    if (!source) return CFX_OK;
    for (int k = 0; k < nout; k++) CF_TRY(changes_room(t[k]->_buffer, nout * commands)); /* they may be one */
    return round_room(source->round, commands);
}

void cf_did_change(int nout, int nin, cfx_tensor *const *t, cf_event e) {
    const cf_buffer *source = round_of(nout, nin, t);
    if (!source) return;
    cf_round *round = source->round;
    round->noted[round->n++] = (struct cf_noted){source->replica, e};
    for (int k = 0; k < nout; k++) {
        change c = {.round = round, .replica = source->replica, .event = e};
        cf_extent(t[k], &c.from, &c.to);
        change_add(t[k]->_buffer, &c);
    }
}

/* Learns what became of the changes, as far as it is known by now. */
static cfx_status look(cf_changes *all) {
    for (int32_t k = 0; k < all->n;) {
        change *c = &all->items[k];
        bool is = c->fault != NULL;
        if (is) {
            k++;
            continue;
        }
        const cf_fault *fault = cf_event_void(c->event);
        if (!fault && (!cf_event_done(c->event) || was_skipped(c->event)))
            return CFX_OK; /* nor is what comes behind it */
        if (fault) CF_TRY(is_behind(c->round, c->replica, &is));
        if (is) c->fault = fault;
        all->behind += is;
        /* others may yet make what this one skipped, while they hold what they need for it */
        if (is || (fault && c->round->holders > 0)) k++;
        else change_drop(all, k);
    }
    return CFX_OK;
}

/* The change that left x behind, or NULL. */
static cfx_status find_behind(const cfx_tensor *x, const change **out) {
    cf_changes *all = x->_buffer->changes;
    int64_t from, to;
    *out = NULL;
    if (!all || all->n == 0) return CFX_OK;
    CF_TRY(look(all));
    if (!all->behind) return CFX_OK;
    cf_extent(x, &from, &to);
    for (int32_t k = 0; k < all->n && !*out; k++)
        if (all->items[k].fault && all->items[k].from < to && from < all->items[k].to) *out = &all->items[k];
    return CFX_OK;
}

bool cf_is_behind(const cfx_tensor *x) {
    const change *c;
    return find_behind(x, &c) == CFX_OK && c;
}

cfx_status cf_refuse_behind(const char *function, const char *what, const cfx_tensor *x) {
    char line[160] = "";
    const change *c;
    CF_TRY(find_behind(x, &c));
    if (!c) return CFX_OK;
    if (c->fault->line > 0) snprintf(line, sizeof line, ", enqueued at %s:%d", c->fault->source, c->fault->line);
    return cf_fail(CFX_EFAULT,
                   "%s: replica %d (%s): %s skipped an update that other replicas made (%s%s): synchronize them",
                   function, c->replica + 1, cf_device(x)->name, what, c->fault->message, line);
}

/* Bytes [from, to) of the buffer have another value now. */
static void forget(cf_buffer *buffer, int64_t from, int64_t to) {
    cf_changes *all = buffer->changes;
    for (int32_t k = 0; k < all->n;) {
        change *c = &all->items[k];
        if (c->to <= from || to <= c->from) {
            k++;
        } else if (from <= c->from && c->to <= to) {
            change_drop(all, k);
        } else if (from <= c->from) {
            c->from = to;
            k++;
        } else if (c->to <= to) {
            c->to = from;
            k++;
        } else { /* without room for two the one stays as it is: the tensor is refused longer than it must be */
            if (changes_room(buffer, 1) != CFX_OK) return;
            all = buffer->changes;
            change behind = all->items[k];
            all->items[k].to = from;
            behind.from = to;
            change_add(buffer, &behind);
            k++;
        }
    }
}

void cf_caught_up(const cfx_tensor *x) {
    cf_buffer *buffer = x->_buffer;
    int64_t from, to;
    if (!buffer->changes || buffer->changes->n == 0) return;
    if (cf_is_whole(x)) {
        forget(buffer, 0, INT64_MAX);
    } else if (cfx_is_contiguous(x)) {
        cf_extent(x, &from, &to);
        /* behind a place of a layout lies a gap, where there is nothing to catch up on */
        if (buffer->layout && !(x->_flags & CFX_FLAG_VIEW)) to = (to + CF_ALIGN - 1) & -(int64_t)CF_ALIGN;
        forget(buffer, from, to);
    }
}

cfx_status cf_changes_move(const cfx_tensor *x, const cfx_tensor *y) {
    int64_t from, to, start, end;
    if (!x->_buffer->changes || x->_buffer->changes->n == 0) return CFX_OK;
    const int32_t n = x->_buffer->changes->n;
    cf_extent(x, &from, &to);
    cf_extent(y, &start, &end);
    for (int32_t k = 0; k < n; k++) {
        change c = x->_buffer->changes->items[k];
        if (c.to <= from || to <= c.from) continue;
        c.from = start;
        c.to = end;
        CF_TRY(changes_room(y->_buffer, 1));
        change_add(y->_buffer, &c);
    }
    return CFX_OK;
}

int32_t cf_changes_kept(const cfx_tensor *x) { return x->_buffer->changes ? x->_buffer->changes->n : 0; }

void cf_drift_free(cf_buffer *buffer) {
    leave_round(buffer);
    if (buffer->changes) forget(buffer, 0, INT64_MAX);
    free(buffer->changes);
    buffer->changes = NULL;
}
