-- Prints where busted's Lua modules lie, for a bundle that carries them: for each name before the first dot of a module
-- that busted loads, the files and directories of that name, one a line.  Whole directories, for some modules are
-- loaded by names that only a run makes up.
--
--     build/bin/conflux scripts/package/modules.lua tests/busted.lua
-- luacheck: ignore 121 122
local own = {}
for name in pairs(package.loaded) do own[name] = true end

local function exists(path)
  local file = io.open(path)
  return file ~= nil and file:close()
end

local function list()
  local names, seen = {}, {}
  for name in pairs(package.loaded) do
    local top = name:match "^[^.]+"
    if not own[top] and not seen[top] then
      seen[top] = true
      names[#names + 1] = top
    end
  end
  table.sort(names)
  for pattern in (package.path .. ";" .. package.cpath):gmatch "[^;]+" do
    local directory, ending = pattern:match "^(/.*)/%?(%.%a+)$"
    for _, name in ipairs(directory and names or {}) do
      for _, path in ipairs {directory .. "/" .. name .. ending, directory .. "/" .. name} do
        if exists(path) and not seen[path] then
          seen[path] = true
          io.write(path, "\n")
        end
      end
    end
  end
end

-- Asked for its version busted loads itself, prints that and exits.
local path, print, exit = ..., print, os.exit
arg = {[0] = "busted", "--version"}
_G.print = function() end
os.exit = function()
  _G.print = print
  list()
  exit(0)
end
dofile(path)
