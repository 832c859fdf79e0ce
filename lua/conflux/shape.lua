--- Shapes: views in another shape, and copies side by side.
-- @module conflux.shape
local core   = require "conflux.core"
local check  = require "conflux.check"
local tensor = require "conflux.tensor"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle = core.new, core.settle
local sizes_t, dims_t = core.sizes_t, core.dims_t
local slice, wrong = tensor.slice, check.wrong
local tonumber, type = tonumber, type
local min = math.min

local Tensor = core.methods

--- The same elements, row-major, in another shape: a view where there is one, else a copy.
---@param x conflux.Tensor
---@param ... integer|integer[]  sizes, one by one or as a list; one may be -1 and is worked out
---@return conflux.Tensor
function Tensor.reshape(x, a, b, c, d, e, f, g, h, i)
  if not istype(tensor_t, x) then wrong("reshape", "x", "a tensor", x) end
  local n, sizes, o = check.sizes("reshape", -1, a, b, c, d, e, f, g, h, i)
  if o then check.options("reshape", o, {}) end
  local out = new()
  local st = C.cfx_reshape(x, n, sizes, out)
  if st ~= 0 then settle(st, C.cfx_reshape, x, n, sizes, out) end
  return out
end

--- Stretches dimensions of size 1 to the sizes given, and adds dimensions in front: a view.
---@param x conflux.Tensor
---@param ... integer|integer[]  sizes, one by one or as a list; -1 keeps a size
---@return conflux.Tensor
function Tensor.expand(x, a, b, c, d, e, f, g, h, i)
  if not istype(tensor_t, x) then wrong("expand", "x", "a tensor", x) end
  local n, sizes, o = check.sizes("expand", -1, a, b, c, d, e, f, g, h, i)
  if o then check.options("expand", o, {}) end
  local out = new()
  local st = C.cfx_expand(x, n, sizes, out)
  if st ~= 0 then settle(st, C.cfx_expand, x, n, sizes, out) end
  return out
end

--- Copies side by side: so many along each dimension.
---@param x conflux.Tensor
---@param ... integer|integer[]  one count per dimension, one by one or as a list
---@return conflux.Tensor
function Tensor.tile(x, a, b, c, d, e, f, g, h, i)
  if not istype(tensor_t, x) then wrong("tile", "x", "a tensor", x) end
  local n, sizes, o = check.sizes("tile", 0, a, b, c, d, e, f, g, h, i)
  if o then check.options("tile", o, {}) end
  if n ~= x._ndim then wrong("tile", "counts", ("%d counts, one per dimension"):format(x._ndim), n) end
  local out = new()
  local st = C.cfx_tile(x, sizes, out)
  if st ~= 0 then settle(st, C.cfx_tile, x, sizes, out) end
  return out
end

--- Exchanges two dimensions: a view.
---@param x conflux.Tensor
---@param a integer  from 1, or from the end if negative
---@param b integer
---@return conflux.Tensor
function Tensor.transpose(x, a, b)
  if not istype(tensor_t, x) then wrong("transpose", "x", "a tensor", x) end
  a, b = check.dim("transpose", "a", a, x._ndim), check.dim("transpose", "b", b, x._ndim)
  local out = new()
  local st = C.cfx_transpose(x, a, b, out)
  if st ~= 0 then settle(st, C.cfx_transpose, x, a, b, out) end
  return out
end

--- A matrix with its two dimensions exchanged: a view.
---@param x conflux.Tensor  [n, m]
---@return conflux.Tensor
function Tensor.t(x)
  if not istype(tensor_t, x) then wrong("t", "x", "a tensor", x) end
  if x._ndim ~= 2 then wrong("t", "x", "a tensor of 2 dimensions", x) end
  local out = new()
  local st = C.cfx_transpose(x, 0, 1, out)
  if st ~= 0 then settle(st, C.cfx_transpose, x, 0, 1, out) end
  return out
end

-- Dimensions given one by one or as a list: their number, and an array of them for C, from 0.
local function read_dims(fname, x, first, ...)
  local list = type(first) == "table" and first or {first, ...}
  list = check.dims(fname, "dims", list, x._ndim)
  local dims = dims_t()
  for k = 1, #list do
    dims[k - 1] = list[k]
  end
  return #list, dims
end

--- The dimensions in another order: a view.
---@param x conflux.Tensor
---@param ... integer|integer[]  all dimensions, one by one or as a list: the first names what comes first
---@return conflux.Tensor
function Tensor.permute(x, ...)
  if not istype(tensor_t, x) then wrong("permute", "x", "a tensor", x) end
  local n, dims = read_dims("permute", x, ...)
  if n ~= x._ndim then wrong("permute", "dims", ("%d dimensions"):format(x._ndim), n) end
  local out = new()
  local st = C.cfx_permute(x, n, dims, out)
  if st ~= 0 then settle(st, C.cfx_permute, x, n, dims, out) end
  return out
end

--- Reverses the order along the dimensions given, or along all: a copy.
---@param x conflux.Tensor
---@param ... integer|integer[]  dimensions, one by one or as a list
---@return conflux.Tensor
function Tensor.flip(x, ...)
  if not istype(tensor_t, x) then wrong("flip", "x", "a tensor", x) end
  local n, dims = read_dims("flip", x, ...)
  if n == 0 then
    n = x._ndim
    for d = 0, n - 1 do dims[d] = d end
  end
  local out = new()
  local st = C.cfx_flip(x, n, dims, out)
  if st ~= 0 then settle(st, C.cfx_flip, x, n, dims, out) end
  return out
end

