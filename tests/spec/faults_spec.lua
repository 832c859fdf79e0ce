-- Something breaks, and nothing else breaks with it; and commands wait for no more than they need.
require "tests.spec.helper"
local cf = require "conflux"
local core = require "conflux.core"
local ffi = require "ffi"
local nn, optim = cf.nn, cf.optim

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(5, setup, teardown)
local DEVICES = on {"cpu:0", "cpu:1", "cpu:2"}

local program = require "tests.spec.program"

local function raised(f, ...)
  local ok, message = pcall(f, ...)
  assert.is_false(ok)
  return message
end

-- A tensor that no command will write: its queue faulted before.
local function void()
  return cf.ones(3, 2)[cf.tensor({7}, {dtype = "int64"})] * 2
end

local function ready(x) return core.C.cfx_ready(x) == 1 end

-- n products of side x side, in the queue of the default device.
local function products(n, side)
  local x = cf.rand(side, side)
  for _ = 1, n do x = (x:matmul(x)):tanh() end
  return x:sum()
end

local function seconds()
  local now = ffi.new "cf_time"
  ffi.C.cf_clock_gettime(1, now) -- CLOCK_MONOTONIC, as core.lua has it
  return tonumber(now.s) + tonumber(now.ns) * 1e-9
end

-- Work for a second or so, in the queue of the default device, of commands that take some milliseconds each.
local count, size
local function slow() return products(count, size) end

-- Whether f(), which asks what was done while slow work is at hand, finds it so.  A machine that was busy when that
-- work was measured may be through with it too soon: then more of it is tried.  A call that waits for all of it never
-- passes.
local function while_slow(f)
  local measured = count
  for _ = 1, 5 do
    if f() then
      count = measured
      return true
    end
    count = count * 3
  end
  count = measured
  return false
end

setup(function()
  size = 32
  repeat
    size = size * 2
    products(1, size):item()
    local start = seconds()
    products(1, size):item()
    count = math.ceil(1 / (seconds() - start))
  until count < 500
end)

