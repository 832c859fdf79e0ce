--- Plans: what a model's gradients and optimiser states are made after.
--
-- A plan is worked out once per model and kept while the model's tables and handles stay as they are: its
-- parameters in the order of their places, the layout that they lie in, and the model's skeleton, after which a
-- gradient is built without walking the model.  The first plan of a plain model packs its parameters into one
-- buffer per dtype, and its state into others.  A single tensor, or a tree over parts of layouts
-- or over several devices, is never moved: the tree gets a layout of its own for gradients and states (one device), or
-- plain tensors (several).
-- @module conflux.plan
local core = require "conflux.core"
local check = require "conflux.check"
local tree = require "conflux.tree"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new, table_new = core.settle, core.is_tensor, core.new, core.table_new
local band, rawequal, rawget, setmetatable, type = bit.band, rawequal, rawget, setmetatable, type
local copy = ffi.copy
local each = core.each
local collectgarbage = collectgarbage
local getmetatable = debug.getmetatable -- also where one is protected

local FROZEN, BUFFER = C.CFX_FLAG_FROZEN, C.CFX_FLAG_BUFFER
local pointers_t = ffi.typeof "cfx_tensor *[?]"
local POINTER = ffi.sizeof "cfx_tensor *"

---@class conflux.Plan
---@field n integer                        parameters, frozen ones included
---@field tensors conflux.Tensor[]         in the order of their places
---@field paths string[]
---@field array ffi.cdata*                 cfx_tensor *[n]: the same handles
---@field trainable integer                how many are not frozen
---@field watched ffi.cdata*               cfx_tensor *[trainable]
---@field numbers integer[]                of those, in the order of `watched`
---@field made table                      the gradient made last: its tree and its handles, weak
---@field made_array? ffi.cdata*           cfx_tensor *[n]: addresses of these handles
---@field made_watched? ffi.cdata*         cfx_tensor *[trainable]: of those among them that are not frozen
---@field layout? ffi.cdata*               of gradients and states; nil: plain tensors
---@field device? conflux.Device           where all parameters lie; nil: on several
local Plan = {}
Plan.__index = Plan

local plans = setmetatable({}, {__mode = "k"}) -- tree.flatten's record -> its plan
local origins = setmetatable({}, {__mode = "k"}) -- a tree made by a plan -> that plan
local weak, weak_keys = {__mode = "v"}, {__mode = "k"}

-- ---- the skeleton -------------------------------------------------------------------------------------------

