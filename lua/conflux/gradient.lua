--- Gradients: what the loss says about every parameter.
--
-- The tape lives in C and belongs to one call of withgradient: the handles of the model's parameters are watched
-- while `f` runs, whatever is computed from them is recorded, and the walk back over it fills a fresh gradient.
-- The tape ends with the call, also when `f` raises; what escapes from `f` is then a constant.  Of a call that never
-- comes back, in a coroutine that is dropped, the scheduler or the collector ends it.
-- @module conflux.gradient
local core = require "conflux.core"
local check = require "conflux.check"
local plans = require "conflux.plan"
local tree = require "conflux.tree"

local C, ffi = core.C, core.ffi
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local error, pcall, rawequal, rawget, rawset, select, setmetatable, tonumber, tostring, type, unpack =
  error, pcall, rawequal, rawget, rawset, select, setmetatable, tonumber, tostring, type, unpack
local getmetatable = debug.getmetatable -- also where one is protected
local each = core.each
local running = coroutine.running

local CFX_CUSTOM = tonumber(C.CFX_CUSTOM)

local tape_t = ffi.typeof "cfx_tape *[1]"
local id_t = ffi.typeof "int32_t[1]"

-- A call of withgradient: its tape, and by number the custom nodes on it ({spec, inputs, outputs}).  The call's frame
-- holds it and nothing else does, so that the collector ends the tape of a frame that is gone.  One that has ended
-- serves the next call.
local calls = setmetatable({}, {__mode = "k"}) -- all that there are
local idle, IDLE = {}, 16
local run_custom

-- ---- withgradient -------------------------------------------------------------------------------------------

local function new_call()
  local call = {tape = ffi.gc(tape_t(), C.cfx_tape_end), id = 0, task = false, outer = false, grads = false,
    kept = false}
  calls[call] = true
  return call
end

-- The call whose tape has this id.
local function find_call(id)
  for call in each, calls do
    if call.id == id then return call end
  end
end

-- The tape has its owner before it begins: an error may come between any two lines.
local function begin(plan)
  local last = #idle
  local call = idle[last] or new_call()
  idle[last > 0 and last or 1] = nil
  local tape, task = call.tape, core.task
  local st = C.cfx_tape_begin(core.context(), plan.trainable, plan.watched, tape)
  if st ~= 0 then settle(st, C.cfx_tape_begin, core.context(), plan.trainable, plan.watched, tape) end
  call.id = tonumber(plan.watched[0]._tape)
  if task and running() == task.co then
    call.task, call.outer, task.call = task, task.call, call
  end
  return call
end

-- The call's frame is left.
local function give_back(call)
  if call.task then call.task.call = call.outer end
  C.cfx_tape_end(call.tape)
  call.id, call.task, call.outer, call.grads, call.kept = 0, false, false, false, false
  for k = #call, 1, -1 do call[k] = nil end
  if #idle < IDLE then idle[#idle + 1] = call end
end

-- Walks back from what f returned first.  A custom op's backward runs here, in the coroutine of the call.
local function walk(fname, plan, call, into, loss, ...)
  if not is_tensor(loss) then
    check.arg(fname, "f", "a function whose first result is a tensor of one number",
      loss == nil and "no result" or "a " .. type(loss))
  end
  if loss:numel() ~= 1 then
    check.arg(fname, "f", "its first result to be one number", ("a tensor of shape [%s]"):format(
      table.concat(loss.shape, ", ")))
  end
  if C.cfx_is_watched(loss) == 0 then
    check.fail(fname, "argument 'f': its first result does not depend on a parameter of the model")
  end
  local tape, g, grads, kept = call.tape, into
  if into then
    grads, kept = plan:take_gradient(fname, "g", into, plan:room())
  else
    g, grads = plan:gradient()
  end
  call.grads, call.kept = grads, kept -- C looks at them until the walk ends, and a custom op's backward is the user's
  local accumulate = into and 1 or 0
  local st = C.cfx_tape_backward(tape[0], loss, grads, accumulate)
  if st > 0 then st = settle(st, C.cfx_tape_backward, tape[0], loss, grads, accumulate) end
  while st == CFX_CUSTOM do
    run_custom(tape[0], call)
    st = C.cfx_tape_resume(tape[0])
    if st > 0 then st = settle(st, C.cfx_tape_resume, tape[0]) end
  end
  return g, loss, ...
end

local function run(fname, plan, call, into, f, model, ...)
  return walk(fname, plan, call, into, f(model, ...))
end

-- The gradient comes last.
local function finish(call, ok, g, ...)
  local on_gradient = call.on_gradient
  give_back(call)
  if not ok then error(g, 0) end
  if on_gradient then on_gradient(g) end
  local n = select("#", ...)
  if n == 1 then return (...), g end
  local results = {...}
  results[n + 1] = g
  return unpack(results, 1, n + 1)
end