describe("a fault in a queue", function()
  it("is raised at the read, and names the operation and the line that asked for it", function()
    local rows, ids, m = cf.ones(3, 2), cf.tensor({1, 3}, {dtype = "int64"}), nn.Dense(2, 1)
    local line = debug.getinfo(1, "l").currentline + 1
    local loss = cf.withgradient(function(model) return model(rows[ids]):sum() end, m)
    local read = debug.getinfo(1, "l").currentline + 1
    local message = raised(function() return loss:item() + 0 end)
    local what = ("tests/spec/faults_spec.lua:%d: conflux.index: id 3 at position 2 is outside 0 to 2"):format(read)
    assert.equal(("%s (enqueued at tests/spec/faults_spec.lua:%d)"):format(what, line), message)
  end)

  it("leaves what it should have written void, and reading that raises again", function()
    local x = void()
    assert.matches("index", raised(x.totable, x))
    assert.matches("index", raised(x.totable, x))
    assert.matches("index", raised(function() return (x + 1):totable() end))
    assert.tensor_equal(cf.ones(2) + 1, {2, 2})
  end)

  it("takes no value that was there before", function()
    local before = cf.ones(4) * 3
    local x = void()
    assert.tensor_equal(before, {3, 3, 3, 3})
    raised(x.totable, x)
    assert.tensor_equal(before, {3, 3, 3, 3})
  end)

  it("of one replica keeps all of them from updating, and training goes on", function()
    local models = cf.replicate(nn.Chain(nn.Embedding(4, 3), nn.Dense(3, 1)), DEVICES)
    local opt = optim.Adam(1e-2)
    local states = cf.withdevices(function(i) return opt:setup(models[i]) end, DEVICES)
    local function step(id)
      local losses, grads = cf.withdevices(function(i)
        local ids = cf.tensor({i == 2 and id or 1, 0}, {dtype = "int64"})
        return cf.withgradient(function(m) return (m(ids) ^ 2):sum() end, models[i])
      end, DEVICES)
      cf.allreduce("avg", grads)
      cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end, DEVICES)
      return losses
    end
    step(2)
    cf.sync()
    local before = {}
    for i = 1, 3 do before[i] = models[i][2].weight:totable() end
    local losses = step(4)
    assert.matches("id 4 at position 1 is outside 0 to 3", raised(losses[2].item, losses[2]))
    assert.is_true(losses[1]:item() == losses[1]:item())
    for i = 1, 3 do
      assert.same(before[i], models[i][2].weight:totable())
    end
    losses = step(3)
    for i = 1, 3 do
      assert.is_true(losses[i]:item() > 0)
      assert.tensor_equal(models[i][2].weight, models[1][2].weight)
    end
    assert.is_false(models[1][2].weight:totable()[1][1] == before[1][1][1])
  end)

  it("is not passed to a device whose tensors or memory its own only used", function()
    local x, kept, copies = cf.ones(1000, {device = DEVICES[1]}), cf.ones(1000, {device = DEVICES[1]}), {}
    cf.sync()
    local _, bad = cf.withdevices(function(i, device)
      if i ~= 2 then return end
      local y = void()
      copies[1], copies[2] = device(x), device(kept) -- not made: they come after it
      return nil, y
    end, DEVICES)
    x:release()
    local reused = cf.full(3, 1000, {device = DEVICES[1]})
    kept:add_(1) -- waits for the copy
    assert.equal(3000, reused:sum():item())
    assert.equal(2000, kept:sum():item())
    assert.matches("index", raised(bad[2].totable, bad[2]))
    for i = 1, 2 do -- between memories that do not reach each other values travel in queues of their own
      local is_made, value = pcall(function() return copies[i]:sum():item() end)
      if is_made then assert.equal(1000, value) else assert.matches("index", value) end
    end
    assert.equal(2000, kept:sum():item())
  end)

  it("is not passed to devices that did not ask for its result", function()
    local bad
    local lists = cf.withdevices(function(i)
      if i == 1 then bad = void() end
      return cf.full(i, 2) + 1
    end, DEVICES)
    for i = 2, 3 do assert.tensor_equal(lists[i], {i + 1, i + 1}) end
    raised(bad.totable, bad)
    assert.tensor_equal(cf.ones(1, {device = on "cpu:0"}) + 1, {2})
  end)
end)

