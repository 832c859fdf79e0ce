/* modules.h: the Lua library, inside the program.
 *
 * The build embeds every file of lua/conflux; `require` finds them before it looks on package.path, so that a
 * program and its library are always of one version.  With CONFLUX_LUA=dir in the environment the files of
 * dir/conflux are read instead, under the same chunk names ("@conflux/tensor.lua"): to edit the library
 * without building.
 */
#ifndef CF_HOST_MODULES_H
#define CF_HOST_MODULES_H

#include <lua.h>

/* Puts the searcher after package.preload's.  Raises in L when out of memory. */
void cf_modules_install(lua_State *L);

#endif
