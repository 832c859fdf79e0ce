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

  it("trains on the last samples, too, where they are fewer than devices", function()
    if not handle then return pending "Fashion-MNIST is not installed (dataset-fashion-mnist)" end
    local text, code = run("scripts/fashion.lua --epochs 1 --batch 2857 --devices " .. devices.spec(7)) -- 3 are left
    assert.equal(0, code, text)
    assert.matches("epoch 1/1  loss %d%.%d%d%d%d  test_accuracy %d%.%d%d%d%d ", text)
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
