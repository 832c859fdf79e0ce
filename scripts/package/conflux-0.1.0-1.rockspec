-- For LuaJIT:  luarocks --lua-version 5.1 make scripts/package/conflux-0.1.0-1.rockspec
--
-- LuaRocks' own `cmake` build would install the program, the header and all else into Lua's directories; a rock is the
-- Lua files, the library and the CUDA plugin, which is the component `rock` of scripts/package/install.cmake.
-- CONFLUX_BUILD names a build directory that there is already.
rockspec_format = "3.0"
package = "conflux"
version = "0.1.0-1"
source = {url = "file://conflux-0.1.0.tar.gz"} -- which cpack --config build/CPackSourceConfig.cmake makes
description = {
  summary = "Training engine scripted in Lua",
  detailed = "Trains models on many devices from one Lua script.  Needs LuaJIT 2.1, oneDNN, zlib and a C compiler.",
  license = "MIT",
}
supported_platforms = {"linux"}
dependencies = {"lua == 5.1"} -- LuaJIT is one
build = {
  type = "command",
  build_command = 'build=${CONFLUX_BUILD:-build.luarocks} && '
    .. '{ test -e "$build"/CMakeCache.txt || cmake -S . -B "$build"; } && '
    .. 'cmake --build "$build" --parallel --target rock',
  install_command = 'cmake --install ${CONFLUX_BUILD:-build.luarocks} --component rock --prefix "$(PREFIX)"',
}
