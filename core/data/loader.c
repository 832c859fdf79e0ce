/* loader.c: batches of shuffled samples, gathered ahead of the training loop.
 *
 * Step s of an epoch takes the next batch * devices samples of the epoch's order, device d the d-th part of
 * them.  The order is one permutation of (seed, epoch) over all samples, so that the number of devices changes
 * how samples are dealt, never their order.
 *
 * One thread gathers rows into a ring of staging slots in host memory; cfx_loader_next copies a slot to the
 * devices and gives it back.  `made` and `taken` count the steps of the epoch at hand: the thread fills slot
 * made % slots while made - taken < slots, the host empties slot taken % slots while taken < made, and so the
 * slots themselves need no lock.  Cancelling needs no waiting either: begin raises `turn` and sets both counts
 * back; a step gathered for an older turn is not counted, and the thread alone writes to slots.
 *
 * The thread reads the columns as it likes, so that writing to them in place is refused while the loader lives.  A
 * loader ends with its context: what is called on it later fails.  In a child of fork there is no thread to end.
 */
#include "base/locale.h"
#include "base/options.h"
#include "base/rng.h"
#include "base/status.h"
#include "base/thread.h"
#include "tensor/buffer.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LAST_DROP, LAST_PAD, LAST_KEEP };
enum { LOOK_EVERY_NS = 50 * 1000 * 1000 /* a host that waits looks at the interrupt flag this often */ };

typedef struct column {
    cf_hold reader;            /* of the loader's own handle */
    const unsigned char *rows; /* [samples, row] bytes */
    size_t row;
    unsigned char **slots; /* [slots][capacity, row] bytes */
} column;

struct cfx_loader {
    cf_dependent dependent; /* of the context */
    cfx_loader_options options;
    cfx_context *context; /* NULL: it has ended */
    cfx_device **devices;
    cfx_tensor *pins; /* one small tensor per device: a device that we deliver to must not vanish */
    column *columns;
    int32_t n; /* columns */
    int64_t samples, total /* of a full step, all devices */, capacity /* of a slot */, steps, slots;

    /* The thread's own. */
    int64_t *order; /* [samples], or NULL: as they lie */
    int64_t ordered;

    /* Under `mutex`. */
    pthread_mutex_t mutex;
    pthread_cond_t work, ready; /* for the thread; for the host */
    uint64_t turn;              /* which begin; 0: none yet */
    int64_t epoch, first;       /* of this turn; steps are counted from `first` */
    int64_t made, taken;
    int quit;
    int has_mutex, has_work, has_ready, has_thread;
    pthread_t thread;
};

/* ---- a step's batches ------------------------------------------------------------------------------ */

/* Samples of a step, over all devices. */
static int64_t step_samples(const cfx_loader *l, int64_t step) {
    if (l->options.last != LAST_KEEP) return l->total;
    const int64_t left = l->samples - step * l->total;
    return left < l->total ? left : l->total;
}

/* A short last step is dealt out evenly, in order; the first devices take one more each. */
static int64_t device_samples(const cfx_loader *l, int64_t samples, int32_t d) {
    const int64_t devices = l->options.devices;
    return samples / devices + (d < samples % devices);
}

/* Copies samples [at, at + count) of the epoch's order; past the end the order begins again. */
static void gather(const cfx_loader *l, const column *c, int64_t at, int64_t count, unsigned char *dst) {
    const size_t row = c->row;
    if (!row) return;
    if (l->order) {
        for (int64_t i = 0; i < count; i++, dst += row)
            memcpy(dst, c->rows + (size_t)l->order[(at + i) % l->samples] * row, row);
        return;
    }
    while (count > 0) {
        const int64_t from = at % l->samples, left = l->samples - from;
        const int64_t run = count < left ? count : left;
        memcpy(dst, c->rows + (size_t)from * row, (size_t)run * row);
        dst += (size_t)run * row;
        at += run;
        count -= run;
    }
}

