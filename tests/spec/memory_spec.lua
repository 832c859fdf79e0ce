local program = require "tests.spec.program"

-- Runs `text` under a limit of device memory.
local function run(limit, text)
  local out, err, code = program.run(program.file(text), "CONFLUX_MEMORY_LIMIT=" .. limit)
  program.clean()
  assert.equal(0, code, out .. err)
  return out
end

-- Dropped tensors fill the pool long before Lua's own heap is worth a collection.
local STEPS = [[
local cf = require "conflux"
local nn = cf.nn
cf.seed(1)
local model = nn.Chain(nn.Dense(64, 256, "tanh"), nn.Dense(256, 256, "tanh"), nn.Dense(256, 1))
local x, y = cf.rand(256, 64), cf.rand(256, 1)
local halve = cf.op("halve", {
  forward = function(a) return a / 2 end,
  backward = function(dy)
    local twice = dy * 2
    return twice / 4
  end,
})
local failed, first, sum = 0, "", 0
for _ = 1, 40 do
  local ok, loss, g = pcall(cf.withgradient, function(m) return nn.mse(m(halve(x * 2)), y) + halve(m[1].bias):sum() end,
    model)
  if ok then sum = sum + loss:item() + g[1].bias:sum():item()
  else failed, first = failed + 1, loss end
end
print(failed, first, sum)
]]

describe("a memory limit", function()
  it("fails no step of training that fits once the garbage is collected #program", function()
    local free = run("1G", STEPS)
    assert.matches("^0\t\t", free)
    for _, limit in ipairs {"3M", "5M"} do
      assert.equal(free, run(limit, STEPS), limit)
    end
  end)

  it("fails no call that fits once the garbage is collected #program", function()
    local out = run("3M", [[
local cf = require "conflux"
local x, half, row = cf.ones(256, 256), cf.ones(300, 300, {dtype = "float16"}), cf.ones(1, 1)
local calls = {
  eye = function() return cf.eye(256) end,
  assign = function() x[{{}, {1, 256}}] = cf.ones(256, 256) end,
  number = function() x[{{}, {1, 256}}] = 1 end,
  squeeze = function() return (x * 1):squeeze() end,
  dimension = function() return row:expand(1, 65536):clone():squeeze(1) end,
  read = function() return half:t():clone():totable() end,
  strided = function() return (x * 2):t()[3]:totable() end,
  show = function() return tostring(x * 2) end,
  save = function() return cf.concat({x, x}, 1) end,
}
for name, f in pairs(calls) do
  for _ = 1, name == "read" and 2 or 40 do
    local ok, message = pcall(f)
    if not ok then print(name, message) break end
  end
end
]])
    assert.equal("", out)
  end)

  it("lends a number the room of a larger tensor where there is no other #program", function()
    local out = run("18M", [[
local cf = require "conflux"
local t = {}
for i = 1, 9 do t[i] = cf.zeros(2 ^ 19) end -- 2 MiB, of which four share a stretch of memory
for _, i in ipairs {3, 4, 5, 7, 8, 9} do t[i]:release() end
local x = cf.full(3, 1)
print(x:item(), cf.memory().reserved <= cf.memory().limit)
x:release()
t[3] = cf.zeros(2 ^ 19)
print(t[3]:sum():item())
]])
    assert.equal("3\ttrue\n0\n", out)
  end)
end)
