--- Fields: what a layer of Conflux holds, checked where it is used.
--
-- A layer is a plain table, so a script may set any field of it: to a list of numbers where a tensor belongs, or to a
-- file handle, which LuaJIT would hand to C as a pointer.  Each class declares its fields once; its methods begin with
-- that check.
-- @module conflux.nn.fields
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"

local is_tensor, is_activation = core.is_tensor, activations.is
local each = core.each
local rawget, type = rawget, type

local fields = {}

-- Kinds of fields: does the value fit, and what is expected.
fields.tensor = {is_tensor, "a tensor"}
fields.tensor_or_nil = {function(v) return type(v) == "nil" or is_tensor(v) end, "a tensor or nil"}
fields.activation = {function(v) return type(v) == "nil" or is_activation(v) end,
  "the name of an activation, a function or nil"}
fields.number = {function(v) return type(v) == "number" end, "a number"}

local function is_size(v)
  return type(v) == "number" and v % 1 == 0 and v >= 0
end

fields.sizes_or_nil = {function(v)
  if type(v) == "nil" then return true end
  if type(v) ~= "table" or #v == 0 then return false end
  for i = 1, #v do
    if not is_size(v[i]) then return false end
  end
  return true
end, "a list of sizes or nil"}

local function refuse(class, name, expected, v)
  check.fail(class.__layer, "field '%s': expected %s, got %s", name, expected, check.describe(v))
end

local MEMBER = "a layer, a function or the name of an activation"

-- Members lie at 1 to n.  Of a list with a hole Lua may take any border for its length, so what lies behind this one is
-- looked at; longer holes are refused where the tree is walked, which costs more than a layer can spend.
local function check_members(class, self)
  local n = #self
  for i = 1, n do
    local member = rawget(self, i)
    if not is_activation(member) then refuse(class, tostring(i), MEMBER, member) end
  end
  if rawget(self, n + 2) ~= nil or rawget(self, n + 3) ~= nil or rawget(self, n + 4) ~= nil then
    refuse(class, tostring(n + 1), MEMBER, nil)
  end
end

local function check_object(class, method, self)
  if type(self) == "table" then return end
  check.fail(class.__layer, "%s is a method, called on %s: write layer:%s(..) with a colon", method,
    check.describe(self), method)
end

-- One field after the other, without a loop: one in each forward would end LuaJIT's traces there.
local FIELD = [[
  v = rawget(self, "%s")
  if not fits_%s(v) then refuse(class, "%s", expected_%s, v) end
]]

--- Says what the fields of a class are, and whether it holds members: layers, functions or names of activations from
-- position 1 on.  Returns the check of them, which the methods of the class begin with: it refuses an object with a
-- field of another kind, and what is no object, as in `layer.forward(x)`.
---@param class table
---@param kinds table<string, table>
---@param has_members? boolean
---@return fun(method: string, self: any)
function fields.declare(class, kinds, has_members)
  local names, lines = {}, {}
  for name in each, kinds do names[#names + 1] = name end
  table.sort(names)
  local head, values = {}, {}
  for i, name in ipairs(names) do
    head[#head + 1], head[#head + 2] = "fits_" .. name, "expected_" .. name
    values[#values + 1], values[#values + 2] = kinds[name][1], kinds[name][2]
    lines[i] = FIELD:format(name, name, name, name)
  end
  local source = ("local class, check_object, check_members, refuse, rawget%s = ...\nreturn function(method, self)\n"
    .. "  check_object(class, method, self)\n  local v\n%s%send"):format(
    #head > 0 and ", " .. table.concat(head, ", ") or "", table.concat(lines),
    has_members and "  check_members(class, self)\n" or "")
  local chunk = assert(loadstring(source, debug.getinfo(1, "S").source))
  return chunk(class, check_object, check_members, refuse, rawget, unpack(values))
end

return fields
