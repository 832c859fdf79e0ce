--- gpu.lua's sweep of matrix products: [n, k] x [k, m] in three precisions.

local PRECISIONS = {"float32", "tf32", "bfloat16"}

-- name, n, k, m, and which operands are views of the transposed.
local function shapes(m)
  local list = {}
  for _, n in ipairs(m.quick and {32, 48} or {256, 512, 1024, 2048, 4096, 8192}) do
    list[#list + 1] = {tostring(n), n, n, n}
  end
  local big = m.quick and 32 or 4096
  list[#list + 1] = {big .. "_nt", big, big, big, false, true}
  list[#list + 1] = {big .. "_tn", big, big, big, true, false}
  list[#list + 1] = {big .. "_tt", big, big, big, true, true}
  if m.quick then
    list[#list + 1] = {"4x49x32_nt", 4, 49, 32, false, true}
    return list
  end
  -- layers of the two models, and what takes their gradients
  list[#list + 1] = {"16x512x256_nt", 16, 512, 256, false, true}
  list[#list + 1] = {"64x784x512_nt", 64, 784, 512, false, true}
  list[#list + 1] = {"512x64x784_tn", 512, 64, 784, true, false}
  list[#list + 1] = {"8192x784x512_nt", 8192, 784, 512, false, true}
  list[#list + 1] = {"512x8192x784_tn", 512, 8192, 784, true, false}
  list[#list + 1] = {"8192x1024x4096_nt", 8192, 1024, 4096, false, true}
  list[#list + 1] = {"128x8192x8192_nt", 128, 8192, 8192, false, true}
  return list
end

-- Its operands in a dtype, and the function that multiplies them.
local function product(m, shape, precision)
  local cf = m.cf
  local _, n, k, cols, turn_a, turn_b = unpack(shape, 1, 6)
  local dtype = precision == "bfloat16" and "bfloat16" or "float32"
  local a, b = m:make(function()
    local x = turn_a and cf.rand(k, n, {dtype = dtype}):transpose(1, 2) or cf.rand(n, k, {dtype = dtype})
    local y = turn_b and cf.rand(cols, k, {dtype = dtype}):transpose(1, 2) or cf.rand(k, cols, {dtype = dtype})
    return x, y
  end)
  local mode = precision == "tf32" and "tf32" or "float32"
  return function()
    cf.precision(mode)
    cf.matmul(a, b):release()
  end
end

local function run(m)
  local figure = m.bench.figure
  local seen, best = {}, {} -- in the order measured: {name, precision, TFLOP/s}
  for _, shape in ipairs(shapes(m)) do
    m:item("matmul_" .. shape[1], function()
      local list = {}
      for p, precision in ipairs(PRECISIONS) do list[p] = product(m, shape, precision) end
      local us = m:turns(list)
      for p, precision in ipairs(PRECISIONS) do
        local name = ("matmul_%s_%s"):format(shape[1], precision)
        local speed = 2 * shape[2] * shape[3] * shape[4] / us[p] * 1e-6
        figure(name .. "_tflops", speed, "TFLOP/s")
        seen[#seen + 1] = {name, precision, speed}
        best[precision] = math.max(best[precision] or 0, speed)
      end
    end)
  end
  for _, entry in ipairs(seen) do figure(entry[1] .. "_of_peak", entry[3] / best[entry[2]], "ratio") end
  for _, precision in ipairs(PRECISIONS) do
    if best[precision] then figure(("matmul_peak_%s_tflops"):format(precision), best[precision], "TFLOP/s") end
  end
end

return {{name = "matmul", devices = 1, run = run}}
