--- Blocks that the networks of the zoo are made of.
-- @module conflux.zoo.blocks
local check = require "conflux.check"
local conv = require "conflux.nn.conv"
local init = require "conflux.nn.initializers"
local layers = require "conflux.nn.layers"
local module = require "conflux.nn.module"
local norm = require "conflux.nn.norm"

local blocks = {}

-- Normal with the deviation sqrt(2 / fan out), where fan out is what one input pixel's channel reaches: He et al.,
-- "Delving Deep into Rectifiers" (2015).
local function he_normal(n_out, height, width, n_in)
  return init.normal({n_out, height, width, n_in}, {std = math.sqrt(2 / (n_out * height * width))})
end
blocks.he_normal = he_normal

--- A dense layer that starts as PyTorch's does: weight and bias uniform on +-1 / sqrt(in).
---@return conflux.Dense
function blocks.dense(n_in, n_out, act)
  local bound = 1 / math.sqrt(n_in)
  local layer = layers.Dense(n_in, n_out, act, {init = function(rows, columns)
    return init.uniform(rows, columns, {low = -bound, high = bound})
  end})
  layer.bias = init.uniform(n_out, {low = -bound, high = bound})
  return layer
end

---@class conflux.ConvNorm: conflux.Module
---@field conv conflux.Conv
---@field norm conflux.BatchNorm
local ConvNorm = module.layer "ConvNorm"

--- act(norm(conv(x)) + residual): a convolution that keeps the size, divided by the stride, and its batch norm.
function ConvNorm:init(n_in, n_out, kernel, stride, act)
  self.conv = conv.Conv(n_in, n_out, kernel,
    {stride = stride, pad = (kernel - 1) / 2, bias = false, init = he_normal})
  self.norm = norm.BatchNorm(n_out, act)
end

function ConvNorm:forward(x, residual)
  return self.norm(self.conv(x), residual)
end

function ConvNorm:folded(fold)
  self.conv = fold(self.conv)
  return fold(self.conv, self.norm) or self
end

blocks.ConvNorm = ConvNorm

---@class conflux.Residual: conflux.Module
---@field downsample? conflux.ConvNorm  what the shortcut does where it changes the shape
local Residual = module.layer "Residual"

--- Units one after the other, the last of which adds what the shortcut brings before its activation: He et al., "Deep
-- Residual Learning for Image Recognition" (2015).
---@param units conflux.ConvNorm[]
---@param downsample? conflux.ConvNorm
function Residual:init(units, downsample)
  for i = 1, #units do self[i] = units[i] end
  self.downsample = downsample
end

function Residual:forward(x)
  local y, n = x, #self
  for i = 1, n - 1 do y = self[i](y) end
  return self[n](y, self.downsample and self.downsample(x) or x)
end

function Residual:folded(fold)
  for i = 1, #self do self[i] = fold(self[i]) end
  self.downsample = fold(self.downsample)
  return self
end

blocks.Residual = Residual

--- Reads the options of a network: each is an integer of at least 1, `stem` "imagenet" or "small".
---@param fname string
---@param o table?
---@param defaults table<string, any>
---@param names string[]  of the options
---@return table
function blocks.options(fname, o, defaults, names)
  fname = "zoo." .. fname
  o = check.options(fname, o, names)
  local read = {}
  for _, name in ipairs(names) do
    local v = o[name]
    if v == nil then
      v = defaults[name]
    elseif name ~= "stem" then
      check.integer(fname, name, v, 1)
    elseif v ~= "imagenet" and v ~= "small" then
      check.wrong(fname, name, "'imagenet' or 'small'", v)
    end
    read[name] = v
  end
  return read
end

return blocks
