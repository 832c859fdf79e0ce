/* The promises of engines, and their refusals. */
#include "test.h"

#include <stddef.h>
#include <sys/mman.h>

#include "engines.h"

static cfx_value number(double n) { return (cfx_value){.kind = CFX_NUMBER, .as = {.number = n}}; }
static cfx_value text(const char *s, size_t n) { return (cfx_value){.kind = CFX_STRING, .as = {.string = {s, n}}}; }
static cfx_value tensor(const cfx_tensor *x) { return (cfx_value){.kind = CFX_TENSOR, .as = {.tensor = *x}}; }
static cfx_device *device_of(const cfx_engine *engine) { return cfx_device_at(cfx_engine_context(engine), 0); }

/* ---- scripts --------------------------------------------------------------------------------------- */

TEST(an_engine_runs_files_strings_and_buffers) {
    cfx_engine *engine = new_engine();
    char path[] = "/tmp/conflux-embed-XXXXXX";
    const int file = mkstemp(path);
    CHECK(file >= 0 && write(file, "#!/usr/bin/env conflux\nx = 40\n", 30) == 30);
    close(file);
    CHECK_STATUS(cfx_engine_run_file(engine, path), CFX_OK);
    remove(path);
    CHECK_STATUS(cfx_engine_run_string(engine, "x = x + 1"), CFX_OK);
    CHECK_STATUS(cfx_engine_run_buffer(engine, "x = x + 1 --\0z = 1", 18, "a buffer"), CFX_OK);
    run(engine, "function value() return x end");
    CHECK_EQ(ask(engine, "value"), 42);
    CHECK_STR(cfx_engine_error(engine), "");
    free_engine(engine);
    CHECK_STATUS(cfx_engine_free(NULL), CFX_OK);
}

TEST(a_script_that_does_not_parse_is_refused_with_its_line_and_a_missing_file_with_its_path) {
    cfx_engine *engine = new_engine();
    refuses(engine, "x = 1\nx = = 2", CFX_ESCRIPT, "t.lua:2: unexpected symbol near '='");
    CHECK_STATUS(cfx_engine_run_string(engine, "x ="), CFX_ESCRIPT);
    CHECK(has(cfx_engine_error(engine), "[string \"x =\"]:1:"));
    CHECK_STATUS(cfx_engine_run_file(engine, "/nowhere/t.lua"), CFX_EIO);
    CHECK(has(cfx_engine_error(engine), "/nowhere/t.lua"));
    CHECK_STATUS(cfx_engine_run_file(engine, NULL), CFX_EARG);
    CHECK_STATUS(cfx_engine_run_string(engine, NULL), CFX_EARG);
    CHECK_STATUS(cfx_engine_run_buffer(engine, NULL, 1, "t"), CFX_EARG);
    CHECK_STATUS(cfx_engine_run_buffer(engine, "", 0, NULL), CFX_EARG);
    CHECK_STATUS(cfx_engine_run_buffer(engine, NULL, 0, "t"), CFX_OK);
    free_engine(engine);
}

TEST(errors_have_a_traceback_and_the_engine_goes_on) {
    cfx_engine *engine = new_engine();
    refuses(engine, "local function f()\n  error 'no'\nend\nf()", CFX_ESCRIPT, "t.lua:2: no");
    CHECK(has(cfx_engine_error(engine), "stack traceback:"));
    CHECK(has(cfx_engine_error(engine), "t.lua:4: in main chunk"));
    refuses(engine, "\ncoroutine.wrap(function()\n  local t = nil\n  t.x = 1\nend)()", CFX_ESCRIPT,
            "t.lua:4: attempt to index local 't' (a nil value)");
    refuses(engine,
            "local co = coroutine.create(function() error 'inside' end)\n"
            "assert(coroutine.resume(co))",
            CFX_ESCRIPT, "t.lua:1: inside");
    refuses(engine, "error()", CFX_ESCRIPT, "(error object is a nil value)");
    refuses(engine, "error({})", CFX_ESCRIPT, "(error object is a table value)");
    refuses(engine, "error(setmetatable({}, {__tostring = function() return 'itself' end}))", CFX_ESCRIPT, "itself");
    refuses(engine, "local cf = require 'conflux'\n\ncf.matmul(cf.ones(2, 3), cf.ones(2, 3))", CFX_ESCRIPT,
            "t.lua:3: conflux.matmul: argument 'b': expected shape [3, n] for a [2, 3], got [2, 3] (float32, cpu:0)");
    char bytes[4000];
    memset(bytes, 'x', sizeof bytes);
    memcpy(bytes, "error('", 7);
    memcpy(bytes + sizeof bytes - 5, "', 0)", 5);
    CHECK_STATUS(cfx_engine_run_buffer(engine, bytes, sizeof bytes, "t.lua"), CFX_ESCRIPT);
    CHECK(strlen(cfx_engine_error(engine)) > 3900);
    run(engine, "x = 1");
    free_engine(engine);
}

