--- nn.fold: a copy of a model for inference, in which convolutions do what the layers behind them did.
-- @module conflux.nn.fold
local core = require "conflux.core"
local activations = require "conflux.nn.activations"
local conv = require "conflux.nn.conv"
local module = require "conflux.nn.module"
local norm = require "conflux.nn.norm"
local tree = require "conflux.tree"
local bit = require "bit"

local C, is_tensor = core.C, core.is_tensor
local getmetatable, setmetatable, type = getmetatable, setmetatable, type
local each = core.each

local MARKS = C.CFX_FLAG_BUFFER + C.CFX_FLAG_FROZEN

-- A Conv like another one, which shares its tensors: the other may stand in a second place of the model.
local function like(other)
  local made = {}
  for key, v in each, other do made[key] = v end
  return setmetatable(made, getmetatable(other))
end

-- act((conv(x) - mean) s + beta), with s = gamma / sqrt(var + eps), is the convolution with weights times s.
local function with_norm(a, b)
  local scale = (b.running_var + b.eps):rsqrt()
  if b.weight then scale = scale * b.weight end
  local shift = a.bias and a.bias - b.running_mean or -b.running_mean
  local made, dtype = like(a), a.weight.dtype
  made.weight = (a.weight * scale:reshape(-1, 1, 1, 1)):to(dtype)
  shift = shift * scale
  made.bias = (b.bias and shift + b.bias or shift):to(dtype)
  made.act = b.act
  return made
end

-- The layer that does what `a` and then `b` do, or nil.
local function join(a, b)
  if type(a) ~= "table" or getmetatable(a) ~= conv.Conv or a.act ~= nil then return nil end
  if type(b) == "table" and getmetatable(b) == norm.BatchNorm and b.running_mean ~= nil then return with_norm(a, b) end
  if type(b) ~= "string" or not activations.fused[b] then return nil end
  local made = like(a)
  made.act = b
  return made
end

-- The folding of one model: a function of a layer, or of two neighbours.  A tied layer is folded once.
local function folder()
  local done = {}
  local function fold(a, b)
    if b ~= nil then return join(a, b) end
    if type(a) ~= "table" then return a end
    if done[a] == nil then
      done[a] = a
      if module.is_layer(a) then
        done[a] = a.folded and a:folded(fold) or a
      elseif getmetatable(a) == nil then
        for key, v in each, a do a[key] = fold(v) end
      end
    end
    return done[a]
  end
  return fold
end

local function copy(t)
  local y = t:clone()
  y._flags = bit.bor(y._flags, bit.band(t._flags, MARKS))
  return y
end

local function same(t)
  return t
end

--- A copy of a model for inference, in evaluation mode: each batch norm is folded into the convolution before it, and
-- so is an activation that C computes.  Results agree to about 1e-5 (float32).
--
-- Neighbours in a Chain are folded.  A layer of one's own says how by a method `folded(fold)`, called on the copy:
-- `fold(member)` gives what is to stand there, `fold(conv, norm)` the one layer that does both, or nil.  A layer that
-- has no such method stays.
--
--     function Block:folded(fold)
--       return fold(self.conv, self.norm) or self
--     end
---@generic T
---@param model T  a module, or any nested table with some in it
---@return T
local function fold(model)
  if is_tensor(model) then return copy(model) end
  return module.eval(tree.map(copy, folder()(tree.map(same, model))))
end

return {fold = fold}
