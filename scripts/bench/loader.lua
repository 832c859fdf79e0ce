--- How fast pictures become batches.
--
--     build/bin/conflux scripts/bench/loader.lua [--quick] [FOLDER]
--
-- Pictures of 500 x 375 pixels and some 100 KB are decoded, cut, resized and normalised by one thread of a DataLoader:
-- as for training (a random resized crop of 224, flipped at random, float32) and as for evaluation (the shorter side to
-- 256, the middle 224).  Beside it, in the same run, the same files are read and decoded whole and nothing else, on one
-- thread (floor_decode.c).  The figures are pictures a second, and the loader's share of the bare decoding that came
-- before it, loader_train_of_decode and loader_eval_of_decode; medians of several rounds, which take turns.  Above 1
-- the decoding that a crop does not need is more than the rest costs.
--
-- FOLDER keeps the pictures, of which peer_loader.py makes the same by torchvision.
local ffi = require "ffi"

local bench = dofile((arg[0]:match "^.*/" or "") .. "common.lua")
local options = bench.options()
local cf = require "conflux"

ffi.cdef "double conflux_floor_decode(int32_t n, const char *const *paths);"

local PICTURES, ROUNDS = options.quick and 8 or 96, options.quick and 2 or 15

cf.devices "cpu"
cf.seed(1)

local folder, is_kept = options[1], options[1] ~= nil
if not folder then
  folder = os.tmpname()
  os.remove(folder)
end
local paths = bench.pictures(cf, folder, PICTURES)

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

local rates, shares = {decode = {}, train = {}, eval = {}}, {train = {}, eval = {}}
for round = 0, ROUNDS do -- the first one warms up
  for _, name in ipairs {"train", "eval"} do
    local bare = decode()
    local rate = load(name, round)
    if round > 0 then
      table.insert(rates.decode, bare)
      table.insert(rates[name], rate)
      table.insert(shares[name], rate / bare)
    end
  end
end
if not is_kept then assert(os.execute("rm -r " .. folder) == 0) end

bench.figure("decode_images_per_s", bench.median(rates.decode), "images/s")
for _, name in ipairs {"train", "eval"} do
  bench.figure(("loader_%s_images_per_s"):format(name), bench.median(rates[name]), "images/s")
end
for _, name in ipairs {"train", "eval"} do
  bench.figure(("loader_%s_of_decode"):format(name), bench.median(shares[name]), "ratio")
end
