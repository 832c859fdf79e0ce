--- Data: files of samples, and loaders that deal them out to devices.
-- @module conflux.data
local core = require "conflux.core"
local check = require "conflux.check"
local sealed = require "conflux.sealed"

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
local OPTIONS = {"batch", "shuffle", "last", "seed", "devices", "prefetch", "threads"}

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
  o = check.options("DataLoader", o, OPTIONS)
  local c = ffi.new "cfx_loader_options"
  c.size = ffi.sizeof(c)
  c.batch = check.integer("DataLoader", "batch", o.batch == nil and 1 or o.batch, 1)
  c.shuffle = o.shuffle ~= nil and check.boolean("DataLoader", "shuffle", o.shuffle) and 1 or 0
  c.last = LAST[o.last == nil and "keep" or o.last]
    or check.arg("DataLoader", "last", "'drop', 'pad' or 'keep'", check.describe(o.last))
  c.prefetch = check.integer("DataLoader", "prefetch", o.prefetch == nil and 2 or o.prefetch, 0, 1024)
  c.seed = check.integer("DataLoader", "seed", o.seed == nil and 0 or o.seed, 0, 2 ^ 53)
  c.threads = check.integer("DataLoader", "threads", o.threads == nil and 1 or o.threads, 1, 1024)
  return c
end

--- Makes a loader over tensors of equal length: `data` holds them by name or position, and batches have the same
-- keys.
--
-- Each step takes the next `batch` samples for every device.  With `shuffle`, the order of an epoch is the one
-- permutation of (seed, epoch) over all samples, whatever the devices.  `last` says what becomes of a short last
-- step: "keep" deals it out evenly, "drop" leaves it out, "pad" fills it up with the epoch's first samples.
-- `prefetch` steps are made ahead, by `threads` threads, whose number changes nothing in them.  The tensors cannot be written in place while the loader lives: see :release.
---@param data table<string|integer, conflux.Tensor>
---@param o? {batch: integer?, shuffle: boolean?, last: string?, seed: integer?, devices: conflux.Device[]?,
---  prefetch: integer?, threads: integer?}  default: 1, false, "keep", 0, cf.devices(), 2, 1
---@return conflux.DataLoader
local function new_loader(data, o)
  if type(data) ~= "table" then check.arg("DataLoader", "data", "a table of tensors", data) end
  local options = read_options(o)
  local devices = check.devices("DataLoader", "devices", type(o) == "table" and o.devices or nil)
  local keys = keys_of(data)
  if #keys == 0 then check.arg("DataLoader", "data", "at least one tensor", "none") end
  local columns = columns_of(data, keys)
  options.devices = #devices
  local list, out = ffi.new("cfx_device *[?]", #devices), ffi.new "cfx_loader *[1]"
  for i = 1, #devices do list[i - 1] = devices[i] end
  local array = core.ptrs(columns)
  local st = C.cfx_loader_new(options, #keys, array, list, out)
  if st ~= 0 then settle(st, C.cfx_loader_new, options, #keys, array, list, out) end
  local facts = {batch = tonumber(options.batch), devices = devices, seed = tonumber(options.seed),
    samples = tonumber(columns[1]._shape[0]), shuffle = options.shuffle == 1,
    last = type(o) == "table" and o.last or "keep"}
  return sealed.new(DataLoader, facts, {_loader = ffi.gc(out, C.cfx_loader_free), _keys = keys, _parts = #devices,
    _turn = 0, _epoch = 0, _step = 0, _resume = false})
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
-- `batch[i]` lies on device i and has the data's keys, and `n`, its samples; `batch.n` is the total.  Steps count
-- from 1.  An epoch left early is cancelled by the next; one that `restore` interrupted goes on behind its step.
---@param e integer  from 0; the order of the samples is that of (seed, e)
---@return fun(): integer?, table?
function DataLoader:epoch(e)
  local loader = loader_of(self, "epoch")
  check.integer("DataLoader.epoch", "epoch", e, 0, 2 ^ 53)
  local first = 0
  if self._resume and self._resume.epoch == e then first = self._resume.step end
  self._resume = false
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

--- Where the loader is: a table that can be saved.
---@return {epoch: integer, step: integer, seed: integer, shuffle: boolean, last: string, total: integer,
---  samples: integer}
function DataLoader:state()
  check.self(DataLoader, "data.DataLoader", "state", self)
  return {epoch = self._epoch, step = self._step, seed = self.seed, shuffle = self.shuffle, last = self.last,
    total = self.batch * self._parts, samples = self.samples}
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
  self._resume = {epoch = s.epoch, step = s.step}
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

return {idx = idx, csv = csv, DataLoader = new_loader}
