--- Rules that the library's own sources keep.

local function sources()
  local list = {}
  local found = assert(io.popen("find lua -name '*.lua'"))
  for path in found:lines() do list[#list + 1] = path end
  found:close()
  return list
end

describe("the library", function()
  it("walks tables with `each`, for LuaJIT may end a compiled loop over pairs or next early", function()
    local paths, wrong = sources(), {}
    assert.is_true(#paths > 20)
    for _, path in ipairs(paths) do
      local number = 0
      for line in io.lines(path) do
        number = number + 1
        if line:find("%f[%w]in%s+next%f[%W]") or line:find("%f[%w]in%s+pairs%f[%W]") then
          wrong[#wrong + 1] = path .. ":" .. number
        end
      end
    end
    assert.same({}, wrong)
  end)
end)

describe("the core", function()
  it("neither writes nor reads by the host's locale", function()
    local wrong = {}
    local found = assert(io.popen "find core -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh'")
    for path in found:lines() do
      local number = 0
      for line in io.lines(path) do
        number = number + 1
        local writes = line:find "%f[%w_]snprintf%(.*%%[%d.]*[aefgAEFG]%f[^%w]" or line:find "%f[%w_]vsnprintf%("
        local reads = line:find "%f[%w_]strto[dfl]d?%(" and not line:find "strtoll?%(" or line:find "%f[%w_]ato[fi]%("
        local asks = line:find "%f[%w_]strerror%(" or line:find "%f[%w_]dlerror%(%)"
          or line:find "%f[%w_]is[a-z]+%(%(unsigned"
        -- the programs' own, which say what is the user's; and cf_engine_fail, whose formats have no such number
        local is_program = path:find "^core/host/" or path:find "^core/launch/"
        if (writes or reads or asks) and not is_program and path ~= "core/base/locale.h" then
          wrong[#wrong + 1] = ("%s:%d: %s"):format(path, number, line)
        end
      end
    end
    found:close()
    assert.same({}, wrong)
  end)
end)
