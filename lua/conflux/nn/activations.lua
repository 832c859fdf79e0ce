--- Activations: by name or as functions.
-- @module conflux.nn.activations
local core = require "conflux.core"
local check = require "conflux.check"

local methods, op_number = core.methods, core.op
local getmetatable, ipairs, type = getmetatable, ipairs, type

-- Those that a Dense computes in its own kernel: they have no parameter.
local fused = {}
for _, name in ipairs {"relu", "tanh", "sigmoid", "gelu", "silu", "softplus"} do
  fused[name] = op_number[name]
end

local NAMES = {"abs", "cos", "elu", "erf", "exp", "gelu", "leakyrelu", "logsoftmax", "relu", "sigmoid", "silu", "sin",
  "softmax", "softplus", "square", "tanh"}
local known = {identity = true}
for _, name in ipairs(NAMES) do known[name] = true end

--- Can `apply` take it: the name of an activation, or what can be called?
local function is_activation(act)
  if type(act) == "string" then return known[act] == true end
  if type(act) == "function" then return true end
  local mt = type(act) == "table" and getmetatable(act)
  return type(mt) == "table" and mt.__call ~= nil
end

--- Checks what a layer was given as activation.  A tensor function of Conflux is taken by its name, so that it is
-- fused, printed and saved; nil and "identity" are none.
---@param fname string
---@param name string
---@param act any
---@return string|function|nil
local function check_activation(fname, name, act)
  if act == nil or act == "identity" then return nil end
  if type(act) == "string" then
    if not known[act] then
      check.arg(fname, name, "one of " .. table.concat(NAMES, ", ") .. ", or a function", check.describe(act))
    end
    return act
  end
  if type(act) == "function" then
    for _, other in ipairs(NAMES) do
      if methods[other] == act then return other end
    end
    return act
  end
  if is_activation(act) then return act end
  return check.arg(fname, name, "the name of an activation or a function", check.describe(act))
end

--- Applies an activation: a name, a function or a layer.
local function apply(act, x)
  if type(act) == "string" then return methods[act](x) end
  return act(x)
end

return {check = check_activation, is = is_activation, apply = apply, fused = fused}
