-- Runs programs as a user runs them, and makes the files that they read.
local program = {conflux = os.getenv "CONFLUX_BIN" or "build/bin/conflux"}

local made = {}

function program.quote(word)
  return "'" .. word:gsub("'", [['\'']]) .. "'"
end

function program.slurp(path)
  local file = assert(io.open(path, "rb"))
  local text = file:read "*a"
  file:close()
  return text
end

function program.exists(path)
  local file = io.open(path)
  return file ~= nil and file:close()
end

--- The path of a new file with this text; `program.clean` removes it.
function program.file(text)
  local path = os.tmpname()
  made[#made + 1] = path
  local file = assert(io.open(path, "wb"))
  file:write(text)
  file:close()
  return path
end

--- Removes all files made.  For after_each or teardown.
function program.clean()
  for i = #made, 1, -1 do os.remove(table.remove(made, i)) end
end

--- Runs a shell command: what it wrote to stdout and to stderr, and its exit code.
function program.shell(command)
  local out, err = os.tmpname(), os.tmpname()
  local status = os.execute(("{ %s\n} >%s 2>%s"):format(command, out, err))
  local stdout, stderr = program.slurp(out), program.slurp(err)
  os.remove(out)
  os.remove(err)
  return stdout, stderr, status / 256 -- Lua 5.1 returns what wait() gave
end

--- Runs conflux with these arguments, as `shell` does; `before` stands in front of it.
function program.run(arguments, before)
  return program.shell(("%s %s %s"):format(before or "", program.conflux, arguments))
end

--- Whether the machine has a command.
function program.has(command)
  return os.execute("command -v " .. command .. " >/dev/null") == 0
end

--- Why what was built here cannot be installed, or nil.
function program.obstacle()
  local cache = io.open((program.conflux:gsub("bin/conflux$", "CMakeCache.txt")))
  if not cache then return "this is no build directory" end
  local text = cache:read "*a"
  cache:close()
  return text:find "CONFLUX_SANITIZE:%w+=%w" and "a sanitizer's libraries stay where they are" or nil
end

--- Whether `script` can give a program a terminal here.
function program.has_terminal()
  return os.execute "script -qec true /dev/null </dev/null >/dev/null 2>&1" == 0
end

return program
