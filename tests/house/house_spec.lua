-- tests/house itself, over small made-up trees: each fault is found, and what is right is not.
local house   = require "tests.house.house"
local program = require "tests.spec.program"
local source  = require "tests.house.source"
local words   = require "tests.house.words"

local page = [[
| room | what is in it | uses |
|---|---|---|
| `top` | callers | `middle` `base` |
| `middle` | between | `base` |
| `base` | what all use | |
]]

local root
local objects = {} -- path and text of a C file -> its object, compiled once

-- Makes a tree of these files of core, and the objects of its C files.
local function plant(files)
  root = root or program.shell "mktemp -d":match "%S+"
  local made = {["README.md"] = page, ["conflux.h"] = "void cfx_public(void);\n"}
  for path, text in pairs(files) do made[path] = text end

  local folders = {"objects", "core", "build/CMakeFiles/x.dir/core"}
  for path in pairs(made) do
    local folder = path:match "^.*/" or ""
    folders[#folders + 1] = ("core/%s build/CMakeFiles/x.dir/core/%s"):format(folder, folder)
  end
  local function shell(command)
    local out, err, status = program.shell(("set -e; cd %s; %s"):format(root, command))
    assert(status == 0, out .. err)
  end
  shell("rm -rf core build; mkdir -p " .. table.concat(folders, " "))
  for path, text in pairs(made) do
    local file = assert(io.open(root .. "/core/" .. path, "w"))
    file:write(text)
    file:close()
  end

  local commands = {}
  for path, text in pairs(made) do
    local key = path .. "\n" .. text
    if path:find "%.c$" and not objects[key] then
      objects.n = (objects.n or 0) + 1
      objects[key] = ("objects/%d.o"):format(objects.n)
      commands[#commands + 1] = ("cc -w -Icore -c core/%s -o %s"):format(path, objects[key])
    end
    if objects[key] then
      commands[#commands + 1] = ("cp %s build/CMakeFiles/x.dir/core/%s.o"):format(objects[key], path)
    end
  end
  shell(table.concat(commands, "; "))
end

-- The exceptions for house.read.
local function allows(rules)
  return {symbols = rules.symbols or {}, pointers = rules.pointers or {}, structs = rules.structs or {}}
end

local function read(files, allowed)
  plant(files)
  return house.read(root, allowed or allows {})
end

-- The faults of these files.
local function complaints(files, known, ...)
  return house.complaints(read(files, ...), house.tolerances(known or ""))
end

local function assert_one(pattern, list)
  assert.equal(1, #list, table.concat(list, "\n"))
  assert.truthy(list[1]:find(pattern), list[1])
end

-- The same where the circles come last, each with its edges.
local function assert_circle(pattern, list)
  assert.equal(2, #list, table.concat(list, "\n"))
  assert.truthy(table.concat(list, "\n"):find(pattern), table.concat(list, "\n"))
end

-- A file of each room, each calling the one below.
local function line()
  return {
    ["top/a.c"] = '#include "middle/b.h"\nvoid a(void) { b(); }\n',
    ["middle/b.c"] = '#include "base/c.h"\n#include "b.h"\nvoid b(void) { c(); }\n',
    ["middle/b.h"] = "void b(void);\n",
    ["base/c.c"] = '#include "base/c.h"\nvoid c(void) {}\n',
    ["base/c.h"] = "void c(void);\n",
  }
end

local function with(files)
  local all = line()
  for path, text in pairs(files) do all[path] = text or nil end
  return all
end

describe("tests/house", function()
  teardown(function() program.shell("rm -rf " .. root) end)

  it("has nothing to say of a line of files", function()
    local model = read(line())
    assert.same({}, house.complaints(model, house.tolerances ""))
    assert.equal(3, #model.order)
    assert.equal("middle/b.c -> base/c.c: includes base/c.h; uses c", house.edge(
      model.nodes["middle/b"], model.nodes["base/c"], model.edges[model.nodes["middle/b"]][model.nodes["base/c"]]))
  end)

  it("finds a circle of calls, though no file includes the other", function()
    assert_circle("base: 2 files in circles.*\n  base/c%.c %-> base/d%.c: uses d\n  base/d%.c %-> base/c%.c: uses c",
      complaints(with {
        ["base/c.c"] = "void c(void) { d(); }\n",
        ["base/d.c"] = "void d(void) { c(); }\n",
        ["base/d.h"] = "void d(void);\n",
      }))
  end)

  it("finds a circle by a variable's address", function()
    assert_circle("base: 2 files in circles", complaints(with {
      ["base/c.c"] = "int shared; extern int *where; void c(void) { *where = 1; }\n",
      ["base/d.c"] = "extern int shared; int *where = &shared;\n",
    }))
  end)

  it("finds a circle of headers, which no object shows", function()
    assert_circle("base: 3 files in circles.*base/d%.h %-> base/e%.h: includes e%.h", complaints(with {
      ["base/c.h"] = '#pragma once\n#include "base/d.h"\nvoid c(void);\n',
      ["base/d.h"] = '#pragma once\n#include "e.h"\n',
      ["base/e.h"] = '#pragma once\n#include "base/c.h"\n',
    }))
  end)

  it("takes two circles for two", function()
    local model = read(with {
      ["base/d.c"] = "void d(void) { e(); }\n", ["base/e.c"] = "void e(void) { d(); }\n",
      ["base/f.c"] = "void f(void) { g(); c(); }\n", ["base/g.c"] = "void g(void) { f(); h(); }\n",
      ["base/h.c"] = "void h(void) { f(); }\n",
    })
    assert.equal(2, #model.circles)
    assert.equal(2, #model.circles[1])
    assert.equal(3, #model.circles[2])
  end)

  it("shows the shortest way round, of each room in a circle, and the circle once", function()
    local list = complaints(with {
      ["README.md"] = page:gsub("all use | |", "all use | `middle` |"), -- so that the order has nothing against it
      ["base/d.c"] = "void d(void) { e(); }\n", ["base/d.h"] = "void d(void);\n",
      ["base/e.c"] = "void e(void) { f(); d(); }\n", ["base/e.h"] = "void e(void);\n",
      ["middle/f.c"] = "void f(void) { d(); }\n", ["middle/f.h"] = "void f(void);\n",
    })
    table.remove(list, 1) -- the page
    assert.equal(3, #list, table.concat(list, "\n"))
    assert.truthy(list[1]:find("shortest way round: base/[de].c %-> base/[de].c %-> base/[de].c$"), list[1])
    assert.equal("middle: 1 files in circles, 0 tolerated\n"
      .. "  shortest way round: middle/f.c -> base/d.c -> base/e.c -> middle/f.c", list[2])
    assert.truthy(list[3]:find("^a circle of 3 files: base/d.c base/e.c middle/f.c\n"), list[3])
  end)

  it("finds a call against the order of rooms", function()
    assert_one("base>middle: 1 edges against the order.*base/d%.c %-> middle/e%.c: uses e", complaints(with {
      ["base/d.c"] = "void d(void) { e(); }\n",
      ["middle/e.c"] = "void e(void) {}\n",
      ["middle/e.h"] = "void e(void);\n",
    }))
  end)

  it("finds an include against the order of rooms, but not in a comment", function()
    assert_one("base>middle: 1 edges against the order.*base/d%.c %-> middle/types%.h: includes", complaints(with {
      ["base/d.c"] = ' /* of */ \n#  include "middle/types.h"\n',
      ["base/e.c"] = '/*\n#include "middle/types.h"\n*/\n//\n',
      ["middle/types.h"] = "typedef int number;\n",
    }))
  end)

  it("wants each room on the page, and each room of the page below those that use it", function()
    assert_one("there is no row for core/attic", complaints(with {["attic/x.h"] = "\n"}))
    assert_one("there is no core/cellar", complaints(with {["README.md"] = page .. "| `cellar` | | |\n"}))
    assert_one("base uses middle, which is no room below it", complaints(with {
      ["README.md"] = page:gsub("all use | |", "all use | `middle` |"),
    }))
  end)

  it("finds a source that others call without a header of its own", function()
    local text = "base: 1 sources without a header.*base/c%.c has none for c %(which middle/b%.c calls%)"
    assert_one(text, complaints(with {
      ["base/c.h"] = false,
      ["base/c.c"] = "void c(void) {}\n",
      ["middle/b.c"] = '#include "base/other.h"\n#include "b.h"\nvoid b(void) { c(); }\n',
      ["base/other.h"] = "void c(void);\n",
    }))
  end)

  it("wants no header of a public function, of a kernel in a table, nor of what is built instead of another", function()
    assert.same({}, complaints(with {
      ["base/public.c"] = "void cfx_public(void) {}\n",
      ["base/user.c"] = "void user(void) { cfx_public(); }\n",
      ["base/kernel.c"] = "void kernel(void) {}\n",
      ["base/table.c"] = "void kernel(void);\nvoid (*table[])(void) = {kernel};\n",
      ["base/line.h"] = "void edit(void);\n",
      ["base/line_none.c"] = "void edit(void) {}\n",
      ["base/typed.c"] = "void typed(void) { edit(); }\n",
    }))
  end)

  it("finds a long file", function()
    local files = with {["base/c.h"] = "void c(void);\n" .. ("\n"):rep(600)}
    assert_one("base: 1 files of more than 600 lines.*base/c%.h has 601 lines", complaints(files))
    files["base/c.h"] = files["base/c.h"]:sub(1, -2)
    files["conflux.h"] = ("\n"):rep(601) -- the one that may be long
    assert.same({}, complaints(files))
  end)

  it("finds a higher room's function that a lower one calls by a field", function()
    local files = with {
      ["base/hooks.h"] = "typedef struct hooks {\n    int n;\n    void (*end)(int); /* set by others */\n} hooks;\n",
      ["base/d.c"] = '#include "base/hooks.h"\nvoid d(hooks *h) { h->end(1); }\n',
      ["top/e.c"] = '#include "base/hooks.h"\nstatic void stop(int n) {}\nvoid e(hooks *h) { h->end = stop; }\n',
    }
    files["README.md"] = page
    assert_one("hooks%.end\n  top/e%.c sets it to stop, base/d%.c calls it", complaints(files))
    assert.same({}, complaints(files, "", allows {pointers = {["hooks.end"] = {}}}))
    assert.same({}, complaints(files, "", allows {pointers = {hooks = {}}})) -- each of its fields
    assert_one("other is allowed among the pointers, but no longer there",
      complaints(files, "", allows {pointers = {["hooks.end"] = {}, other = {}}}))
  end)

  it("finds a higher room's function in initialisers, by a type's name, and in a table", function()
    local files = with {
      ["base/hooks.h"] = "typedef int (*f)(int);\nstruct hooks {\n    f a, *b;\n    const f *all;\n};\n",
      ["base/d.c"] = '#include "base/hooks.h"\nint d(struct hooks *h) { return h->a(1) + h->all[2](3); }\n',
      ["middle/e.c"] = '#include "base/hooks.h"\nstatic int one(int n) { return n; }\nstatic const f some[3] = {one};\n'
        .. "const struct hooks mine = {.a = one, .all = some};\n",
      ["base/more.h"] = "typedef struct more {\n    int n;\n    int (*c)(int);\n} more;\n",
      ["base/f.c"] = '#include "base/more.h"\nint g(more *m) { return m->c(m->n); }\n',
      ["middle/g.c"] = '#include "base/more.h"\nstatic int one(int n) { return n; }\nconst more mine = {1, one};\n',
    }
    local list = complaints(files)
    assert.equal(3, #list, table.concat(list, "\n"))
    assert.truthy(list[1]:find("hooks.a\n  middle/e.c sets it to one, base/d.c calls it", 1, true))
    assert.truthy(list[2]:find("hooks.all\n  middle/e.c sets it to some, base/d.c calls it", 1, true))
    assert.truthy(list[3]:find("more.c\n  middle/g.c sets it by position, base/f.c calls it", 1, true))
  end)

  it("has nothing to say of a pointer that a lower room sets, nor of another struct's field of that name", function()
    assert.same({}, complaints(with {
      ["base/hooks.h"] = "typedef struct hooks {\n    void (*end)(int);\n} hooks;\n",
      ["base/d.c"] = '#include "base/hooks.h"\nstatic void stop(int n) {}\nvoid d(hooks *h) { h->end = stop; }\n',
      ["top/e.c"] = '#include "base/hooks.h"\nvoid e(hooks *h) { h->end(1); }\n',
      ["base/f.c"] = "struct other {\n    void (*end)(int);\n};\nvoid f(struct other *o) { o->end(1); }\n",
      ["top/g.c"] = '#include "base/hooks.h"\nstatic void stop(int n) {}\nvoid g(hooks *h) { h->end = stop; }\n',
    }))
  end)

  it("finds a function that a higher room hands to a lower one", function()
    local files = with {
      ["base/each.h"] = "typedef void (*visit)(int);\nvoid each(int n, visit f);\n"
        .. "void all(int n, void (*f)(int, int));\n",
      ["base/each.c"] = '#include "base/each.h"\nvoid each(int n, visit f) { f(n); }\n'
        .. "void all(int n, void (*f)(int, int)) {}\n",
      ["middle/d.c"] = '#include "base/each.h"\nstatic void f(int n) {}\nvoid d(void) { each(3, f); }\n',
      ["base/f.c"] = '#include "base/each.h"\nvoid g(void) { all(3, 0); }\n',
    }
    assert_one("rooms: each\n  middle/d%.c hands it a function", complaints(files))
  end)

  it("finds a struct that names one of a higher room, or of a file that uses its own", function()
    local files = with {
      ["base/queue.h"] = '#include "own.h"\n'
        .. "struct cf_top;\ntypedef struct cf_queue {\n    struct cf_top *t;\n    struct cf_ring *r;\n"
        .. "    struct cf_queue *next; /* struct cf_user */\n    struct cf_own *own;\n} cf_queue;\n",
      ["base/ring.h"] = '#include "base/types.h"\nstruct cf_ring {\n    int n;\n};\n',
      ["base/types.h"] = '#include "base/queue.h"\n',
      ["base/own.h"] = "struct cf_own {\n    int n;\n};\n",
      ["base/user.h"] = "struct cf_user {\n    struct cf_own *o;\n    struct cf_queue *q;\n};\n",
      ["top/t.c"] = "struct cf_top {\n    struct cf_queue *q;\n};\n",
    }
    local text = "base: 2 structs that name one above them, 0 tolerated\n"
      .. "  cf_queue of base/queue%.h names cf_ring of base/ring%.h\n"
      .. "  cf_queue of base/queue%.h names cf_top of top/t%.c$"
    assert_one(text, complaints(files))
    local rules = {["cf_queue names cf_top"] = {}}
    assert_one("base: 1 structs .*names cf_ring", complaints(files, "", allows {structs = rules}))
    files["base/queue.h"] = "struct cf_queue {\n    int n;\n};\n"
    assert_one("names cf_top is allowed among the structs", complaints(files, "", allows {structs = rules}))
  end)

  it("counts structs that name each other once, as a circle, where their files include each other", function()
    assert_circle("base: 2 files in circles", complaints(with {
      ["base/d.h"] = '#pragma once\n#include "e.h"\nstruct cf_d {\n    struct cf_e *e;\n};\n',
      ["base/e.h"] = '#pragma once\n#include "d.h"\nstruct cf_e {\n    struct cf_d *d;\n};\n',
    }))
  end)

  it("takes ops.def for a file of its own beside ops.c", function()
    local model = read(with {
      ["base/ops.def"] = "ROW(1)\n",
      ["base/ops.c"] = '#include "base/rows.h"\n',
      ["base/rows.h"] = '#define ROW(n)\n#include "base/ops.def"\n',
    })
    assert.same({}, house.complaints(model, house.tolerances ""))
    assert.truthy(model.nodes["base/ops.def"] and model.nodes["base/ops"])
  end)

  it("lets an allowed symbol be used from its file alone", function()
    local files = with {
      ["base/backends.c"] = "void top(void); void d(void) { top(); }\n",
      ["base/d.h"] = "void d(void);\n",
      ["top/e.c"] = "void top(void) {}\n",
      ["top/e.h"] = "void top(void);\n",
    }
    local symbols = {top = {from = "core/base/backends.c"}}
    assert.same({}, complaints(files, "", allows {symbols = symbols}))
    files["base/others.c"] = "void top(void); void o(void) { top(); }\n"
    assert_one("base>top: 1 edges .*base/others%.c %-> top/e%.c: uses top",
      complaints(files, "", allows {symbols = symbols}))
    symbols.gone = {from = "core/base/backends.c"}
    files["base/others.c"] = nil
    assert_one("gone is allowed among the symbols, but no longer there",
      complaints(files, "", allows {symbols = symbols}))
  end)

  it("lets that file alone include the header of an allowed symbol", function()
    local files = with {
      ["base/backends.c"] = '#include "top/e.h"\nvoid *backends(void) { return top; }\n',
      ["top/e.c"] = '#include "top/e.h"\nvoid top(void) {}\n',
      ["top/e.h"] = "void top(void);\n",
    }
    local symbols = {top = {from = "core/base/backends.c", header = "top/e.h"}}
    assert.same({}, complaints(files, "", allows {symbols = symbols}))
    files["base/others.c"] = '#include "top/e.h"\n'
    assert_one("base>top: 1 edges .*base/others%.c %-> top/e%.c: includes",
      complaints(files, "", allows {symbols = symbols}))
    files["base/others.c"] = nil
    symbols.top.header = nil
    assert_one("base>top: 1 edges .*base/backends%.c %-> top/e%.c: includes",
      complaints(files, "", allows {symbols = symbols}))
  end)

  it("looks in the plugin first for what the plugin needs, and never for what others need", function()
    local files = with {
      ["README.md"] = "| `cuda` | | `base` |\n" .. page,
      ["cuda/x.c"] = "void c(void) {}\n",
      ["cuda/x.h"] = "void c(void);\n",
      ["cuda/y.c"] = "void y(void) { c(); }\n",
    }
    local model = read(files)
    assert.same({}, house.complaints(model, house.tolerances ""))
    assert.truthy(model.edges[model.nodes["cuda/y"]][model.nodes["cuda/x"]])
    assert.is_nil(model.edges[model.nodes["cuda/y"]][model.nodes["base/c"]])
    assert.is_nil(model.edges[model.nodes["middle/b"]][model.nodes["cuda/x"]])
  end)

  it("reads nvcc's objects, or those of the pretended GPU where nvcc's are old", function()
    plant(with {
      ["README.md"] = "| `cuda` | | `base` |\n" .. page,
      ["cuda/x.cu"] = "void x() {}\n",
    })
    local made = "cd %s; f=build/CMakeFiles/conflux_cuda_; for d in ${f}emulated ${f}kernels; do "
      .. "mkdir -p build/cuda $d.dir/generated; done; make() { cc -x c -c - -o $1; }; "
      .. "echo 'void nvcc(void) {}' | make build/cuda/x.o; "
      .. "echo 'void emulated(void) {}' | make ${f}kernels.dir/generated/emulated_x.cpp.o; "
      .. "echo 'void earlier(void) {}' | make ${f}emulated.dir/generated/emulated_x.cpp.o; "
      .. "touch -d 1990-01-01 ${f}emulated.dir/generated/emulated_x.cpp.o"
    program.shell(made:format(root))
    local function defines() return house.read(root, allows {}).nodes["cuda/x"].defines end
    assert.truthy(defines().nvcc)
    assert.is_nil(defines().emulated)
    program.shell(("touch -d 1990-01-01 %s/build/cuda/x.o"):format(root))
    assert.truthy(defines().emulated)
    assert.is_nil(defines().earlier)
    assert.is_nil(defines().nvcc)
    assert.is_nil(house.read(root, allows {}).unbuilt)
  end)

  it("names a kernel once for all instruction sets", function()
    plant(with {
      ["base/k.c"] = "void read_base(void) {}\nvoid read_avx2(void) {}\n",
      ["base/l.c"] = "void read_base(void); void read_avx2(void);\nvoid l(void) { read_base(); read_avx2(); }\n",
    })
    local made = "cd %s/build/CMakeFiles; for isa in base avx2; do mkdir -p conflux_kernels_$isa.dir/core/base; "
      .. "cp x.dir/core/base/[kl].c.o conflux_kernels_$isa.dir/core/base; "
      .. "objcopy -N read_$([ $isa = base ] && echo avx2 || echo base) conflux_kernels_$isa.dir/core/base/k.c.o; "
      .. "done; rm x.dir/core/base/[kl].c.o"
    program.shell(made:format(root))
    local model = house.read(root, allows {})
    assert.same({"base/k.c has none for read (which base/l.c calls)"}, model.found.header.base.details)
  end)

  it("wants an object of each source, made after it", function()
    plant(line())
    os.remove(root .. "/build/CMakeFiles/x.dir/core/base/c.c.o")
    program.shell(("touch -d '+1 minute' %s/core/top/a.c"):format(root))
    local model = house.read(root, allows {})
    assert.same({"core/base/c.c has no object: build first",
      "build/CMakeFiles/x.dir/core/top/a.c.o is older than core/top/a.c: build first"}, model.wrong)
  end)

  it("judges a plugin that is not built by its includes, whose tolerances stay", function()
    local files = with {
      ["README.md"] = "| `cuda` | | `base` |\n" .. page,
      ["cuda/x.cu"] = "void x() {}\n",
      ["cuda/y.cuh"] = '#include "middle/b.h"\n',
    }
    local known = "circle cuda 2\nupward cuda>middle 1\n"
    local model = read(files)
    assert.same({}, house.complaints(model, house.tolerances(known)))
    assert.equal("cuda", model.unbuilt)
    assert.equal(known, house.shrink(model, known))
  end)

  it("tolerates what is known, no more and no less", function()
    local files = with {
      ["base/c.c"] = "void c(void) { d(); }\n",
      ["base/d.c"] = "void d(void) { c(); }\n",
      ["base/d.h"] = "void d(void);\n",
    }
    assert.same({}, complaints(files, "# why\ncircle base 2\n"))
    assert_circle("base: 2 files in circles, 1 tolerated", complaints(files, "circle base 1\n"))
    assert_one("base: 2 files in circles, but tests/house/known tolerates 3", complaints(files, "circle base 3\n"))
    assert_one("top: 0 files in circles, but .* tolerates 1", complaints(files, "circle base 2\ncircle top 1\n"))
    assert.has_error(function() house.tolerances "circel base 2\n" end, "tests/house/known: circel base 2")
  end)

  it("shrinks what is tolerated, and never lets it grow", function()
    local model = read(with {
      ["base/c.c"] = "void c(void) { d(); }\n",
      ["base/d.c"] = "void d(void) { c(); }\n",
    })
    assert.equal("# why\ncircle base 2\n", house.shrink(model, "# why\ncircle base 5\nupward base>top 1\n"))
    assert.equal("circle base 1\n", house.shrink(model, "circle base 1\n"))
    assert.equal("# none\n", house.shrink(model, "# none\n"))
  end)

  it("reads the comments of all files that have some", function()
    plant {["base/c.c"] = "int c; /* what it is */\n", ["base/notes.txt"] = "-- What\n", ["x.cmake"] = "# Who\n"}
    assert.same({
      root .. "/core/base/c.c:1: no sentence of a comment begins so: what it is */",
      root .. "/core/x.cmake:1: no sentence of a comment begins so: Who",
    }, words.complaints(root .. "/core"))
  end)

  it("counts lines of code outside headers, without blank ones and comments", function()
    local total, by_room = house.count(read(with {
      ["base/c.c"] = [[
/* A comment
   of two lines. */

#include "base/c.h"
// another
void c(void) { /* inside */
    const char *text = "/* no comment", mark = '"';

    const char *more = "\"// none"; /* over

    lines */ (void)more; // end
}
]],
      ["base/rows.def"] = "ROW(1)\n\nROW(2)\n",
      ["base/alone.h"] = "int x;\n",
      ["cuda/x.cuh"] = "int y;\n",
    }))
    assert.equal(6, by_room.base - 2)
    assert.equal(1, by_room.cuda)
    assert.equal(6 + 2 + 1 + 2 + 3, total) -- with middle/b.c and top/a.c
  end)
end)

describe("tests/house reads C:", function()
  it("comments and literals", function()
    local code, bare = source.code [[a /* "b
 */ "c /* d", '"', "\"// e" // 'f
'\'', g / h]]
    assert.equal('a  \n "c /* d", \'"\', "\\"// e"  \n\'\\\'\', g / h', code)
    assert.equal("a  \n \"\", '', \"\"  \n'', g / h", bare)
  end)

  it("a call in a literal is none", function()
    local _, bare = source.code 'f(1, "g(2)", h->i(3), j.k[l()](4));'
    local names, fields = source.called(bare)
    assert.same({f = true, i = true, l = true}, names)
    assert.same({i = true, k = true}, fields)
  end)

  it("initialisers with and without the fields' names", function()
    assert.same({a = {"c", "d"}, g = {"i"}},
      source.initialised "static const a b = {c, &d, 1}; struct e f = {.x = y}; g h[2] = {{i}, {0}};")
    assert.same({x = {"y"}, z = {"w"}}, source.assigned "struct e f = {.x = y}; v->z = &w; u = t; s.r = 1;")
  end)
end)

describe("tests/house reads comments:", function()
  local function lines(text, ending)
    local list = {}
    for i, found in ipairs(words.found(text, ending)) do list[i] = found.line end
    return list
  end

  it("one begins with its subject, and so does each sentence in it", function()
    assert.same({1, 2, 4, 5, 7}, lines([[
/* What it does. */
int x; // who made it
/* The worker runs it.
 * Whoever waits sleeps.  The host
 * knows.  What comes later is
 * no matter, and what follows no sentence. */
/* ---- what there is ---------- */
]], "c"))
    assert.same({1, 3, 6, 8}, lines([==[
--- What it does.
local x = 1 -- a number
-- whose value counts
local y = 2

-- The script reads it.  What
-- the device has is another thing
--[[ What
is long ]]
]==], "lua"))
    assert.same({2}, lines('set(x "# What")\n# What it links\n', "cmake"))
  end)

  it("a line in a sentence, a quotation, and literals are no openings", function()
    assert.same({}, lines([[
/* The worker knows
 * what it runs, and
 * who asked: "What is it?" and `What`. */
const char *text = "/* What", *more = "\"// Who";
char mark = '"'; // The host knows what.
]], "c"))
    assert.same({}, lines([==[
-- The script says
-- what it wants.
local text = [[
-- What
]] .. "-- Who" .. '\'-- What' -- The rest.
local difference = x - y
]==], "lua"))
  end)
end)
