-- The life of a tape: however its withgradient ends, the model is free again and nothing of the tape stays.
require "tests.spec.helper"
local cf = require "conflux"
local core = require "conflux.core"
local nn = cf.nn
local C = core.C

local function collected()
  collectgarbage()
  collectgarbage()
  cf.sync()
  return cf.memory().in_use
end

local function chain() return nn.Chain(nn.Dense(8, 64, "tanh"), nn.Dense(64, 64, "tanh"), nn.Dense(64, 1)) end

-- The collector takes what earlier calls have left on the stack for alive.
local function wipe()
  local a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p -- luacheck: ignore
end

-- The memory in use comes down to `before`.  In one measurement the collector may take for alive what is dead, so that
-- there are several; what leaks is in all of them.
local function assert_stays(before, measure)
  local after = measure()
  for _ = 1, 4 do
    if after <= before then break end
    wipe()
    after = measure()
  end
  assert.is_true(after <= before, ("%d bytes were in use, and now %d"):format(before, after))
end

-- A coroutine that hangs inside `f`, the function of a withgradient on the model, and is dropped.
local function hang(model, f)
  local co = coroutine.create(function() cf.withgradient(f, model) end)
  assert(coroutine.resume(co))
  assert.equal("suspended", coroutine.status(co))
  co = nil -- luacheck: ignore
  wipe()
end

local function sum(m) return m(cf.ones(32, 8)):sum() end

local function yield_in_f(m)
  local y = sum(m)
  coroutine.yield()
  return y
end

local yielding = cf.op("yielding", {
  forward = function(x) return x * 2 end,
  backward = function(dy)
    coroutine.yield()
    return dy * 2
  end,
})
local function yield_in_backward(m) return yielding(m(cf.ones(32, 8))):sum() end

local function watched(model) return C.cfx_is_watched(model:parameters()[1]) == 1 end

describe("a coroutine that hangs in withgradient and is dropped", function()
  for where, f in pairs {f = yield_in_f, ["a backward of its own"] = yield_in_backward} do
    it("leaves the model free to be watched, in " .. where, function()
      local model = chain()
      hang(model, f)
      local _, g = cf.withgradient(sum, model)
      assert.tensor_equal(g[1].weight, cf.gradient(sum, model)[1].weight)
    end)

    it("leaves nothing of its memory, in " .. where, function()
      local model = chain()
      local function in_use(times)
        for _ = 1, times do hang(model, f) end
        return collected()
      end
      in_use(1)
      assert_stays(in_use(1), function() return in_use(5) end)
      assert.is_false(watched(model))
    end)
  end

  it("leaves the model free to be written", function()
    local model = chain()
    local state = cf.optim.Descent(0.1):setup(model)
    local g = cf.gradient(sum, model)
    hang(model, yield_in_f)
    cf.optim.update(state, model, g)
    hang(model, yield_in_f)
    model[1].weight:fill_(1)
    hang(model, yield_in_f)
    model[1].weight[1] = 2
    assert.equal(2, model[1].weight[1]:min():item())
  end)

  it("is refused as before while somebody can reach it", function()
    local model = chain()
    local co = coroutine.create(function() return cf.withgradient(yield_in_f, model) end)
    assert(coroutine.resume(co))
    assert.refuses(function() cf.withgradient(sum, model) end, "withgradient: parameter 1 is watched")
    assert.refuses(function() model[1].weight:fill_(1) end, "fill_: the tensor is part of a gradient being recorded")
    local _, _, g = coroutine.resume(co)
    assert.tensor_equal(g[1].weight, cf.gradient(sum, model)[1].weight)
  end)
end)

describe("withgradient, stopped anywhere by an error", function()
  it("leaves the model free and nothing of the tape", function()
    jit.off() -- compiled code does not look at hooks
    local model, ended, steps = chain(), false, 0
    collected()
    hang(model, yield_in_f)
    local before = collected()
    while not ended do
      steps = steps + 7
      local left = steps
      local function stop()
        left = left - 1
        if left == 0 then
          debug.sethook()
          error("stopped", 0)
        end
      end
      local ok, problem = pcall(function()
        debug.sethook(stop, "", 1)
        cf.withgradient(sum, model)
        debug.sethook()
      end)
      debug.sethook()
      ended = ok
      assert.is_true(ok or problem == "stopped", problem)
      cf.withgradient(sum, model)
    end
    jit.on()
    assert.is_true(steps > 100)
    assert_stays(before, collected)
    assert.is_false(watched(model))
  end)
end)

describe("a closure of withdevices that does not go on", function()
  local here = cf.zeros(1).device
  local devices = {here, here}
  local model, inner

  local function read(m)
    local y = sum(m)
    y:item() -- gives way to the other closures
    return y
  end
  local function interrupt()
    C.cfx_interrupt(core.context())
    cf.ones(1)
  end

  before_each(function()
    model, inner = chain(), chain()
    collectgarbage()
    collectgarbage "stop" -- no collection ends a tape here
  end)
  after_each(function() collectgarbage "restart" end)

  it("has its tapes ended when another one is interrupted", function()
    local ok, problem = pcall(cf.withdevices, function(i)
      if i == 2 then interrupt() end
      cf.withgradient(function(m)
        cf.withgradient(read, inner)
        return sum(m)
      end, model)
    end, devices)
    assert.is_false(ok)
    assert.matches("interrupted!", tostring(problem))
    assert.is_false(watched(model))
    assert.is_false(watched(inner))
  end)

  it("has those of the closures inside it ended, too", function()
    local ok = pcall(cf.withdevices, function(i)
      if i == 2 then interrupt() end
      cf.withdevices(function(k)
        if k == 1 then cf.withgradient(read, model) else cf.withgradient(read, inner) end
      end, devices)
    end, devices)
    assert.is_false(ok)
    assert.is_false(watched(model))
    assert.is_false(watched(inner))
  end)

  it("has its tapes ended when it yields where nobody can take it", function()
    if coroutine.running() and coroutine.isyieldable() then return pending "the tests run in a coroutine" end
    assert.has_error(function() cf.withdevices(function() cf.withgradient(yield_in_f, model) end, devices) end)
    assert.is_false(watched(model))
  end)

  it("leaves nothing of its memory", function()
    local function stop()
      pcall(cf.withdevices, function(i)
        if i == 2 then interrupt() end
        cf.withgradient(read, model)
      end, devices)
      wipe()
      return collected()
    end
    assert_stays(stop(), stop)
  end)

  it("keeps its tapes while it only waits", function()
    local l = cf.withdevices(function(i)
      local loss, g = cf.withgradient(read, i == 1 and model or inner)
      assert(g)
      return loss
    end, devices)
    assert.is_true(core.is_tensor(l[1]))
  end)
end)
