-- cf.save, cf.load and the JSON beneath.
require "tests.spec.helper"
local cf = require "conflux"
local json = require "conflux.json"
local nn, optim = cf.nn, cf.optim

local path = os.tmpname()
teardown(function() os.remove(path) end)

local function round(x, o)
  cf.save(path, x)
  return cf.load(path, o)
end

local slurp = require "tests.spec.program".slurp

describe("save and load", function()
  it("bring back nested tables of tensors of every dtype", function()
    local x = {a = {cf.rand(2, 3), b = cf.ones(4)}}
    for _, dtype in ipairs {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"} do
      x[dtype] = cf.tensor({0, 1, 1}):to(dtype)
    end
    local y = round(x)
    assert.tensor_equal(y.a[1], x.a[1])
    assert.tensor_equal(y.a.b, x.a.b)
    for _, dtype in ipairs {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"} do
      assert.equal(dtype, y[dtype].dtype)
      assert.tensor_equal(y[dtype]:to "float32", {0, 1, 1})
    end
  end)

  it("bring back numbers, strings and booleans, as they were", function()
    local x = {1, -2.5, 0.1, 1e300, 2 ^ 53 - 1, "text",
      "\"\\\n\0\1é€😀", "\255\254", true, false, {}, name = {list = {1, 2}}}
    local y = round(x)
    for i = 1, 10 do assert.equal(x[i], y[i]) end
    assert.same({}, y[11])
    assert.same({1, 2}, y.name.list)
    local special = round {1 / 0, -1 / 0, 0 / 0}
    assert.equal(1 / 0, special[1])
    assert.equal(-1 / 0, special[2])
    assert.is_true(special[3] ~= special[3])
  end)

  it("bring back one tensor, and an empty one", function()
    assert.tensor_equal(round(cf.tensor {1, 2}), {1, 2})
    assert.tensor_equal(round(cf.zeros(0, 3)), cf.zeros(0, 3))
  end)

  it("keep ties, cycles, buffers and frozen marks", function()
    local w = cf.ones(2)
    local x = {w = w, again = w, state = nn.buffer(cf.ones(1)), fixed = nn.freeze(cf.ones(1)), t = {cf.ones(1)}}
    x.same, x.t.top = x.t, x
    local y = round(x)
    assert.is_true(y.w == y.again)
    assert.is_true(rawequal(y.same, y.t) and rawequal(y.t.top, y))
    local _, names = nn.parameters(y)
    assert.same({"again", "fixed", "same.1"}, names)
    local g = cf.gradient(function(m) return (m.w:sum() + m.fixed:sum()) end, y)
    assert.tensor_equal(g.fixed, {0})
  end)

  it("leave functions out, and keep positions", function()
    local y = round {cf.ones(1), print, cf.ones(2), f = print}
    assert.is_false(y[2])
    assert.tensor_equal(y[3], {1, 1})
    assert.is_nil(y.f)
  end)

  it("keep strided tensors' values", function()
    local x = cf.rand(3, 4)
    assert.tensor_equal(round {x:t()}[1], x:t())
  end)

  it("write what other programs read: names are tree paths", function()
    cf.save(path, {nn.Dense(2, 3), head = nn.Dense(3, 1)})
    local text = slurp(path)
    for _, name in ipairs {"1.weight", "1.bias", "head.weight", "head.bias"} do
      assert.is_truthy(text:find('"' .. name .. '"', 1, true))
    end
  end)

  it("read files of other programs, by the dots of their names", function()
    local data = ("\0"):rep(16)
    local header = '{"layers.1.w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},'
      .. '"layers.2.w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]},'
      .. '"odd.0.w":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}}'
    local f = io.open(path, "wb")
    f:write(string.char(#header % 256, math.floor(#header / 256)), ("\0"):rep(6), header, data)
    f:close()
    local x = cf.load(path)
    assert.same({1}, x.layers[2].w.shape)
    assert.same({2}, x.odd["0"].w.shape)
  end)

  it("refuse keys and paths that clash", function()
    assert.refuses(function() cf.save(path, {["a.b"] = cf.ones(1), a = {b = cf.ones(1)}}) end,
      "save: two tensors have the path 'a.b'")
    assert.has_error(function() cf.save(path, {[2] = cf.ones(1)}) end)
    assert.refuses(function() cf.save(path, 3) end, "save: argument 'tree'")
    assert.refuses(function() cf.save("/nowhere/x", {cf.ones(1)}) end, "")
  end)

  it("leave an earlier file as it is where saving fails", function()
    cf.save(path, {cf.ones(1)})
    local before = slurp(path)
    pcall(cf.save, path, {[2] = cf.ones(1)})
    assert.equal(before, slurp(path))
  end)

  it("refuse a file that was cut or is none", function()
    cf.save(path, {cf.ones(100)})
    local text = slurp(path)
    local f = io.open(path, "wb")
    f:write(text:sub(1, #text - 10))
    f:close()
    local ok, message = pcall(cf.load, path)
    assert.is_false(ok)
    assert.is_truthy(message:find(path, 1, true))
    assert.is_false((pcall(cf.load, "/nowhere/x")))
  end)
end)

describe("load into", function()
  local function model() return nn.Chain(nn.Dense(2, 3, "relu"), nn.Dense(3, 1)) end

  it("fills a model in place: the handles stay", function()
    local a, b = model(), model()
    local weight = b[1].weight
    assert.is_true(rawequal(b, round(a, {into = b})))
    assert.is_true(b[1].weight == weight)
    assert.tensor_equal(weight, a[1].weight)
    assert.tensor_equal(b(cf.ones(1, 2)), a(cf.ones(1, 2)))
  end)

  it("continues a training run with the same bits", function()
    local function step(m, s)
      local _, g = cf.withgradient(function(n) return (n(cf.ones(4, 2)) ^ 2):sum() end, m)
      optim.update(s, m, g)
    end
    local opt = optim.Adam(0.05)
    local m = model()
    local s = opt:setup(m)
    for _ = 1, 3 do step(m, s) end
    cf.save(path, {model = m, state = s})
    for _ = 1, 3 do step(m, s) end
    local n = model()
    local t = opt:setup(n)
    cf.load(path, {into = {model = n, state = t}})
    assert.equal(3, t.step)
    for _ = 1, 3 do step(n, t) end
    assert.tensor_equal(n[1].weight, m[1].weight)
    assert.tensor_equal(t.v[2].bias, s.v[2].bias)
  end)

  it("sets numbers, and keeps functions", function()
    local x = {lr = 1, f = print, name = "old", cf.zeros(1)}
    round({lr = 0.5, name = "new", cf.ones(1)}, {into = x})
    assert.equal(0.5, x.lr)
    assert.equal("new", x.name)
    assert.equal(print, x.f)
    assert.tensor_equal(x[1], {1})
  end)

  it("lists all that does not fit, and changes nothing", function()
    cf.save(path, {a = cf.ones(2), b = cf.ones(3), c = cf.ones(1), step = 3, sub = {4}})
    local into = {a = cf.zeros(2), b = cf.zeros(4), d = cf.zeros(1), step = 1, sub = 5}
    local ok, message = pcall(cf.load, path, {into = into})
    assert.is_false(ok)
    for _, text in ipairs {"'b' is [3] (float32) in the file, but [4] (float32) here",
      "'c' is in the file, but not here",
      "'d' is not in the file", "'sub' is a table in the file, but 5 here"} do
      assert.is_truthy(message:find(text, 1, true), text .. "\n" .. message)
    end
    assert.tensor_equal(into.a, {0, 0})
    assert.equal(1, into.step)
  end)

  it("refuses another dtype", function()
    assert.has_error(function() round({cf.ones(2)}, {into = {cf.ones(2, {dtype = "float64"})}}) end)
  end)
end)

describe("load with options", function()
  local function lists(text, f)
    local ok, message = pcall(f)
    assert.is_false(ok)
    assert.is_truthy(message:find(text, 1, true), message)
  end

  it("gives tensors other names, by a table of their parts or by a function", function()
    local x = {body = {{w = cf.full(1, 2)}, {w = cf.full(2, 2)}}, head = {w = cf.full(3, 2)}, step = 7}
    cf.save(path, x)
    local by_table = cf.load(path, {rename = {body = "", ["body.2"] = "second", ["head.w"] = "w"}})
    assert.same({"1.w", "second.w", "w"}, select(2, cf.tree.leaves(by_table)))
    local by_function = cf.load(path, {rename = function(name) return not name:find "head" and name .. "_" end})
    assert.tensor_equal(by_function.body[2].w_, {2, 2})
    assert.is_nil(by_function.head)
    assert.is_nil(by_function.step)
  end)

  it("takes a part of a file into a part of a model", function()
    cf.save(path, {backbone = {cf.ones(2), cf.full(2, 3)}, head = {cf.ones(5)}, epoch = 3})
    local model = {cf.zeros(2), cf.zeros(3), new = cf.full(9, 4)}
    assert.equal(model, cf.load(path, {into = model, rename = {backbone = "", head = false}, missing = "keep"}))
    assert.tensor_equal(model[1], {1, 1})
    assert.tensor_equal(model[2], {2, 2, 2})
    assert.tensor_equal(model.new, {9, 9, 9, 9})
    assert.is_nil(model.epoch)
  end)

  it("keeps what is missing and passes over what is unexpected, where told, and changes nothing else", function()
    cf.save(path, {a = cf.ones(2), b = cf.ones(3)})
    local into = {a = cf.zeros(2), c = cf.zeros(1)}
    lists("'b' is in the file, but not here", function() cf.load(path, {into = into, missing = "keep"}) end)
    lists("'c' is not in the file", function() cf.load(path, {into = into, unexpected = "ignore"}) end)
    assert.tensor_equal(into.a, {0, 0})
    cf.load(path, {into = into, missing = "keep", unexpected = "ignore"})
    assert.tensor_equal(into.a, {1, 1})
    assert.tensor_equal(into.c, {0})
    into.b = cf.zeros(4)
    lists("'b' is [3] (float32) in the file, but [4] (float32) here",
      function() cf.load(path, {into = into, missing = "keep", unexpected = "ignore"}) end)
  end)

  it("reads another program's metadata, and its narrow integers as int32", function()
    local header = '{"__metadata__":{"format":"pt","epoch":"3"},"a":{"dtype":"I8","shape":[3],"data_offsets":[0,3]},'
      .. '"b":{"dtype":"I16","shape":[2],"data_offsets":[3,7]},"c":{"dtype":"U16","shape":[1,1],"data_offsets":[7,9]},'
      .. '"d":{"dtype":"I16","shape":[0],"data_offsets":[9,9]}}'
    local file = assert(io.open(path, "wb"))
    file:write(string.char(#header % 256, math.floor(#header / 256)), ("\0"):rep(6), header, "\1\255\128",
      "\255\255\0\128", "\255\255")
    file:close()
    local x, metadata = cf.load(path, {metadata = true})
    assert.same({format = "pt", epoch = "3"}, metadata)
    assert.tensor_equal(x.a, cf.tensor({1, -1, -128}, {dtype = "int32"}))
    assert.tensor_equal(x.b, cf.tensor({-1, -32768}, {dtype = "int32"}))
    assert.tensor_equal(x.c, cf.tensor({{65535}}, {dtype = "int32"}))
    assert.same({0}, x.d.shape)
    assert.same({1}, {select("#", cf.load(path))})
  end)

  it("gives no metadata of its own", function()
    local _, metadata = round({1, cf.ones(1)}, {metadata = true})
    assert.same({}, metadata)
  end)

  it("refuses options that make no sense", function()
    cf.save(path, {a = cf.ones(1), b = cf.ones(1)})
    assert.refuses(function() cf.load(path, {missing = "keep"}) end,
      "load: the option missing says how to load into a tree, and `into` is nil")
    assert.refuses(function() cf.load(path, {into = {}, missing = "ignore"}) end,
      "load: argument 'missing': expected 'error' or 'keep', got 'ignore'")
    assert.refuses(function() cf.load(path, {rename = 3}) end,
      "load: argument 'rename': expected a table of names, or a function, got 3")
    assert.refuses(function() cf.load(path, {rename = {a = true}}) end,
      "load: argument 'rename': expected a table from names to names, or to false, got true for 'a'")
    assert.refuses(function() cf.load(path, {rename = function() return 1 end}) end,
      "load: argument 'rename': expected a function that gives a name, or false, for 'a', got 1")
    assert.refuses(function() cf.load(path, {rename = {a = "b"}}) end,
      ("load: %s: two of its tensors are to be named 'b'"):format(path))
  end)
end)

describe("json", function()
  it("writes keys in order and numbers that read back the same", function()
    assert.equal('{"a":[1,2.5,"x"],"b":{},"c":[],"d":null,"e":true}',
      json.encode {e = true, d = json.null, c = json.list {}, b = {}, a = {1, 2.5, "x"}})
    for _, v in ipairs {0.1, 1 / 3, 1e-320, 1.7976931348623157e308, 2 ^ 53, -0.5, 123456789012345680000} do
      assert.equal(v, json.decode(json.encode(v)))
    end
  end)

  it("reads what RFC 8259 allows", function()
    assert.same({a = {1, -0.25, 1000}, b = "\"\\/\n\t\r\8\12é😀"},
      json.decode ' { "a" : [ 1 , -2.5e-1 ,\n 1E+3 ] , "b":"\\"\\\\\\/\\n\\t\\r\\b\\f\\u00e9\\uD83D\\uDE00" } ')
  end)

  it("refuses what it does not allow, and says where", function()
    for _, text in ipairs {"", "{", "[1,]", "{\"a\":1,}", "01", "1.", ".5", "+1", "nul", "'a'", "\"a", "\"\\x\"",
      "[1 2]",
      "1 2", "\"\\ud800\"", "\"a\nb\"", "{1:2}", "- 1", "1e", ("["):rep(500)} do
      local ok, message = pcall(json.decode, text)
      assert.is_false(ok, text)
      assert.matches("^json: expected .* at byte %d+", message)
    end
    for _, v in ipairs {print, 0 / 0, {[2] = 1, a = 1}} do
      assert.is_false((pcall(json.encode, v)))
    end
  end)

  it("knows UTF-8", function()
    for _, s in ipairs {"", "abc", "é", "€", "😀", "\239\191\191"} do assert.is_true(json.is_utf8(s)) end
    for _, s in ipairs {"\128", "\255", "\192\128", "\237\160\128", "\244\144\128\128", "a\226\130", "\195a"} do
      assert.is_false(json.is_utf8(s))
    end
  end)
end)
