-- Batch normalisation and pools as a program calls them: what they refuse, what they update, what a gradient sees.
local cf = require "conflux"
local images = require "tests.spec.images"
require "tests.spec.helper"

local function near(want, got, tolerance)
  got = type(got) == "table" and got or got:reshape(-1):totable()
  assert.equal(#want, #got)
  for i = 1, #want do
    assert.is_true(math.abs(want[i] - got[i]) <= (tolerance or 1e-5), ("%d: %g, %g"):format(i, want[i], got[i]))
  end
end

describe("batch normalisation", function()
  local x = cf.tensor {{1, 10}, {2, 20}, {3, 60}} -- mean 2, 30; variance 2/3, 1400/3

  it("normalises by the biased variance and moves by the unbiased one", function()
    local mean, var, count = cf.zeros(2), cf.ones(2), cf.zeros({1}, {dtype = "int64"})
    local y = images.batchnorm(x, {mean = mean, var = var, count = count, momentum = 0.25, eps = 0})
    near({-math.sqrt(1.5), -20 / math.sqrt(1400 / 3), 0, -10 / math.sqrt(1400 / 3), math.sqrt(1.5),
      30 / math.sqrt(1400 / 3)}, y)
    near({0.5, 7.5}, mean)
    near({1, 0.75 + 0.25 * 700}, var, 1e-3)
    assert.equal(1, count:item())
  end)

  it("moves by the cumulative mean where momentum is negative", function()
    local mean, var, count = cf.zeros(2), cf.ones(2), cf.zeros({1}, {dtype = "int64"})
    local o = {mean = mean, var = var, count = count, momentum = -1}
    images.batchnorm(x, o)
    images.batchnorm(x + 3, o)
    near({3.5, 31.5}, mean)
    near({1, 700}, var, 1e-3)
    assert.equal(2, count:item())
  end)

  it("uses what has run in inference, and moves nothing", function()
    local mean, var = cf.tensor {1, 2}, cf.tensor {4, 25}
    local y = images.batchnorm(x, {mean = mean, var = var, eps = 0, training = false, gamma = cf.tensor {2, 1},
      beta = cf.tensor {0, -1}})
    near({0, 0.6, 1, 2.6, 2, 10.6}, y)
    near({1, 2, 4, 25}, cf.concat({mean, var}, 1))
  end)

  it("updates its statistics inside a gradient, twice by one layer", function()
    local mean, var
    local function f(m)
      mean, var = cf.zeros(2), cf.ones(2)
      local h = images.batchnorm(m.x, {mean = mean, var = var, gamma = m.gamma, beta = m.beta, act = "relu"})
      return (images.batchnorm(h, {mean = mean, var = var, gamma = m.gamma, beta = m.beta}) ^ 3):sum()
    end
    local m = {x = x:clone(), gamma = cf.tensor {1.5, 0.5}, beta = cf.tensor {0.5, 1}}
    local _, g = cf.withgradient(f, m)
    local moved = cf.concat({mean, var}, 1)
    assert.is_true(math.abs(g.gamma:sum():item()) > 0.1)
    f(m)
    assert.tensor_equal(moved, cf.concat({mean, var}, 1))
    assert.is_true(math.abs(mean[1]:item() - 0.2) > 0.01) -- what the first alone makes of it
  end)

  it("takes a gradient of the inference's form beside a later training step", function()
    local mean, var = cf.zeros(2), cf.ones(2)
    local _, g = cf.withgradient(function(m)
      local a = images.batchnorm(m, {mean = mean, var = var, eps = 0, training = false})
      images.batchnorm(m:detach(), {mean = mean, var = var})
      return a:sum()
    end, x:clone())
    near({1, 1, 1, 1, 1, 1}, g)
  end)

  it("keeps float32 statistics of half types, and takes parameters of either", function()
    for _, dtype in ipairs {"float16", "bfloat16"} do
      local mean, var = cf.zeros(2), cf.ones(2)
      local h = x:to(dtype)
      local _, g = cf.withgradient(function(m)
        return images.batchnorm(m[1], {mean = mean, var = var, gamma = m[2], beta = m[3], act = "relu"}):sum()
      end, {h, cf.ones(2), cf.zeros(2)})
      assert.equal(dtype, g[1].dtype)
      assert.equal("float32", g[2].dtype)
      near({0.2, 3}, mean, 1e-5)
      local y = images.batchnorm(h, {gamma = cf.ones({2}, {dtype = dtype}), beta = cf.ones({2}, {dtype = dtype})})
      assert.equal(dtype, y.dtype)
    end
  end)

  it("of no rows counts, and moves nothing", function()
    local mean, var, count = cf.zeros(2), cf.ones(2), cf.zeros({1}, {dtype = "int64"})
    local _, g = cf.withgradient(function(m)
      local o = {mean = mean, var = var, count = count, gamma = m, beta = cf.zeros(2)}
      return images.batchnorm(cf.zeros(0, 4, 4, 2), o):sum()
    end, cf.ones(2))
    near({0, 0, 1, 1, 0, 0}, cf.concat({mean, var, g}, 1))
    assert.equal(1, count:item())
  end)

  it("refuses what does not fit", function()
    local one, two, three = cf.ones(1, 2), cf.ones(2), cf.ones(3)
    assert.refuses(function() images.batchnorm(one, {}) end,
      "batchnorm: argument 'x': expected more than one value a channel in training, got [1, 2]")
    assert.refuses(function() images.batchnorm(x, {gamma = two}) end, "batchnorm: expected gamma and beta, or neither")
    assert.refuses(function() images.batchnorm(x, {gamma = three, beta = two}) end,
      "batchnorm: argument 'gamma': expected shape [2] (float32), got [3]")
    assert.refuses(function() images.batchnorm(x, {training = false}) end,
      "batchnorm: argument 'mean': inference needs")
    assert.refuses(function() images.batchnorm(x, {mean = two, var = two}) end,
      "batchnorm: argument 'var': it shares memory")
    assert.refuses(function() images.batchnorm(x, {mean = two, var = cf.ones(2), momentum = -1}) end,
      "batchnorm: argument 'count': a cumulative mean")
    assert.refuses(function() images.batchnorm(x, {count = two}) end,
      "batchnorm: argument 'count': expected shape [1] (int64)")
    assert.refuses(function() images.batchnorm(x, {residual = two}) end,
      "batchnorm: argument 'residual': expected x's form")
    assert.refuses(function() images.batchnorm(x:to "int64", {}) end, "batchnorm: argument 'x': expected floats")
    assert.refuses(function() images.batchnorm(x, {mean = cf.ones(1):expand(2), var = two}) end,
      "batchnorm: the tensor is expanded")
  end)
end)

describe("pools", function()
  local x = cf.arange(0, 15):reshape(1, 4, 4, 1)

  it("take the largest and the mean of windows", function()
    near({5, 7, 13, 15}, images.maxpool(x, {kernel = {2, 2}}))
    near({2.5, 4.5, 10.5, 12.5}, images.meanpool(x, {kernel = {2, 2}}))
    local o = {kernel = {2, 2}, stride = {3, 3}, pad = {1, 0, 1, 0}, count_pad = true}
    near({0, 1.25, 5, 12.5}, images.meanpool(x, o))
    near({0, 3, 12, 15}, images.maxpool(x, o))
    near({7.5}, images.adaptive_meanpool(x, 1, 1))
    near({2.5, 3.5, 4.5, 6.5, 7.5, 8.5, 10.5, 11.5, 12.5}, images.adaptive_meanpool(x, 3, 3))
  end)

  it("count the pad or not", function()
    local one = cf.ones(1, 2, 2, 1)
    local o = {kernel = {2, 2}, stride = {2, 2}, pad = {1, 1, 1, 1}}
    near({1, 1, 1, 1}, images.meanpool(one, o))
    o.count_pad = true
    near({0.25, 0.25, 0.25, 0.25}, images.meanpool(one, o))
  end)

  it("take views as they take copies of them", function()
    local view = cf.rand(3, 5, 6, 2):permute(4, 3, 2, 1)
    local o = {kernel = {3, 2}, stride = {1, 2}, pad = {1, 1, 0, 1}}
    assert.tensor_equal(images.maxpool(view, o), images.maxpool(view:clone(), o))
    assert.tensor_equal(images.adaptive_meanpool(view, 2, 3), images.adaptive_meanpool(view:clone(), 2, 3))
  end)

  it("refuse what does not fit", function()
    assert.refuses(function() images.maxpool(x, {kernel = {5, 2}}) end,
      "maxpool: argument 'window': its height of 5 is larger than the padded image's 4")
    assert.refuses(function() images.maxpool(x, {kernel = {2, 2}, pad = {0, 0, 2, 0}}) end,
      "maxpool: argument 'window': expected a pad from 0 to half the window's width of 2, got 2")
    assert.refuses(function() images.meanpool(x, {kernel = {2, 2}, stride = {0, 1}}) end, "meanpool: argument 'window'")
    assert.refuses(function() images.meanpool(x[1], {kernel = {2, 2}}) end,
      "meanpool: argument 'x': expected floats")
    assert.refuses(function() images.adaptive_meanpool(x, 0, 1) end, "adaptive_meanpool: expected a positive height")
    assert.refuses(function() images.adaptive_meanpool(cf.ones(1, 0, 2, 3), 1, 1) end,
      "adaptive_meanpool: argument 'x'")
  end)
end)

describe("group normalisation", function()
  it("normalises each group of each sample", function()
    local x = cf.tensor {{1, 3, 10, 20}, {0, 4, -1, 1}}
    near({-1, 1, -1, 1, -1, 1, -1, 1}, images.groupnorm(x, nil, nil, 2), 1e-4)
    near({1, 3, 0, 4, 1, 3, 0, 4}, images.groupnorm(x, cf.tensor {1, 1, 2, 2}, cf.full(2, 4), 2), 1e-4)
  end)

  it("refuses what does not fit", function()
    local x = cf.ones(2, 3, 4)
    assert.refuses(function() images.groupnorm(x, nil, nil, 3) end,
      "groupnorm: argument 'groups': 3 groups do not divide 4")
    assert.refuses(function() images.groupnorm(x, cf.ones(4), nil, 2) end, "groupnorm: expected gamma and beta")
    assert.refuses(function() images.groupnorm(x, cf.ones(3), cf.ones(4), 2) end, "groupnorm: argument 'gamma'")
    assert.refuses(function() images.groupnorm(cf.ones(4), nil, nil, 2) end, "groupnorm: argument 'x'")
  end)
end)

describe("images of another size", function()
  local x = cf.tensor({1, 2, 3, 4}):reshape(1, 2, 2, 1)

  it("are those of the nearest pixels, or bilinear", function() -- PyTorch's interpolate
    near({1, 1, 2, 2, 1, 1, 2, 2, 3, 3, 4, 4, 3, 3, 4, 4}, images.upsample(x, 4, 4, {}))
    near({1, 1, 2, 1, 1, 2, 3, 3, 4}, images.upsample(x, 3, 3, {}))
    near({1, 1.25, 1.75, 2, 1.5, 1.75, 2.25, 2.5, 2.5, 2.75, 3.25, 3.5, 3, 3.25, 3.75, 4},
      images.upsample(x, 4, 4, {bilinear = true}))
    near({1, 1.5, 2, 2, 2.5, 3, 3, 3.5, 4}, images.upsample(x, 3, 3, {bilinear = true, align_corners = true}))
  end)

  it("lie by the factor where one was given, not by the sizes", function()
    local line = cf.arange(0, 4):reshape(1, 1, 5, 1)
    near({0, 0, 1, 2, 2, 3, 4}, images.upsample(line, 1, 7, {scale = {1, 1.5}}))
    near({0, 0, 1, 2, 2, 3, 4}, images.upsample(line, 1, 7, {}))
    near({0, 0.5, 7 / 6, 11 / 6, 2.5, 19 / 6, 23 / 6}, images.upsample(line, 1, 7, {scale = {1, 1.5}, bilinear = true}))
  end)

  it("are refused where they do not fit", function()
    assert.refuses(function() images.upsample(x, 0, 4, {}) end, "upsample: expected a positive height and width")
    assert.refuses(function() images.upsample(x, 4, 4, {align_corners = true}) end,
      "upsample: argument 'align_corners'")
    assert.refuses(function() images.upsample(x, 4, 4, {scale = {-1, 1}}) end, "upsample: argument 'scale'")
    assert.refuses(function() images.upsample(x[1], 4, 4, {}) end, "upsample: argument 'x'")
  end)
end)

describe("bytes as numbers", function()
  it("are scaled and shifted by their channel", function()
    local x = cf.tensor({{0, 1, 2}, {255, 128, 3}}, {dtype = "uint8"})
    local y = images.normalise(x, cf.tensor {1, 2, 0.5}, cf.tensor {0, -1, 1})
    assert.equal("float32", y.dtype)
    assert.tensor_equal(cf.tensor {{0, 1, 2}, {255, 255, 2.5}}, y)
    assert.tensor_equal(cf.tensor {{0, 255}, {1, 255}, {2, 2.5}}, images.normalise(x, cf.tensor {1, 2, 0.5},
      cf.tensor {0, -1, 1}):t())
    assert.refuses(function() images.normalise(y, cf.ones(3), cf.ones(3)) end, "normalise: argument 'x'")
    assert.refuses(function() images.normalise(x, cf.ones(2), cf.ones(3)) end, "normalise: argument 'scale'")
  end)
end)
