-- The process that Conflux runs in: children, and the end.
local program = require "tests.spec.program"

-- Plain luajit, where there is one and a library for it that no sanitizer's has to come before.
local library = program.conflux:gsub("bin/conflux$", "lib/libconflux.so")
local has_luajit = program.has "luajit" and program.exists(library) and not program.obstacle()
local luajit = ("CONFLUX_LIBRARY=%s LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit"):format(library)

-- Runs the script by conflux and by plain luajit, and checks what it writes to stdout, its exit code, and what it
-- writes to stderr but for the first line's beginning.
local function check(script, wanted_out, wanted_code, wanted_err)
  local path = program.file(script)
  for _, lua in ipairs {program.conflux, has_luajit and luajit or nil} do
    local out, err, code = program.shell(lua .. " " .. path)
    assert.equal(wanted_out, out, err)
    assert.equal(wanted_err or "", err)
    assert.equal(wanted_code or 0, code)
  end
end

after_each(program.clean)

describe("a child of fork #program", function()
  it("is told that it has none of the threads, and ends like any process", function()
    check([[
      local ffi = require "ffi"
      ffi.cdef "int fork(void); int waitpid(int, int *, int); unsigned alarm(unsigned);"
      local cf = require "conflux"
      local x = cf.ones(3)
      local loader = cf.data.DataLoader({x}, {devices = "cpu:0"})
      print(x:sum():item())
      io.stdout:flush()
      local pid = ffi.C.fork()
      if pid == 0 then
        ffi.C.alarm(60) -- ends it if it hangs
        print(select(2, pcall(function() return x:sum() end)):match "this process was forked")
        print(select(2, pcall(function() return x:totable() end)):match "this process was forked")
        print(select(2, pcall(cf.zeros, 3)):match "this process was forked")
        print(select(2, pcall(loader.epoch, loader, 0)):match "this process was forked")
        x, loader = nil, nil
        collectgarbage()
        os.exit(7)
      end
      local status = ffi.new "int[1]"
      ffi.C.waitpid(pid, status, 0)
      print(status[0] / 256, x:sum():item())
    ]], "3\n" .. ("this process was forked\n"):rep(4) .. "7\t3\n")
  end)
end)