/* ---- the thread ------------------------------------------------------------------------------------ */

static void make_step(cfx_loader *l, int64_t epoch, int64_t step, int64_t slot) {
    if (l->order && l->ordered != epoch) {
        cf_permutation(l->options.seed, (uint64_t)epoch, l->samples, l->order);
        l->ordered = epoch;
    }
    for (int32_t i = 0; i < l->n; i++)
        gather(l, &l->columns[i], step * l->total, step_samples(l, step), l->columns[i].slots[slot]);
}

static int may_make(const cfx_loader *l) {
    return l->turn && l->first + l->made < l->steps && l->made - l->taken < l->slots;
}

static void *run(void *argument) {
    cfx_loader *l = argument;
    pthread_mutex_lock(&l->mutex);
    for (;;) {
        while (!l->quit && !may_make(l)) pthread_cond_wait(&l->work, &l->mutex);
        if (l->quit) break;
        const uint64_t turn = l->turn;
        const int64_t epoch = l->epoch, step = l->first + l->made, slot = l->made % l->slots;
        pthread_mutex_unlock(&l->mutex);
        make_step(l, epoch, step, slot);
        pthread_mutex_lock(&l->mutex);
        if (turn != l->turn) continue;
        l->made++;
        pthread_cond_signal(&l->ready);
    }
    pthread_mutex_unlock(&l->mutex);
    return NULL;
}

static cfx_status start_thread(cfx_loader *l) {
    pthread_condattr_t clock;
    l->has_mutex = pthread_mutex_init(&l->mutex, NULL) == 0;
    l->has_work = pthread_cond_init(&l->work, NULL) == 0;
    if (pthread_condattr_init(&clock) == 0) {
        pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
        l->has_ready = pthread_cond_init(&l->ready, &clock) == 0;
        pthread_condattr_destroy(&clock);
    }
    if (!l->has_mutex || !l->has_work || !l->has_ready) return cf_fail(CFX_EMEMORY, "out of locks");
    const int error = cf_thread_start(&l->thread, run, l);
    if (error) return cf_fail(CFX_EMEMORY, "cannot start a thread: %s", cf_strerror(error));
    l->has_thread = 1;
    pthread_setname_np(l->thread, "cfx-loader");
    return CFX_OK;
}

static void end_thread(cfx_loader *l) {
    if (l->has_thread) {
        pthread_mutex_lock(&l->mutex);
        l->quit = 1;
        pthread_cond_signal(&l->work);
        pthread_mutex_unlock(&l->mutex);
        pthread_join(l->thread, NULL);
    }
    if (l->has_ready) pthread_cond_destroy(&l->ready);
    if (l->has_work) pthread_cond_destroy(&l->work);
    if (l->has_mutex) pthread_mutex_destroy(&l->mutex);
}

/* Gives up all that is the context's. */
static void end(cfx_loader *l) {
    if (!l->context) return;
    if (!cf_is_forked(&l->context->hub)) end_thread(l); /* in a child even the locks may be held, by nobody */
    for (int32_t i = 0; l->columns && i < l->n; i++) cf_hold_end(&l->columns[i].reader);
    for (int32_t d = 0; l->pins && d < l->options.devices; d++) cfx_release(&l->pins[d]);
    cf_depend_no_more(&l->dependent);
    l->context = NULL;
}

static void end_with_context(cf_dependent *l) { end((cfx_loader *)l); }

static void begin(cfx_loader *l, cfx_context *context) {
    l->context = context;
    cf_depend(&context->loaders, &l->dependent, end_with_context);
}

/* Whether anything can be done with it. */
static cfx_status check_alive(cfx_loader *l) {
    return l->context ? cf_interrupted(&l->context->hub) : cf_fail(CFX_ESTATE, "the loader's context has ended");
}

/* ---- making one ------------------------------------------------------------------------------------ */

