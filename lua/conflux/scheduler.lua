--- The scheduler: withdevices, and the lists by device that it returns.
--
-- withdevices runs a closure once per device, each in a coroutine of the one Lua state with that device as the
-- default.  Operations only enqueue, so a closure gives way only where it reads a value: core.read_wait asks
-- `on_wait` here, which yields to the scheduler if the closure's own coroutine is running.  The scheduler knows
-- two kinds of yields: its own (marked WAIT), and those of the closure itself, which it passes outward.
-- @module conflux.scheduler
local core = require "conflux.core"
local check = require "conflux.check"

local C, table_new = core.C, core.table_new
local create, resume, running, yield = coroutine.create, coroutine.resume, coroutine.running, coroutine.yield
local isyieldable = coroutine.isyieldable
local error, pcall, rawget, select, setmetatable, tostring, type, unpack =
  error, pcall, rawget, select, setmetatable, tostring, type, unpack

local POOL = 64 -- coroutines that are kept

-- A coroutine of the scheduler yields one of these first: WAIT, it waits for a value, or DONE, its closure has
-- returned.  The marks and the running task are the core's: a second load of the library shares them.
core.wait_mark, core.done_mark = core.wait_mark or {}, core.done_mark or {}
local WAIT, DONE = core.wait_mark, core.done_mark

-- ---- lists by device ----------------------------------------------------------------------------------------

--- A list with one element for each of several devices: by position, by device, or by a device's name.
---@class conflux.Replicas
---@field n integer                   how many there are
---@field devices conflux.Device[]    where each lies
local Replicas = {}

-- By position the copies are the table's own; by device, or a device's name, they are found here.  A field of what
-- they are copies of is not theirs.
function Replicas.__index(self, key)
  local devices = rawget(self, "devices")
  if type(devices) ~= "table" or not (type(key) == "string" or core.is_device(key)) then return nil end
  local i = check.position(devices, key)
  if i then return rawget(self, i) end
  if type(key) == "string" and not key:find ":%d+$" and not key:find "^_" and not core.find_device(key) then
    check.fail("Replicas", "a list of replicas has no field %s: each replica has its own, models[i]%s",
      check.describe(key), key:find "^[%a_][%w_]*$" and "." .. key or "")
  end
end

function Replicas.__call()
  check.fail("Replicas", "a list of replicas cannot be called: each replica can, models[i](x), "
    .. "in cf.withdevices(function(i, device) .. end)")
end

local function names(devices)
  local list = {}
  for i = 1, type(devices) == "table" and #devices or 0 do list[i] = tostring(devices[i]) end
  return table.concat(list, ", ")
end

function Replicas.__tostring(self)
  return ("%s replicas on [%s]"):format(tostring(rawget(self, "n")), names(rawget(self, "devices")))
end

local function new_list(devices)
  local n = #devices
  local list = table_new(n, 2)
  list.n, list.devices = n, devices
  return setmetatable(list, Replicas)
end

-- ---- the scheduler ------------------------------------------------------------------------------------------

-- A coroutine runs closure after closure; it is dropped if one raises or is left hanging.  While it lies in the
-- pool it holds nothing of the last closure, so that no tensor lives on in it.
local pool = {}

local function body(f, i, device)
  while true do
    yield(DONE, f(i, device))
    f, i, device = nil, nil, nil -- luacheck: ignore 311
    f, i, device = yield()
  end
end

-- The closures of a run that will not go on: their tapes end now, and those of the runs inside them, so that the models
-- are not watched until some collection.
local function abandon(run)
  for i = 1, #run do
    local task = run[i]
    local call = task.call
    while call do
      C.cfx_tape_end(call.tape)
      call = call.outer
    end
    if task.inner then abandon(task.inner) end
    task.call, task.inner = false, nil
  end
end

-- Called where a value is read.  Yields once to the scheduler of the closure whose own coroutine is running.
local function on_wait()
  local task = core.task
  if task and running() == task.co and isyieldable() then yield(WAIT) end
end
core.on_wait = on_wait

-- Gives the caller its defaults back, which `enter` takes each time the scheduler gets control from outside.
local function leave(run)
  core.task = run.task
  core.set_default(run.device, run.stream)
end

local function enter(run)
  run.task, run.device, run.stream = core.task, core.default_device(), core.stream()
end

local advance

-- Takes what a resume of the task returned.  Returns true while the task is not done.
local function took(run, task, ok, kind, ...)
  leave(run)
  if not ok then
    task.done, task.failed, task.problem = true, true, kind
    return false
  end
  if kind == WAIT then return true end
  if kind == DONE then
    resume(task.co)
    if #pool < POOL then pool[#pool + 1] = task.co end
    task.done, task.count = true, select("#", ...)
    if task.count <= 2 then task.first, task.second = ... else task.results = {...} end
    return false
  end
  -- A yield of the closure's own: it belongs to the caller of withdevices.
  if not isyieldable() then
    task.done, task.failed, task.problem = true, true, "attempt to yield outside a coroutine"
    return false
  end
  return advance(run, task, yield(kind, ...))
