--- nn: layers, initialisers, losses, and what is done to a model.
--
-- A function here takes any nested table with tensors in it, a module or not; modules have the same as methods.
-- @module conflux.nn
local each = require("conflux.core").each
local init = require "conflux.nn.initializers"
local module = require "conflux.nn.module"

local nn = {
  init = init, layer = module.layer, buffer = module.buffer, parameters = module.parameters,
  train = module.train, eval = module.eval, freeze = module.freeze, unfreeze = module.unfreeze,
}
for _, part in ipairs {"layers", "conv", "norm", "pool", "fold", "losses"} do
  for name, v in each, require("conflux.nn." .. part) do nn[name] = v end
end

return nn
