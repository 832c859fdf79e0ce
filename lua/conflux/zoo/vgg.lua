--- VGG (Simonyan and Zisserman 2014) as torchvision has it, without batch norm.
--
--     {1 convolutions and pools, 2 mean, 3 flatten, 4 head}
-- @module conflux.zoo.vgg
local blocks = require "conflux.zoo.blocks"
local check = require "conflux.check"
local conv = require "conflux.nn.conv"
local core = require "conflux.core"
local init = require "conflux.nn.initializers"
local layers = require "conflux.nn.layers"
local module = require "conflux.nn.module"
local pool = require "conflux.nn.pool"

local Chain, Dense, Dropout = layers.Chain, layers.Dense, layers.Dropout

local OPTIONS, DEFAULTS = {"classes", "channels", "width"}, {classes = 1000, channels = 3, width = 64}
local SIZE = 7      -- of the image that the head sees
local HIDDEN = 64   -- times the width: of the head's inner layers

---@class conflux.FlattenChannels: conflux.Module
local FlattenChannels = module.layer "FlattenChannels"

--- [n, h, w, c] becomes [n, c h w], channels first, as in PyTorch: so weights of a dense layer behind it are the same.
function FlattenChannels.forward(_, x)
  if not core.is_tensor(x) or x._ndim ~= 4 then
    check.wrong("FlattenChannels", "x", "images [n, height, width, channels]", x)
  end
  local sizes = x.shape
  return x:permute(1, 4, 2, 3):reshape(sizes[1], sizes[2] * sizes[3] * sizes[4])
end

function FlattenChannels.describe()
  return "FlattenChannels()"
end

local function gaussian(n_out, n_in)
  return init.normal({n_out, n_in}, {std = 0.01})
end

local function head(n_in, hidden, classes)
  return Chain(Dense(n_in, hidden, "relu", {init = gaussian}), Dropout(0.5),
    Dense(hidden, hidden, "relu", {init = gaussian}), Dropout(0.5), Dense(hidden, classes, {init = gaussian}))
end

---@class conflux.VGGOptions
---@field classes integer?   default: 1000
---@field channels integer?  of the images; default: 3
---@field width integer?     channels of the first convolution; default: 64

local DEPTHS = {vgg11 = {1, 1, 2, 2, 2}, vgg16 = {2, 2, 3, 3, 3}, vgg19 = {2, 2, 4, 4, 4}}

-- Five stages of 3x3 convolutions, of twice the width each but the last, with a pool behind each.
local function vgg(arch, options)
  local o, depths = blocks.options(arch, options, DEFAULTS, OPTIONS), DEPTHS[arch]
  local features, n, width = Chain(), o.channels, o.width
  for stage = 1, #depths do
    for _ = 1, depths[stage] do
      features[#features + 1] = conv.Conv(n, width, 3, "relu", {pad = 1, init = blocks.he_normal})
      n = width
    end
    features[#features + 1] = pool.MaxPool(2)
    width = math.min(width * 2, o.width * 8)
  end
  local model = Chain(features, pool.AdaptiveMeanPool(SIZE), FlattenChannels(),
    head(n * SIZE * SIZE, HIDDEN * o.width, o.classes))
  model.arch = arch
  return model
end

local zoo = {}

--- VGG-11 (Simonyan and Zisserman 2014) without batch norm, over images [n, height, width, channels].
---@param o? conflux.VGGOptions
---@return conflux.Chain
function zoo.vgg11(o)
  return (vgg("vgg11", o))
end

--- VGG-16 (Simonyan and Zisserman 2014) without batch norm, over images [n, height, width, channels].
---@param o? conflux.VGGOptions
---@return conflux.Chain
function zoo.vgg16(o)
  return (vgg("vgg16", o))
end

--- VGG-19 (Simonyan and Zisserman 2014) without batch norm, over images [n, height, width, channels].
---@param o? conflux.VGGOptions
---@return conflux.Chain
function zoo.vgg19(o)
  return (vgg("vgg19", o))
end

-- torchvision numbers convolutions, their activations and the pools, from 0: here the activations are in the
-- convolutions.
local function names_of(depths)
  local numbers, place, number = {}, 1, 0
  for stage = 1, #depths do
    for _ = 1, depths[stage] do
      numbers[place], place, number = number, place + 1, number + 2
    end
    place, number = place + 1, number + 1
  end
  local dense = {[1] = 0, [3] = 3, [5] = 6}
  return function(path)
    local part, i, field = path:match "^([14])%.(%d+)%.(%a+)$"
    if not part then return nil end
    i = tonumber(i)
    if part == "1" then return numbers[i] and ("features.%d.%s"):format(numbers[i], field) end
    return dense[i] and ("classifier.%d.%s"):format(dense[i], field)
  end
end

local names = {}
for arch, depths in core.each, DEPTHS do names[arch] = names_of(depths) end

return {zoo = zoo, names = names}
