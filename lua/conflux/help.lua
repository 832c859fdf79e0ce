--- Help: what each public name of Conflux is, from the comment above its definition.
--
--     require("conflux.help").of "matmul"
--
-- The comments are read when first asked for: in the program from the sources that it carries, else from the files on
-- package.path.  A name is public if it can be reached from `require "conflux"`, so nothing is listed here.
-- @module conflux.help
local comments = require "conflux.comments"
local core = require "conflux.core"
local names_near = require "conflux.names"

local each = core.each
local getinfo = debug.getinfo
local getmetatable, ipairs, pcall, rawget, require = getmetatable, ipairs, pcall, rawget, require
local tostring, type = tostring, type
local getenv, open, package = os.getenv, io.open, package
local max = math.max
local concat, sort = table.concat, table.sort

local help = {}

-- ---- sources ----------------------------------------------------------------------------------------------

-- Where the program has the library from, if not from itself; see core/host/modules.h.
local function files()
  local directory = getenv "CONFLUX_LUA"
  return directory and directory ~= "" and ("%s/?.lua;%s/?/init.lua"):format(directory, directory) or nil
end

-- The text of a module, or nil: what was written in C has none.
local function source_of(module)
  local is_inside, embedded = pcall(require, "conflux.embedded")
  if is_inside and not files() then return embedded(module) end
  local path = package.searchpath(module, is_inside and files() or package.path)
  local file = path and open(path, "rb")
  if not file then return nil end
  local text = file:read "*a"
  file:close()
  return text
end

local modules = {} -- of a module's name: its comments

local function comments_of(module)
  if modules[module] == nil then
    local source = source_of(module)
    modules[module] = source and comments.read(source) or false
  end
  return modules[module] or {}
end

-- The module that a function was defined in.
local function module_of(f)
  local path = getinfo(f, "S").source:match "^@.-(conflux/[^.]+)%.lua$"
  return path and (path:gsub("/init$", ""):gsub("/", "."))
end

-- The comment above a function, or, as many are made by one line of a factory's, the one that names it.
local function find(f, name)
  local module = module_of(f)
  if not module then return nil end
  local line, list = getinfo(f, "S").linedefined, comments_of(module)
  for i = 1, #list do
    if list[i].line == line then return list[i] end
  end
  for i = 1, #list do
    if list[i].name == name and not list[i].owner then return list[i] end
  end
end

-- ---- public names -----------------------------------------------------------------------------------------

---@class conflux.Entry
---@field names string[]       "cf.sum", "tensor:sum"; that of a room "cf.nn"
---@field kind "function"|"layer"|"room"|"value"  a room is a table of names, or a class
---@field value any            nil for the methods of what is not reached by name
---@field comment? conflux.Comment
---@field members? string[]    of a room or a class: the names in it
---@field fields? conflux.Param[]

-- Made when first asked for.  cf.tensor makes a Tensor: letters count in by_name, and in the others they do not.
local entries, by_name, by_key, by_last, aliases

