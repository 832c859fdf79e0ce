-- cf.op: operations with a gradient written by hand: what reaches their backward, and that it cannot be wrong unseen.
require "tests.spec.helper"
local cf = require "conflux"
local nn = cf.nn

-- Adds all tensors of a list, or of a table of lists; each one's gradient is its number times dy.
local function total(x)
  if type(x) ~= "table" then return x end
  local y
  for _, v in ipairs(x) do y = y and y + total(v) or total(v) end
  return y
end

describe("op: a list of inputs", function()
  local sum = cf.op("sum", {
    forward = function(xs) return total(xs) end,
    backward = function(dy, xs)
      local function grads(list, by)
        local g = {}
        for k = 1, #list do g[k] = type(list[k]) == "table" and grads(list[k], 10 * k) or dy * (by + k) end
        return g
      end
      return grads(xs, 0)
    end,
  })

  it("is differentiated by the backward of the operation", function()
    local model = {cf.ones(2), cf.full(2, 2)}
    local l, g = cf.withgradient(function(m) return sum({m[1], m[2]}):sum() end, model)
    assert.equal(6, l:item())
    assert.tensor_equal(g[1], {1, 1})
    assert.tensor_equal(g[2], {2, 2})
  end)

  it("may be nested, and hold a tensor twice", function()
    local model = {cf.ones(2), cf.full(2, 2)}
    local g = cf.gradient(function(m) return sum({m[1], {m[1], m[2]}, m[1]}):sum() end, model)
    assert.tensor_equal(g[1], {1 + 21 + 3, 1 + 21 + 3})
    assert.tensor_equal(g[2], {22, 22})
  end)

  it("may leave out gradients of its tensors, which are zeros then, but not be one itself", function()
    local model = {cf.ones(2), cf.full(2, 2)}
    local function by(backward)
      local op = cf.op("part", {forward = total, backward = backward})
      return cf.gradient(function(m) return (op({m[1], {m[2]}}) + m[1]):sum() end, model)
    end
    local g = by(function(dy) return {dy, false} end)
    assert.tensor_equal(g[1], {2, 2})
    assert.tensor_equal(g[2], {0, 0})
    g = by(function(dy) return {nil, {dy}} end)
    assert.tensor_equal(g[1], {1, 1})
    assert.tensor_equal(g[2], {1, 1})
    g = by(function() return nil end)
    assert.tensor_equal(g[1], {1, 1})
    assert.refuses(function() by(function(dy) return dy end) end,
      "part: backward: result 1: expected a table of gradients, nil or false, got [2] (float32, ")
    assert.refuses(function() by(function(dy) return {dy, {"dx"}} end) end,
      "part: backward: result 1.2.1: expected a tensor, nil or false, got 'dx'")
  end)

  it("reaches forward and backward as a copy that is not watched, with its metatable", function()
    local dense, seen = nn.Dense(3, 2), {}
    local op = cf.op("dense", {
      forward = function(layer, x)
        seen[1] = layer
        return layer(x)
      end,
      backward = function(dy, layer, x)
        seen[2] = layer
        local _, g = cf.withgradient(function(m) return (m(x) * dy):sum() end, layer)
        return g
      end,
    })
    local x = cf.rand(4, 3)
    local g = cf.gradient(function(m) return op(m, x):sum() end, dense)
    assert.tensor_near(g.weight, cf.gradient(function(m) return m(x):sum() end, dense).weight)
    assert.tensor_near(g.bias, {4, 4})
    for k = 1, 2 do
      assert.equal(getmetatable(dense), getmetatable(seen[k]))
      assert.is_false(seen[k].weight == dense.weight)
    end
  end)

  it("is handed on as it is where nothing in it is watched", function()
    local o = {1, [true] = "any key", t = cf.ones(2)}
    o.self = o
    local seen = {}
    local op = cf.op("options", {
      forward = function(x, options) seen[1] = options return x * options.t end,
      backward = function(dy, _, options) seen[2] = options return dy * options.t end,
    })
    assert.tensor_equal(cf.gradient(function(m) return op(m, o):sum() end, cf.ones(2)), {1, 1})
    assert.is_true(rawequal(o, seen[1]) and rawequal(o, seen[2]))
  end)

  it("is refused where it contains itself", function()
    local list = {cf.ones(2)}
    assert.refuses(function()
      cf.gradient(function(m)
        local round = {m[1]}
        round[2] = round
        return sum(round):sum()
      end, list)
    end, "sum: argument 1: the table at '2' contains itself")
  end)
end)

