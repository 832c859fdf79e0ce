-- Pictures: data sets of files, transforms, and loaders over them.
require "tests.spec.helper"
local cf = require "conflux"
local T = cf.data.transforms

local devices = require "tests.spec.devices"
local on = devices.on
devices.use(3, setup, teardown)

local program = require "tests.spec.program"
teardown(program.clean)

local FIXTURES = "tests/fixtures/images/"

-- Where Conflux was built without libjpeg-turbo there is nothing to test but what it says.
if cf.info().libraries:find "no libjpeg" then
  it("pictures are refused without libjpeg-turbo", function()
    assert.refuses(function() cf.data.image(FIXTURES .. "420.jpg") end,
      "data.image: " .. FIXTURES .. "420.jpg: Conflux was built without libjpeg-turbo")
  end)
  return
end

local root -- of a tree with a folder for each class

local function run(command, ...) assert(os.execute(command:format(...)) == 0) end

local function write(path, text)
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
end

-- A picture of one colour each, so that a batch tells which one it is.
local function picture(i, size)
  return cf.full(20 * i, size or 12, size or 12, 3, {dtype = "uint8", device = "cpu"})
end

setup(function()
  root = os.tmpname()
  os.remove(root)
  run("mkdir -p %s/b/deep/er %s/a %s/.git", root, root, root)
  for i, name in ipairs {"a/2.jpg", "a/10.JPEG", "b/deep/er/x.jpeg", "b/y.jpg", "b/z.jpg"} do
    cf.data.saveimage(("%s/%s"):format(root, name), picture(i), {quality = 100})
  end
  write(root .. "/a/notes.txt", "no picture")
  write(root .. "/readme.md", "no class")
end)
teardown(function() run("rm -r %s", root) end)

