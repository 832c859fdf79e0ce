local cf  = require "conflux"
local ffi = require "ffi"
require "tests.spec.helper"
local on = require "tests.spec.devices".on

describe("cf.tensor", function()
  it("makes float32 of numbers and bool of booleans", function()
    assert.equal("float32", cf.tensor({1, 2}).dtype)
    assert.equal("bool", cf.tensor({true, false}).dtype)
    assert.equal("float32", cf.tensor(3).dtype)
    assert.equal("bool", cf.tensor(false).dtype)
  end)

  it("takes its shape from the nesting", function()
    assert.same({2, 3}, cf.tensor({{1, 2, 3}, {4, 5, 6}}).shape)
    assert.same({1, 1, 2}, cf.tensor({{{1, 2}}}).shape)
    assert.same({}, cf.tensor(7).shape)
    assert.same({0}, cf.tensor({}).shape)
    assert.same({2, 0}, cf.tensor({{}, {}}).shape)
  end)

  it("gives back what it got", function()
    local v = {{1, -2.5, 3}, {4, 5, 1e30}}
    for _, dtype in ipairs {"float32", "float64"} do
      assert.tensor_near(cf.tensor(v, {dtype = dtype}), v)
    end
    assert.same({{1, -2.5}, {4, 0.25}}, cf.tensor({{1, -2.5}, {4, 0.25}}, {dtype = "float16"}):totable())
    assert.same({1, -2.5, 2 ^ 100}, cf.tensor({1, -2.5, 2 ^ 100}, {dtype = "bfloat16"}):totable())
    assert.same({0, 255}, cf.tensor({0, 255}, {dtype = "uint8"}):totable())
    assert.same({-2 ^ 31, 2 ^ 31 - 1}, cf.tensor({-2 ^ 31, 2 ^ 31 - 1}, {dtype = "int32"}):totable())
    assert.same({-2 ^ 53, 2 ^ 53}, cf.tensor({-2 ^ 53, 2 ^ 53}, {dtype = "int64"}):totable())
    assert.same({{true}, {false}}, cf.tensor({{true}, {false}}):totable())
    assert.same({true, false}, cf.tensor({3, 0}, {dtype = "bool"}):totable())
    assert.same({1, 0}, cf.tensor({true, false}, {dtype = "float32"}):totable())
  end)

  it("refuses ragged lists and names the position", function()
    assert.refuses(function() cf.tensor({{1, 2}, {3}}) end,
      "tensor: argument 'v': ragged: expected 2 elements at [2], got 1")
    assert.refuses(function() cf.tensor({{1, 2}, {3, {4}}}) end,
      "tensor: argument 'v': ragged or mixed: expected a number at [2][2], got a table")
    assert.refuses(function() cf.tensor({{1, 2}, 3}) end,
      "tensor: argument 'v': ragged: expected a list at [2], got 3")
    assert.refuses(function() cf.tensor({1, true}) end,
      "tensor: argument 'v': ragged or mixed: expected a number at [2], got true")
  end)

  it("refuses values that the dtype cannot hold", function()
    assert.refuses(function() cf.tensor({1, 1.5}, {dtype = "int32"}) end,
      "tensor: argument 'v[2]': expected a value of int32, got 1.5")
    assert.refuses(function() cf.tensor({256}, {dtype = "uint8"}) end,
      "tensor: argument 'v[1]': expected a value of uint8, got 256")
    assert.refuses(function() cf.tensor(0 / 0, {dtype = "int64"}) end,
      "tensor: argument 'v': expected a value of int64, got nan")
  end)

  it("refuses what is no number", function()
    assert.refuses(function() cf.tensor("1") end, "tensor: argument 'v': expected a number")
    assert.refuses(function() cf.tensor({cf.ones(1)}) end,
      on "tensor: argument 'v': expected a number, a boolean, or nested lists of them, got a list of "
      .. on "[1] (float32, cpu:0) (see cf.stack)")
    assert.refuses(function() cf.tensor({a = 1}) end, "tensor: argument 'v': expected a list")
  end)
end)

