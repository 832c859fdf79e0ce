-- A model's state, buffers and a layer's integers, beside its parameters: it lies in one buffer per dtype, and is
-- copied, synchronised and changed as if each tensor lay alone.
require "tests.spec.helper"
local cf = require "conflux"
local tree = require "conflux.tree"
local nn, optim = cf.nn, cf.optim

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(5, setup, teardown)

local NAMES = on {"cpu:0", "cpu:1", "cpu:2", "cpu:3", "cpu:4"}
local FLOATS, INTEGERS = {"float32", "float64", "bfloat16", "float16"}, {"int64", "int32", "uint8", "bool"}

-- A layer as batch normalisation has it.
local Norm = nn.layer "Norm"
function Norm:init(n)
  self.weight, self.bias = cf.ones(n), cf.zeros(n)
  self.mean, self.var = nn.buffer(cf.zeros(n)), nn.buffer(cf.ones(n))
  self.count = cf.zeros({dtype = "int64"})
end
function Norm:forward(x)
  return (x - self.mean) * self.weight + self.bias
end

local function chain(n, width)
  local layers = {}
  for i = 1, n do layers[i] = Norm(width or i) end
  return nn.Chain(unpack(layers))
end

-- The buffers that the tensors of x lie in, and how many there are.
local function buffers_of(x)
  local seen, n = {}, 0
  for _, t in ipairs((tree.leaves(x))) do
    local key = tostring(t._buffer)
    if not seen[key] then seen[key], n = true, n + 1 end
  end
  return seen, n
end

local function names(n)
  local list = {}
  for i = 1, n do list[i] = NAMES[i] end
  return list
end

-- Shapes of 0 to 3 dimensions, sizes of 0 to 40.
local function random_shape()
  local shape = {}
  for d = 1, math.random(0, 3) do shape[d] = math.random(d == 1 and 0 or 1, d == 1 and 40 or 5) end
  return shape
end

local function random_tensor(dtype, shape)
  local o = {dtype = "float32", device = cf.device(NAMES[1])}
  return (cf.rand(shape, o) * 200):round():to(dtype)
end

-- A model with parameters, some of them frozen, and n tensors of state of any dtype, tables deep.
local function random_model(n)
  local model = Norm(3)
  for i = 1, n do
    local dtype = math.random() < 0.5 and FLOATS[math.random(4)] or INTEGERS[math.random(4)]
    local t = random_tensor(dtype, random_shape())
    if dtype:find "float" then nn.buffer(t) end
    local at = model
    for _ = 1, math.random(0, 2) do
      local key = "t" .. math.random(3)
      at[key] = at[key] or {}
      at = at[key]
    end
    at["s" .. i] = t
    if math.random() < 0.3 then at["w" .. i] = random_tensor(FLOATS[math.random(4)], random_shape()) end
    if math.random() < 0.1 then at["f" .. i] = nn.freeze(random_tensor("float32", random_shape())) end
    if math.random() < 0.1 then model["again" .. i] = t end
  end
  return model
end

-- Gives all tensors of x other values, those of replica i.
local function change(x, i)
  for k, t in ipairs((tree.leaves(x))) do
    t:copy_(((cf.rand({}, {device = t.device}) * 50):floor() + (i + k) % 3):to(t.dtype))
  end
end

local function values(x)
  local list = {}
  for k, t in ipairs((tree.leaves(x))) do list[k] = t:to "cpu" end
  return list
end

