-- README.md: what it shows is run.  The Lua of a section is one program, in which `--> text` says what a line prints;
-- the shell's commands run from top to bottom, as a newcomer types them.
local program = require "tests.spec.program"
local quote, shell = program.quote, program.shell

-- Commands that other tests run, or that are about the whole machine.
local ELSEWHERE = {
  {"^scripts/quickstart", "it builds what is running here"},
  {"^scripts/test", "it runs this"},
  {"^%(cd build && cpack%)", "install_spec"},
  {"^sudo apt install", "install_spec unpacks the package"},
  {"^scripts/docs", "docs_spec"},
  {"scripts/make%-imagenet%.lua", "scripts_spec and pictures_spec run what needs these pictures"},
  {"scripts/resnet%.lua", "scripts_spec"},
  {"%-%-target bundle", "bundle_spec"},
}

-- Why nothing can be built on this build here, or nil.
local function obstacle()
  if not program.exists "README.md" then return "there is no checkout here" end
  local _, _, code = shell(("test %s -ef build/bin/conflux"):format(quote(program.conflux)))
  return code ~= 0 and "this is not the build that README.md speaks of" or program.obstacle()
end

-- The blocks of a language ("" for none), each with its section's name.
local function blocks(wanted)
  local list, section, open, lines = {}, "", nil, nil
  for line in io.lines "README.md" do
    local fence = line:match "^```(.*)$"
    if fence and open then
      if open == wanted then list[#list + 1] = {section = section, text = table.concat(lines, "\n") .. "\n"} end
      open = nil
    elseif fence then
      open, lines = fence, {}
    elseif open then
      lines[#lines + 1] = line
    else
      section = line:match "^## (.*)$" or section
    end
  end
  return list
end

local function is_elsewhere(command)
  for _, entry in ipairs(ELSEWHERE) do
    if command:find(entry[1]) then
      entry.used = true
      return true
    end
  end
  return false
end

describe("README.md #program", function()
  local home
  before_each(function()
    home = os.tmpname()
    os.remove(home)
    os.execute("mkdir " .. quote(home))
  end)
  after_each(function()
    os.execute("rm -rf " .. quote(home))
    program.clean()
  end)

  it("has Lua that runs and prints what it says", function()
    if not program.exists "README.md" then return pending "there is no checkout here" end
    local sections, order = {}, {}
    for _, block in ipairs(blocks "lua") do
      if not sections[block.section] then order[#order + 1] = block.section end
      sections[block.section] = (sections[block.section] or "") .. block.text
    end
    assert.is_true(#order >= 3)
    for _, section in ipairs(order) do
      local text, wanted = sections[section], {}
      for line in text:gmatch "%-%-> ([^\n]*)" do wanted[#wanted + 1] = line .. "\n" end
      local binary = shell("realpath " .. quote(program.conflux)):match "[^\n]+"
      for _, devices in ipairs {"cpu", "cpu*3"} do
        local out, err, code = shell(("cd %s && %s --devices %s %s"):format(quote(home), quote(binary), quote(devices),
          quote(program.file(text))))
        assert.same({"", 0}, {err, code}, section)
        if #wanted > 0 then assert.equal(table.concat(wanted), out, section) end
      end
    end
  end)

  it("names nothing that does not exist", function()
    if not program.exists "README.md" then return pending "there is no checkout here" end
    local cf, checked = require "conflux", 0
    local roots = {cf = cf, nn = cf.nn, optim = cf.optim, x = cf.ones(1)}
    -- of a table with three columns the last one is ours
    local text = program.slurp "README.md":gsub("\n|[^|\n]*|[^|\n]*(|[^|\n]*|)%f[\n]", "\n%1")
    for room, mark, name in text:gmatch "%f[%w](%l+)([.:])(%a[%w_.]*%w)" do
      local at = roots[room]
      if at and not (room == "x" and name == "lua") then
        checked = checked + 1
        for part in name:gmatch "[^.]+" do
          at = at[part]
          assert.is_truthy(at, room .. mark .. name)
        end
      end
    end
    assert.is_true(checked > 80)
  end)

  it("shows a session of the prompt as it is", function()
    if not program.exists "README.md" then return pending "there is no checkout here" end
    local typed, wanted = {}, {}
    for line in blocks ""[1].text:gmatch "[^\n]+" do
      local entry = line:match "^cpu:0>>? ?(.*)$"
      local list = entry and typed or wanted
      list[#list + 1] = entry or line
    end
    local function masked(text) -- times, and the number of the line, differ
      return (text:gsub("stdin:%d+", "stdin:1"):gsub("[%d.]+ [mu]?s%f[%W]", "T"))
    end
    local out, err, code = program.run(("--devices cpu -i <%s 2>&1"):format(
      program.file(table.concat(typed, "\n") .. "\n")))
    assert.equal(masked(table.concat(wanted, "\n") .. "\n"), masked(out .. err))
    assert.equal(1, code) -- the last of it is an error
  end)

  it("installs nothing into ~/conflux, where a clone lies", function()
    if not program.exists "README.md" then return pending "there is no checkout here" end
    local text = program.slurp "README.md"
    assert.is_nil(text:find "%$HOME/conflux%f[%W]")
    assert.truthy(text:find('--prefix "$HOME/', 1, true))
  end)

  it("has commands that do what it says, from top to bottom", function()
    local why = obstacle()
    if why then return pending(why) end
    local source = blocks "c"[1].text
    local file = assert(io.open(home .. "/slope.c", "w"))
    file:write(source)
    file:close()
    local script = {"set -ex", ("export HOME=%s"):format(quote(home)),
      "trap 'rm -f build/install_manifest.txt; if [ -e \"$HOME/manifest\" ]; then mv \"$HOME/manifest\" " ..
      "build/install_manifest.txt; fi' EXIT", -- `uninstall` is about the developer's own installation
      "if [ -e build/install_manifest.txt ]; then cp build/install_manifest.txt \"$HOME/manifest\"; fi"}
    for _, block in ipairs(blocks "sh") do
      for command in block.text:gmatch "[^\n]+" do
        if not is_elsewhere(command) and (program.has "luarocks" or not command:find "luarocks ") then
          script[#script + 1] = command:gsub(" slope%.c ", ' "$HOME/slope.c" '):gsub(" build/(%l+)$", ' "$HOME/%1"')
            :gsub("^build/(%l+)$", '"$HOME/%1"')
        end
      end
    end
    assert.is_true(#script > 20)
    script[#script + 1] = "luajit -e 'print(package.path)'"
    local out, err, code = shell("bash " .. quote(program.file(table.concat(script, "\n") .. "\n")))
    assert.equal(0, code, out .. err)
    assert.matches("\nslope 2\n", out)
    assert.matches("512 of 512 right", out)
    assert.matches("loss 0%.%d+, after 500 steps 0%.0%d+", out)
    assert.matches("epoch 3/3 ", out)
    assert.is_nil(out:find "loss %-?nan")
    if program.has "luarocks" then
      local rocks = home .. "/.luarocks/share/lua/5.1/" -- behind what the system has, where Conflux may be, too
      assert.truthy(out:match "[^\n]+\n*$":find(rocks .. "?.lua", 1, true), out)
      assert.is_true(program.exists(rocks .. "conflux/init.lua"))
    end
    for _, entry in ipairs(ELSEWHERE) do assert.is_true(entry.used, entry[1] .. " is no longer in README.md") end
  end)
end)
