/* Limits that stop a script: a full memory, a deep stack; and that its engine goes on afterwards. */
#include "test.h"

#include "engines.h"

/* ---- stacks ---------------------------------------------------------------------------------------- */

TEST(stacks_that_overflow_are_errors) {
    static const char *const deep[] = {
        "local function f() return (('x'):gsub('x', f)) end f()",
        "local function f() coroutine.resume(coroutine.create(f)) error 'no' end f()",
        "local function f() return 1 + f() end f()",
        "local t = setmetatable({}, {__index = function(t, k) return t[k + 1] .. '' end}) return t[1]",
        "local function f() table.sort({1, 2, 3}, f) end f()",
    };
    for (size_t i = 0; i < sizeof deep / sizeof *deep; i++) {
        cfx_engine *engine = new_engine();
        CHECK_STATUS(cfx_engine_run_string(engine, deep[i]), CFX_ESCRIPT);
        run(engine, "assert(require('conflux').ones(3):sum():item() == 3)");
        char caught[400]; /* once */
        snprintf(caught, sizeof caught, "for i = 1, 3 do assert(not pcall(function() %s end)) end x = {} return #x",
                 deep[i]);
        run(engine, caught);
        CHECK_STATUS(cfx_engine_run_string(engine, "unpack({}, 1, 1e7)"), CFX_ESCRIPT);
        free_engine(engine);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------- */

TEST(lua_out_of_memory_is_an_error_and_what_it_held_is_free_again) {
    cfx_engine *engine = engine_with((cfx_engine_options){.lua_memory_limit = 16 << 20});
    static const char *const greedy[] = {
        "local t = {} for i = 1, 1e9 do t[i] = {i} end",
        "local s = 'x' while true do s = s .. s end",
        "coroutine.wrap(function() local t = {} for i = 1, 1e9 do t[i] = 'number ' .. i end end)()",
        "local t = {} for i = 1, 1e9 do t[i] = function() return i end end",
        "local ffi = require 'ffi' local t = {} for i = 1, 1e9 do t[i] = ffi.new 'char[1000]' end",
        "jit.off() local t = {} for i = 1, 1e9 do t[i] = {i} end",
    };
    for (int round = 0; round < (SANITIZED ? 1 : 3); round++) {
        for (size_t i = 0; i < sizeof greedy / sizeof *greedy; i++) {
            CHECK_STATUS(cfx_engine_run_string(engine, greedy[i]), CFX_EMEMORY);
            CHECK(has(cfx_engine_error(engine), "not enough memory: Lua's limit is 16777216 bytes"));
        }
    }
    run(engine, "local cf = require 'conflux' y = (cf.ones(3) + 1):sum():item()");
    run(engine, "function value() return y end");
    CHECK_EQ(ask(engine, "value"), 6);
    free_engine(engine);
}

TEST(garbage_does_not_count_as_memory_that_is_out) {
    cfx_engine *engine = engine_with((cfx_engine_options){.lua_memory_limit = 16 << 20});
    run(engine, "keep = {} for i = 1, 250 do keep[i] = ('x'):rep(40000) .. i end"); /* 10 MB of 16 */
    run(engine, "for i = 1, 3e5 do local t = {i, i} local s = 'garbage ' .. i end");
    run(engine, "jit.off() for i = 1, 3e5 do local t = {i, i} local s = 'rubbish ' .. i end");
    free_engine(engine);
}

TEST(a_limit_that_not_even_an_empty_state_fits_in_is_refused) {
    cfx_engine *engine = NULL;
    for (size_t limit = 1; limit < 80000; limit += 7919) {
        const cfx_engine_options options = {.size = sizeof options, .devices = "cpu", .lua_memory_limit = limit};
        const cfx_status status = cfx_engine_new(&options, &engine);
        CHECK(status == CFX_EMEMORY || status == CFX_OK);
        if (status == CFX_OK) free_engine(engine);
        else CHECK(has(cfx_error(), "engine: a Lua state does not fit in its limit of"));
    }
}

TEST(device_memory_keeps_to_its_limit) {
    cfx_engine *engine = engine_with((cfx_engine_options){.memory_limit = 8 << 20});
    CHECK_STATUS(cfx_engine_run_string(engine, "x = require('conflux').zeros(1024, 1024, 4)"), CFX_ESCRIPT);
    CHECK(has(cfx_engine_error(engine), "out of memory"));
    run(engine, "x = require('conflux').zeros(1024, 1024)");
    free_engine(engine);
}
