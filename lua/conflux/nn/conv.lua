--- Convolutions over images [n, height, width, channels].
-- @module conflux.nn.conv
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"
local arguments = require "conflux.nn.arguments"
local fields = require "conflux.nn.fields"
local init = require "conflux.nn.initializers"
local module = require "conflux.nn.module"

local C, ffi = core.C, core.ffi
local new = core.new
local apply, fused = activations.apply, activations.fused
local check_x, settle, size = arguments.check_x, arguments.settle, arguments.size
local rawget = rawget

local layer = module.layer
local pair_t = ffi.typeof "int64_t[2]"

-- Sets what both kinds of convolution have; `shape` gives that of the weight.
local function make(self, fname, n_in, n_out, kernel, o, shape)
  self.stride = arguments.pair(fname, "stride", o.stride, 1, 1)
  self.dilation = arguments.pair(fname, "dilation", o.dilation, 1, 1)
  self.pad = arguments.pad(fname, o.pad, kernel, self.stride, self.dilation)
  self.groups = check.integer(fname, "groups", o.groups == nil and 1 or o.groups, 1)
  if n_in % self.groups ~= 0 or n_out % self.groups ~= 0 then
    check.arg(fname, "groups", ("a divisor of %d and %d channels"):format(n_in, n_out), self.groups)
  end
  local has_bias = arguments.flag(fname, "bias", o.bias)
  local height, width = arguments.both(kernel)
  self.weight = arguments.weight(fname, o.init, init.glorot_uniform, shape(height, width))
  if has_bias then self.bias = init.zeros(n_out) end
end

-- The window of a layer's weight, for C.
local function window_of(class, self, weight)
  if weight._ndim ~= 4 then
    check.fail(class.__layer, "field 'weight': expected 4 dimensions, got %s", check.describe(weight))
  end
  return arguments.window(weight._shape[1], weight._shape[2], self.stride, self.pad, self.dilation)
end

-- The text of a layer from `n_in` channels to `n_out`.
local function describe(self, n_in, n_out, output_pad)
  local w = self.weight
  local height, width = size(w, 1), size(w, 2)
  local kernel = arguments.text(height == width and height or {height, width})
  local options = arguments.options_text {
    {"stride", self.stride, 1}, {"pad", self.pad, 0}, {"output_pad", output_pad, 0},
    {"dilation", self.dilation, 1}, {"groups", self.groups, 1}, {"bias", self.bias ~= nil, true},
  }
  return ("%s(%d, %d, %s%s%s)"):format(self.__layer, n_in, n_out, kernel, arguments.act_text(self.act), options)
end

---@class conflux.ConvOptions
---@field stride integer|integer[]|nil    default: 1
---@field pad integer|integer[]|string|nil  default: 0
---@field dilation integer|integer[]|nil  default: 1
---@field groups integer?                 default: 1
---@field bias boolean?                   default: true; it starts at zero
---@field init function?                  default: nn.init.glorot_uniform

-- ---- Conv ---------------------------------------------------------------------------------------------------

---@class conflux.Conv: conflux.Module
---@field weight conflux.Tensor   [out, height, width, in / groups]
---@field bias? conflux.Tensor    [out]
---@field act? string|function
---@field stride integer|integer[]
---@field pad integer|integer[]       all four, or {top, bottom, left, right}
---@field dilation integer|integer[]
---@field groups integer
local Conv = layer "Conv"
local check_conv = fields.declare(Conv, {
  weight = fields.tensor, bias = fields.tensor_or_nil, act = fields.activation, stride = fields.pair, pad = fields.pad,
  dilation = fields.pair, groups = fields.count,
})

--- A convolution (cross-correlation, as everywhere): [n, h, w, in] becomes [n, h', w', out], with
-- h' = floor((h + pads - dilation (kernel - 1) - 1) / stride) + 1.
--
-- A size is a number or {height, width}; a pad one of these, {top, bottom, left, right}, or "same" (stride 1), which
-- keeps the size.  Output channel o of g groups reads the channels of its group; `groups = in` is depthwise.
--
-- A result whose window has an infinity or a NaN is infinite or NaN; of an infinity it may be either.
---@param n_in integer
---@param n_out integer
---@param kernel integer|integer[]
---@param act? string|function  "relu", "tanh", ..., or a function
---@param o? conflux.ConvOptions
function Conv:init(n_in, n_out, kernel, act, o)
  check.integer("Conv", "in", n_in, 1)
  check.integer("Conv", "out", n_out, 1)
  kernel = arguments.pair("Conv", "kernel", kernel, 1)
  act, o = arguments.act("Conv", {"stride", "pad", "dilation", "groups", "bias", "init"}, act, o)
  make(self, "Conv", n_in, n_out, kernel, o, function(h, w) return {n_out, h, w, n_in / self.groups} end)
  self.act = act
