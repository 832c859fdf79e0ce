--- Checks of arguments, at the public door: wrong input is refused at the caller's line, before anything moves.
--
-- A message names the function, the argument, what was expected and what came:
-- "conflux.matmul: argument 'b': expected shape [128, n] for a [32, 128], got [64, 10] (float32, cpu:0)".
-- Each check returns the value, ready for use; LuaJIT would cut 2.5 to 2 in silence.
-- @module conflux.check
local core = require "conflux.core"
local is_utf8 = require("conflux.json").is_utf8
local names = require "conflux.names"

local C, ffi = core.C, core.ffi
local istype, tensor_t = ffi.istype, core.tensor_t
local is_tensor, is_device = core.is_tensor, core.is_device
local getmetatable, next, tonumber, tostring, type = getmetatable, next, tonumber, tostring, type
local each = core.each
local concat, sort = table.concat, table.sort

local MAX_DIMS = 8
local MAX_EXACT = 2 ^ 53 -- a larger number need not be the integer that was meant, nor fit C's
local EMPTY = {}

local check = {}

--- "[64, 10]", of a shape list.
local function shape_text(shape)
  return "[" .. concat(shape, ", ") .. "]"
end

local ESCAPES = {["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t"}
local SHOWN = 60 -- bytes of a value in a message

local function escape(c)
  return ESCAPES[c] or ("\\%d"):format(c:byte())
end

--- A text in quotes, for a message: control characters and what is not UTF-8 are escaped.
---@param s string
---@param most? integer  bytes, of which a longer text shows the first; default: all
---@return string
function check.quote(s, most)
  local more = ""
  if most and #s > most then
    s, more = s:sub(1, most - 3), "..."
    -- a character that the cut has parted goes whole
    s = s:gsub("[\192-\255][\128-\191]*$", function(last) return is_utf8(last) and last or "" end)
  end
  return ("'%s%s'"):format(s:gsub(is_utf8(s) and "%c" or "[%c\128-\255]", escape), more)
end

--- Describes a value in words for a message.
---@param v any
---@return string
function check.describe(v)
  local kind = type(v)
  if is_tensor(v) then
    local shape = {}
    for d = 1, v._ndim do shape[d] = tostring(tonumber(v._shape[d - 1])) end
    local device = core.find_device(C.cfx_tensor_device(v))
    return ("%s (%s, %s)"):format(shape_text(shape), core.dtypes[v._dtype], device and device.name or "released")
  elseif is_device(v) then
    return "the device " .. tostring(v)
  elseif kind == "number" then
    return ("%.14g"):format(v)
  elseif kind == "string" then
    return check.quote(v, SHOWN)
  elseif kind == "nil" or kind == "boolean" then
    return tostring(v)
  elseif kind == "cdata" then
    local name = tostring(ffi.typeof(v)):match "^ctype<(.*)>$"
    return (name:find "^int" and "an " or "a ") .. name
  end
  return "a " .. kind
end
local describe = check.describe

--- Raises "conflux.<fname>: <message>" at the first frame outside Conflux.
---@param fname string
---@param message string a format, if values follow
function check.fail(fname, message, ...)
  if select("#", ...) > 0 then message = message:format(...) end
  core.raise(("conflux.%s: %s"):format(fname, message))
end
local fail = check.fail

--- Raises "conflux.<fname>: argument '<name>': expected <expected>, got <got>".
---@param fname string
---@param name string
---@param expected string
---@param got any a text as it is, any other value described
function check.arg(fname, name, expected, got)
  if type(got) ~= "string" then got = describe(got) end
  core.raise(("conflux.%s: argument '%s': expected %s, got %s"):format(fname, name, expected, got))
end

--- check.arg for a value that a user gave: strings are described, too.
function check.wrong(fname, name, expected, v)
  check.arg(fname, name, expected, describe(v))
end
local wrong = check.wrong

--- Refuses what is no object of a class, as where a method is called with a dot.
---@param class table  the metatable of its objects
---@param made_by string  the function that makes one
function check.self(class, made_by, method, self)
  if type(self) ~= "table" or getmetatable(self) ~= class then
    wrong(("%s.%s"):format(made_by, method), "self", ("what cf.%s makes, as in x:%s(..) with a colon"):format(made_by,
      method), self)
  end
end

---@return conflux.Tensor
function check.tensor(fname, name, v)
  if not istype(tensor_t, v) then wrong(fname, name, "a tensor", v) end
  return v
end

--- A tensor that has not been released: C refuses others where it gets them, this is for what Lua tells by itself.
---@return conflux.Tensor
function check.live(fname, name, v)
  if not istype(tensor_t, v) then wrong(fname, name, "a tensor", v) end
  if v._buffer == nil then check.arg(fname, name, "a tensor", "one that was released") end
  return v
end

---@return number
function check.number(fname, name, v)
  if type(v) ~= "number" then wrong(fname, name, "a number", v) end
  return v
end

---@param low? number  default: -2^53
---@param high? number default: 2^53
---@return integer
function check.integer(fname, name, v, low, high)
  -- NaN and infinity have no remainder 0
  if type(v) ~= "number" or v % 1 ~= 0 or v < (low or -MAX_EXACT) or v > (high or MAX_EXACT) then
    local is_huge = not high and type(v) == "number" and v % 1 == 0 and v > MAX_EXACT
    wrong(fname, name, is_huge and "an integer of at most 2^53" or not low and "an integer"
      or high and ("an integer from %d to %d"):format(low, high) or ("an integer of at least %d"):format(low), v)
  end
  return v
end

---@return string
function check.string(fname, name, v)
  if type(v) ~= "string" then wrong(fname, name, "a string", v) end
  return v
end

--- A string that C gets whole: a path, or the name of a device.
---@return string
function check.text(fname, name, v)
  if type(v) ~= "string" then wrong(fname, name, "a string", v) end
  if v:find("\0", 1, true) then wrong(fname, name, "a string without zero bytes", v) end
  return v
end

---@return boolean
function check.boolean(fname, name, v)
  if type(v) ~= "boolean" then wrong(fname, name, "true or false", v) end
  return v
end

--- The dtypes' names, for a message, and the one that is meant where another name was given.
local DTYPES = concat(core.dtypes, ", ", 0)
check.dtypes = DTYPES

---@param v any
---@return string  "; 'int32' is meant?", or ""
function check.meant_dtype(v)
  local near = type(v) == "string" and names.dtype(v)
  return near and ("; '%s' is meant?"):format(near) or ""
end

--- A number of the dtype of that name.
---@return integer
function check.dtype(fname, name, v)
  local number = core.dtype[v]
  if type(v) ~= "string" or not number then
    check.arg(fname, name, "one of " .. DTYPES, describe(v) .. check.meant_dtype(v))
  end
  return number
end

-- The bounds of integers, by the number of their dtype; 2^63 - 1024 is the largest Lua number below 2^63.
local lowest = {[core.dtype.uint8] = 0, [core.dtype.int32] = -2 ^ 31, [core.dtype.int64] = -2 ^ 63}
local highest = {[core.dtype.uint8] = 255, [core.dtype.int32] = 2 ^ 31 - 1, [core.dtype.int64] = 2 ^ 63 - 1024}
check.lowest, check.highest = lowest, highest

--- A number or boolean that becomes an element of a dtype unchanged: a fraction is no integer.
---@param dtype integer
---@return number
function check.element(fname, name, v, dtype)
  if type(v) == "boolean" then return v and 1 or 0 end
  if type(v) ~= "number" then wrong(fname, name, "a number", v) end
  if lowest[dtype] and not (v % 1 == 0 and v >= lowest[dtype] and v <= highest[dtype]) then
    wrong(fname, name, ("a value of %s"):format(core.dtypes[dtype]), v)
  end
  return v
end

--- Is v a list?  `{}` is; a table of string keys is options.
---@return boolean
function check.is_list(v)
  return type(v) == "table" and (v[1] ~= nil or next(v) == nil)
end

--- How long a list is.  One with a hole, whose length Lua leaves open (`{1, nil, 3}` has 1 or 3), is refused.
---@param v table
---@return integer
function check.length(fname, name, v)
  local n = #v
  if next(v, n > 0 and n or nil) == nil then return n end
  for key in each, v do
    if type(key) == "number" and key > n then
      check.arg(fname, name, "a list without holes", ("nothing at position %d, before %.14g"):format(n + 1, key))
    end
  end
  return n
end

local function is_size(v, least)
  return type(v) == "number" and v % 1 == 0 and v >= least and v <= MAX_EXACT
end

local function wrong_size(fname, name, v, position, least)
  local is_huge = type(v) == "number" and v > MAX_EXACT and v % 1 == 0
  check.arg(fname, name, is_huge and "sizes of at most 2^53" or ("sizes of %d or more"):format(least),
    ("%s at position %d"):format(describe(v), position))
end

--- A list of sizes.
---@return integer[]
function check.shape(fname, name, v)
  if not check.is_list(v) then wrong(fname, name, "a list of sizes", v) end
  local n = check.length(fname, name, v)
  if n > MAX_DIMS then check.arg(fname, name, "at most 8 sizes", tostring(n)) end
  for i = 1, n do
    if not is_size(v[i], 0) then wrong_size(fname, name, v[i], i, 0) end
  end
  return v
end

local sizes_t = core.sizes_t

local function size_at(fname, least, position, v)
  if not is_size(v, least) then wrong_size(fname, "shape", v, position, least) end
  return v
end

-- Puts the numbers at the head of the arguments into `sizes`.  Returns how many there are, what comes next, and what
-- else there is.
local function read_sizes(fname, least, sizes, a, b, c, d, e, f, g, h, i)
  if type(a) ~= "number" then return 0, a, b or c or d or e or f or g or h or i end
  sizes[0] = size_at(fname, least, 1, a)
  if type(b) ~= "number" then return 1, b, c or d or e or f or g or h or i end
  sizes[1] = size_at(fname, least, 2, b)
  if type(c) ~= "number" then return 2, c, d or e or f or g or h or i end
  sizes[2] = size_at(fname, least, 3, c)
  if type(d) ~= "number" then return 3, d, e or f or g or h or i end
  sizes[3] = size_at(fname, least, 4, d)
  if type(e) ~= "number" then return 4, e, f or g or h or i end
  sizes[4] = size_at(fname, least, 5, e)
  if type(f) ~= "number" then return 5, f, g or h or i end
  sizes[5] = size_at(fname, least, 6, f)
  if type(g) ~= "number" then return 6, g, h or i end
  sizes[6] = size_at(fname, least, 7, g)
  if type(h) ~= "number" then return 7, h, i end
  sizes[7] = size_at(fname, least, 8, h)
  if type(i) == "number" then fail(fname, "expected at most 8 sizes") end
  return 8, i, nil
end

local function list_sizes(fname, least, sizes, list)
  local n = #list
  for k = n + 1, MAX_DIMS do
    if list[k] ~= nil then check.length(fname, "shape", list) end -- refuses the hole
  end
  if n > MAX_DIMS then check.arg(fname, "shape", "at most 8 sizes", tostring(n)) end
  for k = 1, n do sizes[k - 1] = size_at(fname, least, k, list[k]) end
  return n
end

--- Reads sizes given one by one, or as one list, and then options.  Returns how many sizes there are, an array of them
-- for C, and the options.  Neither varargs nor a table: reshape runs in every step.
---@param least integer the least size: 0, or -1 where a size may be left to be worked out
---@return integer n, ffi.cdata* sizes, table? options
function check.sizes(fname, least, a, b, c, d, e, f, g, h, i)
  local sizes = sizes_t()
  local n, options, rest
  if type(a) == "table" and (a[1] ~= nil or next(a) == nil) then
    if c ~= nil then fail(fname, "expected a list of sizes and options, got more") end
    n, options = list_sizes(fname, least, sizes, a), b
  else
    n, options, rest = read_sizes(fname, least, sizes, a, b, c, d, e, f, g, h, i)
  end
  if rest ~= nil or options ~= nil and type(options) ~= "table" then
    wrong(fname, tostring(n + 1), "a size", options)
  end
  return n, sizes, options
end

--- A dimension from 1, or from the end if negative; returned from 0.
---@return integer
function check.dim(fname, name, d, ndim)
  if type(d) == "number" and d % 1 == 0 then
    if d >= 1 and d <= ndim then return d - 1 end
    if d <= -1 and d >= -ndim then return ndim + d end
  end
  return wrong(fname, name, ndim > 0 and ("a dimension from 1 to %d, or from -1 to -%d"):format(ndim, ndim)
    or "no dimension, as the tensor has none", d)
end

--- A dimension or a list of them; returned from 0, in a new list.
---@return integer[]
function check.dims(fname, name, v, ndim)
  if type(v) ~= "table" then return {check.dim(fname, name, v, ndim)} end
  local dims, seen = {}, {}
  for i = 1, check.length(fname, name, v) do
    local d = check.dim(fname, name, v[i], ndim)
    if seen[d] then fail(fname, "argument '%s': dimension %d is named twice", name, d + 1) end
    dims[i], seen[d] = d, true
  end
  return dims
end

--- The options: a table with string keys, all of them known; `nil` is none.
---@param fname string
---@param o table?
---@param known string[]
---@return table
function check.options(fname, o, known)
  if type(o) ~= "table" then
    if type(o) == "nil" then return EMPTY end -- a NULL pointer equals nil, too
    wrong(fname, "options", "a table", o)
  end
  local strange
  for key in each, o do
    local is_known = false
    for i = 1, #known do is_known = is_known or key == known[i] end
    -- the least of the unknown ones, so that the message does not depend on the table's order
    if not is_known and (strange == nil or tostring(key) < strange) then strange = tostring(key) end
  end
  if strange then
    local sorted = {}
    for i = 1, #known do sorted[i] = known[i] end
    sort(sorted)
    local hint = names.option_hint(strange, known)
    fail(fname, "unknown option %s: %s%s", describe(strange),
      #sorted > 0 and "known are " .. concat(sorted, ", ") or "there are none", hint and "; " .. hint or "")
  end
  return o
end

--- A device, or the device of a name; nil is the default device.
---@return conflux.Device
function check.device(fname, name, v)
  if v == nil then return core.default_device() end
  if type(v) ~= "string" and not is_device(v) then wrong(fname, name, "a device or its name", v) end
  if type(v) == "string" then check.text(fname, name, v) end
  local device = core.find_device(v)
  if not device then
    local why = type(v) == "string" and ffi.string(C.cfx_error()) or "this device is no longer one of the run's"
    fail(fname, "argument '%s': %s", name, why)
  end
  return device
end

--- A list of devices: nil is the run's devices; names or devices, one or a list; what has `.devices`.
---@return conflux.Device[]
function check.devices(fname, name, v)
  if v == nil then return core.devices() end
  if type(v) == "string" or is_device(v) then return {check.device(fname, name, v)} end
  if type(v) ~= "table" then wrong(fname, name, "a list of devices", v) end
  if rawget(v, "devices") then v = rawget(v, "devices") end
  local list, n = {}, check.length(fname, name, v)
  if n == 0 then check.arg(fname, name, "at least one device", "none") end
  for i = 1, n do
    list[i] = check.device(fname, ("%s[%d]"):format(name, i), v[i])
    if v[i] == nil then wrong(fname, name, "a list of devices", v) end
  end
  return list
end

--- The position in `devices` of a device or of its name; nil if it is not there.
---@return integer?
function check.position(devices, key)
  if not is_device(key) then
    key = type(key) == "string" and core.find_device(key) or nil
  end
  if not key then return nil end
  for i = 1, #devices do
    if devices[i] == key then return i end
  end
end

return check
