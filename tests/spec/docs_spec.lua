-- The documentation: every public name has some; the REPL and the reference show it.
local program = require "tests.spec.program"
local cf      = require "conflux"
local help    = require "conflux.help"

-- The names of what a function takes, "..." for varargs and for sizes, which are nine letters in the source.
local function formals(f)
  local info, names = debug.getinfo(f, "u"), {}
  for i = 1, info.nparams do names[i] = debug.getlocal(f, i) end
  if info.isvararg then names[#names + 1] = "..." end
  local text = table.concat(names, " "):gsub("a b c d e f g h i$", "..."):gsub("^self ?", "")
  return text, info.isvararg
end

-- The fault of a comment about f, or nil.
local function fault(comment, f)
  if not comment then return "has no comment" end
  if comment.text == "" then return "has no text" end
  local documented = {}
  for i, p in ipairs(comment.params) do
    documented[i] = p.name
    if p.type == "" then return "does not say what type " .. p.name .. " has" end
  end
  local text, wanted, takes_more = table.concat(documented, " "), formals(f)
  if text == wanted then return nil end
  -- arguments that come in varargs may have names
  local rest = (text .. " "):sub(#wanted - 2)
  if takes_more and text ~= "" and text .. " " == wanted:sub(1, -4) .. rest then return nil end
  -- functions that a factory makes have its names
  local is_made = comment.line ~= debug.getinfo(f, "S").linedefined
  if is_made and #documented == debug.getinfo(f, "u").nparams then return nil end
  return ("documents (%s), and takes (%s)"):format(text, wanted)
end

describe("the documentation", function()
  it("covers every public name, functions with their parameters", function()
    local faults, functions = {}, 0
    for _, entry in ipairs(help.entries()) do
      local f = entry.value
      if entry.kind == "layer" then f = rawget(f, "init") or function() end end
      local what
      if type(f) == "function" then
        functions = functions + 1
        what = fault(entry.comment, f)
      elseif not entry.comment or entry.comment.text == "" then
        what = "has no comment"
      end
      if what then faults[#faults + 1] = ("%s %s"):format(entry.names[1], what) end
    end
    assert.same({}, faults)
    assert.is_true(functions > 150)
  end)

  it("knows the methods of what is made by functions", function()
    for name, object in pairs {Optimiser = cf.optim.Adam(), progress = cf.progress(1), module = cf.nn.Dense(1, 1),
      DataLoader = cf.data.DataLoader({x = cf.ones(4)})} do
      local meta, methods = getmetatable(object), 0
      local class = type(meta.__index) == "table" and meta.__index or meta
      if name == "module" then class = getmetatable(class).__index end
      for key, method in pairs(class) do
        if type(method) == "function" and not key:find "^_" then
          methods = methods + 1
          local text = help.of(name .. ":" .. key)
          assert.is_truthy(text, name .. ":" .. key)
          assert.matches("\n\n%u", text)
        end
      end
      assert.is_true(methods >= 1, name)
    end
  end)
end)

describe("help", function()
  it("finds a name with its room, without it, and as a method", function()
    local text = help.of "matmul"
    assert.matches("^cf%.matmul%(a, b%)\ntensor:matmul%(b%)\n\nThe matrix product;", text)
    assert.matches("\n  a  Tensor: %[%.%., n, k%]", text)
    assert.matches("\nreturns Tensor$", text)
    for _, name in ipairs {"cf.matmul", "tensor:matmul", "x:matmul", "tensor.matmul", "MatMul", " cf.matmul(a, b) "} do
      assert.equal(text, help.of(name))
    end
    assert.equal(help.of "cf.nn.Dense", help.of "Dense")
    assert.matches("tensor:sum(dims?, o?)", help.of "tensor:sum", 1, true)
    assert.matches("cf.optim.Adam(lr?, o?)", help.of "optim.Adam", 1, true)
    assert.matches("DataLoader:epoch(e)", help.of "loader:epoch", 1, true)
    assert.matches("module:train()", help.of "nn.train", 1, true)
  end)

  it("knows each public name as it is written, also where a class and what makes it differ in a letter", function()
    for _, entry in ipairs(help.entries()) do
      for _, name in ipairs(entry.names) do
        local head = help.of(name):match "^(.-)\n\n" or help.of(name)
        assert.is_truthy(("\n" .. head .. "\n"):find("\n" .. help.signature(name, entry) .. "\n", 1, true), name)
      end
    end
    for _, name in ipairs {"cf.tensor", "tensor", " cf.tensor(x)", "conflux.tensor"} do
      assert.matches("^cf%.tensor%(", help.of(name))
    end
    assert.matches("^Tensor\n", help.of "Tensor")
    assert.matches("^cf%.progress%(", help.of "cf.progress")
  end)

  it("writes types out", function()
    assert.matches("dims?  integer|integer[]: default: all", help.of "mean", 1, true)
    assert.matches("{dtype: string?, device: (string|Device)?}", help.of "zeros", 1, true)
  end)

  it("fits an old terminal", function()
    for _, entry in ipairs(help.entries()) do
      for line in help.of(entry.names[1]):gmatch "[^\n]+" do
        assert.is_true(#line <= 80 or line:find "^    " ~= nil or not line:find "%S%s%S.*%s", line)
      end
    end
  end)

  it("lists what is in a room", function()
    local text = help.of "nn"
    assert.matches("^cf%.nn\n\n", text)
    assert.matches("\n  Dense +act%(x W' %+ bias%)", text)
    assert.matches("\n  init  ", text)
    assert.matches("\n  shape +integer%[%]: ", help.of "Tensor")
    assert.matches("\n  totable +The values", help.of "Tensor")
    assert.matches("\n  threads +integer: ", help.of "Device")
    assert.matches("\n  nn  ", help.of "cf")
  end)

  it("names what is near, or what an ambiguous name may mean", function()
    local text, suggestions = help.of "matmull"
    assert.is_nil(text)
    assert.equal("cf.matmul", suggestions[1])
    text, suggestions = help.of "nn.Desne"
    assert.is_nil(text)
    assert.equal("cf.nn.Dense", suggestions[1])
    text, suggestions = help.of "Chain"
    assert.is_nil(text)
    assert.same({"cf.nn.Chain", "cf.optim.Chain"}, suggestions)
    for _, nonsense in ipairs {"qqqqqqqq", "?!", ""} do
      text, suggestions = help.of(nonsense)
      assert.is_nil(text)
      assert.same({}, suggestions)
    end
  end)

  it("needs no file where the program has the library in it", function()
    local out, err, code = program.shell(("binary=$(realpath %s) && cd / && $binary -e %s"):format(program.conflux,
      program.quote 'print((require("conflux.help").of "matmul"))'))
    assert.same({"", 0}, {err, code})
    assert.matches("^cf%.matmul", out)
  end)
end)

describe("scripts/docs", function()
  it("makes a reference with every public name in it #program", function()
    if not program.has "ldoc" then return pending "LDoc is not installed (lua-ldoc)" end
    if not program.has "scripts/docs" then return pending "there is no checkout here" end
    local directory = os.tmpname()
    os.remove(directory)
    -- LDoc's interpreter may be another than LuaJIT, whose paths are nothing to it
    local paths = "LUA_PATH=/nowhere/?.lua LUA_CPATH=/nowhere/?.so"
    local out, err, code = program.shell(
      ("%s CONFLUX_BIN=%s scripts/docs %s"):format(paths, program.conflux, directory))
    assert.same({"", 0}, {err, code}, out)
    local functions = 0
    for _, entry in ipairs(help.entries()) do
      local name = entry.names[1]
      local room, last = name:match "^(.*)[%.:]([%w_]+)$"
      if entry.kind == "function" or entry.kind == "layer" then
        functions = functions + 1
        local class = room:find "^%l" and not room:find "^cf" and room:gsub("^%l", string.upper) or room
        local page = ("%s/%s/%s.html"):format(directory, class:find "^%u" and "classes" or "modules", class)
        assert.matches(('name *= *"%%S*%s"'):format(last), program.slurp(page))
      end
    end
    assert.is_true(functions > 150)
    assert.matches("shape", program.slurp(directory .. "/classes/Tensor.html"), 1, true)
    assert.matches("modules/cf.nn.html", program.slurp(directory .. "/index.html"), 1, true)
    os.execute("rm -r " .. directory)
  end)
end)

describe("core/conflux.h", function()
  it("says of each function what it does", function()
    if not io.open "core/conflux.h" then return pending "there is no checkout here" end
    -- A comment stands above what it is about: a function, or the first of several whose names differ in their last
    -- word (cfx_engine_run_file, cfx_engine_run_string), perhaps with a type between that only these take.
    local functions, faults, has_comment, stem = 0, {}, false, nil
    for line in io.lines "core/conflux.h" do
      local name = line:match "^CFX_API.-(cfx_[%w_]+)%("
      if line:find "%*/$" and not line:find "^ *[%w}]" then
        has_comment, stem = not line:find "^/%* %-%-%-%- ", nil
      elseif line == "" then
        has_comment, stem = false, nil
      elseif name then
        functions = functions + 1
        if not has_comment and name:match "^(.*)_%w+$" ~= stem then faults[#faults + 1] = name end
        has_comment, stem = false, name:match "^(.*)_%w+$"
      end
    end
    assert.same({}, faults)
    assert.is_true(functions > 100)
  end)
end)