local function assert_equal_values(expected, got, seed)
  assert.equal(#expected, #got)
  for k = 1, #expected do assert.tensor_equal(got[k], expected[k], "seed " .. seed) end
end

-- A text that tells everything of x: values, ties, tables in two places, metatables.
local function text_of(x, seen, count)
  if type(x) == "cdata" or type(x) == "table" then
    if seen[x] then return "#" .. seen[x] end
    count.n = count.n + 1
    seen[x] = count.n
  end
  if type(x) == "cdata" then return ("tensor(%g, %d)"):format(x:item(), x._flags) end
  if type(x) ~= "table" then return tostring(x) end
  local n, keys = tree.keys(x, "")
  for i = 1, n do keys[#keys + 1] = i end
  local parts = {getmetatable(x) and "class" or nil}
  for _, key in ipairs(keys) do parts[#parts + 1] = key .. " = " .. text_of(x[key], seen, count) end
  return "{" .. table.concat(parts, ", ") .. "}"
end

-- Two trees that are alike but for some things, and the second of which may hold tables of the first.
local function random_pair(seed)
  math.randomseed(seed)
  local class = {}
  local function leaf(k) return cf.full(k) end
  local function make()
    local shared = {n = 5, leaf(3)}
    return {leaf(1), {leaf(2), deep = {k = 1, t = leaf(4)}, name = "a"}, a = shared, b = shared, nan = 0 / 0,
      flag = true, c = {n = 5}, d = {n = 5}}
  end
  local pair = {make(), make()}
  for _ = 1, math.random(0, 3) do
    local x = pair[math.random(2)]
    local at = ({x, x[2], x[2].deep, x.a, x.b})[math.random(5)]
    local what = ({
      function() at.n = math.random(9) end,
      function() at.more = {k = {1}} end,
      function() at.up = x end,
      function() at.again = x[1] end,
      function() at.again = x.a[1] end,
      function() x.b = {n = 5, x.a[1]} end,
      function() setmetatable(at, class) end,
      function() at.name, at.flag = nil, false end,
      function() at.lent = pair[1].a end,
      function() cf.nn.freeze(x[1]) end,
      function() at.fun = print end,
      function() x.d = x.c end,
      function() pair[2].d = pair[1][math.random() < 0.5 and "c" or "d"] end,
    })[math.random(13)]
    what()
  end
  return pair
end

describe("a model's state", function()
  it("is synchronised with all that is no tensor, alike whether it was remembered or is walked", function()
    local done, refused = 0, 0
    for seed = 1, 200 do
      local texts = {}
      for k = 1, 2 do
        local pair = random_pair(seed)
        if k == 2 then
          tree.flatten(pair[1])
          tree.flatten(pair[2])
        end
        local ok, message = pcall(cf.synchronize, pair)
        done, refused = done + (ok and 1 or 0), refused + (ok and 0 or 1)
        texts[k] = ok and text_of(pair, {}, {n = 0}) or message
      end
      assert.equal(texts[1], texts[2], "seed " .. seed)
    end
    assert.is_true(done >= 200 and refused >= 50, done .. " and " .. refused) -- else this shows little
  end)

  it("is copied, synchronised and averaged to the bit as if each tensor lay alone", function()
    for seed = 1, 3 do
      math.randomseed(seed)
      cf.seed(seed)
      local n = math.random(2, 5)
      local model = random_model(70)
      local models = cf.replicate(model, names(n))
      local _, count = buffers_of(models[1])
      local alone = cf.tree.map(function(t) return t:clone() end, model)
      assert.is_true(count <= 4 + 8, "seed " .. seed)
      for i = 1, n do
        assert_equal_values(values(model), values(models[i]), seed)
        for _, t in ipairs((tree.leaves(models[i]))) do assert.is_true(t.device == NAMES[i]) end
      end
      for i = 1, n do change(models[i], i) end
      local root = math.random(n)
      local expected = values(models[root])
      cf.synchronize(models, root)
      for i = 1, n do assert_equal_values(expected, values(models[i]), seed) end
      local again = cf.replicate(models[n], {NAMES[1]})[1] -- of what is packed
      assert_equal_values(expected, values(again), seed)
      change(again, 1)
      assert_equal_values(expected, values(models[n]), seed)
      -- the mean, in place of a whole model's, of plain copies of each tensor
      local lists = {}
      for i = 1, n do
        for k, t in ipairs((tree.leaves(models[i]))) do
          if t.dtype:find "float" then t:copy_(cf.rand(t.shape, {device = t.device}):to(t.dtype)) end
          lists[k] = lists[k] or {n = n}
          lists[k][i] = t:clone()
        end
      end
      cf.allreduce("avg", models)
      for k, list in ipairs(lists) do
        if list[1].dtype:find "float" then cf.allreduce("avg", list) end
        for i = 1, n do assert.tensor_equal((tree.leaves(models[i]))[k], list[i], "seed " .. seed) end
      end
      assert_equal_values(values(model), values(alone), seed)
    end
  end)

  it("is packed by the first gradient, its handles, values and marks as they were", function()
    local model = chain(4)
    nn.freeze(model[2])
    local mean, count = model[3].mean, model[1].count
    mean:copy_(cf.arange(1, 3))
    count:fill_(7)
    cf.gradient(function(m) return m[1](cf.ones(2, 1)):sum() end, model)
    local _, n = buffers_of(model)
    assert.equal(3, n) -- parameters; float and integer state
    assert.is_true(rawequal(mean, model[3].mean) and rawequal(count, model[1].count))
    assert.is_true(mean._buffer == model[1].var._buffer and mean._buffer ~= model[3].weight._buffer)
    assert.tensor_equal(mean, {1, 2, 3})
    assert.equal(7, count:item())
    assert.equal(8, #nn.parameters(model))
    local state = optim.Adam(1e-2):setup(chain(3))
    assert.is_table(state)
  end)

  it("is packed by setup, too, and goes into a file and back", function()
    local model, other = chain(5), chain(5)
    optim.Adam(1e-2):setup(model)
    optim.Adam(1e-2):setup(other)
    assert.equal(3, (select(2, buffers_of(model))))
    change(model, 1)
    local path = os.tmpname()
    cf.save(path, model)
    cf.load(path, {into = other})
    os.remove(path)
    assert_equal_values(values(model), values(other), 0)
    assert.equal(3, (select(2, buffers_of(other))))
  end)

  it("is refused by name where a view of it lives outside the model, and then nothing has moved", function()
    local model = chain(3)
    local view = model[2].mean[{{1, 2}}]
    local function step()
      local g = cf.gradient(function(m) return m[1](cf.ones(2, 1)):sum() end, model)
      return g
    end
    for _ = 1, 2 do
      assert.refuses(step, "pack: buffer '2.mean' shares its memory with a tensor outside the model")
      assert.equal(15, (select(2, buffers_of(model))))
    end
    view:release()
    step()
    assert.equal(3, (select(2, buffers_of(model))))
  end)

  it("is not what a plain table holds of integers: they stay where they are", function()
    local all = cf.arange(1, 10):to "int64"
    local m = {w = cf.ones(3), ids = all[{{2, 4}}]}
    cf.gradient(function(x) return (x.w * x.ids:to "float32"):sum() end, m)
    all:fill_(5)
    assert.tensor_equal(m.ids, cf.full(5, 3, {dtype = "int64"}))
  end)

  it("changes in place while a forward is recorded, and only what a gradient needs is refused", function()
    local model = chain(3, 4)
    local x = cf.rand(5, 4)
    local function loss(m)
      local y = x
      for i = 1, 3 do
        y = y * m[i].var -- its gradient needs the values of var, and of that alone
        y = m[i](y)
        m[i].mean:mul_(0.9):add_(y:detach():mean(1) * 0.1)
        m[i].count:add_(1)
      end
      return (y * y):sum()
    end
    local expected
    for _ = 1, 2 do -- plain, then packed
      local copy = cf.tree.map(function(t)
        local c = t:clone()
        c._flags = t._flags
        return c
      end, model)
      local _, g = cf.withgradient(loss, copy)
      expected = expected or g
      assert.tensor_equal(g[1].weight, expected[1].weight)
      assert.equal(1, copy[3].count:item())
    end
    cf.gradient(loss, model)
    cf.gradient(loss, model)
    assert.equal(2, model[2].count:item())
    assert.refuses(function()
      cf.gradient(function(m)
        local y = m[1].weight * m[1].var
        m[1].var:mul_(2)
        return y:sum()
      end, model)
    end, "mul_: mul needs the tensor's values for its gradient")
  end)

  it("may be replaced by the script, and is synchronised all the same", function()
    local models = cf.replicate(chain(3, 4), names(3))
    cf.withdevices(function(i)
      models[i][2].mean = nn.buffer(cf.full(i, 4))
      cf.gradient(function(m) return m(cf.ones(2, 4)):sum() end, models[i])
      models[i][2].mean:mul_(2)
    end, models)
    cf.synchronize(models, 2)
    for i = 1, 3 do
      assert.tensor_equal(models[i][2].mean, cf.full(4, 4))
      assert.is_true(models[i][2].mean.device == NAMES[i])
    end
  end)

  it("is compared before anything moves, and the message names what differs", function()
    local models = cf.replicate(chain(3, 4), names(3))
    for _ = 1, 2 do
      cf.synchronize(models)
      cf.withdevices(function(i)
        cf.gradient(function(m) return m(cf.ones(2, 4)):sum() end, models[i])
      end, models)
    end
    cf.synchronize(models)
    models[1][1].mean:fill_(3)
    models[3][2].count = cf.zeros({dtype = "int32", device = NAMES[3]})
    assert.refuses(function() cf.synchronize(models) end, "synchronize: '2.count' differs")
    assert.tensor_equal(models[2][1].mean, cf.zeros(4))
    models[3][2].count = nil
    assert.refuses(function() cf.allreduce("avg", models) end,
      on "allreduce: '2.count' is missing from replica 3 (cpu:2)")
    models[2][2].count, models[1][2].count = nil, nil
    models[2][3].count:fill_(4)
    assert.refuses(function() cf.allreduce("avg", models) end,
      on "allreduce: integer buffers must be equal: '3.count' differs between replica 1 and replica 2 (cpu:1)")
    cf.synchronize(models)
    cf.allreduce("avg", models)
    assert.tensor_equal(models[3][1].mean, cf.full(3, 4))
  end)
end)