TEST(os_exit_does_not_end_the_program_that_the_script_runs_in) {
    cfx_engine *engine = new_engine();
    refuses(engine, "x = 1\nos.exit(3)", CFX_ESCRIPT,
            "t.lua:2: os.exit: this script runs inside another program, which it cannot end");
    refuses(engine, "coroutine.wrap(function() os.exit(0, true) end)()", CFX_ESCRIPT, "which it cannot end");
    free_engine(engine);
}

/* ---- options --------------------------------------------------------------------------------------- */

TEST(options_that_cannot_be_are_refused) {
    cfx_engine *engine = NULL;
    cfx_engine_options options = {.size = sizeof options + 8};
    CHECK_STATUS(cfx_engine_new(&options, &engine), CFX_EARG);
    options.size = 0;
    CHECK_STATUS(cfx_engine_new(&options, &engine), CFX_EARG);
    options.size = sizeof options;
    options.devices = "gpu";
    CHECK_STATUS(cfx_engine_new(&options, &engine), CFX_EARG);
    CHECK(has(cfx_error(), "device 'gpu'"));
    CHECK(!engine);
    CHECK_STATUS(cfx_engine_new(&(cfx_engine_options){.size = 2 * sizeof(size_t), .devices = "cpu*2"}, &engine),
                 CFX_OK);
    CHECK_EQ(cfx_device_count(cfx_engine_context(engine)), 2);
    free_engine(engine);
    CHECK_STATUS(cfx_engine_new(NULL, &engine), CFX_OK);
    free_engine(engine);
}

/* Any size, of a struct that ends where memory does: what lies behind it cannot be read.  `ends` are the sizes that will
 * do, the last of them the struct's own. */