describe("constructors", function()
  it("take sizes one by one or as a list, then options", function()
    assert.same({2, 3}, cf.zeros(2, 3).shape)
    assert.same({2, 3}, cf.zeros({2, 3}).shape)
    assert.same({2, 3}, cf.zeros({2, 3}, {dtype = "int64"}).shape)
    assert.same({}, cf.zeros().shape)
    assert.same({}, cf.zeros({}).shape)
    assert.equal("float64", cf.ones(4, {dtype = "float64"}).dtype)
    assert.equal("int32", cf.ones({dtype = "int32"}).dtype)
    assert.same({1, 2, 1, 2, 1, 2, 1, 2}, cf.zeros(1, 2, 1, 2, 1, 2, 1, 2).shape)
  end)

  it("fill", function()
    assert.tensor_equal(cf.zeros(2), {0, 0})
    assert.tensor_equal(cf.ones(1, 2), {{1, 1}})
    assert.tensor_equal(cf.full(2.5, 2), {2.5, 2.5})
    assert.tensor_equal(cf.full(true, 2), {true, true})
    assert.tensor_equal(cf.full(7, 2, {dtype = "int64"}), cf.tensor({7, 7}, {dtype = "int64"}))
  end)

  it("refuse sizes that are none", function()
    assert.refuses(function() cf.zeros(2.5) end, "zeros: argument 'shape': expected sizes of 0 or more, got 2.5")
    assert.refuses(function() cf.zeros(2, -1) end,
      "zeros: argument 'shape': expected sizes of 0 or more, got -1 at position 2")
    assert.refuses(function() cf.zeros({2, "3"}) end, "zeros: argument 'shape': expected sizes of 0 or more, got '3'")
    assert.refuses(function() cf.zeros(0 / 0) end, "zeros: argument 'shape': expected sizes of 0 or more, got nan")
    assert.refuses(function() cf.zeros(2, nil, 3) end, "zeros: argument '2': expected a size, got nil")
    assert.refuses(function() cf.zeros("2") end, "zeros: argument '1': expected a size, got '2'")
    assert.refuses(function() cf.zeros(1, 1, 1, 1, 1, 1, 1, 1, 1) end, "zeros: expected at most 8 sizes")
    assert.refuses(function() cf.zeros(2 ^ 40, 2 ^ 40) end,
      "full: a float32 of [1099511627776, 1099511627776] would have more than 2^63 bytes")
  end)

  it("refuse unknown options and list the known ones", function()
    assert.refuses(function() cf.zeros(2, {dtpye = "int64"}) end,
      "zeros: unknown option 'dtpye': known are device, dtype")
    assert.refuses(function() cf.zeros(2, {dtype = "int63"}) end,
      "zeros: argument 'dtype': expected one of bool, uint8, int32, int64, float16, bfloat16, float32, float64, "
      .. "got 'int63'")
    assert.refuses(function() cf.zeros(2, {device = "gpu"}) end, "zeros: argument 'device': device 'gpu'")
    assert.refuses(function() cf.full(1.5, 2, {dtype = "int32"}) end,
      "full: argument 'v': expected a value of int32, got 1.5")
  end)
end)

