--- Shared by the parts of gpu.lua: their devices, functions timed in turns, and the speed of a copy beside them.
--
-- A block calls a function so often that some 20 ms pass, and ends when all of it has run.  Functions that are
-- compared take turns, block by block, so that whatever else the machine does hits all; figures are medians of
-- blocks.

local measure = {}

---@class bench.Measure
---@field cf table              Conflux
---@field devices conflux.Device[]  the run's
---@field count integer         of devices, virtual ones of one
---@field quick boolean
local Measure = {}
Measure.__index = Measure

---@param bench table  common.lua
---@param o {part: string, device: string, count: integer, quick: boolean, data: string, directory: string,
--- limit: integer}
---@return bench.Measure
function measure.new(bench, o)
  local m = setmetatable({bench = bench, failed = false}, Measure)
  for k, v in pairs(o) do m[k] = v end
  m.block_us, m.rounds = 20e3, 9
  if o.quick then m.block_us, m.rounds = 1e3, 3 end
  return m
end

--- The spec of n virtual devices of one: "cuda:0*2", "cpu*2".
---@param device string
---@param n integer
---@return string
function measure.spec(device, n)
  if n == 1 then return device end
  return (device:match "^cpu:?%d*$" and "cpu" or device) .. "*" .. n
end

--- Opens the devices.
function Measure:start()
  self.cf = require "conflux"
  self.spec = measure.spec(self.device, self.count)
  self.devices = self.cf.devices(self.spec)
end

--- Runs a part of the part: what goes wrong is reported, and ends nothing else.
---@param name string
---@param f fun()
function Measure:item(name, f)
  collectgarbage() -- the tensors of the item before
  collectgarbage()
  local done, problem = pcall(f)
  if done then return end
  problem = tostring(problem):gsub("%s*\n%s*", " ")
  if problem:find "interrupted!" then os.exit(130) end
  print(("failed %s: %s"):format(name, problem))
  io.flush()
  self.failed = true
  if self.cf then pcall(self.cf.sync) end -- other work under way fails here, not in the next item
end

--- Makes tensors on the part's first device: what f returns there.
---@param f fun(): ...
---@return ...
function Measure:make(f)
  local lists = {self.cf.withdevices(f, {self.devices[1]})}
  for k = 1, #lists do lists[k] = lists[k][1] end
  return unpack(lists)
end

-- ---- time ---------------------------------------------------------------------------------------------------

function Measure:block(f, calls)
  local now, sync = self.bench.now, self.cf.sync
  sync()
  local start = now()
  for _ = 1, calls do f() end
  sync()
  return now() - start
end

-- How many calls fill a block: found by trying, which warms up as well.
function Measure:calls(f, most)
  self:block(f, 1)
  local calls = 1
  while true do
    local us = math.max(self:block(f, calls), 0.1)
    if us >= self.block_us / 4 or calls == most then
      return math.max(1, math.min(most, math.ceil(calls * self.block_us / us)))
    end
    calls = math.min(most, calls * 4)
  end
end

--- Times functions in turns: the median microseconds of a call of each.
---@param list fun()[]
---@param most? integer  calls in a block, at most
---@return number[]
function Measure:turns(list, most)
  local calls, times, medians = {}, {}, {}
  for k = 1, #list do calls[k], times[k] = self:calls(list[k], most or 20000), {} end
  for r = 1, self.rounds do
    for k = 1, #list do times[k][r] = self:block(list[k], calls[k]) / calls[k] end
  end
  for k = 1, #list do medians[k] = self.bench.median(times[k]) end
  return medians
end

-- ---- bandwidth ----------------------------------------------------------------------------------------------

-- A plain copy of 256 MiB, shared by all devices of the run: the faster one of clone and copy_, and its bytes.
function Measure:copy()
  if self.plain then return self.plain, self.plain_bytes end
  local cf, bytes = self.cf, self.quick and 2 ^ 18 or 2 ^ 28
  local from, to = cf.withdevices(function()
    return cf.rand(bytes / 4 / #self.devices), cf.zeros(bytes / 4 / #self.devices)
  end)
  local function clone()
    for i = 1, #from do from[i]:clone():release() end
  end
  local function copy()
    for i = 1, #from do to[i]:copy_(from[i]) end
  end
  local us = self:turns {clone, copy}
  local gb = 2 * bytes * 1e-3
  self.bench.figure(self.part .. "_clone_gb_per_s", gb / us[1], "GB/s")
  self.bench.figure(self.part .. "_copy_gb_per_s", gb / us[2], "GB/s")
  self.plain, self.plain_bytes = us[1] < us[2] and clone or copy, 2 * bytes
  return self.plain, self.plain_bytes
end

--- An item that memory limits: its speed, and the share of a plain copy's.
---@param name string
---@param bytes number  that have to be read and written at least
---@param f fun()
---@param o? {us: boolean, most: integer}  us: the time is a figure, too
function Measure:memory(name, bytes, f, o)
  local figure = self.bench.figure
  local plain, plain_bytes = self:copy()
  local us = self:turns({f, plain}, o and o.most)
  if o and o.us then figure(name .. "_us", us[1], "us") end
  figure(name .. "_gb_per_s", bytes / us[1] * 1e-3, "GB/s")
  figure(name .. "_of_bandwidth", bytes / us[1] / (plain_bytes / us[2]), "ratio")
end

--- The name of a size: "4KiB", "256MiB".
---@param bytes integer
---@return string
function Measure:size_name(bytes)
  return bytes >= 2 ^ 20 and ("%dMiB"):format(bytes / 2 ^ 20) or ("%dKiB"):format(bytes / 1024)
end

return measure
