--- Doc comments: what a source file says of its functions, for conflux.help and for the reference.
--
-- A comment is a block of lines that begins with three dashes, the text first, then LuaCATS annotations.  It belongs to
-- the line below it, which names what it is about in one of the ways that this library defines things:
--
--     function Tensor.size(x, d)          local function idx(path, o)         define("clamp", function(x, lo, hi)
--     function DataLoader:epoch(e)        system.version = ...                reduction "sum"
--
-- A comment with blank space below is about the file.
-- @module conflux.comments

local comments = {}

---@class conflux.Param
---@field name string
---@field optional boolean
---@field type string
---@field text string

---@class conflux.Comment
---@field line integer             of what it is about
---@field name string?             its name, and the table that it is put into
---@field owner string?
---@field text string              paragraphs
---@field params conflux.Param[]
---@field returns string[]
---@field fields conflux.Param[]   of a class
---@field class string?            "conflux.Tensor"
---@field module string?           "conflux.ops"
---@field aliases string[][]       names of types, and what they stand for

-- ---- annotations ------------------------------------------------------------------------------------------

local function last_mark(text, at)
  return text:sub(1, at):match "(%S)%s*$"
end

-- Splits "fun(i: integer): any  what it does" into the type and the rest: a blank ends a type outside of brackets,
-- unless a colon or a bar goes on with it.
local function split_type(text)
  local depth = 0
  for i = 1, #text do
    local c = text:sub(i, i)
    if c:find "[%(%[{<]" then depth = depth + 1
    elseif c:find "[%)%]}>]" then depth = depth - 1
    elseif c == " " and depth == 0 then
      local before, after = last_mark(text, i), text:match("^%s*(%S)", i)
      if before ~= ":" and before ~= "|" and after ~= "|" then
        return text:sub(1, i - 1), text:match("^%s*(.-)%s*$", i)
      end
    end
  end
  return text, ""
end

local function read_param(text)
  local name, optional, rest = text:match "^([%w_%.%[%]]+)(%??)%s*(.*)$"
  local kind, about = split_type(rest or "")
  return {name = name, optional = optional == "?", type = kind, text = about}
end

local readers = {
  param = function(comment, text) comment.params[#comment.params + 1] = read_param(text) end,
  field = function(comment, text)
    if text:sub(1, 1) ~= "[" then comment.fields[#comment.fields + 1] = read_param(text) end
  end,
  ["return"] = function(comment, text) comment.returns[#comment.returns + 1] = text end,
  class = function(comment, text) comment.class = text:match "^[%w_%.]+" end,
  module = function(comment, text) comment.module = text:match "^[%w_%.]+" end,
  alias = function(comment, text) comment.aliases[#comment.aliases + 1] = {text:match "^(%S+)%s+(.*)$"} end,
}

-- ---- comments ---------------------------------------------------------------------------------------------

-- The lines of a block, without their dashes: text, and annotations with what goes on behind them.
local function read_block(block)
  local comment = {text = "", params = {}, returns = {}, fields = {}, aliases = {}}
  local text, annotations = {}, {}
  for _, line in ipairs(block) do
    local inside = line:match "^%s*%-%-%-?(.*)$"
    local tag, rest = inside:match "^%s*@(%w+)%s*(.*)$"
    if tag then annotations[#annotations + 1] = {tag, rest}
    elseif #annotations > 0 then
      local last = annotations[#annotations]
      last[2] = last[2] .. " " .. inside:match "^%s*(.-)%s*$"
    else
      text[#text + 1] = inside:gsub("^ ", ""):gsub("%s+$", "")
    end
  end
  comment.text = table.concat(text, "\n"):gsub("^\n+", ""):gsub("\n+$", "")
  for _, annotation in ipairs(annotations) do
    local reader = readers[annotation[1]]
    if reader then reader(comment, annotation[2]) end
  end
  return comment
end

local NAMES = { -- of what a line defines
  "^function ([%w_]+)[%.:]([%w_]+)", "^local function ()([%w_]+)", "^function ()([%w_]+)",
  '^[%w_%.]+ ?()%(?"([%w_]+)"', '^[%w_%., =]+= [%w_]+ ()"([%w_]+)"',
  "^([%w_]+)%.([%w_]+) =", "^local ()([%w_]+)%s*=", "^()([%w_]+)%s*=",
}

local function name_of(line)
  local code = line:match "^%s*(.*)$"
  for _, pattern in ipairs(NAMES) do
    local owner, name = code:match(pattern)
    if name then return name, type(owner) == "string" and owner or nil end
  end
end

--- The doc comments of a source text, in their order.
---@param source string
---@return conflux.Comment[]
function comments.read(source)
  local list, block, number = {}, nil, 0
  for line in (source .. "\n"):gmatch "(.-)\n" do
    number = number + 1
    if block and line:find "^%s*%-%-" then
      block[#block + 1] = line
    elseif block then
      local comment = read_block(block)
      comment.line = number
      comment.name, comment.owner = name_of(line)
      list[#list + 1] = comment
      block = nil
    elseif line:find "^%s*%-%-%-[^%-]" then
      block = {line}
    end
  end
  return list
end

--- The first sentence of a comment.
---@param text string
---@return string
function comments.summary(text)
  local paragraph = (text .. "\n\n"):match "^(.-)\n\n":gsub("\n", " ")
  return paragraph:match "^(.-%.)%s%s?%u" or paragraph
end

return comments
