/* engine.c: engines inside other programs: made, run, interrupted, freed.  See conflux.h for what is promised. */
#include "host/engine.h"

#include <lauxlib.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/options.h"

/* ---- messages --------------------------------------------------------------------------------------- */

enum { MESSAGE_BYTES = 1024 };

cfx_status cf_engine_fail(cfx_status status, const char *format, ...) {
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    cfx_error_set(text);
    return status;
}

/* LuaJIT says so when memory is out; a coroutine or the like that passed it on has put its own words around. */
static bool says_no_memory(const char *message) {
    const char *found = strstr(message, "not enough memory");
    return found && found < message + strcspn(message, "\n");
}

/* Names what went wrong, and keeps the message. */
static cfx_status keep(cf_task *task, int lua_status, const char *message) {
    cfx_engine *engine = task->engine;
    cfx_status status = task->status != CFX_OK ? task->status : CFX_ESCRIPT;
    char *whole = NULL;
    if (lua_status == LUA_ERRMEM || (status == CFX_ESCRIPT && says_no_memory(message))) {
        status = CFX_EMEMORY;
    } else if (status == CFX_ESCRIPT && atomic_load(&engine->host.asked) && strstr(message, "interrupted!")) {
        status = CFX_EINTERRUPT;
    }
    if (status == CFX_EMEMORY && engine->host.limit && says_no_memory(message)) {
        const int line = (int)strcspn(message, "\n");
        if (asprintf(&whole, "%.*s: Lua's limit is %zu bytes%s", line, message, engine->host.limit, message + line) < 0)
            whole = NULL;
    } else {
        whole = strdup(message);
    }
    cfx_error_set(whole ? whole : message);
    free(engine->error);
    engine->error = whole;
    return status;
}

CFX_API const char *cfx_engine_error(const cfx_engine *engine) { return engine && engine->error ? engine->error : ""; }

/* ---- tasks ------------------------------------------------------------------------------------------ */

static cfx_status check_stack(void) {
    const size_t left = cf_host_stack_left();
    if (left >= CFX_STACK_BYTES) return CFX_OK;
    return cf_engine_fail(CFX_ESTATE, "this thread has %zu bytes of stack left; engines need %d", left,
                          (int)CFX_STACK_BYTES);
}

static cfx_status take(cfx_engine *engine) {
    int32_t free = 0;
    CF_TRY(check_stack());
    if (atomic_compare_exchange_strong(&engine->busy, &free, 1)) return CFX_OK;
    return cf_engine_fail(CFX_ESTATE,
                          "the engine is in use: by another thread, or by a script that called this function");
}

cfx_status cf_task_run(cf_task *task) {
    cfx_engine *engine = task->engine;
    const char *message;
    cfx_status status = take(engine);
    if (status != CFX_OK) return status;
    const cfx_log before = engine->log.hook ? cfx_log_here(engine->log) : (cfx_log){NULL, NULL};
    cf_mode_ours(&engine->mode);
    cf_host_enter(&engine->host);
    const int lua_status = cf_host_protect(&engine->host, task->run, task, &message);
    cf_host_leave(&engine->host);
    if (lua_status != 0) {
        status = keep(task, lua_status, message);
        cf_host_collect(&engine->host); /* objects that the error cut off may hold devices' memory */
        cfx_error_set(cfx_engine_error(engine));
    }
    cf_mode_hosts(&engine->mode);
    if (engine->log.hook) cfx_log_here(before);
    atomic_store(&engine->busy, 0);
    return status;
}

int cf_task_fail(lua_State *L, cf_task *task, cfx_status status, const char *format, ...) {
    char text[MESSAGE_BYTES];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    task->status = status;
    lua_pushstring(L, text);
    return lua_error(L);
}

