local cf = require "conflux"
require "tests.spec.helper"
local on = require "tests.spec.devices".on

local function ints(v) return cf.tensor(v, {dtype = "int32"}) end
local function ids(v) return cf.tensor(v, {dtype = "int64"}) end

describe("operators", function()
  local a, b = cf.tensor({1, 2, 3}), cf.tensor({4, 5, 6})

  it("work element by element", function()
    assert.tensor_equal(a + b, {5, 7, 9})
    assert.tensor_equal(a - b, {-3, -3, -3})
    assert.tensor_equal(a * b, {4, 10, 18})
    assert.tensor_near(a / b, {0.25, 0.4, 0.5})
    assert.tensor_near(a ^ b, {1, 32, 729})
    assert.tensor_equal(-a, {-1, -2, -3})
  end)

  it("take a number on either side", function()
    assert.tensor_equal(a + 1, {2, 3, 4})
    assert.tensor_equal(1 + a, {2, 3, 4})
    assert.tensor_equal(a - 1, {0, 1, 2})
    assert.tensor_equal(1 - a, {0, -1, -2})
    assert.tensor_equal(2 * a, {2, 4, 6})
    assert.tensor_near(a / 2, {0.5, 1, 1.5})
    assert.tensor_near(6 / a, {6, 3, 2})
    assert.tensor_near(a ^ 2, {1, 4, 9})
    assert.tensor_near(2 ^ a, {2, 4, 8})
  end)

  it("broadcast", function()
    local column = cf.tensor({{10}, {20}})
    assert.tensor_equal(column + a, {{11, 12, 13}, {21, 22, 23}})
    assert.tensor_equal(a + cf.tensor(1), {2, 3, 4})
    assert.same({0, 3}, (cf.zeros(0, 1) + a).shape)
  end)

  it("change nothing", function()
    local x = a:clone()
    local _ = {x + 1, x * x, x:exp(), x:clamp(0, 1)}
    assert.tensor_equal(x, a)
  end)
end)

describe("types", function()
  local order = {"bool", "uint8", "int32", "int64", "float16", "float32", "float64"}

  it("promote to the higher of two", function()
    for i, low in ipairs(order) do
      for j, high in ipairs(order) do
        local sum = cf.ones(2, {dtype = low}) * cf.ones(2, {dtype = high})
        assert.equal(order[math.max(i, j)], sum.dtype)
      end
    end
    assert.equal("float32", (cf.ones(1, {dtype = "float16"}) + cf.ones(1, {dtype = "bfloat16"})).dtype)
    assert.equal("bfloat16", (cf.ones(1, {dtype = "bfloat16"}) + ints {1}).dtype)
  end)

  it("stay beside a number, but for fractions with integers", function()
    for _, dtype in ipairs {"uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"} do
      assert.equal(dtype, (cf.ones(1, {dtype = dtype}) + 1).dtype)
      local is_float = dtype:find "float"
      assert.equal(is_float and dtype or "float32", (cf.ones(1, {dtype = dtype}) * 0.5).dtype)
    end
    assert.tensor_equal(ints {1, 2} * 0.5, cf.tensor({0.5, 1}))
    assert.tensor_equal(1.5 - ints {1, 2}, cf.tensor({0.5, -0.5}))
  end)

  it("become float32 by / and by functions that give fractions", function()
    assert.tensor_equal(ints {1, 2} / 2, cf.tensor({0.5, 1}))
    assert.tensor_equal(ints {1, 2} / ints {2, 2}, cf.tensor({0.5, 1}))
    assert.equal("float32", ints({1}):exp().dtype)
    assert.equal("float32", ints({1, 2}):mean().dtype)
    assert.equal("int32", ints({-1}):abs().dtype)
    assert.equal("int32", (-ints {1}).dtype)
  end)

  it("never widen in place", function()
    local x = ints {1, 2}
    assert.tensor_equal(x:add_(1), ints {2, 3})
    assert.tensor_equal(x:mul_(ints {2, 2}), ints {4, 6})
    assert.refuses(function() x:add_(0.5) end, "add_: a result of type float32 does not fit a tensor of int32 in place")
    assert.refuses(function() x:div_(2) end, "div_: a result of type float32 does not fit a tensor of int32 in place")
    assert.refuses(function() x:add_(cf.ones(2)) end, "add_: a result of type float32 does not fit")
    assert.refuses(function() x:fill_(0.5) end, "fill_: argument 'value': expected a value of int32, got 0.5")
    assert.tensor_equal(cf.ones(2):add_(ints {1, 2}), cf.tensor({2, 3}))
  end)
end)

