--- Replicas: one copy of an object on each of several devices.
-- @module conflux.replicas
local core = require "conflux.core"
local check = require "conflux.check"
local collective = require "conflux.collective"
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

-- Copies of the parameters, in one buffer per dtype on `device`.
local function copy_parameters(tensors, paths, device, copies)
  local n = #tensors
  if n == 0 then return end
  local layout = plans.new_layout(n, core.ptrs(tensors), paths)
  local handles = {}
  for i = 1, n do handles[i] = new() end
  local array = core.ptrs(handles)
  local st = C.cfx_layout_make(layout, device, -1, 0, array)
  if st ~= 0 then settle(st, C.cfx_layout_make, layout, device, -1, 0, array) end
  for i = 1, n do
    local x, y = tensors[i], handles[i]
    st = C.cfx_copy(y, x)
    if st ~= 0 then settle(st, C.cfx_copy, y, x) end
    y._flags = band(x._flags, MARKS)
    copies[x] = y
  end
end

local function copy_tree(x, device)
  if is_tensor(x) then return copy_to(x, device) end
  if type(x) ~= "table" then return x end
  local copies = {}
  local tensors, paths = tree.parameters(x)
  copy_parameters(tensors, paths, device, copies)
  return tree.map(function(t)
    if not copies[t] then copies[t] = copy_to(t, device) end
    return copies[t]
  end, x)
end

--- Copies `x` to each device.  The copies never alias `x` or each other; tensors tied in `x` stay tied in every
-- copy, and the parameters of a copy lie in one buffer per dtype.
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
  local list = scheduler.list(devices)
  for i = 1, #devices do
    local device = devices[i]
    local y = x
    if f then y = f(x, i, device) end
    list[i] = copy_tree(y, device)
  end
  return list
end

return {
  replicate = replicate, withdevices = scheduler.withdevices,
  allreduce = collective.allreduce, reduce = collective.reduce, synchronize = collective.synchronize,
}
