--- Trees: a tensor, or nested tables of tensors and anything else.
--
-- Every walk goes in one order: 1 to n, then string keys by their bytes; other keys are refused, for no process
-- would agree with another on their order.  The path of a tensor ("1.weight") is its name in checkpoints and
-- messages.  A tensor or table met again (a tie, a cycle) is visited once.  Functions, strings and other values
-- belong to the tree but are shared, never copied.  Tables lie at most DEPTH deep inside each other.
-- @module conflux.tree
local core  = require "conflux.core"
local check = require "conflux.check"
local bit   = require "bit"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local band, bor = bit.band, bit.bor
local rawequal, rawget, rawset, select, setmetatable, tostring, type =
  rawequal, rawget, rawset, select, setmetatable, tostring, type
local getmetatable = debug.getmetatable -- also where one is protected
local each = core.each
local sort = table.sort

local BUFFER, FROZEN = tonumber(C.CFX_FLAG_BUFFER), tonumber(C.CFX_FLAG_FROZEN)
local MARKS = BUFFER + FROZEN
local FLOAT16 = core.dtype.float16

-- Tables inside each other.  LuaJIT's stack has 65,500 slots for everything that is running; a walk takes up to 26 a
-- table, and reading one from a file's JSON 50.
local DEPTH = 500

-- ---- one order --------------------------------------------------------------------------------------------

local function length(t)
  local n = 0
  while rawget(t, n + 1) ~= nil do n = n + 1 end
  return n
end

local function join(path, key)
  return path == "" and tostring(key) or path .. "." .. tostring(key)
end

local function check_depth(fname, depth, path)
  if depth > DEPTH then
    check.fail(fname, "tables lie more than %d deep inside each other, at %s", DEPTH, check.quote(path, 60))
  end
end

