--- Text from ranks, in their order.
--
-- Ranks' outputs are streams of their own, which a launcher shows as they come; so rank 0 prints all that ranks print
-- together.
-- @module conflux.dist.output
local core = require "conflux.core"
local check = require "conflux.check"
local world = require "conflux.dist.world"

local select, tostring = select, tostring

local output = {}

-- "2026-11-23 03:40:12 [1 / 4] "
local function prefix()
  local w, time = core.world, os.date "%Y-%m-%d %H:%M:%S "
  return w and ("%s[%d / %d] "):format(time, w.rank, w.size) or time
end

local function text_of(...)
  local list = {}
  for i = 1, select("#", ...) do list[i] = tostring((select(i, ...))) end
  return prefix() .. table.concat(list, "\t")
end

local function write(text)
  io.stdout:write(text)
  io.stdout:flush()
end

-- Rank 0 writes the texts of all ranks.  Where another rank does something else, the error says what prints alone.
local function write_all(call, text)
  local w = core.world
  if not w then return write(text) end
  core.at_line()
  local ok, texts = pcall(world.texts, w, call, text)
  if not ok then
    local is_alone = type(texts) == "string" and (texts:find("ranks disagree", 1, true)
      or texts:find("has not come", 1, true))
    error(is_alone and texts .. "; cf.dist.println0 prints without the others" or texts, 0)
  end
  if w.rank == 0 then write(table.concat(texts)) end
end

--- Prints values as `print` does, but for the end of the line, behind the time and "[rank / size]"; rank 0 prints those
-- of all ranks in their order.  A collective; before cf.dist.init it prints with the time alone.
---@param ... any
function output.print(...)
  write_all("dist.print", text_of(...))
end

--- Prints a line: cf.dist.print with its end.
---@param ... any
function output.println(...)
  write_all("dist.println", text_of(...) .. "\n")
end

--- Prints a line if this is rank 0, and else nothing.  No collective: a rank may call it alone.
---@param ... any
function output.println0(...)
  local w = core.world
  if not w or w.rank == 0 then write(text_of(...) .. "\n") end
end

local logged = {} -- lines of scripts

--- Prints a line on stderr, the first time that this rank comes to this line of the script.  No collective.
---@param text string
function output.log_once(text)
  check.string("dist.log_once", "text", text)
  local here = world.here()
  if logged[here] then return end
  logged[here] = true
  io.stderr:write(prefix(), text, "\n")
end

return output
