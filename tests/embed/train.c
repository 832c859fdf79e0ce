/* train.c: a C program that trains on its own arrays.
 *
 * The program owns the data, draws the progress and decides when it is enough; a script in it says what is learnt.  Build
 * it with -lconflux_host -lconflux -lpthread -lm.
 */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conflux.h"

static const char script[] = "local cf = require 'conflux'\n"
                             "local nn, optim = cf.nn, cf.optim\n"
                             "local model = nn.Chain(nn.Dense(2, 32, 'tanh'), nn.Dense(32, 2))\n"
                             "local opt = optim.Adam(1e-2)\n"
                             "local state = opt:setup(model)\n"
                             "\n"
                             "function train(x, y, steps)\n"
                             "  local bar, loss = cf.progress(steps, {label = 'spirals'})\n"
                             "  for step = 1, steps do\n"
                             "    local l, g = cf.withgradient(function(m)\n"
                             "      return nn.crossentropy(m(x), y)\n"
                             "    end, model)\n"
                             "    optim.update(state, model, g)\n"
                             "    bar:update(1, {loss = l})\n"
                             "    loss = l\n"
                             "  end\n"
                             "  loss = loss:item()\n"
                             "  bar:finish()\n"
                             "  return loss\n"
                             "end\n"
                             "\n"
                             "function predict(x)\n"
                             "  return model(x):argmax(2)\n"
                             "end\n";

/* ---- the program's own data ------------------------------------------------------------------------- */

enum { SAMPLES = 512 };

typedef struct data {
    float points[SAMPLES][2];
    int64_t labels[SAMPLES];
    int shared; /* arrays that Conflux still uses */
} data;

/* Two spirals, half a turn apart. */
static void make(data *d) {
    for (int i = 0; i < SAMPLES; i++) {
        const double t = (i / 2 + 1) / (SAMPLES / 2.0);
        const double angle = 4 * t + (i % 2 ? 3.14159265358979 : 0);
        d->points[i][0] = (float)(t * cos(angle));
        d->points[i][1] = (float)(t * sin(angle));
        d->labels[i] = i % 2;
    }
}

static void given_back(void *arg) {
    data *d = arg;
    d->shared--; /* on whichever thread; we look once the engine has gone */
}

/* ---- progress, and enough of it --------------------------------------------------------------------- */

typedef struct watch {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    cfx_engine *engine;
    double done;
} watch;

static void draw(void *arg, const cfx_progress *p) {
    watch *w = arg;
    const int cells = p->total > 0 ? (int)(20 * p->done / p->total) : 0;
    printf("%s |%.*s%*s| %3.0f %%", p->label, cells, "####################", 20 - cells, "", 100 * p->done / p->total);
    if (!isnan(p->loss)) printf("  loss %.3f", p->loss); /* it is known by now */
    puts(p->finished ? "  done" : "");
    pthread_mutex_lock(&w->lock);
    w->done = p->done;
    pthread_cond_signal(&w->moved);
    pthread_mutex_unlock(&w->lock);
}

/* A thread of the program's, such as that of its buttons. */
static void *have_enough(void *arg) {
    watch *w = arg;
    pthread_mutex_lock(&w->lock);
    while (w->done < 1) pthread_cond_wait(&w->moved, &w->lock);
    pthread_mutex_unlock(&w->lock);
    cfx_engine_interrupt(w->engine);
    return NULL;
}

/* ---- all of it -------------------------------------------------------------------------------------- */

static void expect(int holds, const char *what) {
    if (holds) return;
    fprintf(stderr, "train: %s: %s\n", what, cfx_error());
    exit(EXIT_FAILURE);
}

static cfx_value number(double n) {
    cfx_value value;
    memset(&value, 0, sizeof value);
    value.kind = CFX_NUMBER;
    value.as.number = n;
    return value;
}

int main(void) {
    static data d;
    static watch w = {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER, NULL, 0};
    make(&d);

    cfx_engine_options options;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.devices = "cpu";
    options.threads = 1;
    options.seed = 1;
    options.progress = draw;
    options.progress_data = &w;
    expect(cfx_engine_new(&options, &w.engine) == CFX_OK, "an engine");
    expect(cfx_engine_run_buffer(w.engine, script, sizeof script - 1, "spirals.lua") == CFX_OK, "the script");

    /* The arrays as tensors: nothing is copied. */
    cfx_value args[3], result, guesses;
    cfx_device *cpu = cfx_device_at(cfx_engine_context(w.engine), 0);
    const int64_t shape[2] = {SAMPLES, 2};
    memset(args, 0, sizeof args);
    args[0].kind = args[1].kind = CFX_TENSOR;
    d.shared = 2;
    expect(cfx_share(cpu, CFX_FLOAT32, 2, shape, d.points, sizeof d.points, given_back, &d, &args[0].as.tensor) ==
               CFX_OK,
           "the points");
    expect(cfx_share(cpu, CFX_INT64, 1, shape, d.labels, sizeof d.labels, given_back, &d, &args[1].as.tensor) == CFX_OK,
           "the labels");

    args[2] = number(1000);
    expect(cfx_engine_call(w.engine, "train", 3, args, 1, &result) == CFX_OK, "training");
    printf("loss %.4f\n", result.as.number);

    expect(cfx_engine_call(w.engine, "predict", 1, args, 1, &guesses) == CFX_OK, "predicting");
    static int64_t guess[SAMPLES];
    int right = 0;
    expect(cfx_read(&guesses.as.tensor, guess, sizeof guess) == CFX_OK, "reading");
    for (int i = 0; i < SAMPLES; i++) right += guess[i] == d.labels[i];
    printf("%d of %d right\n", right, SAMPLES);
    expect(right > SAMPLES * 9 / 10, "too few are right");
    cfx_value_release(1, &guesses);

    /* For ever, or until another thread has enough; the engine goes on to be used. */
    pthread_t other;
    w.done = 0;
    expect(pthread_create(&other, NULL, have_enough, &w) == 0, "a thread");
    args[2] = number(1e9);
    expect(cfx_engine_call(w.engine, "train", 3, args, 1, &result) == CFX_EINTERRUPT, "an interrupt");
    pthread_join(other, NULL);
    printf("interrupted: %.*s\n", (int)strcspn(cfx_error(), "\n"), cfx_error());

    cfx_value_release(3, args);
    expect(cfx_engine_free(w.engine) == CFX_OK, "the end");
    expect(d.shared == 0, "arrays that did not come back");
    return EXIT_SUCCESS;
}
