/* emulated_backend.h: how a C test runs rows of core/cuda on the CPU: begin, call cf_cuda_kernels[op], look for the
 * fault that a read would see, end. */
#ifndef CF_EMULATED_BACKEND_H
#define CF_EMULATED_BACKEND_H

#ifdef __cplusplus
extern "C" {
#endif
#include "device/backend.h"

extern const cf_kernel cf_cuda_kernels[CF_OPS]; /* NULL: not emulated (the products are a library's) */
cf_workspace cf_cuda_workspace(cf_op op);
void cf_emulated_begin(cf_worker *worker);
void cf_emulated_end(cf_worker *worker);
cfx_status cf_emulated_fault(void);

#ifdef __cplusplus
}
#endif
#endif
