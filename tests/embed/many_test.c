/* Many engines in one process: one after another without a trace, and two at once without a difference. */
#include "test.h"

#include <malloc.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

/* Pages that the process has in memory; of the system's allocator only what is in use. */
static long resident_bytes(void) {
    long all = 0, resident = 0;
    malloc_trim(0);
    FILE *file = fopen("/proc/self/statm", "r");
    if (!file) return -1;
    if (fscanf(file, "%ld %ld", &all, &resident) != 2) resident = -1;
    fclose(file);
    return resident * sysconf(_SC_PAGESIZE);
}

static cfx_engine *new_engine(int threads) {
    cfx_engine *engine = NULL;
    const cfx_engine_options options = {.size = sizeof options, .devices = "cpu*2", .threads = threads, .seed = 5};
    if (cfx_engine_new(&options, &engine) != CFX_OK) printf("# %s\n", cfx_error()), exit(2);
    return engine;
}

static const char script[] =
    "local cf = require 'conflux'\n"
    "local nn, optim = cf.nn, cf.optim\n"
    "local models = cf.replicate(nn.Chain(nn.Dense(20, 33, 'tanh'), nn.Dropout(0.1), nn.Dense(33, 7)))\n"
    "local states = cf.withdevices(function(i) return optim.Adam(1e-2):setup(models[i]) end)\n"
    "function train(steps)\n"
    "  local x, y = cf.randn(50, 20), cf.randint(0, 6, 50)\n"
    "  local loss\n"
    "  for step = 1, steps do\n"
    "    local grads = cf.withdevices(function(i, device)\n"
    "      local dx, dy = device(x), device(y)\n"
    "      local l, g = cf.withgradient(function(m) return nn.crossentropy(m(dx), dy) end, models[i])\n"
    "      loss = l\n"
    "      return g\n"
    "    end)\n"
    "    cf.allreduce('avg', grads)\n"
    "    cf.withdevices(function(i) optim.update(states[i], models[i], grads[i]) end)\n"
    "  end\n"
    "  return loss:item(), models[1][1].weight, models[2][3].weight\n"
    "end\n";

/* ---- one after another ------------------------------------------------------------------------------ */

static void live(int k) {
    cfx_engine *engine = new_engine(1 + (k % 3 == 0 && !SANITIZED));
    const cfx_value steps = {.kind = CFX_NUMBER, .as = {.number = 3}};
    cfx_value results[3];
    CHECK_STATUS(cfx_engine_run_buffer(engine, script, sizeof script - 1, "train.lua"), CFX_OK);
    CHECK_STATUS(cfx_engine_call(engine, "train", 1, &steps, 3, results), CFX_OK);
    if (k % 2) cfx_value_release(3, results); /* before the engine, or after it */
    if (k % 5 == 0) CHECK_STATUS(cfx_engine_run_string(engine, "error 'no'"), CFX_ESCRIPT);
    CHECK_STATUS(cfx_engine_free(engine), CFX_OK);
    cfx_value_release(3, results);
}

/* Sanitizers keep what is freed, or its shadow; there the leak check at the end is what counts, which sees what a single
 * engine leaves. */
TEST(hundreds_of_engines_leave_no_memory_behind) {
    const int first = SANITIZED ? 10 : 100, all = SANITIZED ? 40 : 400;
    const long slack = (all - first) * 1300; /* less than a kilobyte and a half of each */
    long before = 0;
    for (int k = 0; k < all; k++) {
        if (k == first) before = resident_bytes();
        live(k);
    }
    const long after = resident_bytes();
    printf("# resident after %d engines: %ld KiB, after %d: %ld KiB\n", first, before >> 10, all, after >> 10);
    CHECK(SANITIZED || after - before < slack);
}

/* ---- two at once ------------------------------------------------------------------------------------ */

typedef struct outcome {
    pthread_t thread;
    double loss;
    float first[33 * 20], second[7 * 33];
} outcome;

static void *train(void *arg) {
    outcome *o = arg;
    cfx_engine *engine = new_engine(SANITIZED ? 2 : 4); /* two devices: teams of one or two */
    const cfx_value steps = {.kind = CFX_NUMBER, .as = {.number = 100}};
    cfx_value results[3];
    CHECK_STATUS(cfx_engine_run_buffer(engine, script, sizeof script - 1, "train.lua"), CFX_OK);
    CHECK_STATUS(cfx_engine_call(engine, "train", 1, &steps, 3, results), CFX_OK);
    o->loss = results[0].as.number;
    CHECK_STATUS(cfx_read(&results[1].as.tensor, o->first, sizeof o->first), CFX_OK);
    CHECK_STATUS(cfx_read(&results[2].as.tensor, o->second, sizeof o->second), CFX_OK);
    cfx_value_release(3, results);
    CHECK_STATUS(cfx_engine_free(engine), CFX_OK);
    return NULL;
}

static int same(const outcome *a, const outcome *b) {
    return memcmp(&a->loss, &b->loss, sizeof a->loss) == 0 && memcmp(a->first, b->first, sizeof a->first) == 0 &&
           memcmp(a->second, b->second, sizeof a->second) == 0;
}

TEST(two_engines_that_train_at_once_get_the_bits_of_one_alone) {
    static outcome alone, pair[2];
    train(&alone);
    CHECK(alone.loss > 0 && alone.loss < 1.9);
    for (int round = 0; round < (SANITIZED ? 1 : 3); round++) {
        for (int i = 0; i < 2; i++)
            if (pthread_create(&pair[i].thread, NULL, train, &pair[i]) != 0) printf("# no thread\n"), exit(2);
        for (int i = 0; i < 2; i++) pthread_join(pair[i].thread, NULL);
        CHECK(same(&alone, &pair[0]));
        CHECK(same(&alone, &pair[1]));
    }
}
