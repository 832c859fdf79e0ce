--- Operations: elementwise, reductions, what orders and selects, in place.  Each is a method of tensors and a
-- function of this module.
--
-- A training step calls hundreds of these, so a wrapper checks by ffi.istype, makes no closure, table or vararg,
-- and passes everything else to C, whose messages name function and argument.
-- @module conflux.ops
local core  = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle, op_number, at_line = core.new, core.settle, core.op, core.at_line
local wrong = check.wrong
local next, type = next, type
local huge = math.huge

local Tensor, meta = core.methods, core.tensor_meta
local ops = {}

-- Gives a method to tensors, and to `cf`.
local function define(name, f)
  Tensor[name], ops[name] = f, f
  return f
end

local function to_float(x)
  if x._dtype >= core.dtype.float16 then return x end
  local out = new()
  local st = C.cfx_to(x, nil, core.dtype.float32, out)
  if st ~= 0 then settle(st, C.cfx_to, x, nil, core.dtype.float32, out) end
  return out
end

-- ---- elementwise: one operand -----------------------------------------------------------------------------

local function unary(name)
  local op = op_number[name]
  return define(name, function(x)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    local out = new()
    local st = C.cfx_unary(op, x, 0, 0, out)
    if st ~= 0 then settle(st, C.cfx_unary, op, x, 0, 0, out) end
    return out
  end)
end

for _, name in ipairs {"abs", "sign", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "relu", "gelu",
  "silu", "softplus", "erf", "round", "floor", "lnot", "neg", "square"} do
  unary(name)
end
meta.__unm = Tensor.neg

-- One parameter, which may be left out.
local function unary_with(name, parameter, default)
  local op = op_number[name]
  define(name, function(x, p)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    if p == nil then p = default elseif type(p) ~= "number" then wrong(name, parameter, "a number", p) end
    local out = new()
    local st = C.cfx_unary(op, x, p, 0, out)
    if st ~= 0 then settle(st, C.cfx_unary, op, x, p, 0, out) end
    return out
  end)
end

unary_with("leakyrelu", "slope", 0.01)
unary_with("elu", "alpha", 1)

local CLAMP = op_number.clamp
local INT64_MIN, INT64_MAX = -2 ^ 63, 2 ^ 63 - 1024 -- the largest number below 2^63

-- The bounds of clamp; an integer tensor has no infinite ones, and becomes float where one is a fraction.
local function bounds(fname, x, low, high)
  if low == nil and high == nil then check.fail(fname, "expected a lower bound, an upper bound, or both") end
  if low ~= nil and type(low) ~= "number" then wrong(fname, "lo", "a number", low) end
  if high ~= nil and type(high) ~= "number" then wrong(fname, "hi", "a number", high) end
  low, high = low or -huge, high or huge
  if low ~= low or high ~= high or low > high then
    wrong(fname, "hi", ("a bound of at least %.14g"):format(low), high)
  end
  if x._dtype >= core.dtype.float16 then return low, high, false end
  if low == -huge then low = INT64_MIN end
  if high == huge then high = INT64_MAX end
  return low, high, low % 1 ~= 0 or high % 1 ~= 0
end

--- Values below `lo` become lo, above `hi` hi; either may be nil.
---@param lo? number
---@param hi? number
---@return conflux.Tensor
define("clamp", function(x, lo, hi)
  if not istype(tensor_t, x) then wrong("clamp", "x", "a tensor", x) end
  local low, high, widens = bounds("clamp", x, lo, hi)
  local from = widens and to_float(x) or x
  local out = new()
  local st = C.cfx_unary(CLAMP, from, low, high, out)
  if st ~= 0 then settle(st, C.cfx_unary, CLAMP, from, low, high, out) end
  if widens then C.cfx_release(from) end
  return out
end)

-- ---- elementwise: two operands ----------------------------------------------------------------------------

-- What is neither a tensor nor a number, beside a tensor.
local function operand(name, a, b)
  if type(a) == "number" and type(b) == "number" then wrong(name, "a", "a tensor", a) end
  if istype(tensor_t, a) or type(a) == "number" then wrong(name, "b", "a tensor or a number", b) end
  wrong(name, "a", "a tensor or a number", a)
end

