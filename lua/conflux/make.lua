--- Making tensors.  Sizes come one by one or as a list, options last: `{dtype =, device =}`.
--
-- Numbers make float32, booleans bool, ids int64.  Without `device` a tensor lies on the default device: cpu:0,
-- inside withdevices the closure's, whose random stream is then used as well.
-- @module conflux.make
local core   = require "conflux.core"
local check  = require "conflux.check"
local tensor = require "conflux.tensor"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle = core.new, core.settle
local dtype_of, dtypes = core.dtype, core.dtypes
local default_device, stream = core.default_device, core.stream
local fail, wrong, describe = check.fail, check.wrong, check.describe
local sizes_t = core.sizes_t
local concat, floor, next, tonumber, tostring, type = table.concat, math.floor, next, tonumber, tostring, type

local BOOL, INT64, FLOAT32 = dtype_of.bool, dtype_of.int64, dtype_of.float32

---@alias conflux.MakeOptions {dtype: string?, device: (string|conflux.Device)?}

local KNOWN = {"dtype", "device"}

-- The dtype and device that options ask for.
local function read_options(fname, o, dtype)
  if o == nil then return dtype, default_device() end
  check.options(fname, o, KNOWN)
  return o.dtype == nil and dtype or check.dtype(fname, "dtype", o.dtype), check.device(fname, "device", o.device)
end

local function full(fname, value, dtype, n, sizes, o)
  local device
  dtype, device = read_options(fname, o, dtype)
  value = check.element(fname, "v", value, dtype)
  local out = new()
  local st = C.cfx_full(device, dtype, n, sizes, value, out)
  if st ~= 0 then settle(st, C.cfx_full, device, dtype, n, sizes, value, out) end
  return out
end

local make = {}

--- Zeros: `zeros(2, 3)`, `zeros({2, 3}, {dtype = "int64"})`.
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.zeros(a, b, c, d, e, f, g, h, i)
  return (full("zeros", 0, FLOAT32, check.sizes("zeros", 0, a, b, c, d, e, f, g, h, i)))
end

--- Ones: `ones(2, 3)`, `ones({2, 3}, {dtype = "int64"})`.
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.ones(a, b, c, d, e, f, g, h, i)
  return (full("ones", 1, FLOAT32, check.sizes("ones", 0, a, b, c, d, e, f, g, h, i)))
end

--- The value `v` everywhere: `full(0.5, 2, 3)`.  A boolean makes bool, a number float32, unless a dtype is given.
---@param v number|boolean
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.full(v, a, b, c, d, e, f, g, h, i)
  return (full("full", v, type(v) == "boolean" and BOOL or FLOAT32,
    check.sizes("full", 0, a, b, c, d, e, f, g, h, i)))
end

-- ---- random numbers ---------------------------------------------------------------------------------------

local function random(fname, kind, low, high, dtype, n, sizes, o)
  local device
  dtype, device = read_options(fname, o, dtype)
  if kind ~= "integer" and dtype < dtype_of.float16 then check.arg(fname, "dtype", "a float dtype", dtypes[dtype]) end
  local out = new()
  local st = C.cfx_random(device, dtype, n, sizes, kind, low, high, stream(), out)
  if st ~= 0 then settle(st, C.cfx_random, device, dtype, n, sizes, kind, low, high, stream(), out) end
  return out
end

--- Random numbers, uniform on [0, 1), of a float dtype.
--
-- Numbers are Philox 4x32-10 by position (Salmon et al., SC 2011), the same on every device for one seed: outside
-- withdevices from one stream, inside from the stream of the closure's position.
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.rand(a, b, c, d, e, f, g, h, i)
  return (random("rand", "uniform", 0, 1, FLOAT32, check.sizes("rand", 0, a, b, c, d, e, f, g, h, i)))
end

--- Random numbers, normal with mean 0 and deviation 1 (Box and Muller 1958), of a float dtype; see rand.
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.randn(a, b, c, d, e, f, g, h, i)
  return (random("randn", "normal", 0, 1, FLOAT32, check.sizes("randn", 0, a, b, c, d, e, f, g, h, i)))
