/* loader.c: batches of shuffled samples, made ahead of the training loop.
 *
 * Step s of an epoch takes the next batch * devices samples of the epoch's order, device d the d-th part of
 * them.  The order is one permutation of (seed, epoch) over all samples, so that the number of devices changes
 * how samples are dealt, never their order.  Devices of several processes may share the steps; each process then makes
 * the rows of its own devices.
 *
 * Threads write samples into a ring of slots (slots.h); cfx_loader_next sends a slot to the devices and gives it back.
 * Steps are counted from the epoch's first: those before `freed` lie in no slot any more, those before `taken` have been
 * sent, those before `made` are whole, those before `opened` are being written, a few rows by each thread at a time.
 * Cancelling needs no waiting: begin raises `turn` and sets the counts back; a thread that still writes for an older turn
 * is `stale`, and nothing is begun before the last of them has noticed.
 *
 * A bad sample's row takes the next sample of the order that is good, or is left out.  Either is decided by the sample
 * and its position, so that threads change nothing.  Both are counted once the step is taken.
 *
 * A loader ends with its context: what is called on it later fails.  In a child of fork there is no thread to end.
 */
#include "data/loader.h"

#include "base/locale.h"
#include "base/log.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/thread.h"
#include "data/slots.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAST_DROP, LAST_PAD, LAST_KEEP };
enum {
    LOOK_EVERY_NS = 50 * 1000 * 1000, /* a host that waits looks at the interrupt flag this often */
    MOST_THREADS = 1024,
    NAMED = 10 /* bad samples of an epoch that are named */
};

typedef struct writer {
    struct cfx_loader *loader;
    pthread_t thread;
    void *own;            /* the source's */
    unsigned char **rows; /* [columns], of the sample at hand */
} writer;

struct cfx_loader {
    cf_dependent dependent; /* of the context */
    cfx_loader_options options;
    cfx_context *context; /* NULL: it has ended */
    cfx_device **devices;
    cfx_tensor *pins; /* one small tensor per device: a device that we deliver to must not vanish */
    cf_samples *samples;
    cf_slots slots;
    int64_t total /* of a full step, all devices of all processes */, steps, allowed /* bad samples of an epoch */;
    writer *writers;
    int32_t nwriters; /* that run */

    /* Written by one thread while `ordering`, and by none while another reads it. */
    int64_t *order; /* [samples], or NULL: as they lie */

    /* Under `mutex`. */
    pthread_mutex_t mutex;
    pthread_cond_t work, ready; /* for threads; for the host */
    uint64_t turn;              /* which begin; 0: none yet */
    int64_t epoch, first;       /* of this turn; steps are counted from `first` */
    int64_t ordered;            /* the epoch of `order` */
    int64_t freed, taken, made, opened;
    int64_t row, rows; /* of the step opened last: the next to be written, and how many it has */
    int64_t before;    /* in the epoch's order, those of the same step that other processes make */
    int32_t busy, stale;
    int ordering, quit;
    int has_mutex, has_work, has_ready;

    /* The host's, of this turn. */
    int64_t bad;
    int told;
    char *named[NAMED];
};

/* ---- a step's samples ------------------------------------------------------------------------------ */

static int64_t step_samples(const cfx_loader *l, int64_t step) {
    if (l->options.last != LAST_KEEP) return l->total;
    const int64_t left = l->samples->n - step * l->total;
    return left < l->total ? left : l->total;
}

/* Rows of a step of so many that come before device d of all that share it.  A short last step is dealt out evenly, in
 * order; the first devices take one more each. */
static int64_t rows_before(const cfx_loader *l, int64_t samples, int32_t d) {
    const int64_t each = samples / l->options.shards, more = samples % l->options.shards;
    return each * d + (d < more ? d : more);
}

/* Rows of a step that this process makes; *before: those that others make and that lie before. */
static int64_t own_rows(const cfx_loader *l, int64_t step, int64_t *before) {
    const int64_t samples = step_samples(l, step);
    *before = rows_before(l, samples, l->options.first);
    return rows_before(l, samples, l->options.first + l->options.devices) - *before;
}

/* The rows that this process has are dealt out among its devices likewise. */
static int64_t device_samples(const cfx_loader *l, int64_t samples, int32_t d) {
    const int64_t devices = l->options.devices;
    return samples / devices + (d < samples % devices);
}

