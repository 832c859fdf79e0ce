-- Trains an MLP (784-512-256-10) on Fashion-MNIST (Xiao et al. 2017), on every device of the run, or of processes:
--
--     build/bin/conflux --devices "cpu*2" scripts/fashion.lua --epochs 3
--     build/bin/conflux-run -n 2 scripts/fashion.lua --epochs 3
local cf = require "conflux"
local dist, nn, optim = cf.dist, cf.nn, cf.optim

-- A bundle may bring the files along; else they are where Debian's dataset-fashion-mnist installs them.
local function data_directory()
  local carried = arg[0]:gsub("[^/]*$", "") .. "../share/datasets/fashion-mnist"
  local file = io.open(carried .. "/train-labels-idx1-ubyte.gz")
  if not file then return "/usr/share/datasets/fashion-mnist" end
  file:close()
  return carried
end

local options = {data = data_directory(), epochs = 3, batch = 64, lr = 3e-3, seed = 1}

local USAGE = ([[
usage: conflux scripts/fashion.lua [options]
  --data DIR      where the IDX files are       (%s)
  --epochs N      passes over the samples       (3)
  --batch N       samples a device takes a step (64)
  --lr RATE       peak of the one-cycle rate    (3e-3)
  --devices SPEC  such as cpu*2                 (those of the run)
  --seed N        of weights and shuffling      (1)
]]):format(options.data)

local function quit(message)
  io.stderr:write("fashion.lua: ", message, "\n", USAGE)
  os.exit(2)
end

-- ---- options ------------------------------------------------------------------------------------------------

local texts = {data = true, devices = true}

local function read_options(arguments)
  local i = 1
  while i <= #arguments do
    local name = arguments[i]:match "^%-%-(%a+)$"
    if name == "help" then
      io.write(USAGE)
      os.exit(0)
    end
    local value = arguments[i + 1]
    if not name or (options[name] == nil and not texts[name]) then quit("unknown option " .. arguments[i]) end
    if value == nil then quit(arguments[i] .. " needs a value") end
    if not texts[name] then
      local number = tonumber(value)
      local is_whole = name == "lr" or number and number % 1 == 0
      if not number or not is_whole or number < (name == "seed" and 0 or name == "lr" and 0 or 1) then
        quit(("%s: '%s' will not do"):format(arguments[i], value))
      end
      value = number
    end
    options[name] = value
    i = i + 2
  end
end

read_options {...}
io.stdout:setvbuf "line" -- so that a file or a pipe has an epoch's line when the epoch ends
dist.init {devices = options.devices}
cf.seed(options.seed)

-- ---- data and model -----------------------------------------------------------------------------------------

-- Pixels to mean 0 and deviation 1 (those of the training set).
local function read(kind)
  local images = cf.data.idx(("%s/%s-images-idx3-ubyte.gz"):format(options.data, kind))
  local labels = cf.data.idx(("%s/%s-labels-idx1-ubyte.gz"):format(options.data, kind))
  local n = #images
  return {
    image = (images:reshape(n, 784):to "float32" / 255 - 0.2860) / 0.3530,
    label = labels:to "int64",
    n = n,
  }
end

local train, test = read "train", read "t10k"
local loader = cf.data.DataLoader({image = train.image, label = train.label},
  {batch = options.batch, shuffle = true, last = "keep", seed = options.seed})

local model  = nn.Chain(nn.Dense(784, 512, "relu"), nn.Dense(512, 256, "relu"), nn.Dense(256, 10))
local models = cf.replicate(model)
local opt    = optim.Adam(optim.onecycle(options.lr, options.epochs * loader:steps()))
local states = cf.withdevices(function(i) return opt:setup(models[i]) end)
local tests  = cf.replicate {image = test.image, label = test.label}

-- How many devices there are, of all ranks and of those before this one.
local width, before = 0, 0
for i, count in ipairs(dist.allgather(#models)) do
  width = width + count
  if i <= dist.rank() then before = before + count end
end

local function print0(...)
  if dist.rank() == 0 then print(...) end
end

print0(model)

-- ---- training -----------------------------------------------------------------------------------------------

local function loss_of(m, batch)
  return nn.crossentropy(m(batch.image), batch.label)
end

-- The last step is short, and may leave devices without samples, whose loss is no number: all means are over samples.
-- The losses of a device's samples are added up where they lie; reading the sum once an epoch costs the loop nothing.
local function train_epoch(epoch)
  local bar = cf.progress(train.n, {label = ("epoch %d/%d"):format(epoch, options.epochs)})
  local sums = cf.withdevices(function() return cf.zeros({}) end)
  for step, batch in loader:epoch(epoch) do
    local losses, grads = cf.withdevices(function(i) return cf.withgradient(loss_of, models[i], batch[i]) end)
    cf.allreduce("avg", grads, {weights = batch})
    cf.withdevices(function(i)
      optim.update(states[i], models[i], grads[i])
      if batch[i].n > 0 then sums[i]:add_(losses[i] * batch[i].n) end
    end)
    local samples = options.batch * width -- all ranks', but in the last step
    bar:update(math.min(samples, train.n - (step - 1) * samples), {loss = losses[1]})
  end
  local loss = cf.allreduce("+", sums)[1]:item() / train.n -- waits for the epoch's last step
  return loss, bar:finish():rate()
end

-- Each device judges its share of the test set.
local function accuracy()
  local parts = cf.withdevices(function(i)
    local share, at = math.ceil(test.n / width), before + i
    local from, to = (at - 1) * share + 1, math.min(at * share, test.n)
    local logits = models[i](tests[i].image[{{from, to}}])
    return cf.metrics.accuracy(logits, tests[i].label[{{from, to}}]) * ((to - from + 1) / test.n)
  end)
  return cf.allreduce("+", parts)[1]:item()
end

for epoch = 1, options.epochs do
  local loss, rate = train_epoch(epoch)
  local share = accuracy()
  print0(("epoch %d/%d  loss %.4f  test_accuracy %.4f  samples/s %.0f"):format(epoch, options.epochs, loss, share,
    rate))
end
