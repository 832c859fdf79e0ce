--- Residual networks (He et al. 2015) as torchvision has them: of the bottlenecks the 3x3 convolution has the stride.
--
--     {1 stem, 2 pool, 3 4 5 6 stages of blocks, 7 mean, 8 flatten, 9 head}
-- @module conflux.zoo.resnet
local blocks = require "conflux.zoo.blocks"
local core = require "conflux.core"
local layers = require "conflux.nn.layers"
local pool = require "conflux.nn.pool"

local ConvNorm, Residual, Chain = blocks.ConvNorm, blocks.Residual, layers.Chain

local EXPANSION = 4 -- of a bottleneck's channels
local OPTIONS = {"classes", "channels", "width", "stem"}
local DEFAULTS = {classes = 1000, channels = 3, width = 64, stem = "imagenet"}

---@class conflux.ResNetOptions
---@field classes integer?              default: 1000
---@field channels integer?             of the images; default: 3
---@field width integer?                channels behind the stem; default: 64
---@field stem "imagenet"|"small"|nil   "small" leaves small images their size; default: "imagenet"

local function basic(n_in, width, stride)
  local downsample = (stride ~= 1 or n_in ~= width) and ConvNorm(n_in, width, 1, stride) or nil
  return Residual({ConvNorm(n_in, width, 3, stride, "relu"), ConvNorm(width, width, 3, 1, "relu")}, downsample), width
end

local function bottleneck(n_in, width, stride)
  local n_out = width * EXPANSION
  local downsample = (stride ~= 1 or n_in ~= n_out) and ConvNorm(n_in, n_out, 1, stride) or nil
  return Residual({ConvNorm(n_in, width, 1, 1, "relu"), ConvNorm(width, width, 3, stride, "relu"),
    ConvNorm(width, n_out, 1, 1, "relu")}, downsample), n_out
end

-- For images of ImageNet's size a quarter of the height and width is left behind the stem; for small ones all.
local function stem(o)
  if o.stem == "small" then return ConvNorm(o.channels, o.width, 3, 1, "relu"), "identity" end
  return ConvNorm(o.channels, o.width, 7, 2, "relu"), pool.MaxPool(3, {stride = 2, pad = 1})
end

local function resnet(arch, block, depths, options)
  local o = blocks.options(arch, options, DEFAULTS, OPTIONS)
  local first, second = stem(o)
  local model, n = Chain(first, second), o.width
  for stage = 1, #depths do
    local chain, width = Chain(), o.width * 2 ^ (stage - 1)
    for i = 1, depths[stage] do
      chain[i], n = block(n, width, stage > 1 and i == 1 and 2 or 1)
    end
    model[2 + stage] = chain
  end
  model[7], model[8], model[9] = pool.GlobalMeanPool(), layers.Flatten(), blocks.dense(n, o.classes)
  model.arch = arch
  return model
end

local zoo = {}

--- ResNet-18 (He et al. 2015), over images [n, height, width, channels].
---@param o? conflux.ResNetOptions
---@return conflux.Chain
function zoo.resnet18(o)
  return (resnet("resnet18", basic, {2, 2, 2, 2}, o))
end

--- ResNet-34 (He et al. 2015), over images [n, height, width, channels].
---@param o? conflux.ResNetOptions
---@return conflux.Chain
function zoo.resnet34(o)
  return (resnet("resnet34", basic, {3, 4, 6, 3}, o))
end

--- ResNet-50 (He et al. 2015), of bottlenecks, over images [n, height, width, channels].  The
-- bottleneck's stride is on its 3x3 convolution.
---@param o? conflux.ResNetOptions
---@return conflux.Chain
function zoo.resnet50(o)
  return (resnet("resnet50", bottleneck, {3, 4, 6, 3}, o))
end

--- ResNet-101 (He et al. 2015), of bottlenecks, over images [n, height, width, channels].  The
-- bottleneck's stride is on its 3x3 convolution.
---@param o? conflux.ResNetOptions
---@return conflux.Chain
function zoo.resnet101(o)
  return (resnet("resnet101", bottleneck, {3, 4, 23, 3}, o))
end

--- ResNet-152 (He et al. 2015), of bottlenecks, over images [n, height, width, channels].  The
-- bottleneck's stride is on its 3x3 convolution.
---@param o? conflux.ResNetOptions
---@return conflux.Chain
function zoo.resnet152(o)
  return (resnet("resnet152", bottleneck, {3, 8, 36, 3}, o))
end

-- torchvision's name of the tensor at a path, or nil.
local function name_of(path)
  local part, field = path:match "^1%.(%a+)%.([%a_]+)$"
  if part then return (part == "conv" and "conv1." or "bn1.") .. field end
  local stage, block, unit
  stage, block, unit, part, field = path:match "^([3-6])%.(%d+)%.(%d)%.(%a+)%.([%a_]+)$"
  if stage then
    return ("layer%d.%d.%s%d.%s"):format(stage - 2, block - 1, part == "conv" and "conv" or "bn", unit, field)
  end
  stage, block, part, field = path:match "^([3-6])%.(%d+)%.downsample%.(%a+)%.([%a_]+)$"
  if stage then
    return ("layer%d.%d.downsample.%d.%s"):format(stage - 2, block - 1, part == "conv" and 0 or 1, field)
  end
  field = path:match "^9%.(%a+)$"
  return field and "fc." .. field
end

local names = {}
for arch in core.each, zoo do names[arch] = name_of end

return {zoo = zoo, names = names}
