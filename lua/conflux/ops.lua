--- Operations over dimensions: reductions, what orders, products, and what selects.  Each is a method of tensors and
-- a function of this module, written as those of conflux.elementwise.
--
-- Dimensions count from 1, or from the end if negative; ids count from 0.
-- @module conflux.ops
local core  = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local new, settle, op_number, at_line = core.new, core.settle, core.op, core.at_line
local dims_t = core.dims_t
local wrong = check.wrong
local next, type = next, type

local Tensor = core.methods
local ops = {}

---@alias conflux.Dims integer|integer[]
---@alias conflux.ReduceOptions {keepdim: boolean?}

-- Gives a method to tensors, and to `cf`.
local function define(name, f)
  Tensor[name], ops[name] = f, f
  return f
end

-- ---- reductions -------------------------------------------------------------------------------------------

local KEEPDIM, VAR_OPTIONS = {"keepdim"}, {"keepdim", "correction"}

-- Reads `dims?, options?`: returns the number of dimensions (0: all), an array of them for C, keepdim, options.
local function read_dims(name, x, d, o, known)
  local n, dims = 0, dims_t()
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
  if o == nil then return n, dims, 0, nil end
  check.options(name, o, known)
  if o.keepdim ~= nil then check.boolean(name, "keepdim", o.keepdim) end
  return n, dims, o.keepdim and 1 or 0, o
end

local function reduction(name)
  local op = op_number[name]
  define(name, function(x, dims, o)
    if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
    local n, array, keep = 0, nil, 0
    if dims ~= nil or o ~= nil then n, array, keep = read_dims(name, x, dims, o, KEEPDIM) end
    local out = new()
    local st = C.cfx_reduce(op, x, n, array, keep, 0, out)
    if st ~= 0 then settle(st, C.cfx_reduce, op, x, n, array, keep, 0, out) end
    return out
  end)
end

--- The sum over dimensions; of integers and bool in int64.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "sum"

--- The mean over dimensions; in float.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "mean"

--- The product over dimensions; of integers and bool in int64.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "prod"

--- The largest element over dimensions; NaN where there is one.  Equal ones share the gradient.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "max"

--- The smallest element over dimensions; NaN where there is one.  Equal ones share the gradient.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "min"

--- The id, from 0, of the largest element: the first of equals, or of NaNs.
---@param x conflux.Tensor
---@param dims? integer  one dimension; default: over all, as if x were flat
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor int64
reduction "argmax"

--- The id, from 0, of the smallest element: the first of equals, or of NaNs.
---@param x conflux.Tensor
---@param dims? integer  one dimension; default: over all, as if x were flat
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor int64
reduction "argmin"

--- The 2-norm over dimensions, sqrt of the sum of squares; in float.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor
reduction "norm"

--- Whether any element over dimensions is true, that is not 0.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor bool
reduction "any"

--- Whether all elements over dimensions are true, that is not 0.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? conflux.ReduceOptions  keepdim: reduced dimensions stay, with size 1
---@return conflux.Tensor bool
reduction "all"

local function variance(name, x, d, o)
  local op = op_number[name]
  if not istype(tensor_t, x) then wrong(name, "x", "a tensor", x) end
  local n, dims, keep, correction = 0, nil, 0, 1
  if d ~= nil or o ~= nil then
    n, dims, keep, o = read_dims(name, x, d, o, VAR_OPTIONS)
    if o and o.correction ~= nil then correction = check.number(name, "correction", o.correction) end
  end
  local out = new()
  local st = C.cfx_reduce(op, x, n, dims, keep, correction, out)
  if st ~= 0 then settle(st, C.cfx_reduce, op, x, n, dims, keep, correction, out) end
  return out
end

