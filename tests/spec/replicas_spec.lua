-- Replicas, the scheduler of withdevices, and collectives, on five devices.
require "tests.spec.helper"
local cf = require "conflux"
local nn, optim = cf.nn, cf.optim

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(5, setup, teardown)

local DEVICES = on {"cpu:0", "cpu:1", "cpu:2"}

describe("replicate", function()
  it("copies to each device and aliases nothing", function()
    local w = cf.ones(2)
    local r = cf.replicate({w = w, name = "m"}, DEVICES)
    assert.equal(3, r.n)
    for i = 1, 3 do
      assert.is_true(r[i].w.device == DEVICES[i])
      assert.equal("m", r[i].name)
      r[i].w:fill_(i + 1)
    end
    assert.tensor_equal(w, {1, 1})
    assert.tensor_equal(r[1].w, {2, 2})
    assert.tensor_equal(r[3].w, {4, 4})
  end)

  it("keeps tied tensors tied", function()
    local w = cf.ones(4)
    local r = cf.replicate({w, again = w}, on {"cpu:0", "cpu:1"})
    r[1][1]:fill_(2)
    assert.tensor_equal(r[1].again, cf.full(2, 4))
    assert.tensor_equal(r[2].again, cf.ones(4))
  end)

  it("indexes by position, device and name, and prints itself", function()
    local r = cf.replicate(cf.ones(1), DEVICES)
    assert.is_true(r[2] == r[on "cpu:1"] and r[2] == r[cf.device(on "cpu:1")])
    if devices.are_cpu then assert.is_true(r.cpu == r[1]) end -- "cpu" is another name of cpu:0
    assert.is_nil(r[on "cpu:4"])
    assert.is_nil(r[4])
    assert.is_true(r.devices[3] == on "cpu:2")
    assert.equal(on "3 replicas on [cpu:0, cpu:1, cpu:2]", tostring(r))
  end)

  it("copies what a function gives for each device", function()
    local r = cf.replicate(cf.ones(1), DEVICES, function(x, i, device)
      assert.is_true(device == DEVICES[i])
      return x * i
    end)
    assert.tensor_equal(r[3], {3})
  end)

  it("keeps modules modules, marks marks, and packs parameters", function()
    local model = nn.Chain(nn.Dense(2, 3), nn.freeze(nn.Dense(3, 1)), "tanh")
    model.state = nn.buffer(cf.ones(2))
    model:eval()
    local r = cf.replicate(model, DEVICES)
    assert.equal(tostring(model), tostring(r[2]))
    assert.is_false(r[2][1].training)
    local x = cf.rand(4, 2)
    assert.tensor_equal(r[2](cf.device(on "cpu:1")(x)), model(x))
    assert.equal(4, #nn.parameters(r[2]))
    local g = cf.gradient(function(m) return m(cf.device(on "cpu:1")(x)):sum() end, r[2])
    assert.tensor_equal(g[2].weight, cf.zeros(1, 3))
    assert.is_nil(g.state)
  end)

  it("copies optimiser states, which go on with their replicas", function()
    local model = nn.Chain(nn.Dense(2, 2), nn.Dense(2, 1))
    local state = optim.Adam(0.1):setup(model)
    local function step(m, s)
      local x = cf.ones(3, 2, {device = m[1].weight.device})
      optim.update(s, m, cf.gradient(function(n) return n(x):sum() end, m))
    end
    step(model, state)
    local models, states = cf.replicate(model, DEVICES), cf.replicate(state, DEVICES)
    step(model, state)
    step(models[3], states[3])
    assert.equal(2, states[3].step)
    assert.equal(1, states[2].step)
    assert.tensor_equal(models[3][1].weight, model[1].weight:to(on "cpu:2"))
  end)

  it("refuses what it cannot copy, and devices that are none", function()
    assert.refuses(function() cf.replicate(3) end, "replicate: argument 'x'")
    assert.refuses(function() cf.replicate(cf.ones(1), {"cpu:9"}) end, "replicate: argument 'devices[1]'")
  end)
end)

describe("withdevices", function()
  it("takes an error of the user's for what it is, whatever it says, and lets the others end", function()
    local ended = 0
    local ok, message = pcall(cf.withdevices, function(i)
      if i == 1 then error("the download was interrupted!", 0) end
      ended = ended + 1
    end, {"cpu:0", "cpu:0"})
    assert.is_false(ok)
    assert.matches("the download was interrupted! %(on cpu:0%)", message)
    assert.equal(1, ended)
  end)

  it("runs once per device, with that device and a random stream of its own", function()
    local seen = {}
    local a, b = cf.withdevices(function(i, device)
      seen[i] = tostring(device)
      return cf.rand(3), i
    end)
    assert.same(on {"cpu:0", "cpu:1", "cpu:2", "cpu:3", "cpu:4"}, seen)
    assert.equal(5, a.n)
    for i = 1, 5 do
      assert.is_true(a[i].device == seen[i])
      assert.equal(i, b[i])
    end
    assert.is_not.same(a[1]:totable(), a[2]:totable())
    assert.is_true(cf.ones(1).device == on "cpu:0")
  end)

  it("returns a list per result, with holes where a closure returned none", function()
    local a, b = cf.withdevices(function(i)
      if i == 2 then return end
      return i, i * 10
    end, DEVICES)
    assert.same({1, nil, 3}, {a[1], a[2], a[3]})
    assert.same({10, nil, 30}, {b[1], b[2], b[3]})
    assert.equal(3, b.n)
    assert.equal(30, b[on "cpu:2"])
    assert.equal(0, select("#", cf.withdevices(function() end)))
  end)

  it("takes devices from replicas", function()
    local r = cf.replicate(cf.ones(1), on {"cpu:2", "cpu:1"})
    local list = cf.withdevices(function(_, device) return tostring(device) end, r)
    assert.same(on {"cpu:2", "cpu:1"}, {list[1], list[2]})
    assert.equal(2, list.n)
  end)

  it("goes on with the other closures where one reads a value, in device order", function()
    local log = {}
    cf.withdevices(function(i)
      for k = 1, 3 do
        log[#log + 1] = i .. "." .. k
        cf.ones(2):sum():item()
      end
    end, DEVICES)
    assert.equal("1.1 2.1 3.1 1.2 2.2 3.2 1.3 2.3 3.3", table.concat(log, " "))
  end)

  it("keeps each closure's device and random stream across reads", function()
    cf.withdevices(function(_, device)
      for _ = 1, 3 do
        cf.ones(1):item()
        assert.is_true(cf.ones(1).device == device)
      end
    end, DEVICES)
    cf.seed(11)
    local one = cf.withdevices(function() return cf.rand(2), cf.rand(2) end, DEVICES)
    cf.seed(11)
    local two = cf.withdevices(function()
      local x = cf.rand(2)
      x:totable()
      return x, cf.rand(2)
    end, DEVICES)
    for i = 1, 3 do assert.tensor_equal(one[i], two[i]) end
  end)

  it("runs one closure to its end before the next with async = false", function()
    local log = {}
    cf.withdevices(function(i)
      for _ = 1, 2 do
        log[#log + 1] = i
        cf.ones(1):item()
      end
    end, DEVICES, {async = false})
    assert.same({1, 1, 2, 2, 3, 3}, log)
    log = {}
    cf.withdevices(function(i) log[#log + 1] = i end, {async = false})
    assert.same({1, 2, 3, 4, 5}, log)
  end)

  it("blocks in coroutines of the script's own, and in table.sort", function()
    local log = {}
    cf.withdevices(function(i)
      local generator = coroutine.wrap(function()
        for k = 1, 2 do coroutine.yield(cf.full(k, 1):item()) end
      end)
      log[#log + 1] = i
      for v in generator do log[#log + 1] = v end
      local list = {cf.full(2, 1), cf.full(1, 1)}
      table.sort(list, function(a, b) return a:item() < b:item() end)
      log[#log + 1] = "sorted"
    end, on {"cpu:0", "cpu:1"})
    assert.same({1, 1, 2, "sorted", 2, 1, 2, "sorted"}, log)
  end)

  it("passes other yields to the caller, and resumes with what the caller gives", function()
    local co = coroutine.wrap(function()
      return cf.withdevices(function(i, device)
        local got = coroutine.yield("from " .. i)
        assert.is_true(cf.ones(1).device == device)
        return got
      end, on {"cpu:0", "cpu:1"})
    end)
    assert.equal("from 1", co())
    assert.is_true(cf.ones(1).device == on "cpu:0")
    assert.equal("from 2", co "a")
    local list = co "b"
    assert.same({"a", "b"}, {list[1], list[2]})
  end)

  it("refuses a yield that nobody can receive, and runs the others to their end", function()
    local done, ok, message = {}, nil, nil
    table.sort({1, 2}, function(a, b) -- which no yield can cross
      done = {}
      ok, message = pcall(cf.withdevices, function(i)
        if i == 1 then coroutine.yield() end
        done[#done + 1] = i
      end, DEVICES)
      return a < b
    end)
    assert.is_false(ok)
    assert.matches(on "attempt to yield outside a coroutine %(on cpu:0%)", message)
    assert.same({2, 3}, done)
  end)

  it("nests, and gives way to the outer closures where the inner ones wait", function()
    local log = {}
    local lists = cf.withdevices(function(i)
      local inner = cf.withdevices(function(k, device)
        log[#log + 1] = i .. "." .. k
        assert.is_true(cf.ones(1).device == device)
        cf.ones(1):item()
        assert.is_true(cf.ones(1).device == device)
        return i * 10 + k
      end, on {"cpu:3", "cpu:4"})
      assert.is_true(cf.ones(1).device == DEVICES[i])
      return inner
    end, on {"cpu:0", "cpu:1"})
    assert.equal("1.1 1.2 2.1 2.2", table.concat(log, " "))
    assert.same({11, 12, 21, 22}, {lists[1][1], lists[1][2], lists[2][1], lists[2][2]})
  end)

  it("raises the first error in device order, naming its device, after the others have ended", function()
    local done = {}
    local ok, message = pcall(cf.withdevices, function(i)
      if i == 2 then
        cf.ones(1):item()
        error "late"
      end
      if i == 3 then error "early" end
      cf.ones(1):item()
      done[#done + 1] = i
    end)
    assert.is_false(ok)
    assert.matches(on "replicas_spec%.lua:%d+: late %(on cpu:1%)$", message)
    assert.same({1, 4, 5}, done)
    assert.is_true(cf.ones(1).device == on "cpu:0")
  end)

  it("passes errors that are no strings unchanged", function()
    local problem = setmetatable({}, {})
    local ok, got = pcall(cf.withdevices, function() error(problem) end)
    assert.is_false(ok)
    assert.is_true(rawequal(problem, got))
  end)

  it("blames the line of withdevices where a tail call hid the closure's own", function()
    assert.refuses(function()
      cf.withdevices(function() return cf.matmul(cf.ones(2, 3), cf.ones(2, 3)) end, DEVICES)
    end, "matmul: ")
  end)

  it("refuses arguments of other kinds", function()
    assert.refuses(function() cf.withdevices(3) end, "withdevices: argument 'f': expected a function, got 3")
    assert.refuses(function() cf.withdevices(print, {}) end, "withdevices: argument 'devices'")
    assert.refuses(function() cf.withdevices(print, nil, {sync = true}) end, "withdevices: unknown option 'sync'")
  end)

  it("starts thousands of closures without growing", function()
    local function once() cf.withdevices(function() return 1 end) end
    for _ = 1, 100 do once() end
    collectgarbage()
    local before = collectgarbage "count"
    for _ = 1, 5000 do once() end
    collectgarbage()
    assert.is_true(collectgarbage "count" < before + 100)
  end)
end)

describe("allreduce", function()
  local function list(f)
    return cf.withdevices(f, DEVICES)
  end

  it("combines in place on every replica, and returns the list", function()
    local want = {["+"] = 6, sum = 6, ["*"] = 6, prod = 6, max = 3, min = 1, avg = 2}
    for op, value in pairs(want) do
      local tensors = list(function(i) return cf.full(i, 2, 2) end)
      local same = cf.allreduce(op, tensors)
      assert.is_true(rawequal(same, tensors))
      for i = 1, 3 do
        assert.tensor_equal(tensors[i], cf.full(value, 2, 2))
        assert.is_true(tensors[i].device == DEVICES[i])
      end
    end
  end)

  it("combines trees place by place", function()
    local trees = list(function(i) return {a = cf.full(i, 2), {cf.full(10 * i, 1)}, text = "t", step = 7} end)
    cf.allreduce("avg", trees)
    for i = 1, 3 do
      assert.tensor_equal(trees[i].a, {2, 2})
      assert.tensor_equal(trees[i][1][1], {20})
    end
  end)

  it("adds integers, but does not average them", function()
    local ids = list(function(i) return cf.full(i, 2, {dtype = "int64"}) end)
    assert.tensor_equal(cf.allreduce("+", ids)[2], cf.full(6, 2, {dtype = "int64"}))
    assert.refuses(function() cf.allreduce("avg", ids) end, on "allreduce: the value is [2] (int64, cpu:0): integers")
  end)

  it("averages a model's float buffers, and wants its integer ones equal", function()
    local function models(f)
      return list(function(i)
        local m = nn.Dense(1, 1)
        m.mean, m.count = nn.buffer(cf.full(i, 1)), cf.full(f(i), 1, {dtype = "int64"})
        return m
      end)
    end
    local equal = cf.allreduce("avg", models(function() return 4 end))
    assert.tensor_equal(equal[3].mean, {2})
    assert.tensor_equal(equal[3].count, cf.full(4, 1, {dtype = "int64"}))
    assert.refuses(function() cf.allreduce("avg", models(function(i) return i end)) end,
      on "allreduce: integer buffers must be equal: 'count' differs between replica 1 and replica 2 (cpu:1)")
  end)

  it("folds a function from the left on the first device", function()
    local seen = {}
    local tensors = cf.allreduce(function(a, b)
      seen[#seen + 1] = tostring(a.device) .. " " .. tostring(b.device)
      return a * 10 + b
    end, list(function(i) return cf.full(i, 1) end))
    assert.same(on {"cpu:0 cpu:0", "cpu:0 cpu:0"}, seen)
    for i = 1, 3 do assert.tensor_equal(tensors[i], {123}) end
    assert.refuses(function() cf.allreduce(function(a, b) return cf.concat({a, b}, 1) end, tensors) end,
      on "allreduce: argument 'op': for the value expected a result like [1] (float32, cpu:0)")
  end)

  it("wants numbers equal", function()
    assert.has_no.errors(function() cf.allreduce("avg", list(function() return {3, cf.ones(1)} end)) end)
    assert.refuses(function() cf.allreduce("avg", list(function(i) return {step = i, cf.ones(1)} end)) end,
      on "allreduce: numbers must be equal: 'step' is 1 in replica 1 (cpu:0) and 2 in replica 2 (cpu:1)")
  end)

  it("compares paths, shapes and dtypes before anything moves, and names what differs", function()
    local function refused(f, text)
      local trees = list(f)
      assert.refuses(function() cf.allreduce("+", trees) end, "allreduce: " .. text)
      assert.tensor_equal(trees[1].a, {1, 1})
    end
    refused(function(i) return {a = cf.full(i, 2), b = cf.ones(i == 3 and 4 or 3)} end,
      on "'b' differs: [3] (float32, cpu:0) in replica 1, [4] (float32, cpu:2) in replica 3")
    refused(function(i) return {a = cf.full(i, 2), b = cf.ones(3, {dtype = i == 2 and "float64" or "float32"})} end,
      on "'b' differs: [3] (float32, cpu:0) in replica 1, [3] (float64, cpu:1) in replica 2")
    refused(function(i) return {a = cf.full(i, 2), b = i == 1 and cf.ones(1) or nil} end,
      on "'b' is missing from replica 2 (cpu:1)")
    refused(function(i) return {a = cf.full(i, 2), c = i == 2 and cf.ones(1) or nil} end,
      on "'c' is missing from replica 1 (cpu:0)")
  end)

  it("takes exactly one list, and a known operation", function()
    local a, b = cf.withdevices(function() return cf.ones(1), cf.ones(1) end)
    assert.refuses(function() cf.allreduce("avg", a, b) end, "allreduce: expected exactly one list of replicas")
    assert.refuses(function() cf.allreduce("mean", a) end, "allreduce: argument 'op': expected '+', '*', 'max'")
    assert.refuses(function() cf.allreduce("+", nil) end, "allreduce: argument 'list'")
    assert.refuses(function() cf.allreduce("+", {}) end, "allreduce: argument 'list'")
    local holes = cf.withdevices(function(i) return i == 1 and cf.ones(1) or nil end)
    assert.refuses(function() cf.allreduce("+", holes) end,
      on "allreduce: argument 'list': expected a tensor, a number or a nested table of them for replica 2 (cpu:1)")
  end)

  it("refuses replicas that share memory, by any operation, naming both places", function()
    local function refused(replicas, text)
      local function take_first(a) return a end
      for name, f in pairs {allreduce = cf.allreduce, reduce = function(op, l) return cf.reduce(op, 1, l) end} do
        assert.refuses(function() f("+", replicas) end, name .. ": " .. text)
        assert.refuses(function() f(take_first, replicas) end, name .. ": " .. text)
      end
      assert.refuses(function() cf.synchronize(replicas) end, "synchronize: " .. text)
    end
    local x, y = cf.arange(1, 9):reshape(3, 3), cf.ones(3, 3)
    local shared = on "replicas 1 (cpu:0) and 2 (cpu:0) share memory: "
    refused({x[{{}, {1, 2}}], x[{{}, {2, 3}}]}, shared .. "the value and the value")
    refused({x:t(), x:t()}, shared .. "the value and the value")
    refused({x, x:t()}, shared .. "the value and the value")
    refused({x[{{1, 2}}], x[{{2, 3}}]}, shared .. "the value and the value")
    refused({{a = y, b = x:t()}, {a = x, b = cf.ones(3, 3):t()}}, shared .. "'b' and 'a'")
    refused({{a = x[{{1, 2}}], b = x[{{2, 3}}]}, {a = y[{{1, 2}}], b = y[{{2, 3}}]}},
      on "replica 1 (cpu:0): 'a' and 'b' share memory, but neither lies in the other")
    refused({{a = x:t(), b = x}, {a = y:t(), b = cf.ones(3, 3)}},
      on "replica 1 (cpu:0): 'a' and 'b' share memory, and not likewise in replica 2 (cpu:0)")
    assert.tensor_equal(x, cf.arange(1, 9):reshape(3, 3))
    assert.tensor_equal(y, cf.ones(3, 3))
  end)

  it("joins replicas that interleave, and tensors that are tied likewise in all", function()
    local x = cf.arange(1, 8):reshape(2, 4)
    cf.allreduce("+", {x[{{}, {1, 2}}], x[{{}, {3, 4}}]})
    assert.tensor_equal(x, {{4, 6, 4, 6}, {12, 14, 12, 14}})
    cf.allreduce(function(a, b) return a - b end, {x[{{}, {1, 2}}], x[{{}, {3, 4}}]})
    assert.tensor_equal(x, cf.zeros(2, 4))
    local trees = list(function(i)
      local w = cf.full(i, 2, 3)
      return {w, w:t(), w:t()[{{1, 2}}]}
    end)
    cf.allreduce("+", trees)
    for i = 1, 3 do assert.tensor_equal(trees[i][1], cf.full(6, 2, 3)) end
  end)

  it("refuses to write what is expanded, but reads it", function()
    local function replicas() return {cf.ones(3, 2), cf.ones(1, 2):expand(3, 2)} end
    for _, op in ipairs {"+", function(a, b) return a + b end} do
      assert.refuses(function() cf.allreduce(op, replicas()) end,
        on "allreduce: replica 2 (cpu:0): the value is expanded: several elements share one place")
      assert.tensor_equal(cf.reduce(op, 1, replicas())[1], cf.full(2, 3, 2))
    end
  end)

  it("weighs replicas by their samples", function()
    for weights, want in pairs {[{5, 3, 0}] = 11 / 8, [{0, 0, 2}] = 3, [{1, 1, 1}] = 2} do
      local trees = list(function(i) return {a = cf.full(weights[i] == 0 and 0 / 0 or i, 300), step = 7} end)
      assert.is_true(rawequal(trees, cf.allreduce("avg", trees, {weights = weights})))
      for i = 1, 3 do assert.tensor_near(trees[i].a, cf.full(want, 300), 1e-6, 0) end
    end
    local tensors = list(function(i) return cf.full(i == 2 and 0 / 0 or i, 2) end)
    cf.reduce("avg", on "cpu:2", tensors, {weights = {3, 0, 1}})
    assert.tensor_equal(tensors[3], {1.5, 1.5})
    assert.tensor_equal(tensors[1], {1, 1})
    assert.tensor_equal(tensors[2], {0 / 0, 0 / 0})
    local alone = {cf.full(3, 2)}
    assert.tensor_equal(cf.allreduce("avg", alone, {weights = {4}})[1], {3, 3})
  end)

  it("makes of unequal shares the gradient of the whole batch, on devices without samples, too", function()
    for _, case in ipairs {{2, 3}, {3, 5}, {3, 2}, {5, 8}, {5, 3}} do
      local n, samples = case[1], case[2]
      local names, model = {}, nn.Chain(nn.Dense(4, 8, "tanh"), nn.Dense(8, 3))
      for i = 1, n do names[i] = on("cpu:" .. i - 1) end
      local data = {x = cf.randn(samples, 4), id = cf.randint(0, 2, samples)}
      local function loss(m, batch) return nn.crossentropy(m(batch.x), batch.id) end
      local models = cf.replicate(model, names)
      local whole = cf.gradient(loss, model, data)
      local loader = cf.data.DataLoader(data, {batch = math.ceil(samples / n), devices = names, last = "keep"})
      for _, batch in loader:epoch(1) do
        local grads = cf.withdevices(function(i) return (cf.gradient(loss, models[i], batch[i])) end, models)
        cf.allreduce("avg", grads, {weights = batch})
        for i = 1, n do
          for k = 1, 2 do
            assert.tensor_near(grads[i][k].weight, whole[k].weight, 1e-4, 1e-6)
            assert.tensor_near(grads[i][k].bias, whole[k].bias, 1e-4, 1e-6)
          end
        end
      end
    end
  end)

  it("refuses weights that are no counts of samples, one for each replica", function()
    local tensors = list(function(i) return cf.full(i, 1) end)
    local function refused(text, weights, op)
      assert.refuses(function() cf.allreduce(op or "avg", tensors, {weights = weights}) end, "allreduce: " .. text)
      assert.refuses(function() cf.reduce(op or "avg", 1, tensors, {weights = weights}) end, "reduce: " .. text)
    end
    local each_of = "argument 'weights': expected a count of 0 or more for each of 3 replicas, got "
    refused("argument 'weights': expected a list of counts, or a batch of a DataLoader, got 3", 3)
    refused(each_of .. "nil for replica 3", {1, 2})
    refused(each_of .. "-1 for replica 2", {1, -1, 1})
    refused(each_of .. "nan for replica 1", {0 / 0, 1, 1})
    refused(each_of .. "inf for replica 1", {math.huge, 1, 1})
    refused(each_of .. "'2' for replica 1", {"2", 1, 1})
    refused(each_of .. "nil for replica 1", {{}, {n = 1}, {n = 1}})
    refused("argument 'weights': expected a count for each of 3 replicas, got more", {1, 1, 1, 1})
    refused("argument 'weights': all are 0: there is nothing to average", {0, 0, 0})
    refused("weights need the operation 'avg', got 'sum'", {1, 1, 1}, "+")
    refused("weights need the operation 'avg', got a function", {1, 1, 1}, function(a) return a end)
    assert.refuses(function() cf.reduce("avg", 1, tensors, {weight = {}}) end, "reduce: unknown option 'weight'")
    for i = 1, 3 do assert.tensor_equal(tensors[i], {i}) end
  end)

  it("covers gradients of a packed model, frozen ones and all", function()
    local models = cf.replicate(nn.Chain(nn.Dense(3, 4, "tanh"), nn.freeze(nn.Dense(4, 4)), nn.Dense(4, 1)), DEVICES)
    local grads = cf.withdevices(function(i)
      local x = cf.full(i, 2, 3)
      return (cf.gradient(function(m) return m(x):sum() end, models[i]))
    end, DEVICES)
    local want = {grads[1][1].weight:totable(), grads[2][1].weight:totable(), grads[3][1].weight:totable()}
    cf.allreduce("+", grads)
    local sum = cf.tensor(want[1]) + cf.tensor(want[2]) + cf.tensor(want[3])
    for i = 1, 3 do
      assert.tensor_near(grads[i][1].weight, sum)
      assert.tensor_equal(grads[i][2].weight, cf.zeros(4, 4))
    end
  end)
end)

describe("reduce", function()
  it("changes the root alone, a position or a device", function()
    for _, root in ipairs {2, on "cpu:1", cf.device(on "cpu:1")} do
      local tensors = cf.withdevices(function(i) return cf.full(i, 1) end, DEVICES)
      assert.is_true(rawequal(tensors, cf.reduce("+", root, tensors)))
      assert.tensor_equal(tensors[1], {1})
      assert.tensor_equal(tensors[2], {6})
      assert.tensor_equal(tensors[3], {3})
    end
  end)

  it("folds a function, too", function()
    local tensors = cf.withdevices(function(i) return cf.full(i, 1) end, DEVICES)
    cf.reduce(function(a, b) return a - b end, 3, tensors)
    assert.tensor_equal(tensors[1], {1})
    assert.tensor_equal(tensors[3], {-4})
  end)

  it("refuses a root that is none", function()
    local tensors = cf.withdevices(function(i) return cf.full(i, 1) end, DEVICES)
    assert.refuses(function() cf.reduce("+", 4, tensors) end, "reduce: argument 'root'")
    assert.refuses(function() cf.reduce("+", on "cpu:4", tensors) end, "reduce: argument 'root'")
  end)
end)

describe("synchronize", function()
  it("copies the root's parameters, buffers and numbers to the others", function()
    for root = 1, 3 do
      local trees = cf.withdevices(function(i)
        return {cf.full(i, 2), ids = cf.full(i, 2, {dtype = "int64"}), mean = nn.buffer(cf.full(i, 1)), step = i}
      end, DEVICES)
      assert.is_true(rawequal(trees, cf.synchronize(trees, root ~= 1 and root or nil)))
      for i = 1, 3 do
        assert.tensor_equal(trees[i][1], cf.full(root, 2))
        assert.tensor_equal(trees[i].ids, cf.full(root, 2, {dtype = "int64"}))
        assert.tensor_equal(trees[i].mean, cf.full(root, 1))
        assert.equal(root, trees[i].step)
      end
    end
  end)

  it("leaves what is no tensor as the root has it, in nested tables, too", function()
    local function rate(step) return step end
    local trees = cf.withdevices(function(i)
      local tree = {w = cf.ones(1), step = i, name = "of " .. i, deep = {training = i == 1, {k = i}}, more = i ~= 2}
      if i == 1 then
        tree.lr, tree.only = rate, {list = {1, 2}, flag = false}
        tree.again, tree.deep.up = tree.deep, tree
      else
        tree.lr, tree.extra, tree.deep.extra, tree.deep.list = 3, "mine", {1}, {9, 9}
      end
      return tree
    end, DEVICES)
    cf.synchronize(trees)
    for i = 1, 3 do
      local t = trees[i]
      assert.same({rate, 1, "of 1", true, true}, {t.lr, t.step, t.name, t.more, t.deep.training})
      assert.same({list = {1, 2}, flag = false}, t.only)
      assert.same({1}, {t.deep[1].k})
      assert.same({}, {t.extra, t.deep.extra, t.deep.list})
      assert.is_true(rawequal(t.again, t.deep) and rawequal(t.deep.up, t))
      assert.is_false(i > 1 and rawequal(t.only, trees[1].only))
    end
  end)

  it("keeps each replica's tables its own, and unties what the root has apart", function()
    local both = {k = 5}
    local trees = {{cf.ones(1), a = {k = 1}, b = {k = 2}, device = cf.device "cpu:0"}, {cf.ones(1), a = both, b = both}}
    trees[2].c, trees[1].c = trees[1].a, {k = 3}
    cf.synchronize(trees)
    assert.same({1, 2, 3}, {trees[1].a.k, trees[1].b.k, trees[1].c.k})
    assert.same({1, 2, 3}, {trees[2].a.k, trees[2].b.k, trees[2].c.k})
    assert.is_false(rawequal(trees[1].a, trees[2].c))
    assert.is_nil(trees[2].device)
  end)

  it("makes models and optimiser states go on alike", function()
    local models = cf.replicate(nn.Chain(nn.Dense(2, 2), nn.Dense(2, 1)), DEVICES)
    local states = cf.withdevices(function(i)
      local opt = optim.Adam(i == 1 and optim.step(0.1, 1, 0.5) or 0.1 * i)
      return opt:setup(models[i], i == 1 and function() return {scale = 0.5} end or nil)
    end, DEVICES)
    local function train()
      cf.withdevices(function(i)
        local x = cf.ones(3, 2)
        optim.update(states[i], models[i], cf.gradient(function(m) return m(x):sum() end, models[i]))
      end, DEVICES)
    end
    train()
    nn.freeze(models[1][2])
    nn.eval(models[1])
    optim.adjust(states[2], {lr = 3})
    cf.synchronize(models)
    cf.synchronize(states)
    for _ = 1, 3 do train() end
    for i = 2, 3 do
      assert.is_false(models[i][1].training)
      for k, t in ipairs((nn.parameters(models[i]))) do
        assert.tensor_equal(t:to(on "cpu:0"), (nn.parameters(models[1]))[k])
      end
    end
  end)

  it("refuses replicas of different schemas", function()
    local trees = cf.withdevices(function(i) return {cf.ones(i)} end, DEVICES)
    assert.refuses(function() cf.synchronize(trees) end, "synchronize: '1' differs")
  end)
end)