static void check_sizes(const void *options, const size_t *ends, int n, cfx_status (*make)(const void *options)) {
    const size_t page = (size_t)sysconf(_SC_PAGESIZE), most = ends[n - 1];
    char *pages = mmap(NULL, 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (!CHECK(pages != MAP_FAILED && mprotect(pages + page, page, PROT_NONE) == 0)) return;
    for (size_t size = 0; size <= most + 16; size++) {
        const size_t kept = size < sizeof size ? sizeof size : size;
        char *given = pages + page - kept;
        memset(given, 0, kept);
        memcpy(given, options, kept < most ? kept : most);
        memcpy(given, &size, sizeof size);
        int fits = 0;
        for (int i = 0; i < n; i++) fits = fits || ends[i] == size;
        if (!CHECK_STATUS(make(given), fits ? CFX_OK : CFX_EARG)) printf("# of %zu bytes\n", size);
        if (!fits) CHECK(has(cfx_error(), ": size: expected "));
    }
    munmap(pages, 2 * page);
}
#define END_OF(type, field) (offsetof(type, field) + sizeof(((type *)0)->field))

static cfx_status make_engine(const void *options) {
    cfx_engine *engine = NULL;
    const cfx_status status = cfx_engine_new(options, &engine);
    CHECK_STATUS(cfx_engine_free(engine), CFX_OK);
    return status;
}
static cfx_status make_context(const void *options) {
    cfx_context *made = NULL;
    const cfx_status status = cfx_context_new(options, &made);
    cfx_context_free(made);
    return status;
}

static cfx_context *context;
static cfx_tensor rows, gradient, moment;

static cfx_status make_loader(const void *options) {
    cfx_device *device = cfx_device_at(context, 0);
    const cfx_tensor *columns[] = {&rows};
    cfx_loader *loader = NULL;
    const cfx_status status = cfx_loader_new(options, 1, columns, &device, &loader);
    cfx_loader_free(&loader);
    return status;
}
static cfx_status join_and_leave(const void *options) {
    const cfx_status status = cfx_world_join(context, options);
    if (status == CFX_OK) CHECK_STATUS(cfx_world_leave(context), CFX_OK);
    return status;
}
static cfx_status update(const void *rule) {
    cfx_tensor *params[] = {&rows}, *moments[] = {&moment};
    const cfx_tensor *gradients[] = {&gradient};
    return cfx_optim_update(rule, 1, 1, params, gradients, moments, NULL, NULL, NULL);
}

TEST(options_end_where_a_field_does) {
    const int64_t n = 4;
    const cfx_engine_options engine = {.size = sizeof engine, .devices = "cpu", .threads = 1, .lua_path = "/x/?.lua"};
    const size_t engines[] = {END_OF(cfx_engine_options, size),
                              END_OF(cfx_engine_options, devices),
                              END_OF(cfx_engine_options, threads),
                              offsetof(cfx_engine_options, seed),
                              END_OF(cfx_engine_options, seed),
                              END_OF(cfx_engine_options, memory_limit),
                              END_OF(cfx_engine_options, lua_memory_limit),
                              END_OF(cfx_engine_options, lua_path),
                              END_OF(cfx_engine_options, log),
                              END_OF(cfx_engine_options, progress),
                              sizeof engine};
    check_sizes(&engine, engines, sizeof engines / sizeof *engines, make_engine);
    const cfx_context_options options = {.size = sizeof options, .devices = "cpu", .threads = 1};
    const size_t contexts[] = {END_OF(cfx_context_options, size),    END_OF(cfx_context_options, devices),
                               END_OF(cfx_context_options, threads), offsetof(cfx_context_options, seed),
                               END_OF(cfx_context_options, seed),    sizeof options};
    check_sizes(&options, contexts, sizeof contexts / sizeof *contexts, make_context);

    CHECK_STATUS(cfx_context_new(&options, &context), CFX_OK);
    cfx_tensor *const all[] = {&rows, &gradient, &moment};
    for (int i = 0; i < 3; i++)
        CHECK_STATUS(cfx_full(cfx_device_at(context, 0), CFX_FLOAT32, 1, &n, 1, all[i]), CFX_OK);
    const cfx_loader_options loader = {.size = sizeof loader, .batch = 1, .devices = 1};
    const size_t loaders[] = {END_OF(cfx_loader_options, devices),  END_OF(cfx_loader_options, shuffle),
                              END_OF(cfx_loader_options, last),     END_OF(cfx_loader_options, prefetch),
                              END_OF(cfx_loader_options, seed),     END_OF(cfx_loader_options, threads),
                              END_OF(cfx_loader_options, skip_bad), END_OF(cfx_loader_options, max_bad),
                              END_OF(cfx_loader_options, shards),   sizeof loader};
    check_sizes(&loader, loaders, sizeof loaders / sizeof *loaders, make_loader);
    const cfx_world_options world = {.size = sizeof world};
    const size_t worlds[] = {sizeof world.size, sizeof world};
    check_sizes(&world, worlds, sizeof worlds / sizeof *worlds, join_and_leave);
    const cfx_rule rule = {.size = sizeof rule, .name = "momentum", .rate = 0.1, .eps = 1};
    const size_t rules[] = {END_OF(cfx_rule, eps), END_OF(cfx_rule, clip_norm), sizeof rule};
    check_sizes(&rule, rules, sizeof rules / sizeof *rules, update);
    for (int i = 0; i < 3; i++) cfx_release(all[i]);
    cfx_context_free(context);
}

TEST(threads_are_as_many_as_lua_takes) {
    static const int32_t wrong[] = {-1, INT32_MIN, CFX_MAX_THREADS + 1, 100000, INT32_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cfx_engine *engine = NULL;
        cfx_context *none = NULL;
        const cfx_engine_options options = {.size = sizeof options, .devices = "cpu", .threads = wrong[i]};
        CHECK_STATUS(cfx_engine_new(&options, &engine), CFX_EARG);
        CHECK(!engine &&
              has(cfx_error(), "context: threads: expected 1 to 4096, or 0 for the cores of this process, got"));
        const cfx_context_options given = {.size = sizeof given, .devices = "cpu", .threads = wrong[i]};
        CHECK_STATUS(cfx_context_new(&given, &none), CFX_EARG);
        CHECK(!none);
    }
}

TEST(no_function_of_an_engine_takes_null) {
    cfx_engine *engine = new_engine();
    cfx_value value = {0};
    cfx_engine_interrupt(NULL);
    cfx_value_release(3, NULL);
    CHECK(cfx_engine_context(NULL) == NULL);
    CHECK_STR(cfx_engine_error(NULL), "");
    CHECK_STATUS(cfx_engine_free(NULL), CFX_OK);
#define REFUSED(call, message) CHECK_STATUS(call, CFX_EARG), CHECK(has(cfx_error(), message))
    REFUSED(cfx_engine_new(NULL, NULL), "engine_new: argument 'out': expected a place for it, got NULL");
    REFUSED(cfx_engine_run_file(NULL, "x"), "run_file: argument 'engine': expected one, got NULL");
    REFUSED(cfx_engine_run_file(engine, NULL), "run_file: argument 'path': expected a string, got NULL");
    REFUSED(cfx_engine_run_string(NULL, "x = 1"), "run_string: argument 'engine': expected one, got NULL");
    REFUSED(cfx_engine_run_string(engine, NULL), "run_string: argument 'text': expected a string, got NULL");
    REFUSED(cfx_engine_run_buffer(NULL, "", 0, "t"), "run_buffer: argument 'engine': expected one, got NULL");
    REFUSED(cfx_engine_run_buffer(engine, NULL, 1, "t"), "run_buffer: argument 'text': expected bytes, got NULL");
    REFUSED(cfx_engine_run_buffer(engine, "", 0, NULL), "run_buffer: argument 'name': expected a string, got NULL");
    REFUSED(cfx_engine_call(NULL, "f", 0, NULL, 0, NULL), "call: argument 'engine': expected one, got NULL");
    REFUSED(cfx_engine_register(NULL, "f", begin, NULL), "register: argument 'engine': expected one, got NULL");
    REFUSED(cfx_engine_register(engine, "f", NULL, NULL), "register: argument 'function': expected one, got NULL");
    REFUSED(cfx_engine_register(engine, NULL, begin, NULL), "register: argument 'name': expected one such as");
    REFUSED(cfx_value_string(NULL, 1, &value), "value_string: argument 'bytes': expected a string, got NULL");
    REFUSED(cfx_value_string("x", 1, NULL), "value_string: argument 'out': expected a place for it, got NULL");
#undef REFUSED
    value = text(NULL, 3);
    run(engine, "function id(...) return ... end");
    CHECK_STATUS(cfx_engine_call(engine, "id", 1, &value, 0, NULL), CFX_EARG);
    CHECK_STR(cfx_engine_error(engine), "call: id: argument 1: a string of 3 bytes at NULL");
    free_engine(engine);
}

TEST(scripts_see_the_options_context_and_path) {
    char directory[] = "/tmp/conflux-embed-XXXXXX", path[64], templates[64];
    CHECK(mkdtemp(directory) != NULL);
    snprintf(path, sizeof path, "%s/mine.lua", directory);
    snprintf(templates, sizeof templates, "%s/?.lua", directory);
    FILE *file = fopen(path, "w");
    CHECK(file && fputs("return {value = 7}", file) >= 0);
    if (file) fclose(file);
    cfx_engine *engine = engine_with((cfx_engine_options){.devices = "cpu*3", .seed = 11, .lua_path = templates});
    run(engine, "function value() return require('mine').value end\n"
                "local cf = require 'conflux'\n"
                "function devices() return #cf.devices() end\n"
                "function seed() return cf.rng()[1].seed end");
    CHECK_EQ(ask(engine, "value"), 7);
    CHECK_EQ(ask(engine, "devices"), 3);
    CHECK_EQ(ask(engine, "seed"), 11);
    free_engine(engine);
    remove(path);
    rmdir(directory);
}

/* ---- values ---------------------------------------------------------------------------------------- */

TEST(values_go_to_lua_and_back) {
    cfx_engine *engine = new_engine();
    run(engine, "model = {part = {}} function model.part.same(...) return ... end\n"
                "callable = setmetatable({}, {__call = function(self, x) return x + 1 end})");
    const cfx_value args[5] = {
        {0}, {.kind = CFX_BOOLEAN, .as = {.boolean = 1}}, number(-0.5), text("a\0b", 3), text("", 0)};
    cfx_value results[7];
    CHECK_STATUS(cfx_engine_call(engine, "model.part.same", 5, args, 7, results), CFX_OK);
    CHECK_EQ(results[0].kind, CFX_NIL);
    CHECK(results[1].kind == CFX_BOOLEAN && results[1].as.boolean == 1);
    CHECK(results[2].kind == CFX_NUMBER && results[2].as.number == -0.5);
    CHECK(results[3].kind == CFX_STRING && results[3].as.string.length == 3);
    CHECK(memcmp(results[3].as.string.bytes, "a\0b", 4) == 0);
    CHECK(results[4].kind == CFX_STRING && results[4].as.string.length == 0);
    CHECK(results[5].kind == CFX_NIL && results[6].kind == CFX_NIL);
    cfx_value_release(7, results);
    cfx_value_release(7, results);
    CHECK_EQ(results[3].kind, CFX_NIL);
    CHECK_STATUS(cfx_engine_call(engine, "model.part.same", 5, args, 1, results), CFX_OK);
    CHECK_STATUS(cfx_engine_call(engine, "callable", 1, &args[2], 1, results), CFX_OK);
    CHECK_NEAR(results[0].as.number, 0.5, 0);
    free_engine(engine);
}

TEST(tensors_go_to_lua_and_back_and_are_not_copied) {
    cfx_engine *engine = new_engine();
    float memory[6] = {1, 2, 3, 4, 5, 6}, product[6];
    const int64_t shape[2] = {2, 3};
    cfx_tensor x = {0};
    void *address;
    CHECK_STATUS(cfx_share(device_of(engine), CFX_FLOAT32, 2, shape, memory, sizeof memory, NULL, NULL, &x), CFX_OK);
    run(engine, "function twice(x) return x, x * 2, x.shape[1] end function change(x) x:fill_(9) end");
    const cfx_value arg = tensor(&x);
    cfx_value results[3];
    CHECK_STATUS(cfx_engine_call(engine, "twice", 1, &arg, 3, results), CFX_OK);
    CHECK(results[0].kind == CFX_TENSOR && results[1].kind == CFX_TENSOR);
    CHECK_STATUS(cfx_pointer(&results[0].as.tensor, &address), CFX_OK);
    CHECK(address == memory);
    CHECK_STATUS(cfx_read(&results[1].as.tensor, product, sizeof product), CFX_OK);
    CHECK_EQ(product[5], 12);
    CHECK_EQ(results[2].as.number, 2);
    cfx_value_release(3, results);
    CHECK_STATUS(cfx_engine_call(engine, "change", 1, &arg, 0, NULL), CFX_OK);
    CHECK_STATUS(cfx_wait(&x), CFX_OK);
    CHECK_EQ(memory[3], 9);
    cfx_release(&x);
    free_engine(engine);
}

TEST(a_tensor_that_outlives_its_engine_is_void) {
    cfx_engine *engine = new_engine();
    run(engine, "function make() return require('conflux').ones(3) end");
    cfx_value result;
    float values[3];
    CHECK_STATUS(cfx_engine_call(engine, "make", 0, NULL, 1, &result), CFX_OK);
    free_engine(engine);
    CHECK_STATUS(cfx_read(&result.as.tensor, values, sizeof values), CFX_EARG);
    cfx_value_release(1, &result);
}

TEST(calls_that_do_not_fit_are_refused) {
    cfx_engine *engine = new_engine(), *other = new_engine();
    run(engine, "x = 1 t = {} function id(...) return ... end\n"
                "function list() return 1, 'two', {} end function many() return unpack({}, 1, 100) end\n"
                "function wide() return 1LL end");
    static const struct {
        const char *name, *message;
    } names[] = {
        {"nothing", "call: 'nothing' is not a function, but a nil value"},
        {"x", "call: 'x' is not a function, but a number value"},
        {"t.f", "call: 't.f' is not a function, but a nil value"},
        {"x.f", "call: 'x.f': 'x' is not a table, but a number value"},
        {"t.u.f", "call: 't.u.f': 't.u' is not a table, but a nil value"},
        {"", "call: argument 'name': expected one such as 'train' or 'model.train', got ''"},
        {".id", "call: argument 'name': expected one such as 'train' or 'model.train', got '.id'"},
        {"t..id", "call: argument 'name': expected one such as 'train' or 'model.train', got 't..id'"},
        {NULL, "call: argument 'name': expected one such as 'train' or 'model.train', got 'NULL'"},
    };
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        CHECK_STATUS(cfx_engine_call(engine, names[i].name, 0, NULL, 0, NULL), CFX_EARG);
        CHECK_STR(cfx_engine_error(engine), names[i].message);
    }
    cfx_value results[3], arg = {.kind = 17};
    CHECK_STATUS(cfx_engine_call(engine, "id", 1, &arg, 0, NULL), CFX_EARG);
    CHECK_STR(cfx_engine_error(engine), "call: id: argument 1: expected a cfx_kind, got 17");
    CHECK_STATUS(cfx_engine_call(engine, "list", 0, NULL, 3, results), CFX_EARG);
    CHECK_STR(cfx_engine_error(engine),
              "call: list: result 3: expected nil, boolean, number, string or tensor, got table");
    CHECK(results[0].kind == CFX_NIL && results[1].kind == CFX_NIL);
    CHECK_STATUS(cfx_engine_call(engine, "wide", 0, NULL, 1, results), CFX_EARG);
    CHECK(has(cfx_engine_error(engine), "or tensor, got cdata"));
    CHECK_STATUS(cfx_engine_call(engine, "many", 0, NULL, 2, results), CFX_OK);
    CHECK_STATUS(cfx_engine_call(engine, "id", 1, NULL, 0, NULL), CFX_EARG);
    CHECK_STATUS(cfx_engine_call(engine, "id", -1, NULL, 0, NULL), CFX_EARG);
    CHECK_STATUS(cfx_engine_call(engine, "id", 0, NULL, 1, NULL), CFX_EARG);

    cfx_tensor x = {0};
    const int64_t n = 2;
    CHECK_STATUS(cfx_full(device_of(other), CFX_FLOAT32, 1, &n, 1, &x), CFX_OK);
    arg = tensor(&x);
    CHECK_STATUS(cfx_engine_call(engine, "id", 1, &arg, 0, NULL), CFX_EARG);
    CHECK_STR(cfx_engine_error(engine), "call: id: argument 1: a tensor of another context, on cpu:0 there");
    cfx_release(&x);
    arg = tensor(&x);
    CHECK_STATUS(cfx_engine_call(engine, "id", 1, &arg, 0, NULL), CFX_EARG);
    CHECK(has(cfx_engine_error(engine), "a tensor that was released"));
    free_engine(engine);
    free_engine(other);
}

