--- Layers.
-- @module conflux.nn.layers
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"
local init = require "conflux.nn.initializers"
local module = require "conflux.nn.module"

local C = core.C
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local apply, fused = activations.apply, activations.fused
local select, tonumber, tostring, type = select, tonumber, tostring, type

local layer = module.layer

local function act_text(act)
  if act == nil then return "" end
  return ", " .. (type(act) == "string" and act or type(act) == "function" and "function" or tostring(act))
end

-- Reads `act?, options?`.
local function read_act(fname, known, act, o)
  if o == nil and type(act) == "table" and not module.is_layer(act) then act, o = nil, act end
  return activations.check(fname, "act", act), check.options(fname, o, known)
end

local function check_made(fname, t, shape)
  local fits = is_tensor(t) and t._ndim == #shape
  for d = 1, fits and #shape or 0 do fits = fits and t._shape[d - 1] == shape[d] end
  if not fits then
    check.arg(fname, "init", ("a function that makes a tensor [%s]"):format(table.concat(shape, ", ")),
      check.describe(t))
  end
  return t
end

local function check_init(fname, f, default)
  if f == nil then return default end
  if type(f) ~= "function" then check.arg(fname, "init", "a function of sizes, such as nn.init.kaiming_normal", f) end
  return f
end

-- ---- Dense --------------------------------------------------------------------------------------------------

---@class conflux.Dense: conflux.Module
---@field weight conflux.Tensor   [out, in]
---@field bias? conflux.Tensor    [out]
---@field act? string|function
local Dense = layer "Dense"

