-- Every differentiable row of the op table against central differences in float64.
local cf = require "conflux"
local convolutions = require "tests.spec.convolutions"
local images = require "tests.spec.images"
require "tests.spec.helper"

local F64 = {dtype = "float64"}

-- A loss that weighs every element of y differently, so that no gradient cancels.
local function weigh(y)
  local n = math.max(y:numel(), 1)
  return (y:reshape(-1) * (cf.linspace(0.5, 1.7, n, F64):sin() + 1.3)[{{1, y:numel()}}]):sum()
end

local function value(f, inputs)
  return weigh(f(unpack(inputs))):item()
end

-- d value / d inputs[k], element by element, on clones.
local function differences(f, inputs, k, eps)
  local x = inputs[k]
  local flat = x:clone():reshape(-1)
  local out = {}
  for i = 1, x:numel() do
    local at = {}
    for s = 1, 2 do
      local moved = flat:clone()
      moved[i] = flat[i]:item() + (s == 1 and eps or -eps)
      local copy = {unpack(inputs)}
      copy[k] = moved:reshape(x.shape)
      at[s] = value(f, copy)
    end
    out[i] = (at[1] - at[2]) / (2 * eps)
  end
  return out
end

local function check(f, inputs)
  local n = #inputs
  local _, g = cf.withgradient(function(m) return weigh(f(unpack(m, 1, n))) end, inputs)
  for k = 1, n do
    local want, got = differences(f, inputs, k, 1e-5), g[k]:reshape(-1):totable()
    assert.same(inputs[k].shape, g[k].shape)
    for i = 1, #want do
      local near = math.abs(want[i] - got[i]) <= 1e-6 + 1e-5 * math.abs(want[i])
      assert.is_true(near, ("input %d, element %d: differences %.9g, gradient %.9g"):format(k, i, want[i], got[i]))
    end
  end
end

cf.seed(7)
local function r(...) -- in (0.3, 1.3), away from every kink
  return cf.rand(..., F64) + 0.3
end
local function s(...) -- both signs, away from 0
  local x = cf.rand(..., F64) - 0.5
  return x + x:sign() * 0.2
end
-- The same values, strided: every second column of a wider transposed tensor.
local function strided(x)
  local wide = cf.zeros(x:size(2) * 2, x:size(1), F64):t()
  local view = wide[{{}, {1, -1, 2}}]
  view:copy_(x)
  return view
end

-- row of ops.def -> list of {function, inputs...}
local cases = {}
local function case(name, f, ...)
  cases[name] = cases[name] or {}
  table.insert(cases[name], {f, {...}})
end

for _, name in ipairs {"neg", "abs", "square", "relu", "leakyrelu", "elu", "gelu", "silu", "softplus", "tanh",
                       "sigmoid", "exp", "sin", "cos", "erf"} do
  local f = cf[name] or function(x) return -x end
  if name == "neg" then f = function(x) return -x end end
  if name == "square" then f = function(x) return x:square() end end
  case(name, f, s {3, 4})
  case(name, f, strided(s {3, 4}))
  case(name, f, cf.zeros({0, 4}, F64))
end
for _, name in ipairs {"log", "sqrt", "rsqrt"} do
  case(name, cf[name], r {3, 4})
  case(name, cf[name], strided(r {3, 4}))
end
case("clamp", function(x) return x:clamp(-0.4, 0.45) end, cf.tensor({-0.9, -0.41, -0.2, 0.3, 0.44, 0.8}, F64))

local function pairs_of(name, f, make)
  case(name, f, make {3, 4}, make {3, 4})
  case(name, f, make {3, 1}, make {4})
  case(name, f, strided(make {3, 4}), make {1, 4})
  case(name, f, cf.ones({0, 4}, F64), make {4})
end
pairs_of("add", function(a, b) return a + b end, s)
pairs_of("sub", function(a, b) return a - b end, s)
pairs_of("mul", function(a, b) return a * b end, s)
pairs_of("div", function(a, b) return a / b end, s)
pairs_of("pow", function(a, b) return a ^ b end, r)
pairs_of("maximum", cf.maximum, s)
pairs_of("minimum", cf.minimum, s)
case("add", function(a) return 2 + a + 1.5 end, s {5})
case("sub", function(a) return 2 - (a - 1.5) end, s {5})
case("mul", function(a) return 3 * a * -0.5 end, s {5})
case("div", function(a) return 3 / (a / 2.5) end, s {5})
for _, p in ipairs {2, 3, 0.5, -1, 1.7, 0} do
  case("pow", function(a) return a ^ p end, r {5})
