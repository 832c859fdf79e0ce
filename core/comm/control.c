/* control.c: see control.h. */
#include "comm/control.h"

#include "base/locale.h"
#include <stdarg.h>

static void count_init(cf_progress *count) {
    atomic_store(&count->alarm, UINT64_MAX);
    atomic_store(&count->wanted, UINT64_MAX);
    atomic_store(&count->poisoned_at, UINT64_MAX);
}

void cf_control_init(cf_control *control, int32_t size) {
    control->size = size; /* the file's pages are zero */
    count_init(&control->ready);
    count_init(&control->done);
}

static void ring_all(cf_control *control) {
    for (int32_t r = 0; r < control->size; r++)
        for (int32_t d = 0; d < atomic_load_explicit(&control->peer[r].nbells, memory_order_seq_cst); d++)
            cf_bell_ring(&control->peer[r].bell[d], true);
}

/* Those who sleep until a part that has happened hear of it. */
static void tell(cf_control *control, cf_progress *count, uint64_t now) {
    if (atomic_load_explicit(&count->alarm, memory_order_seq_cst) > now) return;
    atomic_store_explicit(&count->alarm, UINT64_MAX, memory_order_seq_cst);
    ring_all(control);
}

/* Moves a count up to `now`, unless the world is broken: then it stays as it is, so that all ranks judge alike. */
static void move(cf_control *control, cf_progress *count, uint64_t now) {
    uint64_t before = atomic_load_explicit(&count->finished, memory_order_seq_cst);
    while (before < now && !(before & CF_BROKEN))
        if (atomic_compare_exchange_weak_explicit(&count->finished, &before, now, memory_order_seq_cst,
                                                  memory_order_seq_cst)) {
            tell(control, count, now);
            return;
        }
}

static uint64_t least_published(cf_control *control) {
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < control->size; r++) {
        const uint64_t have = atomic_load_explicit(&control->peer[r].published, memory_order_seq_cst);
        if (have < least) least = have;
    }
    return least;
}

static uint64_t least_finished(cf_control *control) {
    uint64_t least = UINT64_MAX;
    for (int32_t r = 0; r < control->size; r++) {
        const uint64_t have = atomic_load_explicit(&control->peer[r].finished, memory_order_seq_cst);
        if (have < least) least = have;
    }
    return least;
}

/* Each rank's own count is written before the others' are read, so of two that come at once one sees both. */
void cf_control_publish(cf_control *control, int32_t rank) {
    atomic_fetch_add_explicit(&control->peer[rank].published, 1, memory_order_seq_cst);
    move(control, &control->ready, least_published(control));
}

void cf_control_finish(cf_control *control, int32_t rank) {
    atomic_fetch_add_explicit(&control->peer[rank].finished, 1, memory_order_seq_cst);
    move(control, &control->done, least_finished(control));
}

void cf_control_help(cf_control *control, int32_t rank) {
    move(control, &control->ready, least_published(control));
    move(control, &control->done, least_finished(control));
    for (int32_t d = 0; d < atomic_load(&control->peer[rank].nbells); d++)
        cf_bell_ring(&control->peer[rank].bell[d], true);
}

void cf_control_stop(cf_control *control) {
    atomic_fetch_or(&control->done.finished, CF_BROKEN);
    atomic_fetch_or(&control->ready.finished, CF_BROKEN);
    ring_all(control);
}

void cf_control_break(cf_control *control, int32_t rank, const char *format, ...) {
    cf_breach *breach = &control->breach;
    uint32_t none = 0;
    if (atomic_load(&breach->chosen) == 0) {
        uint32_t place = atomic_fetch_add(&breach->taken, 1);
        if (place >= CF_WORLD_REASONS) place = CF_WORLD_REASONS - 1; /* any of so many will do */
        va_list arguments;
        va_start(arguments, format);
        cf_vformat(breach->reason[place].why, sizeof breach->reason[place].why, format, arguments);
        va_end(arguments);
        breach->reason[place].rank = rank;
        atomic_compare_exchange_strong(&breach->chosen, &none, place + 1);
    }
    cf_control_stop(control);
}

const char *cf_control_breach(cf_control *control) {
    const uint32_t chosen = atomic_load(&control->breach.chosen);
    return chosen ? control->breach.reason[chosen - 1].why : NULL;
}
