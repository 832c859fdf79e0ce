--- Operations on each element, with one operand, two or three, and those in place.  Each is a method of tensors, and
-- but for those in place a function of this module.
--
-- A training step calls hundreds of these, so a wrapper checks by ffi.istype, makes no closure, table or vararg,
-- and passes everything else to C, whose messages name function and argument.
--
-- Two operands broadcast as in NumPy and are promoted: bool, uint8, int32, int64, float16 and bfloat16 (together
-- float32), float32, float64; a number takes the tensor's dtype, but for a fraction beside integers, which makes them
-- float32.  An operation "in float" makes integers float32.
-- @module conflux.elementwise
local core  = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle, op_number = core.new, core.settle, core.op
local wrong = check.wrong
local type = type
local huge = math.huge

local Tensor, meta = core.methods, core.tensor_meta
local elementwise = {}

---@alias conflux.Operand conflux.Tensor|number

-- Gives a method to tensors, and to `cf`.
local function define(name, f)
  Tensor[name], elementwise[name] = f, f
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

--- The absolute value.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "abs"

--- -1, 0 or 1, as x is below, at or above 0; NaN stays NaN.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "sign"

--- e^x; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "exp"

--- The natural logarithm; in float.  NaN below 0, -inf at 0.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "log"

--- The square root; in float.  NaN below 0.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "sqrt"

--- 1 / sqrt(x); in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "rsqrt"

--- The sine of x in radians; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "sin"

--- The cosine of x in radians; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "cos"

--- The hyperbolic tangent; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "tanh"

--- The logistic function 1 / (1 + exp(-x)); in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "sigmoid"

--- max(x, 0).
---@param x conflux.Tensor
---@return conflux.Tensor
unary "relu"

--- x P(X <= x) for a standard normal X, exactly, by erf (Hendrycks and Gimpel 2016); in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "gelu"

--- x sigmoid(x), also called swish (Elfwing et al. 2017); in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "silu"

--- log(1 + exp(x)), which does not overflow; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "softplus"

--- The error function; in float.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "erf"

--- The nearest integer, halves to the even one, in x's dtype.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "round"

--- The largest integer that is not above x, in x's dtype.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "floor"

--- Whether x is 0 (or false); bool.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "lnot"

--- -x, which is the same.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "neg"

--- x x, at less cost than x ^ 2.
---@param x conflux.Tensor
---@return conflux.Tensor
unary "square"

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

--- x above 0, slope x below (Maas et al. 2013); in float.
---@param x conflux.Tensor
---@param slope? number  default: 0.01
---@return conflux.Tensor
unary_with("leakyrelu", "slope", 0.01)

--- x above 0, alpha (exp(x) - 1) below (Clevert et al. 2015); in float.
---@param x conflux.Tensor
---@param alpha? number  default: 1
---@return conflux.Tensor
unary_with("elu", "alpha", 1)

local CLAMP = op_number.clamp
local INT64_MIN, INT64_MAX = -2 ^ 63, 2 ^ 63 - 1024 -- the largest number below 2^63

-- The bounds of clamp; an integer tensor has no infinite ones, and becomes float where one is a fraction.
local function bounds(fname, x, low, high)
  if low == nil and high == nil then check.fail(fname, "expected a lower bound, an upper bound, or both") end
  if type(low) ~= "number" and type(low) ~= "nil" then wrong(fname, "lo", "a number", low) end
  if type(high) ~= "number" and type(high) ~= "nil" then wrong(fname, "hi", "a number", high) end
  low, high = low or -huge, high or huge
  if low ~= low or high ~= high or low > high then
    wrong(fname, "hi", ("a bound of at least %.14g"):format(low), high)
  end
  if x._dtype >= core.dtype.float16 then return low, high, false end
  if low == -huge then low = INT64_MIN end
  if high == huge then high = INT64_MAX end
  return low, high, low % 1 ~= 0 or high % 1 ~= 0
end

--- Values below `lo` become lo, above `hi` hi; one of the two may be nil.  A fraction makes integers float32.
---@param x conflux.Tensor
---@param lo? number
---@param hi? number  at least lo
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

-- The operand that is neither a tensor nor a number, beside a tensor.
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

--- a + b, which is the same.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
meta.__add = binary "add"

