/* drift.c: what changed and what did not.  See drift.h. */
#include "tensor/drift.h"

#include <stdio.h>
#include <string.h>

/* ---- rounds ----------------------------------------------------------------------------------------- */

cfx_status cf_rounds_begin(int32_t replicas, int32_t n, cfx_tensor *const *leaves) {
    const uint64_t call = ++cf_context(leaves[0])->collectives;
    for (int32_t k = 0; k < n; k++) {
        cf_round *round = leaves[k]->_buffer->drift.round;
        if (!round || round->call != call) {
            void *memory;
            CF_TRY(cf_alloc_zero(1, sizeof *round, &memory));
            round = memory;
            round->call = call;
        }
        round->refs++;
        for (int32_t r = 0; r < replicas; r++) {
            cf_buffer *buffer = leaves[(int64_t)r * n + k]->_buffer;
            if (!buffer->drift.round || buffer->drift.round->call != call) cf_round_join(&buffer->drift, round, r);
        }
        cf_round_drop(round);
    }
    return CFX_OK;
}

static bool was_skipped(cf_event e) { return cf_event_void(e) || cf_event_is_poisoned(e); }

/* Whether another replica made more of the round's changes than this one. */
static cfx_status is_behind(const cf_round *round, int32_t replica, bool *is) {
    int64_t made[CF_MAX_DEVICES];
    memcpy(made, round->made, sizeof made);
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

/* The buffer by whose round the command of these tensors changes its outputs; NULL: there is none. */
static const cf_drift *round_of(int nout, int nin, cfx_tensor *const *t) {
    for (int k = nout; k < nout + nin; k++)
        if (t[k]->_buffer->drift.round) return &t[k]->_buffer->drift;
    return NULL;
}

/* Learns what became of a change; *stays: it is to be kept.  Of one that is not known by now neither is known what comes
 * behind it. */
static cfx_status look_at(cf_changes *all, cf_change *c, bool *is_known, bool *stays) {
    bool is = false;
    *is_known = *stays = true;
    if (c->fault) return CFX_OK;
    const cf_fault *fault = cf_event_void(c->event);
    *is_known = fault || (cf_event_done(c->event) && !was_skipped(c->event));
    if (!*is_known) return CFX_OK;
    if (fault) CF_TRY(is_behind(c->round, c->replica, &is));
    if (is) c->fault = fault;
    all->behind += is;
    /* others may yet make what this one skipped, while they hold what they need for it */
    *stays = is || (fault && c->round->holders > 0);
    return CFX_OK;
}

/* Learns what became of the changes, as far as it is known by now, and forgets those that were made. */
static cfx_status look(cf_changes *all) {
    cfx_status status = CFX_OK;
    int32_t kept = 0, k = 0;
    for (bool is_known = true, stays; k < all->n; k++) {
        status = look_at(all, &all->items[k], &is_known, &stays);
        if (status != CFX_OK || !is_known) break;
        if (stays) all->items[kept++] = all->items[k];
        else cf_round_drop(all->items[k].round);
    }
    memmove(&all->items[kept], &all->items[k], (size_t)(all->n - k) * sizeof *all->items);
    all->n -= k - kept;
    return status;
}

/* Room for so many more changes: for what is under way, not for what was made in a long run. */
static cfx_status changes_room(cf_drift *drift, int32_t more) {
    cf_changes *all = drift->changes;
    if (all && all->n + more > all->room) {
        CF_TRY(look(all));
        if (2 * all->n > all->room) more += all->room; /* else it would soon be looked at again */
    }
    return cf_changes_room(drift, more);
}

cfx_status cf_change_room(int nout, int nin, cfx_tensor *const *t, int32_t commands) {
    const cf_drift *source = round_of(nout, nin, t);
    if (!source) return CFX_OK;
    for (int k = 0; k < nout; k++) CF_TRY(changes_room(&t[k]->_buffer->drift, nout * commands)); /* they may be one */
    return cf_round_room(source->round, commands);
}

void cf_did_change(int nout, int nin, cfx_tensor *const *t, cf_event e) {
    const cf_drift *source = round_of(nout, nin, t);
    if (!source) return;
    cf_round *round = source->round;
    round->noted[round->n++] = (struct cf_noted){source->replica, e};
    for (int k = 0; k < nout; k++) {
        cf_change c = {.round = round, .replica = source->replica, .event = e};
        cf_extent(t[k], &c.from, &c.to);
        cf_change_add(&t[k]->_buffer->drift, &c);
    }
}

/* The change that left x behind, or NULL. */
static cfx_status find_behind(const cfx_tensor *x, const cf_change **out) {
    cf_changes *all = x->_buffer->drift.changes;
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
    const cf_change *c;
    return find_behind(x, &c) == CFX_OK && c;
}

cfx_status cf_refuse_behind(const char *function, const char *what, const cfx_tensor *x) {
    char line[160] = "";
    const cf_change *c;
    CF_TRY(find_behind(x, &c));
    if (!c) return CFX_OK;
    if (c->fault->line > 0) snprintf(line, sizeof line, ", enqueued at %s:%d", c->fault->source, c->fault->line);
    return cf_fail(CFX_EFAULT,
                   "%s: replica %d (%s): %s skipped an update that other replicas made (%s%s): synchronize them",
                   function, c->replica + 1, cf_device(x)->name, what, c->fault->message, line);
}

void cf_caught_up(const cfx_tensor *x) {
    cf_buffer *buffer = x->_buffer;
    int64_t from, to;
    if (!buffer->drift.changes || buffer->drift.changes->n == 0) return;
    if (cf_is_whole(x)) {
        cf_changes_forget(&buffer->drift, 0, INT64_MAX);
    } else if (cfx_is_contiguous(x)) {
        cf_extent(x, &from, &to);
        /* behind a place of a layout lies a gap, where there is nothing to catch up on */
        if (buffer->layout && !(x->_flags & CFX_FLAG_VIEW)) to = (to + CF_ALIGN - 1) & -(int64_t)CF_ALIGN;
        cf_changes_forget(&buffer->drift, from, to);
    }
}

cfx_status cf_changes_move(const cfx_tensor *x, const cfx_tensor *y) {
    int64_t from, to, start, end;
    if (!x->_buffer->drift.changes || x->_buffer->drift.changes->n == 0) return CFX_OK;
    const int32_t n = x->_buffer->drift.changes->n;
    cf_extent(x, &from, &to);
    cf_extent(y, &start, &end);
    for (int32_t k = 0; k < n; k++) {
        cf_change c = x->_buffer->drift.changes->items[k];
        if (c.to <= from || to <= c.from) continue;
        c.from = start;
        c.to = end;
        CF_TRY(cf_changes_room(&y->_buffer->drift, 1));
        cf_change_add(&y->_buffer->drift, &c);
    }
    return CFX_OK;
}

int32_t cf_changes_kept(const cfx_tensor *x) { return x->_buffer->drift.changes ? x->_buffer->drift.changes->n : 0; }
