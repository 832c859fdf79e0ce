--- Picture files with classes: whole data sets of them, and single ones.
-- @module conflux.images
local core = require "conflux.core"
local check = require "conflux.check"
local sealed = require "conflux.sealed"
local transforms = require "conflux.transforms"

local C, ffi = core.C, core.ffi
local settle = core.settle
local getmetatable, tonumber, type = getmetatable, tonumber, type

local PATH_BYTES = 4096

-- ---- keys -----------------------------------------------------------------------------------------------------

--- A list of picture files with a class for each.  `key[i]` is a table with the `path` and the `id`, from 0, of picture
-- i; `key.classes[id + 1]` is one with the `name` and the `description` of a class.  The list itself is not Lua's, so
-- that a million files cost it nothing.
---@class conflux.Images
---@field classes {name: string, description: string}[]
---@field left_out integer  rows that were left out, because they name several classes
local Images = sealed.class("data.images", "key")

local function images_of(self, method)
  check.self(Images, "data.images", method, self)
  local images = self._images[0]
  if images == nil then check.fail("data.images." .. method, "the key was released") end
  return images
end

local field = Images.__index
function Images:__index(key)
  if type(key) ~= "number" then return field(self, key) end
  local images = images_of(self, "[]")
  if key % 1 ~= 0 or key < 1 or key > field(self, "n") then return nil end
  local path, id = ffi.new("char[?]", PATH_BYTES), ffi.new "int32_t[1]"
  local st = C.cfx_images_at(images, key - 1, path, PATH_BYTES, id)
  if st ~= 0 then settle(st, C.cfx_images_at, images, key - 1, path, PATH_BYTES, id) end
  return {path = ffi.string(path), id = id[0]}
end

local function classes_of(images, n)
  local classes, strings = {}, ffi.new "const char *[2]"
  for k = 1, n do
    local st = C.cfx_images_class(images, k - 1, strings, strings + 1)
    if st ~= 0 then settle(st, C.cfx_images_class, images, k - 1, strings, strings + 1) end
    classes[k] = {name = ffi.string(strings[0]), description = ffi.string(strings[1])}
  end
  return classes
end

-- A key of what C has put into `out`.
local function key_of(out)
  local box = ffi.gc(out, C.cfx_images_free)
  local n, classes, left_out = ffi.new "int64_t[1]", ffi.new "int32_t[1]", ffi.new "int64_t[1]"
  local st = C.cfx_images_count(box[0], n, classes, left_out)
  if st ~= 0 then settle(st, C.cfx_images_count, box[0], n, classes, left_out) end
  return sealed.new(Images, {classes = classes_of(box[0], classes[0]), left_out = tonumber(left_out[0]),
    n = tonumber(n[0])}, {_images = box})
end

--- How many pictures there are.
---@return integer
function Images:size()
  images_of(self, "size")
  return self.n
end

--- The pictures for which f returns true, with all classes and the ids that they have.
---@param f fun(picture: {path: string, id: integer}, i: integer): boolean?
---@return conflux.Images
function Images:filter(f)
  local images = images_of(self, "filter")
  if type(f) ~= "function" then check.wrong("data.images.filter", "f", "a function", f) end
  local positions, kept = ffi.new("int64_t[?]", self.n), 0
  for i = 1, self.n do
    if f(self[i], i) then
      positions[kept] = i - 1
      kept = kept + 1
    end
  end
  local out = ffi.new "cfx_images *[1]"
  local st = C.cfx_images_select(images, kept, positions, out)
  if st ~= 0 then settle(st, C.cfx_images_select, images, kept, positions, out) end
  return key_of(out)
end

--- Gives the list's memory back now rather than at the next collection.  Loaders over it go on.
function Images:release()
  check.self(Images, "data.images", "release", self)
  C.cfx_images_free(self._images)
end

