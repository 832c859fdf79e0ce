/* repl.h: the prompt: reads a statement or an expression, runs it, prints its value, again.
 *
 * Lua (lua/conflux/repl/) knows what lines mean; this side reads them, keeps the history, and calls Lua so that
 * neither an error nor Ctrl-C ends the loop.
 */
#ifndef CF_HOST_REPL_H
#define CF_HOST_REPL_H

#include <lua.h>
#include <stdbool.h>

/* Until the input ends or :quit.  False: it could not begin, or in input that no terminal typed something failed. */
bool cf_repl(lua_State *L);

#endif