end

--- Random integers from `lo` to `hi`, both included; int64; see rand.
---@param lo integer
---@param hi integer
---@param ... integer|integer[]|conflux.MakeOptions  sizes, one by one or as a list, then options
---@return conflux.Tensor
function make.randint(lo, hi, a, b, c, d, e, f, g, h, i)
  check.integer("randint", "lo", lo, -2 ^ 53, 2 ^ 53)
  check.integer("randint", "hi", hi, lo, 2 ^ 53)
  local n, sizes, o = check.sizes("randint", 0, a, b, c, d, e, f, g, h, i)
  local dtype = read_options("randint", o, INT64)
  check.element("randint", "lo", lo, dtype)
  check.element("randint", "hi", hi, dtype)
  return (random("randint", "integer", lo, hi, INT64, n, sizes, o))
end

--- The ids 0 to n - 1 in random order; int64; see rand.
---@param n integer
---@param o? {device: (string|conflux.Device)?}
---@return conflux.Tensor
function make.randperm(n, o)
  local sizes = sizes_t()
  sizes[0] = check.integer("randperm", "n", n, 0)
  local device = check.device("randperm", "device", check.options("randperm", o, {"device"}).device)
  local out = new()
  local st = C.cfx_random(device, INT64, 1, sizes, "permutation", 0, 0, stream(), out)
  if st ~= 0 then settle(st, C.cfx_random, device, INT64, 1, sizes, "permutation", 0, 0, stream(), out) end
  return out
end

-- ---- sequences --------------------------------------------------------------------------------------------

local function sequence(fname, n, start, step, o)
  local dtype, device = read_options(fname, o, FLOAT32)
  check.element(fname, "a", start, dtype)
  if n > 1 then check.element(fname, "step", step, dtype == dtype_of.uint8 and INT64 or dtype) end
  local out = new()
  local st = C.cfx_arange(device, dtype, n, start, step, out)
  if st ~= 0 then settle(st, C.cfx_arange, device, dtype, n, start, step, out) end
  return out
end

--- a, a + step, ... up to b, which is included where a step hits it.
---@param a number
---@param b number
---@param step? number default: 1
---@param o? conflux.MakeOptions
---@return conflux.Tensor
function make.arange(a, b, step, o)
  if type(step) == "table" and o == nil then step, o = nil, step end
  check.number("arange", "a", a)
  check.number("arange", "b", b)
  step = step == nil and 1 or check.number("arange", "step", step)
  local n = (b - a) / step
  if step == 0 or n ~= n or n >= 2 ^ 53 then wrong("arange", "step", "a step that leads from a to b", step) end
  -- 0.1 is not exact: a last value that is missed by rounding counts as hit
  n = n < 0 and 0 or floor(n + 1e-9 * (n < 1 and 1 or n)) + 1
  return sequence("arange", n, a, step, o)
end

--- n numbers from a to b, both included, at equal distances.
---@param a number
---@param b number
---@param n integer
---@param o? conflux.MakeOptions
---@return conflux.Tensor
function make.linspace(a, b, n, o)
  check.number("linspace", "a", a)
  check.number("linspace", "b", b)
  check.integer("linspace", "n", n, 0)
  local dtype = read_options("linspace", o, FLOAT32)
  if dtype < dtype_of.float16 then check.arg("linspace", "dtype", "a float dtype", dtypes[dtype]) end
  local x = sequence("linspace", n, a, n > 1 and (b - a) / (n - 1) or 0, o)
  if n > 1 then x[n] = b end
  return x
end

--- The identity matrix [n, m]: 1 on the main diagonal, 0 elsewhere.
---@param n integer
---@param m? integer default: n
---@param o? conflux.MakeOptions
---@return conflux.Tensor
function make.eye(n, m, o)
  if type(m) == "table" and o == nil then m, o = nil, m end
  local sizes = sizes_t()
  sizes[0] = check.integer("eye", "n", n, 0)
  sizes[1] = m == nil and n or check.integer("eye", "m", m, 0)
  local x = full("eye", 0, FLOAT32, 2, sizes, o)
  local diagonal = new()
  local st = C.cfx_diagonal(x, diagonal)
  if st ~= 0 then settle(st, C.cfx_diagonal, x, diagonal) end
  st = C.cfx_fill(diagonal, 1)
  if st ~= 0 then settle(st, C.cfx_fill, diagonal, 1) end
  C.cfx_release(diagonal)
  return x