-- The string keys of t in order; refuses others.
local function string_keys(t, n, path)
  local keys = {}
  for key in each, t do
    if type(key) == "string" then
      keys[#keys + 1] = key
    elseif not (type(key) == "number" and key >= 1 and key <= n and key % 1 == 0) then
      local where = path == "" and "the top" or check.quote(path)
      if type(key) == "number" and key > n and key % 1 == 0 then
        check.fail("tree", "the list at %s has a hole before position %.14g", where, key)
      end
      check.fail("tree", "the table at %s has the key %s: expected strings, or 1 to n", where, check.describe(key))
    end
  end
  sort(keys)
  return keys
end

local function is_tensor(x)
  return type(x) == "cdata" and istype(tensor_t, x)
end

local function visit(x, f, path, parent, key, seen, depth)
  if is_tensor(x) then
    if seen[x] then return end
    seen[x] = true
    f(path, x, parent, key)
  elseif type(x) == "table" then
    if seen[x] then return end
    seen[x] = true
    check_depth("tree", depth, path)
    local n = length(x)
    local keys = string_keys(x, n, path)
    for i = 1, n do
      visit(rawget(x, i), f, join(path, i), x, i, seen, depth + 1)
    end
    for i = 1, #keys do
      visit(rawget(x, keys[i]), f, join(path, keys[i]), x, keys[i], seen, depth + 1)
    end
  end
end

local tree = {DEPTH = DEPTH}

--- The path of `key` in the table at `path`.
---@param path string
---@param key string|integer
---@return string
tree.join = join

--- Refuses a table that has DEPTH others around it: every function that goes into tables by calling itself asks.
---@param fname string
---@param depth integer  1 for the table at the top
---@param path string
tree.check_depth = check_depth

--- The keys of a table in the order of every walk: 1 to n, then the strings of a list.
---@param t table
---@param path string  of t, for messages
---@return integer n, string[] keys
function tree.keys(t, path)
  local n = length(t)
  return n, string_keys(t, n, path)
end

--- Calls `f(path, tensor, table, key)` for every tensor, once each: the path is its name in files ("1.weight"), and
-- table[key] holds it.
---@param x any  a tensor, a module, or any nested table
---@param f fun(path: string, tensor: conflux.Tensor, table: table?, key: integer|string|nil)
function tree.walk(x, f)
  if type(f) ~= "function" then check.wrong("tree.walk", "f", "a function", f) end
  visit(x, f, "", nil, nil, {}, 1)
end

--- All tensors and their paths, in the order of the tree: 1 to n, then string keys by their bytes.
---@param x any  a tensor, a module, or any nested table
---@return conflux.Tensor[] tensors, string[] paths
function tree.leaves(x)
  local tensors, paths = {}, {}
  visit(x, function(path, t)
    tensors[#tensors + 1], paths[#paths + 1] = t, path
  end, "", nil, nil, {}, 1)
  return tensors, paths
end

-- ---- map --------------------------------------------------------------------------------------------------

-- The values at `key` of other trees; nil where one has none.
local function children(key, other, ...)
  local child = type(other) == "table" and rawget(other, key) or nil
  if select("#", ...) == 0 then return child end
  return child, children(key, ...)
end

local function map(f, x, path, made, depth, ...)
  if is_tensor(x) then
    local y = made[x]
    if y == nil then
      for k = 1, select("#", ...) do
        local other = select(k, ...)
        if other ~= nil and not is_tensor(other) then
          check.fail("tree.map", "tree %d: expected a tensor at %s, got %s", k + 1, check.quote(path),
            check.describe(other))
        end
      end
      y = f(x, ...)
      made[x] = y
    end
    return y
  elseif type(x) ~= "table" then
    return x
  elseif made[x] then
    return made[x]
  end
  check_depth("tree.map", depth, path)
  local y = setmetatable({}, getmetatable(x))
  made[x] = y
  local n = length(x)
  local keys = string_keys(x, n, path)
  depth = depth + 1
  if select("#", ...) == 0 then
    for i = 1, n do rawset(y, i, map(f, rawget(x, i), join(path, i), made, depth)) end
    for i = 1, #keys do rawset(y, keys[i], map(f, rawget(x, keys[i]), join(path, keys[i]), made, depth)) end
  else
    for i = 1, n do rawset(y, i, map(f, rawget(x, i), join(path, i), made, depth, children(i, ...))) end
    for i = 1, #keys do
      rawset(y, keys[i], map(f, rawget(x, keys[i]), join(path, keys[i]), made, depth, children(keys[i], ...)))
    end
  end
  return y
end

--- A tree of the structure (and metatables) of `x` that holds `f(tensor, ...)` where x holds a tensor; `...` are
-- the tensors in the same places of the other trees, nil where they have none.  Ties stay ties.
---@generic T
---@param f fun(tensor: conflux.Tensor, ...): any
---@param x T
---@param ... any trees of the same structure
---@return T
function tree.map(f, x, ...)
  if type(f) ~= "function" then check.arg("tree.map", "f", "a function", f) end
  return map(f, x, "", {}, 1, ...)
end

-- ---- parameters -------------------------------------------------------------------------------------------

-- Of the leaves of a tree: the parameters, as tree.parameters has them, and the others in their own order.
local function sort_leaves(all, names)
  local tensors, paths, trainable, others, other_paths = {}, {}, 0, {}, {}
  for wanted = 0, FROZEN, FROZEN do
    for i = #all, 1, -1 do
      local t = all[i]
      if t._dtype >= FLOAT16 and band(t._flags, MARKS) == wanted then
        tensors[#tensors + 1], paths[#paths + 1] = t, names[i]
      end
    end
    if wanted == 0 then trainable = #tensors end
  end
  for i = 1, #all do
    if all[i]._dtype < FLOAT16 or band(all[i]._flags, BUFFER) ~= 0 then
      others[#others + 1], other_paths[#other_paths + 1] = all[i], names[i]
    end
  end
  return tensors, paths, trainable, others, other_paths
end

--- The parameters: float tensors that are no buffers.  First the trainable ones, in reverse order of the walk
-- (backward finishes the last layer first), then frozen ones.  Then what else there is, buffers and integers, in the
-- order of the walk.
---@param x any
---@return conflux.Tensor[] tensors, string[] paths, integer trainable, conflux.Tensor[] others, string[] other_paths
function tree.parameters(x)
  return sort_leaves(tree.leaves(x))
end

---@class conflux.Flat
---@field n integer                 parameters, frozen ones included
---@field trainable integer         how many of them, from the first, are not frozen
---@field tensors conflux.Tensor[]  in the order of tree.parameters
---@field paths string[]
---@field array ffi.cdata*          cfx_tensor *[n]: the same handles
---@field leaves conflux.Tensor[]   all tensors, in the order of tree.leaves
---@field leaf_paths string[]
---@field others conflux.Tensor[]   those that are no parameters
---@field other_paths string[]
---@field alike table<conflux.Flat, boolean>  of other records, whether all of their paths, shapes and dtypes are these

-- Per model its record.  A record must not keep its model alive, or the entry would stay for ever: the tables
-- that it remembers are held weakly.
local records = setmetatable({}, {__mode = "k"})
local weak, weak_keys = {__mode = "v"}, {__mode = "k"}

-- Remembers how a model looked: its tables, and for each slot of them that holds a table or tensor, which.
local function remember(model)
  local tables, counts, slots = setmetatable({}, weak), {}, 0
  local owners, keys, values = {}, {}, setmetatable({}, weak)
  local tensors, flags = {}, {}
  local found, seen = {model}, {[model] = true}
  local number = 0
  while found[number + 1] do
    number = number + 1
    local t, count = found[number], 0
    for key, value in each, t do
      count = count + 1
      if type(value) == "table" or is_tensor(value) then
        slots = slots + 1
        owners[slots], keys[slots], values[slots] = number, key, value
        if not seen[value] then
          seen[value] = true
          if type(value) == "table" then
            found[#found + 1] = value
          else
            tensors[#tensors + 1], flags[#flags + 1] = value, band(value._flags, MARKS)
          end
        end
      end
    end
    tables[number], counts[number] = t, count
  end
  return {tables = tables, counts = counts, slots = slots, owners = owners, keys = keys, values = values,
    leaves = tensors, flags = flags}
end

local function still_holds(shape)
  local tables, counts = shape.tables, shape.counts
  for i = 1, #counts do
    local t, count = tables[i], 0
    if t == nil then return false end
    for _ in each, t do count = count + 1 end
    if count ~= counts[i] then return false end
  end
  local owners, keys, values = shape.owners, shape.keys, shape.values
  for i = 1, shape.slots do
    if not rawequal(rawget(tables[owners[i]], keys[i]), values[i]) then return false end
  end
  local leaves, flags = shape.leaves, shape.flags
  for i = 1, #leaves do
    if band(leaves[i]._flags, MARKS) ~= flags[i] then return false end
  end
  return true
end

--- The record that tree.flatten has made of x, if it has and that still holds.
---@param x table
---@return conflux.Flat?
function tree.flattened(x)
  local record = records[x]
  return record and still_holds(record.shape) and record or nil
end

--- Whether there is a layer among the tables of a model: then its integer tensors are state.
---@param record conflux.Flat
function tree.has_layer(record)
  local tables = record.shape.tables
  for i = 1, #record.shape.counts do
    local mt = getmetatable(tables[i])
    if type(mt) == "table" and rawget(mt, "__layer") then return true end
  end
  return false
end

--- The parameters of a model with their addresses for C, kept until the model changes: the same record comes
-- back as long as its tables hold the same tensors and tables, marked as they were.
---@param model any
---@return conflux.Flat
function tree.flatten(model)
  local record = tree.flattened(model)
  if record then return record end
  -- before the parameters: what a finaliser changes in between makes the record one of the past
  local shape = type(model) == "table" and remember(model) or nil
  local leaves, leaf_paths = tree.leaves(model)
  local tensors, paths, trainable, others, other_paths = sort_leaves(leaves, leaf_paths)
  record = {n = #tensors, trainable = trainable, tensors = tensors, paths = paths, array = core.ptrs(tensors),
    leaves = leaves, leaf_paths = leaf_paths, others = others, other_paths = other_paths,
    alike = setmetatable({}, weak_keys)}
  if shape then
    record.shape = shape
    records[model] = record
  end
  return record
end

-- ---- whole trees ------------------------------------------------------------------------------------------

--- The 2-norm of all float tensors of `x` together, a float32 tensor of one number.
---@param x any  a tensor, a gradient, or any nested table
---@return conflux.Tensor
function tree.norm(x)
  local all = tree.leaves(x)
  local tensors = {}
  for i = 1, #all do
    if all[i]._dtype >= FLOAT16 then tensors[#tensors + 1] = all[i] end
  end
  if #tensors == 0 then check.arg("tree.norm", "x", "a tree with float tensors", "one without any") end
  local array, out = core.ptrs(tensors), core.new()
  local st = C.cfx_norm(#tensors, array, out)
  if st ~= 0 then core.settle(st, C.cfx_norm, #tensors, array, out) end
  return out
end

--- `x` on another device, or with its float tensors in another dtype; x itself where nothing changes.  Marks
-- (buffer, frozen) stay.
---@generic T
---@param x T                          a tensor, a module, or any nested table
---@param where string|conflux.Device  a device or its name, or a dtype
---@return T
function tree.to(x, where)
  if is_tensor(x) then return x:to(where) end
  local dtype = type(where) == "string" and core.dtype[where]
  local device = not dtype and check.device("to", "where", where) or nil
  local function moves(t)
    if dtype then return t._dtype >= FLOAT16 and t._dtype ~= dtype end
    return device ~= C.cfx_tensor_device(t)
  end
  local changes = false
  tree.walk(x, function(_, t) changes = changes or moves(t) end)
  if not changes then return x end
  return tree.map(function(t)
    if not moves(t) then return t end
    local y = t:to(where)
    y._flags = bor(band(y._flags, bit.bnot(MARKS)), band(t._flags, MARKS))
    return y
  end, x)
end

-- device(x)
function core.device_meta.__call(device, x)
  return tree.to(x, device)
end

return tree
