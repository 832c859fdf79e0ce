-- withgradient and its kin.  That each operation's gradient is right is for gradcheck_spec.
require "tests.spec.helper"
local on = require "tests.spec.devices".on
local cf = require "conflux"
local core = require "conflux.core"
local nn = cf.nn

local function square(m) return (m * m):sum() end

describe("withgradient", function()
  it("returns the loss and the gradient of one tensor", function()
    local x = cf.tensor {1, 2, 3}
    local l, g = cf.withgradient(square, x)
    assert.equal(14, l:item())
    assert.tensor_equal(g, {2, 4, 6})
  end)

  it("passes arguments on, and returns all results, the gradient last", function()
    local x = cf.tensor {1, 2}
    local l, a, b, c, g = cf.withgradient(function(m, p, q)
      return (m * p):sum(), q, nil, "text"
    end, x, 3, "q")
    assert.equal(9, l:item())
    assert.equal("q", a)
    assert.is_nil(b)
    assert.equal("text", c)
    assert.tensor_equal(g, {3, 3})
  end)

  it("gives a tree of the model's structure, with zeros where the loss does not reach", function()
    local model = {1, w = cf.ones(2), unused = {cf.ones(3)}, name = "m"}
    model[1] = {b = cf.full(2, 2)}
    local _, g = cf.withgradient(function(m) return (m.w * m[1].b):sum() end, model)
    assert.tensor_equal(g.w, {2, 2})
    assert.tensor_equal(g[1].b, {1, 1})
    assert.tensor_equal(g.unused[1], {0, 0, 0})
    assert.is_nil(g.name)
    assert.is_nil(getmetatable(g))
  end)

  it("leaves buffers and integers out, and gives frozen parameters zeros", function()
    local model = {cf.arange(1, 2):to "int64", cf.ones(2), frozen = nn.freeze(cf.ones(2)),
      state = nn.buffer(cf.ones(2))}
    local _, g = cf.withgradient(function(m) return (m[2] * m.frozen * m.state):sum() end, model)
    assert.is_false(g[1])
    assert.tensor_equal(g[2], {1, 1})
    assert.tensor_equal(g.frozen, {0, 0})
    assert.is_nil(g.state)
  end)

  it("sees parameters that were frozen or unfrozen since the last call", function()
    local model = nn.Chain(nn.Dense(2, 2), nn.Dense(2, 2))
    local function f(m) return m(cf.ones(1, 2)):sum() end
    local _, before = cf.withgradient(f, model)
    nn.freeze(model[1])
    local _, frozen = cf.withgradient(f, model)
    nn.unfreeze(model[1])
    local _, after = cf.withgradient(f, model)
    assert.tensor_equal(frozen[1].weight, cf.zeros(2, 2))
    assert.tensor_equal(frozen[2].weight, before[2].weight)
    assert.tensor_equal(after[1].weight, before[1].weight)
  end)

  it("keeps ties, and adds their contributions", function()
    local w = cf.full(3, 2)
    local _, g = cf.withgradient(function(m) return (m.a * m.b):sum() end, {a = w, b = w})
    assert.is_true(g.a == g.b)
    assert.tensor_equal(g.a, {6, 6})
  end)

  it("keeps tables that are met twice", function()
    local layer = nn.Dense(2, 2)
    local _, g = cf.withgradient(function(m) return m(cf.ones(1, 2)):sum() end, nn.Chain(layer, layer))
    assert.is_true(rawequal(g[1], g[2]))
  end)

  it("refuses two handles on the same values", function()
    local w = cf.ones(4)
    assert.refuses(function() cf.withgradient(function(m) return m[1]:sum() end, {w, w:reshape(4)}) end,
      "withgradient: parameters '2' and '1' are two handles on the same values")
  end)

  it("returns its results as constants", function()
    local x, kept = cf.ones(2), nil
    local y = select(2, cf.withgradient(function(m)
      kept = m * 2
      return kept:sum(), kept
    end, x))
    local l, g = cf.withgradient(function(m) return (m * y * kept):sum() end, x)
    assert.equal(8, l:item())
    assert.tensor_equal(g, {4, 4})
  end)

  it("gives a fresh gradient at every call", function()
    local model = {cf.ones(2)}
    local _, first = cf.withgradient(function(m) return square(m[1]) end, model)
    local _, second = cf.withgradient(function(m) return square(m[1]) * 2 end, model)
    assert.tensor_equal(first[1], {2, 2})
    assert.tensor_equal(second[1], {4, 4})
  end)

  it("packs a plain model in place: the handles stay", function()
    local model = nn.Chain(nn.Dense(3, 5), nn.Dense(5, 2))
    local weight, values = model[1].weight, model[1].weight:totable()
    cf.withgradient(function(m) return m(cf.rand(2, 3)):sum() end, model)
    assert.is_true(model[1].weight == weight)
    assert.tensor_equal(weight, values)
  end)

  it("refuses to pack a parameter that somebody else has a view of, by its path", function()
    local model = {layer = {w = cf.ones(2, 3)}}
    local row = model.layer.w[1]
    assert.refuses(function() cf.withgradient(function(m) return m.layer.w:sum() end, model) end,
      "pack: parameter 'layer.w' shares its memory")
    row:release()
    cf.withgradient(function(m) return m.layer.w:sum() end, model)
  end)

  it("works on parts of a packed model, and on parts of several", function()
    local a, b = nn.Chain(nn.Dense(2, 3), nn.Dense(3, 3)), nn.Chain(nn.Dense(3, 1))
    local x = cf.ones(1, 2)
    local _, ga = cf.withgradient(function(m) return b(m(x)):sum() end, a)
    local _, gb = cf.withgradient(function(m) return m(a(x)):sum() end, b)
    local _, part = cf.withgradient(function(m) return b(m(a[1](x))):sum() end, a[2])
    local _, both = cf.withgradient(function(m) return m[2](m[1](x)):sum() end, {a, b})
    assert.tensor_equal(part.weight, ga[2].weight)
    assert.tensor_equal(both[1][1].weight, ga[1].weight)
    assert.tensor_equal(both[2][1].bias, gb[1].bias)
  end)

  it("works on models of several dtypes", function()
    local model = {cf.ones(3), cf.full(2, 3, {dtype = "float64"})}
    local _, g = cf.withgradient(function(m) return (m[1]:to "float64" * m[2]):sum() end, model)
    assert.tensor_equal(g[1], cf.full(2, 3))
    assert.tensor_equal(g[2], cf.ones(3, {dtype = "float64"}))
  end)

  it("passes errors of f on unchanged and ends the tape", function()
    local model, problem = {cf.ones(2)}, {"a table"}
    local function fail() error(problem) end
    local ok, message = pcall(cf.withgradient, fail, model)
    assert.is_false(ok)
    assert.is_true(rawequal(problem, message))
    local _, text = pcall(cf.withgradient, function() error "with a line" end, model)
    assert.matches("gradient_spec%.lua:%d+: with a line$", text)
    local _, g = cf.withgradient(function(m) return square(m[1]) end, model)
    assert.tensor_equal(g[1], {2, 2})
  end)

  it("refuses a first result that is no number of the model's", function()
    local model = {w = cf.ones(2)}
    assert.refuses(function() cf.withgradient(function(m) return m.w end, model) end,
      "withgradient: argument 'f': expected its first result to be one number, got a tensor of shape [2]")
    assert.refuses(function() cf.withgradient(function() return cf.ones(2):sum() end, model) end,
      "withgradient: argument 'f': its first result does not depend on a parameter of the model")
    assert.refuses(function() cf.withgradient(function() end, model) end, "withgradient: argument 'f'")
    assert.refuses(function() cf.withgradient(function() return 3 end, model) end, "withgradient: argument 'f'")
  end)

  it("refuses models without parameters to watch", function()
    local function f() return cf.zeros {} end
    assert.refuses(function() cf.withgradient(f, {}) end, "withgradient: argument 'model'")
    assert.refuses(function() cf.withgradient(f, 3) end, "withgradient: argument 'model'")
    assert.refuses(function() cf.withgradient(f, cf.arange(1, 3):to "int64") end, "withgradient: argument 'model'")
    assert.refuses(function() cf.withgradient(f, nn.freeze(nn.Dense(1, 1))) end,
      "withgradient: argument 'model': expected a parameter that is not frozen")
    assert.refuses(function() cf.withgradient({}, nn.Dense(1, 1)) end, "withgradient: argument 'f'")
  end)

  it("refuses to watch what a live tape watches, and to mix tapes", function()
    local x, y = cf.ones(2), cf.ones(2)
    assert.refuses(function()
      cf.withgradient(function(m)
        cf.withgradient(square, x)
        return m:sum()
      end, x)
    end, "withgradient: ")
    assert.refuses(function()
      cf.withgradient(function(m)
        return (cf.withgradient(function(n) return (n * m):sum() end, y))
      end, x)
    end, "mul: ")
    local inner
    local _, g = cf.withgradient(function(m)
      inner = select(2, cf.withgradient(square, y))
      return (m * inner):sum()
    end, x)
    assert.tensor_equal(inner, {2, 2})
    assert.tensor_equal(g, {2, 2})
  end)

  it("refuses writes into what a gradient needs", function()
    local x = cf.ones(2)
    assert.refuses(function()
      cf.withgradient(function(m)
        local y = m:exp()
        y:add_(1)
        return y:sum()
      end, x)
    end, "add_: the tensor is part of a gradient")
  end)

  it("does not grow over many calls", function()
    local model = nn.Chain(nn.Dense(64, 64, "tanh"), nn.Dense(64, 64))
    local x = cf.rand(32, 64)
    local function step() cf.withgradient(function(m) return m(x):sum() end, model) end
    for _ = 1, 50 do step() end
    cf.sync()
    collectgarbage()
    collectgarbage()
    local before = cf.memory().in_use
    for _ = 1, 200 do step() end
    cf.sync()
    collectgarbage()
    collectgarbage()
    assert.is_true(cf.memory().in_use <= before)
  end)

  it("makes room for a gradient larger than the debt threshold: it holds two, never three", function()
    local threshold = core.debt_threshold()
    if threshold > 2 ^ 28 then return pending "earlier tests have raised the debt threshold far" end
    core.C.cfx_debt_threshold(core.context(), 2 ^ 50) -- so that the debt itself collects nothing here
    local model = {cf.zeros(threshold / 4 + 2 ^ 20)}
    local bytes, before, most = threshold + 2 ^ 22, cf.memory().in_use, 0
    for _ = 1, 8 do
      cf.withgradient(function(m) return m[1]:sum() end, model)
      most = math.max(most, cf.memory().in_use - before)
    end
    core.C.cfx_debt_threshold(core.context(), threshold)
    assert.is_true(most < 2.2 * bytes)
  end)
end)

