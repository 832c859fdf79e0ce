/* Hosts of any kind: floating-point mode, locale, stacks. */
#include "test.h"

#include <fenv.h>
#include <locale.h>

#include "engines.h"

/* ---- the floating-point mode ------------------------------------------------------------------------- */

#if defined(__x86_64__)
enum { FLUSH = 0x8000, ZEROES = 0x40 }; /* of MXCSR: tiny results become 0, tiny operands count as 0 */
static unsigned extra_bits(void) { return __builtin_ia32_stmxcsr() & (FLUSH | ZEROES); }
static void set_extra(unsigned bits) { __builtin_ia32_ldmxcsr((__builtin_ia32_stmxcsr() & ~(FLUSH | ZEROES)) | bits); }
#else
enum { FLUSH = 0, ZEROES = 0 };
static unsigned extra_bits(void) { return 0; }
static void set_extra(unsigned bits) { (void)bits; }
#endif

typedef struct mode {
    const char *name;
    int rounding;
    unsigned extra;
} mode;
static const mode usual = {"the usual mode", FE_TONEAREST, 0};
static const mode modes[] = {
    {"up", FE_UPWARD, 0},
    {"down", FE_DOWNWARD, 0},
    {"towards zero", FE_TOWARDZERO, 0},
    {"tiny results are 0", FE_TONEAREST, FLUSH},
    {"tiny operands are 0", FE_TONEAREST, ZEROES},
    {"all at once", FE_UPWARD, FLUSH | ZEROES},
};
enum { MODES = sizeof modes / sizeof *modes };

static void set(const mode *m) {
    fesetround(m->rounding);
    set_extra(m->extra);
}
static int is_set(const mode *m) { return fegetround() == m->rounding && extra_bits() == m->extra; }

/* A Conflux call of the test's, after which the mode is what it was. */
#define KEEPS(m, call)    \
    do {                  \
        call;             \
        CHECK(is_set(m)); \
    } while (0)

/* All that numbers go through: kernels of each size of team, the optimisers' own numbers, files, loaders, Lua. */
static const char numbers[] =
    "local cf = require 'conflux' local nn, optim = cf.nn, cf.optim\n"
    "local said = {}\n"
    "local function say(...)\n"
    "  for _, x in ipairs {...} do said[#said + 1] = ('%.17g'):format(type(x) == 'number' and x or x:item()) end\n"
    "end\n"
    "function compute(path)\n"
    "  said = {}\n"
    "  cf.seed(1)\n"
    "  local x, big = cf.rand(40, 30), cf.rand(300, 400)\n"
    "  say(0.1 + 0.2, 1 / 3, 1e-310 / 3, tonumber '0.1234567890123456789', cf.full(1 / 3, 1), cf.tensor {0.1})\n"
    "  say(cf.full(0.2, 1):round(), cf.full(0.2, 200000):round():sum(), cf.full(0.8, 200000):floor():sum())\n"
    "  say(cf.full(1e-39, 7):sum(), (cf.full(1e-39, 200000) * 0.5):sum() * 1e30, cf.full(1e-30, 9):square():max())\n"
    "  say((x / 3):sum(), (big / 3):sum(), big:matmul(big:t()):sum(), x:tanh():var(), big:exp():mean())\n"
    "  say(big:to 'float16':sum(), big:to 'bfloat16':sum(), (big:to 'float64' / 3):sum(), cf.randn(200000):sum())\n"
    "  say(cf.data.csv(path):sum(), cf.data.csv(path, {dtype = 'float64'}):sum())\n"
    "  local model = nn.Chain(nn.Dense(30, 70, 'tanh'), nn.LayerNorm(70), nn.Dense(70, 5))\n"
    "  for _, rule in ipairs {optim.NAdam(1e-2), optim.Chain(optim.ClipNorm(0.3), optim.AdamW(1e-2)), "
    "optim.Momentum(0.1)} do\n"
    "    local state = rule:setup(model)\n"
    "    for _, batch in cf.data.DataLoader({x, cf.randint(0, 4, 40)}, {batch = 7, shuffle = true, last = 'keep',\n"
    "                                                               devices = 'cpu:0'}):epoch(0) do\n"
    "      local loss, grads = cf.withgradient(function(m)\n"
    "        return nn.crossentropy(m(batch[1][1]), batch[1][2]) end, model)\n"
    "      optim.update(state, model, grads)\n"
    "      say(loss)\n"
    "    end\n"
    "  end\n"
    "  return table.concat(said, ' ')\n"
    "end";

