-- The launcher, conflux-run: several processes, their output, signals and end.
local program  = require "tests.spec.program"
local terminal = require "tests.spec.terminal"
local quote, shell = program.quote, program.shell

local run = program.conflux .. "-run"

-- A directory for what ranks tell by files.
local place = os.tmpname()

-- Runs the launcher: stdout, stderr, exit code.  `text` is a script for sh in each rank, with $P the directory.
local function ranks(options, text, before)
  return shell(("%s P=%s %s %s -- sh -c %s </dev/null"):format(before or "", place, run, options, quote(text)))
end

local function lines_of(text)
  local list = {}
  for line in text:gmatch "[^\n]*\n" do list[#list + 1] = line:sub(1, -2) end
  return list
end

local function sorted(text)
  local list = lines_of(text)
  table.sort(list)
  return list
end

-- Waits in a shell until a file of the directory is there; a part of a script for ranks.
local function wait_for(name) return ("until [ -e $P/%s ]; do sleep 0.01; done; "):format(name) end

-- Removes what ranks have written, but for those that are begun first.
local function clear() os.execute(("cd %s && rm -f $(ls | grep -vxE 'code|out|err|deaf')"):format(place)) end

local function touch(name) assert(io.open(place .. "/" .. name, "w")):close() end

-- Whether a process runs: it is there, and no zombie whose parent has yet to hear of it.
local function is_alive(pid)
  local file = io.open(("/proc/%s/stat"):format(pid))
  if not file then return false end
  local state = file:read "*a":match ".*%) (%a)"
  file:close()
  return state ~= nil and state ~= "Z" and state ~= "X"
end

-- Waits until f() holds.
local function eventually(f, what)
  local deadline = os.time() + 60
  while not f() do
    assert(os.time() < deadline, what)
    os.execute "sleep 0.01"
  end
end

-- The number in a file of the directory, once it is there.
local function number_in(name)
  local text
  eventually(function()
    local path = place .. "/" .. name
    text = program.exists(path) and program.slurp(path):match "^(%d+)\n"
    return text
  end, name)
  return tonumber(text)
end

-- The cores of a list such as "0-2,5".
local function cores_in(list)
  local set, n = {}, 0
  for from, to in (list:gsub("%f[%d](%d+)%f[^%d-]", "%1-%1")):gmatch "(%d+)%-(%d+)" do
    for core = tonumber(from), tonumber(to) do
      if not set[core] then n = n + 1 end
      set[core] = true
    end
  end
  return set, n
end

describe("conflux-run #program", function()

  setup(function()
    os.remove(place)
    os.execute("mkdir " .. place)
    local text = "if [ $CONFLUX_RANK = 1 ]; then " .. wait_for "deaf" .. "exit 3; fi; trap '' TERM; >$P/deaf; "
      .. "while true; do sleep 0.05; done"
    os.execute(("{ P=%s %s -n 2 --grace 0 -- sh -c %s; echo $? >%s/code; } >%s/out 2>%s/err &"):format(place, run,
      quote(text), place, place, place))
  end)
  teardown(function()
    program.clean()
    os.execute("rm -rf " .. place)
  end)
  local t
  after_each(function()
    if t then t:close() end
    t = nil
    clear()
  end)

  -- ---- what ranks see -------------------------------------------------------------------------------------------

  it("tells each rank its number, and leaves other launchers' variables alone", function()
    local out, err, code = ranks("-n 3", [[echo $CONFLUX_RANK $CONFLUX_WORLD_SIZE $CONFLUX_LOCAL_RANK \
      $CONFLUX_LOCAL_SIZE ${CONFLUX_DEVICES-none} $OMPI_COMM_WORLD_RANK $SLURM_PROCID ${CONFLUX_TERMINAL-none}]],
      "OMPI_COMM_WORLD_RANK=7 SLURM_PROCID=8 CONFLUX_TERMINAL=stdout=1; export OMPI_COMM_WORLD_RANK SLURM_PROCID "
        .. "CONFLUX_TERMINAL; unset CONFLUX_DEVICES;")
    assert.same({"[0] 0 3 0 3 none 7 8 none", "[1] 1 3 1 3 none 7 8 none", "[2] 2 3 2 3 none 7 8 none"}, sorted(out))
    assert.same({"", 0}, {err, code})
    assert.equal("[0] cpu*2\n", (ranks("--nproc=1 --devices 'cpu*2'", "echo $CONFLUX_DEVICES")))
  end)

  it("runs a script by the conflux beside it, with its arguments", function()
    local path = program.file "print(arg[0], ...) io.stderr:write(require('conflux').device('cpu').name, '\\n')"
    local out, err, code = shell(("cd / && %s -n 2 --devices cpu %s a -n 'b c'"):format(
      (shell("realpath " .. run):gsub("\n", "")), path))
    assert.same({"[0] " .. path .. "\ta\t-n\tb c", "[1] " .. path .. "\ta\t-n\tb c"}, sorted(out))
    assert.same({"[0] cpu:0", "[1] cpu:0"}, sorted(err))
    assert.equal(0, code)
  end)

  local allowed = "sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status"

  it("shares its cores out evenly", function()
    local all, cores = cores_in((shell(allowed)))
    local n = math.min(cores, 3)
    local seen, most, least = {}, 0, math.huge
    for _, line in ipairs(lines_of((ranks("-n " .. n, allowed)))) do
      local own, count = cores_in(line:match "%] (.*)")
      most, least = math.max(most, count), math.min(least, count)
      for core in pairs(own) do
        assert.is_nil(seen[core])
        seen[core] = true
      end
    end
    assert.same(all, seen)
    assert.is_true(most - least <= 1)
  end)

  it("lets ranks that are more than cores share all, with a thread each", function()
    local list = shell(allowed)
    local _, cores = cores_in(list)
    local ask = allowed .. " | tr '\\n' ' '; echo ${CONFLUX_NUM_THREADS-none}"
    local told = lines_of((ranks("-n " .. cores + 1, ask, "unset CONFLUX_NUM_THREADS;")))
    assert.equal(cores + 1, #told)
    for _, line in ipairs(told) do assert.equal(list:gsub("\n", "") .. " 1", line:match "%] (.*)") end
    assert.equal("[0] 5\n", (ranks("-n " .. cores + 1, "[ $CONFLUX_RANK != 0 ] || echo $CONFLUX_NUM_THREADS",
      "export CONFLUX_NUM_THREADS=5;")))
  end)

  it("starts ranks with the signals and descriptors that it was given", function()
    local ask = "grep -E 'Sig(Blk|Ign)' /proc/self/status; ls /proc/self/fd | wc -l; ulimit -n"
    for _, before in ipairs {"", "trap '' HUP USR1 PIPE;"} do
      local plain = shell(("%s sh -c %s </dev/null | cat"):format(before, quote(ask)))
      assert.equal(plain, (ranks("-n 1", ask, before):gsub("%[0%] ", "")))
    end
  end)

  it("runs 64 ranks, whatever the cores", function()
    local out, err, code = ranks("-n 64", "echo $CONFLUX_RANK of $CONFLUX_WORLD_SIZE; echo this too >&2")
    local seen = {}
    for r in out:gmatch "%f[^\n%z]%[(%d+)%] %1 of 64\n" do seen[tonumber(r)] = true end
    for r = 0, 63 do assert.is_true(seen[r], r) end
    assert.same({64, 64, 0}, {#lines_of(out), #lines_of(err), code})
  end)

  -- ---- output ---------------------------------------------------------------------------------------------------

  -- Checks that each of four ranks has written 10,000 lines, whole and in order.
  local chatter = [[local rank = os.getenv "CONFLUX_RANK"
    for k = 1, 10000 do print(("rank %s says %06d, and that is all there is"):format(rank, k)) end]]
  local function check_chatter(out, err, code)
    local at = {}
    for _, line in ipairs(lines_of(out)) do
      local r, again, k = line:match "^%[(%d)%] rank (%d) says (%d%d%d%d%d%d), and that is all there is$"
      assert(r and r == again and tonumber(k) == (at[r] or 0) + 1, line)
      at[r] = tonumber(k)
    end
    assert.same({["0"] = 10000, ["1"] = 10000, ["2"] = 10000, ["3"] = 10000}, at)
    assert.same({"", 0}, {err, code})
  end

  it("tears no line of four ranks with 10,000 each, and keeps their order", function()
    check_chatter(shell(("%s -n 4 %s"):format(run, program.file(chatter))))
  end)

  it("tears none where the reader is slow, and the ranks wait for it", function()
    check_chatter(shell(("%s -n 4 %s | { sleep 0.4; cat; }"):format(run, program.file(chatter))))
  end)

  it("passes on a line of any length, and all bytes of what is no text", function()
    local long = ("x"):rep(300000)
    assert.equal("[0] " .. long .. "\n", (ranks("-n 1", "head -c 300000 /dev/zero | tr '\\0' x")))
    shell(("head -c 300000 /dev/urandom >%s/noise"):format(place))
    ranks("-n 2 --output " .. place, "cat $P/noise; [ $CONFLUX_RANK = 0 ] || cat $P/noise >&2")
    for _, name in ipairs {"rank-0.out", "rank-1.out", "rank-1.err"} do
      assert.equal(0, os.execute(("cmp %s/noise %s/%s"):format(place, place, name)))
    end
  end)

  it("shows what a rank has written before it is killed", function()
    local path = program.file [[
      local ffi = require "ffi"
      ffi.cdef "int kill(int pid, int signal); int getpid(void);"
      if os.getenv "CONFLUX_RANK" == "1" then
        print "last line"
        ffi.C.kill(ffi.C.getpid(), 9)
      end]]
    local out, err, code = shell(("%s -n 2 --devices cpu %s"):format(run, path))
    assert.same({"[1] last line\n", 137}, {out, code})
    assert.matches("^conflux%-run: rank 1 of 2 %(pid %d+%) ended by signal 9 %(Killed%)\n$", err)
  end)

  it("ends ranks whose reader is gone, as a pipe would", function()
    local out, err, code = shell(("{ { %s -n 2 -- yes; } 3>&-; echo $? >%s/left; } | head -n 1"):format(run, place))
    assert.same({"y", 0}, {out:match "^%[%d%] (y)\n$", code})
    assert.matches("^conflux%-run: cannot write to stdout: Broken pipe\n", err)
    assert.equal(128 + 13, number_in "left")
  end)

  it("says that output was lost, and fails", function()
    for redirection, why in pairs {[">/dev/full"] = "No space left on device", [">&-"] = "Bad file descriptor"} do
      local _, err, code = shell(("%s -n 2 -- sh -c 'echo lost; touch %s/done-$CONFLUX_RANK' %s"):format(run, place,
        redirection))
      assert.same({("conflux-run: cannot write to stdout: %s\n"):format(why), 1}, {err, code})
      for r = 0, 1 do assert.equal(0, os.execute(("rm %s/done-%d"):format(place, r))) end -- they went on
    end
  end)

  it("writes each rank's output to files, and shows rank 0's", function()
    local directory = place .. "/made/by it"
    for turn = 1, 2 do
      local out, err, code = ranks(("-n 2 --output %s"):format(quote(directory)),
        ("printf 'out %d\\n\\rpart'; echo err >&2"):format(turn))
      assert.same({"[0] out " .. turn .. "\n\r[0] part\n", "[0] err\n", 0}, {out, err, code})
      for r = 0, 1 do
        assert.equal("out " .. turn .. "\n\rpart", program.slurp(("%s/rank-%d.out"):format(directory, r)))
        assert.equal("err\n", program.slurp(("%s/rank-%d.err"):format(directory, r)))
      end
    end
    os.execute(("rm -r %s/made"):format(place))
    local _, err, code = ranks("-n 2 --output /dev/null/logs", "true")
    assert.same({"conflux-run: --output: cannot make the directory '/dev/null/logs': Not a directory\n", 1},
      {err, code})
  end)

  -- ---- input ----------------------------------------------------------------------------------------------------

  it("gives its stdin to rank 0, and its end; others read nothing", function()
    local out, err, code = shell(("seq 100000 | %s -n 2 -- sh -c 'echo $CONFLUX_RANK $(wc -l)'"):format(run))
    assert.same({"[0] 0 100000", "[1] 1 0"}, sorted(out))
    assert.same({"", 0}, {err, code})
    assert.same({"", "", 0}, {shell(("seq 100000 | %s -n 2 -- true"):format(run))}) -- nobody reads it
    out, err, code = shell(("%s -n 2 -- cat <&-"):format(run))
    assert.same({"", "", 0}, {out, err, code})
  end)

  -- ---- a terminal -----------------------------------------------------------------------------------------------

  -- Starts ranks at a terminal.
  local function at_terminal(options, text)
    local argv = {run}
    for word in options:gmatch "%S+" do argv[#argv + 1] = word end
    for _, word in ipairs {"--", "sh", "-c", text} do argv[#argv + 1] = word end
    t = terminal.open(argv, {"P=" .. place})
    return t
  end
  local function at_a_terminal(name, f)
    it(name, function()
      if not terminal.works() then return pending "no pseudo-terminal" end
      f()
    end)
  end

  at_a_terminal("shows a part of a line, and ends it where another rank's comes", function()
    at_terminal("-n 2", "if [ $CONFLUX_RANK = 0 ]; then printf part; " .. wait_for "second" .. "echo ' and rest'; else "
      .. wait_for "first" .. "echo line; fi")
    assert.equal("", t:expect "[0] part")
    touch "first"
    assert.equal("", t:expect "\n[1] line\n")
    touch "second"
    assert.equal("", t:expect "[0]  and rest\n")
    assert.equal(0, t:finish())
  end)

  at_a_terminal("gives rank 0 what is typed, and the end of it", function()
    at_terminal("-n 2", "while read line; do echo got $line; done; echo end")
    t:expect "[1] end"
    t:type "hello\n"
    t:expect "[0] got hello"
    t:type "\4"
    t:expect "[0] end"
    assert.equal(0, t:finish())
  end)

  at_a_terminal("tells rank 0 of the terminal behind its pipes, and no other", function()
    at_terminal("-n 2", [[for k in 0 1 2; do readlink /proc/$$/fd/$k; done; echo ${CONFLUX_TERMINAL-none}]])
    assert.equal(0, t:finish())
    local told = {"stdin=%d", "stdout=%d", "stderr=%d", "columns=120"}
    local number = t.screen:gmatch "%[0%] pipe:%[(%d+)%]"
    for k = 1, 3 do told[k] = told[k]:format(number()) end
    assert.matches(("[0] %s\n"):format(table.concat(told, ",")), t.screen, 1, true)
    assert.matches("[1] none\n", t.screen, 1, true)
  end)

  at_a_terminal("lets rank 0 draw its bar, and no other; NO_COLOR is stronger", function()
    local path = program.file [[
      local bar = require("conflux").progress(4, {label = os.getenv "CONFLUX_RANK"})
      for _ = 1, 4 do bar:update(1) end
      bar:finish()]]
    local function drawn(settings)
      t = terminal.open({run, "-n", "2", "--devices", "cpu", path}, settings)
      assert.equal(0, t:finish())
      return t.raw
    end
    local raw = drawn {"-u", "NO_COLOR"}
    assert.matches("\r[0] 0 [\27[32m====", raw, 1, true)
    assert.is_nil(raw:find("[1] ", 1, true))
    raw = drawn {"NO_COLOR=1"}
    assert.matches("\r[0] 0 [====", raw, 1, true)
    assert.is_nil(raw:find "\27%[32m")
  end)

  at_a_terminal("lets rank 0 show errors in colour, but not in a file", function()
    local path = program.file "os.execute(arg[1]) error 'no'"
    local inner = ("%s -e 'error \"inner\"' 2>%s/inner"):format(program.conflux, place)
    t = terminal.open({run, "-n", "1", "--devices", "cpu", path, inner}, {"-u", "NO_COLOR", "TERM=xterm"})
    assert.equal(1, t:finish())
    assert.matches("\27[1;31mconflux:\27[0m ", t.raw, 1, true)
    assert.matches("^conflux: ", program.slurp(place .. "/inner"))
  end)

  at_a_terminal("passes Ctrl-C on once, and once more; the third kills", function()
    at_terminal("-n 2", "trap 'echo caught $CONFLUX_RANK' INT; echo ready; while true; do sleep 0.05; done")
    for _ = 1, 2 do t:expect "ready\n" end
    for _ = 1, 2 do
      t:type "\3"
      local between = t:expect "caught" .. t:expect "caught"
      assert.is_nil(between:find "signal")
    end
    t:type "\3"
    assert.equal(128 + 9, t:finish())
    assert.equal(2, select(2, t.screen:gsub("caught 0", "")))
    assert.equal(2, select(2, t.screen:gsub("caught 1", "")))
  end)

  at_a_terminal("ends scripts at Ctrl-C with their own exit code", function()
    local path = program.file "jit.off(true) print 'ready' while true do end"
    t = terminal.open {run, "-n", "2", "--devices", "cpu", path}
    for _ = 1, 2 do t:expect "ready\n" end
    t:type "\3"
    assert.equal(128 + 2, t:finish())
  end)

  -- ---- signals --------------------------------------------------------------------------------------------------

  -- Starts ranks in the background, with output to `said` and the exit code to `left`; each writes its process id to
  -- its number and waits.  Returns the ids of the launcher and of the ranks.
  local function begin(n, options, text)
    local command = ("P=%s %s -n %d %s -- sh -c %s </dev/null"):format(place, run, n, options,
      quote((text or "") .. "echo $$ >$P/$CONFLUX_RANK; while true; do sleep 0.05; done"))
    -- a shell that waits ignores interrupts for what it has put in the background, and nohup hang-ups: these begin as
    -- at a terminal
    os.execute(([[{ env --default-signal=INT,QUIT,HUP %s & echo $! >%s/launcher; wait $!; echo $? >%s/left
      } >%s/said 2>&1 &]]):format(command, place, place, place))
    local pids = {}
    for r = 0, n - 1 do pids[r] = number_in(r) end
    return number_in "launcher", pids
  end

  local function said() return program.slurp(place .. "/said") end
  local function kill(signal, pid) assert.equal(0, os.execute(("kill -%s %d"):format(signal, pid))) end

  it("passes signals on", function()
    local launcher = begin(2, "", "trap 'echo usr1' USR1; trap 'echo term; exit 5' TERM; ")
    kill("USR1", launcher)
    eventually(function() return select(2, said():gsub("usr1", "")) == 2 end, "usr1")
    kill("TERM", launcher)
    assert.equal(5, number_in "left")
    assert.equal(2, select(2, said():gsub("term", "")))
    assert.matches("conflux%-run: rank %d of 2 %(pid %d+%) exited with 5\n", said())
  end)

  it("ends ranks by the signal that it gets", function()
    for signal, number in pairs {TERM = 15, HUP = 1, QUIT = 3} do
      local launcher, pids = begin(2, "", "ulimit -c 0; ")
      kill(signal, launcher)
      assert.equal(128 + number, number_in "left")
      for r = 0, 1 do assert.is_false(is_alive(pids[r])) end
      clear()
    end
  end)

  local function state(pid) return program.slurp(("/proc/%d/stat"):format(pid)):match ".*%) (%a)" end

  it("stops with its ranks, and continues them", function()
    local launcher, pids = begin(2, "")
    for _ = 1, 2 do
      kill("TSTP", launcher)
      for _, pid in ipairs {launcher, pids[0], pids[1]} do
        eventually(function() return state(pid) == "T" end, "stop")
      end
      kill("CONT", launcher)
      for _, pid in ipairs {launcher, pids[0], pids[1]} do
        eventually(function() return state(pid) ~= "T" end, "go on")
      end
    end
    kill("TERM", launcher)
    number_in "left"
    assert.is_nil(said():find "stopped")
  end)

  it("tells at once of a rank that is stopped", function()
    local launcher, pids = begin(2, "")
    kill("STOP", pids[1])
    local text = ("conflux-run: rank 1 (pid %d) is stopped\n"):format(pids[1])
    eventually(function() return said() == text end, "stopped")
    kill("CONT", pids[1])
    text = text .. ("conflux-run: rank 1 (pid %d) goes on\n"):format(pids[1])
    eventually(function() return said() == text end, "goes on")
    kill("TERM", launcher)
    number_in "left"
  end)

  -- ---- the end --------------------------------------------------------------------------------------------------

  it("ends with 0 where all do", function()
    assert.same({"", "", 0}, {ranks("-n 3", "true")})
  end)

  it("ends with the first failure, which it tells; others have their time", function()
    -- a process can be sent signals until the launcher has taken note of its end
    local out, err, code = ranks("-n 4", "if [ $CONFLUX_RANK = 2 ]; then echo $$ >$P/id; mv $P/id $P/failed; exit 3; fi"
      .. "; " .. wait_for "failed" .. "while kill -0 $(cat $P/failed) 2>&-; do sleep 0.01; done; echo mine; exit 4")
    assert.equal(3, code)
    assert.matches("^conflux%-run: rank 2 of 4 %(pid %d+%) exited with 3\n$", err)
    assert.same({"[0] mine", "[1] mine", "[3] mine"}, sorted(out))
  end)

  it("tells of the signal that ended a rank", function()
    local launcher, pids = begin(2, "--grace 0")
    kill("KILL", pids[1])
    assert.equal(128 + 9, number_in "left")
    assert.equal(("conflux-run: rank 1 of 2 (pid %d) ended by signal 9 (Killed)\n"):format(pids[1])
      .. "conflux-run: still running: 1 of 2; sending SIGTERM\n", said())
    assert.is_false(is_alive(pids[0]) or is_alive(launcher))
  end)

  it("ends the others after the grace period, and a stopped one, too", function()
    local _, pids = begin(3, "--grace 0.1")
    kill("STOP", pids[2])
    eventually(function() return said():find "stopped" end, "stopped")
    kill("KILL", pids[0])
    assert.equal(128 + 9, number_in "left")
    for r = 0, 2 do assert.is_false(is_alive(pids[r])) end
  end)

  it("leaves no rank where it is killed itself", function()
    local launcher, pids = begin(3, "")
    kill("KILL", launcher)
    for r = 0, 2 do eventually(function() return not is_alive(pids[r]) end, "rank " .. r) end
  end)

  it("leaves nothing that ranks have left behind", function()
    local out, err, code = ranks("-n 2", "sleep 1000 >&- 2>&- & echo $!; sleep 1000 & echo $!")
    local n = 0
    for pid in out:gmatch "%] (%d+)\n" do
      n = n + 1
      assert.is_false(is_alive(pid))
    end
    assert.same({4, "", 0}, {n, err, code})
  end)

  it("is one error where a program cannot be executed", function()
    local path = program.file "#!/no/such/interpreter\n"
    for name, case in pairs {
      ["/no/such program"] = {"No such file or directory", 127},
      ["no-such-program"] = {"No such file or directory", 127},
      ["/etc/passwd"] = {"Permission denied", 126}, ["/"] = {"Permission denied", 126},
    } do
      local out, err, code = shell(("%s -n 3 -- %s"):format(run, quote(name)))
      assert.same({"", ("conflux-run: cannot execute '%s': %s\n"):format(name, case[1]), case[2]},
        {out, err, code})
    end
    local out, err, code = shell(("%s -n 3 %s"):format(run, path .. ".lua"))
    assert.same({"", ("conflux-run: cannot open the script '%s.lua': No such file or directory\n"):format(path), 1},
      {out, err, code})
  end)

  it("refuses a command line that makes no sense", function()
    local too_many = "-n: expected a number of ranks from 1 to 1000000, got '%s'"
    for line, why in pairs {
      [""] = "option '-n' is missing: how many ranks are to be started", ["x.lua"] = "option '-n' is missing",
      ["-n"] = "option '-n' needs a value", ["-n 0 x"] = too_many:format "0", ["-n -2 x"] = too_many:format "-2",
      ["-n two x"] = too_many:format "two", ["-n 2.5 x"] = too_many:format "2.5",
      ["-n 99999999999999999999 x"] = too_many:format "99999999999999999999", ["-n '' x"] = too_many:format "",
      ["-n 2"] = "there is no script to run", ["-n 2 --"] = "there is no program to run",
      ["-n 2 --frob x"] = "unknown option '--frob'", ["-n 2 --grace soon x"] = "--grace: expected seconds",
      ["-n 2 --grace -1 x"] = "--grace: expected seconds", ["-n 2 --grace nan x"] = "--grace: expected seconds",
      ["-n 2 -"] = "a script is a file here",
    } do
      local out, err, code = shell(run .. " " .. line)
      assert.same({"", 1}, {out, code}, line)
      assert.equal("conflux-run: " .. why, err:sub(1, 13 + #why), line)
      assert.matches("\nTry 'conflux%-run %-%-help'.\n$", err)
    end
  end)

  it("says how many descriptors many ranks take, and ends what it has started where there are none", function()
    local out, err, code = ranks("-n 200", "true", "ulimit -n 64;")
    assert.same({"", 1}, {out, code})
    assert.matches("^conflux%-run: %-n 200: that many ranks take 822 descriptors, and this process may have 64 ", err)
    -- a program that has others open when it becomes the launcher
    local holder = program.file(("local f = {} for i = 1, 30 do f[i] = assert(io.open '/dev/null') end "
      .. "local ffi = require 'ffi' ffi.cdef [[int fcntl(int, int, ...); int fileno(void *); "
      .. "int execvp(const char *, const char *const *);]] "
      .. "for i = 1, 30 do ffi.C.fcntl(ffi.C.fileno(f[i]), 2, ffi.cast('int', 0)) end "
      .. "local words = ffi.new('const char *[?]', #arg + 1) for i = 1, #arg do words[i - 1] = arg[i] end "
      .. "ffi.C.execvp(arg[1], words)"))
    out, err, code = shell(("ulimit -n 64; %s %s %s -n 10 -- sh -c 'echo $$ >%s/$CONFLUX_RANK; sleep 1000'"):format(
      program.conflux, holder, run, place))
    assert.same({"", 1}, {out, code})
    assert.matches("^conflux%-run: cannot start rank %d+ of 10: Too many open files\n$", err)
    for r = 0, 9 do
      local path = place .. "/" .. r
      local pid = program.exists(path) and program.slurp(path):match "%d+"
      if pid then assert.is_false(is_alive(pid)) end
    end
  end)

  it("shows its options and its version", function()
    local out, err, code = shell(run .. " --help")
    assert.matches("^usage: conflux%-run %-n N %[options%]... script %[args%]...\n", out)
    assert.same({"", 0}, {err, code})
    for _, option in ipairs {"-n", "--nproc", "--devices", "--output", "--grace", "--version", "--help", "--"} do
      assert.is_truthy(out:find("[ ,]" .. option:gsub("%-", "%%-") .. "[ ,]"), option)
    end
    out, err, code = shell(run .. " --version")
    assert.equal("conflux-run " .. require "conflux".version, out:match "^%S+ %S+")
    assert.same({"", 0}, {err, code})
    out, err, code = shell(run .. " --help >/dev/full")
    assert.same({"", "conflux-run: cannot write to stdout: No space left on device\n", 1}, {out, err, code})
  end)

  it("kills a rank that does not end when it is told to", function()
    assert.equal(3, number_in "code")
    assert.matches("^conflux%-run: rank 1 of 2 %(pid %d+%) exited with 3\n"
      .. "conflux%-run: still running: 1 of 2; sending SIGTERM\n"
      .. "conflux%-run: still running: 1 of 2; sending SIGKILL\n$", program.slurp(place .. "/err"))
  end)
end)
