-- A program at a terminal: a pseudo-terminal whose other end is here, to type into and to read from.
--
--     local t = terminal.open {"build/bin/conflux"}
--     t:expect "cpu:0> "          -- waits until that has been written, behind what was expected before
--     t:type "1 + 1\n"
--     assert.equal(0, t:finish())
--
-- Nothing sleeps: each wait is for an output or for the program's end, and has a deadline, after which it raises what
-- the program had written.  The program is started by posix_spawn, for no Lua may run in a forked copy of a process
-- that has threads.
local ffi = require "ffi"
local bit = require "bit"

ffi.cdef [[
  int posix_openpt(int flags);
  int grantpt(int fd);
  int unlockpt(int fd);
  int ptsname_r(int fd, char *name, size_t bytes);
  int posix_spawn_file_actions_init(void *actions);
  int posix_spawn_file_actions_addopen(void *actions, int fd, const char *path, int flags, unsigned mode);
  int posix_spawn_file_actions_adddup2(void *actions, int fd, int as);
  int posix_spawn_file_actions_destroy(void *actions);
  int posix_spawnattr_init(void *attributes);
  int posix_spawnattr_setflags(void *attributes, short flags);
  int posix_spawnattr_destroy(void *attributes);
  int posix_spawnp(int *pid, const char *file, const void *actions, const void *attributes, const char *const *argv,
                   char *const *environment);
  extern char **environ;
  typedef struct { int fd; short events, revents; } test_pollfd;
  int cf_test_poll(test_pollfd *fds, unsigned long n, int milliseconds) __asm__("poll");
  ssize_t cf_test_read(int fd, void *bytes, size_t n) __asm__("read");
  ssize_t cf_test_write(int fd, const void *bytes, size_t n) __asm__("write");
  int cf_test_ioctl(int fd, unsigned long request, ...) __asm__("ioctl");
  int close(int fd);
  int kill(int pid, int signal);
  int waitpid(int pid, int *status, int options);
]]
local C = ffi.C

local OPEN = 0x2 + 0x100 + 0x800 + 0x80000 -- O_RDWR, O_NOCTTY, O_NONBLOCK, O_CLOEXEC
local O_RDWR = 0x2
local SETSID, TIOCSWINSZ = 0x80, 0x5414
local POLLIN, POLLOUT, POLLHUP = 1, 4, 16
local WNOHANG = 1
local SECONDS = 60 -- a deadline, for a machine that has much else to do

local terminal = {INT = 2}
local Terminal = {}
Terminal.__index = Terminal

