-- Layers, beside PyTorch's values (tests/fixtures/make_reference.py), and what is done to modules.
require "tests.spec.helper"
local cf = require "conflux"
local nn = cf.nn

local reference = cf.load("tests/fixtures/reference.safetensors").layers

-- Gives a layer the weights of a case, and compares its result and all gradients with the recorded ones.
local function compare(case, layer, x)
  for _, name in ipairs {"weight", "bias"} do
    if case[name] then layer[name]:copy_(case[name]) end
  end
  local model = x and {layer = layer, x = x} or {layer = layer}
  local y
  local _, g = cf.withgradient(function(m)
    y = m.layer(m.x or case.ids)
    return (y * case.c):sum()
  end, model)
  assert.tensor_near(y, case.y)
  if x then assert.tensor_near(g.x, case.dx) end
  for _, name in ipairs {"weight", "bias"} do
    if case[name] then assert.tensor_near(g.layer[name], case["d" .. name]) end
  end
end

describe("Dense", function()
  for _, act in ipairs {"relu", "tanh", "sigmoid", "gelu", "silu", "softplus", "elu", "leakyrelu", "softmax",
    "logsoftmax"} do
    it("computes with " .. act .. " as PyTorch does", function()
      compare(reference["dense_" .. act], nn.Dense(7, 4, act), reference["dense_" .. act].x:clone())
    end)

    it("takes cf." .. act .. " as the name does", function()
      local case = reference["dense_" .. act]
      local layer = nn.Dense(7, 4, cf[act])
      assert.equal(act, layer.act)
      compare(case, layer, case.x:clone())
    end)
  end

  it("computes without activation as PyTorch does", function()
    compare(reference.dense_none, nn.Dense(7, 4), reference.dense_none.x:clone())
  end)

  it("works without bias on any number of leading dimensions", function()
    local layer = nn.Dense(7, 4, {bias = false})
    assert.is_nil(layer.bias)
    compare(reference.dense_nobias, layer, reference.dense_nobias.x:clone())
  end)

  it("applies a function as activation", function()
    local layer = nn.Dense(7, 4, function(x) return x:tanh() end)
    compare(reference.dense_tanh, layer, reference.dense_tanh.x:clone())
  end)

  it("starts with Glorot's uniform weights and a bias of zero", function()
    local layer = nn.Dense(300, 200)
    local bound = math.sqrt(6 / 500)
    assert.is_true(layer.weight:abs():max():item() <= bound)
    assert.is_true(layer.weight:abs():max():item() > 0.99 * bound)
    assert.is_true(math.abs(layer.weight:mean():item()) < 0.002)
    assert.tensor_equal(layer.bias, cf.zeros(200))
  end)

  it("takes its weights from an initialiser of one's own", function()
    local layer = nn.Dense(3, 2, {init = function(n_out, n_in) return cf.full(n_out * 10 + n_in, n_out, n_in) end})
    assert.tensor_equal(layer.weight, cf.full(23, 2, 3))
    assert.refuses(function() nn.Dense(3, 2, {init = function() return cf.ones(3, 2) end}) end,
      "Dense: argument 'init': expected a function that makes a tensor [2, 3], got [3, 2]")
  end)

  it("refuses sizes, activations and options that it cannot use", function()
    assert.refuses(function() nn.Dense(0, 2) end, "Dense: argument 'in': expected an integer of at least 1, got 0")
    assert.refuses(function() nn.Dense(2, 2.5) end, "Dense: argument 'out'")
    assert.refuses(function() nn.Dense(2, 2, "rleu") end, "Dense: argument 'act': expected one of abs, cos, elu")
    assert.refuses(function() nn.Dense(2, 2, {biass = true}) end,
      "Dense: unknown option 'biass': known are bias, init")
  end)
end)

describe("Chain", function()
  it("runs layers, functions and named activations one after the other", function()
    local first, last = nn.Dense(3, 4), nn.Dense(4, 2)
    local model = nn.Chain(first, "tanh", function(x) return x * 2 end, last)
    local x = cf.rand(5, 3)
    assert.tensor_equal(model(x), last(first(x):tanh() * 2))
  end)

  it("keeps the positions of its members in the gradient", function()
    local model = nn.Chain(nn.Dense(3, 4), "tanh", function(x) return x * 2 end, nn.Dense(4, 2))
    local _, g = cf.withgradient(function(m) return m(cf.rand(5, 3)):sum() end, model)
    assert.same({4, 3}, g[1].weight.shape)
    assert.same({2, 4}, g[4].weight.shape)
    assert.is_false(g[2])
    assert.is_false(g[3])
    assert.is_nil(g[1].act)
  end)

  it("refuses what cannot be called", function()
    assert.refuses(function() nn.Chain(nn.Dense(1, 1), 3) end, "Chain: argument '2'")
    assert.refuses(function() nn.Chain(nn.Dense(1, 1), nil) end, "Chain: argument '2'")
  end)

  it("names the layer in which an error happened", function()
    local model = nn.Chain(nn.Dense(3, 4), nn.Chain(nn.Dense(4, 4), nn.Dense(5, 2)))
    local ok, message = pcall(function() return (model(cf.rand(2, 3))) end)
    assert.is_false(ok)
    assert.matches("nn_spec%.lua:%d+: conflux%.dense: .*%(in layer '2%.2' %(Dense%)%)$", message)
  end)
end)

