--- The prompt's side of `conflux`: what a line means.  The program (core/host/repl.c) reads lines and calls
--
--     begin{terminal =, ...}        once
--     prompt()                      before each line; nil: the user has quit
--     feed(line)                    the line; nil: it was interrupted, false: there is no more
--     entered()                     what feed has completed, for the history
--     act()                         runs that
--     complete(before, columns)     at a tab
--     trim(message)                 before an error is shown
--
-- A text is tried as an expression, then as a statement; if the parser says that it ends too early, the next line is
-- added to it.
-- @module conflux.repl
local core     = require "conflux.core"
local commands = require "conflux.repl.commands"
local complete = require "conflux.repl.complete"
local values   = require "conflux.repl.values"

local C = core.C
local error, loadstring, rawget, rawset, select, type = error, loadstring, rawget, rawset, select, type
local stdout = io.stdout

local repl = {}

local CHUNK = "=stdin" -- as luajit calls it

local unfinished       -- the lines of a text that has not ended
local entry, action    -- what the last line has completed, and what act() does about it
local quits = false
local was_interrupted  -- the program's: whether Ctrl-C has come since the line was read

-- ---- reading ----------------------------------------------------------------------------------------------

-- Whether more lines could make a text whole of which the parser said this.  No line ends a short string but one behind
-- a backslash.
local function is_cut_off(message, text)
  if message:find("unfinished string", 1, true) and text:sub(-1) ~= "\\" then return false end
  return message:sub(-7) == "'<eof>'"
end

-- An expression is compiled as the arguments of a call: behind `return` it may be a tail call, after which no error
-- could name this line.
local function compile_list(text)
  return loadstring("local _keep = ... _keep(" .. text .. "\n)", CHUNK)
end

-- Of a text that parses behind `return`: as compile_list; true if a semicolon ends it, which is found from the end, as
-- there may be others in a comment behind it.
local function compile_expression(text)
  local chunk = compile_list(text)
  if chunk then return chunk, false end
  local at, tries = #text + 1, 0
  while tries < 100 do
    at, tries = text:sub(1, at - 1):match "^.*();", tries + 1
    if not at then break end
    local is_last = loadstring("return;\n" .. text:sub(at + 1)) -- comments may follow
    chunk = is_last and compile_list(text:sub(1, at - 1))
    if chunk then return chunk, true end
  end
end

-- The chunk of a text, and whether its values are not shown; or nil, whether more lines could make it whole, and its
-- error.  The chunk takes a function that it calls with its values, or returns them.
local function compile(text)
  local list, list_error = loadstring("return " .. text, CHUNK)
  if list then
    local chunk, is_silent = compile_expression(text)
    return chunk or list, is_silent or false
  end
  local chunk, message = loadstring(text, CHUNK)
  if chunk then return chunk, loadstring(text .. "\n;") == nil end
  -- Of something like `1 + * 2` the statement's error is about the 1.
  local near = message:match "unexpected symbol near '(.-)'$"
  local is_expression = near and text:match "^%s*(.*)$":sub(1, #near) == near
  return nil, is_cut_off(message, text) or is_cut_off(list_error, text), is_expression and list_error or message
end

-- ---- running ----------------------------------------------------------------------------------------------

local results, n_results = {}, 0 -- of the last chunk
local n_kept = 0                 -- _1 to _<n_kept> are set

local function keep(...)
  local n = select("#", ...)
  if n == 0 then return end
  results, n_results = {...}, n
end

-- `_` is the first value of the last expression, and `_1`, `_2`, ... are all of them.
local function name_results()
  if n_results == 0 then return end
  for i = 1, math.max(n_results, n_kept) do rawset(_G, "_" .. i, results[i]) end
  rawset(_G, "_", results[1])
  n_kept = n_results
end

-- What a call calls has no name then, so that a traceback says "in main chunk".
local function unnamed(f)
  return f
end

local function evaluate(chunk, is_silent)
  n_results = 0
  keep(unnamed(chunk)(keep))
  name_results()
  local list, n = results, n_results
  results, n_results = {}, 0
  if n > 0 and not is_silent then values.print(list, n) end
end

-- What commands may ask of this side.
local session = {}

function session.quit()
  quits = true
end

--- Runs a text, whose values are shown afterwards; `before` is called between the two.
function session.run(text, before)
  local chunk, is_silent, message = compile(text)
  if not chunk then error(message, 0) end
  evaluate(function(...)
    keep(unnamed(chunk)(...))
    before()
  end, is_silent)
end

-- ---- the program's calls ----------------------------------------------------------------------------------

--- The first call.  Makes the run's devices, so that a wrong --devices ends the program here.
---@param options {terminal: boolean, files: (fun(directory: string): string[]), interrupted: fun(): boolean}
function repl.begin(options)
  complete.files, was_interrupted = options.files, options.interrupted
  core.context()
  commands.interpret()
  if rawget(_G, "cf") == nil then rawset(_G, "cf", require "conflux") end
  if options.terminal then stdout:write(commands.devices_text(), ":help explains, Ctrl-D quits\n") end
end

--- "cpu:0> ", or luajit's globals _PROMPT and _PROMPT2.
---@return string?
function repl.prompt()
  if quits then return nil end
  C.cfx_check(core.context()) -- forgets an interrupt that came when there was nothing more to end
  local own = rawget(_G, unfinished and "_PROMPT2" or "_PROMPT")
  if type(own) == "string" then return own end
  return tostring(core.default_device()) .. (unfinished and ">> " or "> ")
end

--- Takes a line.  Raises the error of what does not parse.
---@param line? string|false
function repl.feed(line)
  local before = unfinished
  unfinished, entry, action = nil, nil, nil
  if not line then
    if line == false and before then error(select(3, compile(before)), 0) end
    return
  end
  if not before and line:find "^%s*[:?]" then
    entry = line
    action = function() commands.run(line, session) end
    return
  end
  local text = before and before .. "\n" .. line or line:gsub("^%s*=", "", 1) -- `=x`, as in luajit
  local chunk, is_silent, message = compile(text)
  if not chunk and is_silent then -- there is more to come
    unfinished = text
    return
  end
  entry = before and text or line
  if not entry:find "%S" then entry = nil end
  if not chunk then error(message, 0) end
  action = function() evaluate(chunk, is_silent) end
end

---@return string?
function repl.entered()
  return entry
end

function repl.act()
  local f = action
  action = nil
  if f and was_interrupted() then error("interrupted!", 0) end
  if f then f() end
end

--- Without the frames of the REPL, and without a traceback that has no others.
---@param message string
---@return string
function repl.trim(message)
  local head, frames = message:match "^(.-)\nstack traceback:(.*)$"
  if not head then head, frames = message, "" end
  frames = frames:gsub("\n\tconflux/repl/.*$", "")
  head = head:gsub("^conflux/repl/[%w_]+%.lua:%d+: ", "")
  local users = frames:gsub("\n\t%[C%][^\n]*", ""):gsub("\n\tconflux/[^\n]*", "")
  if not users:find "%S" then return head end
  return head .. "\nstack traceback:" .. frames
end

repl.complete = complete.complete

return repl