describe("a replica that a fault keeps from an update which the others make", function()
  local x = cf.rand(4, 3)
  local function batch_loss(m) return (m(x:to(m.weight.device)) ^ 2):sum() end

  -- n replicas, and a function that makes one step; the last of them may fault between the collective and its update.
  local function training(n, op)
    local list = {unpack(on {"cpu:0", "cpu:1", "cpu:2", "cpu:3", "cpu:4"}, 1, n)}
    local t = {models = cf.replicate(nn.Dense(3, 2), list)}
    local opt = optim.Chain(optim.ClipNorm(5), optim.Adam(1e-1))
    t.states = cf.withdevices(function(i) return opt:setup(t.models[i]) end, list)
    function t.step(fails)
      local _, grads = cf.withdevices(function(i) return cf.withgradient(batch_loss, t.models[i]) end, list)
      cf.allreduce(op or "avg", grads)
      local bad
      cf.withdevices(function(i)
        if fails and i == n then
          cf.sync() -- the others have made theirs
          bad, t.line = void(), debug.getinfo(void, "S").linedefined + 1
        end
        optim.update(t.states[i], t.models[i], grads[i])
      end, list)
      if bad then raised(bad.totable, bad) end
    end
    function t.assert_refused(f, fname)
      local message = raised(f)
      local what = ("conflux.%s: replica %d (%s): %s skipped an update that other replicas made "
        .. "(index: id 7 at position 1 is outside 0 to 2, enqueued at tests/spec/faults_spec.lua:%d): synchronize them")
        :format(fname, n, list[n], fname == "update" and "the model" or "a tensor", t.line)
      assert.is_truthy(message:find(what, 1, true), message)
    end
    function t.assert_equal()
      for i = 2, n do
        assert.tensor_equal(t.models[i].weight, t.models[1].weight)
        assert.tensor_equal(t.states[i].m.weight, t.states[1].m.weight)
      end
    end
    t.step()
    t.step(true)
    return t
  end

  for _, n in ipairs {2, 3, 5} do
    it("is refused until all are synchronized: one of " .. n, function()
      local t = training(n)
      t.assert_refused(function() t.step() end, "update")
      t.assert_refused(function() cf.allreduce("avg", t.models) end, "allreduce")
      cf.synchronize(t.models)
      assert.matches("the state skipped an update", raised(t.step))
      cf.synchronize(t.models) -- the others have made that step
      cf.synchronize(t.states)
      t.step()
      t.assert_equal()
    end)
  end

  it("is refused where a function joined the gradients, too", function()
    local t = training(2, function(a, b) return a + b end)
    t.assert_refused(function() t.step() end, "update")
    t.assert_refused(function() cf.allreduce(function(a, b) return a + b end, t.models) end, "allreduce")
  end)

  it("catches up by a file, and a new copy of the first one starts afresh", function()
    local t = training(2)
    local path = os.tmpname()
    cf.save(path, {t.models[1], t.states[1]})
    cf.load(path, {into = {t.models[2], t.states[2]}})
    os.remove(path)
    t.step()
    t.assert_equal()
    t = training(2)
    t.models, t.states = cf.replicate(t.models[1], t.models.devices), cf.replicate(t.states[1], t.models.devices)
    t.step()
    t.assert_equal()
  end)

  it("stays as it is where there was no collective", function()
    local m = nn.Dense(3, 2)
    local state = optim.Adam(1e-1):setup(m)
    local function step()
      local _, g = cf.withgradient(batch_loss, m)
      optim.update(state, m, cf.allreduce("avg", {g})[1])
    end
    local bad = void()
    step()
    raised(bad.totable, bad)
    local before = m.weight:clone()
    step()
    assert.is_true((m.weight - before):abs():sum():item() > 0)
  end)
end)

describe("an error in one closure", function()
  it("leaves the work of the others, and the devices fit for the next", function()
    local kept = {}
    local message = raised(cf.withdevices, function(i)
      kept[i] = cf.full(i, 2) * 2
      if i == 2 then local _ = cf.ones(2) + cf.ones(3) end
      kept[i]:sum():item()
      kept[i]:add_(1)
    end, DEVICES)
    assert.matches(on "faults_spec%.lua:%d+: conflux%.add: .*%(on cpu:1%)$", message)
    assert.tensor_equal(kept[1], {3, 3})
    assert.tensor_equal(kept[2], {4, 4})
    assert.tensor_equal(kept[3], {7, 7})
  end)
end)

describe("empty tensors", function()
  it("go through layers, losses and gradients, and an empty mean is not a number", function()
    local m = nn.Chain(nn.Dense(3, 4, "relu"), nn.LayerNorm(4), nn.Dense(4, 2))
    local x, ids = cf.zeros(0, 3), cf.zeros(0, {dtype = "int64"})
    assert.same({0, 2}, m(x).shape)
    local loss, g = cf.withgradient(function(model) return nn.crossentropy(model(x), ids, {reduction = "sum"}) end, m)
    assert.equal(0, loss:item())
    assert.tensor_equal(g[1].weight, cf.zeros(4, 3))
    local mean = nn.mse(x, x):item()
    assert.is_true(mean ~= mean)
  end)

  it("are no batch of a loader", function()
    local data = {x = cf.zeros(0, 3)}
    assert.refuses(function() cf.data.DataLoader(data, {batch = 4}) end, "DataLoader: ")
  end)
end)

