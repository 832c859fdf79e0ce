--- Checks that core stands as core/README.md says: rooms that use lower rooms alone, files without circles; and that
-- the comments of core and lua/conflux begin with their subject (tests/house/words.lua).
--
--   build/bin/conflux tests/house/check.lua            fails, and says why, where it does not; after a build
--   build/bin/conflux tests/house/check.lua --print    shows rooms, files, the edges between rooms, and the circles
--   build/bin/conflux tests/house/check.lua --count    lines of code outside headers, by room and in all
--   build/bin/conflux tests/house/check.lua --shrink   lowers tests/house/known to what there still is
--
-- tests/house/house.lua says what an edge is, tests/house/known which faults are still tolerated.
local house = require "tests.house.house"
local words = require "tests.house.words"

-- Exceptions from the order of rooms, and why. An entry that is no longer needed fails, too.
local allowed = {
  symbols = {
    cf_backend_cpu = {
      from = "core/device/backends.c", header = "cpu/backend.h", why = "it is the one backend that is linked in",
    },
  },
  pointers = { -- a struct's field, a struct with all of its fields, or a function that takes a pointer to a function
    ["cf_backend"] = {why = "a backend stands above device, which calls it: that is what device/backend.h is for"},
    ["cf_streams"] = {why = "of a backend whose kernels are only launched"},
    ["cf_link"] = {why = "of a backend whose devices reach each other by a library"},
    ["cf_depend"] = {why = "a context ends its tapes, loaders and groups, a device its buffers, as their rooms say"},
    ["cf_queue_reserve"] = {why = "a command carries the function that the worker runs for it"},
    ["cf_dispatch_begin"] = {why = "the same, where a command touches tensors"},
    ["cf_thread_start"] = {why = "a thread runs the function of its maker"},
  },
  structs = {}, -- "NAME names OTHER"
}

local path = "tests/house/known"

local function read(name)
  local file = assert(io.open(name))
  local text = file:read "*a"
  file:close()
  return text
end

local function print_count(model)
  local total, by_room = house.count(model)
  for _, room in ipairs(model.rooms) do print(("%7d  %s"):format(by_room[room.name] or 0, room.name)) end
  print(("%7d  lines of code outside headers"):format(total))
end

local function print_rooms(model)
  local _, by_room = house.count(model)
  for _, room in ipairs(model.rooms) do
    local labels = {}
    for _, node in ipairs(model.order) do
      if node.room == room.name then labels[#labels + 1] = node.label:sub(#room.name + 2) end
    end
    table.sort(labels)
    print(("%s: %d files, %d lines of code outside headers"):format(room.name, #labels, by_room[room.name] or 0))
    print("  " .. table.concat(labels, " "))
  end
end

local function print_edges(model)
  local number = {}
  for from, out in pairs(model.edges) do
    for to in pairs(out) do
      local between = from.room .. " -> " .. to.room
      number[between] = (number[between] or 0) + 1
    end
  end
  print "\nEdges between files, by their rooms:"
  for _, from in ipairs(model.rooms) do
    for _, to in ipairs(model.rooms) do
      local n = number[from.name .. " -> " .. to.name]
      local against = from ~= to and not from.uses[to.name]
      if n then print(("  %s -> %s: %d%s"):format(from.name, to.name, n, against and ", against the order" or "")) end
    end
  end
end

local function keys(set)
  local list = {}
  for key in pairs(set) do list[#list + 1] = key end
  table.sort(list)
  return list
end

local function print_found(model)
  print "\nPointers by which a room calls a higher one:"
  for _, name in ipairs(keys(model.pointers)) do
    local rule = allowed.pointers[name] or allowed.pointers[name:match "^[^.]+"]
    print(("  %s: %s"):format(name, rule and rule.why or "NOT ALLOWED"))
    for _, detail in ipairs(keys(model.pointers[name])) do print("    " .. detail) end
  end
  for _, kind in ipairs(house.order) do
    print(("\n%s:"):format(house.kinds[kind]))
    for _, where in ipairs(keys(model.found[kind])) do
      local found = model.found[kind][where]
      print(("  %s: %d"):format(where, found.n))
      for _, detail in ipairs(found.details) do print("    " .. detail) end
    end
  end
  for _, text in ipairs(model.circle_texts) do print("\n" .. text) end
end

local function fail(usage)
  io.stderr:write(usage, "\n")
  os.exit(1)
end

local mode = arg[1]
local model = house.read(".", allowed)
if mode == "--print" then
  print_rooms(model)
  print_edges(model)
  print_found(model)
elseif mode == "--count" then
  print_count(model)
elseif mode == "--shrink" then
  local text = house.shrink(model, read(path))
  local file = assert(io.open(path, "w"))
  file:write(text)
  file:close()
elseif mode then
  fail "usage: conflux tests/house/check.lua [--print | --count | --shrink]"
else
  local complaints = house.complaints(model, house.tolerances(read(path)))
  for _, text in ipairs(words.complaints "core lua/conflux") do complaints[#complaints + 1] = text end
  if model.unbuilt then print("core/" .. model.unbuilt .. " is judged by its includes: nothing of it is built") end
  if #complaints > 0 then fail(table.concat(complaints, "\n")) end
  print(("%d files in %d rooms stand in order"):format(#model.order, #model.rooms))
end
