/* device.c: see device.h. */
#include "device/device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/status.h"

cfx_status cf_device_new(cf_hub *hub, const char *name, cfx_device **out) {
    const cf_backend *backend = cf_backend_of(name);
    if (!backend) return CFX_EARG;
    void *memory = aligned_alloc(64, (sizeof(cfx_device) + 63) & ~(size_t)63);
    if (!memory) return cf_fail(CFX_EMEMORY, "out of host memory: a device");
    cfx_device *device = *out = memset(memory, 0, sizeof *device);
    snprintf(device->name, sizeof device->name, "%s", name);
    device->backend = backend;
    device->index = (int32_t)strtol(strchr(name, ':') + 1, NULL, 10);
    cf_inbox_init(&device->inbox, hub, backend);
    return CFX_OK;
}

cfx_status cf_device_open(cfx_device *device, size_t memory_limit) {
    const cf_backend *backend = device->backend;
    CF_TRY(backend->open(device->index, &device->state));
    const size_t limit = memory_limit ? memory_limit : backend->memory(device->state);
    CF_TRY(cf_pool_init(&device->pool, backend, device->state, limit));
    CF_TRY(cf_pool_init(&device->shareable, backend, device->state, limit));
    device->pool.beside = &device->shareable;
    device->shareable.beside = &device->pool;
    device->staging.backend = backend;
    device->staging.state = device->state;
    for (int q = 0; q < CF_QUEUES; q++) CF_TRY(cf_queue_open(cf_queue_at(device, q)));
    CF_TRY(cf_worker_start(&device->inbox, device->name, device->state));
    cf_hub_add(device->inbox.hub, &device->inbox.worker);
    return CFX_OK;
}

/* Ends the worker and gives the memory back; what events ask a queue for stays. */
void cf_device_close(cfx_device *device) {
    cf_hub_remove(device->inbox.hub, &device->inbox.worker);
    if (cf_device_is_open(device)) cf_worker_stop(&device->inbox);
    cf_pool_free(&device->pool);
    cf_pool_free(&device->shareable);
    cf_staging_free(&device->staging);
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_close(cf_queue_at(device, q));
    if (device->state) device->backend->close(device->state);
    device->state = device->inbox.state = NULL;
}

void cf_device_free(cfx_device *device) {
    cf_device_close(device);
    for (int q = 0; q < CF_QUEUES; q++) cf_queue_free(cf_queue_at(device, q));
    free(device);
}

bool cf_is_far(const cfx_device *a, const cfx_device *b) {
    if (a->backend->host_memory && b->backend->host_memory) return false;
    return a->backend != b->backend || a->index != b->index; /* virtual devices of one GPU share it */
}

CFX_API const char *cfx_device_name(const cfx_device *device) { return device ? device->name : ""; }

CFX_API int32_t cfx_device_threads(const cfx_device *device) {
    return device ? atomic_load(&device->inbox.threads) : 0;
}

CFX_API void cfx_memory(const cfx_device *device, cfx_memory_info *out) {
    const cf_pool *pool = &device->pool, *shareable = &device->shareable;
    *out = (cfx_memory_info){(double)(pool->in_use + shareable->in_use), (double)(pool->reserved + shareable->reserved),
                             (double)pool->peak, (double)pool->limit, (double)(pool->blocks + shareable->blocks)};
}
