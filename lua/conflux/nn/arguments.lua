--- Arguments: what layers are made with and called with.
--
-- A size in two directions is a number, or {height, width}; a pad is a number, {height, width}, or {top, bottom, left,
-- right}.  A layer keeps a number where all are equal.
-- @module conflux.nn.arguments
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"
local fields = require "conflux.nn.fields"
local module = require "conflux.nn.module"

local C, ffi = core.C, core.ffi
local settle, is_tensor = core.settle, core.is_tensor
local tonumber, tostring, type = tonumber, tostring, type
local concat = table.concat

local arguments = {}

-- ---- activations, initialisers ------------------------------------------------------------------------------

--- Reads `act?, options?`.
function arguments.act(fname, known, act, o)
  if o == nil and type(act) == "table" and not module.is_layer(act) then act, o = nil, act end
  return activations.check(fname, "act", act), check.options(fname, o, known)
end

--- ", relu": an activation in the text of a layer.
function arguments.act_text(act)
  if act == nil then return "" end
  return ", " .. (type(act) == "string" and act or type(act) == "function" and "function" or tostring(act))
end

--- The weight that an initialiser makes: the one given as option `init`, or the default.
function arguments.weight(fname, f, default, shape)
  if f == nil then f = default end -- nil, or a NULL pointer
  if type(f) ~= "function" then check.arg(fname, "init", "a function of sizes, such as nn.init.kaiming_normal", f) end
  local t = f(unpack(shape))
  local fits = is_tensor(t) and t._ndim == #shape
  for d = 1, fits and #shape or 0 do fits = fits and t._shape[d - 1] == shape[d] end
  if not fits then
    check.arg(fname, "init", ("a function that makes a tensor [%s]"):format(concat(shape, ", ")), check.describe(t))
  end
  return t
end

--- A boolean among the options, true where it is left out.
function arguments.flag(fname, name, v)
  return v == nil or check.boolean(fname, name, v)
end

-- ---- sizes in two directions --------------------------------------------------------------------------------

local function is_size(v, least)
  return type(v) == "number" and v % 1 == 0 and v >= least and v <= 2 ^ 53
end

local function is_sizes(v, n, least)
  if type(v) ~= "table" or #v ~= n or rawget(v, n + 1) ~= nil then return false end
  for i = 1, n do
    if not is_size(v[i], least) then return false end
  end
  return true
end

local function is_pair(v, least)
  return is_size(v, least) or is_sizes(v, 2, least)
end

local function is_pad(v)
  return is_size(v, 0) or is_sizes(v, 4, 0)
end

fields.pair = {function(v) return is_pair(v, 1) end, "a size, or {height, width}"}
fields.pair_or_zero = {function(v) return is_pair(v, 0) end, "a size, or {height, width}"}
fields.pad = {is_pad, "a size, or {top, bottom, left, right}"}
fields.count = {function(v) return is_size(v, 1) end, "an integer of at least 1"}

--- The height and width of a pair.
---@return number height, number width
local function both(v)
  if type(v) == "number" then return v, v end
  return v[1], v[2]
end
arguments.both = both

--- Reads a size or {height, width}; nil is the default.
---@return integer|integer[]
function arguments.pair(fname, name, v, least, default)
  if v == nil and default ~= nil then return default end
  if not is_pair(v, least) then
    check.wrong(fname, name, ("an integer of at least %d, or {height, width}"):format(least), v)
  end
  local h, w = both(v)
  return h == w and h or {h, w}
end

-- The pads before and after that keep the size: of an odd one the larger half lies behind, as PyTorch has it.
local function halves(kernel, dilation)
  local total = dilation * (kernel - 1)
  return math.floor(total / 2), math.ceil(total / 2)
end

local PAD = "an integer of at least 0, {height, width}, {top, bottom, left, right}, or 'same'"

--- Reads a pad; nil is none.
---@return integer|integer[]  all four, or {top, bottom, left, right}
function arguments.pad(fname, v, kernel, stride, dilation)
  local top, bottom, left, right
  if v == nil then return 0 end
  if v == "same" then
    local sh, sw = both(stride)
    if sh ~= 1 or sw ~= 1 then
      check.arg(fname, "pad", "a number of pixels with a stride, as 'same' is for stride 1", "'same'")
    end
    local kh, kw = both(kernel)
    local dh, dw = both(dilation)
    top, bottom = halves(kh, dh)
    left, right = halves(kw, dw)
  elseif is_sizes(v, 4, 0) then
    top, bottom, left, right = v[1], v[2], v[3], v[4]
  elseif is_pair(v, 0) then
    top, left = both(v)
    bottom, right = top, left
  else
    check.wrong(fname, "pad", PAD, v)
  end
  if top == bottom and top == left and top == right then return top end
  return {top, bottom, left, right}
end

--- "2" or "{2, 1}".
function arguments.text(v)
  return type(v) == "table" and "{" .. concat(v, ", ") .. "}" or tostring(v)
end

--- ", {stride = 2, pad = 1}": the options of a layer that are not the default ones, in its text.
---@param given {[1]: string, [2]: any, [3]: any}[]  name, value, default
function arguments.options_text(given)
  local parts = {}
  for i = 1, #given do
    local name, v, default = given[i][1], given[i][2], given[i][3]
    if v ~= default then parts[#parts + 1] = ("%s = %s"):format(name, arguments.text(v)) end
  end
  return #parts > 0 and (", {%s}"):format(concat(parts, ", ")) or ""
end

local window_t = ffi.typeof "cfx_window"

--- The window of a layer, for C.
---@return ffi.cdata* cfx_window
function arguments.window(kh, kw, stride, pad, dilation)
  local w = window_t()
  w.kernel[0], w.kernel[1] = kh, kw
  w.stride[0], w.stride[1] = both(stride)
  w.dilation[0], w.dilation[1] = both(dilation)
  for i = 0, 3 do w.pad[i] = type(pad) == "number" and pad or pad[i + 1] end
  return w
end

-- ---- calls --------------------------------------------------------------------------------------------------

--- Refuses an input that is no tensor.
function arguments.check_x(class, x, residual)
  if not is_tensor(x) then check.wrong(class.__layer, "x", "a tensor", x) end
  if residual ~= nil and not is_tensor(residual) then check.wrong(class.__layer, "residual", "a tensor", residual) end
end

--- Settles a failed call of C's by a layer: a forgotten device(x) is no fault of the weight's.
function arguments.settle(class, x, weight, st, ...)
  local here, there = C.cfx_tensor_device(x), weight ~= nil and C.cfx_tensor_device(weight) or nil
  if here ~= nil and there ~= nil and here ~= there then
    check.fail(class.__layer, "argument 'x' is on %s, the layer on %s: use device(x)", core.find_device(here).name,
      core.find_device(there).name)
  end
  return settle(st, ...)
end

--- The size of a dimension of a tensor, from 0.
function arguments.size(t, d)
  return tonumber(t._shape[d])
end

return arguments
