-- Writes what LDoc makes the reference from: one file for each room and class of the library, with the comments that
-- conflux.help shows.  LDoc cannot read our sources themselves, for it knows no LuaCATS.  Run by scripts/docs:
--
--     build/bin/conflux scripts/package/reference.lua DIRECTORY
local help = require "conflux.help"

local directory = assert((...), "usage: reference.lua DIRECTORY")

local ENTITIES = {["&"] = "&amp;", ["<"] = "&lt;", [">"] = "&gt;"}

-- Text that LDoc takes as it is: without Markdown, for which Debian's has no library, its texts are HTML.
local function html(text)
  return (text:gsub("[&<>]", ENTITIES):gsub("`([^`]+)`", "<code>%1</code>")
    :gsub("et al%. ", "et al.&nbsp;")) -- the first sentence, which LDoc puts into lists, does not end there
end

-- Paragraphs; what is indented is code.
local function paragraphs(text)
  local parts = {}
  for paragraph in (text .. "\n\n"):gmatch "(.-)\n\n+" do
    local is_code = paragraph:find "^    "
    parts[#parts + 1] = (#parts > 0 and not is_code and "<p>" or "") .. (is_code and "<pre>%s</pre>" or "%s"):format(
      is_code and paragraph:gsub("[&<>]", ENTITIES) or html(paragraph))
  end
  return table.concat(parts, "\n")
end

local function comment(lines, text, tags)
  lines[#lines + 1] = "--- " .. paragraphs(text):gsub("\n", "\n-- ")
  for _, tag in ipairs(tags) do lines[#lines + 1] = "-- @" .. tag end
end

local function describe(type, text)
  return html(("`%s` %s"):format(help.type_text(type), text))
end

local function add_function(lines, name, entry)
  local about, tags = entry.comment, {"function " .. name:match "[%w_]+$"}
  local is_method = name:find "^%l%w*:" ~= nil
  for i, p in ipairs(about.params) do
    if i > 1 or not is_method then
      tags[#tags + 1] = ("param%s %s %s"):format(p.optional and "[opt]" or "", p.name, describe(p.type, p.text))
    end
  end
  for _, text in ipairs(about.returns) do tags[#tags + 1] = "return " .. describe(text, "") end
  for _, field in ipairs(entry.fields or {}) do
    tags[#tags + 1] = ("field %s %s"):format(field.name, describe(field.type, field.text))
  end
  local names = {}
  for i, other in ipairs(entry.names) do names[i] = "`" .. help.signature(other, entry) .. "`" end
  lines[#lines + 1] = ""
  comment(lines, ("%s\n\n%s"):format(about.text, table.concat(names, ", ")), tags)
end

local function write(room, entries)
  local name = room.names[1]
  local lines, is_class = {}, name:find "^%u" ~= nil
  comment(lines, room.comment.text, {(is_class and "classmod " or "module ") .. name})
  for _, member in ipairs(room.members) do
    local entry = entries[member]
    if entry.kind == "function" or entry.kind == "layer" then add_function(lines, member, entry) end
  end
  for _, field in ipairs(room.fields or {}) do
    lines[#lines + 1] = ""
    comment(lines, "`" .. help.type_text(field.type) .. "` " .. field.text, {"field " .. field.name})
  end
  local path = ("%s/%s.lua"):format(directory, name)
  local file = assert(io.open(path, "w"))
  file:write(table.concat(lines, "\n"), "\n")
  file:close()
end

local entries = {}
for _, entry in ipairs(help.entries()) do
  for _, name in ipairs(entry.names) do entries[name] = entry end
end
for _, entry in ipairs(help.entries()) do
  if entry.kind == "room" then write(entry, entries) end
end
