/* modules.c: embeds the Lua library and finds modules in it. */
#include "host/modules.h"

#include <lauxlib.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Each row of the generated modules.def becomes two symbols around the bytes of its file. */
#define MODULE(i, name, chunk, path)                                                  \
    __asm__(".pushsection .rodata\n"                                                  \
            "module_" #i "_begin: .incbin \"" path "\"\nmodule_" #i "_end: .byte 0\n" \
            ".popsection");                                                           \
    extern const char module_##i##_begin[] __attribute__((visibility("hidden")));     \
    extern const char module_##i##_end[] __attribute__((visibility("hidden")));
#include "modules.def"
#undef MODULE

static const struct module {
    const char *name, *chunk, *begin, *end;
} modules[] = {
#define MODULE(i, name, chunk, path) {name, chunk, module_##i##_begin, module_##i##_end},
#include "modules.def"
#undef MODULE
    {NULL, NULL, NULL, NULL},
};

struct file {
    FILE *stream;
    char bytes[4096];
};

static const char *read_file(lua_State *L, void *data, size_t *size) {
    (void)L;
    struct file *file = data;
    *size = fread(file->bytes, 1, sizeof file->bytes, file->stream);
    return *size ? file->bytes : NULL;
}

/* Loads `name` from `directory` as name.lua or name/init.lua.  False: neither is there.  *status: lua_load's. */
static bool load_from(lua_State *L, const char *directory, const char *name, int *status) {
    static const char *const endings[] = {".lua", "/init.lua"};
    const char *stem = luaL_gsub(L, name, ".", "/");
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const char *chunk = lua_pushfstring(L, "@%s%s", stem, endings[i]);
        struct file file = {.stream = fopen(lua_pushfstring(L, "%s/%s", directory, chunk + 1), "rb")};
        if (!file.stream) continue;
        *status = lua_load(L, read_file, &file, chunk);
        fclose(file.stream);
        return true;
    }
    return false;
}

static bool load_embedded(lua_State *L, const char *name, int *status) {
    for (const struct module *m = modules; m->name; m++) {
        if (strcmp(m->name, name) != 0) continue;
        *status = luaL_loadbuffer(L, m->begin, (size_t)(m->end - m->begin), m->chunk);
        return true;
    }
    return false;
}

/* A searcher of `require`: the loader of a module of ours, a line for the error message, or nothing. */
static int search(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    if (strcmp(name, "conflux") != 0 && strncmp(name, "conflux.", 8) != 0) return 0;

    const char *directory = getenv("CONFLUX_LUA");
    int status = 0;
    const bool found =
        directory && *directory ? load_from(L, directory, name, &status) : load_embedded(L, name, &status);
    if (!found) {
        lua_pushfstring(L, "\n\tno module '%s' in %s", name, directory && *directory ? directory : "conflux");
    } else if (status != 0) {
        return luaL_error(L, "error loading module '%s':\n\t%s", name, lua_tostring(L, -1));
    }
    return 1;
}

/* conflux.embedded(name): the text of a module, nothing where the program has none of that name. */
static int push_source(lua_State *L) {
    const char *name = luaL_checkstring(L, 1);
    for (const struct module *m = modules; m->name; m++) {
        if (strcmp(m->name, name) != 0) continue;
        lua_pushlstring(L, m->begin, (size_t)(m->end - m->begin));
        return 1;
    }
    return 0;
}

static int open_embedded_module(lua_State *L) {
    lua_pushcfunction(L, push_source);
    return 1;
}

void cf_modules_install(lua_State *L) {
    lua_getfield(L, LUA_REGISTRYINDEX, "_PRELOAD");
    lua_pushcfunction(L, open_embedded_module);
    lua_setfield(L, -2, "conflux.embedded");
    lua_pop(L, 1);

    lua_getglobal(L, "package");
    lua_getfield(L, -1, "loaders");
    for (int i = (int)lua_objlen(L, -1); i >= 2; i--) {
        lua_rawgeti(L, -1, i);
        lua_rawseti(L, -2, i + 1);
    }
    lua_pushcfunction(L, search);
    lua_rawseti(L, -2, 2);
    lua_pop(L, 2);
}
