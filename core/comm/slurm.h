/* slurm.h: ranks that Slurm has started, on one host.
 *
 * srun tells each process its number and how many there are, and nothing of how they meet: rank 0 listens on a local
 * socket, whose name is made of the job's and the step's numbers, and the others come there.
 */
#ifndef CF_COMM_SLURM_H
#define CF_COMM_SLURM_H

#include "comm/world.h"

/* Sets rank and size where this process is one of a step's several; else leaves them. */
cfx_status cf_slurm_find(cf_meeting *out);
/* Makes the sockets of a meeting that was found so; `until` on the clock that only goes forward, or 0. */
cfx_status cf_slurm_connect(cf_world *world, double until);

#endif
