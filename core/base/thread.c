/* thread.c: starts threads.  See thread.h. */
#include "base/thread.h"

#include <fenv.h>
#include <signal.h>

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

void cf_threads_hold(void) { pthread_mutex_lock(&turn); }
void cf_threads_release(void) { pthread_mutex_unlock(&turn); }

/* A child of fork may start threads of its own, even if another thread held the turn in its parent.  When the library
 * is loaded, so that of all locks that are taken for a fork this is the last, as it is elsewhere. */
__attribute__((constructor)) static void watch_forks(void) {
    (void)pthread_atfork(cf_threads_hold, cf_threads_release, cf_threads_release);
}

int cf_thread_start(pthread_t *out, void *(*run)(void *), void *argument) {
    sigset_t all, signals;
    fenv_t mode;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &signals);
    fegetenv(&mode);
    fesetenv(FE_DFL_ENV);
    cf_threads_hold();
    const int error = pthread_create(out, NULL, run, argument);
    cf_threads_release();
    fesetenv(&mode);
    pthread_sigmask(SIG_SETMASK, &signals, NULL);
    return error;
}
