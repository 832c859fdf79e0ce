-- Data files, loaders and metrics.
require "tests.spec.helper"
local cf = require "conflux"

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(3, setup, teardown)

local program = require "tests.spec.program"
local file = program.file
teardown(program.clean)

describe("data.idx", function()
  it("reads shape, type and values", function()
    local t = cf.data.idx(file "\0\0\8\2\0\0\0\2\0\0\0\3\1\2\3\4\5\255")
    assert.tensor_equal(t, cf.tensor({{1, 2, 3}, {4, 5, 255}}, {dtype = "uint8"}))
  end)

  it("refuses files that are cut short or missing, by name", function()
    local path = file "\0\0\8\2\0\0\0\2\0\0\0\3\1\2\3"
    assert.has_error(function() cf.data.idx(path) end)
    local _, message = pcall(cf.data.idx, "/nowhere/file")
    assert.matches("/nowhere/file", message)
    assert.refuses(function() cf.data.idx(3) end, "data.idx: argument 'path': expected a string, got 3")
  end)
end)

describe("data.csv", function()
  it("reads rows of numbers", function()
    assert.tensor_equal(cf.data.csv(file "1,2.5\n-3,4e2\n"), {{1, 2.5}, {-3, 400}})
  end)

  it("skips lines, and takes another separator and type", function()
    assert.tensor_equal(cf.data.csv(file "a;b\n1;2\n3;4\n", {skip = 1, separator = ";", dtype = "float64"}),
      cf.tensor({{1, 2}, {3, 4}}, {dtype = "float64"}))
    assert.refuses(function() cf.data.csv(file "1", {separator = ", "}) end, "data.csv: argument 'separator'")
    assert.refuses(function() cf.data.csv(file "1", {header = true}) end, "data.csv: unknown option 'header'")
  end)
end)

