-- Numbers that Lua and Python compute alike, so that a fixture holds results only: tests/record/formula.py is the same.
local cf = require "conflux"
local ffi = require "ffi"

local formula = {}

--- Scattered multiples of 2^-bits in [-2^(15 - bits), 2^(15 - bits)], in row-major order: exact in float32.
function formula.values(shape, seed, bits)
  local count = 1
  for d = 1, #shape do count = count * shape[d] end
  local numbers, step = ffi.new("double[?]", math.max(count, 1)), 2 ^ -(bits or 15)
  for i = 0, count - 1 do
    local a = (i * 12345 + seed * 7919 + 1) % 65521
    numbers[i] = ((a * a + i) % 65537 - 32768) * step
  end
  return cf.from(numbers, shape)
end

return formula
