/* about.h: what the CPU is, for people. */
#ifndef CF_CPU_ABOUT_H
#define CF_CPU_ABOUT_H

#include <stddef.h>
#include <stdint.h>

/* backend->about. */
void cf_cpu_about(int32_t device, char *text, size_t bytes);

#endif
