--- Plans: what a model's gradients and optimiser states are made after.
--
-- A plan is worked out once per model and kept while the model's tables and handles stay as they are: its
-- parameters in the order of their places, the layout that they lie in, and the model's skeleton, after which a
-- gradient is built without walking the model.  The first plan of a plain model packs its parameters into one
-- buffer per dtype.  A single tensor, or a tree over parts of layouts or over several devices, is never moved:
-- the tree gets a layout of its own for gradients and states (one device), or plain tensors (several).
-- @module conflux.plan
local core = require "conflux.core"
local check = require "conflux.check"
local tree = require "conflux.tree"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local band, rawget, setmetatable, type = bit.band, rawget, setmetatable, type
local each = core.each
local collectgarbage = collectgarbage

local FROZEN = C.CFX_FLAG_FROZEN
local pointers_t = ffi.typeof "cfx_tensor *[?]"

---@class conflux.Plan
---@field n integer                        parameters, frozen ones included
---@field tensors conflux.Tensor[]         in the order of their places
---@field paths string[]
---@field array ffi.cdata*                 cfx_tensor *[n]: the same handles
---@field trainable integer                how many are not frozen
---@field watched ffi.cdata*               cfx_tensor *[trainable]
---@field numbers integer[]                of those, in the order of `watched`
---@field places table<integer, integer>   and of a number its place in `watched`, from 0
---@field layout? ffi.cdata*               of gradients and states; nil: plain tensors
---@field device? conflux.Device           where all parameters lie; nil: on several
local Plan = {}
Plan.__index = Plan

local plans = setmetatable({}, {__mode = "k"}) -- tree.flatten's record -> its plan
local origins = setmetatable({}, {__mode = "k"}) -- a tree made by a plan -> that plan

-- ---- the skeleton -------------------------------------------------------------------------------------------

