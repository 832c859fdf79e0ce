--- Tensors: handles, what they tell, reading, indexing.
--
-- A handle is a C struct held by value; its finaliser is the C release.  `==` is identity.  Positions (dims,
-- indices) count from 1, or from the end if negative; views share memory and copy nothing.
-- @module conflux.tensor
local core  = require "conflux.core"
local check = require "conflux.check"
local names = require "conflux.names"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle = core.new, core.settle
local dtype_of, dtypes = core.dtype, core.dtypes
local fail, wrong, describe = check.fail, check.wrong, check.describe
local next, rawequal, tonumber, tostring, type = next, rawequal, tonumber, tostring, type
local each = core.each
local floor = math.floor

local MOST_BYTES = 2 ^ 31 - 2 ^ 16 -- of an array of LuaJIT's
local MAX_EXACT = 2 ^ 53 -- beyond it not every integer is a Lua number

--- A tensor: numbers of one dtype, in up to 8 dimensions, on one device.
--
-- Operations enqueue and return; the host waits where a value is read (item, totable, print).  `t[i]`, `t[{i, {a, b},
-- {}}]` are views by positions, which count from 1 or from the end if negative, and can be assigned to; `t[ids]` takes
-- slices by ids, which count from 0; `#t` is the size of dimension 1; `==` asks whether two are the same one.
---@class conflux.Tensor
---@field shape integer[]   a new list, row-major order
---@field ndim integer      how many dimensions, 0 to 8
---@field dtype string      "bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32" or "float64"
---@field device conflux.Device
---@operator add(conflux.Tensor|number): conflux.Tensor
---@operator sub(conflux.Tensor|number): conflux.Tensor
---@operator mul(conflux.Tensor|number): conflux.Tensor
---@operator div(conflux.Tensor|number): conflux.Tensor
---@operator pow(conflux.Tensor|number): conflux.Tensor
---@operator unm: conflux.Tensor
---@operator len: integer
---@field [integer] conflux.Tensor
local Tensor = core.methods

-- ---- properties -------------------------------------------------------------------------------------------

local function released(fname)
  fail(fname, "the tensor was released")
end

local function shape_of(x)
  if x._buffer == nil then released "shape" end
  local shape, sizes = {}, x._shape
  for d = 1, x._ndim do
    shape[d] = tonumber(sizes[d - 1])
  end
  return shape
end

local properties = {
  shape = shape_of,
  ndim = function(x)
    if x._buffer == nil then released "ndim" end
    return x._ndim
  end,
  dtype = function(x)
    if x._buffer == nil then released "dtype" end
    return dtypes[x._dtype]
  end,
  device = function(x)
    local device = C.cfx_tensor_device(x)
    if device == nil then released "device" end
    return core.find_device(device)
  end,
}

--- The size of dimension `d`.
---@param x conflux.Tensor
---@param d integer  from 1, or from the end if negative
---@return integer
function Tensor.size(x, d)
  if not istype(tensor_t, x) then wrong("size", "x", "a tensor", x) end
  if x._buffer == nil then released "size" end
  return tonumber(x._shape[check.dim("size", "d", d, x._ndim)])
end

local function numel(x)
  local n, sizes = 1, x._shape
  for d = 0, x._ndim - 1 do
    n = n * tonumber(sizes[d])
  end
  return n
end

--- How many elements there are.
---@param x conflux.Tensor
---@return integer
function Tensor.numel(x)
  if not istype(tensor_t, x) then wrong("numel", "x", "a tensor", x) end
  if x._buffer == nil then released "numel" end
  return numel(x)
end

--- Gives the handle up now rather than at the next collection.  May be called twice; whatever else is done with the
-- tensor afterwards is an error.
---@param x conflux.Tensor
function Tensor.release(x)
  if not istype(tensor_t, x) then wrong("release", "x", "a tensor", x) end
  C.cfx_release(x)
end

-- ---- reading ----------------------------------------------------------------------------------------------

-- The C type as which the host reads a dtype; half types are converted to float32 before.
local element = {bool = "uint8_t", uint8 = "uint8_t", int32 = "int32_t", int64 = "int64_t",
  float32 = "float", float64 = "double"}
local arrays, pointers = {}, {}
for name, ctype in each, element do
  local number = dtype_of[name]
  arrays[number] = ffi.typeof(ctype .. "[?]")
  pointers[number] = ffi.typeof(ctype .. " *")