local function start(argv, name)
  local actions, attributes = ffi.new "long[64]", ffi.new "long[64]" -- larger than either
  C.posix_spawn_file_actions_init(actions)
  C.posix_spawnattr_init(attributes)
  C.posix_spawnattr_setflags(attributes, SETSID) -- the terminal opened next is then the session's
  C.posix_spawn_file_actions_addopen(actions, 0, name, O_RDWR, 0)
  C.posix_spawn_file_actions_adddup2(actions, 0, 1)
  C.posix_spawn_file_actions_adddup2(actions, 0, 2)
  local words, pid = ffi.new("const char *[?]", #argv + 1), ffi.new "int[1]"
  for i = 1, #argv do words[i - 1] = argv[i] end
  local failed = C.posix_spawnp(pid, argv[1], actions, attributes, words, C.environ)
  C.posix_spawn_file_actions_destroy(actions)
  C.posix_spawnattr_destroy(attributes)
  assert(failed == 0, argv[1] .. " cannot be started")
  return pid[0]
end

--- Starts a program on a terminal of 120 columns and 40 rows; `settings` are for `env`, such as "TERM=dumb".
---@param argv string[]
---@param settings? string[]
function terminal.open(argv, settings)
  local words = {"env"}
  for _, setting in ipairs(settings or {}) do words[#words + 1] = setting end
  for _, word in ipairs(argv) do words[#words + 1] = word end
  local fd = C.posix_openpt(OPEN)
  assert(fd >= 0, "no pseudo-terminal")
  local name = ffi.new "char[256]"
  assert(C.grantpt(fd) == 0 and C.unlockpt(fd) == 0 and C.ptsname_r(fd, name, 256) == 0)
  local self = setmetatable({fd = fd, screen = "", raw = "", rest = "", at = 1, words = words}, Terminal)
  self:resize(120, 40)
  self.pid = start(words, name)
  return self
end

--- Whether this machine has pseudo-terminals.
function terminal.works()
  local fd = C.posix_openpt(OPEN)
  if fd >= 0 then C.close(fd) end
  return fd >= 0
end

function Terminal:resize(columns, rows)
  C.cf_test_ioctl(self.fd, TIOCSWINSZ, ffi.new("unsigned short[4]", rows, columns))
end

-- Takes what the program has written, after waiting up to `milliseconds` for it, or for room to write.  Nil: it has
-- closed its end.
function Terminal:take(milliseconds, events)
  local waiting = ffi.new("test_pollfd", self.fd, events or POLLIN)
  if C.cf_test_poll(waiting, 1, milliseconds) <= 0 then return 0 end
  if bit.band(waiting.revents, bit.bor(POLLIN, POLLHUP)) == 0 then return 0 end
  local bytes = ffi.new "char[4096]"
  local n = tonumber(C.cf_test_read(self.fd, bytes, 4096))
  if n <= 0 then return bit.band(waiting.revents, POLLHUP) == 0 and 0 or nil end
  -- Without what moves the cursor and sets colours, but for a sequence whose end is still to come.
  local text = self.rest .. ffi.string(bytes, n)
  self.raw = self.raw .. text:sub(#self.rest + 1)
  local whole, rest = text:match "^(.*)(\27[%[?%d;]*)$"
  self.rest = rest or ""
  self.screen = self.screen .. (whole or text):gsub("\27%[[?%d;]*[%a@]", ""):gsub("\r", "")
  return n
end

local function now()
  return os.time()
end

function Terminal:fail(what)
  error(("%s; the terminal has shown:\n%s"):format(what, self.screen:sub(-4000)), 3)
end

--- Types a text: "\3" is Ctrl-C, "\4" Ctrl-D, "\t" Tab, "\27[A" the arrow up.
function Terminal:type(text)
  local at, deadline = 1, now() + SECONDS
  while at <= #text do
    self:take(1000, bit.bor(POLLIN, POLLOUT)) -- its output meanwhile, lest each waits for the other
    local part = text:sub(at, at + 999)
    at = at + math.max(0, tonumber(C.cf_test_write(self.fd, part, #part)))
    if now() > deadline then self:fail "the program does not read" end
  end
  return self
end

--- Waits until `text` has been written behind what was expected before; returns what stood between.
function Terminal:expect(text)
  local deadline = now() + SECONDS
  while true do
    local from, to = self.screen:find(text, self.at, true)
    if from then
      local between = self.screen:sub(self.at, from - 1)
      self.at = to + 1
      return between
    end
    if now() > deadline then self:fail(("%q has not come"):format(text)) end
    if not self:take(1000) then self:fail(("the program has ended without %q"):format(text)) end
  end
end

--- Types a line and waits for the next prompt; returns what was written between, without the line itself.
function Terminal:enter(line, prompt)
  self:type(line .. "\n")
  return (self:expect("\n" .. (prompt or "cpu:0> ")):gsub("^[^\n]*\n?", "", 1))
end

function Terminal:signal(signal)
  C.kill(self.pid, signal)
  return self
end

--- Waits for the end of the program: its exit code, or 128 and the number of the signal that ended it.  A `key` is
-- typed again and again until then.
function Terminal:finish(key)
  local status, deadline = ffi.new "int[1]", now() + SECONDS
  while C.waitpid(self.pid, status, WNOHANG) ~= self.pid do
    if key then self:type(key) end
    if self.fd then self:take(10) end
    if now() > deadline then self:fail "the program does not end" end
  end
  while self.fd and (self:take(0) or 0) > 0 do end
  self.pid = nil
  self:close()
  local signal = status[0] % 128
  return signal == 0 and math.floor(status[0] / 256) or 128 + signal
end

--- Takes the terminal away, as a closed window does.
function Terminal:hang_up()
  if self.fd then C.close(self.fd) end
  self.fd = nil
end

--- Ends what is left.  For after_each.
function Terminal:close()
  if self.pid then
    C.kill(self.pid, 9)
    C.waitpid(self.pid, nil, 0)
    self.pid = nil
  end
  self:hang_up()
end

return terminal