describe("gradient", function()
  it("is the gradient alone", function()
    assert.tensor_equal(cf.gradient(square, cf.tensor {1, 2}), {2, 4})
    assert.equal(1, select("#", cf.gradient(function(m) return square(m), 1, 2 end, cf.ones(1))))
  end)
end)

describe("addgradient", function()
  it("adds into an earlier gradient, and returns it last", function()
    local model = {cf.tensor {1, 2}, cf.ones(1)}
    local function f(m) return square(m[1]), "more" end
    local _, _, g = cf.withgradient(f, model)
    local l, more, same = cf.addgradient(g, f, model)
    assert.equal(5, l:item())
    assert.equal("more", more)
    assert.is_true(rawequal(same, g))
    assert.tensor_equal(g[1], {4, 8})
    assert.tensor_equal(g[2], {0})
  end)

  it("refuses a gradient of another structure, by path", function()
    local model = {a = cf.ones(2), b = cf.ones(2)}
    local function f(m) return (m.a * m.b):sum() end
    assert.refuses(function() cf.addgradient({a = cf.ones(2)}, f, model) end,
      on "addgradient: argument 'g': nothing at 'b', where the model has a parameter [2] (float32, cpu:0)")
    assert.refuses(function() cf.addgradient({a = cf.ones(2), b = cf.ones(2), c = {cf.ones(1)}}, f, model) end,
      "addgradient: argument 'g': a tensor at 'c.1', where the model has no parameter")
    assert.refuses(function() cf.addgradient(nil, f, model) end, "addgradient: argument 'g'")
  end)
end)

