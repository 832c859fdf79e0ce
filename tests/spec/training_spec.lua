-- The promises of replicas for a training run: n replicas are one with n times the batch, and equal runs are equal.
require "tests.spec.helper"
local devices = require "tests.spec.devices"
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim
local on = devices.on

devices.use(5, setup, teardown)

local STEPS, BATCH = 20, 6

local function names(n)
  local list = {}
  for i = 1, n do list[i] = on("cpu:" .. i - 1) end
  return list
end

local function make_model()
  cf.seed(42)
  return nn.Chain(nn.Dense(7, 16, "tanh"), nn.LayerNorm(16), nn.SkipConnection(nn.Dense(16, 16, "relu"), "+"),
    nn.Dense(16, 3))
end

-- Trains for STEPS steps on n devices, each with 1/n of the same samples; the parameters of the first replica.
local function train(n, samples, make_optimiser)
  local models = cf.replicate(make_model(), names(n))
  local opt = make_optimiser()
  local states = cf.withdevices(function(i) return opt:setup(models[i]) end, models)
  cf.seed(7)
  local data = {x = cf.randn(STEPS * samples, 7), id = cf.randint(0, 2, STEPS * samples)}
  local loader = cf.data.DataLoader(data, {batch = samples / n, devices = names(n), shuffle = true, last = "drop"})
  for _, batch in loader:epoch(1) do
    local grads = cf.withdevices(function(i)
      return (cf.gradient(function(m) return nn.crossentropy(m(batch[i].x), batch[i].id) end, models[i]))
    end, models)
    cf.allreduce("avg", grads)
    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end, models)
  end
  assert.equal(STEPS, states[n].step)
  loader:release()
  data.x:release()
  data.id:release()
  return models
end

local function values(model)
  local all = {}
  for i, t in ipairs((nn.parameters(model))) do all[i] = t:totable() end
  return all
end

local function momentum() return optim.Momentum(0.05, 0.9, {decay = 1e-3}) end

describe("replicas", function()
  for _, n in ipairs {1, 2, 3, 5} do
    it(("%d of batch B train as one of batch %d B"):format(n, n), function()
      local one = nn.parameters(train(1, n * BATCH, momentum)[1])
      local models = train(n, n * BATCH, momentum)
      local start = nn.parameters(make_model())
      for k, t in ipairs((nn.parameters(models[1]))) do
        assert.tensor_near(t, one[k], 1e-5, 1e-6)
        assert.is_not.same(start[k]:totable(), t:totable())
      end
    end)
  end

  it("hold the same bits on every device after training", function()
    local models = train(3, 3 * BATCH, function() return optim.AdamW(1e-2) end)
    local first = values(models[1])
    for i = 2, 3 do assert.same(first, values(models[i])) end
  end)

  it("give the same bits in equal runs", function()
    for _, n in ipairs {2, 3, 5} do
      local make = function() return optim.Chain(optim.ClipNorm(1), optim.Adam(optim.onecycle(1e-2, STEPS))) end
      local first = values(train(n, n * BATCH, make)[1])
      for _ = 1, 3 do assert.same(first, values(train(n, n * BATCH, make)[1])) end
    end
  end)

  it("hold a flat line of memory", function()
    local function in_use()
      cf.sync()
      devices.collect()
      local sum = 0
      for i = 1, 5 do sum = sum + cf.memory(on("cpu:" .. i - 1)).in_use end
      return sum
    end
    local held = 0 -- by the models of one run, each tensor at a multiple of 256 bytes
    for _, t in ipairs(cf.nn.parameters(train(3, 3 * BATCH, momentum))) do
      held = held + math.ceil(t:numel() * 4 / 256) * 256
    end
    local before = in_use()
    for _ = 1, 2 * STEPS + 20 do train(3, 3 * BATCH, momentum) end
    -- dead objects may look alive to the collector in the stacks of coroutines: the models, the states and the
    -- gradients of one run, but not of each
    local more = in_use() - before
    assert.is_true(more <= (STEPS + 4) * held, ("%d bytes more; the models of a run have %d"):format(more, held))
  end)
end)
