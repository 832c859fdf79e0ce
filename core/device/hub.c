/* hub.c: see hub.h. */
#include "device/hub.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/status.h"

cfx_status cf_hub_init(cf_hub *hub) {
    hub->source = "";
    hub->log = cf_log_of_thread();
    return pthread_mutex_init(&hub->lock, NULL) == 0 ? CFX_OK : cf_fail(CFX_EMEMORY, "context: cannot make a mutex");
}

void cf_hub_free(cf_hub *hub) {
    for (cf_fault *fault = hub->faults, *next; fault; fault = next) {
        next = fault->next;
        free(fault);
    }
    pthread_mutex_destroy(&hub->lock);
}

void cf_hub_add(cf_hub *hub, cf_sleeper *worker) {
    pthread_mutex_lock(&hub->lock);
    cf_sleeper **at = &hub->workers;
    while (*at) at = &(*at)->next;
    worker->next = NULL;
    *at = worker;
    pthread_mutex_unlock(&hub->lock);
}

void cf_hub_remove(cf_hub *hub, cf_sleeper *worker) {
    pthread_mutex_lock(&hub->lock);
    for (cf_sleeper **at = &hub->workers; *at; at = &(*at)->next) {
        if (*at != worker) continue;
        *at = worker->next;
        break;
    }
    pthread_mutex_unlock(&hub->lock);
}

void cf_hub_wake(cf_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    for (cf_sleeper *worker = hub->workers; worker; worker = worker->next) cf_sleeper_wake(worker);
    pthread_mutex_unlock(&hub->lock);
}

/* Those who ring while it moves have the lock, or are the host, which waits for the end of the move. */
void cf_hub_move(cf_hub *hub, cf_sleeper *worker, cf_bell *bell) {
    pthread_mutex_lock(&hub->lock);
    atomic_store_explicit(&worker->shared, bell, memory_order_release);
    pthread_mutex_unlock(&hub->lock);
}

cfx_status cf_interrupted(cf_hub *hub) {
    if (!atomic_load_explicit(&hub->stops, memory_order_relaxed)) return CFX_OK;
    if (cf_is_forked(hub))
        return cf_fail(CFX_ESTATE, "this process was forked after Conflux had started its threads, which a child does "
                                   "not have: fork before the first call, or start another program");
    if (hub->holds) return CFX_OK;
    atomic_fetch_and(&hub->stops, ~CF_INTERRUPTED);
    return cf_fail(CFX_EINTERRUPT, "interrupted");
}

/* It is kept when there is no memory to keep the real fault. */
static const cf_fault no_memory = {
    .number = 1, .status = CFX_EMEMORY, .message = "out of host memory while a fault was recorded"};

uint32_t cf_fault_keep(cf_hub *hub, cfx_status status, const cf_origin *command) {
    void *memory;
    if (cf_alloc_zero(1, sizeof(cf_fault), &memory) != CFX_OK) return no_memory.number;
    cf_fault *fault = memory;
    fault->status = status;
    if (command) {
        fault->line = command->line;
        snprintf(fault->source, sizeof fault->source, "%s", command->source);
        snprintf(fault->message, sizeof fault->message, "%s: %s", command->op, cfx_error());
    } else {
        snprintf(fault->message, sizeof fault->message, "%s", cfx_error());
    }
    cf_fault *newest = atomic_load(&hub->faults);
    do {
        fault->next = newest;
        fault->number = (newest ? newest->number : no_memory.number) + 1;
    } while (!atomic_compare_exchange_weak(&hub->faults, &newest, fault));
    return fault->number;
}

const cf_fault *cf_fault_of(cf_hub *hub, uint32_t number) {
    if (number <= no_memory.number) return number ? &no_memory : NULL;
    const cf_fault *fault = atomic_load(&hub->faults);
    while (fault && fault->number != number) fault = fault->next;
    return fault;
}

cfx_status cf_fault_raise(const cf_fault *fault, const char *prefix) {
    /* CFX_EMEMORY says that the call may be made again; a command that had no memory is past. */
    const cfx_status status = fault->status == CFX_EMEMORY ? CFX_EFAULT : fault->status;
    if (fault->line <= 0) return cf_fail(status, "%s%s", prefix, fault->message);
    return cf_fail(status, "%s%s (enqueued at %s:%d)", prefix, fault->message, fault->source, fault->line);
}
