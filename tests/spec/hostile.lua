-- Calls every public function with values that it was not made for, in each place where a value can stand: as an
-- argument, an option, the receiver of a method, what a callback returns, and a field of a layer, an optimiser, a
-- state, a loader or a list of replicas.  In a process of its own, which a crash would end.
--
--     conflux -joff hostile.lua [SEED [SHARE]]     SHARE of the calls, from 0 to 1, drawn by SEED; default: all
--
-- Writes to the file "report" what was raised that is no error of Conflux's at this file's line of the call, and at
-- last how many calls there were.  hostile_spec.lua runs it in an empty directory.
local ffi = require "ffi"
local cf  = require "conflux"
local nn, optim = cf.nn, cf.optim

local seed, share = tonumber(arg and arg[1]) or 0, tonumber(arg and arg[2]) or 1
math.randomseed(seed)
local report = assert(io.open("report", "w")) -- cf.show has the output
report:setvbuf "line"

local NAN, HUGE = 0 / 0, 1e308
local cyclic = {}
cyclic[1] = cyclic
local released = cf.ones(2)
released:release()
cf.devices "cpu*2"

local function identity(...) return ... end

-- Values to pass where anything else belongs; made anew, as some functions change what they are given.
local function hostile_values()
  return {
    {"NULL", ffi.cast("void *", 0)}, {"NULL device", ffi.cast("struct cfx_device *", 0)},
    {"NULL number", ffi.cast("float *", 0)}, {"foreign pointer", ffi.cast("struct cfx_loader *", 64)},
    {"foreign device", ffi.cast("struct cfx_device *", 64)},
    {"array", ffi.new "int[2]"}, {"int64", 3LL}, {"uint64", 2ULL ^ 63}, {"complex", ffi.new "complex"},
    {"NaN", NAN}, {"huge", HUGE}, {"-huge", -HUGE}, {"infinite", math.huge}, {"2^53", 2 ^ 53}, {"2^31", 2 ^ 31},
    {"-2^63", -2 ^ 63}, {"fraction", 0.5}, {"zero", 0}, {"negative", -1},
    {"string", "nonsense"}, {"empty string", ""}, {"NUL", "cpu\0x"}, {"long string", ("x"):rep(5000)},
    {"percent", "%s%n%d"}, {"number string", "1"},
    {"true", true}, {"false", false}, {"nil", nil}, {"function", identity}, {"coroutine", coroutine.create(identity)},
    {"userdata", newproxy(true)}, {"file", io.stdout}, {"type", ffi.typeof "int"},
    {"empty", {}}, {"hole", {1, nil, 3}}, {"odd keys", {[0] = 1, [1.5] = 2, [true] = 3}}, {"cyclic", cyclic},
    {"nested", {{{}}, {1, {2}}}}, {"list of NULL", {ffi.cast("void *", 0)}}, {"list of strings", {"a", "b"}},
    {"list of NaN", {NAN, NAN}}, {"list of released", {released}}, {"list of false", {false}},
    {"odd table", setmetatable({}, {__index = function() end, __metatable = false})},
    {"released", released}, {"ids", cf.zeros(2, {dtype = "int64"})}, {"no elements", cf.zeros(0, 3)},
    {"scalar", cf.tensor(1)}, {"bool", cf.tensor {true, false}}, {"long tensor", cf.ones(7)},
    {"tensor elsewhere", cf.ones(2, 2, {device = "cpu:1"})}, {"double", cf.ones(2, 2, {dtype = "float64"})},
    {"device", cf.device "cpu:1"}, {"replicas", cf.replicate {cf.ones(2, 2)}}, {"module", nn.Dense(2, 2)},
    {"optimiser", optim.Adam()}, {"state", optim.Adam():setup {cf.ones(2, 2)}},
  }
end

-- Good arguments to stand before a hostile value, so that it gets as far as it can.
local function good_values()
  return {cf.ones(2, 2), 2, "x", identity, {cf.ones(2, 2)}, {2, 2}}
end

local calls = 0

-- Stands for the script: all is called on its line, and all is to be blamed on it.
-- No tail call, which would have no line.
local function call(f, ...) local ok, message = pcall(f, ...) return ok, message end
local LINE = debug.getinfo(call, "S").linedefined
local file = debug.getinfo(1, "S").short_src