static cf_slot *slot_of(cfx_loader *l, int64_t step) { return &l->slots.slot[step % l->slots.n]; }

/* ---- threads --------------------------------------------------------------------------------------- */

/* Rows [row, row + count) of a slot take the samples of the epoch's order from `position` on. */
typedef struct claim {
    uint64_t turn;
    int64_t epoch, position, row, count;
    cf_slot *slot;
} claim;

static cfx_status write_sample(writer *w, const claim *c, int64_t position) {
    const cfx_loader *l = w->loader;
    position %= l->samples->n; /* past the end the order begins again */
    return l->samples->write(l->samples, &w->own, c->epoch, l->order ? l->order[position] : position, w->rows);
}

/* More bad samples in a row than an epoch may have end the search. */
static cfx_status write_next_good(writer *w, const claim *c, int64_t position) {
    const cfx_loader *l = w->loader;
    cfx_status status = CFX_EIO;
    for (int64_t k = 1; status == CFX_EIO && k <= l->allowed && k < l->samples->n; k++)
        status = write_sample(w, c, position + k);
    if (status != CFX_EIO) return status;
    char text[CF_MESSAGE_BYTES];
    cf_format(text, sizeof text, "%s", cfx_error());
    return cf_fail(CFX_EIO, "more bad samples in a row than max_bad allows, which is %" PRId64 " of %" PRId64 ": %s",
                   l->allowed, l->samples->n, text);
}

static cfx_status write_row(writer *w, const claim *c, int64_t k) {
    const cfx_loader *l = w->loader;
    for (int32_t i = 0; i < l->samples->columns; i++)
        w->rows[i] = c->slot->rows[i] + (size_t)(c->row + k) * l->samples->rows[i].bytes;
    const cfx_status status = write_sample(w, c, c->position + k);
    if (status != CFX_EIO) return status;
    CF_TRY(cf_copy_string(cfx_error(), &c->slot->bad[c->row + k]));
    return l->options.skip_bad ? CFX_OK : write_next_good(w, c, c->position + k);
}

static int may_claim(const cfx_loader *l) {
    if (!l->turn || l->stale || l->ordering) return 0;
    if (l->row < l->rows) return 1;
    return l->first + l->opened < l->steps && l->opened - l->freed < l->slots.n;
}

static claim claim_rows(cfx_loader *l) {
    if (l->row == l->rows) {
        l->row = 0;
        l->rows = own_rows(l, l->first + l->opened, &l->before);
        cf_slot_open(&l->slots, slot_of(l, l->opened), l->rows);
        l->opened++;
    }
    claim c = {.turn = l->turn, .epoch = l->epoch, .row = l->row, .slot = slot_of(l, l->opened - 1)};
    const int64_t left = l->rows - l->row;
    c.count = left < l->samples->grain ? left : l->samples->grain;
    c.position = (l->first + l->opened - 1) * l->total + l->before + l->row;
    l->row += c.count;
    return c;
}

/* Whether the turn for which a thread was busy is still at hand. */
static int end_busy(cfx_loader *l, uint64_t turn) {
    l->busy--;
    if (turn == l->turn) return 1;
    if (--l->stale == 0) pthread_cond_broadcast(&l->work);
    return 0;
}

static void end_claim(cfx_loader *l, const claim *c) {
    if (!end_busy(l, c->turn)) return;
    c->slot->left -= c->count;
    if (c->slot->left > 0) return;
    if (l->options.skip_bad) cf_slot_close_up(&l->slots, c->slot);
    while (l->made < l->opened && slot_of(l, l->made)->left == 0) l->made++;
    pthread_cond_signal(&l->ready);
}

static void write_rows(cfx_loader *l, writer *w) {
    const claim c = claim_rows(l);
    int64_t k = 0;
    cfx_status status = CFX_OK;
    l->busy++;
    pthread_mutex_unlock(&l->mutex);
    for (; status == CFX_OK && k < c.count; k++) status = write_row(w, &c, k);
    pthread_mutex_lock(&l->mutex);
    if (status != CFX_OK && c.turn == l->turn) cf_slot_fail(c.slot, c.row + k - 1, status);
    end_claim(l, &c);
}

