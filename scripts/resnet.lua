-- Trains a residual network on JPEG files, judges it, and predicts with it:
--
--     build/bin/conflux scripts/resnet.lua train --data ~/flowers --epochs 30 --weights resnet34.safetensors
--     build/bin/conflux scripts/resnet.lua predict tulip.jpg rose.jpg
local cf = require "conflux"
local nn, optim, transforms = cf.nn, cf.optim, cf.data.transforms

local USAGE = [[
usage: conflux scripts/resnet.lua train | eval | predict IMAGE.. | export FILE [options]
  train    trains on the images, and writes the best network so far after each epoch
  eval     tells the share of the held-out images whose class is the first, or among the first five
  predict  tells the five likeliest classes of each IMAGE
  export   writes the network with torchvision's names to FILE
options:
  --data DIR      ImageNet as Kaggle has it, or folders train and val with a folder for each class
  --arch NAME     resnet18, 34, 50, 101 or 152   (resnet34)
  --weights FILE  a network of train's, or a safetensors file with torchvision's names; train begins with it,
                  under a new head where the classes are others
  --model FILE    what train writes and the others read (resnet.safetensors)
  --epochs N      passes over the images         (30)
  --batch N       images a device takes a step   (32)
  --lr RATE       peak of the one-cycle rate     (0.05)
  --size N        pixels of a side               (224)
  --width N       channels behind the stem       (64)
  --threads N     that decode images; the losses are the same with any (half the cores)
  --devices SPEC  such as cpu*2                  (those of the run)
  --seed N        of weights and order           (1)
]]

local TOP = 5
local SMALL = 64 -- images up to this size keep it behind the stem

-- ---- options ------------------------------------------------------------------------------------------------

local options = {arch = "resnet34", model = "resnet.safetensors", epochs = 30, batch = 32, lr = 0.05, size = 224,
  width = 64, seed = 1}
local texts = {data = true, arch = true, weights = true, model = true, devices = true}
local least = {epochs = 1, batch = 1, lr = 0, size = 8, width = 1, threads = 1, seed = 0}

local function quit(message)
  io.stderr:write("resnet.lua: ", message, "\n", USAGE)
  os.exit(2)
end

-- Ends the run where the data are at fault, not the options.
local function fail(message)
  io.stderr:write("resnet.lua: ", message, "\n")
  os.exit(1)
end

local function read_option(name, value)
  if texts[name] then return value end
  local number = tonumber(value)
  if not number or not (number >= least[name] and number < math.huge) or name ~= "lr" and number % 1 ~= 0 then
    quit(("--%s: '%s' will not do"):format(name, value))
  end
  return number
end

