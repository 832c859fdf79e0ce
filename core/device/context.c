/* context.c: contexts, the registry of devices, random streams. */
#include "device/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cores.h"
#include "base/options.h"
#include "base/status.h"
#include "device/fork.h"

/* ---- devices ---------------------------------------------------------------------------------------- */

static cfx_device *lookup(const cfx_context *context, const char *name) {
    for (int32_t i = 0; i < context->nopen; i++)
        if (strcmp(context->open[i]->name, name) == 0) return context->open[i];
    return NULL;
}

/* The closed device of that name, taken off its list, or NULL. */
static cfx_device *take_closed(cfx_context *context, const char *name) {
    for (cfx_device **at = &context->closed; *at; at = &(*at)->next_closed) {
        cfx_device *device = *at;
        if (strcmp(device->name, name) != 0) continue;
        *at = device->next_closed;
        return device;
    }
    return NULL;
}

static void put_closed(cfx_context *context, cfx_device *device) {
    cf_device_close(device);
    device->next_closed = context->closed;
    context->closed = device;
}

static cfx_status device_open(cfx_context *context, const char *name, cfx_device **out) {
    cfx_device *device = take_closed(context, name);
    if (!device) CF_TRY(cf_device_new(&context->hub, name, &device));
    const cfx_status status = cf_device_open(device, context->memory_limit);
    if (status != CFX_OK) {
        put_closed(context, device);
        return status;
    }
    if (device->backend->host_memory) device->shareable.arena = context->arena;
    context->open[context->nopen++] = *out = device;
    return CFX_OK;
}

/* Shares the host's cores evenly among those of the run's devices that compute on them; each has at least one. */
static void share_cores(cfx_context *context) {
    int32_t cpus = 0, seen = 0;
    for (int32_t i = 0; i < context->ndevices; i++) cpus += context->devices[i]->backend->host_cores;
    for (int32_t i = 0; i < context->ndevices && cpus > 0; i++) {
        cfx_device *device = context->devices[i];
        if (!device->backend->host_cores) continue;
        const int32_t share = context->threads / cpus + (seen++ < context->threads % cpus);
        atomic_store(&device->inbox.threads, share > 0 ? share : 1);
    }
    cfx_device *cpu = lookup(context, "cpu:0");
    if (cpus == 0 && cpu) atomic_store(&cpu->inbox.threads, context->threads);
}

/* Closes the open devices that are neither the run's nor cpu:0. */
static void close_unused(cfx_context *context) {
    cfx_device *closing[2 * CF_MAX_DEVICES + 1];
    int32_t kept = 0, nclosing = 0;
    for (int32_t i = 0; i < context->nopen; i++) {
        cfx_device *device = context->open[i];
        bool used = strcmp(device->name, "cpu:0") == 0;
        for (int32_t j = 0; j < context->ndevices; j++) used = used || context->devices[j] == device;
        if (used) context->open[kept++] = device;
        else closing[nclosing++] = device;
    }
    context->nopen = kept;
    for (int32_t i = 0; i < nclosing; i++) put_closed(context, closing[i]);
}

CFX_API cfx_status cfx_devices_set(cfx_context *context, const char *spec) {
    char names[CF_MAX_DEVICES][CF_NAME_BYTES];
    int32_t n, before = context->ndevices;
    cfx_device *old[CF_MAX_DEVICES];
    CF_TRY(cf_spec_names(spec, names, &n));
    if (context->worlds.first)
        return cf_fail(CFX_ESTATE, "devices: they are chosen before the world is joined: other processes know them");
    for (int32_t i = 0; i < context->nopen; i++) {
        bool stays = strcmp(context->open[i]->name, "cpu:0") == 0;
        for (int32_t j = 0; j < n; j++) stays = stays || strcmp(context->open[i]->name, names[j]) == 0;
        if (!stays && context->open[i]->buffers.first)
            return cf_fail(CFX_ESTATE, "devices: tensors live on %s, which '%s' does not name", context->open[i]->name,
                           spec);
    }
    /* Work on a device that vanishes may still be waited for by others. */
    CF_TRY(cfx_sync(context, NULL));
    memcpy(old, context->devices, sizeof old);
    for (int32_t i = 0; i < n; i++) {
        cfx_device *device = lookup(context, names[i]);
        const cfx_status status = device ? CFX_OK : device_open(context, names[i], &device);
        if (status != CFX_OK) {
            memcpy(context->devices, old, sizeof old);
            context->ndevices = before;
            close_unused(context);
            return status;
        }
        context->devices[i] = device;
    }
    context->ndevices = n;
    close_unused(context);
    share_cores(context);
    return CFX_OK;
}

CFX_API int32_t cfx_device_count(const cfx_context *context) { return context->ndevices; }

CFX_API cfx_device *cfx_device_at(const cfx_context *context, int32_t i) {
    return i >= 0 && i < context->ndevices ? context->devices[i] : NULL;
}