local function with(fname, into, f, model, ...)
  if type(f) ~= "function" then check.arg(fname, "f", "a function", type(f)) end
  core.at_line(1)
  local plan = plans.of(fname, "model", model)
  if plan.trainable == 0 then check.arg(fname, "model", "a parameter that is not frozen", "frozen ones only") end
  local call = begin(plan)
  call.on_gradient = core.on_gradient[model]
  if into then core.joined[into] = nil end
  return finish(call, pcall(run, fname, plan, call, into, f, model, ...))
end

--- Calls `f(model, ...)` and differentiates its first result, one number, by the model's parameters.
--
-- Returns what f returned, then the gradient: a tree of the model's structure with a tensor for every parameter
-- (zeros where the loss does not depend on it, or where it is frozen).  Buffers and whatever else is no parameter
-- are left out; in a list `false` keeps their positions.
---@param f fun(model: any, ...): conflux.Tensor, ...
---@param model any  a float tensor, or any tree of them: a module, a list, nested tables
---@param ... any    goes to f
---@return conflux.Tensor loss, any ...
local function withgradient(f, model, ...)
  return with("withgradient", nil, f, model, ...)
end

-- The value of `gradient` is the last of withgradient's.
local function last(...)
  return (select(-1, ...))
end

--- The gradient alone: `gradient(f, model, ...)` is the last result of withgradient.
---@param f fun(model: any, ...): conflux.Tensor, ...
---@param model any  a float tensor, or any tree of them
---@param ... any    goes to f
---@return any gradient
local function gradient(f, model, ...)
  return (last(with("gradient", nil, f, model, ...)))
end

--- Adds the gradient of `f(model, ...)` into `g`, an earlier gradient of the same model.  Returns what f returned,
-- then g.
---@param g any      what withgradient or gradient returned
---@param f fun(model: any, ...): conflux.Tensor, ...
---@param model any  a float tensor, or any tree of them
---@param ... any    goes to f
---@return conflux.Tensor loss, any ...
local function addgradient(g, f, model, ...)
  if g == nil then check.arg("addgradient", "g", "a gradient of the model", "nil") end
  return with("addgradient", g, f, model, ...)
end

-- ---- operations with a gradient of their own ---------------------------------------------------------------

local function detach(x)
  if not is_tensor(x) then return x end
  local out = new()
  local st = C.cfx_detach(x, out)
  if st ~= 0 then settle(st, C.cfx_detach, x, out) end
  return out
end

