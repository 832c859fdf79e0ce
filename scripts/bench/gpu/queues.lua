--- gpu.lua's queues: what an operation costs the host, what devices cost each other, what the host's memory costs.
local ffi = require "ffi"

-- ---- dispatch -----------------------------------------------------------------------------------------------

-- Microseconds an operation until they are enqueued, and until they are done; medians of both.
local function enqueue(m, f, n)
  local now, median = m.bench.now, m.bench.median
  local enqueued, done = {}, {}
  f(n) -- warms up
  for r = 1, m.quick and 3 or 21 do
    m.cf.sync()
    local start = now()
    f(n)
    enqueued[r] = (now() - start) / n
    m.cf.sync()
    done[r] = (now() - start) / n
  end
  return median(enqueued), median(done)
end

-- a + b of one element, so often that a queue still holds all of it.
local function dispatch(m)
  local cf, figure = m.cf, m.bench.figure
  local n = m.quick and 100 or 8000
  local a, b = m:make(function() return cf.ones(1), cf.ones(1) end)
  local function add_many(count)
    local c
    for _ = 1, count do c = a + b end
    return c
  end
  local host, done = enqueue(m, add_many, n)
  jit.off()
  jit.flush()
  local interpreted = enqueue(m, add_many, n)
  jit.on()
  figure("dispatch_us", host, "us")
  figure("dispatch_nojit_us", interpreted, "us")
  figure("launch_us", done, "us")
  m:item("dispatch_floor", function()
    local floor = m.bench.floor()
    local least, least_done = enqueue(m, function(count)
      if floor.conflux_floor_add(a, b, count) <= 0 then error("the floor could not be measured", 0) end
    end, n)
    figure("dispatch_floor_us", least, "us")
    figure("dispatch_over_floor", host / least, "ratio")
    figure("launch_floor_us", least_done, "us")
    figure("launch_over_floor", done / least_done, "ratio")
  end)
end

-- ---- all-reduce ---------------------------------------------------------------------------------------------

local function sizes(m)
  if m.quick then return {4 * 2 ^ 10, 64 * 2 ^ 10} end
  return {4 * 2 ^ 10, 64 * 2 ^ 10, 2 ^ 20, 4 * 2 ^ 20, 16 * 2 ^ 20, 64 * 2 ^ 20, 256 * 2 ^ 20}
end

-- Each replica is read once and written once.
local function allreduce(m)
  local cf = m.cf
  m:copy()
  for _, bytes in ipairs(sizes(m)) do
    local name = ("allreduce_%ddev_%s"):format(m.count, m:size_name(bytes))
    m:item(name, function()
      local list = cf.withdevices(function() return cf.ones(bytes / 4) end)
      m:memory(name, 2 * m.count * bytes, function() cf.allreduce("avg", list) end, {us = true})
    end)
  end
end

-- ---- transfers ----------------------------------------------------------------------------------------------

local IN_FLIGHT = 2 ^ 30 -- bytes that calls of a block may hold at the same time, on either side

local function transfer(m)
  local cf, figure = m.cf, m.bench.figure
  local device = m.devices[#m.devices]
  local seen, best = {}, {}
  for _, bytes in ipairs(sizes(m)) do
    local size = m:size_name(bytes)
    m:item("transfer_" .. size, function()
      local array, other = ffi.new("float[?]", bytes / 4), ffi.new("float[?]", bytes / 4)
      ffi.fill(array, bytes, 1) -- and its pages are there
      ffi.fill(other, bytes, 1)
      local here = cf.from(array, {bytes / 4}, {device = "cpu:0"})
      local there = here:to(device)
      local us = m:turns({
        function() here:to(device):release() end,
        function() there:to "cpu:0":release() end,
        function() cf.from(array, {bytes / 4}, {device = device}):release() end,
        function() ffi.copy(other, array, bytes) end,
      }, math.max(1, IN_FLIGHT / bytes))
      for k, way in ipairs {"up", "down", "from"} do
        local name = ("transfer_%s_%s"):format(way, size)
        seen[#seen + 1] = {name, way, bytes / us[k] * 1e-3}
        best[way] = math.max(best[way] or 0, seen[#seen][3])
        figure(name .. "_gb_per_s", seen[#seen][3], "GB/s")
      end
      figure(("transfer_host_copy_%s_gb_per_s"):format(size), bytes / us[4] * 1e-3, "GB/s") -- bytes of one side
    end)
  end
  for _, entry in ipairs(seen) do figure(entry[1] .. "_of_peak", entry[3] / best[entry[2]], "ratio") end
  m:item("read_number", function()
    local x = cf.ones(1, {device = device})
    local us = m:turns {function() x:item() end, function() (x + 1):item() end}
    figure("read_number_us", us[1], "us")
    figure("add_and_read_number_us", us[2], "us")
  end)
end

return {
  {name = "dispatch", devices = 1, run = dispatch},
  {name = "allreduce2", devices = 2, run = allreduce},
  {name = "allreduce4", devices = 4, run = allreduce},
  {name = "transfer", devices = 1, cpus = 2, run = transfer}, -- cpu:0 is the host itself
}
