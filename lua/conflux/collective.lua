--- Collectives over replicas: allreduce, reduce, synchronize.
--
-- The elements of a list are compared by their schemas (paths, shapes, dtypes) before anything moves; then one C
-- call covers all their tensors.  Numbers must agree.  Integer tensors are reduced like others, but for those
-- that are a model's buffers: averaging or summing those would be no state that any replica could have had, so they
-- must be equal.
-- @module conflux.collective
local core = require "conflux.core"
local check = require "conflux.check"
local ranks = require "conflux.dist.replicas"
local plans = require "conflux.plan"
local scheduler = require "conflux.scheduler"
local tree = require "conflux.tree"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local fail, describe = check.fail, check.describe
local rawequal, rawget, rawset, tostring, type = rawequal, rawget, rawset, tostring, type
local getmetatable, setmetatable = debug.getmetatable, debug.setmetatable -- also where one is protected
local each = core.each
local pointers_t = ffi.typeof "cfx_tensor *[?]"

local OPS = {["+"] = "sum", ["*"] = "prod", sum = "sum", prod = "prod", max = "max", min = "min", avg = "avg"}
local OP_NAMES = "'+', '*', 'max', 'min', 'avg' or a function of two tensors"
local BUFFER, EARG, FLOAT16 = C.CFX_FLAG_BUFFER, C.CFX_EARG, C.CFX_FLOAT16
local MARKS = BUFFER + C.CFX_FLAG_FROZEN

core.synchronized = core.synchronized or 0 -- how often: what was worked out from a replica's tables may be out of date

-- ---- the tensors to reduce ----------------------------------------------------------------------------------

---@class conflux.Element one replica's part
---@field value any
---@field record? conflux.Flat  what tree.flatten knows of it
---@field tensors conflux.Tensor[]
---@field paths string[]
---@field is_model boolean   there is a module in it: its integer tensors are buffers
---@field numbers table<string, number>
---@field tables? table<table, boolean>  all that it is made of, once it was scanned

