--- Collectives over replicas, as far as they concern other ranks: the parts that C does not do.
-- @module conflux.dist.replicas
local core = require "conflux.core"
local check = require "conflux.check"
local collective = require "conflux.dist.collective"
local gather = require "conflux.dist.gather"
local plans = require "conflux.plan"
local schema = require "conflux.dist.schema"
local world = require "conflux.dist.world"

local C = core.C
local is_tensor = core.is_tensor
local error, pcall, type = error, pcall, type

local replicas = {}

--- Runs f as if there were no other ranks.
function replicas.locally(f, ...)
  local w, context = core.world, core.context()
  core.world = nil
  C.cfx_world_scope(context, 1)
  local ok, result = pcall(f, ...)
  core.world = w
  C.cfx_world_scope(context, 0)
  if not ok then error(result, 0) end
  return result
end

--- The position of `root` among the devices of all ranks; a device's is that in rank 0's list.
---@param root any
---@param position? integer  of a device, in this rank's list
---@return integer
function replicas.root(fname, w, root, position)
  if type(root) == "number" then return check.integer(fname, "root", root, 1, w.devices) end
  return position or check.arg(fname, "root",
    ("a position from 1 to %d or one of the list's devices"):format(w.devices), check.describe(root))
end

--- Makes sure that all ranks give such replicas: of the first its paths, shapes and dtypes.  A single tensor C checks.
function replicas.compare(fname, w, first)
  if type(first) ~= "table" then return end
  local plan = plans.origin(first)
  if plan and schema.is_known(w, plan, fname) then return end
  schema.check(fname, w, schema.leaves(fname, first))
end

-- How many replicas each rank has, and how many come before this rank's.
local function counts_of(fname, w, n)
  local counts, before = world.numbers(w, fname .. " of replicas", n), 0
  for r = 1, w.rank do before = before + counts[r] end
  return counts, before
end

--- Folds the replicas of all ranks from the left, on the first local replica's device, and copies the result to all, or
-- to `root` alone.  elements[i][k]: tensor k of replica i.
---@param fold fun(k: integer, result: conflux.Tensor?, x: conflux.Tensor): conflux.Tensor
function replicas.fold(fname, w, fold, root, elements, n)
  local counts, before = counts_of(fname, w, #elements)
  local results, first = {}, elements[1]
  for r = 1, w.size do
    for i = 1, counts[r] do
      local theirs = {}
      for k = 1, n do
        theirs[k] = first[k]:clone()
        if r == w.rank + 1 then theirs[k]:copy_(elements[i][k]) end
      end
      if n > 0 then collective.send(r - 1, theirs) end
      for k = 1, n do results[k] = fold(k, results[k], theirs[k]) end
    end
  end
  for i = 1, #elements do
    for k = 1, root and root ~= before + i and 0 or n do elements[i][k]:copy_(results[k]) end
  end
end

--- Gives the numbers in the root's replica to one local replica, from which the others take all that is no tensor.
-- Returns its position.
---@param list table  replicas
function replicas.numbers(fname, w, list, n, root)
  local counts = counts_of(fname, w, n)
  local owner, at, total = 0, root, 0
  for r = 1, w.size do total = total + counts[r] end
  while owner < w.size - 1 and at > counts[owner + 1] do
    at = at - counts[owner + 1]
    owner = owner + 1
  end
  local own = owner == w.rank and at or 1
  if at > counts[owner + 1] then
    check.fail(fname, "argument 'root': all ranks have %d replicas, got %d", total, root)
  end
  if type(list[own]) == "number" then
    list[own] = world.numbers(w, fname, list[own])[owner + 1]
  elseif not is_tensor(list[own]) then
    gather.send_numbers(fname, w, list[own], owner)
  end
  return own
end

return replicas