/* ---- functions of the host's ------------------------------------------------------------------------ */

typedef struct host {
    cfx_engine *engine;
    cfx_tensor kept;
    int calls;
    cfx_status inner;
} host;

static int32_t describe(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    host *h = data;
    char kinds[32] = "";
    h->calls++;
    for (int32_t i = 0; i < nargs && i < 30; i++) kinds[i] = "0bnst"[args[i].kind];
    CHECK_EQ(nresults, CFX_MAX_RESULTS);
    return cfx_value_string(kinds, strlen(kinds), &results[0]) == CFX_OK ? 1 : -1;
}

static int32_t keep(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    host *h = data;
    (void)nresults;
    if (nargs != 1 || args[0].kind != CFX_TENSOR) return -1; /* and says nothing */
    if (cfx_retain(&args[0].as.tensor, &h->kept) != CFX_OK) return -1;
    results[0].kind = CFX_TENSOR;
    return cfx_binary_scalar(cfx_op_find("add"), &args[0].as.tensor, 1, 0, &results[0].as.tensor) == CFX_OK ? 1 : -1;
}

static int32_t misfit(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    cfx_tensor x = {0};
    (void)data;
    (void)nargs;
    (void)nresults;
    results[0].kind = CFX_TENSOR; /* given back although the call fails */
    if (cfx_retain(&args[0].as.tensor, &results[0].as.tensor) != CFX_OK) return -1;
    return cfx_matmul(&args[0].as.tensor, &args[1].as.tensor, &x) == CFX_OK ? 1 : -1;
}