local function names(key)
  local list = {}
  for i = 1, key:size() do list[i] = key[i].path:sub(#root + 2) .. "=" .. key[i].id end
  return list
end

describe("data.images", function()
  it("takes a folder for each class and the pictures below it, sorted by bytes", function()
    local key = cf.data.images(root)
    assert.same({"a/10.JPEG=0", "a/2.jpg=0", "b/deep/er/x.jpeg=1", "b/y.jpg=1", "b/z.jpg=1"}, names(key))
    assert.same({{name = "a", description = ""}, {name = "b", description = ""}}, key.classes)
    assert.equal("5 pictures of 2 classes", tostring(key))
    assert.is_nil(key[0])
    assert.is_nil(key[6])
    assert.is_nil(key[1.5])
  end)

  it("filters by path and id, and keeps the classes", function()
    local key = cf.data.images(root)
    local part = key:filter(function(p, i) return p.id == 1 and i ~= 4 end)
    assert.same({"b/deep/er/x.jpeg=1", "b/z.jpg=1"}, names(part))
    assert.same(key.classes, part.classes)
    assert.equal(0, key:filter(function() return false end):size())
    assert.refuses(function() key:filter(3) end, "data.images.filter: argument 'f': expected a function")
    local none = key:filter(function() return false end)
    assert.refuses(function() cf.data.DataLoader(none, {transform = T.resize {2, 2}}) end,
      "DataLoader: there are no pictures")
  end)

  it("refuses a root that is none", function()
    assert.refuses(function() cf.data.images(root .. "/a") end,
      ("data.images: %s/a: there are no folders in it"):format(root))
    assert.refuses(function() cf.data.images "/nowhere" end, "data.images: /nowhere: No such file or directory")
    run("mkdir %s/empty", root)
    assert.refuses(function() cf.data.images(root) end,
      ("data.images: %s: there are no pictures of class 'empty'"):format(root))
    run("rmdir %s/empty", root)
  end)

  it("refuses all else once it was released, but for loaders that have it", function()
    local key = cf.data.images(root)
    local loader = cf.data.DataLoader(key, {transform = T.resize {2, 2}, devices = on {"cpu:0"}})
    key:release()
    key:release()
    assert.refuses(function() key:size() end, "data.images.size: the key was released")
    assert.refuses(function() return key[1] end, "data.images.[]: the key was released")
    local n = 0
    for _, batch in loader:epoch(0) do n = n + batch.n end
    assert.equal(5, n)
  end)
end)

describe("data.imagenet", function()
  local tree

  setup(function()
    tree = os.tmpname()
    os.remove(tree)
    run("mkdir -p %s/ILSVRC/Data/CLS-LOC/train/n01 %s/ILSVRC/Data/CLS-LOC/train/n02 %s/ILSVRC/Data/CLS-LOC/val", tree,
      tree, tree)
    write(tree .. "/LOC_synset_mapping.txt", "n01 tench, Tinca tinca\nn02 goldfish\n")
    write(tree .. "/LOC_train_solution.csv", "ImageId,PredictionString\nn02_1,n02 1 2 3 4 \nn01_1,n01 1 2 3 4\n"
      .. "n01_2,n01 1 2 3 4 n02 1 2 3 4\n")
    write(tree .. "/LOC_val_solution.csv", "ImageId,PredictionString\nval_1,n01 1 2 3 4 \nval_2,n02 1 2 3 4\n")
  end)
  teardown(function() run("rm -r %s", tree) end)

  local function list(key)
    local all = {}
    for i = 1, key:size() do all[i] = key[i].path:sub(#tree + #"/ILSVRC/Data/CLS-LOC/" + 1) .. "=" .. key[i].id end
    return all
  end

  it("reads Kaggle's tables, and leaves out what names several classes", function()
    local key = cf.data.imagenet(tree)
    assert.same({"train/n02/n02_1.JPEG=1", "train/n01/n01_1.JPEG=0"}, list(key))
    assert.equal(1, key.left_out)
    assert.same({{name = "n01", description = "tench, Tinca tinca"}, {name = "n02", description = "goldfish"}},
      key.classes)
    assert.same(key.classes, cf.data.labels(tree))
    assert.same({"val/val_1.JPEG=0", "val/val_2.JPEG=1"}, list(cf.data.imagenet(tree, {split = "val"})))
    assert.same({"val/val_1.JPEG=0", "val/val_2.JPEG=1"}, list(cf.data.solutions(tree, "val")))
  end)

  it("gives the classes asked for their ids in that order", function()
    assert.same({"val/val_2.JPEG=0"}, list(cf.data.imagenet(tree, {split = "val", classes = {"n02"}})))
    assert.same({"val/val_1.JPEG=1", "val/val_2.JPEG=0"},
      list(cf.data.imagenet(tree, {split = "val", classes = {2, 1}})))
    assert.refuses(function() cf.data.imagenet(tree, {classes = {3}}) end,
      "data.imagenet: argument 'classes[1]': expected an integer from 1 to 2, got 3")
    assert.refuses(function() cf.data.imagenet(tree, {classes = {"n01", "n01"}}) end,
      "data.imagenet: classes: 'n01' is there twice")
    assert.refuses(function() cf.data.imagenet(tree, {classes = {"../n01"}}) end,
      "data.imagenet: classes: there is no class '../n01'")
    assert.refuses(function() cf.data.imagenet(tree, {classes = {}}) end,
      "data.imagenet: argument 'classes': expected at least one class, got none")
  end)

  it("takes another table, and refuses another split", function()
    write(tree .. "/half.csv", "ImageId,PredictionString\nn01_1,n01 1 2 3 4\n")
    assert.same({"train/n01/n01_1.JPEG=0"},
      list(cf.data.imagenet(tree, {solutions = tree .. "/half.csv", classes = {1}})))
    assert.refuses(function() cf.data.imagenet(tree, {split = "test"}) end,
      "data.imagenet: argument 'split': expected 'train' or 'val', got 'test'")
    write(tree .. "/half.csv", "ImageId,PredictionString\n../n01_1,n01 1 2 3 4\n")
    assert.refuses(function() cf.data.imagenet(tree, {solutions = tree .. "/half.csv"}) end,
      ("data.imagenet: %s/half.csv: line 2: the ImageId is no name of a file"):format(tree))
  end)
end)

describe("data.image", function()
  it("reads bytes, and float32 of ImageNet's mean and deviation", function()
    local bytes = cf.data.image(FIXTURES .. "420.jpg", nil, {dtype = "uint8"})
    assert.tensor_equal(bytes, cf.load(FIXTURES .. "expected.safetensors")["420"])
    local scaled = (bytes:to "float32" / 255 - cf.tensor {0.485, 0.456, 0.406}) / cf.tensor {0.229, 0.224, 0.225}
    assert.tensor_near(cf.data.image(FIXTURES .. "420.jpg"), scaled, 1e-5)
    local own = cf.data.image(FIXTURES .. "420.jpg", {}, {mean = {0, 0, 0}, deviation = {1, 1, 1}})
    assert.tensor_near(own, bytes:to "float32" / 255, 1e-6)
  end)

  it("refuses what is no picture, by name", function()
    assert.refuses(function() cf.data.image(FIXTURES .. "cut.jpg") end,
      "data.image: " .. FIXTURES .. "cut.jpg: truncated")
    assert.refuses(function() cf.data.image(FIXTURES .. "png.jpg") end,
      "data.image: " .. FIXTURES .. "png.jpg: Not a JPEG")
    assert.refuses(function() cf.data.image(FIXTURES) end, "data.image: " .. FIXTURES .. ": not a regular file")
  end)

  it("refuses transforms that do not fit", function()
    local path = FIXTURES .. "420.jpg"
    assert.refuses(function() cf.data.image(path, {T.flip(), T.resize(3)}) end,
      "data.image: step 2 cannot come behind step 1")
    assert.refuses(function() cf.data.image(path, 3) end,
      "data.image: argument 'transform': expected a transform or a list")
    assert.refuses(function() cf.data.image(path, {3}) end, "data.image: argument 'transform[1]'")
    assert.refuses(function() cf.data.image(path, nil, {dtype = "int32"}) end,
      "data.image: argument 'dtype': expected 'float32' or")
    assert.refuses(function() cf.data.image(path, nil, {mean = {1, 2}}) end,
      "data.image: argument 'mean': expected a list of 3")
    assert.refuses(function() cf.data.image(path, nil, {deviation = {1, 0, 1}}) end,
      "data.image: argument 'deviation[2]'")
    assert.refuses(function() T.resize(0) end, "data.transforms.resize: argument 'size'")
    assert.refuses(function() T.centrecrop {1, 2, 3} end, "data.transforms.centrecrop: argument 'size'")
    assert.refuses(function() T.flip(2) end, "data.transforms.flip: argument 'p': expected 0 to 1, got 2")
    assert.refuses(function() T.jitter {hue = 0.6} end, "data.transforms.jitter: argument 'hue': expected 0 to 0.5")
    assert.refuses(function() T.randomresizedcrop(4, {scale = {0, 1}}) end,
      "data.transforms.randomresizedcrop: argument 'scale'")
    assert.refuses(function() T.randomresizedcrop(4, {ratio = {2, 1}}) end,
      "data.transforms.randomresizedcrop: argument 'ratio'")
  end)

  it("comes back from a file that was written", function()
    local path = root .. "/written.jpg"
    local grey = (cf.arange(0, 255):reshape(16, 16)):to "uint8"
    cf.data.saveimage(path, grey, {quality = 100})
    local back = cf.data.image(path, nil, {dtype = "uint8"})
    assert.same({16, 16, 3}, back.shape)
    assert.tensor_near(back[{{}, {}, 1}]:to "float32", grey:to "float32", 3)
    os.remove(path)
    assert.refuses(function() cf.data.saveimage(path, cf.ones(2, 2)) end, "data.saveimage: argument 'x'")
    assert.refuses(function() cf.data.saveimage("/nowhere/x.jpg", grey) end,
      "data.saveimage: /nowhere/x.jpg: cannot write there: No such file")
  end)
end)

describe("a DataLoader over pictures", function()
  local function loader(o, key)
    o.transform = o.transform or T.resize {8, 8}
    return cf.data.DataLoader(key or cf.data.images(root), o)
  end

  -- Bytes and labels of an epoch, in order.
  local function all(l, epoch)
    local pixels, ids = {}, {}
    for _, batch in l:epoch(epoch) do
      for i = 1, #batch do
        if batch[i].n > 0 then
          pixels[#pixels + 1], ids[#ids + 1] = batch[i].image:to "cpu", batch[i].label:to "cpu"
        end
      end
    end
    return cf.concat(pixels, 1), cf.concat(ids, 1):totable()
  end

  it("gives pictures and labels on each device", function()
    for step, batch in loader({batch = 1, dtype = "uint8"}):epoch(0) do
      for i = 1, 3 do
        if batch[i].n == 0 then break end
        assert.same({1, 8, 8, 3}, batch[i].image.shape)
        assert.equal("uint8", batch[i].image.dtype)
        assert.equal("int64", batch[i].label.dtype)
        assert.is_true(batch[i].image.device == on("cpu:" .. i - 1) and batch[i].label.device == batch[i].image.device)
        local wanted = ({40, 20, 60, 80, 100})[3 * (step - 1) + i]
        assert.tensor_near(batch[i].image:to "float32", cf.full(wanted, 1, 8, 8, 3), 1)
      end
    end
  end)

  it("draws the same numbers whatever the threads and devices, and others each epoch", function()
    local augment = {T.randomresizedcrop(6), T.flip(), T.jitter {brightness = 0.4, hue = 0.1}}
    local textured = cf.data.images(root):filter(function() return true end)
    cf.data.saveimage(root .. "/a/2.jpg", (cf.rand(40, 50, 3) * 255):to "uint8")
    local function epoch(e, threads, on_devices, seed)
      return all(loader({batch = 2, shuffle = true, seed = seed or 5, transform = augment, threads = threads,
        devices = on_devices}, textured), e)
    end
    local first, ids = epoch(1, 1, on {"cpu:0"})
    for threads = 1, 4 do
      local again, same = epoch(1, threads, threads % 2 == 0 and on {"cpu:0", "cpu:1"} or nil)
      assert.tensor_equal(first, again)
      assert.same(ids, same)
    end
    assert.is_true(first:ne((epoch(2, 1))):any():item())
    assert.is_true(first:ne((epoch(1, 1, nil, 6))):any():item())
    cf.data.saveimage(root .. "/a/2.jpg", picture(1), {quality = 100})
  end)

  it("gives float32 of what uint8 is", function()
    local bytes = all(loader {batch = 5, dtype = "uint8"}, 0)
    local floats = all(loader {batch = 5, mean = {0, 0, 0}, deviation = {1, 1, 1}}, 0)
    assert.tensor_near(floats, bytes:to "float32" / 255, 1e-6)
  end)

  describe("with bad files", function()
    setup(function()
      run("mkdir %s/a/x.JPEG", root) -- a folder, and so no picture
      write(root .. "/b/cut.jpg", "no picture")
      run("cp %scut.jpg %s/a/cut.jpg", FIXTURES, root)
    end)
    teardown(function() run("rm -r %s/a/x.JPEG %s/b/cut.jpg %s/a/cut.jpg", root, root, root) end)

    it("replaces them in training by the next of the order, counts and names them", function()
      local l = loader {batch = 2, shuffle = true, max_bad = 0.5, dtype = "uint8", devices = on {"cpu:0"}}
      local pixels, ids = all(l, 3)
      assert.equal(7, #ids)
      assert.same({7, 8, 8, 3}, pixels.shape)
      local count, named = l:bad()
      assert.equal(2, count)
      assert.equal(2, #named)
      table.sort(named)
      assert.matches("a/cut.jpg: truncated", named[1], 1, true)
      assert.matches("b/cut.jpg: Not a JPEG file", named[2], 1, true)
      assert.equal(2, l:state().bad)
      l:epoch(4)
      assert.equal(0, (l:bad()))
    end)

    it("leaves them out in evaluation", function()
      local l = loader {batch = 2, max_bad = 0.5, devices = on {"cpu:0"}}
      local _, ids = all(l, 0)
      assert.same({0, 0, 1, 1, 1}, ids)
      assert.equal(2, (l:bad()))
    end)

    it("ends with the first one where none is allowed, and past those that are", function()
      local none = loader {batch = 2, max_bad = 0, devices = on {"cpu:0"}}
      assert.refuses(function() all(none, 0) end,
        ("DataLoader.epoch: bad samples by now: 1, and max_bad allows 0 of 7: %s/a/cut.jpg: truncated"):format(root))
      local few = loader {batch = 1, max_bad = 0.2, devices = on {"cpu:0"}}
      assert.refuses(function() all(few, 0) end, "DataLoader.epoch: bad samples by now: 2, and max_bad allows 1 of 7: ")
      assert.refuses(function() loader {max_bad = 2} end, "DataLoader: argument 'max_bad': expected 0 to 1, got 2")
      assert.refuses(function() loader {bad = "keep"} end, "DataLoader: argument 'bad': expected 'replace' or 'skip'")
    end)

    it("says in its state how many there were, and goes on counting", function()
      local o = {batch = 4, max_bad = 0.5, devices = on {"cpu:0"}}
      local l = loader(o)
      l:epoch(0)()
      local state = l:state()
      assert.equal(2, state.bad)
      local again = loader(o):restore(state)
      assert.equal(2, again:state().bad)
      local rest = again:epoch(0)
      assert.equal(2, rest())
      assert.equal(2, (again:bad()))
    end)
  end)

  it("refuses a transform that leaves the size open, and options of no pictures", function()
    assert.refuses(function() loader {transform = T.resize(8)} end,
      "DataLoader: the transform does not end in one size for all")
    assert.refuses(function() loader {transform = {}} end, "DataLoader: the transform does not end in one size for all")
    assert.refuses(function() cf.data.DataLoader({cf.ones(3)}, {transform = T.resize(8)}) end,
      "DataLoader: unknown option 'transform'")
  end)
end)

describe("data.minibatch", function()
  it("draws pictures with replacement", function()
    local key = cf.data.images(root)
    local o = {transform = T.resize {4, 4}, seed = 3, dtype = "uint8"}
    local batch = cf.data.minibatch(key, 40, o)
    assert.same({40, 4, 4, 3}, batch.image.shape)
    assert.equal(40, batch.n)
    assert.tensor_equal(batch.image, cf.data.minibatch(key, 40, o).image)
    local seen = {}
    for _, v in ipairs(batch.image[{{}, 1, 1, 1}]:totable()) do seen[math.floor(v / 20 + 0.5)] = true end
    assert.same({true, true, true, true, true}, seen)
    assert.refuses(function() cf.data.minibatch({}, 3) end, "data.minibatch: argument 'key'")
    assert.refuses(function() cf.data.minibatch(key, 0) end, "data.minibatch: argument 'n'")
  end)
end)

describe("data.showpreds", function()
  it("prints pictures with their likeliest classes", function()
    local key, printed, print_before = cf.data.images(root), {}, print
    _G.print = function(text) printed[#printed + 1] = text end
    local ok, list = pcall(cf.data.showpreds, function(x)
      assert.same({3, 4, 4, 3}, x.shape)
      return cf.tensor {{0, 9}, {0, 9}, {9, 0}}
    end, key, 3, {transform = T.resize {4, 4}, seed = 2, top = 1})
    _G.print = print_before
    assert.is_true(ok, list)
    assert.equal(3, #printed)
    for i, class in ipairs {"b", "b", "a"} do assert.equal(class, list[i].predictions[1].class) end
    assert.matches(list[1].path, printed[1], 1, true)
    assert.matches("b 1.000", printed[1], 1, true)
    assert.refuses(function() cf.data.showpreds(print, key, 3, {top = 3}) end, "data.showpreds: argument 'top'")
  end)
end)
