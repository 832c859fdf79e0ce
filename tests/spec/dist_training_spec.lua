-- Training on many processes: data in shares, gradients joined, and the bits that come of it.
local program = require "tests.spec.program"
local ranks   = require("tests.spec.ranks").run

describe("training over ranks #program", function()
  after_each(program.clean)

  it("deals each sample out once, whatever the ranks, and in the same order", function()
    local orders = {}
    for _, n in ipairs {1, 2, 3, 6} do
      local path = os.tmpname()
      local _, err, code = ranks(n, "cpu", ([[
        local file = io.open(%q, "a")
        for _, last in ipairs {"keep", "pad", "drop"} do
          local loader = cf.data.DataLoader({x = cf.arange(0, 9)},
            {batch = 6 / size, last = last, shuffle = true, seed = 5, devices = {"cpu"}})
          for epoch = 0, 1 do
            for step, b in loader:epoch(epoch) do
              local all = dist.allgather(b[1].n > 0 and b[1].x or cf.zeros(0)):totable()
              if rank == 0 then file:write(last, " ", table.concat(all, " "), "\n") end
            end
          end
        end
      ]]):format(path))
      assert.same({"", 0}, {err, code})
      orders[#orders + 1] = program.slurp(path)
      os.remove(path)
    end
    for i = 2, #orders do assert.equal(orders[1], orders[i]) end
    local _, epochs = orders[1]:gsub("keep", "")
    assert.equal(4, epochs)
    for _, last in ipairs {"keep", "drop"} do -- no sample twice
      for line in orders[1]:gmatch(last .. " ([^\n]*)") do
        local seen = {}
        for id in line:gmatch "%d+" do
          assert.is_nil(seen[id])
          seen[id] = true
        end
      end
    end
  end)

  it("gives each rank a share of the data, with 3 and with 6 ranks of 10 samples", function()
    for _, n in ipairs {1, 3, 6} do
      local _, err, code = ranks(n, "cpu", [[
        local data = {x = cf.arange(0, 9):reshape(10, 1), y = cf.arange(0, 9)}
        local pad, drop = dist.Data(data), dist.Data(data, {mode = "drop"})
        local each, fewer = math.ceil(10 / size), math.floor(10 / size)
        expect(#pad.x, each)
        expect(#drop.y, fewer)
        local all = dist.allgather(pad.y)
        for i = 1, each * size do expect(all[i]:item(), (i - 1) % 10) end
        all = dist.allgather(drop.x)
        for i = 1, fewer * size do expect(all[i][1]:item(), i - 1) end
        expect(#dist.Data(cf.ones(1)), 1)
        if size > 1 then
          assert(refused(dist.Data, cf.ones(1), {mode = "drop"}):find "1 samples are too few for %d ranks")
        end
        assert(refused(dist.Data, data, {mode = "keep"}):find "expected 'pad' or 'drop', got 'keep'")
        local count = 0
        for _, b in cf.data.DataLoader(pad, {shard = false, batch = 2}):epoch(0) do count = count + b.n end
        expect(count, each)
      ]])
      assert.same({"", 0}, {err, code}, n .. " ranks")
    end
  end)

  it("refuses a loader that other ranks make otherwise", function()
    local _, err, code = ranks(2, "cpu", "cf.data.DataLoader({x = cf.zeros(10)}, {batch = rank + 1})")
    assert.equal(1, code)
    assert.matches("ranks disagree: rank 0 calls DataLoader %(10 samples, batch 1, shuffle false, last keep, seed 0%) "
      .. "at %S+, and rank 1 calls DataLoader %(10 samples, batch 2, ", err)
  end)

  -- One model, 100 steps: the losses' bits and the parameters', of all ranks' devices.
  local TRAIN = [[
    local nn = cf.nn
    cf.seed(3)
    local model = nn.Chain(nn.Dense(8, 40, "tanh"), nn.Dropout(0.2), nn.Dense(40, 1))
    local models = cf.replicate(model)
    local opt = cf.optim.Adam(1e-2)
    local states = cf.withdevices(function(i) return opt:setup(models[i]) end)
    local X = cf.rand(70, 8)
    local loader = cf.data.DataLoader({x = X, y = X:sum({2}, {keepdim = true})}, {batch = 12 / WIDTH, shuffle = true})
    local epoch, steps = 0, 0
    while steps < 100 do
      for _, batch in loader:epoch(epoch) do
        local losses, grads = cf.withdevices(function(i)
          return cf.withgradient(function(m) return nn.mse(m(batch[i].x), batch[i].y) end, models[i])
        end)
        cf.allreduce("avg", grads, {weights = batch})
        cf.withdevices(function(i) cf.optim.update(states[i], models[i], grads[i]) end)
        cf.allreduce("avg", losses, {weights = batch})
        steps = steps + 1
        dist.println0(("%a"):format(losses[1]:item()))
      end
      epoch = epoch + 1
    end
    for i = 1, #models do assert(dist.same(models[i])) end
    dist.println0(("%a"):format(models[1][1].weight:sum():item()))
  ]]

  it("trains on ranks as on the devices of one process, bit by bit", function()
    for _, width in ipairs {2, 4} do
      local seen
      for n = 1, width do
        if width % n == 0 then
          local out, err, code = ranks(n, "cpu*" .. width / n, (TRAIN:gsub("WIDTH", width)))
          assert.same({"", 0}, {err, code})
          out = out:gsub("[^\n]*%] ", "")
          seen = seen or out
          assert.equal(seen, out, ("%d ranks for %d devices"):format(n, width))
          assert.is_true(select(2, out:gsub("\n", "")) > 100)
        end
      end
    end
  end)

  it("joins gradients by an optimiser, a model, or a call, and none of them twice", function()
    for n = 1, 4 do
      local _, err, code = ranks(n, "cpu", [[
        local function loss(m) return (m * (rank + 1)):sum() end
        local mean = sum(function(r) return r + 1 end) / size
        local function near(got, wanted) expect(math.abs(got - wanted) < 1e-5, true) end
        for _, op in ipairs {"avg", "+"} do
          local inner = cf.optim.Descent(1)
          local opt = dist.Optimizer(inner, {op = op})
          local m = {w = cf.zeros(2)}
          local state = opt:setup(m)
          local _, g = cf.withgradient(function(x) return loss(x.w) end, m)
          cf.optim.update(state, m, g)
          near(m.w[1]:item(), -(op == "avg" and mean or mean * size))
          assert(refused(cf.optim.update, state, m, g):find "this gradient was joined by all ranks already")
          opt.lr = 0.5
          expect(inner.lr, 0.5)
          expect(tostring(opt), tostring(inner))
          cf.optim.adjust(state, {lr = 0})
        end
        -- three become one, by their mean
        local opt = dist.Optimizer(cf.optim.Descent(1), {accumulate = 3})
        local m = {w = cf.zeros(2)}
        local state = opt:setup(m)
        for k = 1, 6 do
          local _, g = cf.withgradient(function(x) return loss(x.w) * k end, m)
          cf.optim.update(state, m, g)
          near(m.w[1]:item(), -mean * (k < 3 and 0 or k < 6 and 2 or 7))
        end
        expect(state.step, 2)
        cf.seed(rank)
        local model = dist.Model({w = cf.rand(3)})
        assert(dist.same(model))
        local _, g = cf.withgradient(function(x) return loss(x.w) end, model)
        near(g.w[1]:item(), mean)
        local plain = {w = cf.zeros(2)}
        _, g = cf.withgradient(function(x) return loss(x.w) end, plain)
        assert(dist.allreduce_gradients(g, {op = "+"}) == g)
        near(g.w[2]:item(), mean * size)
        assert(refused(dist.allreduce_gradients, g):find "joined by all ranks already")
        _, g = cf.withgradient(function(x) return loss(x.w) end, m)
        assert(refused(cf.optim.update, state, m, dist.allreduce("avg", g)):find "joined by all ranks already")
        cf.addgradient(g, function(x) return loss(x.w) end, plain)
        dist.allreduce_gradients(g)
        assert(refused(dist.Optimizer, {}):find "an optimiser")
      ]])
      assert.same({"", 0}, {err, code}, n .. " ranks")
    end
  end)
end)
