-- A call of Conflux inside another one: a schedule's, a custom backward's, a closure's that runs while another one
-- reads, a finaliser's.  Neither may see or change what the other hands to C.
require "tests.spec.helper"
local cf = require "conflux"
local optim = cf.optim

local devices = require "tests.spec.devices"
local program = require "tests.spec.program"
local on = devices.on
devices.use(2, setup, teardown)

-- ---- the user's functions inside a call ---------------------------------------------------------------------

describe("a schedule", function()
  local function thousandfold(m) return (m.w * 1000):sum() end

  -- Two steps by 0.1 with gradient 2, of which `inside` runs in the first one's schedule: each goes from w to w - 0.2.
  local function train(model, g, inside)
    local state
    state = optim.Descent(function(count)
      if count == 1 then inside(state, model) end
      return 0.1
    end):setup(model)
    optim.update(state, model, g)
    optim.update(state, model, g)
    assert.equal(2, state.step)
  end

  local function trained(inside)
    local model = {w = cf.ones(3), b = cf.zeros(2)}
    train(model, {w = cf.full(2, 3), b = cf.full(-2, 2)}, inside)
    assert.tensor_near(model.w, {0.6, 0.6, 0.6})
    assert.tensor_near(model.b, {0.4, 0.4})
  end

  it("may take another gradient of the model", function()
    trained(function(_, model) cf.gradient(thousandfold, model) end)
  end)

  it("may add to another gradient of the model", function()
    local sum
    trained(function(_, model)
      sum = cf.gradient(thousandfold, model)
      cf.addgradient(sum, thousandfold, model)
    end)
    assert.tensor_equal(sum.w, {2000, 2000, 2000})
  end)

  it("may update the model by another state and gradient, which comes first", function()
    local model = {w = cf.ones(3)}
    train(model, {w = cf.full(2, 3)}, function(_, same)
      local other = optim.Momentum(0.5):setup(same)
      optim.update(other, same, {w = cf.full(4, 3)})
    end)
    assert.tensor_near(model.w, {-1.4, -1.4, -1.4})
  end)

  it("may set up, release and collect", function()
    trained(function(_, model)
      optim.Adam():setup(model)
      cf.gradient(thousandfold, model).w:release()
      collectgarbage()
    end)
  end)

  it("may take the gradient tree apart: what is missing then is an error, and the step not made", function()
    local model, g = {w = cf.ones(3)}, {w = cf.ones(3)}
    local state = optim.Descent(function()
      g.w = nil
      collectgarbage()
      return 0.1
    end):setup(model)
    assert.refuses(function() optim.update(state, model, g) end, "update: argument 'gradient': nothing at 'w'")
    assert.equal(0, state.step)
    assert.tensor_equal(model.w, {1, 1, 1})
  end)

  it("may freeze a parameter: this update leaves it alone", function()
    local model = {w = cf.ones(3), b = cf.zeros(2)}
    local state = optim.Descent(function()
      cf.nn.freeze(model.b)
      return 0.1
    end):setup(model)
    optim.update(state, model, {w = cf.full(2, 3), b = cf.ones(2)})
    assert.tensor_near(model.w, {0.8, 0.8, 0.8})
    assert.tensor_equal(model.b, {0, 0})
  end)

  it("may not update its own state: the inner update is made, the outer refused", function()
    local model = {w = cf.ones(3)}
    local nested, state = false, nil
    state = optim.Descent(function(count)
      if not nested then
        nested = true
        optim.update(state, model, {w = cf.full(5, 3)})
      end
      return 0.1 * count
    end):setup(model)
    assert.refuses(function() optim.update(state, model, {w = cf.ones(3)}) end,
      "update: the state was updated while its schedule ran for update 1")
    assert.equal(1, state.step)
    assert.tensor_near(model.w, {0.5, 0.5, 0.5})
    optim.update(state, model, {w = cf.ones(3)})
    assert.equal(2, state.step)
    assert.tensor_near(model.w, {0.3, 0.3, 0.3})
  end)

  it("that always updates its own state raises, and updates nothing", function()
    local model = {w = cf.ones(3)}
    local state
    state = optim.Descent(function()
      optim.update(state, model, {w = cf.ones(3)})
      return 0.1
    end):setup(model)
    assert.is_false(pcall(optim.update, state, model, {w = cf.ones(3)}))
    assert.equal(0, state.step)
    assert.tensor_equal(model.w, {1, 1, 1})
  end)

  it("may read: closures that update one model take turns, each with its own gradient", function()
    local model = {w = cf.ones(3)}
    local loss = cf.ones(1)
    cf.withdevices(function(i)
      local state = optim.Descent(function()
        return 0.1 * loss:item()
      end):setup(model)
      for _ = 1, 3 do optim.update(state, model, {w = cf.full(10 ^ i, 3, {device = model.w.device})}) end
    end, {devices.on "cpu:0", devices.on "cpu:0"})
    assert.tensor_near(model.w, {-32, -32, -32})
  end)
end)