describe("SkipConnection", function()
  it("joins a layer's result with its input", function()
    local layer, x = nn.Dense(3, 3), cf.rand(2, 3)
    assert.tensor_equal(nn.SkipConnection(layer, "+")(x), layer(x) + x)
    assert.tensor_equal(nn.SkipConnection(layer, function(y, z) return y - z * 2 end)(x), layer(x) - x * 2)
    assert.tensor_equal(nn.SkipConnection("tanh", "*")(x), x:tanh() * x)
    assert.refuses(function() nn.SkipConnection(layer, "%") end, "SkipConnection: argument 'connection'")
  end)
end)

describe("Parallel", function()
  it("gives one input to all layers, or each its own", function()
    local a, b, x, y = nn.Dense(3, 2), nn.Dense(3, 2), cf.rand(4, 3), cf.rand(4, 3)
    assert.tensor_equal(nn.Parallel("+", a, b)(x), a(x) + b(x))
    assert.tensor_equal(nn.Parallel("-", a, b)(x, y), a(x) - b(y))
    assert.tensor_equal(nn.Parallel(function(p, q) return cf.concat({p, q}, 2) end, a, b)(x),
      cf.concat({a(x), b(x)}, 2))
    assert.refuses(function() nn.Parallel("+", a, b, a)(x, y) end, "Parallel: expected 1 input, or 3")
  end)
end)

