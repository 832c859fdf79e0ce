/* thread.h: threads of ours inside other programs.
 *
 * A thread inherits what its creator has: the mask of signals, which are the host's, and the floating-point
 * environment, in which a host may round upwards or flush tiny numbers to zero.  Results must not depend on either, so
 * every thread of Conflux begins here, and a team's threads inherit from the worker that opens it.
 */
#ifndef CF_BASE_THREAD_H
#define CF_BASE_THREAD_H

#include <pthread.h>

/* Starts a thread with all signals blocked and C's default floating-point environment.  Returns 0 or an errno. */
int cf_thread_start(pthread_t *out, void *(*run)(void *), void *argument);

/* Between these two no thread of ours begins: for a caller that counts how many the system would make, and then has them
 * made by others (cpu/team.h). */
void cf_threads_hold(void);
void cf_threads_release(void);

#endif
