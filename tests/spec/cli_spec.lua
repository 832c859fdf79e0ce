-- The `conflux` program, run as a user runs it, and beside luajit, whose conventions it keeps.
local program = require "tests.spec.program"
local conflux, quote, shell, run = program.conflux, program.quote, program.shell, program.run

local has_luajit = program.has "luajit"

-- Runs a shell command of "LUA" with conflux or luajit in its place: stdout, stderr and the exit code.  The names of
-- the programs, and the frames of their C code, are made equal.
local function observe(binary, command)
  local out, err, code = shell((command:gsub("%f[%w_]LUA%f[^%w_]", (binary:gsub("%%", "%%%%")))))
  out = ("\n" .. out):gsub("([\t\n])" .. binary:gsub("%p", "%%%0") .. "%f[%c]", "%1NAME")
  local name = binary:match "[^/]+$"
  err = ("\n" .. err):gsub("\n" .. name .. ":", "\nNAME:"):gsub("\t%[C%]: at 0x%x+\n?", ""):gsub("0x%x+", "ADDRESS")
  return {out = out, err = err:sub(2), code = code}
end

local SHOW = "for i = -6, 3 do print(i, arg[i]) end print(...)"
local SHOW_PATHS = "print(package.path, package.cpath, os.getenv 'LUA_PATH')"

-- Conventions of luajit's: a shell command in which $S is a script of the text beside it.
local conventions = {
  -- scripts and arguments
  {"LUA $S one 'two words' -e", SHOW},
  {"LUA $S", SHOW},
  {"LUA -- $S one", SHOW},
  {"LUA -e 'x = 1' $S one", SHOW .. " print(x)"},
  {"LUA - one two <$S", SHOW},
  {"LUA <$S", SHOW},
  {"LUA -- <$S", SHOW},
  {"LUA -- - </dev/null"},
  {"LUA ''"},
  {"LUA -e 'arg = {1, 2, nil, 4}' $S one", "print(...)"},
  {"LUA -e 'arg = nil' $S one", "print(...)"},
  {"LUA $S a b", "return 5"},
  {"LUA $S", "#!/usr/bin/env luajit\nprint 'behind a shebang'"},
  {"LUA $S", ""},
  {"LUA $S <&-", "print(io.read())"},
  -- -e, -l
  {"LUA -e 'x = 1' -e'print(x, ...)'"},
  {"LUA -e '' -e 'print(1)'"},
  {"LUA -e 'print(1)' </dev/null"},
  {"LUA -e 'package.preload.m = function(...) x = ... end' -l m -e 'print(x)'"},
  {"LUA -e 'package.preload.m = function() x = 2 end' -lm -e 'print(x)'"},
  {"LUA -e 'package.preload.m = function() x = 2 end' -lm <$S", "print(x)"},
  -- -v, -E, LUA_INIT, LUA_PATH, LUA_CPATH
  {"LUA -v -e 'print(1)' | tail -n 1"},
  {"LUA -v $S | tail -n 1", "print 'ran'"},
  {"LUA_INIT='x = 5' LUA -e 'print(x, arg[0])'"},
  {"LUA_INIT=@$S LUA -e 'print(x)'", "x = 6"},
  {"LUA_INIT=@$S LUA -E -e 'print(x)'", "x = 6"},
  {"LUA_INIT=@/nowhere.lua LUA -e 'print(1)'"},
  {"LUA_INIT='error [[no]]' LUA -v"},
  {"LUA_INIT='x = = 1' LUA -e 'print(1)'"},
  {"LUA_INIT='print(1) os.exit(7)' LUA -e 'print(2)'"},
  {"LUA_PATH='/nowhere/?.lua;;' LUA_CPATH='/nowhere/?.so' LUA -e \"" .. SHOW_PATHS .. "\""},
  {"LUA_PATH='/nowhere/?.lua;;' LUA_CPATH='/nowhere/?.so' LUA -E -e \"" .. SHOW_PATHS .. "\""},
  -- -j, -O
  {"LUA -joff -e 'print((jit.status()))' -jon -e 'print((jit.status()))'"},
  {"LUA -j off -e 'print((jit.status()))'"},
  {"LUA -O1 -e 'print(select(\"#\", jit.status()))' -O3 -e 'print(select(\"#\", jit.status()))'"},
  {"LUA -O -Ohotloop=5,-loop -e 'print(select(\"#\", jit.status()))'"},
  {"LUA -Onothing -e 'print(1)'"},
  {"LUA -jnothing -e 'print(1)'"},
  {"LUA -jopt=nothing -e 'print(1)'"},
  -- errors
  {"LUA $S", "local function f(x)\n  error(x)\nend\nf 'no'\nprint 'never'"},
  {"LUA -e 'local t = nil; print(t.x)' -e 'print \"never\"'"},
  {"LUA -e 'error({})'"},
  {"LUA -e 'error()'"},
  {"LUA -e 'error(setmetatable({}, {__tostring = function() return \"custom\" end}))'"},
  {"LUA -e 'error(\"no position\", 0)'"},
  {"LUA -e 'coroutine.wrap(function() error \"inside\" end)()'"},
  {"LUA -e 'print(coroutine.resume(coroutine.create(function() error \"inside\" end)))'"},
  {"LUA -e 'local function f() return 1 + f() end f()'"},
  {"LUA -e 'local function f() return 1 + f() end print(pcall(f))'"},
  {"LUA $S", "x = = 1"},
  {"LUA -e 'print('"},
  {"LUA $S", "x = '\255\254' print(#x, x) \255 = 3 print(\255)"},
  {"LUA $S", "x = '\255"},
  {"LUA /nowhere/script.lua"},
  {"LUA /"},
  {"LUA -l no.such.library 2>&1 | head -n 1 | cut -d : -f 2-"},
  -- the end
  {"LUA -e 'os.exit(3)'"},
  {"LUA -e 'os.exit()'"},
  {"LUA -e 'os.exit(true)'"},
  {"LUA -e 'os.exit(false)'"},
  {"LUA -e 'os.exit(4, false)'"},
  {"LUA -e 'os.exit(4, true)'"},
  {"LUA -e 'coroutine.wrap(function() os.exit(5) end)()'"},
  {"LUA $S", "print 'written' os.exit(6)"},
  {"LUA $S | head -n 1", "for i = 1, 1e5 do print(i) end"},
}