describe("LayerNorm", function()
  it("normalises the last dimension as PyTorch does", function()
    compare(reference.layernorm, nn.LayerNorm(6), reference.layernorm.x:clone())
  end)

  it("normalises several dimensions as PyTorch does", function()
    compare(reference.layernorm2, nn.LayerNorm {3, 4}, reference.layernorm2.x:clone())
  end)

  it("normalises without parameters as PyTorch does", function()
    local layer = nn.LayerNorm({3, 4}, {affine = false})
    assert.equal(0, #nn.parameters(layer))
    compare(reference.layernorm_plain, layer, reference.layernorm_plain.x:clone())
  end)

  it("refuses an input of another shape", function()
    assert.refuses(function() nn.LayerNorm({3, 4}, {affine = false})(cf.rand(2, 4, 3)) end,
      "LayerNorm: argument 'x': expected [.., 3, 4], got [2, 4, 3]")
    assert.refuses(function() nn.LayerNorm(5)(cf.rand(2, 4)) end, "layernorm: argument 'gamma'")
  end)
end)

describe("Embedding", function()
  it("looks vectors up by ids from 0, and adds gradients of ids that come twice", function()
    compare(reference.embedding, nn.Embedding(6, 4))
  end)
end)

describe("Dropout", function()
  it("zeroes about a share p in training mode, and scales the rest", function()
    cf.seed(3)
    local y = nn.Dropout(0.25)(cf.ones(100, 100))
    local kept = y:gt(0):to "float32":mean():item()
    assert.is_true(math.abs(kept - 0.75) < 0.02)
    assert.tensor_near(y:max(), cf.tensor(1 / 0.75))
  end)

  it("passes its gradient through the same elements", function()
    local x, y = cf.ones(50, 4), nil
    local _, g = cf.withgradient(function(m)
      y = nn.Dropout(0.5)(m)
      return y:sum()
    end, x)
    assert.tensor_equal(g, y)
  end)

  it("is the identity in evaluation mode", function()
    local x = cf.rand(10, 10)
    local layer = nn.Dropout(0.5):eval()
    assert.is_true(layer(x) == x)
    assert.is_false(layer:train()(x) == x)
  end)

  it("refuses probabilities outside [0, 1)", function()
    for _, p in ipairs {-0.1, 1, 0 / 0, "half"} do
      assert.refuses(function() nn.Dropout(p) end, "Dropout: argument 'p': expected a probability in [0, 1)")
    end
  end)
end)

describe("Flatten", function()
  it("keeps the batch and joins the rest", function()
    assert.same({4, 30}, nn.Flatten()(cf.zeros(4, 2, 3, 5)).shape)
    assert.same({4, 1}, nn.Flatten()(cf.zeros(4)).shape)
    assert.same({0, 6}, nn.Flatten()(cf.zeros(0, 2, 3)).shape)
  end)
end)

describe("a layer of one's own", function()
  local Scale = nn.layer "Scale"
  function Scale:init(n) self.weight = cf.ones(n) end
  function Scale:forward(x) return x * self.weight end

  it("is made by calling its class and run by calling it", function()
    local layer = Scale(3)
    layer.weight:fill_(2)
    assert.tensor_equal(layer(cf.ones(2, 3)), cf.full(2, 2, 3))
  end)

  it("has the methods of modules, also inside others", function()
    local model = nn.Chain(Scale(3), nn.Dropout(0.5))
    assert.equal(1, #model:parameters())
    model:eval()
    assert.is_false(model[1].training)
    assert.is_false(model[2].training)
    model:train()
    assert.is_true(model[1].training)
  end)

  it("names itself in errors", function()
    local Broken = nn.layer "Broken"
    assert.refuses(function() Broken()(1) end, "Broken: this layer has no forward")
    local ok, message = pcall(function() nn.Chain(Scale(3))(cf.rand(2, 4)) end)
    assert.is_false(ok)
    assert.matches("in layer '1' %(Scale%)", message)
  end)
end)

describe("parameters", function()
  it("are the float tensors of a tree that are no buffers, each once, in order", function()
    local w = cf.ones(2)
    local tensors, paths = nn.parameters {b = w, a = {w, nn.buffer(cf.ones(1)), cf.arange(1, 3):to "int64", cf.ones(3)}}
    assert.same({"a.1", "a.4"}, paths)
    assert.is_true(tensors[1] == w)
    assert.equal(2, #tensors)
  end)

  it("are frozen or not; a buffer is neither", function()
    local a, b = nn.freeze(nn.buffer(cf.ones(1))), nn.buffer(nn.freeze(cf.ones(1)))
    assert.equal(tonumber(a._flags), tonumber(b._flags))
    assert.equal(tonumber(nn.buffer(cf.ones(1))._flags), tonumber(a._flags))
  end)
end)

describe("print", function()
  it("shows a layer with its parameters", function()
    assert.equal("Dense(784, 512, relu)  -- 401,920 parameters", tostring(nn.Dense(784, 512, "relu")))
    assert.equal("Dense(1, 2, {bias = false})  -- 2 parameters", tostring(nn.Dense(1, 2, {bias = false})))
    assert.equal("Dropout(0.5)", tostring(nn.Dropout(0.5)))
  end)

  it("shows a model layer by layer, with the total", function()
    local model = nn.Chain(nn.Dense(784, 32, "relu"), nn.SkipConnection(nn.Dense(32, 32), "+"), "tanh",
      nn.Dense(32, 10))
    assert.equal([[
Chain(
  Dense(784, 32, relu),  -- 25,120 parameters
  SkipConnection(
    Dense(32, 32),       -- 1,056 parameters
    connection = +,
  ),
  tanh,
  Dense(32, 10),         -- 330 parameters
)                        -- 26,506 parameters in 6 tensors, 103.54 KiB]], tostring(model))
  end)

  it("says what is frozen and what is tied", function()
    local layer = nn.Dense(2, 2)
    local model = nn.Chain(layer, layer, nn.Dense(2, 1):freeze())
    assert.equal([[
Chain(
  Dense(2, 2),  -- 6 parameters
  Dense,        -- tied: the same as above
  Dense(2, 1),  -- 3 parameters, frozen
)               -- 9 parameters in 4 tensors, 36 bytes, 3 frozen]], tostring(model))
  end)
end)

describe("initialisers", function()
  local function spread(t) return t:std():item() end

  it("have the spread that their papers give", function()
    cf.seed(5)
    local function near(want, t) assert.is_true(math.abs(spread(t) / want - 1) < 0.02) end
    near(math.sqrt(2 / 700), nn.init.glorot_uniform(300, 400))
    near(math.sqrt(2 / 700), nn.init.glorot_normal {300, 400})
    near(math.sqrt(2 / 400), nn.init.kaiming_uniform(300, 400))
    near(math.sqrt(1 / 400), nn.init.kaiming_normal(300, 400, {gain = 1}))
    near(3, nn.init.normal(300, 400, {mean = 1, std = 3}))
    near(math.sqrt(2 / (9 * 20 + 9 * 300)), nn.init.glorot_uniform(300, 3, 3, 20))
  end)

  it("fill with what they are told", function()
    assert.tensor_equal(nn.init.zeros(2, 3), cf.zeros(2, 3))
    assert.tensor_equal(nn.init.ones {2}, cf.ones(2))
    assert.tensor_equal(nn.init.constant(2.5, 3), cf.full(2.5, 3))
    assert.refuses(function() nn.init.glorot_uniform(3) end, "glorot_uniform: argument 'shape'")
    assert.refuses(function() nn.init.normal(3, {mena = 1}) end, "normal: unknown option 'mena'")
  end)
end)