describe("elementwise functions", function()
  local points = {-2, -0.5, 0, 0.5, 2}
  local x = cf.tensor(points, {dtype = "float64"})

  local function sigmoid(v) return 1 / (1 + math.exp(-v)) end
  -- Abramowitz and Stegun 7.1.5, whose terms vanish quickly here.
  local function erf(v)
    local sum, term = 0, v
    for n = 0, 60 do
      sum = sum + term / (2 * n + 1)
      term = -term * v * v / (n + 1)
    end
    return 2 / math.sqrt(math.pi) * sum
  end

  local functions = {
    abs = math.abs, exp = math.exp, sin = math.sin, cos = math.cos, tanh = math.tanh, sigmoid = sigmoid, erf = erf,
    sign = function(v) return v > 0 and 1 or v < 0 and -1 or 0 end,
    relu = function(v) return math.max(v, 0) end,
    leakyrelu = function(v) return v > 0 and v or 0.01 * v end,
    elu = function(v) return v > 0 and v or math.exp(v) - 1 end,
    gelu = function(v) return v / 2 * (1 + erf(v / math.sqrt(2))) end,
    silu = function(v) return v * sigmoid(v) end,
    softplus = function(v) return math.log(1 + math.exp(v)) end,
    floor = math.floor,
  }

  for name, f in pairs(functions) do
    it("have " .. name, function()
      local expected = {}
      for i, v in ipairs(points) do expected[i] = f(v) end
      assert.tensor_near(cf[name](x), expected, 1e-12, 1e-12)
      assert.tensor_near(x[name](x:to "float32"), expected, 1e-5, 1e-6)
    end)
  end

  it("have log, sqrt and rsqrt of positive numbers, NaN of negative ones", function()
    local p = cf.tensor({1, 4, 0.25})
    assert.tensor_near(p:log(), {0, math.log(4), math.log(0.25)})
    assert.tensor_near(p:sqrt(), {1, 2, 0.5})
    assert.tensor_near(p:rsqrt(), {1, 0.5, 2})
    assert.tensor_near(cf.tensor({-1}):sqrt(), {0 / 0})
    assert.tensor_near(cf.tensor({0}):log(), {-math.huge})
  end)

  it("round half to even", function()
    assert.tensor_equal(cf.tensor({0.5, 1.5, 2.5, -0.5, -1.6}):round(), {0, 2, 2, 0, -2})
  end)

  it("take parameters", function()
    assert.tensor_near(x:leakyrelu(0.5), {-1, -0.25, 0, 0.5, 2})
    assert.tensor_near(x:elu(2), {2 * (math.exp(-2) - 1), 2 * (math.exp(-0.5) - 1), 0, 0.5, 2})
    assert.tensor_equal(x:clamp(-1, 1), {-1, -0.5, 0, 0.5, 1})
    assert.tensor_equal(x:clamp(0), {0, 0, 0, 0.5, 2})
    assert.tensor_equal(x:clamp(nil, 0), {-2, -0.5, 0, 0, 0})
    assert.tensor_equal(ids({-5, 0, 5}):clamp(-1), ids {-1, 0, 5})
    assert.tensor_equal(ids({-5, 0, 5}):clamp(nil, 2), ids {-5, 0, 2})
    assert.tensor_equal(ints({-5, 0, 5}):clamp(-1, 2), ints {-1, 0, 2})
    assert.tensor_equal(ints({-5, 0, 5}):clamp(-1.5, 2), cf.tensor({-1.5, 0, 2}))
    assert.refuses(function() x:clamp() end, "clamp: expected a lower bound, an upper bound, or both")
    assert.refuses(function() x:clamp(1, 0) end, "clamp: argument 'hi': expected a bound of at least 1, got 0")
  end)

  it("compare", function()
    local a, b = cf.tensor({1, 2, 3}), cf.tensor({3, 2, 1})
    assert.tensor_equal(a:eq(b), {false, true, false})
    assert.tensor_equal(a:ne(b), {true, false, true})
    assert.tensor_equal(a:lt(b), {true, false, false})
    assert.tensor_equal(a:le(b), {true, true, false})
    assert.tensor_equal(a:gt(2), {false, false, true})
    assert.tensor_equal(cf.ge(2, a), {true, true, false})
    assert.tensor_equal(cf.tensor({200}, {dtype = "uint8"}):lt(300), {true})
    assert.tensor_equal(cf.tensor({0 / 0}):eq(0 / 0), {false})
    assert.tensor_equal(cf.tensor({true, false}):eq(true), {true, false})
  end)

  it("have logic", function()
    local t = cf.tensor({true, true, false, false})
    local u = cf.tensor({true, false, true, false})
    assert.tensor_equal(t:land(u), {true, false, false, false})
    assert.tensor_equal(t:lor(u), {true, true, true, false})
    assert.tensor_equal(t:lnot(), {false, false, true, true})
  end)

  it("choose by where, maximum and minimum", function()
    local a, b = cf.tensor({1, 5}), cf.tensor({3, 2})
    assert.tensor_equal(cf.maximum(a, b), {3, 5})
    assert.tensor_equal(cf.minimum(a, 2), {1, 2})
    assert.tensor_equal(cf.where(a:gt(b), a, b), {3, 5})
    assert.tensor_equal(cf.where(a:gt(b), a, 0), {0, 5})
    assert.tensor_equal(cf.where(a:gt(b), -1, b), {3, -1})
    assert.tensor_equal(cf.where(a:gt(b), 1, 0), cf.tensor({0, 1}))
    assert.tensor_equal(cf.where(a:gt(b), ints {1, 2}, 0), ints {0, 2})
    assert.tensor_equal(cf.where(a:gt(b), ints {1, 2}, 0.5), cf.tensor({0.5, 2}))
    assert.refuses(function() cf.where(a, b) end, "where: argument 'b': expected a tensor or a number, got nil")
  end)

  it("keep triangles", function()
    local m = cf.ones(3, 3)
    assert.tensor_equal(m:tril(), {{1, 0, 0}, {1, 1, 0}, {1, 1, 1}})
    assert.tensor_equal(m:triu(), {{1, 1, 1}, {0, 1, 1}, {0, 0, 1}})
    assert.tensor_equal(m:tril(-1), {{0, 0, 0}, {1, 0, 0}, {1, 1, 0}})
    assert.tensor_equal(m:triu(2), {{0, 0, 1}, {0, 0, 0}, {0, 0, 0}})
    assert.refuses(function() cf.ones(3):tril() end, "tril: argument 'x': expected a tensor of at least 2 dimensions")
  end)
end)

