/* run.h: how the program calls Lua: so that Ctrl-C ends the call, and with errors on stderr. */
#ifndef CF_HOST_RUN_H
#define CF_HOST_RUN_H

#include <lua.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>

/* Calls the function below the `nargs` topmost values.  Returns 0, or a LuaJIT status with the error on top of the
 * stack.  Each Ctrl-C raises an error, which Lua may catch; one that comes before the last has been raised, because
 * compiled code or a C function runs that looks at nothing, ends the process. */
int cf_run(lua_State *L, int nargs);

/* Whether it was Ctrl-C's error that ended the last cf_run. */
bool cf_run_was_interrupted(void);
enum { CF_EXIT_INTERRUPTED = 130 }; /* as a shell has it for what SIGINT, 2, has ended */

/* From here on an interrupt outside cf_run does nothing but be noted; *before is what it did. */
void cf_note_interrupts(struct sigaction *before);
/* Whether one has come, inside or outside cf_run, since this was last called with `forget`. */
bool cf_was_interrupted(bool forget);

/* The message of an error on top of the stack; NULL for nil, which is not shown. */
const char *cf_run_message(lua_State *L);

/* Whether `stream` shows colours: a terminal that can, unless NO_COLOR is set. */
bool cf_has_color(FILE *stream);

/* Prints "conflux: " and the message on stderr, after what stdout still holds. */
void cf_report(const char *message);

#endif
