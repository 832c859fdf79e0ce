/* host.c: makes a Lua state with Conflux in it, calls into it, interrupts it. */
#include "host/host.h"

#include <lauxlib.h>
#include <lualib.h>
#include <stdatomic.h>
#include <string.h>

#include "conflux.h"
#include "host/modules.h"

static _Atomic(lua_State *) running;         /* NULL while no call is under way */
static _Atomic(cfx_context *) interruptible; /* NULL until Lua has made its context */

/* ---- interrupts ------------------------------------------------------------------------------------ */

/* The first frame outside the library, which errors are blamed on; 0 where a coroutine has none. */
static int users_level(lua_State *L) {
    lua_Debug frame;
    for (int level = 0; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "S", &frame);
        if (*frame.what != 'C' && strncmp(frame.source, "@conflux/", 9) != 0) return level;
    }
    return 0;
}

static int add_traceback(lua_State *L);

/* Whether the call at hand has failed already, and its message is being made. */
static int has_failed(lua_State *L) {
    lua_Debug frame;
    if (!lua_getstack(L, 0, &frame)) return 0;
    lua_getinfo(L, "f", &frame);
    const int found = lua_tocfunction(L, -1) == add_traceback;
    lua_pop(L, 1);
    return found;
}

/* An interrupt raises the context's flag and arms this hook; whichever is seen first raises the error.  The
 * flag is found down here if a Conflux call saw it: one interrupt, one error.  None is raised where the signal has
 * cut off a read of the script's (EINTR), which ends the call as well. */
static void stop(lua_State *L, lua_Debug *at) {
    (void)at;
    lua_sethook(L, NULL, 0, 0);
    cfx_context *context = atomic_load(&interruptible);
    if (context && cfx_check(context) == CFX_OK) return;
    if (has_failed(L)) return;
    luaL_where(L, users_level(L)); /* not luaL_error: a hook has no frame of its own */
    lua_pushliteral(L, "interrupted!");
    lua_concat(L, 2);
    lua_error(L);
}

void cf_host_interrupt(void) {
    lua_State *L = atomic_load(&running);
    if (!L) return;
    cfx_context *context = atomic_load(&interruptible);
    if (context) cfx_interrupt(context);
    lua_sethook(L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

/* interruptible(context): a `cfx_context *` cdata, or nil before that context is freed.  For a pointer cdata
 * lua_topointer gives the address of the pointer that it holds. */
static int set_interruptible(lua_State *L) {
    cfx_context *context = NULL;
    if (!lua_isnoneornil(L, 1)) {
        luaL_argcheck(L, strcmp(luaL_typename(L, 1), "cdata") == 0, 1, "cfx_context * expected");
        context = *(cfx_context *const *)lua_topointer(L, 1);
    }
    atomic_store(&interruptible, context);
    return 0;
}

/* ---- states ---------------------------------------------------------------------------------------- */

static void forget(void) {
    atomic_store(&running, NULL);
    atomic_store(&interruptible, NULL);
}

/* os.exit(code, close): upvalue 1 is LuaJIT's own, whose `close` is false by default. */
static int exit_closed(lua_State *L) {
    lua_settop(L, 2);
    if (lua_isnil(L, 2)) {
        lua_pushboolean(L, 1);
        lua_replace(L, 2);
    }
    forget();
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 2, 0);
    return 0;
}

static int open_host_module(lua_State *L) {
    static const luaL_Reg functions[] = {{"interruptible", set_interruptible}, {NULL, NULL}};
    lua_newtable(L);
    luaL_register(L, NULL, functions);
    return 1;
}

static int open_all(lua_State *L) {
    luaL_openlibs(L);
    cf_modules_install(L);

    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_pushcfunction(L, open_host_module);
    lua_setfield(L, -2, "conflux.host");

    lua_getglobal(L, "os");
    lua_getfield(L, -1, "exit");
    lua_pushcclosure(L, exit_closed, 1);
    lua_setfield(L, -2, "exit");
    return 0;
}

lua_State *cf_host_open(void) {
    lua_State *L = luaL_newstate();
    if (L && lua_cpcall(L, open_all, NULL) != 0) {
        lua_close(L);
        L = NULL;
    }
    return L;
}

void cf_host_close(lua_State *L) {
    forget();
    lua_close(L);
}

/* ---- calls ----------------------------------------------------------------------------------------- */

/* Where a traceback begins: 1, or, where the library itself has raised the error, with the user's line. */
static int first_level(lua_State *L) {
    const int users = users_level(L);
    lua_Debug frame;
    for (int level = 1; level < users && lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "S", &frame);
        if (strncmp(frame.source, "@conflux/", 9) == 0) return users;
    }
    return 1;
}

/* Errors that are no strings pass unchanged, unless they know how to print themselves. */
static int add_traceback(lua_State *L) {
    if (!lua_isstring(L, 1)) {
        if (lua_isnoneornil(L, 1) || !luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1)) return 1;
        lua_remove(L, 1);
    }
    luaL_traceback(L, L, lua_tostring(L, 1), first_level(L));
    return 1;
}

int cf_host_call(lua_State *L, int nargs) {
    const int handler = lua_gettop(L) - nargs;
    lua_pushcfunction(L, add_traceback);
    lua_insert(L, handler);
    atomic_store(&running, L);
    const int status = lua_pcall(L, nargs, 0, handler);
    atomic_store(&running, NULL);
    lua_remove(L, handler);
    if (status != 0) lua_gc(L, LUA_GCCOLLECT, 0); /* what the error cut off may hold devices' memory */
    return status;
}
