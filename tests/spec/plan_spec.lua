-- Gradients as withgradient made them, which collectives and updates know without walking them, and as scripts leave
-- them: what a tree holds when it is used is what counts.
require "tests.spec.helper"
local cf = require "conflux"
local optim = cf.optim

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(3, setup, teardown)

local NAMES = on {"cpu:0", "cpu:1", "cpu:2"}

-- A list with a hole (a function), a table in two places, and a tensor in two.
local function make_model()
  local shared, tied = {w = cf.ones(2)}, cf.full(3, 2)
  return {{a = tied, b = cf.ones(3)}, function() end, shared, again = shared, tied = tied}
end

local function loss(m, c)
  return (m[1].a * c):sum() + (m[1].b * (c * 2)):sum() + (m[3].w * (c * 3)):sum()
end

-- The gradients of n replicas: replica i has i, 2 i and 3 i times `factor`.
local function gradients(models, factor)
  return cf.withdevices(function(i) return cf.gradient(loss, models[i], i * (factor or 1)) end, models)
end

local function models_on(n)
  local names = {}
  for i = 1, n do names[i] = NAMES[i] end
  return cf.replicate(make_model(), names)
end

describe("a gradient of several replicas", function()
  it("is reduced in all its tensors, those that are tied once", function()
    for n = 1, 3 do
      local g = gradients(models_on(n))
      assert.equal(g, cf.allreduce("+", g))
      local sum = n * (n + 1) / 2
      for i = 1, n do
        assert.tensor_equal(g[i][1].a, {sum, sum})
        assert.tensor_equal(g[i][1].b, {2 * sum, 2 * sum, 2 * sum})
        assert.tensor_equal(g[i][3].w, {3 * sum, 3 * sum})
        assert.is_true(rawequal(g[i][1].a, g[i].tied) and g[i][3] == g[i].again and g[i][2] == false)
      end
    end
  end)

  it("is reduced into one root, and by weights", function()
    local models = models_on(3)
    local g = gradients(models)
    cf.reduce("+", 2, g)
    assert.tensor_equal(g[1][1].a, {1, 1})
    assert.tensor_equal(g[2][1].a, {6, 6})
    g = gradients(models)
    cf.allreduce("avg", g, {weights = {3, 1, 0}})
    assert.tensor_equal(g[3][1].a, {1.25, 1.25})
    g = gradients(models)
    cf.reduce("avg", NAMES[1], g, {weights = {1, 1, 2}})
    assert.tensor_equal(g[1][1].a, {2.25, 2.25})
    assert.tensor_equal(g[3][1].a, {3, 3})
  end)

  it("becomes what the root's is when they are synchronized, with all that the script has put into it", function()
    local models = models_on(3)
    local changes = {
      function() end,
      function(g) g.note = "mine" end,
      function(g) setmetatable(g[1], {__metatable = "closed"}) end,
      function(g) cf.nn.buffer(g[1].b) end,
    }
    for k = 1, #changes do
      local g = gradients(models)
      changes[k](g[2])
      assert.equal(g, cf.synchronize(g, 2))
      for i = 1, 3 do
        assert.tensor_equal(g[i][1].a, {2, 2})
        assert.tensor_equal(g[i][3].w, {6, 6})
        assert.equal(k == 2 and "mine" or nil, g[i].note)
        assert.equal(k == 3 and "closed" or nil, getmetatable(g[i][1]))
        assert.equal(k == 4 and 2 or 3, #cf.nn.parameters(g[i]))
      end
    end
  end)

  it("is reduced as long as it lives, whatever gradients came after it", function()
    local models = models_on(2)
    local first, second = gradients(models), gradients(models, 10)
    cf.allreduce("+", {first[1], second[2]})
    cf.allreduce("+", {second[1], first[2]})
    assert.tensor_equal(first[1][1].a, {21, 21})
    assert.tensor_equal(second[2][3].w, {63, 63})
    assert.tensor_equal(first[2][1].a, {12, 12})
    assert.tensor_equal(second[1][3].w, {36, 36})
  end)

  it("is what the script has made of it: a tensor replaced, taken away, added, or put in a hole", function()
    local models = models_on(2)
    local changes = {
      function(g, i) g[1].b = cf.full(i, 3, {device = models.devices[i]}) end,
      function(g, i) g[1].extra = cf.full(i, 3, {device = models.devices[i]}) end,
      function(g, i) g[2] = cf.full(i, 3, {device = models.devices[i]}) end,
      function(g, i) g.again = {w = cf.full(i, 3, {device = models.devices[i]})} end,
      function(g, i) g[3] = {w = cf.full(i, 3, {device = models.devices[i]})} end,
    }
    local at = {
      function(g) return g[1].b end, function(g) return g[1].extra end, function(g) return g[2] end,
      function(g) return g.again.w end, function(g) return g[3].w end,
    }
    for k = 1, #changes do
      local g = gradients(models)
      local b = g[1][1].b
      for i = 1, 2 do changes[k](g[i], i) end
      cf.allreduce("+", g)
      for i = 1, 2 do assert.tensor_equal(at[k](g[i]), {3, 3, 3}) end
      assert.tensor_equal(b, k == 1 and {2, 2, 2} or {6, 6, 6})
    end
    local g = gradients(models)
    g[1][1].b, g[2][1].b = nil, nil
    cf.allreduce("+", g)
    assert.tensor_equal(g[2].tied, {3, 3})
  end)

  it("is refused where the script has made replicas differ", function()
    local models = models_on(2)
    local g = gradients(models)
    g[1][1].b = nil
    assert.refuses(function() cf.allreduce("+", g) end, "allreduce: '1.b' is missing from replica 1 (" .. NAMES[1])
    g = gradients(models)
    g[2].extra = cf.ones({1}, {device = NAMES[2]})
    assert.refuses(function() cf.allreduce("+", g) end, "allreduce: 'extra' is missing from replica 1 (" .. NAMES[1])
    g = gradients(models)
    g[1].n, g[2].n = 1, 2
    assert.refuses(function() cf.allreduce("+", g) end, "allreduce: numbers must be equal: 'n' is 1 in replica 1")
    for i = 1, 2 do assert.tensor_equal(g[i][1].a, {i, i}) end
  end)

  it("is refused by the names of its places, where the replicas' are one", function()
    local g = gradients(models_on(2))
    assert.refuses(function() cf.allreduce("+", {g[1], g[1]}) end,
      ("allreduce: replicas 1 (%s) and 2 (%s) share memory: '1.a' and '1.a'"):format(NAMES[1], NAMES[1]))
    assert.tensor_equal(g[1][1].a, {1, 1})
  end)

  it("is refused where replicas are no copies of one model", function()
    local a, b = {w = cf.ones(2)}, {w = cf.ones(3)}
    local g = {cf.gradient(function(m) return m.w:sum() end, a), cf.gradient(function(m) return m.w:sum() end, b)}
    assert.refuses(function() cf.allreduce("+", g) end, "allreduce: 'w' differs: [2] (float32")
    g[2] = cf.gradient(function(m) return m.v:sum() end, {v = cf.ones(2)})
    assert.refuses(function() cf.allreduce("+", g) end, "allreduce: 'w' is missing from replica 2")
  end)

  it("is reduced where a parameter is frozen in one replica alone", function()
    local models = models_on(2)
    cf.nn.freeze(models[2][1].b)
    local g = gradients(models)
    cf.allreduce("+", g)
    for i = 1, 2 do assert.tensor_equal(g[i][1].b, {2, 2, 2}) end
    for i = 1, 2 do assert.tensor_equal(g[i][1].a, {3, 3}) end
  end)

  it("is no longer held once the script drops it", function()
    local models = models_on(1)
    for _ = 1, 3 do devices.collect() end -- the records of earlier models go with them, one after another
    local before = cf.memory(NAMES[1]).blocks
    local function take() -- no register of a living frame holds the gradient afterwards
      local g = gradients(models)
      cf.allreduce("+", g)
      assert.is_true(cf.memory(NAMES[1]).blocks > before)
    end
    take()
    collectgarbage() -- one is enough
    cf.sync()
    assert.equal(before, cf.memory(NAMES[1]).blocks)
  end)
end)

describe("an update", function()
  local function one(m, c) return (m.w * c):sum() + (m.b * c):sum() end

  it("takes an earlier gradient for what it is", function()
    local model = {w = cf.ones(2), b = cf.zeros(2)}
    local state = optim.Descent(1):setup(model)
    local first, second = cf.gradient(one, model, 1), cf.gradient(one, model, 10)
    optim.update(state, model, first)
    assert.tensor_equal(model.w, {0, 0})
    optim.update(state, model, second)
    assert.tensor_equal(model.w, {-10, -10})
    optim.update(state, model, first)
    assert.tensor_equal(model.b, {-12, -12})
  end)

  it("takes a gradient as the script has changed it", function()
    local model = {w = cf.ones(2), b = cf.zeros(2)}
    local state = optim.Descent(1):setup(model)
    local g = cf.gradient(one, model, 1)
    g.b = cf.full(5, 2)
    optim.update(state, model, g)
    assert.tensor_equal(model.w, {0, 0})
    assert.tensor_equal(model.b, {-5, -5})
    g.w = nil
    assert.refuses(function() optim.update(state, model, g) end, "update: argument 'gradient': nothing at 'w'")
  end)

  it("takes the state as the script has changed it, again and again", function()
    local model = {w = cf.zeros(2), b = cf.zeros(2)}
    local state = optim.Momentum(1, 0.5):setup(model)
    local g = cf.gradient(one, model, 0)
    for k = 1, 3 do
      state.m.b = cf.full(2 * k, 2)
      optim.update(state, model, g)
      assert.tensor_equal(state.m.b, {k, k})
    end
    assert.tensor_equal(model.b, {-6, -6})
    assert.tensor_equal(model.w, {0, 0})
  end)
end)
