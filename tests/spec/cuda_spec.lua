-- The CUDA plugin: on a machine without a GPU it says so; its kernels run on the CPU, pretending to be one.
local program = require "tests.spec.program"

local build = program.conflux:gsub("bin/conflux$", "")
local emulated -- settings that make conflux take the pretended GPU, where it is built

local function exists(path)
  local file = io.open(path)
  return file ~= nil and file:close()
end

if exists(build .. "emulated/libconflux_cuda.so") then
  emulated = ("CONFLUX_PLUGINS=%semulated CONFLUX_CUDA_PATH=%semulated"):format(build, build)
end

-- The same script on the CPU and on the pretended GPU, two devices each: its losses.
local function losses(arguments, devices, before)
  local out, err, code = program.run(("--devices '%s' %s"):format(devices, arguments), before)
  assert.equal(0, code, err)
  local list = {}
  for number in out:gmatch "%d+%.%d%d%d%d" do list[#list + 1] = tonumber(number) end
  assert.is_true(#list > 0, out)
  return list
end

describe("the CUDA plugin #program", function()
  it("says why there is no device, where there is none", function()
    local out = program.run [[-e 'print(pcall(require("conflux").devices, "cuda:0"))']]
    if out:find "^true" then return pending "this machine has a GPU" end
    assert.matches("^false\t%(command line%):1: conflux%.?d?e?v?i?c?e?s?: device 'cuda:0' does not exist: ", out)
    if not exists(build .. "lib/libconflux_cuda.so") then
      assert.matches("no CUDA plugin: .", out)
    elseif not out:find "cuda has 0 devices: ." then -- a machine without CUDA's libraries
      assert.matches("no CUDA plugin: lib%S+: .*CONFLUX_CUDA_PATH", out)
    end
  end)

  it("is quietly the CPU where it is missing or has no device, if none is asked for", function()
    local first = [[-e 'local cf = require "conflux" print(#cf.devices(), cf.devices()[1])']]
    local alone = "env -u CONFLUX_DEVICES CONFLUX_PLUGINS="
    assert.equal("1\tcpu:0\n", (program.run(first, alone .. "/nowhere")))
    assert.equal("1\tcpu:0\n", (program.run(first, "CUDA_VISIBLE_DEVICES= " .. alone .. build .. "lib")))
    assert.equal("1\tcpu:0\n", (program.run("--devices cpu " .. first, alone .. build .. "lib")))
  end)

  it("has the run's devices where there are some, if none is asked for", function()
    if not emulated then return pending "the emulated plugin is not built" end
    local out, err = program.run([[-e 'local cf = require "conflux"
      local lists = cf.withdevices(function() return cf.ones(3) + 1 end)
      print(lists, lists[1]:sum():item(), cf.ones(1).device)']],
      "env -u CONFLUX_DEVICES " .. emulated)
    assert.equal("1 replicas on [cuda:0]\t6\tcpu:0\n", out, err)
    out = program.run("--info", "env -u CONFLUX_DEVICES " .. emulated)
    assert.matches("\ncuda: [^\n]*, 4.0 GiB %(CUDA runtime [^\n]*, cuBLASLt [^\n]*%)\n", out)
    assert.matches("\nrun: cuda:0: 0.0 of at most 4096 MiB in use\n", out)
  end)

  it("trains x2.lua to the CPU's losses with its kernels run on the CPU: on two parts of a GPU, on two GPUs, on both",
    function()
      if not emulated then return pending "the emulated plugin is not built" end
      local expected = {[2] = losses("scripts/x2.lua", "cpu*2"), [3] = losses("scripts/x2.lua", "cpu*3")}
      for devices, n in pairs {["cuda:0*2"] = 2, ["cuda*2"] = 2, ["cuda:0*2,cuda:1"] = 3} do
        local got = losses("scripts/x2.lua", devices, emulated .. " CONFLUX_EMULATED_GPUS=2")
        assert.equal(#expected[n], #got)
        for i = 1, #got do
          assert.is_true(math.abs(got[i] - expected[n][i]) <= 1e-4 * math.abs(expected[n][i]) + 1e-4,
            ("%s: %g and %g"):format(devices, got[i], expected[n][i]))
        end
      end
    end)

  -- Three all-reduces between two GPUs; the third goes wrong, and so does what follows until new values are made.
  local third = [[-e 'local cf = require "conflux"; for _ = 1, 2 do
    local x = cf.withdevices(function(i) return cf.full(i, 10) end)
    for k = 1, 3 do print(k, pcall(function() cf.allreduce("+", x); return x[1][1]:item() end)) end
  end']]
  local function between(environment)
    local out, err, code = program.run("--devices 'cuda*2' " .. third,
      table.concat({emulated, "CONFLUX_EMULATED_GPUS=2", environment}, " "))
    assert.equal(0, code, err)
    return out, err
  end

  it("gathers and scatters between GPUs, and says how replicas are joined", function()
    if not emulated then return pending "the emulated plugin is not built" end
    local out, err = program.run([[--devices 'cuda*2' -e '
      local cf, core, ffi = require "conflux", require "conflux.core", require "ffi"
      local function list(xs) return ffi.new("cfx_tensor *[2]", {xs[1], xs[2]}) end
      local function each(f) return cf.withdevices(f) end
      local x, all = each(function(i) return cf.full(i, 3), cf.zeros(6) end)
      assert(core.C.cfx_allgather(2, list(x), list(all)) == 0)
      print(unpack(all[2]:totable()))
      local y, part = each(function(i) return cf.arange(i, i + 3), cf.zeros(2) end)
      assert(core.C.cfx_reduce_scatter("sum", 2, list(y), list(part)) == 0)
      print(part[1][1]:item(), part[1][2]:item(), part[2][1]:item(), part[2][2]:item())
      print(cf.info().groups[1].group)']], emulated .. " CONFLUX_EMULATED_GPUS=2")
    assert.equal("1\t1\t1\t2\t2\t2\n3\t5\t7\t9\nnccl\n", out, err)
  end)

  it("says why GPUs cannot be joined, and trains on those that reach each other all the same", function()
    if not emulated then return pending "the emulated plugin is not built" end
    assert.matches("NCCL is too old: version 2704, expected 21400 or newer", (between "FAKE_NCCL=old"))
    assert.matches("NCCL cannot join these GPUs: invalid usage: no network", (between "FAKE_NCCL=mute"))
    assert.matches("CONFLUX_COLLECTIVE_TIMEOUT: expected seconds, more than 0, got '5 min'",
      (between "CONFLUX_COLLECTIVE_TIMEOUT='5 min'"))
    local out, err = between "FAKE_NCCL=mute CONFLUX_EMULATED_PEERS=1"
    assert.equal(("1\ttrue\t3\n2\ttrue\t6\n3\ttrue\t12\n"):rep(2), out)
    assert.matches("warning: NCCL cannot join.*; replicas are joined in each other's memory instead\n$", err)
  end)

  it("ends a collective that fails on one GPU, or that one does not come to, on all, once, and goes on", function()
    if not emulated then return pending "the emulated plugin is not built" end
    for environment, reason in pairs {["FAKE_NCCL=fail"] = "NCCL on GPU %d: invalid usage: made to fail",
      ["FAKE_NCCL=hang CONFLUX_COLLECTIVE_TIMEOUT=0.3"] =
        "a collective %(number 3%) of 2 GPUs stood still for 0%.3 s on GPU %d"} do
      local out = between(environment)
      assert.matches("^1\ttrue\t3\n2\ttrue\t6\n3\tfalse\t[^\n]*allreduce: "
        .. reason, out)
      assert.matches("\n1\ttrue\t3\n2\ttrue\t6\n3\tfalse\t[^\n]*\n$", out)
    end
  end)
end)
