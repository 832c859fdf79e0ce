--- Results that may differ on a real GPU, and do not on a pretended one, each beside the CPU or plain arithmetic.
--
--     build/bin/conflux tests/gpu/checks.lua [DEVICE [--quick]]      default: cuda:0; --quick: small ones
--
-- A line a check, "ok NAME" or "FAILED NAME: WHY", and at last "N passed, N failed"; the exit status is 1 if any
-- failed.
local cf = require "conflux"
local convolutions = require "tests.spec.convolutions"
local nn = cf.nn

local device, is_quick = arg[1] or "cuda:0", arg[2] == "--quick"
cf.devices(device)
local NAN = 0 / 0

local passed, failed = 0, 0
local function check(name, f)
  local ok, why = pcall(f) -- a check that cannot be made here returns why
  collectgarbage() -- the check's tensors are large
  if not ok then failed = failed + 1 elseif not why then passed = passed + 1 end
  print(("%s %s%s%s"):format(not ok and "FAILED" or why and "left out" or "ok", name, why and ": " or "",
    why and tostring(why) or ""))
  io.flush()
end

-- The largest |a - b|, in parts of the largest |b|; NaN if either has one where the other has a number.
local function distance(a, b)
  a, b = a:to "cpu:0":to "float64", b:to "cpu:0":to "float64"
  local size = math.max(b:abs():max():item(), 1e-30)
  return (a - b):abs():max():item() / size
end

local function near(got, expected, tolerance, what)
  local d = distance(got, expected)
  if d ~= d or d > tolerance then
    error(("%s: off by %.3g of the largest value, expected at most %.3g"):format(what or "the result", d, tolerance), 0)
  end
end

local TOLERANCE = {float64 = 1e-12, float32 = 1e-5, bfloat16 = 1e-2, float16 = 2e-3}

-- f on the device and on the CPU, over tensors that begin on the CPU.
local function beside(f, inputs, tolerance, what)
  local there = {}
  for i = 1, #inputs do there[i] = inputs[i]:to(device) end
  near(f(unpack(there)), f(unpack(inputs)), tolerance, what)
end

-- ---- numbers that are none ----------------------------------------------------------------------------------

for _, act in ipairs {"relu", "tanh", "gelu"} do
  check("a NaN goes through a dense layer with " .. act, function()
    for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
      local layer = cf.tree.to(cf.tree.to(nn.Dense(64, 64, act), device), dtype)
      local x = cf.zeros(64, 64)
      x[3][5] = NAN
      local y = layer(x:to(device):to(dtype)):to "cpu:0":to "float32"
      local bad = y:ne(y):to "int64":sum(2)
      assert(bad[3]:item() == 64, dtype .. ": the row of a NaN has " .. bad[3]:item() .. " of 64")
      assert(bad:sum():item() == 64, dtype .. ": other rows have NaNs")
    end
  end)
end

-- ---- products -----------------------------------------------------------------------------------------------

check("a bias may begin anywhere", function()
  for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
    for from = 1, is_quick and 2 or 9 do
      local layer = nn.Dense(48, 64, "relu")
      local bias = cf.rand(73)[{{from, from + 63}}]
      local here, there = cf.tree.to(layer, dtype), cf.tree.to(cf.tree.to(layer, device), dtype)
      here.bias, there.bias = bias:to(dtype), cf.rand(73):to(device):to(dtype)[{{from, from + 63}}]
      there.bias:copy_(here.bias:to(device))
      local x = cf.rand(32, 48):to(dtype)
      near(there(x:to(device)), here(x), 2 * TOLERANCE[dtype], dtype .. " from " .. from)
    end
  end
end)

