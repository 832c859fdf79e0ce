-- The `conflux` program, run as a user runs it, and beside luajit, whose conventions it keeps.
local program = require "tests.spec.program"
local conflux, quote, shell, run = program.conflux, program.quote, program.shell, program.run

local has_luajit = program.has "luajit"

-- Checks that conflux and luajit write the same and end with the same code.  The frames of their C code differ.
local function assert_like_luajit(arguments, input)
  if not has_luajit then return pending "luajit is not installed" end
  local function observe(binary)
    local out, err, code = shell(("%s %s <%s"):format(binary, arguments, input or "/dev/null"))
    local name = binary:match "[^/]+$"
    err = err:gsub("^" .. name .. ":", "NAME:"):gsub("\t%[C%]: at 0x%x+\n?", ""):gsub("0x%x+", "ADDRESS")
    return {out = out:gsub(binary:gsub("%p", "%%%0"), "NAME"), err = err, code = code}
  end
  assert.same(observe "luajit", observe(conflux))
end

describe("conflux #program", function()
  local script = program.file

  after_each(program.clean)

  local show = "for i = -6, 3 do print(i, arg[i]) end print(...)"

  it("runs a script with its arguments", function()
    assert_like_luajit(script(show) .. " one 'two words' -e")
    assert_like_luajit("-e 'x = 1' " .. script(show .. " print(x)") .. " one")
    assert_like_luajit("-- " .. script(show) .. " one")
  end)

  it("runs strings and libraries in their order", function()
    assert_like_luajit [[-e 'x = 1' -e'print(x, ...)']]
    assert_like_luajit [[-e 'package.preload.m = function() x = 2 end' -l m -e 'print(x)']]
    assert_like_luajit [[-e 'package.preload.m = function() x = 2 end' -lm -e 'print(x)']]
  end)

  it("runs stdin", function()
    assert_like_luajit("- one two", script(show))
    assert_like_luajit("", script(show))

    local _, err, code = run("<" .. script "error 'no'") -- luajit exits with 0
    assert.matches("^conflux: stdin:1: no\n", err)
    assert.equal(1, code)
  end)

  it("prints an error with its traceback and exits with 1", function()
    assert_like_luajit(script "local function f(x)\n  error(x)\nend\nf 'no'\nprint 'never'")
    assert_like_luajit [[-e 'local t = nil; print(t.x)' -e 'print "never"']]
    assert_like_luajit [[-e 'error({})']]
    assert_like_luajit [[-e 'error()']]
    assert_like_luajit [[-e 'error(setmetatable({}, {__tostring = function() return "custom" end}))']]
    assert_like_luajit [[-e 'error("no position", 0)']]
    assert_like_luajit [[-e 'coroutine.wrap(function() error "inside" end)()']]

    local path = script "\n\nerror 'no'"
    local out, err, code = run(path)
    assert.equal("", out)
    assert.equal(("conflux: %s:3: no\nstack traceback:\n"):format(path), err:match "^.-traceback:\n")
    assert.equal(1, code)
  end)

  it("refuses what does not parse", function()
    assert_like_luajit(script "x = = 1")
    assert_like_luajit [[-e 'print(']]
  end)

  it("refuses a missing file and a missing library", function()
    assert_like_luajit "/nowhere/script.lua"
    local _, err, code = run "-l no.such.library"
    assert.matches("^conflux: module 'no.such.library' not found:", err)
    assert.equal(1, code)
  end)

  it("exits with the code of os.exit", function()
    for _, call in ipairs {"os.exit(3)", "os.exit()", "os.exit(true)", "os.exit(false)", "os.exit(4, false)"} do
      assert_like_luajit("-e " .. quote(call))
      assert_like_luajit("-e " .. quote("coroutine.wrap(function() " .. call .. " end)()"))
    end
  end)

  it("runs finalisers at the end, on an error and at os.exit", function()
    local object = "p = newproxy(true) getmetatable(p).__gc = function() print 'gone' end "
    for _, ending in ipairs {"", "error 'no'", "os.exit(0)"} do
      assert.equal("gone\n", (run("-e " .. quote(object .. ending))))
    end
  end)

  it("hands its options to Lua by the environment", function()
    local print_them = quote [[
      print(os.getenv "CONFLUX_DEVICES", os.getenv "CONFLUX_NUM_THREADS", os.getenv "CONFLUX_SEED")]]
    assert.equal("cpu*2\t3\t18446744073709551615\n",
      (run("--devices 'cpu*2' --threads 3 --seed 18446744073709551615 -e " .. print_them)))
    assert.equal("cpu*2\t3\t7\n", (run("-e " .. print_them .. " --devices='cpu*2' --threads=3 --seed=7")))
    assert.equal("cpu\t1\t2\n",
      (shell(("CONFLUX_DEVICES=cpu*9 CONFLUX_NUM_THREADS=1 CONFLUX_SEED=2 %s --devices cpu -e %s")
        :format(conflux, print_them))))
  end)

  it("refuses a bad option before anything runs", function()
    for option, message in pairs {
      ["-x"] = "unknown option '-x'",
      ["--device cpu"] = "unknown option '--device'",
      ["--helpme"] = "unknown option '--helpme'",
      ["-vx"] = "unknown option '-vx'",
      ["--devices"] = "option '--devices' needs a value",
      ["-e"] = "option '-e' needs a value",
      ["--threads 0"] = "--threads: expected a number from 1 to 4096, got '0'",
      ["--threads="] = "--threads: expected a number from 1 to 4096, got ''",
      ["--memory-limit 0"] = "--memory-limit: expected bytes such as 500000000, 512M or 4G, got '0'",
      ["--memory-limit 4T"] = "--memory-limit: expected bytes such as 500000000, 512M or 4G, got '4T'",
      ["--memory-limit 4Gb"] = "--memory-limit: expected bytes such as 500000000, 512M or 4G, got '4Gb'",
      ["--memory-limit 9007199254740993"] =
        "--memory-limit: expected bytes such as 500000000, 512M or 4G, got '9007199254740993'",
      ["--seed -1"] = "--seed: expected a number from 0 to 2^64 - 1, got '-1'",
      ["--seed 18446744073709551616"] = "--seed: expected a number from 0 to 2^64 - 1, got '18446744073709551616'",
    } do
      local out, err, code = run("-e 'print(1)' " .. option)
      assert.equal("", out)
      assert.equal("conflux: " .. message .. "\nTry 'conflux --help'.\n", err)
      assert.equal(1, code)
    end
  end)

  it("shows its options and its version", function()
    local out, err, code = run "--help"
    assert.matches("^usage: conflux %[options%]... %[script %[args%]...%]\n", out)
    assert.matches("--devices SPEC", out, 1, true)
    assert.same({"", 0}, {err, code})
    for _, option in ipairs {"-v", "--version"} do
      out, err, code = run(option)
      assert.matches("^Conflux %d+%.%d+%.%d+ .*LuaJIT 2%.1", out)
      assert.same({"", 0}, {err, code})
    end
    assert.matches("\nran\n$", (run "-v -e 'print \"ran\"'"))
  end)

  it("tells in --help of each option", function()
    local out = run "--help"
    for option in program.slurp("core/host/main.c"):gmatch '\n    {"(%-[^"]+)",' do
      assert.matches("[ ,]" .. option:gsub("%-", "%%-") .. "[ ,]", out)
    end
  end)

  it("shows what runs here, and goes on", function()
    local out, err, code = run "--devices 'cpu*2' --threads 3 --memory-limit 1G --info"
    assert.same({"", 0}, {err, code})
    assert.equal(run("-v"), out:match "^[^\n]*\n") -- build and LuaJIT
    assert.matches("\nABI %d+, %w+ %w+, zlib %d[%d.]*\n", out)
    assert.matches("\ncpu: .*, %S+ kernels, [%d.]+ GiB %(oneDNN %d+%.%d+%.%d+%)\n", out)
    assert.matches("\ncuda: .", out)
    assert.matches("\nrun: cpu:0: 2 threads, 0.0 of at most 1024 MiB in use\nrun: cpu:1: 1 thread, 0.0 of", out)
    assert.matches("\nreplicas are joined by: local\nprecision: float32\n$", out)
    assert.equal("2\n", (run "--devices cpu --info -e 'print(1 + 1)'"):match "[^\n]*\n$")
  end)

  it("shows why something is missing", function()
    local empty = os.tmpname() -- no directory: there is no plugin in it
    local out, err, code = run("--devices cuda:5 --info", "CONFLUX_PLUGINS=" .. empty)
    os.remove(empty)
    assert.same({"", 0}, {err, code})
    assert.matches("\ncuda: none: no CUDA plugin: [^\n]*libconflux_cuda.so: .", out)
    assert.matches("\nrun: none: device 'cuda:5' does not exist: there is no CUDA plugin: .", out)
    assert.matches("\nrun: none: device 'nothing' does not exist", (run "--devices nothing --info"))
  end)

  it("stops a Lua loop at the first Ctrl-C", function()
    local _, err, code = shell("timeout --foreground --preserve-status -s INT 1 " .. conflux
      .. " -e 'jit.off() while true do end'")
    assert.matches("^conflux: %(command line%):1: interrupted!\nstack traceback:\n", err)
    assert.equal(1, code)
  end)

  it("says where Ctrl-C cut off a read", function()
    local _, err, code = shell("timeout --foreground --preserve-status -s INT 1 " .. conflux
      .. [[ -e 'io.popen("sleep 2"):lines()()']])
    assert.matches("^conflux: [^\n]*Interrupted system call\nstack traceback:\n", err)
    assert.equal(1, code)
  end)

  it("ends at the second Ctrl-C", function()
    local _, _, code = shell(conflux .. [[ -e 'jit.off() while true do pcall(function() while true do end end) end' &
      pid=$!; sleep 1; kill -INT $pid; sleep 0.2; kill -INT $pid; wait $pid]])
    assert.equal(128 + 2, code)
  end)

  it("colours an error on a terminal only, and not under NO_COLOR", function()
    if not program.has_terminal() then return pending "no terminal from util-linux's script" end
    local function on_terminal(setting)
      return (shell(("%s script -qec %s /dev/null </dev/null")
        :format(setting, quote(conflux .. " -e 'error \"no\"'"))))
    end
    assert.matches("\27[1;31mconflux:\27[0m (command line):1: no", on_terminal "env -u NO_COLOR", 1, true)
    assert.matches("^conflux: %(command line%):1: no", on_terminal "NO_COLOR=1")
  end)
end)

