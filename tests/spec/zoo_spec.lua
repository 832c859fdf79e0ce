-- cf.zoo beside torchvision: its names, its files, and what its networks compute (tests/record/resnet.py).
require "tests.spec.helper"
local cf = require "conflux"
local convolutions = require "tests.spec.convolutions"
local json = require "conflux.json"
local values = require "tests.spec.formula".values
local nn, zoo = cf.nn, cf.zoo

local reference, recorded = cf.load("tests/fixtures/resnet.safetensors", {metadata = true})

local path = os.tmpname()
teardown(function() os.remove(path) end)

-- A test that calls convolutions.
local function computes(name, f)
  it(name, function()
    local why = convolutions.missing()
    if why then return pending(why) end
    f()
  end)
end

-- torchvision's names of a network's tensors, in its order.
local function names_of(arch)
  local names = {}
  for name in recorded[arch]:gmatch "[^\n]+" do names[#names + 1] = name end
  return names
end

local function sorted(t)
  local keys = {}
  for key in pairs(t) do keys[#keys + 1] = key end
  table.sort(keys)
  return keys
end

-- ---- beside torchvision ---------------------------------------------------------------------------------------

local SIZE, BATCH, CLASSES, ELEMENTS, IMAGE = 64, 2, 10, 32, 1000000

-- The least e with 4^-e <= 6 / fan.
local function exponent(fan)
  local e = 0
  while 6 * 4 ^ e < fan do e = e + 1 end
  return e
end

local function fill(model, names)
  local tensors = zoo.tensors(model)
  for seed, name in ipairs(names) do
    local t = tensors[name]
    if name:find "num_batches_tracked$" then
      t:fill_(7)
    elseif name:find "running_var$" or t.ndim == 1 and name:find "weight$" then
      t:copy_(values(t.shape, seed, 16) + 1)
    elseif t.ndim == 1 then
      t:copy_(values(t.shape, seed, 17))
    else
      t:copy_(values(t.shape, seed, 15 + exponent(t:numel() / t:size(t.ndim == 4 and 2 or 1))))
    end
    t:release()
  end
end

-- Elements of a tensor that lie evenly in it.
local function elements(t)
  local n = t:numel()
  local count, ids = math.min(n, ELEMENTS), {}
  for i = 0, count - 1 do ids[i + 1] = math.floor(i * n / count) end
  return t:reshape(-1):index(1, cf.tensor(ids, {dtype = "int64"}))
end

-- The norms and some elements of those of `names` that end in `field`.
local function summary(tensors, names, field)
  local norms, some = {}, {}
  for _, name in ipairs(names) do
    local t = name:find(field .. "$") and tensors[name]
    if t then norms[#norms + 1], some[#some + 1] = t:norm(), elements(t) end
  end
  return cf.stack(norms, 1):to "float64", cf.concat(some, 1):to "float64"
end

local function distance(a, b)
  return ((a:to "float64" - b):norm() / b:norm()):item()
end

-- One step of training: what the record has, by its names.
local function train(model, names, x, ids)
  local found = {}
  local _, g = cf.withgradient(function(m)
    found.logits = m(x)
    found.loss = nn.crossentropy(found.logits, ids)
    return found.loss
  end, model)
  local grads = zoo.tensors(model, g)
  local parameters = {}
  for _, name in ipairs(names) do
    if name:find "%.weight$" or name:find "%.bias$" then parameters[#parameters + 1] = name end
  end
  found["d.norms"], found["d.elements"] = summary(grads, parameters, "")
  local tensors = zoo.tensors(model)
  for _, field in ipairs {"running_mean", "running_var"} do
    found[field .. ".norms"], found[field .. ".elements"] = summary(tensors, names, field)
  end
  return found
end

-- A record by its dotted name.
local function find(record, name)
  for part in name:gmatch "[^.]+" do record = record[part] end
  return record
end

local WHAT = {"logits", "loss", "d.norms", "d.elements", "running_mean.norms", "running_mean.elements",
  "running_var.norms", "running_var.elements"}

-- Networks of their full width: a CPU that pretends to be a GPU, or that a sanitizer watches, needs minutes for them.
describe("a residual network #network", function()
  local x = values({BATCH, SIZE, SIZE, 3}, IMAGE)
  local ids = cf.tensor({3, 4}, {dtype = "int64"})

  for _, arch in ipairs {"resnet18", "resnet34", "resnet50"} do
    local record, names = reference[arch], names_of(arch)

    local function both(dtype)
      local model = cf.tree.to(zoo[arch] {classes = CLASSES}, dtype)
      fill(model, names)
      model:eval()
      local logits = model(x:to(dtype))
      local loss = nn.crossentropy(logits, ids)
      return logits, loss, train(model:train(), names, x:to(dtype), ids)
    end

    computes("computes what torchvision's " .. arch .. " does in float64", function()
      local logits, loss, found = both "float64"
      assert.tensor_near(logits, record.eval.logits, 1e-8, 1e-10)
      assert.tensor_near(loss, record.eval.loss, 1e-8, 0)
      for _, name in ipairs(WHAT) do
        local far = distance(found[name], find(record.train, name))
        assert.is_true(far <= 1e-8, ("%s: %g"):format(name, far))
      end
    end)

    computes("computes what torchvision's " .. arch .. " does in float32, as near as PyTorch does", function()
      local logits, loss, found = both "float32"
      assert.is_true(distance(logits, record.eval.logits) <= 1e-4)
      assert.tensor_near(loss, record.eval.loss, 1e-4, 0)
      for _, name in ipairs(WHAT) do
        local far, limit = distance(found[name], find(record.train, name)), 2e-5
        -- one number may be near by chance: the loss is held to the distance of the logits that it is made of
        local like = name == "loss" and "logits" or name
        if not name:find "running" then limit = 3 * find(record.float32, like):item() end
        assert.is_true(far <= limit, ("%s: %g, at most %g"):format(name, far, limit))
      end
    end)
  end
end)

-- ---- names and files ------------------------------------------------------------------------------------------

describe("cf.zoo", function()
  for _, arch in ipairs {"resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg11", "vgg16", "vgg19"} do
    it("has torchvision's names in " .. arch, function()
      local wanted = names_of(arch)
      table.sort(wanted)
      assert.same(wanted, sorted(zoo.tensors(zoo[arch] {width = 2, classes = 3})))
    end)
  end

  it("has torchvision's sizes", function()
    local t = zoo.tensors(zoo.resnet18())
    assert.same({64, 3, 7, 7}, t["conv1.weight"].shape)
    assert.same({128, 64, 1, 1}, t["layer2.0.downsample.0.weight"].shape)
    assert.same({512, 512, 3, 3}, t["layer4.1.conv2.weight"].shape)
    assert.same({1000, 512}, t["fc.weight"].shape)
    assert.same({}, t["bn1.num_batches_tracked"].shape)
    local count = 0
    for _, p in ipairs((zoo.resnet18():parameters())) do count = count + p:numel() end
    assert.equal(11689512, count)
  end)

  it("starts as torchvision does", function()
    local model = zoo.resnet18 {width = 32}
    local t = zoo.tensors(model)
    local w = t["layer4.0.conv1.weight"]
    assert.is_true(math.abs(w:std():item() / math.sqrt(2 / (256 * 9)) - 1) < 0.01)
    assert.tensor_equal(t["bn1.weight"], cf.ones(32))
    local bound = 1 / math.sqrt(256)
    assert.is_true(t["fc.weight"]:abs():max():item() <= bound and t["fc.bias"]:abs():max():item() <= bound)
    assert.is_true(t["fc.weight"]:abs():max():item() > 0.99 * bound)
  end)

  computes("makes networks for small images", function()
    assert.same({2, 10}, zoo.lenet()(cf.rand(2, 28, 28, 1)).shape)
    assert.same({2, 10}, zoo.mlp()(cf.rand(2, 28, 28)).shape)
    assert.same({2, 5}, zoo.resnet18 {stem = "small", width = 4, classes = 5, channels = 1}(cf.rand(2, 8, 8, 1)).shape)
    assert.same({1, 5}, zoo.vgg11 {width = 2, classes = 5}:eval()(cf.rand(1, 32, 32, 3)).shape)
  end)

  computes("saves and loads with torchvision's names, and every byte comes back", function()
    for _, arch in ipairs {"resnet18", "resnet50", "vgg11"} do
      local model = zoo[arch] {width = 4, classes = 3}
      if model[1].norm then model(cf.rand(2, 32, 32, 3)) end -- moves the statistics
      zoo.save(path, model)
      local file, again = cf.load(path), zoo[arch] {width = 4, classes = 3}
      assert.equal(again, zoo.load(path, {into = again}))
      for name, t in pairs(zoo.tensors(again)) do assert.tensor_equal(t, file[name]) end
      local tensors, paths = cf.tree.leaves(model)
      for i, t in ipairs((cf.tree.leaves(again))) do assert.tensor_equal(t, tensors[i], paths[i]) end
    end
  end)

  it("puts a pretrained backbone under a new head in one line", function()
    local model = zoo.resnet18 {width = 4, classes = 7}
    zoo.save(path, model)
    local other = zoo.resnet18 {width = 4, classes = 3}
    local head = other[9].weight:clone()
    zoo.load(path, {into = other, rename = {fc = false}, missing = "keep"})
    assert.tensor_equal(other[9].weight, head)
    assert.tensor_equal(other[6][2][2].conv.weight, model[6][2][2].conv.weight)
    other[9] = nn.Chain(nn.Dropout(0.1), nn.Dense(32, 3))
    zoo.load(path, {into = other, unexpected = "ignore", missing = "keep"})
  end)

  it("lists what does not fit, and changes nothing", function()
    zoo.save(path, zoo.resnet18 {width = 4, classes = 7})
    local other = zoo.resnet18 {width = 4, classes = 3}
    local before = other[1].conv.weight:clone()
    local ok, message = pcall(zoo.load, path, {into = other})
    assert.is_false(ok)
    assert.is_truthy(message:find("'fc.weight' is [7, 32] (float32) in the file, but [3, 32] (float32) here", 1, true))
    assert.is_truthy(message:find("'fc.bias' is [7]", 1, true))
    assert.tensor_equal(other[1].conv.weight, before)
  end)

  computes("folds to the same predictions", function()
    local model = zoo.resnet18 {width = 4, classes = 3}
    for _ = 1, 3 do model(cf.randn(4, 32, 32, 3)) end
    local folded, x = nn.fold(model), cf.randn(2, 32, 32, 3)
    assert.equal("Conv", getmetatable(folded[3][1][2]).__layer)
    assert.equal("Conv", getmetatable(folded[4][1].downsample).__layer)
    assert.tensor_near(folded(x), model:eval()(x), 1e-5, 1e-5)
  end)

  it("refuses options and models that it does not know", function()
    assert.refuses(function() zoo.resnet18 {clases = 3} end, "zoo.resnet18: unknown option 'clases'")
    assert.refuses(function() zoo.resnet18 {width = 0} end, "zoo.resnet18: argument 'width'")
    assert.refuses(function() zoo.resnet18 {stem = "tiny"} end,
      "zoo.resnet18: argument 'stem': expected 'imagenet' or 'small', got 'tiny'")
    assert.refuses(function() zoo.vgg11 {stem = "small"} end, "zoo.vgg11: unknown option 'stem'")
    assert.refuses(function() zoo.save(path, zoo.lenet()) end,
      "zoo.tensors: argument 'model': expected a resnet or vgg of the zoo")
  end)
end)

-- A whole ResNet-34 as torchvision writes it is too large to lie here: tests/record/resnet.py --file makes one.
describe("torchvision's own file", function()
  computes("loads, predicts the same five classes, and comes back byte for byte", function()
    local file = os.getenv "CONFLUX_RESNET34"
    if not file or file == "" then
      pending "CONFLUX_RESNET34 names no file (tests/record/resnet.py --file makes it)"
      return
    end
    local theirs, metadata = cf.load(file, {metadata = true, rename = function(name) return (name:gsub("%.", "/")) end})
    local model = zoo.load(file, {into = zoo.resnet34()}):eval()
    local _, best = model(values({1, SIZE, SIZE, 3}, IMAGE):to "float32"):topk(5)
    assert.same(setmetatable(json.decode(metadata.best), nil), best[1]:totable())
    zoo.save(path, model)
    local ours, count = cf.load(path), 0
    for name, t in pairs(theirs) do
      local again = ours[name:gsub("/", ".")]
      assert.same(t.shape, again.shape)
      assert.is_true(again:eq(t):all():item(), name) -- 21 million values are too many for lists
      count = count + 1
    end
    assert.equal(#names_of "resnet34", count)
  end)
end)
