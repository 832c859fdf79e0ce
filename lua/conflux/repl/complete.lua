--- Completes text at a tab: the rest of a name, of a command, or in a string of a file's name.
--
-- Names are looked up, never called: a chain such as `model[1].weight:` goes through fields of tables, through the
-- tables that stand as __index in metatables, and through what is known of tensors and devices.
-- @module conflux.repl.complete
local core     = require "conflux.core"
local commands = require "conflux.repl.commands"

local ffi = core.ffi
local concat, insert, sort = table.concat, table.insert, table.sort
local ceil, floor, max, min = math.ceil, math.floor, math.max, math.min
local _G, getenv, ipairs = _G, os.getenv, ipairs
local getmetatable, rawget, tonumber, type = debug.getmetatable, rawget, tonumber, type
local each = core.each

local complete = {}

--- files(directory): the names in it; the program sets it.
complete.files = function() return {} end

local MANY = 200 -- names shown at once
local KEYWORDS = {"and", "break", "do", "else", "elseif", "end", "false", "for", "function", "goto", "if", "in",
  "local", "nil", "not", "or", "repeat", "return", "then", "true", "until", "while"}
local TENSOR_FIELDS = {shape = true, ndim = true, dtype = true, device = true}
local DEVICE_FIELDS = {name = true, threads = true}

-- ---- fields of values -------------------------------------------------------------------------------------

-- ffi.metatype keeps the metatables here, by the number of the type.  LuaJIT has no call for it; without it, such
-- methods are not completed.
local metatypes = debug.getfenv(ffi.metatype)

local function metatable_of(value)
  if type(value) ~= "cdata" then return getmetatable(value) end
  local id = tonumber(ffi.typeof(value))
  local meta = type(metatypes) == "table" and id and rawget(metatypes, -id)
  return type(meta) == "table" and meta or nil
end

-- Calls f(table) for each table in which fields of `value` are looked for, until it returns something.
local function look(value, f)
  for _ = 1, 20 do -- a chain of metatables may be a ring
    if core.is_tensor(value) then return f(core.methods) or f(TENSOR_FIELDS) end
    if core.is_device(value) then return f(DEVICE_FIELDS) end
    if type(value) == "table" then
      local found = f(value)
      if found ~= nil then return found end
    end
    local meta = metatable_of(value)
    local index = type(meta) == "table" and rawget(meta, "__index")
    if type(index) == "function" then return f(meta, true) end -- where such a function often finds methods
    if index == nil or index == false then return nil end
    value = index
  end
end

local function field(value, key)
  if core.is_tensor(value) and TENSOR_FIELDS[key] then return value[key] end
  return look(value, function(t)
    local found = rawget(t, key)
    if found ~= nil then return found end
  end)
end

