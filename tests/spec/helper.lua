-- Assertions on tensors for luassert:
--
--     assert.tensor_equal(a, b)              -- same shape, dtype and values; b may be nested lists: shape and values
--     assert.tensor_near(a, b, rtol, atol)   -- |a - b| <= atol + rtol |b|, NaN near NaN; dtypes may differ
--     assert.refuses(f, text)                -- f() raises "<this spec>:<line>: conflux.<text>..."
local assert = require "luassert"
local say    = require "say"
local cf     = require "conflux"
local check  = require "conflux.check"
local core   = require "conflux.core"

local function flat(v, values, shape, depth)
  if type(v) == "table" then
    shape[depth] = #v
    for i = 1, #v do flat(v[i], values, shape, depth + 1) end
  else
    values[#values + 1] = v
  end
  return values, shape
end

-- Values as one list, the shape, and what to call it in a message.
local function open(x)
  if core.is_tensor(x) then
    return flat(x:totable(), {}, {}, 1), x.shape, ("%s\n%s"):format(check.describe(x), tostring(x))
  end
  local values, shape = flat(x, {}, {}, 1)
  return values, shape, tostring(cf.tensor(x, {device = "cpu"})) -- where no fault of a test can reach it
end

local function same_shape(a, b)
  if #a ~= #b then return false end
  for d = 1, #a do
    if a[d] ~= b[d] then return false end
  end
  return true
end

-- Compares a and b; `near(x, y)` compares two values.  Returns whether they agree and what to say if not.
local function compare(a, b, near)
  local x, x_shape, x_text = open(a)
  local y, y_shape, y_text = open(b)
  local agree = same_shape(x_shape, y_shape)
  local where = agree and "" or "the shapes differ"
  for i = 1, agree and #x or 0 do
    if not near(x[i], y[i]) then
      agree, where = false, ("value %d of %d: %s and %s"):format(i, #x, tostring(x[i]), tostring(y[i]))
      break
    end
  end
  return agree, ("%s\nleft:  %s\nright: %s"):format(where, x_text, y_text)
end

local function is_nan(v) return v ~= v end

local function tensor_equal(state, arguments)
  local a, b = arguments[1], arguments[2]
  local agree, text = compare(a, b, function(x, y) return x == y or (is_nan(x) and is_nan(y)) end)
  if agree and core.is_tensor(b) and a.dtype ~= b.dtype then
    agree, text = false, ("the dtypes differ: %s and %s"):format(a.dtype, b.dtype)
  end
  state.failure_message = text
  return agree
end

local function tensor_near(state, arguments)
  local rtol, atol = arguments[3] or 1e-5, arguments[4] or 1e-6
  local agree, text = compare(arguments[1], arguments[2], function(x, y)
    return x == y or (is_nan(x) and is_nan(y)) or math.abs(x - y) <= atol + rtol * math.abs(y)
  end)
  state.failure_message = text
  return agree
end

local function refuses(state, arguments)
  local ok, message = pcall(arguments[1])
  local wanted = "conflux." .. arguments[2]
  if ok then
    state.failure_message = "expected an error with: " .. wanted
  else
    state.failure_message = ("expected an error with:\n%s\ngot:\n%s"):format(wanted, tostring(message))
  end
  if ok or type(message) ~= "string" then return false end
  local _, to = message:find "^[^\n]*_spec%.lua:%d+: "
  return to ~= nil and message:sub(to + 1, to + #wanted) == wanted
end

say:set("assertion.conflux.positive", "")
say:set("assertion.conflux.negative", "expected tensors that differ")
for name, f in pairs {tensor_equal = tensor_equal, tensor_near = tensor_near, refuses = refuses} do
  assert:register("assertion", name, f, "assertion.conflux.positive", "assertion.conflux.negative")
end

return {}