check("products of every shape, transposed and cut out, are those of the CPU", function()
  local sizes = is_quick and {1, 3, 17} or {1, 2, 3, 7, 8, 17, 64, 129}
  for _, dtype in ipairs {"float32", "float64", "bfloat16", "float16"} do
    for _, n in ipairs(sizes) do
      for _, k in ipairs {1, 5, 64, 130} do
        local m = sizes[(n + k) % #sizes + 1]
        local a, b = cf.randn(n, k):to(dtype), cf.randn(k, m):to(dtype)
        beside(function(x, y) return x:matmul(y) end, {a, b}, 4 * TOLERANCE[dtype],
          ("%s %dx%dx%d"):format(dtype, n, k, m))
        beside(function(x, y) return x:t():contiguous():t():matmul(y:t():contiguous():t()) end, {a, b},
          4 * TOLERANCE[dtype], ("%s %dx%dx%d, both transposed"):format(dtype, n, k, m))
        local wide = cf.randn(n + 1, k + 3):to(dtype)
        beside(function(x, y) return x[{{2, n + 1}, {3, k + 2}}]:matmul(y) end, {wide, b}, 4 * TOLERANCE[dtype],
          ("%s %dx%dx%d, cut out"):format(dtype, n, k, m))
      end
    end
  end
end)

check("a long bfloat16 sum is added in float32", function()
  local k = is_quick and 2048 or 65536
  local a, b = cf.rand(64, k):to "bfloat16", cf.rand(k, 64):to "bfloat16"
  near(a:to(device):matmul(b:to(device)), a:to "float64":matmul(b:to "float64"), 2 ^ -8)
end)

check("an attention block is that of the CPU, gradients too", function()
  local B, T, H, D = 2, 33, 3, 16
  for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
    local x, ws = cf.randn(B, T, H * D):to(dtype), {}
    for k = 1, 3 do ws[k] = (cf.randn(H * D, H * D) / 7):to(dtype) end
    local function gradient(at)
      local m = {ws[1]:to(at), ws[2]:to(at), ws[3]:to(at)}
      return cf.gradient(function(p)
        local function heads(w) return x:to(at):matmul(w):reshape(B, T, H, D):transpose(2, 3) end
        local q, k, v = heads(p[1]), heads(p[2]), heads(p[3])
        local s = (q:matmul(k:transpose(3, 4)) / D ^ 0.5):softmax(4)
        return (s:matmul(v):transpose(2, 3):reshape(B, T, H * D):to "float32" ^ 2):mean()
      end, m)
    end
    local expected, got = gradient "cpu:0", gradient(device)
    for k = 1, 3 do near(got[k], expected[k], dtype == "float32" and 1e-4 or 5e-2, dtype) end
  end
end)

check("a product run again has the same bits", function()
  local k = is_quick and 64 or 4096
  for _, dtype in ipairs {"float32", "bfloat16"} do
    local a, b = cf.randn(333, k):to(dtype):to(device), cf.randn(k, 65):to(dtype):to(device)
    local first = a:matmul(b):to "cpu:0"
    for _ = 1, 5 do
      local again = a:matmul(b):to "cpu:0"
      assert(first:ne(again):to "int64":sum():item() == 0, dtype .. ": bits differ from run to run")
    end
  end
end)

-- ---- convolutions -------------------------------------------------------------------------------------------

-- conv(o): a function of x and w that gives the result, and the gradients by both.
local function conv(o)
  return function(x, w)
    local y
    local _, g = cf.withgradient(function(m)
      y = convolutions.conv(m[1], m[2], o)
      return (y:to "float32" ^ 2):sum()
    end, {x, w})
    return y:detach(), g[1], g[2]
  end
end

local side = is_quick and 6 or 28
for name, case in pairs {
  plain = {{2, side, side, 16}, {32, 3, 3, 16}, {pad = {1, 1, 1, 1}}},
  ["strided, of an odd size"] = {{2, side + 1, side - 1, 3}, {7, 5, 5, 3}, {stride = {2, 2}, pad = {2, 2, 2, 2}}},
  ["padded on one side"] = {{2, side, side, 8}, {8, 3, 3, 8}, {stride = {2, 2}, pad = {0, 1, 0, 1}}},
  ["in groups, dilated"] = {{2, side, side, 12}, {24, 3, 3, 4}, {groups = 3, dilation = {2, 2}}},
  ["of each channel alone"] = {{2, side, side, 12}, {12, 3, 3, 1}, {groups = 12, pad = {1, 1, 1, 1}, act = "relu"}},
} do
  check("a convolution, " .. name .. ", and its gradients, again with the same bits", function()
    for dtype, tolerance in pairs {float32 = 1e-4, float64 = 1e-10, float16 = 1e-2, bfloat16 = 5e-2} do
      local x, w = (cf.rand(case[1]) - 0.5):to(dtype), (cf.rand(case[2]) - 0.5):to(dtype)
      local f = conv(case[3])
      local expected, got = {f(x, w)}, {f(x:to(device), w:to(device))}
      local again = {f(x:to(device), w:to(device))}
      for k = 1, 3 do
        near(got[k], expected[k], tolerance, dtype)
        assert(got[k]:ne(again[k]):to "int64":sum():item() == 0, dtype .. ": bits differ from run to run")
      end
    end
  end)
end

check("a NaN goes through a convolution with relu", function()
  local x, w = cf.zeros(1, 4, 4, 8, {device = device}), cf.ones(8, 1, 1, 8, {device = device})
  x[1][2][3][4] = NAN
  local y = convolutions.conv(x, w, {act = "relu"})
  assert(y:ne(y):to "int64":sum():item() == 8, "it has not come to its own pixel alone")
end)

-- ---- memory -------------------------------------------------------------------------------------------------

check("more than 2^31 elements are counted right", function()
  local n = 2 ^ 31 + 12345
  if cf.memory(device).limit < 12 * n then return "the device has too little memory" end
  local x = cf.full(1, n, {dtype = "uint8", device = device})
  x[-1] = 7
  assert(x:to "int64":sum():item() == n + 6, "the sum is wrong")
end)

check("large copies to the device and back keep every byte, while it works", function()
  local x = cf.arange(1, 5e6)
  local n = is_quick and 32 or 512
  local busy = cf.rand(n, n, {device = device})
  for _ = 1, 4 do
    for _ = 1, 8 do busy = busy:matmul(busy) / n end
    local y = x:to(device)
    x = (y * 1):to "cpu:0"
  end
  near(x, cf.arange(1, 5e6), 0)
end)

check("what was released is used again only when it is free", function()
  local sum = cf.zeros(1, {device = device})
  for i = 1, 200 do
    local t = cf.full(i, 100, {device = device})
    sum:add_(t:sum())
    t:release()
  end
  assert(sum:item() == 200 * 201 / 2 * 100, "the sum is wrong")
end)

-- ---- faults -------------------------------------------------------------------------------------------------

check("an id out of range is an error, and the device goes on", function()
  local ids = cf.tensor({1, 9}, {dtype = "int64", device = device})
  local bad = cf.rand(3, 2, {device = device})[ids]
  local ok, message = pcall(bad.totable, bad)
  assert(not ok and message:find "id 9 at position 2 is outside 0 to 2", tostring(message))
  assert(cf.ones(3, {device = device}):sum():item() == 3, "it does not go on")
end)

print(("%d passed, %d failed"):format(passed, failed))
os.exit(failed == 0 and 0 or 1)
