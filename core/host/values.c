/* values.c: values between C and Lua: calls of Lua's functions, and functions of the host program's for Lua.
 *
 * Tensors go to and fro by way of the Lua module conflux.engine, which knows their ctype: a userdata in between holds
 * the handle of C's.
 */
#include <lauxlib.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/engine.h"

/* ---- ownership -------------------------------------------------------------------------------------- */

CFX_API cfx_status cfx_value_string(const char *bytes, size_t length, cfx_value *out) {
    if (length > 0) CF_ENGINE_NEEDS(bytes, "value_string", "a string");
    CF_ENGINE_NEEDS(out, "value_string", "a place for it");
    char *copy = length < SIZE_MAX ? malloc(length + 1) : NULL;
    if (!copy) return cf_engine_fail(CFX_EMEMORY, "out of host memory: %zu bytes", length);
    if (length > 0) memcpy(copy, bytes, length);
    copy[length] = 0;
    memset(out, 0, sizeof *out);
    out->kind = CFX_STRING;
    out->as.string.bytes = copy;
    out->as.string.length = length;
    return CFX_OK;
}

CFX_API void cfx_value_release(int32_t n, cfx_value *values) {
    for (int32_t i = 0; values && i < n; i++) {
        if (values[i].kind == CFX_STRING) free((char *)values[i].as.string.bytes);
        if (values[i].kind == CFX_TENSOR) cfx_release(&values[i].as.tensor);
        memset(&values[i], 0, sizeof values[i]);
    }
}

/* ---- tensors ---------------------------------------------------------------------------------------- */

/* Pushes a function of conflux.engine, and a box for a tensor, which stays on the stack below it. */
static cfx_tensor *push_box(lua_State *L, const char *function) {
    cfx_tensor *box = lua_newuserdata(L, sizeof *box);
    memset(box, 0, sizeof *box);
    lua_getfield(L, LUA_REGISTRYINDEX, "_LOADED");
    lua_getfield(L, -1, "conflux.engine");
    if (lua_isnil(L, -1)) {
        static const char *const modules[] = {"conflux", "conflux.engine"}; /* the first fills what the second uses */
        for (int i = 0; i < 2; i++) {
            lua_pop(L, 1);
            lua_getglobal(L, "require");
            lua_pushstring(L, modules[i]);
            lua_call(L, 1, 1);
        }
    }
    lua_getfield(L, -1, function);
    lua_replace(L, -3); /* of _LOADED */
    lua_pop(L, 1);
    return box;
}

static cfx_status push_tensor(lua_State *L, const cfx_engine *engine, const cfx_tensor *x) {
    cfx_device *device = cfx_tensor_device(x);
    if (!device) return cf_engine_fail(CFX_EARG, "a tensor that was released, or whose context has ended");
    if (cfx_device_context(device) != engine->context)
        return cf_engine_fail(CFX_EARG, "a tensor of another context, on %s there", cfx_device_name(device));
    *push_box(L, "take") = *x;
    lua_pushvalue(L, -2);
    lua_call(L, 1, 1);
    lua_remove(L, -2);
    return CFX_OK;
}

/* Asks conflux.engine's `function` for a handle on the cdata at `index`, in *out. */
static cfx_status get_tensor(lua_State *L, int index, const char *function, cfx_tensor *out) {
    const cfx_tensor *box = push_box(L, function);
    lua_pushvalue(L, index);
    lua_pushvalue(L, -3);
    lua_call(L, 2, 1);
    const bool is_tensor = lua_toboolean(L, -1);
    *out = *box;
    lua_pop(L, 2);
    return is_tensor ? CFX_OK : cf_engine_fail(CFX_EARG, "expected nil, boolean, number, string or tensor, got cdata");
}

/* ---- values ----------------------------------------------------------------------------------------- */

/* Pushes one value, or nothing if it fails. */
static cfx_status push(lua_State *L, const cfx_engine *engine, const cfx_value *value) {
    switch (value->kind) {
    case CFX_NIL: lua_pushnil(L); return CFX_OK;
    case CFX_BOOLEAN: lua_pushboolean(L, value->as.boolean); return CFX_OK;
    case CFX_NUMBER: lua_pushnumber(L, value->as.number); return CFX_OK;
    case CFX_STRING:
        if (!value->as.string.bytes && value->as.string.length > 0)
            return cf_engine_fail(CFX_EARG, "a string of %zu bytes at NULL", value->as.string.length);
        lua_pushlstring(L, value->as.string.bytes, value->as.string.length);
        return CFX_OK;
    case CFX_TENSOR: return push_tensor(L, engine, &value->as.tensor);
    default: return cf_engine_fail(CFX_EARG, "expected a cfx_kind, got %d", (int)value->kind);
    }
}

