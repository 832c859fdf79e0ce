--- The all-reduce of several processes, beside the loop that it runs, and beside others'.
--
--     build/bin/conflux-run -n 2 scripts/bench/comm.lua [--quick] [--python PYTHON]
--
-- Each rank holds a float32 tensor of 4 B to 100 MB; cf.allreduce("avg", ..) leaves the mean in all.  Calls follow each
-- other without a wait, each depending on the one before; the figure is the median of 9 rounds.  Without conflux-run
-- it starts itself under it, as two ranks.
--
-- The loop is the same on the same memory, without queues or hand-offs: each rank its slice, and none waits for
-- another.  `of_loop` is the share of its speed that is reached.  The peers take turns with both in each round, where
-- they are installed: Open MPI (peer_mpi.c, built by mpicc) and PyTorch's gloo (peer_gloo.py, by `--python`, or
-- python3); `over` is how many times as fast as theirs ours is.  `comm_4B_over_local` is how many times the all-reduce
-- of two devices of one process ours takes.  Ratios are medians of the rounds'.
local folder = arg[0]:match "^.*/" or ""
local bench = dofile(folder .. "common.lua")
local ffi = require "ffi"

ffi.cdef [[
  int bench_getppid(void) __asm__("getppid");
  double conflux_floor_world_offset(const void *context, const char *x);
  double conflux_floor_world_allreduce(const void *context, const double *offsets, int64_t n, int32_t threads,
                                       int32_t repeats);
]]

local options = bench.options()
local python = "python3"
for i = 1, #options do if options[i] == "--python" then python = options[i + 1] end end

-- Name, bytes, calls a round.
local SIZES = {{"100MB", 1e8, 5}, {"4MiB", 4 * 2 ^ 20, 60}, {"64KiB", 64 * 2 ^ 10, 500}, {"4B", 4, 2000}}
local ROUNDS = 9
if options.quick then
  ROUNDS = 2
  table.remove(SIZES, 1)
end

-- ---- two devices of one process: comm.lua --local answers each line with the microseconds of a call ----------------

local cf = require "conflux"

local function time_of(list, calls)
  for _ = 1, math.min(calls, 20) do cf.allreduce("avg", list) end
  cf.sync()
  local start = bench.now()
  for _ = 1, calls do cf.allreduce("avg", list) end
  cf.sync()
  return (bench.now() - start) / calls
end

if options[1] == "--local" then
  cf.devices "cpu*2"
  local list = cf.withdevices(function() return cf.ones(1) end)
  for line in io.lines() do
    print(("%.17g"):format(time_of(list, tonumber(line:match "(%d+)$"))))
    io.flush()
  end
  os.exit(0)
end

if not os.getenv "CONFLUX_RANK" then
  local words = {}
  for i = 1, #arg do words[i] = ("'%s'"):format(arg[i]) end
  local status = os.execute(("'%s' -n 2 --devices cpu -- '%s' '%s' %s"):format(
    bench.program():match "^.*/" .. "conflux-run", bench.program(), arg[0], table.concat(words, " ")))
  os.exit(status == 0 and 0 or 1)
end

-- ---- those beside us ----------------------------------------------------------------------------------------

cf.dist.init()
local rank, size = cf.dist.rank(), cf.dist.size()

local function has(command) return os.execute(("command -v '%s' >/dev/null"):format(command)) == 0 end

local place, peers = nil, {}

-- A rank has a part of the launcher's cores: these get all of them, and know of no rank.
local function outside(command)
  local cores = ""
  if has "taskset" then
    local pipe = io.popen(("taskset -pc %d"):format(ffi.C.bench_getppid()))
    cores = "taskset -c " .. pipe:read "*a":match ": (%S+)"
    pipe:close()
  end
  return ("env -u CONFLUX_RANK -u CONFLUX_WORLD_SIZE -u CONFLUX_SOCKETS -u CONFLUX_NUM_THREADS %s %s"):format(cores,
    command)
end

