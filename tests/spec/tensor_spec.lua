local cf   = require "conflux"
local core = require "conflux.core"
local ffi  = require "ffi"
require "tests.spec.helper"
local devices = require "tests.spec.devices"
local on = devices.on

local DTYPES = {"bool", "uint8", "int32", "int64", "float16", "bfloat16", "float32", "float64"}

describe("a tensor", function()
  it("tells its shape, rank, dtype and device", function()
    local x = cf.zeros(2, 3, {dtype = "int32"})
    assert.same({2, 3}, x.shape)
    assert.equal(2, x.ndim)
    assert.equal("int32", x.dtype)
    assert.equal(on "cpu:0", tostring(x.device))
    assert.equal(2, #x)
    assert.equal(3, x:size(2))
    assert.equal(3, x:size(-1))
    assert.equal(6, x:numel())
    assert.equal(1, cf.tensor(1):numel())
  end)

  it("has a shape list of its own", function()
    local x = cf.zeros(2)
    x.shape[1] = 5
    assert.same({2}, x.shape)
  end)

  it("is equal to itself alone", function()
    local x, y = cf.ones(1), cf.ones(1)
    assert.is_true(x == x) -- luacheck: ignore 571
    assert.is_false(x == y)
    assert.is_false(x == nil)
    assert.is_true(x ~= nil)
    assert.is_false(x == "x")
    assert.refuses(function() local _ = x == 1 end, "eq: '==' compares a tensor by identity: use a:eq(b)")
    assert.refuses(function() local _ = x < y end, "lt: '<' and '<='")
    assert.refuses(function() local _ = x >= y end, "lt: '<' and '<='")
  end)

  it("has no other fields", function()
    local x = cf.ones(1)
    assert.refuses(function() local _ = x.shap end, "Tensor: a tensor has no field 'shap'")
    assert.refuses(function() x.grad = 1 end, "Tensor: cannot set field 'grad'")
  end)

  it("can be released twice, and is refused afterwards", function()
    local x = cf.ones(2)
    x:release()
    x:release()
    assert.equal("[released tensor]", tostring(x))
    assert.refuses(function() local _ = x + 1 end, "add: argument 'a': expected a tensor, got one that was released")
    assert.refuses(function() x:totable() end, "read: argument 'x': expected a tensor, got one that was released")
    assert.refuses(function() local _ = x.device end, "device: the tensor was released")
  end)
end)

describe("reading", function()
  it("gives Lua values in every dtype", function()
    for _, dtype in ipairs(DTYPES) do
      local x = cf.ones(2, {dtype = dtype})
      local one = dtype == "bool" and true or 1
      assert.same({one, one}, x:totable())
      assert.equal(one, x[1]:item())
    end
  end)

  it("takes the item of any tensor with one element", function()
    assert.equal(5, cf.full(5, 1, 1, 1):item())
    assert.equal(5, cf.tensor(5):item())
    assert.equal(5, cf.tensor(5):totable())
    assert.refuses(function() cf.ones(2):item() end,
      on "item: argument 'x': expected a tensor of one element, got [2] (float32, cpu:0)")
  end)

  it("refuses integers that a Lua number cannot hold", function()
    local x = cf.from(ffi.new("int64_t[3]", 2LL ^ 53, 2LL ^ 53 + 2, -5LL), {3})
    assert.equal(2 ^ 53, x[1]:item())
    assert.equal(-5, x[3]:item())
    assert.refuses(function() x[2]:item() end, "item: the int64 9007199254740994 is beyond 2^53")
    assert.refuses(function() x:totable() end, "totable: the int64")
  end)

  it("reads views with gaps", function()
    local x = cf.arange(1, 6):reshape(2, 3)
    assert.same({{1, 4}, {2, 5}, {3, 6}}, x:t():totable())
    assert.same({2, 5}, x[{{}, 2}]:totable())
    assert.same({{1}, {4}}, x[{{}, {1, 1}}]:totable())
  end)

  it("gives nested lists of empty tensors", function()
    assert.same({}, cf.zeros(0, 3):totable())
    assert.same({{}, {}}, cf.zeros(2, 0):totable())
  end)

  it("hands out a pointer of the dtype", function()
    local x = cf.arange(1, 4, {device = "cpu"})
    local p = x:pointer()
    assert.is_true(ffi.istype("float *", p))
    assert.equal(3, p[2])
    assert.equal(2, x[{{2, 3}}]:pointer()[0])
    assert.is_true(ffi.istype("int64_t *", cf.zeros(1, {dtype = "int64", device = "cpu"}):pointer()))
    assert.refuses(function() x:reshape(2, 2):t():pointer() end,
      "pointer: argument 'x': expected a packed tensor (see :contiguous()), got a view with gaps")
    if not devices.are_cpu then
      assert.refuses(function() cf.ones(1):pointer() end, on "pointer: the memory of cpu:0 cannot be read by the host")
    end
  end)
end)

describe("copies", function()
  it("convert between all dtypes", function()
    for _, from in ipairs(DTYPES) do
      for _, to in ipairs(DTYPES) do
        local x = cf.tensor({0, 1}, {dtype = from}):to(to)
        assert.equal(to, x.dtype)
        local one = to == "bool" and true or 1
        assert.equal(one, x[2]:item())
      end
    end
  end)

  it("return x itself where nothing changes", function()
    local x = cf.ones(2)
    assert.is_true(x:to("float32") == x)
    assert.is_true(x:to(on "cpu:0") == x)
    assert.is_true(x:to(x.device, "float32") == x)
    assert.is_true(x.device(x) == x)
    assert.is_true(x:contiguous() == x)
    assert.is_false(x:to("float64") == x)
    assert.refuses(function() x:to("float31") end, "to: argument 'where': expected a device such as 'cpu:0', or a")
    assert.refuses(function() x:to() end, "to: argument 'where': expected a dtype or a device, got nil")
  end)

  it("share nothing but where they are views", function()
    local x = cf.zeros(2)
    local clone, view = x:clone(), x:detach()
    x:fill_(1)
    assert.tensor_equal(clone, {0, 0})
    assert.tensor_equal(view, {1, 1})
  end)
end)

describe("indexing", function()
  local x
  before_each(function() x = cf.arange(1, 12):reshape(3, 4) end)

  it("counts from 1, and from the end if negative", function()
    assert.tensor_equal(x[1], {1, 2, 3, 4})
    assert.tensor_equal(x[-1], {9, 10, 11, 12})
    assert.equal(7, x[2][3]:item())
    assert.equal(7, x[{2, 3}]:item())
    assert.equal(12, x[{-1, -1}]:item())
  end)

  it("takes ranges with both ends, and steps", function()
    assert.tensor_equal(x[{{2, 3}}], {{5, 6, 7, 8}, {9, 10, 11, 12}})
    assert.tensor_equal(x[{{}, {2, 3}}], {{2, 3}, {6, 7}, {10, 11}})
    assert.tensor_equal(x[{2, {2, -1}}], {6, 7, 8})
    assert.tensor_equal(x[{1, {1, 4, 2}}], {1, 3})
    assert.tensor_equal(x[{{2}, 1}], {5})
    assert.same({0, 4}, x[{{1, 0}}].shape)
    assert.same({0, 4}, x[{{4, 3}}].shape)
    assert.tensor_equal(x[{}], x)
    assert.tensor_equal(x[{{}, {}}], x)
  end)

  it("makes views", function()
    x[1]:fill_(0)
    x[{{}, 4}]:add_(100)
    assert.tensor_equal(x, {{0, 0, 0, 100}, {5, 6, 7, 108}, {9, 10, 11, 112}})
    local whole = x[{}]
    whole:release()
    assert.equal(5, x[{2, 1}]:item())
  end)

  it("assigns numbers and tensors", function()
    x[1] = 0
    x[{2, {1, 2}}] = cf.tensor({-1, -2})
    x[{{}, 4}] = cf.tensor(7)
    x[{3, 3}] = 0.5
    assert.tensor_equal(x, {{0, 0, 0, 7}, {-1, -2, 7, 7}, {9, 10, 0.5, 7}})
    x[{}] = 1
    assert.tensor_equal(x, cf.ones(3, 4))
    local mask = cf.full(false, 2)
    mask[2] = true
    assert.tensor_equal(mask, {false, true})
  end)

  it("takes rows by ids from 0", function()
    local ids = cf.tensor({2, 0}, {dtype = "int64"})
    assert.tensor_equal(x[ids], {{9, 10, 11, 12}, {1, 2, 3, 4}})
    assert.same({1, 2, 4}, x[ids:reshape(1, 2)].shape)
    assert.refuses(function() local _ = x[cf.ones(2)] end, "index: argument 'ids': expected integers, got float32")
  end)

  it("names an id that is out of range at the next read", function()
    local bad = x[cf.tensor({3}, {dtype = "int64"})]
    local ok, message = pcall(bad.totable, bad)
    assert.is_false(ok)
    assert.matches("index: .*3", message)
    assert.tensor_equal(cf.ones(2), {1, 1}) -- the raise cleared the queue
  end)

  it("refuses positions that are none", function()
    assert.refuses(function() local _ = x[0] end,
      "index: argument '1': expected a position from 1 to 3, or from -1 to -3, got 0")
    assert.refuses(function() local _ = x[4] end, "index: argument '1': expected a position from 1 to 3")
    assert.refuses(function() local _ = x[1.5] end, "index: argument '1': expected a position")
    assert.refuses(function() local _ = x[0 / 0] end, "index: argument '1': expected a position")
    assert.refuses(function() local _ = x[{1, 5}] end, "index: argument '1': expected a position from 1 to 4")
    assert.refuses(function() local _ = x[{1, 1, 1}] end, "index: 3 positions for a tensor of 2 dimensions")
    assert.refuses(function() local _ = x[{{3, 1}}] end, "index: argument '1': expected a range that rises, got {3, 1}")
    assert.refuses(function() local _ = x[{{1, 4}}] end, "index: argument '1': expected a position from 1 to 3")
    assert.refuses(function() local _ = x[{{1, 3, 0}}] end, "index: argument 'step': expected an integer of at least 1")
    assert.refuses(function() local _ = x[true] end, "index: argument 'key': expected a position")
    assert.refuses(function() local _ = cf.tensor(1)[1] end, "index: a tensor without dimensions has no positions")
    assert.refuses(function() local _ = #cf.tensor(1) end, "size: a tensor without dimensions")
    assert.refuses(function() x[4] = 1 end, "index: argument '1': expected a position from 1 to 3")
    assert.refuses(function() x[1] = "1" end, "index: argument 'value': expected a number, got '1'")
    assert.refuses(function() x[1] = cf.ones(3) end, "copy_: argument 'y': expected a shape that broadcasts to a [4]")
    local ints = cf.zeros(2, {dtype = "int32"})
    assert.refuses(function() ints[1] = 1.5 end, "index: argument 'value': expected a value of int32, got 1.5")
  end)
end)

describe("the library", function()
  it("survives a second load", function()
    local x = cf.ones(2)
    local loaded = {}
    for name, module in pairs(package.loaded) do
      if name == "conflux" or name:find "^conflux%." then loaded[name] = module end
    end
    for name in pairs(loaded) do
      if name ~= "conflux.host" then package.loaded[name] = nil end
    end
    local again = require "conflux"
    assert.is_false(again == cf)
    assert.tensor_equal(again.zeros(2) + x, cf.ones(2))
    assert.equal(on "[2 float32, cpu:0]", tostring(x):match "[^\n]*$")
    for name, module in pairs(loaded) do package.loaded[name] = module end
    require("conflux.core").tensor_meta.__tostring = package.loaded["conflux.show"]
  end)

  it("sets no global", function()
    local out = require "tests.spec.program".run [[ -e '
      local before = {} for k in pairs(_G) do before[k] = true end
      require "conflux"
      for k in pairs(_G) do if not before[k] then print(k) end end
      print "none"']]
    assert.equal("none\n", out)
  end)

  it("keeps memory flat over many dropped tensors", function()
    collectgarbage()
    local before = cf.memory().in_use
    local shape = ffi.new("int64_t[1]", 2 ^ 20)
    for _ = 1, 20000 do -- 1 MiB each, uninitialised, so that only memory is at stake
      local x = core.new()
      assert(core.C.cfx_empty(cf.device(), core.dtype.uint8, 1, shape, x) == 0)
    end
    local grown = cf.memory().in_use - before
    assert.is_true(grown <= core.debt_threshold() + 2 ^ 21, ("%.0f MiB"):format(grown / 2 ^ 20))
    assert.is_true(core.debt_threshold() <= math.max(2 ^ 26, cf.memory().limit / 16))
    collectgarbage()
    collectgarbage()
    assert.is_true(cf.memory().in_use - before < 2 ^ 20)
  end)

  it("knows its devices by name", function()
    local cpu = cf.device "cpu"
    assert.is_true(cpu == cf.device "cpu:0")
    assert.equal("cpu:0", cpu.name)
    assert.is_true(cpu.threads >= 1)
    local first = cf.device(on "cpu:0")
    assert.is_true(cf.devices()[1] == first)
    assert.equal(first, cf.ones(1).device)
    assert.refuses(function() cf.device "cpu:77" end, "device: argument 'name': device 'cpu:77' does not exist")
    assert.refuses(function() cf.device(3) end, "device: argument 'name': expected a device or its name, got 3")
    assert.refuses(function() local _ = cpu.nmae end, "device: a device has no field 'nmae'")
  end)

  it("changes the run's devices, but not under a tensor's feet", function()
    finally(function()
      collectgarbage()
      devices.run(1)
    end)
    local two = cf.devices(devices.spec(2))
    assert.equal(2, #two)
    local x = cf.ones(2, {device = on "cpu:1"})
    assert.equal(on "cpu:1", tostring(x.device))
    assert.is_true(x:to(on "cpu:0").device == two[1])
    assert.tensor_equal(two[1](x), cf.ones(2))
    assert.refuses(function() local _ = x + cf.ones(2) end, on "add: argument 'b': expected a tensor on cpu:1")
    assert.refuses(function() cf.devices(devices.spec(1)) end, on "devices: tensors live on cpu:1")
    local second = two[2]
    x:release()
    cf.devices(devices.spec(1))
    assert.refuses(function() local _ = second.name end, "device: this device is no longer one of the run's")
    assert.refuses(function() cf.ones(1, {device = second}) end, "ones: argument 'device': this device is no longer")
  end)

  it("tells of itself", function()
    assert.matches("^%d+%.%d+%.%d+$", cf.version)
    assert.matches("^Conflux " .. cf.version:gsub("%.", "%%."), tostring(cf.info()))
    assert.equal("float32", cf.precision())
    assert.equal("bfloat16", cf.precision "bfloat16")
    cf.precision "float32"
    assert.refuses(function() cf.precision "float8" end, "precision: expected float32, tf32 or bfloat16, got 'float8'")
    assert.is_true(cf.memory().reserved > 0)
    cf.sync()
    cf.sync "cpu"
  end)
end)
