/* machine.h: what the CPU that runs this has. */
#ifndef CF_CPU_MACHINE_H
#define CF_CPU_MACHINE_H

#include <stddef.h>

/* Kernels are compiled for each of these (cpu.h). */
typedef enum cf_cpu_isa { CF_CPU_BASE, CF_CPU_AVX2, CF_CPU_AVX512, CF_CPU_ISAS } cf_cpu_isa;

/* The best of them that it has. */
cf_cpu_isa cf_cpu_isa_here(void);

/* Its name, for people. */
const char *cf_cpu_isa_name(cf_cpu_isa isa);

/* The machine's memory in bytes; SIZE_MAX where the system does not tell. */
size_t cf_cpu_memory(void);

#endif
