--- Schemas: what all ranks must agree on before their tensors are joined.
--
-- A schema is the paths, shapes and dtypes of all tensors of a value, a line each.  The first time that one comes the
-- ranks compare its hash, a collective of one number a rank; where they differ, all of them show both sides.
-- @module conflux.dist.schema
local core = require "conflux.core"
local check = require "conflux.check"
local plans = require "conflux.plan"
local tree = require "conflux.tree"
local world = require "conflux.dist.world"

local ffi = core.ffi
local is_tensor, tonumber, tostring, type = core.is_tensor, tonumber, tostring, type
local concat = table.concat
local getmetatable = debug.getmetatable -- also where one is protected
local rawget = rawget
local pointers_t = ffi.typeof "cfx_tensor *[?]"

local schema = {}

---@class conflux.Leaves  the tensors of a value, as C takes them
---@field array ffi.cdata*  cfx_tensor *[n]
---@field n integer
---@field kept any          what has them
---@field tensors conflux.Tensor[]
---@field paths string[]
---@field is_model boolean  there is a module in it: its integer tensors are buffers
---@field key any           what stands for the schema where that is known already: a plan, or a record

local function has_module(x, seen)
  local mt = getmetatable(x)
  if type(mt) == "table" and rawget(mt, "__layer") then return true end
  seen[x] = true
  for _, v in core.each, x do
    if type(v) == "table" and not seen[v] and has_module(v, seen) then return true end
  end
  return false
end

--- The tensors of a value: a tensor, or a tree of them.
---@param fname string
---@param x any
---@return conflux.Leaves
function schema.leaves(fname, x)
  if is_tensor(x) then
    return {array = pointers_t(1, x), n = 1, kept = x, tensors = {x}, paths = {""}, is_model = false}
  end
  if type(x) ~= "table" then check.wrong(fname, "x", "a tensor, a number or a tree of them", x) end
  if rawget(x, "devices") then
    check.arg(fname, "x", "one value", "replicas on several devices: cf." .. fname:match "[^.]*$" .. " joins those")
  end
  local plan = plans.origin(x)
  if plan then
    local array, n, kept = plans.leaves({x}, 1)
    if array then return {array = array, n = n, kept = kept, tensors = {}, paths = plan.paths, is_model = false,
      key = plan} end
  end
  local record = getmetatable(x) and tree.flatten(x) or tree.flattened(x)
  local tensors, paths, is_model
  if record then
    tensors, paths, is_model = record.leaves, record.leaf_paths, tree.has_layer(record)
  else
    tensors, paths = tree.leaves(x)
    is_model = has_module(x, {})
  end
  return {array = core.ptrs(tensors), n = #tensors, kept = tensors, tensors = tensors, paths = paths,
    is_model = is_model, key = record}
end

-- ---- comparing ----------------------------------------------------------------------------------------------

local function line_of(path, t)
  local shape = {}
  for d = 1, t._ndim do shape[d] = tostring(tonumber(t._shape[d - 1])) end
  return ("\n%s\t[%s] %s"):format(path, concat(shape, ", "), core.dtypes[t._dtype])
end

local function text_of(leaves)
  local lines = {}
  for k = 1, leaves.n do lines[k] = line_of(leaves.paths[k], leaves.array[k - 1]) end
  return concat(lines)
end

local function lines_by_path(text)
  local all, order = {}, {}
  for path, form in text:gmatch "\n([^\t\n]*)\t([^\n]*)" do
    all[path], order[#order + 1] = form, path
  end
  return all, order
end

local function named(path) return path == "" and "the value" or check.quote(path, 60) end

-- The first thing that differs between the schemas of ranks r and s, in words.
local function difference(r, a, s, b)
  local mine, order = lines_by_path(a)
  local yours, others = lines_by_path(b)
  for _, path in ipairs(order) do
    if not yours[path] then
      return ("rank %d has %s (%s), and rank %d has none"):format(r, named(path), mine[path], s)
    elseif yours[path] ~= mine[path] then
      return ("%s is %s in rank %d, and %s in rank %d"):format(named(path), mine[path], r, yours[path], s)
    end
  end
  for _, path in ipairs(others) do
    if not mine[path] then
      return ("rank %d has %s (%s), and rank %d has none"):format(s, named(path), yours[path], r)
    end
  end
  return "they have the same tensors in another order"
end

-- Compares the text of a schema between all ranks.
local function compare(fname, w, call, text)
  local hashes = world.numbers(w, call, world.hash(text))
  for r = 1, w.size - 1 do
    if hashes[r + 1] ~= hashes[1] then
      world.disagree(w, fname, r, world.here() .. text, function(a, b)
        return ("%s (rank 0 at %s, rank %d at %s)"):format(difference(0, a, r, b), a:match "^[^\n]*", r,
          b:match "^[^\n]*")
      end)
    end
  end
end

-- By world what was compared in it: the texts, and what stands for one without making it.
local known = setmetatable({}, {__mode = "k"})

--- Whether all ranks are known to give what `key` stands for to such a function.
---@return boolean
function schema.is_known(w, key, call)
  local seen = known[w]
  return seen ~= nil and seen.keys[key] ~= nil and seen.keys[key][call] == true
end

--- Makes sure that all ranks give such a value to such a function; a collective where the schema is new.
---@param fname string  "dist.allreduce"
---@param w conflux.World
---@param leaves conflux.Leaves
---@param how? string   more that must be equal: the operation, the root
function schema.check(fname, w, leaves, how)
  if w.size == 1 then return end
  local seen = known[w]
  if not seen then
    seen = {texts = {}, keys = setmetatable({}, {__mode = "k"})}
    known[w] = seen
  end
  local call = how and fname .. " " .. how or fname
  local key = leaves.key
  if key and seen.keys[key] and seen.keys[key][call] then return end
  local text = text_of(leaves)
  if not seen.texts[call .. text] then
    compare(fname, w, call, text)
    seen.texts[call .. text] = true
  end
  if key then
    seen.keys[key] = seen.keys[key] or {}
    seen.keys[key][call] = true
  end
end

return schema
