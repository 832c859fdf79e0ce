--- Sealed objects: what they tell of themselves can be read, and set only where their class says how.
--
-- A loader or an optimiser has handed its numbers to C by the time that a script might change them.
-- @module conflux.sealed
local check = require "conflux.check"

local rawget, setmetatable, tostring = rawget, setmetatable, tostring

local sealed = {}

--- Makes a class: its functions are methods.  `setters[key](value)` returns what a field is set to; others are refused.
---@param fname string  for messages: the function that makes an object
---@param what string   and what that is
---@param setters? table<string, fun(value: any): any>
---@return table class
function sealed.class(fname, what, setters)
  local class = {}

  function class.__index(self, key)
    local method = class[key]
    if method ~= nil then return method end
    local facts = rawget(self, "_facts")
    return facts and facts[key]
  end

  function class.__newindex(self, key, value)
    local set, facts = setters and setters[key], rawget(self, "_facts")
    if not set or not facts then
      check.fail(fname, "field '%s' cannot be set: make another %s", tostring(key), what)
    end
    facts[key] = set(value)
  end

  return class
end

--- Makes an object of a class.
---@param class table   that sealed.class made
---@param facts table   the fields that it tells
---@param own? table    what its methods keep for themselves
function sealed.new(class, facts, own)
  own = own or {}
  own._facts = facts
  return setmetatable(own, class)
end

--- The fields of an object as a plain table, for its own module.
---@param object table
---@return table
function sealed.facts(object)
  return rawget(object, "_facts")
end

return sealed
