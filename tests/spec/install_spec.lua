-- Conflux is installed, found by others, packaged and taken away again.
local program = require "tests.spec.program"
local quote, shell = program.quote, program.shell

local why_not = program.obstacle()
local build = program.conflux:gsub("/?bin/conflux$", "")
if build == "" then build = "." end

-- A directory for all that is made here, with a blank in its name.
local directory = os.tmpname()
local root = directory .. "/a b"

-- Runs commands that have to succeed, with $P the prefix and $B the build; returns what they wrote.
local function sh(commands)
  local out, err, code = shell(("set -e; R=%s P=%s B=%s; %s"):format(quote(root), quote(root .. "/prefix"),
    quote(build), commands))
  assert(code == 0, ("%s\n%s%s"):format(commands, out, err))
  return out, err
end

-- The files below a directory, without what is before them; links, too.
local function files(below)
  local set = {}
  for path in sh(("cd %s; find . ! -type d"):format(quote(below))):gmatch "%./([^\n]+)" do set[path] = true end
  return set
end

local manifest = build .. "/install_manifest.txt"
local lua = [[export LUA_PATH="$P/share/lua/5.1/?.lua;$P/share/lua/5.1/?/init.lua" LUA_CPATH=; unset CONFLUX_LIBRARY; ]]

