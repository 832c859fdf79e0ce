--- Collectives over ranks: one value of each rank, a tensor, a number or a tree of tensors, joined in the order of the
-- ranks.
-- @module conflux.dist.collective
local core = require "conflux.core"
local check = require "conflux.check"
local plans = require "conflux.plan"
local schema = require "conflux.dist.schema"
local world = require "conflux.dist.world"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local fail, describe = check.fail, check.describe
local setmetatable, type = setmetatable, type

local weight_t = ffi.typeof "double[1]"
local OPS = {["+"] = "sum", ["*"] = "prod", sum = "sum", prod = "prod", max = "max", min = "min", avg = "avg"}
local FLOAT16, BUFFER = C.CFX_FLOAT16, C.CFX_FLAG_BUFFER

local collective = {}

local function op_of(fname, op)
  if type(op) == "function" then return op end
  return OPS[op] or check.arg(fname, "op", "'+', '*', 'max', 'min', 'avg' or a function of two", describe(op))
end

local function root_of(fname, w, root)
  return check.integer(fname, "root", root, 0, w.size - 1)
end

-- Samples of this rank, or nil.
local function weight_of(fname, op, weight)
  if weight == nil then return nil end
  if op ~= "avg" then fail(fname, "a weight needs the operation 'avg', got %s", describe(op)) end
  if type(weight) ~= "number" or not (weight >= 0 and weight < math.huge) then
    check.wrong(fname, "weight", "a count of 0 or more", weight)
  end
  return weight
end

-- ---- numbers --------------------------------------------------------------------------------------------------

local FOLDS = {
  sum = function(a, b) return a + b end,
  prod = function(a, b) return a * b end,
  max = function(a, b) return (a ~= a or a > b) and a or b end,
  min = function(a, b) return (a ~= a or a < b) and a or b end,
}
FOLDS.avg = FOLDS.sum

local function fold_numbers(fname, w, op, x)
  local all = world.numbers(w, type(op) == "string" and fname .. " " .. op or fname, x)
  local f, result = FOLDS[op] or op, all[1]
  for r = 2, w.size do
    result = f(result, all[r])
    if type(result) ~= "number" then check.wrong(fname, "op", "a function that returns a number", result) end
  end
  return op == "avg" and result / w.size or result
end

-- The mean of the numbers of those ranks that have a weight.
local function weigh_numbers(fname, w, weight, x)
  local weights, values = world.numbers(w, fname .. " weight", weight), world.numbers(w, fname .. " avg", x)
  local total, sum = 0, 0
  for r = 1, w.size do
    if weights[r] > 0 then total, sum = total + weights[r], sum + weights[r] * values[r] end
  end
  if total == 0 then fail(fname, "argument 'weight': all are 0: there is nothing to average") end
  return sum / total
end

-- ---- tensors --------------------------------------------------------------------------------------------------

-- Enqueues it.  Its second result must live until C is done.
local function combine(op, root, n, array, kept, weight)
  if weight then return C.cfx_weighted_mean(weight_t(weight), -1, 1, n, array), kept end
  if root then return C.cfx_reduce_to(op, root, 1, n, array), kept end
  return C.cfx_allreduce(op, 1, n, array), kept
end

local function broadcast(root, n, array, kept)
  return C.cfx_broadcast(root, 1, n, array), kept
end

