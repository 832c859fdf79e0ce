/* inherited.h: what the launcher changes in itself, and gives back to the ranks before they begin.
 *
 * The launcher hears of signals by a descriptor, writes to a pipe that nobody reads without being ended, and takes as
 * many descriptors as it may.  A rank begins as if there were no launcher, with the signals that it was
 * started with: one that is ignored (nohup) stays so in both.
 */
#ifndef CF_LAUNCH_INHERITED_H
#define CF_LAUNCH_INHERITED_H

#include <signal.h>
#include <stdbool.h>
#include <sys/resource.h>

typedef struct cf_inherited {
    sigset_t mask;
    struct sigaction broken_pipe, child;
    struct rlimit descriptors;
} cf_inherited;

/* Changes it; returns a descriptor to read signals from (signalfd), or -1 with errno. */
int cf_inherited_change(cf_inherited *out);
/* Restores it.  For a rank. */
void cf_inherited_restore(const cf_inherited *inherited);

#endif
