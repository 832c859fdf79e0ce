/* make.h: the rows of make.c that other kernels begin or end with. */
#ifndef CF_CPU_KERNELS_MAKE_H
#define CF_CPU_KERNELS_MAKE_H

#include "cpu/cpu.h"

cfx_status CF_K(copy)(cf_worker *worker, const cf_call *call);
cfx_status CF_K(fill)(cf_worker *worker, const cf_call *call);

#endif
