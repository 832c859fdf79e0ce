-- Cores that Conflux shares: with other programs, with a quota, among its teams.
local program = require "tests.spec.program"

local run, shell = program.run, program.shell

-- The line of --info that tells how teams wait.
local function waits(before)
  return run("--devices cpu --info", before):match "%(oneDNN [%d.]+; ([^\n]*)%)\n"
end

describe("cores #program", function()
  after_each(program.clean)

  it("says how a team's threads wait, and why their waits cannot be steered", function()
    assert.matches("^lib%g+: waits ", waits "env -u OMP_WAIT_POLICY -u GOMP_SPINCOUNT")
    if waits():find "^libgomp" then
      assert.matches("^libgomp%S+: waits as OMP_WAIT_POLICY says$", waits "OMP_WAIT_POLICY=active")
      assert.matches("^libgomp%S+: waits as GOMP_SPINCOUNT says$", waits "GOMP_SPINCOUNT=100")
    end
  end)

  it("says so of another OpenMP runtime, and computes the same there", function()
    local path = shell "ls /usr/lib/llvm-*/lib/libomp.so.5 2>/dev/null | head -n 1":match "[^\n]+"
    if not path or program.obstacle() then return pending "there is no libomp that could take libgomp's place" end
    assert.matches("^libomp%S*: waits cannot be fitted", waits("LD_PRELOAD=" .. path))
    local script = program.file [[
      local cf = require "conflux"
      cf.seed(1)
      local a, b = cf.rand(200, 300), cf.rand(300, 100)
      print(("%.17g"):format(a:matmul(b):tanh():sum():item()))
    ]]
    assert.equal(run(script), (run(script, "LD_PRELOAD=" .. path)))
  end)

  it("gives a device as many threads as the quota of its cgroup is worth", function()
    local function threads(quota)
      return shell(([=[unshare -m sh -c 'mount -t tmpfs none /sys/fs/cgroup && echo "%s" >/sys/fs/cgroup/cpu.max &&
        %s --devices cpu -e "print(require[[conflux]].devices()[1].threads)"']=]):format(quota, program.conflux))
    end
    local cores = tonumber((shell "nproc"))
    if threads "max 100000" == "" then return pending "no mount namespace can be made here" end
    assert.equal(cores, tonumber((threads "max 100000")))
    assert.equal(1, tonumber((threads "50000 100000")))
    assert.equal(math.min(2, cores), tonumber((threads "150000 100000")))
  end)

  it("gives a device as many threads as it may have cores", function()
    if not program.has "taskset" then return pending "there is no taskset here" end
    assert.equal("1\n", (run("--devices cpu -e 'print(require[[conflux]].devices()[1].threads)'", "taskset -c 0")))
  end)

  it("runs with the threads that there are, and says so", function()
    local few = "setpriv --reuid 54321 --clear-groups prlimit --nproc=%d " -- root may have any number
    local script = program.quote [[
      local cf = require "conflux"
      local x = cf.ones(400, 500)
      print((x + 1):sum():item(), x:matmul(x:t()):sum():item())
    ]]
    if select(3, shell(few:format(8) .. program.conflux .. " --help")) ~= 0 then
      return pending "no process can be made here that may have few threads"
    end
    for limit = 1, 9 do
      local out, err, code = run("--devices cpu --threads 6 -e " .. script, few:format(limit))
      assert.equal(limit > 1 and "400000\t80000000\n" or "", out, err)
      assert.equal(limit > 1 and 0 or 1, code)
      if limit == 1 then assert.matches("cannot start the worker of cpu:0: ", err) end
      if limit > 1 and limit < 6 then
        assert.matches("team has %d threads? instead of 6: the system makes no more threads", err)
      end
      if limit > 7 then assert.equal("", err) end
    end
  end)

  it("keeps a team's threads, whatever the sizes of what they compute", function()
    local script = program.file [[
      local cf = require "conflux"
      local list = "ls /proc/" .. io.open("/proc/self/stat"):read "*n" .. "/task"
      local function threads()
        cf.sync()
        local pipe = io.popen(list)
        local text = pipe:read "*a"
        pipe:close()
        return text
      end
      local small, large = cf.rand(40000), cf.rand(500000)
      local function step() small, large = small * 1, large * 1 end
      step()
      local before = threads()
      for _ = 1, 20 do step() end
      print(before == threads(), select(2, before:gsub("\n", "")) >= 5)
    ]]
    -- where waits are steered the watcher's own threads come and go
    assert.equal("true\ttrue\n", (run(script, "CONFLUX_NUM_THREADS=4 OMP_WAIT_POLICY=passive")))
  end)
end)
