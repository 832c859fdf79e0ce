--- The all-reduce of two devices, beside the loop that it runs.
--
--     build/bin/conflux scripts/bench/allreduce.lua [--quick]
--
-- Each of two devices holds a float32 tensor of 4 B to 256 MiB; cf.allreduce("avg", ..) leaves the mean in both.
-- Calls follow each other without a wait, each depending on the one before, until some 256 MiB have been reduced
-- or 200 calls made; the figure is the median of 9 such rounds.
--
-- The limit is the same loop in place on the same two buffers, without queues or hand-offs: as many threads as
-- the devices have, each with its part, that never meet.  `of_limit` is the share of its speed that is reached;
-- GB/s counts the bytes of one tensor (the memory sees four times as many).

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()
local cf = require "conflux"

local ROUNDS, MOST, BYTES = 9, 200, 256 * 2 ^ 20
if options.quick then ROUNDS, MOST, BYTES = 3, 20, 4 * 2 ^ 20 end

local devices = cf.devices "cpu*2"
local threads = devices[1].threads + devices[2].threads
local floor = bench.floor()

local function name_of(bytes)
  if bytes >= 2 ^ 20 then return ("%dMiB"):format(bytes / 2 ^ 20) end
  return bytes >= 1024 and ("%dKiB"):format(bytes / 1024) or ("%dB"):format(bytes)
end

local function measure(bytes)
  local n = bytes / 4
  local calls = math.max(1, math.min(MOST, BYTES / bytes))
  local list = cf.withdevices(function() return cf.ones(n) end)
  local a, b = list[1]:pointer(), list[2]:pointer()
  cf.allreduce("avg", list)
  local us, limit = {}, {}
  for r = 1, ROUNDS do
    cf.sync()
    local start = bench.now()
    for _ = 1, calls do cf.allreduce("avg", list) end
    cf.sync()
    us[r] = (bench.now() - start) / calls
    limit[r] = floor.conflux_floor_allreduce(a, b, n, threads, calls)
    assert(limit[r] > 0, "the limit could not be measured")
  end
  for i = 1, 2 do list[i]:release() end
  local prefix = "allreduce_" .. name_of(bytes)
  local took, least = bench.median(us), bench.median(limit)
  bench.figure(prefix .. "_us", took, "us")
  bench.figure(prefix .. "_limit_us", least, "us")
  bench.figure(prefix .. "_of_limit", least / took, "ratio")
  bench.figure(prefix .. "_gb_per_s", bytes / took * 1e-3, "GB/s")
end

for _, bytes in ipairs {4, 4 * 2 ^ 10, 64 * 2 ^ 10, 2 ^ 20, 4 * 2 ^ 20, 16 * 2 ^ 20, 64 * 2 ^ 20, 256 * 2 ^ 20} do
  if bytes <= BYTES then measure(bytes) end
end
