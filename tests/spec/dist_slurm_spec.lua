-- Processes that Slurm has started: what srun tells each is told by hand.
local program = require "tests.spec.program"
local shell = program.shell

local script, job = os.tmpname(), os.time()

local SCRIPT = [[
local cf = require "conflux"
for _ = 1, 3 do
  cf.dist.init {timeout = tonumber(arg[1] or 60)}
  local x = cf.dist.allreduce("+", cf.full(cf.dist.rank() + 1, 5000))
  io.write(("%d of %d: %g\n"):format(cf.dist.rank(), cf.dist.size(), x:max():item()))
  cf.dist.finalize()
end
]]

-- A part of a script for sh: process `rank` of a step of n; `more` sets other variables.
local function process(rank, n, step, more, argument)
  return ("SLURM_JOB_ID=%d SLURM_STEP_ID=%s SLURM_STEP_NUM_TASKS=%d SLURM_PROCID=%d %s '%s' --devices cpu '%s' %s")
    :format(job, step, n, rank, more or "", program.conflux, script, argument or "")
end

describe("a Slurm step #program", function()
  setup(function()
    local file = assert(io.open(script, "w"))
    file:write(SCRIPT)
    file:close()
  end)
  teardown(function() os.remove(script) end)

  for _, n in ipairs {2, 3} do
    it("of " .. n .. " processes is a world, whichever comes first, and so is the next", function()
      local parts = {}
      for rank = n - 1, 0, -1 do parts[#parts + 1] = process(rank, n, n) .. " &" end
      local out, err, code = shell("{ " .. table.concat(parts, " ") .. " wait; }")
      assert.equal("", err)
      assert.equal(0, code)
      local count = 0
      for line in out:gmatch "[^\n]+" do
        assert.is_truthy(line:find((" of %d: %g"):format(n, n * (n + 1) / 2), 1, true), line)
        count = count + 1
      end
      assert.equal(3 * n, count)
    end)
  end

  it("of one process, and a batch script of a job of many, are alone", function()
    assert.equal("0 of 1: 1\n", (shell(process(0, 1, "one")):match "^[^\n]*\n"))
    assert.equal("0 of 1: 1\n", (shell(("SLURM_JOB_ID=1 SLURM_NTASKS=4 '%s' --devices cpu '%s'"):format(program.conflux,
      script)):match "^[^\n]*\n"))
  end)

  it("is refused where it says too little, or spans hosts; one that lacks a process is given up in time", function()
    local _, err, code = shell(process(0, 2, "a", "SLURM_PROCID="))
    assert.equal(1, code)
    assert.is_truthy(err:find("SLURM_STEP_NUM_TASKS is 2", 1, true), err)
    _, err = shell(process(0, 2, "b", "SLURM_STEP_NUM_NODES=2"))
    assert.is_truthy(err:find("SLURM_STEP_NUM_NODES is 2: processes of several hosts", 1, true), err)
    for rank = 0, 1 do
      _, err = shell(process(rank, 2, "c" .. rank, "", "0.2"))
      assert.is_truthy(err:find("have not all come in 0.2 s", 1, true), err)
    end
  end)
end)
