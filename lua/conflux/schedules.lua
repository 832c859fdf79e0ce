--- Schedules: learning rates as functions of the update count.
--
-- The count is that of the update about to be made, from 1: the first update uses schedule(1).  In PyTorch, whose
-- values these are, it is the rate after count - 1 calls of `scheduler.step()`.
-- @module conflux.schedules
local check = require "conflux.check"

local cos, floor, min, pi = math.cos, math.floor, math.min, math.pi

local schedules = {}

--- Always `rate`.
---@param rate number
---@return fun(count: integer): number
function schedules.constant(rate)
  check.number("constant", "rate", rate)
  return function() return rate end
end

--- `rate`, multiplied by `factor` after every `every` updates.
---@param rate number
---@param every integer
---@param factor? number  default: 0.1
---@return fun(count: integer): number
function schedules.step(rate, every, factor)
  check.number("step", "rate", rate)
  check.integer("step", "every", every, 1)
  factor = check.number("step", "factor", factor or 0.1)
  return function(count) return rate * factor ^ floor((count - 1) / every) end
end

--- `rate`, multiplied by `factor` after every update.
---@param rate number
---@param factor number
---@return fun(count: integer): number
function schedules.exponential(rate, factor)
  check.number("exponential", "rate", rate)
  check.number("exponential", "factor", factor)
  return function(count) return rate * factor ^ (count - 1) end
end

--- Half a cosine from `peak` down to `final` over `steps` updates, then `final` (Loshchilov and Hutter 2017,
-- without restarts).
---@param peak number
---@param steps integer
---@param final? number  default: 0
---@return fun(count: integer): number
function schedules.cosine(peak, steps, final)
  check.number("cosine", "peak", peak)
  check.integer("cosine", "steps", steps, 1)
  final = check.number("cosine", "final", final or 0)
  return function(count)
    return final + (peak - final) * (1 + cos(pi * min(count - 1, steps) / steps)) / 2
  end
end

local function anneal(from, to, share)
  return to + (from - to) / 2 * (cos(pi * share) + 1)
end

--- One cycle over `steps` updates: up from peak / div to `peak` in the first `start` of them, then down to
-- peak / div / final_div, both as half cosines (Smith and Topin 2018; PyTorch's OneCycleLR).
---@param peak number
---@param steps integer
---@param o? {start: number?, div: number?, final_div: number?}  default: 0.3, 25, 1e4
---@return fun(count: integer): number
function schedules.onecycle(peak, steps, o)
  check.number("onecycle", "peak", peak)
  check.integer("onecycle", "steps", steps, 1)
  o = check.options("onecycle", o, {"start", "div", "final_div"})
  local low = peak / check.number("onecycle", "div", o.div or 25)
  local final = low / check.number("onecycle", "final_div", o.final_div or 1e4)
  local top, last = check.number("onecycle", "start", o.start or 0.3) * steps - 1, steps - 1
  return function(count)
    local at = min(count - 1, last)
    if at <= top and top > 0 then return anneal(low, peak, at / top) end
    if last <= top then return peak end
    return anneal(peak, final, (at - top) / (last - top))
  end
end

--- Rises in a straight line over `steps` updates, from 1/steps of it to the first rate of `after`; then `after`
-- takes over, counting from 1.
---@param steps integer
---@param after number|fun(count: integer): number
---@return fun(count: integer): number
function schedules.warmup(steps, after)
  check.integer("warmup", "steps", steps, 0)
  if type(after) == "number" then after = schedules.constant(after) end
  if type(after) ~= "function" then check.arg("warmup", "after", "a rate or a schedule", after) end
  return function(count)
    if count <= steps then return after(1) * count / steps end
    return after(count - steps)
  end
end

return schedules