static void make_order(cfx_loader *l) {
    const uint64_t turn = l->turn;
    const int64_t epoch = l->epoch;
    l->ordering = 1;
    l->busy++;
    pthread_mutex_unlock(&l->mutex);
    cf_permutation(l->options.seed, (uint64_t)epoch, l->samples->n, l->order);
    pthread_mutex_lock(&l->mutex);
    l->ordering = 0;
    l->ordered = epoch;
    end_busy(l, turn);
    pthread_cond_broadcast(&l->work);
}

static void *run(void *argument) {
    writer *w = argument;
    cfx_loader *l = w->loader;
    pthread_mutex_lock(&l->mutex);
    for (;;) {
        while (!l->quit && !may_claim(l)) pthread_cond_wait(&l->work, &l->mutex);
        if (l->quit) break;
        if (l->order && l->ordered != l->epoch) make_order(l);
        else write_rows(l, w);
    }
    pthread_mutex_unlock(&l->mutex);
    if (l->samples->disown) l->samples->disown(w->own);
    return NULL;
}

static cfx_status start_threads(cfx_loader *l) {
    pthread_condattr_t clock;
    l->has_mutex = pthread_mutex_init(&l->mutex, NULL) == 0;
    l->has_work = pthread_cond_init(&l->work, NULL) == 0;
    if (pthread_condattr_init(&clock) == 0) {
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        l->has_ready = pthread_cond_init(&l->ready, &clock) == 0;
        pthread_condattr_destroy(&clock);
    }
    if (!l->has_mutex || !l->has_work || !l->has_ready) return cf_fail(CFX_EMEMORY, "out of locks");
    for (int32_t i = 0; i < l->options.threads; i++) {
        writer *w = &l->writers[i];
        w->loader = l;
        CF_TRY(cf_alloc((size_t)l->samples->columns * sizeof *w->rows, (void **)&w->rows));
        const int error = cf_thread_start(&w->thread, run, w);
        if (error) return cf_fail(CFX_EMEMORY, "cannot start a thread: %s", cf_strerror(error));
        l->nwriters++;
        pthread_setname_np(w->thread, "cfx-loader");
    }
    return CFX_OK;
}

static void end_threads(cfx_loader *l) {
    if (l->nwriters) {
        pthread_mutex_lock(&l->mutex);
        l->quit = 1;
        pthread_cond_broadcast(&l->work);
        pthread_mutex_unlock(&l->mutex);
    }
    for (int32_t i = 0; i < l->nwriters; i++) pthread_join(l->writers[i].thread, NULL);
    if (l->has_ready) pthread_cond_destroy(&l->ready);
    if (l->has_work) pthread_cond_destroy(&l->work);
    if (l->has_mutex) pthread_mutex_destroy(&l->mutex);
}

/* ---- its life -------------------------------------------------------------------------------------- */

/* Gives up all that is the context's. */
static void end(cfx_loader *l) {
    if (!l->context) return;
    if (!cf_is_forked(&l->context->hub)) end_threads(l); /* in a child even the locks may be held, by nobody */
    cf_slots_free(&l->slots);
    l->samples->end(l->samples);
    for (int32_t d = 0; l->pins && d < l->options.devices; d++) cfx_release(&l->pins[d]);
    cf_depend_no_more(&l->dependent);
    l->context = NULL;
}

static void end_with_context(cf_dependent *l) { end((cfx_loader *)l); }

/* Whether anything can be done with it. */
static cfx_status check_alive(cfx_loader *l) {
    return l->context ? cf_interrupted(&l->context->hub) : cf_fail(CFX_ESTATE, "the loader's context has ended");
}

static cfx_status check_options(const cfx_loader_options *o) {
    if (o->batch < 1) return cf_fail(CFX_EARG, "batch is %" PRId64 "; expected at least 1", o->batch);
    if (o->devices < 1) return cf_fail(CFX_EARG, "devices is %" PRId32 "; expected at least 1", o->devices);
    if (o->last < LAST_DROP || o->last > LAST_KEEP)
        return cf_fail(CFX_EARG, "last is %" PRId32 "; expected 0 (drop), 1 (pad) or 2 (keep)", o->last);
    if (o->prefetch < 0) return cf_fail(CFX_EARG, "prefetch is %" PRId32 "; expected at least 0", o->prefetch);
    if (o->threads < 0 || o->threads > MOST_THREADS)
        return cf_fail(CFX_EARG, "threads is %" PRId32 "; expected 0 to %d", o->threads, MOST_THREADS);
    if (!(o->max_bad >= 0 && o->max_bad <= 1))
        return cf_fail(CFX_EARG, "max_bad is %g; expected 0 to 1, of all samples", o->max_bad);
    if (o->first < 0 || o->shards < 0 || (o->shards ? o->shards - o->devices : 0) < o->first)
        return cf_fail(CFX_EARG,
                       "first is %" PRId32 ", and devices %" PRId32 ": that many are not among the %" PRId32
                       " of shards",
                       o->first, o->devices, o->shards);
    return CFX_OK;
}

