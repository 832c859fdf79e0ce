--- Files: trees as safetensors.
--
-- Tensors are saved under their tree paths, so that other programs find them; the metadata key "conflux" holds
-- the tree as JSON, in which a node is
--
--     3, "text", true                      such a value (a string of other bytes: {"bytes": "hex"})
--     {"number": "inf"}                    inf, -inf or nan
--     {"tensor": "1.weight"}               that tensor, with "marks": "buffer" or "frozen" where it has them
--     {"list": [...], "fields": {...}}     a table: positions 1 to n, and string keys
--     {"same": "1"}                        the table at that path (a tie or a cycle)
--     null                                 in a list, something that has no form in a file
--
-- Functions, devices and whatever else is no tensor, table, string, number or boolean have none: they are left
-- out, and `into` keeps what it has there.
-- @module conflux.files
local core = require "conflux.core"
local check = require "conflux.check"
local json = require "conflux.json"
local tree = require "conflux.tree"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local band, bor = bit.band, bit.bor
local next, pcall, rawget, tonumber, tostring, type = next, pcall, rawget, tonumber, tostring, type
local each = core.each
local concat, sort = table.concat, table.sort

local BUFFER, FROZEN = tonumber(C.CFX_FLAG_BUFFER), tonumber(C.CFX_FLAG_FROZEN)
local KEY = "conflux"
local ALONE = "tensor" -- the name of a tensor that is the whole tree

local function join(path, key)
  return path == "" and tostring(key) or path .. "." .. key
end

-- ---- save ---------------------------------------------------------------------------------------------------

local function value_node(v)
  if type(v) == "string" and not json.is_utf8(v) then
    return {bytes = (v:gsub(".", function(c) return ("%02x"):format(c:byte()) end))}
  elseif type(v) == "number" and (v ~= v or v == 1 / 0 or v == -1 / 0) then
    return {number = v ~= v and "nan" or v > 0 and "inf" or "-inf"}
  end
  return v
end

local node_of

