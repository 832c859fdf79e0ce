-- Layers of vision, beside PyTorch's values (tests/record/vision.py), and what they refuse.
require "tests.spec.helper"
local cf = require "conflux"
local json = require "conflux.json"
local convolutions = require "tests.spec.convolutions"
local values = require "tests.spec.formula".values
local nn = cf.nn

local reference, metadata = cf.load("tests/fixtures/vision.safetensors", {metadata = true})
local cases = json.decode(metadata.cases)

local C, RESIDUAL, WEIGHT, BIAS, STEP = 2, 3, 4, 5, 11 -- seeds of the formula; x has 1

-- ---- beside PyTorch -------------------------------------------------------------------------------------------

local function plain(v)
  if type(v) ~= "table" then return v end
  local copy = {}
  for key, x in pairs(v) do copy[key] = plain(x) end
  return copy
end

-- The layer of a case, with the formula's parameters, in the mode of the case and after the steps before it.
local function build(case, dtype)
  local arguments = plain(case.args)
  if next(case.options) ~= nil then arguments[#arguments + 1] = plain(case.options) end
  local layer = cf.tree.to(nn[case.layer](unpack(arguments)), dtype)
  if layer.weight then layer.weight:copy_(values(layer.weight.shape, WEIGHT)) end
  if layer.bias then layer.bias:copy_(values(layer.bias.shape, BIAS)) end
  for step = 1, (case.steps or 1) - 1 do layer(values(case.x, STEP + step - 1):to(dtype)) end
  return case.mode == "eval" and layer:eval() or layer
end

local function compare(case, dtype, rtol, atol)
  local record, layer = reference[case.name], build(case, dtype)
  local model = {layer = layer, x = values(case.x, 1):to(dtype)}
  if case.residual then model.residual = values(record.y.shape, RESIDUAL):to(dtype) end
  local y
  local _, g = cf.withgradient(function(m)
    y = m.layer(m.x, m.residual)
    return (y * values(y.shape, C):to(dtype)):sum()
  end, model)
  assert.equal(dtype, y.dtype)
  assert.tensor_near(y, record.y, rtol, atol)
  assert.tensor_near(g.x, record.dx, rtol, atol)
  if case.residual then assert.tensor_near(g.residual, record.dresidual, rtol, atol) end
  for _, name in ipairs {"weight", "bias"} do
    assert.equal(record["d" .. name] ~= nil, layer[name] ~= nil)
    if layer[name] then assert.tensor_near(g.layer[name], record["d" .. name], rtol, atol) end
  end
  for _, name in ipairs {"running_mean", "running_var"} do
    if record[name] then assert.tensor_near(layer[name], record[name], rtol, atol) end
  end
  if record.num_batches_tracked then
    assert.equal(record.num_batches_tracked:item(), layer.num_batches_tracked:item())
  end
end

describe("a layer of vision", function()
  local no_convolutions = convolutions.missing()
  for _, case in ipairs(cases) do
    it("computes " .. case.name .. " as PyTorch does", function()
      if no_convolutions and case.layer:find "^Conv" then return pending(no_convolutions) end
      compare(case, "float64", 1e-10, 1e-10)
      compare(case, "float32", 2e-5, 2e-5)
    end)
  end
end)

-- ---- what pooling promises besides ----------------------------------------------------------------------------

describe("MaxPool", function()
  it("passes NaN, pads with -inf, and gives the gradient to the first of equals", function()
    local x = cf.tensor {{{{-3}, {0 / 0}}, {{-1}, {-2}}}}
    assert.tensor_equal(nn.MaxPool(2)(x), {{{{0 / 0}}}})
    assert.tensor_equal(nn.MaxPool(2, {pad = 1})(cf.full(-5, 1, 2, 2, 1)), {{{{-5}, {-5}}, {{-5}, {-5}}}})
    local equal = cf.ones(1, 2, 2, 1)
    local _, g = cf.withgradient(function(m) return nn.MaxPool(2)(m.x):sum() end, {x = equal})
    assert.tensor_equal(g.x, {{{{1}, {0}}, {{0}, {0}}}})
  end)
end)

-- ---- state ----------------------------------------------------------------------------------------------------

describe("BatchNorm", function()
  it("holds its statistics as buffers, which are saved and not trained", function()
    local layer = nn.BatchNorm(3)
    assert.equal(2, #layer:parameters())
    assert.same({1}, layer.num_batches_tracked.shape)
    layer(cf.randn(4, 3))
    local before = layer.running_mean:clone()
    layer:eval()
    layer(cf.randn(4, 3))
    assert.tensor_equal(layer.running_mean, before)
    assert.equal(1, layer.num_batches_tracked:item())
  end)

  it("normalises where its values lie far from zero", function()
    local x = cf.randn(64, 2) + 1e4
    local y = nn.BatchNorm(2)(x)
    assert.tensor_near(y:mean(1), {0, 0}, 0, 2e-3)
    assert.tensor_near(y:std(1, {correction = 0}), {1, 1}, 5e-3)
  end)

  it("makes the same bits in every run", function()
    local x, layer = cf.randn(8, 9, 7, 33), nn.BatchNorm(33, "relu")
    local function step()
      local y
      local _, g = cf.withgradient(function(m)
        y = m.layer(m.x, x)
        return (y * y):sum()
      end, {layer = layer, x = x})
      return y, g
    end
    local y, g = step()
    for _ = 1, 5 do
      local again, h = step()
      assert.tensor_equal(again, y)
      assert.tensor_equal(h.x, g.x)
      assert.tensor_equal(h.layer.weight, g.layer.weight)
    end
  end)
end)

-- A test that calls convolutions.
local function computes(name, f)
  it(name, function()
    local why = convolutions.missing()
    if why then return pending(why) end
    f()
  end)
end

describe("replicas with batch norm", function()
  local devices = require "tests.spec.devices"
  devices.use(3, setup, teardown)

  local function model()
    cf.seed(3)
    return nn.Chain(nn.Conv(2, 4, 3, {pad = 1}), nn.BatchNorm(4, "relu"), nn.GlobalMeanPool(), nn.Flatten(),
      nn.Dense(4, 3))
  end

  computes("equal one of all samples, in evaluation mode", function()
    local one = model():eval()
    local models = cf.replicate(one)
    local x = cf.randn(6, 5, 5, 2)
    local function loss(m, part) return (m(part) ^ 2):mean() end
    local _, whole = cf.withgradient(loss, one, x)
    local grads = cf.withdevices(function(i, device)
      local _, g = cf.withgradient(loss, models[i], device(x[{{2 * i - 1, 2 * i}}]))
      return g
    end)
    cf.allreduce("avg", grads)
    for _, g in ipairs(grads) do
      assert.tensor_near(cf.device(one[1].weight.device.name)(g[1].weight), whole[1].weight, 1e-5, 1e-6)
      assert.tensor_near(g[2].bias:totable(), whole[2].bias:totable(), 1e-5, 1e-6)
    end
  end)

  computes("hold the same state to the bit after synchronize", function()
    local models = cf.replicate(model())
    cf.withdevices(function(i) return (models[i](cf.randn(4, 5, 5, 2) * i)) end)
    assert.not_same(models[1][2].running_mean:totable(), models[2][2].running_mean:totable())
    cf.synchronize(models)
    for i = 2, #models do
      for _, name in ipairs {"running_mean", "running_var", "num_batches_tracked", "weight"} do
        assert.same(models[1][2][name]:totable(), models[i][2][name]:totable())
      end
    end
  end)
end)

-- ---- nn.fold --------------------------------------------------------------------------------------------------

-- Statistics and parameters that are not those of a fresh model.
local function stir(model)
  cf.tree.walk(model, function(path, t)
    if path:find "running_var$" then
      t:copy_(cf.rand(t.shape) + 0.5)
    elseif path:find "running_mean$" or path:find "bias$" then
      t:copy_(cf.randn(t.shape) * 0.3)
    end
  end)
  return model
end

describe("nn.fold", function()
  computes("puts batch norms and activations into the convolutions before them", function()
    local model = stir(nn.Chain(nn.Conv(3, 8, 3, {pad = 1, bias = false}), nn.BatchNorm(8, "relu"), nn.Conv(8, 4, 1),
      nn.BatchNorm(4, {affine = false}), "relu", nn.Conv(4, 4, 1), "gelu"))
    local folded, x = nn.fold(model), cf.randn(2, 5, 5, 3)
    assert.equal(3, #folded)
    assert.same({"relu", "relu", "gelu"}, {folded[1].act, folded[2].act, folded[3].act})
    assert.tensor_near(folded(x), model:eval()(x), 1e-5, 1e-5)
    assert.equal(7, #model)
    assert.is_nil(model[1].act)
  end)

  computes("leaves what it cannot fold", function()
    local model = stir(nn.Chain(nn.Conv(3, 8, 3, "relu"), nn.BatchNorm(8), nn.Conv(8, 4, 1),
      nn.BatchNorm(4, {track = false}), nn.Conv(4, 4, 1), "softmax"))
    local folded, x = nn.fold(model), cf.randn(2, 5, 5, 3)
    assert.equal(6, #folded)
    assert.tensor_near(folded(x), model:eval()(x), 1e-5, 1e-5)
  end)

  computes("gives a copy of its own, with ties and marks, in evaluation mode", function()
    local tied = nn.Conv(4, 4, 1)
    local model = stir(nn.Chain(nn.Conv(4, 4, 1), nn.SkipConnection(nn.Chain(tied, nn.BatchNorm(4)), "+"), tied,
      nn.BatchNorm(4, "relu"), nn.Parallel("+", nn.BatchNorm(4), nn.Chain(nn.Conv(4, 4, 1), "relu"))))
    local folded, x = nn.fold(model), cf.randn(1, 3, 3, 4)
    assert.tensor_near(folded(x), model:eval()(x), 1e-5, 1e-5)
    assert.is_false(folded.training)
    local before = folded[1].weight:clone()
    model[1].weight:fill_(0)
    assert.tensor_equal(folded[1].weight, before)
    assert.equal(2, #folded[#folded][1]:parameters())
  end)

  computes("asks an own layer how", function()
    local Block = nn.layer "Block"
    function Block:init() self.conv, self.norm = nn.Conv(3, 3, 1), nn.BatchNorm(3) end
    function Block:forward(x) return self.norm(self.conv(x)) end
    local model, x = stir(nn.Chain(Block(), "relu")), cf.randn(1, 2, 2, 3)
    assert.equal(2, #nn.fold(model))
    function Block:folded(fold) return fold(self.conv, self.norm) or self end
    local folded = nn.fold {net = model}
    assert.equal(1, #folded.net)
    assert.equal("relu", folded.net[1].act)
    assert.tensor_near(folded.net(x), model:eval()(x), 1e-5, 1e-5)
  end)
end)

-- ---- what is refused ------------------------------------------------------------------------------------------

describe("layers of vision", function()
  it("print as the Lua that makes them", function()
    for _, text in ipairs {"Conv(3, 8, 3)", "Conv(3, 8, {3, 1}, relu, {stride = 2, pad = 1})",
      "Conv(4, 8, 2, {pad = {0, 1, 0, 1}, dilation = {2, 1}, groups = 2, bias = false})", "ConvTranspose(8, 4, 2)",
      "ConvTranspose(8, 4, 2, {stride = 2, output_pad = 1})", "BatchNorm(3)",
      "BatchNorm(3, relu, {eps = 0.01, momentum = false, affine = false})", "BatchNorm(3, {track = false})",
      "GroupNorm(2, 4)", "GroupNorm(2, 4, {affine = false})", "MaxPool(2)", "MaxPool({3, 2}, {stride = 2, pad = 1})",
      "MeanPool(2, {count_pad = false})", "AdaptiveMeanPool(7)", "AdaptiveMeanPool({1, 2})", "GlobalMeanPool()",
      "Upsample(2)", "Upsample({2, 1.5}, {mode = 'bilinear', align_corners = true})", "Upsample({size = {4, 5}})"} do
      local made = assert(loadstring("return require('conflux').nn." .. text:gsub("relu", "'relu'")))()
      assert.equal(text, (tostring(made):gsub("  %-%-.*", "")))
    end
  end)

  it("refuse arguments that make no sense", function()
    local function refuses(f, text) assert.refuses(f, text) end
    refuses(function() nn.Conv(0, 1, 3) end, "Conv: argument 'in': expected an integer of at least 1, got 0")
    refuses(function() nn.Conv(1, 1, 0) end,
      "Conv: argument 'kernel': expected an integer of at least 1, or {height, width}, got 0")
    refuses(function() nn.Conv(1, 1, {3, 3, 3}) end, "Conv: argument 'kernel'")
    refuses(function() nn.Conv(1, 1, 3, {stride = 0}) end, "Conv: argument 'stride'")
    refuses(function() nn.Conv(1, 1, 3, {pad = -1}) end, "Conv: argument 'pad': expected an integer of at least 0, "
      .. "{height, width}, {top, bottom, left, right}, or 'same', got -1")
    refuses(function() nn.Conv(1, 1, 3, {pad = "same", stride = 2}) end, "Conv: argument 'pad'")
    refuses(function() nn.Conv(6, 4, 3, {groups = 3}) end,
      "Conv: argument 'groups': expected a divisor of 6 and 4 channels, got 3")
    refuses(function() nn.Conv(1, 1, 3, {padding = 1}) end, "Conv: unknown option 'padding'")
    refuses(function() nn.Conv(1, 1, 3, {init = function() return cf.ones(2) end}) end,
      "Conv: argument 'init': expected a function that makes a tensor [1, 3, 3, 1]")
    refuses(function() nn.ConvTranspose(4, 3, 2, {groups = 2}) end, "ConvTranspose: argument 'groups'")
    refuses(function() nn.BatchNorm(3, {momentum = 2}) end,
      "BatchNorm: argument 'momentum': expected a number from 0 to 1, or false for the cumulative mean, got 2")
    refuses(function() nn.GroupNorm(3, 4) end, "GroupNorm: argument 'groups': expected a divisor of 4 channels, got 3")
    refuses(function() nn.MaxPool(3, {pad = 2}) end, "MaxPool: argument 'pad': expected at most half the kernel's size")
    refuses(function() nn.MeanPool(2, {dilation = 2}) end, "MeanPool: unknown option 'dilation'")
    refuses(function() nn.Upsample() end, "Upsample: expected a scale or the option size")
    refuses(function() nn.Upsample(2, {mode = "cubic"}) end,
      "Upsample: argument 'mode': expected 'nearest' or 'bilinear', got 'cubic'")
    refuses(function() nn.Upsample(2, {align_corners = true}) end, "Upsample: argument 'align_corners'")
  end)

  computes("refuse inputs that do not fit, at the line of the call", function()
    local x = cf.ones(2, 5, 5, 3)
    assert.refuses(function() local _ = nn.Conv(4, 2, 3)(x) end, "conv: ")
    assert.refuses(function() local _ = nn.Conv(3, 2, 7)(x) end, "conv: ")
    assert.refuses(function() local _ = nn.Conv(3, 2, 3)(cf.ones(5, 5, 3)) end, "conv: ")
    assert.refuses(function() local _ = nn.Conv(3, 2, 3)(x, x) end, "conv: ")
    assert.refuses(function() local _ = nn.Conv(3, 2, 3)(3) end, "Conv: argument 'x': expected a tensor, got 3")
    assert.refuses(function() local _ = nn.Conv(3, 2, 3)(x, "relu") end, "Conv: argument 'residual'")
    assert.refuses(function() local _ = nn.ConvTranspose(3, 2, 3, {output_pad = 1})(x) end, "conv_transpose: ")
    assert.refuses(function() local _ = nn.BatchNorm(4)(x) end, "BatchNorm: argument 'x': expected [.., 4]")
    assert.refuses(function() local _ = nn.BatchNorm(3)(cf.ones(1, 1, 1, 3)) end, "batchnorm: ")
    assert.refuses(function() local _ = nn.BatchNorm(3)(x, cf.ones(3)) end, "batchnorm: ")
    assert.refuses(function() local _ = nn.GroupNorm(1, 4)(x) end, "GroupNorm: argument 'x'")
    assert.refuses(function() local _ = nn.MaxPool(6)(x) end, "maxpool: ")
    assert.refuses(function() local _ = nn.MeanPool(6)(x) end, "meanpool: ")
    assert.refuses(function() local _ = nn.Upsample(0.1)(x) end,
      "Upsample: argument 'x': expected an image with pixels left after scaling by 0.1, got [2, 5, 5, 3]")
  end)

  it("refuse fields that a script has spoilt", function()
    local layer = nn.Conv(3, 2, 3)
    layer.stride = "2"
    assert.refuses(function() local _ = layer(cf.ones(1, 5, 5, 3)) end,
      "Conv: field 'stride': expected a size, or {height, width}, got '2'")
    layer = nn.BatchNorm(3)
    layer.running_var = nil
    assert.refuses(function() local _ = layer(cf.ones(4, 3)) end, "BatchNorm: expected the fields")
  end)
end)