cfx_status cf_loader_options_read(const cfx_loader_options *given, cfx_device *const *devices, cfx_loader *const *out,
                                  cfx_loader_options *o) {
    static const cf_field last[] = {CF_FIELD(cfx_loader_options, devices),  CF_FIELD(cfx_loader_options, shuffle),
                                    CF_FIELD(cfx_loader_options, last),     CF_FIELD(cfx_loader_options, prefetch),
                                    CF_FIELD(cfx_loader_options, seed),     CF_FIELD(cfx_loader_options, threads),
                                    CF_FIELD(cfx_loader_options, skip_bad), CF_FIELD(cfx_loader_options, max_bad),
                                    CF_FIELD(cfx_loader_options, shards),   CF_FIELD(cfx_loader_options, first)};
    if (!given || !devices || !out) return cf_fail(CFX_EARG, "options, devices or out is NULL");
    CF_TRY(cf_options_read("options", given, last, sizeof last / sizeof *last, o, sizeof *o));
    CF_TRY(check_options(o));
    for (int32_t d = 0; d < o->devices; d++) {
        if (!devices[d]) return cf_fail(CFX_EARG, "devices[%" PRId32 "] is NULL", d);
        if (cfx_device_context(devices[d]) != cfx_device_context(devices[0]))
            return cf_fail(CFX_EARG, "devices[%" PRId32 "] is of another context than devices[0]", d);
    }
    return CFX_OK;
}

static cfx_status plan_steps(cfx_loader *l) {
    const cfx_loader_options *o = &l->options;
    const int64_t samples = l->samples->n;
    if (__builtin_mul_overflow(o->batch, (int64_t)o->shards, &l->total))
        return cf_fail(CFX_EARG, "batch %" PRId64 " on %" PRId32 " devices is too large", o->batch, o->shards);
    l->steps = samples / l->total;
    if (o->last == LAST_DROP && !l->steps)
        return cf_fail(CFX_EARG,
                       "%" PRId64 " samples are fewer than one step takes: batch %" PRId64 " on %" PRId32
                       " devices is %" PRId64 " (last = drop)",
                       samples, o->batch, o->shards, l->total);
    if (o->last != LAST_DROP) l->steps += samples % l->total != 0;
    if (l->steps > INT32_MAX) return cf_fail(CFX_EARG, "%" PRId64 " steps an epoch are too many", l->steps);
    l->allowed = (int64_t)(o->max_bad * (double)samples);
    return CFX_OK;
}

static cfx_status take_memory(cfx_loader *l) {
    const cfx_loader_options *o = &l->options;
    const int64_t ahead = o->prefetch < l->steps - 1 ? o->prefetch : l->steps - 1;
    const int64_t capacity = l->steps > 0 ? own_rows(l, 0, &l->before) : 0; /* no step has more */
    CF_TRY(cf_slots_new(l->samples, ahead + 1, capacity > 0 ? capacity : 1, o->devices, l->devices, &l->slots));
    l->ordered = -1;
    if (o->shuffle) CF_TRY(cf_alloc((size_t)l->samples->n * sizeof *l->order, (void **)&l->order));
    CF_TRY(cf_alloc_zero((size_t)o->threads, sizeof *l->writers, (void **)&l->writers));
    const int64_t one = 1;
    for (int32_t d = 0; d < o->devices; d++) CF_TRY(cfx_empty(l->devices[d], CFX_UINT8, 1, &one, &l->pins[d]));
    return CFX_OK;
}

static cfx_status build(cfx_loader *l) {
    CF_TRY(plan_steps(l));
    CF_TRY(take_memory(l));
    return start_threads(l);
}

