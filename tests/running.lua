-- A helper of busted's: the name of the test that runs stands in the file that CONFLUX_RUNNING names, so that whoever
-- started the specs can say in which of them they crashed.
local busted = require "busted"
local file = assert(io.open(assert(os.getenv "CONFLUX_RUNNING"), "w"))
file:setvbuf "no"

busted.subscribe({"test", "start"}, function(element)
  local names = {}
  local part = element
  while part and part.descriptor ~= "suite" do
    table.insert(names, 1, part.name)
    part = busted.parent(part)
  end
  file:seek "set"
  file:write(table.concat(names, " "), "\n", ("\n"):rep(200))
end)
