/* device.h: a worker with two queues, a pool of memory and what stages values on their way to it.
 *
 * A device that the run no longer names is closed: its worker ends and its memory goes, but its queues' counters
 * stay, because events of its work lie in tensors of other devices; it can be opened again.
 */
#ifndef CF_DEVICE_DEVICE_H
#define CF_DEVICE_DEVICE_H

#include "device/backends.h"
#include "device/dependents.h"
#include "device/pool.h"
#include "device/staging.h"
#include "device/worker.h"

struct cfx_device {
    char name[CF_NAME_BYTES];
    int32_t index; /* backend's number of it */
    const cf_backend *backend;
    void *state; /* the backend's */
    cf_pool pool;
    cf_pool shareable;  /* of memory that other processes reach; without an arena: of none */
    cf_staging staging; /* of a device whose memory the host does not see */
    cf_dependents buffers;
    cfx_device *next_closed;
    cf_inbox inbox;
};

static inline cf_queue *cf_queue_at(cfx_device *device, int q) { return &device->inbox.queue[q]; }

/* A closed one of that canonical name. */
cfx_status cf_device_new(cf_hub *hub, const char *name, cfx_device **out);
/* memory_limit 0: all that the device has.  One that could not be opened has to be closed. */
cfx_status cf_device_open(cfx_device *device, size_t memory_limit);
void cf_device_close(cfx_device *device);
static inline bool cf_device_is_open(const cfx_device *device) { return device->inbox.thread != 0; }
void cf_device_free(cfx_device *device);

/* Whether neither device's kernels can reach the other's memory. */
bool cf_is_far(const cfx_device *a, const cfx_device *b);

#endif
