/* Scripts that are stopped at any moment, by another thread or a full memory; and that their engine goes on afterwards. */
#include "test.h"

#include "engines.h"

/* ---- interrupts ------------------------------------------------------------------------------------ */

static void *interrupt(void *data) {
    stopper *s = data;
    while (!atomic_load(&s->begun)) usleep(100);
    usleep(5000);
    cfx_engine_interrupt(s->engine);
    return NULL;
}

TEST(an_interrupt_from_another_thread_ends_the_call) {
    static const char *const endless[] = {
        "local cf = require 'conflux' local x = cf.ones(10) begin() while true do x = x * 1 end",
        "local cf = require 'conflux' local x = cf.ones(10) begin() while true do (x + 1):sum():item() end",
        "begin() local i, t = 0, {} while true do i = i + 1 t[1] = 'number ' .. i end",
        "begin() local t while true do t = {t and #t} end",
        "jit.off() begin() local i = 0 while true do i = i + 1 local s = 'number ' .. i end",
        "begin() coroutine.wrap(function() while true do local f = function() end f() end end)()",
        "begin() while true do nothing() end",
    };
    stopper s = {.engine = new_engine()};
    CHECK_STATUS(cfx_engine_register(s.engine, "begin", begin, &s), CFX_OK);
    CHECK_STATUS(cfx_engine_register(s.engine, "nothing", begin, &s), CFX_OK);
    for (size_t i = 0; i < sizeof endless / sizeof *endless; i++) {
        atomic_store(&s.begun, 0);
        if (pthread_create(&s.thread, NULL, interrupt, &s) != 0) printf("# no thread\n"), exit(2);
        CHECK_STATUS(cfx_engine_run_string(s.engine, endless[i]), CFX_EINTERRUPT);
        CHECK(has(cfx_engine_error(s.engine), "interrupted!"));
        pthread_join(s.thread, NULL);
        run(s.engine, "local t = {} for i = 1, 1000 do t[i] = {} end x = require('conflux').ones(3):sum():item()");
    }
    free_engine(s.engine);
}

TEST(an_interrupt_while_nothing_runs_interrupts_nothing) {
    cfx_engine *engine = new_engine();
    cfx_engine_interrupt(engine);
    run(engine, "x = require('conflux').ones(3):sum():item()");
    cfx_engine_interrupt(engine);
    CHECK_STATUS(cfx_check(cfx_engine_context(engine)), CFX_OK);
    free_engine(engine);
}

/* ---- interrupts that a script would swallow ---------------------------------------------------------- */

TEST(no_script_swallows_an_interrupt) {
    static const char *const stubborn[] = {
        "begin() while true do pcall(function() while true do x = cf.ones(10) * 1 end end) end",
        "begin() while true do pcall(function() while true do (cf.ones(3) + 1):sum():item() end end) end",
        "begin() while true do pcall(function() local i = 0 while true do i = i + 1 t = {i .. ''} end end) end",
        "begin() while true do coroutine.wrap(pcall)(function() while true do t = {t and #t} end end) end",
        "begin() while true do coroutine.resume(coroutine.create(function() while true do t = {} end end)) end",
        "begin() while true do xpcall(function() while true do t = {} end end, function(m) return {m} end) end",
        "begin() while true do xpcall(function() while true do t = {} end end, function() error 'mine' end) end",
        "begin() repeat local ok = pcall(function() while true do nothing() end end) until ok",
        "jit.off() begin() while true do pcall(function() while true do t = {} end end) end",
        "local function again() pcall(function() while true do t = {} end end) return again() end begin() again()",
        "local f f = function() pcall(function() while true do t = {} end end) pcall(f) pcall(f) end begin() f()",
        "begin() while true do pcall(cf.withdevices, function() while true do t = cf.ones(1) end end) end",
        "begin() while true do pcall(cf.withgradient, function(w) while true do t = w * 1 end end, cf.ones(1)) end",
        "begin() pcall(function() while true do t = {} end end) error 'mine'",
        "begin() pcall(function() while true do t = {} end end) error({})",
        "begin() local ok, m = pcall(function() while true do t = {} end end) for i = 1, 1e9 do end",
    };
    stopper s = {.engine = new_engine()};
    CHECK_STATUS(cfx_engine_register(s.engine, "begin", begin, &s), CFX_OK);
    CHECK_STATUS(cfx_engine_register(s.engine, "nothing", begin, &s), CFX_OK);
    run(s.engine, "cf = require 'conflux'");
    for (size_t i = 0; i < sizeof stubborn / sizeof *stubborn; i++) {
        atomic_store(&s.begun, 0);
        alarm(60);
        if (pthread_create(&s.thread, NULL, interrupt, &s) != 0) printf("# no thread\n"), exit(2);
        if (!CHECK_STATUS(cfx_engine_run_string(s.engine, stubborn[i]), CFX_EINTERRUPT)) printf("# %s\n", stubborn[i]);
        CHECK(has(cfx_engine_error(s.engine), "interrupted!"));
        pthread_join(s.thread, NULL);
        run(s.engine, "for i = 1, 100 do assert(not pcall(error)) end assert(cf.ones(3):sum():item() == 3)");
        run(s.engine, "assert(cf.withgradient(function(w) return w:sum() end, cf.ones(3)):item() == 3)");
    }
    alarm(0);
    free_engine(s.engine);
}