describe("op", function()
  local cube = cf.op("cube", {
    forward = function(x) return x ^ 3 end,
    backward = function(dy, x) return dy * x ^ 2 * 3 end,
  })

  it("computes with its forward and differentiates with its backward", function()
    local l, g = cf.withgradient(function(m) return (cube(m) * 2):sum() end, cf.tensor {1, 2})
    assert.equal(18, l:item())
    assert.tensor_near(g, {6, 24})
    assert.tensor_equal(cube(cf.tensor {2}), {8})
  end)

  it("hands its backward the gradient, the inputs, the result and what forward kept", function()
    local seen
    local op = cf.op("op", {
      forward = function(x, k, y) return x * k * y, "kept", x + 1 end,
      backward = function(...)
        seen = {n = select("#", ...), ...}
        local dy, x, k, y = ...
        return dy * k * y, nil, dy * x * k
      end,
    })
    local _, g = cf.withgradient(function(m) return op(m[1], 5, m[2]):sum() end, {cf.full(2, 1), cf.full(3, 1)})
    assert.equal(7, seen.n)
    assert.tensor_equal(seen[1], {1})
    assert.tensor_equal(seen[2], {2})
    assert.equal(5, seen[3])
    assert.tensor_equal(seen[5], {30})
    assert.equal("kept", seen[6])
    assert.tensor_equal(seen[7], {3})
    assert.tensor_equal(g[1], {15})
    assert.tensor_equal(g[2], {10})
  end)

  it("may be used many times, after one another and beside one another", function()
    local _, g = cf.withgradient(function(m) return (cube(cube(m)) + cube(m)):sum() end, cf.tensor {1})
    assert.tensor_near(g, {12})
  end)

  it("lets its backward read values, inside withdevices too", function()
    local scaled = cf.op("scaled", {
      forward = function(x) return x * 1 end,
      backward = function(dy, x) return dy * x:sum():item() end,
    })
    local grads = cf.withdevices(function()
      return (cf.gradient(function(m) return scaled(m):sum() end, cf.tensor {1, 2}))
    end)
    assert.tensor_equal(grads[1], {3, 3})
  end)

  it("counts a missing gradient as zeros", function()
    local none = cf.op("none", {forward = function(x) return x * 2 end, backward = function() return nil end})
    assert.tensor_equal(cf.gradient(function(m) return (none(m) + m):sum() end, cf.ones(2)), {1, 1})
  end)

  it("refuses gradients of another shape and things that are no tensors", function()
    local wrong = cf.op("wrong", {forward = function(x) return x * 2 end, backward = function() return cf.ones(3) end})
    assert.refuses(function() cf.gradient(function(m) return wrong(m):sum() end, cf.ones(2)) end,
      "op: gradient 1: expected the input's shape [2]")
    local text = cf.op("text", {forward = function(x) return x * 2 end, backward = function() return "dx" end})
    assert.refuses(function() cf.gradient(function(m) return text(m):sum() end, cf.ones(2)) end,
      "text: backward: result 1: expected a tensor")
    assert.refuses(function() cf.op("half", {forward = function() end}) end, "op: argument 'backward'")
  end)

  it("passes errors of its backward on and ends the tape", function()
    local bad = cf.op("bad", {forward = function(x) return x * 2 end, backward = function() error("no", 0) end})
    local x = cf.ones(2)
    assert.has_error(function() cf.gradient(function(m) return bad(m):sum() end, x) end, "no")
    assert.tensor_equal(cf.gradient(square, x), {2, 2})
  end)

  it("refuses writes into its inputs before its backward has run", function()
    local x, times = cf.ones(2), cf.op("times", {
      forward = function(a, b) return a * b end,
      backward = function(dy, a, b) return dy * b, dy * a end,
    })
    assert.refuses(function()
      cf.gradient(function(m)
        local y = times(m, x)
        x:fill_(3)
        return y:sum()
      end, cf.ones(2))
    end, "fill")
  end)
end)