--- Drops dimension `d`, which has size 1, or all dimensions of size 1: a view.
---@param x conflux.Tensor
---@param d? integer  default: all of size 1
---@return conflux.Tensor
function Tensor.squeeze(x, d)
  if not istype(tensor_t, x) then wrong("squeeze", "x", "a tensor", x) end
  local out = new()
  local st
  if d ~= nil then
    d = check.dim("squeeze", "d", d, x._ndim)
    st = C.cfx_squeeze(x, d, out)
    if st ~= 0 then settle(st, C.cfx_squeeze, x, d, out) end
  else
    local n, sizes = 0, sizes_t()
    for k = 0, x._ndim - 1 do
      if x._shape[k] ~= 1 then
        sizes[n] = x._shape[k]
        n = n + 1
      end
    end
    st = C.cfx_reshape(x, n, sizes, out)
    if st ~= 0 then settle(st, C.cfx_reshape, x, n, sizes, out) end
  end
  return out
end

--- Adds a dimension of size 1 that becomes dimension `d`: a view.
---@param x conflux.Tensor
---@param d integer  from 1 to ndim + 1, or from the end if negative
---@return conflux.Tensor
function Tensor.unsqueeze(x, d)
  if not istype(tensor_t, x) then wrong("unsqueeze", "x", "a tensor", x) end
  d = check.dim("unsqueeze", "d", d, x._ndim + 1)
  local out = new()
  local st = C.cfx_unsqueeze(x, d, out)
  if st ~= 0 then settle(st, C.cfx_unsqueeze, x, d, out) end
  return out
end

--- Adds elements around: `widths` has one entry per dimension, `{before, after}`, or one number for both sides.  A
-- copy.
--
--     x:pad({{1, 1}, {0, 2}})           -- of 2 dimensions
--     x:pad({0, 1, 1, 0}, {value = -1}) -- height and width of NHWC images
---@param x conflux.Tensor
---@param widths (integer|integer[])[]
---@param o? {value: number}          default: 0
---@return conflux.Tensor
function Tensor.pad(x, widths, o)
  if not istype(tensor_t, x) then wrong("pad", "x", "a tensor", x) end
  o = check.options("pad", o, {"value"})
  local value, ndim = check.element("pad", "value", o.value == nil and 0 or o.value, x._dtype), x._ndim
  local n = type(widths) == "table" and check.length("pad", "widths", widths)
  if n ~= ndim then
    check.arg("pad", "widths", ("a list of %d, {before, after} per dimension"):format(ndim),
      n and ("a list of %d"):format(n) or check.describe(widths))
  end
  local before, after = sizes_t(), sizes_t()
  for d = 1, ndim do
    local width = widths[d]
    local a, b = width, width
    local name = ("widths[%d]"):format(d)
    if type(width) == "table" then
      if check.length("pad", name, width) > 2 then check.wrong("pad", name, "{before, after}", width) end
      a, b = width[1], width[2]
    end
    before[d - 1], after[d - 1] = check.integer("pad", name, a, 0), check.integer("pad", name, b, 0)
  end
  local out = new()
  local st = C.cfx_pad(x, before, after, value, out)
  if st ~= 0 then settle(st, C.cfx_pad, x, before, after, value, out) end
  return out
end

--- Cuts dimension `d` into views of `size` elements, the last of what remains; or of the sizes listed.
---@param x conflux.Tensor
---@param size integer|integer[]  a list adds up to the size of the dimension
---@param d? integer              default: 1
---@return conflux.Tensor[]
function Tensor.split(x, size, d)
  if not istype(tensor_t, x) then wrong("split", "x", "a tensor", x) end
  d = check.dim("split", "d", d or 1, x._ndim)
  local total, parts, at = tonumber(x._shape[d]), {}, 0
  if type(size) == "table" then
    check.shape("split", "size", size)
    local sum = 0
    for k = 1, #size do sum = sum + size[k] end
    if sum ~= total then wrong("split", "size", ("sizes that add up to %d"):format(total), sum) end
  else
    check.integer("split", "size", size, 1)
  end
  while at < total or (type(size) == "table" and #parts < #size) do
    local n = type(size) == "table" and size[#parts + 1] or min(size, total - at)
    parts[#parts + 1] = slice(x, d, at, n, 1)
    at = at + n
  end
  return parts
end

-- The addresses of a list of tensors, and its length.
local function read_list(fname, list)
  if type(list) ~= "table" then wrong(fname, "list", "a list of tensors", list) end
  local n = check.length(fname, "list", list)
  if n == 0 then check.arg(fname, "list", "at least one tensor", "none") end
  for k = 1, n do check.tensor(fname, ("list[%d]"):format(k), list[k]) end
  return core.ptrs(list), n
end

--- Joins tensors along a dimension that they have.
---@param list conflux.Tensor[]  of one device, and of one shape but for that dimension; dtypes are promoted
---@param d? integer           default: 1
---@return conflux.Tensor
local function concat(list, d)
  local array, n = read_list("concat", list)
  d = check.dim("concat", "d", d or 1, list[1]._ndim)
  local out = new()
  local st = C.cfx_concat(n, array, d, out)
  if st ~= 0 then settle(st, C.cfx_concat, n, array, d, out) end
  return out
end

--- Joins tensors of one shape along a new dimension.
---@param list conflux.Tensor[]  of one device; dtypes are promoted
---@param d? integer           default: 1; from the end if negative
---@return conflux.Tensor
local function stack(list, d)
  local array, n = read_list("stack", list)
  d = check.dim("stack", "d", d or 1, list[1]._ndim + 1)
  local out = new()
  local st = C.cfx_stack(n, array, d, out)
  if st ~= 0 then settle(st, C.cfx_stack, n, array, d, out) end
  return out
end

return {concat = concat, stack = stack}
