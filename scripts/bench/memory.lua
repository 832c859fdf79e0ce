--- Memory over a long run.
--
--     build/bin/conflux scripts/bench/memory.lua [--quick]
--
-- 2,000 steps of the x^2 example (mlp16 of mlp.lua) on two devices, no value read but the last loss of each 100
-- steps.  Every 100 steps it looks at the process's resident memory (/proc/self/statm) and at the bytes that the
-- devices' pools have taken from the system and hold in live tensors.  The figures are what was added since the
-- first 100 steps: memory_growth_bytes, whose floor is 0, of resident memory, and the same of the pools.

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()
local cf = require "conflux"
local ffi = require "ffi"

local STEPS, BLOCK = options.quick and 200 or 2000, 100

ffi.cdef "long bench_sysconf(int name) __asm__(\"sysconf\");"
local PAGE = tonumber(ffi.C.bench_sysconf(30)) -- _SC_PAGESIZE on Linux

local function resident()
  local file = assert(io.open("/proc/self/statm"))
  local pages = select(2, file:read("*n", "*n"))
  file:close()
  return pages * PAGE
end

local devices = cf.devices "cpu*2"

local function pools()
  local reserved, in_use = 0, 0
  for i = 1, #devices do
    local memory = cf.memory(devices[i])
    reserved, in_use = reserved + memory.reserved, in_use + memory.in_use
  end
  return reserved, in_use
end

local step = bench.trainer(cf, bench.cases.mlp16)
local first, first_reserved, peak

for s = BLOCK, STEPS, BLOCK do
  local losses
  for _ = 1, BLOCK do losses = step() end
  losses[1]:item()
  cf.sync()
  collectgarbage() -- garbage is no growth
  local now, reserved, in_use = resident(), pools()
  if not first then first, first_reserved, peak = now, reserved, now end
  peak = math.max(peak, now)
  print(("step %5d: resident %8.2f MiB, pools %8.2f MiB, in tensors %8.2f MiB"):format(s, now / 2 ^ 20,
    reserved / 2 ^ 20, in_use / 2 ^ 20))
  if s == STEPS then
    bench.figure("memory_growth_bytes", now - first, "B")
    bench.figure("memory_pool_growth_bytes", reserved - first_reserved, "B")
    bench.figure("memory_peak_bytes", peak, "B")
  end
end