local function sorted_keys(t)
  local keys = {}
  for key in each, t do
    if type(key) == "string" and not key:find "^_" then keys[#keys + 1] = key end
  end
  sort(keys)
  return keys
end

-- Calls f(comment) for every comment of the library; returns the first that f returns.
local function first_comment(f)
  for _, module in ipairs(sorted_keys(package.loaded)) do
    local is_ours = module == "conflux" or module:find "^conflux%."
    for _, comment in ipairs(is_ours and comments_of(module) or {}) do
      if f(comment) then return comment end
    end
  end
end

local function about_module(name)
  return first_comment(function(comment) return comment.module == name end)
end

local function is_layer(value)
  return type(value) == "table" and rawget(value, "__layer") ~= nil
end

local function add(seen, name, value, kind, comment)
  local entry = value ~= nil and seen[value]
  if not entry then
    entry = {names = {}, kind = kind, value = value, comment = comment}
    entries[#entries + 1] = entry
    if type(value) == "function" or type(value) == "table" then seen[value] = entry end
  end
  entry.names[#entry.names + 1] = name
  entry.comment = entry.comment or comment
  return entry
end

local function visit(seen, room, name, module)
  local members = {}
  add(seen, name, room, "room", about_module(module)).members = members
  for _, key in ipairs(sorted_keys(room)) do
    local value, path = room[key], name .. "." .. key
    members[#members + 1] = path
    if type(value) == "function" then
      add(seen, path, value, "function", find(value, key))
    elseif is_layer(value) then
      add(seen, path, value, "layer", find(rawget(value, "init") or value.forward, key))
    elseif type(value) == "table" then
      visit(seen, value, path, module .. "." .. key)
    else
      add(seen, path, value, "value", first_comment(function(c) return c.name == key and c.owner ~= nil end))
    end
  end
end

-- Classes with something said above their `---@class` are rooms of their own, with the fields that stand there; layers,
-- which are found by name, get those fields.
local function visit_classes()
  local classes, layers = {}, {}
  for _, entry in ipairs(entries) do
    if entry.kind == "layer" then layers[entry.names[1]:match "%w+$"] = entry end
  end
  first_comment(function(comment)
    local name = comment.class and comment.class:match "^conflux%.(%w+)$"
    for _, alias in ipairs(comment.aliases) do aliases[alias[1]] = alias[2] end
    if name and layers[name] then
      layers[name].fields = comment.fields
    elseif name and comment.text ~= "" then
      classes[name] = add({}, name, nil, "room", comment)
      classes[name].fields, classes[name].members = comment.fields, {}
    end
  end)
  return classes
end

-- Methods that are reached through a class; those of others have comments above `function Class:name(`.
local function visit_methods(seen, class, name, methods)
  for _, key in ipairs(sorted_keys(methods)) do
    if type(methods[key]) == "function" then
      class.members[#class.members + 1] = name .. ":" .. key
      add(seen, name .. ":" .. key, methods[key], "function", find(methods[key], key))
    end
  end
end

local function visit_others(classes)
  first_comment(function(comment)
    local class, name = comment.owner and classes[comment.owner], comment.name
    if not class or comment.owner == "Tensor" or comment.owner == "Module" then return end
    name = ("%s:%s"):format(comment.owner, name)
    class.members[#class.members + 1] = name
    add({}, name, nil, "function", comment)
  end)
end

local function index()
  if entries then return end
  entries, by_name, by_key, by_last, aliases = {}, {}, {}, {}, {}
  local cf, seen = require "conflux", {}
  visit(seen, cf, "cf", "conflux")
  local classes = visit_classes()
  visit_methods(seen, classes.Tensor, "tensor", core.methods)
  visit_methods(seen, classes.Module, "module", getmetatable(cf.nn.Chain).__index)
  visit_others(classes)
  for _, entry in ipairs(entries) do
    for _, name in ipairs(entry.names) do
      local key = name:lower()
      by_name[name] = by_name[name] or entry
      local last = key:match "[%w_]+$"
      by_key[key], by_last[last] = by_key[key] or entry, by_last[last] or {}
      by_last[last][#by_last[last] + 1] = name
    end
  end
end

-- ---- text -------------------------------------------------------------------------------------------------

local WIDTH = 80

-- Breaks a paragraph into lines: `first` stands before the first one, blanks of its width before the others.
local function wrap(text, first)
  local lines, line = {}, first
  local is_empty = true
  for word in text:gmatch "%S+" do
    if not is_empty and #line + 1 + #word > WIDTH then
      lines[#lines + 1] = line
      line, is_empty = (" "):rep(#first), true
    end
    line, is_empty = line .. (is_empty and "" or " ") .. word, false
  end
  lines[#lines + 1] = line
  return concat(lines, "\n")
end

-- Paragraphs are broken anew, for a terminal is narrower than our sources; what is indented stays as it is.
local function flow(text)
  local parts = {}
  for paragraph in (text .. "\n\n"):gmatch "(.-)\n\n+" do
    parts[#parts + 1] = paragraph:find "^ " and paragraph or wrap(paragraph, "")
  end
  return concat(parts, "\n\n")
end

--- A type as users read it: aliases written out, without "conflux.".
---@param text string
---@return string
function help.type_text(text)
  index()
  return (text:gsub("conflux%.%w+", function(name) return aliases[name] end):gsub("conflux%.(%u)", "%1"))
end
local type_text = help.type_text

--- A call as it is written: "tensor:sum(dims?, o?)".
---@param name string
---@param entry conflux.Entry
---@return string
function help.signature(name, entry)
  if entry.kind == "room" or entry.kind == "value" then return name end
  local names, first = {}, 1
  local params = entry.comment and entry.comment.params or {}
  if name:find "^%l%w*:" then first = 2 end -- self is the first one
  for i = first, #params do
    names[#names + 1] = params[i].name .. (params[i].optional and "?" or "")
  end
  return ("%s(%s)"):format(name, concat(names, ", "))
end

-- Rows of a name and what is said of it.
local function list(lines, rows)
  local width = 0
  for _, row in ipairs(rows) do width = max(width, #row[1]) end
  for _, row in ipairs(rows) do
    lines[#lines + 1] = wrap(row[2], ("  %s%s  "):format(row[1], (" "):rep(width - #row[1])))
  end
end

local function list_params(lines, params)
  local rows = {}
  for i, p in ipairs(params) do
    rows[i] = {p.name .. (p.optional and "?" or ""), type_text(p.type) .. (p.text ~= "" and ": " .. p.text or "")}
  end
  list(lines, rows)
end

local function list_members(lines, members)
  local rows = {}
  for i, name in ipairs(members) do
    local entry = by_name[name]
    rows[i] = {name:match "[%w_]+$", entry.comment and comments.summary(entry.comment.text) or ""}
  end
  list(lines, rows)
end

local function text_of(entry)
  local lines, comment = {}, entry.comment
  for i, name in ipairs(entry.names) do lines[i] = help.signature(name, entry) end
  if comment and comment.text ~= "" then
    lines[#lines + 1] = ""
    lines[#lines + 1] = flow(comment.text)
  end
  local function section(items, add_lines)
    if not items or #items == 0 then return end
    lines[#lines + 1] = ""
    add_lines(lines, items)
  end
  section(comment and entry.kind ~= "room" and comment.params, list_params)
  section(entry.fields, list_params)
  section(comment and comment.returns, function(_, returns)
    for _, text in ipairs(returns) do lines[#lines + 1] = wrap(type_text(text), "returns ") end
  end)
  section(entry.members, list_members)
  return concat(lines, "\n")
end

-- ---- names ------------------------------------------------------------------------------------------------

local MOST = 5 -- suggestions

-- The names near this one, each thing once.
local function suggest(wanted)
  local last, found, seen = wanted:match "[%w_]*$", {}, {}
  if last == "" then return {} end
  for key, names in each, by_last do
    local d = names_near.distance(last, key)
    local is_part = #last >= 3 and (key:find(last, 1, true) or #key >= 3 and last:find(key, 1, true))
    if d <= names_near.reach(last) or is_part then
      for _, name in ipairs(names) do found[#found + 1] = {d, name} end
    end
  end
  sort(found, function(a, b)
    if a[1] ~= b[1] then return a[1] < b[1] end
    return a[2] < b[2]
  end)
  local suggestions = {}
  for _, item in ipairs(found) do
    local entry = by_name[item[2]]
    if not seen[entry] and #suggestions < MOST then suggestions[#suggestions + 1] = item[2] end
    seen[entry] = true
  end
  return suggestions
end

-- "cf.nn.Dense", "nn.Dense" and "Dense" name the same; so do "tensor:sum", "x:sum" and "sum".
local function look_up(wanted)
  local known = by_key["cf." .. wanted] or by_key[wanted] or by_key[wanted:gsub("^tensor%.", "tensor:")]
  if known then return known end
  local owner, last = wanted:match "^(.-)[%.:]?([%w_]+)$"
  local names = by_last[last] or {}
  if owner == "" then return #names == 1 and by_key[names[1]:lower()] or nil end
  if wanted:find ":" then
    return by_key["tensor:" .. last] or #names == 1 and by_key[names[1]:lower()] or nil
  end
end

--- The text about a public name, such as "matmul", "cf.matmul", "nn.Dense", "tensor:sum" or "optim"; for a name that is
-- not known, or may mean several things, nil and a list of those that may be meant.
---@param name string
---@return string? text, string[]? suggestions
function help.of(name)
  index()
  local wanted = tostring(name):gsub("%s", ""):gsub("%(.*$", ""):gsub("^conflux%f[%W]", "cf"):gsub("^cf%.", "")
  local entry = by_name["cf." .. wanted] or by_name[wanted] or look_up(wanted:lower())
  if entry then return text_of(entry) end
  return nil, suggest(wanted:lower())
end

--- All that is public, in the order of names, with rooms before what is in them.
---@return conflux.Entry[]
function help.entries()
  index()
  return entries
end

return help
