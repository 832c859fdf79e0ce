/* processors.h: functions that are compiled for several processors, of which the one at hand is picked at load.
 *
 * For hot loops of the host.  (A device's kernels are compiled apart, see core/cpu/kernels.)  Sanitizers are not yet there
 * when the pick is made, and clang knows other names: they take the plain function.
 */
#ifndef CF_DATA_PROCESSORS_H
#define CF_DATA_PROCESSORS_H

#if defined(__x86_64__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) && !defined(__clang__)
#define CF_FOR_PROCESSORS __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define CF_FOR_PROCESSORS
#endif

#endif