describe("reductions", function()
  local x = cf.tensor({{1, 2, 3}, {4, 5, 9}})

  it("go over all dimensions, one, or a list", function()
    assert.equal(24, x:sum():item())
    assert.tensor_equal(x:sum(1), {5, 7, 12})
    assert.tensor_equal(x:sum(-1), {6, 18})
    assert.tensor_equal(x:sum({1, 2}), cf.tensor(24))
    assert.tensor_equal(x:sum({2}), {6, 18})
    assert.same({}, x:sum().shape)
  end)

  it("keep dimensions on demand", function()
    assert.same({1, 3}, x:sum(1, {keepdim = true}).shape)
    assert.same({1, 1}, x:sum({keepdim = true}).shape)
    assert.same({2, 1}, x:argmax(2, {keepdim = true}).shape)
    assert.refuses(function() x:sum(1, {keepdims = true}) end, "sum: unknown option 'keepdims': known are keepdim")
    assert.refuses(function() x:sum(1, {keepdim = 1}) end, "sum: argument 'keepdim': expected true or false, got 1")
  end)

  it("have sum, mean, prod, max, min, norm", function()
    assert.equal(4, x:mean():item())
    assert.tensor_near(x:mean(2), {2, 6})
    assert.equal(1080, x:prod():item())
    assert.tensor_equal(x:max(1), {4, 5, 9})
    assert.tensor_equal(x:min(2), {1, 4})
    assert.equal(9, cf.max(x):item())
    assert.near(math.sqrt(136), x:norm():item(), 1e-5)
    assert.tensor_near(ints({1, 2}):mean(), cf.tensor(1.5))
    assert.tensor_equal(ints({1, 2}):sum(), cf.tensor(3, {dtype = ints({1, 2}):sum().dtype}))
  end)

  it("have variances with Bessel's correction, and without", function()
    assert.tensor_near(x:var(2), {1, 7})
    assert.tensor_near(x:std(2), {1, math.sqrt(7)})
    assert.tensor_near(x:var(2, {correction = 0}), {2 / 3, 14 / 3})
    assert.tensor_near(x:std({correction = 0, keepdim = true}), {{math.sqrt(40 / 6)}})
    assert.refuses(function() x:mean({correction = 0}) end, "mean: unknown option 'correction': known are keepdim")
  end)

  it("have means, spreads and norms that fit wherever their value does", function()
    assert.tensor_near((cf.arange(1, 100) * 10):to "float16":std(), cf.tensor(290.1), 1e-3)
    assert.tensor_near(cf.tensor({1e-4, -1e-4, 2e-4}, {dtype = "float16"}):std(), cf.tensor(1.5275e-4), 1e-3, 0)
    local large = cf.tensor({2 ^ 60, 2 ^ 61, 2 ^ 62}, {dtype = "int64"})
    assert.tensor_near(large:std(), cf.tensor(1.76105e18), 1e-4)
    assert.tensor_near(large:mean(), cf.tensor(7 / 3 * 2 ^ 60))
    assert.tensor_near(cf.tensor({3e38, 3e38}):mean(), cf.tensor(3e38))
    assert.tensor_near(cf.tensor({{3e20, 4e20}, {3e-30, 4e-30}}):norm(2), {5e20, 5e-30}, 1e-6, 0)
    assert.tensor_near(cf.tensor({{-1e30, 1e30}}):std(2, {correction = 0}), {1e30})
    assert.tensor_near(cf.nn.LayerNorm(2)(cf.tensor({{-1e30, 1e30}})), {{-1, 1}})
  end)

  it("have any and all", function()
    local t = cf.tensor({{true, false}, {true, true}})
    assert.is_true(t:any():item())
    assert.is_false(t:all():item())
    assert.tensor_equal(t:all(2), {false, true})
  end)

  it("give ids from 0 by argmax and argmin", function()
    assert.equal(5, x:argmax():item())
    assert.equal("int64", x:argmax().dtype)
    assert.tensor_equal(x:argmin(1), ids {0, 0, 0})
    assert.tensor_equal(cf.tensor({{1, 3, 3}, {2, 0, 1}}):argmax(2), ids {1, 0})
    assert.refuses(function() x:argmax({1, 2}) end, "argmax: expected one dimension or none, got 2")
  end)

  it("give what is right for nothing", function()
    local none = cf.zeros(0, 3)
    assert.equal(0, none:sum():item())
    assert.equal(1, none:prod():item())
    assert.tensor_equal(none:sum(1), {0, 0, 0})
    assert.tensor_near(none:mean(), cf.tensor(0 / 0))
    assert.refuses(function() none:max() end, "max: there is no element to take from a [0, 3]")
  end)

  it("refuse dimensions that are none", function()
    assert.refuses(function() x:sum(3) end,
      "sum: argument 'dims': expected a dimension from 1 to 2, or from -1 to -2, got 3")
    assert.refuses(function() x:sum(0) end, "sum: argument 'dims': expected a dimension from 1 to 2")
    assert.refuses(function() x:sum({1, -2}) end, "sum: argument 'dims': dimension 1 is named twice")
    assert.refuses(function() cf.tensor(1):sum(1) end, "sum: argument 'dims': expected no dimension")
  end)
end)

