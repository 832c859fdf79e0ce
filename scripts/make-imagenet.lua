-- Makes a data set in the layout of ImageNet on Kaggle, of JPEG files with the pictures of Fashion-MNIST, for
-- cf.data.imagenet and what is built on it:
--
--     build/bin/conflux scripts/make-imagenet.lua OUT --train 6000 --val 1000 --size 32
local cf = require "conflux"

-- A bundle may bring the files along; else they are where Debian's dataset-fashion-mnist installs them.
local function data_directory()
  local carried = arg[0]:gsub("[^/]*$", "") .. "../share/datasets/fashion-mnist"
  local file = io.open(carried .. "/train-labels-idx1-ubyte.gz")
  if not file then return "/usr/share/datasets/fashion-mnist" end
  file:close()
  return carried
end

local options = {data = data_directory(), train = 6000, val = 1000, size = 32, quality = 92}

local USAGE = ([[
usage: conflux scripts/make-imagenet.lua OUT [options]
  --data DIR   where the IDX files are (%s)
  --train N    pictures to train with  (6000)
  --val N      pictures to judge with  (1000)
  --size N     of each side, in pixels (32)
  --quality N  of the JPEG files       (92)
]]):format(options.data)

local function quit(message)
  io.stderr:write("make-imagenet.lua: ", message, "\n", USAGE)
  os.exit(2)
end

local function read_options(arguments)
  local i = 1
  while i <= #arguments do
    local name, value = arguments[i]:match "^%-%-(%a+)$", arguments[i + 1]
    if name == "help" then
      io.write(USAGE)
      os.exit(0)
    elseif not name then
      if options.out then quit("unknown argument " .. arguments[i]) end
      options.out = arguments[i]
      i = i + 1
    else
      if options[name] == nil or name == "out" then quit("unknown option " .. arguments[i]) end
      if value == nil then quit(arguments[i] .. " needs a value") end
      if name ~= "data" then
        local number = tonumber(value)
        if not number or number % 1 ~= 0 or number < 1 then
          quit(("%s: '%s' will not do"):format(arguments[i], value))
        end
        value = number
      end
      options[name] = value
      i = i + 2
    end
  end
  if not options.out then quit "OUT is missing" end
end

read_options {...}
cf.devices "cpu"

local CLASSES = {"T-shirt, top", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
  "ankle boot"}

-- Ten names of the kind that ImageNet has.
local function synset(id) return ("n%08d"):format(id + 1) end

local function quoted(path) return "'" .. path:gsub("'", "'\\''") .. "'" end

local function make_folder(path)
  if os.execute("mkdir -p " .. quoted(path)) ~= 0 then quit("cannot make " .. path) end
end

local function create(name)
  local file, why = io.open(options.out .. "/" .. name, "w")
  return file or quit(why)
end

local function finish(file)
  local is_written, why = file:close()
  if not is_written then quit(why) end
end

-- Pixels are those of the nearest neighbour.
local function enlarge(pictures)
  local size = options.size
  local ids = ((cf.arange(0, size - 1) + 0.5) * (28 / size)):floor():to "int64"
  return pictures:index(2, ids):index(3, ids)
end

local AT_ONCE = 1000 -- pictures that are enlarged

-- Writes n pictures of one of Fashion-MNIST's files, and the table of them.
local function make(split, kind, n, path_of)
  local images = cf.data.idx(("%s/%s-images-idx3-ubyte.gz"):format(options.data, kind))
  local labels = cf.data.idx(("%s/%s-labels-idx1-ubyte.gz"):format(options.data, kind)):totable()
  if n > #images then quit(("--%s: there are %d pictures"):format(split, #images)) end
  local solution = create(("LOC_%s_solution.csv"):format(split))
  solution:write "ImageId,PredictionString\n"
  local bar = cf.progress(n, {label = split})
  for first = 1, n, AT_ONCE do
    local last = math.min(n, first + AT_ONCE - 1)
    local part = enlarge(images[{{first, last}}])
    for i = first, last do
      local name, id = path_of(synset(labels[i]), i)
      cf.data.saveimage(("%s/ILSVRC/Data/CLS-LOC/%s/%s.JPEG"):format(options.out, split, name), part[i - first + 1],
        {quality = options.quality})
      solution:write(("%s,%s 0 0 %d %d \n"):format(id, synset(labels[i]), options.size - 1, options.size - 1))
      bar:update(1)
    end
  end
  bar:finish()
  finish(solution)
end

make_folder(options.out .. "/ILSVRC/Data/CLS-LOC/val")
local mapping = create "LOC_synset_mapping.txt"
for id = 0, 9 do
  make_folder(("%s/ILSVRC/Data/CLS-LOC/train/%s"):format(options.out, synset(id)))
  mapping:write(("%s %s\n"):format(synset(id), CLASSES[id + 1]))
end
finish(mapping)

make("train", "train", options.train, function(class, i)
  local id = ("%s_%d"):format(class, i)
  return class .. "/" .. id, id
end)
make("val", "t10k", options.val, function(_, i)
  local id = ("ILSVRC2012_val_%08d"):format(i)
  return id, id
end)
