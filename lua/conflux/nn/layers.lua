--- Layers.
-- @module conflux.nn.layers
local core = require "conflux.core"
local check = require "conflux.check"
local activations = require "conflux.nn.activations"
local arguments = require "conflux.nn.arguments"
local fields = require "conflux.nn.fields"
local init = require "conflux.nn.initializers"
local module = require "conflux.nn.module"

local C = core.C
local settle, is_tensor, new = core.settle, core.is_tensor, core.new
local apply, fused = activations.apply, activations.fused
local rawget, select, tonumber, tostring, type = rawget, select, tonumber, tostring, type

local layer, settle_layer = module.layer, arguments.settle

-- ---- Dense --------------------------------------------------------------------------------------------------

---@class conflux.Dense: conflux.Module
---@field weight conflux.Tensor   [out, in]
---@field bias? conflux.Tensor    [out]
---@field act? string|function
local Dense = layer "Dense"
local check_dense = fields.declare(Dense, {
  weight = fields.tensor, bias = fields.tensor_or_nil, act = fields.activation,
})

--- act(x W' + bias), over the last dimension: [.., in] becomes [.., out].
---@param n_in integer
---@param n_out integer
---@param act? string|function     "relu", "tanh", ..., or a function
---@param o? {bias: boolean?, init: function?}  default: true, nn.init.glorot_uniform; the bias starts at zero
function Dense:init(n_in, n_out, act, o)
  check.integer("Dense", "in", n_in, 1)
  check.integer("Dense", "out", n_out, 1)
  act, o = arguments.act("Dense", {"bias", "init"}, act, o)
  local has_bias = arguments.flag("Dense", "bias", o.bias)
  self.weight = arguments.weight("Dense", o.init, init.glorot_uniform, {n_out, n_in})
  if has_bias then self.bias = init.zeros(n_out) end
  self.act = act
end

function Dense:forward(x)
  check_dense("forward", self)
  if not is_tensor(x) then check.wrong("Dense", "x", "a tensor", x) end
  local weight, bias, act, out = rawget(self, "weight"), rawget(self, "bias"), rawget(self, "act"), new()
  local op = act and fused[act] or -1
  local st = C.cfx_dense(x, weight, bias, op, out)
  if st ~= 0 then settle_layer(Dense, x, weight, st, C.cfx_dense, x, weight, bias, op, out) end
  if act and op == -1 then return apply(act, out) end
  return out
end

function Dense:describe()
  check_dense("describe", self)
  local w = self.weight
  if w._ndim ~= 2 then return "Dense" end
  return ("Dense(%d, %d%s%s)"):format(tonumber(w._shape[1]), tonumber(w._shape[0]), arguments.act_text(self.act),
    self.bias and "" or ", {bias = false}")
end

-- ---- containers ---------------------------------------------------------------------------------------------

-- A member of a container is a layer, anything that can be called, or the name of an activation.
local function check_member(fname, i, x)
  if x == nil then check.arg(fname, tostring(i), "a layer, a function or the name of an activation", "nil") end
  return activations.check(fname, tostring(i), x)
end

---@class conflux.Chain: conflux.Module
local Chain = layer "Chain"
local check_chain = fields.declare(Chain, {}, true)

--- Layers one after the other; functions and names of activations are layers, too.  `chain[i]` is the ith.
---@param ... any  layers, functions, or names of activations: "relu"
function Chain:init(...)
  local n, first = select("#", ...), (...)
  if n == 1 and type(first) == "table" and first[1] ~= nil and not activations.is(first) then
    check.fail("Chain", "argument '1': expected layers one by one, got a list: Chain(unpack(list))")
  end
  for i = 1, n do
    self[i] = check_member("Chain", i, (select(i, ...))) or "identity"
  end
end

function Chain:forward(x)
  check_chain("forward", self)
  for i = 1, #self do
    local f = self[i]
    if type(f) ~= "string" then x = f(x) elseif f ~= "identity" then x = apply(f, x) end
  end
  return x
end

-- The argument of `folded`, which nn.fold gives.
local function check_fold(class, fold)
  if type(fold) ~= "function" then check.wrong(class.__layer, "fold", "the function that nn.fold gives", fold) end
end

--- Folds the members, and each into the one before it where that can do both: nn.fold calls this.
---@param fold function
---@return conflux.Chain self
function Chain:folded(fold)
  check_chain("folded", self)
  check_fold(Chain, fold)
  local kept = {}
  for i = 1, #self do
    local member = fold(self[i])
    local joined = #kept > 0 and fold(kept[#kept], member) or nil
    kept[joined and #kept or #kept + 1] = joined or member
  end
  for i = 1, #self do self[i] = kept[i] end
  return self
end

-- Folds the members of a container, each for itself.
local function fold_members(class, check_self)
  return function(self, fold)
    check_self("folded", self)
    check_fold(class, fold)
    for i = 1, #self do self[i] = fold(self[i]) end
    return self
  end
end

local CONNECTIONS = {
  ["+"] = function(a, b) return a + b end,
  ["-"] = function(a, b) return a - b end,
  ["*"] = function(a, b) return a * b end,
}

local function is_connection(f)
  return type(f) == "function" or type(f) == "string" and CONNECTIONS[f] ~= nil
end

fields.connection = {is_connection, "'+', '-', '*' or a function"}

local function check_connection(fname, f)
  if not is_connection(f) then check.wrong(fname, "connection", fields.connection[2], f) end
  return f
end

---@class conflux.SkipConnection: conflux.Module
local SkipConnection = layer "SkipConnection"
local check_skipconnection = fields.declare(SkipConnection, {connection = fields.connection}, true)

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
  check_skipconnection("forward", self)
  if #self ~= 1 then check.fail("SkipConnection", "expected one layer in it, got %d", #self) end
  local connect = CONNECTIONS[self.connection] or self.connection
  return connect(run(self[1], x), x)
end

SkipConnection.folded = fold_members(SkipConnection, check_skipconnection)

---@class conflux.Parallel: conflux.Module
local Parallel = layer "Parallel"
local check_parallel = fields.declare(Parallel, {connection = fields.connection}, true)

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
  check_parallel("forward", self)
  local n, given = #self, select("#", ...)
  if n == 0 then check.fail("Parallel", "no layers") end
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

Parallel.folded = fold_members(Parallel, check_parallel)

-- ---- Embedding, Dropout, Flatten ----------------------------------------------------------------------------

---@class conflux.Embedding: conflux.Module
---@field weight conflux.Tensor [n, size]
local Embedding = layer "Embedding"
local check_embedding = fields.declare(Embedding, {weight = fields.tensor})

--- A table of `n` vectors of `size` numbers: ids [..], from 0, become [.., size].  An id out of range is an error,
-- raised where a value that depends on it is read.
---@param n integer
---@param size integer
---@param o? {init: function?}  default: nn.init.normal
function Embedding:init(n, size, o)
  check.integer("Embedding", "n", n, 1)
  check.integer("Embedding", "size", size, 1)
  o = check.options("Embedding", o, {"init"})
  self.weight = arguments.weight("Embedding", o.init, init.normal, {n, size})
end

function Embedding:forward(ids)
  check_embedding("forward", self)
  if not is_tensor(ids) then check.wrong("Embedding", "ids", "an integer tensor", ids) end
  local weight, out = rawget(self, "weight"), new()
  if weight._ndim ~= 2 then
    check.fail("Embedding", "field 'weight': expected [n, size], got %s", check.describe(weight))
  end
  core.at_line() -- an id out of range is found in the queue
  local st = C.cfx_index(weight, 0, ids, out)
  if st ~= 0 then settle_layer(Embedding, ids, weight, st, C.cfx_index, weight, 0, ids, out) end
  return out
end

function Embedding:describe()
  check_embedding("describe", self)
  if self.weight._ndim ~= 2 then return "Embedding" end
  return ("Embedding(%d, %d)"):format(tonumber(self.weight._shape[0]), tonumber(self.weight._shape[1]))
end

---@class conflux.Dropout: conflux.Module
---@field p number
local Dropout = layer "Dropout"

local function is_probability(p)
  return type(p) == "number" and p >= 0 and p < 1
end

fields.probability = {is_probability, "a probability in [0, 1)"}
local check_dropout = fields.declare(Dropout, {p = fields.probability})

--- In training mode, zeroes with probability `p` and scales the rest by 1 / (1 - p) (Srivastava et al. 2014).
---@param p number  in [0, 1)
function Dropout:init(p)
  if not is_probability(p) then check.wrong("Dropout", "p", fields.probability[2], p) end
  self.p = p
end

function Dropout:forward(x)
  check_dropout("forward", self)
  if not is_tensor(x) then check.wrong("Dropout", "x", "a tensor", x) end
  if not self.training or self.p == 0 then return x end
  local out = new()
  local st = C.cfx_dropout(x, self.p, core.stream(), out)
  if st ~= 0 then settle(st, C.cfx_dropout, x, self.p, core.stream(), out) end
  return out
end

function Dropout:describe()
  check_dropout("describe", self)
  return ("Dropout(%g)"):format(self.p)
end

---@class conflux.Flatten: conflux.Module
local Flatten = layer "Flatten"
local check_flatten = fields.declare(Flatten, {})

--- [n, ...] becomes [n, the product of the rest].
function Flatten:forward(x)
  check_flatten("forward", self)
  if not is_tensor(x) or x._ndim < 1 then check.wrong("Flatten", "x", "a tensor of one dimension or more", x) end
  local columns = 1
  for d = 1, x._ndim - 1 do columns = columns * tonumber(x._shape[d]) end
  return x:reshape(tonumber(x._shape[0]), columns)
end

function Flatten.describe()
  return "Flatten()"
end

return {
  Dense = Dense, Chain = Chain, SkipConnection = SkipConnection, Parallel = Parallel, Embedding = Embedding,
  Dropout = Dropout, Flatten = Flatten,
}
