--- Many processes: each is a rank of one world, and has its own devices.
--
--     cf.dist.init()
--     cf.dist.println("hello") -- "[0 / 2] hello", then "[1 / 2] hello", under `conflux-run -n 2`
--
-- @module conflux.dist
local core = require "conflux.core"
local collective = require "conflux.dist.collective"
local gather = require("conflux.dist.gather").public
local gradients = require "conflux.dist.gradients"
local output = require "conflux.dist.output"
local world = require "conflux.dist.world"

local dist = {}

for _, name in ipairs {"init", "initialized", "finalize", "rank", "size", "local_rank", "local_size", "hosts",
  "shrink", "config"} do
  dist[name] = world[name]
end
for _, name in ipairs {"allreduce", "reduce", "bcast", "barrier", "iallreduce", "ibcast", "waitall"} do
  dist[name] = collective[name]
end
for _, room in ipairs {gather, gradients, output} do
  for name, f in core.each, room do dist[name] = f end
end

return dist
