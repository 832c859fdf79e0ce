/* backends.h: the backends of this process, and how their devices are called.
 *
 * A name is "cpu:1", "cuda:0", or "cuda:0.1", the second virtual device on a GPU.  A spec is a list of names, each
 * perhaps with a count: "cpu*4" is cpu:0 to cpu:3, "cuda*2" is cuda:0 and cuda:1, "cuda:0*2" is cuda:0.0 and cuda:0.1;
 * without a number the first is meant.
 */
#ifndef CF_DEVICE_BACKENDS_H
#define CF_DEVICE_BACKENDS_H

#include "device/backend.h"

enum { CF_NAME_BYTES = 24, CF_MAX_DEVICES = 64 };

/* The backend of a device's name or of a spec's item; NULL, and why in a message, if there is none.  Any thread. */
const cf_backend *cf_backend_of(const char *name);

/* Makes a backend known; those that are loaded come by themselves.  For the life of the process. */
cfx_status cf_backend_add(const cf_backend *backend);

/* The devices of a run that names none: every GPU that is visible, else the CPU.  A plugin that is missing or has no
 * device is no error here. */
enum { CF_DEFAULT_SPEC_BYTES = 16 };
void cf_default_spec(char spec[CF_DEFAULT_SPEC_BYTES]);

/* The canonical names of a spec's devices. */
cfx_status cf_spec_names(const char *spec, char names[CF_MAX_DEVICES][CF_NAME_BYTES], int32_t *n);

#endif
