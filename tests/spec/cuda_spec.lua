-- The CUDA plugin: on a machine without a GPU it says so; its kernels run on the CPU, pretending to be one.
local program = require "tests.spec.program"

local build = program.conflux:gsub("bin/conflux$", "")
local emulated = build .. "emulated"

local function exists(path)
  local file = io.open(path)
  return file ~= nil and file:close()
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
    assert.matches(exists(build .. "lib/libconflux_cuda.so") and "cuda has 0 devices: ." or "no CUDA plugin: .", out)
  end)

  it("is quietly the CPU where it is missing or has no device, if none is asked for", function()
    local first = [[-e 'local cf = require "conflux" print(#cf.devices(), cf.devices()[1])']]
    local alone = "env -u CONFLUX_DEVICES CONFLUX_PLUGINS="
    assert.equal("1\tcpu:0\n", (program.run(first, alone .. "/nowhere")))
    assert.equal("1\tcpu:0\n", (program.run(first, "CUDA_VISIBLE_DEVICES= " .. alone .. build .. "lib")))
    assert.equal("1\tcpu:0\n", (program.run("--devices cpu " .. first, alone .. build .. "lib")))
  end)

  it("has the run's devices where there are some, if none is asked for", function()
    if not exists(emulated .. "/libconflux_cuda.so") then return pending "the emulated plugin is not built" end
    local out, err = program.run([[-e 'local cf = require "conflux"
      local lists = cf.withdevices(function() return cf.ones(3) + 1 end)
      print(lists, lists[1]:sum():item(), cf.ones(1).device)']],
      "env -u CONFLUX_DEVICES CONFLUX_PLUGINS=" .. emulated)
    assert.equal("1 replicas on [cuda:0]\t6\tcpu:0\n", out, err)
    out = program.run("--info", "env -u CONFLUX_DEVICES CONFLUX_PLUGINS=" .. emulated)
    assert.matches("\ncuda: [^\n]*, 4.0 GiB %(CUDA runtime [^\n]*, cuBLASLt [^\n]*%)\n", out)
    assert.matches("\nrun: cuda:0: 0.0 of at most 4096 MiB in use\n", out)
  end)

  it("trains x2.lua to the CPU's losses with its kernels run on the CPU", function()
    if not exists(emulated .. "/libconflux_cuda.so") then return pending "the emulated plugin is not built" end
    local expected = losses("scripts/x2.lua", "cpu*2")
    local got = losses("scripts/x2.lua", "cuda:0*2", "CONFLUX_PLUGINS=" .. emulated)
    assert.equal(#expected, #got)
    for i = 1, #expected do
      assert.is_true(math.abs(got[i] - expected[i]) <= 1e-4 * math.abs(expected[i]) + 1e-4,
        ("%g and %g"):format(got[i], expected[i]))
    end
  end)
end)