end

--- Rows of n elements, 1 at the id and 0 elsewhere: shape [.., n].  An id out of range is an error, raised where a
-- value that depends on it is read.
---@param ids conflux.Tensor  integers from 0, of any shape
---@param n integer
---@param o? {dtype: string?}  default: float32
---@return conflux.Tensor
function make.onehot(ids, n, o)
  if not istype(tensor_t, ids) then wrong("onehot", "ids", "an integer tensor", ids) end
  check.integer("onehot", "n", n, 0)
  local dtype = check.options("onehot", o, {"dtype"}).dtype
  local out = new()
  core.at_line() -- an id out of range is found in the queue
  local st = C.cfx_onehot(ids, n, out)
  if st ~= 0 then settle(st, C.cfx_onehot, ids, n, out) end
  return dtype == nil and out or out:to(dtypes[check.dtype("onehot", "dtype", dtype)])
end

-- ---- from Lua's values ------------------------------------------------------------------------------------

local function from_host(device, dtype, n, sizes, data)
  local out = new()
  local st = C.cfx_from_host(device, dtype, n, sizes, data, out)
  if st ~= 0 then settle(st, C.cfx_from_host, device, dtype, n, sizes, data, out) end
  return out
end

-- "[2][3]" for messages.
local function where(path, depth)
  local parts = {}
  for k = 1, depth do parts[k] = ("[%d]"):format(path[k]) end
  return concat(parts)
end

