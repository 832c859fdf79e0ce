/* fork.c: contexts in a child of fork.
 *
 * A child has its parent's memory and one thread, the one that forked: no worker runs its commands, and a wait would
 * never end.  So the child marks every hub, as an interrupt would, and each call on its context fails with the reason.
 */
#include "device/fork.h"

#include "base/status.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static cf_hub *live;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int error;

static void before_fork(void) { pthread_mutex_lock(&lock); }
static void in_parent(void) { pthread_mutex_unlock(&lock); }

static void in_child(void) {
    for (cf_hub *hub = live; hub; hub = hub->next_live) atomic_fetch_or(&hub->stops, CF_FORKED);
    pthread_mutex_unlock(&lock);
}

static void prepare(void) { error = pthread_atfork(before_fork, in_parent, in_child); }

cfx_status cf_fork_watch(cf_hub *hub) {
    pthread_once(&once, prepare);
    if (error) return cf_fail(CFX_EMEMORY, "context: out of host memory: a handler of fork");
    pthread_mutex_lock(&lock);
    hub->next_live = live;
    live = hub;
    pthread_mutex_unlock(&lock);
    return CFX_OK;
}

void cf_fork_forget(cf_hub *hub) {
    pthread_mutex_lock(&lock);
    for (cf_hub **at = &live; *at; at = &(*at)->next_live) {
        if (*at != hub) continue;
        *at = hub->next_live;
        break;
    }
    pthread_mutex_unlock(&lock);
}