describe("sequences", function()
  it("include both ends", function()
    assert.tensor_equal(cf.arange(1, 4), cf.tensor({1, 2, 3, 4}))
    assert.tensor_equal(cf.arange(0, 1, 0.25), {0, 0.25, 0.5, 0.75, 1})
    assert.equal(11, #cf.arange(0, 1, 0.1))
    assert.equal(1001, #cf.arange(0, 1, 0.001))
    assert.tensor_equal(cf.arange(3, 1, -1), {3, 2, 1})
    assert.tensor_equal(cf.arange(1, 4, 2), {1, 3})
    assert.tensor_equal(cf.arange(2, 2), {2})
    assert.same({0}, cf.arange(2, 1).shape)
    assert.tensor_equal(cf.arange(0, 2, {dtype = "int64"}), cf.tensor({0, 1, 2}, {dtype = "int64"}))
    assert.tensor_near(cf.linspace(0, 1, 5), {0, 0.25, 0.5, 0.75, 1})
    local x = cf.linspace(-1, 0.3, 7, {dtype = "float64"})
    assert.equal(0.3, x[7]:item())
    assert.tensor_equal(cf.linspace(3, 4, 1), {3})
  end)

  it("refuse what leads nowhere", function()
    assert.refuses(function() cf.arange(0, 1, 0) end, "arange: argument 'step': expected a step that leads from a to b")
    assert.refuses(function() cf.arange(0, math.huge) end, "arange: argument 'step'")
    assert.refuses(function() cf.arange(1) end, "arange: argument 'b': expected a number, got nil")
    assert.refuses(function() cf.arange(0, 1, 0.5, {dtype = "int32"}) end, "arange: argument 'step': expected a value")
  end)

  it("make identities and one-hot rows", function()
    assert.tensor_equal(cf.eye(2), {{1, 0}, {0, 1}})
    assert.tensor_equal(cf.eye(2, 3), {{1, 0, 0}, {0, 1, 0}})
    assert.tensor_equal(cf.eye(2, {dtype = "int32"}), cf.tensor({{1, 0}, {0, 1}}, {dtype = "int32"}))
    local ids = cf.tensor({0, 2}, {dtype = "int64"})
    assert.tensor_equal(cf.onehot(ids, 3), cf.tensor({{1, 0, 0}, {0, 0, 1}}))
    assert.equal("int32", cf.onehot(ids, 3, {dtype = "int32"}).dtype)
    assert.refuses(function() cf.onehot(cf.ones(2), 3) end, "onehot: argument 'ids': expected integers, got float32")
  end)
end)

describe("random numbers", function()
  before_each(function() cf.seed(42) end)

  it("follow the seed", function()
    local a, b = cf.rand(100), cf.randn(100)
    cf.seed(42)
    assert.tensor_equal(cf.rand(100), a)
    assert.tensor_equal(cf.randn(100), b)
    cf.seed(43)
    assert.is_false(cf.rand(100):eq(a):all():item())
  end)

  it("go on where a saved state was", function()
    cf.rand(7)
    local state = cf.rng()
    local a = cf.rand(5)
    cf.rng(state)
    assert.tensor_equal(cf.rand(5), a)
    assert.refuses(function() cf.rng({{seed = -1, position = 0}}) end,
      "rng: argument 'state[1].seed': expected an integer")
  end)

  it("keep a seed of 64 bits", function()
    cf.seed("18446744073709551615")
    assert.equal("18446744073709551615", cf.rng()[1].seed)
    cf.seed(7)
    assert.equal(7, cf.rng()[1].seed)
    assert.refuses(function() cf.seed(-1) end, "seed: argument 'n': expected an integer from 0 to")
    assert.refuses(function() cf.seed(1.5) end, "seed: argument 'n': expected an integer")
  end)

  it("have the distributions that their names say", function()
    local u = cf.rand(10000)
    assert.is_true(u:min():item() >= 0 and u:max():item() < 1)
    assert.near(0.5, u:mean():item(), 0.02)
    local n = cf.randn(10000)
    assert.near(0, n:mean():item(), 0.05)
    assert.near(1, n:std():item(), 0.05)
    local d = cf.randint(1, 6, 1000)
    assert.equal("int64", d.dtype)
    assert.equal(1, d:min():item())
    assert.equal(6, d:max():item())
    assert.tensor_equal(cf.randperm(50):sort(), cf.arange(0, 49, {dtype = "int64"}))
    assert.same({0}, cf.randperm(0).shape)
  end)

  it("are refused in dtypes that have none", function()
    assert.refuses(function() cf.rand(2, {dtype = "int32"}) end,
      "rand: argument 'dtype': expected a float dtype, got int32")
    assert.refuses(function() cf.randint(6, 1, 2) end, "randint: argument 'hi': expected an integer from 6 to")
    assert.refuses(function() cf.randint(0, 300, 2, {dtype = "uint8"}) end,
      "randint: argument 'hi': expected a value of uint8, got 300")
  end)
end)

describe("cf.from", function()
  it("copies from a pointer or an array", function()
    local array = ffi.new("float[6]", 1, 2, 3, 4, 5, 6)
    local x = cf.from(array, {2, 3})
    array[0] = 9
    assert.tensor_equal(x, cf.tensor({{1, 2, 3}, {4, 5, 6}}))
    assert.tensor_equal(cf.from(ffi.cast("float *", array), {2}), cf.tensor({9, 2}))
    assert.tensor_equal(cf.from(ffi.cast("const float *", array), {1}), {9})
    assert.tensor_equal(cf.from(ffi.new("int64_t[2]", 3, 4), {2}), cf.tensor({3, 4}, {dtype = "int64"}))
    assert.tensor_equal(cf.from(ffi.new("uint8_t[?]", 2, 3), {2}), cf.tensor({3, 3}, {dtype = "uint8"}))
    assert.tensor_equal(cf.from(ffi.new("bool[2]", true, false), {2}), {true, false})
    assert.tensor_equal(cf.from("\1\2\3", {3}, {dtype = "uint8"}), {1, 2, 3})
    assert.tensor_equal(cf.from(ffi.cast("void *", array), {2}, {dtype = "float32"}), {9, 2})
  end)

  it("refuses what it cannot read or what is too short", function()
    assert.refuses(function() cf.from({1, 2}, {2}) end, "from: argument 'pointer': expected an FFI pointer")
    assert.refuses(function() cf.from(ffi.new "float[2]", {3}) end,
      "from: argument 'pointer': expected 12 bytes for shape [3], got 8")
    assert.refuses(function() cf.from("123", {2}, {dtype = "uint8"}) end,
      "from: argument 'pointer': expected 2 bytes for shape [2], got 3")
    assert.refuses(function() cf.from(ffi.cast("float *", nil), {2}) end,
      "from: argument 'pointer': expected an address, got NULL")
    assert.refuses(function() cf.from(ffi.new "float[2]", {2}, {dtype = "int32"}) end,
      "from: argument 'dtype': expected float32, got int32")
    assert.refuses(function() cf.from("12", {2}) end, "from: option 'dtype': it has to be given for a string")
    assert.refuses(function() cf.from(ffi.new "float[2]", {-1}) end,
      "from: argument 'shape': expected sizes of 0 or more, got -1 at position 1")
  end)
end)