local function send(root, tensors)
  local array = core.ptrs(tensors)
  local st = broadcast(root, #tensors, array, tensors)
  if st ~= 0 then settle(st, broadcast, root, #tensors, array, tensors) end
end

local function clone(x)
  local out = new()
  local st = C.cfx_clone(x, out)
  if st ~= 0 then settle(st, C.cfx_clone, x, out) end
  return out
end

local function clones(leaves)
  local list = {}
  for k = 1, leaves.n do list[k] = clone(leaves.array[k - 1]) end
  return list
end

local function copy(y, x)
  local st = C.cfx_copy(y, x)
  if st ~= 0 then settle(st, C.cfx_copy, y, x) end
end

local function values(t)
  local bytes = t:numel() * C.cfx_dtype_size(t._dtype)
  local room = ffi.new("uint8_t[?]", bytes)
  local st = C.cfx_read(t, room, bytes)
  if st ~= 0 then settle(st, C.cfx_read, t, room, bytes) end
  return ffi.string(room, bytes)
end

-- The first of the tensors whose bits are not those of rank 0's, in any rank, and the first such rank; nil: there is
-- none.  A collective.
local function first_difference(w, fname, tensors)
  local theirs, mine = {}, 0
  for k = 1, #tensors do theirs[k] = clone(tensors[k]) end
  if #tensors > 0 then send(0, theirs) end
  for k = #tensors, 1, -1 do
    if values(theirs[k]) ~= values(tensors[k]) then mine = k end
    theirs[k]:release()
  end
  local all = world.numbers(w, fname .. " bits", mine)
  for r = 2, w.size do
    if all[r] ~= 0 then return all[r], r - 1 end
  end
end

-- The tensors to reduce: all, but for a model's integers, which must be equal.  For C, and what keeps them.
local function reducible(fname, w, op, leaves)
  local kept, integers, paths = {}, {}, {}
  for k = 1, leaves.n do
    local t = leaves.array[k - 1]
    if t._dtype >= FLOAT16 then
      kept[#kept + 1] = t
    elseif leaves.is_model or bit.band(t._flags, BUFFER) ~= 0 then
      integers[#integers + 1], paths[#paths + 1] = t, leaves.paths[k]
    elseif op == "avg" then
      fail(fname, "%s is %s: integers have no average; use '+', or convert it",
        leaves.paths[k] == "" and "the value" or check.quote(leaves.paths[k], 60), describe(t))
    else
      kept[#kept + 1] = t
    end
  end
  if #kept == leaves.n then return leaves.n, leaves.array, leaves end
  local k, r = first_difference(w, fname, integers)
  if k then
    fail(fname, "integer buffers must be equal: '%s' differs between rank 0 and rank %d", paths[k], r)
  end
  return #kept, core.ptrs(kept), kept
end

-- Folds the values of all ranks, each rank for itself, and so with the same result.
local function fold(fname, w, op, root, leaves)
  local results = {}
  for r = 0, w.size - 1 do
    local theirs = clones(leaves)
    if #theirs > 0 then send(r, theirs) end
    for k = 1, leaves.n do
      local result = r == 0 and theirs[k] or op(results[k], theirs[k])
      if not is_tensor(result) then check.wrong(fname, "op", "a function that returns a tensor", result) end
      if not plans.same_form(result, leaves.array[k - 1]) then
        fail(fname, "argument 'op': for %s expected a result like %s, got %s", leaves.paths[k] == "" and "the value"
          or check.quote(leaves.paths[k], 60), describe(leaves.array[k - 1]), describe(result))
      end
      results[k] = result
    end
  end
  if root and root ~= w.rank then return end
  for k = 1, leaves.n do copy(leaves.array[k - 1], results[k]) end
end

local function join(fname, w, op, root, x, weight)
  core.at_line()
  if type(x) == "number" then
    if weight then return weigh_numbers(fname, w, weight, x) end
    local result = fold_numbers(fname, w, op, x)
    return (not root or root == w.rank) and result or x
  end
  local leaves = schema.leaves(fname, x)
  local how = type(op) == "string" and op or "by a function"
  schema.check(fname, w, leaves, root and ("%s, root %d"):format(how, root) or how)
  if type(op) == "function" then
    fold(fname, w, op, root, leaves)
    return x
  end
  local n, array, kept = reducible(fname, w, op, leaves)
  if n == 0 then return x end
  local st = combine(op, root, n, array, kept, weight)
  if st ~= 0 then settle(st, combine, op, root, n, array, kept, weight) end
  if not root and plans.origin(x) then core.joined[x] = true end -- a gradient
  return x
end

-- Copies x to where `into` says, and returns that; or x.
local function target(fname, x, into)
  if into == nil then return x end
  if type(x) == "number" then check.wrong(fname, "into", "nothing, as x is a number", into) end
  local from, to = schema.leaves(fname, x), schema.leaves(fname, into)
  local known = {}
  for k = 1, to.n do known[to.paths[k]] = to.array[k - 1] end
  for k = 1, from.n do
    local y = known[from.paths[k]]
    if not y or not plans.same_form(y, from.array[k - 1]) or from.n ~= to.n then
      fail(fname, "argument 'into': expected tensors like x's, %s at %s", describe(from.array[k - 1]),
        from.paths[k] == "" and "the top" or check.quote(from.paths[k], 60))
    end
  end
  for k = 1, from.n do copy(known[from.paths[k]], from.array[k - 1]) end
  return into
end

--- Joins the ranks' values, place by place, and leaves the result in all ranks: tensors are changed in place, and x is
-- returned; of a number the result is.
--
-- `op` is "+" ("sum"), "*" ("prod"), "max", "min", "avg", or a function of two tensors (of two numbers), which is
-- folded from the left in the order of the ranks.  Paths, shapes and dtypes must be equal in all ranks, and so must a
-- model's integer tensors; numbers in trees are left alone.
---@generic T
---@param op string|fun(a: any, b: any): any
---@param x T  a tensor, a number, or a tree of tensors
---@param options? {into: T?, weight: number?}  into: takes the result, and x stays; weight: "avg" is the mean over
---  samples of which this rank has had so many, and a rank without any counts nothing, whatever it holds
---@return T
function collective.allreduce(op, x, options)
  local w = world.required "dist.allreduce"
  op = op_of("dist.allreduce", op)
  options = check.options("dist.allreduce", options, {"into", "weight"})
  local weight = weight_of("dist.allreduce", op, options.weight)
  return join("dist.allreduce", w, op, nil, target("dist.allreduce", x, options.into), weight)
end

--- Like allreduce, but only `root`'s value changes.
---@generic T
---@param op string|fun(a: any, b: any): any
---@param root integer  a rank, from 0
---@param x T
---@return T
function collective.reduce(op, root, x)
  local w = world.required "dist.reduce"
  op = op_of("dist.reduce", op)
  root = root_of("dist.reduce", w, root)
  return join("dist.reduce", w, op, root, x)
end

local function bcast(fname, w, x, root)
  core.at_line()
  if type(x) == "number" then return world.numbers(w, ("%s, root %d"):format(fname, root), x)[root + 1] end
  local leaves = schema.leaves(fname, x)
  schema.check(fname, w, leaves, ("root %d"):format(root))
  if leaves.n == 0 then return x end
  local st = broadcast(root, leaves.n, leaves.array, leaves)
  if st ~= 0 then settle(st, broadcast, root, leaves.n, leaves.array, leaves) end
  return x
end

--- Gives all ranks the root's value: tensors are changed in place, and x is returned; of a number the root's is.
---@generic T
---@param x T  a tensor, a number, or a tree of tensors
---@param root? integer  a rank, from 0; default: 0
---@return T
function collective.bcast(x, root)
  local w = world.required "dist.bcast"
  return bcast("dist.bcast", w, x, root_of("dist.bcast", w, root == nil and 0 or root))
end

--- Returns when all ranks have come here.
function collective.barrier()
  local w = world.required "dist.barrier"
  core.at_line()
  world.numbers(w, "dist.barrier", 0)
end

-- ---- requests -------------------------------------------------------------------------------------------------

--- A collective that is under way.
---@class conflux.Request
local Request = {}
Request.__index = Request

local function request(x)
  return setmetatable({_value = x, _leaves = type(x) ~= "number" and schema.leaves("dist.wait", x) or false}, Request)
end

--- Waits until the result is there; returns it.
---@return any
function Request:wait()
  check.self(Request, "dist.iallreduce", "wait", self)
  local leaves = self._leaves
  for k = 1, leaves and leaves.n or 0 do core.read_wait(leaves.array[k - 1]) end
  return self._value
end

--- Whether the result is there, so that wait would not wait.
---@return boolean
function Request:test()
  check.self(Request, "dist.iallreduce", "test", self)
  local leaves = self._leaves
  for k = 1, leaves and leaves.n or 0 do
    if C.cfx_ready(leaves.array[k - 1]) == 0 then return false end
  end
  return true
end

--- Like allreduce, but returns a request: :wait() returns the result, :test() tells whether it is there.  (All
-- collectives of tensors are under way when they return; that of a number is done.)
---@param op string|fun(a: any, b: any): any
---@param x any
---@param options? {into: any, weight: number?}
---@return conflux.Request
function collective.iallreduce(op, x, options)
  local w = world.required "dist.iallreduce"
  op = op_of("dist.iallreduce", op)
  options = check.options("dist.iallreduce", options, {"into", "weight"})
  local weight = weight_of("dist.iallreduce", op, options.weight)
  return request(join("dist.iallreduce", w, op, nil, target("dist.iallreduce", x, options.into), weight))
end

--- Like bcast, but returns a request.
---@param x any
---@param root? integer  a rank, from 0; default: 0
---@return conflux.Request
function collective.ibcast(x, root)
  local w = world.required "dist.ibcast"
  return request(bcast("dist.ibcast", w, x, root_of("dist.ibcast", w, root == nil and 0 or root)))
end

--- Waits for all requests of a list; returns their results.
---@param requests conflux.Request[]
---@return any[]
function collective.waitall(requests)
  if type(requests) ~= "table" then check.wrong("dist.waitall", "requests", "a list of requests", requests) end
  local results = {}
  local n = check.length("dist.waitall", "requests", requests)
  for i = 1, n do
    if getmetatable(requests[i]) ~= Request then
      check.wrong("dist.waitall", ("requests[%d]"):format(i), "a request", requests[i])
    end
  end
  for i = 1, n do results[i] = requests[i]:wait() end
  return results
end

collective.first_difference, collective.send = first_difference, send

return collective
