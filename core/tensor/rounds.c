/* rounds.c: counting rounds and keeping changes.  See rounds.h. */
#include "tensor/rounds.h"

#include <stdlib.h>
#include <string.h>

#include "base/status.h"

void cf_round_drop(cf_round *round) {
    if (--round->refs > 0) return;
    free(round->noted);
    free(round);
}

static void leave_round(cf_drift *drift) {
    if (!drift->round) return;
    drift->round->holders--;
    cf_round_drop(drift->round);
    drift->round = NULL;
}

void cf_round_join(cf_drift *drift, cf_round *round, int32_t replica) {
    leave_round(drift);
    round->refs++;
    round->holders++;
    drift->round = round;
    drift->replica = replica;
}

/* Counts the commands that are known to have run, and forgets those and what was skipped for good. */
static void count_made(cf_round *round) {
    int32_t kept = 0;
    for (int32_t k = 0; k < round->n; k++) {
        const struct cf_noted noted = round->noted[k];
        const bool is_void = cf_event_void(noted.event) != NULL;
        if (cf_event_done(noted.event) && (is_void || !cf_event_is_poisoned(noted.event)))
            round->made[noted.replica] += !is_void;
        else round->noted[kept++] = noted;
    }
    round->n = kept;
}

cfx_status cf_round_room(cf_round *round, int32_t more) {
    if (round->n + more <= round->room) return CFX_OK;
    count_made(round);
    const int32_t need = round->n + more;
    if (2 * need <= round->room) return CFX_OK; /* else it would soon be counted again */
    const int32_t room = 2 * round->room > need ? 2 * round->room : need + 7;
    void *noted = round->noted;
    CF_TRY(cf_realloc(&noted, (size_t)room * sizeof *round->noted));
    round->noted = noted;
    round->room = room;
    return CFX_OK;
}

cfx_status cf_changes_room(cf_drift *drift, int32_t more) {
    cf_changes *all = drift->changes;
    const int32_t n = all ? all->n : 0, need = n + more;
    if (all && need <= all->room) return CFX_OK;
    const int32_t room = all && 2 * all->room > need ? 2 * all->room : need + 3;
    void *memory = all;
    CF_TRY(cf_realloc(&memory, sizeof *all + (size_t)room * sizeof *all->items));
    cf_changes *wider = memory;
    if (!all) wider->n = wider->behind = 0;
    wider->room = room;
    drift->changes = wider;
    return CFX_OK;
}

void cf_change_add(cf_drift *drift, const cf_change *c) {
    c->round->refs++;
    drift->changes->behind += c->fault != NULL;
    drift->changes->items[drift->changes->n++] = *c;
}

void cf_change_drop(cf_changes *all, int32_t k) {
    all->behind -= all->items[k].fault != NULL;
    cf_round_drop(all->items[k].round);
    all->n--;
    memmove(&all->items[k], &all->items[k + 1], (size_t)(all->n - k) * sizeof *all->items);
}

/* Bytes [from, to) of the buffer have another value now. */
void cf_changes_forget(cf_drift *drift, int64_t from, int64_t to) {
    cf_changes *all = drift->changes;
    for (int32_t k = 0; k < all->n;) {
        cf_change *c = &all->items[k];
        if (c->to <= from || to <= c->from) {
            k++;
        } else if (from <= c->from && c->to <= to) {
            cf_change_drop(all, k);
        } else if (from <= c->from) {
            c->from = to;
            k++;
        } else if (c->to <= to) {
            c->to = from;
            k++;
        } else { /* without room for two the one stays as it is: the tensor is refused longer than it must be */
            if (cf_changes_room(drift, 1) != CFX_OK) return;
            all = drift->changes;
            cf_change behind = all->items[k];
            all->items[k].to = from;
            behind.from = to;
            cf_change_add(drift, &behind);
            k++;
        }
    }
}

void cf_drift_free(cf_drift *drift) {
    leave_round(drift);
    if (drift->changes) cf_changes_forget(drift, 0, INT64_MAX);
    free(drift->changes);
    drift->changes = NULL;
}