function Images:__tostring()
  return ("%d pictures of %d classes"):format(self.n, #self.classes)
end

local function is_key(v) return type(v) == "table" and getmetatable(v) == Images end

-- n pictures drawn at random, with replacement.
local function draw(fname, key, n, seed)
  if not is_key(key) then check.wrong(fname, "key", "what cf.data.images or imagenet makes", key) end
  check.integer(fname, "n", n, 1, 2 ^ 31 - 1)
  local images, out = images_of(key, "draw"), ffi.new "cfx_images *[1]"
  local st = C.cfx_images_draw(images, n, seed, out)
  if st ~= 0 then settle(st, C.cfx_images_draw, images, n, seed, out) end
  return key_of(out)
end

-- ---- data sets ------------------------------------------------------------------------------------------------

--- The pictures below a folder for each class: the classes are the folders of `root`, sorted by their bytes; their
-- pictures the .jpg and .jpeg files below them, at any depth, sorted so, too.
---@param root string
---@return conflux.Images
local function images(root)
  check.text("data.images", "root", root)
  local out = ffi.new "cfx_images *[1]"
  local st = C.cfx_images_folders(core.context(), root, out)
  if st ~= 0 then settle(st, C.cfx_images_folders, core.context(), root, out) end
  return key_of(out)
end

--- The classes of an ImageNet tree as Kaggle has it, in the order of its LOC_synset_mapping.txt.
---@param root string
---@return {name: string, description: string}[]
local function labels(root)
  check.text("data.labels", "root", root)
  local out = ffi.new "cfx_images *[1]"
  local st = C.cfx_images_labels(core.context(), root, out)
  if st ~= 0 then settle(st, C.cfx_images_labels, core.context(), root, out) end
  local key = key_of(out)
  key:release()
  return key.classes
end

-- Names of classes, of which the user may give positions in the mapping.
local function class_names(fname, root, classes)
  if type(classes) ~= "table" then check.wrong(fname, "classes", "a list of names or positions", classes) end
  local n, names, all = check.length(fname, "classes", classes), {}, nil
  if n == 0 then check.arg(fname, "classes", "at least one class", "none") end
  for i = 1, n do
    local name = ("classes[%d]"):format(i)
    if type(classes[i]) == "number" then
      all = all or labels(root)
      names[i] = all[check.integer(fname, name, classes[i], 1, #all)].name
    else
      names[i] = check.text(fname, name, classes[i])
    end
  end
  return names
end

--- ImageNet as Kaggle has it: below `root` lie LOC_synset_mapping.txt, LOC_train_solution.csv, LOC_val_solution.csv and
-- ILSVRC/Data/CLS-LOC.  Ids count the classes asked for, in their order.  Rows whose boxes name several classes are
-- left out; `key.left_out` counts them.
---@param root string
---@param o? {split: "train"|"val"|nil, classes: (string|integer)[]?, solutions: string?}
---  classes: names of synsets, or positions from 1 in the mapping; solutions: another CSV file for the split; default:
---  "train", all, the split's own
---@return conflux.Images
local function imagenet(root, o)
  local fname = "data.imagenet"
  check.text(fname, "root", root)
  o = check.options(fname, o, {"split", "classes", "solutions"})
  local split = o.split == nil and "train" or o.split
  if split ~= "train" and split ~= "val" then check.wrong(fname, "split", "'train' or 'val'", split) end
  local solutions = o.solutions ~= nil and check.text(fname, "solutions", o.solutions) or nil
  local names = o.classes ~= nil and class_names(fname, root, o.classes) or nil
  local array = names and ffi.new("const char *[?]", #names, names)
  local out = ffi.new "cfx_images *[1]"
  local st = C.cfx_images_imagenet(core.context(), root, split, solutions, names and #names or 0, array, out)
  if st ~= 0 then
    settle(st, C.cfx_images_imagenet, core.context(), root, split, solutions, names and #names or 0, array, out)
  end
  return key_of(out)
end

--- All pictures of a split of an ImageNet tree: cf.data.imagenet(root, {split = split}).
---@param root string
---@param split "train"|"val"
---@return conflux.Images
local function solutions(root, split)
  return imagenet(root, {split = split})
end

-- ---- single pictures ------------------------------------------------------------------------------------------

--- Reads a JPEG file as a tensor [height, width, 3], red, green, blue.
---@param path string
---@param transform? conflux.Transform|conflux.Transform[]  default: none, the picture as it is
---@param o? {dtype: "float32"|"uint8"|nil, mean: number[]?, deviation: number[]?, scaled: boolean?, seed: integer?,
---  device: (conflux.Device|string)?}
---  float32 is (x / 255 - mean) / deviation, uint8 the bytes; default: "float32", ImageNet's, true, 0
---@return conflux.Tensor
local function image(path, transform, o)
  local fname = "data.image"
  check.text(fname, "path", path)
  o = check.options(fname, o, {"dtype", "mean", "deviation", "scaled", "seed", "device"})
  local c = transforms.options(fname, transform, o)
  local seed = check.integer(fname, "seed", o.seed == nil and 0 or o.seed, 0, 2 ^ 53)
  local device, out = check.device(fname, "device", o.device), core.new()
  local st = C.cfx_image_read(device, path, c, seed, out)
  if st ~= 0 then settle(st, C.cfx_image_read, device, path, c, seed, out) end
  return out
end

--- Writes a picture as a JPEG file.
---@param path string
---@param x conflux.Tensor  uint8, [height, width], [height, width, 1] or [height, width, 3]
---@param o? {quality: integer?}  1 to 100; default: 90
local function saveimage(path, x, o)
  local fname = "data.saveimage"
  check.text(fname, "path", path)
  check.live(fname, "x", x)
  o = check.options(fname, o, {"quality"})
  local quality = check.integer(fname, "quality", o.quality == nil and 90 or o.quality, 1, 100)
  local channels = x._ndim == 2 and 1 or x._ndim == 3 and tonumber(x._shape[2])
  if x._dtype ~= core.dtype.uint8 or (channels ~= 1 and channels ~= 3) then
    check.wrong(fname, "x", "uint8 of [height, width] with 1 or 3 channels", x)
  end
  local st = C.cfx_image_write(path, x, quality)
  if st ~= 0 then settle(st, C.cfx_image_write, path, x, quality) end
end

return {is_key = is_key, draw = draw, images_of = images_of, images = images, labels = labels, imagenet = imagenet,
  solutions = solutions, image = image, saveimage = saveimage}
