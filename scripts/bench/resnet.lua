--- The time of a training step of ResNet-34, beside the time of its convolutions alone.
--
--     build/bin/conflux scripts/bench/resnet.lua [--quick] [--loader | --serve train | --serve eval]
--
-- ResNet-34 trains by data parallelism (withgradient, allreduce, update with momentum) on 8 images of 224 x 224 a
-- device, float32: on one device with all cores, and on two that share them.  A figure is the median of 7 steps.
--
-- The floor is the same step's convolutions by oneDNN's direct primitives without Conflux (floor.c), forwards and
-- backwards, each on buffers of its own, with weights that lie in oneDNN's format already.  It runs in a process of its
-- own, after each step, so that whatever else the machine does hits both.  A whole step may take less: Conflux makes
-- most of these convolutions by Winograd's method.
--
-- Beside them stand the parts of the step on one device, each family of layers alone, forwards and backwards, on the
-- shapes that the network gives it: convolution, normalisation, pooling, update; rest is what the step takes beyond
-- their sum.
--
-- resnet34_1dev_peak_bytes is what the device's tensors took at most, resnet34_1dev_process_peak_bytes what the process
-- did, and resnet34_1dev_process_growth_bytes that without what it had when it had loaded Conflux.
--
-- resnet34_folded_images_per_s is evaluation after nn.fold.
--
-- With --serve it makes a step on one device, or an evaluation of the folded network, for each line that it reads, and
-- answers with its seconds and both of the process's bytes: peer_resnet.py has it take turns with PyTorch.
--
-- With --loader steps on one batch that stays take turns with steps on batches of a DataLoader, which decodes pictures
-- of 500 x 375 and cuts them (a random resized crop, flipped at random) by one thread while the step runs.
-- resnet34_loader_over_fixed is the median of their ratios.  resnet34_loader_work_of_step is the time that this thread
-- alone takes for a batch, as a share of a step.  Where the device computes on the same n cores, a step loses at least
-- an n-th of that share: resnet34_loader_floor = 1 + share / n, below which the first figure cannot lie.

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()

local STEPS, BATCH, SIZE, WIDTH = 7, 8, 224, 64
if options.quick then STEPS, BATCH, SIZE, WIDTH = 2, 2, 64, 16 end -- the floor has no convolutions of fewer channels

local cf = require "conflux"
local nn, optim = cf.nn, cf.optim
local ffi = require "ffi"

local LOADED = bench.peak()

local function images() return cf.randn(BATCH, SIZE, SIZE, 3) end

local function network() return cf.zoo.resnet34 {width = WIDTH} end

-- ---- what the network does to its layers ------------------------------------------------------------------------

