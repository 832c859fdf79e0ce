-- What happens to the ranks of a world when one of them dies, stops, leaves, or does something else than the others.
-- Each case ends by what happens: ranks wait for files that others, or the test, make in a directory of their own.
local program = require "tests.spec.program"
local quote = program.quote

local run = program.conflux .. "-run"
local place = os.tmpname()

-- What each script begins with.
local HEAD = [[
local place = arg[1]
local ffi = require "ffi"
ffi.cdef "int getpid(void); int kill(int pid, int signal); int usleep(unsigned time);"
local rank, size = tonumber(os.getenv "CONFLUX_RANK"), tonumber(os.getenv "CONFLUX_WORLD_SIZE")
local me = ffi.C.getpid()
local function tell(name)
  local path = place .. "/" .. name
  local file = assert(io.open(path .. ".new", "w"))
  file:write(me, "\n")
  file:close()
  os.rename(path .. ".new", path)
end
local function wait_for(name)
  while true do
    local file = io.open(place .. "/" .. name)
    if file then return file:close() end
    ffi.C.usleep(5000)
  end
end
local function wait_for_others(name)
  for r = 0, size - 1 do if r ~= rank then wait_for(name .. r) end end
end
local function die() ffi.C.kill(me, 9) end
tell("pid" .. rank)
local cf = require "conflux"
local function init(timeout) cf.dist.init {timeout = timeout} end
-- A step of training, whose rate is 1: what the parameters are after k of them is known.
local p = cf.zeros(5000)
local state = cf.optim.Descent(1):setup(p)
local function step(before)
  local g = cf.full(-1 - rank, 5000)
  cf.allreduce("+", {g})
  if before then before() end
  cf.optim.update(state, p, g)
  return p[1]:item()
end
-- Steps until a collective fails: prints why, and what the parameters are then.
local function survive(before)
  local ok, why
  repeat ok, why = pcall(step, before) until not ok
  print("why " .. tostring(why))
  print("sum " .. ("%.17g"):format(p:sum():item()))
end
]]

-- Each step adds up the ranks' numbers.
local function sum_after(steps, n) return ("%.17g"):format(5000 * steps * n * (n + 1) / 2) end

local function clear() os.execute(("cd %s && rm -f *"):format(place)) end

local function is_alive(pid)
  local file = io.open(("/proc/%s/stat"):format(pid))
  if not file then return false end
  local state = file:read "*a":match ".*%) (%a)"
  file:close()
  return state ~= nil and state ~= "Z" and state ~= "X"
end

local function eventually(f, what)
  local deadline = os.time() + 100
  while not f() do
    assert(os.time() < deadline, what)
    os.execute "sleep 0.01"
  end
end

local function slurp(name) return program.slurp(place .. "/" .. name) end

local function number_in(name)
  local text
  eventually(function()
    text = program.exists(place .. "/" .. name) and slurp(name):match "^(%d+)\n"
    return text
  end, name)
  return tonumber(text)
end

local function touch(name) assert(io.open(place .. "/" .. name, "w")):close() end
local function kill(signal, pid) assert.equal(0, os.execute(("kill -%s %d"):format(signal, pid))) end

-- Starts ranks; returns the launcher's process id.
local function start(n, text)
  local path = program.file(HEAD .. text)
  os.execute(([[{ env --default-signal=INT,QUIT,HUP %s -n %d --devices cpu %s %s >%s/out 2>%s/err </dev/null &
    echo $! >%s/launcher; wait $!; echo $? >%s/code.new; mv %s/code.new %s/code; } 2>/dev/null &]]):format(run, n,
    quote(path), place, place, place, place, place, place, place))
  return number_in "launcher"
end