describe("op: what its backward needs", function()
  -- Runs an op whose backward hands on one value that it is given, and changes that value in between.
  local function changes(change, n)
    local op = cf.op("keeps", {
      forward = function(...)
        local y = total {...}
        local kept = y + 1
        return y, kept, {inner = {kept * 2}}
      end,
      backward = function(dy, ...)
        local g = {}
        for k = 1, n or 2 do g[k] = dy * select(k, ...) end
        return unpack(g, 1, n or 2)
      end,
    })
    local others = {}
    for k = 1, n or 2 do others[k] = cf.full(k, 2) end
    return cf.gradient(function(m)
      local inputs = {m, unpack(others, 2)}
      local y = op(unpack(inputs))
      change(inputs, y)
      return y:sum()
    end, cf.ones(2))
  end

  it("cannot change in place: its inputs, however many there are", function()
    for n = 2, 12 do
      for k = 2, n do
        assert.refuses(function() changes(function(x) x[k]:fill_(7) end, n) end,
          "fill_: a custom operation needs the tensor's values for its gradient; they cannot change in place")
      end
    end
  end)

  it("cannot change in place: its result", function()
    assert.refuses(function() changes(function(_, y) y:detach():fill_(100) end) end, "fill_: a custom operation")
    assert.refuses(function() changes(function(_, y) y:detach()[1]:fill_(100) end) end, "fill_: a custom operation")
  end)

  it("cannot change in place: what forward kept, in tables too", function()
    for _, inside in ipairs {false, true} do
      local kept
      local op = cf.op("keeps", {
        forward = function(x)
          kept = x * 3
          if inside then return x * x, {a = {kept}} end
          return x * x, kept
        end,
        backward = function(dy, _, _, k) return dy * (inside and k.a[1] or k) end,
      })
      assert.refuses(function()
        cf.gradient(function(m)
          local y = op(m)
          kept:fill_(100)
          return y:sum()
        end, cf.ones(2))
      end, "fill_: a custom operation needs")
      kept:fill_(1) -- it may change once the gradient is there
    end
  end)

  it("cannot change in place: what lies in tables that it was given", function()
    local o = {scale = {cf.ones(2)}}
    local op = cf.op("scaled", {
      forward = function(x, options) return x * options.scale[1] end,
      backward = function(dy, _, options) return dy * options.scale[1] end,
    })
    assert.refuses(function()
      cf.gradient(function(m)
        local y = op(m, o)
        o.scale[1]:fill_(3)
        return y:sum()
      end, cf.ones(2))
    end, "fill_: a custom operation needs")
    o.scale[1]:fill_(3)
  end)

  it("may change after the backward, and where nothing was recorded", function()
    local op = cf.op("twice", {forward = function(x) return x * 2 end, backward = function(dy) return dy * 2 end})
    local x = cf.ones(2)
    local y = op(x)
    x:fill_(1)
    y:fill_(1)
    cf.gradient(function(m) return op(m):sum() end, x)
    x:fill_(2)
    assert.tensor_equal(x, {2, 2})
  end)
end)

describe("op: a backward", function()
  local function gradient_by(backward)
    local op = cf.op("by", {forward = function(a, b, k) return a * b * k end, backward = backward})
    return cf.gradient(function(m) return (op(m[1], m[2], 3) + m[1] + m[2]):sum() end, {cf.ones(2), cf.ones(2)})
  end

  it("that returns nothing is an error, not a gradient of zeros", function()
    assert.refuses(function() gradient_by(function() end) end,
      "by: backward: returned nothing; expected a gradient for input 1 (nil or false stands for zeros)")
  end)

  it("that returns less than its watched inputs is an error", function()
    assert.refuses(function() gradient_by(function(dy) return dy end) end,
      "by: backward: returned 1 result; expected a gradient for input 2 (nil or false stands for zeros)")
  end)

  it("may return nil or false, and leave out what comes behind the last watched input", function()
    assert.tensor_equal(gradient_by(function(dy) return dy, nil end)[2], {1, 1})
    assert.tensor_equal(gradient_by(function() return nil, nil end)[1], {1, 1})
    assert.tensor_equal(gradient_by(function(dy) return false, dy, nil end)[1], {1, 1})
  end)
end)

describe("op: a watched tensor that is no argument", function()
  local times = function(w)
    return cf.op("times", {forward = function(x) return x * w end, backward = function(dy) return dy end})
  end

  it("is refused, with and without other watched inputs", function()
    local text = "times: forward: its result depends on a watched tensor that is none of its arguments"
    assert.refuses(function() cf.gradient(function(m) return times(m)(cf.ones(2)):sum() end, cf.ones(2)) end, text)
    assert.refuses(function() cf.gradient(function(m) return times(m)(m):sum() end, cf.ones(2)) end, text)
  end)

  it("is a constant once it is detached", function()
    local g = cf.gradient(function(m) return times(m:detach())(m):sum() end, cf.full(3, 2))
    assert.tensor_equal(g, {1, 1})
  end)
end)
