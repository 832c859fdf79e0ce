--- gpu.lua's attention: multi-head attention, and the block of a transformer around it, forward and backward.

local PRECISIONS = {"float32", "tf32", "bfloat16"}

-- Sequences, their length, numbers a position, heads; and the rows of the square product that sets the limit.
local function sizes(m)
  if m.quick then return {batch = 2, length = 6, width = 8, heads = 2, square = 48} end
  return {batch = 8, length = 1024, width = 768, heads = 12, square = 8192}
end

-- ---- the models ---------------------------------------------------------------------------------------------

local function attention_new(nn, s)
  local layers = {}
  for _, name in ipairs {"q", "k", "v", "out"} do layers[name] = nn.Dense(s.width, s.width) end
  return layers
end

local function attention(layers, x, s)
  local function heads(layer)
    return layer(x):reshape(s.batch, s.length, s.heads, s.width / s.heads):transpose(2, 3)
  end
  local q, k, v = heads(layers.q), heads(layers.k), heads(layers.v)
  local weights = (q * (s.heads / s.width) ^ 0.5):matmul(k:transpose(3, 4)):softmax()
  return layers.out(weights:matmul(v):transpose(2, 3):reshape(s.batch, s.length, s.width))
end

local function block_new(nn, s)
  return {
    attention = attention_new(nn, s), norms = {nn.LayerNorm(s.width), nn.LayerNorm(s.width)},
    wide = nn.Dense(s.width, 4 * s.width, "gelu"), narrow = nn.Dense(4 * s.width, s.width),
  }
end

local function block(layers, x, s)
  local y = x + attention(layers.attention, layers.norms[1](x), s)
  return y + layers.narrow(layers.wide(layers.norms[2](y)))
end

-- Floating-point operations in the matrix products of forward and backward, whose every product has two gradients.
local function operations(s, is_block)
  local positions = s.batch * s.length
  local dense = 2 * positions * s.width ^ 2 -- one layer [width, width]
  local scores = 2 * positions * s.length * s.width
  return 3 * ((is_block and 4 + 8 or 4) * dense + 2 * scores)
end

local CASES = {
  {name = "attention", new = attention_new, apply = attention},
  {name = "transformer", new = block_new, apply = block, is_block = true},
}

-- ---- measuring ----------------------------------------------------------------------------------------------

-- All gradients of a case in a dtype, that of the input among them.
local function step_of(m, case, s, dtype)
  local cf = m.cf
  local watched, dy = m:make(function()
    local function input() return cf.randn(s.batch, s.length, s.width) end
    return {layers = case.new(cf.nn, s), x = input()}, input()
  end)
  watched, dy = cf.tree.to(watched, dtype), dy:to(dtype)
  local function f(w) return (case.apply(w.layers, w.x, s) * dy):sum() end
  return function()
    local value, g = cf.withgradient(f, watched)
    for _, leaf in ipairs(cf.tree.leaves(g)) do leaf:release() end
    return value
  end
end

local function measure_case(m, case, precision)
  local cf, figure, s = m.cf, m.bench.figure, sizes(m)
  local dtype = precision == "bfloat16" and "bfloat16" or "float32"
  cf.precision(precision == "tf32" and "tf32" or "float32")
  local step = step_of(m, case, s, dtype)
  local value = step():item()
  if value ~= value then error("the value is not a number", 0) end
  local a, b = m:make(function()
    return cf.rand(s.square, s.square, {dtype = dtype}), cf.rand(s.square, s.square, {dtype = dtype})
  end)
  local us = m:turns {function() step():release() end, function() cf.matmul(a, b):release() end}
  local work = operations(s, case.is_block)
  local floor = work / (2 * s.square ^ 3) * us[2]
  local prefix = ("%s_%s_"):format(case.name, precision)
  figure(prefix .. "us", us[1], "us")
  figure(prefix .. "floor_us", floor, "us")
  figure(prefix .. "over_floor", us[1] / floor, "ratio")
  figure(prefix .. "tflops", work / us[1] * 1e-6, "TFLOP/s")
end

local function run(m)
  for _, case in ipairs(CASES) do
    for _, precision in ipairs(PRECISIONS) do
      m:item(("%s_%s"):format(case.name, precision), function() measure_case(m, case, precision) end)
    end
  end
end

return {{name = "attention", devices = 1, run = run}}
