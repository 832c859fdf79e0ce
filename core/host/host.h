/* host.h: Lua with Conflux in it.
 *
 * A state has LuaJIT's standard libraries, the embedded Lua library (modules.h), and the module "conflux.host", by
 * which that library learns where it runs.  There are two kinds of host: the `conflux` program, whose state makes its
 * context when it first needs one, and the engines of other programs (engine.c), which bring theirs.
 *
 * Memory is LuaJIT's own, taken through a function of ours: it counts, keeps to a limit, and is where a state looks
 * whether another thread has asked it to stop, because no thread but a state's own may touch the state, and whether the
 * C stack is still deep enough.
 */
#ifndef CF_HOST_HOST_H
#define CF_HOST_HOST_H

#include <lua.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "conflux.h"

typedef struct cf_host {
    lua_State *L;
    lua_Alloc allocate; /* LuaJIT's */
    void *allocator;
    size_t used, limit;             /* bytes; limit 0: none */
    const char *floor;              /* how far down the C stack may grow while a call is under way; NULL: any */
    bool was_deep;                  /* it got there once */
    bool closes;                    /* its finalisers run */
    _Atomic int32_t pending;        /* the reasons that the hook is armed for */
    void *owner;                    /* the engine that it is part of; NULL: it is the program's */
    _Atomic(cfx_context *) context; /* an interrupt reaches it; NULL until the program's Lua has made it */
    _Atomic int32_t running;        /* a call is under way */
    _Atomic int32_t asked;          /* it was asked to stop */
    _Atomic int32_t look;           /* by another thread: the next allocation sees it */
} cf_host;

/* ---- the program ------------------------------------------------------------------------------------- */

/* NULL when out of memory.  os.exit in it closes the state first, unless called with `close` false, so that
 * no device is at work when the process tears its libraries down. */
lua_State *cf_host_open(void);

/* Runs all finalisers, which wait for the devices, and frees the state. */
void cf_host_close(lua_State *L);

/* Calls the function below the `nargs` topmost values and drops its results.  Returns 0, or a LuaJIT status
 * with the error on top of the stack: a message with its traceback if it was a string. */
int cf_host_call(lua_State *L, int nargs);

/* Makes the call of the program's state that is at hand end with the error "interrupted!": Lua code at its next
 * instruction (but for compiled loops, which look at nothing), a Conflux call or wait at once.  False, and nothing is
 * done, if an interrupt before this one is still waiting for that.  For a signal handler: async-signal-safe as far as
 * lua_sethook is, which luajit's own handler relies on. */
bool cf_host_interrupt(void);

/* ---- any state --------------------------------------------------------------------------------------- */

/* Makes the state; host->limit, owner and context are set before.  Returns a LuaJIT status. */
int cf_host_init(cf_host *host);
void cf_host_end(cf_host *host);
cf_host *cf_host_of(lua_State *L);

/* Calls f with a light userdata in a state, raising nothing: a LuaJIT status, with the message in a string (which lasts
 * until the state is used again) if it is not 0. */
int cf_host_protect(cf_host *host, lua_CFunction f, void *data, const char **message);

/* The handler of errors, for lua_pcall: adds the traceback.  Those that are no strings pass unchanged, unless they know
 * how to print themselves. */
int cf_host_traceback(lua_State *L);

/* Bytes that this thread's stack has left; SIZE_MAX on a stack of which that is not known. */
size_t cf_host_stack_left(void);
/* Around a call that can be interrupted. */
void cf_host_enter(cf_host *host);
void cf_host_leave(cf_host *host);
/* From any thread, or a signal handler: what Conflux is called for, or the next allocation, ends the call at hand. */
void cf_host_stop(cf_host *host);
/* Raises the error of an interrupt that has not been raised yet. */
void cf_host_check(lua_State *L);

/* Puts "source:line: " of the first frame outside the library on the stack, which errors are blamed on. */
void cf_host_where(lua_State *L);

/* Collects all garbage, whatever finalisers raise. */
void cf_host_collect(cf_host *host);

#endif
