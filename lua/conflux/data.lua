--- Data: files of samples, and loaders that deal them out to devices.
-- @module conflux.data
local core = require "conflux.core"
local check = require "conflux.check"
local images = require "conflux.images"
local make = require "conflux.make"
local transforms = require "conflux.transforms"
local sealed = require "conflux.sealed"
local world = require "conflux.dist.world"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local tonumber, tostring, type = tonumber, tostring, type
local each = core.each
local sort = table.sort
local counts_t, pointers_t = ffi.typeof "int64_t[?]", ffi.typeof "cfx_tensor *[?]"

-- ---- files --------------------------------------------------------------------------------------------------

--- An IDX file (the format of MNIST), plain or gzip, as a tensor of the file's type and shape.
---@param path string
---@param o? {device: (conflux.Device|string)?}
---@return conflux.Tensor
local function idx(path, o)
  check.text("data.idx", "path", path)
  o = check.options("data.idx", o, {"device"})
  local device, out = check.device("data.idx", "device", o.device), new()
  local st = C.cfx_idx_read(device, path, out)
  if st ~= 0 then settle(st, C.cfx_idx_read, device, path, out) end
  return out
end

--- Numbers of a text file, plain or gzip, one row a line, as a tensor [rows, columns].
---@param path string
---@param o? {separator: string?, skip: integer?, dtype: "float32"|"float64"|nil, device: (conflux.Device|string)?}
---  default: ",", 0 lines, float32
---@return conflux.Tensor
local function csv(path, o)
  check.text("data.csv", "path", path)
  o = check.options("data.csv", o, {"separator", "skip", "dtype", "device"})
  local separator = check.string("data.csv", "separator", o.separator or ",")
  if #separator ~= 1 then check.arg("data.csv", "separator", "one character", check.describe(separator)) end
  local skip = check.integer("data.csv", "skip", o.skip or 0, 0, 2 ^ 31 - 1)
  local dtype = check.dtype("data.csv", "dtype", o.dtype or "float32")
  if dtype ~= core.dtype.float32 and dtype ~= core.dtype.float64 then
    check.arg("data.csv", "dtype", "'float32' or 'float64'", check.describe(o.dtype))
  end
  local device, out = check.device("data.csv", "device", o.device), new()
  local st = C.cfx_csv_read(device, path, separator:byte(), skip, dtype, out)
  if st ~= 0 then settle(st, C.cfx_csv_read, device, path, separator:byte(), skip, dtype, out) end
  return out
end

-- ---- DataLoader ---------------------------------------------------------------------------------------------

--- Deals samples out to devices, step by step; threads of its own make the next ones.
---@class conflux.DataLoader
---@field devices conflux.Device[]
---@field batch integer    samples of a step for each device
---@field samples integer  how many there are
---@field seed integer
---@field shuffle boolean
---@field last "drop"|"pad"|"keep"
local DataLoader = sealed.class("DataLoader", "loader")

local LAST = {drop = 0, pad = 1, keep = 2}
local SAME = {"seed", "shuffle", "last", "total", "samples"} -- in a state: what says which samples a step takes
local OPTIONS = {"batch", "shuffle", "last", "seed", "devices", "prefetch", "threads", "shard"}
local KEY_OPTIONS = {"transform", "dtype", "mean", "deviation", "scaled", "bad", "max_bad", unpack(OPTIONS)}
local BAD = {replace = 0, skip = 1}
local COLUMNS = {"image", "label"} -- of a key's batches