describe("a custom backward", function()
  -- The gradient 2 x of sum(x x) at 1, 2, 3, by an operation that calls `inside` in its backward.
  local function operation(inside)
    return cf.op("square", {
      forward = function(x) return x * x end,
      backward = function(dy, x)
        inside()
        return dy * x * 2
      end,
    })
  end

  it("may try to update the watched model, which is refused and changes no gradient", function()
    local names = on {"cpu:0", "cpu:1"}
    local model = {w = cf.tensor {1, 2, 3}, b = cf.zeros({2}, {device = names[2]})} -- on two devices: no layout
    local function twice(m) return m.w:sum() + m.b:sum():to(names[1]) end
    local earlier = cf.gradient(twice, model)
    local state = optim.Descent():setup(model)
    local square = operation(function()
      assert.is_false(pcall(optim.update, state, model, earlier))
      collectgarbage()
    end)
    local g = cf.gradient(function(m) return square(m.w * 1):sum() + (m.b * 3):sum():to(names[1]) end, model)
    assert.tensor_equal(g.w, {2, 4, 6})
    assert.tensor_equal(g.b, {3, 3})
    assert.tensor_equal(earlier.w, {1, 1, 1})
    assert.tensor_equal(earlier.b, {1, 1})
  end)

  it("may take apart and collect the gradient that is added to", function()
    local model = {w = cf.tensor {1, 2, 3}}
    local sum = {}
    local function fill() -- no register of a living frame holds the handle afterwards
      sum.w = cf.ones(3)
      return sum.w:reshape(3)
    end
    local kept = fill()
    local square = operation(function()
      sum.w = nil
      devices.collect()
      for _ = 1, 100 do cf.zeros(3) end
    end)
    cf.addgradient(sum, function(m) return square(m.w * 1):sum() end, model)
    assert.tensor_equal(kept, {3, 5, 7})
  end)
end)

-- ---- finalisers inside a call -------------------------------------------------------------------------------

-- Programs of their own, as they set the collector; finalisers.lua has the calls.
describe("a finaliser that calls Conflux", function()
  local function run(mode, before)
    local out, err, code = program.run("tests/spec/finalisers.lua " .. mode, before)
    assert.equal(0, code, out .. err)
    return out
  end

  it("changes nothing in a call inside which it runs, wherever that makes an object #program", function()
    assert.matches("^finalisers ran in (%d+) of %1 calls\n$", run "objects")
  end)

  it("changes nothing in a call of a loop that LuaJIT compiles #program", function()
    assert.matches("^finalisers ran in (%d+) of %1 calls\n$", run "compiled")
  end)

  it("changes nothing in the second try of a call that was out of memory #program", function()
    local ran = run("memory", "CONFLUX_MEMORY_LIMIT=4M"):match "^finalisers ran in (%d+) of %d+ calls\n$"
    assert.is_true(tonumber(ran) > 0)
  end)
end)