-- Words of Lua's own errors alone, or of a room behind the one that was called.
local INTERNAL = {"attempt to", "bad argument", "cannot convert", "stack overflow", "%.lua:%d", "not callable",
  "invalid value", "ctype<", "wrong number of"}

local body_lines = {} -- of functions, each on a line, that are passed to Conflux and call it

local function body(f)
  body_lines[debug.getinfo(f, "S").linedefined] = true
  return f
end

-- Is this message one of Conflux's for users?
local function is_good(message)
  if message:sub(1, #file) ~= file then return false end
  local line, rest = message:match("^:(%d+): (conflux[.:].*)$", #file + 1)
  if not (tonumber(line) == LINE or body_lines[tonumber(line)]) then return false end
  rest = rest:gsub(" %(enqueued at [^)]*%)", "")
  for _, pattern in ipairs(INTERNAL) do
    if rest:find(pattern) then return false end
  end
  return true
end

local seen = {}

local function try(name, f, what, ...)
  if share < 1 and math.random() >= share then return end
  calls = calls + 1
  local ok, message = call(f, ...)
  if ok then return end
  if type(message) ~= "string" then message = "(" .. type(message) .. ")" end
  if is_good(message) then return end
  local key = name .. message:gsub("%d+", "")
  if not seen[key] then report:write(("%s(%s): %s\n"):format(name, what, message)) end
  seen[key] = true
end

-- The options that a function knows, as it says itself when it is given one that it does not know.
local function options_of(f, ...)
  local arguments, n = {...}, select("#", ...)
  arguments[n + 1] = {no_such_option = 1}
  local ok, message = pcall(f, unpack(arguments, 1, n + 1))
  local known = not ok and type(message) == "string" and message:match "'no_such_option': known are ([%w_, ]+)"
  local names = {}
  for name in (known or ""):gmatch "[%w_]+" do names[#names + 1] = name end
  return names
end

local function try_options(name, f)
  local fronts = {{}}
  for _, a in ipairs(good_values()) do
    fronts[#fronts + 1] = {a}
    for _, b in ipairs(good_values()) do fronts[#fronts + 1] = {a, b} end
  end
  for _, front in ipairs(fronts) do
    for _, option in ipairs(options_of(f, unpack(front))) do
      for _, h in ipairs(hostile_values()) do
        local arguments = {unpack(front)}
        arguments[#front + 1] = {[option] = h[2]}
        try(name, f, ("%d good, {%s = %s}"):format(#front, option, h[1]), unpack(arguments))
      end
    end
  end
end

-- Calls a function with one hostile value among good ones.
local function try_places(name, f, what, v)
  try(name, f, what, v)
  for i, good in ipairs(good_values()) do
    try(name, f, ("good %d, %s"):format(i, what), good, v)
    try(name, f, ("%s, good %d"):format(what, i), v, good)
    for j, second in ipairs(good_values()) do
      if j % 2 == 1 or j == 2 then try(name, f, ("good %d, good %d, %s"):format(i, j, what), good, second, v) end
    end
  end
end

local function try_all(name, f)
  io.stderr:write(name, "\n") -- the last line names what has crashed
  try(name, f, "")
  for _, h in ipairs(hostile_values()) do
    local what, v = h[1], h[2]
    try_places(name, f, what, v)
    try(name, f, what .. " twice", v, v)
    try_places(name, f, "function that returns " .. what, function() return v end)
  end
  try_options(name, f)
end

local function sorted(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names, function(a, b) return tostring(a) < tostring(b) end)
  return names
end

-- ---- objects with methods and fields ------------------------------------------------------------------------

local function batch() return cf.ones(2, 2) end

-- How to make one of each, with all its fields set, and what it is called with.  A layer that is not here is
-- reported.
local LAYERS = {
  Dense = function() return nn.Dense(2, 2, "relu") end,
  Chain = function() return nn.Chain(nn.Dense(2, 2), "relu", nn.Dense(2, 2)) end,
  SkipConnection = function() return nn.SkipConnection(nn.Dense(2, 2), "+") end,
  Parallel = function() return nn.Parallel("+", nn.Dense(2, 2), "relu") end,
  LayerNorm = function() return nn.LayerNorm(2) end,
  Embedding = function() return nn.Embedding(2, 2) end,
  Dropout = function() return nn.Dropout(0.5) end,
  Flatten = function() return nn.Flatten() end,
  Conv = function() return nn.Conv(2, 2, {2, 1}, "relu", {pad = {0, 1, 0, 0}}) end,
  ConvTranspose = function() return nn.ConvTranspose(2, 2, 2, "relu", {stride = 2, output_pad = 1}) end,
  BatchNorm = function() return nn.BatchNorm(2, "relu") end,
  GroupNorm = function() return nn.GroupNorm(1, 2) end,
  MaxPool = function() return nn.MaxPool(2, {pad = 1}) end,
  MeanPool = function() return nn.MeanPool({2, 1}) end,
  AdaptiveMeanPool = function() return nn.AdaptiveMeanPool({1, 2}) end,
  GlobalMeanPool = function() return nn.GlobalMeanPool() end,
  Upsample = function() return nn.Upsample({2, 1.5}, {mode = "bilinear"}) end,
}
local function image() return cf.ones(1, 2, 2, 2) end
local INPUTS = {Embedding = function() return cf.zeros(2, {dtype = "int64"}) end, Conv = image, ConvTranspose = image,
  MaxPool = image, MeanPool = image, AdaptiveMeanPool = image, GlobalMeanPool = image, Upsample = image}

-- Uses of a layer: each is a way to its fields.
local function uses_of(layer, x)
  return {
    {"()", layer, x}, {":forward", layer.forward, layer, x}, {":tostring", tostring, layer},
    {":parameters", layer.parameters, layer}, {":train", layer.train, layer}, {":eval", layer.eval, layer},
    {":freeze", layer.freeze, layer}, {":unfreeze", layer.unfreeze, layer},
    {" replicated", cf.replicate, layer}, {" set up", optim.Adam().setup, optim.Adam(), layer},
    {" in a gradient", cf.gradient, body(function(m) return m(x):sum() end), layer},
    {" saved", cf.save, "layer.st", layer}, {" walked", cf.tree.leaves, layer},
  }
end

local function try_layer(name, make, x)
  local fields = sorted(make())
  fields[#fields + 1] = "training"
  fields[#fields + 1] = "weight"
  for _, field in ipairs(fields) do
    io.stderr:write(name, ".", tostring(field), "\n")
    for _, h in ipairs(hostile_values()) do
      for k = 1, #uses_of(make(), x) do
        local layer = make()
        layer[field] = h[2]
        local use = uses_of(layer, x)[k]
        try(name .. use[1], use[2], ("%s = %s"):format(field, h[1]), unpack(use, 3))
      end
    end
  end
end

-- The other objects: how to make one, and what takes it.
local model = {cf.ones(2, 2), cf.ones(2)}
local gradient = {cf.ones(2, 2), cf.ones(2)}
local OBJECTS = {
  optimiser = {
    function() return optim.AdamW(1e-3) end,
    function(o) return {{":setup", o.setup, o, model}, {" as text", tostring, o}, {" chained", optim.Chain, o},
      {" with a state", body(function() optim.update(o:setup(model), model, gradient) end)}} end,
  },
  state = {
    function() return optim.Adam(1e-3):setup(model, function() return {decay = 1, scale = 1} end) end,
    function(s) return {{" updated", optim.update, s, model, gradient}, {" adjusted", optim.adjust, s, {lr = 1}},
      {" as text", tostring, s}, {" replicated", cf.replicate, s}, {" saved", cf.save, "state.st", s}} end,
  },
  replicas = {
    function() return cf.replicate(model) end,
    function(r) return {{" reduced", cf.allreduce, "+", r}, {" reduced to one", cf.reduce, "+", 1, r},
      {" synchronized", cf.synchronize, r}, {" run", cf.withdevices, identity, r}, {" as text", tostring, r},
      {" called", r, 1}, {" indexed", body(function() return r.nonsense end)}} end,
  },
  loader = {
    function() return cf.data.DataLoader({cf.ones(3)}, {batch = 1}) end,
    function(l) return {{":epoch", l.epoch, l, 0}, {":steps", l.steps, l}, {":state", l.state, l},
      {":restore", l.restore, l, {epoch = 0, step = 0, seed = 0, total = 2, samples = 3}},
      {":release", l.release, l}, {" as text", tostring, l},
      {" run", body(function() for _ in l:epoch(0) do end end)}} end, -- luacheck: ignore 542
  },
  progress = {function() return cf.progress(3) end},
}

local function try_object(name)
  local make, uses_of_object = unpack(OBJECTS[name])
  if not uses_of_object then return end
  local fields = sorted(rawget(make(), "_facts") or make())
  for _, field in ipairs(fields) do
    io.stderr:write(name, ".", tostring(field), "\n")
    if not tostring(field):find "^_" then
      for _, h in ipairs(hostile_values()) do
        for k = 1, #uses_of_object(make()) do
          local object = make()
          try(name, body(function() object[field] = h[2] end), ("%s = %s"):format(tostring(field), h[1]))
          local use = uses_of_object(object)[k]
          try(name .. use[1], use[2], ("%s = %s"):format(tostring(field), h[1]), unpack(use, 3))
        end
      end
    end
  end
end

-- The methods of what `make` makes, on a new one each, and on what is none.
local function try_methods(path, make)
  local methods = {}
  local class = getmetatable(make())
  while type(class) == "table" do
    for name, method in pairs(class) do
      if type(method) == "function" then methods[name] = method end
    end
    class = type(class.__index) == "table" and class.__index ~= class and class.__index or getmetatable(class)
    class = class and (rawget(class, "__index") and type(class.__index) == "table" and class.__index or class)
  end
  for _, name in ipairs(sorted(methods)) do
    local method, full = methods[name], path .. ":" .. name
    if not name:find "^__" and name ~= "init" then -- the constructor calls that one
      io.stderr:write(full, "\n")
      try(full, method, "", make())
      for _, h in ipairs(hostile_values()) do
        try(full, method, h[1], make(), h[2])
        try(full, method, h[1] .. " twice", make(), h[2], h[2])
        try(full, method, "1, " .. h[1], make(), 1, h[2])
        try(full, method, "a model, " .. h[1], make(), {cf.ones(2)}, h[2])
        try(full, method, h[1] .. " as the object", h[2])
        try(full, method, h[1] .. " as the object, 1", h[2], 1)
        try(full, method, h[1] .. " as the object, a tensor", h[2], batch())
      end
    end
  end
end

-- ---- all of it ----------------------------------------------------------------------------------------------

local function is_class(t)
  return rawget(t, "__layer") ~= nil
end

-- Networks are as large as they are unless told: a narrow one of each, with one hostile option.
local function try_network(name, f)
  io.stderr:write(name, "\n")
  for _, option in ipairs(options_of(f)) do
    for _, h in ipairs(hostile_values()) do
      try(name, f, ("{%s = %s}"):format(option, h[1]), {width = 1, classes = 2, [option] = h[2]})
    end
  end
  for _, h in ipairs(hostile_values()) do
    if type(h[2]) ~= "table" and h[2] ~= nil then try(name, f, h[1], h[2]) end
  end
end

local function visit(path, t)
  for _, name in ipairs(sorted(t)) do
    local v, full = t[name], path .. "." .. name
    if path == "cf.zoo" and name:find "%d$" then
      try_network(full, v)
    elseif type(v) == "function" then
      try_all(full, v)
    elseif type(v) == "table" and is_class(v) then
      try_all(full, v)
      local make = LAYERS[name]
      if not make then
        report:write(full, ": hostile.lua knows no way to make one\n")
      else
        try_methods(full, make)
        try_layer(full, make, (INPUTS[name] or batch)())
      end
    elseif type(v) == "table" and getmetatable(v) and getmetatable(v).__call then
      try_all(full, v)
    elseif type(v) == "table" then
      visit(full, v)
    end
    for _, h in ipairs(hostile_values()) do
      if h[2] ~= nil then try("field of " .. path, body(function(key) return t[key] end), h[1], h[2]) end
    end
  end
end

visit("cf", cf)
visit("tensor", require("conflux.core").methods)
for _, name in ipairs(sorted(OBJECTS)) do
  try_methods(name, OBJECTS[name][1])
  try_object(name)
end
-- cf.op's result is public, too
local double = {forward = body(function(x) return cf.mul(x, 2) end), backward = function(dy) return dy * 2 end}
try_all("cf.op's", cf.op("double", double))
report:write(("%d calls\n"):format(calls))
