--- How the prompt and `cf.show` print values: as print does, but for tables, whose contents are shown as far as they
-- are short.
-- @module conflux.values
local core  = require "conflux.core"
local check = require "conflux.check"

local concat, sort = table.concat, table.sort
local getmetatable, rawget, select, tostring, type = getmetatable, rawget, select, tostring, type
local min = math.min
local each = core.each
local stdout = io.stdout

local values = {}

local WIDTH, DEPTH = 80, 3      -- columns of a table on one line, tables inside each other
local ITEMS, CHARACTERS = 20, 60 -- of a table, of a string in one

local ESCAPES = {["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ["\""] = "\\\"", ["\\"] = "\\\\"}

-- As print has it: LuaJIT's tostring passes on whatever a __tostring returns.
local function text_of(value)
  local text = tostring(value)
  local kind = type(text)
  if kind == "number" then return ("%.14g"):format(text) end
  if kind ~= "string" then
    core.raise(("conflux.show: expected a string from the __tostring of a %s, got %s"):format(type(value), kind))
  end
  return text
end

local function quote(text)
  local cut = #text > CHARACTERS
  if cut then text = text:sub(1, CHARACTERS):gsub("[\194-\244][\128-\191]*$", "") end -- not through a character
  text = text:gsub('[%c"\\]', function(c) return ESCAPES[c] or ("\\%d"):format(c:byte()) end)
  return ('"%s"%s'):format(text, cut and "..." or "")
end

-- Numbers before strings before the rest, each in their order.
local function before(a, b)
  local x, y = type(a), type(b)
  if x ~= y then
    if x == "number" or y == "number" then return x == "number" end
    if x == "string" or y == "string" then return x == "string" end
    return x < y
  end
  if x == "number" or x == "string" then return a < b end
  return text_of(a) < text_of(b)
end

local show

local function key_text(key)
  if type(key) == "string" and key:find "^[%a_][%w_]*$" then return key end
  return "[" .. show(key, DEPTH, {}) .. "]"
end

-- A table that does not print itself.  `depth` tables are around it; `seen` are those.
local function show_table(t, depth, seen, indent)
  if seen[t] then return "<the table around it>" end
  if depth >= DEPTH then return each(t) == nil and "{}" or "{...}" end
  seen[t] = true
  local keys, items, length = {}, {}, #t
  for key in each, t do
    local listed = type(key) == "number" and key >= 1 and key <= length and key % 1 == 0
    if not listed then keys[#keys + 1] = key end
  end
  sort(keys, before)
  local inside = indent .. "  "
  for i = 1, min(length, ITEMS) do items[i] = show(rawget(t, i), depth + 1, seen, inside) end
  if length > ITEMS then items[#items + 1] = ("... (%d in all)"):format(length) end
  for i = 1, min(#keys, ITEMS) do
    items[#items + 1] = ("%s = %s"):format(key_text(keys[i]), show(rawget(t, keys[i]), depth + 1, seen, inside))
  end
  if #keys > ITEMS then items[#items + 1] = ("... (%d more)"):format(#keys - ITEMS) end
  seen[t] = nil
  local line = "{" .. concat(items, ", ") .. "}"
  if #line + #indent <= WIDTH and not line:find "\n" then return line end
  return ("{\n%s%s\n%s}"):format(inside, concat(items, ",\n" .. inside), indent)
end

-- A value inside a table: strings in quotes, tensors by their kind.
function show(value, depth, seen, indent)
  local kind = type(value)
  if kind == "string" then return quote(value) end
  if core.is_tensor(value) then return "tensor " .. check.describe(value) end
  if kind ~= "table" then return text_of(value) end
  local meta = getmetatable(value)
  if type(meta) == "table" and meta.__tostring then return (text_of(value):gsub("\n", "\n" .. (indent or ""))) end
  return show_table(value, depth, seen, indent or "")
end

-- The text of a value by itself.
local function text(value)
  if type(value) == "table" then return show(value, 0, {}, "") end
  return text_of(value)
end

--- Prints values as the prompt does: tensors with their elements, and what tables hold, where print shows an address;
-- else as print does, on one line, or each on its own where one has several lines.
---@param ... any
function values.show(...)
  local texts, separator = {}, "\t"
  for i = 1, select("#", ...) do
    texts[i] = text((select(i, ...)))
    if texts[i]:find "\n" then separator = "\n" end
  end
  stdout:write(concat(texts, separator), "\n")
end

return values