describe("the embedded library", function()
  local find = [[print(debug.getinfo(package.loaders[2]("conflux.check"), "S").source)]]

  it("has chunk names that say where a module lies", function()
    assert.equal("@conflux/check.lua\n", (run("-e " .. quote(find))))
  end)

  it("needs no package.path", function()
    assert.equal("true\n",
      (run [[-e 'package.path = "/nowhere/?.lua" print(pcall(require, "conflux.check"))' | cut -f1]]))
  end)

  it("names what it lacks", function()
    local _, err = run "-l conflux.nothing"
    assert.matches("no module 'conflux.nothing' in conflux", err, 1, true)
  end)

  it("is read from the directory CONFLUX_LUA, under the same chunk names", function()
    local directory = os.tmpname()
    os.remove(directory)
    os.execute("mkdir -p " .. directory .. "/conflux/sub")
    local function write(name, text)
      local file = assert(io.open(directory .. "/conflux/" .. name, "w"))
      file:write(text)
      file:close()
    end
    write("check.lua", "return ...")
    write("sub/init.lua", "error 'no'")
    local with = "CONFLUX_LUA=" .. directory .. " " .. conflux .. " -e "
    assert.equal("@conflux/check.lua\n", (shell(with .. quote(find))))
    assert.equal("conflux.check\n", (shell(with .. quote "print(require 'conflux.check')")))
    assert.equal("conflux/sub/init.lua:1: no\n",
      (shell(with .. quote "print(select(2, pcall(require, 'conflux.sub')))")))
    os.execute("rm -r " .. directory)
  end)
end)
