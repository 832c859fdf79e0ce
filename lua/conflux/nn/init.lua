--- nn: layers, initialisers, losses, and what is done to a model.
--
-- A function here takes any nested table with tensors in it, a module or not; modules have the same as methods.
-- @module conflux.nn
local each = require("conflux.core").each
local init = require "conflux.nn.initializers"
local layers = require "conflux.nn.layers"
local losses = require "conflux.nn.losses"
local module = require "conflux.nn.module"

local nn = {
  init = init, layer = module.layer, buffer = module.buffer, parameters = module.parameters,
  train = module.train, eval = module.eval, freeze = module.freeze, unfreeze = module.unfreeze,
}
for name, class in each, layers do nn[name] = class end
for name, loss in each, losses do nn[name] = loss end

return nn
