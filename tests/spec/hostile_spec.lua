-- Values that no function was made for, and what else must never end the process.
local program = require "tests.spec.program"
local shell, quote = program.shell, program.quote

describe("a public function #program", function()
  after_each(program.clean)

  -- All calls take a minute and more, so each run draws some; CONFLUX_HOSTILE="SEED 1" makes all of them.
  -- Bounded memory, so that a huge size is an error and not the machine's; the interpreter alone, so that each run of a
  -- seed does the same.
  it("takes any value in any place, or refuses it at the caller's line", function()
    local drawn = os.getenv "CONFLUX_HOSTILE" or os.time() .. " 0.15"
    local out, err, code = shell(("b=$(realpath %s) s=$(realpath tests/spec/hostile.lua) d=$(mktemp -d) && cd $d && "
      .. "CONFLUX_MEMORY_LIMIT=64M timeout 900 $b -joff $s %s >out; code=$?; cat report; rm -r $d; (exit $code)")
      :format(quote(program.conflux), drawn))
    local again = (" (again by CONFLUX_HOSTILE='%s')"):format(drawn)
    assert(code == 0, "it ended at " .. err:sub(-200) .. again)
    local count = out:match "(%d+) calls\n$"
    local faults = out:gsub("%d+ calls\n$", "")
    assert(faults == "", faults .. again)
    assert.is_true(tonumber(count) > 100000)
  end)
end)

describe("a device #program", function()
  after_each(program.clean)

  it("is compared with nil and with a name, as often as anyone likes", function()
    local script = program.file [[
      local cf = require "conflux"
      local function names(x) return x ~= nil and x ~= "other" and x == "cpu:0" end
      local d, n = cf.device "cpu:0", 0
      for _ = 1, 100000 do n = n + (names(d) and 1 or 0) end
      print(n)
    ]]
    local out, err, code = program.run(script)
    assert.equal("100000\n", out, err)
    assert.equal(0, code)
  end)
end)