/* The value at `index`, which is positive: its receiver's own, or borrowed for as long as it stays there. */
static cfx_status get(lua_State *L, int index, bool borrowed, cfx_value *out) {
    cfx_value value;
    memset(&value, 0, sizeof value);
    switch (lua_type(L, index)) {
    case LUA_TNIL: break;
    case LUA_TBOOLEAN:
        value.kind = CFX_BOOLEAN;
        value.as.boolean = lua_toboolean(L, index);
        break;
    case LUA_TNUMBER:
        value.kind = CFX_NUMBER;
        value.as.number = lua_tonumber(L, index);
        break;
    case LUA_TSTRING: {
        size_t length;
        const char *bytes = lua_tolstring(L, index, &length);
        if (!borrowed) return cfx_value_string(bytes, length, out);
        value.kind = CFX_STRING;
        value.as.string.bytes = bytes;
        value.as.string.length = length;
        break;
    }
    default: {
        if (strcmp(luaL_typename(L, index), "cdata") != 0)
            return cf_engine_fail(CFX_EARG, "expected nil, boolean, number, string or tensor, got %s",
                                  luaL_typename(L, index));
        value.kind = CFX_TENSOR;
        const cfx_status status = get_tensor(L, index, borrowed ? "lend" : "give", &value.as.tensor);
        if (status != CFX_OK) return status;
    }
    }
    *out = value;
    return CFX_OK;
}

/* ---- names ------------------------------------------------------------------------------------------ */

static bool is_name(const char *name) {
    if (!name || !*name || *name == '.' || name[strlen(name) - 1] == '.') return false;
    return !strstr(name, "..");
}

/* Pushes the table that the last part of `name` is a field of, and returns that part.  make: tables that are missing. */
static const char *push_table(lua_State *L, cf_task *task, const char *function, const char *name, bool make) {
    if (!is_name(name))
        cf_task_fail(L, task, CFX_EARG, "%s: argument 'name': expected one such as 'train' or 'model.train', got '%s'",
                     function, name ? name : "NULL");
    const char *dot;
    lua_pushvalue(L, LUA_GLOBALSINDEX);
    for (const char *part = name;; part = dot + 1) {
        dot = strchr(part, '.');
        if (!dot) return part;
        lua_pushlstring(L, part, (size_t)(dot - part));
        lua_gettable(L, -2);
        if (lua_isnil(L, -1) && make) {
            lua_pop(L, 1);
            lua_newtable(L);
            lua_pushlstring(L, part, (size_t)(dot - part));
            lua_pushvalue(L, -2);
            lua_settable(L, -4);
        }
        if (!lua_istable(L, -1))
            cf_task_fail(L, task, CFX_EARG, "%s: '%s': '%.*s' is not a table, but a %s value", function, name,
                         (int)(dot - name), name, luaL_typename(L, -1));
        lua_remove(L, -2);
    }
}

/* ---- calls of Lua's functions ----------------------------------------------------------------------- */

typedef struct call {
    cf_task task;
    const char *name;
    int32_t nargs, nresults;
    const cfx_value *args;
    cfx_value *results;
} call;

static void push_function(lua_State *L, call *c) {
    const char *last = push_table(L, &c->task, "call", c->name, false);
    lua_getfield(L, -1, last);
    lua_remove(L, -2);
    if (lua_isfunction(L, -1)) return;
    if (luaL_getmetafield(L, -1, "__call")) lua_pop(L, 1);
    else
        cf_task_fail(L, &c->task, CFX_EARG, "call: '%s' is not a function, but a %s value", c->name,
                     luaL_typename(L, -1));
}

static int run_call(lua_State *L) {
    call *c = lua_touserdata(L, 1);
    const int32_t most = c->nargs > c->nresults ? c->nargs : c->nresults;
    lua_settop(L, 0);
    if (!lua_checkstack(L, most + 20))
        return cf_task_fail(L, &c->task, CFX_EARG, "call: %d values are more than Lua's stack holds", (int)most);
    push_function(L, c);
    for (int32_t i = 0; i < c->nargs; i++) {
        const cfx_status status = push(L, c->task.engine, &c->args[i]);
        if (status != CFX_OK)
            return cf_task_fail(L, &c->task, status, "call: %s: argument %d: %s", c->name, (int)i + 1, cfx_error());
    }
    cf_task_call(L, &c->task, c->nargs, c->nresults);
    for (int32_t i = 0; i < c->nresults; i++) {
        const cfx_status status = get(L, i + 1, false, &c->results[i]);
        if (status != CFX_OK)
            return cf_task_fail(L, &c->task, status, "call: %s: result %d: %s", c->name, (int)i + 1, cfx_error());
    }
    return 0;
}

