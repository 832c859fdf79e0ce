--- Collectives over ranks that give more, or less, than they got: allgather, reducescatter; and values that are to be
-- equal: synchronize, same.
-- @module conflux.dist.gather
local core = require "conflux.core"
local check = require "conflux.check"
local collective = require "conflux.dist.collective"
local make = require "conflux.make"
local schema = require "conflux.dist.schema"
local tree = require "conflux.tree"
local world = require "conflux.dist.world"

local is_tensor, fail = core.is_tensor, check.fail
local rawget, rawset, type = rawget, rawset, type

local gather = {}

-- ---- rows -----------------------------------------------------------------------------------------------------

local function rows_of(fname, x)
  if x.ndim == 0 then check.wrong(fname, "x", "a tensor with rows", x) end
  return #x
end

-- "[*, 3] float32": all that must be equal in the ranks.
local function form_of(x)
  local shape = x.shape
  shape[1] = "*"
  return ("[%s] %s"):format(table.concat(shape, ", "), x.dtype)
end

local function gather_rows(w, x)
  local rows = rows_of("dist.allgather", x)
  local counts = world.numbers(w, "dist.allgather " .. form_of(x), rows)
  local total, shape = 0, x.shape
  for r = 1, w.size do total = total + counts[r] end
  shape[1] = total
  local out, at = make.zeros(shape, {dtype = x.dtype, device = x.device}), 0
  for r = 1, w.size do
    if counts[r] > 0 then
      local part = out[{{at + 1, at + counts[r]}}]
      if r == w.rank + 1 then part:copy_(x) end
      collective.send(r - 1, {part})
    end
    at = at + counts[r]
  end
  return out
end

--- The ranks' values, all of them in all ranks: of tensors their rows, one rank's behind another's, of which each rank
-- may have another number; of numbers a list.  x itself stays.
---@param x any  a tensor, a number, or a tree of tensors
---@return any
function gather.allgather(x)
  local w = world.required "dist.allgather"
  core.at_line()
  if type(x) == "number" then return world.numbers(w, "dist.allgather", x) end
  if is_tensor(x) then return gather_rows(w, x) end
  if type(x) ~= "table" then check.wrong("dist.allgather", "x", "a tensor, a number or a tree of tensors", x) end
  return tree.map(function(t) return gather_rows(w, t) end, x)
end

--- Joins the ranks' tensors, of equal shapes, and gives each rank its share of the rows.  x itself stays.
---@param op string     "+", "*", "max", "min", "avg"
---@param x conflux.Tensor  with a number of rows that the ranks share evenly
---@return conflux.Tensor
function gather.reducescatter(op, x)
  local w = world.required "dist.reducescatter"
  check.tensor("dist.reducescatter", "x", x)
  local rows = rows_of("dist.reducescatter", x)
  if rows % w.size ~= 0 then
    check.wrong("dist.reducescatter", "x", ("a number of rows that %d ranks share evenly"):format(w.size), x)
  end
  local each, y = rows / w.size, x:clone()
  core.at_line()
  for r = 0, w.size - 1 do
    if each > 0 then collective.reduce(op, r, y[{{r * each + 1, (r + 1) * each}}]) end
  end
  local own = y[{{w.rank * each + 1, (w.rank + 1) * each}}]:clone()
  y:release()
  return own
end

-- ---- equal values ---------------------------------------------------------------------------------------------

