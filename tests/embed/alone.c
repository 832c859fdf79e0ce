/* alone.c: a C program that trains with no Lua in it: tensors, the tape and an optimiser by themselves.
 *
 * It fits y = x^2 by a network of one hidden layer.  Build it with -lconflux alone.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "conflux.h"

enum { SAMPLES = 64, HIDDEN = 32, STEPS = 500, PARAMETERS = 4 };

static void check(cfx_status status) {
    if (status == CFX_OK) return;
    fprintf(stderr, "alone: %s\n", cfx_error());
    exit(EXIT_FAILURE);
}

/* Two layers: weight [out, in] and bias [out] of each. */
typedef struct model {
    cfx_tensor parameters[PARAMETERS], moments[2 * PARAMETERS];
} model;

static void model_new(cfx_device *device, model *m) {
    static const int64_t shapes[PARAMETERS][2] = {{HIDDEN, 1}, {HIDDEN, 0}, {1, HIDDEN}, {1, 0}};
    memset(m, 0, sizeof *m);
    for (int i = 0; i < PARAMETERS; i++) {
        const int32_t ndim = shapes[i][1] ? 2 : 1;
        const double limit = i == 0 ? 1 : 0.17; /* 1 / sqrt(in) */
        check(cfx_random(device, CFX_FLOAT32, ndim, shapes[i], "uniform", -limit, limit, 0, &m->parameters[i]));
        for (int k = 0; k < 2; k++)
            check(cfx_full(device, CFX_FLOAT32, ndim, shapes[i], 0, &m->moments[k * PARAMETERS + i]));
    }
}

static void model_free(model *m) {
    for (int i = 0; i < PARAMETERS; i++) cfx_release(&m->parameters[i]);
    for (int i = 0; i < 2 * PARAMETERS; i++) cfx_release(&m->moments[i]);
}

/* The loss of one step, which enqueues and returns: nothing here waits. */
static cfx_tensor step(cfx_context *context, model *m, const cfx_tensor *x, const cfx_tensor *y, int64_t number) {
    cfx_tensor hidden, out, loss, gradients[PARAMETERS];
    cfx_tensor *watched[PARAMETERS], *grads[PARAMETERS], *moments[2 * PARAMETERS];
    const cfx_tensor *known[PARAMETERS];
    cfx_tape *tape;
    cfx_rule adam;

    memset(&hidden, 0, sizeof hidden);
    memset(&out, 0, sizeof out);
    memset(&loss, 0, sizeof loss);
    memset(gradients, 0, sizeof gradients);
    for (int i = 0; i < PARAMETERS; i++) {
        watched[i] = &m->parameters[i];
        known[i] = grads[i] = &gradients[i];
    }
    for (int i = 0; i < 2 * PARAMETERS; i++) moments[i] = &m->moments[i];

    check(cfx_tape_begin(context, PARAMETERS, watched, &tape));
    check(cfx_dense(x, watched[0], watched[1], cfx_op_find("tanh"), &hidden));
    check(cfx_dense(&hidden, watched[2], watched[3], -1, &out));
    check(cfx_loss(cfx_op_find("mse"), &out, y, 0, CFX_MEAN, &loss));
    check(cfx_tape_backward(tape, &loss, grads, 0));
    cfx_tape_end(&tape);

    memset(&adam, 0, sizeof adam);
    adam.size = sizeof adam;
    adam.name = "adam";
    adam.rate = 1e-2;
    adam.beta1 = 0.9;
    adam.beta2 = 0.999;
    adam.eps = 1e-8;
    check(cfx_optim_update(&adam, number, PARAMETERS, watched, known, moments, NULL, NULL, NULL));
    for (int i = 0; i < PARAMETERS; i++) cfx_release(&gradients[i]);
    cfx_release(&hidden);
    cfx_release(&out);
    return loss;
}

/* Called by this thread or by a worker's, for each array once. */
static void given_back(void *is_back) { *(int *)is_back = 1; }

int main(void) {
    static float x[SAMPLES][1], y[SAMPLES][1];
    for (int i = 0; i < SAMPLES; i++) {
        x[i][0] = (float)i / (SAMPLES / 2) - 1;
        y[i][0] = x[i][0] * x[i][0];
    }

    cfx_context_options options;
    cfx_context *context;
    memset(&options, 0, sizeof options);
    options.size = sizeof options;
    options.devices = "cpu";
    options.threads = 1;
    options.seed = 3;
    check(cfx_context_new(&options, &context));
    cfx_device *cpu = cfx_device_at(context, 0);

    int is_back[2] = {0, 0};
    const int64_t shape[2] = {SAMPLES, 1};
    cfx_tensor xs, ys;
    memset(&xs, 0, sizeof xs);
    memset(&ys, 0, sizeof ys);
    check(cfx_share(cpu, CFX_FLOAT32, 2, shape, x, sizeof x, given_back, &is_back[0], &xs));
    check(cfx_share(cpu, CFX_FLOAT32, 2, shape, y, sizeof y, given_back, &is_back[1], &ys));

    model m;
    float first = 0, last = 0;
    model_new(cpu, &m);
    for (int64_t i = 1; i <= STEPS; i++) {
        cfx_tensor loss = step(context, &m, &xs, &ys, i);
        if (i == 1) check(cfx_read(&loss, &first, sizeof first));
        if (i == STEPS) check(cfx_read(&loss, &last, sizeof last)); /* waits for all that it depends on, and no more */
        cfx_release(&loss);
    }
    printf("loss %.5f, after %d steps %.5f\n", first, STEPS, last);

    model_free(&m);
    cfx_release(&xs);
    cfx_release(&ys);
    cfx_context_free(context);
    const int came_back = is_back[0] && is_back[1];
    if (!came_back || !(last < first / 20)) {
        fprintf(stderr, "alone: %s\n", came_back ? "it did not learn" : "arrays did not come back");
        return EXIT_FAILURE;
    }
    return EXIT_SUCCESS;
}