cfx_status cf_loader_make(const cfx_loader_options *options, cf_samples *samples, cfx_device *const *devices,
                          cfx_loader **out) {
    const size_t count = (size_t)options->devices;
    cfx_loader *l = NULL;
    cfx_status status = cf_alloc_zero(1, sizeof *l, (void **)&l);
    if (status == CFX_OK) status = cf_alloc_zero(count, sizeof(cfx_device *), (void **)&l->devices);
    if (status == CFX_OK) status = cf_alloc_zero(count, sizeof *l->pins, (void **)&l->pins);
    if (status != CFX_OK) {
        samples->end(samples);
        cfx_loader_free(&l);
        return status;
    }
    memcpy(l->devices, devices, count * sizeof(cfx_device *));
    l->options = *options;
    if (l->options.threads == 0) l->options.threads = 1;
    if (l->options.shards == 0) l->options.shards = l->options.devices;
    l->samples = samples;
    l->context = cfx_device_context(devices[0]);
    cf_depend(&l->context->loaders, &l->dependent, end_with_context);
    status = build(l);
    if (status == CFX_OK) *out = l;
    else cfx_loader_free(&l);
    return status;
}

CFX_API void cfx_loader_free(cfx_loader **loader) {
    cfx_loader *l = loader ? *loader : NULL;
    if (!l) return;
    *loader = NULL;
    end(l);
    for (int32_t i = 0; l->writers && i < l->options.threads; i++) free(l->writers[i].rows);
    for (int i = 0; i < NAMED; i++) free(l->named[i]);
    free(l->writers);
    free(l->devices);
    free(l->pins);
    free(l->order);
    free(l);
}

CFX_API int32_t cfx_loader_steps(const cfx_loader *l) { return l ? (int32_t)l->steps : 0; }

/* ---- bad samples ----------------------------------------------------------------------------------- */

static void forget_bad(cfx_loader *l) {
    l->bad = l->told = 0;
    for (int i = 0; i < NAMED; i++) {
        free(l->named[i]);
        l->named[i] = NULL;
    }
}

/* Counts those of a step that the host has not taken yet.  A sample that comes once more, because it fills the last step
 * up, counts once. */
static cfx_status count_bad(cfx_loader *l, const cf_slot *slot, int64_t step) {
    int64_t before, bad = l->bad;
    const int64_t rows = own_rows(l, step, &before), first = step * l->total + before;
    for (int64_t r = 0; r < rows && first + r < l->samples->n; r++) {
        if (!slot->bad[r]) continue;
        if (bad < NAMED && !l->named[bad]) CF_TRY(cf_copy_string(slot->bad[r], &l->named[bad]));
        if (++bad > l->allowed)
            return cf_fail(CFX_EIO,
                           "bad samples by now: %" PRId64 ", and max_bad allows %" PRId64 " of %" PRId64 ": %s", bad,
                           l->allowed, l->samples->n, slot->bad[r]);
    }
    l->bad = bad;
    return CFX_OK;
}

/* Once, at the epoch's end. */
static void tell_bad(cfx_loader *l) {
    if (l->told || !l->bad) return;
    l->told = 1;
    cf_log(1, "epoch %" PRId64 ": %" PRId64 " of %" PRId64 " samples are bad and were %s", l->epoch, l->bad,
           l->samples->n, l->options.skip_bad ? "left out" : "replaced by the next ones");
    for (int i = 0; i < NAMED && i < l->bad; i++) cf_log(1, "bad: %s", l->named[i]);
}

CFX_API cfx_status cfx_loader_bad(const cfx_loader *l, int64_t *count, int32_t n, const char **named) {
    if (!l || !count || n < 0 || (n && !named))
        return cf_fail(CFX_EARG, "loader_bad: an argument is NULL, or n below 0");
    *count = l->bad;
    for (int32_t i = 0; i < n; i++) named[i] = i < NAMED && i < l->bad ? l->named[i] : NULL;
    return CFX_OK;
}

