-- Many processes: each test runs a script under conflux-run, on 1 to 4 ranks with 1 and 2 devices each.
local program = require "tests.spec.program"
local cf      = require "conflux"
local ranks, everywhere = require("tests.spec.ranks").run, require("tests.spec.ranks").everywhere
require "tests.spec.helper"

describe("cf.dist", function()
  after_each(program.clean)

  it("says what is missing before init, where print and println print with the time alone", function()
    for _, name in ipairs {"rank", "size", "local_rank", "local_size", "hosts", "barrier"} do
      assert.refuses(function() cf.dist[name]() end,
        ("dist.%s: this process is in no world yet: call cf.dist.init() first"):format(name))
    end
    assert.refuses(function() cf.dist.allreduce("+", 1) end, "dist.allreduce: this process is in no world yet")
    assert.is_false(cf.dist.initialized())
    local out = program.run("-e 'local d = require([[conflux]]).dist d.print(1, nil) d.println([[a]]) d.println0(2)'")
    assert.matches("^%d+%-%d%d%-%d%d %d%d:%d%d:%d%d 1\tnil%d+%-%d%d%-%d%d %d%d:%d%d:%d%d a\n"
      .. "%d+%-%d%d%-%d%d %d%d:%d%d:%d%d 2\n$", out)
  end)

  it("refuses options that make no sense", function()
    assert.refuses(function() cf.dist.init {timeout = -1} end, "dist.init: argument 'timeout': expected 0 or more")
    assert.refuses(function() cf.dist.init {verbose = 1} end, "dist.init: argument 'verbose': expected true or false")
    assert.refuses(function() cf.dist.init {devices = 2} end, "dist.init: argument 'devices': expected a list")
    assert.refuses(function() cf.dist.init {gpus = 2} end, "dist.init: unknown option 'gpus'")
  end)
end)