static int32_t too_many(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    (void)data, (void)nargs, (void)args, (void)results;
    return nresults + 1;
}

static int32_t call_back(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    host *h = data;
    (void)nargs, (void)args, (void)nresults, (void)results;
    h->inner = cfx_engine_run_string(h->engine, "x = 1");
    CHECK_STATUS(cfx_engine_free(h->engine), CFX_ESTATE);
    return h->inner == CFX_OK ? 0 : -1;
}

TEST(lua_calls_functions_of_the_program) {
    cfx_engine *engine = new_engine();
    host h = {.engine = engine};
    float value[2];
    CHECK_STATUS(cfx_engine_register(engine, "describe", describe, &h), CFX_OK);
    CHECK_STATUS(cfx_engine_register(engine, "host.deep.describe", describe, &h), CFX_OK);
    CHECK_STATUS(cfx_engine_register(engine, "host.keep", keep, &h), CFX_OK);
    run(engine, "local cf = require 'conflux'\n"
                "assert(describe(nil, true, 1, 'x', cf.ones(2)) == '0bnst')\n"
                "assert(host.deep.describe() == '')\n"
                "assert(host.keep(cf.full(3, 2)):sum():item() == 8)\n"
                "collectgarbage() collectgarbage()");
    CHECK_EQ(h.calls, 2);
    CHECK_STATUS(cfx_read(&h.kept, value, sizeof value), CFX_OK);
    CHECK_EQ(value[1], 3);
    cfx_release(&h.kept);
    CHECK_STATUS(cfx_engine_register(engine, "describe.x", describe, &h), CFX_EARG);
    CHECK_STR(cfx_engine_error(engine), "register: 'describe.x': 'describe' is not a table, but a function value");
    CHECK_STATUS(cfx_engine_register(engine, "", describe, &h), CFX_EARG);
    CHECK_STATUS(cfx_engine_register(engine, "x", NULL, &h), CFX_EARG);
    free_engine(engine);
}