-- Lists the tables of `x` (slots: parent slot and key, 0 for the root), the places of each parameter, and the
-- list positions that hold no parameter.  A table met again is an alias of its slot, so ties stay ties.
local function skeleton(plan, x, index)
  local parents, keys, leaves, aliases, holes = {0}, {}, {}, {}, {}
  local tables, slots, slot = {x}, {[x] = 1}, 0
  while tables[slot + 1] do
    slot = slot + 1
    local t = tables[slot]
    local length = #t
    for k, v in each, t do
      local listed = type(k) == "number" and k >= 1 and k <= length
      if is_tensor(v) and index[v] then
        leaves[#leaves + 1] = {slot, k, index[v]}
      elseif type(v) == "table" then
        if slots[v] then
          aliases[#aliases + 1] = {slot, k, slots[v]}
        else
          local new_slot = #tables + 1
          tables[new_slot], slots[v], parents[new_slot], keys[new_slot] = v, new_slot, slot, k
        end
      elseif listed then
        holes[#holes + 1] = {slot, k}
      end
    end
  end
  plan.parents, plan.keys, plan.leaves, plan.aliases, plan.holes = parents, keys, leaves, aliases, holes
end

--- A tree of the model's structure that holds `handles[i]` where the model holds parameter i.  What has no
-- gradient is left out; in a list, `false` keeps its position.
function Plan:grow(handles)
  if self.single then return handles[1] end
  local parents, keys, tables = self.parents, self.keys, {}
  for slot = 1, #parents do
    local t = {}
    tables[slot] = t
    if slot > 1 then tables[parents[slot]][keys[slot]] = t end
  end
  for i = 1, #self.leaves do
    local leaf = self.leaves[i]
    tables[leaf[1]][leaf[2]] = handles[leaf[3]]
  end
  for i = 1, #self.holes do
    local hole = self.holes[i]
    tables[hole[1]][hole[2]] = false
  end
  for i = 1, #self.aliases do
    local alias = self.aliases[i]
    tables[alias[1]][alias[2]] = tables[alias[3]]
  end
  origins[tables[1]] = self
  return tables[1]
end

--- Puts the handles of the trainable parameters' places in `x`, a tree of the model's structure, into `array`, from
-- `at` on.  Returns the number of the first parameter, frozen or not, that it lacks, or nil.
function Plan:gather(x, array, at)
  local places = self.places
  if self.single then
    if not is_tensor(x) then return 1 end
    if places[1] then array[at] = x end
    return nil
  end
  local parents, keys, tables = self.parents, self.keys, {x}
  for slot = 2, #parents do
    local parent = tables[parents[slot]]
    tables[slot] = type(parent) == "table" and rawget(parent, keys[slot]) or false
  end
  local missing
  for i = 1, #self.leaves do
    local leaf = self.leaves[i]
    local t = tables[leaf[1]]
    local handle = type(t) == "table" and rawget(t, leaf[2])
    if is_tensor(handle) then
      local place = places[leaf[3]]
      if place then array[at + place] = handle end
    elseif not missing or leaf[3] < missing then
      missing = leaf[3]
    end
  end
  return missing
end

-- Refuses a tree that lacks a parameter, which gather has found.
local function refuse_missing(plan, fname, name, missing)
  check.fail(fname, "argument '%s': nothing at '%s', where the model has a parameter %s", name, plan.paths[missing],
    check.describe(plan.tensors[missing]))
end

-- Refuses a tree that has a tensor which the model has not.
local function refuse_strangers(plan, fname, name, x)
  local tensors, paths = tree.leaves(x)
  if #tensors == plan.n then return end
  local known = {}
  for i = 1, plan.n do known[plan.paths[i]] = true end
  for i = 1, #tensors do
    if not known[paths[i]] then
      check.fail(fname, "argument '%s': a tensor at '%s', where the model has no parameter", name, paths[i])
    end
  end
end

--- Puts the trainable part of a gradient that a user hands in into `array`, after checking all of it.
function Plan:take_gradient(fname, name, x, array)
  if type(x) ~= "table" and not is_tensor(x) then
    check.arg(fname, name, "a tree of the model's structure", check.describe(x))
  end
  local missing = self:gather(x, array, 0)
  if missing then refuse_missing(self, fname, name, missing) end
  if origins[x] == self or self.single then return end
  refuse_strangers(self, fname, name, x)
end

-- ---- layouts ------------------------------------------------------------------------------------------------

local function new_layout(n, array, paths)
  local names, out = ffi.new("const char *[?]", n), ffi.new "cfx_layout *[1]"
  for i = 1, n do names[i - 1] = paths[i] end
  local st = C.cfx_layout_new(n, array, names, out)
  if st ~= 0 then settle(st, C.cfx_layout_new, n, array, names, out) end
  return ffi.gc(out[0], C.cfx_layout_free)
end

-- Moves plain parameters into new flat buffers.  A view that nobody holds any more counts as one until settle
-- collects it.
local function pack(layout, device, array)
  local st = C.cfx_layout_pack(layout, device, array)
  if st ~= 0 then settle(st, C.cfx_layout_pack, layout, device, array) end
end

local function one_device(tensors)
  local device = tensors[1] and C.cfx_tensor_device(tensors[1])
  for i = 2, #tensors do
    if C.cfx_tensor_device(tensors[i]) ~= device then return nil end
  end
  return device
end

local function view_key(t)
  local strides = {}
  for d = 0, t._ndim - 1 do strides[d + 1] = ("%d/%d"):format(tonumber(t._shape[d]), tonumber(t._stride[d])) end
  return ("%s:%d:%s"):format(tostring(t._buffer), tonumber(t._offset), table.concat(strides, ","))
end

-- Tied means the same handle: with two handles on the same values the gradient of one would hide the other's.
local function refuse_doubles(fname, tensors, paths)
  local seen = {}
  for i = 1, #tensors do
    local key = view_key(tensors[i])
    if seen[key] then
      check.fail(fname, "parameters '%s' and '%s' are two handles on the same values; to tie them use one handle "
        .. "in both places", paths[seen[key]], paths[i])
    end
    seen[key] = i
  end
end

-- The layout that gradients and states of these parameters take; packs them if they are plain.
local function find_layout(n, array, tensors, paths, device)
  local packed = false
  for i = 1, n do packed = packed or C.cfx_tensor_layout(tensors[i]) ~= nil end
  if packed then
    local layout = C.cfx_tensor_layout(tensors[1])
    if layout ~= nil and C.cfx_layout_holds(layout, n, array) == 1 then return layout end
  end
  local layout = new_layout(n, array, paths)
  if not packed then pack(layout, device, array) end
  return layout
end

-- ---- plans --------------------------------------------------------------------------------------------------

local function split_trainable(plan)
  local watched, flags, trainable = pointers_t(plan.n), {}, 0
  local numbers, places = {}, {}
  for i = 1, plan.n do
    flags[i] = plan.tensors[i]._flags
    if band(flags[i], FROZEN) == 0 then
      watched[trainable], places[i] = plan.tensors[i], trainable
      trainable = trainable + 1
      numbers[trainable] = i
    end
  end
  plan.watched, plan.flags, plan.trainable, plan.numbers, plan.places = watched, flags, trainable, numbers, places
end

--- Refuses a model with a tensor that was released.  C refuses one in a step: a plan that is kept need not look.
function Plan:check_live(fname, name)
  for i = 1, self.n do
    if self.tensors[i]._buffer == nil then
      local at = self.single and "" or ("at '%s' "):format(self.paths[i])
      check.fail(fname, "argument '%s': the tensor %swas released", name, at)
    end
  end
end

local function build(fname, name, model, tensors, paths)
  local n = #tensors
  local plan = setmetatable({n = n, tensors = tensors, paths = paths, single = is_tensor(model)}, Plan)
  plan:check_live(fname, name)
  plan.array = core.ptrs(tensors)
  plan.device = one_device(tensors)
  if not plan.single then
    local index = {}
    for i = 1, n do index[tensors[i]] = i end
    skeleton(plan, model, index)
    refuse_doubles(fname, tensors, paths)
    if n > 0 and plan.device then plan.layout = find_layout(n, plan.array, tensors, paths, plan.device) end
  end
  plan.bytes = 0
  for i = 1, n do
    plan.bytes = plan.bytes + tensors[i]:numel() * C.cfx_dtype_size(tensors[i]._dtype)
  end
  split_trainable(plan)
  return plan
end

--- The plan of a model: a tensor, or a tree with at least one parameter.
---@return conflux.Plan
local function of(fname, name, model)
  if is_tensor(model) then
    if model._dtype < C.CFX_FLOAT16 then check.arg(fname, name, "a float tensor or a tree of them", model) end
    return build(fname, name, model, {model}, {""})
  end
  if type(model) ~= "table" then check.arg(fname, name, "a tensor or a tree of tensors", check.describe(model)) end
  local record = tree.flatten(model)
  local plan = plans[record]
  if plan then return plan end
  if record.n == 0 then check.arg(fname, name, "a tree with parameters (float tensors)", "one without any") end
  plan = build(fname, name, model, record.tensors, record.paths)
  plans[record] = plan
  return plan
end

-- ---- trees of a plan's form ---------------------------------------------------------------------------------

-- Large gradients that nobody holds any more make room for the next one; small ones are left to the debt counter.
-- Whether an earlier one still lives cannot be asked: a weak reference is cleared before its tensors are released.
local function make_room(plan)
  if plan.has_made and plan.bytes > core.debt_threshold() then
    collectgarbage()
    collectgarbage()
  end
  plan.has_made = true
end

-- Handles for the plan's parameters: in new buffers of its layout; or plain, and then made only where `all` or the
-- parameter is frozen, for the tape makes the others.  dtype -1: as the parameters.
function Plan:handles(dtype, all)
  local handles = {}
  for i = 1, self.n do handles[i] = new() end
  if self.layout then
    local array = core.ptrs(handles)
    local zero = (all or self.trainable < self.n) and 1 or 0
    local st = C.cfx_layout_make(self.layout, self.device, dtype, zero, array)
    if st ~= 0 then settle(st, C.cfx_layout_make, self.layout, self.device, dtype, zero, array) end
    return handles
  end
  for i = 1, self.n do
    if all or band(self.flags[i], FROZEN) ~= 0 then
      local x = self.tensors[i]
      local device, as = C.cfx_tensor_device(x), dtype < 0 and x._dtype or dtype
      local st = C.cfx_full(device, as, x._ndim, x._shape, 0, handles[i])
      if st ~= 0 then settle(st, C.cfx_full, device, as, x._ndim, x._shape, 0, handles[i]) end
    end
  end
  return handles
end

--- A tree of zeros of the model's form: an optimiser's state.  That of half precision parameters is float32.
function Plan:zeros()
  local has_half, has_double = false, false
  for i = 1, self.n do
    local dtype = self.tensors[i]._dtype
    has_half = has_half or dtype < C.CFX_FLOAT32
    has_double = has_double or dtype == C.CFX_FLOAT64
  end
  if has_half and has_double then
    check.fail("setup", "a model of float64 and half precision parameters; convert one kind")
  end
  return self:grow(self:handles(has_half and C.CFX_FLOAT32 or -1, true))
end

--- A gradient to be: its tree, and for C the handles of the trainable parameters.
---@return any gradient, ffi.cdata* array
function Plan:gradient()
  make_room(self)
  local handles, array = self:handles(-1, false), pointers_t(self.trainable)
  for k = 1, self.trainable do array[k - 1] = handles[self.numbers[k]] end
  return self:grow(handles), array
end

return {of = of, new_layout = new_layout}