end
pointers[dtype_of.bool] = ffi.typeof "bool *"
pointers[dtype_of.float16], pointers[dtype_of.bfloat16] = ffi.typeof "uint16_t *", ffi.typeof "uint16_t *"

local BOOL, INT64, FLOAT32 = dtype_of.bool, dtype_of.int64, dtype_of.float32
local sizes_of = {}
for number = 0, #dtypes do
  sizes_of[number] = C.cfx_dtype_size(number)
end

-- Reads all values, row-major, into a new array; returns it, their number, and the dtype as read.
local function read(x)
  if not arrays[x._dtype] then -- a half type
    local plain, wide = new(), new()
    local st = C.cfx_detach(x, plain)
    if st ~= 0 then settle(st) end
    st = C.cfx_to(plain, nil, FLOAT32, wide)
    if st ~= 0 then settle(st, C.cfx_to, plain, nil, FLOAT32, wide) end
    C.cfx_release(plain)
    local array, n, dtype = read(wide)
    C.cfx_release(wide)
    return array, n, dtype
  end
  local dtype, n = x._dtype, numel(x)
  if n * sizes_of[dtype] > MOST_BYTES then
    fail("read", "%.0f bytes at once are more than Lua takes: read a part, or take the :pointer()", n * sizes_of[dtype])
  end
  local array = arrays[dtype](n)
  if core.on_wait then core.on_wait(x) end
  local st = C.cfx_read(x, array, n * sizes_of[dtype])
  if st ~= 0 then settle(st, C.cfx_read, x, array, n * sizes_of[dtype]) end
  return array, n, dtype
end

-- A Lua value of an element as read.
local function to_lua(fname, value, dtype)
  if dtype == BOOL then return value ~= 0 end
  value = tonumber(value)
  if dtype == INT64 and (value > MAX_EXACT or value < -MAX_EXACT) then
    fail(fname, "the int64 %.0f is beyond 2^53, where Lua numbers are not exact", value)
  end
  return value
end

--- The one element of a tensor, as a number or boolean.  Waits for it.  An int64 beyond 2^53, where Lua numbers are
-- not exact, is an error.
---@param x conflux.Tensor  of one element, whatever its shape
---@return number|boolean
function Tensor.item(x)
  if not istype(tensor_t, x) then wrong("item", "x", "a tensor", x) end
  if numel(x) ~= 1 then wrong("item", "x", "a tensor of one element", x) end
  local array, _, dtype = read(x)
  return to_lua("item", array[0], dtype)
end

local function nest(array, dtype, shape, d, at, stride)
  local list, size = {}, shape[d]
  if d == #shape then
    for i = 1, size do
      list[i] = to_lua("totable", array[at + i - 1], dtype)
    end
  else
    local inner = stride / size
    for i = 1, size do
      list[i] = nest(array, dtype, shape, d + 1, at + (i - 1) * inner, inner)
    end
  end
  return list
end

--- The values as nested lists; of a tensor without dimensions its value.  Waits for them.
---@param x conflux.Tensor
---@return table|number|boolean
function Tensor.totable(x)
  if not istype(tensor_t, x) then wrong("totable", "x", "a tensor", x) end
  local array, n, dtype = read(x)
  if x._ndim == 0 then return to_lua("totable", array[0], dtype) end
  return nest(array, dtype, shape_of(x), 1, 0, n)
end

--- The address of the first element, as a pointer of the dtype's C type (half types: `uint16_t *`).  Waits for
-- the value.  The tensor has to be packed (`:contiguous()`), in memory that the host can read, and to outlive
-- the pointer.
---@param x conflux.Tensor
---@return ffi.cdata*
function Tensor.pointer(x)
  if not istype(tensor_t, x) then wrong("pointer", "x", "a tensor", x) end
  if C.cfx_is_contiguous(x) == 0 then
    check.arg("pointer", "x", "a packed tensor (see :contiguous())", "a view with gaps, " .. describe(x))
  end
  if core.on_wait then core.on_wait(x) end
  local out = ffi.new "void *[1]"
  local st = C.cfx_pointer(x, out)
  if st ~= 0 then settle(st) end
  if out[0] == nil and numel(x) > 0 then
    fail("pointer", "the memory of %s cannot be read by the host", x.device.name)
  end
  return ffi.cast(pointers[x._dtype], out[0])
