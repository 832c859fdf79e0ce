--- Commands of the prompt's own: lines that begin with ":" or "?".
-- @module conflux.repl.commands
local core   = require "conflux.core"
local system = require "conflux.system"

local seconds = core.seconds
local collectgarbage, error, ipairs, loadfile = collectgarbage, error, ipairs, loadfile
local pcall, require, type = pcall, require, type
local concat, getenv, jit, stdout = table.concat, os.getenv, jit, io.stdout

local commands = {}

local HELP = [[
An expression is evaluated and its values are printed; `;` at its end keeps them from it.
It may stand behind statements and a semicolon, as in `x = 1; x`.  `cf.show` prints as the prompt does.
`_` is the first value of the last expression, `_1`, `_2`, ... are all of them.
`cf` is Conflux.  A local lives as long as the line that it is on.

  ?name            what the documentation says of it, such as ?cf.matmul
  :time expr       how long it takes, with the devices' work
  :devices [spec]  the run's devices; with a spec such as cpu*2, sets them
  :mem             the devices' memory
  :load file       runs a script
  :jit [on|off]    whether LuaJIT compiles what runs; it begins with off, so that Ctrl-C can end any Lua code
  :help            this text
  :quit            quits, as Ctrl-D does

Tab completes a name, a method, a file in a string; the arrows go through the history, Ctrl-R searches it.
Ctrl-C ends what runs, or drops the line.
]]

-- ---- their actions ----------------------------------------------------------------------------------------

local UNITS = {{1, "s"}, {1e-3, "ms"}, {1e-6, "us"}}

local function duration(s)
  for _, unit in ipairs(UNITS) do
    if s >= unit[1] then return ("%.3g %s"):format(s / unit[1], unit[2]) end
  end
  return ("%.3g us"):format(s * 1e6)
end

local function mebibytes(bytes)
  return ("%.1f MiB"):format(bytes / 2 ^ 20)
end

--- A line for each of the run's devices.
---@return string
function commands.devices_text()
  local lines = {}
  for i, device in ipairs(core.devices()) do
    local threads = device.name:find "^cpu" and ("  %d thread%s"):format(device.threads,
      device.threads == 1 and "" or "s") or ""
    lines[i] = ("%s%s\n"):format(device.name, threads)
  end
  return concat(lines)
end

--- Leaves nothing to compiled code, which does not see an interrupt: neither what is run from here on nor what has been
-- compiled before.
function commands.interpret()
  jit.off()
  jit.flush()
end

local function time(text, session)
  if text == "" then error(":time: an expression is missing, as in `:time cf.rand(1000, 1000):sum()`", 0) end
  system.sync() -- earlier work is not its own
  local start = seconds()
  session.run(text, function()
    local enqueued = seconds()
    system.sync()
    stdout:write(("%s, enqueued after %s\n"):format(duration(seconds() - start), duration(enqueued - start)))
  end)
end

local function devices(spec)
  if spec ~= "" then system.devices(spec) end
  stdout:write(commands.devices_text())
end

local function memory()
  for _, device in ipairs(core.devices()) do
    local m = system.memory(device)
    stdout:write(("%s  %s in use, at most %s so far; %s reserved, limit %s; %d blocks\n"):format(device.name,
      mebibytes(m.in_use), mebibytes(m.peak), mebibytes(m.reserved), mebibytes(m.limit), m.blocks))
  end
  stdout:write(("Lua  %s\n"):format(mebibytes(collectgarbage "count" * 1024)))
end

local function load(path)
  path = path:match "^(['\"])(.*)%1$" and path:sub(2, -2) or path
  if path == "" then error(":load: a file's name is missing", 0) end
  local home = getenv "HOME"
  if home then path = path:gsub("^~/", function() return home .. "/" end) end
  local chunk, message = loadfile(path)
  if not chunk then error(message, 0) end
  chunk()
end

local function compile(setting)
  if setting == "on" then
    jit.on()
    stdout:write "the JIT is on: Ctrl-C cannot stop a compiled loop, and a second one ends conflux\n"
  elseif setting == "off" then
    commands.interpret()
  elseif setting == "" then
    stdout:write("the JIT is ", jit.status() and "on" or "off", "\n")
  else
    error((":jit: expected on or off, got '%s'"):format(setting), 0)
  end
end

--- Shows the help on a name.
---@param name string
local function help(name)
  if name == "" then return stdout:write(HELP) end
  local found, module = pcall(require, "conflux.help")
  local text, suggestions
  if found and type(module) == "table" then text, suggestions = module.of(name) end
  if text then return stdout:write(text, text:sub(-1) == "\n" and "" or "\n") end
  stdout:write(("no help for '%s'\n"):format(name))
  if type(suggestions) == "table" then suggestions = concat(suggestions, ", ") end
  if suggestions and suggestions ~= "" then stdout:write("perhaps: ", suggestions, "\n") end
end

-- ---- which line asks for what -----------------------------------------------------------------------------

local known = {
  devices = devices,
  help = help,
  jit = compile,
  load = load,
  mem = memory,
  quit = function(_, session) session.quit() end,
  time = time,
}

--- The names of all, for completion.
commands.names = {"devices", "help", "jit", "load", "mem", "quit", "time"}

--- Does what a line says.
---@param line string
---@param session {quit: function, run: function}
function commands.run(line, session)
  local name = line:match "^%s*%?%s*(.-)%s*$"
  if name then return help(name) end
  local command, argument = line:match "^%s*:(%S*)%s*(.-)%s*$"
  local f = known[command]
  if not f then
    error((":%s: no such command; there are :%s"):format(command, concat(commands.names, ", :")), 0)
  end
  f(argument, session)
end

return commands
