--- gpu.lua's whole program: scripts/fashion.lua, its data loader included.

-- An IDX file of random bytes.
local function write_idx(path, shape, limit)
  local file, n = assert(io.open(path, "wb")), 1
  local function big_endian(v)
    return string.char(math.floor(v / 2 ^ 24), math.floor(v / 2 ^ 16) % 256, math.floor(v / 2 ^ 8) % 256, v % 256)
  end
  file:write("\0\0\8", string.char(#shape)) -- of unsigned bytes
  for d = 1, #shape do
    file:write(big_endian(shape[d]))
    n = n * shape[d]
  end
  local bytes, row = {}, math.min(n, 4096)
  for i = 1, row do bytes[i] = string.char(math.random(0, limit - 1)) end
  local text = table.concat(bytes)
  for _ = 1, math.floor(n / row) do file:write(text) end
  file:write(text:sub(1, n % row))
  file:close()
end

-- The data set's directory; where there is none, one of random images of the same size, and true.
local function data_of(m)
  local file = io.open(m.data .. "/train-images-idx3-ubyte.gz")
  if file and not m.quick then
    file:close()
    return m.data, false
  end
  local directory = os.tmpname()
  os.remove(directory)
  assert(os.execute("mkdir '" .. directory .. "'") == 0, "cannot make a directory for random images")
  for kind, n in pairs(m.quick and {train = 8, t10k = 4} or {train = 60000, t10k = 10000}) do
    -- plain files under the names of packed ones: the reader looks at what is in them
    write_idx(("%s/%s-images-idx3-ubyte.gz"):format(directory, kind), {n, 28, 28}, 256)
    write_idx(("%s/%s-labels-idx1-ubyte.gz"):format(directory, kind), {n}, 10)
  end
  return directory, true
end

-- Samples a second in the last epoch.
local function train(m, data)
  local bench = m.bench
  local epochs = m.quick and 1 or 3
  local command = ("'%s' '%s../fashion.lua' --devices '%s' --epochs %d --data '%s'%s"):format(bench.program(),
    m.directory, m.spec, epochs, data, m.quick and " --batch 2" or "")
  local pipe = assert(io.popen(bench.limited(command, m.limit) .. " 2>&1"))
  local text = pipe:read "*a"
  pipe:close()
  local rate = tonumber(text:match(("epoch %d/%d.-samples/s (%%d+)"):format(epochs, epochs)))
  return rate or error("no samples/s in what fashion.lua wrote: " .. text, 0)
end

local function run(m)
  local data, is_random = data_of(m)
  local done, rate = pcall(train, m, data)
  if is_random then os.execute("rm -r '" .. data .. "'") end
  if not done then error(rate, 0) end
  local case = m.bench.cases.mlp64
  if m.quick then case = setmetatable({batch = 2}, {__index = case}) end
  local us = m:turns {m.bench.trainer(m.cf, case)}[1]
  local prefix = ("fashion_%ddev_"):format(m.count)
  local limit = m.count * case.batch / us * 1e6
  if is_random then print "fashion: random images in place of Fashion-MNIST" end
  m.bench.figure(prefix .. "samples_per_s", rate, "samples/s")
  m.bench.figure(prefix .. "step_samples_per_s", limit, "samples/s")
  m.bench.figure(prefix .. "of_step", rate / limit, "ratio")
end

return {{name = "fashion", devices = 1, run = run}, {name = "fashion2", devices = 2, run = run}}
