-- Scripts for several ranks, run under conflux-run.
local program = require "tests.spec.program"
local assert  = require "luassert"

local ranks = {}

-- Every script begins with this: `expect` compares, and `refused` returns the message of f(...) without its place.
local HEAD = [[
local cf = require "conflux"
local dist = cf.dist
local function expect(got, wanted)
  if cf.tensor and type(got) == "cdata" then got = table.concat(got:reshape(got:numel()):totable(), " ") end
  if got ~= wanted then error(("expected %s, got %s"):format(tostring(wanted), tostring(got)), 2) end
end
local function refused(f, ...)
  local ok, message = pcall(f, ...)
  if ok then error("it was not refused", 2) end
  return (message:gsub("^%S+:%d+: ", ""))
end
local devices = cf.devices()
dist.init()
local rank, size = dist.rank(), dist.size()
local function sum(f) -- of f(r) over all ranks
  local total = 0
  for r = 0, size - 1 do total = total + f(r) end
  return total
end
]]

-- Runs a script on n ranks: stdout, stderr, exit code, and its path.
function ranks.run(n, devices, text)
  local path = program.file(HEAD .. text)
  local out, err, code = program.shell(("%s-run -n %d --devices %s %s </dev/null"):format(program.conflux, n,
    program.quote(devices), path))
  return out, err, code, path
end

-- On every number of ranks, each with 1 device and with 2.
function ranks.everywhere(text)
  for n = 1, 4 do
    for _, devices in ipairs {"cpu", "cpu*2"} do
      local _, err, code = ranks.run(n, devices, text)
      assert.same({"", 0}, {err, code}, ("%d ranks with %s"):format(n, devices))
    end
  end
end

return ranks
