/* repl.c: the loop around conflux.repl. */
#include "host/repl.h"

#include <dirent.h>
#include <errno.h>
#include <lauxlib.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "host/history.h"
#include "host/line.h"
#include "host/run.h"

typedef struct repl {
    lua_State *L;
    int module; /* the stack index of conflux.repl */
    cf_line *line;
    cf_history *history; /* NULL: none is kept */
    bool has_terminal, has_failed;
} repl;

/* ---- calls ----------------------------------------------------------------------------------------- */

/* An error at the prompt: its first line in colour, without the program's name. */
static void show_error(const char *message, bool has_color) {
    const int first = (int)strcspn(message, "\n");
    fflush(stdout);
    fprintf(stderr, has_color ? "\033[1;31m%.*s\033[0m%s\n" : "%.*s%s\n", first, message, message + first);
    fflush(stderr);
}

/* Shows the error on top of the stack, without the frames of the REPL itself, and pops it. */
static void report(repl *r) {
    lua_State *L = r->L;
    r->has_failed = true;
    const char *message = cf_run_message(L);
    if (message && lua_checkstack(L, 4)) {
        lua_getfield(L, r->module, "trim");
        lua_pushstring(L, message);
        if (lua_pcall(L, 1, 1, 0) == 0 && lua_isstring(L, -1)) message = lua_tostring(L, -1);
        show_error(message, r->has_terminal && cf_has_color(stderr));
        lua_pop(L, 1);
    }
    lua_pop(L, 1);
}

/* Calls the module's function `name` with the topmost value, under Ctrl-C.  An interrupt that came too late to stop it
 * stops nothing else. */
static bool run(repl *r, const char *name) {
    lua_State *L = r->L;
    lua_getfield(L, r->module, name);
    lua_insert(L, -2);
    const int status = cf_run(L, 1);
    lua_sethook(L, NULL, 0, 0);
    if (status != 0) report(r);
    return status == 0;
}

/* Calls it for a text, which is left on the stack and returned; NULL: it gave none.  Where it fails, for the user may
 * change all that Lua has, the error is shown, and `instead` takes its place. */
static const char *ask(repl *r, const char *name, const char *instead) {
    lua_getfield(r->L, r->module, name);
    if (lua_pcall(r->L, 0, 1, 0) != 0) {
        report(r);
        lua_pushstring(r->L, instead);
    }
    return lua_tostring(r->L, -1);
}

/* ---- completion ------------------------------------------------------------------------------------ */

static int close_directory(lua_State *L) {
    DIR **stream = lua_touserdata(L, 1);
    if (*stream) closedir(*stream);
    *stream = NULL;
    return 0;
}

/* files(directory): the names in it, in a table; those of directories end with "/".  Empty if it cannot be read. */
static int list_files(lua_State *L) {
    const char *directory = luaL_checkstring(L, 1);
    lua_settop(L, 1);
    lua_newtable(L);
    DIR **stream = lua_newuserdata(L, sizeof *stream); /* closed even if memory runs out below */
    *stream = NULL;
    lua_createtable(L, 0, 1);
    lua_pushcfunction(L, close_directory);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_insert(L, 2);
    if (!(*stream = opendir(directory))) return 1;
    int n = 0;
    for (const struct dirent *entry; (entry = readdir(*stream));) {
        struct stat status;
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0) continue;
        const bool is_directory = fstatat(dirfd(*stream), entry->d_name, &status, 0) == 0 && S_ISDIR(status.st_mode);
        lua_pushfstring(L, "%s%s", entry->d_name, is_directory ? "/" : "");
        lua_rawseti(L, -2, ++n);
    }
    closedir(*stream);
    *stream = NULL;
    return 1;
}

/* The texts stay on the stack until cf_line_read has returned. */
static void complete(void *data, const char *before, int columns, cf_completion *out) {
    repl *r = data;
    lua_State *L = r->L;
    if (!lua_checkstack(L, 8)) return;
    lua_getfield(L, r->module, "complete");
    lua_pushstring(L, before);
    lua_pushinteger(L, columns);
    if (lua_pcall(L, 2, 2, 0) != 0) { /* a metamethod that raises, say: nothing to complete */
        lua_pop(L, 1);
        return;
    }
    out->insertion = lua_tostring(L, -2);
    out->list = lua_tostring(L, -1);
}