CFX_API cfx_status cfx_device_find(cfx_context *context, const char *name, cfx_device **out) {
    char names[CF_MAX_DEVICES][CF_NAME_BYTES];
    int32_t n;
    CF_TRY(cf_spec_names(name, names, &n));
    if (n != 1) return cf_fail(CFX_EARG, "device '%s': expected the name of one device", name);
    *out = lookup(context, names[0]);
    if (*out) return CFX_OK;
    char have[256] = "";
    for (int32_t i = 0; i < context->nopen; i++) {
        const size_t used = strlen(have);
        snprintf(have + used, sizeof have - used, "%s%s", i ? ", " : "", context->open[i]->name);
    }
    return cf_fail(CFX_EARG, "device '%s' does not exist: this run has %s", name, have);
}

CFX_API cfx_context *cfx_device_context(const cfx_device *device) { return device ? cf_context_of(device) : NULL; }

/* ---- contexts --------------------------------------------------------------------------------------- */

struct cf_name {
    struct cf_name *next;
    char text[];
};

static cfx_status read_options(const cfx_context_options *given, cfx_context_options *out) {
    static const cf_field last[] = {CF_FIELD(cfx_context_options, size), CF_FIELD(cfx_context_options, devices),
                                    CF_FIELD(cfx_context_options, threads), CF_FIELD(cfx_context_options, seed),
                                    CF_FIELD(cfx_context_options, memory_limit)};
    *out = (cfx_context_options){.size = sizeof *out};
    if (given) CF_TRY(cf_options_read("context: options", given, last, sizeof last / sizeof *last, out, sizeof *out));
    if (out->threads < 0 || out->threads > CFX_MAX_THREADS)
        return cf_fail(CFX_EARG, "context: threads: expected 1 to %d, or 0 for the cores of this process, got %d",
                       CFX_MAX_THREADS, (int)out->threads);
    return CFX_OK;
}

CFX_API cfx_status cfx_context_new(const cfx_context_options *given, cfx_context **out) {
    void *memory;
    cfx_context_options options;
    CF_TRY(read_options(given, &options));
    CF_TRY(cf_alloc_zero(1, sizeof(cfx_context), &memory));
    cfx_context *context = memory;
    context->threads = options.threads > 0 ? options.threads : cf_cores_usable();
    context->memory_limit = options.memory_limit;
    context->debt_threshold = 8 << 20;
    cfx_seed(context, options.seed);
    cfx_device *cpu;
    cfx_status status = cf_hub_init(&context->hub);
    if (status == CFX_OK) status = cf_fork_watch(&context->hub);
    if (status == CFX_OK) status = device_open(context, "cpu:0", &cpu); /* always exists */
    char spec[CF_DEFAULT_SPEC_BYTES];
    if (!options.devices) cf_default_spec(spec);
    if (status == CFX_OK) status = cfx_devices_set(context, options.devices ? options.devices : spec);
    if (status != CFX_OK) {
        cfx_context_free(context);
        return status;
    }
    *out = context;
    return CFX_OK;
}

CFX_API void cfx_context_free(cfx_context *context) {
    if (!context) return;
    cf_dependents_end(&context->tapes);
    cf_dependents_end(&context->loaders);
    if (!cf_is_forked(&context->hub)) cf_dependents_end(&context->worlds); /* while its commands still run */
    atomic_store(&context->hub.ending, 1);
    if (cf_is_forked(&context->hub)) { /* the workers and what they hold are the parent's: only the handles are ended */
        for (int32_t i = 0; i < context->nopen; i++) cf_dependents_end(&context->open[i]->buffers);
        return;
    }
    cf_fork_forget(&context->hub);
    /* All workers run dry before the first queue goes: a command may wait for any of them. */
    for (int32_t i = 0; i < context->nopen; i++) cf_worker_stop(&context->open[i]->inbox);
    cf_dependents_end(&context->groups);
    for (int32_t i = 0; i < context->nopen; i++) cf_dependents_end(&context->open[i]->buffers);
    for (int32_t i = 0; i < context->nopen; i++) cf_device_free(context->open[i]);
    for (cfx_device *device = context->closed, *next; device; device = next) {
        next = device->next_closed;
        cf_device_free(device);
    }
    cf_arena_free(context->arena);
    for (struct cf_name *name = context->sources, *next; name; name = next) {
        next = name->next;
        free(name);
    }
    cf_hub_free(&context->hub);
    free(context);
}

/* Or found by each participant of a collective. */
static bool is_same(const cf_fault *a, const cf_fault *b) {
    if (!a || !b) return false;
    return a == b || (a->line == b->line && strcmp(a->source, b->source) == 0 && strcmp(a->message, b->message) == 0);
}

