--- Losses.  The class axis is last; reduction is "mean" (the default), "sum" or "none".
-- @module conflux.nn.losses
local core = require "conflux.core"
local check = require "conflux.check"

local C = core.C
local settle, is_tensor, new, op_number = core.settle, core.is_tensor, core.new, core.op

local REDUCTIONS = {none = 0, mean = 1, sum = 2}
local NOTHING = -2 ^ 63 -- an id that no row has

local function reduction_of(fname, o)
  if o.reduction == nil then return 1 end
  return REDUCTIONS[o.reduction] or check.arg(fname, "reduction", "'mean', 'sum' or 'none'",
    check.describe(o.reduction))
end

local losses = {}

--- Cross-entropy of logits [.., classes] with ids [..] (from 0) or probabilities [.., classes].
--
-- smoothing: the share of the target spread over all classes (Szegedy et al. 2016).  ignore: rows with this id
-- count neither in the sum nor in the mean.
---@param logits conflux.Tensor  [.., classes]
---@param target conflux.Tensor  ids [..], or probabilities [.., classes]
---@param o? {smoothing: number?, ignore: integer?, reduction: "mean"|"sum"|"none"|nil}  default: 0, none, "mean"
---@return conflux.Tensor  one number, or for "none" [..]
function losses.crossentropy(logits, target, o)
  if not is_tensor(logits) then check.arg("crossentropy", "logits", "a tensor", logits) end
  if not is_tensor(target) then check.arg("crossentropy", "target", "a tensor of ids or probabilities", target) end
  local smoothing, ignore, reduction = 0, NOTHING, 1
  if o ~= nil then
    o = check.options("crossentropy", o, {"smoothing", "ignore", "reduction"})
    reduction = reduction_of("crossentropy", o)
    if o.smoothing ~= nil then smoothing = check.number("crossentropy", "smoothing", o.smoothing) end
    if o.ignore ~= nil then ignore = check.integer("crossentropy", "ignore", o.ignore) end
  end
  local out = new()
  core.at_line() -- an id out of range is found in the queue
  local st = C.cfx_crossentropy(logits, target, smoothing, ignore, reduction, out)
  if st ~= 0 then settle(st, C.cfx_crossentropy, logits, target, smoothing, ignore, reduction, out) end
  return out
end

local function loss(name, known, parameter, default)
  local op = op_number[name]
  losses[name] = function(x, y, o)
    if not is_tensor(x) then check.arg(name, "x", "a tensor", x) end
    if not is_tensor(y) then check.arg(name, "y", "a tensor", y) end
    local reduction, param = 1, default
    if o ~= nil then
      o = check.options(name, o, known)
      reduction = reduction_of(name, o)
      if parameter and o[parameter] ~= nil then
        param = check.number(name, parameter, o[parameter])
        if param <= 0 then check.arg(name, parameter, "a positive number", param) end
      end
    end
    local out = new()
    local st = C.cfx_loss(op, x, y, param, reduction, out)
    if st ~= 0 then settle(st, C.cfx_loss, op, x, y, param, reduction, out) end
    return out
  end
end

--- The mean of squared differences, (x - y)^2; in float.
---@param x conflux.Tensor
---@param y conflux.Tensor  of x's shape
---@param o? {reduction: "mean"|"sum"|"none"|nil}  default: "mean"
---@return conflux.Tensor  one number, or for "none" of x's shape
loss("mse", {"reduction"}, nil, 0)
--- The mean of absolute differences, |x - y|; in float.
---@param x conflux.Tensor
---@param y conflux.Tensor  of x's shape
---@param o? {reduction: "mean"|"sum"|"none"|nil}  default: "mean"
---@return conflux.Tensor  one number, or for "none" of x's shape
loss("mae", {"reduction"}, nil, 0)
--- Half the squared difference up to `delta`, linear beyond (Huber 1964); in float.
---@param x conflux.Tensor
---@param y conflux.Tensor  of x's shape
---@param o? {delta: number?, reduction: "mean"|"sum"|"none"|nil}  default: 1, "mean"
---@return conflux.Tensor  one number, or for "none" of x's shape
loss("huber", {"delta", "reduction"}, "delta", 1)
--- Binary cross-entropy of logits with probabilities, which does not overflow; in float.
---@param x conflux.Tensor  logits, not probabilities
---@param y conflux.Tensor  in [0, 1], of x's shape
---@param o? {reduction: "mean"|"sum"|"none"|nil}  default: "mean"
---@return conflux.Tensor  one number, or for "none" of x's shape
loss("bce", {"reduction"}, nil, 0)

return losses
