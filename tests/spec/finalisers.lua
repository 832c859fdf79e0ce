-- Calls of every kind, and inside them finalisers that call Conflux with other numbers.  reentry_spec.lua runs it, in
-- a program of its own as it sets the collector:
--
--     conflux tests/spec/finalisers.lua objects [name]   a full collection wherever an object is made
--     conflux tests/spec/finalisers.lua compiled [name]  collections now and then, in loops that LuaJIT compiles
--     conflux tests/spec/finalisers.lua memory [name]    each call is out of memory, collects, and is tried once more
--
-- Each call's values are compared with those that it has alone.  Prints a line for each that differs, and at the end
-- in how many calls finalisers ran.  A name runs one of them.
local mode, only = arg[1], arg[2]
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

cf.devices "cpu*2"

-- ---- values as text -----------------------------------------------------------------------------------------

local text

local function list_text(v)
  local parts, keys = {}, {}
  for key in pairs(v) do keys[#keys + 1] = key end
  table.sort(keys, function(a, b) return tostring(a) < tostring(b) end)
  for i, key in ipairs(keys) do parts[i] = ("%s=%s"):format(tostring(key), text(v[key])) end
  return "{" .. table.concat(parts, " ") .. "}"
end

function text(v)
  if type(v) == "cdata" then
    return ("[%s %s] %s"):format(table.concat(v.shape, "x"), v.dtype, text(v:totable()))
  end
  if type(v) == "number" then return ("%.6g"):format(v) end
  return type(v) == "table" and list_text(v) or tostring(v)
end

local function texts(...)
  local parts = {}
  for i = 1, select("#", ...) do parts[i] = text((select(i, ...))) end
  return table.concat(parts, "; ")
end

local function shapes(...)
  local parts = {}
  for i, t in ipairs {...} do parts[i] = table.concat(t.shape, "x") end
  return table.concat(parts, "; ")
end

-- ---- the calls ----------------------------------------------------------------------------------------------

local calls = {} -- in order: {name, f}, f returns what the call gives, as text

local function call(name, f)
  calls[#calls + 1] = {name, f}
end

local x = cf.arange(1, 24):reshape(2, 3, 4)
local y = cf.tensor {{3, -1, 2}, {0, 5, -4}}
local ids = cf.tensor({{0, 1}, {1, 0}}, {dtype = "int64"})
local mask = cf.tensor {{true, false}, {false, false}}
local path = os.tmpname()

for _, name in ipairs {"sum", "mean", "prod", "max", "min", "norm", "any", "all", "var", "std"} do
  call(name, function() return texts(x[name](x, 2), y[name](y, -1, {keepdim = true})) end)
  call(name .. " over a list", function() return texts(x[name](x, {1, 3}), x[name](x, {3, 2}, {keepdim = true})) end)
  call(name .. " over all", function() return texts(x[name](x), y[name](y, {keepdim = true})) end)
end
for _, name in ipairs {"argmax", "argmin", "softmax", "logsoftmax"} do
  call(name, function() return texts(x[name](x, 2), y[name](y, 1)) end)
end
call("topk", function() return texts(y:topk(2)) end)
call("sort", function() return texts(y:sort(1, {descending = true})) end)
call("matmul", function() return texts(y:matmul(y:t()), x:matmul(x:transpose(2, 3))) end)
call("index", function() return texts(y:index(2, ids), y[ids]) end)
call("gather", function() return texts(y:gather(2, ids)) end)
call("scatteradd", function() return texts(y:scatteradd(1, ids, cf.ones(2, 2))) end)

call("reshape", function() return texts(x:reshape(4, 6), x:reshape({3, -1}), x:reshape(2, 2, 2, 3)) end)
call("expand", function() return texts(y:expand(2, 2, 3), cf.ones(2, 1):expand({-1, 3})) end)
call("tile", function() return texts(y:tile(2, 1), y:tile({1, 2})) end)
call("permute", function() return texts(x:permute(3, 1, 2), x:permute({2, 3, 1})) end)
call("transpose", function() return texts(x:transpose(1, 3), y:t()) end)
call("flip", function() return texts(x:flip(1, 3), x:flip({2}), x:flip()) end)
call("squeeze", function()
  local z = y:reshape(1, 2, 1, 3)
  return texts(z:squeeze(), z:squeeze(1), z:unsqueeze(-1))
end)
call("pad", function() return texts(y:pad({{1, 0}, 2}, {value = 7})) end)
call("split", function() return texts(y:split(2, 2), y:split({1, 1})) end)
call("concat and stack", function() return texts(cf.concat({y, y}, 2), cf.stack({y, y, y}, 3)) end)
call("positions", function() return texts(x[2], x[{1, {2, 3}}], x[{{}, 3, {1, 4, 2}}], x[{}]) end)
call("assignment", function()
  local z = y:clone()
  z[1], z[{2, {2, 3}}], z[{{}, 1}] = 9, cf.tensor {8, 7}, -1
  return texts(z)
end)

call("zeros, ones and full", function()
  return texts(cf.zeros(2, 3), cf.ones({3, 1}, {dtype = "int64"}), cf.full(true, 2), cf.full(0.5, {2, 2}))
end)
call("random numbers", function()
  return shapes(cf.rand(2, 3), cf.randn({3, 1, 2}), cf.randint(1, 6, 5), cf.randperm(7),
    cf.rand({4}, {device = "cpu:1"}))
end)
call("randperm", function() return texts((cf.randperm(9):sort())) end)
call("sequences", function() return texts(cf.arange(2, 9, 3), cf.linspace(0, 1, 5), cf.eye(2, 3), cf.eye(3)) end)
call("onehot", function() return texts(cf.onehot(ids, 3, {dtype = "int32"})) end)
call("tensor", function()
  return texts(cf.tensor {{1, 2}, {3, 4}, {5, 6}}, cf.tensor(4), cf.tensor({{1, 0}}, {dtype = "float16"}), cf.tensor {})
end)
call("from", function()
  local array = require "ffi".new("int32_t[6]", 1, 2, 3, 4, 5, 6)
  return texts(cf.from(array, {3, 2}), cf.from("\1\2\3\4", {2, 1, 2}, {dtype = "uint8"}))
end)
call("initialisers", function()
  local layer = nn.init
  return shapes(layer.glorot_uniform(3, 2), layer.kaiming_normal({2, 5}), layer.normal(4)) ..
    texts(layer.zeros(2, 1), layer.constant(3, {1, 2}))
end)

call("elementwise", function() return texts(y + 1, 2 - y, y * y, y:maximum(y:t():t()), cf.where(y:gt(0), y, 0)) end)
call("in place", function()
  local z = y:clone()
  return texts(z:add_(1):mul_(y):clamp_(-3, 5):copy_(z:t():t()))
end)
call("conversions", function()
  return texts(y:to "float64", y:to "int32", y:to "cpu:1", y:t():contiguous(), y:detach())
end)
call("item", function()
  return texts(y:sum():item(), mask:any():item(), cf.tensor(7, {dtype = "int64"}):item(),
    cf.tensor(0.5, {dtype = "float16"}):item(), ids:sum():item())
end)
call("tostring", function() return texts(tostring(y), tostring(cf.arange(1, 2000):reshape(40, 50)), y:tril(), mask) end)
call("metrics", function()
  return texts(cf.metrics.accuracy(y, cf.tensor({0, 1}, {dtype = "int64"})), cf.tree.norm {y, x})
end)

local function model()
  return nn.Chain(nn.Dense(3, 4, "tanh", {init = function(...) return cf.full(0.1, ...) end}), nn.LayerNorm(4),
    nn.Dense(4, 2, {init = function(...) return cf.full(-0.2, ...) end}))
end

local function loss(m, scale) return (m(y) * (scale or 1)):sum(2):square():mean() end

call("layers", function()
  local m = model()
  return texts(m(y), nn.LayerNorm({2, 3}, {affine = false})(y), nn.Flatten()(x), tostring(m)) ..
    shapes(nn.Embedding(5, 2)(ids), nn.Dropout(0.5)(x))
end)
call("losses", function()
  return texts(nn.crossentropy(y, cf.tensor({2, 0}, {dtype = "int64"})), nn.mse(y, y * 2), nn.huber(y, y:abs()))
end)
call("gradient", function()
  local m = model()
  local value, g = cf.withgradient(loss, m)
  cf.addgradient(g, loss, m, 2)
  return texts(value, g)
end)
call("gradient of a tensor", function()
  return texts(cf.gradient(function(z) return z:permute(2, 1):reshape(2, 3):sum(1):square():sum() end, y:clone()))
end)
call("custom operation", function()
  local square = cf.op("square", {
    forward = function(z) return z * z end,
    backward = function(dy, z) return dy * z * 2 end,
  })
  return texts(cf.gradient(function(m) return square(m.w):sum(1):sum() end, {w = y:clone(), b = cf.ones(2)}))
end)
for _, name in ipairs {"Descent", "Momentum", "RMSProp", "Adam", "AdamW", "Lion"} do
  call(name, function()
    local m = {w = y:clone(), b = cf.ones(2)}
    local state = optim.Chain(optim.ClipNorm(1), optim[name](function(count) return 0.1 / count end)):setup(m,
      function(at) return {scale = at == "w" and 2 or nil, decay = 0} end)
    for k = 1, 2 do optim.update(state, m, {w = y * k, b = cf.full(k, 2)}) end
    return texts(m, state.step, state.m or 0, state.v or 0)
  end)
end

call("replicas", function()
  local copies = cf.replicate {w = y, n = 3}
  local lists = cf.withdevices(function(i, device)
    copies[i].w:add_(i)
    return copies[i].w:sum(1):sum():item() + (cf.ones(i, 2).device == device and 1 or 0)
  end)
  cf.allreduce("avg", copies)
  cf.reduce("+", 2, copies)
  local first = text(copies[1])
  cf.synchronize(copies, 2)
  return texts(lists[1], lists[2], first, copies[1], copies[2])
end)
call("allreduce by a function", function()
  local copies = cf.replicate(y)
  cf.allreduce(function(a, b) return a + b * 2 end, copies)
  return texts(copies[1], copies[2])
end)

call("files", function()
  cf.save(path, {w = y, list = {x, "text", 4}, deep = {mask = mask}})
  local into = {w = y:clone():fill_(0), list = {x:clone(), "", 0}, deep = {mask = mask:clone()}}
  return texts(cf.load(path), cf.load(path, {into = into}))
end)
call("loader", function()
  local loader = cf.data.DataLoader({inputs = cf.arange(1, 20):reshape(10, 2), labels = cf.arange(1, 10)},
    {batch = 2, shuffle = true, seed = 3})
  local parts = {}
  for step, batch in loader:epoch(1) do
    parts[step] = texts(step, batch.n, batch[1].inputs, batch[2].labels, batch[1].n, batch[2].n)
  end
  return texts(parts, loader:state())
end)
call("tree", function()
  return texts(cf.tree.map(function(a, b) return a + b end, {y, {z = y}}, {y, {z = y}}), cf.tree.to({y}, "float64"))
end)
call("messages", function()
  local function message(f) return tostring(select(2, pcall(f))):gsub("^[^:]*:%d+: ", "") end
  return texts(message(function() return y:matmul(x) end), message(function() return y:reshape(5, 5) end),
    message(function() return cf.zeros({2}, {device = "gpu:7"}) end), message(function() return y:sum(3) end))
end)

-- Those that hand C sizes or dimensions, to be compiled: each gives a tensor, of which the shape is looked at.
local loops = {
  {"sum", function() return x:sum(2) end},
  {"var", function() return x:var({3, 1}) end},
  {"mean", function() return y:mean(-1, {keepdim = true}) end},
  {"reshape", function() return x:reshape(3, 2, 4) end},
  {"expand", function() return y:expand({4, 2, 3}) end},
  {"tile", function() return y:tile(2, 3) end},
  {"permute", function() return x:permute(3, 1, 2) end},
  {"flip", function() return x:flip(2) end},
  {"squeeze", function() return y:unsqueeze(1):squeeze() end},
  {"pad", function() return y:pad {1, {0, 2}} end},
  {"zeros", function() return cf.zeros(2, 3) end},
  {"rand", function() return cf.rand({3, 2}) end},
  {"eye", function() return cf.eye(3, 2) end},
  {"tensor", function() return cf.tensor {{1, 2, 3}} end},
}

-- ---- finalisers at work -------------------------------------------------------------------------------------

local others = cf.arange(1, 30):reshape(5, 3, 2, 1)
local other_model = {w = cf.ones(3), b = cf.ones(5)}
local other_state = optim.Adam(0.3):setup(other_model)
local other_gradient = {w = cf.ones(3), b = cf.ones(5)}
local other_copies = cf.replicate(cf.ones(7))
local other_loader = cf.data.DataLoader({cf.arange(1, 40)}, {batch = 3})
local other_step = other_loader:epoch(0)

local disturbances = {
  function() return others:sum({2, 4, 3}) end,
  function() return others:permute(4, 3, 2, 1):reshape(1, 5, 6):expand(2, 5, 6) end,
  function() return others:reshape({15, 2}):tile(1, 2):flip(2) end,
  function() return cf.zeros(3, 3, 3), cf.rand(1, 1, 7), cf.eye(4, 5), cf.tensor {{1, 2, 3, 4}} end,
  function() return others:squeeze():mean(-1, {keepdim = true}), others:var {1, 2, 3} end,
  function() return others[{{2, 3}, 1}]:sum():item(), cf.tensor(123456789, {dtype = "int64"}):item() end,
  function() optim.update(other_state, other_model, other_gradient) end,
  function() return cf.gradient(function(m) return (m.w * 7):sum() + m.b:sum() end, other_model) end,
  function() cf.allreduce("+", other_copies) end,
  function()
    if not other_step() then other_step = other_loader:epoch(0) end
  end,
}

local ran, failed = 0, nil

local function disturb()
  ran = ran + 1
  for i = 1, #disturbances do
    local ok, message = pcall(disturbances[i])
    if not ok then failed = failed or message end
  end
end

-- A finaliser that runs once for each collection, until `disarm`.
local armed = false

local function arm()
  local litter = newproxy(true)
  getmetatable(litter).__gc = function()
    if not armed then return end
    disturb()
    arm()
  end
end

-- ---- the run ------------------------------------------------------------------------------------------------

-- Calls f while finalisers run, and compares its text.  Returns how many ran.
local function compare(name, expected, f)
  armed, ran, failed = true, 0, nil
  arm()
  local got = select(2, pcall(f))
  armed = false
  if got ~= expected then print(("%s: expected %s\n  got %s"):format(name, expected, got)) end
  if failed then print(("%s: a finaliser's call failed: %s"):format(name, failed)) end
  return ran
end

-- Fills the device's memory with tensors that nobody holds any more, so that a call which needs some has to collect.
local function fill()
  local kept, size = {}, 2 ^ 16
  while size >= 1 do
    cf.sync() -- commands under way give memory back when they are done
    local ok, t = pcall(cf.zeros, size)
    if ok then kept[#kept + 1] = t else size = size / 4 end
  end
  cf.sync()
  collectgarbage "stop" -- after the collections of those that found no place
  return #kept
end

-- Calls make(), which LuaJIT compiles with the loop, until a shape differs.  Returns the last one as text.
local function repeat_call(make)
  local first = make()
  for _ = 1, 1000 do
    local t = make()
    local same = t._ndim == first._ndim
    for d = 0, first._ndim - 1 do same = same and t._shape[d] == first._shape[d] end
    if not same then return shapes(t) end
  end
  return shapes(first)
end

local runs = {
  objects = function(name, expected, f)
    jit.off()
    collectgarbage("setpause", 0)
    collectgarbage("setstepmul", 0)
    collectgarbage "collect"
    return compare(name, expected, f)
  end,
  compiled = function(name, expected, f)
    collectgarbage("setpause", 100)
    collectgarbage("setstepmul", 2500)
    collectgarbage "collect"
    return compare(name, expected, f)
  end,
  memory = function(name, expected, f)
    local count = 0
    for _ = 1, 3 do -- a block that is still on its way back to the pool may serve the call after all
      fill()
      count = count + compare(name, expected, f)
      if count > 0 then break end
    end
    return count
  end,
}

if mode == "compiled" then
  calls = {}
  for _, loop in ipairs(loops) do
    call(loop[1], function() return repeat_call(loop[2]) end)
  end
end

local count = 0
for _, entry in ipairs(calls) do
  local name, f = entry[1], entry[2]
  if not only or only == name then
    local expected = f()
    if runs[mode](name, expected, f) > 0 then count = count + 1 end
    collectgarbage("setpause", 200)
    collectgarbage("setstepmul", 2500)
    collectgarbage "collect"
  end
end
os.remove(path)
print(("finalisers ran in %d of %d calls"):format(count, #calls))
