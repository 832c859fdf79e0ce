-- Optimisers and schedules, beside PyTorch's values (tests/fixtures/make_reference.py).
require "tests.spec.helper"
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local reference = cf.load "tests/fixtures/reference.safetensors"
local recorded, rates = reference.optimisers, reference.schedules

local rules = {
  Descent = {0.1}, Momentum = {0.05, 0.9}, Nesterov = {0.05, 0.9}, RMSProp = {0.01}, Adam = {0.02}, AdamW = {0.02},
  AdaGrad = {0.05}, AdaDelta = {1}, NAdam = {0.02}, Lion = {0.01},
}

local function start()
  return {recorded.start[1]:clone(), recorded.start[2]:clone()}
end

local function gradient(t)
  return {recorded.grads[1][t], recorded.grads[2][t]}
end

-- 20 updates with the recorded gradients.
local function compare(opt, case)
  local model = start()
  local state = opt:setup(model)
  for t = 1, 20 do
    optim.update(state, model, gradient(t))
    if t == 1 or t == 20 then
      for k = 1, 2 do assert.tensor_near(model[k], case["after" .. t][k]) end
    end
  end
  assert.equal(20, state.step)
end

-- An optimiser of the rule with its recorded numbers.
local function make(name, o)
  local numbers = rules[name]
  if numbers[2] then return optim[name](numbers[1], numbers[2], o) end
  return optim[name](numbers[1], o)
end

describe("optimisers", function()
  for name in pairs(rules) do
    it(name .. " makes 20 updates as PyTorch does", function()
      compare(make(name, {decay = 0}), recorded[name])
    end)

    it(name .. " decays as PyTorch does", function()
      compare(make(name, {decay = 0.1}), recorded[name .. "_decay"])
    end)
  end

  it("clip by the norm of all gradients as PyTorch does", function()
    compare(optim.Chain(optim.ClipNorm(1.5), make "Momentum"), recorded.ClipNorm)
  end)

  it("clip by value as PyTorch does", function()
    compare(optim.Chain(optim.ClipValue(0.3), make "Momentum"), recorded.ClipValue)
  end)

  it("have PyTorch's defaults", function()
    local adam, adamw, rms = optim.Adam(), optim.AdamW(), optim.RMSProp()
    assert.same({1e-3, {0.9, 0.999}, 1e-8, 0}, {adam.lr, adam.betas, adam.eps, adam.decay})
    assert.equal(0.01, adamw.decay)
    assert.same({0.01, 0.99, 1e-8}, {rms.lr, rms.rho, rms.eps})
    assert.same({1, 0.9, 1e-6}, {optim.AdaDelta().lr, optim.AdaDelta().rho, optim.AdaDelta().eps})
    assert.equal(1e-10, optim.AdaGrad().eps)
    assert.equal(2e-3, optim.NAdam().lr)
    assert.same({1e-4, {0.9, 0.99}}, {optim.Lion().lr, optim.Lion().betas})
  end)

  it("print as they are made", function()
    assert.equal("Adam(0.001, eps = 1e-08, betas = {0.9, 0.999})", tostring(optim.Adam(1e-3)))
    assert.equal("Chain(ClipNorm(1), Momentum(0.1, rho = 0.9))",
      tostring(optim.Chain(optim.ClipNorm(1), optim.Momentum(0.1))))
  end)

  it("refuse numbers and options that they cannot use", function()
    assert.refuses(function() optim.Adam(-1) end, "Adam: argument 'lr'")
    assert.refuses(function() optim.Adam(0 / 0) end, "Adam: argument 'lr'")
    assert.refuses(function() optim.Adam(1, {rho = 1}) end, "Adam: unknown option 'rho': known are betas, decay, eps")
    assert.refuses(function() optim.Adam(1, {betas = {0.9, 1}}) end, "Adam: argument 'betas[2]'")
    assert.refuses(function() optim.Momentum(1, 1.5) end, "Momentum: argument 'rho'")
    assert.refuses(function() optim.ClipNorm(0) end, "ClipNorm: argument 'limit'")
    assert.refuses(function() optim.Chain(optim.ClipNorm(1)) end, "Chain: no rule")
    assert.refuses(function() optim.Chain(optim.Adam(1), optim.ClipNorm(1)) end, "Chain: ClipNorm comes after")
    assert.refuses(function() optim.Chain(optim.ClipValue(1), optim.ClipNorm(1), optim.Adam(1)) end,
      "Chain: ClipNorm comes before ClipValue")
    assert.refuses(function() optim.ClipNorm(1):setup {cf.ones(1)} end, "setup: ClipNorm is no rule")
  end)
end)