-- Waits for the end: what each rank said of `why` and `sum`, [rank] = text; the exit code; all output.
local function finish()
  local code = number_in "code"
  local why, sum = {}, {}
  for rank, what, text in slurp "out":gmatch "%[(%d+)%] (%a+) ([^\n]*)" do
    if what == "why" then why[tonumber(rank)] = text end
    if what == "sum" then sum[tonumber(rank)] = text end
  end
  return {why = why, sum = sum, code = code, all = slurp "out" .. slurp "err"}
end

-- All ranks but `missing` have said something that `why` matches, and have parameters of so many steps.
local function assert_survived(said, n, missing, why, steps)
  for r = 0, n - 1 do
    if r == missing then
      assert.is_nil(said.why[r], said.all)
    else
      assert(said.why[r] and said.why[r]:find(why), ("rank %d of %d: %s"):format(r, n, said.all))
      assert.equal(sum_after(steps, n), said.sum[r], said.all)
    end
  end
end

describe("a world of ranks #program", function()
  setup(function()
    os.remove(place)
    os.execute("mkdir " .. place)
  end)
  teardown(function() os.execute("rm -rf " .. place) end)
  after_each(function()
    clear()
    program.clean()
  end)

  -- ---- deaths ---------------------------------------------------------------------------------------------------

  -- f(n, victim) for each rank of 2, 3 and 4.
  local function each_rank(f)
    for n = 2, 4 do
      for victim = 0, n - 1 do
        f(n, victim)
        clear()
      end
    end
  end

  it("tells the others of a rank that is killed before it joins", function()
    each_rank(function(n, victim)
      start(n, ("if rank == %d then die() end print('why ' .. select(2, pcall(init)))"):format(victim))
      local said = finish()
      assert.equal(128 + 9, said.code)
      for r = 0, n - 1 do
        if r ~= victim then
          assert(said.why[r] and said.why[r]:find("ended before all had come to init", 1, true), said.all)
        end
      end
    end)
  end)

  it("tells them where the others are in init already", function()
    each_rank(function(n, victim)
      start(n, ("if rank == %d then wait_for_others 'here' die() end tell('here' .. rank) "
        .. "print('why ' .. select(2, pcall(init)))"):format(victim))
      local said = finish()
      for r = 0, n - 1 do
        if r ~= victim then
          assert(said.why[r] and said.why[r]:find("ended before all had come to init", 1, true), said.all)
        end
      end
    end)
  end)

  local died = "rank %d of %d %%(pid %d%%) has died; its last collective was %%d+ %%(sum of 5000 float32"

  it("keeps the last update that all made where a rank is killed before a collective", function()
    each_rank(function(n, victim)
      start(n, ([[init() for _ = 1, 3 do step() end if rank == %d then die() end survive()]]):format(victim))
      local said = finish()
      assert.equal(128 + 9, said.code)
      assert_survived(said, n, victim, died:format(victim, n, number_in("pid" .. victim)), 3)
    end)
  end)

  it("keeps it where the others wait for the rank already", function()
    each_rank(function(n, victim)
      start(n, ([[init() for _ = 1, 3 do step() end
        if rank == %d then wait_for_others 'waits' die() end
        survive(function() tell("waits" .. rank) end)]]):format(victim))
      assert_survived(finish(), n, victim, died:format(victim, n, number_in("pid" .. victim)), 3)
    end)
  end)

  it("keeps it where a rank is killed behind its part of a collective", function()
    each_rank(function(n, victim)
      start(n, ([[init() for _ = 1, 3 do step() end if rank == %d then wait_for_others 'past' die() end
        tell("past" .. rank) survive()]]):format(victim))
      assert_survived(finish(), n, victim, died:format(victim, n, number_in("pid" .. victim)), 3)
    end)
  end)

  it("tells survivors the same, whenever a rank is killed", function()
    for k = 1, 12 do
      local n = 2 + k % 3
      start(n, "init() survive(function() if rank == 1 then tell 'runs' end end)")
      local victim = number_in "runs"
      os.execute(("sleep 0.0%d"):format(k * 5 % 10))
      kill("KILL", victim)
      local said = finish()
      for r = 0, n - 1 do
        if r ~= 1 then
          assert(said.why[r] and said.why[r]:find(("rank 1 of %d (pid %d) has died"):format(n, victim), 1, true),
            said.all)
          assert.equal(said.sum[0], said.sum[r], said.all)
        end
      end
      clear()
    end
  end)

  -- ---- ends of a script -----------------------------------------------------------------------------------------

  it("misses a rank that exits, or that ends its script", function()
    for _, how in ipairs {"os.exit(3)", "do return end"} do
      start(3, ("init() for _ = 1, 3 do step() end if rank == 1 then %s end survive()"):format(how))
      assert_survived(finish(), 3, 1, "rank 1 of 3 %(pid %d+", 3)
      clear()
    end
  end)

  it("misses a rank that raises an error", function()
    start(3, "init() for _ = 1, 3 do step() end if rank == 2 then error 'no more data' end survive()")
    local said = finish()
    assert.equal(1, said.code)
    assert_survived(said, 3, 2, "rank 2 of 3 %(pid %d+", 3)
    assert.matches("[2] conflux: ", said.all, 1, true)
  end)

  it("misses a rank that is interrupted", function()
    start(3, [[init() for _ = 1, 3 do step() end
      if rank == 0 then tell "loops" while true do cf.zeros(1):item() end end survive()]])
    kill("INT", number_in "loops")
    assert_survived(finish(), 3, 0, "rank 0 of 3 %(pid %d+", 3)
  end)

  -- ---- what ranks disagree on -----------------------------------------------------------------------------------

  -- Rank 1 does `other` where the others do `usual`; all hear of both, in the same words.
  local function assert_disagree(usual, other, ...)
    for n = 2, 3 do
      start(n, ([[init()
        local x, y, z, ids = cf.ones(2000), cf.ones(2001), cf.ones(3), cf.ones(2000):to "int32"
        local ok, why = pcall(function()
          if rank == 1 then %s else %s end
          return (x:sum() + y:sum() + z:sum()):item() + ids:sum():item()
        end)
        print("why " .. tostring(why))]]):format(other, usual))
      local said = finish()
      local function words(r) return (said.why[r]:match("ranks disagree: .*"):gsub(" %(enqueued at .*", "")) end
      for r = 0, n - 1 do
        assert.equal(words(0), words(r), said.all)
        for _, part in ipairs {...} do assert(said.why[r]:find(part, 1, true), said.all) end
      end
      clear()
    end
  end

  it("shows both sides of lengths, dtypes and operations that differ", function()
    local usual, sum = "cf.allreduce('+', {x})", " is sum of 2000 float32"
    assert_disagree(usual, "cf.allreduce('+', {y})", sum, " of rank 1 is sum of 2001 float32")
    assert_disagree(usual, "cf.allreduce('+', {ids})", sum, " of rank 1 is sum of 2000 int32")
    assert_disagree(usual, "cf.allreduce('max', {x})", sum, " of rank 1 is max of 2000 float32")
  end)

  it("shows both sides of roots that differ, and of other calls", function()
    assert_disagree("cf.dist.reduce('+', 0, x)", "cf.dist.reduce('+', 1, x)",
      "rank 0 calls dist.reduce sum, root 0 at ", "rank 1 calls dist.reduce sum, root 1 at ")
    assert_disagree("cf.synchronize({x}, 1)", "cf.allreduce('+', {x})",
      "is synchronize with root 0 of 2000 float32", "of rank 1 is sum of 2000 float32")
    assert_disagree("cf.allreduce('+', {x})", "cf.allreduce('+', {z})", "is sum of 2000 float32",
      "of rank 1 is sum of 3 float32")
  end)

  it("names the ranks that do not come to one call too many", function()
    for n = 2, 4 do
      start(n, "init() for _ = 1, 3 do step() end if rank == 1 then survive() end")
      local said = finish()
      assert.matches("rank %d of " .. n .. " %(pid %d+, left the world%) has not come to collective %d+ %(sum of 5000 "
        .. "float32.*%); its last was %d+ %(sum of 5000", said.why[1])
      assert.equal(sum_after(3, n), said.sum[1])
      clear()
    end
  end)

  -- ---- ranks that do not come -----------------------------------------------------------------------------------

  it("gives up a rank that is stopped, and ends it before anyone goes on", function()
    for n = 2, 4 do
      for victim = 0, n - 1, n - 1 do
        start(n, ([[init(1) for _ = 1, 3 do step() end
          if rank == %d then tell "ready" wait_for "go" end survive()]]):format(victim))
        local pid = number_in "ready"
        kill("STOP", pid)
        touch "go"
        local said = finish()
        assert_survived(said, n, victim, ("rank %d of %d %%(pid %d, stopped%%) has not come to collective %%d+ %%(sum "
          .. "of 5000 float32.*%%); its last was %%d+ %%(.*given up after 1 s, and killed"):format(victim, n, pid), 3)
        assert.is_false(is_alive(pid))
        clear()
      end
    end
  end)

  it("waits for a rank that is stopped only for a while", function()
    start(3, [[init() for _ = 1, 3 do step() end
      if rank == 1 then tell "ready" wait_for "go" end
      print("sum", step(function() tell("waits" .. rank) end))]])
    local pid = number_in "ready"
    kill("STOP", pid)
    touch "go"
    for r = 0, 2, 2 do number_in("waits" .. r) end
    kill("CONT", pid)
    local said = finish()
    assert.equal(0, said.code)
    assert.equal(3, select(2, said.all:gsub("sum\t24\n", "")))
  end)

  it("has more ranks than cores", function()
    local cores = tonumber((program.shell "nproc"))
    local n = cores + 3
    start(n, "init() for _ = 1, 20 do step() end print('sum ' .. ('%.17g'):format(p:sum():item()))")
    local said = finish()
    assert.equal(0, said.code, said.all)
    for r = 0, n - 1 do assert.equal(sum_after(20, n), said.sum[r]) end
  end)

  -- ---- the launcher ---------------------------------------------------------------------------------------------

  it("leaves no process where the launcher is killed", function()
    for n = 2, 4 do
      local launcher = start(n, "init() tell('in' .. rank) if rank == 1 then wait_for 'never' end survive()")
      local pids = {}
      for r = 0, n - 1 do pids[r] = number_in("in" .. r) end
      kill("KILL", launcher)
      for r = 0, n - 1 do eventually(function() return not is_alive(pids[r]) end, "rank " .. r) end
      clear()
    end
  end)

  it("ends all ranks at Ctrl-C, in a collective or between two", function()
    for n = 2, 4 do
      local launcher = start(n, "init() tell('in' .. rank) if rank == 1 then while true do step() end end "
        .. "while true do step() end")
      local pids = {}
      for r = 0, n - 1 do pids[r] = number_in("in" .. r) end
      kill("INT", launcher)
      local said = finish()
      assert.are_not.equal(0, said.code) -- a rank may hear of another's interrupt before its own
      assert.matches("interrupted!", said.all, 1, true)
      for r = 0, n - 1 do assert.is_false(is_alive(pids[r])) end
      clear()
    end
  end)

  it("ends them at the second Ctrl-C where one computes on", function()
    local launcher = start(3, [[init() jit.off(true) tell("in" .. rank)
      if rank == 1 then while true do pcall(function() while true do end end) tell "again" end end
      while true do step() end]])
    local pids = {}
    for r = 0, 2 do pids[r] = number_in("in" .. r) end
    kill("INT", launcher)
    eventually(function() return not is_alive(pids[0]) and not is_alive(pids[2]) end, "the ranks that wait")
    kill("INT", launcher)
    number_in "code"
    for r = 0, 2 do assert.is_false(is_alive(pids[r])) end
  end)
end)