end

--- act(conv(x) + residual).
---@param x conflux.Tensor          [n, h, w, in]
---@param residual? conflux.Tensor  of the result's shape
---@return conflux.Tensor
function Conv:forward(x, residual)
  check_conv("forward", self)
  check_x(Conv, x, residual)
  local weight, bias, act, groups, out = self.weight, rawget(self, "bias"), rawget(self, "act"), self.groups, new()
  local window, op = window_of(Conv, self, weight), act and fused[act] or -1
  local st = C.cfx_conv(x, weight, bias, residual, op, window, groups, out)
  if st ~= 0 then
    settle(Conv, x, weight, st, C.cfx_conv, x, weight, bias, residual, op, window, groups, out)
  end
  if act and op == -1 then return apply(act, out) end
  return out
end

function Conv:describe()
  check_conv("describe", self)
  local w = self.weight
  if w._ndim ~= 4 then return "Conv" end
  return describe(self, size(w, 3) * self.groups, size(w, 0), 0)
end

-- ---- ConvTranspose ------------------------------------------------------------------------------------------

---@class conflux.ConvTranspose: conflux.Module
---@field weight conflux.Tensor   [in, height, width, out / groups]
---@field bias? conflux.Tensor    [out]
---@field act? string|function
---@field stride integer|integer[]
---@field pad integer|integer[]
---@field output_pad integer|integer[]
---@field dilation integer|integer[]
---@field groups integer
local ConvTranspose = layer "ConvTranspose"
local check_transpose = fields.declare(ConvTranspose, {
  weight = fields.tensor, bias = fields.tensor_or_nil, act = fields.activation, stride = fields.pair, pad = fields.pad,
  output_pad = fields.pair_or_zero, dilation = fields.pair, groups = fields.count,
})

--- The gradient of a convolution by its input, as a layer: [n, h, w, in] becomes [n, h', w', out], with
-- h' = (h - 1) stride - pads + dilation (kernel - 1) + output_pad + 1.
---@param n_in integer
---@param n_out integer
---@param kernel integer|integer[]
---@param act? string|function  "relu", "tanh", ..., or a function
---@param o? conflux.ConvOptions  and output_pad, an integer or {height, width}, default 0
function ConvTranspose:init(n_in, n_out, kernel, act, o)
  check.integer("ConvTranspose", "in", n_in, 1)
  check.integer("ConvTranspose", "out", n_out, 1)
  kernel = arguments.pair("ConvTranspose", "kernel", kernel, 1)
  act, o = arguments.act("ConvTranspose", {"stride", "pad", "output_pad", "dilation", "groups", "bias", "init"}, act, o)
  self.output_pad = arguments.pair("ConvTranspose", "output_pad", o.output_pad, 0, 0)
  make(self, "ConvTranspose", n_in, n_out, kernel, o, function(h, w) return {n_in, h, w, n_out / self.groups} end)
  self.act = act
end

function ConvTranspose:forward(x)
  check_transpose("forward", self)
  check_x(ConvTranspose, x)
  local weight, bias, act, groups, out = self.weight, rawget(self, "bias"), rawget(self, "act"), self.groups, new()
  local window, op, more = window_of(ConvTranspose, self, weight), act and fused[act] or -1, pair_t()
  more[0], more[1] = arguments.both(self.output_pad)
  local st = C.cfx_conv_transpose(x, weight, bias, op, window, more, groups, out)
  if st ~= 0 then
    settle(ConvTranspose, x, weight, st, C.cfx_conv_transpose, x, weight, bias, op, window, more, groups, out)
  end
  if act and op == -1 then return apply(act, out) end
  return out
end

function ConvTranspose:describe()
  check_transpose("describe", self)
  local w = self.weight
  if w._ndim ~= 4 then return "ConvTranspose" end
  return describe(self, size(w, 0), size(w, 3) * self.groups, self.output_pad)
end

return {Conv = Conv, ConvTranspose = ConvTranspose}
