/* main.c: the `conflux` program.
 *
 * It follows luajit's conventions: the order of options, the `arg` table, LUA_INIT, messages, exit codes.  Its own
 * options reach the Lua library through the environment, set before Lua starts, so that a script run by
 * plain luajit can be given the same settings.
 */
#include <errno.h>
#include <lauxlib.h>
#include <luajit.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "conflux.h"
#include "host/crash.h"
#include "host/edit.h"
#include "host/host.h"
#include "host/options.h"
#include "host/repl.h"
#include "host/run.h"

typedef struct program {
    char **argv;
    int argc;
    int script; /* its place in argv; argc: none */
    bool shows_version, executes, is_interactive, ignores_environment;
    bool has_failed;
} program;

/* ---- the standard streams -------------------------------------------------------------------------- */

/* At the very end, however it comes: output that was lost is a failure, where luajit says nothing. */
static void finish_stdout(void) {
    const bool had_failed = ferror(stdout);
    errno = 0;
    if (fflush(stdout) == 0 && !had_failed) return;
    char message[128];
    snprintf(message, sizeof message, "cannot write to stdout%s%s", errno ? ": " : "", errno ? strerror(errno) : "");
    cf_report(message);
    _exit(EXIT_FAILURE);
}

static void print_log(void *data, int level, const char *message) {
    static const char *const names[] = {"error: ", "warning: ", ""};
    (void)data;
    fprintf(stderr, "conflux: %s%s\n", names[level < 0 ? 0 : level > 2 ? 2 : level], message);
}

/* A rank's stdout is a pipe to conflux-run, which shows whole lines: each is passed on when it is written, so that ranks'
 * lines come as they are made, and a rank that is killed has shown all of its own. */
static void show_lines(void) {
    if (getenv("CONFLUX_RANK")) setvbuf(stdout, NULL, _IOLBF, BUFSIZ);
}

/* ---- running --------------------------------------------------------------------------------------- */

/* The other ranks of a world hear why this one ends, rather than that it has left. */
static void tell_ranks(lua_State *L, const char *message) {
    char line[512];
    cfx_context *context = atomic_load(&cf_host_of(L)->context);
    snprintf(line, sizeof line, "%.*s", (int)strcspn(message, "\n"), message);
    if (context) cfx_world_fail(context, line);
}

/* Prints the error that `status` stands for. */
static bool report(lua_State *L, int status) {
    if (status == 0) return true;
    const char *message = cf_run_message(L);
    tell_ranks(L, message ? message : "its script has ended by an error");
    if (message) cf_report(message);
    lua_pop(L, 1);
    return false;
}

/* Calls what was loaded with `status`, and prints the error of either. */
static bool run(lua_State *L, int status, int nargs) { return report(L, status == 0 ? cf_run(L, nargs) : status); }

static bool run_text(lua_State *L, const char *text, const char *name) {
    return run(L, luaL_loadbuffer(L, text, strlen(text), name), 0);
}

static bool require(lua_State *L, const char *name) {
    lua_getglobal(L, "require");
    lua_pushstring(L, name);
    return run(L, 0, 1);
}

/* -j and -O: errors have no traceback, as in luajit. */
static bool control(lua_State *L, const char *function, const char *value) {
    lua_getglobal(L, "require");
    lua_pushliteral(L, "conflux.control");
    int status = lua_pcall(L, 1, 1, 0);
    if (status == 0) {
        lua_getfield(L, -1, function);
        lua_replace(L, -2);
        lua_pushstring(L, value);
        status = lua_pcall(L, 1, 0, 0);
    }
    return report(L, status);
}

static bool show_info(lua_State *L) {
    if (!run_text(L, "print(require('conflux').info())", "=(command line)")) return false;
    printf("line editing: %s\n", cf_edit_about());
    return true;
}

static bool run_init(lua_State *L) {
    const char *init = getenv("LUA_INIT");
    if (!init) return true;
    return init[0] == '@' ? run(L, luaL_loadfile(L, init + 1), 0) : run_text(L, init, "=LUA_INIT");
}

/* Runs -e, -l, -j, -O and --info in their order. */
static bool run_options(lua_State *L, char **argv) {
    const char *value;
    int id;
    bool ok = true;
    for (int i = 1; ok && (id = cf_option_next(argv, &i, &value)) != CF_NO_OPTION;) {
        switch (id) {
        case CF_OPTION_EXECUTE: ok = run_text(L, value, "=(command line)"); break;
        case CF_OPTION_REQUIRE: ok = require(L, value); break;
        case CF_OPTION_CONTROL: ok = control(L, "command", value); break;
        case CF_OPTION_OPTIMIZE: ok = control(L, "optimize", value); break;
        case CF_OPTION_INFO: ok = show_info(L); break;
        default: break;
        }
    }
    return ok;
}

/* The script's arguments come from `arg`, which -e and LUA_INIT may have changed. */
static int push_arguments(lua_State *L) {
    lua_getglobal(L, "arg");
    if (!lua_istable(L, -1)) {
        lua_pop(L, 1);
        return 0;
    }
    const int table = lua_gettop(L);
    int n = 0;
    for (;; n++) {
        luaL_checkstack(L, 2, "too many arguments to script");
        lua_rawgeti(L, table, n + 1);
        if (lua_isnil(L, -1)) break;
    }
    lua_pop(L, 1);
    lua_remove(L, table);
    return n;
}

