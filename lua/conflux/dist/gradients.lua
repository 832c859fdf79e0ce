--- Gradients over ranks: an optimiser that joins them, models whose gradients are joined.
--
-- Which gradients are joined already is known (core.joined), so that none is joined twice.
-- @module conflux.dist.gradients
local core = require "conflux.core"
local check = require "conflux.check"
local collective = require "conflux.dist.collective"
local synchronize = require("conflux.dist.gather").public.synchronize
local sealed = require "conflux.sealed"
local tree = require "conflux.tree"
local world = require "conflux.dist.world"

local getmetatable, rawset, setmetatable, type = getmetatable, rawset, setmetatable, type

local gradients = {}

local weak = {__mode = "k"}

local OPS = {["+"] = true, sum = true, avg = true}

local function op_of(fname, op)
  if op == nil then return "avg" end
  if not OPS[op] then check.wrong(fname, "op", "'avg' or '+'", op) end
  return op
end

-- Closures of withdevices are one replica each: joined rank by rank, the devices of one rank would go apart.
local function refuse_replicas(fname)
  if core.stream() ~= 0 and #core.devices() > 1 then
    check.fail(fname, "this rank has more than one device: join the replicas' gradients by cf.allreduce('avg', grads)")
  end
end

local function join(fname, op, g)
  refuse_replicas(fname)
  if core.joined[g] then check.fail(fname, "this gradient was joined by all ranks already") end
  collective.allreduce(op, g)
  core.joined[g] = true
  return g
end

--- Joins a gradient of all ranks, in place: "avg" (the default), or "+" as FluxMPI does.  Returns it.
---@generic T
---@param g T  what withgradient returned
---@param o? {op: "avg"|"+"|nil}
---@return T
function gradients.allreduce_gradients(g, o)
  world.required "dist.allreduce_gradients"
  o = check.options("dist.allreduce_gradients", o, {"op"})
  return join("dist.allreduce_gradients", op_of("dist.allreduce_gradients", o.op), g)
end

-- ---- the optimiser ----------------------------------------------------------------------------------------------

-- By state: the mean of gradients to be, and how many are in it.
local sums = setmetatable({}, weak)

-- Adds the gradient to those before.  Returns the mean of `count`, or nil while there are fewer.
local function accumulate(state, g, count)
  local sum = sums[state]
  if not sum then
    sum = {n = 0, g = tree.map(function(t) return t:clone() end, g)}
    sums[state] = sum
  else
    local own, theirs = tree.leaves(sum.g), tree.leaves(g)
    if #own ~= #theirs then check.fail("update", "the gradients that are accumulated are of different models") end
    for k = 1, #own do own[k]:add_(theirs[k]) end
  end
  sum.n = sum.n + 1
  if sum.n < count then return nil end
  sums[state] = nil
  local all = tree.leaves(sum.g)
  for k = 1, #all do all[k]:mul_(1 / count) end
  return sum.g
end

--- An optimiser whose updates join the gradients of all ranks first: "avg" (the default), or "+" as FluxMPI's does.  It
-- is used like `opt`, and its rate is that one's.  With `accumulate` every so many updates become one, by the mean of
-- their gradients; the others change nothing.
---@param opt conflux.Optimiser
---@param o? {op: "avg"|"+"|nil, accumulate: integer?}
---@return conflux.Optimiser
function gradients.Optimizer(opt, o)
  world.required "dist.Optimizer"
  local inner = type(opt) == "table" and sealed.facts(opt)
  if not inner or not inner.states then
    check.wrong("dist.Optimizer", "opt", "an optimiser, such as optim.Adam()", opt)
  end
  o = check.options("dist.Optimizer", o, {"op", "accumulate"})
  local op = op_of("dist.Optimizer", o.op)
  local count = check.integer("dist.Optimizer", "accumulate", o.accumulate == nil and 1 or o.accumulate, 1)
  -- its fields are the inner optimiser's, read and set
  local facts = setmetatable({}, {__index = inner, __newindex = inner})
  rawset(facts, "before", function(state, _, g)
    world.required "update"
    refuse_replicas "update"
    if core.joined[g] then
      check.fail("update", "this gradient was joined by all ranks already, and cf.dist.Optimizer would join it again")
    end
    if count > 1 then g = accumulate(state, g, count) end
    return g and join("update", op, g)
  end)
  rawset(facts, "states", {optimiser = facts, __fixed = inner.states.__fixed, __tostring = inner.states.__tostring})
  return sealed.new(getmetatable(opt), facts)
end

-- ---- the model ----------------------------------------------------------------------------------------------------

--- Makes a model the same in all ranks, rank 0's, and from now on its gradients their mean: withgradient, gradient and
-- addgradient join them.  Returns the model itself.
---@generic T
---@param model T
---@return T
function gradients.Model(model)
  world.required "dist.Model"
  synchronize(model, 0)
  core.on_gradient[model] = function(g)
    if not core.world then return end
    refuse_replicas "withgradient"
    collective.allreduce("avg", g)
    core.joined[g] = true
  end
  return model
end

return gradients
