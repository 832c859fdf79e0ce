--- Modules: what makes a plain table a layer.
--
-- A layer is a table whose metatable knows how to call and print it; its parameters are the float tensors in it.
-- Nothing is registered: trees are walked where they are needed, and a layer's path is looked for on the stack
-- when an error is raised, so a call costs no more than its forward.
-- @module conflux.nn.module
local core = require "conflux.core"
local check = require "conflux.check"
local show = require "conflux.nn.show"
local tree = require "conflux.tree"
local bit = require "bit"

local C = core.C
local is_tensor = core.is_tensor
local band, bor, bnot = bit.band, bit.bor, bit.bnot
local getinfo, getlocal = debug.getinfo, debug.getlocal
local getmetatable, rawget, setmetatable, type = getmetatable, rawget, setmetatable, type
local each = core.each
local concat = table.concat

local BUFFER, FROZEN, FLOAT = C.CFX_FLAG_BUFFER, C.CFX_FLAG_FROZEN, C.CFX_FLOAT16

--- Is x a layer: an instance of a class that nn.layer made?
local function is_layer(x)
  local mt = type(x) == "table" and getmetatable(x)
  return type(mt) == "table" and rawget(mt, "__layer") ~= nil
end

-- Calls f(table, argument) for every table that can be reached from x, once.
local function each_table(x, f, argument)
  local found, seen, i = {x}, {[x] = true}, 0
  while found[i + 1] do
    i = i + 1
    f(found[i], argument)
    for _, v in each, found[i] do
      if type(v) == "table" and not seen[v] then
        found[#found + 1], seen[v] = v, true
      end
    end
  end
end

local function check_tree(fname, x)
  if type(x) ~= "table" and not is_tensor(x) then check.arg(fname, "x", "a tensor, a module or a nested table", x) end
  return x
end

-- ---- operations on a model ----------------------------------------------------------------------------------

local function parameters_of(fname, x)
  check_tree(fname, x)
  if is_tensor(x) then return {check.live(fname, "x", x)}, {""} end
  local tensors, paths = tree.leaves(x)
  local kept, names = {}, {}
  for i = 1, #tensors do
    local t = tensors[i]
    if t._buffer == nil then check.fail(fname, "argument 'x': the tensor at '%s' was released", paths[i]) end
    if t._dtype >= FLOAT and band(t._flags, BUFFER) == 0 then
      kept[#kept + 1], names[#names + 1] = t, paths[i]
    end
  end
  return kept, names
end

--- The parameters in x, each once, in the order of the tree, and their paths.
---@param x any  a tensor, a module, or any nested table
---@return conflux.Tensor[] tensors, string[] paths
local function parameters(x)
  return parameters_of("parameters", x)
end

local function set_training(t, training)
  if not is_layer(t) then return end
  -- true is every class's default: a model that was never switched and one switched back are equal
  if training then t.training = nil else t.training = false end
end

--- Puts all layers in x into training mode (the default), in which Dropout drops.  Returns x.
---@generic T
---@param x T  a module, or any nested table with some in it
---@return T x
local function train(x)
  if type(check_tree("train", x)) == "table" then each_table(x, set_training, true) end
  return x
end

--- Puts all layers in x into evaluation mode, in which Dropout passes.  Returns x.
---@generic T
---@param x T  a module, or any nested table with some in it
---@return T x
local function eval(x)
  if type(check_tree("eval", x)) == "table" then each_table(x, set_training, false) end
  return x
end

--- Parameters in x are not watched, updated or decayed any more; their gradient is zero.  A buffer never is, and stays
-- as it is.  Returns x.
---@generic T
---@param x T  a tensor, a module, or any nested table
---@return T x
local function freeze(x)
  local tensors = parameters_of("freeze", x)
  for i = 1, #tensors do
    if band(tensors[i]._flags, BUFFER) == 0 then tensors[i]._flags = bor(tensors[i]._flags, FROZEN) end
  end
  return x
end

--- Undoes freeze.  Returns x.
---@generic T
---@param x T  a tensor, a module, or any nested table
---@return T x
local function unfreeze(x)
  local tensors = parameters_of("unfreeze", x)
  for i = 1, #tensors do tensors[i]._flags = band(tensors[i]._flags, bnot(FROZEN)) end
  return x
end

--- Marks a float tensor as model state: copied, saved and synchronised, never trained.  Returns t.
---@param t conflux.Tensor  of a float dtype
---@return conflux.Tensor t
local function buffer(t)
  check.live("buffer", "t", t)
  t._flags = bor(band(t._flags, bnot(FROZEN)), BUFFER)
  return t
end

-- ---- classes ------------------------------------------------------------------------------------------------

--- The methods of all layers: a layer is a table, and its parameters are the float tensors in it.
---@class conflux.Module
---@field training boolean   false after eval()
---@field forward fun(self: conflux.Module, ...): any
---@operator call(...): any
local Module = {training = true}
Module.parameters, Module.train, Module.eval = parameters, train, eval
Module.freeze, Module.unfreeze = freeze, unfreeze

local function pass(...)
  return ...
end

-- No tail call: the frame, and `self` in it, is what layer_path finds.
local function call(self, ...)
  return pass(self:forward(...))
end

local function construct(class, ...)
  local object = setmetatable({}, class)
  if class.init then class.init(object, ...) end
  return object
end

--- Runs when the layer is called: a class of `nn.layer` defines its own, with the inputs and results that it wants.
function Module:forward()
  if not is_layer(self) then check.wrong("forward", "self", "a layer", self) end
  check.fail(getmetatable(self).__layer, "this layer has no forward: define function %s:forward(x)",
    getmetatable(self).__layer)
end

--- Makes a class of layers.
--
--     local Scale = nn.layer "Scale"
--     function Scale:init(n) self.weight = cf.ones(n) end
--     function Scale:forward(x) return x * self.weight end
--
-- `Scale(3)` makes one, and calling that runs forward.  `Scale.describe(self)`, where defined, gives the text
-- that stands for it in print.
---@param name string
---@return table class
local function layer(name)
  check.string("layer", "name", name)
  local class = setmetatable({}, {__index = Module, __call = construct, __tostring = function()
    return "layer " .. name
  end})
  class.__index, class.__layer, class.__call, class.__tostring = class, name, call, show
  return class
end

-- ---- where an error happened --------------------------------------------------------------------------------

-- Appends the keys of the shortest way from `x` to `target`; true if there is one.
local function find(x, target, keys)
  local found, ups, names, seen, i = {x}, {}, {}, {[x] = true}, 1
  while found[i] and found[i] ~= target do
    for k, v in each, found[i] do
      if type(v) == "table" and not seen[v] then
        local at = #found + 1
        found[at], ups[at], names[at], seen[v] = v, i, tostring(k), true
      end
    end
    i = i + 1
  end
  if not found[i] then return false end
  local way = {}
  while i > 1 do way[#way + 1], i = names[i], ups[i] end
  for k = #way, 1, -1 do keys[#keys + 1] = way[k] end
  return true
end

--- The path of the innermost layer whose forward is running, from the outermost one: "layer '2.1' (Dense)".
---@return string?
local function layer_path()
  local layers = {} -- innermost first
  for level = 2, 250 do
    local info = getinfo(level, "f")
    if not info then break end
    if info.func == call then
      local _, self = getlocal(level, 1)
      layers[#layers + 1] = self
    end
  end
  if #layers == 0 then return nil end
  local keys = {}
  for i = #layers, 2, -1 do
    if not find(layers[i], layers[i - 1], keys) then keys[#keys + 1] = "?" end
  end
  local kind = getmetatable(layers[1]).__layer
  return #keys == 0 and ("layer %s"):format(kind) or ("layer '%s' (%s)"):format(concat(keys, "."), kind)
end
core.layer_path = layer_path

return {
  layer = layer, is_layer = is_layer, parameters = parameters, train = train, eval = eval, freeze = freeze,
  unfreeze = unfreeze, buffer = buffer,
}
