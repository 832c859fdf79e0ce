-- A tensor that was released: every use of it is an error, and none ends the process.
require "tests.spec.helper"
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local function released()
  local t = cf.ones(2, 3)
  t:release()
  return t
end

describe("a released tensor", function()
  it("tells nothing of what it was", function()
    local t = released()
    assert.refuses(function() return t.shape end, "shape: the tensor was released")
    assert.refuses(function() return t.ndim end, "ndim: the tensor was released")
    assert.refuses(function() return t.dtype end, "dtype: the tensor was released")
    assert.refuses(function() return t.device end, "device: the tensor was released")
    assert.refuses(function() local _ = #t end, "size: the tensor was released")
    assert.refuses(function() local _ = t:size(1) end, "size: the tensor was released")
    assert.refuses(function() local _ = t:numel() end, "numel: the tensor was released")
  end)

  it("is no parameter", function()
    for _, name in ipairs {"parameters", "freeze", "unfreeze"} do
      assert.refuses(function() nn[name](released()) end, name .. ": argument 'x': expected a tensor, got one that was")
      assert.refuses(function() nn[name] {cf.ones(1), {w = released()}} end,
        name .. ": argument 'x': the tensor at '2.w' was released")
    end
    assert.refuses(function() nn.buffer(released()) end, "buffer: argument 't': expected a tensor, got one that was")
  end)

  it("is refused by optimisers and gradients, in a model and alone", function()
    for name in pairs {RMSProp = 1, Descent = 1, Adam = 1} do
      assert.refuses(function() optim[name]():setup {released(), a = cf.ones(2)} end,
        "setup: argument 'model': the tensor at '1' was released")
      assert.refuses(function() optim[name]():setup(released()) end,
        "setup: argument 'model': the tensor was released")
    end
    assert.refuses(function() cf.withgradient(function(m) return m.a:sum() end, {released(), a = cf.ones(2)}) end,
      "withgradient: argument 'model': the tensor at '1' was released")
    local model = {cf.ones(2), cf.ones(2)}
    local state = optim.Adam(0.1):setup(model)
    local g = cf.gradient(function(m) return (m[1] * m[2]):sum() end, model)
    g[1]:release()
    assert.refuses(function() optim.update(state, model, g) end, "update: argument 'gradient'")
    model[1]:release()
    assert.refuses(function() optim.update(state, model, {cf.ones(2), cf.ones(2)}) end, "update: argument 'model'")
    assert.refuses(function() cf.withgradient(function(m) return m[2]:sum() end, model) end,
      "withgradient: argument 'model'")
    assert.refuses(function() optim.Adam(0.1):setup(model) end, "setup: argument 'model': the tensor at '1' was")
  end)
end)
