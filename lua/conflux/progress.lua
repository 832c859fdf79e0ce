--- Progress: a bar on stderr, if that is a terminal; else nothing is written.  Inside another program its hook is told
-- instead.
-- @module conflux.progress
local core = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local is_tensor, seconds, settle = core.is_tensor, core.seconds, core.settle
local floor, max, min = math.floor, math.max, math.min
local error, getenv, pcall, setmetatable, type = error, os.getenv, pcall, setmetatable, type
local getmetatable, rawget, rawset = getmetatable, rawget, rawset
local stdout, stderr = io.stdout, io.stderr

-- Inside another program: its hook, or false if it has none.
local has_host, host = pcall(require, "conflux.host")
local tell
if has_host then tell = host.progress end

local WIDTH = 24      -- of the bar
local EVERY = 0.1     -- seconds between two drawings

local files = getmetatable(stdout).__index
local write, flush = files.write, files.flush -- those of a time when no bar stands on the terminal

-- ---- the line that a bar stands on ------------------------------------------------------------------------

-- While a bar stands on the terminal, and only then, print, io.write and the method write of files take it away before
-- they write: the script's text gets a line of its own, and the bar is drawn again later.  Each is given back when the
-- bar is gone, unless the script has put something else into its place, which is left there.
local writers = {{_G, "print"}, {io, "write"}, {files, "write"}}
local stands = false -- a bar on the terminal

local function clear()
  if not stands then return end
  stands = false
  for i = 1, #writers do
    local writer = writers[i]
    if rawget(writer[1], writer[2]) == writer.hook then rawset(writer[1], writer[2], writer.before) end
    writer.hook, writer.before = nil, nil
  end
end

local function hook(writer)
  local before = rawget(writer[1], writer[2])
  if type(before) ~= "function" then return end
  -- The script may keep it, and call it when no bar stands there.
  local function hooked(...)
    if stands and (before ~= write or ... == stdout or ... == stderr) then
      clear()
      write(stderr, "\r\27[K")
    end
    return before(...)
  end
  writer.before, writer.hook = before, hooked
  rawset(writer[1], writer[2], hooked)
end

-- Writes the bar in place of what stands on the line.
local function put(line)
  flush(stdout)
  write(stderr, "\r", line, "\27[K")
  flush(stderr)
  if stands then return end
  stands = true
  for i = 1, #writers do hook(writers[i]) end
end

-- ---- bars -------------------------------------------------------------------------------------------------

--- A bar on stderr, if that is a terminal, with the rate and the time left.  Text that the script prints meanwhile gets
-- lines of its own.
---@class conflux.Progress
---@field done number what the devices have done of what :update counted, as far as is known
---@field total number
local Progress = {}
Progress.__index = Progress

local function duration(s)
  if s >= 3600 then return ("%d:%02d:%02d"):format(floor(s / 3600), floor(s / 60) % 60, s % 60) end
  return ("%d:%02d"):format(floor(s / 60), s % 60)
end

local function rate_text(rate)
  return (rate >= 100 and "%.0f/s" or "%.3g/s"):format(rate)
end

local function is_here(loss)
  return type(loss) == "number" or C.cfx_ready(loss) == 1
end

-- The loss, if its value is there: a bar waits for nothing.  Devices may be many steps behind, so that the newest never
-- is: one that was given earlier is kept until it has come.
local function note_loss(self)
  local loss
  if self.newest and is_here(self.newest) then
    loss, self.pending, self.newest = self.newest, nil, nil
  elseif self.pending and is_here(self.pending) then
    loss, self.pending, self.newest = self.pending, self.newest, nil
  end
  if loss then self.loss = type(loss) == "number" and loss or loss:item() end
end

