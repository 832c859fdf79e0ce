--- Files: trees as safetensors.
--
-- Tensors are saved under their tree paths, so that other programs find them; the metadata key "conflux" holds
-- the tree as JSON, in which a node is
--
--     3, "text", true                      such a value (a string of other bytes: {"bytes": "hex"})
--     {"number": "inf"}                    inf, -inf or nan
--     {"tensor": "1.weight"}               that tensor, with "marks": "buffer" or "frozen" where it has them
--     {"list": [...], "fields": {...}}     a table: positions 1 to n, and string keys
--     {"same": 3}                          a tie or a cycle: the third table, counted as the tree is walked
--     null                                 in a list, something that is left out
--
-- Earlier versions wrote {"same": "1"} with the path of the table, which two tables may have; they refuse a number,
-- and such a path is read where only one table has it.  A node that is none of these is refused: it is of a later
-- version.
--
-- Functions and devices belong to the run, not to the file: they are left out, and `into` keeps what it has there.
-- Anything else without a form here is refused before anything is written; so is what the reader would refuse: tables
-- deeper than trees go, keys that are not UTF-8.
-- @module conflux.files
local core = require "conflux.core"
local check = require "conflux.check"
local json = require "conflux.json"
local tree = require "conflux.tree"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, is_device, new = core.settle, core.is_tensor, core.is_device, core.new
local band, bor = bit.band, bit.bor
local next, pcall, rawequal, rawget, tonumber, tostring, type = next, pcall, rawequal, rawget, tonumber, tostring, type
local each, join, quote = core.each, tree.join, check.quote
local concat, sort = table.concat, table.sort
local getmetatable = debug.getmetatable -- also where one is protected

local BUFFER, FROZEN = tonumber(C.CFX_FLAG_BUFFER), tonumber(C.CFX_FLAG_FROZEN)
local KEY = "conflux"
local ALONE = "tensor" -- the name of a tensor that is the whole tree

-- Objects and arrays of JSON inside each other: two for a table, and one for a node in the last.
local JSON_DEPTH = 2 * tree.DEPTH + 1

-- ---- save ---------------------------------------------------------------------------------------------------

local function value_node(v, path)
  local kind = type(v)
  if kind == "string" and not json.is_utf8(v) then
    return {bytes = (v:gsub(".", function(c) return ("%02x"):format(c:byte()) end))}
  elseif kind == "number" and (v ~= v or v == 1 / 0 or v == -1 / 0) then
    return {number = v ~= v and "nan" or v > 0 and "inf" or "-inf"}
  elseif kind == "string" or kind == "number" or kind == "boolean" then
    return v
  elseif kind == "function" or is_device(v) then
    return nil
  end
  check.fail("save", "%s is %s, and a file holds tensors, tables, strings, numbers and booleans", quote(path),
    check.describe(v))
end

local node_of