cfx_status cf_event_raise(cf_event e) {
    if (!e.timeline || !cf_event_is_poisoned(e)) return CFX_OK;
    CF_TRY(cf_interrupted(e.timeline->hub)); /* a fault may come of the interrupt of another process */
    const cfx_context *context = (cfx_context *)e.timeline->hub;
    /* Every queue runs dry first, so that no command already enqueued can inherit the poison after it was
     * cleared.  Faults are rare: the price does not matter. */
    for (int32_t i = 0; i < context->nopen; i++)
        for (int q = 0; q < CF_QUEUES; q++) CF_TRY(cf_event_wait(cf_queue_last(cf_queue_at(context->open[i], q))));
    const cf_fault *fault = cf_timeline_fault(e.timeline); /* only now: a device may have found an earlier one */
    for (int32_t i = 0; i < context->nopen; i++)
        for (int q = 0; q < CF_QUEUES; q++) CF_TRY(cf_timeline_room(&cf_queue_at(context->open[i], q)->timeline));
    for (int32_t i = 0; i < context->nopen; i++) {
        cfx_device *device = context->open[i];
        /* where the device cannot go on, its queues stay poisoned */
        const cf_streams *streams = device->backend->streams;
        const bool goes_on = !streams || streams->forgive(device->state) == CFX_OK;
        for (int q = 0; goes_on && q < CF_QUEUES; q++) {
            cf_queue *queue = cf_queue_at(device, q);
            if (is_same(cf_timeline_fault(&queue->timeline), fault)) cf_timeline_clear(&queue->timeline, queue->last);
        }
    }
    return cf_fault_raise(fault, "");
}

CFX_API cfx_status cfx_sync(cfx_context *context, cfx_device *device) {
    for (int32_t i = 0; i < context->nopen; i++) {
        if (device && context->open[i] != device) continue;
        for (int q = 0; q < CF_QUEUES; q++) {
            const cf_event e = cf_queue_last(cf_queue_at(context->open[i], q));
            CF_TRY(cf_event_wait(e));
            CF_TRY(cf_event_raise(e));
        }
    }
    return cf_interrupted(&context->hub);
}

CFX_API void cfx_interrupt(cfx_context *context) {
    atomic_fetch_or(&context->hub.stops, CF_INTERRUPTED);
    cf_unpark(&context->hub.host.own.wake);
}

CFX_API cfx_status cfx_check(cfx_context *context) { return cf_interrupted(&context->hub); }

CFX_API void cfx_at_line(cfx_context *context, const char *source, int32_t line) {
    cf_hub *hub = &context->hub;
    hub->line = line;
    if (strcmp(hub->source, source) == 0) return;
    struct cf_name *name = context->sources;
    while (name && strcmp(name->text, source) != 0) name = name->next;
    if (!name) {
        const size_t bytes = strlen(source) + 1;
        name = malloc(sizeof *name + bytes);
        if (!name) { /* a fault then names no line, which is no reason to fail now */
            hub->line = 0;
            return;
        }
        memcpy(name->text, source, bytes);
        name->next = context->sources;
        context->sources = name;
    }
    hub->source = name->text;
}

cfx_status cf_context_share(cfx_context *context) {
    if (context->arena) return CFX_OK;
    CF_TRY(cf_arena_new(context->open[0]->shareable.limit, &context->arena));
    for (int32_t i = 0; i < context->nopen; i++)
        if (context->open[i]->backend->host_memory) context->open[i]->shareable.arena = context->arena;
    return CFX_OK;
}

/* ---- memory ----------------------------------------------------------------------------------------- */

CFX_API void cfx_debt_threshold(cfx_context *context, double bytes) { context->debt_threshold = bytes; }

CFX_API const int32_t *cfx_debt(const cfx_context *context) { return &context->debt; }

CFX_API void cfx_debt_paid(cfx_context *context) {
    context->debt = 0;
    for (int32_t i = 0; i < context->nopen; i++) context->open[i]->pool.at_collection = context->open[i]->pool.in_use;
}

CFX_API void cfx_memory_trim(cfx_context *context) {
    if (cf_is_forked(&context->hub)) return; /* devices' memory is the parent's to give back */
    for (int32_t i = 0; i < context->nopen; i++) {
        cf_pool_trim(&context->open[i]->pool);
        cf_pool_trim(&context->open[i]->shareable);
    }
}

/* ---- random streams --------------------------------------------------------------------------------- */

CFX_API void cfx_seed(cfx_context *context, uint64_t seed) {
    for (int32_t i = 0; i < CF_STREAMS; i++) context->streams[i] = (cf_rng_stream){seed, 0};
}

CFX_API void cfx_rng_get(const cfx_context *context, int32_t stream, uint64_t *seed, uint64_t *position) {
    const bool exists = stream >= 0 && stream < CF_STREAMS;
    *seed = exists ? context->streams[stream].seed : 0;
    *position = exists ? context->streams[stream].position : 0;
}

CFX_API cfx_status cfx_rng_set(cfx_context *context, int32_t stream, uint64_t seed, uint64_t position) {
    if (stream < 0 || stream >= CF_STREAMS)
        return cf_fail(CFX_EARG, "rng: argument 'stream': expected 0 to %d, got %d", CF_STREAMS - 1, stream);
    context->streams[stream] = (cf_rng_stream){seed, position};
    return CFX_OK;
}

CFX_API cfx_status cfx_precision(cfx_context *context, const char *name) {
    static const char *const names[] = {"float32", "tf32", "bfloat16"};
    for (int32_t i = 0; i < 3; i++) {
        if (strcmp(name, names[i]) != 0) continue;
        context->precision = i;
        return CFX_OK;
    }
    return cf_fail(CFX_EARG, "precision: expected float32, tf32 or bfloat16, got '%s'", name);
}