static bool run_script(lua_State *L, const char *path) {
    const int status = luaL_loadfile(L, path);
    return run(L, status, status == 0 ? push_arguments(L) : 0);
}

static void set_arg(lua_State *L, const program *p) {
    lua_createtable(L, p->argc - p->script, p->script);
    for (int i = 0; i < p->argc; i++) {
        lua_pushstring(L, p->argv[i]);
        lua_rawseti(L, -2, i - p->script);
    }
    lua_setglobal(L, "arg");
}

static void print_version(void) {
    printf("Conflux %s (%s) -- %s\n", cfx_version(), CF_BUILD, LUAJIT_VERSION);
    fflush(stdout);
}

static bool run_all(lua_State *L, const program *p) {
    const char *name = p->argv[p->script];
    const bool is_alone = !name && !p->executes && !p->shows_version && !p->is_interactive;
    const bool has_terminal = isatty(STDIN_FILENO);

    set_arg(L, p);
    if (!p->ignores_environment && !run_init(L)) return false;
    /* The prompt comes with the version, except in a pipe. */
    if (p->shows_version || (has_terminal && (p->is_interactive || is_alone))) print_version();
    if (!run_options(L, p->argv)) return false;
    if (name) {
        const bool is_stdin = strcmp(name, "-") == 0 && strcmp(p->argv[p->script - 1], "--") != 0;
        if (!run_script(L, is_stdin ? NULL : name)) return false;
    }
    if (p->is_interactive || (is_alone && has_terminal)) return cf_repl(L);
    return !is_alone || run_script(L, NULL);
}

/* A script that ends well may have left work behind whose fault nobody would hear of. */
static bool run_end(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "conflux.core");
    if (!lua_istable(L, -1)) return true;
    lua_getfield(L, -1, "finish");
    lua_replace(L, -2);
    return run(L, 0, 0);
}

/* Under lua_cpcall, so that an error outside any other call is one, too. */
static int run_protected(lua_State *L) {
    program *p = lua_touserdata(L, 1);
    lua_settop(L, 0);
    p->has_failed = !(run_all(L, p) && run_end(L));
    return 0;
}

/* ---- the beginning --------------------------------------------------------------------------------- */

/* A state whose package.path and package.cpath know of no LUA_PATH and LUA_CPATH, if they are to be ignored; Lua and
 * what it starts still find them in the environment. */
static lua_State *open_state(bool ignores_environment) {
    static const char *const names[] = {"LUA_PATH", "LUA_CPATH"};
    char *values[] = {NULL, NULL};
    bool ok = true;
    for (int i = 0; ignores_environment && i < 2; i++) {
        const char *value = getenv(names[i]);
        if (!value) continue;
        values[i] = strdup(value);
        ok = ok && values[i];
        unsetenv(names[i]);
    }
    lua_State *L = ok ? cf_host_open() : NULL;
    for (int i = 0; i < 2; i++) {
        if (values[i]) setenv(names[i], values[i], 1);
        free(values[i]);
    }
    if (L && ignores_environment) { /* where luajit's says the same */
        lua_pushboolean(L, 1);
        lua_setfield(L, LUA_REGISTRYINDEX, "LUA_NOENV");
    }
    return L;
}

int main(int argc, char **argv) {
    static char name[] = "conflux";
    char *nothing[] = {name, NULL};
    if (argc == 0) {
        argv = nothing;
        argc = 1;
    }
    if (!cf_command_keep_streams()) return EXIT_FAILURE;
    show_lines();
    cf_crash_watch();
    atexit(finish_stdout);

    program p = {.argv = argv, .argc = argc, .script = 1};
    const char *value;
    int id;
    while ((id = cf_option_next(argv, &p.script, &value)) != CF_NO_OPTION) {
        if (id == CF_BAD_OPTION) return EXIT_FAILURE;
        if (id == CF_OPTION_HELP) {
            fputs(cf_usage, stdout);
            return EXIT_SUCCESS;
        }
        p.executes |= id == CF_OPTION_EXECUTE || id == CF_OPTION_INFO;
        p.shows_version |= id == CF_OPTION_VERSION;
        p.is_interactive |= id == CF_OPTION_INTERACTIVE;
        p.ignores_environment |= id == CF_OPTION_NO_ENVIRONMENT;
        const char *variable = cf_option_variable(id);
        if (variable) setenv(variable, value, 1);
    }
    cfx_log_to(print_log, NULL);

    lua_State *L = open_state(p.ignores_environment);
    if (!L) {
        cf_report("cannot create a Lua state: not enough memory");
        return EXIT_FAILURE;
    }
    const bool ok = report(L, lua_cpcall(L, run_protected, &p));
    cf_host_close(L);
    if (ok && !p.has_failed) return EXIT_SUCCESS;
    return cf_run_was_interrupted() ? CF_EXIT_INTERRUPTED : EXIT_FAILURE;
}