describe("an install #program", function()
  setup(function()
    os.remove(directory)
    if why_not then return end
    -- `uninstall` is about the developer's own installation
    sh(([[mkdir -p "$R"; if test -e %s; then cp %s "$R/manifest"; fi; cmake --install "$B" --prefix "$P"]])
      :format(manifest, manifest))
  end)
  teardown(function()
    if not why_not then
      sh(([[rm -f %s; if test -e "$R/manifest"; then mv "$R/manifest" %s; fi]]):format(manifest, manifest))
    end
    os.execute("rm -rf " .. directory)
  end)

  -- `it`, where there is something to install, and these commands.
  local function test(name, needs, f)
    it(name, function()
      if why_not then return pending(why_not) end
      for need in needs:gmatch "%S+" do
        if not program.has(need) then return pending("there is no " .. need) end
      end
      f()
    end)
  end

  test("puts each file where others look for it", "", function()
    local there = files(root .. "/prefix")
    for _, path in ipairs {"bin/conflux", "bin/conflux-run", "include/conflux.h", "lib/libconflux.so",
      "lib/libconflux.so.0", "lib/libconflux.so.0.1.0", "lib/pkgconfig/conflux.pc",
      "lib/cmake/conflux/conflux-config.cmake",
      "share/lua/5.1/conflux/init.lua", "share/lua/5.1/conflux/nn/init.lua", "share/doc/conflux/copyright",
      "share/doc/conflux/examples/x2.lua"} do
      assert.is_true(there[path], path)
    end
    for file, path in pairs {["conflux.1"] = "share/man/man1/conflux.1",
      ["conflux.bash"] = "share/bash-completion/completions/conflux",
      ["_conflux"] = "share/zsh/site-functions/_conflux",
      ["conflux-run.1"] = "share/man/man1/conflux-run.1",
      ["conflux-run.bash"] = "share/bash-completion/completions/conflux-run",
      ["_conflux-run"] = "share/zsh/site-functions/_conflux-run"} do
      local is_written = io.open("scripts/package/" .. file) ~= nil
      assert.equal(is_written, there[path] == true, path)
    end
    -- beside the library, where it looks for it
    assert.equal(io.open(build .. "/lib/libconflux_cuda.so") ~= nil, there["lib/libconflux_cuda.so"] == true)
  end)

  test("names no place of this machine", "grep", function()
    local out = shell(("grep -rlF -e %s -e \"$PWD\" %s"):format(quote(root), quote(root .. "/prefix")))
    assert.equal("", (out:gsub("[^\n]*libconflux_cuda.so\n", ""))) -- which knows where the toolkit was
  end)

  test("exports cfx_* alone, from libraries that say their version", "nm objdump", function()
    local libraries = 0
    for path in sh [[ls "$P"/lib/libconflux.so "$P"/lib/libconflux_host.so 2>&- || true]]:gmatch "[^\n]+" do
      libraries = libraries + 1
      local names = 0
      for name in sh("nm -D --defined-only " .. quote(path)):gmatch "%x+ %a ([^\n]+)" do
        names = names + 1
        assert.matches("^cfx_", name)
      end
      assert.is_true(names > 10, path)
      local soname = sh("objdump -p " .. quote(path)):match "SONAME +(%S+)"
      assert.equal(path:match "[^/]+$" .. ".0", soname)
    end
    assert.is_true(libraries >= 1)
  end)

  test("runs from where it is, and from where it is moved to", "", function()
    local wanted = program.run "--devices 'cpu*2' scripts/x2.lua"
    local command = [[cd /; env -i "$P"/bin/conflux --devices 'cpu*2' "$P"/share/doc/conflux/examples/x2.lua]]
    assert.equal(wanted, (sh(command)))
    local launched = sh(command:gsub("bin/conflux", "%0-run -n 1"))
    assert.equal(wanted, (launched:gsub("%f[^\n%z]%[0%] ", "")))
    assert.equal(wanted, (sh([[mv "$P" "$R/moved"; P=$R/moved; ]] .. command .. [[; mv "$P" "$R/prefix"]])))
  end)

  test("is a library of plain LuaJIT, compiled and interpreted", "luajit", function()
    local wanted = program.run "--devices 'cpu*2' scripts/x2.lua"
    for _, options in ipairs {"", "-joff"} do
      assert.equal(wanted, (sh(lua .. "CONFLUX_DEVICES='cpu*2' luajit " .. options .. " scripts/x2.lua")))
    end
    assert.matches("tensor:matmul(b)", sh(lua .. [[luajit -e 'print(require("conflux.help").of "matmul")']]), 1, true)
  end)

  test("is loaded in a coroutine, again, and anew", "luajit", function()
    local out = sh(lua .. "luajit " .. quote(program.file [[
      local first = coroutine.wrap(function()
        local cf = require "conflux"
        coroutine.yield(cf)
      end)()
      assert(require "conflux" == first)
      local x = first.ones(2, {device = "cpu"})
      local names = {}
      for name in pairs(package.loaded) do names[#names + 1] = name:find "^conflux" and name or nil end
      for _, name in ipairs(names) do package.loaded[name] = nil end
      local second = require "conflux"
      assert(second ~= first)
      print((first.add(x, 1) + second.full(3, 2, {device = "cpu"})):sum():item())
      print(second.gradient(function(w) return (w * w):sum() end, x):sum():item())
    ]]))
    assert.equal("10\n4\n", out)
    program.clean()
  end)

  test("takes the library that CONFLUX_LIBRARY names", "luajit", function()
    local out = sh(lua .. [[CONFLUX_LIBRARY=/nowhere/libconflux.so luajit -e 'print(pcall(require, "conflux"))']])
    assert.matches("^false\t[^\n]*/nowhere/libconflux.so: ", out)
  end)

  test("lies below DESTDIR", "", function()
    sh [[DESTDIR=$R/destination cmake --install "$B" --prefix /opt/conflux]]
    assert.same(files(root .. "/prefix"), files(root .. "/destination/opt/conflux"))
    assert.equal("opt\n", (sh [[ls "$R/destination"]]))
    sh [[DESTDIR=$R/destination cmake --build "$B" --target uninstall]]
    assert.equal("", (sh [[ls "$R/destination/opt/conflux"]]))
  end)

  test("is taken away by `uninstall`, which leaves what is not its own", "", function()
    sh [[cmake --install "$B" --prefix "$R/second"; echo mine >"$R/second/share/lua/5.1/mine.lua"
      cmake --build "$B" --target uninstall]]
    assert.same({["share/lua/5.1/mine.lua"] = true}, files(root .. "/second"))
    assert.equal("share\n", (sh [[ls "$R/second"]]))
    assert.matches("uninstall: 0 files removed", sh [[cmake --build "$B" --target uninstall 2>&1]], 1, true)
  end)

  test("is found by a project outside, which runs scripts if it wants to", "pkg-config make cc", function()
    if not io.open(root .. "/prefix/lib/libconflux_host.so") then return pending "there is no libconflux_host" end
    sh [[cmake -S tests/install -B "$R/cmake" -D CMAKE_PREFIX_PATH="$P"; cmake --build "$R/cmake"]]
    sh [[mkdir /tmp/conflux-test-make; export PKG_CONFIG_PATH="$P/lib/pkgconfig"
      make -C tests/install OUT=/tmp/conflux-test-make; mv /tmp/conflux-test-make "$R/make"]]
    for _, where in ipairs {"cmake", "make"} do
      assert.equal("6\n", (sh(('LD_LIBRARY_PATH="$P/lib" "$R/%s/host"'):format(where))))
    end
  end)

  test("is a Debian package, which needs what the program loads", "cpack dpkg-deb dpkg-shlibdeps", function()
    sh [[(cd "$B"; cpack -B "$R/packages"); cd "$R/packages"; mkdir deb; dpkg-deb -x *.deb deb]]
    local there = files(root .. "/packages/deb/usr")
    assert.same(files(root .. "/prefix"), there)
    assert.equal("usr\n", (sh [[ls "$R/packages/deb"]]))
    local control = sh [[dpkg-deb -f "$R"/packages/*.deb]]
    assert.matches("\nPackage: conflux\n", "\n" .. control, 1, true)
    for _, package in ipairs {"libc6 %(", "libdnnl", "libgomp1 ", "libluajit%-5.1%-2 ", "zlib1g "} do
      assert.matches(" " .. package, control:match "\nDepends:[^\n]*", package)
    end
    assert.equal("", (shell([[grep -rlF -e "$PWD" ]] .. quote(root .. "/packages/deb")):gsub("[^\n]*_cuda.so\n", "")))
  end)

  test("is an archive that runs where it is unpacked", "cpack", function()
    local out = sh [[cd "$R/packages"; tar xzf conflux-*.tar.gz; cd /
      env -i "$R"/packages/conflux-*/bin/conflux "$R"/packages/conflux-*/share/doc/conflux/examples/x2.lua]]
    assert.matches("epoch 10  losses", out)
  end)

  test("is still there after packages were made", "cpack", function()
    assert.equal(root .. "/second/bin/conflux\n", (sh(([[cmake --install "$B" --prefix "$R/second"
      (cd "$B"; cpack -G TGZ -B "$R/packages"); grep 'bin/conflux$' %s]]):format(manifest)):match "[^\n]*\n$"))
  end)

  test("is a rock", "luarocks luajit", function()
    local headers = "/usr/include/luajit-2.1"
    if not io.open(headers .. "/lua.h") then return pending("there is no " .. headers) end
    local rockspec = sh "ls scripts/package/*.rockspec":match "[^\n]+"
    assert.equal(require("conflux").version, rockspec:match "/conflux%-(.*)%-%d+%.rockspec$")
    local rocks = [[luarocks --lua-version 5.1 --tree "$R/rocks"]]
    sh(("CONFLUX_BUILD=$B %s make LUA_INCDIR=%s %s"):format(rocks, headers, rockspec))
    assert.matches("epoch 10  losses", (sh [[unset CONFLUX_LIBRARY; R="$R/rocks"
      export LUA_PATH="$R/share/lua/5.1/?.lua;$R/share/lua/5.1/?/init.lua" LUA_CPATH="$R/lib/lua/5.1/?.so"
      luajit scripts/x2.lua]]))
    sh(rocks .. " remove conflux")
    assert.is_nil(io.open(root .. "/rocks/lib/lua/5.1/libconflux.so"))
  end)
end)