CFX_API cfx_status cfx_engine_call(cfx_engine *engine, const char *name, int32_t nargs, const cfx_value *args,
                                   int32_t nresults, cfx_value *results) {
    enum { MOST = 1 << 20 };
    CF_ENGINE_NEEDS(engine, "call", "one");
    if (nargs < 0 || nargs > MOST || (nargs > 0 && !args) || nresults < 0 || nresults > MOST ||
        (nresults > 0 && !results))
        return cf_engine_fail(CFX_EARG, "call: %d arguments at %p and %d results at %p", (int)nargs, (const void *)args,
                              (int)nresults, (void *)results);
    if (nresults > 0) memset(results, 0, (size_t)nresults * sizeof *results);
    call c = {{engine, run_call, CFX_OK}, name, nargs, nresults, args, results};
    const cfx_status status = cf_task_run(&c.task);
    if (status != CFX_OK) cfx_value_release(nresults, results);
    return status;
}

/* ---- functions of the host program's ----------------------------------------------------------------- */

typedef struct function {
    cfx_engine *engine;
    cfx_function run;
    void *data;
} function;

/* Raises "line: message" in the script. */
static int fail(lua_State *L, const char *format, int i, const char *message) {
    cf_host_where(L);
    lua_pushfstring(L, format, i, message);
    lua_concat(L, 2);
    return lua_error(L);
}

typedef struct results {
    cfx_value values[CFX_MAX_RESULTS];
} results;

static int release_results(lua_State *L) {
    results *r = lua_touserdata(L, 1);
    cfx_value_release(CFX_MAX_RESULTS, r->values);
    return 0;
}

/* The collector releases what an error keeps us from releasing. */
static results *push_results(lua_State *L) {
    results *r = lua_newuserdata(L, sizeof *r);
    memset(r, 0, sizeof *r);
    if (luaL_newmetatable(L, "conflux.results")) {
        lua_pushcfunction(L, release_results);
        lua_setfield(L, -2, "__gc");
    }
    lua_setmetatable(L, -2);
    return r;
}

static int call_function(lua_State *L) {
    const function *f = lua_touserdata(L, lua_upvalueindex(1));
    const int nargs = lua_gettop(L);
    cf_host_check(L);
    luaL_checkstack(L, CFX_MAX_RESULTS + 20, "too many arguments");
    cfx_value *args = lua_newuserdata(L, (size_t)(nargs > 0 ? nargs : 1) * sizeof *args);
    results *r = push_results(L);
    for (int i = 0; i < nargs; i++)
        if (get(L, i + 1, true, &args[i]) != CFX_OK) return fail(L, "argument %d: %s", i + 1, cfx_error());
    cfx_error_set("");
    cf_mode_hosts(&f->engine->mode);
    const int32_t n = f->run(f->data, nargs, args, CFX_MAX_RESULTS, r->values);
    cf_mode_ours(&f->engine->mode);
    if (n < 0) {
        cf_host_where(L);
        lua_pushstring(L, *cfx_error() ? cfx_error() : "the function failed");
        lua_concat(L, 2);
        cfx_value_release(CFX_MAX_RESULTS, r->values);
        return lua_error(L);
    }
    if (n > CFX_MAX_RESULTS) return fail(L, "%d results%s", n, " are more than a function may have");
    for (int i = 0; i < n; i++)
        if (push(L, f->engine, &r->values[i]) != CFX_OK) return fail(L, "result %d: %s", i + 1, cfx_error());
    cfx_value_release(CFX_MAX_RESULTS, r->values);
    return n;
}

typedef struct registration {
    cf_task task;
    const char *name;
    function function;
} registration;

static int run_register(lua_State *L) {
    registration *r = lua_touserdata(L, 1);
    const char *last = push_table(L, &r->task, "register", r->name, true);
    *(function *)lua_newuserdata(L, sizeof(function)) = r->function;
    lua_pushcclosure(L, call_function, 1);
    lua_setfield(L, -2, last);
    return 0;
}

CFX_API cfx_status cfx_engine_register(cfx_engine *engine, const char *name, cfx_function run, void *data) {
    CF_ENGINE_NEEDS(engine, "register", "one");
    registration r = {{engine, run_register, CFX_OK}, name, {engine, run, data}};
    if (!run) return cf_engine_fail(CFX_EARG, "register: argument 'function': expected one, got NULL");
    return cf_task_run(&r.task);
}
