--- Initialisers: functions of a shape that make a tensor on the default device.
--
-- A weight is [out, in], or [out, height, width, in] for a convolution: fan in is what one output sums over, fan
-- out what one input reaches.
-- @module conflux.nn.init
local core = require "conflux.core"
local check = require "conflux.check"

local C = core.C
local settle, new = core.settle, core.new
local select, sqrt, type = select, math.sqrt, type

local KIND = core.dtype.float32

-- Reads `(n, m, ..., options?)` or `({n, m, ...}, options?)`.
local function read(fname, known, ...)
  local count = select("#", ...)
  local last, o = count > 0 and select(count, ...) or nil, nil
  if count > 0 and type(last) == "table" and last[1] == nil and (count > 1 or next(last) ~= nil) then
    o, count = last, count - 1
  end
  local shape
  if count == 1 and type((...)) == "table" then
    shape = (...)
  else
    shape = {...}
    shape[count + 1] = nil
  end
  return check.shape(fname, "shape", shape), check.options(fname, o, known)
end

local function fans(fname, shape)
  if #shape < 2 then check.arg(fname, "shape", "at least 2 dimensions", ("%d"):format(#shape)) end
  local area = 1
  for d = 2, #shape - 1 do area = area * shape[d] end
  return area * shape[#shape], area * shape[1]
end

-- A number among the options.
local function option(fname, name, value, default)
  if type(value) == "nil" then return default end
  return check.number(fname, name, value)
end

local function random(kind, a, b, shape)
  local out, device, sizes = new(), core.default_device(), core.int64s(shape)
  local st = C.cfx_random(device, KIND, #shape, sizes, kind, a, b, core.stream(), out)
  if st ~= 0 then settle(st, C.cfx_random, device, KIND, #shape, sizes, kind, a, b, core.stream(), out) end
  return out
end

local function full(value, shape)
  local out, device, sizes = new(), core.default_device(), core.int64s(shape)
  local st = C.cfx_full(device, KIND, #shape, sizes, value, out)
  if st ~= 0 then settle(st, C.cfx_full, device, KIND, #shape, sizes, value, out) end
  return out
end

local init = {}

--- Uniform on +-gain sqrt(6 / (fan in + fan out)): Glorot and Bengio, "Understanding the difficulty of training
-- deep feedforward neural networks" (2010).  The default of layers, as in Flux.
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{gain =}`
---@return conflux.Tensor float32
function init.glorot_uniform(...)
  local shape, o = read("glorot_uniform", {"gain"}, ...)
  local fan_in, fan_out = fans("glorot_uniform", shape)
  local bound = option("glorot_uniform", "gain", o.gain, 1) * sqrt(6 / (fan_in + fan_out))
  return random("uniform", -bound, bound, shape)
end

--- Normal with deviation gain sqrt(2 / (fan in + fan out)): Glorot and Bengio (2010).
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{gain =}`
---@return conflux.Tensor float32
function init.glorot_normal(...)
  local shape, o = read("glorot_normal", {"gain"}, ...)
  local fan_in, fan_out = fans("glorot_normal", shape)
  return random("normal", 0, option("glorot_normal", "gain", o.gain, 1) * sqrt(2 / (fan_in + fan_out)), shape)
end

--- Uniform on +-gain sqrt(3 / fan in), gain sqrt(2) for relu: He et al., "Delving Deep into Rectifiers" (2015).
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{gain =}`, default sqrt(2)
---@return conflux.Tensor float32
function init.kaiming_uniform(...)
  local shape, o = read("kaiming_uniform", {"gain"}, ...)
  local bound = option("kaiming_uniform", "gain", o.gain, sqrt(2)) * sqrt(3 / fans("kaiming_uniform", shape))
  return random("uniform", -bound, bound, shape)
end

--- Normal with deviation gain / sqrt(fan in), gain sqrt(2) for relu: He et al. (2015).
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{gain =}`, default sqrt(2)
---@return conflux.Tensor float32
function init.kaiming_normal(...)
  local shape, o = read("kaiming_normal", {"gain"}, ...)
  local gain = option("kaiming_normal", "gain", o.gain, sqrt(2))
  return random("normal", 0, gain / sqrt((fans("kaiming_normal", shape))), shape)
end

--- Uniform on [low, high), by default [0, 1).
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{low =, high =}`
---@return conflux.Tensor float32
function init.uniform(...)
  local shape, o = read("uniform", {"low", "high"}, ...)
  return random("uniform", option("uniform", "low", o.low, 0), option("uniform", "high", o.high, 1), shape)
end

--- Normal, by default of mean 0 and deviation 1.
---@param ... integer|integer[]|table  sizes, one by one or as a list, then options: `{mean =, std =}`
---@return conflux.Tensor float32
function init.normal(...)
  local shape, o = read("normal", {"mean", "std"}, ...)
  return random("normal", option("normal", "mean", o.mean, 0), option("normal", "std", o.std, 1), shape)
end

--- Zeros.
---@param ... integer|integer[]  sizes, one by one or as a list
---@return conflux.Tensor float32
function init.zeros(...)
  return full(0, (read("zeros", {}, ...)))
end

--- Ones.
---@param ... integer|integer[]  sizes, one by one or as a list
---@return conflux.Tensor float32
function init.ones(...)
  return full(1, (read("ones", {}, ...)))
end

--- One value everywhere: `constant(value, shape...)`.
---@param value number
---@param ... integer|integer[]  sizes, one by one or as a list
---@return conflux.Tensor float32
function init.constant(value, ...)
  check.number("constant", "value", value)
  return full(value, (read("constant", {}, ...)))
end

return init