describe("order", function()
  it("lets a closure read its loss while the next one's work is enqueued and done", function()
    local log, first = {}, nil
    cf.withdevices(function(i)
      local loss = i == 1 and slow() or cf.ones(2):sum()
      if i == 1 then first = loss end
      local value = loss:item()
      if i == 2 then assert.equal(2, value) end
      log[#log + 1] = i
      if i == 2 then log.first_was_ready = ready(first) end
    end, on {"cpu:0", "cpu:1"})
    assert.same({1, 2}, {log[1], log[2]}) -- they go on in device order
    -- The same, read without the scheduler's order: device 2 had its value while device 1 was still at work.
    assert.is_true(while_slow(function()
      local a, b
      cf.withdevices(function(i)
        if i == 1 then a = slow() else b = cf.ones(2):sum() end
      end, on {"cpu:0", "cpu:1"})
      assert.equal(2, b:item())
      local was_ready = ready(a)
      assert.is_true(a:item() == a:item())
      return not was_ready
    end))
  end)

  it("does not make device(X) wait for the first replica's backward", function()
    local X = cf.rand(16, 4)
    cf.sync()
    assert.is_true(while_slow(function()
      local busy, copy
      cf.withdevices(function(i, device)
        if i == 1 then
          busy = slow()
        else
          copy = device(X) -- lies on the first device, whose queue is full of work
        end
      end, on {"cpu:0", "cpu:1"})
      assert.tensor_equal(copy:to(on "cpu:1"), copy)
      local was_ready = ready(busy)
      assert.tensor_equal(copy, X)
      assert.is_true(busy:item() == busy:item())
      return not was_ready
    end))
  end)
end)

-- ---- whole programs -----------------------------------------------------------------------------------------

-- Runs a script; its output, errors among it.
local function run(text, before)
  local out, err, code = program.run(program.file(text), before)
  program.clean()
  return out .. err, code
end

describe("a memory limit", function()
  it("is kept with byte counts at the caller's line, and the program goes on #program", function()
    local out, code = run([[
local cf = require "conflux"
local kept = cf.ones(1024, 1024)
print(pcall(function()
  local x = cf.zeros(4096, 4096)
  return x
end))
for _ = 1, 200 do local x = cf.zeros(1024, 1024) end -- dropped: collected, not counted
print(kept:sum():item(), cf.memory("cpu:0").limit)
]], "CONFLUX_MEMORY_LIMIT=32M")
    assert.equal(0, code, out)
    assert.matches(":4: conflux%.zeros: out of memory: 67108864 bytes asked for, %d+ in use, %d+ reserved, "
      .. "limit 33554432", out)
    assert.matches("\n1048576\t33554432\n$", out)
  end)

  it("is refused if it is none #program", function()
    local out, code = run("require 'conflux'.zeros(1)", "CONFLUX_MEMORY_LIMIT=much")
    assert.equal(1, code)
    assert.matches("CONFLUX_MEMORY_LIMIT: expected", out)
  end)
end)

describe("Ctrl-C", function()
  local function interrupted(text)
    return run(text, "timeout --foreground --preserve-status -s INT 1")
  end

  it("stops a loop that calls Conflux #program", function()
    local out, code = interrupted [[
local cf = require "conflux"
local x = cf.ones(10)
while true do x = x + 1 end]]
    assert.matches(":3: interrupted!\nstack traceback:", out)
    assert.equal(130, code)
  end)

  it("stops a wait for work that takes longer #program", function()
    local out, code = interrupted [[
local cf = require "conflux"
local x = cf.rand(1500, 1500)
for _ = 1, 2000 do x = x:matmul(x):tanh() end
io.stdout:write "enqueued\n" io.flush()
print(x:sum():item())]]
    assert.matches("enqueued\n.*:5: interrupted!\nstack traceback:", out)
    assert.equal(130, code)
  end)

  it("leaves a program that catches it able to go on #program", function()
    local out, code = interrupted [[
local cf = require "conflux"
local x = cf.ones(10)
local ok, message = pcall(function() while true do x = x + 1 end end)
print(ok, message)
print((cf.ones(3) + 1):sum():item())]]
    assert.matches("false\t.-: interrupted!\n6\n$", out)
    assert.equal(0, code)
  end)
end)