end
case("pow", function(a) return 1.7 ^ a end, s {5})
case("maximum", function(a) return cf.maximum(a, 0.1) end, s {5})
case("minimum", function(a) return cf.minimum(a, 0.1) end, s {5})
local condition = cf.tensor {{true, false, true, true}, {false, false, true, false}, {true, true, false, true}}
case("where", function(a, b) return cf.where(condition, a, b) end, s {3, 4}, s {4})

for _, name in ipairs {"sum", "mean", "prod", "max", "min", "norm", "var", "std"} do
  local f = cf[name]
  case(name, function(x) return f(x) end, s {3, 4})
  case(name, function(x) return f(x, 1) end, s {3, 4})
  case(name, function(x) return f(x, 2, {keepdim = true}) end, s {3, 4})
  case(name, function(x) return f(x, {1, 3}) end, s {2, 3, 4})
  case(name, function(x) return f(x, 2) end, strided(s {3, 4}))
end
case("sum", function(x) return x:sum(1) end, cf.zeros({0, 4}, F64))
case("prod", function(x) return x:prod(2) end, cf.tensor({{0.5, 0, 2}, {0, 3, 0}, {1, 2, 3}}, F64))

for _, name in ipairs {"mse", "mae", "huber", "bce"} do
  for _, reduction in ipairs {"mean", "sum", "none"} do
    local f = function(x, y) return cf.nn[name](x, y, {reduction = reduction}) end
    case(name, f, s {3, 4}, s {3, 4} * 2.3)
    case(name, f, strided(s {3, 4}), s {3, 4} * 2.3)
  end
end

case("tri", function(x) return x:tril() + x:triu(1) * 2 end, s {4, 4})
for _, name in ipairs {"softmax", "logsoftmax"} do
  case(name, function(x) return cf[name](x, 2) end, s {3, 4})
  case(name, function(x) return cf[name](x, 1) end, strided(s {3, 4}))
end

local matmul = cf.matmul
case("matmul", matmul, s {3, 4}, s {4, 2})
case("matmul", matmul, s {4}, s {4})
case("matmul", matmul, s {4}, s {4, 2})
case("matmul", matmul, s {3, 4}, s {4})
case("matmul", matmul, s {2, 3, 4}, s {4, 2})
case("matmul", matmul, s {2, 3, 4}, s {2, 4, 2})
case("matmul", matmul, s {2, 1, 3, 4}, s {5, 4, 2})
case("matmul", function(a, b) return a:t():matmul(b:t()) end, s {4, 3}, s {2, 4})
case("matmul", matmul, strided(s {3, 4}), s {4, 2})
case("matmul", matmul, cf.zeros({0, 4}, F64), s {4, 2})
case("matmul", matmul, cf.zeros({3, 0}, F64), cf.zeros({0, 2}, F64))

local function dense(act)
  return function(x, w, b)
    local layer = cf.nn.Dense(4, 5, act)
    layer.weight, layer.bias = w, b
    return layer(x)
  end
end
for _, act in ipairs {"tanh", "relu", "sigmoid", "leakyrelu", "elu", "gelu", "silu", "softplus"} do
  case("dense", dense(act), s {3, 4}, s {5, 4}, s {5})
end
case("dense", dense(nil), s {2, 3, 4}, s {5, 4}, s {5})
case("dense", dense "tanh", strided(s {3, 4}), s {5, 4}, s {5})
case("dense", dense "tanh", cf.zeros({0, 4}, F64), s {5, 4}, s {5})

local function conv(o)
  return function(x, w, bias, residual)
    o.bias, o.residual = bias, residual
    return convolutions.conv(x, w, o)
  end
end
local function conv_transpose(o)
  return function(x, w, bias)
    o.bias = bias
    return convolutions.transpose(x, w, o)
  end
end
case("conv", conv {}, s {1, 3, 4, 2}, s {3, 2, 2, 2})
case("conv", conv {stride = {2, 1}, pad = {1, 0, 2, 1}}, s {2, 4, 3, 1}, s {2, 3, 2, 1}, s {2})
case("conv", conv {dilation = {2, 1}, groups = 2}, s {1, 4, 3, 4}, s {2, 2, 2, 2})
case("conv", conv {pad = {1, 1, 1, 1}, groups = 3}, s {1, 2, 3, 3}, s {3, 3, 3, 1})
for _, act in ipairs {"tanh", "relu", "sigmoid", "leakyrelu", "elu", "gelu"} do
  case("conv", conv {act = act}, s {1, 2, 3, 2}, s {3, 1, 2, 2}, s {3}, s {1, 2, 2, 3})