local function binary(name)
  local op = op_number[name]
  return define(name, function(a, b)
    local out, st
    if istype(tensor_t, a) then
      if type(b) == "number" then
        out = new()
        st = C.cfx_binary_scalar(op, a, b, 0, out)
        if st ~= 0 then settle(st, C.cfx_binary_scalar, op, a, b, 0, out) end
        return out
      elseif istype(tensor_t, b) then
        out = new()
        st = C.cfx_binary(op, a, b, out)
        if st ~= 0 then settle(st, C.cfx_binary, op, a, b, out) end
        return out
      end
    elseif type(a) == "number" and istype(tensor_t, b) then
      out = new()
      st = C.cfx_binary_scalar(op, b, a, 1, out)
      if st ~= 0 then settle(st, C.cfx_binary_scalar, op, b, a, 1, out) end
      return out
    end
    operand(name, a, b)
  end)
end

meta.__add, meta.__sub, meta.__mul = binary "add", binary "sub", binary "mul"
meta.__div, meta.__pow = binary "div", binary "pow"
binary "maximum"
binary "minimum"

-- Truth: a boolean may stand beside the tensor.
local function truth(name)
  local compare = binary(name)
  define(name, function(a, b)
    if type(b) == "boolean" then b = b and 1 or 0 end
    if type(a) == "boolean" then a = a and 1 or 0 end
    return compare(a, b)
  end)
end

for _, name in ipairs {"eq", "ne", "lt", "le", "gt", "ge", "land", "lor"} do
  truth(name)
end

-- A number as a tensor without dimensions, of the dtype that it takes beside `other` (a tensor or a number).
local function number_like(c, value, other)
  local dtype = istype(tensor_t, other) and other._dtype or core.dtype.float32
  if dtype < core.dtype.float16 and (value % 1 ~= 0) then dtype = core.dtype.float32 end
  if dtype == core.dtype.bool then dtype = core.dtype.int64 end
  local out, device = new(), C.cfx_tensor_device(c)
  if device == nil then check.arg("where", "c", "a tensor", "one that was released") end
  local st = C.cfx_full(device, dtype, 0, nil, value, out)
  if st ~= 0 then settle(st, C.cfx_full, device, dtype, 0, nil, value, out) end
  return out
end

--- Elements of a where `c` is true, of b elsewhere; a and b are tensors or numbers.
---@param c conflux.Tensor
---@param a conflux.Tensor|number
---@param b conflux.Tensor|number
---@return conflux.Tensor
define("where", function(c, a, b)
  if not istype(tensor_t, c) then wrong("where", "c", "a tensor", c) end
  local x, y = a, b
  if type(a) == "number" then x = number_like(c, a, b)
  elseif not istype(tensor_t, a) then wrong("where", "a", "a tensor or a number", a) end
  if type(b) == "number" then y = number_like(c, b, a)
  elseif not istype(tensor_t, b) then wrong("where", "b", "a tensor or a number", b) end
  local out = new()
  local st = C.cfx_where(c, x, y, out)
  if st ~= 0 then settle(st, C.cfx_where, c, x, y, out) end
  if type(a) == "number" then C.cfx_release(x) end
  if type(b) == "number" then C.cfx_release(y) end
  return out
end)

local function triangle(name, upper)
  define(name, function(x, k)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    if x._ndim < 2 then wrong(name, "x", "a tensor of at least 2 dimensions", x) end
    k = k == nil and 0 or check.integer(name, "k", k)
    local out = new()
    local st = C.cfx_tri(x, upper, k, out)
    if st ~= 0 then settle(st, C.cfx_tri, x, upper, k, out) end
    return out
  end)
end

triangle("tril", 0)
triangle("triu", 1)

-- ---- reductions -------------------------------------------------------------------------------------------

local dims = ffi.new "int32_t[8]"
local KEEPDIM, VAR_OPTIONS = {"keepdim"}, {"keepdim", "correction"}

-- Reads `dims?, options?`: leaves the dimensions in `dims`, returns their number (0: all), keepdim, options.
local function read_dims(name, x, d, o, known)
  local n = 0
  if type(d) == "table" and d[1] == nil and next(d) ~= nil then
    if o ~= nil then wrong(name, "dims", "a dimension or a list of them", d) end
    d, o = nil, d
  end
  if type(d) == "table" then
    local list = check.dims(name, "dims", d, x._ndim)
    n = #list
    for k = 1, n do dims[k - 1] = list[k] end
  elseif d ~= nil then
    dims[0], n = check.dim(name, "dims", d, x._ndim), 1
  end
  if o == nil then return n, 0, o end
  check.options(name, o, known)
  if o.keepdim ~= nil then check.boolean(name, "keepdim", o.keepdim) end
  return n, o.keepdim and 1 or 0, o
