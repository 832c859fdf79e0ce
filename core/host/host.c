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

/* Reasons for a state to stop. */
enum { INTERRUPTED = 1, FULL = 2, TOO_DEEP = 4 };
#define INTERRUPT "interrupted!"

/* Keeps the message on top of the stack, by which the library knows an interrupt from an error of the user's. */
static void note_interrupt(lua_State *L) {
    lua_pushvalue(L, -1);
    lua_setfield(L, LUA_REGISTRYINDEX, "conflux.interrupted");
}

/* Raises "line: message": not luaL_error, for a hook has no frame of its own. */
static void raise(lua_State *L, const char *message) {
    cf_host_where(L);
    lua_pushstring(L, message);
    lua_concat(L, 2);
    if (strcmp(message, INTERRUPT) == 0) note_interrupt(L);
    lua_error(L);
}

static bool is_full_after_all(cf_host *host, lua_State *L) {
    const size_t room = host->limit / 16; /* else the next collection would come at once, and all time go into them */
    lua_gc(L, LUA_GCCOLLECT, 0);
    lua_gc(L, LUA_GCSETSTEPMUL, 200); /* LuaJIT's default, which `make_room` changed */
    return host->used > host->limit - room;
}

static void stop(lua_State *L, lua_Debug *at);

/* Whether the C stack goes below its floor, or is `margin` bytes from it. */
static bool is_deep(const cf_host *host, size_t margin) {
    return host->floor && (const char *)__builtin_frame_address(0) < host->floor + margin;
}

/* A call that allocates may lie so much deeper than the instruction behind it.  One that lies higher comes after the
 * overflow: text was parsed, or the error is caught, whose making took memory as well. */
enum { MARGIN = 16 << 10 };

/* After an overflow that was caught Lua's own stack may be so large that the next one takes no memory: until the call has
 * ended each function that begins is looked at. */
static void disarm(const cf_host *host, lua_State *L) {
    if (host->was_deep) lua_sethook(L, stop, LUA_MASKCALL, 0);
    else lua_sethook(L, NULL, 0, 0);
}

/* The hook that an interrupt, a full memory or a deep C stack arms: it raises the error, at the next instruction of the
 * script's, but not inside the library, whose steps belong together (a tape that is begun is ended).
 *
 * An interrupt raises the context's flag as well; whichever is seen first raises the error.  In the program the flag is
 * found down here if a Conflux call saw it: one Ctrl-C, one error, which a script may catch, to save and leave.  An
 * engine's host wants its thread back: there the hook stays armed until the call has ended, so that each instruction
 * behind a pcall raises the error anew.  None is raised where the signal has cut off a read of the script's
 * (EINTR), which ends the call as well. */
static void stop(lua_State *L, lua_Debug *at) {
    cf_host *host = cf_host_of(L);
    const bool failed = has_failed(L);
    (void)at;
    if (host->was_deep && is_deep(host, 0)) atomic_fetch_or(&host->pending, TOO_DEEP);
    if (host->pending & FULL && !is_full_after_all(host, L)) atomic_fetch_and(&host->pending, ~FULL);
    if (host->pending & TOO_DEEP && !is_deep(host, MARGIN)) atomic_fetch_and(&host->pending, ~TOO_DEEP);
    if (host->pending && !failed && is_in_library(L)) return;
    const int32_t stays = host->owner ? INTERRUPTED : 0, pending = atomic_fetch_and(&host->pending, stays);
    host->was_deep |= (pending & TOO_DEEP) != 0;
    if (!(pending & stays)) disarm(host, L);
    cfx_context *context = atomic_load(&host->context);
    const bool found_down = context && pending & INTERRUPTED && cfx_check(context) == CFX_OK;
    const bool interrupted = pending & (found_down ? stays : INTERRUPTED);
    if (failed) return;
    if (interrupted) raise(L, INTERRUPT);
    if (pending & FULL) raise(L, "not enough memory");
    if (pending & TOO_DEEP) raise(L, "stack overflow: coroutines or C functions call each other too deep");
}

/* On the state's own thread, or in a signal handler there. */
static void arm(cf_host *host, int32_t what) {
    atomic_fetch_or(&host->pending, what);
    lua_sethook(host->L, stop, LUA_MASKCALL | LUA_MASKRET | LUA_MASKCOUNT, 1);
}

/* The flag before `look`: a thread that sees `look` must find the flag raised, or know that it was seen. */
void cf_host_stop(cf_host *host) {
    if (!atomic_load(&host->running)) return;
    atomic_store(&host->asked, 1);
    cfx_context *context = atomic_load(&host->context);
    if (context) cfx_interrupt(context);
    atomic_store(&host->look, 1);
}

void cf_host_check(lua_State *L) {
    cfx_context *context = atomic_load(&cf_host_of(L)->context);
    if (context && cfx_check(context) == CFX_EINTERRUPT) raise(L, INTERRUPT);
}

/* ---- memory ---------------------------------------------------------------------------------------- */

/* LuaJIT counts the frames of its own stack, but not those of C that coroutines, string.gsub and the like put between
 * them: it crashes where these overflow the C stack.  Code that recurses takes memory as it goes, if only for a stack
 * of Lua's that doubles: a script that has used less than a third of the C stack by then has not used all of it when it
 * asks again.  Two megabytes are enough for 250 of gsub's frames, the largest; Lua itself allows 200 of any.
 * (string.gsub, within a stack of Lua's that anything but an overflow has left large, asks for none.) */