end

-- ---- copies and second handles ----------------------------------------------------------------------------

-- The device that `to` is given.  A name of no device that reads like a dtype was meant as one.
local function device_of(v)
  if type(v) ~= "string" or core.find_device(v) or v:find "%d$" and v:find ":" then
    return check.device("to", "where", v)
  end
  check.arg("to", "where", "a device such as 'cpu:0', or a dtype: " .. check.dtypes, describe(v)
    .. check.meant_dtype(v))
end

--- x with another dtype, or on another device, or both.  x itself where nothing changes.
---@param x conflux.Tensor
---@param where string|conflux.Device  a dtype, or a device or its name: "float16", "cuda:0"
---@param also? string|conflux.Device  the other one
---@return conflux.Tensor
function Tensor.to(x, where, also)
  if not istype(tensor_t, x) then wrong("to", "x", "a tensor", x) end
  local dtype, device = -1, nil
  for k = 1, also == nil and 1 or 2 do
    local v = k == 1 and where or also
    if v == nil then wrong("to", "where", "a dtype or a device", v) end
    local number = type(v) == "string" and dtype_of[v]
    if number then dtype = number else device = device_of(v) end
  end
  if (dtype < 0 or dtype == x._dtype) and (not device or device == C.cfx_tensor_device(x)) then return x end
  local out = new()
  local st = C.cfx_to(x, device, dtype, out)
  if st ~= 0 then settle(st, C.cfx_to, x, device, dtype, out) end
  return out
end

--- A packed copy, which shares no memory with x.
---@param x conflux.Tensor
---@return conflux.Tensor
function Tensor.clone(x)
  if not istype(tensor_t, x) then wrong("clone", "x", "a tensor", x) end
  local out = new()
  local st = C.cfx_clone(x, out)
  if st ~= 0 then settle(st, C.cfx_clone, x, out) end
  return out
end

--- The same values, a constant for gradients.
---@param x conflux.Tensor
---@return conflux.Tensor
function Tensor.detach(x)
  if not istype(tensor_t, x) then wrong("detach", "x", "a tensor", x) end
  local out = new()
  local st = C.cfx_detach(x, out)
  if st ~= 0 then settle(st, C.cfx_detach, x, out) end
  return out
end

--- x itself if it is packed row by row, else a packed copy.
---@param x conflux.Tensor
---@return conflux.Tensor
function Tensor.contiguous(x)
  if not istype(tensor_t, x) then wrong("contiguous", "x", "a tensor", x) end
  if C.cfx_is_contiguous(x) ~= 0 then return x end
  local out = new()
  local st = C.cfx_contiguous(x, out)
  if st ~= 0 then settle(st, C.cfx_contiguous, x, out) end
  return out
end

-- ---- indexing ---------------------------------------------------------------------------------------------

-- Position i of a dimension of that size, from 0.
local function position(i, size, d)
  if i % 1 == 0 then
    if i >= 1 and i <= size then return i - 1 end
    if i <= -1 and i >= -size then return size + i end
  end
  wrong("index", tostring(d), size > 0 and ("a position from 1 to %d, or from -1 to -%d"):format(size, size)
    or "no position, as the dimension is empty", i)
end

local function select_at(x, d, i)
  local at = position(i, tonumber(x._shape[d]), d + 1)
  local out = new()
  local st = C.cfx_select(x, d, at, out)
  if st ~= 0 then settle(st, C.cfx_select, x, d, at, out) end
  return out
end

local function slice(x, d, start, n, step)
  local out = new()
  local st = C.cfx_slice(x, d, start, n, step, out)
  if st ~= 0 then settle(st, C.cfx_slice, x, d, start, n, step, out) end
  return out
end

-- {a, b, step?}: positions a to b, both included; b = a - 1 is none.  {a}: position a alone, and the dimension stays.
local function slice_at(x, d, range)
  local size = tonumber(x._shape[d])
  local a, b, step = range[1], range[2], range[3]
  local count = check.length("index", d + 1, range)
  if count > 3 then check.arg("index", tostring(d + 1), "{first, last, step?}", ("a list of %d"):format(count)) end
  if b == nil then b = a end
  check.integer("index", tostring(d + 1), a)
  check.integer("index", tostring(d + 1), b)
  if step ~= nil then check.integer("index", "step", step, 1) end
  if b == a - 1 and a >= 1 and b <= size then return slice(x, d, b, 0, 1) end
  local first, last = position(a, size, d + 1), position(b, size, d + 1)
  if last < first then
    check.arg("index", tostring(d + 1), "a range that rises", ("{%d, %d}"):format(a, b))
  end
  step = step or 1
  return slice(x, d, first, floor((last - first) / step) + 1, step)
