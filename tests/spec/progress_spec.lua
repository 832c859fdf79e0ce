-- The progress bar.
require "tests.spec.helper"
local cf = require "conflux"
local core = require "conflux.core"

local devices = require "tests.spec.devices"
devices.use(1, setup, teardown)

local program = require "tests.spec.program"
local terminal = require "tests.spec.terminal"
local file = program.file
teardown(program.clean)

describe("progress", function()
  local script = [[local cf = require "conflux" local bar = cf.progress(4, {label = "e"}) ]]
    .. [[for i = 1, 4 do bar:update(1, {loss = i == 3 and cf.tensor(0.25) or 0.5}) end bar:finish() ]]

  it("writes nothing where stderr is no terminal #program", function()
    local out, err = program.run(("-e '%s'"):format(script))
    assert.equal("", out .. err)
  end)

  it("draws a bar with rate, loss and time on a terminal, without colour under NO_COLOR #program", function()
    if not program.has_terminal() then return pending "no terminal from util-linux's script" end
    local path = file(script)
    local plain = program.shell(("NO_COLOR=1 script -qec '%s %s' /dev/null"):format(program.conflux, path))
    assert.matches("e %[========================%]  4/4  %S+/s  loss 0%.5000  0:00", plain)
    assert.is_nil(plain:find "\27%[32m")
    local coloured = program.shell(("NO_COLOR= script -qec '%s %s' /dev/null"):format(program.conflux, path))
    assert.matches("\27%[32m=", coloured)
  end)

  it("counts and measures without a terminal, too", function()
    local bar = cf.progress(10)
    bar:update(3):update():finish()
    assert.equal(4, bar.done)
    assert.is_true(bar:rate() > 0)
    assert.refuses(function() bar:update(1, {lose = 1}) end, "progress.update: unknown option 'lose'")
  end)

  local function ready(x) return core.C.cfx_ready(x) == 1 end

  -- Steps that are enqueued in no time and take `products` matrix products each; the last one's loss.
  local function enqueue(bar, steps, products)
    local x = cf.rand(64, 64)
    for _ = 1, steps do
      for _ = 1, products do x = x:matmul(x):tanh() end
      bar:update(1, {loss = x:mean()})
    end
    return x
  end

  -- Calls f with a bar, the number of its steps and what these make, while some of it is not done: as many products as
  -- that needs on this machine.
  local function while_behind(f)
    local products = 1
    for _ = 1, 10 do
      local bar = cf.progress(50)
      local x = enqueue(bar, 50, products)
      local passed = f(bar, 50)
      if not ready(x) then return passed, bar end
      x[{1, 1}]:item()
      products = products * 3
    end
    error "the devices were never behind"
  end

  it("counts what is done, not what is enqueued", function()
    local found, bar = while_behind(function(bar, steps)
      bar:rate()
      return {done = bar.done, steps = steps}
    end)
    assert.is_true(found.done < found.steps)
    bar:finish()
    assert.equal(found.steps, bar.done)
  end)

  it("gets on with what is done, without a read of the script's", function()
    local _, bar = while_behind(function() end)
    local before = bar.done
    repeat bar:rate() until bar.done > before
    repeat bar:rate() until bar.done == 50
    assert.is_true(bar:finish():rate() > 0)
  end)

  it("measures at its end all that was enqueued", function()
    local _, bar = while_behind(function() end)
    bar:finish()
    assert.equal(50, bar.done)
    assert.equal(50 / (bar.stop - bar.start), bar:rate())
  end)

  it("raises at its end the fault that kept a step from being done", function()
    local bar = cf.progress(2)
    local _ = cf.ones(3, 2)[cf.tensor({7}, {dtype = "int64"})]
    bar:update()
    local ok, message = pcall(bar.finish, bar)
    assert.is_false(ok)
    assert.matches("id 7 at position 1 is outside 0 to 2 %(enqueued at [^)]*progress_spec.lua", message)
  end)

  -- A script's output at a terminal, with the sequences that move the cursor.
  local function shown(text, settings)
    local t = terminal.open({program.conflux, "--devices", "cpu", file("local cf = require 'conflux'\n" .. text)},
      settings or {"NO_COLOR=1"})
    assert.equal(0, t:finish(), t.screen)
    return t.raw
  end

  it("shows in its last line the loss of the last step and the total #program", function()
    if not terminal.works() then return pending "no pseudo-terminal" end
    local raw = shown [[
      local bar, x = cf.progress(30), cf.full(0, 300, 300)
      for i = 1, 30 do
        for _ = 1, 5 do x = x:matmul(x) end
        bar:update(1, {loss = x:mean() + i})
      end
      bar:finish()
    ]]
    assert.matches("30/30  %S+/s  loss 30%.0000  %d:%d%d\27%[K\r?\n$", raw)
  end)

  it("is as wide as ever, whatever it is told #program", function()
    if not terminal.works() then return pending "no pseudo-terminal" end
    for _, case in ipairs {{100, -50}, {100, 1e300}, {100, 150}, {100, 0}, {0, 5}, {-5, 2}, {1e-300, -1e300}} do
      local raw = shown(("cf.progress(%.17g):update(%.17g):finish()"):format(case[1], case[2]))
      local bars = 0
      for bar in raw:gmatch "%[([=>.]*)%]" do
        bars = bars + 1
        assert.equal(24, #bar, raw)
      end
      assert.is_true(bars > 0, raw)
    end
  end)

  it("leaves the line to what a script prints #program", function()
    if not terminal.works() then return pending "no pseudo-terminal" end
    for call, text in pairs {
      ["print('step', i)"] = "step\t1", ["io.write('step ', i, '\\n')"] = "step 1",
      ["io.stdout:write('step ', i, '\\n')"] = "step 1", ["io.stderr:write('step ', i, '\\n')"] = "step 1",
    } do
      local raw = shown(([[
        local before = {print, io.write, io.stdout.write}
        local bar = cf.progress(2, {label = "epoch"})
        for i = 1, 2 do
          bar:update()
          %s
          bar.drawn = 0 -- as if it were long ago
        end
        bar:finish()
        print "behind it"
        assert(before[1] == print and before[2] == io.write and before[3] == io.stdout.write)
      ]]):format(call))
      assert.matches("epoch %[[^\n]*\27%[K\r\27%[K" .. text .. "\r?\n", raw)
      assert.matches("\n\repoch %[[^\n]*\27%[K\r\27%[K" .. text:gsub("1", "2") .. "\r?\n", raw)
      assert.matches("2/2[^\n]*\n?[^\n]*\r?\nbehind it\r?\n$", raw)
    end
  end)

  it("gives print back where a bar is left behind #program", function()
    if not terminal.works() then return pending "no pseudo-terminal" end
    local raw = shown [[
      local before = print
      pcall(function()
        cf.progress(2):update()
        error "no more"
      end)
      assert(print ~= before)
      print "one"
      assert(print == before)
      print "two"
    ]]
    assert.matches("\27%[K\r\27%[Kone\r?\ntwo\r?\n$", raw)
  end)

  it("calls what a script puts into print's place, and lets it be #program", function()
    if not terminal.works() then return pending "no pseudo-terminal" end
    local raw = shown [[
      local plain, mine = print
      local bar = cf.progress(9)
      bar:update()
      local hooked = print
      function mine(...) hooked("mine", ...) end
      print = mine
      for _ = 1, 3 do
        print "x"
        bar.drawn = 0
        bar:update()
      end
      bar:finish()
      assert(print == mine and hooked ~= plain)
    ]]
    local _, n = raw:gsub("\r\27%[Kmine\tx\r?\n", "")
    assert.equal(3, n)
  end)
end)
