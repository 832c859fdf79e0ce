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
-- A text is tried as an expression, then as statements with an expression behind the last semicolon, then as statements
-- alone; if the parser says that it ends too early, the next line is added to it.
-- @module conflux.repl
local core     = require "conflux.core"
local commands = require "conflux.repl.commands"
local complete = require "conflux.repl.complete"
local values   = require "conflux.values"

local C = core.C
local _G, error, loadstring, rawget, rawset = _G, error, loadstring, rawget, rawset
local require, select, tostring, type, unpack = require, select, tostring, type, unpack
local max = math.max
local stdout = io.stdout

local repl = {}

local CHUNK = "=stdin" -- as luajit calls it

local counts_lines     -- errors name lines of a pipe's whole text; a terminal's begin with 1 at each prompt
local above = ""       -- a newline for each line above the text
local n_lines = 0      -- of the text
local unfinished       -- the lines of a text that has not ended
local entry, action    -- the entry that the last line has completed, and the action that act() takes
local quits = false
local was_interrupted  -- the program's: whether Ctrl-C has come since the line was read

-- ---- reading ----------------------------------------------------------------------------------------------

-- The function of a text, or nil and the parser's error, which names the lines as the user counts them.
local function parse(text)
  return loadstring(above .. text, CHUNK)
end

-- Whether a text is a chunk.  Far down in a long pipe this is much cheaper than `parse`, which reads all the newlines.
local function parses(text)
  return loadstring(text) ~= nil
end

-- Whether more lines could make a text whole of which the parser said this.  No line ends a short string but one behind
-- a backslash; and a text that lacks only the rest of an assignment ends in an expression, which no line goes on with.
local function is_cut_off(message, text)
  if message:find("unfinished string", 1, true) and text:sub(-1) ~= "\\" then return false end
  if message:sub(-7) ~= "'<eof>'" then return false end
  return not (message:find("'=' expected", 1, true) and parses(text .. "\n= nil"))
end

---@class conflux.repl.Chunk
---@field run function          the text; returns its values
---@field skips_first boolean   of what it returns
---@field is_silent boolean     its values are not shown

-- The chunk of a list of expressions, perhaps with statements before it; nil if it is none.  Behind `return` alone a
-- call would be a tail call, after which no error could name this line.
local function compile_list(list, statements)
  local text = (statements or "") .. "return nil, " .. list
  if not parses(text) then return nil end
  -- The list can go on, in a line below a comment, unless it ends in a semicolon.
  return {run = parse(text), skips_first = true, is_silent = not parses("return nil, " .. list .. "\n, nil")}
end

local TRIES = 100 -- semicolons, from the end

-- The chunk of statements with a list of expressions behind them, which is what the user wants to see: `x = 2; x`.
local function compile_both(text)
  local at = #text + 1
  for _ = 1, TRIES do
    at = text:sub(1, at - 1):match "^.*();"
    if not at then return nil end
    local statements, list = text:sub(1, at), text:sub(at + 1)
    local chunk = parses("return nil, " .. list) and parses(statements) and compile_list(list, statements)
    if chunk then return chunk end
  end
end

-- The chunk of a text; or nil, whether more lines could make it whole, and its error.
---@return conflux.repl.Chunk?, boolean?, string?
local function compile(text)
  local chunk = compile_list(text) or compile_both(text)
  if chunk then return chunk end
  local run, message = parse(text)
  local nothing, list_error
  if not run then nothing, list_error = parse("return " .. text) end
  run = run or nothing -- such as a semicolon by itself
  if run then return {run = run, skips_first = false, is_silent = not parses(text .. "\n;")} end
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
  for i = 1, max(n_results, n_kept) do rawset(_G, "_" .. i, results[i]) end
  rawset(_G, "_", results[1])
  n_kept = n_results
end

-- Returns f: a function that is called as another call's result has no name, so a traceback says "in main chunk".
local function unnamed(f)
  return f
end

-- Runs a chunk and shows its values; `before` is called between the two.
local function evaluate(chunk, before)
  n_results = 0
  if chunk.skips_first then keep(select(2, unnamed(chunk.run)()))
  else keep(unnamed(chunk.run)()) end
  if before then before() end
  name_results()
  local list, n = results, n_results
  results, n_results = {}, 0
  if n > 0 and not chunk.is_silent then values.show(unpack(list, 1, n)) end
end

-- Commands may ask this of this side.
local session = {}

function session.quit()
  quits = true
end

--- Runs a text, whose values are shown afterwards; `before` is called between the two.
function session.run(text, before)
  local chunk, _, message = compile(text)
  if not chunk then error(message, 0) end
  evaluate(chunk, before)
end

-- ---- the program's calls ----------------------------------------------------------------------------------

--- The first call.  Makes the run's devices, so that a wrong --devices ends the program here.
---@param options {terminal: boolean, files: (fun(directory: string): string[]), interrupted: fun(): boolean}
function repl.begin(options)
  complete.files, was_interrupted = options.files, options.interrupted
  counts_lines = not options.terminal
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
  if counts_lines and not before then
    above = above .. ("\n"):rep(n_lines)
    n_lines = 0
  end
  n_lines = n_lines + 1
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
  local chunk, goes_on, message = compile(text)
  if goes_on then
    unfinished = text
    return
  end
  entry = before and text or line
  if not entry:find "%S" then entry = nil end
  if not chunk then error(message, 0) end
  action = function() evaluate(chunk) end
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
  local n
  repeat frames, n = frames:gsub("\n\tconflux/[^\n]*$", "") until n == 0 -- of what shows values
  head = head:gsub("^conflux/repl/[%w_]+%.lua:%d+: ", "")
  local users = frames:gsub("\n\t%[C%][^\n]*", ""):gsub("\n\tconflux/[^\n]*", "")
  if not users:find "%S" then return head end
  return head .. "\nstack traceback:" .. frames
end

repl.complete = complete.complete

return repl