static cfx_status read_options(const cfx_loader_options *given, int32_t n, const cfx_tensor *const *columns,
                               cfx_device *const *devices, cfx_loader *const *out, cfx_loader_options *o) {
    static const cf_field last[] = {CF_FIELD(cfx_loader_options, devices), CF_FIELD(cfx_loader_options, shuffle),
                                    CF_FIELD(cfx_loader_options, last), CF_FIELD(cfx_loader_options, prefetch),
                                    CF_FIELD(cfx_loader_options, seed)};
    if (!given || !columns || !devices || !out) return cf_fail(CFX_EARG, "options, columns, devices or out is NULL");
    CF_TRY(cf_options_read("options", given, last, sizeof last / sizeof *last, o, sizeof *o));
    if (n < 1) return cf_fail(CFX_EARG, "%" PRId32 " columns; expected at least 1", n);
    if (o->batch < 1) return cf_fail(CFX_EARG, "batch is %" PRId64 "; expected at least 1", o->batch);
    if (o->devices < 1) return cf_fail(CFX_EARG, "devices is %" PRId32 "; expected at least 1", o->devices);
    if (o->last < LAST_DROP || o->last > LAST_KEEP)
        return cf_fail(CFX_EARG, "last is %" PRId32 "; expected 0 (drop), 1 (pad) or 2 (keep)", o->last);
    if (o->prefetch < 0) return cf_fail(CFX_EARG, "prefetch is %" PRId32 "; expected at least 0", o->prefetch);
    for (int32_t d = 0; d < o->devices; d++) {
        if (!devices[d]) return cf_fail(CFX_EARG, "devices[%" PRId32 "] is NULL", d);
        if (cfx_device_context(devices[d]) != cfx_device_context(devices[0]))
            return cf_fail(CFX_EARG, "devices[%" PRId32 "] is of another context than devices[0]", d);
    }
    return CFX_OK;
}

/* Holds column i and finds its rows.  Waits, once, for its values. */
static cfx_status take_column(cfx_loader *l, int32_t i, const cfx_tensor *x) {
    column *c = &l->columns[i];
    if (!x || !x->_buffer) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is NULL or has no value", i);
    if (x->_ndim < 1) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is a scalar; expected a row per sample", i);
    if (i == 0) l->samples = x->_shape[0];
    if (x->_shape[0] != l->samples)
        return cf_fail(CFX_EARG, "columns[%" PRId32 "] has %" PRId64 " samples, but columns[0] has %" PRId64, i,
                       x->_shape[0], l->samples);
    if (!cfx_is_contiguous(x)) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is not contiguous", i);
    CF_TRY(cfx_wait(x));
    if (cf_context(x) != l->context) return cf_fail(CFX_EARG, "columns[%" PRId32 "] is of another context", i);
    cf_hold_begin(&c->reader, x, NULL);
    void *rows = NULL;
    CF_TRY(cfx_pointer(&c->reader.tensor, &rows));
    size_t bytes = 0;
    cf_shape_bytes(x->_dtype, x->_ndim - 1, x->_shape + 1, &bytes); /* the tensor exists: no overflow */
    if (!rows && bytes && l->samples)
        return cf_fail(CFX_EARG, "columns[%" PRId32 "] lies on %s; expected a CPU tensor", i,
                       cfx_device_name(cfx_tensor_device(x)));
    c->rows = rows;
    c->row = bytes;
    return CFX_OK;
}

static cfx_status plan_steps(cfx_loader *l) {
    const cfx_loader_options *o = &l->options;
    if (l->samples < 1) return cf_fail(CFX_EARG, "the columns have no samples");
    if (__builtin_mul_overflow(o->batch, (int64_t)o->devices, &l->total))
        return cf_fail(CFX_EARG, "batch %" PRId64 " on %" PRId32 " devices is too large", o->batch, o->devices);
    l->steps = l->samples / l->total;
    if (o->last == LAST_DROP && !l->steps)
        return cf_fail(CFX_EARG,
                       "%" PRId64 " samples are fewer than one step takes: batch %" PRId64 " on %" PRId32
                       " devices is %" PRId64 " (last = drop)",
                       l->samples, o->batch, o->devices, l->total);
    if (o->last != LAST_DROP) l->steps += l->samples % l->total != 0;
    if (l->steps > INT32_MAX) return cf_fail(CFX_EARG, "%" PRId64 " steps an epoch are too many", l->steps);
    l->slots = (o->prefetch < l->steps - 1 ? o->prefetch : l->steps - 1) + 1;
    l->capacity = o->last == LAST_KEEP && l->samples < l->total ? l->samples : l->total;
    return CFX_OK;
}