describe("setup", function()
  it("makes a state with zeros of the model's form", function()
    local model = nn.Chain(nn.Dense(3, 2), "relu", nn.Dense(2, 1))
    local state = optim.Adam(1e-3):setup(model)
    assert.equal(0, state.step)
    assert.tensor_equal(state.m[1].weight, cf.zeros(2, 3))
    assert.tensor_equal(state.v[3].bias, cf.zeros(1))
    assert.is_nil(optim.Descent(1):setup(model).m)
  end)

  it("takes rates and decays of single parameters from a function of path and tensor", function()
    local model = {w = cf.ones(2), b = cf.ones(2), c = cf.ones(2)}
    local g = {w = cf.ones(2), b = cf.ones(2), c = cf.ones(2)}
    local paths = {}
    local opt = optim.Descent(0.5, {decay = 0.1})
    local state = opt:setup(model, function(path, t)
      paths[path] = t.shape
      if path == "b" then return {decay = 0} end
      if path == "c" then return {scale = 2} end
    end)
    optim.update(state, model, g)
    assert.same({w = {2}, b = {2}, c = {2}}, paths)
    assert.tensor_near(model.w, {1 - 0.55, 1 - 0.55})
    assert.tensor_near(model.b, {0.5, 0.5})
    assert.tensor_near(model.c, {1 - 1.1, 1 - 1.1})
    assert.refuses(function() opt:setup(model, function() return {rate = 1} end) end, "setup: unknown option 'rate'")
  end)
end)

