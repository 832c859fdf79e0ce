--- The time of a training step, beside the time of its arithmetic alone.
--
--     build/bin/conflux scripts/bench/mlp.lua [--quick] [--crowded | --ranks]
--
-- Two multilayer perceptrons train by data parallelism (withgradient, allreduce, update) on one device with all
-- cores and on two that share them:
--   mlp16  1-256-512-256-1, tanh, sum of squares, 16 samples a device (the x^2 example)
--   mlp64  784-512-256-10, relu, cross-entropy, 64 samples a device (Fashion-MNIST's shapes)
-- A block is 100 steps, of which only the last loss is read; the figure is the median of 15 blocks.
-- mlp16_2dev_host_us is the processor time that the script's own thread takes for a step: what it costs to enqueue it.
--
-- The floor is the same step without Conflux (floor.c): its matrix products called directly in oneDNN, the
-- optimiser's loop, and on two devices the all-reduce's loop, by the same number of threads.  A block of it, in a
-- process of its own (a second team of threads in this one would make OpenMP's wait differently), follows each
-- block of steps, so that whatever else the machine does hits both.
--
-- With --crowded other programs want the cores, too: two loops that never end, in sessions of their own.  Blocks of
-- steps on one device take turns with the same in a process whose threads never spin (OMP_WAIT_POLICY=passive), which
-- is as fast as it gets there; each begins with a second in which the engine finds out how busy the machine is.
--
-- With --ranks blocks of steps on two devices of one process take turns with blocks of two processes that conflux-run
-- starts, of one core each.  There blocks whose gradients are joined take turns with blocks of ranks that do not talk.
-- mlp64_2rank_over_silent and mlp64_2rank_over_2dev are medians of the blocks' ratios.
--
-- fashion_2dev_samples_per_s is what scripts/fashion.lua reports of its second epoch, its data loader included;
-- its floor is that of mlp64.

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()

local BLOCKS, STEPS = 15, 100
local WARM_STEPS = 50 -- before each block, as before each of the floor's: what ran in between has the caches
if options.quick then BLOCKS, STEPS, WARM_STEPS = 3, 10, 10 end

-- ---- the floor, in a process of its own: mlp.lua --floor NAME DEVICES THREADS STEPS ---------------------------

if options[1] == "--floor" then
  local case = bench.cases[options[2]]
  local sizes = require "ffi".new("int64_t[?]", #case.sizes, case.sizes)
  local us = bench.floor().conflux_floor(#case.sizes - 1, sizes, case.act, case.batch, tonumber(options[3]),
    tonumber(options[4]), tonumber(options[5]))
  print(("%.17g"):format(us))
  os.exit(us > 0 and 0 or 1)
end

local function floor_block(name, devices, threads)
  local command = ("'%s' '%s' --floor %s %d %d %d"):format(bench.program(), arg[0], name, devices, threads, STEPS)
  local pipe = assert(io.popen(command))
  local us = tonumber(pipe:read "*l")
  pipe:close()
  return assert(us and us > 0 and us, "the floor could not be measured: " .. command)
end

-- ---- the steps ----------------------------------------------------------------------------------------------

local cf = require "conflux"

-- Microseconds a step, and of those the script's own thread's work.
local function step_block(step)
  local losses
  for _ = 1, WARM_STEPS do step() end
  cf.sync()
  local start, worked = bench.now(), bench.worked()
  for _ = 1, STEPS do losses = step() end
  local host_us = (bench.worked() - worked) / STEPS
  local loss = losses[1]:item()
  cf.sync()
  local us = (bench.now() - start) / STEPS
  assert(loss == loss, "the loss is not a number")
  return us, host_us
end

-- ---- a crowded machine: mlp.lua --steps NAME is one process ----------------------------------------------------

local WARM_US = options.quick and 1e5 or 1e6

if options[1] == "--steps" then
  local step = bench.trainer(cf, bench.cases[options[2]])
  local start = bench.now()
  repeat step()[1]:item() until bench.now() - start > WARM_US
  print(("%.17g"):format((step_block(step))))
  os.exit(0)
end

local function crowded_block(name, setting)
  local command = ("%s '%s' --devices cpu '%s' --steps %s%s"):format(setting, bench.program(), arg[0], name,
    options.quick and " --quick" or "")
  local pipe = assert(io.popen(command))
  local us = tonumber(pipe:read "*l")
  pipe:close()
  return assert(us, "no time came from: " .. command)
end

local function crowded()
  local loops = {bench.busy_loop(), bench.busy_loop()}
  for _, name in ipairs {"mlp16", "mlp64"} do
    local us, passive = {}, {}
    for b = 1, BLOCKS do
      us[b] = crowded_block(name, "")
      passive[b] = crowded_block(name, "OMP_WAIT_POLICY=passive")
    end
    bench.figure(name .. "_crowded_us", bench.median(us), "us")
    bench.figure(name .. "_crowded_passive_us", bench.median(passive), "us")
    bench.figure(name .. "_crowded_over_passive", bench.median(us) / bench.median(passive), "ratio")
  end
  for _, stop in ipairs(loops) do stop() end
end

if options[1] == "--crowded" then
  crowded()
  os.exit(0)
end

-- ---- two processes: mlp.lua --rank NAME is one of them -----------------------------------------------------------

-- Prints microseconds a step of ranks that talk, and of ranks that do not: rank 0's, which waits for the other.
if options[1] == "--rank" then
  local core = require "conflux.core"
  assert(core.C.cfx_world_join(core.context(), nil) == 0, "the ranks do not meet")
  local step = bench.trainer(cf, bench.cases[options[2]])
  step_block(step)
  local talking, silent = {}, {}
  for b = 1, 3 do
    talking[b] = step_block(step)
    core.C.cfx_world_scope(core.context(), 1)
    silent[b] = step_block(step)
    core.C.cfx_world_scope(core.context(), 0)
  end
  if os.getenv "CONFLUX_RANK" == "0" then print(("%.17g %.17g"):format(bench.median(talking), bench.median(silent))) end
  os.exit(0)
end

local function rank_block(name)
  local launcher = bench.program():match "^.*/" .. "conflux-run"
  local command = ("'%s' -n 2 --devices cpu -- '%s' '%s' --rank %s%s"):format(launcher, bench.program(), arg[0], name,
    options.quick and " --quick" or "")
  local pipe = assert(io.popen(command))
  local talking, silent = pipe:read("*a"):match "(%S+) (%S+)\n$"
  pipe:close()
  return assert(tonumber(talking), "no times came from: " .. command), tonumber(silent)
end

if options[1] == "--ranks" then
  local name = "mlp64"
  cf.devices "cpu*2"
  local step, us, over_silent, over_devices = bench.trainer(cf, bench.cases[name]), {}, {}, {}
  step_block(step)
  for b = 1, math.min(BLOCKS, 7) do
    local devices = step_block(step)
    local silent
    us[b], silent = rank_block(name)
    over_silent[b], over_devices[b] = us[b] / silent, us[b] / devices
  end
  bench.figure(name .. "_2rank_us", bench.median(us), "us")
  bench.figure(name .. "_2rank_over_silent", bench.median(over_silent), "ratio")
  bench.figure(name .. "_2rank_over_2dev", bench.median(over_devices), "ratio")
  os.exit(0)
end

-- ---- the machine to itself --------------------------------------------------------------------------------------

local function measure(name, devices)
  local threads = cf.devices()[1].threads
  local step = bench.trainer(cf, bench.cases[name])
  step_block(step) -- warms up
  local us, host, floor = {}, {}, {}
  for b = 1, BLOCKS do
    us[b], host[b] = step_block(step)
    floor[b] = floor_block(name, devices, threads)
  end
  local prefix = ("%s_%ddev_"):format(name, devices)
  bench.figure(prefix .. "us", bench.median(us), "us")
  bench.figure(prefix .. "floor_us", bench.median(floor), "us")
  bench.figure(prefix .. "over_floor", bench.median(us) / bench.median(floor), "ratio")
  if name == "mlp16" and devices == 2 then bench.figure(prefix .. "host_us", bench.median(host), "us") end
end

for devices, spec in ipairs {"cpu", "cpu*2"} do
  cf.devices(spec)
  measure("mlp16", devices)
  measure("mlp64", devices)
end

-- ---- a whole program ----------------------------------------------------------------------------------------

local function fashion()
  local script = arg[0]:gsub("[^/]+/[^/]+$", "") .. "fashion.lua"
  local pipe = assert(io.popen(("'%s' '%s' --devices 'cpu*2' --epochs 2"):format(bench.program(), script)))
  local text = pipe:read "*a"
  pipe:close()
  return assert(tonumber(text:match "epoch 2/2.-samples/s (%d+)"), "no samples/s in what fashion.lua wrote: " .. text)
end

if not options.quick then bench.figure("fashion_2dev_samples_per_s", fashion(), "samples/s") end