describe("along one dimension", function()
  local x = cf.tensor({{1, 2, 3}, {3, 1, 2}})

  it("softmax and logsoftmax add up to one", function()
    local e = {math.exp(-2), math.exp(-1), 1}
    local sum = e[1] + e[2] + e[3]
    assert.tensor_near(x:softmax(2)[1], {e[1] / sum, e[2] / sum, e[3] / sum})
    assert.tensor_near(x:softmax(), x:softmax(-1))
    assert.tensor_near(cf.softmax(x, 1):sum(1), {1, 1, 1})
    assert.tensor_near(x:logsoftmax(2), x:softmax(2):log(), 1e-5, 1e-5)
    assert.tensor_near(cf.tensor({1000, 0}):softmax(), {1, 0})
  end)

  it("topk and sort give values and ids from 0", function()
    local values, where = x:topk(2)
    assert.tensor_equal(values, {{3, 2}, {3, 2}})
    assert.tensor_equal(where, ids {{2, 1}, {0, 2}})
    values, where = x:topk(1, 1)
    assert.tensor_equal(values, {{3, 2, 3}})
    assert.tensor_equal(where, ids {{1, 0, 0}})
    values, where = x:sort(2)
    assert.tensor_equal(values, {{1, 2, 3}, {1, 2, 3}})
    assert.tensor_equal(where, ids {{0, 1, 2}, {1, 2, 0}})
    assert.tensor_equal(x:sort(1, {descending = true}), {{3, 2, 3}, {1, 1, 2}})
    assert.tensor_equal(x:sort({descending = true}), {{3, 2, 1}, {3, 2, 1}})
    assert.refuses(function() x:topk(4) end, "topk: argument 'k': expected 0 to 3, the size of dimension 2, got 4")
    assert.refuses(function() x:topk(1.5) end, "topk: argument 'k': expected an integer of at least 0, got 1.5")
    assert.refuses(function() x:sort(1, {decending = true}) end, "sort: unknown option 'decending'")
  end)
end)