-- Appends the tensors in x that are not released, however deep they lie in tables.
local function add_tensors(x, list, seen)
  local found, i = {x}, 0
  while found[i + 1] do
    i = i + 1
    local t = found[i]
    if is_tensor(t) then
      if t._buffer ~= nil then list[#list + 1] = t end
    elseif not seen[t] then
      seen[t] = true
      for _, v in each, t do
        if type(v) == "table" or is_tensor(v) then found[#found + 1] = v end
      end
    end
  end
end

local function is_watched(x)
  return C.cfx_is_watched(x) == 1
end

local function holds_watched(x)
  local list = {}
  add_tensors(x, list, {})
  for i = 1, #list do
    if is_watched(list[i]) then return true end
  end
  return false
end

-- A place is where an input lies: {key, up}, its position and, in a table, the place of the table.
local function path_of(place)
  return place.up and path_of(place.up) .. "." .. place.key or tostring(place.key)
end

-- A copy of x for forward or backward: each tensor in it is a handle of its own, not watched.  Lists the places in
-- the tree's order if `places` is given.
local function copy(spec, x, place, places)
  if is_tensor(x) then
    if places then
      place.tensor, place.is_watched = x, is_watched(x)
      places[#places + 1] = place
    end
    return detach(x)
  elseif type(x) ~= "table" then
    return x
  end
  local up, depth = place.up, 1
  while up do
    if rawequal(up.table, x) then
      check.fail(spec.name, "argument %s: the table at '%s' contains itself", path_of(place):match "^(%d+)%.(.*)$")
    end
    up, depth = up.up, depth + 1
  end
  if depth > tree.DEPTH then tree.check_depth(spec.name, depth, path_of(place)) end
  place.table = x
  local y = setmetatable({}, getmetatable(x))
  local n, keys = tree.keys(x, path_of(place))
  for i = 1, n do rawset(y, i, copy(spec, rawget(x, i), {key = i, up = place}, places)) end
  for i = 1, #keys do rawset(y, keys[i], copy(spec, rawget(x, keys[i]), {key = keys[i], up = place}, places)) end
  return y
end

-- The inputs of forward: copies, but tables in which nothing is watched as they are, for they may be anything.
local function open_inputs(spec, inputs, n, places)
  local opened = {}
  for k = 1, n do
    local x = inputs[k]
    if is_tensor(x) or type(x) == "table" and holds_watched(x) then
      opened[k] = copy(spec, x, {key = k}, places)
    else
      opened[k] = x
    end
  end
  return opened
end

-- saved: what backward gets, and where the gradients of its inputs belong.
local function record(saved, y, ...)
  local spec, places = saved.spec, saved.places
  if not is_tensor(y) then
    check.fail(spec.name, "forward: expected a tensor as its first result, got %s", y == nil and "nothing" or type(y))
  end
  if is_watched(y) then
    check.fail(spec.name, "forward: its result depends on a watched tensor that is none of its arguments; "
      .. "pass that one as an argument, or detach it")
  end
  local call
  for i = 1, #places do
    if places[i].is_watched then call = find_call(tonumber(places[i].tensor._tape)) end
  end
  if not call then return y end
  -- A result that is an input, or a view that forward was given, gets a handle of its own.
  y = detach(y)
  saved.y, saved.count, saved.kept = detach(y), select("#", ...), {...}
  local inputs, kept = {}, {}
  for i = 1, #places do inputs[i], places[i].tensor = places[i].tensor, nil end
  add_tensors(saved.inputs, kept, {})
  add_tensors(saved.kept, kept, {})
  local id = #call + 1
  call[id] = saved
  local in_array, kept_array = core.ptrs(inputs), core.ptrs(kept)
  local st = C.cfx_tape_record(id, #inputs, in_array, #kept, kept_array, y)
  if st ~= 0 then settle(st, C.cfx_tape_record, id, #inputs, in_array, #kept, kept_array, y) end
  return y
end

local function pack(...)
  return {n = select("#", ...), ...}
end

-- backward(dy, x..., y, kept...)
local function call_backward(saved, dy)
  local n = saved.n
  local arguments = {dy}
  for k = 1, n do arguments[k + 1] = saved.inputs[k] end
  arguments[n + 2] = saved.y
  for k = 1, saved.count do arguments[n + 2 + k] = saved.kept[k] end
  return pack(saved.spec.backward(unpack(arguments, 1, n + 2 + saved.count)))
end

-- The gradient for a place, or nil for zeros.
local function gradient_at(spec, grads, place)
  local g = grads
  if place.up then
    g = gradient_at(spec, grads, place.up)
    if not g then return nil end
    if type(g) ~= "table" then
      check.fail(spec.name, "backward: result %s: expected a table of gradients, nil or false, got %s",
        path_of(place.up), check.describe(g))
    end
  elseif place.is_watched and place.key > grads.n then
    check.fail(spec.name, "backward: returned %s; expected a gradient for input %d (nil or false stands for zeros)",
      grads.n == 0 and "nothing" or grads.n == 1 and "1 result" or grads.n .. " results", place.key)
  end
  return rawget(g, place.key) or nil
end

function run_custom(tape, call)
  local node, dy = id_t(), new()
  local st = C.cfx_tape_custom(tape, node, dy)
  if st ~= 0 then settle(st, C.cfx_tape_custom, tape, node, dy) end
  local saved = call[node[0]]
  local spec, places = saved.spec, saved.places
  local grads = call_backward(saved, dy)
  for i = 1, #places do
    local dx = gradient_at(spec, grads, places[i])
    if dx and not is_tensor(dx) then
      check.fail(spec.name, "backward: result %s: expected a tensor, nil or false, got %s", path_of(places[i]),
        check.describe(dx))
    end
    if dx then
      st = C.cfx_tape_give(tape, i - 1, dx)
      if st ~= 0 then settle(st, C.cfx_tape_give, tape, i - 1, dx) end
    end
  end
  call[node[0]] = false
end

--- Makes an operation whose gradient is written by hand.
--
--     local square = cf.op("square", {
--       forward = function(x) return x * x end,
--       backward = function(dy, x, y) return dy * x * 2 end,
--     })
--
-- `forward(x...)` returns y, the tensor that the operation returns, and may return more values, which are kept for
-- the backward; its inputs are not watched, and a watched tensor that it takes from elsewhere is refused.
-- `backward(dy, x..., y, kept...)` returns one gradient for each input, in their order, each of the input's shape; nil
-- or false stands for zeros (and is right for inputs that are no tensors).  It runs in the coroutine that called
-- withgradient, and may read values.  Until then x, y and what was kept cannot change in place.
--
-- An input may be a table with watched tensors in it, a list or a module: forward and backward get copies of it, and
-- its gradient is a table with the gradients in the tensors' places.
---@param name string  for error messages
---@param o {forward: function, backward: function}
---@return fun(...): conflux.Tensor
local function op(name, o)
  check.string("op", "name", name)
  o = check.options("op", o, {"forward", "backward"})
  for _, key in ipairs {"forward", "backward"} do
    if type(o[key]) ~= "function" then check.arg("op", key, "a function", type(o[key])) end
  end
  local spec = {name = name, forward = o.forward, backward = o.backward}
  return function(...)
    local n = select("#", ...)
    local inputs, places = {...}, {}
    local given = open_inputs(spec, inputs, n, places)
    local saved = {spec = spec, n = n, places = places, inputs = open_inputs(spec, inputs, n)}
    return (record(saved, spec.forward(unpack(given, 1, n))))
  end
end

return {withgradient = withgradient, gradient = gradient, addgradient = addgradient, op = op}