-- Returns what is no option.
local function read_options(arguments)
  local others, i = {}, 1
  while i <= #arguments do
    local name = arguments[i]:match "^%-%-(%a+)$"
    if name == "help" then
      io.write(USAGE)
      os.exit(0)
    elseif name then
      local value = arguments[i + 1]
      if not texts[name] and not least[name] then quit("unknown option " .. arguments[i]) end
      if value == nil then quit(arguments[i] .. " needs a value") end
      options[name], i = read_option(name, value), i + 2
    else
      others[#others + 1], i = arguments[i], i + 1
    end
  end
  return others
end

-- ---- data ---------------------------------------------------------------------------------------------------

local function exists(path)
  local file = io.open(path)
  return file ~= nil and file:close()
end

local function images_of(split)
  if not options.data then quit "--data names no images" end
  if exists(options.data .. "/LOC_synset_mapping.txt") then return cf.data.imagenet(options.data, {split = split}) end
  return cf.data.images(options.data .. "/" .. split)
end

local function names_of(key)
  local names = {}
  for i, class in ipairs(key.classes) do
    names[i] = class.description ~= "" and class.description or class.name
  end
  return names
end

-- Ids count a list's own classes: where two lists differ, they mean other ones.
local function check_classes(key, classes, are_named)
  local names = names_of(key)
  for i = 1, math.max(#names, #classes) do
    if names[i] ~= classes[i] and (are_named or not names[i] or not classes[i]) then
      fail(("%s: class %d of the held-out images is %s, of those to learn %s"):format(options.data, i,
        names[i] or "missing", classes[i] or "missing"))
    end
  end
end

-- Of a small image what matters reaches to its edges: training sees large parts of it, and judging all.
local function training_transform(size)
  local o = size <= SMALL and {scale = {0.7, 1}} or nil
  return {transforms.randomresizedcrop(size, o), transforms.flip()}
end

local function evaluation_transform(size)
  local resized = size <= SMALL and size or math.floor(size * 256 / 224 + 0.5)
  return {transforms.resize(resized), transforms.centrecrop(size)}
end

-- ---- networks -----------------------------------------------------------------------------------------------

---@class Network
---@field model conflux.Chain
---@field arch string
---@field width integer
---@field size integer       pixels of a side
---@field classes string[]
---@field is_unnamed? boolean  the file does not say its classes

local function build(arch, width, size, classes)
  local make = rawget(cf.zoo, arch)
  if not make or not arch:find "^resnet" then quit(("--arch: there is no '%s'"):format(arch)) end
  return make {classes = #classes, width = width, stem = size <= SMALL and "small" or "imagenet"}
end

-- The network of a file: train's own, or one with torchvision's names, which says no more than its tensors do.
local function read(path)
  local saved = cf.load(path)
  if type(saved.arch) == "string" then
    local model = build(saved.arch, saved.width, saved.size, saved.classes)
    cf.load(path, {into = {model = model}, unexpected = "ignore"})
    saved.model = model
    return saved
  end
  saved = cf.load(path, {rename = function(name) return name end}) -- nested by the dots in its names
  if not saved.fc then quit(path .. ": no network of train's, and none with torchvision's names") end
  local classes = {}
  for i = 1, saved.fc.weight:size(1) do classes[i] = ("class %d"):format(i - 1) end
  local width = saved.conv1.weight:size(1)
  local model = build(options.arch, width, options.size, classes)
  return {model = cf.zoo.load(path, {into = model}), arch = options.arch, width = width, size = options.size,
    classes = classes, is_unnamed = true}
end

-- Whether a network, as far as its file says, tells these classes apart.
local function has_classes(network, classes)
  local same = #network.classes == #classes
  for i = 1, network.is_unnamed and 0 or #classes do same = same and network.classes[i] == classes[i] end
  return same
end

-- Copies the weights of a file; of other classes than those there, all but the head's.
local function take_weights(path, model, classes)
  local from = read(path)
  if from.arch ~= options.arch or from.width ~= options.width or (from.size <= SMALL) ~= (options.size <= SMALL) then
    fail(("%s is a %s --width %d --size %d, to be trained is a %s --width %d --size %d"):format(path, from.arch,
      from.width, from.size, options.arch, options.width, options.size))
  end
  local theirs, same = cf.zoo.tensors(from.model), has_classes(from, classes)
  for name, t in pairs(cf.zoo.tensors(model)) do
    if same or not name:find "^fc%." then t:copy_(theirs[name]) end
  end
end

-- A new network, which may begin with the weights of a file.
local function begin(classes)
  local model = build(options.arch, options.width, options.size, classes)
  if options.weights then take_weights(options.weights, model, classes) end
  return {model = model, arch = options.arch, width = options.width, size = options.size, classes = classes}
end

-- ---- judging ------------------------------------------------------------------------------------------------

-- The mean loss over a key's images, and the shares whose class is the first or among the first five.
local function judge(models, key, size)
  local loader = cf.data.DataLoader(key, {batch = options.batch, threads = options.threads,
    transform = evaluation_transform(size)})
  local bar = cf.progress(key:size(), {label = "eval"})
  local k = math.min(TOP, #key.classes)
  local sums = cf.withdevices(function() return cf.zeros(3) end)
  local count = 0
  for _, batch in loader:epoch(0) do
    cf.withdevices(function(i)
      local part = batch[i]
      if part.n == 0 then return end
      local logits = models[i](part.image)
      local found = cf.stack({nn.crossentropy(logits, part.label), cf.metrics.topk(logits, part.label, 1),
        cf.metrics.topk(logits, part.label, k)}, 1)
      sums[i]:add_(found * part.n)
    end)
    count = count + batch.n
    bar:update(batch.n)
  end
  bar:finish()
  local all = cf.allreduce("+", sums)[1]:totable()
  return all[1] / count, all[2] / count, all[3] / count
end

local function evaluate()
  local network = read(options.weights or options.model)
  local key = images_of "val"
  check_classes(key, network.classes, not network.is_unnamed)
  local loss, first, among = judge(cf.replicate(nn.fold(network.model)), key, network.size)
  print(("loss %.4f  top-1 %.4f  top-5 %.4f  images %d"):format(loss, first, among, key:size()))
end

-- ---- training -----------------------------------------------------------------------------------------------

local function loss_of(m, batch)
  return nn.crossentropy(m(batch.image), batch.label)
end

-- The step at an epoch's end may leave devices without images, whose loss is no number: all means are over images.
local function train_epoch(models, states, loader, epoch, total)
  local bar = cf.progress(total, {label = ("epoch %d/%d"):format(epoch, options.epochs)})
  local sums = cf.withdevices(function() return cf.zeros {} end)
  local count = 0
  for _, batch in loader:epoch(epoch) do
    local losses, grads = cf.withdevices(function(i) return cf.withgradient(loss_of, models[i], batch[i]) end)
    cf.allreduce("avg", grads, {weights = batch})
    cf.withdevices(function(i)
      optim.update(states[i], models[i], grads[i])
      if batch[i].n > 0 then sums[i]:add_(losses[i] * batch[i].n) end
    end)
    count = count + batch.n
    bar:update(batch.n, {loss = losses[1]})
  end
  local loss = cf.allreduce("+", sums)[1]:item() / count
  return loss, bar:finish():rate()
end

-- Biases and the scales of batch norms do not decay.
local function decay_of(_, t)
  return {decay = t.ndim > 1 and 1e-4 or 0}
end

-- An hour's epoch is not to end in a file that cannot be written.
local function check_writable(path)
  local was_there = exists(path)
  local file, why = io.open(path, "a")
  if not file then fail("--model: " .. why) end
  file:close()
  if not was_there then os.remove(path) end
end

local function train()
  local key, held_out = images_of "train", images_of "val"
  local classes = names_of(key)
  if #classes < 2 then fail(options.data .. ": there is one class alone, " .. classes[1]) end
  check_classes(held_out, classes, true)
  check_writable(options.model)
  local network = begin(classes)
  local loader = cf.data.DataLoader(key, {batch = options.batch, shuffle = true, last = "drop", seed = options.seed,
    threads = options.threads, transform = training_transform(options.size)})
  local models = cf.replicate(network.model)
  local rule = optim.Momentum(optim.onecycle(options.lr, options.epochs * loader:steps()), 0.9)
  local states = cf.withdevices(function(i) return rule:setup(models[i], decay_of) end)
  print(("%s: %d images of %d classes, %d held out"):format(options.arch, key:size(), #network.classes,
    held_out:size()))
  local best = -1
  for epoch = 1, options.epochs do
    local loss, rate = train_epoch(models, states, loader, epoch, key:size())
    cf.synchronize(models) -- of the statistics each device has its own
    for _, model in ipairs(models) do model:eval() end
    local _, first, among = judge(models, held_out, options.size)
    for _, model in ipairs(models) do model:train() end
    print(("epoch %d/%d  loss %.4f  top-1 %.4f  top-5 %.4f  images/s %.1f"):format(epoch, options.epochs, loss, first,
      among, rate))
    if first > best then
      best, network.model = first, models[1]
      cf.save(options.model, network)
    end
  end
  print(("%s: top-1 %.4f"):format(options.model, best))
end

-- ---- predicting, exporting ----------------------------------------------------------------------------------

local function predict(paths)
  if #paths == 0 then quit "predict: no images" end
  local network = read(options.weights or options.model)
  local model, transform = nn.fold(network.model), evaluation_transform(network.size)
  for _, path in ipairs(paths) do
    local x = cf.data.image(path, transform):unsqueeze(1)
    local shares, ids = model(x):softmax():topk(math.min(TOP, #network.classes))
    print(path)
    for i, id in ipairs(ids[1]:totable()) do
      print(("  %5.1f %%  %s"):format(shares[1][i]:item() * 100, network.classes[id + 1]))
    end
  end
end

local function export(paths)
  if #paths ~= 1 then quit "export: expected the name of one file" end
  cf.zoo.save(paths[1], read(options.weights or options.model).model)
end

local commands = {train = train, eval = evaluate, predict = predict, export = export}

local others = read_options {...}
local command = table.remove(others, 1)
if not commands[command] then quit(command and ("there is no '%s'"):format(command) or "what is to be done?") end
if #others > 0 and (command == "train" or command == "eval") then quit("unknown argument " .. others[1]) end
io.stdout:setvbuf "line" -- so that a file or a pipe has an epoch's line when the epoch ends
if options.devices then cf.devices(options.devices) end
cf.seed(options.seed)
commands[command](others)
