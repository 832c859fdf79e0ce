local cf = require "conflux"
local on = require "tests.spec.devices".on
require "tests.spec.helper"

local function lines(...)
  return on(table.concat({...}, "\n"))
end

describe("a printed tensor", function()
  it("is rows of aligned values and a line that says what it is", function()
    assert.equal(lines(
      "  1   2  -3",
      " 40  50  60",
      "[2x3 float32, cpu:0]"), tostring(cf.tensor({{1, 2, -3}, {40, 50, 60}})))
    assert.equal(lines(" 0.5000  1.2500", "[2 float64, cpu:0]"), tostring(cf.tensor({0.5, 1.25}, {dtype = "float64"})))
    assert.equal(lines("  1  -2", "[2 int32, cpu:0]"), tostring(cf.tensor({1, -2}, {dtype = "int32"})))
    assert.equal(lines("  true  false", "[2 bool, cpu:0]"), tostring(cf.tensor({true, false})))
    assert.equal(lines(" 255", "[1 uint8, cpu:0]"), tostring(cf.tensor({255}, {dtype = "uint8"})))
    assert.equal(lines(" 0.5000", "[1 bfloat16, cpu:0]"), tostring(cf.tensor({0.5}, {dtype = "bfloat16"})))
    assert.equal(lines(" -9007199254740992", "[1 int64, cpu:0]"), tostring(cf.tensor({-2 ^ 53}, {dtype = "int64"})))
  end)

  it("has one format for all values", function()
    assert.equal(lines(" 1.0000e-06  1.0000e+00", "[2 float32, cpu:0]"), tostring(cf.tensor({1e-6, 1})))
    assert.equal(lines(" 5.0000e-01  2.0000e+10", "[2 float32, cpu:0]"), tostring(cf.tensor({0.5, 2e10})))
    assert.equal(lines("    0.0000  1234.5000", "[2 float32, cpu:0]"), tostring(cf.tensor({0, 1234.5})))
  end)

  it("shows nan and inf", function()
    assert.equal(lines("    nan     inf    -inf  0.5000", "[4 float32, cpu:0]"),
      tostring(cf.tensor({0 / 0, math.huge, -math.huge, 0.5})))
    assert.equal(lines(" nan    1", "[2 float32, cpu:0]"), tostring(cf.tensor({0 / 0, 1})))
  end)

  it("is one line without dimensions, and its last line alone without elements", function()
    assert.equal(on "2.5 [float32, cpu:0]", tostring(cf.tensor(2.5)))
    assert.equal(on "0.1 [float32, cpu:0]", tostring(cf.tensor(0.1)))
    assert.equal(on "0.1 [float64, cpu:0]", tostring(cf.tensor(0.1, {dtype = "float64"})))
    assert.equal(on "7 [int64, cpu:0]", tostring(cf.tensor(7, {dtype = "int64"})))
    assert.equal(on "true [bool, cpu:0]", tostring(cf.tensor(true)))
    assert.equal(on "nan [float32, cpu:0]", tostring(cf.tensor(0 / 0)))
    assert.equal(on "[0x3 float32, cpu:0]", tostring(cf.zeros(0, 3)))
    assert.equal(on "[3x0x2 int32, cpu:0]", tostring(cf.zeros(3, 0, 2, {dtype = "int32"})))
  end)

  it("shows more dimensions matrix by matrix", function()
    assert.equal(lines(
      "(1,.,.) =",
      " 1  2",
      " 3  4",
      "",
      "(2,.,.) =",
      " 5  6",
      " 7  8",
      "[2x2x2 float32, cpu:0]"), tostring(cf.arange(1, 8):reshape(2, 2, 2)))
  end)

  it("leaves out the middle of a large one", function()
    assert.equal(lines(
      "    1     2     3  ...   999  1000  1001",
      "[1001 float32, cpu:0]"), tostring(cf.arange(1, 1001)))
    assert.equal(lines(
      "    1     2",
      "    3     4",
      "    5     6",
      "  ...",
      "  997   998",
      "  999  1000",
      " 1001  1002",
      "[501x2 float32, cpu:0]"), tostring(cf.arange(1, 1002):reshape(501, 2)))
    local text = tostring(cf.zeros(10, 101, 1))
    assert.matches("\n%(3,%.,%.%) =\n.-\n\n%.%.%.\n\n%(8,%.,%.%) =\n", text)
  end)

  it("breaks rows that are too wide into blocks of columns", function()
    local text = tostring(cf.ones(2, 50))
    assert.equal(lines(
      "columns 1 to 27",
      (" 1"):rep(27, " "),
      (" 1"):rep(27, " "),
      "",
      "columns 28 to 50",
      (" 1"):rep(23, " "),
      (" 1"):rep(23, " "),
      "[2x50 float32, cpu:0]"), text)
  end)

  it("has no space at the end of a line, and no line at its end", function()
    for _, shape in ipairs {{3}, {2, 3}, {40, 40}, {2, 3, 4}, {9, 9, 9, 9}, {30, 40, 50}, {5000}, {2000, 2}} do
      local text = tostring(cf.rand(shape))
      assert.is_nil(text:find " \n")
      assert.is_nil(text:find "\n$")
      assert.is_nil(text:find "\n\n\n")
    end
  end)

  it("reads no more than it shows", function()
    local x = cf.zeros(1):expand(100000, 1000)
    assert.matches(on "%[100000x1000 float32, cpu:0%]$", tostring(x))
  end)

  it("shows views as they are seen", function()
    assert.equal(lines(" 1  3", " 2  4", "[2x2 float32, cpu:0]"), tostring(cf.tensor({{1, 2}, {3, 4}}):t()))
  end)
end)

describe("cf.show", function()
  local program = require "tests.spec.program"
  local cases = {
    "1", "'a', nil, true, 0.1", "", "nil", "{1, 'b', x = {y = {z = {}}}}", "cf.ones(2, 3)", "cf.ones(2, 3).shape",
    "{cf.ones(2), lr = 0.1}", "1, {2, 3}, cf.ones(2)", "cf.nn.Dense(2, 3)", "cf.optim.Adam(0.1)", "print == nil, {{}}",
    "setmetatable({}, {__tostring = function() return 7 end})",
    "cf.gradient(function(w) return (w * w):sum() end, cf.ones(2))",
  }

  it("prints any value as the prompt does #program", function()
    local typed, shown = {}, {}
    for i, case in ipairs(cases) do
      typed[i] = case == "" and "print()" or case
      shown[i] = ("cf.show(%s)"):format(case)
    end
    local pipe = program.file(table.concat(typed, "\n") .. "\n")
    local file = program.file("local cf = require 'conflux'\n" .. table.concat(shown, "\n"))
    local from_prompt, errors = program.run("--devices cpu -i <" .. pipe)
    assert.equal("", errors)
    assert.same({from_prompt, "", 0}, {program.run("--devices cpu " .. file)})
    assert.matches("\n{2, 3}\n", from_prompt, 1, true)
    program.clean()
  end)

  it("refuses a text that is none at the line that shows it", function()
    local object = setmetatable({}, {__tostring = function() return {} end})
    local message = "show: expected a string from the __tostring of a table, got table"
    assert.refuses(function() cf.show(object) end, message)
    assert.refuses(function() cf.show({object}) end, message)
  end)
end)
