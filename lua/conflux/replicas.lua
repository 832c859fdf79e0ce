--- Replicas: one copy of an object on each of several devices.
-- @module conflux.replicas
local core = require "conflux.core"
local check = require "conflux.check"
local collective = require "conflux.collective"
local gather = require("conflux.dist.gather").public
local plans = require "conflux.plan"
local scheduler = require "conflux.scheduler"
local tree = require "conflux.tree"
local bit = require "bit"

local C = core.C
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local band, type = bit.band, type

local MARKS = C.CFX_FLAG_BUFFER + C.CFX_FLAG_FROZEN

local function copy_to(x, device)
  local out = new()
  local st = C.cfx_empty(device, x._dtype, x._ndim, x._shape, out)
  if st ~= 0 then settle(st, C.cfx_empty, device, x._dtype, x._ndim, x._shape, out) end
  st = C.cfx_copy(out, x)
  if st ~= 0 then settle(st, C.cfx_copy, out, x) end
  out._flags = band(x._flags, MARKS)
  return out
end

-- The tensors that copies are made after, and the copies' layout; nil where there are none.
local function part_of(tensors, paths)
  if #tensors == 0 then return nil end
  local array = core.ptrs(tensors)
  return {tensors = tensors, array = array, layout = plans.layout_of(tensors, array, paths)}
end

-- Those of a tree: its parameters, and its other tensors, each in one buffer per dtype.
local function parts_of(x)
  if type(x) ~= "table" then return {} end
  local tensors, paths, _, others, other_paths = tree.parameters(x)
  return {parameters = part_of(tensors, paths), others = part_of(others, other_paths)}
end

local function copy_part(part, device, copies)
  local tensors, handles = part.tensors, {}
  for i = 1, #tensors do handles[i] = new() end
  local array = core.ptrs(handles)
  local st = C.cfx_layout_copy(part.layout, device, part.array, array)
  if st ~= 0 then settle(st, C.cfx_layout_copy, part.layout, device, part.array, array) end
  for i = 1, #tensors do
    local x, y = tensors[i], handles[i]
    y._flags = band(x._flags, MARKS)
    copies[x] = y
  end
end

local function copy(x, parts, device)
  if is_tensor(x) then return copy_to(x, device) end
  local copies = {}
  if parts.parameters then copy_part(parts.parameters, device, copies) end
  if parts.others then copy_part(parts.others, device, copies) end
  return type(x) == "table" and tree.map(function(t) return copies[t] end, x) or x
end

-- Refuses a model of which another rank has another one: a collective, where there are other ranks.
local function check_ranks(x)
  local record = core.world and type(x) == "table" and tree.flatten(x)
  if not record or not tree.has_layer(record) then return end
  local same, path, rank = gather.same(x)
  if not same then
    check.fail("replicate", "the model's %s differs between rank 0 and rank %d: make it of one seed in all ranks "
      .. "(cf.seed), or make it equal by cf.dist.synchronize", check.quote(path), rank)
  end
end

--- Copies `x` to each device.  The copies never alias `x` or each other; tensors tied in `x` stay tied in every
-- copy; the parameters of a copy lie in one buffer per dtype, its other tensors in others.  After cf.dist.init all
-- ranks replicate a model together, which must be equal in them.
---@generic T
---@param x T                                 any tensor, module, optimiser state, or nested table of them
---@param devices? (conflux.Device|string)[]  default: `cf.devices()`
---@param f? fun(x: T, i: integer, device: conflux.Device): T   what to copy, if not x itself
---@return conflux.Replicas
local function replicate(x, devices, f)
  if type(devices) == "function" and f == nil then devices, f = nil, devices end
  devices = check.devices("replicate", "devices", devices)
  if not is_tensor(x) and type(x) ~= "table" then
    check.arg("replicate", "x", "a tensor, a module or a nested table", x)
  end
  if type(f) ~= "nil" and type(f) ~= "function" then check.arg("replicate", "f", "a function", f) end
  if not f then check_ranks(x) end
  local list = scheduler.list(devices)
  local parts = not f and parts_of(x)
  for i = 1, #devices do
    if f then
      local y = f(x, i, devices[i])
      list[i] = copy(y, parts_of(y), devices[i])
    else
      list[i] = copy(x, parts, devices[i])
    end
  end
  return list
end

return {
  replicate = replicate, withdevices = scheduler.withdevices,
  allreduce = collective.allreduce, reduce = collective.reduce, synchronize = collective.synchronize,
}
