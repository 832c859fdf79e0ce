--- Networks for small images.
-- @module conflux.zoo.small
local blocks = require "conflux.zoo.blocks"
local conv = require "conflux.nn.conv"
local layers = require "conflux.nn.layers"
local pool = require "conflux.nn.pool"

local Chain, Dense, Flatten = layers.Chain, layers.Dense, layers.Flatten

local zoo = {}

--- Two hidden layers of `width`, over `inputs` numbers a sample.
---@param o? {inputs: integer?, width: integer?, classes: integer?}  default: 784, 256, 10
---@return conflux.Chain
function zoo.mlp(o)
  o = blocks.options("mlp", o, {inputs = 784, width = 256, classes = 10}, {"inputs", "width", "classes"})
  return Chain(Flatten(), Dense(o.inputs, o.width, "relu"), Dense(o.width, o.width, "relu"),
    Dense(o.width, o.classes))
end

--- LeNet-5 (LeCun et al. 1998) with relu and max-pooling, over images of 28 x 28; `width` channels at first.
---@param o? {channels: integer?, width: integer?, classes: integer?}  default: 1, 6, 10
---@return conflux.Chain
function zoo.lenet(o)
  o = blocks.options("lenet", o, {channels = 1, width = 6, classes = 10}, {"channels", "width", "classes"})
  local more = math.floor(o.width * 16 / 6)
  return Chain(conv.Conv(o.channels, o.width, 5, "relu", {pad = 2}), pool.MaxPool(2),
    conv.Conv(o.width, more, 5, "relu"), pool.MaxPool(2), Flatten(), Dense(more * 5 * 5, 120, "relu"),
    Dense(120, 84, "relu"), Dense(84, o.classes))
end

return {zoo = zoo, names = {}}