--- The variance over dimensions; in float.  `correction` is taken from the number of elements (1: Bessel's).
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? {keepdim: boolean?, correction: number?}  default: false, 1
---@return conflux.Tensor
define("var", function(x, dims, o) return (variance("var", x, dims, o)) end)

--- The standard deviation over dimensions, the root of var; in float.
---@param x conflux.Tensor
---@param dims? conflux.Dims  default: all
---@param o? {keepdim: boolean?, correction: number?}  default: false, 1
---@return conflux.Tensor
define("std", function(x, dims, o) return (variance("std", x, dims, o)) end)

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

--- exp(x) / the sum of exp(x) along dimension `d`, which does not overflow; in float.
---@param x conflux.Tensor
---@param d? integer  default: the last
---@return conflux.Tensor
softmax "softmax"

--- log(softmax(x)) along dimension `d`, exact where softmax is tiny; in float.
---@param x conflux.Tensor
---@param d? integer  default: the last
---@return conflux.Tensor
softmax "logsoftmax"

--- The k largest along dimension `d` in falling order, and their ids from 0.  NaN counts as the largest.
---@param x conflux.Tensor
---@param k integer   at most the size of the dimension, which becomes k
---@param d? integer  default: the last
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

--- The values along dimension `d` in rising order, and their ids from 0.  Equal ones keep their order; NaN counts as
-- the largest.
---@param x conflux.Tensor
---@param d? integer                 default: the last
---@param o? {descending: boolean?}  default: false
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

-- Whether ids are in range is seen only where they are read, in the queue: what takes them notes the script's line,
-- last of all, as a finaliser may note another one.

-- ---- products and selection -------------------------------------------------------------------------------

--- The matrix product; batch dimensions broadcast, a vector is a row on the left and a column on the right.
--
-- Products of float32 are exact, unless cf.precision allows less.
---@param a conflux.Tensor  [.., n, k] or [k]
---@param b conflux.Tensor  [.., k, m] or [k], of a's device
---@return conflux.Tensor
define("matmul", function(a, b)
  if not istype(tensor_t, a) then wrong("matmul", "a", "a tensor", a) end
  if not istype(tensor_t, b) then wrong("matmul", "b", "a tensor", b) end
  local out = new()
  local st = C.cfx_matmul(a, b, out)
  if st ~= 0 then settle(st, C.cfx_matmul, a, b, out) end
  return out
end)

--- The slices of dimension `d` that `ids` name, from 0; the shape of ids takes that dimension's place.  `x[ids]` is
-- `x:index(1, ids)`.  An id out of range is an error, raised where a value that depends on it is read.
---@param x conflux.Tensor
---@param d integer
---@param ids conflux.Tensor  integers, of any shape
---@return conflux.Tensor
define("index", function(x, d, ids)
  if not istype(tensor_t, x) then wrong("index", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("index", "ids", "an integer tensor", ids) end
  d = check.dim("index", "d", d, x._ndim)
  local out = new()
  at_line()
  local st = C.cfx_index(x, d, ids, out)
  if st ~= 0 then settle(st, C.cfx_index, x, d, ids, out) end
  return out
end)

--- Element by element along dimension `d`: out[i][j] = x[ids[i][j]][j] for d = 1, ids from 0.
---@param x conflux.Tensor
---@param d integer
---@param ids conflux.Tensor  integers, of x's rank, and in other dimensions than d no larger
---@return conflux.Tensor
define("gather", function(x, d, ids)
  if not istype(tensor_t, x) then wrong("gather", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("gather", "ids", "an integer tensor", ids) end
  d = check.dim("gather", "d", d, x._ndim)
  local out = new()
  at_line()
  local st = C.cfx_gather(x, d, ids, out)
  if st ~= 0 then settle(st, C.cfx_gather, x, d, ids, out) end
  return out
end)

--- A copy of x with the elements of `src` added at `ids` along dimension `d`: for d = 1 out[ids[i][j]][j] +=
-- src[i][j], ids from 0.  In the order of ids, so that equal runs give equal bits.
---@param x conflux.Tensor
---@param d integer
---@param ids conflux.Tensor  integers, of x's rank
---@param src conflux.Tensor  of ids' shape and x's dtype
---@return conflux.Tensor
define("scatteradd", function(x, d, ids, src)
  if not istype(tensor_t, x) then wrong("scatteradd", "x", "a tensor", x) end
  if not istype(tensor_t, ids) then wrong("scatteradd", "ids", "an integer tensor", ids) end
  if not istype(tensor_t, src) then wrong("scatteradd", "src", "a tensor", src) end
  d = check.dim("scatteradd", "d", d, x._ndim)
  local out = new()
  at_line()
  local st = C.cfx_scatter_add(x, d, ids, src, out)
  if st ~= 0 then settle(st, C.cfx_scatter_add, x, d, ids, src, out) end
  return out
end)

return ops
