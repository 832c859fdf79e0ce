/* worker.h: the thread behind a device.
 *
 * It takes the next command of either queue whose events have happened, the communication queue first, so no
 * command ever waits inside itself.  With nothing to take it spins a little and then parks; enqueuing a command wakes
 * it, and so does finishing a ticket that somebody waits for.
 */
#ifndef CF_DEVICE_WORKER_H
#define CF_DEVICE_WORKER_H

#include "device/ring.h"

/* All that a worker reads: its queues, and how it is to run them. */
typedef struct cf_inbox {
    cf_hub *hub;
    const cf_backend *backend;
    void *state;             /* the backend's, of this device */
    pthread_t thread;        /* 0: not started, or stopped */
    _Atomic int32_t threads; /* of its team */
    _Alignas(64) cf_sleeper worker;
    _Atomic int32_t stop;
    cf_queue queue[CF_QUEUES];
} cf_inbox;

void cf_inbox_init(cf_inbox *inbox, cf_hub *hub, const cf_backend *backend);

/* Starts the worker of the open queues, for the device of that name and state. */
cfx_status cf_worker_start(cf_inbox *inbox, const char *device, void *state);
/* Runs what is enqueued, then joins.  Not again before a start. */
void cf_worker_stop(cf_inbox *inbox);

/* Runs the cf_call that is the payload; a cf_run. */
cfx_status cf_run_call(cf_worker *worker, void *payload, bool poisoned);

#endif
