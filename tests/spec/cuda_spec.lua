-- The CUDA plugin: on a machine without a GPU it says so; its kernels run on the CPU, pretending to be one.
local program = require "tests.spec.program"

local build = program.conflux:gsub("bin/conflux$", "")

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
    if not exists(build .. "lib/libconflux_cuda.so") then
      assert.matches("no CUDA plugin: .", out)
    elseif not out:find "cuda has 0 devices: ." then -- a machine without CUDA's libraries
      assert.matches("no CUDA plugin: lib%S+: .*CONFLUX_CUDA_PATH", out)
    end
  end)

  it("trains x2.lua to the CPU's losses with its kernels run on the CPU", function()
    local emulated = build .. "emulated"
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
