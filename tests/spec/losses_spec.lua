-- Losses, beside PyTorch's values (tests/fixtures/make_reference.py).
require "tests.spec.helper"
local cf = require "conflux"
local nn = cf.nn

local reference = cf.load("tests/fixtures/reference.safetensors").losses

local cases = {
  crossentropy = {nn.crossentropy, {}},
  crossentropy_smooth = {nn.crossentropy, {smoothing = 0.1}},
  crossentropy_ignore = {nn.crossentropy, {ignore = 4}},
  crossentropy_both = {nn.crossentropy, {ignore = 4, smoothing = 0.2}},
  crossentropy_probs = {nn.crossentropy, {}},
  mse = {nn.mse, {}}, mae = {nn.mae, {}}, huber = {nn.huber, {delta = 0.7}}, bce = {nn.bce, {}},
}

describe("losses", function()
  for _, reduction in ipairs {"mean", "sum", "none"} do
    for name, case in pairs(cases) do
      it(("%s with reduction %s is PyTorch's, with its gradient"):format(name, reduction), function()
        local f, recorded = case[1], reference[name .. "_" .. reduction]
        local o = {reduction = reduction}
        for key, value in pairs(case[2]) do o[key] = value end
        local y
        local _, g = cf.withgradient(function(x)
          y = f(x, recorded.t, o)
          return (y * recorded.c):sum()
        end, recorded.x:clone())
        assert.tensor_near(y, recorded.y)
        assert.tensor_near(g, recorded.dx)
      end)
    end
  end

  it("are means where nothing else is said", function()
    local x, y = cf.rand(4, 3), cf.rand(4, 3)
    for _, name in ipairs {"mse", "mae", "huber", "bce"} do
      assert.tensor_equal(nn[name](x, y), nn[name](x, y, {reduction = "mean"}))
    end
    assert.tensor_near(nn.mse(x, y), ((x - y) ^ 2):mean())
  end)

  it("take targets of any integer type", function()
    local x = cf.rand(3, 5)
    local want = nn.crossentropy(x, cf.tensor({1, 0, 4}, {dtype = "int64"}))
    for _, dtype in ipairs {"uint8", "int32"} do
      assert.tensor_equal(nn.crossentropy(x, cf.tensor({1, 0, 4}, {dtype = dtype})), want)
    end
  end)

  it("have a gradient of zero where every row is ignored", function()
    local ids = cf.tensor({2, 2}, {dtype = "int64"})
    local _, g = cf.withgradient(function(x) return nn.crossentropy(x, ids, {ignore = 2, reduction = "sum"}) end,
      cf.rand(2, 3))
    assert.tensor_equal(g, cf.zeros(2, 3))
  end)

  it("refuse shapes that do not fit, at the caller's line", function()
    assert.refuses(function() nn.crossentropy(cf.rand(3, 5), cf.tensor({1, 2}, {dtype = "int64"})) end,
      "crossentropy: argument 'target'")
    assert.refuses(function() nn.mse(cf.rand(3, 5), cf.rand(3, 4)) end, "mse: ")
    assert.refuses(function() nn.mse(cf.rand(3, 5), 1) end, "mse: argument 'y': expected a tensor, got 1")
  end)

  it("refuse options that they do not know", function()
    local x = cf.rand(3)
    assert.refuses(function() nn.mse(x, x, {reduce = "sum"}) end, "mse: unknown option 'reduce': known are reduction")
    assert.refuses(function() nn.mse(x, x, {reduction = "avg"}) end,
      "mse: argument 'reduction': expected 'mean', 'sum' or 'none', got 'avg'")
    assert.refuses(function() nn.huber(x, x, {delta = 0}) end, "huber: argument 'delta': expected a positive number")
    assert.refuses(function() nn.crossentropy(cf.rand(2, 3), cf.rand(2, 3), {smoothing = 2}) end,
      "crossentropy: option 'smoothing'")
  end)

  it("find an id that no class has, when the loss is read", function()
    local loss = nn.crossentropy(cf.rand(2, 3), cf.tensor({0, 3}, {dtype = "int64"}))
    local ok, message = pcall(function() return loss:item() end)
    assert.is_false(ok)
    assert.matches("3", message)
  end)
end)
