--- Core: the C library, its context, its devices, and how a call into it ends.
--
-- Every wrapper of this library is written the same way, without closures, tables or varargs:
--
--     local out = new()
--     local st = C.cfx_binary(op, a, b, out)
--     if st ~= 0 then settle(st, C.cfx_binary, op, a, b, out) end
--     return out
--
-- LuaJIT makes a ctype, its metatable and the handle of a shared library once per state, so this module's
-- table lives in the registry and a second load gets it back; the other modules then fill the same metatables.
-- @module conflux.core
local ffi = require "ffi"
local registry = debug.getregistry()
if registry["conflux.core"] then return registry["conflux.core"] end

local collectgarbage, error, tonumber, tostring, type = collectgarbage, error, tonumber, tostring, type
local table_new = require "table.new"
local getinfo = debug.getinfo

local ABI = 1
local CFX_EMEMORY, CFX_EIO, CFX_ESTATE, CFX_EINTERRUPT = 2, 4, 5, 6

-- ---- the library ------------------------------------------------------------------------------------------

ffi.cdef [[
  int32_t cfx_abi_version(void);
  const char *cfx_cdef(void);
  typedef struct cf_time { long s, ns; } cf_time;
  int cf_clock_gettime(int clock, cf_time *now) __asm__("clock_gettime");
]]

-- Where plain luajit finds the C core: where CONFLUX_LIBRARY says, where an install of this file has put it, on
-- package.cpath (LuaRocks), and else where the system looks.
local function library()
  local wanted = os.getenv "CONFLUX_LIBRARY"
  if wanted and wanted ~= "" then return wanted end
  local is_installed, place = pcall(require, "conflux.installed")
  local path = is_installed and getinfo(1, "S").source:match "^@(.*/)" .. place
  local file = path and io.open(path)
  if file then
    file:close()
    return path
  end
  return package.searchpath("libconflux", package.cpath) or "conflux"
end

-- The program `conflux`, and others that link it, have the C core among their symbols; a plugin of another program
-- has it for itself, and conflux.host says where; plain luajit loads it.
local has_host, host = pcall(require, "conflux.host")
if not has_host then host = {} end
local is_inside = pcall(function() return ffi.C.cfx_abi_version end)
local C = is_inside and ffi.C or ffi.load(host.library or library())
if C.cfx_abi_version() ~= ABI then
  error(("conflux: the Lua library expects ABI %d, the C library has %d: install both from one version")
    :format(ABI, C.cfx_abi_version()), 0)
end
-- LuaJIT boxes an enum result in a new object; a status as a plain int costs nothing.  And it converts no array
-- of pointers to one of pointers to const, so that one array of handles could not serve all functions.
ffi.cdef((ffi.string(C.cfx_cdef())
  :gsub("%f[%w_]cfx_status (cfx_)", "int32_t %1")
  :gsub("const cfx_tensor %*const %*", "cfx_tensor *const *")))

-- Filled by conflux.tensor and conflux.ops.  A finaliser is C and cannot fail.
local tensor_meta = {__gc = C.cfx_release}
local device_meta = {}
local tensor_t = ffi.metatype("cfx_tensor", tensor_meta)
ffi.metatype("struct cfx_device", device_meta)

local dtype, dtypes = {}, {}
for i = 0, tonumber(C.CFX_DTYPES) - 1 do
  dtypes[i] = ffi.string(C.cfx_dtype_name(i))
  dtype[dtypes[i]] = i
end

-- Numbers of operations by name; a name that the C core lacks fails while the library loads.
local op = setmetatable({}, {__index = function(self, name)
  local number = C.cfx_op_find(name)
  if number < 0 then error("conflux: the C library has no operation '" .. name .. "'", 0) end
  self[name] = number
  return number
end})

-- ---- errors -----------------------------------------------------------------------------------------------

-- Frames whose chunks lie beside this one are inside Conflux.
local home = getinfo(1, "S").source:match "^(.*)core%.lua$" or "@conflux/"

