-- Virtual devices for a spec file, and a collection that finds every dead tensor.
local cf = require "conflux"

local virtual = {}

-- LuaJIT's collector takes what dead registers of a frame hold for alive.  Writes nil over those that later
-- frames will have.
local function scrub(depth)
  local a, b, c, d, e, f, g, h, i, j -- luacheck: ignore 211
  if depth > 0 then return (scrub(depth - 1)) end
end

--- Collects what nobody holds: not dead registers, nor compiled code its constants.
function virtual.collect()
  scrub(150)
  jit.flush()
  collectgarbage()
  collectgarbage()
end

--- Gives the tests of a file the devices of `spec`, and the run its one device back afterwards.  busted's functions
-- are the file's own globals, so they are handed in.
function virtual.devices(spec, setup, teardown)
  setup(function() cf.devices(spec) end)
  teardown(function()
    virtual.collect()
    cf.devices "cpu"
  end)
end

return virtual
