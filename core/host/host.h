/* host.h: Lua with Conflux in it.
 *
 * A state has LuaJIT's standard libraries, the embedded Lua library (modules.h), and the module
 * "conflux.host", whose `interruptible(context)` names the cfx_context that an interrupt reaches.  The host
 * installs no signal handler; the program does, and calls cf_host_interrupt.
 *
 * One state runs at a time: what an interrupt reaches is per process, as signals are.
 */
#ifndef CF_HOST_HOST_H
#define CF_HOST_HOST_H

#include <lua.h>

/* NULL when out of memory.  os.exit in it closes the state first, unless called with `close` false, so that
 * no device is at work when the process tears its libraries down. */
lua_State *cf_host_open(void);

/* Runs all finalisers, which wait for the devices, and frees the state. */
void cf_host_close(lua_State *L);

/* Calls the function below the `nargs` topmost values and drops its results.  Returns 0, or a LuaJIT status
 * with the error on top of the stack: a message with its traceback if it was a string. */
int cf_host_call(lua_State *L, int nargs);

/* Makes the call at hand end with the error "interrupted!": Lua code at its next instruction (but for
 * compiled loops, which look at nothing), a Conflux call or wait at once.  Async-signal-safe as far as
 * lua_sethook is, which luajit's own handler relies on. */
void cf_host_interrupt(void);

#endif
