--- How the prompt shows values: as print does, but for tables, whose contents are shown as far as they are short.
-- @module conflux.repl.values
local core  = require "conflux.core"
local check = require "conflux.check"

local concat, sort = table.concat, table.sort
local getmetatable, tostring, type = getmetatable, tostring, type
local each = core.each
local stdout = io.stdout

local values = {}

local WIDTH, DEPTH = 80, 3      -- columns of a table on one line, tables inside each other
local ITEMS, CHARACTERS = 20, 60 -- of a table, of a string in one

local ESCAPES = {["\n"] = "\\n", ["\t"] = "\\t", ["\r"] = "\\r", ["\""] = "\\\"", ["\\"] = "\\\\"}

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
  return tostring(a) < tostring(b)
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
  for i = 1, math.min(length, ITEMS) do items[i] = show(rawget(t, i), depth + 1, seen, inside) end
  if length > ITEMS then items[#items + 1] = ("... (%d in all)"):format(length) end
  for i = 1, math.min(#keys, ITEMS) do
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
  if kind ~= "table" then return tostring(value) end
  local meta = getmetatable(value)
  if type(meta) == "table" and meta.__tostring then return (tostring(value):gsub("\n", "\n" .. (indent or ""))) end
  return show_table(value, depth, seen, indent or "")
end

--- The text of a value at the prompt.
---@param value any
---@return string
function values.text(value)
  if type(value) == "table" then return show(value, 0, {}, "") end
  return tostring(value)
end

--- Prints the first n of `list`: on one line with tabs, as print does, or where one has several lines each on its own.
---@param list any[]
---@param n integer
function values.print(list, n)
  local texts, separator = {}, "\t"
  for i = 1, n do
    texts[i] = values.text(list[i])
    if texts[i]:find "\n" then separator = "\n" end
  end
  stdout:write(concat(texts, separator), "\n")
end

return values