TEST(a_function_that_fails_is_an_error_at_the_line_that_called_it) {
    cfx_engine *engine = new_engine();
    host h = {.engine = engine};
    CHECK_STATUS(cfx_engine_register(engine, "keep", keep, &h), CFX_OK);
    CHECK_STATUS(cfx_engine_register(engine, "misfit", misfit, &h), CFX_OK);
    CHECK_STATUS(cfx_engine_register(engine, "too_many", too_many, &h), CFX_OK);
    CHECK_STATUS(cfx_engine_register(engine, "call_back", call_back, &h), CFX_OK);
    refuses(engine, "\n\nkeep(1)", CFX_ESCRIPT, "t.lua:3: the function failed");
    refuses(engine, "local cf = require 'conflux'\nmisfit(cf.ones(2, 3), cf.ones(2, 3))", CFX_ESCRIPT,
            "t.lua:2: matmul: argument 'b': expected shape [3, n] for a [2, 3], got [2, 3] (float32, cpu:0)");
    refuses(engine, "\nkeep(print)", CFX_ESCRIPT,
            "t.lua:2: argument 1: expected nil, boolean, number, string or tensor, got function");
    refuses(engine, "too_many()", CFX_ESCRIPT, "t.lua:1: 17 results are more than a function may have");
    run(engine, "assert(select(2, pcall(keep, 1)):find 'the function failed')");
    refuses(engine, "\ncall_back()", CFX_ESCRIPT,
            "t.lua:2: the engine is in use: by another thread, or by a script that called this function");
    CHECK_EQ(h.inner, CFX_ESTATE);
    cfx_memory_info info;
    run(engine, "collectgarbage() collectgarbage()");
    cfx_memory(device_of(engine), &info);
    CHECK_EQ(info.blocks, 0);
    free_engine(engine);
}