static cfx_status take_memory(cfx_loader *l) {
    for (int32_t i = 0; i < l->n; i++) {
        column *c = &l->columns[i];
        size_t bytes;
        if (!cf_mul_size((size_t)l->capacity, c->row, &bytes))
            return cf_fail(CFX_EMEMORY, "a step of columns[%" PRId32 "] is too large", i);
        CF_TRY(cf_alloc_zero((size_t)l->slots, sizeof *c->slots, (void **)&c->slots));
        for (int64_t s = 0; s < l->slots; s++) CF_TRY(cf_alloc(bytes, (void **)&c->slots[s]));
    }
    l->ordered = -1;
    if (l->options.shuffle) CF_TRY(cf_alloc((size_t)l->samples * sizeof *l->order, (void **)&l->order));
    const int64_t one = 1;
    for (int32_t d = 0; d < l->options.devices; d++) CF_TRY(cfx_empty(l->devices[d], CFX_UINT8, 1, &one, &l->pins[d]));
    return CFX_OK;
}

static cfx_status build(cfx_loader *l, const cfx_tensor *const *columns, cfx_device *const *devices) {
    const size_t count = (size_t)l->options.devices;
    CF_TRY(cf_alloc_zero((size_t)l->n, sizeof *l->columns, (void **)&l->columns));
    CF_TRY(cf_alloc_zero(count, sizeof(cfx_device *), (void **)&l->devices));
    CF_TRY(cf_alloc_zero(count, sizeof *l->pins, (void **)&l->pins));
    memcpy(l->devices, devices, count * sizeof(cfx_device *));
    begin(l, cfx_device_context(devices[0]));
    for (int32_t i = 0; i < l->n; i++) CF_TRY(take_column(l, i, columns[i]));
    CF_TRY(plan_steps(l));
    CF_TRY(take_memory(l));
    return start_thread(l);
}

CFX_API cfx_status cfx_loader_new(const cfx_loader_options *given, int32_t n, const cfx_tensor *const *columns,
                                  cfx_device *const *devices, cfx_loader **out) {
    cfx_loader_options options;
    cfx_status status = read_options(given, n, columns, devices, out, &options);
    cfx_loader *l = NULL;
    if (status == CFX_OK) status = cf_alloc_zero(1, sizeof *l, (void **)&l);
    if (status != CFX_OK) return cf_fail_in(status, "loader_new");
    l->options = options;
    l->n = n;
    status = build(l, columns, devices);
    if (status == CFX_OK) {
        *out = l;
        return CFX_OK;
    }
    cfx_loader_free(&l);
    return cf_fail_in(status, "loader_new");
}

CFX_API void cfx_loader_free(cfx_loader **loader) {
    cfx_loader *l = loader ? *loader : NULL;
    if (!l) return;
    *loader = NULL;
    end(l);
    for (int32_t i = 0; l->columns && i < l->n; i++) {
        column *c = &l->columns[i];
        for (int64_t s = 0; c->slots && s < l->slots; s++) free(c->slots[s]);
        free(c->slots);
    }
    free(l->columns);
    free(l->devices);
    free(l->pins);
    free(l->order);
    free(l);
}

CFX_API int32_t cfx_loader_steps(const cfx_loader *l) { return l ? (int32_t)l->steps : 0; }

