--- Optimisers: rules, schedules, and updates in place.
--
-- An optimiser is a rule and its numbers; `opt:setup(model)` makes a state: a plain table with the update count
-- `step` and, in the model's layout, one or two trees of zeros (`m`, `v`), so that a state can be
-- replicated, saved and synchronised as any tree.  The rule itself is shared: it sits behind the state's
-- metatable.  Formulas and defaults are PyTorch's; Lion follows Chen et al., "Symbolic Discovery of Optimization
-- Algorithms" (2023).
-- @module conflux.optim
local core = require "conflux.core"
local check = require "conflux.check"
local plans = require "conflux.plan"
local sealed = require "conflux.sealed"
local schedules = require "conflux.schedules"
local bit = require "bit"

local C, ffi = core.C, core.ffi
local settle = core.settle
local band = bit.band
local next, rawequal, rawget, setmetatable, tostring, type = next, rawequal, rawget, setmetatable, tostring, type
local each = core.each

local FROZEN = C.CFX_FLAG_FROZEN
local rule_t = ffi.typeof "cfx_rule"
local pointers_t, doubles_t, int64s_t = ffi.typeof "cfx_tensor *[?]", ffi.typeof "double[?]", ffi.typeof "int64_t[?]"

local weak = {__mode = "v"}
local bindings = setmetatable({}, {__mode = "k"}) -- state -> what an update of it hands to C

-- ---- optimisers ---------------------------------------------------------------------------------------------

--- A rule and its numbers, which states share.
---@class conflux.Optimiser
---@field name string
---@field lr number|fun(step: integer): number
local Optimiser

--- An optimiser's knowledge of a model: a plain table, which can be replicated, saved and synchronised.
---@class conflux.State
---@field rule string        the rule that it is made for, "Adam": no other takes it
---@field step integer       updates made so far
---@field lr? number|function in place of the rule's, after optim.adjust
---@field m? any         a tree like the model: the first moment, a velocity or a sum
---@field v? any        and the second moment
---@field missed table<string, integer>  by path, the updates that a parameter has missed because it was frozen
---@field decay? table<string, number>  factors of the rule's decay by path, from setup's f
---@field scale? table<string, number>  factors of the rate by path

-- facts: the optimiser's fields, which updates read; opt: what tells of them.
local function state_class(opt, facts)
  return {optimiser = facts, __fixed = {rule = true}, __tostring = function(self)
    return ("state of %s after %s updates"):format(tostring(opt), tostring(rawget(self, "step")))
  end}
end

-- The fields of the optimiser that made a state, or nil.
local function optimiser_of(state)
  local mt = type(state) == "table" and getmetatable(state)
  return type(mt) == "table" and mt.optimiser or nil
end

local function is_rate(lr)
  return type(lr) == "function" or type(lr) == "number" and lr >= 0 and lr < math.huge
end

local function check_rate(fname, name, lr)
  if not is_rate(lr) then check.wrong(fname, name, "a rate of 0 or more, or a function of the update count", lr) end
  return lr
end

-- The rate may be changed for all states that share the rule; the rest of it has been handed to C.
Optimiser = sealed.class("optim", "optimiser", {lr = function(lr) return check_rate("optim", "lr", lr) end})

local function number_text(v)
  return type(v) == "number" and ("%.12g"):format(v) or "schedule"
end

