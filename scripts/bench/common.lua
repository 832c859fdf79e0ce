--- Shared by the benchmarks: options, clocks, medians, the floor library, pictures, and the two models that
-- they train.
-- Loaded by dofile; nothing here is part of Conflux.
local ffi = require "ffi"

local bench = {}

ffi.cdef [[
  typedef struct bench_time { long s, ns; } bench_time;
  int bench_clock_gettime(int clock, bench_time *now) __asm__("clock_gettime");
  int bench_getpid(void) __asm__("getpid");
  long bench_readlink(const char *path, char *out, size_t room) __asm__("readlink");
  double conflux_floor(int32_t layers, const int64_t *sizes, const char *act, int64_t batch, int32_t devices,
                       int32_t threads, int32_t steps);
  double conflux_floor_allreduce(float *a, float *b, int64_t n, int32_t threads, int32_t repeats);
  double conflux_floor_convs(int32_t n, const int64_t *numbers, int64_t batch, int32_t devices, int32_t threads,
                             int32_t repeats);
  double conflux_floor_add(const void *a, const void *b, int32_t repeats);
]]

-- ---- options and output -------------------------------------------------------------------------------------

--- Reads a benchmark's arguments: `--help` prints its header comment and ends, `--quick` makes few and short
-- measurements.  Returns what else there was.
---@return {quick: boolean, [integer]: string}
function bench.options()
  local options = {quick = false}
  for i = 1, #arg do
    if arg[i] == "--help" then
      for line in io.lines(arg[0]) do
        local text = line:match "^%-%-%-? ?(.*)"
        if not text then break end
        print(text)
      end
      os.exit(0)
    elseif arg[i] == "--quick" then
      options.quick = true
    else
      options[#options + 1] = arg[i]
    end
  end
  return options
end

--- Prints one measured value, for people and for scripts.
---@param name string
---@param value number
---@param unit string
function bench.figure(name, value, unit)
  print(("figure %s %s %s"):format(name, value % 1 == 0 and ("%d"):format(value) or ("%.4g"):format(value), unit))
  io.flush()
end

-- ---- measuring ----------------------------------------------------------------------------------------------

local time = ffi.new "bench_time"

local function read_clock(clock)
  ffi.C.bench_clock_gettime(clock, time)
  return tonumber(time.s) * 1e6 + tonumber(time.ns) * 1e-3
end

--- Microseconds on a clock that only goes forward.
---@return number
function bench.now() return read_clock(1) end -- CLOCK_MONOTONIC

--- Microseconds of processor time that this thread has taken.
---@return number
function bench.worked() return read_clock(3) end -- CLOCK_THREAD_CPUTIME_ID

--- The most bytes of memory that this process has held at once.
---@return integer
function bench.peak()
  for line in io.lines "/proc/self/status" do
    local kilobytes = line:match "^VmHWM:%s*(%d+) kB"
    if kilobytes then return tonumber(kilobytes) * 1024 end
  end
  error("/proc/self/status has no VmHWM", 0)
end

---@param list number[]
---@return number
function bench.median(list)
  local sorted = {}
  for i = 1, #list do sorted[i] = list[i] end
  table.sort(sorted)
  local n = #sorted
  return (sorted[math.floor((n + 1) / 2)] + sorted[math.ceil((n + 1) / 2)]) / 2
end

--- Starts a program of its own session that keeps a core busy; it ends with this one at the latest.
---@return fun() stop
function bench.busy_loop()
  local loop = "while kill -0 %d 2>/dev/null; do i=0; while [ $i -lt 9999 ]; do i=$((i+1)); done; done"
  local pipe = assert(io.popen(("setsid sh -c '%s' >/dev/null 2>&1 & echo $!"):format(
    loop:format(ffi.C.bench_getpid()))))
  local pid = pipe:read "*n"
  pipe:close()
  return function() os.execute(("kill %d"):format(pid)) end
end

-- ---- the floor ----------------------------------------------------------------------------------------------

--- The program that runs this script.
---@return string
function bench.program()
  local room = ffi.new("char[?]", 4096)
  local n = tonumber(ffi.C.bench_readlink("/proc/self/exe", room, 4096))
  if n <= 0 then error("cannot read /proc/self/exe", 0) end
  return ffi.string(room, n)
end

--- A shell command that is ended after so many seconds, where the machine has `timeout`; its exit status is then
-- 124.  In the foreground, so that Ctrl-C reaches it.
---@param command string
---@param seconds integer
---@return string
function bench.limited(command, seconds)
  if os.execute "command -v timeout >/dev/null" ~= 0 then return command end
  return ("timeout --foreground -k 5 %d %s"):format(seconds, command)
end

--- The library of scripts/bench/floor.c: CONFLUX_FLOOR, or the one that was built beside the program.
function bench.floor()
  local path = os.getenv "CONFLUX_FLOOR" or bench.program():gsub("[^/]+/[^/]+$", "lib/libconflux_floor.so")
  local is_there, floor = pcall(ffi.load, path)
  if not is_there then error(floor .. "; `cmake --build build --target conflux_floor` makes it", 0) end
  return floor
end

-- ---- pictures -----------------------------------------------------------------------------------------------

-- Slopes with noise of a few pixels' size, as photographs have it.
local function picture(cf)
  local fine, coarse = cf.rand(375, 500, 3) * 70, cf.rand(75, 100, 3) * 110
  local rows, columns = (cf.arange(0, 374) / 5):floor():to "int64", (cf.arange(0, 499) / 5):floor():to "int64"
  local slope = cf.linspace(0, 75, 500):reshape(1, 500, 1)
  return (coarse:index(1, rows):index(2, columns) + fine + slope):to "uint8"
end

--- Makes JPEG files of 500 x 375 pixels and some 100 KB in `folder`, all of one class.
---@param cf table Conflux
---@param folder string
---@param n integer
---@return string[] paths
function bench.pictures(cf, folder, n)
  local paths, bytes = {}, 0
  assert(os.execute(("mkdir -p '%s/all'"):format(folder)) == 0)
  for i = 1, n do
    paths[i] = ("%s/all/%03d.jpg"):format(folder, i)
    cf.data.saveimage(paths[i], picture(cf), {quality = 85})
    local file = assert(io.open(paths[i]))
    bytes = bytes + file:seek "end"
    file:close()
  end
  print(("%d pictures of 500 x 375, %.0f KB each"):format(n, bytes / n / 1000))
  return paths
end

-- ---- the models ---------------------------------------------------------------------------------------------

---@class bench.Case
---@field sizes integer[]  of the layers
---@field act string
---@field batch integer    samples a device

bench.cases = {
  -- x^2 by its samples.  A batch this small shows what a step costs beside its products.
  mlp16 = {
    sizes = {1, 256, 512, 256, 1}, act = "tanh", batch = 16,
    samples = function(cf, batch)
      local x = cf.rand(batch, 1)
      return x, x ^ 2
    end,
    loss = function(_, m, x, y) return ((m(x) - y) ^ 2):sum() end,
  },
  -- Fashion-MNIST's shapes.
  mlp64 = {
    sizes = {784, 512, 256, 10}, act = "relu", batch = 64,
    samples = function(cf, batch) return cf.rand(batch, 784), cf.randint(0, 9, batch) end,
    loss = function(nn, m, x, y) return nn.crossentropy(m(x), y) end,
  },
}

--- Sets up the training of a case on the run's devices.  Returns a function that enqueues one step and returns
-- the losses, one a device.
---@param cf table Conflux
---@param case bench.Case
---@return fun(): conflux.Replicas
function bench.trainer(cf, case)
  local nn, optim = cf.nn, cf.optim
  local layers = {}
  for l = 1, #case.sizes - 1 do
    layers[l] = nn.Dense(case.sizes[l], case.sizes[l + 1], l < #case.sizes - 1 and case.act or nil)
  end
  local models = cf.replicate(nn.Chain(unpack(layers)))
  local opt = optim.Adam(1e-3)
  local states = cf.withdevices(function(i) return opt:setup(models[i]) end)
  local xs, ys = cf.withdevices(function() return case.samples(cf, case.batch) end)
  return function()
    local losses, grads = cf.withdevices(function(i)
      return cf.withgradient(function(m) return case.loss(nn, m, xs[i], ys[i]) end, models[i])
    end)
    cf.allreduce("avg", grads)
    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
    return losses
  end
end

return bench
