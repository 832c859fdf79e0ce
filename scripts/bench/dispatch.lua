--- The host's cost of one operation.
--
--     build/bin/conflux scripts/bench/dispatch.lua [--quick]
--
-- a + b of tensors of one element, 8,000 times without a wait (a queue holds more, so it is not the limit); the
-- results are dropped, and what their finalisers and collections cost is counted.  The figure is the median of
-- many repeats: dispatch_us where LuaJIT compiles the loop, dispatch_nojit_us where it interprets it.
--
-- The floor, dispatch_floor_us, is the same loop in C (floor.c) through the same public calls: shapes checked,
-- memory taken, the command enqueued, the result released.

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()
local cf = require "conflux"

local OPERATIONS, REPEATS = 8000, options.quick and 3 or 50

cf.devices "cpu"
local a, b = cf.ones(1), cf.ones(1)

local function add_many(n)
  local c
  for _ = 1, n do c = a + b end
  return c
end

local function measure(f)
  local us = {}
  f(OPERATIONS) -- warms up
  for r = 1, REPEATS do
    cf.sync()
    local start = bench.now()
    f(OPERATIONS)
    us[r] = (bench.now() - start) / OPERATIONS
  end
  return bench.median(us)
end

local compiled = measure(add_many)
jit.off()
jit.flush()
local interpreted = measure(add_many)
jit.on()

local floor = bench.floor()
local limits = {}
for r = 1, REPEATS do
  cf.sync()
  limits[r] = floor.conflux_floor_add(a, b, OPERATIONS)
  assert(limits[r] > 0, "the floor could not be measured")
end
local limit = bench.median(limits)

bench.figure("dispatch_us", compiled, "us")
bench.figure("dispatch_nojit_us", interpreted, "us")
bench.figure("dispatch_floor_us", limit, "us")
bench.figure("dispatch_over_floor", compiled / limit, "ratio")
