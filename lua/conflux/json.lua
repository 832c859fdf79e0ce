--- JSON (RFC 8259): what a file's metadata and records are written in.
--
-- Objects are tables of string keys, arrays are lists; `json.list(t)` marks a list, so that an empty one stays an
-- array.  `json.null` stands for null.  Keys are written in order, numbers so that they read back the same.  Writer
-- and reader have one limit on objects and arrays inside each other.
-- @module conflux.json
local byte, char, find, format, gsub, sub =
  string.byte, string.char, string.find, string.format, string.gsub, string.sub
local concat, sort = table.concat, table.sort
local error, getmetatable, setmetatable, tonumber, type = error, getmetatable, setmetatable, tonumber, type
local each = require("conflux.core").each
local floor, huge = math.floor, math.huge

local DEPTH = 100 -- where the caller sets no other

local List = {}
local null = setmetatable({}, {__tostring = function() return "null" end})

local function list(t)
  return setmetatable(t, List)
end

local function is_list(t)
  return getmetatable(t) == List
end

-- ---- UTF-8 --------------------------------------------------------------------------------------------------

--- Is the string valid UTF-8 (RFC 3629)?
---@param s string
---@return boolean
local function is_utf8(s)
  local at, n = 1, #s
  while true do
    at = find(s, "[\128-\255]", at)
    if not at then return true end
    local a, b, c, d = byte(s, at, at + 3)
    local function tail(v) return v and v >= 0x80 and v <= 0xBF end
    if a >= 0xC2 and a <= 0xDF and tail(b) then
      at = at + 2
    elseif a >= 0xE0 and a <= 0xEF and tail(b) and tail(c) and not (a == 0xE0 and b < 0xA0)
      and not (a == 0xED and b > 0x9F) then
      at = at + 3
    elseif a >= 0xF0 and a <= 0xF4 and tail(b) and tail(c) and tail(d) and not (a == 0xF0 and b < 0x90)
      and not (a == 0xF4 and b > 0x8F) then
      at = at + 4
    else
      return false
    end
    if at > n then return true end
  end
end

local function utf8(code)
  if code < 0x80 then return char(code) end
  if code < 0x800 then return char(0xC0 + floor(code / 64), 0x80 + code % 64) end
  if code < 0x10000 then
    return char(0xE0 + floor(code / 4096), 0x80 + floor(code / 64) % 64, 0x80 + code % 64)
  end
  return char(0xF0 + floor(code / 262144), 0x80 + floor(code / 4096) % 64, 0x80 + floor(code / 64) % 64,
    0x80 + code % 64)
end

-- ---- writing ------------------------------------------------------------------------------------------------

