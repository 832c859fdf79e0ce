/* thread.c: starts threads.  See thread.h. */
#include "base/thread.h"

#include <fenv.h>
#include <signal.h>

int cf_thread_start(pthread_t *out, void *(*run)(void *), void *argument) {
    sigset_t all, signals;
    fenv_t mode;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &signals);
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    const int error = pthread_create(out, NULL, run, argument);
    fesetenv(&mode);
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    return error;
}
