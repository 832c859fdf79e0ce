-- Convolutions by the functions of the C core, for specs.
local ffi = require "ffi"
local core = require "conflux.core"
local cf = require "conflux"

local C = core.C
local convolutions = {}

local function act_of(o) return o.act and core.op[o.act] or -1 end
local function window_of(o)
  local stride, pad, dilation = o.stride or {1, 1}, o.pad or {0, 0, 0, 0}, o.dilation or {1, 1}
  return ffi.new("cfx_window", {stride = stride, pad = pad, dilation = dilation})
end

--- o.stride, pad (top, bottom, left, right), dilation, groups, bias, residual, act.
function convolutions.conv(x, w, o)
  local out = core.new()
  local st = C.cfx_conv(x, w, o.bias, o.residual, act_of(o), window_of(o), o.groups or 1, out)
  if st ~= 0 then return core.settle(st) end -- of the caller's line
  return out
end

--- The same without residual; and o.output_pad.
function convolutions.transpose(x, w, o)
  local out, output_pad = core.new(), ffi.new("int64_t[2]", o.output_pad or {0, 0})
  local st = C.cfx_conv_transpose(x, w, o.bias, act_of(o), window_of(o), output_pad, o.groups or 1, out)
  if st ~= 0 then return core.settle(st) end -- of the caller's line
  return out
end

--- Why the devices at hand have no convolutions, or nil: a plugin for GPUs may be built without cuDNN.
function convolutions.missing()
  local one = cf.ones(1, 1, 1, 1)
  local ok, message = pcall(function() return convolutions.conv(one, one, {}):item() end)
  local text = "convolutions on GPUs need cuDNN, which this build has none of"
  return not ok and message:find(text, 1, true) and text or nil
end

return convolutions