end

local function reduction(name)
  local op = op_number[name]
  define(name, function(x, d, o)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    local n, keep = 0, 0
    if d ~= nil or o ~= nil then n, keep = read_dims(name, x, d, o, KEEPDIM) end
    local out = new()
    local st = C.cfx_reduce(op, x, n, dims, keep, 0, out)
    if st ~= 0 then settle(st, C.cfx_reduce, op, x, n, dims, keep, 0, out) end
    return out
  end)
end

for _, name in ipairs {"sum", "mean", "prod", "max", "min", "argmax", "argmin", "norm", "any", "all"} do
  reduction(name)
end

local VAR, SQRT = op_number.var, op_number.sqrt

local function variance(name, x, d, o)
  if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
  local n, keep, correction = 0, 0, 1
  if d ~= nil or o ~= nil then
    n, keep, o = read_dims(name, x, d, o, VAR_OPTIONS)
    if o and o.correction ~= nil then correction = check.number(name, "correction", o.correction) end
  end
  local out = new()
  local st = C.cfx_reduce(VAR, x, n, dims, keep, correction, out)
  if st ~= 0 then settle(st, C.cfx_reduce, VAR, x, n, dims, keep, correction, out) end
  return out
end

--- Variance; `correction` is taken from the number of elements (1: Bessel's).
define("var", function(x, d, o) return (variance("var", x, d, o)) end)

--- Standard deviation.
define("std", function(x, d, o)
  local squared = variance("std", x, d, o)
  local out = new()
  local st = C.cfx_unary(SQRT, squared, 0, 0, out)
  if st ~= 0 then settle(st, C.cfx_unary, SQRT, squared, 0, 0, out) end
  C.cfx_release(squared)
  return out
end)

-- ---- along one dimension: the last where none is given ----------------------------------------------------

local function softmax(name)
  local op = op_number[name]
  define(name, function(x, d)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    d = check.dim(name, "d", d == nil and -1 or d, x._ndim)
    local out = new()
    local st = C.cfx_softmax(op, x, d, out)
    if st ~= 0 then settle(st, C.cfx_softmax, op, x, d, out) end
    return out
  end)
end

softmax "softmax"
softmax "logsoftmax"

--- The k largest along dimension `d` (default: the last) in falling order, and their ids from 0.
---@param k integer
---@param d? integer
---@return conflux.Tensor values, conflux.Tensor ids
define("topk", function(x, k, d)
  if not istype(tensor_t, x) then wrong("topk", "x", "a tensor", x) end
  check.integer("topk", "k", k, 0)
  d = check.dim("topk", "d", d == nil and -1 or d, x._ndim)
  local values, ids = new(), new()
  local st = C.cfx_topk(x, k, d, values, ids)
  if st ~= 0 then settle(st, C.cfx_topk, x, k, d, values, ids) end
  return values, ids
end)

--- The values along dimension `d` (default: the last) in rising order, and their ids from 0.  Equal ones keep
-- their order; NaN counts as the largest.
---@param d? integer
---@param o? {descending: boolean}
---@return conflux.Tensor values, conflux.Tensor ids
define("sort", function(x, d, o)
  if not istype(tensor_t, x) then wrong("sort", "x", "a tensor", x) end
  if type(d) == "table" and o == nil then d, o = nil, d end
  d = check.dim("sort", "d", d == nil and -1 or d, x._ndim)
  local descending = 0
  if o ~= nil then
    check.options("sort", o, {"descending"})
    if o.descending ~= nil then descending = check.boolean("sort", "descending", o.descending) and 1 or 0 end
  end
  local values, ids = new(), new()
  local st = C.cfx_sort(x, d, descending, values, ids)
  if st ~= 0 then settle(st, C.cfx_sort, x, d, descending, values, ids) end
  return values, ids
end)

-- Whether ids are in range is seen only where they are read, in the queue: what takes them notes the script's line.

-- ---- products and selection -------------------------------------------------------------------------------

--- The matrix product; batch dimensions broadcast, a vector is a row on the left and a column on the right.
---@param a conflux.Tensor
---@param b conflux.Tensor
---@return conflux.Tensor
define("matmul", function(a, b)
  if not istype(tensor_t, a) then wrong("matmul", "a", "a tensor", a) end
  if not istype(tensor_t, b) then wrong("matmul", "b", "a tensor", b) end
  local out = new()
  local st = C.cfx_matmul(a, b, out)
  if st ~= 0 then settle(st, C.cfx_matmul, a, b, out) end
  return out
end)

--- The slices of dimension `d` that `ids` name, from 0; the shape of ids takes that dimension's place.
---@param d integer
---@param ids conflux.Tensor integers
---@return conflux.Tensor
define("index", function(x, d, ids)
  if not istype(tensor_t, x) then wrong("index", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("index", "ids", "an integer tensor", ids) end
  d = check.dim("index", "d", d, x._ndim)
  at_line()
  local out = new()
  local st = C.cfx_index(x, d, ids, out)
  if st ~= 0 then settle(st, C.cfx_index, x, d, ids, out) end
  return out
end)

--- Element by element along dimension `d`: out[i][j] = x[ids[i][j]][j] for d = 1.  ids has x's rank.
---@param d integer
---@param ids conflux.Tensor integers
---@return conflux.Tensor
define("gather", function(x, d, ids)
  if not istype(tensor_t, x) then wrong("gather", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("gather", "ids", "an integer tensor", ids) end
  d = check.dim("gather", "d", d, x._ndim)
  at_line()
  local out = new()
  local st = C.cfx_gather(x, d, ids, out)
  if st ~= 0 then settle(st, C.cfx_gather, x, d, ids, out) end
  return out
end)

--- A copy of x with the elements of `src` added at `ids` along dimension `d`, in the order of ids.
---@param d integer
---@param ids conflux.Tensor integers, of src's shape
---@param src conflux.Tensor
---@return conflux.Tensor
define("scatteradd", function(x, d, ids, src)
  if not istype(tensor_t, x) then wrong("scatteradd", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("scatteradd", "ids", "an integer tensor", ids) end
  if not istype(tensor_t, src) then wrong("scatteradd", "src", "a tensor", src) end
  d = check.dim("scatteradd", "d", d, x._ndim)
  at_line()
  local out = new()
  local st = C.cfx_scatter_add(x, d, ids, src, out)
  if st ~= 0 then settle(st, C.cfx_scatter_add, x, d, ids, src, out) end
  return out
end)

-- ---- in place: these change x and return it ---------------------------------------------------------------

local function in_place(name, row)
  local op = op_number[row]
  Tensor[name] = function(x, y)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    local st
    if type(y) == "number" then
      st = C.cfx_binary_scalar_into(op, x, y)
      if st ~= 0 then settle(st, C.cfx_binary_scalar_into, op, x, y) end
    elseif istype(tensor_t, y) then
      st = C.cfx_binary_into(op, x, y)
      if st ~= 0 then settle(st, C.cfx_binary_into, op, x, y) end
    else
      wrong(name, "y", "a tensor or a number", y)
    end
    return x
  end
end

in_place("add_", "add")
in_place("sub_", "sub")
in_place("mul_", "mul")
in_place("div_", "div")

--- Clamps x in place; see clamp.
---@return conflux.Tensor x
function Tensor.clamp_(x, lo, hi)
  if not istype(tensor_t, x) then wrong("clamp_", "x", "a tensor", x) end
  local low, high, widens = bounds("clamp_", x, lo, hi)
  if widens then check.fail("clamp_", "a fraction as a bound would make %s float32", x.dtype) end
  local st = C.cfx_clamp_into(x, low, high)
  if st ~= 0 then settle(st, C.cfx_clamp_into, x, low, high) end
  return x
end

--- Sets every element to `value`.
---@param value number|boolean
---@return conflux.Tensor x
function Tensor.fill_(x, value)
  if not istype(tensor_t, x) then wrong("fill_", "x", "a tensor", x) end
  value = check.element("fill_", "value", value, x._dtype)
  local st = C.cfx_fill(x, value)
  if st ~= 0 then settle(st, C.cfx_fill, x, value) end
  return x
end

--- Copies y's values, converted and broadcast, from any device.
---@param y conflux.Tensor
---@return conflux.Tensor x
function Tensor.copy_(x, y)
  if not istype(tensor_t, x) then wrong("copy_", "x", "a tensor", x) end
  if not istype(tensor_t, y) then wrong("copy_", "y", "a tensor", y) end
  local st = C.cfx_copy(x, y)
  if st ~= 0 then settle(st, C.cfx_copy, x, y) end
  return x
end

return ops
