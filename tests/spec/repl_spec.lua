-- The prompt: by a pipe, and at a terminal as one types there.
local program = require "tests.spec.program"
local terminal = require "tests.spec.terminal"
local conflux, shell = program.conflux, program.shell

-- The names of Lua's globals, as far as a line can assign to them.
local globals = {}
for name in pairs(_G) do
  local is_luas = type(name) == "string" and name:find "^%l+$"
  if is_luas and loadstring("return " .. name) then globals[#globals + 1] = name end
end
assert(#globals > 30)

-- Feeds lines to `conflux -i`.
local function pipe(lines, before)
  local path = program.file(lines .. "\n")
  local out, err, code = shell(("%s %s --devices cpu -i <%s"):format(before or "", conflux, path))
  program.clean()
  return out, err, code
end

describe("the prompt in a pipe #program", function()
  local function prints(expected, lines)
    local out, err, code = pipe(lines)
    assert.same({expected, "", 0}, {out, err, code})
  end

  it("prints the values of an expression, nil among them, and of a statement nothing", function()
    prints("2\n", "1 + 1")
    prints("a\tnil\n", "'a', nil")
    prints("nil\n", "nothing")
    prints("5\n", "x = 5\nx")
    prints("5\n", "= 5") -- as in luajit
    prints("5\t6\n", "return 5, 6")
    prints("hello\n", "print 'hello'")
    prints("", "(function() end)()")
    prints("", "-- a comment\n\n  ")
  end)

  it("keeps quiet behind a semicolon", function()
    prints("2\n", "x = 1; x = 2;\nx;\nx;  -- x; y;\nx")
    prints("1\n", "';'; --;\n1")
    prints("a;b\n", "'a;b'")
    prints("ran\n", "(function() print 'ran' return 1 end)();")
  end)

  it("goes on in the next line while the parser finds the end too early", function()
    prints("1\n2\n", "for i = 1, 2 do\nprint(i)\nend")
    prints("3\n", "1 +\n\n2")
    prints("a\nb\n", "[[a\nb]]")
    prints("6\n", "f = function(x)\n  return x * 2\nend\nf(\n3)")
    prints("3\n", "function f()\n  cf\n    .tree.leaves {}\nend\n3")
    local out, err, code = pipe "print 'before'\nfor i = 1, 2 do"
    assert.same({"before\n", "stdin:2: 'end' expected near '<eof>'\n", 1}, {out, err, code})
  end)

  it("shows the expression that stands behind statements and a semicolon", function()
    prints("1\n", "x = 1; x")
    prints("1\n1\n", "x = 1; x\nx")
    prints("6\n", "local a, b = 2, 3; a * b")
    prints("2\t3\n3\n", "x = 1; y = 2; y, y + x -- ; 5\n_2")
    prints("1\n", "x = ';'; x = 1; -- ; 2\nx")
    prints("5\n", "x = 4; x;\nx = x + 1; x; -- ; 7\nx")
    prints("a\n7\n", "x = 7; print 'a'\nprint = nil; x")
    prints("8\n", "function f(x) local y = x; return y end; f(8)")
    prints("", "function f(x) local y = x; f(y) end")
    prints("9\n", "for i = 1, 2 do\nx = i; end; x + 7")
    prints("x; y\n", "x = 'x; y'\nx")
    prints("3\n", "x = {1; 2; 3}; #x")
  end)

  it("says at once that a text ends in the middle of an assignment, and runs nothing of it", function()
    local out, err, code = pipe "x = 1 x\nprint(x)\nx.y z"
    assert.same({"nil\n", "stdin:1: '=' expected near '<eof>'\nstdin:3: '=' expected near 'z'\n", 1},
      {out, err, code})
  end)

  it("tells in errors the line of the whole pipe", function()
    local _, err = pipe [[
-- a comment

x = 2
error "a"
:time error "b"
function f()

  error "c"
end
f()
= (
  nil + 1)
y = = 3
(
x x)
cf.ones(2) + cf.ones(3)
cf.ones(3, 2)[cf.tensor({7}, {dtype = "int64"})]
:load /nowhere]]
    local lines = {}
    for line in err:gmatch "[^\n]+" do
      if not line:find "^\t" and not line:find "^stack" then lines[#lines + 1] = line:match "stdin:%d+" or line end
    end
    assert.same({"stdin:4", "stdin:5", "stdin:8", "stdin:12", "stdin:13", "stdin:15", "stdin:16", "stdin:17",
      "cannot open /nowhere: No such file or directory"}, lines)
    assert.matches("\n\tstdin:8: in function 'f'\n\tstdin:10: in main chunk\n", err, 1, true)
  end)

  it("does what it did while any of Lua's globals is missing", function()
    local lines, expected = {}, {}
    for _, name in ipairs(globals) do
      lines[#lines + 1] = ("saved, %s = %s, nil"):format(name, name)
      lines[#lines + 1] = "1 + 1, {1, 'a', x = {}}"
      lines[#lines + 1] = "x = 3; x"
      lines[#lines + 1] = "#_G_table._1 -- an error"
      lines[#lines + 1] = "x = = 1"
      lines[#lines + 1] = ":nothing"
      lines[#lines + 1] = ":devices"
      lines[#lines + 1] = ":jit"
      lines[#lines + 1] = ("%s, saved = saved, nil"):format(name)
      lines[#lines + 1] = ("'%s'"):format(name)
      expected[#expected + 1] = ('2\t{1, "a", x = {}}\n3\ncpu:0  THREADS\nthe JIT is off\n%s\n'):format(name)
    end
    local out, err = pipe(table.concat(lines, "\n"))
    assert.equal(table.concat(expected), (out:gsub("%d+ threads?", "THREADS")))
    for _, message in ipairs {"attempt to index global '_G_table'", "unexpected symbol near '='",
      ":nothing: no such command"} do
      assert.equal(#globals, select(2, err:gsub(message, "")), message)
    end
  end)

  it("outlives what is done to Lua's libraries", function()
    for _, line in ipairs {
      "for _, name in ipairs {'table', 'math', 'io', 'os', 'debug', 'jit', 'coroutine'} do "
        .. "for key in pairs(_G[name]) do _G[name][key] = nil end end",
      "for key in pairs(package.loaded) do package.loaded[key] = nil end",
      "setmetatable(_G, {__index = function(_, k) error(k) end, __newindex = error})",
      "for k in pairs(_G) do _G[k] = nil end",
      "_G = nil", "setfenv(0, {print = print})"} do
      assert.equal("on\n", (pipe(line .. ";\n'on'")), line)
    end
    -- Without these nothing can be understood; but each line is answered.
    for _, line in ipairs {"for key in pairs(string) do string[key] = nil end", "getmetatable('').__index = nil"} do
      local _, err = pipe(line .. "\n1\n1\n")
      assert.is_true(select(2, err:gsub("\nstack traceback", "")) >= 2, err)
    end
  end)

  it("shows what a __tostring returns as print does, and an error where that is no text", function()
    local object = "o = setmetatable({}, {__tostring = function() return %s end})\n"
    prints("5\n{5}\n{[5] = 1}\n", object:format "5" .. "o\n{o}\n{[o] = 1}")
    prints("1\n", object:format "5" .. "#tostring(newproxy(true)) > 0 and 1\n")
    for _, value in ipairs {"nil", "{}", "false"} do
      local out, err = pipe(object:format(value) .. "o\n{o}\n{[o] = 1, [{}] = 2, [print] = 3}\nprint 'on'")
      assert.equal("on\n", out)
      assert.equal(3, select(2, err:gsub("conflux.show: expected a string from the __tostring of a table", "")))
    end
    prints("7\n", "p = newproxy(true) getmetatable(p).__tostring = function() return 7 end\np")
  end)

  it("says that its input cannot be read", function()
    for _, input in ipairs {"<&-", "</"} do
      local out, err, code = shell(("%s --devices cpu -i %s"):format(conflux, input))
      assert.same({"", 1}, {out, code})
      assert.matches("^conflux: cannot read stdin: [^\n]+\n$", err)
    end
    assert.equal(0, (select(3, shell(("%s --devices cpu -i </dev/null"):format(conflux)))))
  end)

  it("names results _, _1, _2, ...", function()
    prints("1\t2\n1\t1\t2\tnil\n7\n7\tnil\n", "1, 2\n_, _1, _2, _3\n7\n_1, _2")
    prints("4\n8\n", "2 * 2;\n_\n_ * 2;\n_")
  end)

  it("shows tensors with their values, and what tables hold", function()
    prints(" 1  1  1\n 1  1  1\n[2x3 float32, cpu:0]\n", "cf.ones(2, 3)")
    prints('{1, 2, "a\\n\\"", [0] = false, x = {y = {z = {...}}}}\n',
      [=[{1, 2, 'a\n"', x = {y = {z = {1}}}, [0] = false}]=])
    prints("{self = <the table around it>}\n{}\n{tensor [2] (float32, cpu:0)}\n",
      "t = {}; t.self = t\nt\n{}\n{cf.ones(2)}")
    assert.is_true(#pipe "cf.zeros(2000, 2000)" < 2000)
    assert.is_true(#pipe "(function() local t = {} for i = 1, 1e5 do t[i] = i end return t end)()" < 2000)
  end)

  it("shows errors at the user's lines, goes on, and ends with 1", function()
    local out, err, code = pipe
      "error 'no'\nx = = 1\n1 + * 2\nf = function()\n  error('deep', 0)\nend\nf()\nprint 'on'"
    assert.equal("on\n", out)
    assert.equal("stdin:1: no\nstack traceback:\n\t[C]: in function 'error'\n\tstdin:1: in main chunk\n"
      .. "stdin:2: unexpected symbol near '='\nstdin:3: unexpected symbol near '*'\n"
      .. "deep\nstack traceback:\n\t[C]: in function 'error'\n\tstdin:5: in function 'f'\n"
      .. "\tstdin:7: in main chunk\n", err)
    assert.equal(1, code)
    out, err = pipe "cf.ones(2) + cf.ones(3)"
    assert.equal("", out)
    assert.matches("^stdin:1: conflux%.add: [^\n]*\nstack traceback:\n\tstdin:1: in main chunk\n$", err)
    err = select(2, pipe "error('no', 2)")
    assert.matches("^no\nstack", err)
    err = select(2, pipe "coroutine.wrap(function() error 'inside' end)()")
    assert.matches("^[^\n]*stdin:1: inside\n", err)
    err = select(2, pipe "setmetatable({}, {__tostring = function() error 'unshown' end})\nerror({})\nerror()")
    assert.matches("^stdin:1: unshown\n.*%(error object is not a string%)\n$", err)
  end)

  it("shows what fails later, at the read, with the line that asked for it", function()
    local out, err, code = pipe "y = cf.ones(3, 2)[cf.tensor({7}, {dtype = 'int64'})] * 2\n1\ny\n2"
    assert.equal("1\n2\n", out)
    assert.equal("conflux.index: id 7 at position 1 is outside 0 to 2 (enqueued at stdin:1)\n", err)
    assert.equal(1, code)
  end)

  it("outlives stack overflow and Lua out of memory", function()
    local out, err = pipe "function f() return 1 + f() end\nf()\nprint 'on'"
    assert.equal("on\n", out)
    assert.matches("^[^\n]*stack overflow\nstack traceback:\n\tstdin:1: in function 'f'\n", err)
    if os.getenv "CONFLUX_BIN" and conflux:find "san" then return end -- a sanitizer needs the address space
    out, err = pipe("t = {} for i = 1, 1e9 do t[i] = ('x'):rep(2^20) .. i end\nt = nil\nprint 'on'",
      "ulimit -v 3000000;")
    assert.equal("on\n", out)
    assert.matches("^not enough memory\n", err) -- there may be no room for a thread, either, which is said behind it
  end)

  it("passes os.exit through", function()
    local _, _, code = pipe "x = cf.rand(500, 500)\nfor i = 1, 100 do x = x:matmul(x) end\nos.exit(3)\nprint 'never'"
    assert.equal(3, code)
    assert.equal(0, (select(3, pipe "os.exit(true)")))
    assert.equal("on\n", (pipe "print 'on'\n:quit\nprint 'never'"))
  end)

  it("runs after the script and -e, whose `cf` it leaves alone, and not after an error", function()
    local input = program.file "y, cf\n"
    local script = program.file "x, cf = ..., 'mine'"
    assert.equal("first\tmine\n",
      (shell(("%s -i -e 'y = \"first\"' %s one <%s"):format(conflux, script, input))))
    local out, err, code = shell(("%s -i -e 'error \"no\"' <%s"):format(conflux, input))
    assert.same({"", 1}, {out, code})
    assert.matches("no", err)
    assert.equal("nil\n", (shell(conflux .. " -e 'print(cf)'")))
    program.clean()
  end)

  it("ends at devices that do not exist", function()
    local out, err, code = shell(conflux .. " --devices nothing -i </dev/null")
    assert.same({"", 1}, {out, code})
    assert.matches("^conflux: [^\n]*device 'nothing' does not exist", err)
  end)

  it("takes a line of a megabyte, zero bytes and what is no UTF-8", function()
    prints("1048576\n", "#'" .. ("x"):rep(2 ^ 20) .. "'")
    prints("\255\195(\n", "'\255\195('")
    prints("3\n", "#'a\0b'")
    assert.equal("unfinished", (select(2, pipe "'\255"):match "unfinished"))
  end)

  it("ends with 1 where nothing can be printed", function()
    local _, err, code = shell(("echo 1 | %s -i >/dev/full"):format(conflux))
    assert.matches("^conflux: cannot write to stdout", err)
    assert.equal(1, code)
  end)

  it("has commands", function()
    local out, err, code = pipe ":devices cpu*3\n:devices"
    assert.matches("^cpu:0  1 thread\ncpu:1  1 thread\ncpu:2  1 thread\n", out)
    assert.equal(out:sub(1, #out / 2), out:sub(#out / 2 + 1))
    assert.same({"", 0}, {err, code})
    assert.matches("^cpu:0  [%d.]+ MiB in use, at most [^\n]*blocks\nLua  [%d.]+ MiB\n$", (pipe ":mem"))
    assert.matches("^[%d.]+ m?u?s, enqueued after [%d.]+ m?u?s\n2 %[float32, cpu:0%]\n$",
      (pipe ":time cf.ones(2):sum()"))
    assert.matches("^[%d.]+ m?u?s, enqueued after [%d.]+ m?u?s\n$", (pipe ":time cf.ones(2):sum();"))
    assert.matches(":time expr", (pipe ":help"), 1, true)
    local path = program.file "print 'loaded'\nx = ..."
    assert.equal("loaded\nnil\n", (pipe((":load %s\nx"):format(path))))
    for line, message in pairs {
      [":load /nowhere"] = "cannot open /nowhere: No such file or directory\n",
      [":time"] = ":time: an expression is missing, as in `:time cf.rand(1000, 1000):sum()`\n",
      [":time 1 +"] = "stdin:1: unexpected symbol near '<eof>'\n",
      [":nothing"] = ":nothing: no such command; there are :devices, :help, :jit, :load, :mem, :quit, :time\n",
    } do
      out, err, code = pipe(line)
      assert.same({"", message, 1}, {out, err, code})
    end
    err = select(2, pipe "x = cf.ones(2)\n:devices cpu*2\nx = cf.ones(2, {device = 'cpu:1'})\n:devices cpu")
    assert.matches("cpu:1", err)
  end)

  it("asks conflux.help about a name", function()
    local stub = "package.loaded['conflux.help'] = nil package.preload['conflux.help'] = function() return {of = "
      .. "function(name) if name == 'cf.x' then return 'an x' end return nil, {'cf.x', 'cf.y'} end} end\n"
    prints("an x\n", stub .. "?cf.x")
    prints("no help for 'z'\nperhaps: cf.x, cf.y\n", stub .. "? z")
    prints("no help for 'z'\n", "package.loaded['conflux.help'] = false package.preload['conflux.help'] = "
      .. "function() error 'none' end\n?z")
  end)
end)

describe("the prompt at a terminal #program", function()
  if not terminal.works() then return pending "no pseudo-terminals" end
  local home, t

  before_each(function()
    home = os.tmpname()
    os.remove(home)
    os.execute("mkdir " .. home)
  end)

  after_each(function()
    if t then t:close() end
    t = nil
    os.execute("rm -rf " .. home)
    program.clean()
  end)

  local function open(settings, arguments)
    if t then t:close() end
    local all = {"-u", "XDG_STATE_HOME", "-u", "NO_COLOR", "-u", "EDITRC", "TERM=xterm", "HOME=" .. home}
    for _, setting in ipairs(settings or {}) do all[#all + 1] = setting end
    local argv = {conflux, "--devices", "cpu"}
    for _, argument in ipairs(arguments or {}) do argv[#argv + 1] = argument end
    t = terminal.open(argv, all)
    t:expect "cpu:0> "
    return t
  end

  -- Whether lines can be edited: not without libedit.
  local edits = select(1, program.run "--info"):find "line editing: libedit" ~= nil
  local function if_edited(name, f)
    it(name, function()
      if not edits then return pending "built without libedit" end
      f()
    end)
  end

  it("greets, names the device, prints values, quits at Ctrl-D and :quit", function()
    open()
    assert.matches("^Conflux %d[^\n]*\ncpu:0  %d+ threads?\n:help explains, Ctrl%-D quits\n$",
      t.screen:match "^(.*)cpu:0> ")
    assert.equal("2\n", t:enter "1 + 1" .. "\n")
    assert.equal(" 1  1  1\n 1  1  1\n[2x3 float32, cpu:0]", t:enter "cf.ones(2, 3)")
    t:type "\4"
    assert.equal(0, t:finish())
    open()
    t:enter "error 'no'"
    t:type ":quit\n"
    assert.equal(0, t:finish())
    open()
    t:type "os.exit(5)\n"
    assert.equal(5, t:finish())
  end)

  it("goes on while any of Lua's globals is missing", function()
    open()
    for _, name in ipairs(globals) do
      t:enter(("saved, %s = %s, nil"):format(name, name))
      t:enter("(", "cpu:0>> ")
      assert.equal("3", t:enter "1 + 2)", name)
      if edits then assert.matches("^function: ", t:enter "(cf.matm\t)", name) end
      t:enter(("%s, saved = saved, nil"):format(name))
    end
  end)

  it("shows that a statement goes on", function()
    open()
    t:enter("function f()", "cpu:0>> ")
    t:enter("  return 3", "cpu:0>> ")
    t:enter "end"
    assert.equal("3", t:enter "f()")
    t:enter("_PROMPT, _PROMPT2 = '$ ', '$$ '", "$ ")
    t:enter("(", "$$ ")
    assert.equal("1", t:enter("1)", "$ "))
  end)

  it("drops a line, and what it went on from, at Ctrl-C", function()
    open()
    t:type "x = 1\3"
    t:expect "cpu:0> "
    t:enter("function f()", "cpu:0>> ")
    t:type "ret\3"
    t:expect "^C\ncpu:0> "
    assert.equal("nil\tnil", t:enter "x, f")
    t:signal(terminal.INT)
    t:expect "cpu:0> "
    assert.equal("4", t:enter "4")
  end)

  it("ends what runs at the first Ctrl-C: any Lua code, a loop of Conflux's calls, a wait", function()
    local path = program.file "print 'begun'\nwhile true do end"
    -- The script's compiled traces are forgotten with the rest.
    open({}, {"-i", program.file [[
      function spin(n) for i = 1, n do end end
      function step() return 1 end
      for _ = 1, 1000 do spin(1000) end]]})
    for _, line in ipairs {
      "print 'begun' while true do end",
      "print 'begun' repeat local x = {step()} until not x[1]",
      "print 'begun' spin(1e15)",
      "print 'begun' for i = 1, 1e15 do spin(3) end",
      "(function() print 'begun' return setmetatable({}, {__tostring = function() spin(1e15) end}) end)()",
      "coroutine.wrap(function() print 'begun' while true do step() end end)()",
      "table.sort({3, 2, 1}, function() print 'begun' spin(1e15) end)",
      "cf.tree.map(function() print 'begun' spin(1e15) end, {cf.ones(2)})",
      ":time (function() print 'begun' spin(1e15) end)()",
      ":load " .. path,
      "print 'begun' while true do cf.ones(3) end",
      "x = cf.rand(1500, 1500) for _ = 1, 40 do x = x:matmul(x):tanh() end print 'begun' x:sum():item()",
    } do
      t:type(line .. "\n")
      t:expect "begun\n"
      t:type "\3"
      assert.matches("interrupted!", t:expect "cpu:0> ", 1, true)
      assert.equal("2", t:enter "1 + 1")
    end
    assert.equal("6 [float32, cpu:0]", t:enter "cf.full(2, 3):sum()")
    t:type "print 'begun' while true do end\n"
    t:expect "begun\n"
    t:type "\3"
    assert.matches("stdin:1: interrupted!\nstack traceback:\n.*stdin:1: in main chunk\n$", t:expect "cpu:0> ")
  end)

  -- Types a line that says "begun" and presses Ctrl-C until the program ends: two that come at once are one signal.
  local function press_until_the_end(line)
    t:type(line .. "\n")
    t:expect "begun\n"
    os.execute "sleep 0.3" -- the code behind it has begun, too
    return t:finish "\3"
  end

  it("ends itself at the second Ctrl-C where a C function does not return", function()
    open()
    assert.equal(128 + terminal.INT,
      press_until_the_end "print 'begun' string.match(('a'):rep(60), ('a*'):rep(30) .. 'b')")
  end)

  it("compiles nothing until :jit on, which warns", function()
    open()
    assert.matches("off", t:enter ":jit", 1, true)
    assert.equal("false", t:enter "(jit.status())")
    assert.matches("Ctrl-C cannot stop a compiled loop", t:enter ":jit on", 1, true)
    assert.equal("true", t:enter "(jit.status())")
    assert.matches("on", t:enter ":jit", 1, true)
    t:enter "function spin() while true do end end"
    t:enter ":jit off"
    t:type "print 'begun' spin()\n"
    t:expect "begun\n"
    t:type "\3"
    assert.matches("interrupted!", t:expect "cpu:0> ", 1, true)
    assert.matches(":jit: expected on or off, got 'maybe'", t:enter ":jit maybe", 1, true)
    t:enter ":jit on"
    assert.equal(128 + terminal.INT, press_until_the_end "print 'begun' spin()")
  end)

  it("shows errors in colour, but not under NO_COLOR", function()
    open()
    t:enter "error 'no'"
    assert.matches("\27[1;31mstdin:1: no\27[0m\r\nstack traceback:\r\n", t.raw, 1, true)
    open {"NO_COLOR=1"}
    t:enter "error 'no'"
    assert.matches("\nstdin:1: no\r\n", t.raw, 1, true)
    assert.is_nil(t.raw:find "\27%[[%d;]*m")
  end)

  it("works where lines cannot be edited", function()
    open {"TERM=dumb"}
    assert.equal("2", t:enter "1 + 1")
    t:type "x = 1\3"
    t:expect "cpu:0> "
    t:enter("(", "cpu:0>> ")
    assert.equal("5", t:enter "5)")
    t:type "\4"
    assert.equal(0, t:finish())
  end)

  it("gives a script's own reads the terminal", function()
    open()
    t:type "print 'reads' x = io.read() print('read ' .. x)\n"
    t:expect "\nreads\n" -- a line typed before would be the editor's
    t:type "some words\n"
    t:expect "read some words\ncpu:0> "
  end)

  if_edited("edits a line", function()
    open()
    t:type "12\1\"\5\"" -- Ctrl-A, Ctrl-E
    assert.equal("12", t:enter "")
    t:type "1 + 9\1\27[C\27[C\27[C\27[C\27[3~2" -- right, delete
    assert.equal("3", t:enter "")
    t:type "nonsense\0214"                -- Ctrl-U
    assert.equal("4", t:enter "")
    t:type "'aé€'\27[D\27[D\127" -- backspace over a character of two bytes
    assert.equal("a€", t:enter "")
  end)

  if_edited("stands bytes that are no UTF-8", function()
    open()
    t:type "#'\195\255'"
    assert.equal("6", t:enter "") -- two replacement characters
    t:type "'x\195\n"
    t:expect "unfinished string"
    t:expect "cpu:0> "
    open {"LC_ALL=C"}
    assert.equal("é", t:enter "'é'")
  end)

  if_edited("takes a long line", function()
    open()
    assert.equal("50000", t:enter("#'" .. ("x"):rep(50000) .. "'"):match "%d+$")
  end)

  if_edited("fits a window whose size changes", function()
    open()
    t:type "12"
    t:expect "12"
    t:resize(60, 20)
    t:expect "cpu:0> 12"
    assert.equal("123", t:enter "3")
  end)

  if_edited("completes names, methods, commands and files", function()
    open()
    local function completes(start, whole, then_)
      t:type(start .. "\t")
      t:expect(whole:sub(#start + 1))
      t:type "\21"
      t:type(then_ or "'done'\n")
      t:expect "done"
      t:expect "cpu:0> "
    end
    completes("collectg", "collectgarbage")
    completes("cf.matm", "cf.matmul")
    completes("x = cf.nn.Embedd", "x = cf.nn.Embedding")
    completes("repe", "repeat")
    completes("('x'):upp", "('x'):upp", "'done'\n") -- the result of a call or a bracket is not known
    completes(":he", ":help ")
    completes("?cf.matm", "?cf.matmul")
    t:enter "x, s = cf.ones(2), 'text'"
    completes("x:softm", "x:softmax")
    completes("x.sha", "x.shape")
    completes("x.device.thr", "x.device.threads")
    completes("s:upp", "s:upper")
    t:enter "m = cf.nn.Chain(cf.nn.Dense(2, 3))"
    completes("m[1].wei", "m[1].weight")
    completes("m[1].weight:softm", "m[1].weight:softmax")
    completes("m[1]:parame", "m[1]:parameters")
    t:enter "base = {inherited = function() end}; o = setmetatable({own = 1}, {__index = base})"
    completes("o:inher", "o:inherited")
    t:enter "ffi = require 'ffi' ffi.cdef 'typedef struct { int a; } repl_point;'"
    t:enter "p = ffi.metatype('repl_point', {__index = {distance = function() end}})()"
    completes("p:dist", "p:distance")
    os.execute("mkdir " .. home .. "/directory")
    completes("io.open('" .. home .. "/direc", "io.open('" .. home .. "/directory/")
    completes("io.open('~/direc", "io.open('~/directory/")
    completes(":load " .. home .. "/direc", ":load " .. home .. "/directory/")
  end)

  if_edited("shows what a tab could mean", function()
    open()
    t:enter "x = {first = 1, fist = 2, second = 3, method = function() end}"
    t:type "x.fi\t"
    t:expect "\nfirst  fist\n"
    t:expect "cpu:0> x.fi"
    t:type "s\t"
    t:expect "t"
    assert.equal("2", t:enter "")
    t:type "x:\t"
    t:expect "method"
    t:type "\021\t\t1" -- at the beginning a tab is space
    assert.equal("1", t:enter "")
    t:type "setmetatable({}, {__index = function() error 'never' end})."
    t:type "\t" -- a bell
    t:type "\21"
    assert.equal("4", t:enter "4")
  end)

  if_edited("keeps a history between runs, several lines as one", function()
    open()
    t:enter "a = 'first'"
    t:enter("function f()", "cpu:0>> ")
    t:enter "  return 7 end"
    t:enter ":mem"
    t:enter "error 'no'"
    t:type "dropped\3"
    t:expect "cpu:0> "
    t:type "\4"
    assert.equal(0, t:finish())
    assert.equal("a = 'first'\nfunction f()\\n  return 7 end\n:mem\nerror 'no'\n",
      program.slurp(home .. "/.conflux_history"))
    assert.equal("600\n", (shell("stat -c %a " .. home .. "/.conflux_history")))

    open()
    t:type "\27[A\27[A\27[A"
    t:expect "function f()"
    t:expect "return 7 end"
    t:type "\n"
    t:expect "cpu:0> "
    assert.equal("7", t:enter "f()")
    t:type "\18first" -- Ctrl-R
    t:expect "a = 'first'"
    t:type "\n"
    t:expect "cpu:0> "
    assert.equal("first", t:enter "a")
  end)

  if_edited("keeps the history where XDG has it, and its size within bounds", function()
    local path = home .. "/state/conflux/history"
    open {"XDG_STATE_HOME=" .. home .. "/state"}
    t:enter "1"
    t:type "\4"
    t:finish()
    assert.equal("1\n", program.slurp(path))

    local file = assert(io.open(path, "w"))
    for i = 1, 5000 do file:write("entry", i, "\n") end
    file:write "broken \255\nunfinished"
    file:close()
    open {"XDG_STATE_HOME=" .. home .. "/state"}
    t:type "\27[A"
    t:expect "unfinished"
    t:type "\21"
    t:enter "2"
    t:type "\4"
    t:finish()
    local text = program.slurp(path)
    assert.equal(1000, select(2, text:gsub("\n", "")))
    assert.matches("^entry4004\n.*\nentry5000\nbroken \255\nunfinished\n2\n$", text)

    file = assert(io.open(path, "w"))
    for i = 1, 100 do file:write(("x"):rep(10000), i, "\n") end
    file:close()
    open {"XDG_STATE_HOME=" .. home .. "/state"}
    t:enter "3"
    t:enter("#'" .. ("y"):rep(20000) .. "'")
    t:type "\4"
    t:finish()
    text = program.slurp(path)
    assert.is_true(#text <= 256 * 1024)
    assert.matches("x100\n3\n$", text)
  end)

  if_edited("keeps what two of them enter", function()
    open()
    local first = t
    t = nil
    open()
    first:enter "'from the first'"
    t:enter "'from the second'"
    first:enter "'again'"
    first:close()
    assert.equal("'from the first'\n'from the second'\n'again'\n", program.slurp(home .. "/.conflux_history"))
  end)

  if_edited("has no history without HOME, and says where it cannot be kept", function()
    open {"HOME="}
    assert.equal("1", t:enter "1")
    os.execute(("mkdir %s/.conflux_history"):format(home))
    open()
    t.at = 1
    t:expect "conflux: the history is not kept: "
    t:expect "Is a directory"
    t:expect "cpu:0> "
    assert.equal("1", t:enter "1")
  end)

  if_edited("starts where the history, or the file of keys, is a FIFO that nobody writes", function()
    os.execute(("mkfifo %s/.conflux_history %s/.editrc"):format(home, home))
    t = terminal.open({conflux, "--devices", "cpu"},
      {"-u", "XDG_STATE_HOME", "-u", "EDITRC", "TERM=xterm", "HOME=" .. home})
    t:expect "conflux: the history is not kept: "
    t:expect "it is no regular file"
    t:expect "cpu:0> "
    assert.equal("1", t:enter "1")
  end)

  it("counts the lines of each text from 1", function()
    open()
    t:enter "1"
    assert.matches("stdin:1: no\n", t:enter "error 'no'", 1, true)
  end)

  if_edited("stops at Ctrl-Z and goes on", function()
    if not program.has "bash" then return pending "bash is not installed" end
    t = terminal.open({"bash", "--norc", "--noediting", "-i"}, {"PS1=shell$ ", "TERM=xterm", "HOME=" .. home})
    t:expect "shell$ "
    t:type(conflux .. " --devices cpu\n")
    t:expect "cpu:0> "
    t:type "'half"
    t:expect "'half"
    t:type "\26"
    t:expect "Stopped"
    t:expect "shell$ "
    t:type "fg\n"
    t:expect "cpu:0> 'half"
    assert.equal("half done", t:enter " done'")
    t:type "\4"
    t:expect "shell$ "
    t:type "exit 3\n"
    assert.equal(3, t:finish())
  end)

  it("comes after a script with -i", function()
    local script = program.file "x = ... print 'ran'"
    open({}, {"-i", script, "argument"})
    assert.matches("ran\n", t.screen, 1, true)
    assert.equal("argument", t:enter "x")
  end)

  it("leaves a script from stdin to `-`", function()
    t = terminal.open({conflux, "-"}, {"TERM=xterm"})
    t:type "print 'a script'\n\4"
    t:expect "a script\n"
    assert.equal(0, t:finish())
    assert.is_nil(t.screen:find("> ", 1, true))
  end)

  it("ends as the terminal goes", function()
    open()
    t:hang_up()
    assert.is_true(t:finish() ~= nil)
  end)
end)