local ESCAPES = {['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t", ["\b"] = "\\b",
  ["\f"] = "\\f"}

local function escape(c)
  return ESCAPES[c] or format("\\u%04x", byte(c))
end

local function string_text(s)
  return '"' .. gsub(s, '[%c"\\\127]', escape) .. '"'
end

local function number_text(v)
  if v ~= v or v == huge or v == -huge then error("json: " .. v .. " has no JSON form", 0) end
  if v == 0 and 1 / v < 0 then return "-0" end
  if v % 1 == 0 and v > -1e15 and v < 1e15 then return format("%d", v) end
  local short = format("%.15g", v)
  return tonumber(short) == v and short or format("%.17g", v)
end

local add

-- depth: how many objects and arrays inside each other are left.
local function add_table(out, v, depth)
  if depth == 0 then error("json: nested too deeply", 0) end
  if is_list(v) or v[1] ~= nil then
    out[#out + 1] = "["
    for i = 1, #v do
      if i > 1 then out[#out + 1] = "," end
      add(out, v[i], depth - 1)
    end
    out[#out + 1] = "]"
    return
  end
  local keys = {}
  for k in each, v do
    if type(k) ~= "string" then error("json: a key of an object is a string, not a " .. type(k), 0) end
    keys[#keys + 1] = k
  end
  sort(keys)
  out[#out + 1] = "{"
  for i = 1, #keys do
    out[#out + 1] = (i > 1 and "," or "") .. string_text(keys[i]) .. ":"
    add(out, v[keys[i]], depth - 1)
  end
  out[#out + 1] = "}"
end

function add(out, v, depth)
  local kind = type(v)
  if v == null then
    out[#out + 1] = "null"
  elseif kind == "string" then
    out[#out + 1] = string_text(v)
  elseif kind == "number" then
    out[#out + 1] = number_text(v)
  elseif kind == "boolean" then
    out[#out + 1] = v and "true" or "false"
  elseif kind == "table" then
    add_table(out, v, depth)
  else
    error("json: a " .. kind .. " has no JSON form", 0)
  end
end

--- The text of a value; raises for what has no JSON form.
---@param v any
---@param depth? integer  objects and arrays inside each other; default: 100
---@return string
local function encode(v, depth)
  local out = {}
  add(out, v, depth or DEPTH)
  return concat(out)
end

-- ---- reading ------------------------------------------------------------------------------------------------

local function fail(s, at, expected)
  error(("json: expected %s at byte %d, got '%s'"):format(expected, at, sub(s, at, at + 9)), 0)
end

local function skip(s, at)
  return find(s, "[^ \t\r\n]", at) or #s + 1
end

local UNESCAPES = {['"'] = '"', ["\\"] = "\\", ["/"] = "/", n = "\n", r = "\r", t = "\t", b = "\b", f = "\f"}

-- \uXXXX, or two of them that make one code beyond 16 bits.
local function read_code(s, at)
  local hex = s:match("^%x%x%x%x", at)
  if not hex then fail(s, at, "4 hex digits") end
  local code = tonumber(hex, 16)
  if code >= 0xD800 and code <= 0xDBFF then
    local low = tonumber(s:match("^\\u(%x%x%x%x)", at + 4) or "", 16)
    if not low or low < 0xDC00 or low > 0xDFFF then fail(s, at, "a pair of surrogates") end
    return utf8(0x10000 + (code - 0xD800) * 1024 + low - 0xDC00), at + 10
  end
  if code >= 0xDC00 and code <= 0xDFFF then fail(s, at, "a pair of surrogates") end
  return utf8(code), at + 4
end

local function read_string(s, at)
  local parts = {}
  at = at + 1
  while true do
    local stop = find(s, '[%c"\\]', at)
    if not stop then fail(s, #s + 1, "the end of a string") end
    parts[#parts + 1] = sub(s, at, stop - 1)
    local c = sub(s, stop, stop)
    if c == '"' then return concat(parts), stop + 1 end
    if c ~= "\\" then
      if c ~= "\127" then fail(s, stop, "a control character as \\u") end
      parts[#parts + 1], at = c, stop + 1
    else
      local e = sub(s, stop + 1, stop + 1)
      if e == "u" then
        parts[#parts + 1], at = read_code(s, stop + 2)
      else
        if not UNESCAPES[e] then fail(s, stop, "an escape") end
        parts[#parts + 1], at = UNESCAPES[e], stop + 2
      end
    end
  end
end

local function read_number(s, at)
  local text = s:match("^%-?%d+%.?%d*[eE]?[+-]?%d*", at)
  local whole = text and text:match "^%-?(%d+)"
  local is_number = text and (text:find "^%-?%d+$" or text:find "^%-?%d+%.%d+$" or text:find "^%-?%d+[eE][+-]?%d+$"
    or text:find "^%-?%d+%.%d+[eE][+-]?%d+$")
  if not is_number or (#whole > 1 and sub(whole, 1, 1) == "0") then fail(s, at, "a number") end
  return tonumber(text), at + #text
end

local read

local function read_array(s, at, depth)
  local t = list {}
  at = skip(s, at + 1)
  if sub(s, at, at) == "]" then return t, at + 1 end
  while true do
    t[#t + 1], at = read(s, at, depth)
    at = skip(s, at)
    local c = sub(s, at, at)
    if c == "]" then return t, at + 1 end
    if c ~= "," then fail(s, at, "',' or ']'") end
    at = at + 1
  end
end

local function read_object(s, at, depth)
  local t = {}
  at = skip(s, at + 1)
  if sub(s, at, at) == "}" then return t, at + 1 end
  while true do
    at = skip(s, at)
    if sub(s, at, at) ~= '"' then fail(s, at, "a key") end
    local key
    key, at = read_string(s, at)
    at = skip(s, at)
    if sub(s, at, at) ~= ":" then fail(s, at, "':'") end
    t[key], at = read(s, at + 1, depth)
    at = skip(s, at)
    local c = sub(s, at, at)
    if c == "}" then return t, at + 1 end
    if c ~= "," then fail(s, at, "',' or '}'") end
    at = at + 1
  end
end

local WORDS = {["true"] = true, ["false"] = false, null = null}

function read(s, at, depth)
  at = skip(s, at)
  local c = sub(s, at, at)
  if c == "{" or c == "[" then
    if depth == 0 then fail(s, at, "less nesting") end
    return (c == "{" and read_object or read_array)(s, at, depth - 1)
  end
  if c == '"' then return read_string(s, at) end
  local word = s:match("^%a+", at)
  if word and WORDS[word] ~= nil then return WORDS[word], at + #word end
  return read_number(s, at)
end

--- The value of a text; raises what is wrong with it, and where.
---@param s string
---@param depth? integer  objects and arrays inside each other; default: 100
---@return any
local function decode(s, depth)
  local v, at = read(s, 1, depth or DEPTH)
  at = skip(s, at)
  if at <= #s then fail(s, at, "the end") end
  return v
end

return {encode = encode, decode = decode, list = list, is_list = is_list, null = null, is_utf8 = is_utf8}
