--- Normalisation: of layers, of batches, of groups of channels.
-- @module conflux.nn.norm
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"
local arguments = require "conflux.nn.arguments"
local fields = require "conflux.nn.fields"
local init = require "conflux.nn.initializers"
local module = require "conflux.nn.module"

local C, ffi = core.C, core.ffi
local is_tensor, new = core.is_tensor, core.new
local apply, fused = activations.apply, activations.fused
local check_x, settle = arguments.check_x, arguments.settle
local rawget, tonumber, tostring, type = rawget, tonumber, tostring, type

local layer = module.layer

-- ---- LayerNorm ----------------------------------------------------------------------------------------------

---@class conflux.LayerNorm: conflux.Module
---@field weight? conflux.Tensor
---@field bias? conflux.Tensor
local LayerNorm = layer "LayerNorm"
local check_layernorm = fields.declare(LayerNorm, {
  weight = fields.tensor_or_nil, bias = fields.tensor_or_nil, eps = fields.number, shape = fields.sizes_or_nil,
})

--- Normalises over the last dimensions, those of `shape`, to mean 0 and variance 1, then scales and shifts by a weight
-- and a bias (Ba et al. 2016).
---@param shape integer|integer[]
---@param o? {eps: number?, affine: boolean?}  default: 1e-5, true
function LayerNorm:init(shape, o)
  if type(shape) == "number" then shape = {shape} end
  check.shape("LayerNorm", "shape", shape)
  if #shape == 0 then check.arg("LayerNorm", "shape", "at least one size", "none") end
  o = check.options("LayerNorm", o, {"eps", "affine"})
  self.eps = check.number("LayerNorm", "eps", o.eps or 1e-5)
  if o.affine == nil or check.boolean("LayerNorm", "affine", o.affine) then
    self.weight, self.bias = init.ones(shape), init.zeros(shape)
  else
    self.shape = {}
    for d = 1, #shape do self.shape[d] = shape[d] end
  end
end

local function normalise(x, gamma, beta, eps)
  local out = new()
  local st = C.cfx_layernorm(x, gamma, beta, eps, out)
  if st ~= 0 then settle(LayerNorm, x, gamma, st, C.cfx_layernorm, x, gamma, beta, eps, out) end
  return out
end

function LayerNorm:forward(x)
  check_layernorm("forward", self)
  if not is_tensor(x) then check.wrong("LayerNorm", "x", "a tensor", x) end
  local weight, bias, sizes = rawget(self, "weight"), rawget(self, "bias"), rawget(self, "shape")
  if (weight == nil) ~= (bias == nil) or weight == nil and sizes == nil then
    check.fail("LayerNorm", "expected the fields weight and bias, or shape alone")
  end
  if weight then return normalise(x, weight, bias, self.eps) end
  local n = #sizes
  local lead, rows, columns = x._ndim - n, 1, 1
  for d = 1, n do
    if lead < 0 or x._shape[lead + d - 1] ~= sizes[d] then
      check.arg("LayerNorm", "x", ("[.., %s]"):format(table.concat(sizes, ", ")), check.describe(x))
    end
    columns = columns * sizes[d]
  end
  if n == 1 then return normalise(x, nil, nil, self.eps) end
  for d = 0, lead - 1 do rows = rows * tonumber(x._shape[d]) end
  return normalise(x:reshape(rows, columns), nil, nil, self.eps):reshape(x.shape)
end

function LayerNorm:describe()
  check_layernorm("describe", self)
  local sizes = self.weight and self.weight.shape or self.shape or {}
  local text = #sizes == 1 and tostring(sizes[1]) or ("{%s}"):format(table.concat(sizes, ", "))
  return ("LayerNorm(%s%s)"):format(text, self.weight and "" or ", {affine = false}")
end

-- ---- BatchNorm ----------------------------------------------------------------------------------------------

---@class conflux.BatchNorm: conflux.Module
---@field weight? conflux.Tensor               [n]
---@field bias? conflux.Tensor                 [n]
---@field running_mean? conflux.Tensor         [n], a buffer
---@field running_var? conflux.Tensor          [n], a buffer
---@field num_batches_tracked? conflux.Tensor  int64 [1]
---@field act? string|function
local BatchNorm = layer "BatchNorm"

fields.momentum = {function(v) return v == false or type(v) == "number" and v >= 0 and v <= 1 end,
  "a number from 0 to 1, or false for the cumulative mean"}

local check_batchnorm = fields.declare(BatchNorm, {
  n = fields.count, weight = fields.tensor_or_nil, bias = fields.tensor_or_nil, running_mean = fields.tensor_or_nil,
  running_var = fields.tensor_or_nil, num_batches_tracked = fields.tensor_or_nil, eps = fields.number,
  momentum = fields.momentum, act = fields.activation,
})

