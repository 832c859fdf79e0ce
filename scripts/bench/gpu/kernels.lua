--- gpu.lua's operations that memory limits.  Each counts the bytes that it has to read and write at least.

-- Rows and columns of a float32 matrix of 256 MiB.
local function matrix(m)
  if m.quick then return 64, 64 end
  return 65536, 1024
end

local FLOAT, HALF, ID = 4, 2, 8 -- bytes

-- ---- elementwise --------------------------------------------------------------------------------------------

local function elementwise(m)
  local cf = m.cf
  local rows, cols = matrix(m)
  local n = rows * cols
  local a, b, bias, y = m:make(function()
    return cf.rand(rows, cols), cf.rand(rows, cols), cf.rand(cols), cf.zeros(rows, cols)
  end)
  local half_a, half_b = a:to "bfloat16", b:to "bfloat16"
  local turned = a:transpose(1, 2)
  local list = {
    {"add", 3 * n * FLOAT, function() (a + b):release() end},
    {"add_into", 3 * n * FLOAT, function() y:add_(a) end},
    {"scale", 2 * n * FLOAT, function() (a * 2):release() end},
    {"tanh", 2 * n * FLOAT, function() a:tanh():release() end},
    {"relu", 2 * n * FLOAT, function() a:relu():release() end},
    {"bias", 2 * n * FLOAT, function() (a + bias):release() end},
    {"add_bfloat16", 3 * n * HALF, function() (half_a + half_b):release() end},
    {"to_bfloat16", n * (FLOAT + HALF), function() a:to "bfloat16":release() end},
    {"transposed", 2 * n * FLOAT, function() turned:contiguous():release() end},
    {"fill", n * FLOAT, function() y:fill_(1) end},
    {"rand", n * FLOAT, function() cf.rand(rows, cols, {device = m.devices[1]}):release() end},
  }
  m:copy()
  for _, entry in ipairs(list) do
    m:item(entry[1], function() m:memory(unpack(entry)) end)
  end
end

-- ---- reductions ---------------------------------------------------------------------------------------------

local function reduce(m)
  local cf = m.cf
  local rows, cols = matrix(m)
  local bytes = rows * cols * FLOAT
  local x = m:make(function() return cf.rand(rows, cols) end)
  local list = {
    {"sum", function() x:sum():release() end},
    {"sum_of_rows", function() x:sum(2):release() end},
    {"sum_of_columns", function() x:sum(1):release() end},
    {"max_of_rows", function() x:max(2):release() end},
    {"argmax_of_rows", function() x:argmax(2):release() end},
    {"norm", function() x:norm():release() end},
  }
  m:copy()
  for _, entry in ipairs(list) do
    m:item(entry[1], function() m:memory(entry[1], bytes, entry[2]) end)
  end
end

-- ---- rows: softmax and its like -----------------------------------------------------------------------------

-- The gradient of a loss or layer by its input, for those that have one.
local function gradient(m, f, x)
  local cf = m.cf
  return function()
    local loss, g = cf.withgradient(f, x)
    loss:release()
    g:release()
  end
end

local function rows_part(m)
  local cf, nn = m.cf, m.cf.nn
  local rows, cols = matrix(m)
  local n, wide = rows * cols, m.quick and 512 or 32768
  local x, ids, vocabulary, words = m:make(function()
    return cf.rand(rows, cols), cf.randint(0, cols - 1, rows), cf.rand(m.quick and 128 or 65536, 512),
      cf.randint(0, m.quick and 127 or 65535, m.quick and 16 or 131072)
  end)
  local norm = m:make(function() return nn.LayerNorm(cols) end)
  local x_wide = x:reshape(n / wide, wide)
  local gathered = #words * 512 * FLOAT
  local function cross(logits) return nn.crossentropy(logits, ids) end
  local list = {
    {"softmax", 2 * n * FLOAT, function() x:softmax():release() end},
    {"softmax_wide", 2 * n * FLOAT, function() x_wide:softmax():release() end},
    {"logsoftmax", 2 * n * FLOAT, function() x:logsoftmax():release() end},
    {"layernorm", 2 * n * FLOAT, function() norm(x):release() end},
    {"crossentropy", n * FLOAT + rows * ID, function() cross(x):release() end},
    -- forward reads the logits; backward, which needs the sum over all, reads them again and writes
    {"crossentropy_gradient", 3 * n * FLOAT + 2 * rows * ID, gradient(m, cross, x)},
    {"embedding", 2 * gathered + #words * ID, function() vocabulary[words]:release() end},
  }
  m:copy()
  for _, entry in ipairs(list) do
    m:item(entry[1], function() m:memory(unpack(entry)) end)
  end
end

-- ---- optimisers ---------------------------------------------------------------------------------------------

-- `count` tensors, 1 unless given, each with memory of its own.
local function update(m, name, opt, touched, count)
  local cf, n = m.cf, m.quick and 4096 or 64 * 2 ^ 20
  local function tensors()
    local list = {}
    for k = 1, count or 1 do list[k] = cf.rand(n / (count or 1)) end
    return list
  end
  m:item(name, function()
    local model, grads = m:make(function() return tensors(), tensors() end)
    local state = opt:setup(model)
    m:memory(name, touched * n * FLOAT, function() cf.optim.update(state, model, grads) end)
  end)
end

local function optim(m)
  m:copy()
  update(m, "adam", m.cf.optim.Adam(1e-6), 7) -- parameter and two states both ways, and the gradient
  update(m, "adam_of_128", m.cf.optim.Adam(1e-6), 7, 128)
  update(m, "momentum", m.cf.optim.Momentum(1e-6, 0.9), 5)
  update(m, "descent", m.cf.optim.Descent(1e-6), 3)
end

return {
  {name = "elementwise", devices = 1, run = elementwise},
  {name = "reduce", devices = 1, run = reduce},
  {name = "rows", devices = 1, run = rows_part},
  {name = "optim", devices = 1, run = optim},
}
