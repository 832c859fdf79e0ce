--- The world: the processes that train together, and this one's place among them.
--
-- `core.world` is what this Lua state knows of it, or nil; a second load of the library shares it.
-- @module conflux.dist.world
local core = require "conflux.core"
local check = require "conflux.check"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, fail = core.settle, check.fail
local tonumber, tostring, type = tonumber, tostring, type
local band, bxor, lshift, tobit = bit.band, bit.bxor, bit.lshift, bit.tobit

local world = {}

---@class conflux.World
---@field rank integer        from 0
---@field size integer
---@field local_rank integer  among those of this host
---@field local_size integer
---@field before integer      devices of the ranks before this one
---@field devices integer     of all ranks

-- The place that C knows: size 0 where there is none.
local function place()
  local info = ffi.new "cfx_world_info"
  C.cfx_world(core.context(), info)
  return info
end

--- The world, or an error that says what is missing.
---@param fname string
---@return conflux.World
function world.required(fname)
  return core.world or fail(fname, "this process is in no world yet: call cf.dist.init() first")
end

-- ---- exchange -----------------------------------------------------------------------------------------------

local number_t, pointer_t = core.dtype.float64, ffi.typeof "cfx_tensor *[1]"
local cells_t, bytes_t = ffi.typeof "double[?]", ffi.typeof "uint8_t[?]"
local sizes_t = core.sizes_t

-- The sum over ranks of n elements; each is written by one rank alone, and 0 in the others, so that it is exact.
local function gather(dtype, n, cells, bytes)
  local x, sizes = core.new(), sizes_t()
  sizes[0] = n
  local device = core.find_device "cpu:0"
  local st = C.cfx_from_host(device, dtype, 1, sizes, cells, x)
  if st ~= 0 then settle(st, C.cfx_from_host, device, dtype, 1, sizes, cells, x) end
  local list = pointer_t(x)
  st = C.cfx_allreduce("sum", 1, 1, list)
  if st ~= 0 then settle(st, C.cfx_allreduce, "sum", 1, 1, list) end
  -- the ranks' next steps hang on it: no closure of withdevices runs meanwhile
  st = C.cfx_read(x, cells, bytes)
  if st ~= 0 then settle(st, C.cfx_read, x, cells, bytes) end
  x:release()
end

-- FNV-1a of a text, of 32 bits.
local function fnv(text, first, last, step)
  local h = tobit(0x811c9dc5)
  for i = first, last, step do
    h = bxor(h, text:byte(i))
    h = tobit(h + lshift(h, 1) + lshift(h, 4) + lshift(h, 7) + lshift(h, 8) + lshift(h, 24))
  end
  return h
end