/* ---- hooks ----------------------------------------------------------------------------------------- */

typedef struct bars {
    int n, finished;
    double done, loss;
    char label[16];
} bars;

static void note(void *data, const cfx_progress *p) {
    bars *b = data;
    b->n++;
    b->finished += p->finished;
    b->done = p->done / p->total;
    b->loss = p->loss;
    snprintf(b->label, sizeof b->label, "%s", p->label);
    CHECK(p->rate >= 0 && p->seconds >= 0);
}

TEST(progress_goes_to_the_hook_and_nowhere_else) {
    bars b = {0};
    static const char script[] = "local cf = require 'conflux' local bar = cf.progress(4, {label = 'e'})\n"
                                 "for i = 1, 4 do bar:update(1, {loss = i}) end bar:finish()";
    cfx_engine *engine = engine_with((cfx_engine_options){.progress = note, .progress_data = &b});
    run(engine, script);
    CHECK(b.n >= 1 && b.n <= 5);
    CHECK_EQ(b.finished, 1);
    CHECK_EQ(b.done, 1);
    CHECK_EQ(b.loss, 4);
    CHECK_STR(b.label, "e");
    run(engine, "require('conflux').progress(1):finish()");
    CHECK(isnan(b.loss));
    CHECK_STR(b.label, "");
    free_engine(engine);
    engine = new_engine();
    run(engine, script);
    free_engine(engine);
}

