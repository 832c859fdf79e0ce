/* host.c: makes Lua states with Conflux in them, calls into them, interrupts them.  See host.h. */
#include "host/host.h"

#include <dlfcn.h>
#include <lauxlib.h>
#include <lualib.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "host/modules.h"

/* ---- interrupts ------------------------------------------------------------------------------------ */

static bool is_library(const lua_Debug *frame) { return strncmp(frame->source, "@conflux/", 9) == 0; }

/* The first frame outside the library; 0 where a coroutine has none. */
static int users_level(lua_State *L) {
    lua_Debug frame;
    for (int level = 0; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "S", &frame);
        if (*frame.what != 'C' && !is_library(&frame)) return level;
    }
    return 0;
}

/* Whether the library runs, or a C function that it called. */
static bool is_in_library(lua_State *L) {
    lua_Debug frame;
    for (int level = 0; lua_getstack(L, level, &frame); level++) {
        lua_getinfo(L, "S", &frame);
        if (*frame.what != 'C') return is_library(&frame);
    }
    return false;
}

void cf_host_where(lua_State *L) { luaL_where(L, users_level(L)); }

/* Whether the call at hand has failed already, and its message is being made. */
static bool has_failed(lua_State *L) {
    lua_Debug frame;
    if (!lua_getstack(L, 0, &frame)) return false;
    lua_getinfo(L, "f", &frame);
    const bool found = lua_tocfunction(L, -1) == cf_host_traceback;
    lua_pop(L, 1);
    return found;
}

static void raise_interrupt(lua_State *L) {
    cf_host_where(L); /* not luaL_error: a hook has no frame of its own */
    lua_pushliteral(L, "interrupted!");
    lua_concat(L, 2);
    lua_error(L);
}

/* An interrupt raises the context's flag and arms this hook; whichever is seen first raises the error.  The
 * flag is found down here if a Conflux call saw it: one interrupt, one error.  None is raised where the signal has
 * cut off a read of the script's (EINTR), which ends the call as well.  Nor inside the library, whose steps belong
 * together (a tape that is begun is ended): there Conflux calls end it, or it waits until the script goes on. */
static void stop(lua_State *L, lua_Debug *at) {
    const bool failed = has_failed(L);
    (void)at;
    if (!failed && is_in_library(L)) return;
    lua_sethook(L, NULL, 0, 0);
    cfx_context *context = atomic_load(&cf_host_of(L)->context);
    if (context && cfx_check(context) == CFX_OK) return;
    if (!failed) raise_interrupt(L);
}

static void arm(cf_host *host) { lua_sethook(host->L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1); }

/* The flag before `look`: who sees that one must find the other raised, or know that it was seen. */
void cf_host_stop(cf_host *host) {
    if (!atomic_load(&host->running)) return;
    atomic_store(&host->asked, 1);
    cfx_context *context = atomic_load(&host->context);
    if (context) cfx_interrupt(context);
    atomic_store(&host->look, 1);
}