--- 52 bits of a text, as a number that is exact.
---@param text string
---@return number
function world.hash(text)
  return band(fnv(text, 1, #text, 1), 0xfffff) * 2 ^ 32 + fnv(text, #text, 1, -1) % 2 ^ 32
end

local tags = {} -- a call's hash

-- Two numbers of each rank, the call's hash and its value: double[2 * size].
local function exchange(w, call, value)
  local cells = cells_t(2 * w.size)
  tags[call] = tags[call] or world.hash(call)
  cells[2 * w.rank], cells[2 * w.rank + 1] = tags[call], value
  if w.size > 1 then gather(number_t, 2 * w.size, cells, 2 * w.size * 8) end
  return cells
end

local function gather_texts(w, text)
  local lengths, total, before = exchange(w, "texts", #text), 0, 0
  for r = 0, w.size - 1 do
    local n = tonumber(lengths[2 * r + 1])
    if r < w.rank then before = before + n end
    total = total + n
  end
  local cells, texts, at = bytes_t(total), {}, 0
  ffi.copy(cells + before, text, #text)
  if w.size > 1 and total > 0 then gather(core.dtype.uint8, total, cells, total) end
  for r = 0, w.size - 1 do
    local n = tonumber(lengths[2 * r + 1])
    texts[r + 1] = ffi.string(cells + at, n)
    at = at + n
  end
  return texts
end

--- The script's line that calls the library: "train.lua:31".
---@return string
function world.here()
  local source, line = core.caller()
  return source and ("%s:%d"):format(source, line) or "an unknown line"
end

--- Raises that two ranks differ, in the same words in all.  A collective: `mine` is what this rank has to say.
---@param w conflux.World
---@param fname string
---@param r integer  one of them; the other is rank 0
---@param mine string
---@param words fun(first: string, second: string): string  what is said of the two
function world.disagree(w, fname, r, mine, words)
  local texts = gather_texts(w, mine)
  check.fail(fname, "ranks disagree: %s", words(texts[1], texts[r + 1]))
end

-- Refuses ranks that have made different calls.
local function check_calls(w, call, cells)
  for r = 1, w.size - 1 do
    if cells[2 * r] ~= cells[0] then
      world.disagree(w, call:match "^%S+", r, ("%s at %s"):format(call, world.here()), function(a, b)
        return ("rank 0 calls %s, and rank %d calls %s"):format(a, r, b)
      end)
    end
  end
end

--- The numbers that all ranks give: result[r + 1] is rank r's.  A collective.
---@param w conflux.World
---@param call string  the public call, "dist.allreduce sum": all ranks must make the same
---@param value number
---@return number[]
function world.numbers(w, call, value)
  local cells, list = exchange(w, call, value), {}
  check_calls(w, call, cells)
  for r = 0, w.size - 1 do list[r + 1] = tonumber(cells[2 * r + 1]) end
  return list
end

--- The root's list of numbers, in all ranks; all have given one as long.  A collective.
---@param w conflux.World
---@param call string
---@param root integer
---@param list number[]
---@return number[]
function world.list(w, call, root, list)
  local n, cells, result = #list, cells_t(#list), {}
  check_calls(w, call, exchange(w, call, 0))
  for k = 1, n do cells[k - 1] = w.rank == root and list[k] or 0 end
  if w.size > 1 and n > 0 then gather(number_t, n, cells, n * 8) end
  for k = 1, n do result[k] = cells[k - 1] end
  return result
end

--- The texts that all ranks give: result[r + 1] is rank r's.  A collective.
---@param w conflux.World
---@param call string
---@param text string
---@return string[]
function world.texts(w, call, text)
  check_calls(w, call, exchange(w, call, 0))
  return gather_texts(w, text)
end

-- ---- joining and leaving ------------------------------------------------------------------------------------

-- "cpu:0,cpu:1": devices, or their names, as one text.
local function spec_of(v)
  if type(v) == "string" then return check.text("dist.init", "devices", v) end
  if type(v) ~= "table" then check.wrong("dist.init", "devices", "a list of devices, or names such as 'cpu*2'", v) end
  local list = {}
  for i = 1, check.length("dist.init", "devices", v) do
    local name = ("devices[%d]"):format(i)
    list[i] = core.is_device(v[i]) and tostring(v[i]) or check.text("dist.init", name, v[i])
  end
  return table.concat(list, ",")
end

local function join(timeout)
  local options = ffi.new "cfx_world_options"
  options.size, options.timeout = ffi.sizeof(options), timeout or 0
  core.at_line()
  local st = C.cfx_world_join(core.context(), options)
  if st ~= 0 then settle(st, C.cfx_world_join, core.context(), options) end
end

-- Notes this process's place.  A collective: for how many devices there are before its own the others must tell.
local function enter()
  local info = place()
  local w = {rank = info.rank, size = info.size, local_rank = info.local_rank, local_size = info.local_size,
    before = 0, devices = 0}
  local counts = world.numbers(w, "dist.init", #core.devices())
  for r = 1, w.size do
    if r <= w.rank then w.before = w.before + counts[r] end
    w.devices = w.devices + counts[r]
  end
  core.world = w
end

--- Joins the world of the processes that `conflux-run` has started, or one of this process alone; returns when all have
-- come.  Where the process is in its world already it does nothing.
--
-- From here on cf.allreduce, cf.reduce and cf.synchronize join the replicas of all ranks, in the order of the ranks,
-- and their roots count all devices; the random streams of devices, too, go on from rank to rank.
---@param o? {devices: string|(conflux.Device|string)[]|nil, verbose: boolean?, timeout: number?}
---  devices: this rank's own, default: those of the run; verbose: rank 0 prints which rank has which, default: false;
---  timeout: seconds after which a rank that others wait for is given up, 0 for none, default: 600
function world.init(o)
  o = check.options("dist.init", o, {"devices", "verbose", "timeout"})
  local timeout, verbose = o.timeout, o.verbose
  if timeout ~= nil and (check.number("dist.init", "timeout", timeout) < 0 or timeout ~= timeout) then
    check.wrong("dist.init", "timeout", "0 or more seconds", timeout)
  end
  if verbose ~= nil then check.boolean("dist.init", "verbose", verbose) end
  if core.world then return end
  if core.stream() ~= 0 then fail("dist.init", "a world cannot be joined inside withdevices") end
  if o.devices ~= nil then core.devices(spec_of(o.devices)) end
  if place().size == 0 then join(timeout == 0 and math.huge or timeout) end
  enter()
  if verbose then
    local w, names = core.world, {}
    for i, device in ipairs(core.devices()) do names[i] = tostring(device) end
    local all = world.texts(w, "dist.init verbose", table.concat(names, ", "))
    for r = 1, w.rank == 0 and w.size or 0 do
      io.write(("conflux: rank %d of %d: %s\n"):format(r - 1, w.size, all[r]))
    end
  end
end

--- Whether this process is in a world: after cf.dist.init, and before cf.dist.finalize.
---@return boolean
function world.initialized()
  return core.world ~= nil
end

--- Leaves the world, after all that this process has enqueued; others that still wait for it get an error.  A process
-- that ends leaves, too.  Where it is in none this does nothing.
function world.finalize()
  if not core.world then return end
  local st = C.cfx_world_leave(core.context())
  if st ~= C.CFX_EINTERRUPT then core.world = nil end -- a world that is broken is left, too
  if st ~= 0 then settle(st, C.cfx_world_leave, core.context()) end
  core.world = nil
end

--- Makes a world of the ranks that are left, in their order, where one has ended or was given up: all of them call it,
-- to go on, or to save what they have.  Tensors that the broken collective was to write stay void.
function world.shrink()
  world.required "dist.shrink"
  core.at_line()
  local st = C.cfx_world_shrink(core.context())
  if place().size == 0 then core.world = nil end -- it is left where that fails
  if st ~= 0 then settle(st) end
  enter()
end

--- This process's rank, from 0.
---@return integer
function world.rank() return world.required("dist.rank").rank end

--- How many ranks there are.
---@return integer
function world.size() return world.required("dist.size").size end

--- This process's rank among those of its host, from 0.
---@return integer
function world.local_rank() return world.required("dist.local_rank").local_rank end

--- How many ranks this host has.
---@return integer
function world.local_size() return world.required("dist.local_size").local_size end

--- How many hosts there are.
---@return integer
function world.hosts() return world.required("dist.hosts").size / world.required("dist.hosts").local_size end

--- The ways in which ranks reach each other; options change them.  Returns what holds.
---@param o? {gpu_aware: boolean?}  gpu_aware: GPUs' memory is given to MPI as it is; false, as there is no MPI here
---@return {gpu_aware: boolean}
function world.config(o)
  world.required "dist.config"
  o = check.options("dist.config", o, {"gpu_aware"})
  if o.gpu_aware ~= nil and check.boolean("dist.config", "gpu_aware", o.gpu_aware) then
    fail("dist.config", "gpu_aware: no rank is reached by MPI here, so there is none to give GPUs' memory to")
  end
  return {gpu_aware = false}
end

return world
