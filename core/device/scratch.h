/* scratch.h: memory that a kernel needs while it runs, one piece for each worker, kept from one call to the next. */
#ifndef CF_DEVICE_SCRATCH_H
#define CF_DEVICE_SCRATCH_H

#include "device/backend.h"

/* At least `bytes` of 64-byte aligned memory that lasts until the next call of this; NULL when there is none. */
void *cf_worker_scratch(cf_worker *worker, size_t bytes);
/* Gives it back, after the worker's last command. */
void cf_worker_scratch_free(cf_worker *worker);

#endif
