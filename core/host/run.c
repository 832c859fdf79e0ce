/* run.c: calls Lua under Ctrl-C, reports errors. */
#include "host/run.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "host/host.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal) {
    interrupted = signal;
    cf_host_interrupt();
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

int cf_run(lua_State *L, int nargs) {
    /* No SA_RESTART: a wait must return to see the interrupt.  SA_RESETHAND: the next one ends us. */
    struct sigaction action = {.sa_handler = on_interrupt, .sa_flags = (int)SA_RESETHAND}, before;
    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, &before);
    const int status = cf_host_call(L, nargs);
    sigaction(SIGINT, &before, NULL);
    return status;
}

const char *cf_run_message(lua_State *L) {
    if (lua_isnil(L, -1)) return NULL;
    const char *message = lua_tostring(L, -1);
    return message ? message : "(error object is not a string)";
}

bool cf_has_color(FILE *stream) {
    const char *no_color = getenv("NO_COLOR"), *terminal = getenv("TERM");
    if (no_color && *no_color) return false;
    return isatty(fileno(stream)) && !(terminal && strcmp(terminal, "dumb") == 0);
}

void cf_report(const char *message) {
    fflush(stdout);
    fprintf(stderr, cf_has_color(stderr) ? "\033[1;31mconflux:\033[0m %s\n" : "conflux: %s\n", message);
    fflush(stderr);
}
