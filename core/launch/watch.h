/* watch.h: what the launcher does while the ranks run, in one thread that waits at one place.
 *
 * It shows their output, feeds rank 0, passes signals on, tells of a rank that is stopped, and after a first failure gives
 * the others time to end by themselves before it ends them.
 */
#ifndef CF_LAUNCH_WATCH_H
#define CF_LAUNCH_WATCH_H

#include "launch/input.h"
#include "launch/output.h"
#include "launch/ranks.h"

typedef struct cf_watched {
    cf_ranks *ranks;
    cf_output *output;
    cf_input *input;
    int signals;        /* the descriptor of cf_inherited_change */
    double grace;       /* seconds for the others after a failure */
    struct pollfd *fds; /* [2 + cf_output_most] */
} cf_watched;

/* Returns when all has ended and has been shown: the exit code. */
int cf_watch(const cf_watched *watched);

#endif
