--- Progress: a bar on stderr, if that is a terminal; else nothing is written.  Inside another program its hook is told
-- instead.
-- @module conflux.progress
local core = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local is_tensor, seconds = core.is_tensor, core.seconds
local floor, max, min = math.floor, math.max, math.min
local getenv, setmetatable, type = os.getenv, setmetatable, type
local stderr = io.stderr

-- Inside another program: its hook, or false if it has none.
local has_host, host = pcall(require, "conflux.host")
local tell
if has_host then tell = host.progress end

ffi.cdef [[ int cf_isatty(int fd) __asm__("isatty"); ]]

local WIDTH = 24      -- of the bar
local EVERY = 0.1     -- seconds between two drawings

--- A bar on stderr, if that is a terminal, with the rate and the time left.
---@class conflux.Progress
---@field done number
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
  local share = self.total > 0 and min(self.done / self.total, 1) or 1
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
  note_loss(self)
  if tell then
    local took = now - self.start
    return tell(self.label, self.done, self.total, self.done / max(took, 1e-9), took, self.loss, self.stop ~= nil)
  end
  stderr:write("\r", text(self, now), "\27[K")
  stderr:flush()
end

--- Notes `n` more (default 1) as done.  `loss`, a number or a tensor, is shown; a tensor once its value is there.
---@param n? number
---@param o? {loss: (number|conflux.Tensor)?}
---@return conflux.Progress
function Progress:update(n, o)
  self.done = self.done + check.number("progress.update", "n", n or 1)
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
  if self.shows then
    local now = seconds()
    if now - self.drawn >= EVERY then draw(self, now) end
  end
  return self
end

--- What was done per second, until now or until :finish.
---@return number
function Progress:rate()
  return self.done / max((self.stop or seconds()) - self.start, 1e-9)
end

--- Draws the bar as it is now and ends its line.
---@return conflux.Progress
function Progress:finish()
  if self.stop then return self end
  self.stop = seconds()
  if self.shows then
    draw(self, self.stop)
    if not tell then stderr:write "\n" end
  end
  return self
end

--- A bar for `total` samples, steps or whatever :update counts.
---@param total number
---@param o? {label: string?}
---@return conflux.Progress
local function progress(total, o)
  check.number("progress", "total", total)
  o = check.options("progress", o, {"label"})
  local label = o.label and check.string("progress", "label", o.label) or ""
  local shows = tell and true or tell == nil and ffi.C.cf_isatty(2) == 1
  local no_colour = getenv "NO_COLOR"
  return setmetatable({
    total = total, done = 0, label = label, shows = shows, colour = shows and not (no_colour and no_colour ~= ""),
    start = seconds(), drawn = 0,
  }, Progress)
end

return progress
