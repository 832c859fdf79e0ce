-- Faults of GPUs, on pretended ones: calls of CUDA, cuBLASLt and NCCL that fail, faults of one virtual device
-- beside another, waits and launches that are counted.
local program = require "tests.spec.program"

local build = program.conflux:gsub("bin/conflux$", "")
local emulated = program.exists(build .. "emulated/libconflux_cuda.so")
  and ("CONFLUX_EMULATED_GPUS=2 CONFLUX_PLUGINS=%semulated CONFLUX_CUDA_PATH=%semulated"):format(build, build)

-- `it`, where GPUs can be pretended.
local function test(name, f)
  it(name, function()
    if not emulated then return pending "the emulated plugin is not built" end
    f()
  end)
end

-- Runs a script: what it printed, on either stream, and its exit code; 124 if it hung.
local function run(script, devices, environment)
  local out, err, code = program.shell(("%s %s timeout 60 %s --devices '%s' %s"):format(emulated, environment or "",
    program.conflux, devices, program.file(script)))
  return out .. err, code
end

-- As `run`; and what the pretended GPUs have counted.
local function counted(script, devices)
  local path, counts = program.file "", {}
  local text, code = run(script, devices, "CONFLUX_EMULATED_COUNTS=" .. path)
  assert.equal(0, code, text)
  for line in io.lines(path) do
    local what, n = line:match "^(.*) (%-?%d+)$"
    counts[what] = tonumber(n)
  end
  return counts, text
end

-- How many kernels were launched; how often a stream has to wait is a matter of time.
local function launches_of(counts)
  local sum = 0
  for what, n in pairs(counts) do
    if not what:find "^an? " and not what:find "^the " and what ~= "take_halts" then sum = sum + n end
  end
  return sum
end

-- Trains twice on two replicas, whatever happens, and says what did.
local TRAIN = [[
  local cf = require "conflux"
  local nn, optim = cf.nn, cf.optim
  local function train()
    local models = cf.replicate(nn.Chain(nn.Dense(3, 17, "relu"), nn.Dense(17, 4)))
    local opt = optim.Adam(0.01)
    local states = cf.withdevices(function(i) return opt:setup(models[i]) end)
    local last
    for step = 1, 3 do
      local losses, grads = cf.withdevices(function(i, device)
        local x, y = device(cf.rand(5, 3)), device(cf.tensor {0, 1, 2, 3, 0}:to "int64")
        return cf.withgradient(function(m) return nn.crossentropy(m(x), y) end, models[i])
      end)
      cf.allreduce("avg", grads, {weights = {3, 2}})
      cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
      cf.reduce("+", 2, losses)
      last = losses[1]:item()
    end
    cf.synchronize(models)
    cf.sync()
    return last
  end
  for _ = 1, 2 do
    local ok, message = pcall(train)
    print(ok and "trained" or "failed", message)
  end]]

local RUNTIME = {"launch", "cudaGetDeviceCount", "cudaSetDevice", "cudaGetDevice", "cudaMemset",
  "cudaDeviceSynchronize",
  "cudaDeviceGetAttribute", "cudaMemGetInfo", "cudaMalloc", "cudaHostAlloc", "cudaFree", "cudaFreeHost",
  "cudaDeviceGetStreamPriorityRange", "cudaStreamCreateWithPriority", "cudaStreamDestroy", "cudaStreamQuery",
  "cudaStreamWaitEvent",
  "cudaEventCreateWithFlags", "cudaEventDestroy", "cudaEventRecord", "cudaEventQuery", "cudaMemcpyAsync",
  "cudaDeviceCanAccessPeer", "cublasLtCreate", "cublasLtCreateOther", "cublasLtSetAttribute",
  "cublasLtMatmulAlgoGetHeuristic", "cublasLtMatmul"}
local NCCL = {"ncclGetVersion", "ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommAbort",
  "ncclGroupStart", "ncclGroupEnd", "ncclAllReduce", "ncclReduce", "ncclBroadcast", "ncclRedOpCreatePreMulSum",
  "ncclRedOpDestroy", "cudaSetDevice"}

-- Convolves twice, forwards and backwards, whatever happens.
local CONVOLVE = [[
  local cf = require "conflux"
  local convolutions = require "tests.spec.convolutions"
  for _ = 1, 2 do
    local ok, message = pcall(function()
      local x, w = cf.ones(1, 4, 4, 2, {device = "cuda:0"}), cf.ones(7, 2, 2, 2, {device = "cuda:0"})
      local _, g = cf.withgradient(function(m) return convolutions.conv(m[1], m[2], {act = "relu"}):sum() end, {x, w})
      return g[1]:sum():item() + g[2]:sum():item()
    end)
    print(ok and "trained" or "failed", message)
  end]]