end
case("conv", conv {act = "tanh"}, s {4, 3, 2, 1}:permute(4, 2, 3, 1), s {2, 2, 4, 2}:transpose(3, 4))
case("conv", conv {}, cf.zeros({0, 3, 3, 2}, F64), s {2, 2, 2, 2}, s {2})
case("conv_bw_data", conv_transpose {}, s {1, 2, 3, 2}, s {2, 2, 2, 3}, s {3})
case("conv_bw_data", conv_transpose {stride = {2, 3}, pad = {1, 0, 0, 1}, output_pad = {1, 0}, act = "tanh"},
  s {2, 2, 2, 2}, s {2, 3, 2, 1}, s {1})
case("conv_bw_data", conv_transpose {stride = {2, 1}, dilation = {1, 2}, groups = 2, output_pad = {0, 1}},
  s {1, 2, 2, 4}, s {4, 2, 2, 1})
case("conv_bw_data", conv_transpose {dilation = {3, 3}, output_pad = {2, 1}}, s {1, 2, 2, 2}, s {2, 2, 2, 2})

local ids = cf.tensor({{2, 0}, {2, 1}}, {dtype = "int64"})
case("index", function(x) return x:index(1, ids) end, s {3, 4})
case("index", function(x) return x:index(2, ids) end, strided(s {3, 4}))
case("gather", function(x) return x:gather(1, ids) end, s {3, 2})
case("gather", function(x) return x:gather(2, ids) end, strided(s {2, 4}))
case("scatter_add", function(x, y) return x:scatteradd(1, ids, y) end, s {3, 2}, s {2, 2})
case("topk", function(x) return (x:topk(2, 2)) end, s {3, 4})
case("sort", function(x) return (x:sort(1)) end, s {3, 4})

local function layernorm(x, gamma, beta)
  local layer = cf.nn.LayerNorm(4)
  layer.weight, layer.bias = gamma, beta
  return layer(x)
end
case("layernorm", layernorm, s {3, 4}, s {4}, s {4})
case("layernorm", layernorm, s {2, 3, 4}, s {4}, s {4})
local function batchnorm(o)
  return function(x, gamma, beta, residual)
    o.gamma, o.beta, o.residual = gamma, beta, residual
    return images.batchnorm(x, o)
  end
end
local running = {mean = s {3}, var = r {3}}
for _, act in ipairs {"relu", "tanh"} do
  case("batchnorm", batchnorm {act = act}, s {2, 2, 3, 3}, s {3}, s {3}, s {2, 2, 3, 3})
  case("batchnorm", batchnorm {act = act}, s {2, 2, 3, 3}, s {3}, s {3})
  case("batchnorm", batchnorm {act = act, training = false, mean = running.mean, var = running.var}, s {2, 2, 3, 3},
    s {3}, s {3}, s {2, 2, 3, 3})
end
case("batchnorm", batchnorm {}, s {2, 3, 2, 2}:permute(1, 3, 4, 2), s {3}, s {3}, s {2, 3, 2, 2}:permute(1, 3, 4, 2))
case("batchnorm", batchnorm {training = false, mean = running.mean, var = running.var}, s {4, 3})
case("batchnorm", batchnorm {}, s {5, 3})
case("batchnorm", batchnorm {}, cf.zeros({0, 3}, F64), s {3}, s {3})

for _, name in ipairs {"maxpool", "meanpool"} do
  local function pool(o)
    return function(x) return images[name](x, o) end
  end
  case(name, pool {kernel = {2, 2}}, s {2, 5, 4, 3})
  case(name, pool {kernel = {3, 3}, stride = {2, 2}, pad = {1, 1, 1, 1}, count_pad = true}, s {1, 5, 6, 2})
  case(name, pool {kernel = {2, 3}, stride = {1, 2}, pad = {0, 1, 1, 0}}, s {1, 3, 4, 5}:permute(1, 4, 3, 2))
  case(name, pool {kernel = {2, 1}, dilation = {3, 1}}, s {1, 6, 2, 2})
