-- Saved files: cf.load reads back equal all that cf.save accepts, which refuses all else before anything is
-- written.
require "tests.spec.helper"
local cf = require "conflux"
local core = require "conflux.core"
local ffi = require "ffi"
local json = require "conflux.json"
local tree = require "conflux.tree"
local program = require "tests.spec.program"
local nn, slurp = cf.nn, program.slurp

local directory = os.tmpname()
os.remove(directory)
assert(os.execute("mkdir " .. directory) == 0)
local path = directory .. "/tree.st"
teardown(function() os.execute("rm -r " .. directory) end)

local function round(x)
  cf.save(path, x)
  return cf.load(path)
end

local function names()
  return (program.shell(("ls -A %s\n"):format(directory)))
end

-- A file with this header, and 8 bytes of data if there is a tensor.
local function write_header(header)
  local file = assert(io.open(path, "wb"))
  file:write(string.char(#header % 256, math.floor(#header / 256)), ("\0"):rep(6), header)
  if header:find("data_offsets", 1, true) then file:write(("\0"):rep(8)) end
  file:close()
end

-- A file with this text as its tree, as an earlier version or another program may have written it.
local function write_meta(text, tensors)
  write_header(('{"__metadata__":%s%s}'):format(json.encode {conflux = text}, tensors and "," .. tensors or ""))
end

local function nest(n, leaf)
  local t = {leaf}
  for _ = 2, n do t = {t} end
  return t
end

-- A tree that is saved, then one that is not: the file keeps the first, and nothing lies beside it.
local function keeps_the_old_file(f)
  cf.save(path, {1, cf.ones(2)})
  local before, files = slurp(path), names()
  f()
  assert.equal(before, slurp(path))
  assert.equal(files, names())
end

describe("ties and cycles", function()
  it("load as the table they were, whatever the paths look like", function()
    local lr, s = {rate = 1}, {rate = 2}
    assert.equal(1, round({["enc.1"] = {rate = .5}, enc = {lr}, sched = lr}).sched.rate)
    local y = round {[1] = s, ["1"] = {rate = .5}, z = s}
    assert.equal(2, y.z.rate)
    assert.is_true(rawequal(y[1], y.z))
    assert.equal(.5, y["1"].rate)
    y = round {[""] = {a = s, [""] = lr}, a = {rate = .5}, y = lr, z = s}
    assert.is_true(rawequal(y.z, y[""].a) and rawequal(y.y, y[""][""]))
    local x = {a = {{}}, ["a.1"] = {}}
    x.a[1].top, x["a.1"].up, x["a.1"].other = x, x["a.1"], x.a[1]
    y = round(x)
    assert.is_true(rawequal(y.a[1].top, y) and rawequal(y["a.1"].up, y["a.1"]) and rawequal(y["a.1"].other, y.a[1]))
  end)

  it("of an earlier version's files load where only one table has their path", function()
    write_meta [[{"fields":{"a":{"list":[{"fields":{"rate":1}}]},"b":{"same":"a.1"},"c":{"same":""}}}]]
    local y = cf.load(path)
    assert.is_true(rawequal(y.b, y.a[1]) and rawequal(y.c, y))
    write_meta('{"fields":{"enc":{"list":[{"fields":{"rate":1}}]},"enc.1":{"fields":{"rate":2}},'
      .. '"s":{"same":"enc.1"}}}')
    local text = path .. ": an earlier version saved it, and its tree has a tie to one of two tables with the path "
    assert.refuses(function() cf.load(path) end, "load: " .. text .. "'enc.1'")
    assert.refuses(function() cf.load(path, {into = {}}) end, "load: " .. text .. "'enc.1'")
  end)

  it("are refused by a tree that has others", function()
    local function refused(x, into, text)
      cf.save(path, x)
      assert.refuses(function() cf.load(path, {into = into}) end,
        ("load: %s: it does not fit:\n  %s"):format(path, text))
    end
    local t, u = {rate = 1}, {rate = 5}
    refused({a = t, b = t}, {a = {rate = 5}, b = {rate = 6}},
      "'b' is the table at 'a' in the file, but another one here")
    refused({a = t, b = {rate = 2}}, {a = u, b = u}, "'b' is the table at 'a' here, but another one in the file")
    assert.equal(5, u.rate)
    local into = {a = u, b = u}
    cf.save(path, {a = t, b = t})
    cf.load(path, {into = into})
    assert.equal(1, u.rate)
    refused({["a.b"] = cf.ones(1)}, {["a.b"] = cf.zeros(1), a = {b = cf.zeros(1)}},
      "two tensors here have the path 'a.b'")
    refused({a = {}}, {a = 5}, "'a' is a table in the file, but 5 here")
    refused({tensor = cf.ones(1), n = 1}, cf.zeros(1), "'' is a table in the file, but ")
  end)

  it("are counted so that a node of another kind, or of a later version, is refused", function()
    for _, text in ipairs {'{"same":2}', '{"same":0}', '{"same":1.5}', '{"same":true}', '{"same":null}', '{"same":"a"}',
      '{"tensor":"w"}', '{"tensor":1}'} do
      write_meta(('{"list":[%s]}'):format(text))
      assert.refuses(function() cf.load(path) end, ("load: %s: its tree names a t"):format(path))
    end
    for _, text in ipairs {'{"later":1}', '{"list":[],"later":1}', '{"same":1,"fields":{}}', '{"number":"big"}',
      '{"number":1}', '{"bytes":"0"}', '{"bytes":"0g"}', '{"bytes":1}', '[]', '[1]', '{"list":{}}', '{"fields":[]}',
      '{"fields":1}', '{"list":1}', '{"list":null}', '{"fields":null}'} do
      write_meta(('{"fields":{"x":%s}}'):format(text))
      assert.refuses(function() cf.load(path) end,
        ("load: %s: its tree has a node at 'x' that this version does not know"):format(path))
    end
    write_meta('{"tensor":"w","marks":"later"}', '"w":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}')
    assert.refuses(function() cf.load(path) end, ("load: %s: its tree has a node at '' that"):format(path))
    for _, text in ipairs {"null", "1", "\"x\"", "{", "[1,"} do
      write_meta(text)
      assert.refuses(function() cf.load(path) end, ("load: %s: its metadata is no tree"):format(path))
    end
  end)
end)

describe("depth", function()
  it("has one limit for writer and reader", function()
    local y = round(nest(tree.DEPTH, cf.ones(1)))
    for _ = 1, tree.DEPTH do y = y[1] end
    assert.tensor_equal(y, {1})
    for _, leaf in ipairs {1, "\255", 0 / 0} do round(nest(tree.DEPTH, leaf)) end
    keeps_the_old_file(function()
      for _, leaf in ipairs {1, cf.ones(1)} do
        assert.refuses(function() cf.save(path, nest(tree.DEPTH + 1, leaf)) end, "tree: tables lie more than 500 deep")
      end
    end)
    for _, depth in ipairs {501, 520, 3000} do
      write_meta(('{"list":['):rep(depth - 1) .. "{}" .. ("]}"):rep(depth - 1))
      assert.refuses(function() cf.load(path) end, ("load: %s: its "):format(path))
    end
  end)

  it("of another program's names is followed as far as trees go", function()
    for _, depth in ipairs {tree.DEPTH, tree.DEPTH + 1, 20000} do
      local name = ("a."):rep(depth - 1) .. "a"
      write_header(('{"%s":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}}'):format(name))
      local y = cf.load(path)
      local _, paths = cf.tree.leaves(y)
      assert.same({name}, paths)
      assert.equal(depth <= tree.DEPTH, y[name] == nil)
    end
  end)

  it("of 100,000 is refused at the caller's line by whatever walks trees", function()
    local x, w, deep = cf.ones(1), cf.ones(2, 2), nest(1e5, 1)
    local model = {w = w, deep = deep}
    local layer = nn.Dense(2, 2)
    layer.deep = deep
    local state = cf.optim.Adam(0.1):setup {x}
    local op = cf.op("deep", {forward = function(t) return t[1] * 1 end, backward = function() end})
    local function loss() return (w * w):sum() end
    for name, f in pairs {
      leaves = function() cf.tree.leaves(deep) end,
      walk = function() cf.tree.walk(model, function() end) end,
      map = function() cf.tree.map(function(t) return t end, deep) end,
      ["map of two"] = function() cf.tree.map(function(t) return t end, model, model) end,
      norm = function() cf.tree.norm(model) end,
      to = function() cf.tree.to(model, "float64") end,
      device = function() cf.device()(deep) end,
      save = function() cf.save(path, model) end,
      into = function() round {1} cf.load(path, {into = deep}) end,
      replicate = function() cf.replicate(model) end,
      parameters = function() nn.parameters(model) end,
      freeze = function() nn.freeze(model) end,
      unfreeze = function() nn.unfreeze(model) end,
      print = function() return tostring(layer) end,
      gradient = function() cf.gradient(loss, model) end,
      withgradient = function() cf.withgradient(loss, model) end,
      addgradient = function() cf.addgradient({w = w}, loss, model) end,
      setup = function() cf.optim.Adam(0.1):setup(model) end,
      update = function() cf.optim.update(state, model, model) end,
      synchronize = function() cf.synchronize {model, model} end,
      allreduce = function() cf.allreduce("sum", {deep, deep}) end,
      op = function() cf.gradient(function(v) return op({v, deep}) end, x) end,
    } do
      local ok, message = pcall(f)
      assert.is_false(ok, name)
      assert.matches("^[^\n]*saved_spec%.lua:%d+: conflux%.[%w.]+: tables lie more than 500 deep inside each other, "
        .. "at '", message, nil, nil, name)
    end
  end)

  it("hinders nothing that does not care for order", function()
    local deep, ring = nest(1e5, nn.Dropout(0.5)), {n = 1}
    local last = ring
    for i = 2, 1e4 do
      last.next = {n = i, back = last}
      last = last.next
    end
    last.next = ring
    nn.eval(deep)
    nn.train(deep)
    nn.eval(ring)
    local layer = nn.layer "Fails"
    function layer.forward(_, x) return x + nil end
    local outer = nn.Chain(layer())
    outer.ring, outer.deep = ring, deep
    local ok, message = pcall(outer, cf.ones(1))
    assert.is_false(ok)
    assert.matches("in layer '1' %(Fails%)", message)
  end)
end)

describe("keys", function()
  it("are UTF-8, and the message says which is not", function()
    keeps_the_old_file(function()
      assert.refuses(function() cf.save(path, {a = {b = {["x\255\0y"] = 1}}}) end,
        "save: the key 'x\\255\\0y' of the table at 'a.b' is not UTF-8, as the keys in a file are")
      assert.refuses(function() cf.save(path, {["\255"] = cf.ones(1)}) end,
        "save: the key '\\255' of the table at the top is not UTF-8, as the keys in a file are")
      assert.refuses(function() cf.save(path, {a = {["b\0c"] = {cf.ones(1)}}}) end,
        "save: the tensor 'a.b\\0c.1': no name in a file holds a zero byte")
      assert.refuses(function() cf.save(path, {["__metadata__"] = cf.ones(1)}) end,
        "save: no tensor can be named '__metadata__'")
    end)
    local y = round {["a\0b"] = {["\0"] = 2}, ["é\n\127\""] = 3, [""] = {[""] = 4}, ["1.2"] = 5}
    assert.equal(2, y["a\0b"]["\0"])
    assert.equal(3, y["é\n\127\""])
    assert.equal(4, y[""][""])
    assert.equal(5, y["1.2"])
  end)

  it("that give two parameters one path are refused by an optimiser, which knows them by it", function()
    local m = {["a.b"] = cf.ones(1), a = {b = cf.ones(1)}}
    assert.refuses(function() cf.optim.Adam():setup(m) end, "setup: two parameters have the path 'a.b'")
  end)
end)

describe("values", function()
  it("of no form in a file are refused with their place", function()
    keeps_the_old_file(function()
      for text, v in pairs {["an int64_t"] = 1LL, ["a uint64_t"] = 1ULL, ["a userdata"] = io.stdout,
        ["a thread"] = coroutine.create(print), ["a float"] = ffi.new("float", 1)} do
        assert.refuses(function() cf.save(path, {cf.ones(1), a = {v}}) end,
          ("save: 'a.1' is %s, and a file holds tensors, tables, strings, numbers and booleans"):format(text))
        assert.is_false((pcall(cf.save, path, {x = v})))
      end
    end)
  end)

  it("keep the sign of zero", function()
    local y = round {-0.0, 0, a = -0.0}
    assert.equal(-math.huge, 1 / y[1])
    assert.equal(math.huge, 1 / y[2])
    assert.equal(-math.huge, 1 / y.a)
  end)
end)

describe("a path", function()
  it("with a zero byte is refused, and so is such a name", function()
    local text = ("': expected a string without zero bytes, got '%s\\0.old'"):format(path)
    keeps_the_old_file(function()
      assert.refuses(function() cf.save(path .. "\0.old", {1}) end, "save: argument 'path" .. text)
      assert.refuses(function() cf.load(path .. "\0.old") end, "load: argument 'path" .. text)
      assert.refuses(function() cf.data.idx(path .. "\0.old") end, "data.idx: argument 'path" .. text)
      assert.refuses(function() cf.data.csv(path .. "\0.old") end, "data.csv: argument 'path" .. text)
    end)
    for _, f in ipairs {
      cf.device, cf.devices, cf.memory, cf.sync, cf.precision,
      function(v) cf.ones(1, {device = v}) end,
      function(v) cf.ones(1):to(v) end,
      function(v) cf.tree.to({cf.ones(1)}, v) end,
      function(v) cf.replicate({}, v) end,
      function(v) cf.withdevices(print, {v}) end,
      function(v) cf.load(path, {device = v}) end,
      function(v) cf.data.DataLoader({cf.ones(1)}, {devices = {v}}) end,
      function(v) cf.progress(1, {label = v}) end,
    } do
      local ok, message = pcall(f, "cpu:0\0x")
      assert.is_false(ok)
      assert.matches("got 'cpu:0\\0x'", message, 1, true)
    end
    assert.is_false(cf.device "cpu:0" == "cpu:0\0x")
    assert.refuses(function() return cf.replicate({1}, {"cpu:0"})["cpu:0\0x"] end, "Replicas: ")
  end)

  it("through a link to no file yet makes that file", function()
    local link = directory .. "/link"
    assert.equal(0, os.execute(("cd %s && mkdir runs && ln -s runs/new.st link"):format(directory)))
    cf.save(link, {7})
    assert.equal(0, os.execute("test -L " .. link))
    assert.same({7}, cf.load(directory .. "/runs/new.st"))
    os.execute(("cd %s && rm -r link runs && ln -s link link"):format(directory))
    assert.refuses(function() cf.save(link, {7}) end, ("save: %s: Too many levels of symbolic links"):format(link))
    os.remove(link)
  end)
end)

-- ---- random trees -------------------------------------------------------------------------------------------

local random = math.random

local function pick(list) return list[random(#list)] end

local KEYS = {"a", "b", "a.b", "1", "2", "1.2", "", ".", "..", "a.", "tensor", "list", "fields", "same", "conflux",
  "__metadata", "é", "日本.1", "x\0y", "\0", "a\nb", '"', "\\", "\127", "training", "weight"}
local BAD_KEYS = {"\255", "a.\192\128", "\237\160\128", true, 0, -1, 1.5, 1e6, 2 ^ 53}
local NUMBERS = {0, -0.0, 1, -1, 0.1, 1 / 3, 2 ^ 53, -2 ^ 63, 1e300, 5e-324, 1.7976931348623157e308, 1 / 0, -1 / 0,
  0 / 0, 999999999999999, 1e15, 123456789012345680}
local STRINGS = {"", "text", "\0", "a\0b", "\255\254\0", "é€😀", "\"\\\n\r\t\b\f\127", "null", ("x"):rep(3000),
  "\239\187\191"}
local LEFT_OUT = {print, function() end, cf.device "cpu:0"}
local DTYPES = {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
local SHAPES = {{}, {0}, {1}, {3}, {2, 3}, {2, 0, 3}, {1, 2, 1, 2, 1, 2, 1, 2}}

local function random_tensor()
  local dtype, shape = pick(DTYPES), pick(SHAPES)
  local t = (cf.rand(shape) * 9):to(dtype)
  if #shape == 2 then t = pick {t, t:t(), t[{}] or t} end
  local mark = dtype:find "float" and pick {nn.buffer, nn.freeze}
  return mark and random(2) == 1 and mark(t) or t
end

-- made: tables and tensors so far; `is_bad` where there is something that no file holds, one time in `rare`.
local function random_tree(made, depth)
  local kind = depth == 0 and 7 or random(13)
  if kind <= 2 then return pick(NUMBERS) end
  if kind == 3 then return pick(STRINGS) end
  if kind == 4 then return random(2) == 1 end
  if kind == 5 and #made > 0 then return pick(made) end
  if kind == 6 then return pick(LEFT_OUT) end
  if kind <= 9 and kind ~= 7 then
    made[#made + 1] = random_tensor()
    return made[#made]
  end
  if kind == 10 and random(made.rare) == 1 then
    made.is_bad = true
    return pick {1LL, 1ULL, io.stdout, coroutine.create(print), ffi.new "int[1]"}
  end
  local t = {}
  made[#made + 1] = t
  if depth >= 5 then return t end
  for i = 1, random(0, 3) do t[i] = random_tree(made, depth + 1) end
  for _ = 1, random(0, 4) do
    local key = pick(KEYS)
    if t[key] == nil then t[key] = random_tree(made, depth + 1) end
  end
  if random(made.rare) == 1 then
    made.is_bad = true
    t[pick(BAD_KEYS)] = 1
  end
  if random(60) == 1 then
    local levels = pick {2, 50, 99, 100, 490, 501, 2000}
    t.deep = nest(levels, random_tree(made, depth + 1))
    made.is_bad = made.is_bad or levels > tree.DEPTH
  end
  return t
end

local same

local function same_tensor(x, y)
  assert(core.is_tensor(y), "no tensor")
  assert.equal(tonumber(x._flags) % 4, tonumber(y._flags) % 4)
  assert.tensor_equal(x, y)
end

local function same_table(x, y, met)
  if met[x] or met[y] then return assert(rawequal(met[x], y) and rawequal(met[y], x), "another tie") end
  met[x], met[y] = y, x
  local n = #x
  assert.equal(n, #y)
  for i = 1, n do
    if core.is_device(x[i]) or type(x[i]) == "function" then assert.is_false(y[i]) else same(x[i], y[i], met) end
  end
  for k, v in pairs(x) do
    if type(k) == "string" and (core.is_device(v) or type(v) == "function") then assert.is_nil(rawget(y, k))
    elseif type(k) == "string" then same(v, rawget(y, k), met) end
  end
  for k in pairs(y) do assert(rawget(x, k) ~= nil, "a key too many") end
end

-- Raises unless y is what a file can say of x: met[x] is what stands for the table or tensor x.
function same(x, y, met)
  if type(x) == "table" then
    assert.equal("table", type(y))
    return same_table(x, y, met)
  elseif core.is_tensor(x) then
    if met[x] then return assert(rawequal(met[x], y), "another tie") end
    met[x] = y
    return same_tensor(x, y)
  end
  assert(type(x) == type(y) and (x == y and (x ~= 0 or 1 / x == 1 / y) or x ~= x and y ~= y), "another value")
end

-- Other values of the same kinds in the same places.
local function spoil(x, seen)
  if core.is_tensor(x) then return x:fill_(0) end
  if type(x) ~= "table" or seen[x] then return end
  seen[x] = true
  for k, v in pairs(x) do
    if type(v) == "number" then x[k] = 77 elseif type(v) == "string" then x[k] = "other" end
    spoil(v, seen)
  end
end

local REFUSED = {"two tensors have the path", "no name in a file holds a zero byte", "tables lie more than 500 deep"}

local function is_known(message)
  for i = 1, #REFUSED do
    if message:find(REFUSED[i], 1, true) then return true end
  end
end

describe("random trees", function()
  it("load as they were, or are refused before anything is written", function()
    local first, accepted, refused = os.time(), 0, 0
    cf.save(path, {1})
    local files = names()
    for seed = first, first + 199 do
      math.randomseed(seed)
      local made = {rare = pick {10, 40, 1e9, 1e9}}
      local x, before = random_tree(made, 0), slurp(path)
      local ok, message = pcall(cf.save, path, x)
      local where = ("seed %d: %s"):format(seed, tostring(message))
      if ok then
        accepted = accepted + 1
        assert.is_falsy(made.is_bad, where)
        local loaded = cf.load(path)
        local fits, why = pcall(same, x, loaded, {})
        assert.is_true(fits, ("seed %d: %s"):format(seed, tostring(why)))
        spoil(loaded, {})
        cf.load(path, {into = loaded})
        fits, why = pcall(same, x, loaded, {})
        assert.is_true(fits, ("into, seed %d: %s"):format(seed, tostring(why)))
      else
        refused = refused + 1
        assert.matches("^[^\n]*saved_spec%.lua:%d+: conflux%.", message, nil, nil, where)
        assert.is_true(made.is_bad or is_known(message), where)
        assert.equal(before, slurp(path), where)
        assert.equal(files, names(), where)
      end
    end
    assert.is_true(accepted > 50 and refused > 20, ("%d accepted, %d refused"):format(accepted, refused))
  end)
end)