-- Calls of a class's forward while f runs: {layer, x, residual}.
local function calls_of(class, f)
  local calls, forward = {}, class.forward
  class.forward = function(self, x, residual)
    calls[#calls + 1] = {self, x.shape, residual ~= nil}
    return forward(self, x, residual)
  end
  f()
  class.forward = forward
  return calls
end

-- ---- the floor, in a process of its own: resnet.lua --floor DEVICES THREADS -------------------------------------

if options[1] == "--floor" then
  local model, x = network(), images()
  local calls = calls_of(nn.Conv, function() model(x) end)
  local numbers = ffi.new("int64_t[?]", 9 * #calls)
  for i, call in ipairs(calls) do
    local weight, shape = call[1].weight.shape, call[2]
    -- in both directions; of the images no gradient is wanted
    local row = {shape[2], shape[3], shape[4], weight[1], weight[2], call[1].stride, call[1].pad, 1, i > 1 and 7 or 5}
    for k = 1, 9 do numbers[9 * (i - 1) + k - 1] = row[k] end
  end
  local us = bench.floor().conflux_floor_convs(#calls, numbers, BATCH, tonumber(options[2]), tonumber(options[3]), 1)
  print(("%.17g"):format(us))
  os.exit(us > 0 and 0 or 1)
end

local function floor(devices, threads)
  local command = ("'%s' --devices cpu '%s' --floor %d %d%s"):format(bench.program(), arg[0], devices, threads,
    options.quick and " --quick" or "")
  local pipe = assert(io.popen(command))
  local us = tonumber(pipe:read "*l")
  pipe:close()
  return assert(us and us > 0 and us, "the floor could not be measured: " .. command)
end

-- ---- steps --------------------------------------------------------------------------------------------------------

local function loss_of(m, x, y)
  return nn.crossentropy(m(x), y)
end

-- A function that makes one step, and waits for it; on xs and ys, one a device, or else always on the same images.
local function trainer()
  local models = cf.replicate(network())
  local rule = optim.Momentum(0.01, 0.9)
  local states = cf.withdevices(function(i) return rule:setup(models[i]) end)
  local fixed_xs, fixed_ys = cf.withdevices(function() return images(), cf.randint(0, 999, BATCH) end)
  return function(xs, ys)
    xs, ys = xs or fixed_xs, ys or fixed_ys
    local losses, grads = cf.withdevices(function(i) return cf.withgradient(loss_of, models[i], xs[i], ys[i]) end)
    cf.allreduce("avg", grads)
    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
    local loss = losses[1]:item()
    cf.sync()
    assert(loss == loss, "the loss is not a number")
  end
end

-- The median of f's microseconds, and of what `between` gives.
local function measure(f, between)
  local us, other = {}, {}
  f() -- warms up
  for i = 1, STEPS do
    local start = bench.now()
    f()
    us[i] = bench.now() - start
    other[i] = between and between()
  end
  return bench.median(us), between and bench.median(other)
end

-- ---- parts of a step ------------------------------------------------------------------------------------------------

-- Gives y the gradient c, and costs nothing.
local function seed(c)
  return cf.op("seed", {forward = function() return cf.zeros {} end, backward = function() return c end})
end

-- Microseconds of a class's layers alone, forwards and backwards; the images' gradient is not wanted.
local function part(class)
  local model, x = network(), images()
  local calls = calls_of(class, function() model(x) end)
  local layers, inputs, seeds = {}, {}, {}
  for i, call in ipairs(calls) do
    local y = call[1](cf.randn(call[2]))
    layers[i], seeds[i] = call[1], seed(cf.randn(y.shape))
    inputs[i] = {x = cf.randn(call[2]), residual = call[3] and cf.randn(y.shape) or nil}
    if #call[2] == 4 and call[2][4] == 3 then inputs[i].x = nn.buffer(inputs[i].x) end
    y:release()
  end
  model = {layers = layers, inputs = inputs}
  return (measure(function()
    local _, g = cf.withgradient(function(m)
      local sum
      for i = 1, #m.layers do
        local s = seeds[i](m.layers[i](m.inputs[i].x, m.inputs[i].residual))
        sum = sum and sum + s or s
      end
      return sum
    end, model)
    cf.sync()
    cf.tree.walk(g, function(_, t) t:release() end)
  end))
end

local function update()
  local model = network()
  local state = optim.Momentum(0.01, 0.9):setup(model)
  local g = cf.gradient(function(m)
    local sum
    cf.tree.walk(m, function(_, t) if t.dtype == "float32" then sum = sum and sum + t:sum() or t:sum() end end)
    return sum
  end, model)
  return (measure(function()
    optim.update(state, model, g)
    cf.sync()
  end))
end

local function parts(step)
  local conv, norm = part(nn.Conv), part(nn.BatchNorm)
  local pool, updated = part(nn.MaxPool) + part(nn.GlobalMeanPool), update()
  bench.figure("resnet34_convolution_us", conv, "us")
  bench.figure("resnet34_normalisation_us", norm, "us")
  bench.figure("resnet34_pooling_us", pool, "us")
  bench.figure("resnet34_update_us", updated, "us")
  bench.figure("resnet34_rest_us", step - conv - norm - pool - updated, "us")
end

-- A function that evaluates the folded network once.
local function evaluator()
  local folded, x = nn.fold(network()), images()
  return function()
    folded(x):release()
    cf.sync()
  end
end

-- ---- the loader -----------------------------------------------------------------------------------------------------

local function micros(f, ...)
  local start = bench.now()
  f(...)
  return bench.now() - start
end

-- A step on the loader's next batch.
local function load_and_step(step, batches)
  local _, batch = batches()
  step({batch[1].image}, {batch[1].label})
  batch[1].image:release()
  batch[1].label:release()
end

-- Microseconds that the loader takes for a batch where nothing else is done.
local function loader_work(loader)
  return micros(function()
    for _, batch in loader:epoch(0) do batch[1].image:release() end
  end) / loader:steps()
end

local function measure_loader(folder)
  cf.devices "cpu"
  local T, steps = cf.data.transforms, 2 * STEPS
  bench.pictures(cf, folder, (steps + 1) * BATCH)
  local loader = cf.data.DataLoader(cf.data.images(folder), {batch = BATCH, threads = 1, seed = 1,
    transform = {T.randomresizedcrop(SIZE), T.flip()}})
  loader_work(loader) -- warms up
  local work, step, batches = loader_work(loader), trainer(), loader:epoch(1)
  step()
  load_and_step(step, batches)
  local fixed, loaded, ratios = {}, {}, {}
  for i = 1, steps do
    fixed[i], loaded[i] = micros(step), micros(load_and_step, step, batches)
    ratios[i] = loaded[i] / fixed[i]
  end
  local share = work / bench.median(fixed)
  bench.figure("resnet34_fixed_us", bench.median(fixed), "us")
  bench.figure("resnet34_loader_us", bench.median(loaded), "us")
  bench.figure("resnet34_loader_over_fixed", bench.median(ratios), "ratio")
  bench.figure("resnet34_loader_work_of_step", share, "ratio")
  bench.figure("resnet34_loader_floor", 1 + share / cf.devices()[1].threads, "ratio")
end

if options[1] == "--loader" then
  local folder = os.tmpname()
  os.remove(folder)
  measure_loader(folder)
  assert(os.execute("rm -r " .. folder) == 0)
  os.exit(0)
end

-- ---- turns ----------------------------------------------------------------------------------------------------------

if options[1] == "--serve" then
  cf.devices "cpu"
  local run = options[2] == "train" and trainer() or evaluator()
  for _ in io.lines() do
    local us = micros(run)
    print(("%.17g %d %d"):format(us / 1e6, bench.peak(), bench.peak() - LOADED))
    io.flush()
  end
  os.exit(0)
end

-- ---- figures --------------------------------------------------------------------------------------------------------

local step
for devices, spec in ipairs {"cpu", "cpu*2"} do
  cf.devices(spec)
  local threads = cf.devices()[1].threads
  local us, least = measure(trainer(), function() return floor(devices, threads) end)
  local prefix = ("resnet34_%ddev_"):format(devices)
  bench.figure(prefix .. "us", us, "us")
  bench.figure(prefix .. "floor_us", least, "us")
  bench.figure(prefix .. "over_floor", us / least, "ratio")
  bench.figure(prefix .. "images_per_s", devices * BATCH / us * 1e6, "images/s")
  if devices == 1 then
    step = us
    bench.figure(prefix .. "peak_bytes", cf.memory().peak, "bytes")
    bench.figure(prefix .. "process_peak_bytes", bench.peak(), "bytes")
    bench.figure(prefix .. "process_growth_bytes", bench.peak() - LOADED, "bytes")
  end
  collectgarbage()
  collectgarbage()
end

cf.devices "cpu"
parts(step)
bench.figure("resnet34_folded_images_per_s", BATCH / measure(evaluator()) * 1e6, "images/s")