describe("update", function()
  local function problem()
    local model = nn.Chain(nn.Dense(2, 3), nn.Dense(3, 1))
    local state = optim.Adam(0.1):setup(model)
    local g = cf.gradient(function(m) return m(cf.ones(4, 2)):sum() end, model)
    return model, state, g
  end

  it("works in place and returns the state and the model", function()
    local model, state, g = problem()
    local weight, before = model[1].weight, model[1].weight:totable()
    local s, m = optim.update(state, model, g)
    assert.is_true(rawequal(s, state) and rawequal(m, model))
    assert.is_true(model[1].weight == weight)
    assert.is_not.same(before, weight:totable())
  end)

  it("leaves frozen parameters and buffers as they are", function()
    local model = {nn.Dense(2, 2), nn.freeze(nn.Dense(2, 2)), state = nn.buffer(cf.ones(2))}
    local state = optim.AdamW(0.1, {decay = 0.5}):setup(model)
    local frozen = model[2].weight:totable()
    local g = cf.gradient(function(m) return m[2](m[1](cf.ones(1, 2))):sum() end, model)
    optim.update(state, model, g)
    assert.tensor_equal(model[2].weight, frozen)
    assert.tensor_equal(model.state, {1, 1})
  end)

  it("follows parameters that are frozen and unfrozen meanwhile", function()
    local model, state, g = problem()
    optim.update(state, model, g)
    local kept = nn.freeze(model[1]).weight:totable()
    optim.update(state, model, cf.gradient(function(m) return m(cf.ones(4, 2)):sum() end, model))
    assert.tensor_equal(model[1].weight, kept)
    nn.unfreeze(model[1])
    optim.update(state, model, cf.gradient(function(m) return m(cf.ones(4, 2)):sum() end, model))
    assert.is_not.same(kept, model[1].weight:totable())
  end)

  it("updates a tied parameter once", function()
    local w = cf.ones(2)
    local model = {a = w, b = w}
    local state = optim.Descent(1):setup(model)
    optim.update(state, model, cf.gradient(function(m) return (m.a + m.b):sum() end, model))
    assert.tensor_equal(w, {-1, -1})
  end)

  it("updates a single tensor", function()
    local w = cf.ones(2)
    local state = optim.Momentum(0.5):setup(w)
    optim.update(state, w, cf.ones(2))
    assert.tensor_equal(w, {0.5, 0.5})
  end)

  it("keeps the states of half precision parameters in float32", function()
    local model = {cf.ones(3, {dtype = "bfloat16"})}
    local state = optim.Adam(0.1):setup(model)
    assert.equal("float32", state.m[1].dtype)
    optim.update(state, model, {cf.ones(3, {dtype = "bfloat16"})})
    assert.tensor_near(model[1]:to "float32", {0.9, 0.9, 0.9}, 1e-2)
  end)

  it("uses the state's tensors that are there now", function()
    local w = {cf.zeros(2)}
    local state = optim.Momentum(1, 0.5):setup(w)
    optim.update(state, w, {cf.ones(2)})
    state.m[1] = cf.full(4, 2)
    collectgarbage()
    collectgarbage()
    optim.update(state, w, {cf.ones(2)})
    assert.tensor_equal(state.m[1], cf.full(3, 2))
    assert.tensor_equal(w[1], cf.full(-4, 2))
    state.m[1] = nil
    assert.refuses(function() optim.update(state, w, {cf.ones(2)}) end,
      "update: the state has no place ('m') for parameter '1': call setup again")
  end)

  it("refuses a parameter that was replaced, by path", function()
    local model, state, g = problem()
    optim.update(state, model, g)
    model[2].weight = cf.ones(1, 3)
    assert.refuses(function() optim.update(state, model, g) end,
      "update: parameter '2.weight' was replaced: call setup again")
  end)

  it("refuses a model that has changed since setup", function()
    local model, state = problem()
    model[3] = nn.Dense(1, 1)
    local g = cf.gradient(function(m) return m(cf.ones(4, 2)):sum() end, model)
    assert.refuses(function() optim.update(state, model, g) end,
      "update: the state has no place ('m') for parameter '3.weight': call setup again")
  end)

  it("refuses the state of another model", function()
    local model, state, g = problem()
    optim.update(state, model, g)
    local other, _, h = problem()
    assert.refuses(function() optim.update(state, other, h) end,
      "update: this state belongs to another model: call setup again")
  end)

  it("refuses gradients that do not match, by path", function()
    local model, state, g = problem()
    g[2].bias = nil
    assert.refuses(function() optim.update(state, model, g) end, "update: argument 'gradient': nothing at '2.bias'")
    g[2].bias = cf.ones(7)
    assert.refuses(function() optim.update(state, model, g) end, "update: ")
    assert.refuses(function() optim.update(state, model, nil) end, "update: argument 'gradient'")
    assert.refuses(function() optim.update({}, model, g) end, "update: argument 'state': expected a state")
    assert.equal(0, state.step)
  end)
end)

describe("adjust", function()
  it("changes the rate of one state alone", function()
    local a, b = {cf.zeros(1)}, {cf.zeros(1)}
    local opt = optim.Descent(1)
    local s, t = opt:setup(a), opt:setup(b)
    assert.is_true(rawequal(optim.adjust(s, {lr = 0.25}), s))
    optim.update(s, a, {cf.ones(1)})
    optim.update(t, b, {cf.ones(1)})
    assert.tensor_equal(a[1], {-0.25})
    assert.tensor_equal(b[1], {-1})
    assert.refuses(function() optim.adjust(s, {rate = 1}) end, "adjust: unknown option 'rate'")
  end)
end)