function Optimiser:__tostring()
  local parts = {}
  if self.rule then
    parts[1] = number_text(self.lr)
    for _, key in ipairs {"rho", "decay", "eps"} do
      if self[key] and self[key] ~= 0 then parts[#parts + 1] = ("%s = %s"):format(key, number_text(self[key])) end
    end
    if self.betas then
      parts[#parts + 1] = ("betas = {%s, %s}"):format(number_text(self.betas[1]), number_text(self.betas[2]))
    end
  elseif self.limit then
    parts[1] = number_text(self.limit)
  end
  if self.members then
    for i = 1, #self.members do parts[i] = tostring(self.members[i]) end
  end
  return ("%s(%s)"):format(self.name, table.concat(parts, ", "))
end

local function new(fields)
  local opt = sealed.new(Optimiser, fields)
  fields.states = state_class(opt, fields)
  return opt
end

-- ---- rules --------------------------------------------------------------------------------------------------

local function check_range(fname, name, v, below)
  if type(v) ~= "number" or not (v >= 0 and v < below) then
    check.arg(fname, name, below == math.huge and "a number of 0 or more" or ("a number in [0, %g)"):format(below),
      check.describe(v))
  end
  return v
end

---@alias conflux.Rate number|fun(count: integer): number

-- Each rule: its defaults, in PyTorch's values.  `place` names the second positional argument, if it has one.
local RULES = {
  --- Gradient descent: p = p - lr g.
  ---@param lr? conflux.Rate       default: 0.1
  ---@param o? {decay: number?}    default: 0, added to the gradient as decay p
  ---@return conflux.Optimiser
  Descent = {rule = "descent", lr = 0.1},

  --- Gradient descent with momentum (Polyak 1964): v = rho v + g, p = p - lr v.
  ---@param lr? conflux.Rate       default: 0.01
  ---@param rho? number            in [0, 1); default: 0.9
  ---@param o? {decay: number?}    default: 0, added to the gradient as decay p
  ---@return conflux.Optimiser
  Momentum = {rule = "momentum", lr = 0.01, place = "rho", rho = 0.9},

  --- Momentum that looks ahead (Nesterov 1983, as in Sutskever et al. 2013): p = p - lr (g + rho v).
  ---@param lr? conflux.Rate       default: 0.01
  ---@param rho? number            in [0, 1); default: 0.9
  ---@param o? {decay: number?}    default: 0, added to the gradient as decay p
  ---@return conflux.Optimiser
  Nesterov = {rule = "nesterov", lr = 0.01, place = "rho", rho = 0.9},

  --- The gradient over the root of its mean square (Tieleman and Hinton 2012).
  ---@param lr? conflux.Rate       default: 0.01
  ---@param rho? number            of the mean, in [0, 1); default: 0.99
  ---@param o? {decay: number?, eps: number?}  default: 0, added to the gradient as decay p; 1e-8
  ---@return conflux.Optimiser
  RMSProp = {rule = "rmsprop", lr = 0.01, place = "rho", rho = 0.99, eps = 1e-8},

  --- Adaptive moments (Kingma and Ba 2015), with both corrected for their start at zero.
  ---@param lr? conflux.Rate       default: 1e-3
  ---@param o? {betas: number[]?, eps: number?, decay: number?}  default: {0.9, 0.999}; 1e-8; 0, added to the gradient
  ---@return conflux.Optimiser
  Adam = {rule = "adam", lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8},

  --- Adam with decoupled decay: p = p - lr decay p, beside the gradient's step (Loshchilov and Hutter 2019).
  ---@param lr? conflux.Rate       default: 1e-3
  ---@param o? {betas: number[]?, eps: number?, decay: number?}  default: {0.9, 0.999}, 1e-8, 0.01
  ---@return conflux.Optimiser
  AdamW = {rule = "adamw", lr = 1e-3, betas = {0.9, 0.999}, eps = 1e-8, decay = 0.01},

  --- The gradient over the root of the sum of its squares (Duchi et al. 2011).
  ---@param lr? conflux.Rate       default: 0.01
  ---@param o? {decay: number?, eps: number?}  default: 0, added to the gradient as decay p; 1e-10
  ---@return conflux.Optimiser
  AdaGrad = {rule = "adagrad", lr = 0.01, eps = 1e-10},

  --- Steps in the units of the parameters (Zeiler 2012).
  ---@param lr? conflux.Rate       default: 1
  ---@param rho? number            of both means, in [0, 1); default: 0.9
  ---@param o? {decay: number?, eps: number?}  default: 0, added to the gradient as decay p; 1e-6
  ---@return conflux.Optimiser
  AdaDelta = {rule = "adadelta", lr = 1, place = "rho", rho = 0.9, eps = 1e-6},

  --- Adam with Nesterov's momentum (Dozat 2016), in PyTorch's form.
  ---@param lr? conflux.Rate       default: 2e-3
  ---@param o? {betas: number[]?, eps: number?, decay: number?}  default: {0.9, 0.999}; 1e-8; 0, added to the gradient
  ---@return conflux.Optimiser
  NAdam = {rule = "nadam", lr = 2e-3, betas = {0.9, 0.999}, eps = 1e-8},

  --- The sign of a momentum, with decoupled decay (Chen et al. 2023).
  ---@param lr? conflux.Rate       default: 1e-4
  ---@param o? {betas: number[]?, decay: number?}  default: {0.9, 0.99}, 0
  ---@return conflux.Optimiser
  Lion = {rule = "lion", lr = 1e-4, betas = {0.9, 0.99}},
}

local function known_options(defaults)
  local known = {"decay"}
  for _, key in ipairs {"rho", "betas", "eps"} do
    if defaults[key] then known[#known + 1] = key end
  end
  return known
end

local function check_betas(name, betas)
  if type(betas) ~= "table" or #betas ~= 2 then check.arg(name, "betas", "a list of two numbers", betas) end
  return {check_range(name, "betas[1]", betas[1], 1), check_range(name, "betas[2]", betas[2], 1)}
end

-- Rule(lr?, rho?, {decay =, betas =, eps =}?)
local function make_rule(name, lr, ...)
  local defaults = RULES[name]
  local o, rho
  if type(lr) == "table" then
    o, lr = lr, nil
  elseif defaults.place and type((...)) ~= "table" then
    rho, o = ...
  else
    o = ...
  end
  o = check.options(name, o, known_options(defaults))
  local opt = {name = name, rule = defaults.rule, lr = check_rate(name, "lr", lr == nil and defaults.lr or lr)}
  opt.decay = check_range(name, "decay", o.decay or defaults.decay or 0, math.huge)
  if defaults.rho then
    if rho == nil then rho = o.rho end
    opt.rho = check_range(name, "rho", rho == nil and defaults.rho or rho, 1)
  end
  if defaults.betas then opt.betas = check_betas(name, o.betas or defaults.betas) end
  if defaults.eps then opt.eps = check_range(name, "eps", o.eps or defaults.eps, math.huge) end
  return new(opt)
end

local optim = {}

for name in each, RULES do
  optim[name] = function(lr, ...) return make_rule(name, lr, ...) end
end

local function check_limit(fname, limit)
  if type(limit) ~= "number" or limit ~= limit or limit <= 0 then
    check.arg(fname, "limit", "a positive number", limit)
  end
  return limit
end

--- In a Chain, before a rule: scales all gradients together so that their 2-norm is at most `limit` (Pascanu et al.
-- 2013).
---@param limit number
---@return conflux.Optimiser
function optim.ClipNorm(limit)
  return new {name = "ClipNorm", limit = check_limit("ClipNorm", limit)}
end

--- In a Chain, before a rule: cuts each element of the gradients to [-limit, limit].
---@param limit number
---@return conflux.Optimiser
function optim.ClipValue(limit)
  return new {name = "ClipValue", limit = check_limit("ClipValue", limit)}
end

local function check_optimiser(fname, name, expected, v)
  if type(v) ~= "table" or getmetatable(v) ~= Optimiser then check.wrong(fname, name, expected, v) end
end

--- One rule behind clipping: Chain(ClipNorm(5), ClipValue(1), Adam(1e-3)).  Both limits may be given, each once.
---@param ... conflux.Optimiser  ClipNorm, ClipValue, and last a rule
---@return conflux.Optimiser
function optim.Chain(...)
  local members = {...}
  local opt = {name = "Chain", members = members}
  for i = 1, select("#", ...) do
    local m = members[i]
    check_optimiser("Chain", tostring(i), "ClipNorm, ClipValue or a rule such as Adam", m)
    if m.members then check.fail("Chain", "argument '%d': a Chain cannot lie in another", i) end
    if opt.inner then check.fail("Chain", "%s comes after the rule %s; the rule comes last", m.name, opt.inner.name) end
    if m.rule then
      opt.inner = sealed.facts(m)
    else
      if opt[m.name] then check.fail("Chain", "%s is given twice", m.name) end
      opt[m.name] = m.limit
      if m.name == "ClipNorm" and opt.ClipValue then
        check.fail("Chain", "ClipNorm comes before ClipValue: the norm is that of the gradients as they are")
      end
    end
  end
  if not opt.inner then check.fail("Chain", "no rule: end the chain with one, such as Adam(1e-3)") end
  opt.lr = opt.inner.lr
  return new(opt)
end

-- ---- the fields of a state -----------------------------------------------------------------------------------

local function is_count(v)
  return type(v) == "number" and v % 1 == 0 and v >= 0
end

-- By path, for those parameters that it names.
local function check_by_path(state, name, fits, expected)
  local by_path = state[name]
  if type(by_path) == "nil" then return end
  local bad = type(by_path) ~= "table"
  for _, v in each, bad and {} or by_path do bad = bad or not fits(v) end
  if bad then check.fail("update", "the state's '%s' is %s, expected %s", name, check.describe(by_path), expected) end
end

local function is_factor(v)
  return type(v) == "number" and v >= 0 and v < math.huge
end

-- A state is a plain table, which a script, a file or another replica may have filled.
local function check_fields(state, opt)
  local name = (opt.inner or opt).name
  if state.rule ~= name then
    check.fail("update", "the state is one of %s, and %s cannot take it: call setup", type(state.rule) == "string"
      and state.rule or check.describe(state.rule), name)
  end
  if not is_count(state.step) then
    check.fail("update", "the state's 'step' is %s, expected a count of updates", check.describe(state.step))
  end
  if type(state.lr) ~= "nil" and not is_rate(state.lr) then
    check.fail("update", "the state's 'lr' is %s, expected a rate or a schedule", check.describe(state.lr))
  end
  if type(state.missed) ~= "nil" and type(state.missed) ~= "table" then
    check.fail("update", "the state's 'missed' is %s, expected counts by path", check.describe(state.missed))
  end
end

-- ---- the model of a state -----------------------------------------------------------------------------------

-- A state is that of the model it was set up for, or of the first one that is updated with it: remembered weakly, by
-- its parameters.
local function owner_of(fname, plan, model)
  local handles, paths = setmetatable({}, weak), {}
  for i = 1, plan.n do
    local path = plan.paths[i]
    if paths[path] then
      check.fail(fname, "two parameters have the path %s: rename a key that contains a dot", check.quote(path))
    end
    handles[path], paths[path] = plan.tensors[i], true
  end
  return {model = setmetatable({model}, weak), handles = handles, paths = paths}
end

local function check_owner(before, plan, model)
  local owner = before and before.owner
  if not owner then return end
  for i = 1, plan.n do
    local path = plan.paths[i]
    if owner.paths[path] and not rawequal(owner.handles[path], plan.tensors[i]) then
      if rawequal(owner.model[1], model) then
        check.fail("update", "parameter '%s' was replaced: call setup again", path)
      end
      check.fail("update", "this state belongs to another model: call setup again")
    end
  end
end

-- ---- setup --------------------------------------------------------------------------------------------------

-- The factors that f(path, t) gives, by path; nil where all are 1.
local function factors(plan, f)
  if f == nil then return nil, nil end
  if type(f) ~= "function" then check.arg("setup", "f", "a function of path and tensor", f) end
  local decay, scale
  for i = 1, plan.n do
    local path = plan.paths[i]
    local o = check.options("setup", f(path, plan.tensors[i]), {"decay", "scale"})
    if o.decay ~= nil then
      decay = decay or {}
      decay[path] = check_range("setup", "decay of '" .. path .. "'", o.decay, math.huge)
    end
    if o.scale ~= nil then
      scale = scale or {}
      scale[path] = check_range("setup", "scale of '" .. path .. "'", o.scale, math.huge)
    end
  end
  return decay, scale
end

--- Makes the state of this optimiser for a model: zeros in the model's layout, and the update count 0.
---@param model any  a module, or any nested table with float tensors
---@param f? fun(path: string, t: conflux.Tensor): {decay: number?, scale: number?}?  factors of a parameter's own
---@return conflux.State
function Optimiser:setup(model, f)
  check_optimiser("setup", "self", "an optimiser, as in opt:setup(model) with a colon", self)
  local rule = self.inner or self
  if not rule.rule then check.fail("setup", "%s is no rule: put it into a Chain with one", self.name) end
  local plan = plans.of("setup", "model", model)
  plan:check_live("setup", "model")
  local state = setmetatable({rule = rule.name, step = 0, missed = {}}, self.states)
  state.decay, state.scale = factors(plan, f)
  local count = C.cfx_rule_states(rule.rule)
  if count < 0 then check.fail("setup", "the C library has no rule '%s'", rule.rule) end
  if count >= 1 then state.m = plan:zeros() end
  if count >= 2 then state.v = plan:zeros() end
  bindings[state] = {owner = owner_of("setup", plan, model)}
  return state
end

-- ---- update -------------------------------------------------------------------------------------------------

local function fill_rule(opt, clip)
  local rule, out = opt.inner or opt, rule_t()
  out.size = ffi.sizeof(rule_t)
  out.name = rule.rule -- a literal of this module's: anchored
  out.decay, out.eps = rule.decay, rule.eps or 0
  if rule.betas then
    out.beta1, out.beta2 = rule.betas[1], rule.betas[2]
  elseif rule.rho then
    out.beta1 = rule.rho
  end
  out.clip_norm, out.clip_value = clip.ClipNorm or 0, clip.ClipValue or 0
  return out
end

local function factor_array(plan, by_path)
  if not by_path then return nil end
  local array = doubles_t(plan.trainable)
  for k = 1, plan.trainable do
    local v = by_path[plan.paths[plan.numbers[k]]]
    array[k - 1] = v == nil and 1 or v
  end
  return array
end

-- The handles of a state's tree, as it is now.  One that has no place for a parameter was made for another model, or
-- before a change.
local function gather_state(plan, tree, which)
  local handles, missing = plan:gather(tree)
  if missing then
    check.fail("update", "the state has no place ('%s') for parameter '%s': call setup again", which,
      plan.paths[missing])
  end
  return handles
end

-- Gathers the tensors that a state's trees hold now: their handles, and for C the addresses of the trainable
-- parameters' ones.
local function gather_states(state, plan, count)
  local found = {array = pointers_t(math.max(count, 1) * plan.trainable)}
  if count >= 1 then
    found.m = gather_state(plan, state.m, "m")
    plan:fill(found.array, 0, found.m)
  end
  if count >= 2 then
    found.v = gather_state(plan, state.v, "v")
    plan:fill(found.array, plan.trainable, found.v)
  end
  return found
end

local function check_state(plan, handles)
  for k = 1, plan.trainable do
    local i = plan.numbers[k]
    local s, x = handles[i], plan.tensors[i]
    local same = s._ndim == x._ndim
    for d = 0, x._ndim - 1 do same = same and s._shape[d] == x._shape[d] end
    if not same then
      check.fail("update", "parameter '%s' is %s, its place in the state is not: call setup again", plan.paths[i],
        check.describe(x))
    end
  end
end

local function bind(state, opt, plan, model)
  check_owner(bindings[state], plan, model)
  check_by_path(state, "decay", is_factor, "factors by path")
  check_by_path(state, "scale", is_factor, "factors by path")
  local count = C.cfx_rule_states((opt.inner or opt).rule)
  local binding = {
    plan = plan, owner = owner_of("update", plan, model), m = state.m, v = state.v, rule = fill_rule(opt, opt),
    synchronized = core.synchronized, count = count, states = gather_states(state, plan, count),
    scale = factor_array(plan, state.scale), decay = factor_array(plan, state.decay),
  }
  if count >= 1 then check_state(plan, binding.states.m) end
  if count >= 2 then check_state(plan, binding.states.v) end
  bindings[state] = binding
  return binding
end

-- The updates that each trainable parameter has missed, for C; nil where none has.
local function missed_array(state, plan)
  local missed, array = state.missed, nil
  if not missed or next(missed) == nil then return nil end
  for i = 1, plan.n do
    local count = missed[plan.paths[i]]
    if type(count) ~= "nil" and not is_count(count) then
      check.fail("update", "the state's 'missed' has %s for '%s', expected a count", check.describe(count),
        plan.paths[i])
    end
  end
  for k = 1, plan.trainable do
    local count = missed[plan.paths[plan.numbers[k]]]
    if count then
      array = array or int64s_t(plan.trainable)
      array[k - 1] = count
    end
  end
  return array
end

-- An update has been made: frozen parameters have missed it.
local function count_missed(state, plan)
  if plan.trainable == plan.n then return end
  local missed = state.missed or {}
  for i = 1, plan.n do
    if band(plan.flags[i], FROZEN) ~= 0 then missed[plan.paths[i]] = (missed[plan.paths[i]] or 0) + 1 end
  end
  state.missed = missed
end

local function binding_of(state, opt, model)
  local plan = plans.of("update", "model", model)
  local binding = bindings[state]
  if binding and binding.plan == plan and rawequal(binding.m, state.m) and rawequal(binding.v, state.v)
    and binding.synchronized == core.synchronized then
    return binding
  end
  return bind(state, opt, plan, model)
end

local function rate_at(lr, step)
  if type(lr) == "number" then return lr end
  local rate = lr(step)
  if type(rate) ~= "number" or rate ~= rate then
    check.fail("update", "the schedule gave %s for update %d; expected a number", check.describe(rate), step)
  end
  return rate
end

-- The handles of the state's trees and their addresses: as they were found last, or else anew.
local function states_of(state, binding, room)
  local plan, count, states = binding.plan, binding.count, binding.states
  if (count < 1 or plan:holds(state.m, states.m, room)) and (count < 2 or plan:holds(state.v, states.v, room)) then
    return states
  end
  states = gather_states(state, plan, count)
  binding.states = states
  return states
end

-- Makes one update, or returns why C did not.  The schedule is the user's code: what C gets is put together after it,
-- belongs to this call alone or never changes, and for a second try is put together anew.
local function make_update(state, opt, model, gradient)
  check_fields(state, opt)
  local step = state.step + 1
  local rate = rate_at(state.lr or opt.lr, step)
  local binding = binding_of(state, opt, model)
  local plan, rule = binding.plan, rule_t(binding.rule)
  local missed = missed_array(state, plan)
  rule.rate = rate
  core.at_line(2)
  local room = plan:room()
  local grads, kept = plan:take_gradient("update", "gradient", gradient, room)
  local states = states_of(state, binding, room)
  if state.step + 1 ~= step then
    check.fail("update", "the state was updated while its schedule ran for update %d", step)
  end
  local st = C.cfx_optim_update(rule, step, plan.trainable, plan.watched, grads, states.array, binding.scale,
    binding.decay, missed)
  if st == 0 then
    state.step = step
    count_missed(state, plan)
  end
  return st, kept, states -- which live until C is done, as they are used here
end

--- One update of the model's parameters and of the state, in place, by a gradient of the model's structure.
-- Returns the state and the model.
--
-- A schedule may compute, read, and update other states; an update of its own state makes this one an error.
---@param state conflux.State  made by setup for this model
---@param model any
---@param gradient any         what withgradient returned
---@return conflux.State state, any model
function optim.update(state, model, gradient)
  local opt = optimiser_of(state)
  if not opt then check.arg("update", "state", "a state made by setup", check.describe(state)) end
  if opt.before then -- cf.dist.Optimizer's, which joins it with other ranks'; it may want more of them first
    gradient = opt.before(state, model, gradient)
    if gradient == nil then return state, model end
  end
  local st = make_update(state, opt, model, gradient)
  if st ~= 0 then settle(st, make_update, state, opt, model, gradient) end
  return state, model
end

--- Changes the rate of a state, a number or a function of the update count.  Returns the state.
---@param state conflux.State
---@param o {lr: conflux.Rate}
---@return conflux.State
function optim.adjust(state, o)
  if not optimiser_of(state) then check.arg("adjust", "state", "a state made by setup", check.describe(state)) end
  o = check.options("adjust", o, {"lr"})
  if o.lr == nil then check.fail("adjust", "nothing to adjust: known is lr") end
  state.lr = check_rate("adjust", "lr", o.lr)
  return state
end

for name, schedule in each, schedules do
  optim[name] = schedule
end

return optim