-- Starts a program that answers each line "BYTES CALLS" with microseconds.
local function begin(name, command)
  local path = ("%s/%s"):format(place, name)
  assert(os.execute("mkfifo " .. path) == 0)
  local orders = assert(io.popen(("exec %s >%s 2>%s.log"):format(outside(command), path, path), "w"))
  peers[name] = {orders = orders, answers = assert(io.open(path))}
end

local function ask(name, bytes, calls)
  local peer = peers[name]
  if not peer then return nil end
  peer.orders:write(("%d %d\n"):format(bytes, calls))
  peer.orders:flush()
  local us = peer.answers:read "*n"
  if not us then
    local log = io.open(("%s/%s.log"):format(place, name)):read "*a"
    error(("%s has not answered: %s"):format(name, log), 0)
  end
  return us
end

if rank == 0 then
  place = os.tmpname()
  os.remove(place)
  assert(os.execute("mkdir " .. place) == 0)
  local conflux = bench.program():gsub("[^/]+$", "conflux")
  begin("local", ("'%s' '%s' --local"):format(conflux, arg[0]))
  if has "mpicc" and has "mpirun" then
    local is_built = os.execute(("mpicc -O2 -o %s/peer_mpi %speer_mpi.c"):format(place, folder)) == 0
    assert(is_built, "mpicc cannot build peer_mpi.c")
    begin("mpi", ("mpirun --allow-run-as-root --oversubscribe -n %d %s/peer_mpi"):format(size, place))
  end
  if has(python) and os.execute(("'%s' -c 'import torch.distributed' 2>/dev/null"):format(python)) == 0 then
    begin("gloo", ("'%s' %speer_gloo.py %d"):format(python, folder, size))
  end
end

-- ---- rounds ------------------------------------------------------------------------------------------------------

-- What each rank has to say: numbers, in rank order.
local function gather(number)
  local all = cf.zeros(size, {dtype = "float64"})
  all[rank + 1] = number
  cf.allreduce("+", {all})
  return all:totable()
end

local floor = bench.floor()
local context, threads = require "conflux.core".context(), cf.device().threads

local figures = {}
local function note(name, value, unit)
  if not value then return end
  if not figures[name] then
    figures[#figures + 1] = name
    figures[name] = {unit = unit}
  end
  table.insert(figures[name], value)
end

local function measure(name, bytes, calls)
  if options.quick then calls = math.max(1, math.floor(calls / 20)) end
  local n = bytes / 4
  local x = cf.ones(n)
  cf.allreduce("avg", {x})
  local offsets = gather(floor.conflux_floor_world_offset(context, ffi.cast("const char *", x:pointer())))
  local places = ffi.new("double[?]", size, offsets)
  for _ = 1, ROUNDS do
    gather(0) -- a barrier
    local us = math.max(unpack(gather(time_of({x}, calls))))
    note(("comm_%s_us"):format(name), us, "us")
    if offsets[1] >= 0 then -- small ones travel otherwise
      floor.conflux_floor_world_allreduce(context, places, n, threads, 1)
      gather(0)
      local loop = math.max(unpack(gather(floor.conflux_floor_world_allreduce(context, places, n, threads, calls))))
      assert(loop > 0, "the loop could not be measured")
      note(("comm_%s_loop_us"):format(name), loop, "us")
      note(("comm_%s_of_loop"):format(name), loop / us, "ratio")
    end
    if rank == 0 then
      local near = bytes == 4 and ask("local", bytes, calls)
      local mpi, gloo = ask("mpi", bytes, calls), ask("gloo", bytes, math.ceil(calls / 10))
      note(("comm_%s_over_mpi"):format(name), mpi and mpi / us, "ratio")
      note(("comm_%s_over_gloo"):format(name), gloo and gloo / us, "ratio")
      note(("comm_%s_over_local"):format(name), near and us / near, "ratio")
    end
    gather(0) -- the others wait for rank 0
  end
  x:release()
end

for _, case in ipairs(SIZES) do measure(unpack(case)) end

if rank == 0 then
  for _, name in ipairs(figures) do bench.figure(name, bench.median(figures[name]), figures[name].unit) end
  for _, peer in pairs(peers) do peer.orders:close() end
  os.execute("rm -rf " .. place)
end
cf.dist.finalize()