describe("schedules", function()
  local function same(name, schedule)
    local want = rates[name]:totable()
    for t = 1, #want do
      assert.is_true(math.abs(schedule(t) - want[t]) <= 1e-12, ("%s(%d): %.17g, PyTorch has %.17g"):format(name, t,
        schedule(t), want[t]))
    end
  end

  it("are PyTorch's, the first update having count 1", function()
    same("step", optim.step(0.5, 7, 0.3))
    same("exponential", optim.exponential(0.5, 0.93))
    same("cosine", optim.cosine(0.5, 40, 0.01))
    same("onecycle", optim.onecycle(0.5, 40))
    same("onecycle_options", optim.onecycle(0.5, 37, {start = 0.2, div = 10, final_div = 100}))
  end)

  it("stay at their last rate beyond their end", function()
    assert.near(0, optim.cosine(1, 10)(50), 1e-15)
    assert.near(0.5 / 25 / 1e4, optim.onecycle(0.5, 40)(100), 1e-15)
  end)

  it("constant is constant, and warmup rises to what follows", function()
    assert.equal(0.3, optim.constant(0.3)(17))
    local f = optim.warmup(4, optim.step(1, 2, 0.5))
    assert.same({0.25, 0.5, 0.75, 1, 1, 1, 0.5, 0.5, 0.25}, {f(1), f(2), f(3), f(4), f(5), f(6), f(7), f(8), f(9)})
    assert.equal(0.1, optim.warmup(5, 0.1)(6))
  end)

  it("drive the rate of updates", function()
    local model = {cf.zeros(1)}
    local state = optim.Descent(optim.step(1, 1, 0.5)):setup(model)
    for _ = 1, 3 do optim.update(state, model, {cf.ones(1)}) end
    assert.tensor_equal(model[1], {-1.75})
    assert.refuses(function()
      optim.update(optim.Descent(function() return "fast" end):setup(model), model, {cf.ones(1)})
    end, "update: the schedule gave 'fast' for update 1")
  end)
end)

