/* engine.h: engines inside other programs, between the files that make them.
 *
 * engine.c keeps engines and runs what they are asked to, values.c takes values between C and Lua.  Work that may raise
 * an error is a task: a C function of Lua's that finds its orders in a struct, and leaves there what C has to release.
 */
#ifndef CF_HOST_ENGINE_H
#define CF_HOST_ENGINE_H

#include <fenv.h>

#include "base/status.h"
#include "host/host.h"

struct cfx_engine {
    cf_host host;
    cfx_context *context;
    cfx_log log;          /* hook NULL: the thread's */
    _Atomic int32_t busy; /* a call is under way, in whatever thread */
    cfx_progress_hook progress;
    void *progress_data;
    fenv_t mode; /* the floating-point environment of the call's thread, which the host may have set */
    char *error; /* of the last call that failed; NULL: there was no memory for it, or none has */
};

/* A script's results must not depend on the host's floating-point environment, nor the host on ours: each has its own,
 * scripts C's default.  Around calls; and the other way about around functions of the host's. */
static inline void cf_mode_ours(fenv_t *hosts) {
    fegetenv(hosts);
    fesetenv(FE_DFL_ENV);
}
static inline void cf_mode_hosts(const fenv_t *hosts) { fesetenv(hosts); }

/* The head of a task's orders; `run` gets them as its one argument, a light userdata. */
typedef struct cf_task {
    cfx_engine *engine;
    lua_CFunction run;
    cfx_status status; /* the status of an error that is not a script's */
} cf_task;

/* Runs the task as a call of its engine's: what it raises ends as status and message. */
cfx_status cf_task_run(cf_task *task);
/* In a task: ends it with this status and message. */
int cf_task_fail(lua_State *L, cf_task *task, cfx_status status, const char *format, ...)
    __attribute__((format(printf, 4, 5)));
/* In a task: calls the function below the `nargs` topmost values.  Its error ends the task, with a traceback. */
void cf_task_call(lua_State *L, cf_task *task, int nargs, int nresults);

/* Returns CFX_EARG where the argument `given` is NULL; `what` is in words what it should be. */
#define CF_ENGINE_NEEDS(given, function, what)                                                                   \
    do {                                                                                                         \
        if (!(given))                                                                                            \
            return cf_engine_fail(CFX_EARG, "%s: argument '%s': expected %s, got NULL", function, #given, what); \
    } while (0)
/* The status, with its message for cfx_error(). */
cfx_status cf_engine_fail(cfx_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* conflux.host.progress(label, done, total, rate, seconds, loss or nil, finished) */
int cf_engine_progress(lua_State *L);

#endif
