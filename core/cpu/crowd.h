/* crowd.h: how long a team's threads wait for each other before they sleep.
 *
 * Between the parts of a step OpenMP's threads wait at barriers.  Where the cores are theirs they had better spin: a wait
 * takes microseconds, and a thread that has gone to sleep is woken too late.  Where other programs want the cores,
 * spinning is what those programs have to wait for, and so in turn the thread that is waited for: a step takes two to
 * forty times what it could.  No fixed time serves both, so a watcher, a thread of its own, looks ten times a second
 * whether others have cores that our threads wait for (base/cores.h), and has the waits short while they do and long
 * while they do not.
 *
 * libgomp cannot be told how long to wait once it is loaded.  But it spins for a hundredth of the time while it manages
 * more threads than it has cores, and a thread that has opened a parallel region counts with its whole team until it
 * ends, though all of them sleep.  So the watcher keeps such a team while waits are to be short.  Nobody waits for the
 * switch: it holds from the next barrier on.  Another runtime's waits stay as they are, and so do libgomp's where
 * OMP_WAIT_POLICY or GOMP_SPINCOUNT say how it shall wait.
 *
 * OpenMP's runtime is one per process, so this is, too.  It serves all contexts; it runs while a team of more than one
 * thread is there.
 */
#ifndef CF_CPU_CROWD_H
#define CF_CPU_CROWD_H

#include <stdbool.h>
#include <stddef.h>

/* The team of a worker has `now` threads, after it had `before`; 0: it is not there.  Any worker's thread.  Without a
 * watcher waits stay long: that is logged, and no failure. */
void cf_crowd_team(int before, int now);

/* Whether waits are short now. */
bool cf_crowd_is_short(void);

/* The runtime, and how its waits are steered or why they are not, for people. */
void cf_crowd_about(char *text, size_t bytes);

/* Whether waits should be short, where for some time `lacking` threads (cf_cores_lacking) had no core, and were short or
 * were not. */
bool cf_crowd_judge(bool is_short, double lacking);

#endif
