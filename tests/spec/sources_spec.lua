--- What the library's own sources keep to.

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
