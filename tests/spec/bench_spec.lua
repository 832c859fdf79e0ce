-- The benchmarks, in their quick mode: each prints the figures that it promises.  No time is asserted.
local program = require "tests.spec.program"

-- What a benchmark wrote, and its figures: name -> {value, unit}.
local function run(arguments)
  local out, err = program.run("scripts/bench/" .. arguments)
  local text, figures = out .. err, {}
  for name, value, unit in text:gmatch "figure (%S+) (%S+) (%S+)" do
    figures[name] = {tonumber(value), unit}
  end
  return text, figures
end

-- Each name is there with its unit and a number above 0.
local function assert_figures(expected, figures, text)
  for name, unit in pairs(expected) do
    local figure = figures[name]
    assert.is_truthy(figure, ("no figure %s in:\n%s"):format(name, text))
    assert.equal(unit, figure[2], name)
    assert.is_true(figure[1] > 0, name)
  end
end

describe("benchmarks #program", function()
  for _, name in ipairs {"mlp", "dispatch", "allreduce", "memory"} do
    it(name .. " says what it measures", function()
      local text = run(name .. ".lua --help")
      assert.truthy(text:find(name .. ".lua [--quick]", 1, true), text)
    end)
  end

  it("mlp shows each step beside its floor", function()
    local text, figures = run "mlp.lua --quick"
    local expected = {}
    for _, prefix in ipairs {"mlp16_1dev_", "mlp16_2dev_", "mlp64_1dev_", "mlp64_2dev_"} do
      expected[prefix .. "us"], expected[prefix .. "floor_us"] = "us", "us"
      expected[prefix .. "over_floor"] = "ratio"
    end
    assert_figures(expected, figures, text)
  end)

  it("dispatch shows an operation with and without the compiler", function()
    local text, figures = run "dispatch.lua --quick"
    assert_figures({dispatch_us = "us", dispatch_nojit_us = "us", dispatch_floor_us = "us",
      dispatch_over_floor = "ratio"}, figures, text)
  end)

  it("allreduce shows each size beside its limit", function()
    local text, figures = run "allreduce.lua --quick"
    local expected = {}
    for _, size in ipairs {"4B", "4KiB", "64KiB", "1MiB", "4MiB"} do
      local prefix = "allreduce_" .. size
      expected[prefix .. "_us"], expected[prefix .. "_limit_us"] = "us", "us"
      expected[prefix .. "_of_limit"], expected[prefix .. "_gb_per_s"] = "ratio", "GB/s"
    end
    assert_figures(expected, figures, text)
  end)

  it("memory shows what a run adds", function()
    local text, figures = run "memory.lua --quick"
    assert.is_truthy(figures.memory_growth_bytes, text)
    assert.equal("B", figures.memory_growth_bytes[2])
    assert.is_truthy(figures.memory_pool_growth_bytes, text)
    assert_figures({memory_peak_bytes = "B"}, figures, text)
  end)
end)