/* ---- an epoch -------------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_loader_begin(cfx_loader *l, int64_t epoch, int64_t step) {
    if (!l) return cf_fail(CFX_EARG, "loader_begin: loader is NULL");
    if (epoch < 0) return cf_fail(CFX_EARG, "loader_begin: epoch is %" PRId64 "; expected at least 0", epoch);
    if (step < 0 || step > l->steps)
        return cf_fail(CFX_EARG, "loader_begin: step is %" PRId64 "; expected 0 to %" PRId64, step, l->steps);
    const cfx_status status = check_alive(l);
    if (status != CFX_OK) return status == CFX_ESTATE ? cf_fail_in(status, "loader_begin") : status;
    for (int64_t s = 0; s < l->slots.n; s++) CF_TRY(cf_slot_wait(&l->slots.slot[s]));
    forget_bad(l);
    pthread_mutex_lock(&l->mutex);
    l->turn++;
    l->epoch = epoch;
    l->first = step;
    l->freed = l->taken = l->made = l->opened = l->row = l->rows = 0;
    l->stale = l->busy;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
    return CFX_OK;
}

static struct timespec next_look(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_nsec += LOOK_EVERY_NS;
    if (t.tv_nsec >= 1000000000L) {
        t.tv_nsec -= 1000000000L;
        t.tv_sec++;
    }
    return t;
}

/* Gives slots back that no copy reads any more. */
static void free_slots(cfx_loader *l) {
    int64_t freed = l->freed; /* the host alone changes it, and `taken` */
    while (freed < l->taken && cf_slot_is_free(slot_of(l, freed))) freed++;
    if (freed == l->freed) return;
    pthread_mutex_lock(&l->mutex);
    l->freed = freed;
    pthread_cond_broadcast(&l->work);
    pthread_mutex_unlock(&l->mutex);
}

/* Waits until step `taken` is made; it then stays in its slot until it is given back. */
static cfx_status wait_for_step(cfx_loader *l) {
    cfx_status status = CFX_OK;
    if (l->taken - l->freed == l->slots.n) CF_TRY(cf_slot_wait(slot_of(l, l->freed))); /* else no thread can go on */
    free_slots(l);
    pthread_mutex_lock(&l->mutex);
    while (status == CFX_OK && l->made == l->taken) {
        const struct timespec until = next_look();
        if (pthread_cond_timedwait(&l->ready, &l->mutex, &until) == ETIMEDOUT)
            status = cf_interrupted(&l->context->hub);
    }
    pthread_mutex_unlock(&l->mutex);
    return status;
}

/* A step's samples to the devices. */
static cfx_status deal(cfx_loader *l, cf_slot *slot, int64_t *counts, cfx_tensor *const *batch) {
    const int32_t n = l->samples->columns;
    int64_t first = 0;
    for (int32_t d = 0; d < l->options.devices; d++) {
        counts[d] = device_samples(l, slot->samples, d);
        for (int32_t i = 0; i < n; i++)
            CF_TRY(cf_slot_send(&l->slots, slot, i, first, counts[d], l->devices[d], batch[d * n + i]));
        first += counts[d];
    }
    return CFX_OK;
}

static cfx_status take(cfx_loader *l, int64_t *counts, cfx_tensor *const *batch) {
    const int32_t tensors = l->options.devices * l->samples->columns;
    for (int32_t i = 0; i < tensors; i++)
        if (batch[i]->_buffer) return cf_fail(CFX_EARG, "loader_next: batch[%" PRId32 "] still holds a tensor", i);
    CF_TRY(wait_for_step(l));
    cf_slot *slot = slot_of(l, l->taken);
    if (slot->status != CFX_OK)
        return cf_fail(slot->status, "loader_next: %s", slot->why ? slot->why : "out of memory");
    cfx_status status = deal(l, slot, counts, batch);
    if (status == CFX_OK) {
        status = count_bad(l, slot, l->first + l->taken);
        if (status != CFX_OK) cf_fail_in(status, "loader_next");
    }
    for (int32_t i = 0; status != CFX_OK && i < tensors; i++) cfx_release(batch[i]);
    return status;
}

CFX_API cfx_status cfx_loader_next(cfx_loader *l, int64_t *counts, cfx_tensor *const *batch, int32_t *more) {
    if (!l || !counts || !batch || !more) return cf_fail(CFX_EARG, "loader_next: an argument is NULL");
    const cfx_status status = check_alive(l);
    if (status != CFX_OK) return status == CFX_ESTATE ? cf_fail_in(status, "loader_next") : status;
    /* Only this thread changes turn, first and taken. */
    if (!l->turn) return cf_fail(CFX_ESTATE, "loader_next: no epoch was begun");
    if (l->first + l->taken >= l->steps) {
        *more = 0;
        memset(counts, 0, (size_t)l->options.devices * sizeof *counts);
        tell_bad(l);
        return CFX_OK;
    }
    CF_TRY(take(l, counts, batch));
    pthread_mutex_lock(&l->mutex);
    l->taken++;
    pthread_mutex_unlock(&l->mutex);
    free_slots(l);
    *more = 1;
    return CFX_OK;
}