-- The names of the fields of `value` that begin with `start`; only those of functions where a method is asked for.
local function names_of(value, start, is_method)
  local names, seen = {}, {}
  look(value, function(t, is_meta)
    for key, found in each, t do
      local fits = type(key) == "string" and key:sub(1, #start) == start and key:find "^[%a_][%w_]*$" and not seen[key]
        and not ((is_meta or start == "") and key:sub(1, 2) == "__")
        and (not is_method or type(found) == "function" or type(metatable_of(found)) == "table"
          and metatable_of(found).__call ~= nil)
      if fits then
        seen[key] = true
        names[#names + 1] = key
      end
    end
  end)
  return names
end

-- ---- the text before the cursor ---------------------------------------------------------------------------

-- The part of an unfinished string that stands at the end of the text; nil where none does.
local function open_string(text)
  local at = 1
  while true do
    local from, _, mark = text:find("([\"'%-%[])", at)
    if not from then return nil end
    if mark == "-" then
      if text:sub(from, from + 1) == "--" then return nil end
      at = from + 1
    elseif mark == "[" then
      local level = text:match("^%[(=*)%[", from)
      local _, last = text:find("]" .. (level or "") .. "]", from + 1, true)
      if level and not last then return nil end
      at = level and last + 1 or from + 1
    else
      local stop = from + 1
      while true do
        stop = text:find("[\\" .. mark .. "]", stop)
        if not stop then return text:sub(from + 1) end
        if text:sub(stop, stop) == mark then break end
        stop = stop + 2
      end
      at = stop + 1
    end
  end
end

-- The keys of the chain that ends the text ("model[1].weight:" -> {"model", 1, "weight"}), its unfinished last name,
-- and the mark before that.
local function chain(text)
  local keys = {}
  local rest, name = text:match "^(.-)([%a_][%w_]*)$"
  if not name then rest, name = text, "" end
  local mark = rest:match "[.:]%s*$"
  if not mark or rest:find "%.%.%s*$" then return keys, name, nil, rest end
  mark, rest = mark:sub(1, 1), rest:sub(1, -#mark - 1)
  while true do
    local before, key = rest:match "^(.-)%.?([%a_][%w_]*)$"
    local index = not key and (rest:match "%[%s*(%-?%d+)%s*%]$" or rest:match "%[%s*(\"[^\"]*\")%s*%]$"
      or rest:match "%[%s*('[^']*')%s*%]$")
    if key then
      insert(keys, 1, key)
      if not rest:find "%.[%a_][%w_]*$" then return keys, name, mark end
    elseif index then
      before = rest:match "^(.*)%[[^%[]*%]$"
      insert(keys, 1, tonumber(index) or index:sub(2, -2))
    else
      return {}, name, mark -- a call, a bracket: its value is not known
    end
    rest = before
  end
end

local function name_candidates(text)
  local keys, name, mark = chain(text)
  if not mark then
    local names = names_of(_G, name, false)
    for _, word in ipairs(KEYWORDS) do
      if name ~= "" and word:sub(1, #name) == name then names[#names + 1] = word end
    end
    return names, name
  end
  local value = #keys > 0 and _G or nil
  for _, key in ipairs(keys) do
    if value == nil then break end
    value = field(value, key)
  end
  return value ~= nil and names_of(value, name, mark == ":") or {}, name
end

local function file_candidates(path)
  local directory, name = path:match "^(.*/)([^/]*)$"
  if not directory then directory, name = "", path end
  local home = getenv "HOME"
  local place = directory == "" and "." or directory
  if home then place = place:gsub("^~/", function() return home .. "/" end) end
  local names = {}
  for _, found in ipairs(complete.files(place)) do
    local is_hidden = found:sub(1, 1) == "." and name:sub(1, 1) ~= "."
    if found:sub(1, #name) == name and not is_hidden then names[#names + 1] = found end
  end
  return names, name
end

local function command_candidates(text)
  local command, argument = text:match "^%s*:(%w*)%s+(.*)$"
  if command == "load" then return file_candidates(argument:match "^['\"]?(.*)$") end
  if command == "time" then return nil end
  if command == "help" then return name_candidates(argument) end
  if command then return {}, "" end
  local names, start = {}, text:match "^%s*:(%w*)$"
  for _, name in ipairs(commands.names) do
    if start and name:sub(1, #start) == start then names[#names + 1] = name .. " " end
  end
  return names, start or ""
end

local function candidates(text)
  local names, start
  if text:find "^%s*:" then names, start = command_candidates(text) end
  if names then return names, start end
  local path = open_string(text)
  if path then return file_candidates(path) end
  return name_candidates(text)
end

-- ---- text to insert and to show ---------------------------------------------------------------------------

local function common(names)
  local start = names[1]
  for i = 2, #names do
    while names[i]:sub(1, #start) ~= start do start = start:sub(1, -2) end
  end
  return start
end

-- In columns, downwards.
local function columns_of(names, width)
  local n, widest = min(#names, MANY), 0
  for i = 1, n do widest = max(widest, #names[i]) end
  local across = max(1, floor((width + 1) / (widest + 2)))
  local down = ceil(n / across)
  local lines = {}
  for row = 1, down do
    local cells = {}
    for i = row, n, down do
      cells[#cells + 1] = names[i] .. (i + down <= n and (" "):rep(widest - #names[i]) or "")
    end
    lines[row] = concat(cells, "  ") .. "\n"
  end
  if #names > n then lines[#lines + 1] = ("... and %d more\n"):format(#names - n) end
  return concat(lines)
end

--- The text to insert at the cursor, and the text to show below the line; either may be nil.
---@param before string    the line as far as the cursor
---@param width integer    columns of the terminal
---@return string? insertion, string? list
function complete.complete(before, width)
  local names, start = candidates(before)
  if #names == 0 then return nil end
  sort(names)
  local whole = common(names)
  if #whole > #start then return whole:sub(#start + 1) end
  if #names == 1 then return nil end
  return nil, columns_of(names, width)
end

return complete