-- The numbers in a tree, with the tables that hold them: {table, key}, in the order of every walk.
local function numbers_in(x, path, list, seen)
  seen[x] = true
  local n, keys = tree.keys(x, path)
  for i = 1, n + #keys do
    local key = i <= n and i or keys[i - n]
    local v = rawget(x, key)
    if type(v) == "number" then
      list[#list + 1] = {table = x, key = key, path = tree.join(path, key)}
    elseif type(v) == "table" and not seen[v] then
      numbers_in(v, tree.join(path, key), list, seen)
    end
  end
  return list
end

-- Gives all ranks the numbers in the root's tree.
local function send_numbers(fname, w, x, root)
  local places, paths, values = numbers_in(x, "", {}, {}), {}, {}
  for k = 1, #places do
    paths[k], values[k] = places[k].path, rawget(places[k].table, places[k].key)
  end
  local list = world.list(w, ("%s of %d numbers (%.0f)"):format(fname, #places,
    world.hash(table.concat(paths, "\n"))), root, values)
  for k = 1, #places do rawset(places[k].table, places[k].key, list[k]) end
  core.synchronized = core.synchronized + 1
end

--- Makes x in all ranks what the root's is: tensors and numbers, wherever they lie in it; all else stays.  Tensors are
-- changed in place, and x is returned; of a number the root's is.
---@generic T
---@param x T  a tensor, a number, or a tree of them: a module, an optimiser's state
---@param root? integer  a rank, from 0; default: 0
---@return T
function gather.synchronize(x, root)
  local w = world.required "dist.synchronize"
  root = check.integer("dist.synchronize", "root", root == nil and 0 or root, 0, w.size - 1)
  core.at_line()
  if type(x) ~= "table" then
    if type(x) ~= "number" and not is_tensor(x) then return x end
    return collective.bcast(x, root)
  end
  collective.bcast(x, root)
  send_numbers("dist.synchronize", w, x, root)
  return x
end

--- Whether x is the same in all ranks, bit by bit.  If it is not: also the path of the first tensor that differs, and
-- the first rank whose one is not rank 0's.
---@param x any  a tensor, a number, or a tree of tensors
---@return boolean same, string? path, integer? rank
function gather.same(x)
  local w = world.required "dist.same"
  core.at_line()
  if type(x) == "number" then
    local all = world.numbers(w, "dist.same", x)
    for r = 2, w.size do
      if all[r] ~= all[1] and (all[r] == all[r] or all[1] == all[1]) then return false, "", r - 1 end
    end
    return true
  end
  local leaves, tensors = schema.leaves("dist.same", x), {}
  schema.check("dist.same", w, leaves)
  for k = 1, leaves.n do tensors[k] = leaves.array[k - 1] end
  local k, rank = collective.first_difference(w, "dist.same", tensors)
  if not k then return true end
  return false, leaves.paths[k], rank
end

-- ---- shares of data -------------------------------------------------------------------------------------------

local MODES = {pad = true, drop = true}

-- Of n samples those of a rank: from, to, from 1; `to` may lie beyond n, where the first ones come again.
local function share(w, n, mode)
  local each = mode == "pad" and math.ceil(n / w.size) or math.floor(n / w.size)
  return w.rank * each + 1, (w.rank + 1) * each
end

-- Rows from `from` to `to` of x, where those beyond the last are the first again.
local function take_rows(x, from, to)
  local n = #x
  if to <= n then return x[{{from, to}}] end
  local ids = make.arange(from - 1, to - 1, {dtype = "int64", device = x.device})
  return x:index(1, ids - (ids / n):floor():to "int64" * n)
end

--- This rank's share of samples: tensors with a row for each, in a table, in the order of the ranks.  All shares are
-- equally long: "pad" gives the last ranks the first samples once more, "drop" leaves the last samples out.
--
-- A DataLoader deals samples out by itself, in an order that no number of ranks changes (its option `shard`): of such a
-- share it takes all with `shard = false`.
---@param data conflux.Tensor|table  a tensor, or a tree of tensors of equal length
---@param o? {mode: "pad"|"drop"|nil}  default: "pad"
---@return any
function gather.Data(data, o)
  local w = world.required "dist.Data"
  o = check.options("dist.Data", o, {"mode"})
  local mode = o.mode == nil and "pad" or o.mode
  if not MODES[mode] then check.wrong("dist.Data", "mode", "'pad' or 'drop'", mode) end
  local tensors, paths = tree.leaves(data)
  if #tensors == 0 then check.wrong("dist.Data", "data", "tensors with a row for each sample", data) end
  local n = rows_of("dist.Data", tensors[1])
  for k = 2, #tensors do
    if rows_of("dist.Data", tensors[k]) ~= n then
      fail("dist.Data", "'%s' has %d rows, and '%s' has %d", paths[k], #tensors[k], paths[1], n)
    end
  end
  local from, to = share(w, n, mode)
  if to < from then
    fail("dist.Data", "%d samples are too few for %d ranks, so that mode '%s' leaves none", n, w.size, mode)
  end
  if is_tensor(data) then return take_rows(data, from, to) end
  return tree.map(function(t) return take_rows(t, from, to) end, data)
end

return {public = gather, send_numbers = send_numbers}
