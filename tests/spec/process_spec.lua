-- The process that Conflux runs in: children, and the end.
local program = require "tests.spec.program"

-- Plain luajit, where there is one and a library for it that no sanitizer's has to come before.
local library = program.conflux:gsub("bin/conflux$", "lib/libconflux.so")
local has_luajit = program.has "luajit" and program.exists(library) and not program.obstacle()
local luajit = ("CONFLUX_LIBRARY=%s LUA_PATH='lua/?.lua;lua/?/init.lua;;' luajit"):format(library)

-- Runs the script by conflux and by plain luajit, and checks what it writes to stdout, its exit code, and what it
-- writes to stderr but for the first line's beginning.
local function check(script, wanted_out, wanted_code, wanted_err, before)
  local path = program.file(script)
  for _, lua in ipairs {program.conflux, has_luajit and luajit or nil} do
    local out, err, code = program.shell(("%s %s %s"):format(before or "", lua, path))
    assert.equal(wanted_out, out, err)
    assert.equal(wanted_err or "", err)
    assert.equal(wanted_code or 0, code)
  end
end

after_each(program.clean)

describe("a child of fork #program", function()
  -- A child ends without freeing what its parent's threads use, which a sanitizer would call leaks.
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
    ]], "3\n" .. ("this process was forked\n"):rep(4) .. "7\t3\n", 0, "", "ASAN_OPTIONS=detect_leaks=0")
  end)
end)

describe("the end of the process #program", function()
  it("is safe from finalisers that call Conflux when its context is gone", function()
    check([[
      local older = newproxy(true)
      local cf = require "conflux"
      local x, device = cf.ones(2, 2), cf.device()
      local loader = cf.data.DataLoader({cf.ones(4, {device = "cpu"})}, {devices = "cpu:0"})
      local list = {
        function() return x + 1 end, function() return x:sum():item() end, function() return cf.zeros(3) end,
        function() return cf.rand(3) end, function() return device.name end, function() return x:device() end,
        function() return cf.devices() end, function() return cf.sync() end, function() return cf.tensor {1, 2} end,
        function() return loader:epoch(0) end, function() return cf.seed(1) end, function() return cf.memory() end,
        function() return cf.withdevices(function() return cf.ones(1) end) end,
        function() return cf.allreduce("sum", {x, x}) end, function() return cf.nn.Dense(2, 2) end,
      }
      getmetatable(older).__gc = function()
        local refused = 0
        for i = 1, #list do
          local ok, problem = pcall(list[i])
          if not ok and tostring(problem):find "conflux" then refused = refused + 1 else print(i, ok, problem) end
        end
        x:release()
        print(refused == #list)
      end
    ]], "true\n")
  end)

  it("is safe from a finaliser that is the first to call Conflux, or ends the process again", function()
    check([[
      local cf = require "conflux"
      local older, newer = newproxy(true), newproxy(true)
      getmetatable(newer).__gc = function() print(cf.ones(2):sum():item()) end
      getmetatable(older).__gc = function() print "exits" os.exit(3) end
    ]], "2\nexits\n", 3)
  end)

  it("tells of a fault that nobody has read, and is then no success", function()
    local path = program.file [[
      local cf = require "conflux"
      local x = cf.ones(4)
      local y = x:gather(1, cf.tensor({7}, {dtype = "int64"})) -- an id that there is not
      print "done"
    ]]
    local out, err, code = program.run(path)
    assert.equal("done\n", out)
    assert.matches("a fault that nobody has read: .-gather.-enqueued at .-:3", err)
    assert.equal(1, code)
    local _, quiet, fine = program.run [[-e 'local cf = require "conflux" local x = cf.ones(4) + 1']]
    assert.equal("", quiet)
    assert.equal(0, fine)
  end)
end)

describe("a file that is none #program", function()
  it("is refused, where opening a pipe would wait for its other end", function()
    local path = os.tmpname()
    os.remove(path)
    assert(os.execute("mkfifo " .. path) == 0)
    for _, call in ipairs {"cf.load(%q)", "cf.data.idx(%q)", "cf.data.csv(%q)"} do
      local script = program.file(("local cf = require 'conflux' print(select(2, pcall(function() " .. call
        .. " end)))"):format(path))
      local out, err, code = program.shell(("timeout 60 %s %s"):format(program.conflux, script))
      assert.matches("not a regular file", out, err)
      assert.equal(0, code)
    end
    os.remove(path)
  end)
end)

describe("the floating-point mode of a script's thread #program", function()
  it("is not that of the threads that compute", function()
    check([[
      local ffi = require "ffi"
      ffi.cdef "int fesetround(int);"
      local UPWARD = ({x64 = 0x800, arm64 = 0x400000})[ffi.arch]
      if UPWARD then ffi.C.fesetround(UPWARD) end
      local cf = require "conflux"
      local x = cf.full(0.2, 200000)
      print(x:round():sum():item(), (x / 3):max():item() == (cf.full(0.2, 1) / 3):item())
      if UPWARD then ffi.C.fesetround(0) end
      print(("%.17g"):format((x / 3):max():item()))
    ]], "0\ttrue\n0.066666670143604279\n")
  end)
end)