describe("cf.dist over ranks #program", function()
  after_each(program.clean)

  it("knows its place, joins once, and leaves", function()
    everywhere [[
      dist.init()
      assert(dist.initialized() and rank >= 0 and rank < size)
      expect(dist.local_rank(), rank)
      expect(dist.local_size(), size)
      expect(dist.hosts(), 1)
      expect(dist.config().gpu_aware, false)
      assert(refused(dist.config, {gpu_aware = true}):find "gpu_aware: no rank is reached by MPI")
      assert(refused(cf.devices, "cpu*3"):find "cannot be changed in a world of processes")
      dist.finalize()
      dist.finalize()
      assert(not dist.initialized())
      dist.init()
      expect(dist.allreduce("+", 1), size)
    ]]
  end)

  it("takes devices of this rank's own", function()
    local out = ranks(2, "cpu", [[
      dist.finalize()
      dist.init {devices = rank == 0 and "cpu*2" or {"cpu"}, verbose = true}
      expect(#cf.devices(), rank == 0 and 2 or 1)
    ]])
    assert.equal("[0] conflux: rank 0 of 2: cpu:0, cpu:1\n[0] conflux: rank 1 of 2: cpu:0\n", out)
  end)

  it("reduces tensors in place, and numbers as results, in the order of the ranks", function()
    everywhere [[
      local function x() return cf.full(rank + 1, 2, 3000) end
      local y = x()
      assert(dist.allreduce("+", y) == y)
      local total = sum(function(r) return r + 1 end)
      expect(y:min():item(), total)
      expect(y:max():item(), total)
      expect(dist.allreduce("avg", x()):max():item(), total / size)
      expect(dist.allreduce("max", x()):min():item(), size)
      expect(dist.allreduce("min", x()):max():item(), 1)
      expect(dist.allreduce("*", cf.full(2, 3)):max():item(), 2 ^ size)
      expect(dist.allreduce("+", rank + 1), total)
      expect(dist.allreduce("avg", rank + 1), total / size)
      expect(dist.allreduce("*", 2), 2 ^ size)
      expect(dist.allreduce("max", rank), size - 1)
      expect(dist.allreduce("min", -rank), 1 - size)
      local ids = cf.tensor({rank, 5}, {dtype = "int64"})
      expect(dist.allreduce("+", ids), sum(function(r) return r end) .. " " .. 5 * size)
      for root = 0, size - 1 do
        local z = x()
        dist.reduce("+", root, z)
        expect(z:max():item(), rank == root and total or rank + 1)
        expect(dist.reduce("+", root, rank + 1), rank == root and total or rank + 1)
      end
      -- another device than the first
      local last = devices[#devices]
      expect(dist.allreduce("+", cf.full(rank + 1, 5000, {device = last})):max():item(), total)
    ]]
  end)

  it("averages by weights, of which 0 counts nothing", function()
    everywhere [[
      local weight = rank == 1 and 0 or rank + 1
      local total = sum(function(r) return r == 1 and 0 or r + 1 end)
      local wanted = sum(function(r) return r == 1 and 0 or (r + 1) * (r + 1) / total end)
      local x = cf.full(rank == 1 and 0 / 0 or rank + 1, 3000)
      assert(math.abs(dist.allreduce("avg", x, {weight = weight}):max():item() - wanted) < 1e-5)
      assert(math.abs(dist.allreduce("avg", rank == 1 and 0 / 0 or rank + 1, {weight = weight}) - wanted) < 1e-9)
      assert(refused(dist.allreduce, "+", 1, {weight = 1}):find "a weight needs the operation 'avg'")
      -- more devices than samples
      local loader = cf.data.DataLoader({x = cf.ones(2) * 3})
      for _, batch in loader:epoch(0) do
        local means = cf.withdevices(function(i) return batch[i].n > 0 and batch[i].x:mean() or cf.zeros({}) end)
        cf.allreduce("avg", means, {weights = batch})
        expect(means[1]:item(), 3)
      end
    ]]
  end)

  it("folds by a function, in the order of the ranks", function()
    everywhere [[
      local function digits(a, b) return a * 10 + b end
      local wanted = 0
      for r = 0, size - 1 do wanted = wanted * 10 + r + 1 end
      expect(dist.allreduce(digits, rank + 1), wanted)
      local t = dist.allreduce(digits, {cf.full(rank + 1, 2), b = cf.full(rank + 1, 3000)})
      expect(t[1], wanted .. " " .. wanted)
      expect(t.b:min():item(), wanted)
      local u = dist.reduce(digits, size - 1, cf.full(rank + 1, 1))
      expect(u:item(), rank == size - 1 and wanted or rank + 1)
      if size > 1 then
        assert(refused(dist.allreduce, function() end, cf.ones(2)):find "expected a function that returns a tensor")
        assert(refused(dist.allreduce, function() return cf.ones(3) end, cf.ones(2)):find "expected a result like")
      end
    ]]
  end)

  it("sends the root's value to all, of tensors, numbers, trees, models and optimisers' states", function()
    everywhere [[
      local nn = cf.nn
      for root = 0, size - 1 do
        expect(dist.bcast(rank * 10, root), root * 10)
        expect(dist.bcast(cf.full(rank, 3), root), ("%d %d %d"):format(root, root, root))
        local t = dist.bcast({cf.full(rank, 1), {deep = cf.full(rank + 0.5, 2000)}, name = "x", n = rank}, root)
        expect(t[1]:item(), root)
        expect(t[2].deep:min():item(), root + 0.5)
        expect(t.n, rank)
      end
      cf.seed(rank)
      local m = nn.Chain(nn.Dense(4, 100, "relu"), nn.BatchNorm(100), nn.Dense(100, 2))
      local state = cf.optim.Adam(0.1):setup(m)
      local l, g = cf.withgradient(function(m) return m(cf.ones(5, 4)):sum() end, m)
      cf.optim.update(state, m, g)
      dist.bcast(m, size - 1)
      dist.bcast(state, 0)
      local w = m[1].weight:sum():item()
      expect(dist.allreduce("max", w), dist.allreduce("min", w))
      dist.allreduce("avg", g)
      local v = g[1].weight:sum():item()
      expect(dist.allreduce("max", v), dist.allreduce("min", v))
    ]]
  end)

  it("gives requests", function()
    everywhere [[
      local x, y = cf.full(rank, 4000), cf.zeros(4000)
      local a, b = dist.iallreduce("+", x, {into = y}), dist.ibcast(cf.full(rank, 10), size - 1)
      local c = dist.iallreduce("+", 2)
      assert(a:wait() == y and a:test())
      expect(y:max():item(), sum(function(r) return r end))
      expect(x:min():item(), rank)
      local results = dist.waitall {a, b, c}
      assert(results[1] == y)
      expect(results[2]:max():item(), size - 1)
      expect(results[3], 2 * size)
      assert(refused(dist.iallreduce, "+", x, {into = cf.zeros(3)}):find "argument 'into'")
    ]]
  end)

  it("prints in the order of the ranks, whatever was printed before", function()
    for n = 1, 4 do
      local out, err, code = ranks(n, "cpu", [[
        for i = 1, 20 do dist.println("line", i) end
        dist.print "a"
        dist.print(("b"):rep(rank) .. "\n")
        dist.println0("first")
      ]])
      local wanted = {}
      local function line(r, text) return ("T [%d / %d] %s"):format(r, n, text) end
      for i = 1, 20 do
        for r = 0, n - 1 do wanted[#wanted + 1] = "[0] " .. line(r, "line\t" .. i) .. "\n" end
      end
      wanted[#wanted + 1] = "[0] "
      for r = 0, n - 1 do wanted[#wanted + 1] = line(r, "a") end
      for r = 0, n - 1 do wanted[#wanted + 1] = (r > 0 and "[0] " or "") .. line(r, ("b"):rep(r)) .. "\n" end
      wanted[#wanted + 1] = "[0] " .. line(0, "first") .. "\n"
      assert.same({table.concat(wanted), "", 0}, {(out:gsub("%d+%-%d+%-%d+ %d+:%d+:%d+", "T")), err, code})
    end
  end)

  it("logs a line of the script once a rank", function()
    local out, err, code = ranks(2, "cpu", "for i = 1, 3 do dist.log_once('slow') end")
    local lines = {}
    for line in err:gsub("%d+%-%d+%-%d+ %d+:%d+:%d+", "T"):gmatch "[^\n]+" do lines[#lines + 1] = line end
    table.sort(lines)
    assert.same({"", 0, {"[0] T [0 / 2] slow", "[1] T [1 / 2] slow"}}, {out, code, lines})
  end)

  it("goes on random streams from rank to rank", function()
    everywhere [[
      cf.seed(7)
      local mine = cf.withdevices(function() return cf.rand(3) end)
      local shared = cf.rand(3)
      expect(dist.allreduce("max", shared:sum():item()), shared:sum():item())
      local k = #devices
      dist.finalize()
      cf.seed(7)
      cf.devices("cpu*" .. size * k)
      local all = cf.withdevices(function() return cf.rand(3) end)
      for i = 1, k do expect(mine[i], table.concat(all[rank * k + i]:totable(), " ")) end
    ]]
  end)

  it("gathers rows, of which each rank may have its own number, and numbers", function()
    everywhere [[
      local x = dist.allgather(cf.full(rank, rank, 2))
      expect(#x, sum(function(r) return r end))
      local at = 0
      for r = 0, size - 1 do
        for _ = 1, r do
          at = at + 1
          expect(x[at], r .. " " .. r)
        end
      end
      local t = dist.allgather({a = cf.tensor({rank * 10}, {dtype = "int64"}), {cf.ones(2, 1000)}})
      expect(t.a[size]:item(), (size - 1) * 10)
      expect(#t[1][1], 2 * size)
      local list = dist.allgather(rank + 0.5)
      for r = 0, size - 1 do expect(list[r + 1], r + 0.5) end
    ]]
  end)

  it("scatters the rows of what it reduces", function()
    everywhere [[
      local x = cf.arange(1, 2 * size):reshape(2 * size, 1) * (rank + 1)
      local y, factor = dist.reducescatter("+", x), sum(function(r) return r + 1 end)
      expect(y, ("%d %d"):format((2 * rank + 1) * factor, (2 * rank + 2) * factor))
      expect(x[1]:item(), rank + 1)
      if size > 1 then
        assert(refused(dist.reducescatter, "+", cf.ones(size + 1)):find "a number of rows that %d ranks share evenly")
      end
    ]]
  end)

  it("makes tensors and numbers equal, and says what is not", function()
    everywhere [[
      local function value()
        return {a = cf.full(rank, 3), b = {n = rank, name = "rank " .. rank, cf.full(1, 2000)}}
      end
      local x = value()
      local same, path, r = dist.same(x)
      expect(same, size == 1)
      if size > 1 then
        expect(path, "a")
        expect(r, 1)
      end
      assert(dist.synchronize(x, size - 1) == x)
      expect(dist.same(x), true)
      expect(x.a[1]:item(), size - 1)
      expect(x.b.n, size - 1)
      expect(x.b.name, "rank " .. rank)
      expect(dist.synchronize(rank, size - 1), size - 1)
      expect(dist.synchronize("x"), "x")
      expect(dist.same(rank), size == 1)
      -- the sign of zero, and NaN, are bits too
      expect(dist.same(cf.full(rank == 0 and 0 or -0.0, 1)), size == 1)
      expect(dist.same(cf.full(0 / 0, 1)), true)
      local m = cf.nn.Dense(3, 4)
      local state = cf.optim.Adam(0.1):setup(m)
      state.step = rank
      dist.synchronize(state)
      expect(state.step, 0)
    ]]
  end)

  it("joins the replicas of all ranks, whose roots count all devices", function()
    everywhere [[
      local k = #devices
      local n = size * k
      local function digits(a, b) return a * 10 + b end
      local function list() return cf.withdevices(function(i) return {x = cf.full(rank * k + i, 2), n = 3} end) end
      local wanted = 0
      for i = 1, n do wanted = wanted * 10 + i end
      for _, r in ipairs(cf.allreduce(digits, list())) do expect(r.x, ("%d %d"):format(wanted, wanted)) end
      for root = 1, n do
        for i, r in ipairs(cf.reduce("+", root, list())) do
          expect(r.x[1]:item(), rank * k + i == root and n * (n + 1) / 2 or rank * k + i)
        end
        for i, r in ipairs(cf.reduce(digits, root, list())) do
          expect(r.x[1]:item(), rank * k + i == root and wanted or rank * k + i)
        end
        local states = list()
        for i, s in ipairs(states) do s.n, s.name = rank * k + i, "r" .. rank end
        cf.synchronize(states, root)
        for _, s in ipairs(states) do
          expect(s.x[2]:item(), root)
          expect(s.n, root)
          expect(s.name, "r" .. rank)
        end
      end
      assert(refused(cf.reduce, "+", n + 1, list()):find "argument 'root'")
      local mine = cf.allreduce("+", list(), {ranks = "local"})
      local total = 0
      for i = 1, k do total = total + rank * k + i end
      expect(mine[1].x[1]:item(), total)
      expect(cf.reduce("max", 1, list(), {ranks = "local"})[1].x[1]:item(), rank * k + k)
      expect(cf.synchronize(list(), k, {ranks = "local"})[1].x[1]:item(), rank * k + k)
      expect(dist.size(), size)
    ]]
  end)

  -- ---- what differs --------------------------------------------------------------------------------------------

  -- All ranks end by this error, whose %s stand for the script.
  local function all_say(n, text, wanted)
    local _, err, code, path = ranks(n, "cpu", text)
    path = path:gsub("%p", "%%%0")
    assert.equal(1, code)
    for r = 0, n - 1 do
      assert.matches(("[%d] conflux: %s:"):format(r, path):gsub("%[", "%%["):gsub("%]", "%%]")
        .. "%d+: " .. wanted:gsub("SCRIPT", path), err)
    end
  end

  it("shows both sides of trees that differ, in all ranks", function()
    all_say(3, "\ndist.allreduce('+', {a = cf.ones(2), [rank == 1 and 'b' or 'c'] = cf.ones(3)})",
      "conflux%.dist%.allreduce: ranks disagree: rank 0 has 'c' %(%[3%] float32%), and rank 1 has none "
      .. "%(rank 0 at SCRIPT:%d+, rank 1 at SCRIPT:%d+%)\n")
    all_say(2, "\ndist.bcast({a = rank == 0 and cf.ones(2, 3) or cf.ones(3, 2)})",
      "conflux%.dist%.bcast: ranks disagree: 'a' is %[2, 3%] float32 in rank 0, and %[3, 2%] float32 in rank 1 ")
    all_say(2, "\ndist.allreduce('+', cf.ones(2):to(rank == 0 and 'float32' or 'float64'))",
      "conflux%.dist%.allreduce: ranks disagree: the value is %[2%] float32 in rank 0, and %[2%] float64 in rank 1 ")
  end)

  it("shows both sides of replicas that differ", function()
    all_say(2, "cf.allreduce('+', {{a = cf.ones(2), [rank == 1 and 'b' or 'c'] = cf.ones(3)}})",
      "conflux%.allreduce: ranks disagree: rank 0 has 'c' %(%[3%] float32%), and rank 1 has none ")
  end)

  it("shows both calls where they differ, in all ranks", function()
    all_say(2, "if rank == 0 then dist.barrier() else\n dist.allreduce('max', 1) end",
      "conflux%.dist%.%l+: ranks disagree: rank 0 calls dist%.barrier at SCRIPT:%d+, "
      .. "and rank 1 calls dist%.allreduce max at SCRIPT:%d+\n")
    all_say(2, "dist.bcast(cf.ones(2), rank)",
      "conflux%.dist%.bcast: ranks disagree: rank 0 calls dist%.bcast root 0 at SCRIPT:%d+, "
      .. "and rank 1 calls dist%.bcast root 1 at SCRIPT:%d+\n")
    all_say(2, "local x = dist.allreduce('+', cf.ones(2)) if rank == 0 then dist.println(1) "
      .. "else dist.allreduce('+', x) x:sum():item() end", "conflux.-SCRIPT:%d+")
  end)

  it("names println0 where a rank prints alone", function()
    local _, err = ranks(2, "cpu", "if rank == 0 then dist.println(1) else dist.barrier() end")
    assert.matches("rank 0 calls dist%.println at %S+, and rank 1 calls dist%.barrier at %S+; "
      .. "cf%.dist%.println0 prints without the others\n", err)
  end)

  it("refuses integer buffers that differ, and integers' average", function()
    all_say(2, "local m = cf.nn.Chain(cf.nn.Dense(2, 2)) m.count = cf.tensor({rank}, {dtype = 'int64'}) "
      .. "dist.allreduce('avg', m)", "conflux%.dist%.allreduce: integer buffers must be equal: 'count' differs between "
      .. "rank 0 and rank 1\n")
    all_say(2, "dist.allreduce('avg', cf.tensor({1}, {dtype = 'int64'}))",
      "conflux%.dist%.allreduce: the value is %[1%] %(int64, cpu:0%): integers have no average")
  end)

  it("tells the others why a rank has ended", function()
    local _, err, code, path = ranks(3, "cpu", "if rank == 1 then error 'no more data' end\n"
      .. "dist.allreduce('+', cf.ones(3)):sum():item()")
    path = path:gsub("%p", "%%%0")
    assert.equal(1, code)
    for _, r in ipairs {0, 2} do
      assert.matches(("%%[%d%%] conflux: [^\n]*rank 1 of 3 %%(pid %%d+%%): %s:%%d+: no more data"):format(r, path), err)
    end
  end)

  it("refuses to replicate models that differ", function()
    all_say(2, "cf.seed(rank) cf.replicate(cf.nn.Chain(cf.nn.Dense(2, 3)))",
      "conflux%.replicate: the model's '1%.weight' differs between rank 0 and rank 1: ")
  end)

  it("makes a world of the ranks that are left", function()
    local out = ranks(3, "cpu", [[
      local x = dist.allreduce("+", cf.full(rank + 1, 3000))
      x:sum():item()
      if rank == 1 then error "no more data" end
      assert(refused(function() dist.allreduce("+", cf.ones(3000)):sum():item() end):find "no more data")
      dist.shrink()
      print(dist.rank(), dist.size(), dist.allreduce("+", 1), x:max():item(), dist.same(x))
    ]])
    assert.is_truthy(out:find("[0] 0\t2\t2\t6\ttrue\n", 1, true), out)
    assert.is_truthy(out:find("[2] 1\t2\t2\t6\ttrue\n", 1, true), out)
  end)

  it("lets a rank leave by os.exit", function()
    local out, err, code = ranks(2, "cpu", "if rank == 1 then os.exit(0) end print 'done'")
    assert.same({"[0] done\n", "", 0}, {out, err, code})
    out, err, code = ranks(2, "cpu", "if rank == 1 then os.exit(0) end dist.barrier()")
    assert.same({"", 1}, {out, code})
    assert.matches("rank 1 of 2 %(pid %d+, left the world%) has not come to collective", err)
  end)
end)
