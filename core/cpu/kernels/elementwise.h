/* elementwise.h: the engine of the UNARY, BINARY and TERNARY rows, for kernels that end in one. */
#ifndef CF_CPU_KERNELS_ELEMENTWISE_H
#define CF_CPU_KERNELS_ELEMENTWISE_H

#include "cpu/cpu.h"

cfx_status CF_K(elementwise)(cf_worker *worker, const cf_call *call);

#endif