end

-- Runs the task until it waits or is done.
function advance(run, task, ...)
  enter(run)
  core.task = task
  -- in a world streams go on from rank to rank
  core.set_default(task.device, core.world and core.world.before + task.i or task.i)
  return took(run, task, resume(task.co, ...))
end

local function start(run, f, i, device)
  local co = pool[#pool]
  pool[#pool] = nil
  local task = {co = co or create(body), i = i, device = device, done = false, count = 0, first = false,
    second = false, call = false} -- and where there is need: results, failed, problem, inner
  run[i] = task
  return advance(run, task, f, i, device)
end

local function interrupted(task)
  return task.failed and core.is_interrupt(task.problem)
end

-- One pass in device order over what waits; before it, a scheduler inside another one's closure gives way.
local function drive(run, first, last)
  local waiting = true
  while waiting do
    on_wait()
    waiting = false
    for i = first, last do
      local task = run[i]
      if not task.done and advance(run, task) then waiting = true end
      if interrupted(task) then return true end
    end
  end
end

local function run_all(run, f, devices, async)
  local n = #devices
  for i = 1, n do
    local waits = start(run, f, i, devices[i])
    if interrupted(run[i]) then return end
    if not async then
      if waits and drive(run, i, i) then return end
      local st = C.cfx_sync(core.context(), devices[i])
      if st ~= 0 and not run[i].failed then
        run[i].failed, run[i].problem = true, select(2, pcall(core.settle, st))
      end
    elseif waits then
      run.waits = true
    end
  end
  if run.waits then drive(run, 1, n) end
end

-- The first failure in device order, naming its device.
local function raise_first(run, n)
  for i = 1, n do
    local task = run[i]
    if task and task.failed then
      local problem = task.problem
      if type(problem) ~= "string" or interrupted(task) then error(problem, 0) end
      problem = ("%s (on %s)"):format(problem, tostring(task.device))
      if problem:find "^conflux[.:]" then core.raise(problem) end
      error(problem, 0)
    end
  end
end

local function result_of(task, k)
  if k > task.count then return nil end
  if task.results then return task.results[k] end
  if k == 1 then return task.first end
  return task.second
end

-- The k-th results of all closures.
local function gather(run, devices, k)
  local list = new_list(devices)
  for i = 1, #devices do list[i] = result_of(run[i], k) end
  return list
end

local function collect(run, devices)
  local count = 0
  for i = 1, #devices do
    if run[i].count > count then count = run[i].count end
  end
  if count == 0 then return end
  if count == 1 then return gather(run, devices, 1) end
  if count == 2 then return gather(run, devices, 1), gather(run, devices, 2) end
  local lists = {}
  for k = 1, count do lists[k] = gather(run, devices, k) end
  return unpack(lists, 1, count)
end

--- Runs `f(i, device)` once per device, each with that device (and a random stream of its own) as the default.
--
-- The closures run in device order, each until it reads a value that is still being computed; then the others go
-- on.  Returns one list per result of f, indexed by position or device.  If closures raise, the others run to
-- their end, and the first error in device order is raised.
---@param f fun(i: integer, device: conflux.Device): any ...
---@param devices? (conflux.Device|string)[]|conflux.Replicas  default: `cf.devices()`
---@param options? {async: boolean} async = false drains each device before the next closure starts
---@return conflux.Replicas ...
local function withdevices(f, devices, options)
  if type(f) ~= "function" then check.arg("withdevices", "f", "a function", f) end
  if options == nil and type(devices) == "table" and rawget(devices, "async") ~= nil and #devices == 0
    and not rawget(devices, "devices") then
    devices, options = nil, devices
  end
  if type(devices) == "table" and rawget(devices, "devices") then devices = devices.devices end
  devices = check.devices("withdevices", "devices", devices)
  local async = true
  if options ~= nil then
    check.options("withdevices", options, {"async"})
    if options.async ~= nil then async = check.boolean("withdevices", "async", options.async) end
  end
  local run = table_new(#devices, 4)
  enter(run)
  local task = run.task
  local is_inner = task and running() == task.co
  if is_inner then task.inner = run end
  local ok, problem = pcall(run_all, run, f, devices, async ~= false)
  abandon(run)
  if is_inner then task.inner = nil end
  if not ok then
    leave(run)
    error(problem, 0)
  end
  raise_first(run, #devices)
  return collect(run, devices)
end

return {withdevices = withdevices, list = new_list}
