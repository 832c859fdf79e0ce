--- Metrics: tensors of one number, on the device of what they measure, so that nothing waits before it is read.
-- @module conflux.metrics
local core = require "conflux.core"
local check = require "conflux.check"

local release = core.C.cfx_release

local function check_pair(fname, logits, ids)
  check.tensor(fname, "logits", logits)
  check.tensor(fname, "ids", ids)
  local fits = logits._ndim >= 1 and ids._ndim == logits._ndim - 1 and ids._dtype < core.dtype.float16
  for d = 0, fits and ids._ndim - 1 or -1 do fits = fits and ids._shape[d] == logits._shape[d] end
  if not fits then
    check.arg(fname, "ids", ("ids for %s"):format(check.describe(logits)), check.describe(ids))
  end
end

-- The share of true ones; takes `hits`.
local function share(hits)
  local result = hits:mean()
  release(hits)
  return result
end

--- The share of rows whose largest logit is that of their id: a float32 tensor of one number.
---@param logits conflux.Tensor  [.., classes]
---@param ids conflux.Tensor     [..], integers from 0
---@return conflux.Tensor
local function accuracy(logits, ids)
  check_pair("metrics.accuracy", logits, ids)
  local best = logits:argmax(-1)
  local hits = best:eq(ids)
  release(best)
  return share(hits)
end

--- The share of rows whose id is among their k largest logits: a float32 tensor of one number.
---@param logits conflux.Tensor  [.., classes]
---@param ids conflux.Tensor     [..], integers from 0
---@param k integer              at most the number of classes
---@return conflux.Tensor
local function topk(logits, ids, k)
  check_pair("metrics.topk", logits, ids)
  check.integer("metrics.topk", "k", k, 1, #logits > 0 and tonumber(logits._shape[logits._ndim - 1]) or nil)
  local values, best = logits:topk(k)
  local wanted = ids:unsqueeze(-1)
  local same = best:eq(wanted)
  local hits = same:any(-1)
  release(values)
  release(best)
  release(wanted)
  release(same)
  return share(hits)
end

return {accuracy = accuracy, topk = topk}
