--- From pictures of any size to samples, in torchvision's words and with its definitions.
--
-- A transform is one of these, or a list: one that resizes, then crops, then a flip and a jitter.
-- @module conflux.data.transforms
local core = require "conflux.core"
local check = require "conflux.check"
local sealed = require "conflux.sealed"

local C, ffi = core.C, core.ffi
local getmetatable, type = getmetatable, type

local transforms = {}

---@class conflux.Transform
local Transform = sealed.class("data.transforms", "transform")

function Transform:__tostring()
  return "transform " .. self.text
end

local function make(text, kind, height, width, values)
  return sealed.new(Transform, {text = text, kind = kind, height = height, width = width, values = values or {}})
end

local function side(fname, v) return check.integer(fname, "size", v, 1, 16384) end

-- Height and width of a size; of a number both are it, or height is `single`.
local function size_of(fname, size, single)
  if type(size) ~= "table" then
    side(fname, size)
    return single or size, size, tostring(size)
  end
  if check.length(fname, "size", size) ~= 2 then check.wrong(fname, "size", "a number, or {height, width}", size) end
  return side(fname, size[1]), side(fname, size[2]), ("{%d, %d}"):format(size[1], size[2])
end

-- A pair of numbers above 0, the second at least the first and at most `most`.
local function pair(fname, name, v, most)
  if type(v) ~= "table" or check.length(fname, name, v) ~= 2 then
    check.wrong(fname, name, "a list of two numbers", v)
  end
  local low, high = check.number(fname, name, v[1]), check.number(fname, name, v[2])
  if not (low > 0 and low <= high and high <= most) then
    check.arg(fname, name, ("two ascending numbers above 0, at most %g"):format(most), ("{%g, %g}"):format(low, high))
  end
  return low, high
end

--- A part of the picture of random area and ratio, resized to `size`.  Large parts may be decoded at half, a quarter or
-- an eighth of their size, where at least twice the target is left.
---@param size integer|integer[]  of both sides, or {height, width}
---@param o? {scale: number[]?, ratio: number[]?}
---  shares of the area from and to, ratios of width to height from and to; default: {0.08, 1}, {3/4, 4/3}
---@return conflux.Transform
function transforms.randomresizedcrop(size, o)
  local fname = "data.transforms.randomresizedcrop"
  local height, width, text = size_of(fname, size)
  o = check.options(fname, o, {"scale", "ratio"})
  local a, b = pair(fname, "scale", o.scale == nil and {0.08, 1} or o.scale, 1)
  local c, d = pair(fname, "ratio", o.ratio == nil and {3 / 4, 4 / 3} or o.ratio, 1e6)
  return make(("randomresizedcrop(%s)"):format(text), C.CFX_IMAGE_RANDOMRESIZEDCROP, height, width, {a, b, c, d})
end

--- The whole picture at another size.
---@param size integer|integer[]  of the shorter side, the ratio being kept, or {height, width}
---@return conflux.Transform
function transforms.resize(size)
  local height, width, text = size_of("data.transforms.resize", size, 0)
  return make(("resize(%s)"):format(text), C.CFX_IMAGE_RESIZE, height, width)
end

--- The middle of the picture, black around it where it is smaller.
---@param size integer|integer[]  of both sides, or {height, width}
---@return conflux.Transform
function transforms.centrecrop(size)
  local height, width, text = size_of("data.transforms.centrecrop", size)
  return make(("centrecrop(%s)"):format(text), C.CFX_IMAGE_CENTRECROP, height, width)
end

--- Exchanges left and right in a random part of the pictures.
---@param p? number  that part, 0 to 1; default: 0.5
---@return conflux.Transform
function transforms.flip(p)
  p = check.number("data.transforms.flip", "p", p == nil and 0.5 or p)
  if not (p >= 0 and p <= 1) then check.arg("data.transforms.flip", "p", "0 to 1", p) end
  return make(("flip(%g)"):format(p), C.CFX_IMAGE_FLIP, 0, 0, {p})
end

local COLOURS = {"brightness", "contrast", "saturation", "hue"}

--- Changes colours at random, in random order: each by a factor of 1 - x to 1 + x, the hue by -x to x of a circle.
---@param o {brightness: number?, contrast: number?, saturation: number?, hue: number?}
---  default: 0 each; hue at most 0.5
---@return conflux.Transform
function transforms.jitter(o)
  local fname = "data.transforms.jitter"
  o = check.options(fname, o, COLOURS)
  local values = {}
  for i, name in ipairs(COLOURS) do
    values[i] = check.number(fname, name, o[name] == nil and 0 or o[name])
    local most = name == "hue" and 0.5 or 1e6
    if not (values[i] >= 0 and values[i] <= most) then check.arg(fname, name, ("0 to %g"):format(most), values[i]) end
  end
  return make(("jitter(%g, %g, %g, %g)"):format(unpack(values)), C.CFX_IMAGE_JITTER, 0, 0, values)
end

-- ---- for C ----------------------------------------------------------------------------------------------------

local function is_transform(v) return type(v) == "table" and getmetatable(v) == Transform end

local function list_of(fname, v)
  if v == nil then return {} end
  if is_transform(v) then return {v} end
  if type(v) ~= "table" then check.wrong(fname, "transform", "a transform or a list of them", v) end
  for i = 1, check.length(fname, "transform", v) do
    if not is_transform(v[i]) then check.wrong(fname, ("transform[%d]"):format(i), "a transform", v[i]) end
  end
  return v
end

local MEAN, DEVIATION = {0.485, 0.456, 0.406}, {0.229, 0.224, 0.225} -- ImageNet's

local function channels(fname, name, v, default, to)
  if v == nil then v = default end
  if type(v) ~= "table" or check.length(fname, name, v) ~= 3 then check.wrong(fname, name, "a list of 3 numbers", v) end
  for i = 1, 3 do
    to[i - 1] = check.number(fname, ("%s[%d]"):format(name, i), v[i])
    if not (v[i] - v[i] == 0 and (name == "mean" or v[i] > 0)) then
      check.arg(fname, ("%s[%d]"):format(name, i), name == "mean" and "a number" or "a number above 0", v[i])
    end
  end
end

-- A transform and its options as C takes them.
local function options(fname, transform, o)
  local list = list_of(fname, transform)
  if #list > 8 then check.arg(fname, "transform", "at most 8", #list) end
  local c = ffi.new "cfx_image_options"
  for i, t in ipairs(list) do
    local step = c.steps[i - 1]
    step.kind, step.height, step.width = t.kind, t.height, t.width
    for k, value in ipairs(t.values) do step.values[k - 1] = value end
  end
  c.size, c.n = ffi.sizeof(c), #list
  local wanted = o.dtype == nil and "float32" or o.dtype
  c.dtype = check.dtype(fname, "dtype", wanted)
  if c.dtype ~= core.dtype.float32 and c.dtype ~= core.dtype.uint8 then
    check.wrong(fname, "dtype", "'float32' or 'uint8'", wanted)
  end
  c.whole = o.scaled ~= nil and not check.boolean(fname, "scaled", o.scaled) and 1 or 0
  channels(fname, "mean", o.mean, MEAN, c.mean)
  channels(fname, "deviation", o.deviation, DEVIATION, c.deviation)
  return c
end

return {transforms = transforms, options = options}
