--- Finds comments that begin with "who", "what" or "whoever": a comment's subject is an actor or a thing.
--
-- A comment begins at its opening, and again with each sentence in it.  A quotation is no sentence of the comment's.
local words = {}

local barred = {who = true, whoever = true, whose = true, what = true, whatever = true}

-- Comments and literals by a file's ending: the characters that may begin one, and patterns for each.
local c = {marks = "[/\"']", block = "^/%*.-%*/", line = "^//[^\n]*"}
local languages = {
  c = c, h = c, cu = c, cuh = c, def = c,
  lua = {marks = "[-%[\"']", block = "^%-%-%[(=*)%[.-%]%1%]", line = "^%-%-[^\n]*", long = "^%[(=*)%[.-%]%1%]"},
  cmake = {marks = '[#"]', line = "^#[^\n]*"},
}

local function after(text, pattern, at)
  local _, to = text:find(pattern or "^$.", at)
  return to and to + 1
end

-- The place behind the literal that begins at `at`.
local function after_literal(text, at)
  local mark = text:sub(at, at)
  repeat
    at = text:find("[\\\n" .. mark .. "]", at + 1)
    local is_escape = at and text:sub(at, at) == "\\"
    if is_escape then at = at + 1 end
  until not is_escape
  return at and at + 1 or #text + 1
end

--- The comments of a text: a list of {line, text}.  Line comments below each other, with nothing else on their lines,
-- are one.
function words.comments(text, ending)
  local language = languages[ending]
  local list, at, counted, line, last = {}, 1, 1, 1, nil
  while true do
    local from = text:find(language.marks, at)
    if not from then return list end
    local to = after(text, language.block, from)
    local is_line = not to
    to = to or after(text, language.line, from)
    if to then
      line = line + select(2, text:sub(counted, from - 1):gsub("\n", ""))
      counted = from
      local start = from
      while text:find("^[ \t]", start - 1) and start > 1 do start = start - 1 end
      local is_alone = is_line and (start == 1 or text:sub(start - 1, start - 1) == "\n")
      local part = text:sub(from, to - 1)
      if last and is_alone and text:sub(last.to, from - 1):find "^\n[ \t]*$" then
        last.text = last.text .. "\n" .. part
      else
        last = {line = line, text = part}
        list[#list + 1] = last
      end
      last.to = to
      if not is_alone then last = nil end
    else
      to = after(text, language.long, from) or text:find("^[\"']", from) and after_literal(text, from) or from + 1
    end
    at = to
  end
end

--- The sentences of a file's text that begin with such a word: a list of {line, beginning}.
function words.found(text, ending)
  local list = {}
  for _, comment in ipairs(words.comments(text, ending)) do
    local number = comment.line
    for line in (comment.text .. "\n"):gmatch "([^\n]*)\n" do
      local plain = line:gsub("^[%s/*#-]+", "")
      local first = plain:match "^%a+" or ""
      -- a small letter begins a comment, but no line in it
      local begins = barred[first:lower()] and (number == comment.line or first:find "^%u") and plain
      for before, rest in (" " .. plain):gmatch "()%f[%w](%u%l+)" do
        if not begins and barred[rest:lower()] and not (" " .. plain):sub(1, before - 1):find "[\"'`(]$" then
          begins = plain:sub(before - 1)
        end
      end
      if begins then list[#list + 1] = {line = number, beginning = begins:sub(1, 60)} end
      number = number + 1
    end
  end
  return list
end

--- The same of the files in these folders: a list of texts, empty if there are none.
function words.complaints(folders)
  local list = {}
  local pipe = assert(io.popen(("find %s -type f | LC_ALL=C sort"):format(folders)))
  for path in pipe:lines() do
    local ending = path:match "%.(%w+)$"
    if languages[ending] then
      local file = assert(io.open(path, "rb"))
      for _, found in ipairs(words.found(file:read "*a", ending)) do
        list[#list + 1] = ("%s:%d: no sentence of a comment begins so: %s"):format(path, found.line, found.beginning)
      end
      file:close()
    end
  end
  pipe:close()
  return list
end

return words
