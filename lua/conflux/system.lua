--- The run: its devices, random streams, precision, memory, and what Conflux says of itself.
-- @module conflux.system
local core  = require "conflux.core"
local check = require "conflux.check"

local C, ffi = core.C, core.ffi
local tonumber, tostring, type = tonumber, tostring, type

local system = {}

--- The version of Conflux.
system.version = ffi.string(C.cfx_version())

--- The run's devices; with `spec`, names separated by commas such as "cpu*2", those are made the run's.  Refused
-- while tensors live on a device that would vanish.
---@param spec? string  default: no change
---@return conflux.Device[]
function system.devices(spec)
  return core.devices(type(spec) ~= "nil" and check.text("devices", "spec", spec) or nil)
end

--- The device of that name, or the default device: cpu:0, inside withdevices the closure's.
---@param name? string|conflux.Device  "cpu:1"; "cpu" is "cpu:0"
---@return conflux.Device
function system.device(name)
  return check.device("device", "name", name)
end

--- Waits until everything enqueued (on `device`) has run, and raises the first error found there.
---@param device? string|conflux.Device  default: all
function system.sync(device)
  if type(device) ~= "nil" then device = check.device("sync", "device", device) end
  local st = C.cfx_sync(core.context(), device)
  if st ~= 0 then core.settle(st, C.cfx_sync, core.context(), device) end
end

--- Bytes of a device's pool: in live tensors (`in_use`), taken from the system (`reserved`), the most ever in use
-- (`peak`), the `limit`; and the number of live `blocks`.
---@param device? string|conflux.Device default: the default device
---@return {in_use: number, reserved: number, peak: number, limit: number, blocks: integer}
function system.memory(device)
  device = check.device("memory", "device", device)
  local info = ffi.new "cfx_memory_info"
  C.cfx_memory(device, info)
  return {in_use = info.in_use, reserved = info.reserved, peak = info.peak, limit = info.limit, blocks = info.blocks}
end

-- ---- random streams ---------------------------------------------------------------------------------------

-- Packs 64 bits for a state: a number, or where that is not exact the digits.
local function pack(value)
  return value <= 2ULL ^ 53 and tonumber(value) or tostring(value):match "^%d+"
end

local function unpack(fname, name, value)
  if type(value) == "number" then return ffi.cast("uint64_t", check.integer(fname, name, value, 0, 2 ^ 53)) end
  if type(value) == "cdata" and ffi.istype("uint64_t", value) then return value end
  return type(value) == "string" and core.uint64(value)
    or check.wrong(fname, name, "an integer from 0 to 2^53, or the digits of one below 2^64", value)
end

--- Starts all random streams anew.
---@param n integer|string  from 0 to 2^53, or the digits of up to 64 bits
function system.seed(n)
  C.cfx_seed(core.context(), unpack("seed", "n", n))
end

-- C's number of the stream at that position of a state: in a world devices' streams go on from rank to rank.
local function stream_of(position)
  return position > 1 and core.world and core.world.before + position - 1 or position - 1
end

--- The state of the random streams, a table that `cf.rng` and `cf.save` take: position 1 is the shared stream,
-- i + 1 that of device i.  With `state`, goes back to it.
--
-- A state belongs to a run of as many devices as the one that gave it, for the streams of other devices could only be
-- made up; a run of more or fewer refuses it.  To go on there all the same, say with which streams:
--
--     local streams = cf.rng()
--     streams[1] = saved[1] -- the shared one goes on; those of the devices are new ones
--     cf.rng(streams)
---@param state? {seed: integer|string, position: integer|string}[]
---@return {seed: integer|string, position: integer|string}[]
function system.rng(state)
  local context = core.context()
  local seed, position = ffi.new "uint64_t[1]", ffi.new "uint64_t[1]"
  if state ~= nil then
    if type(state) ~= "table" then check.arg("rng", "state", "a table that cf.rng() gave", check.describe(state)) end
    local n, devices = check.length("rng", "state", state), C.cfx_device_count(context)
    for i = 1, n do -- all are read before one is set
      local name = ("state[%d]"):format(i)
      if type(state[i]) ~= "table" then check.arg("rng", name, "a table", check.describe(state[i])) end
      unpack("rng", name .. ".seed", state[i].seed)
      unpack("rng", name .. ".position", state[i].position)
    end
    if n ~= devices + 1 then
      check.arg("rng", "state", ("the shared stream and one for each of %d devices (see cf.rng)"):format(devices),
        n == 0 and "none" or ("that of a run on %d"):format(n - 1))
    end
    for i = 1, n do
      local st = C.cfx_rng_set(context, stream_of(i), unpack("rng", "seed", state[i].seed),
        unpack("rng", "position", state[i].position))
      if st ~= 0 then core.settle(st) end
    end
  end
  local now = {}
  for i = 0, C.cfx_device_count(context) do
    C.cfx_rng_get(context, stream_of(i + 1), seed, position)
    now[i + 1] = {seed = pack(seed[0]), position = pack(position[0])}
  end
  return now
end

