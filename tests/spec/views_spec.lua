local cf = require "conflux"
require "tests.spec.helper"
local on = require "tests.spec.devices".on

describe("shape", function()
  local x
  before_each(function() x = cf.arange(1, 6):reshape(2, 3) end)

  it("is changed by reshape, which takes sizes or a list and one -1", function()
    assert.tensor_equal(x:reshape(3, 2), {{1, 2}, {3, 4}, {5, 6}})
    assert.same({3, 2}, x:reshape({3, -1}).shape)
    assert.same({6}, x:reshape(-1).shape)
    assert.same({1, 6, 1}, x:reshape(1, -1, 1).shape)
    assert.same({}, cf.ones(1):reshape({}).shape)
    assert.same({}, cf.ones(1):reshape().shape)
    x:reshape(6)[1] = 100
    assert.equal(100, x[{1, 1}]:item()) -- a view
    assert.tensor_equal(x:t():reshape(6), {100, 4, 2, 5, 3, 6}) -- a copy, as no view can show it
    assert.refuses(function() x:reshape(4) end,
      on "reshape: argument 'shape': [4] does not fit the 6 elements of [2, 3] (float32, cpu:0)")
    assert.refuses(function() x:reshape(-1, -1) end, "reshape: argument 'shape'")
    assert.refuses(function() x:reshape(1.5, 4) end, "reshape: argument 'shape': expected sizes of -1 or more, got 1.5")
    assert.refuses(function() x:reshape(6, {dim = 1}) end, "reshape: unknown option 'dim': there are none")
  end)

  it("is changed by transpose, t and permute", function()
    assert.tensor_equal(x:t(), {{1, 4}, {2, 5}, {3, 6}})
    assert.tensor_equal(x:transpose(1, 2), x:t())
    assert.tensor_equal(x:transpose(-1, 1), x:t())
    local y = cf.arange(1, 24):reshape(2, 3, 4)
    assert.same({4, 2, 3}, y:permute(3, 1, 2).shape)
    assert.tensor_equal(y:permute(3, 1, 2)[{2, 1}], {2, 6, 10})
    assert.tensor_equal(y:permute({1, -1, 2}), y:transpose(2, 3))
    assert.refuses(function() y:permute(1, 2) end, "permute: argument 'dims': expected 3 dimensions, got 2")
    assert.refuses(function() y:permute(1, 2, 2) end, "permute: argument 'dims': dimension 2 is named twice")
    assert.refuses(function() y:permute(1, 2, 4) end,
      "permute: argument 'dims': expected a dimension from 1 to 3, or from -1 to -3, got 4")
    assert.refuses(function() y:t() end, "t: argument 'x': expected a tensor of 2 dimensions, got [2, 3, 4]")
    assert.refuses(function() y:transpose(1, 0) end, "transpose: argument 'b': expected a dimension from 1 to 3")
    assert.refuses(function() y:transpose(1) end, "transpose: argument 'b': expected a dimension from 1 to 3")
  end)

  it("gains and loses dimensions of size 1", function()
    assert.same({1, 2, 3}, x:unsqueeze(1).shape)
    assert.same({2, 3, 1}, x:unsqueeze(3).shape)
    assert.same({2, 3, 1}, x:unsqueeze(-1).shape)
    assert.same({2, 1, 3}, x:unsqueeze(2).shape)
    assert.tensor_equal(x:unsqueeze(2):squeeze(2), x)
    assert.same({3}, cf.ones(1, 3, 1):squeeze().shape)
    assert.same({}, cf.ones(1, 1):squeeze().shape)
    assert.tensor_equal(x:t():unsqueeze(2):squeeze(), x:t())
    assert.refuses(function() x:squeeze(1) end, "squeeze: expected dimension 1 to have size 1, got 2")
    assert.refuses(function() x:unsqueeze(4) end, "unsqueeze: argument 'd': expected a dimension from 1 to 3")
  end)

  it("is stretched by expand, which copies nothing, and by tile, which does", function()
    local row = cf.tensor({{1, 2}})
    assert.tensor_equal(row:expand(3, 2), {{1, 2}, {1, 2}, {1, 2}})
    assert.tensor_equal(row:expand(2, -1, -1), {{{1, 2}}, {{1, 2}}})
    assert.refuses(function() row:expand(3, 3) end, on "expand: argument 'shape': a [1, 2] (float32, cpu:0) does not")
    assert.refuses(function() row:expand(3, 2):add_(1) end, "add_: the tensor is expanded")
    assert.tensor_equal(row:tile(2, 2), {{1, 2, 1, 2}, {1, 2, 1, 2}})
    assert.tensor_equal(row:tile({1, 1}), row)
    assert.same({0, 2}, row:tile(0, 1).shape)
    assert.refuses(function() row:tile(2) end, "tile: argument 'counts': expected 2 counts, one per dimension, got 1")
  end)

  it("flips", function()
    assert.tensor_equal(x:flip(1), {{4, 5, 6}, {1, 2, 3}})
    assert.tensor_equal(x:flip(-1), {{3, 2, 1}, {6, 5, 4}})
    assert.tensor_equal(x:flip(), {{6, 5, 4}, {3, 2, 1}})
    assert.tensor_equal(x:flip({1, 2}), x:flip())
    assert.refuses(function() x:flip(3) end, "flip: argument 'dims': expected a dimension from 1 to 2")
  end)

  it("is padded on each side of each dimension", function()
    assert.tensor_equal(cf.ones(1, 2):pad({{1, 0}, {0, 2}}), {{0, 0, 0, 0}, {1, 1, 0, 0}})
    assert.tensor_equal(cf.ones(1):pad({1}, {value = -1}), {-1, 1, -1})
    assert.refuses(function() x:pad({1}) end,
      "pad: argument 'widths': expected a list of 2, {before, after} per dimension, got a list of 1")
    assert.refuses(function() x:pad({{1, -1}, 0}) end,
      "pad: argument 'widths[1]': expected an integer of at least 0, got -1")
    assert.refuses(function() x:pad({{1}, 0}) end,
      "pad: argument 'widths[1]': expected an integer of at least 0, got nil")
  end)

  it("is split into views", function()
    local parts = cf.arange(1, 5):split(2)
    assert.equal(3, #parts)
    assert.tensor_equal(parts[1], {1, 2})
    assert.tensor_equal(parts[3], {5})
    local columns = x:split(1, 2)
    assert.equal(3, #columns)
    columns[2]:fill_(0)
    assert.tensor_equal(x, {{1, 0, 3}, {4, 0, 6}})
    parts = x:split({1, 2}, -1)
    assert.same({2, 1}, parts[1].shape)
    assert.same({2, 2}, parts[2].shape)
    assert.same({}, cf.zeros(0, 2):split(2))
    assert.refuses(function() x:split({1, 1}, 2) end, "split: argument 'size': expected sizes that add up to 3, got 2")
    assert.refuses(function() x:split(0) end, "split: argument 'size': expected an integer of at least 1, got 0")
  end)

  it("comes together by concat and stack", function()
    local a, b = cf.tensor({{1, 2}}), cf.tensor({{3, 4}, {5, 6}})
    assert.tensor_equal(cf.concat({a, b}), {{1, 2}, {3, 4}, {5, 6}})
    assert.tensor_equal(cf.concat({b, b}, 2), {{3, 4, 3, 4}, {5, 6, 5, 6}})
    assert.tensor_equal(cf.concat({b, b}, -1), cf.concat({b, b}, 2))
    assert.tensor_equal(cf.stack({a, a}), {{{1, 2}}, {{1, 2}}})
    assert.tensor_equal(cf.stack({cf.tensor({1, 2}), cf.tensor({3, 4})}, 2), {{1, 3}, {2, 4}})
    assert.equal("float64", cf.concat({a, b:to "float64"}).dtype)
    assert.refuses(function() cf.concat({a, cf.ones(2)}) end, "concat: tensor 2: expected the shape of a [1, 2]")
    assert.refuses(function() cf.stack({a, b}) end, "stack: tensor 2: expected the shape of a [1, 2]")
    assert.refuses(function() cf.concat({}) end, "concat: argument 'list': expected at least one tensor, got none")
    assert.refuses(function() cf.concat({a, 1}) end, "concat: argument 'list[2]': expected a tensor, got 1")
    assert.refuses(function() cf.concat(a, b) end, "concat: argument 'list': expected a list of tensors")
    assert.refuses(function() cf.concat({a, a}, 3) end, "concat: argument 'd': expected a dimension from 1 to 2")
  end)

  it("has functions beside the methods", function()
    assert.tensor_equal(cf.reshape(x, 6), x:reshape(6))
    assert.tensor_equal(cf.permute(x, 2, 1), x:t())
    assert.tensor_equal(cf.flip(x, 1), x:flip(1))
  end)
end)

-- A rule for all views, on random chains of them: beside each view goes a list of the places, in a plain table of
-- values, that its elements should have.
describe("any chain of views", function()
  local random = math.random

  local function product(shape)
    local n = 1
    for d = 1, #shape do n = n * shape[d] end
    return n
  end

  -- The model's new elements: of each position of `shape`, the old one at from(position).
  local function become(model, shape, from)
    local places, position = {}, {}
    local function fill(d)
      if d > #shape then
        local at, old = 0, from(position)
        for k = 1, #model.shape do at = at * model.shape[k] + old[k] - 1 end
        places[#places + 1] = model.places[at + 1]
        return
      end
      for i = 1, shape[d] do
        position[d] = i
        fill(d + 1)
      end
    end
    fill(1)
    model.places, model.shape = places, shape
  end

  -- The view has memory of its own now.
  local function pack(model)
    local values = {}
    for i = 1, #model.places do values[i], model.places[i] = model.values[model.places[i]], i end
    model.values = values
  end

  local function copy(list)
    local out = {}
    for i = 1, #list do out[i] = list[i] end
    return out
  end

  local function without(list, d)
    local out = copy(list)
    table.remove(out, d)
    return out
  end

  local steps = {}

  function steps.slice(x, model)
    if #model.shape == 0 then return end
    local d = random(#model.shape)
    local size, step = model.shape[d], random(3)
    local first = random(size + 1)
    local last = random(first - 1, size)
    local shape, index = copy(model.shape), {}
    shape[d] = math.floor((last - first) / step) + 1
    for k = 1, #shape do index[k] = {} end
    index[d] = {first, last, step}
    become(model, shape, function(position)
      local old = copy(position)
      old[d] = first + (position[d] - 1) * step
      return old
    end)
    return x[index], ("slice(%d, {%d, %d, %d})"):format(d, first, last, step)
  end

  function steps.select(x, model)
    local d = random(math.max(#model.shape, 1))
    if (model.shape[d] or 0) == 0 then return end
    local i, index = random(model.shape[d]), {}
    for k = 1, #model.shape do index[k] = {} end
    index[d] = i
    become(model, without(model.shape, d), function(position)
      local old = copy(position)
      table.insert(old, d, i)
      return old
    end)
    return x[index], ("select(%d, %d)"):format(d, i)
  end

  function steps.unsqueeze(x, model)
    if #model.shape > 5 then return end
    local d, shape = random(#model.shape + 1), copy(model.shape)
    table.insert(shape, d, 1)
    become(model, shape, function(position) return without(position, d) end)
    return x:unsqueeze(d), ("unsqueeze(%d)"):format(d)
  end

  function steps.permute(x, model)
    local dims, shape = {}, {}
    for d = 1, #model.shape do table.insert(dims, random(d), d) end
    for d = 1, #dims do shape[d] = model.shape[dims[d]] end
    become(model, shape, function(position)
      local old = {}
      for d = 1, #dims do old[dims[d]] = position[d] end
      return old
    end)
    return x:permute(dims), ("permute(%s)"):format(table.concat(dims, ", "))
  end

  function steps.expand(x, model)
    local lead, shape = #model.shape < 5 and random(0, 1) or 0, copy(model.shape)
    for d = 1, #shape do
      if shape[d] == 1 then shape[d] = random(0, 3) end
    end
    if lead == 1 then table.insert(shape, 1, random(0, 3)) end
    if product(shape) > 300 then return end
    local had = model.shape
    become(model, shape, function(position)
      local old = {}
      for d = 1, #had do old[d] = had[d] == 1 and 1 or position[d + lead] end
      return old
    end)
    return x:expand(shape), ("expand(%s)"):format(table.concat(shape, ", "))
  end

  function steps.flip(x, model)
    if #model.shape == 0 then return end
    local d = random(#model.shape)
    become(model, model.shape, function(position)
      local old = copy(position)
      old[d] = model.shape[d] + 1 - old[d]
      return old
    end)
    pack(model)
    return x:flip(d), ("flip(%d)"):format(d)
  end

  function steps.reshape(x, model)
    local n, shape = #model.places, {}
    if n == 0 then
      shape = {random(0, 3), 0, random(0, 3)}
    else
      while n > 1 and #shape < 4 do
        local factor = random(n)
        while n % factor ~= 0 do factor = factor - 1 end
        shape[#shape + 1], n = factor, n / factor
      end
      if n > 1 or random(2) == 1 then shape[#shape + 1] = n end
    end
    local y = x:reshape(shape)
    if y._buffer ~= x._buffer then pack(model) end -- no view can show it
    model.shape = shape
    return y, ("reshape(%s)"):format(table.concat(shape, ", "))
  end

  function steps.fill(x, model)
    local seen, value = {}, random(1000)
    for i = 1, #model.places do
      if seen[model.places[i]] then return end
      seen[model.places[i]] = true
    end
    for i = 1, #model.places do model.values[model.places[i]] = value end
    if #model.places > 0 then x:fill_(value) end
    return x, ("fill_(%d)"):format(value)
  end

  local kinds = {"slice", "slice", "select", "unsqueeze", "permute", "expand", "flip", "reshape", "reshape", "fill"}

  -- The values of x, and those that it should have, as text.
  local function compare(x, model)
    local expected = {}
    for i = 1, #model.places do expected[i] = model.values[model.places[i]] end
    local packed, sum = x:clone():reshape(-1):totable(), 0
    for i = 1, #expected do sum = sum + expected[i] end
    local got = ("[%s] %s, sum %g"):format(table.concat(x.shape, ", "), table.concat(packed, " "), x:sum():item())
    return got, ("[%s] %s, sum %g"):format(table.concat(model.shape, ", "), table.concat(expected, " "), sum)
  end

  it("shows and writes what the same chain of a packed copy has", function()
    for seed = 1, 4000 do
      math.randomseed(seed)
      local shape = {}
      for d = 1, random(0, 5) do shape[d] = random(20) > 1 and math.max(1, random(4) - 1) or 0 end
      local n, model = product(shape), {shape = shape, places = {}, values = {}}
      for i = 1, n do model.places[i], model.values[i] = i, i end
      local x = (n > 0 and cf.arange(1, n) or cf.zeros(0)):reshape(shape)
      local text = {("seed %d: [%s]"):format(seed, table.concat(shape, ", "))}
      for _ = 1, random(8) do
        local y, step = steps[kinds[random(#kinds)]](x, model)
        if y then
          x, text[#text + 1] = y, step
          local got, expected = compare(x, model)
          assert.equal(expected, got, table.concat(text, ":"))
        end
      end
    end
  end)

  it("leaves no trace of where a dimension of size 1 lay", function()
    assert.tensor_equal(cf.arange(1, 9):reshape(3, 1, 3)[{{}, {}, {1, 2}}]:reshape(6), {1, 2, 4, 5, 7, 8})
    assert.tensor_equal(cf.arange(1, 8):reshape(2, 4, 1):permute(2, 3, 1):reshape(8), {1, 5, 2, 6, 3, 7, 4, 8})
    local x = cf.arange(1, 12):reshape(2, 2, 1, 3):permute(1, 3, 2, 4)[{{}, {}, {}, {1, 2}}]
    assert.tensor_equal(cf.matmul(x, cf.eye(2)), x:clone())
    local _, g = cf.withgradient(function(m)
      return (m:reshape(3, 1, 3)[{{}, {}, {1, 2}}]:reshape(6) * cf.arange(1, 6)):sum()
    end, cf.ones(9))
    assert.tensor_equal(g, {1, 2, 0, 3, 4, 0, 5, 6, 0})
  end)

  it("is never larger than memory can be addressed, whatever it repeats", function()
    local x = cf.ones(1, 1)
    assert.refuses(function() x:expand(2 ^ 32, 2 ^ 32) end,
      "expand: a float32 of [4294967296, 4294967296] would have more than 2^63 bytes")
    assert.refuses(function() cf.zeros(0):reshape(0, 2 ^ 32, 2 ^ 32) end, "reshape: argument 'shape'")
    local column, row, size = x:expand(2 ^ 40, 1), x:expand(1, 2 ^ 40), "1099511627776, 1099511627776"
    for _, f in ipairs {function() return column + row end, function() return cf.matmul(column, row) end} do
      assert.error_matches(f, "a float32 of [" .. size .. "] would have more than 2^63 bytes", 1, true)
    end
  end)
end)
