/* run.c: calls Lua under Ctrl-C, reports errors. */
#include "host/run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "conflux.h"
#include "host/host.h"

static volatile sig_atomic_t interrupted;
static bool was_cut_off; /* the last call, by an interrupt */

static void on_interrupt(int signal) {
    interrupted = signal;
    if (cf_host_interrupt()) return;
    struct sigaction action = {.sa_handler = SIG_DFL};
    sigaction(signal, &action, NULL);
    raise(signal); /* taken when this handler returns */
}

static void note_interrupt(int signal) { interrupted = signal; }

void cf_note_interrupts(struct sigaction *before) {
    struct sigaction action = {.sa_handler = note_interrupt}; /* no SA_RESTART: a read must return */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, before);
}

bool cf_was_interrupted(bool forget) {
    const bool was = interrupted != 0;
    if (forget) interrupted = 0;
    return was;
}

/* Whether the error on top of the stack tells of an interrupt: the one that was raised, perhaps with more around it, or
 * a read's that the signal has cut off. */
static bool is_interrupt(lua_State *L) {
    const char *message = cf_run_message(L);
    if (!interrupted || !message) return false;
    lua_getfield(L, LUA_REGISTRYINDEX, "conflux.interrupted");
    const char *raised = lua_tostring(L, -1);
    const bool found = (raised && strstr(message, raised)) || strstr(message, strerror(EINTR));
    lua_pop(L, 1);
    return found;
}

int cf_run(lua_State *L, int nargs) {
    struct sigaction action = {.sa_handler = on_interrupt}, before; /* no SA_RESTART: a wait must return to see it */
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before);
    const int status = cf_host_call(L, nargs);
    sigaction(SIGINT, &before, NULL);
    was_cut_off = status != 0 && is_interrupt(L);
    return status;
}

bool cf_run_was_interrupted(void) { return was_cut_off; }

const char *cf_run_message(lua_State *L) {
    if (lua_isnil(L, -1)) return NULL;
    const char *message = lua_tostring(L, -1);
    return message ? message : "(error object is not a string)";
}

bool cf_has_color(FILE *stream) {
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (no_color && *no_color) return false;
    return cfx_is_terminal(fileno(stream)) && !(terminal && strcmp(terminal, "dumb") == 0);
}

void cf_report(const char *message) {
    fflush(stdout);
    fprintf(stderr, cf_has_color(stderr) ? "\033[1;31mconflux:\033[0m %s\n" : "conflux: %s\n", message);
    fflush(stderr);
}