static const char *find_floor(void) {
    const size_t left = cf_host_stack_left(), third = left / 3, most = 2 << 20;
    const char *here = __builtin_frame_address(0);
    return left == SIZE_MAX ? NULL : here - (third < most ? third : most);
}

size_t cf_host_stack_left(void) {
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
    return is_inside ? (size_t)(here - bottom) : SIZE_MAX;
}

/* An allocation that fails is an error at once in LuaJIT, without a collection before, and a crash in some versions if
 * compiled code made it (Debian 12's: lj_err_mem looks at a stale L->base).  So what exceeds the limit is granted, a
 * collection begins that does not stop halfway and brings compiled code back to the interpreter, and there `stop` says
 * whether that was enough.  Only twice the limit is refused: no table or buffer that grows gets there in one step. */
static bool make_room(cf_host *host, size_t more) {
    enum { LEAST = 1 << 20 };
    const size_t spare = host->limit > LEAST ? host->limit : LEAST;
    if (host->used <= host->limit && more <= host->limit - host->used) return true;
    if (more > spare || host->used > host->limit + spare - more) return false;
    lua_gc(host->L, LUA_GCSETSTEPMUL, 0); /* these two set numbers, and do no more */
    lua_gc(host->L, LUA_GCRESTART, 0);
    if (!(host->pending & FULL)) arm(host, FULL);
    return true;
}

static void *allocate(void *data, void *block, size_t old, size_t new) {
    cf_host *host = data;
    if (atomic_load_explicit(&host->look, memory_order_relaxed) && atomic_exchange(&host->look, 0))
        arm(host, INTERRUPTED);
    if (new > old) {
        if (is_deep(host, 0) && !(host->pending & TOO_DEEP)) arm(host, TOO_DEEP);
        if (host->limit && !make_room(host, new - old)) return NULL;
    }
    void *made = host->allocate(host->allocator, block, old, new);
    if (made || new == 0) host->used += new - old;
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
    cf_host *host = cf_host_of(L);
    if (host->closes) { /* a finaliser's: a state is not closed twice */
        lua_pushboolean(L, 0);
        lua_replace(L, 2);
    }
    host->closes = true;
    forget(host);
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
    if (host->owner) {
        *(cfx_context **)lua_newuserdata(L, sizeof(cfx_context *)) = atomic_load(&host->context);
        lua_setfield(L, -2, "context");
    } else {
        lua_pushcfunction(L, set_interruptible);
        lua_setfield(L, -2, "interruptible");
    }
    return 1;
}

/* Else LuaJIT would not give the rest of its memory back. */
static int restore_allocator(lua_State *L) {
    const cf_host *host = cf_host_of(L);
    lua_setallocf(L, host->allocate, host->allocator);
    return 0;
}

/* Userdata are finalised newest first, so this oldest one is after all: until then finalisers may still ask for the
 * host, which the allocator knows. */
static void restore_at_the_end(lua_State *L) {
    lua_newuserdata(L, 1);
    lua_newtable(L);
    lua_pushcfunction(L, restore_allocator);
    lua_setfield(L, -2, "__gc");
    lua_setmetatable(L, -2);
    lua_setfield(L, LUA_REGISTRYINDEX, "conflux.allocator");
}

static int open_all(lua_State *L) {
    restore_at_the_end(L);
    luaL_openlibs(L);
    cf_modules_install(L);

    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_pushcfunction(L, open_host_module);
    lua_setfield(L, -2, "conflux.host");

    lua_getglobal(L, "os");
    if (cf_host_of(L)->owner) {
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
    host->closes = true;
    host->limit = 0; /* finalisers give back more than they take */
    lua_close(host->L);
    host->L = NULL;
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

/* An interrupt that came too late for the call before must not end this one. */
void cf_host_enter(cf_host *host) {
    cfx_context *context = atomic_load(&host->context);
    if (atomic_exchange(&host->asked, 0) && context) (void)cfx_check(context);
    atomic_store(&host->look, 0);
    host->floor = find_floor();
    atomic_store(&host->pending, 0);
    atomic_store(&host->running, 1);
}

void cf_host_leave(cf_host *host) {
    atomic_store(&host->running, 0);
    host->floor = NULL;
    if (host->pending || host->was_deep) lua_sethook(host->L, NULL, 0, 0);
    host->was_deep = false;
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
    luaL_traceback(L, L, lua_tostring(L, 1), first_level(L));
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

static _Atomic(cf_host *) program; /* signals reach it; they are per process */

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
    if (status != 0) cf_host_collect(host); /* objects that the error cut off may hold devices' memory */
    return status;
}

bool cf_host_interrupt(void) {
    cf_host *host = atomic_load(&program);
    if (!host || host->pending & INTERRUPTED) return false;
    if (!atomic_load(&host->running)) { /* before the call, which forgets this, or in the collection after it */
        atomic_fetch_or(&host->pending, INTERRUPTED);
        return true;
    }
    atomic_store(&host->asked, 1);
    cfx_context *context = atomic_load(&host->context);
    if (context) cfx_interrupt(context);
    arm(host, INTERRUPTED);
    return true;
}