static cfx_engine *engine_of(int32_t threads, cfx_progress_hook progress, void *data) {
    const cfx_engine_options options = {
        .size = sizeof options, .devices = "cpu", .threads = threads, .progress = progress, .progress_data = data};
    cfx_engine *engine = NULL;
    if (cfx_engine_new(&options, &engine) != CFX_OK) printf("# %s\n", cfx_error()), exit(2);
    return engine;
}

static char path[32]; /* of a file of numbers; "": there is none */

static void make_file(void) {
    strcpy(path, "/tmp/conflux-embed-XXXXXX");
    const int file = mkstemp(path);
    FILE *f = file >= 0 ? fdopen(file, "w") : NULL;
    CHECK(f && fputs("0.1,0.7,1e-41\n0.3,1234567.0123456789123456,7.0000001e-3\n", f) >= 0);
    if (f) fclose(f);
}
static void remove_file(void) {
    remove(path);
    *path = 0;
}

static char *computed(cfx_engine *engine) {
    if (!*path) make_file();
    const cfx_value arg = {.kind = CFX_STRING, .as = {.string = {path, strlen(path)}}};
    cfx_value result;
    if (!CHECK_STATUS(cfx_engine_call(engine, "compute", 1, &arg, 1, &result), CFX_OK)) exit(1);
    char *said = strdup(result.kind == CFX_STRING ? result.as.string.bytes : "");
    cfx_value_release(1, &result);
    return said;
}

TEST(equal_runs_give_equal_bits_in_any_floating_point_mode_of_the_host) {
    for (int32_t threads = 1; threads <= 3; threads += SANITIZED ? 2 : 1) {
        set(&usual);
        cfx_engine *engine = engine_of(threads, NULL, NULL), *made = NULL;
        run(engine, numbers);
        char *wanted = computed(engine);
        CHECK(strlen(wanted) > 200);
        for (int i = 0; i < MODES; i++) {
            const mode *m = &modes[i];
            set(m); /* for good, before there is an engine */
            KEEPS(m, made = engine_of(threads, NULL, NULL));
            KEEPS(m, run(made, numbers));
            char *got = NULL, *again = NULL;
            KEEPS(m, got = computed(made));
            /* teams that are made anew, and an engine that knew the usual mode */
            KEEPS(m, CHECK_STATUS(cfx_devices_set(cfx_engine_context(made), "cpu*3"), CFX_OK));
            KEEPS(m, CHECK_STATUS(cfx_devices_set(cfx_engine_context(made), "cpu"), CFX_OK));
            KEEPS(m, again = computed(made));
            if (!CHECK_STR(got, wanted) || !CHECK_STR(again, wanted))
                printf("# %s, %d threads\n", m->name, (int)threads);
            free(again);
            KEEPS(m, again = computed(engine));
            CHECK_STR(again, wanted);
            free(got);
            free(again);
            KEEPS(m, free_engine(made));
            set(&usual);
        }
        free(wanted);
        free_engine(engine);
    }
    remove_file();
}

typedef struct seen {
    const mode *mode;
    int calls;
} seen;

static int32_t look(void *data, int32_t nargs, const cfx_value *args, int32_t nresults, cfx_value *results) {
    seen *s = data;
    (void)args, (void)nresults, (void)results;
    CHECK(is_set(s->mode));
    s->calls++;
    if (nargs == 0) return 0;
    cfx_error_set("no");
    return -1;
}

static void look_at(void *data, const cfx_progress *progress) {
    seen *s = data;
    (void)progress;
    CHECK(is_set(s->mode));
    s->calls++;
}

TEST(the_hosts_mode_is_there_in_its_functions_and_after_calls_that_fail) {
    for (int i = 0; i < MODES; i++) {
        seen s = {.mode = &modes[i]};
        cfx_engine *engine = engine_of(1, look_at, &s), *none = NULL;
        set(s.mode);
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_register(engine, "look", look, &s), CFX_OK));
        KEEPS(s.mode, run(engine, "for i = 1, 3 do look() assert(0.1 + 0.2 == 0x1.3333333333334p-2) end"));
        KEEPS(s.mode, run(engine, "require('conflux').progress(1):finish()"));
        CHECK(s.calls >= 4);
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_run_string(engine, "look(1)"), CFX_ESCRIPT));
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_run_string(engine, "error 'no'"), CFX_ESCRIPT));
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_run_string(engine, "x ="), CFX_ESCRIPT));
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_run_file(engine, "/nowhere/t.lua"), CFX_EIO));
        KEEPS(s.mode, CHECK_STATUS(cfx_engine_call(engine, "nothing", 0, NULL, 0, NULL), CFX_EARG));
        KEEPS(s.mode,
              CHECK_STATUS(
                  cfx_engine_new(&(cfx_engine_options){.size = sizeof(cfx_engine_options), .devices = "x"}, &none),
                  CFX_EARG));
        KEEPS(s.mode, free_engine(engine));
        set(&usual);
    }
}