-- found: what has been met, the tensors in order with their names.
local function tensor_node(t, path, found)
  if not found.tensors[t] then
    local name = path == "" and ALONE or path
    if name:find("\0", 1, true) then
      check.fail("save", "the tensor %s: no name in a file holds a zero byte", quote(path))
    elseif found.names[name] then
      check.fail("save", "two tensors have the path %s: rename a key that contains a dot", quote(name))
    end
    found.names[name], found.tensors[t] = true, name
    found[#found + 1] = {name, t}
  end
  local marks = band(t._flags, BUFFER) ~= 0 and "buffer" or band(t._flags, FROZEN) ~= 0 and "frozen" or nil
  return {tensor = found.tensors[t], marks = marks}
end

local function table_node(x, path, found, depth)
  if found.tables[x] then return {same = found.tables[x]} end
  tree.check_depth("save", depth, path)
  found.count = found.count + 1
  found.tables[x] = found.count
  local node = {}
  local n, keys = tree.keys(x, path)
  if n > 0 then node.list = json.list {} end
  for i = 1, n do
    local child = node_of(rawget(x, i), join(path, i), found, depth + 1)
    node.list[i] = child == nil and json.null or child
  end
  for i = 1, #keys do
    local key = keys[i]
    if not json.is_utf8(key) then
      check.fail("save", "the key %s of the table at %s is not UTF-8, as the keys in a file are", quote(key),
        path == "" and "the top" or quote(path))
    end
    local child = node_of(rawget(x, key), join(path, key), found, depth + 1)
    if child ~= nil then
      node.fields = node.fields or {}
      node.fields[key] = child
    end
  end
  return node
end

function node_of(x, path, found, depth)
  if is_tensor(x) then return tensor_node(x, path, found) end
  if type(x) == "table" then return table_node(x, path, found, depth) end
  return value_node(x, path)
end

--- Saves a tree: a model, a state, any nested table of tensors, numbers, strings and booleans.  The file appears
-- whole or not at all, and `cf.load` reads all of it back; functions and devices are left out.
---@param path string
---@param x any
local function save(path, x)
  check.text("save", "path", path)
  if type(x) ~= "table" and not is_tensor(x) then check.arg("save", "tree", "a tensor or a nested table", x) end
  tree.walk(x, function(_, t) core.read_wait(t) end)
  local found = {tensors = {}, names = {}, tables = {}, count = 0}
  local text = json.encode(node_of(x, "", found, 1), JSON_DEPTH)
  local n = #found
  local names, tensors = ffi.new("const char *[?]", n), ffi.new("cfx_tensor *[?]", n)
  for i = 1, n do names[i - 1], tensors[i - 1] = found[i][1], found[i][2] end
  local keys, values = ffi.new "const char *[1]", ffi.new "const char *[1]"
  keys[0], values[0] = KEY, text
  local st = C.cfx_safetensors_write(path, n, tensors, names, 1, keys, values)
  if st ~= 0 then settle(st, C.cfx_safetensors_write, path, n, tensors, names, 1, keys, values) end
end

-- ---- load: from names alone ---------------------------------------------------------------------------------

-- Tables whose keys are exactly "1" to "n" become lists.
local function to_lists(t)
  local n, count = 0, 0
  for key, v in each, t do
    if type(v) == "table" then t[key] = to_lists(v) end
    count = count + 1
  end
  while t[tostring(n + 1)] ~= nil do n = n + 1 end
  if n == 0 or n ~= count then return t end
  local items = {}
  for i = 1, n do items[i] = t[tostring(i)] end
  return items
end

-- A file of another program: nested by the dots of its names, or flat if one name lies within another, or deeper than
-- trees go.
local function nest(names, tensors)
  local root = {}
  for i = 1, #names do
    local t, at, depth = root, nil, 0
    for part in names[i]:gmatch "[^.]+" do
      depth = depth + 1
      if at then
        if t[at] == nil then t[at] = {} end
        t = t[at]
      end
      if type(t) ~= "table" then t = nil break end
      at = part
    end
    if not t or not at or t[at] ~= nil or depth > tree.DEPTH then
      local flat = {}
      for k = 1, #names do flat[names[k]] = tensors[k] end
      return flat
    end
    t[at] = tensors[i]
  end
  return to_lists(root)
end

-- ---- load: from the tree in the metadata --------------------------------------------------------------------

local function bad_file(path, why, ...)
  check.fail("load", "%s: %s", path, why:format(...))
end

local SPECIAL = {inf = 1 / 0, ["-inf"] = -1 / 0, nan = 0 / 0}
local MARKS = {buffer = BUFFER, frozen = FROZEN}

-- A reader for each kind of node, given the file, the node and its path; nil where the node makes no sense.
local READ = {}

function READ.bytes(_, node)
  local hex = node.bytes
  if type(hex) ~= "string" or #hex % 2 ~= 0 or hex:find "%X" then return nil end
  return (hex:gsub("..", function(digits) return string.char(tonumber(digits, 16)) end))
end

function READ.number(_, node)
  return SPECIAL[node.number]
end

function READ.tensor(file, node)
  local t = file.tensors[node.tensor]
  if not t then bad_file(file.path, "its tree names a tensor %s that it lacks", check.describe(node.tensor)) end
  if node.marks ~= nil and not MARKS[node.marks] then return nil end
  t._flags = bor(t._flags, MARKS[node.marks] or 0)
  return t
end

function READ.same(file, node)
  local t = file.tables[node.same]
  if t == false then
    bad_file(file.path, "an earlier version saved it, and its tree has a tie to one of two tables with the path %s",
      quote(node.same))
  elseif not t then
    bad_file(file.path, "its tree names a table %s that it lacks", check.describe(node.same))
  end
  return t
end

local FIELDS = {bytes = {bytes = true}, number = {number = true}, same = {same = true},
  tensor = {tensor = true, marks = true}, table = {list = true, fields = true}}

-- "table", or what else a node that is no plain value is; nil for what this version does not know.
local function kind_of(node)
  local kind = "table"
  for name in each, READ do
    if node[name] ~= nil then kind = name end
  end
  for key in each, node do
    if not FIELDS[kind][key] then return nil end
  end
  local list, fields = node.list, node.fields
  local is_table = (list == nil or json.is_list(list))
    and (fields == nil or type(fields) == "table" and fields ~= json.null and not json.is_list(fields))
  return is_table and not json.is_list(node) and kind or nil
end

-- The value of a node; file.hole stands for what was left out of a list.
local function grow(file, node, at, depth)
  if node == json.null then return file.hole end
  if type(node) ~= "table" then return node end
  local kind = kind_of(node)
  if kind and kind ~= "table" then
    local value = READ[kind](file, node)
    if value ~= nil then return value end
    kind = nil
  end
  if not kind then bad_file(file.path, "its tree has a node at %s that this version does not know", quote(at)) end
  if depth > tree.DEPTH then bad_file(file.path, "its tables lie more than %d deep inside each other", tree.DEPTH) end
  local t = {}
  file.count = file.count + 1
  file.tables[file.count] = t
  file.tables[at] = file.tables[at] == nil and t
  for i = 1, node.list and #node.list or 0 do t[i] = grow(file, node.list[i], join(at, i), depth + 1) end
  local keys = {}
  for key in each, node.fields or {} do keys[#keys + 1] = key end
  sort(keys) -- tables are counted as a walk meets them
  for i = 1, #keys do t[keys[i]] = grow(file, node.fields[keys[i]], join(at, keys[i]), depth + 1) end
  return t
end

-- The file's tree.  Its tables are in `file.tables` by their number, and by their path: false where two have it.
local function grow_tree(file, hole)
  file.hole, file.tables, file.count = hole, {}, 0
  return grow(file, file.node, "", 1)
end

-- ---- load: into a tree --------------------------------------------------------------------------------------

local HOLE = {} -- for what was left out of a list: whatever is there stays

local compare_tables

-- Is t[key] what says which kind of object t is, such as the rule of an optimiser's state?
local function is_fixed(t, key)
  local mt = getmetatable(t)
  local fixed = type(mt) == "table" and rawget(mt, "__fixed")
  return fixed and fixed[key]
end

-- Notes in fit.problems where a value of the file does not fit what t[key] is, in fit.values what is to be set.
local function compare(from, x, at, fit, t, key)
  if is_tensor(from) or rawequal(from, HOLE) then return end -- tensors are compared by their names
  local problem
  if type(from) == "table" then
    if type(x) == "table" then return compare_tables(from, x, at, fit) end
    if next(from) == nil and x == nil then return end -- its contents were left out
    problem = "is a table in the file, but %s here"
  elseif type(x) == "table" or is_tensor(x) then
    problem = ("is a %s in the file, but %%s here"):format(type(from))
  elseif is_fixed(t, key) and from ~= x then
    problem = "is " .. check.describe(from):gsub("%%", "%%%%") .. " in the file, but %s here"
  end
  if problem then
    fit.problems[#fit.problems + 1] = ("%s %s"):format(quote(at), problem:format(check.describe(x)))
  else
    fit.values[#fit.values + 1] = {t, key, from}
  end
end

-- A table that stands in two places of the file stands there here, and the other way around: else one of two values
-- would be lost, or two later become one.
function compare_tables(from, x, at, fit)
  local here, there = fit.here[from], fit.there[x]
  if here or there then
    if not rawequal(here, x) then
      fit.problems[#fit.problems + 1] = here and ("%s is the table at %s in the file, but another one here"):format(
        quote(at), quote(fit.paths[from])) or ("%s is the table at %s here, but another one in the file"):format(
        quote(at), quote(fit.paths[x]))
    end
    return
  end
  fit.here[from], fit.there[x], fit.paths[from], fit.paths[x] = x, from, at, at
  local n, keys = tree.keys(from, at)
  local more = n > 0 and rawget(x, n + 1)
  if more and not is_tensor(more) then -- of a tensor is said that it is not in the file
    fit.problems[#fit.problems + 1] = ("%s is a list of %d in the file, but a longer one here"):format(quote(at), n)
  end
  for i = 1, n do compare(from[i], rawget(x, i), join(at, i), fit, x, i) end
  for i = 1, #keys do compare(from[keys[i]], rawget(x, keys[i]), join(at, keys[i]), fit, x, keys[i]) end
end

local function shape_text(t)
  local sizes = {}
  for d = 0, t._ndim - 1 do sizes[d + 1] = tostring(tonumber(t._shape[d])) end
  return ("[%s] (%s)"):format(concat(sizes, ", "), core.dtypes[t._dtype])
end

-- Notes in `problems` which tensors do not fit; what may be missing or unexpected is no problem.
local function compare_tensors(file, names, tensors, problems, o)
  local known = {}
  for i = 1, #names do
    local name = names[i]
    local x, y = tensors[i], file.tensors[name]
    if known[name] then
      problems[#problems + 1] = ("two tensors here have the path %s"):format(quote(name))
    elseif not y then
      if o.missing ~= "keep" then problems[#problems + 1] = ("%s is not in the file"):format(quote(name)) end
    elseif x._buffer == nil then
      problems[#problems + 1] = ("%s was released"):format(quote(name))
    elseif shape_text(x) ~= shape_text(y) then
      problems[#problems + 1] = ("%s is %s in the file, but %s here"):format(quote(name), shape_text(y),
        shape_text(x))
    end
    known[name] = true
  end
  for i = 1, #file.names do
    if not known[file.names[i]] and o.unexpected ~= "ignore" then
      problems[#problems + 1] = ("%s is in the file, but not here"):format(quote(file.names[i]))
    end
  end
end

local function load_into(file, into, o)
  local tensors, names = tree.leaves(into)
  for i = 1, #names do names[i] = names[i] == "" and ALONE or names[i] end
  local fit = {problems = {}, values = {}, here = {}, there = {}, paths = {}}
  local problems, values = fit.problems, fit.values
  compare_tensors(file, names, tensors, problems, o)
  if file.node then compare(grow_tree(file, HOLE), into, "", fit) end
  if #problems > 0 then
    sort(problems)
    bad_file(file.path, "it does not fit:\n  %s", concat(problems, "\n  "))
  end
  for i = 1, #tensors do
    local from = file.tensors[names[i]]
    if from then
      local st = C.cfx_copy(tensors[i], from)
      if st ~= 0 then settle(st, C.cfx_copy, tensors[i], from) end
      C.cfx_release(from)
    end
  end
  for i = 1, #values do
    local v = values[i]
    v[1][v[2]] = v[3]
  end
  return into
end

-- ---- load ---------------------------------------------------------------------------------------------------

-- The longest part of a name that the table has, up to a dot, becomes what it says there: "" takes it away, false
-- leaves the tensor out.
local function rename_by(table, name)
  local head = name
  while table[head] == nil do
    head = head:match "^(.*)%."
    if not head then return name end
  end
  return table[head] and (table[head] .. name:sub(#head + 1)):gsub("^%.", "")
end

local function check_rename(rename)
  if rename == nil or type(rename) == "function" then return rename end
  if type(rename) ~= "table" then check.wrong("load", "rename", "a table of names, or a function", rename) end
  for key, v in each, rename do
    if type(key) ~= "string" or v ~= false and type(v) ~= "string" then
      check.arg("load", "rename", "a table from names to names, or to false", ("%s for %s"):format(check.describe(v),
        check.describe(key)))
    end
  end
  return function(name) return rename_by(rename, name) end
end

-- The name that a tensor of the file goes by, or nil where it is left out.
local function renamed(rename, name)
  if not rename then return name end
  local v = rename(name)
  if v == nil or v == false then return nil end
  if type(v) ~= "string" then
    check.arg("load", "rename", ("a function that gives a name, or false, for %s"):format(quote(name)),
      check.describe(v))
  end
  return v
end

local function read_metadata(handle)
  local metadata = {}
  for i = 0, C.cfx_safetensors_meta_count(handle) - 1 do
    local key = ffi.string(C.cfx_safetensors_meta_key(handle, i))
    if key ~= KEY then metadata[key] = ffi.string(C.cfx_safetensors_meta(handle, key)) end
  end
  return metadata
end

local function read_file(path, device, rename)
  local out = ffi.new "cfx_safetensors *[1]"
  local st = C.cfx_safetensors_open(path, out)
  if st ~= 0 then settle(st, C.cfx_safetensors_open, path, out) end
  local handle = ffi.gc(out[0], C.cfx_safetensors_close)
  local file = {path = path, names = {}, tensors = {}, metadata = read_metadata(handle)}
  for i = 0, C.cfx_safetensors_count(handle) - 1 do
    local name = renamed(rename, ffi.string(C.cfx_safetensors_name(handle, i)))
    if name and file.tensors[name] then bad_file(path, "two of its tensors are to be named %s", quote(name)) end
    if name then
      local t = new()
      st = C.cfx_safetensors_read(handle, i, device, t)
      if st ~= 0 then settle(st, C.cfx_safetensors_read, handle, i, device, t) end
      file.names[#file.names + 1], file.tensors[name] = name, t
    end
  end
  local text = C.cfx_safetensors_meta(handle, KEY)
  if text ~= nil then
    local ok, node = pcall(json.decode, ffi.string(text), JSON_DEPTH)
    if not ok or type(node) ~= "table" or node == json.null then
      bad_file(path, "its metadata is no tree: %s", tostring(node))
    end
    file.node = node
  end
  C.cfx_safetensors_close(ffi.gc(handle, nil))
  return file
end

-- The tree of a file: the one in its metadata, or the one that the names say.
local function grow_file(file)
  if file.node then return grow_tree(file, false) end
  local tensors = {}
  for i = 1, #file.names do tensors[i] = file.tensors[file.names[i]] end
  return nest(file.names, tensors)
end

local function one_of(name, v, other)
  if v == nil or v == "error" or v == other then return v end
  return check.wrong("load", name, ("'error' or '%s'"):format(other), v)
end

---@class conflux.LoadOptions
---@field into any                      what the tensors are copied into, and returned
---@field rename table|function|nil     other names for the file's tensors: a function of the name, or a table by whole
--- names or their parts up to a dot ({backbone = ""}); false leaves a tensor out
---@field missing "error"|"keep"|nil    "keep": a tensor of `into` that the file lacks stays as it is
---@field unexpected "error"|"ignore"|nil  "ignore": a tensor of the file that `into` lacks is passed over
---@field metadata boolean?             returns the texts beside the tensors as a second result
---@field device conflux.Device|string|nil

--- Loads a file: as nested tables (modules come back as plain ones), or into a tree that has its structure.
--
-- With `into`, whatever does not fit is listed and nothing is changed; else tensors are copied into those that are
-- there, values are set, and `into` is returned.
--
-- Where one of `rename`, `missing = "keep"` and `unexpected = "ignore"` is given, tensors alone are taken, and no other
-- values.  int8, int16 and uint16, which Conflux lacks, come as int32.
---@param path string
---@param o? conflux.LoadOptions
---@return any, table<string, string>? metadata  where it is asked for: the texts beside the tensors
local function load(path, o)
  check.text("load", "path", path)
  o = check.options("load", o, {"into", "rename", "missing", "unexpected", "metadata", "device"})
  local into, rename = o.into, check_rename(o.rename)
  local missing, unexpected = one_of("missing", o.missing, "keep"), one_of("unexpected", o.unexpected, "ignore")
  if into ~= nil and type(into) ~= "table" and not is_tensor(into) then
    check.arg("load", "into", "a tensor or a nested table", into)
  end
  if into == nil and (missing or unexpected) then
    check.fail("load", "the option %s says how to load into a tree, and `into` is nil",
      missing and "missing" or "unexpected")
  end
  local wants_metadata = o.metadata ~= nil and check.boolean("load", "metadata", o.metadata)
  local file = read_file(path, check.device("load", "device", o.device), rename)
  if rename or missing == "keep" or unexpected == "ignore" then file.node = nil end
  local result
  if into == nil then result = grow_file(file) else result = load_into(file, into, o) end
  if wants_metadata then return result, file.metadata end
  return result
end

return {save = save, load = load}