-- Notes the tables of an element, and their numbers.
local function scan_tables(element)
  if element.tables or type(element.value) ~= "table" then return end
  local x = element.value
  local found, prefixes, seen, i = {x}, {""}, {[x] = true}, 0
  element.tables = seen
  while found[i + 1] do
    i = i + 1
    local t, prefix = found[i], prefixes[i]
    local mt = getmetatable(t)
    if type(mt) == "table" and rawget(mt, "__layer") then element.is_model = true end
    for k, v in each, t do
      if type(v) == "number" then
        element.numbers[prefix .. tostring(k)] = v
      elseif type(v) == "table" and not seen[v] then
        found[#found + 1], prefixes[#prefixes + 1], seen[v] = v, prefix .. tostring(k) .. ".", true
      end
    end
  end
end

-- A model or an optimiser's state is likely to come again.
local function scan(x)
  local element = {value = x, numbers = {}, is_model = false}
  local record = nil
  if type(x) == "table" then record = getmetatable(x) and tree.flatten(x) or tree.flattened(x) end
  if record then
    element.record, element.is_model = record, tree.has_layer(record)
    element.tensors, element.paths = record.leaves, record.leaf_paths
  elseif is_tensor(x) then
    element.tensors, element.paths = {x}, {""}
  elseif type(x) == "number" then
    element.tensors, element.paths, element.numbers[""] = {}, {}, x
  else
    element.tensors, element.paths = tree.leaves(x)
    scan_tables(element)
  end
  return element
end

-- Devices and pointers are each replica's own, and stay; boxed integers are numbers.
local function is_own(v)
  local kind = type(v)
  return kind == "userdata" or kind == "thread"
    or kind == "cdata" and not (is_tensor(v) or ffi.istype("int64_t", v) or ffi.istype("uint64_t", v))
end

-- Whether v, of one model, and w, of another one, are alike; else one may have to become the other.  twins: by a table
-- or tensor of the first what stands for it in the second; taken: what does; found: the first's tables.
local function is_alike(v, w, twins, taken, found)
  local kind = type(v)
  if kind ~= "table" and not is_tensor(v) then return rawequal(v, w) or v ~= v and w ~= w or is_own(v) and is_own(w) end
  if twins[v] ~= nil then return rawequal(twins[v], w) end
  if type(w) ~= kind or taken[w] or twins[w] ~= nil or taken[v] or rawequal(v, w) then return false end
  twins[v], taken[w] = w, true
  if kind == "table" then found[#found + 1] = v end
  return true
end

-- Whether two models have nothing in them that differs but their tensors' values and marks: then there is no number to
-- compare and nothing to copy.
local function are_twins(a, b)
  if not (a.record and b.record) then return false end
  local found, twins, taken, i = {}, {}, {}, 0
  if not is_alike(a.value, b.value, twins, taken, found) then return false end
  while found[i + 1] do
    i = i + 1
    local from, count = found[i], 0
    local to = twins[from]
    if not rawequal(getmetatable(from), getmetatable(to)) then return false end
    for k, v in each, from do
      count = count + 1
      if not is_alike(v, rawget(to, k), twins, taken, found) then return false end
    end
    for _ in each, to do count = count - 1 end
    if count ~= 0 then return false end
  end
  return true
end

-- Position and device of an element, for messages.
local function where(list, i, element)
  local device = rawget(list, "devices") and list.devices[i]
  if not device and element and element.tensors[1] then device = element.tensors[1].device end
  return device and ("replica %d (%s)"):format(i, tostring(device)) or ("replica %d"):format(i)
end

local function named(path)
  return path == "" and "the value" or ("'%s'"):format(path)
end

-- Of two models whose records still hold it is found once.
local function same_schema(a, b)
  if not (a.record and b.record) then return plans.same_schema(a, b) end
  local known = a.record.alike
  if known[b.record] == nil then known[b.record] = plans.same_schema(a, b) end
  return known[b.record]
end

local function compare_tensors(fname, list, a, b, i)
  if same_schema(a, b) then return end
  local known = {}
  for k = 1, #b.paths do known[b.paths[k]] = b.tensors[k] end
  for k = 1, #a.paths do
    local path, x = a.paths[k], a.tensors[k]
    local y = known[path]
    if not y then
      fail(fname, "%s is missing from %s", named(path), where(list, i, b))
    end
    if not plans.same_form(x, y) then
      fail(fname, "%s differs: %s in replica 1, %s in replica %d", named(path), describe(x), describe(y), i)
    end
  end
  known = {}
  for k = 1, #a.paths do known[a.paths[k]] = true end
  for k = 1, #b.paths do
    if not known[b.paths[k]] then
      fail(fname, "%s is missing from %s", named(b.paths[k]), where(list, 1, a))
    end
  end
  fail(fname, "%s and %s hold the same tensors in another order", where(list, 1, a), where(list, i, b))
end

local function compare_numbers(fname, list, a, b, i)
  if are_twins(a, b) then return end
  scan_tables(a)
  scan_tables(b)
  local bad
  for path, x in each, a.numbers do
    local y = b.numbers[path]
    if x ~= y and not (x ~= x and y ~= y) and (not bad or path < bad) then bad = path end
  end
  for path in each, b.numbers do
    if a.numbers[path] == nil and (not bad or path < bad) then bad = path end
  end
  if bad then
    fail(fname, "numbers must be equal: %s is %s in %s and %s in %s", named(bad), tostring(a.numbers[bad]),
      where(list, 1, a), tostring(b.numbers[bad]), where(list, i, b))
  end
end

-- How many replicas the one list that a collective is given has.
local function count_of(fname, list, extra)
  if type(extra) == "table" and rawget(extra, "devices") then
    fail(fname, "expected exactly one list of replicas, got two: reduce them one after the other")
  end
  if type(list) ~= "table" then check.arg(fname, "list", "one list of replicas", list) end
  local n = rawget(list, "n")
  if type(n) == "number" then check.integer(fname, "list.n", n, 0) else n = check.length(fname, "list", list) end
  if n == 0 then check.arg(fname, "list", "at least one replica", "an empty list") end
  return n
end

-- The elements of a list, with equal schemas.
local function elements_of(fname, list, n, equal_numbers)
  local elements = {}
  for i = 1, n do
    local x = rawget(list, i)
    if type(x) ~= "table" and type(x) ~= "number" and not is_tensor(x) then
      check.arg(fname, "list", "a tensor, a number or a nested table of them for " .. where(list, i), x)
    end
    elements[i] = scan(x)
  end
  for i = 2, n do
    compare_tensors(fname, list, elements[1], elements[i], i)
    if equal_numbers then compare_numbers(fname, list, elements[1], elements[i], i) end
  end
  return elements
end

-- ---- integer buffers ----------------------------------------------------------------------------------------

local function values(t)
  core.read_wait(t)
  local bytes = t:numel() * C.cfx_dtype_size(t._dtype)
  local room = ffi.new("uint8_t[?]", bytes)
  local st = C.cfx_read(t, room, bytes)
  if st ~= 0 then settle(st, C.cfx_read, t, room, bytes) end
  return ffi.string(room, bytes)
end

local function require_equal(fname, list, elements, k)
  local first = values(elements[1].tensors[k])
  for i = 2, #elements do
    if values(elements[i].tensors[k]) ~= first then
      fail(fname, "integer buffers must be equal: %s differs between replica 1 and %s",
        named(elements[1].paths[k]), where(list, i, elements[i]))
    end
  end
end

-- The numbers of the tensors to reduce: all, but for a model's integer buffers, which must be equal.
local function reducible(fname, op, list, elements)
  local kept, first = {}, elements[1]
  for k = 1, #first.tensors do
    local t = first.tensors[k]
    if t._dtype >= FLOAT16 then
      kept[#kept + 1] = k
    elseif first.is_model or bit.band(t._flags, BUFFER) ~= 0 then
      require_equal(fname, list, elements, k)
    elseif op == "avg" then
      fail(fname, "%s is %s: integers have no average; use '+', or convert it", named(first.paths[k]), describe(t))
    else
      kept[#kept + 1] = k
    end
  end
  return kept
end

-- cfx_tensor *[replicas][n], and how many tensors that is a replica.
local function leaves_of(elements, kept)
  local n = #kept
  local array = pointers_t(n * #elements)
  for i = 1, #elements do
    -- by path: a tree's order is that of its paths, and the paths are equal
    for k = 1, n do array[(i - 1) * n + k - 1] = elements[i].tensors[kept[k]] end
  end
  return array, n
end

-- Raises what keeps a collective from writing these leaves, with their names, which C does not know; else returns.
local function check_places(fname, root, elements, kept, array, n)
  local names = ffi.new("const char *[?]", n)
  for k = 1, n do names[k - 1] = elements[1].paths[kept[k]] end
  local st = C.cfx_check_replicas(fname, (root or 0) - 1, #elements, n, array, names)
  if st ~= 0 then settle(st, C.cfx_check_replicas, fname, (root or 0) - 1, #elements, n, array, names) end
end

-- ---- a function as the operation ----------------------------------------------------------------------------

local function to_device(x, device)
  local out = new()
  local st = C.cfx_to(x, device, -1, out)
  if st ~= 0 then settle(st, C.cfx_to, x, device, -1, out) end
  return out
end

-- A result for tensor k, which must be like it.
local function check_result(fname, elements, k, result)
  if not is_tensor(result) then check.arg(fname, "op", "a function that returns a tensor", result) end
  local like = elements[1].tensors[k]
  if not plans.same_form(result, like) then
    fail(fname, "argument 'op': for %s expected a result like %s, got %s", named(elements[1].paths[k]),
      describe(like), describe(result))
  end
  return result
end

local function fold(fname, op, elements, k, device)
  local result = elements[1].tensors[k]
  for i = 2, #elements do
    result = check_result(fname, elements, k, op(result, to_device(elements[i].tensors[k], device)))
  end
  return result
end

local function copy(y, x)
  local st = C.cfx_copy(y, x)
  if st ~= 0 then settle(st, C.cfx_copy, y, x) end
end

-- The same over all ranks.
local function fold_ranks(fname, op, elements, kept, root)
  local tensors = {}
  for i = 1, #elements do
    tensors[i] = {}
    for k = 1, #kept do tensors[i][k] = elements[i].tensors[kept[k]] end
  end
  ranks.fold(fname, core.world, function(k, result, x)
    return result and check_result(fname, elements, kept[k], op(result, x)) or x
  end, root, tensors, #kept)
end

-- Folds left on the first replica's device, then copies to all, or to `root` alone.
local function reduce_by_function(fname, op, elements, kept, root)
  if #kept == 0 then return end
  if core.world then return fold_ranks(fname, op, elements, kept, root) end
  local array, n = leaves_of(elements, kept)
  check_places(fname, root, elements, kept, array, n)
  local st = C.cfx_common(#elements, n, array)
  if st ~= 0 then settle(st, C.cfx_common, #elements, n, array) end
  local device = core.find_device(C.cfx_tensor_device(elements[1].tensors[kept[1]]))
  scheduler.withdevices(function()
    local results = {}
    for k = 1, #kept do results[k] = fold(fname, op, elements, kept[k], device) end
    for k = 1, #kept do
      for i = 1, #elements do
        if not root or i == root then copy(elements[i].tensors[kept[k]], results[k]) end
      end
    end
  end, {device})
end

-- ---- the calls ----------------------------------------------------------------------------------------------

local function check_op(fname, op)
  if type(op) ~= "function" and not OPS[op] then check.arg(fname, "op", OP_NAMES, describe(op)) end
  return OPS[op] or op
end

local function root_of(fname, list, n, root)
  if core.world then
    local own = rawget(list, "devices")
    return ranks.root(fname, core.world, root, own and check.position(own, root))
  end
  if type(root) == "number" then return check.integer(fname, "root", root, 1, n) end
  local devices = rawget(list, "devices")
  local i = devices and check.position(devices, root)
  if not i then
    check.arg(fname, "root", ("a position from 1 to %d or one of the list's devices"):format(n),
      describe(root))
  end
  return i
end

-- How many samples each of n replicas had: a list of counts, or of parts of a batch with their n.  double[n].
local function counts_of(fname, weights, n)
  if type(weights) ~= "table" then
    check.arg(fname, "weights", "a list of counts, or a batch of a DataLoader", describe(weights))
  end
  local array = ffi.new("double[?]", n)
  for i = 1, n do
    local count = weights[i]
    if type(count) == "table" then count = count.n end
    if type(count) ~= "number" or not (count >= 0 and count < math.huge) then
      check.arg(fname, "weights", ("a count of 0 or more for each of %d replicas"):format(n),
        ("%s for replica %d"):format(describe(count), i))
    end
    array[i - 1] = count
  end
  if weights[n + 1] ~= nil then
    check.arg(fname, "weights", ("a count for each of %d replicas"):format(n), "more")
  end
  return array
end

-- Whether the options leave other ranks out.
local function local_only(fname, options)
  if options.ranks ~= nil and options.ranks ~= "local" then
    check.arg(fname, "ranks", "'local'", describe(options.ranks))
  end
  return options.ranks ~= nil
end

-- The weights that the options name, or nil.
local function weights_of(fname, options, op, n)
  options = check.options(fname, options, {"ranks", "weights"})
  local_only(fname, options)
  if options.weights == nil then return nil end
  if op ~= "avg" then
    fail(fname, "weights need the operation 'avg', got %s", describe(op))
  end
  return counts_of(fname, options.weights, n)
end

-- Enqueues it: into all, or into `root` alone.  Returns the status, and what must live until C is done.
local function combine(op, weights, root, replicas, n, array, kept)
  if weights then return C.cfx_weighted_mean(weights, (root or 0) - 1, replicas, n, array), kept end
  if root then return C.cfx_reduce_to(op, root - 1, replicas, n, array), kept end
  return C.cfx_allreduce(op, replicas, n, array), kept
end

local function broadcast(root, replicas, n, array, kept)
  return C.cfx_broadcast(root - 1, replicas, n, array), kept
end

local function reduce_elements(fname, op, weights, root, list, elements)
  local kept = reducible(fname, op, list, elements)
  if type(op) == "function" then return reduce_by_function(fname, op, elements, kept, root) end
  local array, n = leaves_of(elements, kept)
  if n == 0 then return end
  local st = combine(op, weights, root, #elements, n, array, elements)
  if st == EARG then check_places(fname, not core.world and root or nil, elements, kept, array, n) end
  if st ~= 0 then settle(st, combine, op, weights, root, #elements, n, array, elements) end
end

-- For C the first n of a list of float tensors, and that one is all that a replica has; nil: it is no such list.
local function float_leaves(list, n)
  local array = pointers_t(n)
  for i = 1, n do
    local x = rawget(list, i)
    if not is_tensor(x) or x._dtype < FLOAT16 then return nil end
    array[i - 1] = x
  end
  return array, 1, list
end

-- For C what needs no walk: float tensors, and gradients that are as withgradient made them, whose plans know their
-- schemas.  Where C refuses them they are walked, for the names in its message.
local function known_leaves(list, n)
  if is_tensor(rawget(list, 1)) then return float_leaves(list, n) end
  return plans.leaves(list, n)
end

-- Gradients of replicas that all ranks have joined, which cf.dist.Optimizer does not join again.
local function joined(list, n, root)
  for i = 1, core.world and not root and n or 0 do
    if type(rawget(list, i)) ~= "number" then core.joined[rawget(list, i)] = true end
  end
  return list
end

local function reduce_list(fname, op, root, list, options)
  local replicas = count_of(fname, list, options)
  local array, n, kept, elements
  if core.world then
    if type(options) == "table" and options.ranks == "local" then
      return ranks.locally(reduce_list, fname, op, root, list, options)
    end
    core.at_line(1) -- other ranks' messages tell it
    ranks.compare(fname, core.world, rawget(list, 1))
  end
  if type(op) == "string" then array, n, kept = known_leaves(list, replicas) end
  if not array then elements = elements_of(fname, list, replicas, true) end
  if fname == "reduce" then root = root_of(fname, list, replicas, root) end
  local weights = weights_of(fname, options, op, replicas)
  if array then
    local st = combine(op, weights, root, replicas, n, array, kept)
    if st == 0 then return joined(list, replicas, root) end
    if st ~= EARG then
      settle(st, combine, op, weights, root, replicas, n, array, kept)
      return joined(list, replicas, root)
    end
    elements = elements_of(fname, list, replicas, true)
  end
  reduce_elements(fname, op, weights, root, list, elements)
  return joined(list, replicas, root)
end

--- Combines the elements of a list, place by place, and leaves the result in all of them.
--
-- `op` is "+" ("sum"), "*" ("prod"), "max", "min", "avg", or a function of two tensors, which is folded left on
-- the first device.  In place on every replica; the same list is returned.  Schemas (paths, shapes, dtypes) are
-- compared before anything moves; Lua numbers must be equal; integers have no "avg".  The order of addition is that
-- of the replicas, so equal runs give equal bits.
--
-- With `weights`, "avg" is the mean over samples: a list of how many each replica had, or the batch of a DataLoader
-- whose parts they were.  A replica without samples counts nothing, whatever it holds.
---@param op string|fun(a: conflux.Tensor, b: conflux.Tensor): conflux.Tensor
---@param list conflux.Replicas      exactly one list: of tensors, numbers, or nested tables of one schema
---@param options? {weights: (number[]|table[])?, ranks: "local"?}
---@return conflux.Replicas list
local function allreduce(op, list, options)
  op = check_op("allreduce", op)
  return reduce_list("allreduce", op, nil, list, options)
end

--- Like allreduce, but only the element of `root`, a position or a device, changes.
---@param op string|fun(a: conflux.Tensor, b: conflux.Tensor): conflux.Tensor
---@param root integer|conflux.Device|string
---@param list conflux.Replicas  exactly one list: of tensors, numbers, or nested tables of one schema
---@param options? {weights: (number[]|table[])?, ranks: "local"?}
---@return conflux.Replicas list
local function reduce(op, root, list, options)
  op = check_op("reduce", op)
  return reduce_list("reduce", op, root, list, options)
end

-- Makes `to` what `from` is, and each table in it.  made: what stands for a table or tensor of the root in this
-- replica; taken: tables that stand for one already, or are the root's.
local function copy_values(from, to, made, taken)
  local found, i = {from}, 0
  made[from], taken[to] = to, true
  while found[i + 1] do
    i = i + 1
    from, to = found[i], made[found[i]]
    setmetatable(to, getmetatable(from))
    for k, v in each, to do
      if rawget(from, k) == nil and not is_own(v) then rawset(to, k, nil) end
    end
    for k, v in each, from do
      if type(v) == "table" and not made[v] then
        local mine = rawget(to, k)
        if not rawequal(mine, v) then
          if type(mine) ~= "table" or taken[mine] then mine = {} end
          found[#found + 1], made[v], taken[mine] = v, mine, true
        end
      end
      if made[v] then
        rawset(to, k, made[v])
      elseif type(v) ~= "table" and not is_own(v) then
        rawset(to, k, v)
      end
    end
  end
end

local function copy_mark(x, y)
  y._flags = bit.bor(bit.band(y._flags, bit.bnot(MARKS)), bit.band(x._flags, MARKS))
end

-- Gives a replica the root's marks, and all that is no tensor.
local function copy_element(root, element)
  local from, to, made, taken = root.value, element.value, {}, {}
  local twins = are_twins(root, element)
  for k = 1, #root.tensors do copy_mark(root.tensors[k], element.tensors[k]) end
  if twins or type(from) ~= "table" or rawequal(from, to) then return end
  for k = 1, #root.tensors do made[root.tensors[k]] = element.tensors[k] end
  scan_tables(root)
  for t in each, root.tables do taken[t] = true end
  copy_values(from, to, made, taken)
end

-- Gradients that are as withgradient made them: there is nothing in them but tensors.  False: they are to be walked.
local function synchronize_made(replicas, count, root)
  local array, n, kept = plans.leaves(replicas, count)
  if not array then return false end
  root = root_of("synchronize", replicas, count, root or 1)
  local st = broadcast(root, count, n, array, kept)
  if st == EARG then return false end
  if st ~= 0 then settle(st, broadcast, root, count, n, array, kept) end
  for k = 0, core.world and -1 or n - 1 do -- ranks' gradients have no marks
    for i = 0, count - 1 do copy_mark(array[(root - 1) * n + k], array[i * n + k]) end
  end
  return true
end

local function synchronize_list(replicas, root)
  local count = count_of("synchronize", replicas)
  if synchronize_made(replicas, count, root) then return replicas end
  local elements = elements_of("synchronize", replicas, count, false)
  root = root_of("synchronize", replicas, count, root or 1)
  local kept = {}
  for k = 1, #elements[1].tensors do kept[k] = k end
  local array, n = leaves_of(elements, kept)
  if n > 0 then
    local st = broadcast(root, count, n, array, elements)
    if st == EARG then check_places("synchronize", nil, elements, kept, array, n) end
    if st ~= 0 then settle(st, broadcast, root, count, n, array, elements) end
  end
  if core.world then root = ranks.numbers("synchronize", core.world, replicas, count, root) end
  for i = 1, #elements do
    if i ~= root then
      if type(replicas[root]) == "number" then
        replicas[i] = replicas[root]
      else
        copy_element(elements[root], elements[i])
      end
    end
  end
  core.synchronized = core.synchronized + 1
  return replicas
end

--- Makes all other replicas what the root is: parameters and buffers, their marks, and what is no tensor, such as an
-- optimiser's step and rate, or `training`.  Replicas keep devices and pointers of their own.
---@param replicas conflux.Replicas
---@param root? integer|conflux.Device|string  default: the first
---@param options? {ranks: "local"?}
---@return conflux.Replicas replicas
local function synchronize(replicas, root, options)
  if type(root) == "table" and options == nil then root, options = nil, root end
  local is_local = local_only("synchronize", check.options("synchronize", options, {"ranks"}))
  if core.world and is_local then return ranks.locally(synchronize_list, replicas, root) end
  if core.world then core.at_line(1) end
  return synchronize_list(replicas, root)
end

return {allreduce = allreduce, reduce = reduce, synchronize = synchronize}