TEST(floating_point_traps_of_the_host_are_not_ours) {
#if defined(__x86_64__)
    feclearexcept(FE_ALL_EXCEPT);
    CHECK(feenableexcept(FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW) >= 0);
    cfx_engine *engine = engine_of(2, NULL, NULL);
    run(engine, "local cf = require 'conflux' local x, zero = 1, 0\n"
                "assert(x / zero == math.huge and (cf.ones(100000) / 0):max():item() == math.huge)");
    CHECK_EQ(fegetexcept(), FE_DIVBYZERO | FE_INVALID | FE_OVERFLOW);
    free_engine(engine);
    fedisableexcept(FE_ALL_EXCEPT);
#endif
}

/* ---- stacks ------------------------------------------------------------------------------------------ */

/* Code that goes deepest: in LuaJIT's parser, where C functions call each other, and in Conflux. */
static const char deep[] =
    "local cf = require 'conflux' local nn, optim = cf.nn, cf.optim\n"
    "for _, open in ipairs {'x = (', 'x = {', 'return function() ', 'a = function() if x then ', 'f{f{', 'a[', 'not '} "
    "do\n"
    "  assert(not loadstring(('return '):rep(open == 'not ' and 1 or 0) .. open:rep(5000)))\n"
    "  for n = 150, 220 do loadstring(open:rep(n)) end\n"
    "end\n"
    "local function f() return (('x'):gsub('x', f)) end assert(not pcall(f))\n"
    "local function g() table.sort({1, 2, 3}, g) end assert(not pcall(g))\n"
    "local function h() coroutine.resume(coroutine.create(h)) error 'no' end assert(not pcall(h))\n"
    "local model = nn.Chain(nn.Dense(3, 4, 'tanh'), nn.Dense(4, 2))\n"
    "local state = optim.Chain(optim.ClipNorm(1), optim.Adam(1e-2)):setup(model)\n"
    "for _, batch in cf.data.DataLoader({cf.rand(8, 3), cf.randint(0, 1, 8)}, {batch = 4, devices = 'cpu:0'}):epoch(0) "
    "do\n"
    "  local _, grads = cf.withgradient(function(m) return nn.crossentropy(m(batch[1][1]), batch[1][2]) end, model)\n"
    "  optim.update(state, model, grads)\n"
    "end\n"
    "local path = os.tmpname() cf.save(path, model) cf.load(path) os.remove(path)\n"
    "assert(not pcall(cf.matmul, cf.ones(2, 3), cf.ones(2, 3)) and #tostring(cf.info()) > 0)\n";

typedef struct small {
    cfx_engine *engine; /* made elsewhere */
    size_t bytes;
    int refused, done;
} small;

static void count(small *s, cfx_status status) {
    if (status == CFX_OK) {
        s->done++;
        return;
    }
    CHECK_STATUS(status, CFX_ESTATE);
    CHECK(has(cfx_error(), " bytes of stack left; engines need 524288"));
    s->refused++;
}

static void *call_all(void *data) {
    small *s = data;
    cfx_engine *own = NULL;
    cfx_value result;
    count(s, cfx_engine_new(&(cfx_engine_options){.size = sizeof(cfx_engine_options), .devices = "cpu", .threads = 1},
                            &own));
    if (own) count(s, cfx_engine_run_string(own, deep));
    if (own) count(s, cfx_engine_free(own));
    count(s, cfx_engine_run_string(s->engine, deep));
    count(s, cfx_engine_call(s->engine, "nothing", 0, NULL, 1, &result));
    count(s, cfx_engine_register(s->engine, "look", look, NULL));
    if (s->refused) count(s, cfx_engine_free(s->engine));
    return NULL;
}

