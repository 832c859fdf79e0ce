--- Pooling and resizing of images [n, height, width, channels].
-- @module conflux.nn.pool
local core = require "conflux.core"
local check = require "conflux.check"
local arguments = require "conflux.nn.arguments"
local fields = require "conflux.nn.fields"
local module = require "conflux.nn.module"

local C, ffi = core.C, core.ffi
local settle, new = core.settle, core.new
local check_x, both = arguments.check_x, arguments.both
local rawget, type = rawget, type

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

-- ---- Upsample -----------------------------------------------------------------------------------------------

---@class conflux.Upsample: conflux.Module
---@field scale? number|number[]
---@field size? integer|integer[]
---@field mode string
---@field align_corners boolean
local Upsample = layer "Upsample"

local MODES = "'nearest' or 'bilinear'"

local function is_scale(v)
  return type(v) == "number" and v > 0 and v < math.huge
end

local function is_scales(v)
  return is_scale(v) or type(v) == "table" and #v == 2 and is_scale(v[1]) and is_scale(v[2])
end

fields.scale_or_nil = {function(v) return v == nil or is_scales(v) end, "a positive number, {height, width} or nil"}
fields.pair_or_nil = {function(v) return v == nil or fields.pair[1](v) end, "a size, {height, width} or nil"}
fields.mode = {function(v) return v == "nearest" or v == "bilinear" end, MODES}

local check_upsample = fields.declare(Upsample, {
  scale = fields.scale_or_nil, size = fields.pair_or_nil, mode = fields.mode, align_corners = fields.boolean,
})

--- Resizes images: by a scale, to floor(h scale) rows, or to a size.  "nearest" copies pixels, "bilinear" mixes four;
-- with `align_corners` the centres of the corner pixels stay where they are.
---@param scale? number|number[]  or {height, width}
---@param o? {size: integer|integer[]|nil, mode: "nearest"|"bilinear"|nil, align_corners: boolean?}  default: by the
--- scale, "nearest", false
function Upsample:init(scale, o)
  if o == nil and type(scale) == "table" and scale[1] == nil then scale, o = nil, scale end
  o = check.options("Upsample", o, {"size", "mode", "align_corners"})
  if (scale == nil) == (o.size == nil) then check.fail("Upsample", "expected a scale or the option size") end
  if scale ~= nil and not is_scales(scale) then
    check.wrong("Upsample", "scale", "a positive number, or {height, width}", scale)
  end
  self.mode = o.mode == nil and "nearest" or o.mode
  if not fields.mode[1](self.mode) then check.wrong("Upsample", "mode", MODES, self.mode) end
  self.align_corners = o.align_corners ~= nil and check.boolean("Upsample", "align_corners", o.align_corners)
  if self.align_corners and self.mode == "nearest" then
    check.arg("Upsample", "align_corners", "false with the mode 'nearest'", true)
  end
  if scale ~= nil then
    local h, w = both(scale)
    self.scale = h == w and h or {h, w}
  else
    self.size = arguments.pair("Upsample", "size", o.size, 1)
  end
end

local scale_t = ffi.typeof "double[2]"

function Upsample:forward(x)
  check_upsample("forward", self)
  check_x(Upsample, x)
  local size, scale = rawget(self, "size"), scale_t()
  if (size == nil) == (rawget(self, "scale") == nil) then
    check.fail("Upsample", "expected the field scale or the field size")
  end
  if x._ndim ~= 4 then check.arg("Upsample", "x", "images [n, height, width, channels]", check.describe(x)) end
  if size == nil then
    scale[0], scale[1] = both(self.scale)
    size = {math.floor(arguments.size(x, 1) * scale[0]), math.floor(arguments.size(x, 2) * scale[1])}
    if not fields.pair[1](size) then
      check.arg("Upsample", "x", ("an image with pixels left after scaling by %s"):format(arguments.text(self.scale)),
        check.describe(x))
    end
  end
  local height, width = both(size)
  local bilinear, corners, out = self.mode == "bilinear" and 1 or 0, self.align_corners and 1 or 0, new()
  local st = C.cfx_upsample(x, height, width, scale, bilinear, corners, out)
  if st ~= 0 then settle(st, C.cfx_upsample, x, height, width, scale, bilinear, corners, out) end
  return out
end

function Upsample:describe()
  check_upsample("describe", self)
  local scale, mode = rawget(self, "scale"), ("'%s'"):format(self.mode)
  local options = arguments.options_text {
    {"size", rawget(self, "size"), nil}, {"mode", mode, "'nearest'"}, {"align_corners", self.align_corners, false},
  }
  return ("Upsample(%s)"):format(scale and arguments.text(scale) .. options or options:sub(3))
end

return {
  MaxPool = MaxPool, MeanPool = MeanPool, AdaptiveMeanPool = AdaptiveMeanPool, GlobalMeanPool = GlobalMeanPool,
  Upsample = Upsample,
}