void cf_task_call(lua_State *L, cf_task *task, int nargs, int nresults) {
    const int handler = lua_gettop(L) - nargs;
    lua_pushcfunction(L, cf_host_traceback);
    lua_insert(L, handler);
    const int status = lua_pcall(L, nargs, nresults, handler);
    lua_remove(L, handler);
    if (status == 0) return;
    if (status == LUA_ERRMEM) task->status = CFX_EMEMORY;
    if (!lua_isstring(L, -1)) lua_pushfstring(L, "(error object is a %s value)", luaL_typename(L, -1));
    lua_tostring(L, -1); /* of a number */
    lua_error(L);
}

/* ---- scripts ---------------------------------------------------------------------------------------- */

typedef struct script {
    cf_task task;
    const char *path; /* or NULL, and */
    const char *text;
    size_t bytes;
    const char *name; /* NULL: the text itself, as Lua names strings */
} script;

static int run_script(lua_State *L) {
    script *s = lua_touserdata(L, 1);
    int status;
    if (s->path) {
        status = luaL_loadfile(L, s->path);
    } else {
        const char *name = s->name ? s->name : s->text;
        if (s->name && *name != '@' && *name != '=') name = lua_pushfstring(L, "@%s", name);
        status = luaL_loadbuffer(L, s->text, s->bytes, name);
    }
    if (status != 0) {
        s->task.status = status == LUA_ERRFILE ? CFX_EIO : status == LUA_ERRMEM ? CFX_EMEMORY : CFX_ESCRIPT;
        return lua_error(L);
    }
    cf_task_call(L, &s->task, 0, 0);
    return 0;
}

CFX_API cfx_status cfx_engine_run_file(cfx_engine *engine, const char *path) {
    CF_ENGINE_NEEDS(engine, "run_file", "one");
    CF_ENGINE_NEEDS(path, "run_file", "a string");
    script s = {.task = {engine, run_script, CFX_OK}, .path = path};
    return cf_task_run(&s.task);
}

CFX_API cfx_status cfx_engine_run_string(cfx_engine *engine, const char *text) {
    CF_ENGINE_NEEDS(engine, "run_string", "one");
    CF_ENGINE_NEEDS(text, "run_string", "a string");
    script s = {.task = {engine, run_script, CFX_OK}, .text = text, .bytes = strlen(text)};
    return cf_task_run(&s.task);
}

CFX_API cfx_status cfx_engine_run_buffer(cfx_engine *engine, const void *text, size_t bytes, const char *name) {
    CF_ENGINE_NEEDS(engine, "run_buffer", "one");
    if (bytes > 0) CF_ENGINE_NEEDS(text, "run_buffer", "bytes");
    CF_ENGINE_NEEDS(name, "run_buffer", "a string");
    script s = {.task = {engine, run_script, CFX_OK}, .text = text ? text : "", .bytes = bytes, .name = name};
    return cf_task_run(&s.task);
}

CFX_API void cfx_engine_interrupt(cfx_engine *engine) {
    if (engine) cf_host_stop(&engine->host);
}

/* ---- engines ---------------------------------------------------------------------------------------- */

int cf_engine_progress(lua_State *L) {
    cfx_engine *engine = cf_host_of(L)->owner;
    const cfx_progress progress = {
        .label = luaL_checkstring(L, 1),
        .done = luaL_checknumber(L, 2),
        .total = luaL_checknumber(L, 3),
        .rate = luaL_checknumber(L, 4),
        .seconds = luaL_checknumber(L, 5),
        .loss = luaL_optnumber(L, 6, NAN),
        .finished = lua_toboolean(L, 7),
    };
    cf_mode_hosts(&engine->mode);
    engine->progress(engine->progress_data, &progress);
    cf_mode_ours(&engine->mode);
    cf_host_check(L); /* the hook may have had enough */
    return 0;
}

/* Puts the options' path first, and tells the Lua library of the progress hook: false where there is none, for the bar
 * on stderr is the program's. */
