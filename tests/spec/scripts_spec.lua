-- The scripts, run as a user runs them.
local program = require "tests.spec.program"
local devices = require "tests.spec.devices"

local function run(arguments)
  local out, err, code = program.run(arguments)
  return out .. err, code
end

describe("scripts/x2.lua #program", function()
  it("learns the square on two devices, printing the losses of each epoch", function()
    local text, code = run("--devices " .. devices.spec(2) .. " scripts/x2.lua")
    assert.equal(0, code)
    local first, last, epochs = nil, nil, 0
    for a, b in text:gmatch "epoch +%d+  losses (%d+%.%d+)  (%d+%.%d+)\n" do
      epochs = epochs + 1
      assert.equal(a, b)
      first, last = first or tonumber(a), tonumber(a)
    end
    assert.equal(10, epochs)
    assert.is_true(last < first / 2)
  end)

  it("learns the same on any number of devices, of which some may have fewer samples, or none", function()
    local function losses(n)
      local text, list = run("--devices " .. devices.spec(n) .. " scripts/x2.lua"), {}
      for loss in text:gmatch "losses (%d+%.%d+)" do list[#list + 1] = tonumber(loss) end
      assert.equal(10, #list, text)
      return list
    end
    local one = losses(1)
    for _, n in ipairs {3, 5, 18} do
      for epoch, loss in ipairs(losses(n)) do assert.near(one[epoch], loss, 1e-4) end
    end
  end)

  it("prints the same in every run", function()
    local command = "--devices " .. devices.spec(3) .. " scripts/x2.lua"
    assert.equal((run(command)), (run(command)))
  end)
end)

describe("scripts/mpi.lua #program", function()
  it("learns the square on any number of ranks, which print in their order", function()
    for n = 1, 4 do
      local out, err, code = program.shell(("%s-run -n %d --devices cpu scripts/mpi.lua </dev/null"):format(
        program.conflux, n))
      assert.same({"", 0}, {err, code})
      local lines = 0
      for rank, size, epoch, loss in out:gmatch "%[0%] %S+ %S+ %[(%d) / (%d)%] epoch +(%d+)  loss (%d+%.%d+)\n" do
        assert.same({lines % n, n, 20 + 20 * math.floor(lines / n)}, {tonumber(rank), tonumber(size), tonumber(epoch)})
        assert.is_true(epoch ~= "100" or tonumber(loss) < 0.01)
        lines = lines + 1
      end
      assert.equal(5 * n, lines)
      assert.matches(("%%[0 / %d%%] all ranks have the same model\n$"):format(n), out)
    end
  end)
end)

describe("scripts/fashion.lua #program", function()
  local data = run "scripts/fashion.lua --help":match "%-%-data DIR.-%((.-)%)"
  local handle = io.open(data .. "/train-images-idx3-ubyte.gz")
  if handle then handle:close() end

  it("explains its options, and refuses others", function()
    local text, code = run "scripts/fashion.lua --help"
    assert.equal(0, code)
    for _, name in ipairs {"--data", "--epochs", "--batch", "--lr", "--devices", "--seed"} do
      assert.is_truthy(text:find(name, 1, true))
    end
    text, code = run "scripts/fashion.lua --bach 3"
    assert.equal(2, code)
    assert.matches("unknown option %-%-bach", text)
    text, code = run "scripts/fashion.lua --epochs 1.5"
    assert.equal(2, code)
    assert.matches("%-%-epochs: '1.5' will not do", text)
  end)

  it("reaches 80 % of accuracy after one epoch on two devices", function()
    if not handle then return pending "Fashion-MNIST is not installed (dataset-fashion-mnist)" end
    local text, code = run("scripts/fashion.lua --epochs 1 --seed 1 --devices " .. devices.spec(2))
    assert.equal(0, code, text)
    local accuracy = text:match "epoch 1/1  loss %d%.%d%d%d%d  test_accuracy (%d%.%d%d%d%d)  samples/s %d+\n$"
    assert.is_truthy(accuracy, text)
    assert.is_true(tonumber(accuracy) > 0.8)
  end)

  it("prints the same figures on two ranks as on two devices", function()
    if not handle then return pending "Fashion-MNIST is not installed (dataset-fashion-mnist)" end
    local alone = run "scripts/fashion.lua --epochs 1 --devices 'cpu*2'"
    local out, err, code = program.shell(program.conflux
      .. "-run -n 2 scripts/fashion.lua --epochs 1 --devices cpu </dev/null")
    assert.same({"", 0}, {err, code})
    assert.equal((alone:gsub("samples/s %d+", "")), (out:gsub("%[0%] ", ""):gsub("samples/s %d+", "")))
  end)

  it("trains on the last samples, too, where they are fewer than devices", function()
    if not handle then return pending "Fashion-MNIST is not installed (dataset-fashion-mnist)" end
    local text, code = run("scripts/fashion.lua --epochs 1 --batch 2857 --devices " .. devices.spec(7)) -- 3 are left
    assert.equal(0, code, text)
    assert.matches("epoch 1/1  loss %d%.%d%d%d%d  test_accuracy %d%.%d%d%d%d ", text)
  end)
end)

describe("scripts/resnet.lua #program", function()
  local cf = require "conflux"
  local directory = os.tmpname()
  os.remove(directory)
  local model = directory .. "/model.safetensors"
  local common = ("--data %s --arch resnet18 --width 2 --size 16 --batch 4 --model %s"):format(directory, model)
  local problem

  -- Dark pictures and bright ones, in folders.
  setup(function()
    for _, split in ipairs {"train", "val"} do
      for class, light in pairs {dark = 40, bright = 200} do
        local folder = ("%s/%s/%s"):format(directory, split, class)
        assert(os.execute("mkdir -p " .. folder) == 0)
        for i = 1, split == "train" and 14 or 5 do
          local picture = cf.randint(light - 40, light + 40, 20, 18, 3):to "uint8"
          local ok, message = pcall(cf.data.saveimage, ("%s/%d.jpg"):format(folder, i), picture)
          problem = problem or not ok and message
        end
      end
    end
  end)
  teardown(function() os.execute("rm -rf " .. directory) end)

  local function line(text)
    return text:match "top%-1 (%d%.%d%d%d%d)"
  end

  it("trains alike in every run, with any number of threads, judges, predicts and exports", function()
    if problem then return pending(problem) end
    local train = ("scripts/resnet.lua train %s --epochs 2 --threads 1 --devices %s"):format(common, devices.spec(2))
    local text, code = run(train)
    assert.equal(0, code, text)
    assert.matches("resnet18: 28 images of 2 classes, 10 held out\n", text)
    for epoch = 1, 2 do
      assert.matches(("epoch %d/2  loss %%d+%%.%%d+  top%%-1 %%d%%.%%d+  top%%-5 1%%.0000  images/s ")
        :format(epoch), text)
    end
    local function losses(from) return from:match "epoch 1/2  loss (%S+)", from:match "epoch 2/2  loss (%S+)" end
    assert.same({losses(text)}, {losses((run(train:gsub("threads 1", "threads 4"))))})

    local best = text:match(": top%-1 (%S+)\n$")
    assert.equal(best, line((run("scripts/resnet.lua eval " .. common))))
    text, code = run(("scripts/resnet.lua predict %s/val/dark/1.jpg --model %s"):format(directory, model))
    assert.equal(0, code, text)
    assert.matches("1%.jpg\n +%d+%.%d %%  %a+\n +%d+%.%d %%  %a+\n$", text)

    local exported = directory .. "/torchvision.safetensors"
    text, code = run(("scripts/resnet.lua export %s --model %s"):format(exported, model))
    assert.equal(0, code, text)
    assert.equal(best, line((run(("scripts/resnet.lua eval %s --weights %s"):format(common, exported)))))
  end)

  it("refuses data that it cannot learn from, before it trains", function()
    if problem then return pending(problem) end
    program.shell(([[cd %s && mkdir -p one/train one/val other/val && ln -s ../../train/dark one/train &&
      ln -s ../../val/dark one/val && ln -s ../train other && ln -s ../../val/dark other/val &&
      ln -s ../../val/bright other/val/red]]):format(directory))
    for arguments, message in pairs {
      [("--data %s/one"):format(directory)] = "one: there is one class alone, dark",
      [("--data %s/other"):format(directory)] =
        "other: class 1 of the held-out images is dark, of those to learn bright",
      [("--data %s/none"):format(directory)] = "none/train: No such file or directory",
      ["--model /none/model"] = "--model: /none/model: No such file or directory",
      ["--batch 15 --devices cpu*2"] = "28 samples are fewer than one step takes: batch 15 on 2 devices is 30",
      ["--weights README.md"] = "README.md",
    } do
      local text, code = run(("scripts/resnet.lua train %s %s"):format(common, arguments))
      assert.equal(1, code, text)
      assert.is_truthy(text:find(message, 1, true), text)
      assert.is_nil(text:find("epoch", 1, true), text)
    end
  end)

  it("begins with a network's weights, under a new head where the classes are others", function()
    if problem then return pending(problem) end
    program.shell(([[cd %s && for split in train val; do mkdir -p renamed/$split &&
      ln -s ../../$split/bright renamed/$split/b && ln -s ../../$split/dark renamed/$split/d; done]]):format(directory))
    local other = common:gsub("%-%-data %S+", "--data " .. directory .. "/renamed")
    local began = ("--model %s/began.safetensors --epochs 1 --lr 0 --devices %s"):format(directory, devices.spec(1))
    local function loss(arguments)
      local text, code = run(("scripts/resnet.lua train %s %s"):format(arguments, began))
      assert.equal(0, code, text)
      return tonumber(text:match "epoch 1/1  loss (%S+)")
    end
    local weights = " --weights " .. model
    local new, same, changed = loss(common), loss(common .. weights), loss(other .. weights)
    assert.is_true(new ~= same and same ~= changed and changed ~= new, ("%g %g %g"):format(new, same, changed))
    for arguments, message in pairs {
      ["train " .. common .. " --width 3" .. weights] =
        "is a resnet18 --width 2 --size 16, to be trained is a resnet18 --width 3 --size 16",
      ["eval " .. other] = "class 1 of the held-out images is b, of those to learn bright",
    } do
      local text, code = run("scripts/resnet.lua " .. arguments)
      assert.equal(1, code, text)
      assert.is_truthy(text:find(message, 1, true), text)
    end
  end)

  it("writes an epoch's line when the epoch ends, into a file, too", function()
    if problem then return pending(problem) end
    local text = program.shell(([[
      %s scripts/resnet.lua train %s --epochs 50 --devices cpu >%s/log & pid=$!
      until grep -q '^epoch 1/' %s/log || ! kill -0 $pid; do sleep 0.02; done
      kill $pid && echo 'still running']]):format(program.conflux, common:gsub("%-%-model %S+", "--model " .. directory
      .. "/log.safetensors"), directory, directory))
    assert.equal("still running\n", text)
  end)

  it("explains its options, and refuses others", function()
    local text, code = run "scripts/resnet.lua --help"
    assert.equal(0, code)
    for _, name in ipairs {"--data", "--arch", "--weights", "--epochs", "--batch", "--lr", "--size", "--width",
      "--threads", "--devices", "--seed"} do
      assert.is_truthy(text:find(name, 1, true), name)
    end
    for arguments, message in pairs {["fly"] = "there is no 'fly'", ["train --bach 3"] = "unknown option %-%-bach",
      ["train --size 7"] = "%-%-size: '7' will not do", ["train --lr nan"] = "%-%-lr: 'nan' will not do",
      ["train --threads 0"] = "%-%-threads: '0' will not do", ["predict"] = "no images", [""] = "what is to be done"} do
      text, code = run("scripts/resnet.lua " .. arguments)
      assert.equal(2, code)
      assert.matches(message, text)
    end
  end)
end)

describe("scripts/quickstart", function()
  local path, build = "scripts/quickstart", program.conflux:gsub("/?bin/conflux$", "")

  it("builds the program that it runs, and no test, stand-in or benchmark", function()
    if not program.exists(path) then return pending "there are no sources here" end
    if not program.exists(build .. "/build.ninja") then return pending "this is no build directory of Ninja's" end
    local root, builds = program.shell "pwd":gsub("\n", "/"), 0
    for arguments in program.slurp(path):gmatch "\ncmake %-%-build ([^\n]*)" do
      builds = builds + 1
      local targets = arguments:match "%-%-target (.*)$" or "all"
      local files, err, code = program.shell(("ninja -C %s -t inputs %s"):format(program.quote(build), targets))
      assert.equal(0, code, err)
      assert.is_truthy(files:find("core/host/main.c", 1, true))
      for file in files:gmatch "[^\n]+" do
        file = file:sub(1, #root) == root and file:sub(#root + 1) or file
        for _, part in ipairs {"tests/", "emulated", "fake", "bench", "_test", "embed_"} do
          assert.is_nil(file:find(part, 1, true), file)
        end
      end
    end
    assert.equal(1, builds)
  end)
end)

describe("scripts/make-imagenet.lua #program", function()
  local data = run "scripts/make-imagenet.lua --help":match "%-%-data DIR.-%((.-)%)"
  local handle = io.open(data .. "/train-images-idx3-ubyte.gz")
  if handle then handle:close() end

  it("refuses options that will not do", function()
    for arguments, message in pairs {[""] = "OUT is missing", ["a b"] = "unknown argument b",
      ["a --size 0"] = "'0' will not do", ["a --out 3"] = "unknown option", ["a --train"] = "--train needs a value"} do
      local text, code = run("scripts/make-imagenet.lua " .. arguments)
      assert.equal(2, code)
      assert.matches(message, text, 1, true)
    end
  end)

  it("makes a tree that cf.data.imagenet reads", function()
    local cf = require "conflux"
    if not handle then return pending "Fashion-MNIST is not installed (dataset-fashion-mnist)" end
    if cf.info().libraries:find "no libjpeg" then return pending "there is no libjpeg-turbo" end
    local tree = os.tmpname()
    os.remove(tree)
    local text, code = run(("scripts/make-imagenet.lua %s --train 60 --val 40 --size 56"):format(program.quote(tree)))
    assert.equal(0, code, text)
    local train, val = cf.data.imagenet(tree), cf.data.imagenet(tree, {split = "val"})
    assert.same({60, 40, 10, 9}, {train:size(), val:size(), #train.classes, train[1].id}) -- the first one is a boot
    assert.equal("ankle boot", train.classes[10].description)
    local boot = cf.data.image(train[1].path, nil, {dtype = "uint8", device = "cpu"})
    local pixels = cf.data.idx(data .. "/train-images-idx3-ubyte.gz", {device = "cpu"})[1]
    assert.same({56, 56, 3}, boot.shape)
    local mean = boot:to "float32":mean():item()
    assert.near(pixels:to "float32":mean():item(), mean, 2)
    program.shell("rm -r " .. program.quote(tree))
  end)
end)