describe("a parameter that was frozen for a while", function()
  -- 30 updates of `model[2]`, frozen for the first ten; returns it after each of the others.
  local function run(opt, freezes)
    local w = cf.tensor {1, 2}
    local model = {cf.tensor {1, 2}, w}
    local state, after = opt:setup(model), {}
    if freezes then nn.freeze(w) end
    for t = 1, freezes and 30 or 20 do
      if t == 11 and freezes then nn.unfreeze(w) end
      local g = cf.tensor {0.1 * (freezes and t - 10 or t), 1}
      optim.update(state, model, {cf.ones(2), freezes and t <= 10 and cf.zeros(2) or g})
      if not freezes or t > 10 then after[#after + 1] = w:clone() end
    end
    return after, state
  end

  for name in pairs(rules) do
    it("is updated by " .. name .. " as if the updates that it missed had not been", function()
      local opt = make(name, {decay = 0.1})
      local plain = run(opt)
      local paused, state = run(opt, true)
      for t = 1, 20 do assert.tensor_equal(paused[t], plain[t]) end
      assert.equal(30, state.step)
      assert.same({["2"] = 10}, state.missed)
    end)
  end

  it("takes a first step of Adam's of the rate, after 2,000 updates", function()
    local w = cf.tensor {1}
    local model = {cf.tensor {1}, nn.freeze(w)}
    local state = optim.Adam(0.01):setup(model)
    for _ = 1, 2000 do optim.update(state, model, {cf.ones(1), cf.zeros(1)}) end
    assert.tensor_equal(w, {1})
    nn.unfreeze(w)
    optim.update(state, model, {cf.ones(1), cf.ones(1)})
    assert.tensor_near(w, {0.99})
  end)

  it("is counted by copies and files of the state, too", function()
    local w = cf.tensor {1}
    local model = {cf.tensor {1}, nn.freeze(w)}
    local state = optim.Adam(0.01):setup(model)
    for _ = 1, 50 do optim.update(state, model, {cf.ones(1), cf.zeros(1)}) end
    nn.unfreeze(w)
    local path = os.tmpname()
    cf.save(path, state)
    local loaded = optim.Adam(0.01):setup(model)
    cf.load(path, {into = loaded})
    os.remove(path)
    local replicas = cf.replicate(model, {cf.zeros(1).device})
    local states = cf.replicate(state, {cf.zeros(1).device})
    optim.update(loaded, model, {cf.zeros(1), cf.ones(1)})
    optim.update(states[1], replicas[1], {cf.zeros(1), cf.ones(1)})
    assert.tensor_near(w, {0.99})
    assert.tensor_near(replicas[1][2], {0.99})
  end)

  it("is clipped with the others by the norm of all", function()
    local model = {cf.zeros(1), nn.freeze(cf.zeros(1))}
    local state = optim.Chain(optim.ClipNorm(1), optim.Descent(1)):setup(model)
    optim.update(state, model, {cf.full(0, 1), cf.full(0, 1)})
    nn.unfreeze(model[2])
    optim.update(state, model, {cf.full(3, 1), cf.full(4, 1)})
    assert.tensor_near(model[1], {-0.6})
    assert.tensor_near(model[2], {-0.8})
  end)
end)

describe("the state of a model", function()
  local function problem()
    local model = nn.Chain(nn.Dense(2, 3, "tanh"), nn.Dense(3, 1))
    return model, cf.gradient(function(m) return m(cf.ones(4, 2)):sum() end, model)
  end

  it("does not update another one, from its setup on", function()
    local a, b, g = problem(), problem()
    local state = optim.Adam(0.1):setup(a)
    assert.refuses(function() optim.update(state, b, g) end,
      "update: this state belongs to another model: call setup again")
    assert.equal(0, state.step)
    a = nil -- luacheck: ignore
    collectgarbage()
    collectgarbage()
    assert.refuses(function() optim.update(state, b, g) end,
      "update: this state belongs to another model: call setup again")
  end)

  it("belongs to no model where it is a copy, until it is used", function()
    local a, g = problem()
    local b, h = problem()
    local copy = cf.replicate(optim.Adam(0.1):setup(a), {cf.zeros(1).device})[1]
    optim.update(copy, b, h)
    assert.refuses(function() optim.update(copy, a, g) end, "update: this state belongs to another model")
  end)

  it("is that of its parameters, in whatever table they lie", function()
    local w = cf.ones(1)
    local state = optim.Descent(1):setup {w}
    optim.update(state, {w}, {cf.ones(1)})
    assert.tensor_equal(w, {0})
  end)
end)

describe("a model over several devices", function()
  require "tests.spec.devices".use(2, setup, teardown)
  local here
  before_each(function() here = cf.devices() end)

  local function parameters(devices)
    return {a = cf.tensor({3, 4}, {device = devices[1]}), b = cf.tensor({1, 2, 2}, {device = devices[2]}),
      c = cf.tensor({{5}}, {device = devices[1]})}
  end
  local function train(opt, devices)
    local model = parameters(devices)
    local state = opt:setup(model)
    for t = 1, 5 do
      local g = cf.gradient(function(m)
        return ((m.a * m.a):sum() + (m.b * m.b):sum():to(devices[1]) * t + m.c:sum())
      end, model)
      optim.update(state, model, g)
    end
    return model, state
  end

  for name in pairs(rules) do
    it("is trained by one " .. name .. " as on one device, clipped by the norm of all", function()
      local opt = optim.Chain(optim.ClipNorm(0.5), make(name))
      local one, many = train(opt, {here[1], here[1]}), train(opt, here)
      for _, key in ipairs {"a", "b", "c"} do assert.tensor_near(many[key]:to(here[1]), one[key]) end
      assert.equal(here[2], many.b.device)
    end)
  end

  it("may have been frozen in part", function()
    local model = parameters(here)
    nn.freeze(model.b)
    local state = optim.Adam(0.1):setup(model)
    local function g() return {a = cf.ones(2), b = cf.ones(3, {device = here[2]}), c = cf.ones(1, 1)} end
    for _ = 1, 3 do optim.update(state, model, g()) end
    assert.tensor_equal(model.b, {1, 2, 2})
    nn.unfreeze(model.b)
    optim.update(state, model, g())
    assert.tensor_near(model.b, {0.9, 1.9, 1.9})
    assert.tensor_near(model.a, {2.6, 3.6})
  end)
end)