--- a - b, which is the same.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
meta.__sub = binary "sub"

--- a * b, which is the same: element by element (see matmul).
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
meta.__mul = binary "mul"

--- a / b, which is the same; in float.  Division by 0 gives inf or NaN.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
meta.__div = binary "div"

--- a ^ b, which is the same.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
meta.__pow = binary "pow"

--- The larger of the two; NaN where either is.  Equal ones share the gradient.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
binary "maximum"

--- The smaller of the two; NaN where either is.  Equal ones share the gradient.
---@param a conflux.Operand
---@param b conflux.Operand  one of the two is a tensor
---@return conflux.Tensor
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

--- Whether a and b are equal, element by element (a == b asks whether they are one tensor).  NaN equals nothing.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "eq"

--- Whether a and b differ, element by element.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "ne"

--- Whether a is less than b, element by element.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "lt"

--- Whether a is at most b, element by element.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "le"

--- Whether a is greater than b, element by element.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "gt"

--- Whether a is at least b, element by element.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "ge"

--- Whether a and b are both true, that is not 0.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "land"

--- Whether a or b is true, that is not 0.
---@param a conflux.Operand|boolean
---@param b conflux.Operand|boolean  one of the two is a tensor
---@return conflux.Tensor bool
truth "lor"

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

--- Elements of a where `c` is true, of b elsewhere.  All three broadcast.
---@param c conflux.Tensor  bool, or numbers, of which all but 0 are true
---@param a conflux.Operand
---@param b conflux.Operand
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

--- The lower triangle of the last two dimensions, zeros above: what lies on diagonal `k` or below it.
---@param x conflux.Tensor  [.., n, m]
---@param k? integer        default: 0, the main diagonal; above it k is positive
---@return conflux.Tensor
triangle("tril", 0)

--- The upper triangle of the last two dimensions, zeros below: what lies on diagonal `k` or above it.
---@param x conflux.Tensor  [.., n, m]
---@param k? integer        default: 0, the main diagonal; above it k is positive
---@return conflux.Tensor
triangle("triu", 1)

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

--- x = x + y, in place.
---@param x conflux.Tensor  not recorded by a gradient
---@param y conflux.Operand  broadcast to x's shape, and of a dtype that x's can hold
---@return conflux.Tensor x
in_place("add_", "add")

--- x = x - y, in place.
---@param x conflux.Tensor  not recorded by a gradient
---@param y conflux.Operand  broadcast to x's shape, and of a dtype that x's can hold
---@return conflux.Tensor x
in_place("sub_", "sub")

--- x = x * y, in place.
---@param x conflux.Tensor  not recorded by a gradient
---@param y conflux.Operand  broadcast to x's shape, and of a dtype that x's can hold
---@return conflux.Tensor x
in_place("mul_", "mul")

--- x = x / y, in place; x is a float tensor.
---@param x conflux.Tensor  not recorded by a gradient
---@param y conflux.Operand  broadcast to x's shape, and of a dtype that x's can hold
---@return conflux.Tensor x
in_place("div_", "div")

--- Clamps x in place: values below `lo` become lo, above `hi` hi; one of the two may be nil.
---@param x conflux.Tensor
---@param lo? number
---@param hi? number  at least lo
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
---@param x conflux.Tensor
---@param value number|boolean  one that x's dtype can hold
---@return conflux.Tensor x
function Tensor.fill_(x, value)
  if not istype(tensor_t, x) then wrong("fill_", "x", "a tensor", x) end
  value = check.element("fill_", "value", value, x._dtype)
  local st = C.cfx_fill(x, value)
  if st ~= 0 then settle(st, C.cfx_fill, x, value) end
  return x
end

--- Copies y's values into x, converted and broadcast, from any device.
---@param x conflux.Tensor
---@param y conflux.Tensor
---@return conflux.Tensor x
function Tensor.copy_(x, y)
  if not istype(tensor_t, x) then wrong("copy_", "x", "a tensor", x) end
  if not istype(tensor_t, y) then wrong("copy_", "y", "a tensor", y) end
  local st = C.cfx_copy(x, y)
  if st ~= 0 then settle(st, C.cfx_copy, x, y) end
  return x
end

return elementwise