/* ---- an epoch -------------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_loader_begin(cfx_loader *l, int64_t epoch, int64_t step) {
    if (!l) return cf_fail(CFX_EARG, "loader_begin: loader is NULL");
    if (epoch < 0) return cf_fail(CFX_EARG, "loader_begin: epoch is %" PRId64 "; expected at least 0", epoch);
    if (step < 0 || step > l->steps)
        return cf_fail(CFX_EARG, "loader_begin: step is %" PRId64 "; expected 0 to %" PRId64, step, l->steps);
    const cfx_status status = check_alive(l);
    if (status != CFX_OK) return status == CFX_ESTATE ? cf_fail_in(status, "loader_begin") : status;
    pthread_mutex_lock(&l->mutex);
    l->turn++;
    l->epoch = epoch;
    l->first = step;
    l->made = l->taken = 0;
    pthread_cond_signal(&l->work);
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

/* Waits until step `taken` is made; it then stays in its slot until it is given back. */
static cfx_status wait_for_step(cfx_loader *l) {
    cfx_status status = CFX_OK;
    pthread_mutex_lock(&l->mutex);
    while (status == CFX_OK && l->made == l->taken) {
        const struct timespec until = next_look();
        if (pthread_cond_timedwait(&l->ready, &l->mutex, &until) == ETIMEDOUT)
            status = cf_interrupted(&l->context->hub);
    }
    pthread_mutex_unlock(&l->mutex);
    return status;
}

static void give_back(cfx_loader *l) {
    pthread_mutex_lock(&l->mutex);
    l->taken++;
    pthread_cond_signal(&l->work);
    pthread_mutex_unlock(&l->mutex);
}

/* One tensor of `count` rows from row `first` of a slot. */
static cfx_status deliver(const cfx_loader *l, int32_t d, int32_t i, int64_t slot, int64_t first, int64_t count,
                          cfx_tensor *out) {
    const column *c = &l->columns[i];
    int64_t shape[CFX_MAX_DIMS];
    memcpy(shape, c->reader.tensor._shape, sizeof shape);
    shape[0] = count;
    const unsigned char *rows = c->slots[slot] + (size_t)first * c->row;
    return cfx_from_host(l->devices[d], c->reader.tensor._dtype, c->reader.tensor._ndim, shape, rows, out);
}

CFX_API cfx_status cfx_loader_next(cfx_loader *l, int64_t *counts, cfx_tensor *const *batch, int32_t *more) {
    if (!l || !counts || !batch || !more) return cf_fail(CFX_EARG, "loader_next: an argument is NULL");
    cfx_status status = check_alive(l);
    if (status != CFX_OK) return status == CFX_ESTATE ? cf_fail_in(status, "loader_next") : status;
    /* Only this thread changes turn, first and taken. */
    if (!l->turn) return cf_fail(CFX_ESTATE, "loader_next: no epoch was begun");
    const int32_t devices = l->options.devices;
    const int64_t step = l->first + l->taken, slot = l->taken % l->slots;
    if (step >= l->steps) {
        *more = 0;
        memset(counts, 0, (size_t)devices * sizeof *counts);
        return CFX_OK;
    }
    for (int32_t i = 0; i < devices * l->n; i++)
        if (batch[i]->_buffer) return cf_fail(CFX_EARG, "loader_next: batch[%" PRId32 "] still holds a tensor", i);
    CF_TRY(wait_for_step(l));
    const int64_t samples = step_samples(l, step);
    int64_t first = 0;
    for (int32_t d = 0; d < devices; d++) {
        const int64_t count = device_samples(l, samples, d);
        for (int32_t i = 0; i < l->n; i++) {
            status = deliver(l, d, i, slot, first, count, batch[d * l->n + i]);
            if (status == CFX_OK) continue;
            for (int32_t k = 0; k <= d * l->n + i; k++) cfx_release(batch[k]);
            return status;
        }
        counts[d] = count;
        first += count;
    }
    give_back(l);
    *more = 1;
    return CFX_OK;
}