-- Lists the tables of `x` (slots: parent slot and key, 0 for the root), the places of each parameter (by slot, key and
-- number), and the list positions that hold no parameter.  A table met again is an alias of its slot, so ties stay
-- ties.  lengths and counts: the list positions and all keys of a slot's table as it is grown.
local function skeleton(plan, x, index)
  local parents, keys, slot_of, key_of, number_of, aliases, holes = {0}, {}, {}, {}, {}, {}, {}
  local lengths, counts = {}, {}
  local tables, slots, slot = {x}, {[x] = 1}, 0
  while tables[slot + 1] do
    slot = slot + 1
    local t = tables[slot]
    local length, list, count = #t, 0, 0
    for k, v in each, t do
      local listed, grown = type(k) == "number" and k >= 1 and k <= length, true
      if is_tensor(v) and index[v] then
        local at = #slot_of + 1
        slot_of[at], key_of[at], number_of[at] = slot, k, index[v]
      elseif type(v) == "table" then
        if slots[v] then
          aliases[#aliases + 1] = {slot, k, slots[v]}
        else
          local new_slot = #tables + 1
          tables[new_slot], slots[v], parents[new_slot], keys[new_slot] = v, new_slot, slot, k
        end
      elseif listed then
        holes[#holes + 1] = {slot, k}
      else
        grown = false
      end
      if grown then count = count + 1 end
      if grown and listed then list = list + 1 end
    end
    lengths[slot], counts[slot] = list, count
  end
  plan.parents, plan.keys, plan.aliases, plan.holes = parents, keys, aliases, holes
  plan.slot_of, plan.key_of, plan.number_of, plan.lengths, plan.counts = slot_of, key_of, number_of, lengths, counts
end

--- A tree of the model's structure that holds `handles[i]` where the model holds parameter i.  A parameter
-- without a gradient is left out; in a list, `false` keeps its position.
function Plan:grow(handles)
  if self.single then return handles[1] end
  local parents, keys, lengths, counts = self.parents, self.keys, self.lengths, self.counts
  local n = #parents
  local tables = table_new(n, 0)
  for slot = 1, n do
    local t = table_new(lengths[slot], counts[slot] - lengths[slot])
    tables[slot] = t
    if slot > 1 then tables[parents[slot]][keys[slot]] = t end
  end
  local slot_of, key_of, number_of = self.slot_of, self.key_of, self.number_of
  for i = 1, #slot_of do
    tables[slot_of[i]][key_of[i]] = handles[number_of[i]]
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

-- ---- the tensors of a tree of the model's structure -----------------------------------------------------------

-- Trees are the script's, who may assign into them: each call looks at what they hold.  It compares that with what an
-- earlier one found, whose array for C then serves again.  Such an array is never written a second time: a call inside
-- another one (a schedule's, a finaliser's) may use the same.

--- Room for what `holds` notes: the tables of a tree by their slots, then its handles.
function Plan:room()
  return table_new(#self.parents + self.n, 0)
end

--- Whether x holds handles[i] wherever the model holds parameter i.  With `keep` the handles are noted in the room,
-- too, so that they live on while C has their addresses.
function Plan:holds(x, handles, room, keep)
  local parents, keys = self.parents, self.keys
  local slots = #parents
  if self.single or type(x) ~= "table" then return false end
  room[1] = x
  for slot = 2, slots do
    local t = rawget(room[parents[slot]], keys[slot])
    if type(t) ~= "table" then return false end
    room[slot] = t
  end
  local slot_of, key_of, number_of = self.slot_of, self.key_of, self.number_of
  for i = 1, #slot_of do
    local number = number_of[i]
    local handle = rawget(room[slot_of[i]], key_of[i])
    if not handle or not rawequal(handle, handles[number]) then return false end
    if keep then room[slots + number] = handle end
  end
  return true
end

-- Whether the tables in the room, which `holds` has put there, have nothing in them but what `grow` put there.
local function holds_no_more(plan, room)
  local counts, holes, aliases = plan.counts, plan.holes, plan.aliases
  for slot = 1, #counts do
    local count = 0
    for _ in each, room[slot] do count = count + 1 end
    if count ~= counts[slot] or getmetatable(room[slot]) then return false end
  end
  for i = 1, #holes do
    if rawget(room[holes[i][1]], holes[i][2]) ~= false then return false end
  end
  for i = 1, #aliases do
    local alias = aliases[i]
    if not rawequal(rawget(room[alias[1]], alias[2]), room[alias[3]]) then return false end
  end
  return true
end

--- The handles in x, a tree of the model's structure, by the numbers of their parameters; and the number of the first
-- parameter, frozen or not, that it lacks, or nil.
---@return conflux.Tensor[] handles, integer? missing
function Plan:gather(x)
  local handles = table_new(self.n, 0)
  if self.single then
    if not is_tensor(x) then return handles, 1 end
    handles[1] = x
    return handles, nil
  end
  local parents, keys, tables = self.parents, self.keys, {x}
  for slot = 2, #parents do
    local parent = tables[parents[slot]]
    tables[slot] = type(parent) == "table" and rawget(parent, keys[slot]) or false
  end
  local missing
  for i = 1, #self.slot_of do
    local t, number = tables[self.slot_of[i]], self.number_of[i]
    local handle = type(t) == "table" and rawget(t, self.key_of[i])
    if is_tensor(handle) then
      handles[number] = handle
    elseif not missing or number < missing then
      missing = number
    end
  end
  return handles, missing
end

--- Puts the addresses of the trainable parameters' handles into `array`, from `at` on.
function Plan:fill(array, at, handles)
  local numbers = self.numbers
  for k = 1, self.trainable do array[at + k - 1] = handles[numbers[k]] end
end

-- The gradient made last: its tree and its handles (both weak), and for C their addresses, all and the trainable ones.
local function note_made(plan, g, handles, array, watched)
  local made = plan.made
  for i = 1, plan.n do made[i] = handles[i] end
  plan.made_array, plan.made_watched = array, watched
  made.tree = g
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

--- The trainable part of a gradient that a user hands in, for C, after checking all of it.  The caller keeps what comes
-- second, which has the handles, while C may look at them.
---@return ffi.cdata* array, table kept
function Plan:take_gradient(fname, name, x, room)
  local watched = self.made_watched -- read before what it belongs to is compared
  if watched and rawequal(self.made.tree, x) and self:holds(x, self.made, room, true) then return watched, room end
  if type(x) ~= "table" and not is_tensor(x) then
    check.arg(fname, name, "a tree of the model's structure", check.describe(x))
  end
  local handles, missing = self:gather(x)
  if missing then refuse_missing(self, fname, name, missing) end
  if not (self.single or origins[x] == self) then refuse_strangers(self, fname, name, x) end
  watched = pointers_t(self.trainable)
  self:fill(watched, 0, handles)
  return watched, handles
end

local function same_form(x, y)
  if x._dtype ~= y._dtype or x._ndim ~= y._ndim then return false end
  for d = 0, x._ndim - 1 do
    if x._shape[d] ~= y._shape[d] then return false end
  end
  return true
end

-- Whether the lists `paths` and `tensors` of both name the same, alike in dtype and shape.
local function same_schema(a, b)
  if #a.paths ~= #b.paths then return false end
  for i = 1, #a.paths do
    if a.paths[i] ~= b.paths[i] or not same_form(a.tensors[i], b.tensors[i]) then return false end
  end
  return true
end

-- Whether trees that these plans make have one schema: found once for two plans.
local function alike(a, b)
  local same = a.alike[b]
  if same ~= nil then return same end
  same = same_schema(a, b)
  a.alike[b] = same
  return same
end

-- For C the tensors of x, the gradient that `plan` made last, and what keeps them; nil if x is not as it was made.
local function made_leaves(plan, x)
  local array = plan.made_array
  if not array or not rawequal(plan.made.tree, x) then return nil end
  local room = plan:room()
  if plan:holds(x, plan.made, room, true) and holds_no_more(plan, room) then return array, room end
end

--- Of the first n of `list`, where they are gradients of one schema and as they were made: for C all their tensors,
-- cfx_tensor *[replicas][count], and how many that are a replica.  Else nil: they are to be walked.  The caller keeps
-- what comes third while C may look at them.
---@return ffi.cdata*? array, integer? count, table? kept
local function leaves(list, n)
  local first = origins[rawget(list, 1)]
  if not first then return nil end
  if n == 1 then
    local array, kept = made_leaves(first, rawget(list, 1))
    return array, first.n, kept
  end
  local count, array, kept = first.n, nil, table_new(n, 0)
  for i = 1, n do
    local plan = origins[rawget(list, i)]
    if not plan or not (plan == first or alike(first, plan)) then return nil end
    local own, room = made_leaves(plan, rawget(list, i))
    if not own then return nil end
    array, kept[i] = array or pointers_t(n * count), room
    copy(array + (i - 1) * count, own, count * POINTER)
  end
  return array, count, kept
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

local function is_packed(tensors)
  for i = 1, #tensors do
    if C.cfx_tensor_layout(tensors[i]) ~= nil then return true end
  end
  return false
end

--- The layout that these tensors, whose addresses `array` has, are all of; else a new one for them.
---@return ffi.cdata* layout
local function layout_of(tensors, array, paths)
  local n, layout = #tensors, C.cfx_tensor_layout(tensors[1])
  if layout ~= nil and C.cfx_layout_holds(layout, n, array) == 1 then return layout end
  return new_layout(n, array, paths)
end

-- The state of a plain model, its buffers and a layer's integers, moves into flat buffers, too, if all of it lies on
-- one device.
local function pack_state(record)
  local tensors, paths, has_layer = {}, {}, tree.has_layer(record)
  for i = 1, #record.others do
    local t = record.others[i]
    if t._buffer ~= nil and (has_layer or band(t._flags, BUFFER) ~= 0) then
      tensors[#tensors + 1], paths[#paths + 1] = t, record.other_paths[i]
    end
  end
  local device = one_device(tensors)
  if not device or is_packed(tensors) then return end
  local array = core.ptrs(tensors)
  pack(new_layout(#tensors, array, paths), device, array)
end

-- The layout that gradients and states of the record's parameters take; packs the model if it is plain.  Its state
-- first: where that is refused all is as it was.
local function find_layout(record, device)
  local packed = is_packed(record.tensors)
  local layout = layout_of(record.tensors, record.array, record.paths)
  if not packed then
    pack_state(record)
    pack(layout, device, record.array)
  end
  return layout
end

-- ---- plans --------------------------------------------------------------------------------------------------

local function split_trainable(plan)
  local watched, flags, trainable = pointers_t(plan.n), {}, 0
  local numbers = {}
  for i = 1, plan.n do
    flags[i] = plan.tensors[i]._flags
    if band(flags[i], FROZEN) == 0 then
      watched[trainable] = plan.tensors[i]
      trainable = trainable + 1
      numbers[trainable] = i
    end
  end
  plan.watched, plan.flags, plan.trainable, plan.numbers = watched, flags, trainable, numbers
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

-- record: of a single tensor its list and path alone.
local function build(fname, name, model, record)
  local tensors, paths = record.tensors, record.paths
  local n = #tensors
  local plan = setmetatable({n = n, tensors = tensors, paths = paths, single = is_tensor(model)}, Plan)
  plan:check_live(fname, name)
  plan.array = record.array or core.ptrs(tensors)
  if plan.single then plan.parents = {} end
  plan.made, plan.alike = setmetatable(table_new(n, 1), weak), setmetatable({}, weak_keys)
  plan.device = one_device(tensors)
  if not plan.single then
    local index = {}
    for i = 1, n do index[tensors[i]] = i end
    skeleton(plan, model, index)
    refuse_doubles(fname, tensors, paths)
    if n > 0 and plan.device then plan.layout = find_layout(record, plan.device) end
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
    return build(fname, name, model, {tensors = {model}, paths = {""}})
  end
  if type(model) ~= "table" then check.arg(fname, name, "a tensor or a tree of tensors", check.describe(model)) end
  local record = tree.flatten(model)
  local plan = plans[record]
  if plan then return plan end
  if record.n == 0 then check.arg(fname, name, "a tree with parameters (float tensors)", "one without any") end
  plan = build(fname, name, model, record)
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
-- parameter is frozen, for the tape makes the others.  And their addresses, for C.  dtype -1: as the parameters.
function Plan:handles(dtype, all)
  local n = self.n
  local handles, array = table_new(n, 0), pointers_t(n)
  for i = 1, n do
    local handle = new()
    handles[i], array[i - 1] = handle, handle
  end
  if self.layout then
    local zero = (all or self.trainable < n) and 1 or 0
    local st = C.cfx_layout_make(self.layout, self.device, dtype, zero, array)
    if st ~= 0 then settle(st, C.cfx_layout_make, self.layout, self.device, dtype, zero, array) end
    return handles, array
  end
  for i = 1, n do
    if all or band(self.flags[i], FROZEN) ~= 0 then
      local x = self.tensors[i]
      local device, as = C.cfx_tensor_device(x), dtype < 0 and x._dtype or dtype
      local st = C.cfx_full(device, as, x._ndim, x._shape, 0, handles[i])
      if st ~= 0 then settle(st, C.cfx_full, device, as, x._ndim, x._shape, 0, handles[i]) end
    end
  end
  return handles, array
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
  return self:grow((self:handles(has_half and C.CFX_FLOAT32 or -1, true)))
end

--- A gradient to be: its tree, and for C the handles of the trainable parameters.
---@return any gradient, ffi.cdata* array
function Plan:gradient()
  make_room(self)
  local handles, array = self:handles(-1, false)
  local watched = array
  if self.trainable < self.n then
    watched = pointers_t(self.trainable)
    self:fill(watched, 0, handles)
  end
  local g = self:grow(handles)
  if not self.single then note_made(self, g, handles, array, watched) end
  return g, watched
end

--- The plan that a gradient or state was made by, or nil.
---@param x table
---@return conflux.Plan?
local function origin(x)
  return origins[x]
end

return {of = of, leaves = leaves, origin = origin, layout_of = layout_of,
  same_form = same_form, same_schema = same_schema}