-- The shape that the first element of each list shows, into `shape`.
local function measure(v)
  local shape = {}
  while type(v) == "table" do
    local n = check.length("tensor", "v", v)
    if n == 0 and next(v) ~= nil then fail("tensor", "argument 'v': expected a list, got a table with other keys") end
    shape[#shape + 1] = n
    if #shape > 8 then fail("tensor", "argument 'v': expected at most 8 nested lists") end
    if n == 0 then break end
    v = v[1]
  end
  return shape, v
end

-- Copies nested lists of one shape to a C array; `kind` is the Lua type of all values.
local function flatten(list, shape, d, array, at, kind, dtype, path)
  local n, size = #list, shape[d]
  if next(list, n > 0 and n or nil) ~= nil then check.length("tensor", "v" .. where(path, d - 1), list) end
  if n ~= size then
    fail("tensor", "argument 'v': ragged: expected %d elements at %s, got %d", size,
      d == 1 and "the top" or where(path, d - 1), n)
  end
  local is_last, low, high = d == #shape, check.lowest[dtype], check.highest[dtype]
  for i = 1, n do
    local v = list[i]
    path[d] = i
    if is_last then
      if type(v) ~= kind then
        fail("tensor", "argument 'v': ragged or mixed: expected a %s at %s, got %s", kind, where(path, d), describe(v))
      end
      if kind == "boolean" then v = v and 1 or 0
      elseif dtype == BOOL then v = v ~= 0 and 1 or 0
      elseif low and not (v % 1 == 0 and v >= low and v <= high) then
        check.element("tensor", "v" .. where(path, d), v, dtype)
      end
      array[at] = v
      at = at + 1
    else
      if type(v) ~= "table" then
        fail("tensor", "argument 'v': ragged: expected a list at %s, got %s", where(path, d), describe(v))
      end
      at = flatten(v, shape, d + 1, array, at, kind, dtype, path)
    end
  end
  return at
end

--- A tensor of a number, a boolean, or nested lists of them: `tensor {{1, 2}, {3, 4}}`.  Numbers make float32,
-- booleans bool, unless a dtype is given.  Lists of different lengths are refused, with their place.
---@param v number|boolean|table
---@param o? conflux.MakeOptions
---@return conflux.Tensor
function make.tensor(v, o)
  local shape, first = measure(v)
  local kind = type(first)
  if kind == "table" then kind = "number" -- empty
  elseif kind ~= "number" and kind ~= "boolean" then
    check.arg("tensor", "v", "a number, a boolean, or nested lists of them",
      (#shape > 0 and "a list of " or "") .. describe(first) .. (istype(tensor_t, first) and " (see cf.stack)" or ""))
  end
  local dtype, device = read_options("tensor", o, kind == "boolean" and BOOL or FLOAT32)
  local read_as = tensor.arrays[dtype] and dtype or FLOAT32 -- half types go through float32
  local n = 1
  for d = 1, #shape do n = n * shape[d] end
  local array = tensor.arrays[read_as](n)
  if #shape == 0 then
    v = check.element("tensor", "v", v, dtype)
    array[0] = dtype == BOOL and v ~= 0 and 1 or v
  else
    flatten(v, shape, 1, array, 0, kind, dtype, {})
  end
  local sizes = sizes_t()
  for d = 1, #shape do sizes[d - 1] = shape[d] end
  local out = from_host(device, read_as, #shape, sizes, array)
  if read_as == dtype then return out end
  local half = out:to(dtypes[dtype])
  C.cfx_release(out)
  return half
end

-- The dtype of a C element type, as tostring(ffi.typeof(pointer)) names it.
local of_element = {
  bool = "bool", ["unsigned char"] = "uint8", uint8_t = "uint8", int = "int32", int32_t = "int32",
  int64_t = "int64", float = "float32", double = "float64",
}
-- Elements of these may be anything of their size.
local raw = {void = 0, char = 1, uint16_t = 2, ["unsigned short"] = 2}

--- Copies values, row-major, from an FFI pointer or array, or from the bytes of a string.  The dtype is that of
-- the pointer; `void *`, `char *`, `uint16_t *` and strings need `dtype`.
---@param pointer ffi.cdata*|string  readable for the bytes of the shape; those of an array or string are checked
---@param shape integer[]
---@param o? conflux.MakeOptions
---@return conflux.Tensor
function make.from(pointer, shape, o)
  check.shape("from", "shape", shape)
  local n, sizes = #shape, sizes_t()
  for d = 1, n do sizes[d - 1] = shape[d] end
  local element = type(pointer) == "string" and "char"
  local is_array, bytes = false, nil
  if type(pointer) == "cdata" then
    local text = tostring(ffi.typeof(pointer)):match "^ctype<(.*)>$":gsub("const ", ""):gsub(" ?%(&%)", "")
    element = text:match "^([%w_ ]-) ?[%*%[]"
    is_array = text:find "%]$" ~= nil
    if text:find "[%*%[].*[%*%[]" then element = nil end -- of pointers or of arrays
  end
  if not element or not (of_element[element] or raw[element]) then
    wrong("from", "pointer", "an FFI pointer to or array of numbers, or a string", pointer)
  end
  local own = of_element[element]
  local dtype, device = read_options("from", o, own and dtype_of[own] or -1)
  if dtype < 0 then fail("from", "option 'dtype': it has to be given for a %s", type(pointer) == "string" and "string"
    or describe(pointer):sub(3)) end
  local size = C.cfx_dtype_size(dtype)
  if own and own ~= dtypes[dtype] or raw[element] == 2 and size ~= 2 then
    check.arg("from", "dtype", own or "float16 or bfloat16", dtypes[dtype])
  end
  if pointer == nil then check.arg("from", "pointer", "an address", "NULL") end
  local need = size
  for d = 0, n - 1 do need = need * tonumber(sizes[d]) end
  if type(pointer) == "string" then bytes = #pointer elseif is_array then bytes = ffi.sizeof(pointer) end
  if bytes and bytes < need or type(pointer) == "string" and bytes ~= need then
    wrong("from", "pointer", ("%d bytes for shape [%s]"):format(need, concat(shape, ", ")), bytes)
  end
  local data = type(pointer) == "string" and ffi.cast("const char *", pointer) or pointer
  return from_host(device, dtype, n, sizes, data)
end

return make