-- Where a function has no derivative, or a value is none, gradients are PyTorch's.
describe("a gradient where there is no derivative", function()
  local NAN, INF = 0 / 0, 1 / 0

  local function gradient(values, f, dtype)
    return cf.gradient(function(x) return f(x):sum() end, cf.tensor(values, {dtype = dtype or "float32"}))
  end

  it("is 0 for the deviation of equal numbers and for the norm of zeros", function()
    for _, dtype in ipairs {"float16", "bfloat16", "float32", "float64"} do
      for _, x in ipairs {{2, 2, 2}, {0, 0, 0}} do
        assert.tensor_near(gradient(x, function(v) return v:std() end, dtype), {0, 0, 0})
        assert.tensor_near(gradient(x, function(v) return v:std({correction = 0}) end, dtype), {0, 0, 0})
      end
      assert.tensor_near(gradient({0, 0}, function(v) return v:norm() end, dtype), {0, 0})
      assert.tensor_near(gradient({{1, 1}, {3, 4}}, function(v) return v:std(2) + v:norm(2) end, dtype),
        {{0.7071, 0.7071}, {0.6 - 0.7071, 0.8 + 0.7071}}, 2e-2, 1e-2)
    end
    assert.tensor_near(gradient({3}, function(v) return v:std() end), {NAN}) -- of one number there is none
    assert.tensor_near(gradient({3}, function(v) return v:var() end), {NAN})
  end)

  it("does not overflow where its value fits", function()
    assert.tensor_near(gradient({3e-39, 4e-39}, function(v) return v:norm() end), {0.6, 0.8}, 1e-3)
    assert.tensor_near(gradient({2e38, -2e38}, function(v) return v:norm() end), {0.70711, -0.70711}, 1e-3)
    assert.tensor_near(gradient({-1e30, 1e30}, function(v) return v:std() end), {-0.70711, 0.70711}, 1e-3)
    assert.tensor_near(gradient({-6e-6, 6e-6}, function(v) return v:std() end, "float16"), {-0.70711, 0.70711}, 5e-2)
  end)

  it("is 0 at the bounds of clamp", function()
    local x = {-INF, -2, -1, 0, 1, 2, INF, NAN}
    assert.tensor_equal(gradient(x, function(v) return v:clamp(-1, 1) end), {0, 0, 0, 1, 0, 0, 0, 0})
    assert.tensor_equal(gradient(x, function(v) return v:clamp(-1) end), {0, 0, 0, 1, 1, 1, 1, 0})
    assert.tensor_equal(gradient(x, function(v) return v:clamp(nil, 1) end), {1, 1, 1, 1, 0, 0, 0, 0})
  end)

  it("goes to the NaN that min and max choose, in equal parts", function()
    for _, name in ipairs {"max", "min"} do
      local function f(v) return v[name](v) end
      assert.tensor_equal(gradient({1, NAN, 3}, f), {0, 1, 0})
      assert.tensor_equal(gradient({NAN, 2, NAN, 2}, f), {0.5, 0, 0.5, 0})
      assert.tensor_equal(gradient({{NAN, 1}, {2, 2}}, function(v) return v[name](v, 2) end), {{1, 0}, {0.5, 0.5}})
    end
  end)

  it("goes to both of maximum and minimum where one is a NaN", function()
    for _, f in ipairs {cf.maximum, cf.minimum} do
      local g = cf.gradient(function(m) return f(m[1], m[2]):sum() end,
        {cf.tensor {1, NAN, NAN, 2}, cf.tensor {NAN, 1, NAN, 2}})
      assert.tensor_equal(g[1], {1, 1, 1, 0.5})
      assert.tensor_equal(g[2], {1, 1, 1, 0.5})
    end
  end)
end)
