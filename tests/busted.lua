-- Runs busted inside the conflux that runs this file: build/bin/conflux tests/busted.lua [options] tests/spec
-- CONFLUX_TEST_DEVICES names the devices that they run on; see tests/spec/devices.lua.
-- Debian's packages install busted for Lua 5.1, whose path LuaJIT does not search everywhere.
package.path = package.path .. ";/usr/share/lua/5.1/?.lua;/usr/share/lua/5.1/?/init.lua"
package.cpath = package.cpath .. ";/usr/lib/" .. (jit.arch == "arm64" and "aarch64" or "x86_64")
  .. "-linux-gnu/lua/5.1/?.so"

require "tests.spec.devices"
require "busted.runner" {standalone = false}
