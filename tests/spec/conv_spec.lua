-- Convolutions by the functions of the C core: what they refuse, which gradients they make, and which they do not.
require "tests.spec.helper"
local cf = require "conflux"
local convolutions = require "tests.spec.convolutions"

local function conv(x, w, o) return convolutions.conv(x, w, o or {}) end
local conv_transpose = convolutions.transpose
local ones = cf.ones

-- A promise about values, which devices without convolutions cannot keep.
local missing = convolutions.missing()
local function computes(name, f)
  it(name, function()
    if missing then return pending(missing) end
    f()
  end)
end

describe("conv", function()
  it("refuses what is no image, no weight, or not of one float type", function()
    local x, w = ones(1, 4, 4, 2), ones(3, 2, 2, 2)
    assert.refuses(function() conv(ones(4, 4, 2), w) end,
      "conv: argument 'x': expected shape [n, h, w, channels], got [4, 4, 2] (float32, ")
    assert.refuses(function() conv(x, ones(3, 2)) end,
      "conv: argument 'weight': expected shape [out, kh, kw, in / groups] with a kernel from 1 by 1, got [3, 2] (")
    assert.refuses(function() conv(x, ones(3, 0, 2, 2)) end, "conv: argument 'weight': expected shape [out, kh, kw, ")
    assert.refuses(function() conv(x:to "int32", w:to "int32") end,
      "conv: argument 'x': expected a float tensor, and such a weight, got [1, 4, 4, 2] (int32, ")
    assert.refuses(function() conv(x:to "float64", w) end, "conv: argument 'x': expected the weight's dtype, got ")
    assert.refuses(function() conv(x, w, {bias = ones(2)}) end,
      "conv: argument 'bias': expected shape [3] (float32), got [2] (float32, ")
    assert.refuses(function() conv(x, w, {residual = ones(1, 3, 3, 2)}) end,
      "conv: argument 'residual': expected shape [1, 3, 3, 3] (float32), got [1, 3, 3, 2] (float32, ")
    assert.refuses(function() conv(x, w, {act = "add"}) end, "conv: argument 'act': there is no such operation (")
  end)

  it("refuses groups and channels that do not fit, and a kernel larger than the padded image", function()
    local x = ones(1, 4, 5, 4)
    assert.refuses(function() conv(x, ones(3, 2, 2, 2), {groups = 2}) end,
      "conv: argument 'groups': expected a number that divides the channels of a [1, 4, 5, 4] (float32, ")
    for _, groups in ipairs {0, -1, 3} do
      assert.refuses(function() conv(x, ones(4, 2, 2, 2), {groups = groups}) end, "conv: argument 'groups': expected ")
    end
    assert.refuses(function() conv(x, ones(4, 2, 2, 3)) end,
      "conv: argument 'x': expected 3 channels for a weight [4, 2, 2, 3] and 1 group, got [1, 4, 5, 4] (float32, ")
    assert.refuses(function() conv(x, ones(4, 5, 2, 4)) end, "conv: argument 'weight': its kernel, which covers 5 " ..
      "pixels of a column with its dilation, is larger than the image with its pads (4): x is [1, 4, 5, 4] (float32, ")
    assert.refuses(function() conv(x, ones(4, 1, 3, 4), {dilation = {1, 4}, pad = {0, 0, 1, 2}}) end,
      "conv: argument 'weight': its kernel, which covers 9 pixels of a row with its dilation, is larger than the image")
    assert.same({1, 1, 5, 4}, conv(x, ones(4, 5, 1, 4), {pad = {0, 1, 0, 0}}).shape)
  end)

  it("refuses windows that are none", function()
    local x, w = ones(1, 4, 4, 2), ones(3, 2, 2, 2)
    for _, o in ipairs {{stride = {0, 1}}, {stride = {1, -1}}, {dilation = {0, 1}}, {pad = {0, 0, 0, -1}},
                        {stride = {2 ^ 31, 1}}, {pad = {2 ^ 40, 0, 0, 0}}} do
      assert.refuses(function() conv(x, w, o) end,
        "conv: argument 'window': expected strides and dilations from 1 and pads from 0, none above 1073741824")
    end
  end)

  computes("takes tensors as they lie, and empty batches", function()
    cf.seed(1)
    local x, w = cf.rand(2, 6, 5, 3), cf.rand(4, 2, 3, 3)
    local turned = x:permute(4, 3, 2, 1):contiguous():permute(4, 3, 2, 1)
    local wide = cf.rand(4, 2, 3, 6)
    wide[{{}, {}, {}, {1, -1, 2}}] = w
    assert.tensor_equal(conv(turned, wide[{{}, {}, {}, {1, -1, 2}}]), conv(x, w))
    assert.same({0, 5, 3, 4}, conv(cf.zeros(0, 6, 5, 3), w).shape)
  end)

  computes("makes gradients for what is watched alone, and none of the image", function()
    cf.seed(2)
    local x, w, b = cf.rand(2, 5, 5, 3), cf.rand(4, 3, 3, 3) - 0.5, cf.rand(4)
    local function loss(image, weight, bias)
      return (conv(image, weight, {bias = bias, act = "relu", pad = {1, 1, 1, 1}}) ^ 2):sum()
    end
    local _, all = cf.withgradient(function(m) return loss(m[1], m[2], m[3]) end, {x, w, b})
    local _, g = cf.withgradient(function(m) return loss(x, m[1], m[2]) end, {w, b})
    assert.tensor_equal(g[1], all[2])
    assert.tensor_equal(g[2], all[3])
    _, g = cf.withgradient(function(m) return loss(m[1], w, b) end, {x})
    assert.tensor_equal(g[1], all[1])
  end)

  computes("gives the residual its gradient, and leaves its values", function()
    cf.seed(3)
    local x, w, r = cf.rand(1, 3, 3, 2), cf.rand(2, 1, 1, 2) - 0.5, cf.rand(1, 3, 3, 2) - 0.5
    local before = r:clone()
    local _, g = cf.withgradient(function(m)
      return conv(x, m[1], {residual = m[2], act = "relu"}):sum()
    end, {w, r})
    local y = conv(x, w) + r
    assert.tensor_equal(r, before)
    assert.tensor_equal(g[2], y:gt(0):to "float32")
  end)
end)

