-- The messages that answer mistakes: each says what was meant, not where it was stumbled over.
require "tests.spec.helper"
local cf = require "conflux"
local core = require "conflux.core"
local names = require "conflux.names"
local devices = require "tests.spec.devices"
local on = devices.on
local nn, optim = cf.nn, cf.optim

local function message_of(f, ...)
  local ok, message = pcall(f, ...)
  assert(not ok, "nothing was refused")
  return message
end

-- "<this file>:<line>: <text>"
local function says(text, f)
  local message = message_of(f)
  local rest = message:match "^[^\n]*messages_spec%.lua:%d+: (.*)$"
  assert(rest and rest:sub(1, #text) == text, ("expected: %s\ngot: %s"):format(text, message))
end

describe("a message", function()
  it("says the dtype that was meant", function()
    local x = cf.ones(2)
    for given, meant in pairs {int = "int32", long = "int64", float = "float32", half = "float16", Int32 = "int32",
      flot32 = "float32"} do
      assert.matches(("got '%s'; '%s' is meant?"):format(given, meant), message_of(x.to, x, given), 1, true)
      assert.matches(("got '%s'; '%s' is meant?"):format(given, meant), message_of(cf.ones, 2, {dtype = given}), 1,
        true)
    end
    says("conflux.to: argument 'where': expected a device such as 'cpu:0', or a dtype: bool, uint8,",
      function() x:to "nonsense" end)
    says("conflux.to: argument 'where': device 'cpu:77' does not exist", function() x:to "cpu:77" end)
  end)

  it("says how a result is put together in a loss", function()
    local m, x = nn.Dense(2, 2), cf.ones(3, 2)
    for _, assign in ipairs {
      function(y, v) y[1] = v[1] end, function(y, v) y[{{1, 2}, {}}] = v[{{1, 2}, {}}] end,
      function(y, v) y[{}] = v end,
    } do
      assert.matches("conflux.index: a value that a gradient is recorded of cannot be assigned into a slice: put the "
        .. "parts together by cf.concat or cf.stack", message_of(cf.gradient, function(model)
          local y = cf.zeros(3, 2)
          assign(y, model(x))
          return y:sum()
        end, m), 1, true)
    end
  end)

  it("calls an operation in place by its name", function()
    local x, m = cf.ones(2, 2), nn.Dense(2, 2)
    for _, name in ipairs {"add_", "sub_", "mul_", "div_", "fill_", "clamp_", "copy_"} do
      local y = name == "copy_" and x or 2
      assert.matches(("conflux.%s: the tensor is part of a gradient being recorded"):format(name),
        message_of(cf.gradient, function(model)
          model.weight[name](model.weight, y)
          return model(x):sum()
        end, m), 1, true)
      if name ~= "fill_" and name ~= "clamp_" then
        says(("conflux.%s: argument 'y': expected a shape that broadcasts to a [2, 2]"):format(name),
          function() x[name](x, cf.ones(3)) end)
      end
    end
  end)

  it("says that an optimiser's rate comes first, and what options are called", function()
    says("conflux.Adam: unknown option 'lr': known are betas, decay, eps; the rate is the first argument, as in "
      .. "optim.Adam(1e-3)", function() optim.Adam {lr = 1e-3} end)
    says("conflux.AdamW: unknown option 'weight_decay': known are betas, decay, eps; 'decay' is meant?",
      function() optim.AdamW(1e-3, {weight_decay = 0.1}) end)
    says("conflux.Momentum: unknown option 'momentum': known are decay, rho; 'rho' is meant?",
      function() optim.Momentum(1e-3, {momentum = 0.1}) end)
    says("conflux.sum: unknown option 'keepdims': known are keepdim; 'keepdim' is meant?",
      function() cf.ones(2):sum(1, {keepdims = true}) end)
    says("conflux.DataLoader: unknown option 'batch_size': known are", function()
      cf.data.DataLoader({cf.ones(2)}, {batch_size = 2})
    end)
  end)

  it("says that methods are called with a colon", function()
    local m = nn.Chain(nn.Dense(2, 2))
    says("conflux.Chain: forward is a method, called on [2, 2] (float32, ", function() m.forward(cf.ones(2, 2)) end)
    says("conflux.Dense: forward is a method, called on [2, 2] (float32, ", function() m[1].forward(cf.ones(2, 2)) end)
    says("conflux.setup: argument 'self': expected an optimiser, as in opt:setup(model) with a colon, got a table",
      function() optim.Adam().setup(m) end)
    says("conflux.data.DataLoader.epoch: argument 'self': expected what cf.data.DataLoader makes, as in x:epoch(..)",
      function() cf.data.DataLoader({cf.ones(2)}).epoch(1) end)
  end)

  it("says how layers go into a Chain", function()
    local layers = {nn.Dense(2, 2), nn.Dense(2, 2)}
    says("conflux.Chain: argument '1': expected layers one by one, got a list: Chain(unpack(list))",
      function() nn.Chain(layers) end)
  end)

  it("says that a gradient of a gradient is not supported", function()
    local m, x = nn.Dense(2, 2), cf.ones(2, 2)
    local function loss(model) return model(x):sum() end
    says("conflux.withgradient: parameter 1 is watched by a gradient being recorded: a gradient of a gradient is not "
      .. "supported", function()
        cf.gradient(function(model)
          local g = cf.gradient(loss, model)
          return (g.weight * g.weight):sum()
        end, m)
      end)
    assert.matches("conflux.mul: its inputs are watched by two gradients, and a gradient of a gradient is not",
      message_of(cf.gradient, function(w)
        return (cf.gradient(function(v) return (v * w):sum() end, cf.ones(2)))
      end, cf.ones(2)), 1, true)
  end)

  it("says what a field of a layer has to be", function()
    local m, x = nn.Dense(2, 2), cf.ones(2, 2)
    m.weight = {{1, 0}, {0, 1}}
    says("conflux.Dense: field 'weight': expected a tensor, got a table (in layer Dense)", function() m(x) end)
    local chain = nn.Chain(nn.Dense(2, 2), nn.Dense(2, 2), nn.Dense(2, 2))
    chain[2] = nil
    says("conflux.Chain: field '2': expected a layer, a function or the name of an activation, got nil",
      function() chain(x) end)
    chain[2] = "nonsense"
    says("conflux.Chain: field '2': expected a layer, a function or the name of an activation, got 'nonsense'",
      function() chain(x) end)
  end)
end)

describe("a message about devices", function()
  devices.use(2, setup, teardown)

  it("says where x and the layer are, if device(x) was forgotten", function()
    local x, ids = cf.ones(2, 2, {device = on "cpu:0"}), cf.zeros(2, {dtype = "int64", device = on "cpu:0"})
    for layer, given in pairs {[nn.Dense(2, 2)] = x, [nn.LayerNorm(2)] = x, [nn.Embedding(2, 2)] = ids} do
      local models = cf.replicate(layer)
      assert.matches(on "argument 'x' is on cpu:0, the layer on cpu:1: use device(x)",
        message_of(function() models[2](given) end), 1, true)
    end
    assert.matches("(device(x) is x on a device)", message_of(function() return x + cf.device(on "cpu:1")(x) end), 1,
      true)
  end)

  it("says that each replica is called, and has fields, by itself", function()
    local models = cf.replicate(nn.Dense(2, 2))
    says("conflux.Replicas: a list of replicas cannot be called: each replica can, models[i](x)",
      function() models(cf.ones(2, 2)) end)
    says("conflux.Replicas: a list of replicas has no field 'weight': each replica has its own, models[i].weight",
      function() return models.weight end)
    assert.is_nil(models[3])
    assert.is_nil(models["cpu:77"])
    assert.is_true(rawequal(models[on "cpu:1"], models[2]))
  end)

  it("says what is missing from which replica", function()
    says(on "conflux.allreduce: 'b' is missing from replica 2 (cpu:1)", function()
      cf.allreduce("+", cf.withdevices(function(i) return {a = cf.ones(1), b = i == 1 and cf.ones(1) or nil} end))
    end)
  end)

  it("refuses the random streams of a run on more or fewer devices", function()
    local state, seeded = cf.rng(), cf.rng()
    assert.equal(3, #state)
    state[3] = nil
    says("conflux.rng: argument 'state': expected the shared stream and one for each of 2 devices (see cf.rng), got "
      .. "that of a run on 1", function() cf.rng(state) end)
    state[3], state[4] = seeded[3], seeded[3]
    says("conflux.rng: argument 'state': expected the shared stream and one for each of 2 devices (see cf.rng), got "
      .. "that of a run on 3", function() cf.rng(state) end)
    assert.same(seeded, cf.rng())
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    cf.save(path, {rng = {seeded[1], seeded[2]}})
    says(("conflux.load: %s: it does not fit:\n  'rng' is a list of 2 in the file, but a longer one here"):format(path),
      function() cf.load(path, {into = {rng = cf.rng()}}) end)
    local streams = cf.rng()
    streams[1] = {seed = 3, position = 4}
    assert.same({seed = 3, position = 4}, cf.rng(streams)[1])
  end)
end)

describe("a state", function()
  it("says its rule, and no other takes it", function()
    local path = os.tmpname()
    finally(function() os.remove(path) end)
    local model = nn.Dense(2, 2)
    local loss = function(m) return m(cf.ones(2, 2)):sum() end
    local momentum, lion = optim.Momentum():setup(model), optim.Lion():setup(model)
    local g = cf.gradient(loss, model)
    optim.update(momentum, model, g)
    cf.save(path, momentum)
    assert.equal("Momentum", cf.load(path).rule)
    says(("conflux.load: %s: it does not fit:\n  'rule' is 'Momentum' in the file, but 'Lion' here"):format(path),
      function() cf.load(path, {into = lion}) end)
    assert.equal(0, lion.step)
    assert.equal(1, cf.load(path, {into = optim.Momentum():setup(model)}).step)
    lion.rule = "Momentum"
    says("conflux.update: the state is one of Momentum, and Lion cannot take it: call setup", function()
      optim.update(lion, model, g)
    end)
    -- clipping is no part of what a state holds
    local clipped = optim.Chain(optim.ClipNorm(1), optim.Momentum()):setup(model)
    assert.equal("Momentum", cf.load(path, {into = clipped}).rule)
    optim.update(clipped, model, g)
  end)

  it("keeps its rule in replicas, and when they are synchronised", function()
    local model = nn.Dense(2, 2)
    local states = cf.replicate(optim.Adam():setup(model), {"cpu", "cpu"})
    cf.synchronize(states)
    assert.equal("Adam", states[2].rule)
  end)
end)

describe("an optimiser", function()
  it("takes another rate, and nothing else: the rest is bound to its states", function()
    local opt = optim.Adam(1e-3)
    opt.lr = 1e-4
    assert.equal(1e-4, opt.lr)
    assert.equal("Adam(0.0001, eps = 1e-08, betas = {0.9, 0.999})", tostring(opt))
    says("conflux.optim: argument 'lr': expected a rate of 0 or more, or a function of the update count, got -1",
      function() opt.lr = -1 end)
    says("conflux.optim: field 'eps' cannot be set: make another optimiser", function() opt.eps = 1 end)
  end)
end)

describe("a file of another program", function()
  it("is called what it is, with how to convert it", function()
    for start, what in pairs {
      ["\147NUMPY\1\0v\0{'descr': '<f4'"] = "a .npy of NumPy's: convert it in Python by safetensors.numpy.save_file",
      ["PK\3\4\20\0\0\0\8\0archive/data.pkl"] = "a ZIP archive, such as PyTorch's .pt or NumPy's .npz: convert it",
      ["\128\2\138\10l\252\156F\249 j\168P\25.\128"] = "a Python pickle, such as an old .pt of PyTorch's: convert it",
      ["\137HDF\r\n\26\n\0\0\0\0\0\8\8\0"] = "an HDF5 file: convert it",
    } do
      local path = os.tmpname()
      local file = assert(io.open(path, "wb"))
      file:write(start, ("\0"):rep(100))
      file:close()
      local message = message_of(cf.load, path)
      os.remove(path)
      assert.matches(("conflux.load: %s: not a safetensors file but %s"):format(path, what), message, 1, true)
    end
  end)
end)

-- ---- names ----------------------------------------------------------------------------------------------------

describe("a name that does not exist", function()
  it("is answered with the nearest one", function()
    says("conflux: there is no 'cf.relru'; the nearest is cf.relu", function() return cf.relru end)
    says("conflux: there is no 'cf.withgradients'; the nearest is cf.withgradient", function() cf.withgradients() end)
    says("conflux: there is no 'nn.Dens'; the nearest is nn.Dense", function() return nn.Dens end)
    says("conflux: there is no 'nn.dense'; it is spelled nn.Dense", function() return nn.dense end)
    says("conflux: there is no 'optim.adam'; it is spelled optim.Adam", function() return optim.adam end)
    says("conflux: there is no 'nn.init.kaiming_norma'; the nearest is nn.init.kaiming_normal",
      function() return nn.init.kaiming_norma end)
    says("conflux: there is no 'data.DataLoder'; the nearest is data.DataLoader",
      function() return cf.data.DataLoder end)
    says("conflux.Tensor: a tensor has no field 'rehsape'; the nearest is x:reshape",
      function() return cf.ones(1).rehsape end)
    says("conflux: there is no 'cf.xyzzyxyzzy'", function() return cf.xyzzyxyzzy end)
  end)

  it("is answered with where it lies, if another room has it", function()
    says("conflux: there is no 'cf.Dense'; there is nn.Dense", function() return cf.Dense end)
    says("conflux: there is no 'nn.relu'; there is cf.relu", function() return nn.relu end)
    says("conflux: there is no 'cf.DataLoader'; there is data.DataLoader", function() return cf.DataLoader end)
    says("conflux: there is no 'cf.add_'; there is x:add_", function() return cf.add_ end)
  end)

  it("is answered with ours, if it is another library's", function()
    says("conflux: there is no 'nn.Linear'; here it is nn.Dense(in, out)", function() return nn.Linear end)
    says("conflux: there is no 'nn.Conv2d'; here it is nn.Conv(in, out, kernel)", function() return nn.Conv2d end)
    says("conflux: there is no 'cf.cat'; here it is cf.concat(list, d)", function() return cf.cat end)
    says("conflux: there is no 'optim.SGD'; here it is optim.Descent(lr), or", function() return optim.SGD end)
    local x = cf.ones(2)
    says("conflux.Tensor: a tensor has no field 'view'; here it is x:reshape(..)", function() x:view(1, 2) end)
    says("conflux.Tensor: a tensor has no field 'numpy'; here it is x:totable()", function() x:numpy() end)
    says("conflux.Tensor: a tensor has no field 'backward': Conflux differentiates a function",
      function() x:sum():backward() end)
    says("conflux.Tensor: a tensor has no field 'cuda'", function() x:cuda() end)
    says("conflux: there is no 'optim.zero_grad'", function() optim.zero_grad() end)
  end)

  it("is nil to whoever asks without the metatable, and where it is no name", function()
    assert.is_nil(rawget(cf, "Linear"))
    assert.is_nil(cf[1])
    assert.is_nil(nn.__index)
    for key in pairs(cf) do assert.is_string(key) end
  end)

  -- Each name in the texts exists, and no name that exists is explained away.
  it("is never answered with another that does not exist", function()
    local x = cf.ones(2)
    local rooms = {cf = cf, nn = nn, optim = optim}
    local count = 0
    for theirs, text in pairs(names.theirs) do
      for room, path in text:gmatch "%f[%w]([%a]+)%.([%a_][%w_.]*)" do
        local value = rooms[room]
        if room == "x" then
          assert.is_truthy(x[path] ~= nil, text)
        elseif value then
          for key in path:gmatch "[%w_]+" do value = rawget(value, key) or value[key] end
          assert.is_truthy(value, text)
        end
        count = count + 1
      end
      for method in text:gmatch "x:([%a_]+)" do assert.is_function(core.methods[method], text) end
      assert.equal(theirs, theirs:lower())
    end
    assert.is_true(count > 50)
    for option, text in pairs(names.their_options) do assert.is_truthy(option ~= text) end
  end)
end)