TEST(a_thread_with_too_small_a_stack_is_refused_and_one_with_the_least_can_do_all) {
    small s = {.engine = engine_of(1, NULL, NULL)};
    run(s.engine, "function nothing() end");
    const size_t least = CFX_STACK_BYTES;
    const size_t sizes[] = {64 << 10,           128 << 10,          least / 2,           least - 4096, least,
                            least + (32 << 10), least + (64 << 10), least + (128 << 10), 4 * least,    8 * least};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        pthread_attr_t attributes;
        pthread_t thread;
        s.refused = s.done = 0;
        s.bytes = sizes[i];
        pthread_attr_init(&attributes);
        CHECK_EQ(pthread_attr_setstacksize(&attributes, s.bytes), 0);
        if (pthread_create(&thread, &attributes, call_all, &s) != 0) printf("# no thread\n"), exit(2);
        pthread_join(thread, NULL);
        pthread_attr_destroy(&attributes);
        printf("# %zu KiB: %d calls refused, %d done\n", s.bytes >> 10, s.refused, s.done);
        CHECK(s.done == 0 || s.refused == 0);
        if (s.bytes <= least) CHECK(s.done == 0);
        if (s.bytes >= 4 * least) CHECK(s.refused == 0); /* a sanitizer takes some of a stack for itself */
    }
    run(s.engine, "nothing()");
    free_engine(s.engine);
}

/* ---- the locale -------------------------------------------------------------------------------------- */

static int has_comma(void) {
    char text[16];
    snprintf(text, sizeof text, "%.1f", 23.5);
    return strcmp(text, "23,5") == 0;
}

/* A locale with a comma: one that is installed, or one that is made here. */
static int set_comma(void) {
    static const char *const names[] = {"de_DE.UTF-8", "de_DE.utf8",  "de_DE",
                                        "fr_FR.UTF-8", "nl_NL.UTF-8", "ru_RU.UTF-8"};
    for (int made = 0; made < 2; made++) {
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            if (setlocale(LC_ALL, names[i]) && has_comma()) return 1;
        if (made || setenv("LOCPATH", "build/locale", 1) != 0) break;
        if (system("mkdir -p build/locale && localedef -i de_DE -f UTF-8 build/locale/de_DE.UTF-8") != 0)
            printf("# localedef does not make de_DE.UTF-8: is the package `locales` installed?\n");
    }
    return 0;
}

/* Numbers as C functions format them. */
static void say_numbers(cfx_engine *engine, char *text, size_t bytes) {
    cfx_tensor x = {0}, y = {0};
    const int64_t n = 2;
    cfx_device *device = cfx_device_at(cfx_engine_context(engine), 0);
    CHECK_STATUS(cfx_full(device, CFX_FLOAT32, 1, &n, 1, &x), CFX_OK);
    CHECK_STATUS(cfx_dropout(&x, 1.5, 0, &y), CFX_EARG);
    size_t used = (size_t)snprintf(text, bytes, "%s|", cfx_error());
    CHECK_STATUS(cfx_random(device, CFX_INT64, 1, &n, "integer", 2.5, 1.25, 0, &y), CFX_EARG);
    used += (size_t)snprintf(text + used, bytes - used, "%s|", cfx_error());
    CHECK_STATUS(cfx_idx_read(device, "/nowhere/file", &y), CFX_EIO);
    used += (size_t)snprintf(text + used, bytes - used, "%s|", cfx_error());
    for (int32_t i = 0; i < cfx_backend_count(); i++) {
        cfx_backend_info info;
        CHECK_STATUS(cfx_backend(i, &info), CFX_OK);
        if (strcmp(info.name, "cpu") == 0) CHECK_STATUS(cfx_backend_device(i, 0, text + used, bytes - used), CFX_OK);
    }
    cfx_release(&x);
}

TEST(what_conflux_says_and_reads_does_not_depend_on_the_locale) {
    char before[1000], after[1000];
    cfx_engine *engine = engine_of(2, NULL, NULL);
    run(engine, numbers);
    char *wanted = computed(engine);
    say_numbers(engine, before, sizeof before);
    if (CHECK(set_comma())) {
        char *got = computed(engine);
        CHECK_STR(got, wanted);
        free(got);
        say_numbers(engine, after, sizeof after);
        CHECK_STR(after, before);
        CHECK(has(after, "got 1.5|") && has(after, " GiB"));
        CHECK(has_comma()); /* and still is the host's */
        run(engine, "assert(tostring(0.5) == '0.5' and tonumber '2.5' == 2.5 and ('%.1f'):format(23.5) == '23.5')");
        setlocale(LC_ALL, "C");
    }
    free(wanted);
    free_engine(engine);
    remove_file();
}
