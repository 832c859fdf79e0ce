-- The benchmarks, in their quick mode: each prints the figures that it promises.  No time is asserted.
local program = require "tests.spec.program"

-- A benchmark's output, and its figures: name -> {value, unit}.
local function run(arguments)
  local out, err = program.run("scripts/bench/" .. arguments)
  local text, figures = out .. err, {}
  for name, value, unit in text:gmatch "figure (%S+) (%S+) (%S+)" do
    figures[name] = {tonumber(value), unit}
  end
  return text, figures
end

-- Each name is there with its unit and a number above 0.
local function assert_figures(expected, figures, text)
  for name, unit in pairs(expected) do
    local figure = figures[name]
    assert.is_truthy(figure, ("no figure %s in:\n%s"):format(name, text))
    assert.equal(unit, figure[2], name)
    assert.is_true(figure[1] > 0, name)
  end
end

describe("benchmarks #program", function()
  for _, name in ipairs {"mlp", "conv", "resnet", "dispatch", "allreduce", "memory", "loader", "gpu", "comm",
    "faults"} do
    it(name .. " says what it measures", function()
      local text = run(name .. ".lua --help")
      assert.truthy(text:find(name .. ".lua [--quick]", 1, true), text)
    end)
  end

  it("loader shows pictures beside their bare decoding", function()
    if require "conflux".info().libraries:find "no libjpeg" then return pending "there is no libjpeg-turbo" end
    local text, figures = run "loader.lua --quick"
    assert_figures({decode_images_per_s = "images/s", loader_train_images_per_s = "images/s",
      loader_eval_images_per_s = "images/s", loader_train_of_decode = "ratio", loader_eval_of_decode = "ratio"},
      figures, text)
  end)

  it("mlp shows each step beside its floor", function()
    local text, figures = run "mlp.lua --quick"
    local expected = {}
    for _, prefix in ipairs {"mlp16_1dev_", "mlp16_2dev_", "mlp64_1dev_", "mlp64_2dev_"} do
      expected[prefix .. "us"], expected[prefix .. "floor_us"] = "us", "us"
      expected[prefix .. "over_floor"] = "ratio"
    end
    expected.mlp16_2dev_host_us = "us"
    assert_figures(expected, figures, text)
  end)

  it("mlp shows a step on a crowded machine beside one that never spins", function()
    local text, figures = run "mlp.lua --crowded --quick"
    local expected = {}
    for _, prefix in ipairs {"mlp16_crowded_", "mlp64_crowded_"} do
      expected[prefix .. "us"], expected[prefix .. "passive_us"] = "us", "us"
      expected[prefix .. "over_passive"] = "ratio"
    end
    assert_figures(expected, figures, text)
  end)

  it("resnet shows a step beside its convolutions, and what its parts take", function()
    local text, figures = run "resnet.lua --quick"
    local expected = {resnet34_folded_images_per_s = "images/s"}
    for _, what in ipairs {"peak", "process_peak", "process_growth"} do
      expected[("resnet34_1dev_%s_bytes"):format(what)] = "bytes"
    end
    for _, prefix in ipairs {"resnet34_1dev_", "resnet34_2dev_"} do
      expected[prefix .. "us"], expected[prefix .. "floor_us"] = "us", "us"
      expected[prefix .. "over_floor"], expected[prefix .. "images_per_s"] = "ratio", "images/s"
    end
    for _, part in ipairs {"convolution", "normalisation", "pooling", "update"} do
      expected[("resnet34_%s_us"):format(part)] = "us"
    end
    assert_figures(expected, figures, text)
    assert.is_truthy(figures.resnet34_rest_us, text) -- a difference, which may be below 0 where so little is measured
  end)

  it("resnet shows steps on a loader's pictures beside steps on the same images", function()
    if require "conflux".info().libraries:find "no libjpeg" then return pending "there is no libjpeg-turbo" end
    local text, figures = run "resnet.lua --quick --loader"
    assert_figures({resnet34_fixed_us = "us", resnet34_loader_us = "us", resnet34_loader_over_fixed = "ratio",
      resnet34_loader_work_of_step = "ratio", resnet34_loader_floor = "ratio"}, figures, text)
  end)

  it("conv shows each convolution beside its floor", function()
    local text, figures = run "conv.lua --quick stem conv5"
    local expected = {}
    for _, prefix in ipairs {"conv_stem_forwards_", "conv_stem_step_", "conv_conv5_forwards_", "conv_conv5_step_"} do
      expected[prefix .. "us"], expected[prefix .. "floor_us"] = "us", "us"
      expected[prefix .. "over_floor"] = "ratio"
    end
    assert_figures(expected, figures, text)
    assert.truthy(run "conv.lua --quick nothing":find("there is no shape 'nothing'", 1, true))
  end)

  it("dispatch shows an operation with and without the compiler", function()
    local text, figures = run "dispatch.lua --quick"
    assert_figures({dispatch_us = "us", dispatch_nojit_us = "us", dispatch_floor_us = "us",
      dispatch_over_floor = "ratio"}, figures, text)
  end)

  it("allreduce shows each size beside its limit", function()
    local text, figures = run "allreduce.lua --quick"
    local expected = {}
    for _, size in ipairs {"4B", "4KiB", "64KiB", "1MiB", "4MiB"} do
      local prefix = "allreduce_" .. size
      expected[prefix .. "_us"], expected[prefix .. "_limit_us"] = "us", "us"
      expected[prefix .. "_of_limit"], expected[prefix .. "_gb_per_s"] = "ratio", "GB/s"
    end
    assert_figures(expected, figures, text)
  end)

  it("comm shows each size beside the loop on the same memory", function()
    local text, figures = run "comm.lua --quick"
    local expected = {comm_4B_us = "us", comm_4B_over_local = "ratio"}
    for _, prefix in ipairs {"comm_4MiB_", "comm_64KiB_"} do
      expected[prefix .. "us"], expected[prefix .. "loop_us"], expected[prefix .. "of_loop"] = "us", "us", "ratio"
    end
    assert_figures(expected, figures, text)
  end)

  it("faults shows the news of a death beside the system's", function()
    local text, figures = run "faults.lua --quick"
    assert_figures({death_to_error_us = "us", death_poll_us = "us", death_to_error_over_poll = "ratio"}, figures, text)
  end)

  it("memory shows what a run adds", function()
    local text, figures = run "memory.lua --quick"
    assert.is_truthy(figures.memory_growth_bytes, text)
    assert.equal("B", figures.memory_growth_bytes[2])
    assert.is_truthy(figures.memory_pool_growth_bytes, text)
    assert_figures({memory_peak_bytes = "B"}, figures, text)
  end)

  it("gpu measures its parts on any device", function()
    local text, figures = run "gpu.lua --quick --device cpu:0 --only mlp2,matmul,attention,optim,allreduce2,transfer"
    local expected = {
      mlp16_2dev_float32_us = "us", mlp16_2dev_float32_read_us = "us", mlp16_2dev_float32_floor_us = "us",
      mlp64_2dev_tf32_over_floor = "ratio", matmul_32_bfloat16_tflops = "TFLOP/s", matmul_32_nt_tf32_of_peak = "ratio",
      attention_float32_us = "us", attention_tf32_floor_us = "us", attention_bfloat16_over_floor = "ratio",
      transformer_bfloat16_us = "us", transformer_float32_over_floor = "ratio", transformer_tf32_tflops = "TFLOP/s",
      optim_copy_gb_per_s = "GB/s", adam_gb_per_s = "GB/s", momentum_of_bandwidth = "ratio",
      allreduce_2dev_64KiB_gb_per_s = "GB/s", transfer_up_64KiB_gb_per_s = "GB/s", add_and_read_number_us = "us",
    }
    assert_figures(expected, figures, text)
    assert.is_nil(text:find("failed", 1, true), text)
  end)

  it("mlp says how to build what it lacks", function()
    local out, err, code = program.run("scripts/bench/mlp.lua --quick", "CONFLUX_FLOOR=/nowhere/floor.so")
    assert.same({"", 1}, {out, code})
    assert.matches("/nowhere/floor.so: [^\n]+; `cmake %-%-build build %-%-target conflux_floor` makes it\n", err)
  end)

  it("gpu goes on after a part that fails, and says so", function()
    local out, _, code = program.run "scripts/bench/gpu.lua --quick --device cpu:nine --only dispatch,reduce"
    assert.matches("failed reduce: [^\n]+\npart reduce: [^\n]+\nfailed dispatch: [^\n]+\n", out)
    assert.equal(1, code)
    assert.equal(2, select(3, program.run "scripts/bench/gpu.lua --only nothing"))
  end)

  it("gpu ends a part that takes too long", function()
    local out, _, code = program.run "scripts/bench/gpu.lua --device cpu:0 --limit 1 --only matmul"
    assert.matches("failed matmul: not done after 1 s", out, 1, true)
    assert.equal(1, code)
  end)

  it("gpu compares its figures with PyTorch's", function()
    local ours = program.file "figure adam_gb_per_s 30 GB/s\nfigure adam_of_bandwidth 0.9 ratio\nfigure x_us 5 us\n"
    local theirs = program.file("figure peer_adam_gb_per_s 20 GB/s\nfigure peer_x_us_eager 15 us\n" ..
      "figure peer_x_us_graphs 10 us\nfigure peer_x_us_unfused 20 us\n")
    local out, err = program.run(("scripts/bench/gpu.lua --compare %s %s"):format(ours, theirs))
    program.clean()
    assert.truthy(out:find("| adam_gb_per_s | 30 GB/s | 0.90 of bandwidth | 20 | 1.50 |", 1, true), out .. err)
    assert.truthy(out:find("| x_us | 5 µs |  | 15 eager, 10 graphs, 20 unfused | 2.00 |", 1, true), out .. err)
  end)

  it("PyTorch's peers explain themselves without PyTorch, and say that it is missing", function()
    if not program.has "python3" then return pending "there is no python3" end
    for _, name in ipairs {"peer_gpu", "peer_mlp", "peer_gloo"} do
      -- a module that is None is one that cannot be imported
      local command = ([[python3 -c 'import runpy, sys; sys.modules["torch"] = None
sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name="__main__")' scripts/bench/%s.py]]):format(name)
      local out, err, code = program.shell(command .. " --help")
      assert.same({"", 0}, {err, code})
      assert.matches(("\n    python3 scripts/bench/%s.py ["):format(name), out, 1, true)
      out, err, code = program.shell(command)
      assert.same({"", 1}, {out, code})
      assert.matches(("^%s: [^\n]*torch[^\n]*; `pip install torch` brings PyTorch\n$"):format(name), err)
    end
  end)

  -- A build folder whose program is this one, run with `setting`.
  local function build_with(setting)
    local folder = os.tmpname()
    os.remove(folder)
    local ours = program.conflux:gsub("bin/conflux$", "")
    program.shell(("mkdir -p %s/bin && ln -s $(realpath %slib) %s/lib"):format(folder, ours, folder))
    local file = assert(io.open(folder .. "/bin/conflux", "w"))
    file:write(("#!/bin/sh\n%s exec $(realpath %s) \"$@\"\n"):format(setting, program.conflux))
    file:close()
    program.shell("chmod +x " .. folder .. "/bin/conflux")
    return folder
  end

  it("before-after finds the same losses, and others", function()
    local same, other = build_with "", build_with "CONFLUX_SEED=7"
    local out, err, code = program.shell(("scripts/bench/before-after --quick --losses %s %s"):format(same, same))
    assert.equal(0, code, out .. err)
    for _, devices in ipairs {"cpu", "cpu*2", "cpu*3"} do
      assert.matches("same     x2.lua on " .. devices:gsub("%*", "%%*") .. ": 10 lines of losses, the last epoch 10 " ..
        " losses %d%.%d%d%d%d%d%d%d+", out)
    end
    out, err, code = program.shell(("scripts/bench/before-after --quick --losses %s %s"):format(same, other))
    assert.equal(1, code, out .. err)
    assert.matches("DIFFERS  x2.lua on cpu%*3:\n", out)
    program.shell(("rm -rf %s %s"):format(same, other))
  end)

  it("before-after shows the figures of two builds", function()
    local build = build_with ""
    local out, err, code = program.shell(
      ("scripts/bench/before-after --quick --rounds 1 --figures --only dispatch %s %s"):format(build, build))
    program.shell("rm -rf " .. build)
    assert.equal(0, code, out .. err)
    for _, name in ipairs {"dispatch_us", "dispatch_nojit_us", "dispatch_floor_us", "dispatch_over_floor"} do
      assert.matches("\n" .. name .. " +[%d.e+]+ +[%d.e+]+ %S+ +[%d.]+  [%d.]+ to [%d.]+\n", out .. "\n")
    end
  end)
end)