/* ---- history --------------------------------------------------------------------------------------- */

static void recall(void *data, const char *entry) { cf_line_remember(data, entry); }

/* Says why there is no history, and keeps none. */
static void give_up_history(repl *r, int error) {
    char message[512];
    const char *why = error == EINVAL ? "it is no regular file" : strerror(error);
    snprintf(message, sizeof message, "the history is not kept: %s: %s", cf_history_path(r->history), why);
    cf_report(message);
    cf_history_close(r->history);
    r->history = NULL;
}

static void open_history(repl *r) {
    if (!cf_line_is_edited(r->line) || !(r->history = cf_history_open())) return;
    const int error = cf_history_each(r->history, recall, r->line);
    if (error) give_up_history(r, error);
}

/* Keeps what has been entered completely. */
static void remember(repl *r) {
    const char *entry = cf_line_is_edited(r->line) ? ask(r, "entered", NULL) : NULL;
    if (entry) {
        cf_line_remember(r->line, entry);
        const int error = r->history ? cf_history_add(r->history, entry) : 0;
        if (error) give_up_history(r, error);
    }
}

/* ---- the loop -------------------------------------------------------------------------------------- */

/* interrupted(): whether Ctrl-C has come since the line was read, perhaps before anything ran that it could end. */
static int push_interrupted(lua_State *L) {
    lua_pushboolean(L, cf_was_interrupted(false));
    return 1;
}

/* Leaves conflux.repl on the stack, begun. */
static bool begin(repl *r) {
    lua_State *L = r->L;
    lua_getglobal(L, "require");
    lua_pushliteral(L, "conflux.repl");
    if (lua_pcall(L, 1, 1, 0) != 0) {
        cf_report(cf_run_message(L));
        return false;
    }
    r->module = lua_gettop(L);
    lua_getfield(L, r->module, "begin");
    lua_createtable(L, 0, 3);
    lua_pushboolean(L, r->has_terminal);
    lua_setfield(L, -2, "terminal");
    lua_pushcfunction(L, list_files);
    lua_setfield(L, -2, "files");
    lua_pushcfunction(L, push_interrupted);
    lua_setfield(L, -2, "interrupted");
    const int status = cf_run(L, 1);
    if (status != 0) {
        const char *message = cf_run_message(L);
        if (message) cf_report(message);
    }
    return status == 0;
}

/* Reads a line and does what it says.  False at the end. */
static bool step(repl *r) {
    lua_State *L = r->L;
    const char *prompt = ask(r, "prompt", "> "), *text;
    size_t length;
    char message[128];
    if (!prompt) return false;
    const cf_line_status status = cf_line_read(r->line, prompt, &text, &length);
    lua_settop(L, r->module);
    switch (status) {
    case CF_LINE_INTERRUPTED: lua_pushnil(L); break;
    case CF_LINE_READ: lua_pushlstring(L, text, length); break;
    case CF_LINE_FAILED:
        r->has_failed = true;
        snprintf(message, sizeof message, "cannot read stdin: %s", strerror(errno));
        cf_report(message);
        return false;
    case CF_LINE_END:
        if (!r->has_terminal) { /* an unfinished statement is an error */
            lua_pushboolean(L, 0);
            run(r, "feed");
        }
        return false;
    }
    const bool parses = run(r, "feed");
    remember(r); /* before it runs, which may end the program */
    lua_settop(L, r->module);
    lua_pushnil(L);
    if (parses) run(r, "act");
    lua_settop(L, r->module);
    return r->has_terminal || !cf_run_was_interrupted(); /* text from a pipe is a script */
}

bool cf_repl(lua_State *L) {
    const int top = lua_gettop(L);
    repl r = {.L = L, .has_terminal = isatty(STDIN_FILENO)};
    bool ok = begin(&r);
    if (ok && !(r.line = cf_line_open(complete, &r))) {
        cf_report("not enough memory");
        ok = false;
    }
    if (ok) {
        open_history(&r);
        while (step(&r)) {}
        ok = r.has_terminal || !r.has_failed;
    }
    cf_history_close(r.history);
    cf_line_close(r.line);
    lua_settop(L, top);
    return ok;
}
