--- gpu.lua's training steps: forward, loss, backward, all-reduce, Adam.

local PRECISIONS = {"float32", "tf32"}

-- The model of a case in other sizes.
local function vary(case, changes)
  return setmetatable(changes, {__index = case})
end

local function cases(m)
  local known = m.bench.cases
  if m.quick then -- a GPU that is emulated takes a second for a step of theirs
    return {
      {"mlp16", vary(known.mlp16, {sizes = {1, 8, 8, 1}, batch = 4})},
      {"mlp64", vary(known.mlp64, {sizes = {784, 8, 10}, batch = 4})},
    }
  end
  return {
    {"mlp16", known.mlp16},
    {"mlp64", known.mlp64},
    {"mlp1024", vary(known.mlp64, {batch = 1024})},
    {"mlp8192", vary(known.mlp64, {batch = 8192})},
  }
end

-- Floating-point operations in a step's matrix products, on all devices.
local function operations(case, devices)
  local n = 0
  for l = 1, #case.sizes - 1 do
    n = n + 2 * case.sizes[l] * case.sizes[l + 1] * (l > 1 and 3 or 2) -- the first layer's input has no gradient
  end
  return n * case.batch * devices
end

-- The floor: what a step cannot do without, called without a tape on tensors that are there already.
local function bare(m, case)
  local cf, sizes, batch = m.cf, case.sizes, case.batch
  local layers = {}
  for l = 1, #sizes - 1 do
    layers[l] = cf.nn.Dense(sizes[l], sizes[l + 1], l < #sizes - 1 and case.act or nil)
  end
  local models = cf.replicate(cf.nn.Chain(unpack(layers)))
  local opt = cf.optim.Adam(0)
  local states, inputs, changes, turned, grads = cf.withdevices(function(i)
    local x, dy, dyt = {}, {}, {}
    for l = 1, #layers do
      x[l], dy[l] = cf.rand(batch, sizes[l]), cf.rand(batch, sizes[l + 1])
      dyt[l] = dy[l]:transpose(1, 2)
    end
    local xs, ys = case.samples(cf, batch)
    local _, g = cf.withgradient(function(model) return case.loss(cf.nn, model, xs, ys) end, models[i])
    return opt:setup(models[i]), x, dy, dyt, g
  end)
  return function()
    for i = 1, #models do
      for l = 1, #layers do models[i][l](inputs[i][l]):release() end
      for l = #layers, 1, -1 do
        cf.matmul(turned[i][l], inputs[i][l]):release()
        if l > 1 then cf.matmul(changes[i][l], models[i][l].weight):release() end
      end
    end
    if #models > 1 then cf.allreduce("avg", grads) end
    for i = 1, #models do cf.optim.update(states[i], models[i], grads[i]) end
  end
end

local function measure_case(m, name, case, precision)
  local cf, figure = m.cf, m.bench.figure
  cf.precision(precision)
  local step = m.bench.trainer(cf, case)
  local function read()
    local losses = step()
    for i = 1, #losses do
      local loss = losses[i]:item()
      if loss ~= loss then error("the loss is not a number", 0) end
    end
  end
  read()
  local us = m:turns {step, read, bare(m, case)}
  local prefix = ("%s_%ddev_%s_"):format(name, m.count, precision)
  figure(prefix .. "us", us[1], "us")
  figure(prefix .. "read_us", us[2], "us")
  figure(prefix .. "floor_us", us[3], "us")
  figure(prefix .. "over_floor", us[1] / us[3], "ratio")
  figure(prefix .. "tflops", operations(case, m.count) / us[1] * 1e-6, "TFLOP/s")
end

local function run(m)
  for _, pair in ipairs(cases(m)) do
    for _, precision in ipairs(PRECISIONS) do
      m:item(("%s_%ddev_%s"):format(pair[1], m.count, precision), function()
        measure_case(m, pair[1], pair[2], precision)
      end)
    end
  end
end

return {{name = "mlp", devices = 1, run = run}, {name = "mlp2", devices = 2, run = run}}
