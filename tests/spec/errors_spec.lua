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
    assert.equal("an int64_t", describe_value(5LL))
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

describe("a list with a hole", function()
  it("is refused wherever a list is taken, with the place of the hole", function()
    local x = cf.ones(3, 3)
    local function refuses(text, f, ...)
      local arguments, n = {...}, select("#", ...)
      assert.refuses(function() f(unpack(arguments, 1, n)) end, text)
    end
    -- built so that their length is what comes before the hole, whatever Lua says of {1, nil, 3}
    local function holed(a, c)
      local t = {}
      t[1], t[3] = a, c
      return t
    end
    local hole = "expected a list without holes, got nothing at position 2, before 3"
    refuses("tensor: argument 'v': " .. hole, cf.tensor, holed(1, 3))
    refuses("tensor: argument 'v': " .. hole, cf.tensor, holed({1}, {3}))
    refuses("tensor: argument 'v[2]': " .. hole, cf.tensor, {{1}, holed(1, 3)})
    refuses("zeros: argument 'shape': " .. hole, cf.zeros, holed(1, 3))
    refuses("reshape: argument 'shape': " .. hole, cf.reshape, x, holed(9, 1))
    refuses("from: argument 'shape': " .. hole, cf.from, ("x"):rep(12), holed(1, 3))
    refuses("zeros: argument 'shape': " .. hole, cf.nn.init.zeros, holed(1, 3))
    refuses("sum: argument 'dims': " .. hole, cf.sum, x, holed(1, 3))
    refuses("permute: argument 'dims': " .. hole, cf.permute, x, holed(1, 2))
    refuses("concat: argument 'list': " .. hole, cf.concat, holed(x, x))
    refuses("stack: argument 'list': " .. hole, cf.stack, holed(x, x))
    refuses("split: argument 'size': " .. hole, cf.split, x, holed(3, 1))
    refuses("pad: argument 'widths': " .. hole, cf.pad, x, holed(1, 1))
    refuses("index: argument 'key': " .. hole, function() return x[holed(1, 3)] end)
    refuses("index: argument '1': " .. hole, function() return x[{holed(1, 2)}] end)
    refuses("withdevices: argument 'devices': " .. hole, cf.withdevices, function() end, holed("cpu", "cpu"))
    refuses("allreduce: argument 'list': " .. hole, cf.allreduce, "sum", holed(x, x))
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
