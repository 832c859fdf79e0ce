--- The time of convolutions, beside that of oneDNN's bare primitives.
--
--     build/bin/conflux scripts/bench/conv.lua [--quick] [NAME ..]
--
-- ResNet's shapes, batch 8, float32, on one CPU device with all cores, each forwards and as a step: forwards, and
-- the gradients by image and by weight, of the stem by weight alone.  A figure is the median of 9 blocks of about 0.2
-- seconds; its floor, a block of which follows each, is the same convolutions by the direct primitives that oneDNN
-- makes for them, called on buffers of their own with weights that lie in oneDNN's format already (floor.c, in a
-- process of its own).  So the ratio shows what dispatch, reordering the weights and their gradients, and the tape
-- cost; and, in a step, the sum that is its loss, and that sum's gradient.  conv2 to conv5 go by Winograd's method,
-- which needs fewer multiplications than the floor: there it shows what that saves, too.

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()

local BATCH, BLOCKS, BLOCK_US = 8, 9, 2e5
if options.quick then BATCH, BLOCKS, BLOCK_US = 1, 1, 1e3 end

-- name = {size of the image, in, out, kernel, stride, pad}
local shapes = {
  stem = {224, 3, 64, 7, 2, 3},
  conv2 = {56, 64, 64, 3, 1, 1},
  down3 = {56, 64, 128, 3, 2, 1},
  short3 = {56, 64, 128, 1, 2, 0},
  conv3 = {28, 128, 128, 3, 1, 1},
  conv4 = {14, 256, 256, 3, 1, 1},
  conv5 = {7, 512, 512, 3, 1, 1},
  narrow4 = {14, 1024, 256, 1, 1, 0},
  widen4 = {14, 256, 1024, 1, 1, 0},
}
local ORDER = {"stem", "conv2", "down3", "short3", "conv3", "conv4", "conv5", "narrow4", "widen4"}

-- Whether a step makes the gradient by the image, which the stem's is not.
local function is_inner(name) return name ~= "stem" end

-- ---- the floor, in a process of its own: conv.lua --floor NAME DIRECTIONS THREADS REPEATS [--quick] ------------

if options[1] == "--floor" then
  local s = shapes[options[2]]
  local numbers = require "ffi".new("int64_t[9]", {s[1], s[1], s[2], s[3], s[4], s[5], s[6], 1, tonumber(options[3])})
  local us = bench.floor().conflux_floor_convs(1, numbers, BATCH, 1, tonumber(options[4]), tonumber(options[5]))
  print(("%.17g"):format(us))
  os.exit(us > 0 and 0 or 1)
end

local function floor_block(name, directions, threads, repeats)
  local command = ("'%s' '%s' --floor %s %d %d %d%s"):format(bench.program(), arg[0], name, directions, threads,
    repeats, options.quick and " --quick" or "")
  local pipe = assert(io.popen(command))
  local us = tonumber(pipe:read "*l")
  pipe:close()
  return assert(us and us > 0 and us, "the floor could not be measured: " .. command)
end

-- ---- ours ---------------------------------------------------------------------------------------------------

local ffi = require "ffi"
local cf = require "conflux"
local core = require "conflux.core"

local function conv(x, w, window)
  local out = core.new()
  local st = core.C.cfx_conv(x, w, nil, nil, -1, window, 1, out)
  if st ~= 0 then core.settle(st) end
  return out
end

-- Functions that enqueue one run forwards, and one step.
local function runs(name)
  local s = shapes[name]
  local x, w = cf.rand(BATCH, s[1], s[1], s[2]) - 0.5, (cf.rand(s[3], s[4], s[4], s[2]) - 0.5) * 0.1
  local window = ffi.new("cfx_window", {stride = {s[5], s[5]}, pad = {s[6], s[6], s[6], s[6]}, dilation = {1, 1}})
  local function loss(m) return conv(m.x or x, m.w, window):sum() end
  local model = {w = w, x = is_inner(name) and x or nil}
  return function() conv(x, w, window):release() end,
    function() cf.withgradient(loss, model) end
end

local function block(run, repeats)
  cf.sync()
  local start = bench.now()
  for _ = 1, repeats do run() end
  cf.sync()
  return (bench.now() - start) / repeats
end

local function measure(name, what, directions, run)
  local threads = cf.devices()[1].threads
  block(run, 1)
  local repeats = math.max(1, math.floor(BLOCK_US / block(run, 1)))
  local us, floor = {}, {}
  for b = 1, BLOCKS do
    us[b] = block(run, repeats)
    floor[b] = floor_block(name, directions, threads, repeats)
  end
  local prefix = ("conv_%s_%s_"):format(name, what)
  bench.figure(prefix .. "us", bench.median(us), "us")
  bench.figure(prefix .. "floor_us", bench.median(floor), "us")
  bench.figure(prefix .. "over_floor", bench.median(us) / bench.median(floor), "ratio")
end

local names = #options > 0 and options or ORDER
for _, name in ipairs(names) do
  if not shapes[name] then
    error(("there is no shape '%s'; there are %s"):format(name, table.concat(ORDER, ", ")), 0)
  end
end
cf.devices "cpu"
for _, name in ipairs(names) do
  local forwards, step = runs(name)
  measure(name, "forwards", 1, forwards)
  measure(name, "step", is_inner(name) and 7 or 5, step)
end
