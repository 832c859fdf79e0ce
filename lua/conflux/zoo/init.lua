--- zoo: networks by name, initialised as torchvision's are, and their files.
--
--     local model = cf.zoo.resnet34 {classes = 5}
--     cf.zoo.load("resnet34.safetensors", {into = model, rename = {fc = false}, missing = "keep"})
--
-- Options are `{classes, channels, width, stem = "imagenet" | "small"}`; a network is a Chain, so that its head is
-- `model[#model]`.
-- @module conflux.zoo
local core = require "conflux.core"
local check = require "conflux.check"
local files = require "conflux.files"
local tree = require "conflux.tree"

local each = core.each
local rawget, type = rawget, type

local zoo, names = {}, {}
for _, family in ipairs {"small", "resnet", "vgg"} do
  local made = require("conflux.zoo." .. family)
  for name, build in each, made.zoo do zoo[name] = build end
  for name, f in each, made.names do names[name] = f end
end

-- A tensor as PyTorch holds it: weights of convolutions OIHW, and the count of batches without dimensions.
local function theirs(path, t)
  if t._ndim == 4 then return t:permute(1, 4, 2, 3) end
  if path:find "num_batches_tracked$" then return t:squeeze(1) end
  return t:detach()
end

--- The tensors of a network by torchvision's names, 0-based, as views in PyTorch's order (OIHW): what is copied into
-- one is in the model.  A tensor that torchvision does not have, such as that of a new head, has its path for a name.
---@param model table  a network of the zoo that torchvision has
---@param x? any       a tree of the model's structure, such as a gradient; default: the model
---@return table<string, conflux.Tensor>
function zoo.tensors(model, x)
  local name_of = type(model) == "table" and names[rawget(model, "arch")]
  if not name_of then
    check.arg("zoo.tensors", "model", "a resnet or vgg of the zoo", check.describe(model))
  end
  local views = {}
  tree.walk(x == nil and model or x, function(path, t) views[name_of(path) or path] = theirs(path, t) end)
  return views
end

local function release(views)
  for _, view in each, views do core.C.cfx_release(view) end
end

--- cf.load into a network, from a file with torchvision's names.  `rename` is given these names.
---@param path string
---@param o conflux.LoadOptions  with `into`, a network of the zoo
---@return table into
function zoo.load(path, o)
  o = check.options("zoo.load", o, {"into", "rename", "missing", "unexpected", "device"})
  local views = zoo.tensors(o.into)
  files.load(path, {into = views, rename = o.rename, missing = o.missing, unexpected = o.unexpected,
    device = o.device})
  release(views)
  return o.into
end

--- cf.save of a network, with torchvision's names.
---@param path string
---@param model table
function zoo.save(path, model)
  local views = zoo.tensors(model)
  files.save(path, views)
  release(views)
end

return zoo
