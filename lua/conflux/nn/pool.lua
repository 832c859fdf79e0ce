--- Pooling of images [n, height, width, channels].
-- @module conflux.nn.pool
local core = require "conflux.core"
local check = require "conflux.check"
local arguments = require "conflux.nn.arguments"
local fields = require "conflux.nn.fields"
local module = require "conflux.nn.module"

local C = core.C
local settle, new = core.settle, core.new
local check_x, both = arguments.check_x, arguments.both
local type = type

local layer = module.layer

---@class conflux.PoolOptions
---@field stride integer|integer[]|nil      default: the kernel's size
---@field pad integer|integer[]|string|nil  at most half the kernel's size; default: 0

-- ---- MaxPool, MeanPool --------------------------------------------------------------------------------------

-- Sets what both have: the stride is the kernel's size unless told.
local function make(self, fname, kernel, o)
  self.kernel = arguments.pair(fname, "kernel", kernel, 1)
  self.stride = arguments.pair(fname, "stride", o.stride, 1, self.kernel)
  self.dilation = arguments.pair(fname, "dilation", o.dilation, 1, 1)
  self.pad = arguments.pad(fname, o.pad, self.kernel, self.stride, self.dilation)
  local height, width = both(self.kernel)
  local pad = self.pad
  local top, bottom, left, right = pad, pad, pad, pad
  if type(pad) == "table" then top, bottom, left, right = unpack(pad) end
  if math.max(top, bottom) > height / 2 or math.max(left, right) > width / 2 then
    check.arg(fname, "pad", "at most half the kernel's size", arguments.text(pad))
  end
end

local function window_of(self)
  local height, width = both(self.kernel)
  return arguments.window(height, width, self.stride, self.pad, self.dilation)
end

---@class conflux.MaxPool: conflux.Module
---@field kernel integer|integer[]
---@field stride integer|integer[]
---@field pad integer|integer[]
---@field dilation integer|integer[]
local MaxPool = layer "MaxPool"
local check_maxpool = fields.declare(MaxPool, {
  kernel = fields.pair, stride = fields.pair, pad = fields.pad, dilation = fields.pair,
})

--- The largest of each window, by channel.  Pads count as -inf, NaN passes, and of equals the first takes the gradient.
---@param kernel integer|integer[]
---@param o? conflux.PoolOptions  and dilation, an integer or {height, width}, default 1
function MaxPool:init(kernel, o)
  make(self, "MaxPool", kernel, check.options("MaxPool", o, {"stride", "pad", "dilation"}))
end

function MaxPool:forward(x)
  check_maxpool("forward", self)
  check_x(MaxPool, x)
  local window, out = window_of(self), new()
  local st = C.cfx_maxpool(x, window, out)
  if st ~= 0 then settle(st, C.cfx_maxpool, x, window, out) end
  return out
end

-- The text of a pooling layer.
local function describe(self, more)
  local kernel, stride = arguments.text(self.kernel), arguments.text(self.stride)
  return ("%s(%s%s)"):format(self.__layer, kernel, arguments.options_text {
    {"stride", stride, kernel}, {"pad", self.pad, 0}, {"dilation", self.dilation, 1}, more,
  })
end

function MaxPool:describe()
  check_maxpool("describe", self)
  return describe(self)
end

---@class conflux.MeanPool: conflux.Module
---@field kernel integer|integer[]
---@field stride integer|integer[]
---@field pad integer|integer[]
---@field count_pad boolean
local MeanPool = layer "MeanPool"

fields.boolean = {function(v) return type(v) == "boolean" end, "true or false"}

local check_meanpool = fields.declare(MeanPool, {
  kernel = fields.pair, stride = fields.pair, pad = fields.pad, dilation = fields.pair, count_pad = fields.boolean,
})

--- The mean of each window, by channel; the pads are zeros, which count unless `count_pad` is false.
---@param kernel integer|integer[]
---@param o? conflux.PoolOptions  and count_pad, default true
function MeanPool:init(kernel, o)
  o = check.options("MeanPool", o, {"stride", "pad", "count_pad"})
  make(self, "MeanPool", kernel, o)
  self.count_pad = arguments.flag("MeanPool", "count_pad", o.count_pad)
end

function MeanPool:forward(x)
  check_meanpool("forward", self)
  check_x(MeanPool, x)
  local window, count, out = window_of(self), self.count_pad and 1 or 0, new()
  local st = C.cfx_meanpool(x, window, count, out)
  if st ~= 0 then settle(st, C.cfx_meanpool, x, window, count, out) end
  return out
end

function MeanPool:describe()
  check_meanpool("describe", self)
  return describe(self, {"count_pad", self.count_pad, true})
end

-- ---- adaptive means -----------------------------------------------------------------------------------------

local function adaptive_mean(class, x, height, width)
  check_x(class, x)
  local out = new()
  local st = C.cfx_adaptive_meanpool(x, height, width, out)
  if st ~= 0 then settle(st, C.cfx_adaptive_meanpool, x, height, width, out) end
  return out
end

---@class conflux.AdaptiveMeanPool: conflux.Module
---@field size integer|integer[]
local AdaptiveMeanPool = layer "AdaptiveMeanPool"
local check_adaptive = fields.declare(AdaptiveMeanPool, {size = fields.pair})

--- Means over windows that share the image evenly, whatever its size: of `out` rows the i-th, from 0, is the mean of
-- the rows floor(i h / out) to ceil((i + 1) h / out) - 1.
---@param size integer|integer[]  of the result
function AdaptiveMeanPool:init(size)
  self.size = arguments.pair("AdaptiveMeanPool", "size", size, 1)
end

function AdaptiveMeanPool:forward(x)
  check_adaptive("forward", self)
  return adaptive_mean(AdaptiveMeanPool, x, both(self.size))
end

function AdaptiveMeanPool:describe()
  check_adaptive("describe", self)
  return ("AdaptiveMeanPool(%s)"):format(arguments.text(self.size))
end

---@class conflux.GlobalMeanPool: conflux.Module
local GlobalMeanPool = layer "GlobalMeanPool"
local check_global = fields.declare(GlobalMeanPool, {})

--- The mean of each channel: [n, h, w, c] becomes [n, 1, 1, c], of which nn.Flatten makes [n, c].
function GlobalMeanPool:forward(x)
  check_global("forward", self)
  return adaptive_mean(GlobalMeanPool, x, 1, 1)
end

function GlobalMeanPool.describe()
  return "GlobalMeanPool()"
end

return {
  MaxPool = MaxPool, MeanPool = MeanPool, AdaptiveMeanPool = AdaptiveMeanPool, GlobalMeanPool = GlobalMeanPool,
}