--- Source and line of the first frame outside Conflux, or nil in a coroutine that has none (after a tail call).
---@param first? integer  the level to begin at, counted from here; default: 2, the function that asks
---@return string? source, integer? line
local function caller(first)
  for level = first or 2, math.huge do -- a walk through a deep tree takes hundreds
    local info = getinfo(level, "Sl")
    if not info then return end
    if info.what ~= "C" and info.source:sub(1, #home) ~= home then return info.short_src, info.currentline end
  end
end

local core = {}

-- Every loop over a table's fields says `in each, t`.  A loop over what is called pairs or next gets bytecode of
-- its own, and where LuaJIT compiles one of Debian 12's age it may end early (LuaJIT issue 827): parameters
-- without a gradient.
local each = next
core.each = each

--- Raises `message`, blamed on the first frame outside Conflux, with the path of the layer that is running:
-- `core.layer_path`, which conflux.nn installs.
---@param message string
local function raise(message)
  local source, line = caller()
  local layer = core.layer_path and core.layer_path()
  if layer then message = ("%s (in %s)"):format(message, layer) end
  error(source and ("%s:%d: %s"):format(source, line, message) or message, 0)
end

-- The users' names of functions that C names otherwise.
local PUBLIC = {
  scatter_add = "scatteradd", tri = "tril", csv_read = "data.csv", idx_read = "data.idx", loader_new = "DataLoader",
  loader_begin = "DataLoader.epoch", loader_next = "DataLoader.epoch", safetensors_open = "load",
  safetensors_read = "load", safetensors_write = "save", loader_images = "DataLoader", image_read = "data.image",
  image_write = "data.saveimage", images_folders = "data.images", images_imagenet = "data.imagenet",
  images_labels = "data.labels",
}

-- The function that the first frame outside Conflux called, by the name that it has there; nil after a tail call and
-- the like.
local function called()
  local name
  for level = 2, math.huge do
    local info = getinfo(level, "Sn")
    if not info then return name end
    if info.what ~= "C" then
      if info.source:sub(1, #home) ~= home then return name end
      name = info.name
    end
  end
end

--- The message of the C call that failed last, as users see it.  That of a file begins with its path, and that of
-- memory knows no function.
---@param st? integer what the call returned
---@return string
local function failure(st)
  local message = ffi.string(C.cfx_error())
  local name, rest = message:match "^([%l_][%w_]*)(: .*)$" -- but for "CUDA: .."
  if PUBLIC[name] then return "conflux." .. PUBLIC[name] .. rest end
  if st == CFX_EMEMORY and not name then
    name = called()
    if name then message = name:gsub("^__", "") .. ": " .. message end
  end
  return (name and st ~= CFX_EIO and "conflux." or "conflux: ") .. message
end

-- ---- context ----------------------------------------------------------------------------------------------

local context            -- cfx_context *, made when first asked for
local has_ended = false  -- its Lua state is closing
local default            -- the device that holds what is made next
local stream = 0         -- and the random stream that it is made from
local devices = {}       -- live devices by address and by name; a device has one object
local debt = ffi.new "int32_t[1]"

local LEAST = 8 * 2 ^ 20 -- bytes of debt, however quick collections are: what the caches still hold
local threshold = LEAST

local MOST = 0xffffffffffffffffULL

-- Reads a decimal number of up to 64 bits; nil if it is none.
local function uint64(text)
  local value = 0ULL
  if not text:find "^%d+$" then return end
  for digit in text:gmatch "%d" do
    local d = tonumber(digit)
    if value > (MOST - d) / 10 then return end
    value = value * 10 + d
  end
  return value
end

local UNITS = {[""] = 1, K = 2 ^ 10, M = 2 ^ 20, G = 2 ^ 30}

-- Reads a size in bytes: a number, perhaps with a unit.
local function bytes(text, name)
  local digits, unit = text:match "^(%d+)([KMG]?)$"
  local value = digits and tonumber(digits) * UNITS[unit]
  if not value or value < 1 or value > 2 ^ 53 then
    error(("conflux: %s: expected bytes such as 500000000, 512M or 4G, got '%s'"):format(name, text), 0)
  end
  return value
end

local uintptr_t = ffi.typeof "uintptr_t"

local function address(pointer)
  return tonumber(ffi.cast(uintptr_t, pointer))
end

local function add_device(pointer)
  local key = address(pointer)
  local known = devices[key]
  if known == nil then
    known = pointer
    devices[key] = pointer
    devices[ffi.string(C.cfx_device_name(pointer))] = pointer
  end
  return known
end

-- Takes note of the run's devices.  It forgets one that vanished, so that an object of it is refused.
local function list_devices()
  for key in each, devices do
    devices[key] = nil
  end
  local cpu = ffi.new "cfx_device *[1]"
  if C.cfx_device_find(context, "cpu:0", cpu) ~= 0 then raise(failure()) end
  local list = {}
  for i = 1, C.cfx_device_count(context) do
    list[i] = add_device(C.cfx_device_at(context, i - 1))
  end
  default = add_device(cpu[0])
  return list
end

-- An engine inside another program brings its context, and frees it.
local function use_context(given)
  context = given
  debt = C.cfx_debt(context)
  C.cfx_debt_threshold(context, threshold)
  list_devices()
end

local function make_context()
  if has_ended then raise "conflux: the Lua state is closing, and has freed what Conflux held" end
  if host.context then return use_context(ffi.cast("cfx_context **", host.context)[0]) end
  local spec, threads, seed, limit = os.getenv "CONFLUX_DEVICES", os.getenv "CONFLUX_NUM_THREADS",
    os.getenv "CONFLUX_SEED", os.getenv "CONFLUX_MEMORY_LIMIT"
  local options = ffi.new "cfx_context_options"
  options.size = ffi.sizeof(options)
  if spec and spec ~= "" then options.devices = spec end
  if threads and threads ~= "" then
    local n = threads:find "^%d+$" and tonumber(threads)
    if not n or n < 1 or n > C.CFX_MAX_THREADS then
      error(("conflux: CONFLUX_NUM_THREADS: expected a number from 1 to 4096, got '%s'"):format(threads), 0)
    end
    options.threads = n
  end
  if seed and seed ~= "" then
    options.seed = uint64(seed)
      or error(("conflux: CONFLUX_SEED: expected a number from 0 to 2^64 - 1, got '%s'"):format(seed), 0)
  end
  if limit and limit ~= "" then options.memory_limit = bytes(limit, "CONFLUX_MEMORY_LIMIT") end
  local out = ffi.new "cfx_context *[1]"
  if C.cfx_context_new(options, out) ~= 0 then raise(failure()) end
  use_context(out[0])
  if host.interruptible then host.interruptible(context) end
  -- Userdata are finalised after all cdata, newest first: after every handle, before the library is unloaded.
  -- An object may be finalised later still: an older userdata's finaliser finds no context, and says so.
  local keeper = newproxy(true)
  getmetatable(keeper).__gc = function()
    local ended = context
    context, default, debt, has_ended = nil, nil, ffi.new "int32_t[1]", true
    for key in each, devices do devices[key] = nil end
    C.cfx_context_free(ended)
  end
  registry["conflux.context"] = keeper
end

--- The context of this Lua state, made at the first call from CONFLUX_DEVICES, CONFLUX_NUM_THREADS, CONFLUX_SEED,
-- CONFLUX_MEMORY_LIMIT.
---@return ffi.cdata* context cfx_context *
local function get_context()
  if not context then make_context() end
  return context
end

--- The device that holds what is made next: cpu:0, or inside withdevices the closure's.
---@return conflux.Device
local function default_device()
  if not context then make_context() end
  return default
end

--- The scheduler calls this as it goes from closure to closure.
---@param device conflux.Device
---@param number integer the random stream: 0 outside withdevices, inside the position of the closure
local function set_default(device, number)
  default, stream = device, number or 0
end

-- ---- memory -----------------------------------------------------------------------------------------------

local SHARE = 0.02       -- of the time may go into collections
local PART = 1 / 16      -- of a device's memory may be debt, however slow they are
local MUCH = 1 / 4       -- of what stays
local last_collection, was_dear = -math.huge, false
local time_t = ffi.typeof "cf_time"

-- Seconds on a clock that only goes forward.
local function seconds()
  local now = time_t()
  ffi.C.cf_clock_gettime(1, now) -- CLOCK_MONOTONIC
  return tonumber(now.s) + tonumber(now.ns) * 1e-9
end

-- The pools have grown by more than the threshold since the last collection: LuaJIT does not see that memory.  The
-- next ones are put off if two in a row took too long; but not if they freed much of Lua's own memory, for then
-- LuaJIT would have made one soon, and the time went into finalisers, which every handle needs once.
local function collect()
  local start, before = seconds(), collectgarbage "count"
  collectgarbage()
  C.cfx_debt_paid(context)
  local took, gap, live = seconds() - start, start - last_collection, collectgarbage "count"
  last_collection = start
  local wanted = threshold
  local dear = took > SHARE * gap and before - live < MUCH * live
  if dear and was_dear then
    dear = false
    local info = ffi.new "cfx_memory_info"
    C.cfx_memory(default, info)
    wanted = math.max(LEAST, math.min(threshold * 2, info.limit * PART))
  elseif took < SHARE / 8 * gap then
    wanted = math.max(LEAST, threshold / 2)
  end
  was_dear = dear
  if wanted == threshold then return end
  threshold = wanted
  C.cfx_debt_threshold(context, threshold)
end

--- An empty handle for a result.
---@return conflux.Tensor
local function new()
  if debt[0] ~= 0 then collect() end
  return tensor_t()
end

--- Deals with a C call that returned `st` ~= 0: out of memory collects and calls f(...) once more, and so does what is
-- in the way of the call, which may be the tape of a coroutine that was dropped; else, and if that fails too, raises
-- the error.  Returns the status of a second call that did not fail.
---@param st integer
---@param f? ffi.cdata* the C function
---@param ... any its arguments
---@return integer
local function settle(st, f, ...)
  if (st == CFX_EMEMORY or st == CFX_ESTATE) and f and context then
    collectgarbage()
    collectgarbage()
    C.cfx_debt_paid(context)
    st = f(...)
    if st <= 0 then return st end
  end
  if st ~= CFX_EINTERRUPT then raise(failure(st)) end
  -- Interrupts are known by this very message: an error of the user's may end in the same word.
  local source, line = caller()
  local message = source and ("%s:%d: interrupted!"):format(source, line) or "interrupted!"
  registry["conflux.interrupted"] = message
  error(message, 0)
end

-- ---- arrays for C -------------------------------------------------------------------------------------------

-- No state of a call outlives a point where Lua can run.  Such points are not only the user's functions and a read
-- inside withdevices: a script's finaliser, which may call Conflux, runs wherever an object is made, wherever compiled
-- code is left (LuaJIT drives its collector there), and before a second try.  So what is handed to C is made for
-- the call; it costs 40 ns, where a view costs 500.

--- Room for the sizes of a tensor, or for dimensions.
core.sizes_t, core.dims_t = ffi.typeof "int64_t[8]", ffi.typeof "int32_t[8]"

-- ---- shared by wrappers -----------------------------------------------------------------------------------

core.C, core.ffi, core.op, core.dtype, core.dtypes = C, ffi, op, dtype, dtypes
core.tensor_t, core.tensor_meta, core.device_meta, core.methods = tensor_t, tensor_meta, device_meta, {}
core.context, core.default_device, core.set_default = get_context, default_device, set_default
core.new, core.settle, core.raise, core.failure, core.caller = new, settle, raise, failure, caller
core.seconds = seconds
core.uint64 = uint64

--- Gradients that all ranks of a world have joined; and by model a function that its gradients go to.
core.joined, core.on_gradient = setmetatable({}, {__mode = "k"}), setmetatable({}, {__mode = "k"})

--- A table with room for so many list positions and so many keys: one that grows is moved at 1, 2, 4, 8...
core.table_new = table_new
registry["conflux.core"] = core

--- Is this error of a coroutine's an interrupt, and not one of the user's?
---@param problem any
---@return boolean
function core.is_interrupt(problem)
  return type(problem) == "string" and problem == registry["conflux.interrupted"]
end

--- The random stream of what is made next.
function core.stream()
  return stream
end

--- Bytes that a pool may grow by before a collection runs.
---@return number
function core.debt_threshold()
  return threshold
end

---@param x any
---@return boolean
function core.is_tensor(x)
  return type(x) == "cdata" and ffi.istype(tensor_t, x)
end

local device_t = ffi.typeof "struct cfx_device *"

---@param x any
---@return boolean
function core.is_device(x)
  return type(x) == "cdata" and ffi.istype(device_t, x)
end

--- The object of a `cfx_device *`, or of a name; nil if there is no such device (any more).  C would read a name with
-- a zero byte up to there, and find another device.
---@param device ffi.cdata*|string
---@return conflux.Device?
function core.find_device(device)
  get_context()
  if type(device) == "string" then
    if devices[device] then return devices[device] end
    if device:find("\0", 1, true) then return nil end
    local out = ffi.new "cfx_device *[1]"
    return C.cfx_device_find(context, device, out) == 0 and add_device(out[0]) or nil
  end
  return device ~= nil and devices[address(device)] or nil
end

--- The run's devices, after making them those of `spec` if it is given.
---@param spec? string
---@return conflux.Device[]
function core.devices(spec)
  get_context()
  if spec then
    if core.world then raise "conflux.devices: cannot be changed in a world of processes: leave it first" end
    if stream ~= 0 then raise "conflux.devices: cannot be changed inside withdevices" end
    collectgarbage() -- tensors that nobody holds do not keep a device
    local st = C.cfx_devices_set(context, spec)
    if st ~= 0 then settle(st, C.cfx_devices_set, context, spec) end
    return list_devices()
  end
  local n = C.cfx_device_count(context)
  local list = table_new(n, 0)
  for i = 1, n do
    list[i] = add_device(C.cfx_device_at(context, i - 1))
  end
  return list
end

--- Waits for the value of t.  Inside a closure of withdevices the others run meanwhile: `core.on_wait`, which
-- the scheduler installs, yields where that can be done.
---@param t conflux.Tensor
function core.read_wait(t)
  local on_wait = core.on_wait
  if on_wait then on_wait(t) end
  local st = C.cfx_wait(t)
  if st ~= 0 then settle(st, C.cfx_wait, t) end
end

--- Waits for what the script has enqueued, and raises a fault that nobody has read: what the program calls last.
function core.finish()
  if not context then return end
  local st = C.cfx_sync(context, nil)
  if st == CFX_EINTERRUPT then error("interrupted!", 0) end
  if st ~= 0 then error("a fault that nobody has read: " .. failure(st), 0) end
end

--- Marks what is enqueued next with the script's line, for faults found later, and for ranks that wait for it.
---@param frames? integer  how many are Conflux's for sure, the caller's included: looking at one takes a microsecond
function core.at_line(frames)
  local source, line = caller((frames or 0) + 3)
  if source then C.cfx_at_line(get_context(), source, line) end
end

--- The addresses of tensors, for C.  The caller keeps the list while C may look at them.
---@param list conflux.Tensor[]
---@return ffi.cdata* array cfx_tensor *[n]
function core.ptrs(list)
  local array = ffi.new("cfx_tensor *[?]", #list)
  for i = 1, #list do
    array[i - 1] = list[i]
  end
  return array
end

local function numbers(ctype)
  return function(list)
    local array = ffi.new(ctype, #list)
    for i = 1, #list do
      array[i - 1] = list[i]
    end
    return array
  end
end
core.int64s = numbers "int64_t[?]"
core.int32s = numbers "int32_t[?]"

-- ---- devices ----------------------------------------------------------------------------------------------

--- A device of the run.  `device(x)` is x, a tensor or any nested table of them, on this device: x itself where it is
-- there already.  It equals its name: `device == "cpu:0"`.
---@class conflux.Device
---@field name string      "cpu:0"
---@field threads integer  threads of its team
---@operator call(any): any

local function live(device)
  local known = devices[address(device)]
  if known == nil then raise "conflux.device: this device is no longer one of the run's" end
  return known
end

local properties = {
  name = function(device) return ffi.string(C.cfx_device_name(device)) end,
  threads = C.cfx_device_threads,
}

function device_meta.__index(device, key)
  local property = properties[key]
  if not property then raise(("conflux.device: a device has no field '%s'"):format(tostring(key))) end
  return property(live(device))
end

function device_meta.__newindex(_, key)
  raise(("conflux.device: cannot set field '%s' of a device"):format(tostring(key)))
end

-- A device equals its name, too ("cpu" is "cpu:0").
function device_meta.__eq(a, b)
  if type(a) == "string" then a = core.find_device(a) end
  if type(b) == "string" then b = core.find_device(b) end
  return core.is_device(a) and core.is_device(b) and address(a) == address(b)
end
-- LuaJIT of Debian 12's age crashes where it compiles `device == nil or device == "cpu:0"`: its traces come back from
-- this metamethod to a wrong frame.
jit.off(device_meta.__eq)

function device_meta.__tostring(device)
  local known = devices[address(device)]
  return known and ffi.string(C.cfx_device_name(known)) or "device (closed)"
end

return core
