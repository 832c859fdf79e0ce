-- The bundle, made, unpacked and run as another machine would.
local program = require "tests.spec.program"
local quote, shell = program.quote, program.shell

local build = program.conflux:gsub("bin/conflux$", "")

-- Why there can be no bundle here, or nil.
local function obstacle()
  return program.obstacle()
    or not program.has "dpkg-query" and "the licences come from Debian's packages" or nil
end

describe("the bundle #program", function()
  local why_not, directory = obstacle(), os.tmpname()
  local root = directory .. "/a b/conflux-test-bundle"

  setup(function()
    os.remove(directory)
    if why_not then return end
    local out, err, code = shell(([[mkdir -p %s/'a b' &&
      cmake -D BUILD=%s -D VERSION=test -D OUTPUT=%s -P scripts/package/bundle.cmake &&
      tar xzf %s/conflux-test-bundle.tar.gz -C %s/'a b']]):format(directory, build, directory, directory, directory))
    assert(code == 0, out .. err)
  end)
  teardown(function() os.execute("rm -rf " .. directory) end)

  it("runs x2.lua from a directory with a blank, with nothing in the environment", function()
    if why_not then return pending(why_not) end
    local out, err, code = shell(("cd / && env -i %s --devices 'cpu*2' %s"):format(quote(root .. "/bin/conflux"),
      quote(root .. "/scripts/x2.lua")))
    assert.same({"", 0}, {err, code})
    assert.equal((program.run "--devices 'cpu*2' scripts/x2.lua"), out)
    local launched = shell(("cd / && env -i %s -n 1 --devices 'cpu*2' %s"):format(quote(root .. "/bin/conflux-run"),
      quote(root .. "/scripts/x2.lua")))
    assert.equal(out, (launched:gsub("%f[^\n%z]%[0%] ", "")))
  end)

  it("takes nothing from the machine but glibc", function()
    if why_not then return pending(why_not) end
    local out = shell(("cd / && LD_TRACE_LOADED_OBJECTS=1 %s"):format(quote(root .. "/bin/conflux")))
    local taken = 0
    for name, path in out:gmatch "(%S+) => (/.-) %(0x" do
      if path:sub(1, #root) == root then taken = taken + 1
      else assert.truthy(name:find "^libc%." or name:find "^libm%." or name:find "^libmvec%.", name .. " from " .. path)
      end
    end
    assert.is_true(taken >= 4, out)
  end)

  it("says how it is run, and under which licences it comes", function()
    if why_not then return pending(why_not) end
    assert.matches("bin/conflux scripts/x2.lua", program.slurp(root .. "/README.txt"), 1, true)
    assert.matches("MIT License", program.slurp(root .. "/share/licenses/conflux/LICENSE"), 1, true)
    for file in shell("ls " .. quote(root .. "/share/licenses")):gmatch "[^\n]+" do
      assert.equal(0, os.execute(("test -n \"$(ls %s)\""):format(quote(root .. "/share/licenses/" .. file))))
    end
  end)
end)
