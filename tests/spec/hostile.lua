-- Calls every public function with values that it was not made for, in a process of its own, which a crash would end.
-- Prints what was raised that is no error of Conflux's at this file's line of the call, and at last how many calls
-- there were.  hostile_spec.lua runs it in an empty directory.
local ffi = require "ffi"
local cf  = require "conflux"

local NAN, HUGE = 0 / 0, 1e308
local cyclic = {}
cyclic[1] = cyclic
local released = cf.ones(2)
released:release()

local function identity(...) return ... end

-- What is passed where anything else belongs; made anew, as some functions change what they are given.
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
    {"released", released}, {"ids", cf.zeros(2, {dtype = "int64"})}, {"no elements", cf.zeros(0, 3)},
    {"scalar", cf.tensor(1)}, {"bool", cf.tensor {true, false}},
  }
end

-- What may stand before a hostile value, so that it gets as far as it can.
local function good_values()
  return {cf.ones(2, 2), 2, "x", identity, {cf.ones(2, 2)}, {2, 2}}
end

local calls = 0

-- Stands for the script: all is called on its line, and all is to be blamed on it.
-- No tail call, which would have no line.
local function call(f, ...) local ok, message = pcall(f, ...) return ok, message end
local LINE = debug.getinfo(call, "S").linedefined
local place = debug.getinfo(1, "S").short_src .. ":" .. LINE .. ": "

local seen = {}

local function try(name, f, what, ...)
  calls = calls + 1
  local ok, message = call(f, ...)
  if ok then return end
  if type(message) ~= "string" then message = "(" .. type(message) .. ")" end
  local rest = message:sub(1, #place) == place and message:sub(#place + 1)
  if rest and rest:find "^conflux[.:]" then return message end
  local key = name .. message:gsub("%d+", "")
  if not seen[key] then print(("%s(%s): %s"):format(name, what, message)) end
  seen[key] = true
  return message
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

local function try_all(name, f)
  io.stderr:write(name, "\n") -- the last line names what has crashed
  try(name, f, "")
  for _, h in ipairs(hostile_values()) do
    try(name, f, h[1], h[2])
    try(name, f, h[1] .. " twice", h[2], h[2])
    for i, good in ipairs(good_values()) do
      try(name, f, ("good %d, %s"):format(i, h[1]), good, h[2])
      try(name, f, ("%s, good %d"):format(h[1], i), h[2], good)
      for j, second in ipairs(good_values()) do
        if j % 2 == 1 or j == 2 then try(name, f, ("good %d, good %d, %s"):format(i, j, h[1]), good, second, h[2]) end
      end
    end
  end
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

local function sorted(t)
  local names = {}
  for name in pairs(t) do names[#names + 1] = name end
  table.sort(names)
  return names
end

local function visit(path, t)
  for _, name in ipairs(sorted(t)) do
    local v, full = t[name], path .. "." .. name
    if type(v) == "function" then
      try_all(full, v)
    elseif type(v) == "table" and getmetatable(v) and getmetatable(v).__call then
      try_all(full, v)
    elseif type(v) == "table" then
      visit(full, v)
    end
  end
end

visit("cf", cf)
visit("tensor", require("conflux.core").methods)

-- The methods of what these functions make, on a new one each.
local function visit_methods(path, make)
  for _, name in ipairs(sorted(getmetatable(make()).__index)) do
    local method = getmetatable(make()).__index[name]
    if type(method) == "function" then
      io.stderr:write(path, ":", name, "\n")
      try(path .. ":" .. name, method, "", make())
      for _, h in ipairs(hostile_values()) do
        try(path .. ":" .. name, method, h[1], make(), h[2])
        try(path .. ":" .. name, method, h[1] .. " twice", make(), h[2], h[2])
        try(path .. ":" .. name, method, "1, " .. h[1], make(), 1, h[2])
        try(path .. ":" .. name, method, "a model, " .. h[1], make(), {cf.ones(2)}, h[2])
      end
    end
  end
end

visit_methods("loader", function() return cf.data.DataLoader {cf.ones(3)} end)
visit_methods("progress", function() return cf.progress(3) end)
print(("%d calls"):format(calls))
