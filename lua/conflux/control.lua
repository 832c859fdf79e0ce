--- The program's options -j and -O: commands to LuaJIT, as luajit takes them.
-- @module conflux.control
local jit, require = jit, require

local control = {}

-- Calls f with the words between the commas of `options`; an empty one is nil.  By pcall, so that no line of this file
-- stands in front of the message.
local function call(f, options)
  local words, n = {}, 0
  if options ~= "" then
    for word in (options .. ","):gmatch "([^,]*)," do
      n = n + 1
      if word ~= "" then words[n] = word end
    end
  end
  local ok, message = pcall(f, unpack(words, 1, n))
  if not ok then error(message, 0) end
end

--- "off", "v", "dump=bsx,file": a function of `jit`, or `start` of the module jit.<name>.
---@param command string
function control.command(command)
  local name, options = command:match "^([^=]*)=?(.*)$"
  local f = jit[name]
  if type(f) ~= "function" then
    local found, module = pcall(require, "jit." .. name)
    if not found and not tostring(module):find "^module " then error(module, 0) end
    f = found and type(module) == "table" and module.start
    if not f then error("unknown luaJIT command or jit.* modules not installed", 0) end
  end
  call(f, options)
end

--- "3", "hotloop=10,-loop": what jit.opt.start takes.
---@param options string
function control.optimize(options)
  call(require "jit.opt".start, options)
end

return control
