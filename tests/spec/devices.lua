-- The devices that specs run on.
--
-- Specs are written for the CPU, and run there unless CONFLUX_TEST_DEVICES names others, such as "cuda:0*2" or
-- "cuda*4".  Their tensors by default, and the run of the programs that they start, then lie on the first of these.
-- A file that needs several devices takes them in their order, and after them virtual ones of the same GPUs, in
-- turns.  `on` turns what a spec says of the CPU's devices into what holds of these:
--
--     local devices = require "tests.spec.devices"
--     local on = devices.on
--     devices.use(3, setup, teardown)                            -- cpu:0 to cpu:2, or the first three test devices
--     on {"cpu:0", "cpu:1"}                                      -- their names: with cuda:0*2 cuda:0.0 and cuda:0.1
--     assert.equal(on "[2 float32, cpu:0]", tostring(x))         -- a text with their names
--
-- A spec about the CPU, its names and its memory says "cpu" without `on`.
-- tests/busted.lua loads this before the first spec, and all of them share it.
local core = require "conflux.core"
local ffi  = require "ffi"

ffi.cdef "int setenv(const char *name, const char *value, int overwrite);"

local devices = {}
local list = {} -- names of test devices, as many as were asked for

-- ---- names ----------------------------------------------------------------------------------------------------

local taken, prefixes = {}, {} -- sets of names; what a virtual device's number comes behind, such as "cuda:0."

local function add(name)
  list[#list + 1] = name
  taken[name] = true
  local prefix = name:find "^cpu" and "cpu:" or name:match "^%a+:%d+" .. "."
  if not taken[prefix] then prefixes[#prefixes + 1] = prefix end
  taken[prefix] = true
end

local function name_of(i)
  local number = 0
  while #list < i do
    for _, prefix in ipairs(prefixes) do
      if not taken[prefix .. number] then add(prefix .. number) end
    end
    number = number + 1
  end
  return list[i]
end

--- Whether specs run on the CPU.
devices.are_cpu = true

--- A spec's text about the CPU's devices, with the names of the test devices: a text, or a list of texts.
function devices.on(x)
  if type(x) == "string" then return (x:gsub("cpu:(%d+)", function(i) return name_of(i + 1) end)) end
  local names = {}
  for i, text in ipairs(x) do names[i] = devices.on(text) end
  return names
end

--- The first n test devices, for `--devices`.
function devices.spec(n)
  name_of(n)
  return table.concat(list, ",", 1, n)
end

-- ---- the run --------------------------------------------------------------------------------------------------

--- Makes the run's devices the first n.
function devices.run(n)
  core.devices(devices.spec(n))
  core.set_default(core.find_device(list[1])) -- as the scheduler does: outside of it the default is cpu:0
end

--- Gives the tests of a file the first n devices, and the run its one device back afterwards.  busted's functions
-- are the file's own globals, so they are handed in.
function devices.use(n, setup, teardown)
  setup(function() devices.run(n) end)
  teardown(function()
    devices.collect()
    devices.run(1)
  end)
end

-- LuaJIT's collector takes what dead registers of a frame hold for alive.  Writes nil over those that later
-- frames will have.
local function scrub(depth)
  local a, b, c, d, e, f, g, h, i, j -- luacheck: ignore 211
  if depth > 0 then return (scrub(depth - 1)) end
end

--- Collects what nobody holds: not dead registers, nor compiled code its constants.
function devices.collect()
  scrub(150)
  jit.flush()
  collectgarbage()
  collectgarbage()
end

local spec = os.getenv "CONFLUX_TEST_DEVICES"
ffi.C.setenv("CONFLUX_DEVICES", spec and spec ~= "" and spec or "cpu", 1)
for _, device in ipairs(core.devices()) do add(device.name) end
ffi.C.setenv("CONFLUX_DEVICES", list[1], 1)
devices.are_cpu = list[1]:find "^cpu" ~= nil
devices.run(1)

return devices
