--- The speed of Conflux on a GPU: training steps, matrix products, bandwidth, queues; each beside its limit.
--
--     build/bin/conflux scripts/bench/gpu.lua [--quick] [--device cuda:0] [--only PART,..] [--limit SECONDS]
--                                             [--data DIR]
--     build/bin/conflux scripts/bench/gpu.lua --compare FILE [PYTORCH'S FILE]
--
--   mlp, mlp2       training steps of the two models of mlp.lua, the second also in batches of 1,024 and 8,192, on
--                   one device and on two virtual ones of it; float32 exact and tf32.  `_us`: nothing is read;
--                   `_read_us`: the host reads the loss of every step.  The floor is the step's matrix products,
--                   all-reduce and update alone, without a tape
--   matmul          square, oblong and transposed products in float32, tf32 and bfloat16; `_of_peak` is the share
--                   of the best that the sweep saw in that precision
--   attention       multi-head attention (8 sequences of 1,024, 768 wide, 12 heads), and the block of a transformer
--                   around it, forward and backward, in the same precisions.  The floor is their matrix products at
--                   the speed of a large square one, measured in turns with each
--   elementwise, reduce, rows, optim
--                   operations that memory limits: GB/s of the bytes that have to be read and written at least;
--                   `_of_bandwidth` is the share of a plain copy's speed, measured in turns with each
--   dispatch        the host's time to enqueue an operation on one element, and the time until it is done; the
--                   floor is the same from C
--   allreduce2, allreduce4
--                   between virtual devices of one GPU: GB/s and share of a copy's speed, as above
--   transfer        to and from the host, as the share of the sweep's best; how long reading one number takes
--   fashion, fashion2
--                   scripts/fashion.lua; the limit is its model's step without a loader.  Where its data is not
--                   installed, random images take their place
--
-- Any device will do; of `cpu:0`, two virtual ones are `cpu*2`.  --quick is for trying the script: small sizes,
-- whose figures mean nothing.  Each part runs in a process of its own, which is ended after --limit seconds (120):
-- whatever goes wrong in one is a line `failed NAME: MESSAGE`, the others go on, and the exit status is 1.
--
-- --compare prints a Markdown table of what this and peer_gpu.py wrote, with the ratio to the best of PyTorch's
-- ways: above 1 Conflux is faster.

local directory = arg[0]:match "^.*/" or ""
local bench = dofile(directory .. "common.lua")
local arguments = bench.options()

local FILES = {"mlp", "matmul", "attention", "kernels", "queues", "fashion"}

-- ---- options ------------------------------------------------------------------------------------------------

local function quit(message)
  io.stderr:write("gpu.lua: ", message, "; see --help\n")
  os.exit(2)
end

local function quote(word)
  return "'" .. word:gsub("'", [['\'']]) .. "'"
end

local parts, by_name = {}, {} -- by their order, and by name
for _, file in ipairs(FILES) do
  for _, part in ipairs(dofile(directory .. "gpu/" .. file .. ".lua")) do
    parts[#parts + 1], by_name[part.name] = part, part
  end
end

local texts = {device = "cuda:0", only = "", limit = "120", data = "/usr/share/datasets/fashion-mnist", part = ""}

local i = 1
while i <= #arguments do
  local name = arguments[i]:match "^%-%-(%a+)$"
  if name == "compare" then
    if not arguments[i + 1] then quit "--compare needs a file" end
    os.exit(dofile(directory .. "gpu/compare.lua")(arguments[i + 1], arguments[i + 2]) and 0 or 1)
  end
  if not texts[name] then quit("unknown option " .. arguments[i]) end
  texts[name] = arguments[i + 1] or quit(arguments[i] .. " needs a value")
  i = i + 2
end

local limit = tonumber(texts.limit)
if not limit or limit < 1 or limit % 1 ~= 0 then quit(("--limit: '%s' will not do"):format(texts.limit)) end

local chosen = {}
for name in texts.only:gmatch "[^,]+" do
  if not by_name[name] then quit(("no part '%s'"):format(name)) end
  chosen[name] = true
end

-- ---- one part, in a process of its own: gpu.lua --part NAME --device .. ---------------------------------------

if by_name[texts.part] then
  local part = by_name[texts.part]
  local measure = dofile(directory .. "gpu/measure.lua")
  local devices = texts.device:find "^cpu" and part.cpus or part.devices
  local m = measure.new(bench, {part = part.name, quick = arguments.quick, device = texts.device, data = texts.data,
    count = devices, directory = directory, limit = limit})
  m:item(part.name, function()
    m:start()
    part.run(m)
  end)
  os.exit(m.failed and 1 or 0)
end

-- ---- all parts ----------------------------------------------------------------------------------------------

-- Runs a part and passes on what it writes.  Returns the shell's exit status.
local function run(part)
  local command = bench.limited(("%s %s --part %s --device %s --data %s --limit %d%s"):format(quote(bench.program()),
    quote(arg[0]), part.name, quote(texts.device), quote(texts.data), limit, arguments.quick and " --quick" or ""),
    limit)
  local pipe = assert(io.popen(command .. " 2>&1; echo status $?"))
  local status
  for line in pipe:lines() do
    local code = line:match "^status (%d+)$"
    if code then status = tonumber(code) else print(line) end
    io.flush()
  end
  pipe:close()
  return status
end

local REASONS = {[124] = ("not done after %d s"):format(limit), [137] = "killed"}
local INTERRUPTED = 130

local failed = false
for _, part in ipairs(parts) do
  if next(chosen) == nil or chosen[part.name] then
    local start = bench.now()
    local status = run(part)
    if status == INTERRUPTED then os.exit(INTERRUPTED) end
    if status ~= 0 then failed = true end
    if status ~= 0 and status ~= 1 then -- 1: it has said itself what failed
      print(("failed %s: %s"):format(part.name, REASONS[status] or ("exit status %s"):format(status or "unknown")))
    end
    print(("part %s: %.1f s"):format(part.name, (bench.now() - start) * 1e-6))
    io.flush()
  end
end
os.exit(failed and 1 or 0)
