--- Conflux: a training engine, scripted in Lua.
--
--     local cf = require "conflux"
--
-- The table gathers what the modules define; nothing is defined here, and no global is set.
-- @module conflux
local core   = require "conflux.core"
local tensor = core.methods

local cf = {}

-- Puts the fields of a module into cf.  Two modules that mean different things by one name are a mistake.
local function merge(module)
  for name, value in core.each, module do
    if cf[name] ~= nil and cf[name] ~= value then error("conflux: two modules define cf." .. name, 0) end
    cf[name] = value
  end
end

require "conflux.tensor"
require "conflux.show"
merge(require "conflux.make")
merge(require "conflux.shape")
merge(require "conflux.elementwise")
merge(require "conflux.ops")
merge(require "conflux.system")
merge(require "conflux.values")

-- Methods that read well as functions, too: cf.reshape(x, 2, 3).
for _, name in ipairs {"clone", "contiguous", "detach", "expand", "flip", "pad", "permute", "reshape", "split",
  "squeeze", "tile", "transpose", "unsqueeze"} do
  cf[name] = tensor[name]
end

local tree = require "conflux.tree"
cf.tree = {map = tree.map, leaves = tree.leaves, norm = tree.norm, walk = tree.walk, to = tree.to}

merge(require "conflux.gradient")
merge(require "conflux.replicas")
merge(require "conflux.files")
cf.nn       = require "conflux.nn"
cf.zoo      = require "conflux.zoo"
cf.optim    = require "conflux.optim"
cf.data     = require "conflux.data"
cf.dist     = require "conflux.dist"
cf.metrics  = require "conflux.metrics"
cf.progress = require "conflux.progress"

local names = require "conflux.names"
names.guard(cf, "cf.")
for _, room in ipairs {"nn", "zoo", "optim", "data", "dist", "metrics", "tree"} do
  names.guard(cf[room], room .. ".")
end
names.guard(cf.nn.init, "nn.init.")
names.guard(cf.data.transforms, "data.transforms.")
names.add(tensor, "x:") -- tensors raise by themselves, behind their fields

return cf