-- `ulimit -v` leaves no room for a sanitizer's own memory.
local out_of_memory = {"ulimit -v 3000000; LUA -e 't = {} for i = 1, 1e9 do t[i] = (\"x\"):rep(2^20) .. i end'"}
if not conflux:find "san" then conventions[#conventions + 1] = out_of_memory end

describe("conflux #program", function()
  local script = program.file

  after_each(program.clean)

  for _, convention in ipairs(conventions) do
    local command, text = convention[1], convention[2]
    local beside = text and "  -- " .. text:gsub("[^\32-\126]", "?"):sub(1, 40) or ""
    it("does as luajit does: " .. command .. beside, function()
      if not has_luajit then return pending "luajit is not installed" end
      if text then command = command:gsub("%$S", (script(text):gsub("%%", "%%%%"))) end
      assert.same(observe("luajit", command), observe(conflux, command))
    end)
  end

  it("exits with 1 where luajit hides it: an error in stdin's script", function()
    local _, err, code = run("<" .. script "error 'no'")
    assert.matches("^conflux: stdin:1: no\n", err)
    assert.equal(1, code)
    assert.equal(1, (select(3, run("<" .. script "x = = 1"))))
    assert.equal(1, (select(3, run "<&-")))
  end)

  it("exits with 1 where what was printed is lost", function()
    for _, arguments in ipairs {"-e 'print(1)'", "-e 'print(1) os.exit(0)'", "-e 'print(1) os.exit(0, false)'", "-v",
      "--help", "-e 'for i = 1, 1e5 do print(i) end'"} do
      local out, err, code = run(arguments .. " >/dev/full")
      assert.same({"", 1}, {out, code}, arguments)
      assert.matches("^conflux: cannot write to stdout", err)
      _, err, code = run(arguments .. " >&-")
      assert.equal(1, code)
      assert.matches("^conflux: cannot write to stdout", err)
    end
    assert.same({"", "", 0}, {run "-e 'x = 1' >&-"})
    assert.same({"", "", 0}, {run "-e 'x = 1' >/dev/full"})
  end)

  it("writes nothing into a file that took the place of a closed stdout", function()
    local path = script ""
    local text = ("f = io.open('%s', 'w') print 'lost' io.stdout:flush() f:write 'kept' f:close()"):format(path)
    assert.equal(1, (select(3, run(("-e %s >&-"):format(quote(text))))))
    assert.equal("kept", program.slurp(path))
  end)

  it("begins a traceback with the user's line, where the library has raised the error", function()
    local path = script [[
local cf = require 'conflux'
local function f(x)
  return (x + cf.ones(3))
end
f(cf.ones(2))]]
    local _, err = run("--devices cpu " .. path)
    assert.equal("conflux: S:3: conflux.add: argument 'b': expected a shape that broadcasts with a [2] (float32, "
      .. "cpu:0), got [3] (float32, cpu:0)\nstack traceback:\n\tS:3: in function 'f'\n\tS:5: in main chunk\n",
      (err:gsub(path:gsub("%p", "%%%0"), "S"):gsub("\t%[C%][^\n]*\n?$", "")))
  end)

  it("joins the workers at os.exit, however much is enqueued", function()
    local _, err, code = run("--devices 'cpu*2' -e " .. quote [[
      local cf = require "conflux"
      cf.withdevices(function()
        local x = cf.rand(800, 800)
        for i = 1, 2000 do x = x:matmul(x) end
      end)
      os.exit(9)]])
    assert.same({"", 9}, {err, code})
  end)

  it("refuses -b", function()
    for _, arguments in ipairs {"-b x.lua x.raw", "-bl x.lua"} do
      local out, err, code = run(arguments)
      assert.same({"", "conflux: -b: conflux writes no bytecode; it runs what `luajit -b` has written\n"
        .. "Try 'conflux --help'.\n", 1}, {out, err, code})
    end
    if not has_luajit then return end
    local bytecode = script ""
    shell(("luajit -b %s %s"):format(script "print 'from bytecode'", bytecode))
    assert.equal("from bytecode\n", (run(bytecode)))
  end)

  it("prints an error with its traceback and exits with 1", function()
    local path = script "\n\nerror 'no'"
    local out, err, code = run(path)
    assert.equal("", out)
    assert.equal(("conflux: %s:3: no\nstack traceback:\n"):format(path), err:match "^.-traceback:\n")
    assert.equal(1, code)
  end)

  it("says where a crash was, and ends by its signal", function()
    if conflux:find "san" then return pending "a sanitizer reports crashes itself" end
    local write = "-e " .. quote 'require "ffi".cast("int *", 24)[0] = 1'
    local _, err, code = run(write)
    assert.matches("^conflux: crashed: segmentation fault at 0x0+18 in thread conflux; its stack:\n", err)
    assert.matches("lua_pcall", err)
    assert.equal(128 + 11, code)
    for _, name in ipairs {"BUS", "ILL", "FPE"} do
      _, err, code = run("-e " .. quote "os.execute('kill -' .. arg[1] .. ' $PPID')" .. " - " .. name .. " </dev/null")
      assert.matches("^conflux: crashed: [%l ]+ at ", err)
      assert.is_true(code > 128)
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

  it("refuses a number in the environment that is none, or too large", function()
    local seed, threads, memory = "CONFLUX_SEED", "CONFLUX_NUM_THREADS", "CONFLUX_MEMORY_LIMIT"
    local max, show = "18446744073709551615", "--devices cpu -e 'print(require[[conflux]].rng()[1].seed)'"
    assert.equal(max .. "\n", (run(show, seed .. "=" .. max)))
    for _, case in ipairs {
      {seed, "18446744073709551616"}, {seed, "18446744073709551625"}, {seed, "28446744073709551615"},
      {seed, "99999999999999999999999"}, {seed, "-1"}, {seed, "1e3"}, {seed, "0x10"}, {seed, "' 7'"}, {seed, "7.0"},
      {threads, "0"}, {threads, "4097"}, {threads, "-1"}, {threads, "2.5"}, {threads, "0x10"}, {threads, "1e2"},
      {threads, "' 2'"}, {threads, "nan"}, {threads, "99999999999999999999999"}, {threads, "two"},
      {memory, "0"}, {memory, "-1"}, {memory, "0x100000"}, {memory, "1e9"}, {memory, "4g"},
      {memory, "9007199254740993G"}, {memory, "99999999999999999999999"},
    } do
      local name, value = case[1], case[2]
      local out, err, code = run(show, name .. "=" .. value)
      assert.equal("", out, value)
      local shown = value:gsub("'", ""):gsub("%p", "%%%0")
      assert.matches("conflux: " .. name .. ": expected .*, got '" .. shown .. "'", err)
      assert.equal(1, code)
    end
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
    if not program.exists "core/host/options.c" then return pending "there are no sources here" end
    for option in program.slurp("core/host/options.c"):gmatch '\n    {"(%-[^"]+)",' do
      local is_told = out:find("[ ,]" .. option:gsub("%-", "%%-") .. "[ ,%[]")
      assert.is_true(is_told ~= nil or option == "-b", option)
    end
  end)

  it("shows what runs here, and goes on", function()
    local out, err, code = run "--devices 'cpu*2' --threads 3 --memory-limit 1G --info"
    assert.same({"", 0}, {err, code})
    assert.equal(run("-v"), out:match "^[^\n]*\n") -- build and LuaJIT
    assert.matches("\nABI %d+, %w+ %w+, zlib %d[%d.]*, [^\n]*libjpeg[^\n]*\n", out)
    assert.matches("\ncpu: .*, %S+ kernels, [%d.]+ GiB %(oneDNN %d+%.%d+%.%d+; lib[^\n]+%)\n", out)
    assert.matches("\ncuda: .", out)
    assert.matches("\nrun: cpu:0: 2 threads, 0.0 of at most 1024 MiB in use\nrun: cpu:1: 1 thread, 0.0 of", out)
    assert.matches("\nreplicas are joined by: local\nprecision: float32\nline editing: [^\n]+\n$", out)
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

  -- Runs conflux and presses Ctrl-C each time that it has said "ready" once more, `times` in all: what it wrote to
  -- stderr, its exit code, or 128 and the number of the signal that ended it, and what it said besides.
  local READY = "function ready() io.write 'ready\\n' io.flush() end function spin() ready() while true do end end "
  local function interrupted(arguments, times)
    local said = script ""
    local out, err, code = shell(([[LUA_INIT=%s %s %s >%s & pid=$!
      for i in $(seq %d); do
        while [ $(grep -c ready %s) -lt $i ] && kill -0 $pid; do sleep 0.02; done
        kill -INT $pid
      done 2>/dev/null
      wait $pid]]):format(quote(READY), conflux, arguments, said, times or 1, said))
    assert.equal("", out)
    return err, code, (program.slurp(said):gsub("ready\n", ""))
  end
  local INTERPRETED = "jit.off() spin()"

  it("stops a Lua loop at the first Ctrl-C, and exits with 130, whatever the loop is in", function()
    local chunk = script(INTERPRETED)
    for arguments, where in pairs {
      ["-e " .. quote(INTERPRETED)] = "LUA_INIT:1",
      ["-e " .. quote(INTERPRETED) .. " -e 'print(1)' " .. script "print(2)"] = "LUA_INIT:1",
      [chunk] = "LUA_INIT:1",
      ["-i " .. chunk] = "LUA_INIT:1",
      ["- <" .. chunk] = "LUA_INIT:1",
      ["<" .. chunk] = "LUA_INIT:1",
      ["-i <" .. script "spin()\nprint 'never'"] = "LUA_INIT:1",
      ["-e 'package.preload.m = function() jit.off() spin() end' -l m"] = "LUA_INIT:1",
      ["-e 'jit.off() coroutine.wrap(spin)()'"] = "LUA_INIT:1",
      ["-e 'jit.off() error(select(2, pcall(spin)), 0)'"] = "LUA_INIT:1",
    } do
      local err, code, said = interrupted(arguments)
      assert.matches("^[^\n]*" .. where .. ": interrupted!\nstack traceback:\n", err, nil, arguments)
      assert.same({130, ""}, {code, said}, arguments)
    end
  end)

  it("ends a wait for the devices at Ctrl-C, with 130", function()
    local err, code = interrupted("--devices cpu -e " .. quote [[local x = require "conflux".rand(1500, 1500)
      for _ = 1, 200 do x = x:matmul(x):tanh() end ready() x:sum():item()]])
    assert.matches("^conflux: %(command line%):2: interrupted!\n", err)
    assert.equal(130, code)
  end)

  it("says where Ctrl-C cut off a read", function()
    local err, code = interrupted [[-e 'local lines = io.popen("sleep 5"):lines() ready() lines()']]
    assert.matches("^conflux: [^\n]*Interrupted system call\nstack traceback:\n", err)
    assert.equal(130, code)
  end)

  it("leaves Ctrl-C to a script that catches it, saves and leaves: its exit code is the script's own", function()
    for ending, code in pairs {[""] = 0, ["os.exit(7)"] = 7, ["error 'the disk is full'"] = 1,
      ["return"] = 0, ["while io.read() do end"] = 0} do
      local text = ("jit.off() print(pcall(spin)) print 'saved' %s"):format(ending)
      local err, got, said = interrupted("-e " .. quote(text))
      assert.equal("false\tLUA_INIT:1: interrupted!\nsaved\n", said)
      assert.equal(code, got, err)
    end
  end)

  it("raises each Ctrl-C anew that comes after the one before was heard", function()
    local text = "jit.off() for i = 1, 3 do print(pcall(spin)) end os.exit(7)"
    local err, code, said = interrupted("-e " .. quote(text), 3)
    assert.same({"", 7, ("false\tLUA_INIT:1: interrupted!\n"):rep(3)}, {err, code, said})
  end)

  it("ends at a second Ctrl-C where nothing listens to the first: a compiled loop, a C function", function()
    for _, text in ipairs {"ready() while true do end",
      "ready() string.match(('a'):rep(60), ('a*'):rep(30) .. 'b')"} do
      local said = script ""
      local _, _, code = shell(([[LUA_INIT=%s %s -e %s >%s & pid=$!
        while ! [ -s %s ] && kill -0 $pid; do sleep 0.02; done
        while kill -INT $pid; do sleep 0.1; done 2>/dev/null
        wait $pid]]) -- two signals that come at once are one
        :format(quote(READY), conflux, quote(text), said, said))
      assert.equal(128 + 2, code, text)
    end
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

-- The programs' own lists of options: name -> whether a value follows.  A bundle has no sources.
local SOURCES = {conflux = "core/host/options.c", ["conflux-run"] = "core/launch/options.c"}
local function if_sources(name, f)
  it(name, function()
    if not program.exists(SOURCES.conflux) then return pending "there are no sources here" end
    f()
  end)
end

local function options(of)
  local list = {}
  for name, value in program.slurp(SOURCES[of]):gmatch '\n    {"(%-[^"]+)",[^\n]-, ([%u_]+)},' do
    if name ~= "-b" then list[name] = value == "CF_NEEDED" end
  end
  return list
end

describe("a manual page", function()
  if_sources("is formatted without a warning", function()
    if not program.has "groff" then return pending "groff is not installed" end
    for name in pairs(SOURCES) do
      local out, err, code = shell(("groff -mandoc -Tutf8 -ww -z scripts/package/%s.1"):format(name))
      assert.same({"", "", 0}, {out, err, code})
    end
  end)

  if_sources("tells of each option and no other", function()
    for of in pairs(SOURCES) do
      local text, known = program.slurp(("scripts/package/%s.1"):format(of)), options(of)
      for name in pairs(known) do
        local flag = name:sub(2):gsub("%-", "%%-")
        assert.is_true(text:find("\n%.It Fl [^\n]*%f[%w-]" .. flag .. "%f[^%w-]") ~= nil, name)
      end
      for flag in text:gmatch "\n%.It Fl (%-%w[%w-]*)" do assert.is_true(known["-" .. flag] ~= nil, flag) end
    end
  end)

  if_sources("tells of each command of the prompt", function()
    local text = program.slurp "scripts/package/conflux.1"
    for _, command in ipairs(require "conflux.repl.commands".names) do
      assert.is_true(text:find("\n.It Li :" .. command, 1, true) ~= nil, command)
    end
  end)
end)

describe("completion in a shell", function()
  if_sources("knows each option in zsh", function()
    for of in pairs(SOURCES) do
      local path = "scripts/package/_" .. of
      local text = program.slurp(path)
      for name, has_value in pairs(options(of)) do
        local mark = not has_value and "[%[-,}]" or name:find "^%-%-" and "=%[" or "%+%["
        assert.is_true(text:find("%f[-]" .. name:gsub("%-", "%%-") .. mark) ~= nil, name)
      end
      if program.has "zsh" then assert.same({"", "", 0}, {shell("zsh -n " .. path)}) end
    end
  end)

  if_sources("offers options, devices and scripts in bash", function()
    if not program.has "bash" then return pending "bash is not installed" end
    -- The completions offered for the last word of a command.
    local function offers(...)
      local words = {...}
      local name = words[1]
      for i = 1, #words do words[i] = quote(words[i]) end
      local out, err = shell(("bash -c %s"):format(quote(([[. scripts/package/%s.bash
        COMP_WORDS=(%s) COMP_CWORD=$((${#COMP_WORDS[@]} - 1)) && _%s; printf '%%s ' "${COMPREPLY[@]}"]])
        :format(name, table.concat(words, " "), (name:gsub("-", "_"))))))
      assert.equal("", err)
      return " " .. out
    end
    for of in pairs(SOURCES) do
      local all = offers(of, "-")
      for name in pairs(options(of)) do assert.is_true(all:find(" " .. name .. " ", 1, true) ~= nil, name) end
      assert.equal(" --devices ", offers(of, "--dev"))
      assert.matches(" cpu*2 ", offers(of, "--devices", ""), 1, true)
      assert.matches(" cpu*2 ", offers(of, "--devices", "=", "cp"), 1, true)
      assert.equal(" scripts/quickstart ", offers(of, "scripts/x2.lua", "scripts/quick"))
    end
    assert.equal(" scripts/x2.lua ", offers("conflux", "--seed", "1", "scripts/x2"))
    assert.equal(" scripts/x2.lua ", offers("conflux-run", "-n", "2", "scripts/x2"))
    assert.matches(" printf ", offers("conflux-run", "-n", "2", "--", "print"), 1, true)
    assert.equal(" scripts/package ", offers("conflux-run", "--output", "scripts/pack"))
  end)
end)
