/* inherited.c: see inherited.h. */
#include "launch/inherited.h"

#include <stddef.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>

static const int heard[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2, SIGTSTP, SIGCONT};
enum { HEARD = sizeof heard / sizeof *heard };

int cf_inherited_change(cf_inherited *out) {
    struct sigaction action = {.sa_handler = SIG_IGN};
    sigset_t set;
    sigemptyset(&action.sa_mask);
    sigaction(SIGPIPE, &action, &out->broken_pipe);
    action.sa_handler = SIG_DFL; /* children whose parent ignores their end leave no status */
    sigaction(SIGCHLD, &action, &out->child);

    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    for (int k = 0; k < HEARD; k++) {
        if (sigaction(heard[k], NULL, &action) == 0 && action.sa_handler != SIG_IGN) sigaddset(&set, heard[k]);
    }
    sigprocmask(SIG_BLOCK, &set, &out->mask);

    getrlimit(RLIMIT_NOFILE, &out->descriptors);
    struct rlimit most = {.rlim_cur = out->descriptors.rlim_max, .rlim_max = out->descriptors.rlim_max};
    setrlimit(RLIMIT_NOFILE, &most);  /* where it may not, the limit stays what it was */
    prctl(PR_SET_CHILD_SUBREAPER, 1); /* processes that ranks have left behind come here */
    return signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC);
}

void cf_inherited_restore(const cf_inherited *inherited) {
    sigaction(SIGPIPE, &inherited->broken_pipe, NULL);
    sigaction(SIGCHLD, &inherited->child, NULL);
    setrlimit(RLIMIT_NOFILE, &inherited->descriptors);
    sigprocmask(SIG_SETMASK, &inherited->mask, NULL);
}
