-- Where errors point, beyond what the other specs see in passing.
local cf    = require "conflux"
local check = require "conflux.check"
local core  = require "conflux.core"
require "tests.spec.helper"
local on = require "tests.spec.devices".on

local function here()
  return debug.getinfo(2, "l").currentline
end

local function line_of(f)
  local _, message = pcall(f)
  return tonumber(message:match "^[^\n]-_spec%.lua:(%d+): "), message
end

describe("an error", function()
  it("is blamed on the line that called Conflux", function()
    local line
    assert.equal(here() + 2, (line_of(function()
      line = here()
      cf.ones(2, 2):matmul(cf.ones(3))
    end)))
    assert.is_number(line)
  end)

  it("is blamed on that line through functions of Conflux and of C", function()
    local x = {cf.ones(1)}
    assert.equal(here() + 1, (line_of(function()
      cf.tree.map(function(t) return t + 1 end, x, {"no tensor"})
    end)))
    local _, message = pcall(cf.zeros, -1)
    assert.matches(("_spec%%.lua:%d: conflux%%.zeros: "):format(here() - 1), message)
  end)

  it("is blamed on the user's function that Conflux calls", function()
    local x = {cf.ones(1)}
    assert.equal(here() + 2, (line_of(function()
      cf.tree.map(function(t)
        local y = t:reshape(2)
        return y
      end, x)
    end)))
  end)

  it("has no position of its own in a coroutine that holds no frame but Conflux's", function()
    local co = coroutine.create(cf.zeros)
    local ok, message = coroutine.resume(co, -1)
    assert.is_false(ok)
    assert.matches("^conflux%.zeros: ", message)
  end)

  it("describes what came", function()
    local describe_value = check.describe
    assert.equal(on "[2, 3] (int32, cpu:0)", describe_value(cf.zeros(2, 3, {dtype = "int32"})))
    assert.equal(on "[] (float32, cpu:0)", describe_value(cf.tensor(1)))
    assert.equal("nil", describe_value(nil))
    assert.equal("1.5", describe_value(1.5))
    assert.equal("'x'", describe_value "x")
    assert.equal("a table", describe_value {})
    assert.equal("a function", describe_value(print))
    assert.equal(on "the device cpu:0", describe_value(cf.device()))
    assert.equal("a int64_t", describe_value(5LL))
  end)

  it("names the argument of an operator", function()
    local x = cf.ones(2)
    assert.refuses(function() local _ = x + nil end, "add: argument 'b': expected a tensor or a number, got nil")
    assert.refuses(function() local _ = {} * x end, "mul: argument 'a': expected a tensor or a number, got a table")
    assert.refuses(function() local _ = x / "2" end, "div: argument 'b': expected a tensor or a number, got '2'")
    assert.refuses(function() local _ = x ^ true end, "pow: argument 'b': expected a tensor or a number, got true")
    assert.refuses(function() local _ = x - cf.ones(3) end,
      on "sub: argument 'b': expected a shape that broadcasts with a [2] (float32, cpu:0), got [3] (float32, cpu:0)")
    assert.refuses(function() cf.maximum(1, 2) end, "maximum: argument 'a': expected a tensor, got 1")
    assert.refuses(function() cf.exp(1) end, "exp: argument 'x': expected a tensor, got 1")
    assert.refuses(function() x.sum({}) end, "sum: argument 'x': expected a tensor, got a table")
  end)

  it("leaves everything as it was", function()
    local x = cf.tensor({1, 2})
    pcall(x.add_, x, cf.ones(3))
    pcall(function() x[1] = cf.ones(2) end)
    assert.tensor_equal(x, {1, 2})
  end)
end)

describe("checks", function()
  it("refuse fractions, NaN and what is out of range where integers are due", function()
    assert.equal(3, check.integer("f", "n", 3))
    assert.refuses(function() check.integer("f", "n", 2.5) end, "f: argument 'n': expected an integer, got 2.5")
    assert.refuses(function() check.integer("f", "n", 0 / 0) end, "f: argument 'n': expected an integer, got nan")
    assert.refuses(function() check.integer("f", "n", math.huge) end, "f: argument 'n': expected an integer, got inf")
    assert.refuses(function() check.integer("f", "n", -1, 0) end, "f: argument 'n': expected an integer of at least 0")
    assert.refuses(function() check.integer("f", "n", 5, 1, 4) end, "f: argument 'n': expected an integer from 1 to 4")
  end)

  it("find devices", function()
    assert.same(cf.devices(), check.devices("f", "devices", nil))
    assert.is_true(check.devices("f", "devices", {"cpu"})[1] == cf.device "cpu:0")
    assert.equal(1, check.position(cf.devices(), cf.devices()[1].name))
    assert.is_nil(check.position(cf.devices(), "nowhere"))
    assert.is_nil(check.position(cf.devices(), 1))
    assert.refuses(function() check.devices("f", "devices", {}) end,
      "f: argument 'devices': expected at least one device, got none")
    assert.refuses(function() check.devices("f", "devices", {1}) end, "f: argument 'devices[1]': expected a device")
  end)
end)

describe("an interrupt", function()
  it("stops the next call, once", function()
    local x = cf.ones(2)
    core.C.cfx_interrupt(core.context())
    local _, message = line_of(function() local _ = x + 1 end)
    assert.matches("_spec%.lua:%d+: interrupted!$", message)
    assert.tensor_equal(x + 1, {2, 2})
  end)
end)

describe("out of memory", function()
  it("is raised only after a collection and a second try", function()
    local calls, OUT_OF_MEMORY = 0, 2
    assert.equal(0, core.settle(OUT_OF_MEMORY, function(x)
      calls = calls + x
      return 0
    end, 1))
    assert.equal(1, calls)
    local _, message = pcall(cf.zeros, 2 ^ 20, 2 ^ 20)
    assert.matches("_spec%.lua:%d+: conflux: out of memory: 4398046511104 bytes", message)
  end)
end)
