-- Learns y = x^2 on every device of the run: build/bin/conflux --devices "cpu*2" scripts/x2.lua
-- luacheck: no unused args
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local model  = nn.Chain(nn.Dense(1, 256, "tanh"), nn.Dense(256, 512, "tanh"),
                        nn.Dense(512, 256, "tanh"), nn.Dense(256, 1))
local models = cf.replicate(model)                  -- or (model, {"cuda:0", "cuda:1"})
local opt    = optim.Adam(1e-3)
local states = cf.withdevices(function(i, device) return opt:setup(models[i]) end)

local X = cf.rand(16, 1)
local Y = X ^ 2
local losses = {}
for epoch = 1, 10 do
  local grads = cf.withdevices(function(i, device)
    local x, y = device(X), device(Y)
    local l, g = cf.withgradient(function(m) return ((m(x) - y) ^ 2):sum() end, models[i])
    losses[#losses + 1] = l
    return g
  end)
  cf.allreduce("avg", grads)
  cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
  local values = {}
  for i = 1, #models do values[i] = ("%.4f"):format(losses[#losses - #models + i]:item()) end
  print(("epoch %2d  losses %s"):format(epoch, table.concat(values, "  ")))
end
