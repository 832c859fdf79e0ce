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

/* Ends the worker and gives the memory back; what events ask a queue for stays. */
static void device_close(cfx_device *device) {
    cf_hub_remove(&device->context->hub, &device->worker);
    if (device->thread) cf_worker_stop(device);
    device->thread = 0;
    cf_pool_free(&device->pool);
    cf_staging_free(&device->staging);
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_close(&device->queue[q]);
    if (device->state) device->backend->close(device->state);
    device->state = NULL;
}

static void device_free(cfx_device *device) {
    device_close(device);
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_free(&device->queue[q]);
    free(device);
}

static cfx_status device_new(cfx_context *context, const char *name, cfx_device **out) {
    void *memory = aligned_alloc(64, (sizeof(cfx_device) + 63) & ~(size_t)63);
    if (!memory) return cf_fail(CFX_EMEMORY, "out of host memory: a device");
    cfx_device *device = *out = memset(memory, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "%s", name);
    device->context = context;
    device->backend = cf_backend_of(name);
    if (!device->backend) {
        free(device);
        return CFX_EARG;
    }
    device->index = (int32_t)strtol(strchr(name, ':') + 1, NULL, 10);
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_init(&device->queue[q], device);
    return CFX_OK;
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
    device_close(device);
    device->next_closed = context->closed;
    context->closed = device;
}

static cfx_status device_open(cfx_context *context, const char *name, cfx_device **out) {
    cfx_device *device = take_closed(context, name);
    if (!device) CF_TRY(device_new(context, name, &device));
    atomic_store(&device->threads, 1);
    atomic_store(&device->stop, 0);
    cfx_status status = device->backend->open(device->index, &device->state);
    if (status == CFX_OK) {
        const size_t limit = context->memory_limit ? context->memory_limit : device->backend->memory(device->state);
        status = cf_pool_init(&device->pool, device->backend, device->state, limit);
        device->staging.backend = device->backend;
        device->staging.state = device->state;
    }
    for (int q = 0; q < CF_QUEUES && status == CFX_OK; q++) status = cf_queue_open(&device->queue[q]);
    if (status == CFX_OK) status = cf_worker_start(device);
    if (status != CFX_OK) {
        put_closed(context, device);
        return status;
    }
    context->open[context->nopen++] = *out = device;
    cf_hub_add(&context->hub, &device->worker);
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
        atomic_store(&device->threads, share > 0 ? share : 1);
    }
    cfx_device *cpu = lookup(context, "cpu:0");
    if (cpus == 0 && cpu) atomic_store(&cpu->threads, context->threads);
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

CFX_API const char *cfx_device_name(const cfx_device *device) { return device ? device->name : ""; }
CFX_API int32_t cfx_device_threads(const cfx_device *device) { return device ? atomic_load(&device->threads) : 0; }
CFX_API cfx_context *cfx_device_context(const cfx_device *device) { return device ? device->context : NULL; }

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
    atomic_store(&context->hub.ending, 1);
    if (cf_is_forked(&context->hub)) { /* the workers and what they hold are the parent's: only the handles are ended */
        for (int32_t i = 0; i < context->nopen; i++) cf_dependents_end(&context->open[i]->buffers);
        return;
    }
    cf_fork_forget(&context->hub);
    /* All workers run dry before the first queue goes: a command may wait for any of them. */
    for (int32_t i = 0; i < context->nopen; i++) {
        cf_worker_stop(context->open[i]);
        context->open[i]->thread = 0;
    }
    for (int32_t i = 0; i < context->nopen; i++) cf_dependents_end(&context->open[i]->buffers);
    for (int32_t i = 0; i < context->nopen; i++) device_free(context->open[i]);
    for (cfx_device *device = context->closed, *next; device; device = next) {
        next = device->next_closed;
        device_free(device);
    }
    for (struct cf_name *name = context->sources, *next; name; name = next) {
        next = name->next;
        free(name);
    }
    cf_hub_free(&context->hub);
    free(context);
}

CFX_API cfx_status cfx_sync(cfx_context *context, cfx_device *device) {
    for (int32_t i = 0; i < context->nopen; i++) {
        if (device && context->open[i] != device) continue;
        for (int q = 0; q < CF_QUEUES; q++) {
            const cf_event e = cf_queue_last(&context->open[i]->queue[q]);
            CF_TRY(cf_event_wait(e));
            CF_TRY(cf_event_raise(e));
        }
    }
    return cf_interrupted(&context->hub);
}

CFX_API void cfx_interrupt(cfx_context *context) {
    atomic_fetch_or(&context->hub.stops, CF_INTERRUPTED);
    cf_unpark(&context->hub.host.wake);
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

/* ---- memory ----------------------------------------------------------------------------------------- */

CFX_API void cfx_memory(const cfx_device *device, cfx_memory_info *out) {
    const cf_pool *pool = &device->pool;
    *out = (cfx_memory_info){(double)pool->in_use, (double)pool->reserved, (double)pool->peak, (double)pool->limit,
                             (double)pool->blocks};
}

CFX_API void cfx_debt_threshold(cfx_context *context, double bytes) { context->debt_threshold = bytes; }

CFX_API const int32_t *cfx_debt(const cfx_context *context) { return &context->debt; }

CFX_API void cfx_debt_paid(cfx_context *context) {
    context->debt = 0;
    for (int32_t i = 0; i < context->nopen; i++) context->open[i]->pool.at_collection = context->open[i]->pool.in_use;
}

CFX_API void cfx_memory_trim(cfx_context *context) {
    if (cf_is_forked(&context->hub)) return; /* devices' memory is the parent's to give back */
    for (int32_t i = 0; i < context->nopen; i++) cf_pool_trim(&context->open[i]->pool);
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
