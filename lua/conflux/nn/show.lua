--- How models print: as the Lua that would make them, with what they hold beside it.
--
--     Chain(
--       Dense(784, 256, relu),  -- 200,960 parameters
--       Dense(256, 10),         -- 2,570 parameters
--     )                         -- 203,530 parameters in 4 tensors, 795.04 KiB
-- @module conflux.nn.show
local core = require "conflux.core"
local tree = require "conflux.tree"
local bit = require "bit"

local C = core.C
local is_tensor = core.is_tensor
local getmetatable, rawget, tonumber, tostring, type = getmetatable, rawget, tonumber, tostring, type
local each = core.each
local concat, sort = table.concat, table.sort

local WIDTH = 60 -- notes do not stand further right than this for the sake of one long line

local function grouped(n)
  local text = ("%d"):format(n)
  local count
  repeat
    text, count = text:gsub("^(%d+)(%d%d%d)", "%1,%2")
  until count == 0
  return text
end

local function bytes_text(n)
  local units = {"bytes", "KiB", "MiB", "GiB", "TiB"}
  local k = 1
  while n >= 1024 and k < #units do
    n, k = n / 1024, k + 1
  end
  return (k == 1 and "%d %s" or "%.2f %s"):format(n, units[k])
end

-- Parameters, tensors and bytes in x; and how many of the parameters are frozen.
local function count(x)
  local tensors = is_tensor(x) and {x} or tree.leaves(x)
  local n, arrays, bytes, frozen = 0, 0, 0, 0
  for i = 1, #tensors do
    local t = tensors[i]
    if t._dtype >= C.CFX_FLOAT16 and bit.band(t._flags, C.CFX_FLAG_BUFFER) == 0 then
      local size = t:numel()
      n, arrays = n + size, arrays + 1
      bytes = bytes + size * C.cfx_dtype_size(t._dtype)
      if bit.band(t._flags, C.CFX_FLAG_FROZEN) ~= 0 then frozen = frozen + size end
    end
  end
  return n, arrays, bytes, frozen
end

local function note(x, is_total)
  local n, arrays, bytes, frozen = count(x)
  if n == 0 then return nil end
  local text = ("%s parameter%s"):format(grouped(n), n == 1 and "" or "s")
  if is_total then
    text = ("%s in %d tensor%s, %s"):format(text, arrays, arrays == 1 and "" or "s", bytes_text(bytes))
  end
  if frozen == n then return text .. ", frozen" end
  return frozen > 0 and ("%s, %s frozen"):format(text, grouped(frozen)) or text
end

local function keys_of(t)
  local keys = {}
  for k in each, t do
    if type(k) == "string" then keys[#keys + 1] = k end
  end
  sort(keys)
  return keys
end

local function value_text(v)
  if type(v) == "string" then return v end
  if type(v) == "function" then return "function" end
  if is_tensor(v) then
    local sizes = {}
    for d = 0, v._ndim - 1 do sizes[d + 1] = tostring(tonumber(v._shape[d])) end
    return ("%s [%s]"):format(v.dtype, concat(sizes, ", "))
  end
  return tostring(v)
end

-- A list of numbers, as a layer's sizes: its description tells them.
local function is_sizes(t)
  for _, v in each, t do
    if type(v) ~= "number" then return false end
  end
  return getmetatable(t) == nil
end

-- Does it print on lines of its own: has it layers or tables in it, or tensors that nobody describes?
local function is_open(x)
  local mt = getmetatable(x)
  local describes = type(mt) == "table" and mt.describe ~= nil
  for _, v in each, x do
    if type(v) == "table" and not (describes and is_sizes(v)) then return true end
  end
  if describes then return false end
  for _, v in each, x do
    if is_tensor(v) then return true end
  end
  return false
end

local add

local function add_fields(lines, x, indent, seen)
  for i = 1, #x do add(lines, x[i], indent, "", seen) end
  local keys = keys_of(x)
  for i = 1, #keys do
    if keys[i] ~= "training" then add(lines, x[keys[i]], indent, keys[i] .. " = ", seen) end
  end
end

-- Appends the lines of a value: {text, note}.
function add(lines, x, indent, label, seen)
  local comma = indent == "" and "" or ","
  if type(x) ~= "table" then
    lines[#lines + 1] = {indent .. label .. value_text(x) .. comma, is_tensor(x) and note(x) or nil}
    return
  end
  local mt = getmetatable(x)
  local name = type(mt) == "table" and rawget(mt, "__layer") or nil
  if seen[x] then
    lines[#lines + 1] = {indent .. label .. (name or "table") .. comma, "tied: the same as above"}
    return
  end
  seen[x] = true
  if name and mt.describe and not is_open(x) then
    lines[#lines + 1] = {indent .. label .. mt.describe(x) .. comma, note(x)}
  elseif not is_open(x) and name then
    lines[#lines + 1] = {indent .. label .. name .. "()" .. comma, note(x)}
  else
    lines[#lines + 1] = {indent .. label .. (name and name .. "(" or "{")}
    add_fields(lines, x, indent .. "  ", seen)
    lines[#lines + 1] = {indent .. (name and ")" or "}") .. comma, indent == "" and note(x, true) or nil}
  end
end

--- The text of a layer, or of any tree of them.
---@param x any
---@return string
local function show(x)
  tree.leaves(x) -- refuses what lies too deep for `add` as well
  local lines = {}
  add(lines, x, "", "", {})
  if #lines == 1 then return lines[1][1] .. (lines[1][2] and "  -- " .. lines[1][2] or "") end
  local width = 0
  for i = 1, #lines do
    if lines[i][2] and #lines[i][1] <= WIDTH and #lines[i][1] > width then width = #lines[i][1] end
  end
  local texts = {}
  for i = 1, #lines do
    local text, comment = lines[i][1], lines[i][2]
    texts[i] = comment and ("%s%s  -- %s"):format(text, (" "):rep(width - #text), comment) or text
  end
  return concat(texts, "\n")
end

return show
