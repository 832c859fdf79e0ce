--- The Lua side of an engine inside another program: tensors that go between it and C.
--
-- Each comes in a box, a userdata with room for one handle.
-- @module conflux.engine
local core = require "conflux.core"

local C, ffi = core.C, core.ffi
local cast, copy, is_tensor, new, settle = ffi.cast, ffi.copy, core.is_tensor, core.new, core.settle
local pointer_t = ffi.typeof "cfx_tensor *"
local BYTES = ffi.sizeof "cfx_tensor"

local engine = {}

--- A handle of Lua's own on the tensor in the box.
---@param box userdata
---@return conflux.Tensor
function engine.take(box)
  local out = new()
  local st = C.cfx_retain(cast(pointer_t, box), out)
  if st ~= 0 then settle(st) end
  return out
end

--- Puts a handle of C's own on x into the box; false if x is no tensor.
---@param x any
---@param box userdata
---@return boolean
function engine.give(x, box)
  if not is_tensor(x) then return false end
  local st = C.cfx_retain(x, cast(pointer_t, box))
  if st ~= 0 then settle(st) end
  return true
end

--- Puts x itself into the box: a handle that has no reference to give back, for as long as Lua holds x.
---@param x any
---@param box userdata
---@return boolean
function engine.lend(x, box)
  if not is_tensor(x) then return false end
  local handle = cast(pointer_t, box)
  copy(handle, x, BYTES)
  handle._lent = 1
  return true
end

return engine
