--- The time from the death of a rank to the error that another rank gets, beside the news of the system.
--
--     build/bin/conflux scripts/bench/faults.lua [--quick]
--
-- Two ranks train in step; one of them is killed (SIGKILL) while the other waits for it in an all-reduce.  This process
-- sends the signal, and waits for the end of the same process by a poll of its descriptor, bare: that is the floor.
-- death_to_error_us ends where the other rank's script has the error.  Medians of 15 runs, the ratio's too.
local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local ffi = require "ffi"

ffi.cdef [[
  int bench_pause(void) __asm__("pause");
  int32_t conflux_floor_death(int32_t pid, double *times);
]]

local options = bench.options()
local RUNS = options.quick and 2 or 15

-- ---- a rank: faults.lua --rank --------------------------------------------------------------------------------

if options[1] == "--rank" then
  local cf = require "conflux"
  cf.dist.init()
  local x = cf.ones(1e5)
  for _ = 1, 10 do cf.allreduce("avg", {x}) end
  cf.sync()
  if cf.dist.rank() == 1 then
    cf.dist.barrier()
    print(("victim %d"):format(ffi.C.bench_getpid()))
    io.flush()
    while true do ffi.C.bench_pause() end
  end
  cf.dist.barrier()
  local ok = pcall(function()
    cf.allreduce("avg", {x})
    return x[1]:item()
  end)
  print(("error %.17g %s"):format(bench.now(), tostring(ok)))
  os.exit(0)
end

-- ---- runs -----------------------------------------------------------------------------------------------------

local floor = bench.floor()

local function run()
  local launcher, times = bench.program():match "^.*/" .. "conflux-run", ffi.new "double[2]"
  local pipe = assert(io.popen(("'%s' -n 2 --devices cpu -- '%s' '%s' --rank 2>/dev/null"):format(launcher,
    bench.program(), arg[0])))
  local victim, at
  for line in pipe:lines() do
    victim = line:match "victim (%d+)"
    if victim then break end
  end
  assert(victim, "the ranks do not meet")
  os.execute "sleep 0.05" -- the other rank sleeps in its wait
  assert(floor.conflux_floor_death(tonumber(victim), times) == 0, "the rank could not be killed")
  for line in pipe:lines() do at = line:match "error (%S+) false" or at end
  pipe:close()
  return assert(tonumber(at), "no error came") - times[0], times[1] - times[0]
end

local error_us, poll_us, ratio = {}, {}, {}
for k = 1, RUNS do
  error_us[k], poll_us[k] = run()
  ratio[k] = error_us[k] / poll_us[k]
end
bench.figure("death_to_error_us", bench.median(error_us), "us")
bench.figure("death_poll_us", bench.median(poll_us), "us")
bench.figure("death_to_error_over_poll", bench.median(ratio), "ratio")
