--- How fast pictures become batches.
--
--     build/bin/conflux scripts/bench/loader.lua [--quick]
--
-- Pictures of 500 x 375 pixels and some 100 KB are decoded, cut, resized and normalised by one thread of a DataLoader:
-- as for training (a random resized crop of 224, flipped at random, float32) and as for evaluation (the shorter side to
-- 256, the middle 224).  Beside it, in the same run, the same files are read and decoded whole and nothing else, on one
-- thread (floor_decode.c).  The figures are pictures a second, the best of several rounds, which take turns; and the
-- loader's share of bare decoding, loader_train_of_decode and loader_eval_of_decode.  More than 1: what a crop does not
-- need is not decoded, and that saves more than the rest costs.
local ffi = require "ffi"

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()
local cf = require "conflux"

ffi.cdef "double conflux_floor_decode(int32_t n, const char *const *paths);"

local PICTURES, ROUNDS = options.quick and 8 or 96, options.quick and 2 or 15

cf.devices "cpu"
cf.seed(1)

-- ---- files --------------------------------------------------------------------------------------------------

local folder = os.tmpname()
os.remove(folder)
assert(os.execute(("mkdir -p %s/all"):format(folder)) == 0)

-- Slopes with noise of a few pixels' size, as photographs have it.
local function picture()
  local fine, coarse = cf.rand(375, 500, 3) * 70, cf.rand(75, 100, 3) * 110
  local rows, columns = (cf.arange(0, 374) / 5):floor():to "int64", (cf.arange(0, 499) / 5):floor():to "int64"
  local slope = cf.linspace(0, 75, 500):reshape(1, 500, 1)
  return (coarse:index(1, rows):index(2, columns) + fine + slope):to "uint8"
end

local paths, bytes = {}, 0
for i = 1, PICTURES do
  paths[i] = ("%s/all/%03d.jpg"):format(folder, i)
  cf.data.saveimage(paths[i], picture(), {quality = 85})
  local file = assert(io.open(paths[i]))
  bytes = bytes + file:seek "end"
  file:close()
end
print(("%d pictures of 500 x 375, %.0f KB each"):format(PICTURES, bytes / PICTURES / 1000))

-- ---- rounds -------------------------------------------------------------------------------------------------

local T = cf.data.transforms
local key = cf.data.images(folder)

local function loader(transform)
  return cf.data.DataLoader(key, {batch = 8, threads = 1, prefetch = 2, transform = transform, seed = 1})
end

local loaders = {
  train = loader {T.randomresizedcrop(224), T.flip()},
  eval = loader {T.resize(256), T.centrecrop(224)},
}

-- Pictures a second of one epoch.
local function load(name, round)
  local start, n = bench.now(), 0
  for _, batch in loaders[name]:epoch(round) do
    n = n + batch.n
    batch[1].image:release()
  end
  return n / (bench.now() - start) * 1e6
end

local floor = bench.floor()
local array = ffi.new("const char *[?]", PICTURES, paths)

local function decode()
  local us = floor.conflux_floor_decode(PICTURES, array)
  assert(us > 0, "the files could not be decoded")
  return PICTURES / us * 1e6
end

local best = {train = 0, eval = 0, decode = 0}
for round = 0, ROUNDS do -- the first one warms up
  local now = {decode = decode(), train = load("train", round), eval = load("eval", round)}
  for name, rate in pairs(round > 0 and now or {}) do best[name] = math.max(best[name], rate) end
end
assert(os.execute("rm -r " .. folder) == 0)

bench.figure("decode_images_per_s", best.decode, "images/s")
bench.figure("loader_train_images_per_s", best.train, "images/s")
bench.figure("loader_eval_images_per_s", best.eval, "images/s")
bench.figure("loader_train_of_decode", best.train / best.decode, "ratio")
bench.figure("loader_eval_of_decode", best.eval / best.decode, "ratio")
