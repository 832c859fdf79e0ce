-- What is done with images, by the functions of the C core, for specs.
local ffi = require "ffi"
local core = require "conflux.core"

local C = core.C
local images = {}

local function finish(st, out)
  if st ~= 0 then return core.settle(st) end -- of the caller's line
  return out
end

--- o.gamma, beta, mean, var, count, residual, act, eps, momentum, training (true unless told).
function images.batchnorm(x, o)
  local out = core.new()
  local state = ffi.new("cfx_batch_state", {
    gamma = o.gamma, beta = o.beta, mean = o.mean, var = o.var, count = o.count,
  })
  return finish(C.cfx_batchnorm(x, state, o.residual, o.act and core.op[o.act] or -1, o.eps or 1e-5, o.momentum or 0.1,
    o.training == false and 0 or 1, out), out)
end

--- o.kernel, stride (the kernel unless told), pad (top, bottom, left, right), dilation.
local function window_of(o)
  return ffi.new("cfx_window", {
    kernel = o.kernel, stride = o.stride or o.kernel, pad = o.pad or {0, 0, 0, 0}, dilation = o.dilation or {1, 1},
  })
end

function images.maxpool(x, o)
  local out = core.new()
  return finish(C.cfx_maxpool(x, window_of(o), out), out)
end

--- o.count_pad besides.
function images.meanpool(x, o)
  local out = core.new()
  return finish(C.cfx_meanpool(x, window_of(o), o.count_pad and 1 or 0, out), out)
end

function images.adaptive_meanpool(x, height, width)
  local out = core.new()
  return finish(C.cfx_adaptive_meanpool(x, height, width, out), out)
end

function images.groupnorm(x, gamma, beta, groups)
  local out = core.new()
  return finish(C.cfx_groupnorm(x, gamma, beta, groups, 1e-5, out), out)
end

--- o.scale (two numbers), bilinear, align_corners.
function images.upsample(x, height, width, o)
  local out = core.new()
  local scale = ffi.new("double[2]", o.scale or {0, 0})
  return finish(C.cfx_upsample(x, height, width, scale, o.bilinear and 1 or 0, o.align_corners and 1 or 0, out), out)
end

function images.normalise(x, scale, shift)
  local out = core.new()
  return finish(C.cfx_normalise(x, scale, shift, out), out)
end

return images
