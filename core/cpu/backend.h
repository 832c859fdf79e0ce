/* backend.h: the CPU as a kind of device.  device/backends.c alone names it. */
#ifndef CF_CPU_BACKEND_H
#define CF_CPU_BACKEND_H

#include "device/backend.h"

/* With the kernels of the best instruction set that this CPU has. */
const cf_backend *cf_backend_cpu(void);

#endif
