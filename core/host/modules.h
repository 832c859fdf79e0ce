/* modules.h: the Lua library, inside the program.
 *
 * The build embeds every file of lua/conflux; `require` finds them before it looks on package.path, so that a
 * program and its library are always of one version.  With CONFLUX_LUA=dir in the environment the files of
 * dir/conflux are read instead, under the same chunk names ("@conflux/tensor.lua"): to edit the library
 * without building.
 *
 * The module "conflux.embedded" is a function from the name of an embedded module to its text, in which conflux.help
 * finds the comments.
 */
#ifndef CF_HOST_MODULES_H
#define CF_HOST_MODULES_H

#include <lua.h>

/* Puts the searcher after package.preload's, and conflux.embedded among them.  Raises in L when out of memory. */
void cf_modules_install(lua_State *L);

#endif