end
case("meanpool", function(x) return images.adaptive_meanpool(x, 3, 2) end, s {2, 5, 4, 3})
case("meanpool", function(x) return images.adaptive_meanpool(x, 4, 1) end, s {1, 2, 3, 3})

local function groupnorm(groups)
  return function(x, gamma, beta) return images.groupnorm(x, gamma, beta, groups) end
end
case("groupnorm", groupnorm(2), s {2, 3, 2, 4}, s {4}, s {4})
case("groupnorm", groupnorm(1), s {3, 4})
case("groupnorm", groupnorm(4), s {1, 4, 3, 2}:permute(1, 4, 3, 2), s {4}, s {4})
for _, o in ipairs {{}, {bilinear = true}, {bilinear = true, align_corners = true},
                    {bilinear = true, scale = {1.7, 1.4}}} do
  case("upsample", function(x) return images.upsample(x, 5, 7, o) end, s {2, 3, 5, 2})
  case("upsample", function(x) return images.upsample(x, 2, 3, o) end, s {1, 2, 5, 4}:permute(1, 4, 3, 2))
end

case("dropout", function(x)
  local layer = cf.nn.Dropout(0.4)
  cf.seed(3)
  return layer(x)
end, s {4, 5})

local labels = cf.tensor({2, 0, 3}, {dtype = "int64"})
for _, o in ipairs {{}, {reduction = "sum"}, {reduction = "none"}, {smoothing = 0.1}, {ignore = 0}} do
  case("crossentropy", function(x) return cf.nn.crossentropy(x, labels, o) end, s {3, 4})
end
case("crossentropy", function(x) return cf.nn.crossentropy(x, cf.softmax(x:detach() * 0 + 1, 2)) end, s {3, 4})

-- Views and copies share the row `copy`.
case("copy", function(x) return x:reshape(4, 3) end, s {3, 4})
case("copy", function(x) return x:t():reshape(2, 6) end, s {3, 4})
case("copy", function(x) return x:permute(3, 1, 2) end, s {2, 3, 4})
case("copy", function(x) return x[{{2, 3}, {}}] end, s {3, 4})
case("copy", function(x) return x[2] * x[{{}, 1}]:sum() end, s {3, 4})
case("copy", function(x) return x[{{}, {1, -1, 2}}] end, s {3, 5})
case("copy", function(x) return x:unsqueeze(2):expand(3, 5, 4) end, s {3, 4})
case("copy", function(x) return x:flip(1) end, s {3, 4})
case("copy", function(x) return x:tile(2, 3) end, s {3, 4})
case("copy", function(a, b) return cf.concat({a, b, a}, 2) end, s {3, 4}, s {3, 2})
case("copy", function(a, b) return cf.stack({a, b}, 1) end, s {3, 4}, s {3, 4})
case("copy", function(x) return x:clone() * x:contiguous() end, strided(s {3, 4}))
case("copy", function(x) return x:pad({{1, 2}, {0, 1}}) end, s {3, 4})

describe("gradients against differences in float64:", function()
  local no_convolutions = convolutions.missing()
  for _, name in ipairs((function()
    local names = {}
    for name in pairs(cases) do names[#names + 1] = name end
    table.sort(names)
    return names
  end)()) do
    for k, c in ipairs(cases[name]) do
      it(("%s, case %d"):format(name, k), function()
        if no_convolutions and name:find "^conv" then return pending(no_convolutions) end
        check(c[1], c[2])
      end)
    end
  end

  it("every differentiable row of ops.def has a case", function()
    local missing, rows = {}, 0
    for line in io.lines "core/device/ops.def" do
      local name, gradient = line:match "^CF_OP%(([%w_]+), [%w_]+, [%w_]+, ([%w_]+), [%w_]+%)"
      if name then rows = rows + 1 end
      if name and gradient ~= "none" and not cases[name] then missing[#missing + 1] = name end
    end
    assert.is_true(rows > 100)
    assert.same({}, missing)
  end)

  it("gradients reach float32 and half parameters in their own type", function()
    for _, dtype in ipairs {"float32", "float16", "bfloat16"} do
      local x = cf.tensor({1, 2, 3}, {dtype = dtype})
      local _, g = cf.withgradient(function(m) return (m * m):sum() end, x)
      assert.equal(dtype, g.dtype)
      assert.same({2, 4, 6}, g:to("float32"):totable())
    end
  end)
end)