local function text(self, now)
  local share = self.total > 0 and max(0, min(self.done / self.total, 1)) or 1
  local full = floor(share * WIDTH)
  local rate = self.done / max(now - self.start, 1e-9)
  local bar = ("="):rep(full) .. (full < WIDTH and ">" or "") .. ("."):rep(WIDTH - full - 1)
  if self.colour then bar = "\27[32m" .. bar .. "\27[0m" end
  local label = self.label ~= "" and self.label .. " " or ""
  local parts = {label .. "[" .. bar .. "]", ("%.12g/%.12g"):format(self.done, self.total), rate_text(rate)}
  if self.loss then parts[#parts + 1] = ("loss %.4f"):format(self.loss) end
  parts[#parts + 1] = share < 1 and rate > 0 and duration((self.total - self.done) / rate) .. " left"
    or duration(now - self.start)
  return table.concat(parts, "  ")
end

local function draw(self, now)
  self.drawn = now
  self.done = C.cfx_meter_done(self.meter)
  note_loss(self)
  if tell then
    local took = now - self.start
    return tell(self.label, self.done, self.total, self.done / max(took, 1e-9), took, self.loss, self.stop ~= nil)
  end
  put(text(self, now))
end

--- Notes `n` more (default 1), which are done once the devices have done all that is enqueued by now.  `loss`, a
-- number or a tensor, is shown; a tensor once its value is there.
---@param n? number
---@param o? {loss: (number|conflux.Tensor)?}
---@return conflux.Progress
function Progress:update(n, o)
  check.self(Progress, "progress", "update", self)
  check.number("progress.update", "n", n or 1)
  if o ~= nil then
    o = check.options("progress.update", o, {"loss"})
    if o.loss ~= nil then
      if type(o.loss) ~= "number" and not is_tensor(o.loss) then
        check.arg("progress.update", "loss", "a number or a tensor of one", o.loss)
      end
      if self.shows then note_loss(self) end
      if self.pending then self.newest = o.loss else self.pending = o.loss end
    end
  end
  core.context() -- a state that is closing has none any more
  C.cfx_meter_count(self.meter, n or 1)
  if self.shows then
    local now = seconds()
    if now - self.drawn >= EVERY then draw(self, now) end
  end
  return self
end

--- The work that the devices have done per second, until now or until :finish.  It does not wait for them.
---@return number
function Progress:rate()
  check.self(Progress, "progress", "rate", self)
  if not self.stop then
    core.context()
    self.done = C.cfx_meter_done(self.meter)
  end
  return self.done / max((self.stop or seconds()) - self.start, 1e-9)
end

-- Waits for all that was counted and for the last loss.
local function wait(self)
  local st = C.cfx_meter_wait(self.meter)
  if st ~= 0 then settle(st, C.cfx_meter_wait, self.meter) end
  local loss = self.newest or self.pending
  if loss then self.loss = type(loss) == "number" and loss or loss:item() end
end

--- Waits for what was counted, draws the bar a last time and ends its line.  Raises the fault that kept a step from
-- being done.
---@return conflux.Progress
function Progress:finish()
  check.self(Progress, "progress", "finish", self)
  if self.stop then return self end
  core.context()
  local is_done, why = pcall(wait, self)
  self.newest, self.pending = nil, nil
  self.stop = seconds()
  self.done = C.cfx_meter_done(self.meter)
  if self.shows then
    draw(self, self.stop)
    if not tell then
      clear()
      write(stderr, "\n")
    end
  end
  if not is_done then error(why, 0) end
  return self
end

--- A bar for `total` samples, steps or whatever :update counts.
---@param total number
---@param o? {label: string?}
---@return conflux.Progress
local function progress(total, o)
  check.number("progress", "total", total)
  o = check.options("progress", o, {"label"})
  local label = o.label and check.text("progress", "label", o.label) or ""
  local shows = tell and true or tell == nil and C.cfx_is_terminal(2) == 1
  local no_colour = getenv "NO_COLOR"
  local meter = ffi.new "cfx_meter"
  C.cfx_meter_begin(core.context(), meter)
  return setmetatable({
    total = total, done = 0, label = label, shows = shows, colour = shows and not (no_colour and no_colour ~= ""),
    start = seconds(), drawn = 0, meter = meter,
  }, Progress)
end

return progress