local function tensor_node(t, path, seen, names)
  if not seen[t] then
    local name = path == "" and ALONE or path
    if names[name] then
      check.fail("save", "two tensors have the path '%s': rename a key that contains a dot", name)
    end
    names[name], seen[t] = true, name
    seen[#seen + 1] = {name, t}
  end
  local marks = band(t._flags, BUFFER) ~= 0 and "buffer" or band(t._flags, FROZEN) ~= 0 and "frozen" or nil
  return {tensor = seen[t], marks = marks}
end

local function table_node(x, path, seen, names)
  if seen[x] then return {same = seen[x]} end
  seen[x] = path
  local node, n, keys = {}, 0, {}
  while rawget(x, n + 1) ~= nil do n = n + 1 end
  for key in each, x do
    if type(key) == "string" then keys[#keys + 1] = key end
  end
  sort(keys)
  if n > 0 then node.list = json.list {} end
  for i = 1, n do
    local child = node_of(rawget(x, i), join(path, i), seen, names)
    node.list[i] = child == nil and json.null or child
  end
  for i = 1, #keys do
    local child = node_of(rawget(x, keys[i]), join(path, keys[i]), seen, names)
    if child ~= nil then
      node.fields = node.fields or {}
      node.fields[keys[i]] = child
    end
  end
  return node
end

function node_of(x, path, seen, names)
  if is_tensor(x) then return tensor_node(x, path, seen, names) end
  if type(x) == "table" then return table_node(x, path, seen, names) end
  if type(x) == "string" or type(x) == "number" or type(x) == "boolean" then return value_node(x) end
  return nil
end

--- Saves a tree: a model, a state, any nested table of tensors, numbers, strings and booleans.  The file appears
-- whole or not at all.
---@param path string
---@param x any
local function save(path, x)
  check.text("save", "path", path)
  if type(x) ~= "table" and not is_tensor(x) then check.arg("save", "tree", "a tensor or a nested table", x) end
  tree.walk(x, function(_, t) core.read_wait(t) end) -- refuses keys that a path cannot name, too
  local seen = {}
  local ok, text = pcall(json.encode, node_of(x, "", seen, {}))
  if not ok then check.fail("save", "%s", text) end
  local n = #seen
  local names, tensors = ffi.new("const char *[?]", n), ffi.new("cfx_tensor *[?]", n)
  for i = 1, n do names[i - 1], tensors[i - 1] = check.text("save", "tree", seen[i][1]), seen[i][2] end
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

-- A file of another program: nested by the dots of its names, or flat if one name lies within another.
local function nest(names, tensors)
  local root = {}
  for i = 1, #names do
    local t, at = root, nil
    for part in names[i]:gmatch "[^.]+" do
      if at then
        if t[at] == nil then t[at] = {} end
        t = t[at]
      end
      if type(t) ~= "table" then t = nil break end
      at = part
    end
    if not t or not at or t[at] ~= nil then
      local flat = {}
      for k = 1, #names do flat[names[k]] = tensors[k] end
      return flat
    end
    t[at] = tensors[i]
  end
  return to_lists(root)
end

-- ---- load: from the tree in the metadata --------------------------------------------------------------------

local function bad_file(path, why)
  check.fail("load", "%s: %s", path, why)
end

local SPECIAL = {inf = 1 / 0, ["-inf"] = -1 / 0, nan = 0 / 0}

-- A value as it was saved; nil for tensors and tables.
local function node_value(node)
  if type(node) ~= "table" then return node end
  if node.bytes then
    return (node.bytes:gsub("%x%x", function(hex) return string.char(tonumber(hex, 16)) end))
  end
  return SPECIAL[node.number]
end

local function mark(t, marks)
  if marks == "buffer" then t._flags = bor(t._flags, BUFFER) end
  if marks == "frozen" then t._flags = bor(t._flags, FROZEN) end
  return t
end

local function grow(file, node, at, made)
  local value = node_value(node)
  if value ~= nil and value ~= json.null then return value end
  if node == json.null then return false end
  if node.tensor then
    local t = file.tensors[node.tensor]
    if not t then bad_file(file.path, ("its tree names a tensor '%s' that it lacks"):format(node.tensor)) end
    return mark(t, node.marks)
  elseif node.same then
    return made[node.same] or bad_file(file.path, ("its tree names a table '%s' that it lacks"):format(node.same))
  end
  local t = {}
  made[at] = t
  for i = 1, node.list and #node.list or 0 do t[i] = grow(file, node.list[i], join(at, i), made) end
  local keys = {}
  for key in each, node.fields or {} do keys[#keys + 1] = key end
  sort(keys) -- a "same" names a table met before in the tree's order
  for i = 1, #keys do t[keys[i]] = grow(file, node.fields[keys[i]], join(at, keys[i]), made) end
  return t
end

-- ---- load: into a tree --------------------------------------------------------------------------------------

-- Notes in `problems` where the values of the file's tree do not fit, in `values` what is to be set.
local function compare_values(node, x, at, problems, values, seen)
  if type(node) ~= "table" or node == json.null or node.tensor or node.same then return end
  if seen[x] then return end
  seen[x] = true
  local function child(key, sub)
    if sub == json.null then return end
    local value, have = node_value(sub), rawget(x, key)
    local where = join(at, key)
    if value ~= nil then
      if type(have) == "table" or is_tensor(have) then
        problems[#problems + 1] = ("'%s' is a %s in the file, but %s here"):format(where, type(value),
          check.describe(have))
      else
        values[#values + 1] = {x, key, value}
      end
    elseif not sub.tensor and not sub.same then
      if type(have) == "table" then
        compare_values(sub, have, where, problems, values, seen)
      elseif next(sub) ~= nil and not (sub.list == nil and sub.fields == nil) then
        problems[#problems + 1] = ("'%s' is a table in the file, but %s here"):format(where, check.describe(have))
      end
    end
  end
  for i = 1, node.list and #node.list or 0 do child(i, node.list[i]) end
  for key, sub in each, node.fields or {} do child(key, sub) end
end

local function shape_text(t)
  local sizes = {}
  for d = 0, t._ndim - 1 do sizes[d + 1] = tostring(tonumber(t._shape[d])) end
  return ("[%s] (%s)"):format(concat(sizes, ", "), core.dtypes[t._dtype])
end

local function compare_tensors(file, paths, tensors, problems)
  local known = {}
  for i = 1, #paths do
    local path = paths[i] == "" and ALONE or paths[i]
    local x, y = tensors[i], file.tensors[path]
    known[path] = true
    if not y then
      problems[#problems + 1] = ("'%s' is not in the file"):format(path)
    elseif shape_text(x) ~= shape_text(y) then
      problems[#problems + 1] = ("'%s' is %s in the file, but %s here"):format(path, shape_text(y), shape_text(x))
    end
  end
  for i = 1, #file.names do
    if not known[file.names[i]] then
      problems[#problems + 1] = ("'%s' is in the file, but not here"):format(file.names[i])
    end
  end
end

local function load_into(file, into)
  local tensors, paths = tree.leaves(into)
  local problems, values = {}, {}
  compare_tensors(file, paths, tensors, problems)
  if file.node and type(into) == "table" then compare_values(file.node, into, "", problems, values, {}) end
  if #problems > 0 then
    sort(problems)
    bad_file(file.path, "it does not fit:\n  " .. concat(problems, "\n  "))
  end
  for i = 1, #tensors do
    local from = file.tensors[paths[i] == "" and ALONE or paths[i]]
    local st = C.cfx_copy(tensors[i], from)
    if st ~= 0 then settle(st, C.cfx_copy, tensors[i], from) end
    C.cfx_release(from)
  end
  for i = 1, #values do
    local v = values[i]
    v[1][v[2]] = v[3]
  end
  return into
end

-- ---- load ---------------------------------------------------------------------------------------------------

local function read_file(path, device)
  local out = ffi.new "cfx_safetensors *[1]"
  local st = C.cfx_safetensors_open(path, out)
  if st ~= 0 then settle(st, C.cfx_safetensors_open, path, out) end
  local handle = ffi.gc(out[0], C.cfx_safetensors_close)
  local file = {path = path, names = {}, tensors = {}}
  for i = 0, C.cfx_safetensors_count(handle) - 1 do
    local name, t = ffi.string(C.cfx_safetensors_name(handle, i)), new()
    st = C.cfx_safetensors_read(handle, i, device, t)
    if st ~= 0 then settle(st, C.cfx_safetensors_read, handle, i, device, t) end
    file.names[i + 1], file.tensors[name] = name, t
  end
  local text = C.cfx_safetensors_meta(handle, KEY)
  if text ~= nil then
    local ok, node = pcall(json.decode, ffi.string(text))
    if not ok or type(node) ~= "table" then bad_file(path, "its metadata is no tree: " .. tostring(node)) end
    file.node = node
  end
  C.cfx_safetensors_close(ffi.gc(handle, nil))
  return file
end

--- Loads a file: as nested tables (modules come back as plain ones), or into a tree that has its structure.
--
-- With `into`, whatever does not fit is listed and nothing is changed; else tensors are copied into those that are
-- there, values are set, and `into` is returned.
---@param path string
---@param o? {into: any, device: (conflux.Device|string)?}
---@return any
local function load(path, o)
  check.text("load", "path", path)
  o = check.options("load", o, {"into", "device"})
  if o.into ~= nil and type(o.into) ~= "table" and not is_tensor(o.into) then
    check.arg("load", "into", "a tensor or a nested table", o.into)
  end
  local file = read_file(path, check.device("load", "device", o.device))
  if o.into ~= nil then return load_into(file, o.into) end
  if file.node then return grow(file, file.node, "", {}) end
  local tensors = {}
  for i = 1, #file.names do tensors[i] = file.tensors[file.names[i]] end
  return nest(file.names, tensors)
end

return {save = save, load = load}
