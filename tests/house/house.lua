--- The graph of core, and what is wrong with it: circles, and edges against the order of the rooms.
--
-- A node is a source (.c, .cu) with the header of its name in its folder, or a header or table alone; conflux.h is
-- none. It has an edge to each node that it includes, and to each that defines a symbol that its objects leave
-- undefined. Objects are a release build's, those of the plugin nvcc's or else those for the pretended GPU. The plugin
-- is a library of its own: what it defines, it does not look for elsewhere.
local graph  = require "tests.house.graph"
local source = require "tests.house.source"

local house = {longest = 600}

local plugin = "cuda"
local from_root = {c = true, cu = true, h = true, cuh = true, def = true}
local outside_headers = {c = true, cu = true, cuh = true, def = true}

--- The kinds of faults that may be tolerated, and how a number of them reads.
house.kinds = {
  circle = "files in circles", upward = "edges against the order", struct = "structs that name one above them",
  header = "sources without a header", length = ("files of more than %d lines"):format(house.longest),
}
house.order = {"upward", "struct", "header", "length", "circle"}
local kinds = house.kinds

local function slurp(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

local function sorted(set)
  local list = {}
  for key in pairs(set) do list[#list + 1] = key end
  table.sort(list)
  return list
end

-- The lines that a command writes, run in `root`.
local function lines_of(root, command)
  local pipe = assert(io.popen(("export LC_ALL=C; cd '%s' && %s"):format(root, command)))
  local list = {}
  for line in pipe:lines() do list[#list + 1] = line end
  pipe:close()
  return list
end

-- ---- reading --------------------------------------------------------------------------------------------------

-- The table of core/README.md: {name, uses = set}, from top to bottom.
local function read_page(root, wrong)
  local rooms, index = {}, {}
  for line in io.lines(root .. "/core/README.md") do
    local name, uses = line:match "^|%s*`([%w_]+)`%s*|[^|]*|([^|]*)|%s*$"
    if name then
      local room = {name = name, uses = {}}
      for used in uses:gmatch "`([%w_]+)`" do room.uses[used] = true end
      rooms[#rooms + 1] = room
      index[name] = #rooms
    end
  end
  for i, room in ipairs(rooms) do
    for _, used in ipairs(sorted(room.uses)) do
      if not index[used] or index[used] <= i then
        wrong[#wrong + 1] = ("core/README.md: %s uses %s, which is no room below it"):format(room.name, used)
      end
    end
  end
  return rooms, index
end

local function add_node(model, path)
  local name, ending = path:match "^(.*)%.(%w+)$"
  if ending == "def" then name = path end -- ops.def is not the header of ops.c
  local node = model.nodes[name]
  if not node then
    node = {name = name, room = path:match "^[^/]+", files = {}, defines = {}, needs = {}, names = {},
      users = {}}
    model.nodes[name] = node
    model.order[#model.order + 1] = node
  end
  local code, bare = source.code(slurp(model.root .. "/core/" .. path))
  local file = {path = path, ending = ending, code = code, bare = bare, lines = source.lines(code)}
  node.files[#node.files + 1] = file
  if ending == "c" or ending == "cu" then
    node.source, node.label = path, path
  else
    node.label = node.label or path
    if ending ~= "def" then node.header = path end
  end
  model.node_of[path] = node
end

-- The files of core; `times` of the sources.
local function read_files(model, wrong)
  local times, here = {}, {}
  local found = lines_of(model.root, "find core -type f -printf '%T@ %P\\n' | sort -k 2")
  for _, line in ipairs(found) do
    local time, path = line:match "^(%S+) (.*)$"
    local ending = path:match "%.(%w+)$"
    times[path] = tonumber(time)
    local length = 0
    for _ in slurp(model.root .. "/core/" .. path):gmatch "\n" do length = length + 1 end
    if from_root[ending] and path:find "/" then
      add_node(model, path)
      here[path:match "^[^/]+"] = true
    end
    if length > house.longest and path ~= "conflux.h" then model.long[path] = length end
  end
  for _, room in ipairs(sorted(here)) do
    if not model.index[room] then wrong[#wrong + 1] = ("core/README.md: there is no row for core/%s"):format(room) end
  end
  for _, room in ipairs(model.rooms) do
    if not here[room.name] then wrong[#wrong + 1] = ("core/README.md: there is no core/%s"):format(room.name) end
  end
  return times
end

-- source -> its objects, by CMake's and cuda.cmake's names for them.
local function find_objects(model, times, wrong)
  local kernels, objects, built = {}, {}, {}
  for _, node in ipairs(model.order) do
    if node.source and node.source:find "%.cu$" then kernels[node.source:match "([^/]+)%.cu$"] = node.source end
  end
  local function object_of(path)
    local kernel = path:match "^build/cuda/([^/]+)%.o$"
    if kernel then return kernels[kernel], "nvcc" end
    local target
    target, kernel = path:match "^build/CMakeFiles/conflux_cuda_(%l+)%.dir/.*/emulated_([^/]+)%.cpp%.o$"
    if target == "kernels" or target == "emulated" then return kernels[kernel], "emulated" end
    return path:match "^build/CMakeFiles/[^/]+%.dir/core/(.+%.c)%.o$", "cmake"
  end
  local found = lines_of(model.root, "find build/CMakeFiles build/cuda -name '*.o' -printf '%T@ %p\\n' 2>/dev/null")
  for _, line in ipairs(found) do
    local time, path = line:match "^(%S+) (.*)$"
    local of, by = object_of(path)
    if of and model.node_of[of] then
      objects[of] = objects[of] or {}
      local list = objects[of][by] or {}
      objects[of][by] = list
      -- of two targets' the later one counts: the other is of a time when that target had the file
      local place = by == "emulated" and list[1] and 1 or #list + 1
      if place > #list or list[1].time < tonumber(time) then list[place] = {path = path, time = tonumber(time)} end
      built[model.node_of[of].room] = true
    end
  end
  local function is_stale(object, node) return object.time < times[node.source] end
  for _, node in ipairs(model.order) do
    local by = objects[node.source] or {}
    local nvcc = by.nvcc
    if nvcc and by.emulated and is_stale(nvcc[1], node) then nvcc = nil end -- of a time when there was an nvcc
    node.objects = nvcc or by.emulated or by.cmake or {}
    if #node.objects > 0 then
      for _, object in ipairs(node.objects) do
        if is_stale(object, node) then
          wrong[#wrong + 1] = ("%s is older than core/%s: build first"):format(object.path, node.source)
        end
      end
    elseif node.source and node.room == plugin and not built[plugin] then
      model.unbuilt = plugin -- neither nvcc nor a compiler for the pretended GPU
    elseif node.source and not node.name:find "_none$" and not model.nodes[node.name .. "_none"] then
      wrong[#wrong + 1] = ("core/%s has no object: build first"):format(node.source)
    end
  end
end

-- A symbol's name, without what C++ puts around it, and without the instruction set of a kernel's object.
local function name_of(symbol, object)
  local name = symbol:gsub("%(anonymous namespace%)::", ""):match "^[^(]+"
  local isa = object:match "/conflux_kernels_(%w+)%.dir/"
  return isa and name:match("^(.*)_" .. isa .. "$") or name
end

-- Fills in the nodes' symbols. A weak one is an inline function's, which no other file has to look for.
local function read_symbols(model)
  local node_of, paths = {}, {}
  for _, node in ipairs(model.order) do
    for _, object in ipairs(node.objects) do
      node_of[object.path] = node
      paths[#paths + 1] = "'" .. object.path .. "'"
    end
  end
  if #paths == 0 then return end
  for _, line in ipairs(lines_of(model.root, "nm -A -C " .. table.concat(paths, " "))) do
    local path, kind, symbol = line:match "^(.-):%x* +(%a) (.+)$"
    local node, name = node_of[path], name_of(symbol, path)
    if kind == "U" then node.needs[symbol] = name
    elseif kind:find "[TDBRGSCi]" then node.defines[symbol] = {name = name, kind = kind}
    end
    node.names[name] = true
  end
end

-- An edge has sets of what makes it: `includes` and `uses`.
local function add_edge(model, from, to, how, what)
  if from == to then return end
  local out = model.edges[from]
  out[to] = out[to] or {}
  out[to][how] = out[to][how] or {}
  out[to][how][what] = true
end

local function read_edges(model, allowed)
  for _, node in ipairs(model.order) do model.edges[node] = {} end
  local headers = {} -- of allowed symbols
  for _, rule in pairs(allowed.symbols) do
    if rule.header then headers[rule.header] = rule end
  end
  local definers = {} -- symbol -> nodes
  for _, node in ipairs(model.order) do
    for symbol in pairs(node.defines) do
      definers[symbol] = definers[symbol] or {}
      table.insert(definers[symbol], node)
    end
  end
  for _, node in ipairs(model.order) do
    for _, file in ipairs(node.files) do
      for _, path in ipairs(source.includes(file.code)) do
        local beside = file.path:match "^(.*/)" .. path
        local to = model.node_of[beside] or model.node_of[path]
        if to and not (headers[path] and headers[path].from == "core/" .. node.label) then
          add_edge(model, node, to, "includes", path)
        end
      end
    end
    for symbol, name in pairs(node.needs) do
      local own, others = {}, {}
      for _, to in ipairs(definers[symbol] or {}) do
        local list = to.room == node.room and own or to.room ~= plugin and others or {}
        list[#list + 1] = to
      end
      for _, to in ipairs(#own > 0 and own or others) do
        to.users[symbol] = to.users[symbol] or {}
        table.insert(to.users[symbol], node)
        local rule = allowed.symbols[name]
        if rule and rule.from == "core/" .. node.label then model.used[rule] = true
        else add_edge(model, node, to, "uses", name)
        end
      end
    end
  end
end

-- ---- faults -------------------------------------------------------------------------------------------------------

-- "a, b, c, d and 3 more"
local function some(names)
  local rest = #names - 4
  local text = table.concat(names, ", ", 1, rest > 1 and 4 or #names)
  return rest > 1 and ("%s and %d more"):format(text, rest) or text
end

--- An edge in words.
function house.edge(from, to, edge)
  local reasons = {}
  for _, how in ipairs {"includes", "uses"} do
    if edge[how] then reasons[#reasons + 1] = how .. " " .. some(sorted(edge[how])) end
  end
  return ("%s -> %s: %s"):format(from.label, to.label, table.concat(reasons, "; "))
end

--- The edges within a circle, in words.
function house.edges_within(model, circle)
  local within, list = {}, {}
  for _, node in ipairs(circle) do within[node] = true end
  for _, from in ipairs(circle) do
    for to, edge in pairs(model.edges[from]) do
      if within[to] then list[#list + 1] = house.edge(from, to, edge) end
    end
  end
  table.sort(list)
  return list
end

-- found[kind][where] = {n, details}: what house.known may tolerate.
local function add_found(model, kind, where, detail)
  local found = model.found[kind]
  found[where] = found[where] or {n = 0, details = {}}
  found[where].n = found[where].n + 1
  table.insert(found[where].details, detail)
end

local function labels(nodes, separator)
  local list = {}
  for i, node in ipairs(nodes) do list[i] = node.label end
  return table.concat(list, separator)
end

local function find_circles(model)
  model.circles = graph.circles(model.order, model.edges)
  for _, circle in ipairs(model.circles) do
    local text = {("a circle of %d files: %s"):format(#circle, labels(circle, " "))}
    for _, line in ipairs(house.edges_within(model, circle)) do text[#text + 1] = "  " .. line end
    model.circle_texts[#model.circle_texts + 1] = table.concat(text, "\n")
    local rooms = {}
    for _, node in ipairs(circle) do
      add_found(model, "circle", node.room, not rooms[node.room] and ("shortest way round: %s"):format(
        labels(graph.way_round(model.edges, circle, node.room), " -> ")) or nil)
      rooms[node.room] = true
    end
  end
end

local function find_upward(model)
  for _, from in ipairs(model.order) do
    for to, edge in pairs(model.edges[from]) do
      local room = model.rooms[model.index[from.room]]
      if from.room ~= to.room and room and model.index[to.room] and not room.uses[to.room] then
        add_found(model, "upward", from.room .. ">" .. to.room, house.edge(from, to, edge))
      end
    end
  end
end

-- A source whose function another file calls by name, and that conflux.h does not declare, has a header. A kernel is
-- named by its table alone.
local function find_headers(model)
  local public = slurp(model.root .. "/core/conflux.h")
  for _, node in ipairs(model.order) do
    local alone = node.source and not node.header and not model.node_of[node.name:gsub("_none$", "") .. ".h"]
    local callers = {}
    for symbol, defined in pairs(alone and node.defines or {}) do
      local name, kind = defined.name, defined.kind
      if (kind == "T" or kind == "i") and not public:find("%f[%w_]" .. name .. "%f[^%w_]") then
        for _, user in ipairs(node.users[symbol] or {}) do
          if not user.name:find "/table$" and (not callers[name] or user.label < callers[name]) then
            callers[name] = user.label
          end
        end
      end
    end
    local names = sorted(callers)
    if #names > 0 then
      add_found(model, "header", node.room, ("%s has none for %s (which %s calls)"):format(
        node.source, some(names), callers[names[1]]))
    end
  end
end

-- Structs that name a struct of a file above theirs: of a higher room, or of one that uses theirs, if only through
-- others. A pointer needs no include; where there is one, it is an edge already.
local function find_structs(model, allowed)
  local homes = {}
  local function is_above(node, other)
    if node.room ~= other.room then return (model.index[node.room] or 0) < (model.index[other.room] or 0) end
    return graph.reached(model.edges, node)[other] and not graph.reached(model.edges, other, true)[node]
  end
  local function each_struct(f)
    for _, node in ipairs(model.order) do
      for _, file in ipairs(node.files) do
        for _, struct in ipairs(source.structs(file.bare)) do f(node, struct) end
      end
    end
  end
  each_struct(function(node, struct)
    if struct.name:find "^cfx?_" then homes[struct.name] = node end
  end)
  each_struct(function(node, struct)
    local names = {}
    for name in struct.body:gmatch "%f[%w_]cfx?_[%w_]+" do names[name] = homes[name] end
    for _, name in ipairs(sorted(names)) do
      local home = homes[name]
      local key = struct.name .. " names " .. name
      if home ~= node and is_above(home, node) then
        if allowed.structs[key] then model.used[allowed.structs[key]] = true
        else add_found(model, "struct", node.room, ("%s of %s names %s of %s"):format(
          struct.name, node.label, name, home.label))
        end
      end
    end
  end)
end


-- Pointers to functions by which a room calls a higher one: fields that a higher room sets and a lower one calls, and
-- functions of a lower room that a higher one hands a function: name -> set of details.
local function find_pointers(model)
  local types, fields, takers, pointers = {}, {}, {}, {}
  local function each_file(f)
    for _, node in ipairs(model.order) do
      for _, file in ipairs(node.files) do f(node, file) end
    end
  end
  local function is_above(a, b) return (model.index[a.room] or 0) < (model.index[b.room] or 0) end
  local function add(name, detail)
    pointers[name] = pointers[name] or {}
    pointers[name][detail] = true
  end

  source.pointer_types(select(2, source.code(slurp(model.root .. "/core/conflux.h"))), types)
  each_file(function(_, file) source.pointer_types(file.bare, types) end)
  each_file(function(node, file)
    file.assigned, file.initialised = source.assigned(file.bare), source.initialised(file.bare)
    file.called, file.called_fields = source.called(file.bare)
    for field, struct in pairs(source.pointer_fields(file.bare, types)) do
      fields[#fields + 1] = {name = field, struct = struct, node = node, setters = {}, callers = {}}
    end
    if file.ending:find "^c?u?h$" then
      for name in pairs(source.takers(file.bare, types)) do takers[name] = node end
    end
  end)

  each_file(function(node, file)
    local known = graph.reached(model.edges, node, true)
    for _, field in ipairs(fields) do
      if known[field.node] then
        for _, name in ipairs(file.initialised[field.struct] or {}) do
          if node.names[name] then field.setters[node] = "by position" end
        end
        for _, name in ipairs(file.assigned[field.name] or {}) do
          if node.names[name] then field.setters[node] = "to " .. name end
        end
        if file.called_fields[field.name] then field.callers[node] = true end
      end
    end
    for name, taker in pairs(takers) do
      if file.called[name] and is_above(node, taker) then
        add(name, ("%s hands it a function"):format(node.label))
      end
    end
  end)
  for _, field in ipairs(fields) do
    for setter, name in pairs(field.setters) do
      for caller in pairs(field.callers) do
        if is_above(setter, caller) then
          add(field.struct .. "." .. field.name,
            ("%s sets it %s, %s calls it"):format(setter.label, name, caller.label))
        end
      end
    end
  end
  return pointers
end

local function judge_pointers(model, allowed)
  model.pointers = find_pointers(model)
  for _, name in ipairs(sorted(model.pointers)) do
    local rule = allowed.pointers[name] or allowed.pointers[name:match "^[^.]+"]
    if rule then model.used[rule] = true
    else
      table.insert(model.wrong, ("a pointer to a function against the order of rooms: %s\n  %s"):format(
        name, table.concat(sorted(model.pointers[name]), "\n  ")))
    end
  end
end

--- Reads the tree at `root`, which holds core/ and build/. `allowed` has what may go against the order, each by its
-- name a table of its own: symbols (with `from`, the file that may use it, and perhaps `header`, which that file may
-- include for it), pointers, structs. The faults beyond toleration are in model.wrong, those that may be tolerated in
-- model.found.
function house.read(root, allowed)
  local wrong = {}
  local model = {root = root, nodes = {}, order = {}, node_of = {}, edges = {}, long = {}, wrong = wrong, used = {},
    found = {}, circle_texts = {}}
  for kind in pairs(kinds) do model.found[kind] = {} end
  model.rooms, model.index = read_page(root, wrong)
  local times = read_files(model, wrong)
  find_objects(model, times, wrong)
  read_symbols(model)
  read_edges(model, allowed)
  find_circles(model)
  find_upward(model)
  find_headers(model)
  find_structs(model, allowed)
  judge_pointers(model, allowed)
  for _, path in ipairs(sorted(model.long)) do
    add_found(model, "length", path:match "^[^/]+", ("%s has %d lines"):format(path, model.long[path]))
  end
  for kind, rules in pairs(allowed) do
    for _, name in ipairs(sorted(rules)) do
      if not model.used[rules[name]] then
        wrong[#wrong + 1] = ("%s is allowed among the %s, but no longer there"):format(name, kind)
      end
    end
  end
  return model
end

--- Lines of code outside headers: in all, and by room.
function house.count(model)
  local total, by_room = 0, {}
  for _, node in ipairs(model.order) do
    for _, file in ipairs(node.files) do
      if outside_headers[file.ending] then
        total = total + file.lines
        by_room[node.room] = (by_room[node.room] or 0) + file.lines
      end
    end
  end
  return total, by_room
end

-- ---- tolerances -----------------------------------------------------------------------------------------------------

--- The tolerances of a text such as tests/house/known: kind -> where -> number.
function house.tolerances(text)
  local known = {}
  for kind in pairs(kinds) do known[kind] = {} end
  for line in text:gmatch "[^\n]+" do
    local kind, where, n = line:match "^(%a+) (%S+) (%d+)$"
    if kind and known[kind] then known[kind][where] = tonumber(n)
    else assert(line:find "^#", "tests/house/known: " .. line)
    end
  end
  return known
end

--- The faults of the model: a list of texts, empty if there are none; where files in circles are too many, the last
-- are the circles with their edges. Tolerances that are too large are wrong, too.
function house.complaints(model, known)
  local list, has_circles = {}, false
  for _, text in ipairs(model.wrong) do list[#list + 1] = text end
  for _, kind in ipairs(house.order) do
    local places = {}
    for where in pairs(model.found[kind]) do places[where] = true end
    for where in pairs(known[kind]) do places[where] = true end
    for _, where in ipairs(sorted(places)) do
      local found, tolerated = model.found[kind][where] or {n = 0, details = {}}, known[kind][where] or 0
      if found.n > tolerated then
        list[#list + 1] = ("%s: %d %s, %d tolerated\n  %s"):format(where, found.n, kinds[kind], tolerated,
          table.concat(found.details, "\n  "))
        has_circles = has_circles or kind == "circle"
      elseif found.n < tolerated and where ~= model.unbuilt then
        list[#list + 1] = ("%s: %d %s, but tests/house/known tolerates %d: run tests/house/check.lua --shrink"):format(
          where, found.n, kinds[kind], tolerated)
      end
    end
  end
  for _, text in ipairs(has_circles and model.circle_texts or {}) do list[#list + 1] = text end
  return list
end

--- The text of the tolerances with each lowered to what there is; it raises none.
function house.shrink(model, text)
  local lines = {}
  for line in text:gmatch "[^\n]+" do
    local kind, where, n = line:match "^(%a+) (%S+) (%d+)$"
    if kind and where ~= model.unbuilt then
      local found = model.found[kind][where]
      n = math.min(tonumber(n), found and found.n or 0)
      line = n > 0 and ("%s %s %d"):format(kind, where, n)
    end
    if line then lines[#lines + 1] = line end
  end
  return table.concat(lines, "\n") .. "\n"
end

return house