--- Normalises each of `n` channels, the last dimension, to mean 0 and variance 1 over all others, then scales and
-- shifts by a weight and a bias (Ioffe and Szegedy 2015).
--
-- In training with the batch's own mean and biased variance, which also move the running ones, the variance there
-- unbiased: r = (1 - momentum) r + momentum s, or the mean of all batches with `momentum = false`.  In evaluation with
-- the running ones; where they are not tracked, with the batch's own.
---@param n integer             channels
---@param act? string|function  "relu", "tanh", ..., or a function
---@param o? {eps: number?, momentum: number|false|nil, affine: boolean?, track: boolean?}  default: 1e-5, 0.1, true,
--- true
function BatchNorm:init(n, act, o)
  check.integer("BatchNorm", "n", n, 1)
  act, o = arguments.act("BatchNorm", {"eps", "momentum", "affine", "track"}, act, o)
  self.n, self.act = n, act
  self.eps = check.number("BatchNorm", "eps", o.eps == nil and 1e-5 or o.eps)
  self.momentum = o.momentum == nil and 0.1 or o.momentum
  if not fields.momentum[1](self.momentum) then
    check.wrong("BatchNorm", "momentum", fields.momentum[2], self.momentum)
  end
  if arguments.flag("BatchNorm", "affine", o.affine) then
    self.weight, self.bias = init.ones(n), init.zeros(n)
  end
  if arguments.flag("BatchNorm", "track", o.track) then
    self.running_mean, self.running_var = module.buffer(init.zeros(n)), module.buffer(init.ones(n))
    self.num_batches_tracked = init.zeros(1):to "int64"
  end
end

local state_t = ffi.typeof "cfx_batch_state"

--- act(batchnorm(x) + residual), one pass over x for the statistics and one to write.
---@param x conflux.Tensor          [.., n]
---@param residual? conflux.Tensor  of x's shape
---@return conflux.Tensor
function BatchNorm:forward(x, residual)
  check_batchnorm("forward", self)
  check_x(BatchNorm, x, residual)
  local gamma, beta, mean = rawget(self, "weight"), rawget(self, "bias"), rawget(self, "running_mean")
  local var, count, act = rawget(self, "running_var"), rawget(self, "num_batches_tracked"), rawget(self, "act")
  if (gamma == nil) ~= (beta == nil) or (mean == nil) ~= (var == nil) or (mean == nil) ~= (count == nil) then
    check.fail("BatchNorm", "expected the fields weight and bias together, and running_mean, running_var and "
      .. "num_batches_tracked")
  end
  if x._ndim < 1 or x._shape[x._ndim - 1] ~= self.n then
    check.arg("BatchNorm", "x", ("[.., %d]"):format(self.n), check.describe(x))
  end
  local state, out, op = state_t(gamma, beta, mean, var, count), new(), act and fused[act] or -1
  local training, momentum = (self.training or mean == nil) and 1 or 0, self.momentum or -1
  local st = C.cfx_batchnorm(x, state, residual, op, self.eps, momentum, training, out)
  if st ~= 0 then
    settle(BatchNorm, x, gamma or mean, st, C.cfx_batchnorm, x, state, residual, op, self.eps, momentum, training, out)
  end
  if act and op == -1 then return apply(act, out) end
  return out
end

function BatchNorm:describe()
  check_batchnorm("describe", self)
  return ("BatchNorm(%d%s%s)"):format(self.n, arguments.act_text(self.act), arguments.options_text {
    {"eps", self.eps, 1e-5}, {"momentum", self.momentum, 0.1}, {"affine", self.weight ~= nil, true},
    {"track", self.running_mean ~= nil, true},
  })
end

-- ---- GroupNorm ----------------------------------------------------------------------------------------------

---@class conflux.GroupNorm: conflux.Module
---@field weight? conflux.Tensor  [n]
---@field bias? conflux.Tensor    [n]
local GroupNorm = layer "GroupNorm"
local check_groupnorm = fields.declare(GroupNorm, {
  groups = fields.count, n = fields.count, weight = fields.tensor_or_nil, bias = fields.tensor_or_nil,
  eps = fields.number,
})

--- Normalises each sample's groups of channels to mean 0 and variance 1, then scales and shifts each of `n` channels
-- by a weight and a bias (Wu and He 2018).
---@param groups integer  a divisor of n
---@param n integer       channels
---@param o? {eps: number?, affine: boolean?}  default: 1e-5, true
function GroupNorm:init(groups, n, o)
  check.integer("GroupNorm", "groups", groups, 1)
  check.integer("GroupNorm", "n", n, 1)
  if n % groups ~= 0 then check.arg("GroupNorm", "groups", ("a divisor of %d channels"):format(n), groups) end
  o = check.options("GroupNorm", o, {"eps", "affine"})
  self.groups, self.n, self.eps = groups, n, check.number("GroupNorm", "eps", o.eps == nil and 1e-5 or o.eps)
  if arguments.flag("GroupNorm", "affine", o.affine) then
    self.weight, self.bias = init.ones(n), init.zeros(n)
  end
end

---@param x conflux.Tensor  [samples, .., n]
---@return conflux.Tensor
function GroupNorm:forward(x)
  check_groupnorm("forward", self)
  check_x(GroupNorm, x)
  local gamma, beta, out = rawget(self, "weight"), rawget(self, "bias"), new()
  if (gamma == nil) ~= (beta == nil) then check.fail("GroupNorm", "expected the fields weight and bias together") end
  if x._ndim < 2 or x._shape[x._ndim - 1] ~= self.n then
    check.arg("GroupNorm", "x", ("[samples, .., %d]"):format(self.n), check.describe(x))
  end
  local st = C.cfx_groupnorm(x, gamma, beta, self.groups, self.eps, out)
  if st ~= 0 then settle(GroupNorm, x, gamma, st, C.cfx_groupnorm, x, gamma, beta, self.groups, self.eps, out) end
  return out
end

function GroupNorm:describe()
  check_groupnorm("describe", self)
  return ("GroupNorm(%d, %d%s)"):format(self.groups, self.n, arguments.options_text {
    {"eps", self.eps, 1e-5}, {"affine", self.weight ~= nil, true},
  })
end

return {LayerNorm = LayerNorm, BatchNorm = BatchNorm, GroupNorm = GroupNorm}
