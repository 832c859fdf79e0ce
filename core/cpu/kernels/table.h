/* table.h: the CPU's kernels, and their workspaces, by row; a table for each instruction set. */
#ifndef CF_CPU_KERNELS_TABLE_H
#define CF_CPU_KERNELS_TABLE_H

#include "device/backend.h"

extern const cf_kernel cf_cpu_kernels_base[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx2[CF_OPS];
extern const cf_kernel cf_cpu_kernels_avx512[CF_OPS];
cf_workspace cf_cpu_workspace_base(cf_op op);
cf_workspace cf_cpu_workspace_avx2(cf_op op);
cf_workspace cf_cpu_workspace_avx512(cf_op op);

#endif