/* ---- engines that were stopped in the middle --------------------------------------------------------- */

static const char training[] =
    "cf = require 'conflux' local nn, optim = cf.nn, cf.optim\n"
    "local models = cf.replicate(nn.Chain(nn.Dense(20, 33, 'tanh'), nn.Dropout(0.1), nn.Dense(33, 7)))\n"
    "local states = cf.withdevices(function(i) return optim.Adam(1e-2):setup(models[i]) end)\n"
    "function train(steps)\n"
    "  local x, y, loss = cf.randn(50, 20), cf.randint(0, 6, 50)\n"
    "  for step = 1, steps do\n"
    "    local grads = cf.withdevices(function(i, device)\n"
    "      local dx, dy = device(x), device(y)\n"
    "      local l, g = cf.withgradient(function(m) return nn.crossentropy(m(dx), dy) end, models[i])\n"
    "      loss = l return g\n"
    "    end)\n"
    "    cf.allreduce('avg', grads)\n"
    "    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)\n"
    "  end\n"
    "  return loss:item()\n"
    "end";
static const char goes_on[] = "assert(cf.device() == 'cpu' and require('conflux.core').stream() == 0)\n"
                              "local loss = train(2) assert(loss == loss)";

typedef struct delay {
    stopper stopper;
    useconds_t microseconds;
} delay;

static void *interrupt_later(void *data) {
    delay *d = data;
    while (!atomic_load(&d->stopper.begun)) usleep(100);
    usleep(d->microseconds);
    cfx_engine_interrupt(d->stopper.engine);
    return NULL;
}

TEST(an_interrupt_at_any_moment_of_training_leaves_an_engine_that_goes_on) {
    delay d = {.stopper = {.engine = engine_with((cfx_engine_options){.devices = "cpu*2"})}};
    cfx_engine *engine = d.stopper.engine;
    CHECK_STATUS(cfx_engine_register(engine, "begin", begin, &d.stopper), CFX_OK);
    run(engine, training);
    srand(1);
    for (int i = 0; i < (SANITIZED ? 30 : 60); i++) {
        pthread_t thread;
        d.microseconds = (useconds_t)rand() % 8000;
        atomic_store(&d.stopper.begun, 0);
        if (pthread_create(&thread, NULL, interrupt_later, &d) != 0) printf("# no thread\n"), exit(2);
        const cfx_status status = cfx_engine_run_string(engine, "begin() train(1e9)");
        pthread_join(thread, NULL);
        if (!CHECK_STATUS(status, CFX_EINTERRUPT)) break;
        run(engine, goes_on);
    }
    free_engine(engine);
}

TEST(memory_that_runs_out_at_any_moment_of_training_leaves_an_engine_that_goes_on) {
    cfx_engine *engine = engine_with((cfx_engine_options){.devices = "cpu*2", .lua_memory_limit = 4 << 20});
    int out = 0;
    run(engine, training);
    run(engine, "train(3)");
    for (int free_kib = 10; free_kib < 250; free_kib += SANITIZED ? 8 : 2) {
        char hog[200];
        snprintf(hog, sizeof hog,
                 "collectgarbage() collectgarbage() hog = {}\n"
                 "while collectgarbage 'count' < 4096 - %d do hog[#hog + 1] = ('x'):rep(2000) .. #hog end",
                 free_kib);
        cfx_status status = cfx_engine_run_string(engine, hog);
        if (status == CFX_OK) status = cfx_engine_run_string(engine, "train(20)");
        CHECK(status == CFX_OK || CHECK_STATUS(status, CFX_EMEMORY));
        out += status == CFX_EMEMORY;
        run(engine, "hog = nil collectgarbage()");
        run(engine, goes_on);
    }
    CHECK(out > (SANITIZED ? 2 : 10));
    free_engine(engine);
}
