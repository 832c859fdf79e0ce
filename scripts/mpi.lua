-- Learns y = x^2 on several processes, as the example of FluxMPI.jl does: build/bin/conflux-run -n 2 scripts/mpi.lua
local cf = require "conflux"
local dist, nn, optim = cf.dist, cf.nn, cf.optim

dist.init()
cf.seed(dist.rank()) -- each rank draws a model of its own

local device = cf.devices()[1] -- of this rank
local model  = nn.Chain(nn.Dense(1, 256, "tanh"), nn.Dense(256, 512, "tanh"), nn.Dense(512, 256, "tanh"),
                        nn.Dense(256, 1))
model = dist.synchronize(device(model))
local opt    = dist.Optimizer(optim.Adam(1e-3)) -- the mean of the ranks' gradients
local state  = dist.synchronize(opt:setup(model))

-- The ranks share each step of 16 samples.
local x = dist.bcast(cf.rand(16, 1))
local loader = cf.data.DataLoader({x = x, y = x ^ 2},
  {batch = math.ceil(16 / dist.size()), last = "pad", devices = {device}})

for epoch = 1, 100 do
  for _, batch in loader:epoch(epoch) do
    local loss, gradient = cf.withgradient(function(m) return nn.mse(m(batch[1].x), batch[1].y) end, model)
    optim.update(state, model, gradient)
    if epoch % 20 == 0 then dist.println(("epoch %3d  loss %.6f"):format(epoch, loss:item())) end
  end
end
assert(dist.same(model))
dist.println0 "all ranks have the same model"
