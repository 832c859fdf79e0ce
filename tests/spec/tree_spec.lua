local cf   = require "conflux"
local tree = require "conflux.tree"
local ffi  = require "ffi"
require "tests.spec.helper"

local BUFFER, FROZEN = 1, 2

describe("a tree", function()
  it("is walked 1 to n, then by string keys in order of bytes", function()
    local x = {cf.ones(1), {b = cf.ones(1), a = cf.ones(1), B = cf.ones(1)}, w = cf.ones(1), [3] = cf.ones(1)}
    local _, paths = cf.tree.leaves(x)
    assert.same({"1", "2.B", "2.a", "2.b", "3", "w"}, paths)
  end)

  it("may be one tensor", function()
    local x = cf.ones(2)
    local leaves, paths = cf.tree.leaves(x)
    assert.is_true(leaves[1] == x)
    assert.same({""}, paths)
  end)

  it("visits ties once and follows cycles once", function()
    local w = cf.ones(1)
    local x = {w, {w}, again = w}
    x.self = x
    local leaves, paths = cf.tree.leaves(x)
    assert.equal(1, #leaves)
    assert.same({"1"}, paths)
  end)

  it("refuses keys that have no order, naming the place", function()
    assert.refuses(function() cf.tree.leaves {a = {[true] = cf.ones(1)}} end,
      "tree: the table at 'a' has the key true: expected strings, or 1 to n")
    assert.refuses(function() cf.tree.leaves {[1.5] = 1} end, "tree: the table at the top has the key 1.5")
    assert.refuses(function() cf.tree.leaves {[0] = 1} end, "tree: the table at the top has the key 0")
    assert.refuses(function() cf.tree.leaves {1, [3] = 1} end, "tree: the list at the top has a hole before position 3")
  end)
end)

describe("tree.map", function()
  it("keeps structure, metatables, ties and cycles, and shares what is no tensor", function()
    local meta, f = {__index = {}}, function() end
    local w = cf.tensor({1, 2})
    local x = setmetatable({w, name = "x", f = f, inner = {w, 3}}, meta)
    x.inner.up = x
    local y = cf.tree.map(function(t) return t * 2 end, x)
    assert.tensor_equal(y[1], {2, 4})
    assert.is_true(y.inner[1] == y[1])
    assert.equal(y, y.inner.up)
    assert.equal(meta, getmetatable(y))
    assert.equal("x", y.name)
    assert.equal(f, y.f)
    assert.equal(3, y.inner[2])
    assert.tensor_equal(x[1], {1, 2})
  end)

  it("walks other trees beside it, with nil where they have nothing", function()
    local a, b = {cf.tensor(1), w = cf.tensor(2)}, {cf.tensor(10)}
    local sum = cf.tree.map(function(x, y) return y and x + y or x end, a, b)
    assert.equal(11, sum[1]:item())
    assert.equal(2, sum.w:item())
    assert.refuses(function() cf.tree.map(function(x) return x end, a, {{}}) end,
      "tree.map: tree 2: expected a tensor at '1', got a table")
    assert.refuses(function() cf.tree.map(a) end, "tree.map: argument 'f': expected a function")
  end)
end)

describe("parameters", function()
  local model
  before_each(function()
    model = {cf.ones(1), {weight = cf.ones(2), bias = cf.ones(3), steps = cf.zeros(1, {dtype = "int64"})}, cf.ones(4)}
  end)

  it("are float tensors that are no buffers, last first, then frozen ones", function()
    local mean = cf.zeros(5)
    mean._flags = BUFFER
    model[4] = mean
    local _, paths, trainable = tree.parameters(model)
    assert.same({"3", "2.weight", "2.bias", "1"}, paths)
    assert.equal(4, trainable)
    model[3]._flags = FROZEN
    _, paths, trainable = tree.parameters(model)
    assert.same({"2.weight", "2.bias", "1", "3"}, paths)
    assert.equal(3, trainable)
    local _, _, _, others, other_paths = tree.parameters(model)
    assert.same({"2.steps", "4"}, other_paths)
    assert.is_true(others[1] == model[2].steps and others[2] == mean)
  end)

  it("are kept flat until the model changes", function()
    local flat = tree.flatten(model)
    assert.equal(4, flat.n)
    assert.equal(4, flat.trainable)
    assert.is_true(flat.array[0] == ffi.cast("cfx_tensor *", model[3]))
    assert.equal(flat, tree.flatten(model))
    assert.equal(flat, tree.flattened(model))
    assert.same({"1", "2.bias", "2.steps", "2.weight", "3"}, flat.leaf_paths)
    assert.is_nil(tree.flattened {model})

    model[2].bias = cf.ones(3)
    assert.is_nil(tree.flattened(model))
    local second = tree.flatten(model)
    assert.is_false(second == flat)
    assert.is_true(second.tensors[3] == model[2].bias)

    model[2].new = cf.ones(1)
    assert.equal(5, tree.flatten(model).n)
    model[2].new = nil
    assert.equal(4, tree.flatten(model).n)
    model[1]._flags = FROZEN
    assert.equal(3, tree.flatten(model).trainable)
    model[2] = {}
    assert.equal(2, tree.flatten(model).n)
  end)

  it("do not keep their model alive", function()
    local gone = setmetatable({model}, {__mode = "v"})
    model[2].up = model
    tree.flatten(model)
    model = nil -- luacheck: ignore 311
    collectgarbage()
    collectgarbage()
    assert.is_nil(gone[1])
  end)
end)

describe("whole trees", function()
  it("have one norm", function()
    assert.near(5, cf.tree.norm({cf.tensor({3}), {cf.tensor({4})}, n = cf.zeros(1, {dtype = "int64"})}):item(), 1e-6)
    assert.refuses(function() cf.tree.norm({1}) end,
      "tree.norm: argument 'x': expected a tree with float tensors, got one without any")
  end)

  it("change dtype and device as copies, or not at all", function()
    local x = {cf.ones(2), ids = cf.zeros(1, {dtype = "int64"}), {cf.ones(1)}}
    x[1]._flags = FROZEN
    assert.is_true(cf.device()(x) == x)
    assert.is_true(cf.tree.to(x, "float32") == x)
    local y = cf.tree.to(x, "float64")
    assert.equal("float64", y[1].dtype)
    assert.equal("int64", y.ids.dtype)
    assert.equal(FROZEN, y[1]._flags)
    assert.equal("float32", x[1].dtype)
    assert.refuses(function() cf.tree.to(x, "cpu:99") end, "to: argument 'where': device 'cpu:99' does not exist")
  end)
end)