local CUDNN = {"cudnnCreate", "cudnnSetStream", "cudnnCreateTensorDescriptor", "cudnnSetTensor4dDescriptor",
  "cudnnCreateFilterDescriptor", "cudnnSetFilter4dDescriptor", "cudnnCreateConvolutionDescriptor",
  "cudnnSetConvolution2dDescriptor", "cudnnSetConvolutionGroupCount", "cudnnSetConvolutionMathType",
  "cudnnGetConvolutionForwardAlgorithm_v7", "cudnnGetConvolutionForwardWorkspaceSize", "cudnnConvolutionForward",
  "cudnnGetConvolutionBackwardDataAlgorithm_v7", "cudnnGetConvolutionBackwardDataWorkspaceSize",
  "cudnnConvolutionBackwardData", "cudnnGetConvolutionBackwardFilterAlgorithm_v7",
  "cudnnGetConvolutionBackwardFilterWorkspaceSize", "cudnnConvolutionBackwardFilter"}

describe("a call that fails from some time on #program", function()
  after_each(program.clean)

  -- Each function from its n-th call on: no hang, no crash, and what is not trained says why, where.
  local function try(names, devices, script)
    local failures = 0
    for _, name in ipairs(names) do
      for _, n in ipairs {1, 7} do
        local what = ("%s from call %d on"):format(name, n)
        local text, code = run(script, devices, ("CONFLUX_EMULATED_FAIL=%s:%d"):format(name, n))
        assert.is_true(code == 0 or code == 1, ("%s: exit code %d\n%s"):format(what, code, text))
        local results = 0
        for line in text:gmatch "[^\n]+" do
          if line:find "^trained\t%d" then
            results = results + 1
          elseif line:find "^failed\t" then
            results, failures = results + 1, failures + 1
            assert.matches("^failed\t/[^:]+:%d+: conflux[^:]*: .*%l", line, 1)
          end
        end
        assert.equal(2, results, what .. "\n" .. text)
      end
    end
    return failures
  end

  test("ends in an error at the script's line and never hangs: CUDA and cuBLASLt", function()
    assert.is_true(try(RUNTIME, "cuda:0*2", TRAIN) > 2 * 12)
  end)

  test("ends in an error at the script's line and never hangs: NCCL", function()
    assert.is_true(try(NCCL, "cuda*2", TRAIN) > 2 * 5)
  end)

  test("ends in an error at the script's line and never hangs: cuDNN", function()
    assert.is_true(try(CUDNN, "cuda:0", CONVOLVE) >= 2 * #CUDNN)
  end)

  -- No other algorithm is taken in its place, then or later.
  test("only once ends one convolution: cuDNN", function()
    for _, name in ipairs(CUDNN) do
      local text = run(CONVOLVE, "cuda:0", ("CONFLUX_EMULATED_FAIL=%s:1-1"):format(name))
      assert.matches("^failed\t[^\n]+cuDNN: [^\n]+\ntrained\t%d+\n", text, 1)
    end
  end)
end)

describe("a worker that cannot choose its GPU #program", function()
  after_each(program.clean)

  local ROUNDS = [[
    local cf = require "conflux"
    for _ = 1, 3 do
      local ok, value = pcall(function()
        local x = cf.withdevices(function() return cf.full(2, 30) end)
        cf.withdevices(function(i) x[i] = x[i] * i + 1 end)
        if #cf.devices() > 1 then cf.allreduce("+", x) end
        return x[1]:sum():item()
      end)
      print(ok and "made" or "failed", value)
    end]]

  -- The output of the rounds, with calls of cudaSetDevice that fail.
  local function rounds(devices, calls)
    return (run(ROUNDS, devices, "CONFLUX_EMULATED_FAIL=cudaSetDevice:" .. calls))
  end

  test("fails every command with the reason, and begins as soon as it can", function()
    local refused = "failed\t[^\n]-:%d+: conflux%.fill: CUDA: cudaSetDevice: an emulated error\n"
    local made = "made\t90\n"
    assert.matches("^" .. refused:rep(3) .. "$", rounds("cuda:0", "1"))
    assert.matches("^" .. refused:rep(2) .. made .. "$", rounds("cuda:0", "1-3"))
    assert.matches("^" .. made:rep(3) .. "$", rounds("cuda:0", "1-1"))
    -- the host's thread has chosen GPU 1, and cannot go back; the worker's is still at GPU 0
    assert.matches("^" .. refused:rep(3) .. "$", rounds("cuda:1", "2"))
    assert.matches("^" .. refused .. made:rep(2) .. "$", rounds("cuda:1", "2-4"))
  end)

  test("never works on another one", function()
    for devices, right in pairs {["cuda:1"] = "90", ["cuda:1*2"] = "240", ["cuda*2"] = "240"} do
      local failures = 0
      for _, n in ipairs {1, 2, 3, 4, 5, 6, 8, 11} do
        for _, calls in ipairs {n, n .. "-" .. n + 2} do
          local text = rounds(devices, calls)
          local results = 0
          for what, value in text:gmatch "(%l+)\t([^\n]+)" do -- besides, one device's fault may be unread at the end
            results = results + 1
            if what == "failed" then failures = failures + 1 end
            assert.truthy(what == "failed" and value:find "conflux[.%l]*: .-cudaSetDevice" or value == right,
              ("%s, calls %s\n%s"):format(devices, calls, text))
          end
          assert.equal(3, results, text)
        end
      end
      assert.is_true(failures > 0, devices)
    end
  end)
end)

describe("a fault of one device #program", function()
  after_each(program.clean)

  test("keeps off what follows from it and nothing else, on a part of a GPU as on a CPU", function()
    local script = [[
      local cf = require "conflux"
      local optim = cf.optim
      local lines = {}
      for round = 1, 6 do
        local models = cf.replicate({w = cf.ones(3)})
        local opt = optim.Descent(0.1)
        local states = cf.withdevices(function(i) return opt:setup(models[i]) end)
        local grads = cf.withdevices(function(i)
          return cf.gradient(function(m) return (m.w * i):sum() end, models[i])
        end)
        -- a fault of replica `who` alone, before an update that has nothing to do with the other
        local who = round % 2 + 1
        local bad
        cf.withdevices(function(i)
          if i == who then bad = cf.ones(3, 2)[cf.tensor({7}, {dtype = "int64"})]:sum() end
        end)
        if round > 2 then os.execute "sleep 0.05" end
        cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
        local other = models[3 - who].w:totable()
        lines[#lines + 1] = ("%d other %.3f"):format(round, other[1])
        local message = tostring(select(2, pcall(bad.item, bad)))
        lines[#lines + 1] = message:match "conflux%.index: id 7 at position 1" or message
        cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)
        lines[#lines + 1] = ("%d after %.3f %.3f"):format(round, models[1].w[1]:item(), models[2].w[1]:item())
        -- a void value that comes from the other replica keeps the update off
        local x = cf.withdevices(function(i) return cf.ones(3) end)
        local void
        cf.withdevices(function(i, device)
          if i == who then void = cf.ones(3, 3)[cf.tensor({5}, {dtype = "int64"})]:reshape(3) end
        end)
        cf.withdevices(function(i, device)
          if i ~= who then
            local g = {w = device(void) * 2}
            pcall(optim.update, states[i], models[i], g)
          end
        end)
        pcall(function() return void:totable() end)
        pcall(function() return models[3 - who].w:totable() end)
        lines[#lines + 1] = ("%d void %.3f"):format(round, models[3 - who].w[1]:item())
      end
      print(table.concat(lines, "\n"))]]
    local expected = program.shell(("%s --devices 'cpu*2' %s"):format(program.conflux, program.file(script)))
    assert.matches("1 other 0.900\n", expected)
    for _, devices in ipairs {"cuda:0*2", "cuda*2"} do
      for _, delay in ipairs {"0", "3000"} do
        assert.equal(expected, (run(script, devices, "CONFLUX_EMULATED_DELAY=" .. delay)))
      end
    end
  end)

  test("is none where there is nothing to do", function()
    assert.equal("0\n", (run([[
      local cf = require "conflux"
      local y = cf.zeros(0, {dtype = "int64", device = "cuda:0"})
      print(cf.nn.crossentropy(cf.zeros(0, 3, {device = "cuda:0"}), y, {reduction = "sum"}):item())]], "cuda:0")))
  end)
end)

describe("scripts/gpu-check #program", function()
  it("passes on the CPU, too", function()
    local directory = os.tmpname()
    os.remove(directory)
    local out, err, code = program.shell("scripts/gpu-check --quick --device cpu --minutes 5 --out " .. directory)
    os.execute("rm -rf " .. directory)
    assert.same({"", 0}, {err, code}, out)
    assert.matches("\n7 passed, 0 failed\n$", out)
  end)

  test("tries everything, and makes a page of it", function()
    local directory = os.tmpname()
    os.remove(directory)
    local out, err, code = program.shell(("%s scripts/gpu-check --quick --minutes 5 --out %s"):format(emulated,
      directory))
    assert.same({"", 0}, {err, code}, out)
    assert.matches("\n7 passed, 0 failed\n$", out)
    local page = program.slurp(directory .. "/page.md")
    assert.matches("| x2.lua on cuda:0 | ok | ", page, 1, true)
    out, err, code = program.shell(("%s scripts/gpu-check --quick --minutes 0 --out %s"):format(emulated, directory))
    assert.same({"", 0}, {err, code}, out)
    assert.matches("left    devices and versions: no time\n.*\n0 passed, 0 failed\n$", out)
    os.execute("rm -r " .. directory)
    out, err, code = program.shell "scripts/gpu-check --minutes soon"
    assert.same({"", "gpu-check: --minutes: expected a number, got 'soon'\n", 2}, {out, err, code})
  end)
end)

describe("a GPU alone #program", function()
  after_each(program.clean)

  test("meets NCCL, too, where CONFLUX_NCCL_SELF asks for it", function()
    local script = [[
      local cf = require "conflux"
      local x = cf.withdevices(function() return cf.arange(1, 3) end)
      cf.allreduce("+", x)
      cf.allreduce("avg", x)
      cf.reduce("max", 1, x)
      cf.synchronize(x)
      print(cf.info().groups[1].group, x[1][1]:item(), x[1][3]:item())]]
    assert.equal("self\t1\t3\n", (run(script, "cuda:0", "CONFLUX_EMULATED_FAIL=ncclAllReduce:1")))
    assert.equal("nccl\t1\t3\n", (run(script, "cuda:0", "CONFLUX_NCCL_SELF=1")))
    assert.matches("allreduce: NCCL on GPU 0: invalid usage: made to fail", (run(script, "cuda:0",
      "CONFLUX_NCCL_SELF=1 CONFLUX_EMULATED_FAIL=ncclAllReduce:1")))
  end)
end)

describe("memory that is given back while a collective waits for a participant #program", function()
  after_each(program.clean)

  -- Memory that nothing uses any more, and an all-reduce to which the second GPU never comes.
  local BEGIN = [[
    local cf, core = require "conflux", require "conflux.core"
    local x, big = cf.withdevices(function(i) return cf.full(i, 10), cf.zeros(2000000) end)
    for _ = 1, 2 do cf.allreduce("+", x) end
    cf.sync()
    big = nil
    collectgarbage()
    collectgarbage()
    cf.allreduce("+", x)
    os.execute "sleep 0.2" -- the first GPU has come
    local function finish()
      local _, message = pcall(x[1].totable, x[1])
      print(message:match "stood still" or message)
    end]]

  test("is freed when the collective is over, and nobody waits for that", function()
    local text = run(BEGIN .. [[
      core.C.cfx_memory_trim(core.context())
      print(cf.memory("cuda:0").reserved < 8000000, core.C.cfx_ready(x[1]))
      finish()
    ]], "cuda*2", "FAKE_NCCL=hang CONFLUX_COLLECTIVE_TIMEOUT=3")
    assert.equal("true\t0\nstood still\n", text)
  end)

  test("is waited for where there is no other", function()
    local text = run(BEGIN .. [[
      local y = cf.ones(2500000, {device = "cuda:0"}) -- 10 MB
      print(core.C.cfx_ready(x[1]))
      finish()
      print(y:sum():item())
    ]], "cuda*2", "FAKE_NCCL=hang CONFLUX_COLLECTIVE_TIMEOUT=1 CONFLUX_EMULATED_MEMORY=80000000")
    assert.equal("1\nstood still\n2500000\n", text)
  end)
end)

describe("what is counted on a GPU #program", function()
  after_each(program.clean)

  test("a command that waits asks its stream to wait once for each event", function()
    for devices, most in pairs {["cuda:0*2"] = 400, ["cuda:0*4"] = 1200} do
      local counts = counted(program.slurp "scripts/x2.lua", devices)
      local first, again = counts["a wait"], counts["a wait again"] or 0
      assert.is_true(first + again <= most, ("%s: %d waits, %d again"):format(devices, first, again))
    end
  end)

  test("all of an attention block's products are cuBLASLt's, and right", function()
    for _, dtype in ipairs {"float32", "bfloat16", "float16"} do
      local counts, text = counted(([[
        local cf = require "conflux"
        local B, T, H, D = 3, 5, 2, 4
        local x, ws = cf.rand(B, T, H * D):to "DTYPE", {}
        for k = 1, 3 do ws[k] = cf.rand(H * D, H * D):to "DTYPE" end
        local function attention(at)
          return function(m)
            local function heads(w) return x:to(at):matmul(w):reshape(B, T, H, D):transpose(2, 3) end
            local q, k, v = heads(m[1]), heads(m[2]), heads(m[3])
            local p = (q:matmul(k:transpose(3, 4)) / D ^ 0.5):softmax(4)
            return (p:matmul(v):transpose(2, 3):reshape(B, T, H * D):to "float32" ^ 2):sum()
          end
        end
        local function gradient(at)
          return cf.gradient(attention(at), {ws[1]:to(at), ws[2]:to(at), ws[3]:to(at)})
        end
        local expected, got = gradient "cpu:0", gradient "cuda:0"
        for k = 1, 3 do
          local a, b = expected[k]:to "float32", got[k]:to "cpu:0":to "float32"
          print((a - b):abs():max():item() <= 0.02 * a:abs():max():item())
        end]]):gsub("DTYPE", dtype), "cuda:0")
      assert.equal("true\ntrue\ntrue\n", text)
      assert.is_nil(counts["product_any<C>"], dtype)
      assert.is_true(counts["a product of cuBLASLt"] >= 9)
    end
  end)

  test("the communication streams come first on a GPU", function()
    local counts = counted(TRAIN, "cuda:0*2")
    assert.same({2, 2}, {counts["a stream of priority -5"], counts["a stream of priority 0"]})
  end)

  test("an update of many tensors is a handful of launches", function()
    local script = [[
      local cf = require "conflux"
      local model = {}
      for k = 1, 20 do model[k] = cf.rand(k, 3, {device = cf.devices()[1]}) end -- each has memory of its own
      local opt = OPTIMISER
      local state = opt:setup(model, function(path) return {decay = tonumber(path) % 2, scale = 1 / path} end)
      local grads = cf.gradient(function(m)
        local sum = 0
        for k = 1, 20 do sum = sum + (m[k] ^ 2):sum() end
        return sum
      end, model)
      for _ = 1, UPDATES do cf.optim.update(state, model, grads) end
      local sums = {}
      for k = 1, 20 do sums[k] = ("%.3f"):format(model[k]:sum():item()) end
      print(table.concat(sums, " "))]]
    local function launches(optimiser, updates)
      local source = script:gsub("OPTIMISER", optimiser):gsub("UPDATES", tostring(updates))
      local counts, text = counted(source, "cuda:0")
      local expected = program.shell(("%s --devices cpu %s"):format(program.conflux, program.file(source)))
      assert.equal(expected, text)
      return launches_of(counts)
    end
    for optimiser, most in pairs {
      ["cf.optim.AdamW(0.01)"] = 2, -- its numbers, and all tensors
      ["cf.optim.Chain(cf.optim.ClipNorm(0.1), cf.optim.Adam(0.01))"] = 5, -- two for the norm, and its factor
    } do
      assert.equal(2 * most, launches(optimiser, 3) - launches(optimiser, 1), optimiser)
    end
  end)

  test("a synchronisation of whole models is as many launches however many buffers they have", function()
    local script = [[
      local cf = require "conflux"
      local model = {cf.ones(3)}
      for k = 1, BUFFERS do
        model[#model + 1] = cf.nn.buffer(cf.full(k, k % 7 + 1))
        model[#model + 1] = cf.full(k, {dtype = "int64"})
      end
      local models = cf.replicate(model)
      for k = 2, #model do models[2][k]:fill_(-k) end
      for _ = 1, TIMES do cf.synchronize(models, 2) end
      for k = 2, #model do assert(models[1][k]:sum():item() == -k * models[1][k]:numel()) end]]
    local function launches(buffers, times)
      local source = script:gsub("BUFFERS", tostring(buffers)):gsub("TIMES", tostring(times))
      return launches_of((counted(source, "cuda:0*2")))
    end
    for _, buffers in ipairs {1, 36} do
      assert.equal(2 * 3, launches(buffers, 3) - launches(buffers, 1)) -- parameters, floats and integers
    end
  end)

  test("the host's thread keeps its GPU", function()
    assert.equal(0, counted(TRAIN, "cuda*2")["the host's GPU"])
    assert.equal(0, counted(TRAIN, "cuda:1")["the host's GPU"])
  end)
end)