--- act(x W' + bias), over the last dimension: [.., in] becomes [.., out].
---@param n_in integer
---@param n_out integer
---@param act? string|function     "relu", "tanh", ..., or a function
---@param o? {bias: boolean?, init: function?}  default: true, nn.init.glorot_uniform; the bias starts at zero
function Dense:init(n_in, n_out, act, o)
  check.integer("Dense", "in", n_in, 1)
  check.integer("Dense", "out", n_out, 1)
  act, o = read_act("Dense", {"bias", "init"}, act, o)
  local has_bias = o.bias == nil or check.boolean("Dense", "bias", o.bias)
  self.weight = check_made("Dense", check_init("Dense", o.init, init.glorot_uniform)(n_out, n_in), {n_out, n_in})
  if has_bias then self.bias = init.zeros(n_out) end
  self.act = act
end

function Dense:forward(x)
  if not is_tensor(x) then check.arg("Dense", "x", "a tensor", x) end
  local act, out = self.act, new()
  local op = act and fused[act] or -1
  local st = C.cfx_dense(x, self.weight, self.bias, op, out)
  if st ~= 0 then settle(st, C.cfx_dense, x, self.weight, self.bias, op, out) end
  if act and op == -1 then return apply(act, out) end
  return out
end

function Dense:describe()
  local w = self.weight
  return ("Dense(%d, %d%s%s)"):format(tonumber(w._shape[1]), tonumber(w._shape[0]), act_text(self.act),
    self.bias and "" or ", {bias = false}")
end

-- ---- containers ---------------------------------------------------------------------------------------------

-- What stands in a container: a layer, anything that can be called, or the name of an activation.
local function check_member(fname, i, x)
  if x == nil then check.arg(fname, tostring(i), "a layer, a function or the name of an activation", "nil") end
  return activations.check(fname, tostring(i), x)
end

---@class conflux.Chain: conflux.Module
local Chain = layer "Chain"

--- Layers one after the other; functions and names of activations are layers, too.  `chain[i]` is the ith.
---@param ... any  layers, functions, or names of activations: "relu"
function Chain:init(...)
  local n = select("#", ...)
  for i = 1, n do
    self[i] = check_member("Chain", i, (select(i, ...))) or "identity"
  end
end

function Chain:forward(x)
  for i = 1, #self do
    local f = self[i]
    if type(f) ~= "string" then x = f(x) elseif f ~= "identity" then x = apply(f, x) end
  end
  return x
end

local CONNECTIONS = {
  ["+"] = function(a, b) return a + b end,
  ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end,
}

local function check_connection(fname, f)
  if type(f) ~= "function" and not CONNECTIONS[f] then
    check.arg(fname, "connection", "'+', '-', '*' or a function", check.describe(f))
  end
  return f
end

---@class conflux.SkipConnection: conflux.Module
local SkipConnection = layer "SkipConnection"

--- connection(layer(x), x), as in a residual network.
---@param f any                      a layer, a function, or the name of an activation
---@param connection string|function  "+", "-", "*", or a function of the two
function SkipConnection:init(f, connection)
  self[1] = check_member("SkipConnection", 1, f) or "identity"
  self.connection = check_connection("SkipConnection", connection)
end

local function run(f, x)
  if f == "identity" then return x end
  return apply(f, x)
end

function SkipConnection:forward(x)
  local connect = CONNECTIONS[self.connection] or self.connection
  return connect(run(self[1], x), x)
end

---@class conflux.Parallel: conflux.Module
local Parallel = layer "Parallel"

--- Layers side by side, on one input or each on its own; a name joins the results from the left, a function gets
-- them all.
---@param connection string|function  "+", "-", "*", or a function of all results
---@param ... any                      layers, functions, or names of activations
function Parallel:init(connection, ...)
  self.connection = check_connection("Parallel", connection)
  local n = select("#", ...)
  if n == 0 then check.fail("Parallel", "no layers") end
  for i = 1, n do self[i] = check_member("Parallel", i + 1, (select(i, ...))) or "identity" end
end

function Parallel:forward(...)
  local n, given = #self, select("#", ...)
  if given ~= 1 and given ~= n then
    check.fail("Parallel", "expected 1 input, or %d, one for each layer; got %d", n, given)
  end
  local results = {}
  for i = 1, n do
    results[i] = run(self[i], (select(given == 1 and 1 or i, ...)))
  end
  local connect = CONNECTIONS[self.connection]
  if not connect then return self.connection(unpack(results, 1, n)) end
  local y = results[1]
  for i = 2, n do y = connect(y, results[i]) end
  return y
end

-- ---- LayerNorm ----------------------------------------------------------------------------------------------

---@class conflux.LayerNorm: conflux.Module
---@field weight? conflux.Tensor
---@field bias? conflux.Tensor
local LayerNorm = layer "LayerNorm"

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
  if st ~= 0 then settle(st, C.cfx_layernorm, x, gamma, beta, eps, out) end
  return out
end

function LayerNorm:forward(x)
  if not is_tensor(x) then check.arg("LayerNorm", "x", "a tensor", x) end
  if self.weight then return normalise(x, self.weight, self.bias, self.eps) end
  local sizes, n = self.shape, #self.shape
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
  local sizes = self.weight and self.weight.shape or self.shape
  local text = #sizes == 1 and tostring(sizes[1]) or ("{%s}"):format(table.concat(sizes, ", "))
  return ("LayerNorm(%s%s)"):format(text, self.weight and "" or ", {affine = false}")
end

-- ---- Embedding, Dropout, Flatten ----------------------------------------------------------------------------

---@class conflux.Embedding: conflux.Module
---@field weight conflux.Tensor [n, size]
local Embedding = layer "Embedding"

--- A table of `n` vectors of `size` numbers: ids [..], from 0, become [.., size].  An id out of range is an error,
-- raised where a value that depends on it is read.
---@param n integer
---@param size integer
---@param o? {init: function?}  default: nn.init.normal
function Embedding:init(n, size, o)
  check.integer("Embedding", "n", n, 1)
  check.integer("Embedding", "size", size, 1)
  o = check.options("Embedding", o, {"init"})
  self.weight = check_made("Embedding", check_init("Embedding", o.init, init.normal)(n, size), {n, size})
end

function Embedding:forward(ids)
  return self.weight:index(1, ids)
end

function Embedding:describe()
  return ("Embedding(%d, %d)"):format(tonumber(self.weight._shape[0]), tonumber(self.weight._shape[1]))
end

---@class conflux.Dropout: conflux.Module
---@field p number
local Dropout = layer "Dropout"

--- In training mode, zeroes with probability `p` and scales the rest by 1 / (1 - p) (Srivastava et al. 2014).
---@param p number  in [0, 1)
function Dropout:init(p)
  if type(p) ~= "number" or not (p >= 0 and p < 1) then
    check.arg("Dropout", "p", "a probability in [0, 1)", check.describe(p))
  end
  self.p = p
end

function Dropout:forward(x)
  if not is_tensor(x) then check.arg("Dropout", "x", "a tensor", x) end
  if not self.training or self.p == 0 then return x end
  local out = new()
  local st = C.cfx_dropout(x, self.p, core.stream(), out)
  if st ~= 0 then settle(st, C.cfx_dropout, x, self.p, core.stream(), out) end
  return out
end

function Dropout:describe()
  return ("Dropout(%g)"):format(self.p)
end

---@class conflux.Flatten: conflux.Module
local Flatten = layer "Flatten"

--- [n, ...] becomes [n, the product of the rest].
function Flatten:forward(x)
  if not is_tensor(x) or x._ndim < 1 then check.arg("Flatten", "x", "a tensor of one dimension or more", x) end
  local columns = 1
  for d = 1, x._ndim - 1 do columns = columns * tonumber(x._shape[d]) end
  return x:reshape(tonumber(x._shape[0]), columns)
end

function Flatten.describe()
  return "Flatten()"
end

return {
  Dense = Dense, Chain = Chain, SkipConnection = SkipConnection, Parallel = Parallel, LayerNorm = LayerNorm,
  Embedding = Embedding, Dropout = Dropout, Flatten = Flatten,
}