-- The data's keys in tree order.
local function keys_of(data)
  local keys, names = {}, {}
  for key in each, data do
    if type(key) == "string" then
      names[#names + 1] = key
    elseif not (type(key) == "number" and key >= 1 and key <= #data and key % 1 == 0) then
      check.arg("DataLoader", "data", "string keys, or positions from 1", "the key " .. tostring(key))
    end
  end
  for i = 1, #data do keys[i] = i end
  sort(names)
  for i = 1, #names do keys[#keys + 1] = names[i] end
  return keys
end

-- The columns on a CPU device, packed.
local function columns_of(data, keys)
  local columns = {}
  for i = 1, #keys do
    local x = data[keys[i]]
    local name = ("data.%s"):format(keys[i])
    if not is_tensor(x) or x._ndim == 0 then
      check.arg("DataLoader", name, "a tensor with a row for each sample", check.describe(x))
    end
    if columns[1] and x._shape[0] ~= columns[1]._shape[0] then
      check.arg("DataLoader", name, ("%d rows, as data.%s has"):format(tonumber(columns[1]._shape[0]), keys[1]),
        check.describe(x))
    end
    if not tostring(x.device):find "^cpu" then x = x:to "cpu" end
    columns[i] = x:detach():contiguous()
  end
  return columns
end

local function read_options(o)
  local c = ffi.new "cfx_loader_options"
  c.size = ffi.sizeof(c)
  c.batch = check.integer("DataLoader", "batch", o.batch == nil and 1 or o.batch, 1)
  c.shuffle = o.shuffle ~= nil and check.boolean("DataLoader", "shuffle", o.shuffle) and 1 or 0
  c.last = LAST[o.last == nil and "keep" or o.last]
    or check.arg("DataLoader", "last", "'drop', 'pad' or 'keep'", check.describe(o.last))
  c.prefetch = check.integer("DataLoader", "prefetch", o.prefetch == nil and 2 or o.prefetch, 0, 1024)
  c.seed = check.integer("DataLoader", "seed", o.seed == nil and 0 or o.seed, 0, 2 ^ 53)
  c.threads = check.integer("DataLoader", "threads", o.threads == nil and 0 or o.threads, o.threads and 1 or 0, 1024)
  return c
end

-- Options that say how bad samples are dealt with.
local function read_bad(o, c)
  local bad = o.bad
  if bad == nil then bad = c.shuffle == 1 and "replace" or "skip" end
  c.skip_bad = BAD[bad] or check.arg("DataLoader", "bad", "'replace' or 'skip'", check.describe(bad))
  c.max_bad = check.number("DataLoader", "max_bad", o.max_bad == nil and 0.01 or o.max_bad)
  if not (c.max_bad >= 0 and c.max_bad <= 1) then check.arg("DataLoader", "max_bad", "0 to 1", c.max_bad) end
end

-- The devices of all ranks that share the steps, and this rank's first among them.  A collective: all ranks must make
-- the same loader.
local function shards_of(o, c, samples)
  local shard, own = o.shard, c.devices
  if shard == nil then shard = core.world ~= nil else check.boolean("DataLoader", "shard", shard) end
  if not shard then return own, 0 end
  local w = world.required "DataLoader"
  local call = ("DataLoader (%d samples, batch %d, shuffle %s, last %s, seed %s)"):format(samples, tonumber(c.batch),
    tostring(c.shuffle == 1), tostring(o.last or "keep"), tostring(c.seed):match "%d+")
  core.at_line()
  local counts, before, total = world.numbers(w, call, own), 0, 0
  for r = 1, w.size do
    if r <= w.rank then before = before + counts[r] end
    total = total + counts[r]
  end
  return total, before
end

-- Loaders in a box, with the keys of their batches and the number of their samples.
local function load_columns(data, c, list, o)
  local keys, out = keys_of(data), ffi.new "cfx_loader *[1]"
  if #keys == 0 then check.arg("DataLoader", "data", "at least one tensor", "none") end
  local columns = columns_of(data, keys)
  c.shards, c.first = shards_of(o, c, tonumber(columns[1]._shape[0]))
  local array = core.ptrs(columns)
  local st = C.cfx_loader_new(c, #keys, array, list, out)
  if st ~= 0 then settle(st, C.cfx_loader_new, c, #keys, array, list, out) end
  return out, keys, tonumber(columns[1]._shape[0])
end

local function load_images(key, c, list, o)
  local out, list_of = ffi.new "cfx_loader *[1]", images.images_of(key, "DataLoader")
  local image = transforms.options("DataLoader", o.transform, o)
  read_bad(o, c)
  c.shards, c.first = shards_of(o, c, key:size())
  local st = C.cfx_loader_images(c, list_of, image, list, out)
  if st ~= 0 then settle(st, C.cfx_loader_images, c, list_of, image, list, out) end
  return out, COLUMNS, key:size()
end

--- Makes a loader over tensors of equal length, or over pictures.  Tensors are held by name or position in `data`, and
-- batches have the same keys; a key (cf.data.images, cf.data.imagenet) gives batches with `image`, which is
-- [n, height, width, 3], and `label`, the ids.
--
-- Each step takes the next `batch` samples for every device.  With `shuffle`, the order of an epoch is the one
-- permutation of (seed, epoch) over all samples, whatever the devices.  `last` says what becomes of a short last
-- step: "keep" deals it out evenly, "drop" leaves it out, "pad" fills it up with the epoch's first samples.
-- `prefetch` steps are made ahead, by `threads` threads, whose number changes nothing in them.  The tensors cannot be
-- written in place while the loader lives: see :release.
--
-- With `shard`, the default after cf.dist.init, the devices of all ranks share each step, in the order of the ranks:
-- each rank has its own devices' part of it, so that the samples are those of one process with as many devices.  All
-- ranks must make the loader then.  Without it a rank goes through all samples by itself.
--
-- Pictures take more options.  `transform` ends in one size for all.  float32 is (x / 255 - mean) / deviation, uint8
-- the bytes.  Random numbers are those of (seed, epoch, position in the key).  A file that cannot be decoded is
-- replaced by the next one of the epoch's order, or skipped; both are counted (:bad), and more than max_bad of all are
-- an error.
---@param data table<string|integer, conflux.Tensor>|conflux.Images
---@param o? {batch: integer?, shuffle: boolean?, last: string?, seed: integer?, devices: conflux.Device[]?,
---  prefetch: integer?, threads: integer?, shard: boolean?, transform: conflux.Transform|conflux.Transform[]|nil,
---  dtype: "float32"|"uint8"|nil, mean: number[]?, deviation: number[]?, scaled: boolean?, bad: "replace"|"skip"|nil,
---  max_bad: number?}
---  default: 1, false, "keep", 0, cf.devices(), 2, one (of pictures half the cores), true after cf.dist.init; none,
---  "float32", ImageNet's, true, "replace" with shuffle, else "skip", 0.01
---@return conflux.DataLoader
local function new_loader(data, o)
  if type(data) ~= "table" then check.arg("DataLoader", "data", "a table of tensors, or a key", data) end
  local is_key = images.is_key(data)
  o = check.options("DataLoader", o, is_key and KEY_OPTIONS or OPTIONS)
  local c = read_options(o)
  local devices = check.devices("DataLoader", "devices", o.devices)
  local list = ffi.new("cfx_device *[?]", #devices)
  for i = 1, #devices do list[i - 1] = devices[i] end
  c.devices = #devices
  local load = is_key and load_images or load_columns
  local out, keys, samples = load(data, c, list, o)
  local facts = {batch = tonumber(c.batch), devices = devices, seed = tonumber(c.seed), samples = samples,
    shuffle = c.shuffle == 1, last = o.last == nil and "keep" or o.last}
  return sealed.new(DataLoader, facts, {_loader = ffi.gc(out, C.cfx_loader_free), _keys = keys, _parts = #devices,
    _total = tonumber(c.batch) * c.shards, _turn = 0, _epoch = 0, _step = 0, _bad = 0, _resume = false})
end

-- The loader in its box, which is empty once it was released, or the collector has freed it at the state's end.
local function loader_of(self, method)
  check.self(DataLoader, "data.DataLoader", method, self)
  local loader = self._loader[0]
  if loader == nil then check.fail("DataLoader." .. method, "the loader was released") end
  return loader
end

--- Steps of an epoch.
---@return integer
function DataLoader:steps()
  return C.cfx_loader_steps(loader_of(self, "steps"))
end

-- The next step's batch, or nil.
local function next_batch(self, loader)
  local keys, parts = self._keys, self._parts
  local n = #keys
  local counts, array = counts_t(parts), pointers_t(parts * n)
  local batch = {n = 0}
  for i = 1, parts do
    local part = {}
    batch[i] = part
    for k = 1, n do
      local t = new()
      part[keys[k]], array[(i - 1) * n + k - 1] = t, t
    end
  end
  local more = ffi.new "int32_t[1]"
  local st = C.cfx_loader_next(loader, counts, array, more)
  if st ~= 0 then settle(st, C.cfx_loader_next, loader, counts, array, more) end
  if more[0] == 0 then return nil end
  for i = 1, parts do
    batch[i].n = tonumber(counts[i - 1])
    batch.n = batch.n + batch[i].n
  end
  return batch
end

--- Goes through epoch `e`: `for step, batch in loader:epoch(e) do`.
--
-- `batch[i]` lies on device i and has the data's keys, and `n`, its samples; `batch.n` is the total of this process.
-- Steps count from 1.  An epoch left early is cancelled by the next; one that `restore` interrupted goes on behind its
-- step.
---@param e integer  from 0; the order of the samples is that of (seed, e)
---@return fun(): integer?, table?
function DataLoader:epoch(e)
  local loader = loader_of(self, "epoch")
  check.integer("DataLoader.epoch", "epoch", e, 0, 2 ^ 53)
  local first, bad = 0, 0
  if self._resume and self._resume.epoch == e then first, bad = self._resume.step, self._resume.bad end
  self._resume, self._bad = false, bad
  local st = C.cfx_loader_begin(loader, e, first)
  if st ~= 0 then settle(st, C.cfx_loader_begin, loader, e, first) end
  self._turn = self._turn + 1
  self._epoch, self._step = e, first
  local turn = self._turn
  return function()
    local now = loader_of(self, "epoch")
    if turn ~= self._turn then check.fail("DataLoader.epoch", "another epoch was begun meanwhile") end
    local batch = next_batch(self, now)
    if not batch then return nil end
    self._step = self._step + 1
    return self._step, batch
  end
end

-- How many samples of the epoch were bad, and why of the first ten that this loader has met.
local function bad_of(self)
  local count, named = ffi.new "int64_t[1]", ffi.new "const char *[10]"
  if self._loader[0] == nil then return self._bad, {} end
  local st = C.cfx_loader_bad(self._loader[0], count, 10, named)
  if st ~= 0 then settle(st, C.cfx_loader_bad, self._loader[0], count, 10, named) end
  local list = {}
  for i = 1, 10 do list[i] = named[i - 1] ~= nil and ffi.string(named[i - 1]) or nil end
  return self._bad + tonumber(count[0]), list
end

--- How many bad samples the epoch's steps had so far, and the first ten files with what is wrong with them.
---@return integer
---@return string[]
function DataLoader:bad()
  loader_of(self, "bad")
  return bad_of(self)
end

--- Where the loader is: a table that can be saved.
---@return {epoch: integer, step: integer, seed: integer, shuffle: boolean, last: string, total: integer,
---  samples: integer, bad: integer}
function DataLoader:state()
  check.self(DataLoader, "data.DataLoader", "state", self)
  return {epoch = self._epoch, step = self._step, seed = self.seed, shuffle = self.shuffle, last = self.last,
    total = self._total, samples = self.samples, bad = self._resume and self._resume.bad or (bad_of(self))}
end

--- Takes up a state: the next `:epoch(s.epoch)` goes on behind step `s.step`.  Returns the loader.
---@param s table  what :state() returned, of a loader with the same seed, shuffle, last, samples and batch over all
---  devices
---@return conflux.DataLoader
function DataLoader:restore(s)
  check.self(DataLoader, "data.DataLoader", "restore", self)
  if type(s) ~= "table" then check.arg("DataLoader.restore", "state", "what :state() returned", s) end
  local mine = self:state()
  for _, key in ipairs(SAME) do
    -- Earlier versions' states do not say shuffle and last.  They are refused: the samples dealt from here on would be
    -- others wherever the loader was another, and nothing would show it.
    if s[key] == nil then
      check.fail("DataLoader.restore", "the state does not say its %s; if its loader had what this one has, set "
        .. "state.%s = %s", key, key, type(mine[key]) == "string" and ("%q"):format(mine[key]) or tostring(mine[key]))
    elseif s[key] ~= mine[key] then
      check.fail("DataLoader.restore", "the state is of another loader: its %s is %s, here it is %s", key,
        check.describe(s[key]), check.describe(mine[key]))
    end
  end
  check.integer("DataLoader.restore", "epoch", s.epoch, 0)
  check.integer("DataLoader.restore", "step", s.step, 0, self:steps())
  local bad = check.integer("DataLoader.restore", "bad", s.bad == nil and 0 or s.bad, 0)
  self._resume = {epoch = s.epoch, step = s.step, bad = bad}
  self._epoch, self._step = s.epoch, s.step
  self._turn = self._turn + 1
  return self
end

--- Gives the loader's memory back now rather than at the next collection; its tensors can then be written in place
-- again.  May be called twice; whatever else is done with it afterwards is an error.
function DataLoader:release()
  check.self(DataLoader, "data.DataLoader", "release", self)
  C.cfx_loader_free(self._loader)
  self._turn = self._turn + 1
end

function DataLoader:__tostring()
  local steps = self._loader[0] ~= nil and ("%d steps"):format(self:steps()) or "no steps, as it was released,"
  return ("DataLoader(%d samples in %s on %d devices)"):format(self.samples, steps, self._parts)
end

-- The first batch of a loader over n pictures.
local function first_batch(key, n, seed, device, o, max_bad)
  local loader = new_loader(key, {batch = n, seed = seed, transform = o.transform, dtype = o.dtype, mean = o.mean,
    deviation = o.deviation, scaled = o.scaled, threads = o.threads, bad = "replace", max_bad = max_bad,
    devices = {device}})
  local _, batch = loader:epoch(0)()
  loader:release()
  return batch[1]
end

local function draw_seed(fname, seed)
  if seed == nil then seed = make.randint(0, 2 ^ 31 - 1, 1, {dtype = "int64", device = "cpu"}):item() end
  return check.integer(fname, "seed", seed, 0, 2 ^ 53)
end

--- A batch of n pictures drawn at random, with replacement: a table with `image`, `label` and `n`.
---@param key conflux.Images
---@param n integer
---@param o? {seed: integer?, transform: conflux.Transform|conflux.Transform[]|nil, dtype: "float32"|"uint8"|nil,
---  mean: number[]?, deviation: number[]?, scaled: boolean?, threads: integer?, device: (conflux.Device|string)?}
---  default: a number of cf.randint, and as a DataLoader has
---@return {image: conflux.Tensor, label: conflux.Tensor, n: integer}
local function minibatch(key, n, o)
  local fname = "data.minibatch"
  o = check.options(fname, o, {"seed", "transform", "dtype", "mean", "deviation", "scaled", "threads", "device"})
  local seed = draw_seed(fname, o.seed)
  return first_batch(images.draw(fname, key, n, seed), n, seed, check.device(fname, "device", o.device), o, 1)
end

local SEEN = {transforms.transforms.resize(256), transforms.transforms.centrecrop(224)}

--- Prints what a model makes of n pictures drawn at random: for each its path, its class, and the likeliest classes
-- with their probabilities.  The model is called as it is; model:eval() comes first.
---@param model fun(image: conflux.Tensor): conflux.Tensor  gives logits [n, classes]
---@param key conflux.Images
---@param n integer
---@param o? {top: integer?, seed: integer?, transform: conflux.Transform|conflux.Transform[]|nil, mean: number[]?,
---  deviation: number[]?, device: (conflux.Device|string)?}
---  default: 5 (or all classes), a number of cf.randint, the shorter side to 256 and the middle 224, ImageNet's
---@return {path: string, class: string, predictions: {class: string, probability: number}[]}[]
local function showpreds(model, key, n, o)
  local fname = "data.showpreds"
  o = check.options(fname, o, {"top", "seed", "transform", "mean", "deviation", "device"})
  local seed = draw_seed(fname, o.seed)
  local drawn = images.draw(fname, key, n, seed)
  local top = check.integer(fname, "top", o.top == nil and math.min(5, #key.classes) or o.top, 1, #key.classes)
  local look = {transform = o.transform == nil and SEEN or o.transform, mean = o.mean, deviation = o.deviation}
  local batch = first_batch(drawn, n, seed, check.device(fname, "device", o.device), look, 0)
  local values, ids = model(batch.image):softmax(-1):topk(top)
  values, ids = values:totable(), ids:totable()
  local list = {}
  for i = 1, n do
    local picture, lines, predictions = drawn[i], {}, {}
    for k = 1, top do
      local class = key.classes[ids[i][k] + 1].name
      predictions[k] = {class = class, probability = values[i][k]}
      lines[k] = ("%s %.3f"):format(class, values[i][k])
    end
    list[i] = {path = picture.path, class = key.classes[picture.id + 1].name, predictions = predictions}
    print(("%s  %s: %s"):format(picture.path, list[i].class, table.concat(lines, ", ")))
  end
  return list
end

return {idx = idx, csv = csv, DataLoader = new_loader, minibatch = minibatch, showpreds = showpreds,
  images = images.images, imagenet = images.imagenet, labels = images.labels, solutions = images.solutions,
  image = images.image, saveimage = images.saveimage, transforms = transforms.transforms}