void cf_host_check(lua_State *L) {
    cfx_context *context = atomic_load(&cf_host_of(L)->context);
    if (context && cfx_check(context) != CFX_OK) raise_interrupt(L);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* LuaJIT collects once the heap has doubled, and an allocation that fails is an error, not a reason to collect: near
 * the limit it has to collect earlier, and faster.  By eighths of the limit: percent of the heap that the next
 * collection begins at, and how fast it goes. */
static const struct pace {
    int pause, step;
} paces[8] = {{200, 200}, {200, 200}, {180, 200}, {150, 400}, {130, 400}, {115, 800}, {107, 1000}, {101, 1000}};

static void set_pace(cf_host *host) {
    const size_t eighth = host->used >= host->limit ? 7 : host->used / (host->limit / 8 + 1);
    if (eighth == host->eighth) return;
    host->eighth = eighth;
    lua_gc(host->L, LUA_GCSETPAUSE, paces[eighth].pause); /* which sets a number and does no more */
    lua_gc(host->L, LUA_GCSETSTEPMUL, paces[eighth].step);
}

const char cf_host_too_deep[] = "stack overflow: coroutines or C functions call each other too deep";

/* LuaJIT counts the frames of its own stack, but not those of C that coroutines, string.gsub and the like put between
 * them: it crashes where these overflow the C stack.  Whatever recurses takes memory as it goes, if only for a stack of
 * Lua's that doubles: who has used less than a third of the C stack by then has not used all of it when it asks again.
 * Two megabytes are enough for 250 of gsub's frames, the largest; Lua itself allows 200 of any.
 * (string.gsub, within a stack of Lua's that an earlier call has left large, asks for none.) */
static const char *find_floor(void) {
    static _Thread_local char *bottom;
    static _Thread_local size_t size;
    const char *here = __builtin_frame_address(0);
    pthread_attr_t attributes;
    if (!bottom && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        void *address;
        if (pthread_attr_getstack(&attributes, &address, &size) == 0) bottom = address;
        pthread_attr_destroy(&attributes);
    }
    const bool is_inside = bottom && here > bottom && (size_t)(here - bottom) < size; /* and on no stack of a fiber's */
    const ptrdiff_t third = (here - bottom) / 3, most = 2 << 20;
    return is_inside ? here - (third < most ? third : most) : NULL;
}

static bool is_too_deep(cf_host *host) {
    if (!host->floor || (const char *)__builtin_frame_address(0) > host->floor) return false;
    host->too_deep = 1;
    return true;
}

static void *allocate(void *data, void *block, size_t old, size_t new) {
    cf_host *host = data;
    if (atomic_load_explicit(&host->look, memory_order_relaxed) && atomic_exchange(&host->look, 0)) arm(host);
    if (new > old && is_too_deep(host)) return NULL;
    if (host->limit && new > old && (host->used > host->limit || new - old > host->limit - host->used)) return NULL;
    void *made = host->allocate(host->allocator, block, old, new);
    if (!made && new > 0) return NULL;
    host->used += new - old;
    if (host->limit) set_pace(host);
    return made;
}

cf_host *cf_host_of(lua_State *L) {
    void *host = NULL;
    lua_getallocf(L, &host);
    return host;
}

/* ---- states ---------------------------------------------------------------------------------------- */

/* interruptible(context): a `cfx_context *` cdata, or nil before that context is freed.  For a pointer cdata
 * lua_topointer gives the address of the pointer that it holds. */
static int set_interruptible(lua_State *L) {
    cfx_context *context = NULL;
    if (!lua_isnoneornil(L, 1)) {
        luaL_argcheck(L, strcmp(luaL_typename(L, 1), "cdata") == 0, 1, "cfx_context * expected");
        context = *(cfx_context *const *)lua_topointer(L, 1);
    }
    atomic_store(&cf_host_of(L)->context, context);
    return 0;
}

/* No interrupt gets here any more. */
static void forget(cf_host *host) {
    atomic_store(&host->running, 0);
    atomic_store(&host->context, NULL);
}

/* os.exit(code, close): upvalue 1 is LuaJIT's own, whose `close` is false by default. */
static int exit_closed(lua_State *L) {
    lua_settop(L, 2);
    if (lua_isnil(L, 2)) {
        lua_pushboolean(L, 1);
        lua_replace(L, 2);
    }
    forget(cf_host_of(L));
    lua_pushvalue(L, lua_upvalueindex(1));
    lua_insert(L, 1);
    lua_call(L, 2, 0);
    return 0;
}

static int refuse_exit(lua_State *L) {
    cf_host_where(L);
    lua_pushliteral(L, "os.exit: this script runs inside another program, which it cannot end");
    lua_concat(L, 2);
    return lua_error(L);
}

/* conflux.host: interruptible (program); context, a userdata that holds an engine's cfx_context *; and library, the path
 * of libconflux, which is not among the symbols of a program that has opened it for itself. */
static int open_host_module(lua_State *L) {
    cf_host *host = cf_host_of(L);
    Dl_info core;
    lua_newtable(L);
    if (dladdr((void *)cfx_abi_version, &core) && core.dli_fname) {
        lua_pushstring(L, core.dli_fname);
        lua_setfield(L, -2, "library");
    }
    if (host->engine) {
        *(cfx_context **)lua_newuserdata(L, sizeof(cfx_context *)) = atomic_load(&host->context);
        lua_setfield(L, -2, "context");
    } else {
        lua_pushcfunction(L, set_interruptible);
        lua_setfield(L, -2, "interruptible");
    }
    return 1;
}

static int open_all(lua_State *L) {
    luaL_openlibs(L);
    cf_modules_install(L);

    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_pushcfunction(L, open_host_module);
    lua_setfield(L, -2, "conflux.host");

    lua_getglobal(L, "os");
    if (cf_host_of(L)->engine) {
        lua_pushcfunction(L, refuse_exit);
    } else {
        lua_getfield(L, -1, "exit");
        lua_pushcclosure(L, exit_closed, 1);
    }
    lua_setfield(L, -2, "exit");
    return 0;
}

int cf_host_init(cf_host *host) {
    const char *message;
    lua_State *L = host->L = luaL_newstate();
    if (!L) return LUA_ERRMEM;
    host->used = (size_t)lua_gc(L, LUA_GCCOUNT, 0) * 1024 + (size_t)lua_gc(L, LUA_GCCOUNTB, 0);
    host->allocate = lua_getallocf(L, &host->allocator);
    lua_setallocf(L, allocate, host);
    const int status = cf_host_protect(host, open_all, NULL, &message);
    if (status != 0) cf_host_end(host);
    return status;
}

void cf_host_end(cf_host *host) {
    if (!host->L) return;
    forget(host);
    lua_setallocf(host->L, host->allocate,
                  host->allocator); /* else LuaJIT would not give the rest of its memory back */
    lua_close(host->L);
    host->L = NULL;
}

/* ---- calls ----------------------------------------------------------------------------------------- */

/* An interrupt that came too late for the call before must not end this one. */
void cf_host_enter(cf_host *host) {
    cfx_context *context = atomic_load(&host->context);
    if (atomic_exchange(&host->asked, 0) && context) (void)cfx_check(context);
    atomic_store(&host->look, 0);
    host->floor = find_floor();
    host->too_deep = 0;
    atomic_store(&host->running, 1);
}

void cf_host_leave(cf_host *host) {
    atomic_store(&host->running, 0);
    host->floor = NULL;
    if (atomic_load(&host->asked)) lua_sethook(host->L, NULL, 0, 0);
}

int cf_host_protect(cf_host *host, lua_CFunction f, void *data, const char **message) {
    const int status = lua_cpcall(host->L, f, data);
    *message = "";
    if (status != 0) {
        *message = lua_type(host->L, -1) == LUA_TSTRING ? lua_tostring(host->L, -1) : "(error object is not a string)";
        lua_pop(host->L, 1); /* the string stays until something is allocated */
    }
    return status;
}

int cf_host_traceback(lua_State *L) {
    if (!lua_isstring(L, 1)) {
        if (lua_isnoneornil(L, 1) || !luaL_callmeta(L, 1, "__tostring") || !lua_isstring(L, -1)) return 1;
        lua_remove(L, 1);
    }
    luaL_traceback(L, L, lua_tostring(L, 1), 1);
    return 1;
}

static int collect(lua_State *L) {
    lua_gc(L, LUA_GCCOLLECT, 0);
    return 0;
}

void cf_host_collect(cf_host *host) {
    const char *message;
    const size_t limit = host->limit;
    host->limit = 0;                                      /* to call anything takes memory, which may be what is out */
    (void)cf_host_protect(host, collect, NULL, &message); /* a finaliser that raises has told nobody before, either */
    host->limit = limit;
}

/* ---- the program ------------------------------------------------------------------------------------ */

static _Atomic(cf_host *) program; /* what signals reach, which are per process */

lua_State *cf_host_open(void) {
    cf_host *host = calloc(1, sizeof *host);
    if (!host || cf_host_init(host) != 0) {
        free(host);
        return NULL;
    }
    atomic_store(&program, host);
    return host->L;
}

void cf_host_close(lua_State *L) {
    cf_host *host = cf_host_of(L);
    atomic_store(&program, NULL);
    cf_host_end(host);
    free(host);
}

int cf_host_call(lua_State *L, int nargs) {
    cf_host *host = cf_host_of(L);
    const int handler = lua_gettop(L) - nargs;
    lua_pushcfunction(L, cf_host_traceback);
    lua_insert(L, handler);
    cf_host_enter(host);
    const int status = lua_pcall(L, nargs, 0, handler);
    cf_host_leave(host);
    lua_remove(L, handler);
    if (status == LUA_ERRMEM && host->too_deep) {
        lua_pushstring(L, cf_host_too_deep);
        lua_replace(L, -2);
    }
    if (status != 0) cf_host_collect(host); /* what the error cut off may hold devices' memory */
    return status;
}

void cf_host_interrupt(void) {
    cf_host *host = atomic_load(&program);
    if (!host || !atomic_load(&host->running)) return;
    atomic_store(&host->asked, 1);
    cfx_context *context = atomic_load(&host->context);
    if (context) cfx_interrupt(context);
    arm(host);
}