describe("conv_transpose", function()
  it("refuses what does not fit", function()
    local x, w = ones(1, 3, 3, 2), ones(2, 2, 2, 3)
    assert.refuses(function() conv_transpose(x, ones(3, 2, 2, 2), {}) end,
      "conv_transpose: argument 'x': expected 3 channels for a weight [3, 2, 2, 2] and 1 group, got [1, 3, 3, 2] (")
    assert.refuses(function() conv_transpose(x, ones(2, 2), {}) end,
      "conv_transpose: argument 'weight': expected shape [in, kh, kw, out / groups] with a kernel from 1 by 1, got ")
    assert.refuses(function() conv_transpose(x, w, {output_pad = {0, 1}}) end,
      "conv_transpose: argument 'output_pad': expected 0 to 0, less than stride or dilation, got 1")
    assert.refuses(function() conv_transpose(x, w, {pad = {2, 2, 0, 0}}) end,
      "conv_transpose: argument 'window': its pads leave nothing of the result: x is [1, 3, 3, 2] (float32, ")
    assert.refuses(function() conv_transpose(x, w, {bias = ones(2)}) end,
      "conv_transpose: argument 'bias': expected shape [3] (float32), got [2] (float32, ")
  end)

  computes("is the gradient of conv by its image", function()
    cf.seed(4)
    for _, o in ipairs {{stride = {2, 3}, pad = {1, 0, 2, 1}, dilation = {1, 2}, groups = 2},
                        {stride = {2, 1}, dilation = {3, 3}, output_pad = {2, 1}}} do
      local x = cf.rand(2, 4, 3, 4, {dtype = "float64"})
      local w = cf.rand(4, 2, 3, 3, {dtype = "float64"})
      local y = conv_transpose(x, w, o)
      local _, g = cf.withgradient(function(image)
        return (conv(image, w, o)[{{}, {1, 4}, {1, 3}, {}}] * x):sum() -- output_pad's last rows may see one more
      end, y * 0)
      assert.tensor_near(g, y, 1e-12, 1e-12)
    end
  end)

  computes("takes bias and activation", function()
    local y = conv_transpose(ones(1, 1, 1, 1), ones(1, 2, 2, 1), {bias = cf.tensor {-3}, act = "relu"})
    assert.tensor_equal(y, cf.zeros(1, 2, 2, 1))
    y = conv_transpose(ones(1, 1, 1, 1), ones(1, 2, 2, 1), {bias = cf.tensor {1}, act = "exp"})
    assert.tensor_near(y, cf.full(math.exp(2), 1, 2, 2, 1), 1e-6, 0)
  end)
end)