end

-- The view t[{...}]: per dimension a position, a range, or {} for all.
local function view_at(x, list)
  local n = check.length("index", "key", list)
  if next(list) ~= nil and n == 0 then wrong("index", "key", "a list of positions and ranges", list) end
  if n > x._ndim then
    fail("index", "%d positions for a tensor of %d dimensions", n, x._ndim)
  end
  local view, d = x, 0
  for k = 1, n do
    local key, before = list[k], view
    if type(key) == "number" then
      view = select_at(view, d, key)
    elseif type(key) == "table" then
      if next(key) ~= nil then view = slice_at(view, d, key) end
      d = d + 1
    else
      wrong("index", tostring(k), "a position, a range {a, b} or {}", key)
    end
    if before ~= view and before ~= x then C.cfx_release(before) end
  end
  return view
end

-- t[{}] is a view as well: a caller that releases it must not release t.
local function second_handle(x)
  local out = new()
  local st = C.cfx_retain(x, out)
  if st ~= 0 then settle(st, C.cfx_retain, x, out) end
  return out
end

local function index_at(x, key)
  if type(key) == "number" then
    if x._ndim == 0 then fail("index", "a tensor without dimensions has no positions") end
    return select_at(x, 0, key)
  elseif type(key) == "table" then
    local view = view_at(x, key)
    return rawequal(view, x) and second_handle(x) or view
  elseif istype(tensor_t, key) then
    return Tensor.index(x, 1, key)
  elseif type(key) == "string" then
    fail("Tensor", "a tensor has no field %s%s", describe(key), names.hint(Tensor, "x:", key))
  end
  wrong("index", "key", "a position, a list of positions and ranges, or an integer tensor", key)
end

local meta = core.tensor_meta

function meta.__index(x, key)
  local method = Tensor[key]
  if method ~= nil then return method end
  local property = properties[key]
  if property then return property(x) end
  return index_at(x, key)
end

function meta.__newindex(x, key, value)
  local view
  if type(key) == "number" then
    if x._ndim == 0 then fail("index", "a tensor without dimensions has no positions") end
    view = select_at(x, 0, key)
  elseif type(key) == "table" then
    view = view_at(x, key)
  elseif type(key) == "string" then
    fail("Tensor", "cannot set field %s of a tensor", describe(key))
  else
    wrong("index", "key", "a position or a list of positions and ranges to assign to", key)
  end
  if istype(tensor_t, value) then
    if C.cfx_is_watched(value) == 1 then
      fail("index", "a value that a gradient is recorded of cannot be assigned into a slice: put the parts together by "
        .. "cf.concat or cf.stack")
    end
    local st = C.cfx_copy(view, value)
    if st ~= 0 then settle(st, C.cfx_copy, view, value) end
  else
    value = check.element("index", "value", value, x._dtype)
    local st = C.cfx_fill(view, value)
    if st ~= 0 then settle(st, C.cfx_fill, view, value) end
  end
  if not rawequal(view, x) then C.cfx_release(view) end
end

function meta.__len(x)
  if x._buffer == nil then released "size" end
  if x._ndim == 0 then fail("size", "a tensor without dimensions has no size of dimension 1") end
  return tonumber(x._shape[0])
end

-- Identity.  A number is never identical, so a script that compares with one meant something else.
function meta.__eq(a, b)
  if type(a) == "number" or type(b) == "number" then
    fail("eq", "'==' compares a tensor by identity: use a:eq(b) for its elements, or a:item() == b")
  end
  return rawequal(a, b)
end

local function no_order()
  fail("lt", "'<' and '<=' give one boolean in Lua: use a:lt(b), a:le(b), a:gt(b), a:ge(b) for the elements")
end
meta.__lt, meta.__le = no_order, no_order

return {
  read = read, to_lua = to_lua, numel = numel, shape_of = shape_of, slice = slice, arrays = arrays, element = element,
}
