-- Conflux inside other programs, as they are built; what engines promise is tested in tests/embed.
local program = require "tests.spec.program"

-- The directory of libconflux.so, which this process has in it.
local function library_directory()
  return program.slurp "/proc/self/maps":match "(/[^\n]*)/libconflux%.so"
end

local function exists(path)
  local file = io.open(path)
  if file then file:close() end
  return file ~= nil
end

describe("libraries #program", function()
  for _, name in ipairs {"libconflux.so", "libconflux_host.so"} do
    it(name .. " exports cfx_* alone", function()
      local path = library_directory() .. "/" .. name
      if not exists(path) then return pending(name .. " is not here") end
      if not program.has "nm" then return pending "there is no nm" end
      local out, err, code = program.shell("nm -D --defined-only " .. program.quote(path))
      assert.same({"", 0}, {err, code})
      local count, others = 0, {}
      for kind, symbol in out:gmatch "%x+ (%a) (%S+)\n" do
        if symbol:find "^cfx_" then
          count = count + 1
          assert.equal("T", kind)
        elseif not symbol:find "^__odr_asan" then -- of a sanitizer's
          others[#others + 1] = symbol
        end
      end
      assert.same({}, others)
      assert.is_true(count > 10)
    end)
  end

  it("libconflux.so needs no Lua", function()
    if not program.has "objdump" then return pending "there is no objdump" end
    local out = program.shell("objdump -p " .. program.quote(library_directory() .. "/libconflux.so"))
    assert.matches("NEEDED", out)
    assert.is_nil(out:lower():find "needed[^\n]*lua")
  end)
end)