static int set_up(lua_State *L) {
    const cfx_engine_options *options = lua_touserdata(L, 1);
    if (options->lua_path && *options->lua_path) {
        lua_getglobal(L, "package");
        lua_getfield(L, -1, "path");
        lua_pushfstring(L, "%s;%s", options->lua_path, lua_tostring(L, -1));
        lua_setfield(L, -3, "path");
        lua_pop(L, 2);
    }
    lua_getglobal(L, "require");
    lua_pushliteral(L, "conflux.host");
    lua_call(L, 1, 1);
    if (options->progress) lua_pushcfunction(L, cf_engine_progress);
    else lua_pushboolean(L, 0);
    lua_setfield(L, -2, "progress");
    return 0;
}

static cfx_status start(cfx_engine *engine, const cfx_engine_options *options) {
    const char *message;
    const cfx_context_options wanted = {.size = sizeof wanted,
                                        .devices = options->devices,
                                        .threads = options->threads,
                                        .seed = options->seed,
                                        .memory_limit = options->memory_limit};
    const cfx_status status = cfx_context_new(&wanted, &engine->context);
    if (status != CFX_OK) return status;
    engine->host.owner = engine;
    engine->host.limit = options->lua_memory_limit;
    atomic_store(&engine->host.context, engine->context);
    int failed = cf_host_init(&engine->host);
    if (failed == 0 && engine->host.limit && engine->host.used > engine->host.limit) failed = LUA_ERRMEM;
    if (failed == 0) failed = cf_host_protect(&engine->host, set_up, (void *)options, &message);
    if (failed == 0) return CFX_OK;
    const size_t limit = options->lua_memory_limit; /* a state that was closed again has none */
    if (!limit) return cf_engine_fail(CFX_EMEMORY, "engine: out of memory: a Lua state");
    return cf_engine_fail(CFX_EMEMORY, "engine: a Lua state does not fit in its limit of %zu bytes", limit);
}

static void finish(cfx_engine *engine) {
    fenv_t mode;
    cf_mode_ours(&mode);
    cf_host_end(&engine->host); /* its handles, and then what they are of */
    cfx_context_free(engine->context);
    free(engine->error);
    free(engine);
    cf_mode_hosts(&mode);
}

CFX_API cfx_status cfx_engine_new(const cfx_engine_options *options, cfx_engine **out) {
    static const cf_field last[] = {
        CF_FIELD(cfx_engine_options, size),         CF_FIELD(cfx_engine_options, devices),
        CF_FIELD(cfx_engine_options, threads),      CF_FIELD(cfx_engine_options, seed),
        CF_FIELD(cfx_engine_options, memory_limit), CF_FIELD(cfx_engine_options, lua_memory_limit),
        CF_FIELD(cfx_engine_options, lua_path),     CF_FIELD(cfx_engine_options, log),
        CF_FIELD(cfx_engine_options, progress),     CF_FIELD(cfx_engine_options, progress_data)};
    cfx_engine_options all = {.size = sizeof all};
    CF_ENGINE_NEEDS(out, "engine_new", "a place for it");
    if (options)
        CF_TRY(cf_options_read("engine: options", options, last, sizeof last / sizeof *last, &all, sizeof all));
    CF_TRY(check_stack());
    cfx_engine *engine = calloc(1, sizeof *engine);
    if (!engine) return cf_engine_fail(CFX_EMEMORY, "out of host memory: an engine");
    engine->log = all.log;
    engine->progress = all.progress;
    engine->progress_data = all.progress_data;
    const cfx_log before = all.log.hook ? cfx_log_here(all.log) : (cfx_log){NULL, NULL};
    cf_mode_ours(&engine->mode);
    const cfx_status status = start(engine, &all);
    cf_mode_hosts(&engine->mode);
    if (all.log.hook) cfx_log_here(before);
    if (status != CFX_OK) finish(engine);
    else *out = engine;
    return status;
}

CFX_API cfx_status cfx_engine_free(cfx_engine *engine) {
    if (!engine) return CFX_OK;
    const cfx_status status = take(engine);
    if (status == CFX_OK) finish(engine);
    return status;
}

CFX_API cfx_context *cfx_engine_context(const cfx_engine *engine) { return engine ? engine->context : NULL; }