describe("matmul", function()
  it("multiplies matrices, vectors and batches", function()
    local a, b = cf.tensor({{1, 2}, {3, 4}}), cf.tensor({{5, 6}, {7, 8}})
    assert.tensor_near(cf.matmul(a, b), {{19, 22}, {43, 50}})
    assert.tensor_near(a:matmul(cf.tensor({1, 1})), {3, 7})
    assert.tensor_near(cf.tensor({1, 1}):matmul(a), {4, 6})
    assert.tensor_near(cf.tensor({1, 2}):matmul(cf.tensor({3, 4})), cf.tensor(11))
    assert.tensor_near(cf.stack({a, b}):matmul(cf.eye(2)), cf.stack({a, b}))
    assert.same({2, 2, 3}, cf.ones(2, 2, 4):matmul(cf.ones(4, 3)).shape)
    assert.tensor_near(a:t():matmul(b:t()), b:matmul(a):t())
    assert.tensor_equal(cf.ones(2, 0):matmul(cf.ones(0, 2)), {{0, 0}, {0, 0}})
  end)

  it("names the shape that it expected", function()
    assert.refuses(function() cf.ones(32, 128):matmul(cf.ones(64, 10)) end,
      on "matmul: argument 'b': expected shape [128, n] for a [32, 128], got [64, 10] (float32, cpu:0)")
    assert.refuses(function() cf.matmul(cf.ones(2, 2), 3) end, "matmul: argument 'b': expected a tensor, got 3")
  end)
end)

describe("selection", function()
  local x = cf.tensor({{1, 2, 3}, {4, 5, 6}})

  it("takes slices by ids", function()
    assert.tensor_equal(x:index(2, ids {2, 0, 2}), {{3, 1, 3}, {6, 4, 6}})
    assert.tensor_equal(x:index(1, ids {{1}}), {{{4, 5, 6}}})
    assert.tensor_equal(cf.index(x, -1, ids(1)), {2, 5})
    assert.refuses(function() x:index(2, {0}) end, "index: argument 'ids': expected an integer tensor, got a table")
  end)

  it("takes elements by ids, and adds to them", function()
    assert.tensor_equal(x:gather(2, ids {{0}, {2}}), {{1}, {6}})
    assert.tensor_equal(x:gather(1, ids {{1, 0, 1}}), {{4, 2, 6}})
    local sum = cf.zeros(3):scatteradd(1, ids {0, 2, 0}, cf.tensor({1, 2, 4}))
    assert.tensor_equal(sum, {5, 0, 2})
    assert.refuses(function() x:gather(2, ids {0}) end, "gather: argument 'ids': expected at most the shape")
    assert.refuses(function() x:scatteradd(1, ids {{0}}) end, "scatteradd: argument 'src': expected a tensor, got nil")
  end)
end)

describe("in place", function()
  it("changes x and returns it", function()
    local x = cf.tensor({1, 2, 3})
    assert.is_true(x:add_(1) == x)
    assert.tensor_equal(x, {2, 3, 4})
    assert.tensor_equal(x:sub_(cf.tensor({1, 1, 1})), {1, 2, 3})
    assert.tensor_equal(x:mul_(2), {2, 4, 6})
    assert.tensor_equal(x:div_(2), {1, 2, 3})
    assert.tensor_equal(x:clamp_(2), {2, 2, 3})
    assert.tensor_equal(x:fill_(7), {7, 7, 7})
    assert.tensor_equal(x:copy_(cf.tensor({4, 5, 6}, {dtype = "int32"})), cf.tensor({4, 5, 6}))
    assert.tensor_equal(cf.tensor({false}):fill_(true), {true})
  end)

  it("reaches through views", function()
    local x = cf.zeros(2, 2)
    x:t()[1]:add_(1)
    assert.tensor_equal(x, {{1, 0}, {1, 0}})
    x[{{}, 2}]:copy_(x[1])
    assert.tensor_equal(x, {{1, 1}, {1, 0}})
  end)

  it("refuses what does not fit", function()
    local x = cf.ones(2)
    assert.refuses(function() x:add_(cf.ones(3)) end, "add_: argument 'y': expected a shape that broadcasts to a [2]")
    assert.refuses(function() x:add_ "1" end, "add_: argument 'y': expected a tensor or a number, got '1'")
    assert.refuses(function() x:copy_(1) end, "copy_: argument 'y': expected a tensor, got 1")
  end)
end)