-- ---- precision --------------------------------------------------------------------------------------------

local precision = "float32"

--- How matrix products of float32 tensors may be computed where a device gains by it: "float32" (exact), "tf32",
-- "bfloat16".  The CPU computes them exactly in any case.  Returns what holds.
---@param name? "float32"|"tf32"|"bfloat16"  default: no change
---@return string
function system.precision(name)
  if name ~= nil then
    check.text("precision", "name", name)
    local st = C.cfx_precision(core.context(), name)
    if st ~= 0 then core.settle(st) end
    precision = name
  end
  return precision
end

-- ---- info -------------------------------------------------------------------------------------------------

---@class conflux.Backend
---@field name string        "cpu", "cuda"
---@field devices string[]   what each device of this machine is
---@field reason? string     why there is none
---@field libraries string   what it rests on, with versions; "" where that is not known

--- The result of `cf.info()`.  Prints itself.
---@class conflux.Info
---@field version string
---@field abi integer
---@field build string       type, compiler, processor
---@field lua string
---@field os string
---@field arch string
---@field libraries string   those that no backend brings, with versions
---@field backends conflux.Backend[]
---@field devices {name: string, threads: integer, memory: table}[]  the run's
---@field groups {devices: string[], group: string}[]  how replicas on the run's devices are joined: "self", "local"
---                           (in each other's memory), "nccl", "local + nccl", or "none"
---@field reason? string     why the run has no devices
---@field precision string
local Info = {}

local function describe_backend(b)
  local rests_on = b.libraries ~= "" and (" (%s)"):format(b.libraries) or ""
  if b.reason then return ("%s: none: %s%s"):format(b.name, b.reason, rests_on) end
  if #b.devices == 1 then return ("%s: %s%s"):format(b.name, b.devices[1], rests_on) end
  local lines = {("%s: %d devices%s"):format(b.name, #b.devices, rests_on)}
  for i = 1, #b.devices do
    lines[i + 1] = ("  %s:%d: %s"):format(b.name, i - 1, b.devices[i])
  end
  return table.concat(lines, "\n")
end

function Info:__tostring()
  local lines = {
    ("Conflux %s (%s) -- %s"):format(self.version, self.build, self.lua),
    ("ABI %d, %s %s, %s"):format(self.abi, self.os, self.arch, self.libraries),
  }
  for i = 1, #self.backends do lines[#lines + 1] = describe_backend(self.backends[i]) end
  if self.reason then lines[#lines + 1] = "run: none: " .. self.reason end
  for i = 1, #self.devices do
    local d = self.devices[i]
    local threads = d.name:find "^cpu" and ("%d thread%s, "):format(d.threads, d.threads == 1 and "" or "s") or ""
    lines[#lines + 1] = ("run: %s: %s%.1f of at most %.0f MiB in use"):format(d.name, threads,
      d.memory.in_use / 2 ^ 20, d.memory.limit / 2 ^ 20)
  end
  for i = 1, #self.groups do lines[#lines + 1] = "replicas are joined by: " .. self.groups[i].group end
  lines[#lines + 1] = "precision: " .. self.precision
  return table.concat(lines, "\n")
end

local function backends()
  local list, info, text = {}, ffi.new "cfx_backend_info", ffi.new "char[256]"
  for i = 0, C.cfx_backend_count() - 1 do
    C.cfx_backend(i, info)
    local backend = {name = ffi.string(info.name), devices = {}, libraries = ffi.string(info.libraries)}
    if info.devices == 0 then backend.reason = ffi.string(info.reason) end
    for d = 0, info.devices - 1 do
      C.cfx_backend_device(i, d, text, ffi.sizeof(text))
      backend.devices[d + 1] = ffi.string(text)
    end
    list[i + 1] = backend
  end
  return list
end

-- How replicas on these devices would be joined.
local function group(devices)
  local list, text, names = ffi.new("cfx_device *[?]", #devices), ffi.new "char[64]", {}
  for i = 1, #devices do
    list[i - 1] = devices[i]
    names[i] = devices[i].name
  end
  C.cfx_group(#devices, list, text, ffi.sizeof(text))
  return {devices = names, group = ffi.string(text)}
end

--- Describes this installation and run: versions, backends with their devices, the run's devices with threads and
-- memory, precision.  Prints itself.  A part that is missing says why, and so does a run whose devices do not exist.
---@return conflux.Info
function system.info()
  local info = {version = system.version, abi = C.cfx_abi_version(), build = ffi.string(C.cfx_build()),
    lua = jit.version, os = jit.os, arch = jit.arch, libraries = ffi.string(C.cfx_libraries()), backends = backends(),
    devices = {}, precision = precision}
  local has_run, devices = pcall(core.devices)
  if not has_run then
    info.reason = tostring(devices):gsub("^.-conflux: ", "")
    devices = {}
  end
  for i, device in ipairs(devices) do
    info.devices[i] = {name = device.name, threads = device.threads, memory = system.memory(device)}
  end
  info.groups = {#devices > 0 and group(devices) or nil}
  return setmetatable(info, Info)
end

return system