describe("DataLoader", function()
  local function samples(n) return {x = cf.arange(1, n):reshape(n, 1), id = cf.arange(1, n):to "int64"} end

  -- All ids of an epoch, step by step: {{device 1's, device 2's}, ...}
  local function ids(loader, epoch)
    local steps = {}
    for step, batch in loader:epoch(epoch) do
      steps[step] = {}
      for i = 1, #batch do steps[step][i] = batch[i].id:totable() end
    end
    return steps
  end

  it("deals batches out to devices, with the data's keys and counts", function()
    local loader = cf.data.DataLoader(samples(12), {batch = 2})
    assert.equal(2, loader:steps())
    local count = 0
    for step, batch in loader:epoch(1) do
      count = count + 1
      assert.equal(count, step)
      assert.equal(6, batch.n)
      for i = 1, 3 do
        assert.equal(2, batch[i].n)
        assert.is_true(batch[i].x.device == on("cpu:" .. i - 1))
        assert.same({2, 1}, batch[i].x.shape)
        assert.tensor_equal(batch[i].x:reshape(-1):to "int64", batch[i].id)
      end
    end
    assert.equal(2, count)
  end)

  it("keeps the order without shuffle", function()
    local loader = cf.data.DataLoader(samples(8), {batch = 2, devices = on {"cpu:0", "cpu:1"}})
    assert.same({{{1, 2}, {3, 4}}, {{5, 6}, {7, 8}}}, ids(loader, 1))
  end)

  it("takes a list as data", function()
    local loader = cf.data.DataLoader({cf.arange(1, 4), cf.arange(5, 8)}, {batch = 4, devices = on {"cpu:0"}})
    for _, batch in loader:epoch(1) do
      assert.tensor_equal(batch[1][1], {1, 2, 3, 4})
      assert.tensor_equal(batch[1][2], {5, 6, 7, 8})
    end
  end)

  it("drops, pads or keeps a short last step", function()
    local function steps(last) return ids(cf.data.DataLoader(samples(10), {batch = 2, last = last}), 0) end
    assert.same({{{1, 2}, {3, 4}, {5, 6}}}, steps "drop")
    assert.same({{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9, 10}, {1, 2}}}, steps "pad")
    assert.same({{{1, 2}, {3, 4}, {5, 6}}, {{7, 8}, {9}, {10}}}, steps "keep")
    assert.same(steps "keep", steps(nil))
    assert.refuses(function() steps "wrap" end, "DataLoader: argument 'last': expected 'drop', 'pad' or 'keep'")
  end)

  local function flat(steps)
    local all = {}
    for s = 1, #steps do
      for i = 1, #steps[s] do
        for k = 1, #steps[s][i] do all[#all + 1] = steps[s][i][k] end
      end
    end
    return all
  end

  it("shuffles by seed and epoch, whatever the devices and batches", function()
    local function order(epoch, seed, o)
      o = o or {batch = 4, devices = on {"cpu:0"}}
      o.shuffle, o.seed = true, seed
      return flat(ids(cf.data.DataLoader(samples(24), o), epoch))
    end
    local first = order(1, 7)
    assert.same(first, order(1, 7))
    assert.same(first, order(1, 7, {batch = 4}))
    assert.same(first, order(1, 7, {batch = 4, threads = 3}))
    assert.is_not.same(first, order(2, 7))
    assert.is_not.same(first, order(1, 8))
    table.sort(first)
    for i = 1, 24 do assert.equal(i, first[i]) end
  end)

  it("may be left early: the next epoch starts afresh", function()
    local loader = cf.data.DataLoader(samples(12), {batch = 1, prefetch = 3})
    for step in loader:epoch(1) do
      if step == 2 then break end
    end
    assert.equal(4, #ids(loader, 2))
    local old = loader:epoch(3)
    loader:epoch(4)
    assert.has_error(function() old() end)
  end)

  it("goes on where a saved state was", function()
    local o = {batch = 2, shuffle = true, seed = 3, devices = on {"cpu:0"}}
    local loader = cf.data.DataLoader(samples(12), o)
    local all = ids(loader, 5)
    local state
    for step in loader:epoch(5) do
      state = loader:state()
      if step == 2 then break end
    end
    local again = cf.data.DataLoader(samples(12), o)
    assert.is_true(rawequal(again, again:restore(state)))
    local rest, first = {}, nil
    for step, batch in again:epoch(5) do
      first = first or step
      rest[step] = {batch[1].id:totable()}
    end
    assert.equal(3, first)
    for step = 3, 6 do assert.same(all[step], rest[step]) end
    assert.equal(6, #ids(again, 6))
    assert.refuses(function() cf.data.DataLoader(samples(12), {batch = 4}):restore(state) end,
      "DataLoader.restore: the state is of another loader")
  end)

  it("refuses the state of a loader that deals other samples, and one that does not say", function()
    local o = {batch = 2, shuffle = true, last = "drop", seed = 3, devices = on {"cpu:0"}}
    local loader = cf.data.DataLoader(samples(12), o)
    for key, v in pairs {shuffle = false, last = "pad", seed = 4, batch = 3} do
      local other = {batch = 2, shuffle = true, last = "drop", seed = 3, devices = on {"cpu:0"}}
      other[key] = v
      other = cf.data.DataLoader(samples(12), other)
      local text = "DataLoader.restore: the state is of another loader: its " .. (key == "batch" and "total" or key)
      assert.refuses(function() other:restore(loader:state()) end, text)
      assert.refuses(function() loader:restore(other:state()) end, text)
    end
    for key, text in pairs {shuffle = "true", last = '"drop"'} do
      local state = loader:state()
      state[key] = nil
      assert.refuses(function() loader:restore(state) end, ("DataLoader.restore: the state does not say its %s; if its "
        .. "loader had what this one has, set state.%s = %s"):format(key, key, text))
    end
    local path = os.tmpname()
    cf.save(path, loader:state())
    loader:restore(cf.load(path))
    os.remove(path)
  end)

  it("refuses data that are no samples", function()
    assert.refuses(function() cf.data.DataLoader({}) end, "DataLoader: argument 'data': expected at least one tensor")
    assert.refuses(function() cf.data.DataLoader({x = cf.ones(3), y = cf.ones(4)}) end,
      "DataLoader: argument 'data.y': expected 3 rows, as data.x has, got [4]")
    assert.refuses(function() cf.data.DataLoader({x = 3}) end, "DataLoader: argument 'data.x'")
    assert.refuses(function() cf.data.DataLoader(samples(3), {batch = 0}) end, "DataLoader: argument 'batch'")
    assert.refuses(function() cf.data.DataLoader(samples(3), {threads = 0}) end, "DataLoader: argument 'threads'")
    assert.refuses(function() cf.data.DataLoader(samples(3), {size = 1}) end, "DataLoader: unknown option 'size'")
    assert.refuses(function() cf.data.DataLoader(samples(2), {batch = 2, last = "drop"}) end, "DataLoader: 2 samples")
  end)
end)

describe("metrics", function()
  local logits = cf.tensor {{1, 5, 2}, {9, 1, 3}, {0, 1, 2}, {3, 2, 1}}
  local labels = cf.tensor({1, 2, 2, 1}, {dtype = "int64"})

  it("accuracy is the share of largest logits that hit", function()
    assert.tensor_equal(cf.metrics.accuracy(logits, labels), cf.tensor(0.5))
    assert.tensor_equal(cf.metrics.accuracy(logits, labels:to "uint8"), cf.tensor(0.5))
  end)

  it("topk is the share of ids among the k largest", function()
    assert.tensor_equal(cf.metrics.topk(logits, labels, 1), cf.tensor(0.5))
    assert.tensor_equal(cf.metrics.topk(logits, labels, 2), cf.tensor(1))
    assert.refuses(function() cf.metrics.topk(logits, labels, 4) end, "metrics.topk: argument 'k'")
  end)

  it("refuse ids that do not fit", function()
    assert.refuses(function() cf.metrics.accuracy(logits, cf.ones(4)) end, "metrics.accuracy: argument 'ids'")
    assert.refuses(function() cf.metrics.accuracy(logits, labels[{{1, 3}}]) end, "metrics.accuracy: argument 'ids'")
  end)
end)

describe("what a DataLoader reads", function()
  it("cannot change in place before the loader is released", function()
    local x = cf.ones(4, 2, {device = "cpu"})
    local loader = cf.data.DataLoader({x = x}, {batch = 2, devices = "cpu"})
    assert.refuses(function() x:add_(1) end, "add_: a DataLoader reads the tensor")
    assert.refuses(function() x[1] = 0 end, "fill_: a DataLoader reads the tensor")
    assert.refuses(function() x:copy_(cf.ones(4, 2, {device = "cpu"})) end, "copy_: a DataLoader reads the tensor")
    for _, batch in loader:epoch(0) do batch[1].x:add_(1) end
    loader:release()
    loader:release()
    assert.tensor_equal(x:add_(1), cf.full(2, 4, 2, {device = "cpu"}))
  end)

  it("is let go with the loader, which then refuses all else", function()
    local loader = cf.data.DataLoader({x = cf.ones(4, {device = "cpu"})}, {batch = 2, devices = "cpu"})
    local steps = loader:epoch(0)
    loader:release()
    assert.refuses(function() loader:epoch(1) end, "DataLoader.epoch: the loader was released")
    assert.refuses(function() loader:steps() end, "DataLoader.steps: the loader was released")
    assert.refuses(function() steps() end, "DataLoader.epoch: the loader was released")
    assert.equal("DataLoader(4 samples in no steps, as it was released, on 1 devices)", tostring(loader))
  end)
end)