static void stop_it(void *data, const cfx_progress *p) {
    (void)p;
    cfx_engine_interrupt(*(cfx_engine **)data);
}

TEST(the_progress_hook_may_interrupt) {
    cfx_engine *engine = NULL;
    engine = engine_with((cfx_engine_options){.progress = stop_it, .progress_data = &engine});
    refuses(engine, "local bar = require('conflux').progress(1)\nbar:update()\nx = 1", CFX_EINTERRUPT,
            "t.lua:2: interrupted!");
    run(engine, "assert(not x)");
    free_engine(engine);
}

/* ---- several --------------------------------------------------------------------------------------- */

static void *run_other(void *data) {
    stopper *s = data;
    while (!atomic_load(&s->begun)) usleep(100);
    CHECK_STATUS(cfx_engine_run_string(s->engine, "x = 2"), CFX_ESTATE);
    CHECK(has(cfx_error(), "the engine is in use"));
    CHECK_STATUS(cfx_engine_call(s->engine, "f", 0, NULL, 0, NULL), CFX_ESTATE);
    CHECK_STATUS(cfx_engine_register(s->engine, "f", begin, s), CFX_ESTATE);
    CHECK_STATUS(cfx_engine_free(s->engine), CFX_ESTATE);
    cfx_engine_interrupt(s->engine);
    return NULL;
}

TEST(an_engine_is_refused_to_a_second_thread_while_the_first_uses_it) {
    stopper s = {.engine = new_engine()};
    CHECK_STATUS(cfx_engine_register(s.engine, "begin", begin, &s), CFX_OK);
    if (pthread_create(&s.thread, NULL, run_other, &s) != 0) printf("# no thread\n"), exit(2);
    CHECK_STATUS(cfx_engine_run_string(s.engine, "x = 1 begin() while true do t = {t and #t} end"), CFX_EINTERRUPT);
    pthread_join(s.thread, NULL);
    run(s.engine, "assert(x == 1)");
    free_engine(s.engine);
}

static void *use_and_free(void *data) {
    cfx_engine *engine = data;
    run(engine, "assert(x == 3 and (require('conflux').ones(2) + x):sum():item() == 8)");
    free_engine(engine);
    return NULL;
}

TEST(an_engine_may_go_from_thread_to_thread) {
    pthread_t thread;
    cfx_engine *engine = new_engine();
    run(engine, "x = require('conflux').ones(3):sum():item()");
    if (pthread_create(&thread, NULL, use_and_free, engine) != 0) printf("# no thread\n"), exit(2);
    pthread_join(thread, NULL);
}

TEST(engines_know_nothing_of_each_other) {
    cfx_engine *one = engine_with((cfx_engine_options){.seed = 1}), *two = engine_with((cfx_engine_options){.seed = 2});
    run(one, "x = 1 cf = require 'conflux' function draw() return cf.rand(1):item() end");
    run(two, "assert(not x) cf = require 'conflux' function draw() return cf.rand(1):item() end");
    const double first = ask(one, "draw");
    CHECK(first != ask(two, "draw"));
    run(one, "cf.seed(1)");
    CHECK(ask(two, "draw") != first);
    CHECK(ask(one, "draw") == first);
    CHECK_STATUS(cfx_engine_run_string(one, "error 'no'"), CFX_ESCRIPT);
    CHECK_STR(cfx_engine_error(two), "");
    free_engine(one);
    run(two, "assert(cf.ones(2):sum():item() == 2)");
    free_engine(two);
}
