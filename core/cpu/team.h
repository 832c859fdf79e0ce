/* team.h: OpenMP teams that the system has the threads for.
 *
 * Where a thread cannot be made OpenMP's runtime ends the process, which is the host's.  So before a team is opened as
 * many plain threads are made and ended again.  Where the system makes fewer, the team takes half of those: the rest is
 * left to what comes after it, a loader or a thread of the host's.  No other thread of ours begins meanwhile; which of the
 * host's do in these microseconds cannot be known.
 */
#ifndef CF_CPU_TEAM_H
#define CF_CPU_TEAM_H

/* Opens a team of `wanted` threads for the calling thread, which has one of `had` (1: none), or a smaller one, but of no
 * fewer than `least`.  Returns its size; 0 if there is none. */
int cf_team_open(int had, int wanted, int least);

#endif
