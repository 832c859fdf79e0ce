-- Learns y = x^2 on every device of the run: build/bin/conflux --devices "cpu*2" scripts/x2.lua
-- luacheck: no unused args
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local model  = nn.Chain(nn.Dense(1, 256, "tanh"), nn.Dense(256, 512, "tanh"),
                        nn.Dense(512, 256, "tanh"), nn.Dense(256, 1))
local models = cf.replicate(model)                  -- or (model, {"cuda:0", "cuda:1"})
local opt    = optim.Adam(1e-3)
local states = cf.withdevices(function(i, device) return opt:setup(models[i]) end)

-- Each step's samples are dealt out as evenly as they go: the mean is that of the samples, and a device that has none
-- (16 samples on 20 devices) counts nothing.
local X = cf.rand(16, 1)
local loader = cf.data.DataLoader({x = X, y = X ^ 2}, {batch = math.ceil(16 / #models)})
for epoch = 1, 10 do
  for step, batch in loader:epoch(epoch) do
    local losses, grads = cf.withdevices(function(i, device)
      return cf.withgradient(function(m) return nn.mse(m(batch[i].x), batch[i].y) end, models[i])
    end)
    cf.allreduce("avg", grads, {weights = batch})
    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
    cf.allreduce("avg", losses, {weights = batch})
    local values = {}
    for i = 1, #models do values[i] = ("%.6f"):format(losses[i]:item()) end
    print(("epoch %2d  losses %s"):format(epoch, table.concat(values, "  ")))
  end
end
