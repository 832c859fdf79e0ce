/* floor.c: what a step, a collective and an operation would take without Conflux, on the same machine.
 *
 * The floor of a training step is its matrix products, called directly in oneDNN (bias and activation fused;
 * primitives, memories and addresses made once), the optimiser's loop, and with several devices the all-reduce's
 * loop, both the kernels that Conflux runs.  One thread a device does its part with the device's team; they meet
 * before and after the all-reduce and nowhere else.  A step could at best save what this leaves out:
 * dispatch, queues, the tape, the loss, the activations' derivatives and the bias gradients.  The floor of convolutions
 * is their bare primitives, too.
 *
 * It is a library of its own, called by FFI from the scripts beside this file, so that none of it is in Conflux.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "base/status.h"
#include "cpu/backend.h"
#include "cpu/dnnl.h"
#include "cpu/dnnl_act.h"
#include "cpu/dnnl_conv.h"
#include "cpu/dnnl_matmul.h"
#include "cpu/dnnl_primitive.h"
#include "device/rules.h"

#define FLOOR_API __attribute__((visibility("default")))

enum { MAX_LAYERS = 16, MAX_DEVICES = 16, MAX_THREADS = 256, WARM_STEPS = 50 };
enum { ALIGN = 64 }; /* floats: 256 bytes, as a layout has it */

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* ---- where threads meet ----------------------------------------------------------------------------------- */

typedef struct meeting {
    int32_t n;
    _Atomic int32_t here, round;
} meeting;

/* Spins: a thread that sleeps here would be no limit.  It gives way only where cores are lacking. */
static void meet(meeting *m) {
    const int32_t round = atomic_load(&m->round);
    if (atomic_fetch_add(&m->here, 1) == m->n - 1) {
        atomic_store(&m->here, 0);
        atomic_store(&m->round, round + 1);
        return;
    }
    for (int spins = 0; atomic_load(&m->round) == round; spins++)
        if (spins > 100000) sched_yield();
}

/* ---- one device ------------------------------------------------------------------------------------------- */

typedef struct job {
    int32_t layers, devices, threads, steps;
    const int64_t *sizes; /* [layers + 1] */
    int64_t batch, n;     /* n: floats of a flat buffer */
    int act;
    float *grads[MAX_DEVICES]; /* [n] each */
    double from[MAX_DEVICES], to[MAX_DEVICES];
    _Atomic int32_t failed;
    meeting meeting;
} job;

typedef struct side {
    job *job;
    int32_t number;
    cf_worker worker;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
    int nproducts;
    cf_dnnl_primitive products[3 * MAX_LAYERS];
    float *flat[4];                /* parameters, gradients, both states: [n] */
    float *value[MAX_LAYERS + 1];  /* input and outputs: [batch, size] */
    float *change[MAX_LAYERS + 1]; /* their gradients */
    double slot[8];
    float *pad;
    size_t pad_bytes;
} side;

static int64_t round_up(int64_t n) { return (n + ALIGN - 1) / ALIGN * ALIGN; }

static float *floats(int64_t n) { return aligned_alloc(4 * ALIGN, (size_t)round_up(n) * sizeof(float)); }

/* Small numbers on both sides of zero, so that no product grows or dies. */
static void scatter(float *x, int64_t n, float scale) {
    uint32_t state = 12345;
    for (int64_t i = 0; i < n; i++) {
        state = state * 1664525u + 1013904223u;
        x[i] = ((float)(state >> 8) / (1 << 23) - 1) * scale;
    }
}

static int set_address(cf_dnnl_primitive *p, int arg, void *data) {
    return dnnl_memory_set_data_handle(p->args[arg].memory, data) == dnnl_success;
}

/* Makes a product and ties it to its operands for good. */
static int add_product(side *s, const cf_product *p) {
    cf_dnnl_primitive *m = &s->products[s->nproducts++];
    if (cf_dnnl_matmul_new(s->engine, p, m) != CFX_OK) return 0;
    if (m->pad_bytes > s->pad_bytes) s->pad_bytes = m->pad_bytes;
    void *const data[] = {(void *)p->a, (void *)p->b, p->y, (void *)p->bias};
    int good = 1;
    for (int k = 0; k < m->nargs - 1; k++) good &= set_address(m, k, data[k]);
    return good;
}

static int make_products(side *s) {
    const job *j = s->job;
    float *weight[MAX_LAYERS], *dweight[MAX_LAYERS];
    int64_t at = 0;
    for (int l = 0; l < j->layers; l++) {
        const int64_t in = j->sizes[l], out = j->sizes[l + 1];
        weight[l] = s->flat[0] + at;
        dweight[l] = s->flat[1] + at;
        at += round_up(in * out) + round_up(out);
        const cf_product forward = {.dtype = CFX_FLOAT32,
                                    .batch = 1,
                                    .n = j->batch,
                                    .m = out,
                                    .k = in,
                                    .a = s->value[l],
                                    .a_row = in,
                                    .a_col = 1,
                                    .b = weight[l],
                                    .b_row = 1,
                                    .b_col = in,
                                    .y = s->value[l + 1],
                                    .y_row = out,
                                    .bias = weight[l] + round_up(in * out),
                                    .act = l + 1 < j->layers ? j->act : -1};
        if (!add_product(s, &forward)) return 0;
    }
    for (int l = j->layers - 1; l >= 0; l--) {
        const int64_t in = j->sizes[l], out = j->sizes[l + 1];
        const cf_product by_weight = {.dtype = CFX_FLOAT32,
                                      .batch = 1,
                                      .n = out,
                                      .m = in,
                                      .k = j->batch,
                                      .a = s->change[l + 1],
                                      .a_row = 1,
                                      .a_col = out,
                                      .b = s->value[l],
                                      .b_row = in,
                                      .b_col = 1,
                                      .y = dweight[l],
                                      .y_row = in,
                                      .act = -1};
        const cf_product by_input = {.dtype = CFX_FLOAT32,
                                     .batch = 1,
                                     .n = j->batch,
                                     .m = in,
                                     .k = out,
                                     .a = s->change[l + 1],
                                     .a_row = out,
                                     .a_col = 1,
                                     .b = weight[l],
                                     .b_row = in,
                                     .b_col = 1,
                                     .y = s->change[l],
                                     .y_row = in,
                                     .act = -1};
        if (!add_product(s, &by_weight) || (l > 0 && !add_product(s, &by_input))) return 0;
    }
    return 1;
}

static int side_begin(side *s) {
    const job *j = s->job;
    s->worker.backend = cf_backend_cpu();
    s->worker.threads = j->threads;
    if (s->worker.backend->thread_begin(&s->worker) != CFX_OK) return 0;
    if (dnnl_engine_create(&s->engine, dnnl_cpu, 0) != dnnl_success) return 0;
    if (dnnl_stream_create(&s->stream, s->engine, dnnl_stream_default_flags) != dnnl_success) return 0;
    for (int k = 0; k < 4; k++) {
        s->flat[k] = k == 1 ? j->grads[s->number] : floats(j->n);
        if (!s->flat[k]) return 0;
        scatter(s->flat[k], j->n, k < 2 ? 0.05f : 0);
    }
    for (int l = 0; l <= j->layers; l++) {
        s->value[l] = floats(j->batch * j->sizes[l]);
        s->change[l] = floats(j->batch * j->sizes[l]);
        if (!s->value[l] || !s->change[l]) return 0;
        scatter(s->value[l], j->batch * j->sizes[l], 1);
        scatter(s->change[l], j->batch * j->sizes[l], 1);
    }
    /* Adam's, at a rate of zero: the parameters stay what they are. */
    memcpy(s->slot, (double[8]){0, 0.9, 0.999, 0.1, 0.001, 0.001, 1, 1}, sizeof s->slot);
    if (!make_products(s)) return 0;
    s->pad = floats((int64_t)s->pad_bytes / 4 + 1);
    for (int k = 0; k < s->nproducts && s->pad; k++)
        if (!set_address(&s->products[k], s->products[k].nargs - 1, s->pad)) return 0;
    return s->pad != NULL;
}

static void side_end(side *s) {
    for (int k = 0; k < s->nproducts; k++) cf_dnnl_primitive_free(&s->products[k]);
    if (s->stream) dnnl_stream_destroy(s->stream);
    if (s->engine) dnnl_engine_destroy(s->engine);
    for (int k = 0; k < 4; k++)
        if (k != 1) free(s->flat[k]);
    for (int l = 0; l <= s->job->layers; l++) {
        free(s->value[l]);
        free(s->change[l]);
    }
    free(s->pad);
    s->worker.backend->thread_end(&s->worker);
    free(s->worker.scratch);
}

/* ---- a step ----------------------------------------------------------------------------------------------- */

static cf_view view_of(void *data, int dtype, int64_t n) {
    return (cf_view){.data = data, .dtype = dtype, .ndim = 1, .shape = {n}, .stride = {1}};
}

/* A call of up to MAX_DEVICES views, and its parameters. */
typedef union room {
    cf_call call;
    char bytes[sizeof(cf_call) + MAX_DEVICES * sizeof(cf_view) + sizeof(cf_update_params)];
} room;

static int combine(cf_worker *worker, int32_t n, float *const *x, int64_t from, int64_t to) {
    room r = {.call = {.op = CF_OP_combine, .nout = (uint8_t)n, .dtype = CFX_FLOAT32}};
    const cf_combine_params params = {.op = CF_COMBINE_AVG, .root = -1};
    cf_view *v = (cf_view *)(r.bytes + sizeof(cf_call));
    for (int32_t k = 0; k < n; k++) v[k] = view_of(x[k] + from, CFX_FLOAT32, to - from);
    memcpy(r.bytes + cf_call_bytes(n, 0), &params, sizeof params);
    return worker->backend->kernels[CF_OP_combine](worker, &r.call) == CFX_OK;
}

static int update(side *s) {
    const int64_t n = s->job->n;
    room r = {.call = {.op = CF_OP_update, .nout = 3, .nin = 2, .dtype = CFX_FLOAT32}};
    const cf_update_params params = {.scale = 1, .eps = 1e-8, .rule = CF_RULE_adam};
    cf_view *v = (cf_view *)(r.bytes + sizeof(cf_call));
    v[0] = view_of(s->flat[0], CFX_FLOAT32, n);
    v[1] = view_of(s->flat[2], CFX_FLOAT32, n);
    v[2] = view_of(s->flat[3], CFX_FLOAT32, n);
    v[3] = view_of(s->flat[1], CFX_FLOAT32, n);
    v[4] = view_of(s->slot, CFX_FLOAT64, 8);
    memcpy(r.bytes + cf_call_bytes(5, 0), &params, sizeof params);
    return s->worker.backend->kernels[CF_OP_update](&s->worker, &r.call) == CFX_OK;
}

static int step(side *s) {
    job *j = s->job;
    int good = 1;
    for (int k = 0; k < s->nproducts; k++) {
        const cf_dnnl_primitive *m = &s->products[k];
        good &= dnnl_primitive_execute(m->primitive, s->stream, m->nargs, m->args) == dnnl_success;
    }
    if (j->devices > 1) {
        const int64_t units = j->n / ALIGN;
        meet(&j->meeting);
        good &= combine(&s->worker, j->devices, j->grads, units * s->number / j->devices * ALIGN,
                        units * (s->number + 1) / j->devices * ALIGN);
        meet(&j->meeting);
    }
    return good & update(s);
}

static void *run(void *arg) {
    side *s = arg;
    job *j = s->job;
    if (!side_begin(s)) atomic_store(&j->failed, 1);
    meet(&j->meeting);
    if (!atomic_load(&j->failed)) {
        int good = 1;
        for (int32_t k = 0; k < WARM_STEPS; k++) good &= step(s);
        meet(&j->meeting);
        j->from[s->number] = now();
        for (int32_t k = 0; k < j->steps; k++) good &= step(s);
        j->to[s->number] = now();
        if (!good) atomic_store(&j->failed, 1);
    }
    side_end(s);
    return NULL;
}

/* Microseconds that a step of an MLP takes at least, the mean of `steps`; -1 if it cannot be run.  sizes:
 * [layers + 1]; act: a row of ops.def that oneDNN fuses; batch: samples a device; threads: a device's team. */
FLOOR_API double conflux_floor(int32_t layers, const int64_t *sizes, const char *act, int64_t batch, int32_t devices,
                               int32_t threads, int32_t steps) {
    job j = {.layers = layers,
             .devices = devices,
             .threads = threads,
             .steps = steps,
             .sizes = sizes,
             .batch = batch,
             .act = cfx_op_find(act),
             .meeting = {.n = devices}};
    if (layers < 1 || layers > MAX_LAYERS || devices < 1 || devices > MAX_DEVICES) return -1;
    if (j.act != CF_OP_relu && !cf_dnnl_fuses(j.act, 1)) return -1; /* a floor may take a NaN for 0 */
    for (int l = 0; l < layers; l++) j.n += round_up(sizes[l] * sizes[l + 1]) + round_up(sizes[l + 1]);
    side *sides = calloc((size_t)devices, sizeof *sides);
    pthread_t thread[MAX_DEVICES];
    int32_t started = 0;
    for (int32_t d = 0; d < devices; d++) {
        j.grads[d] = floats(j.n);
        if (!sides || !j.grads[d]) j.meeting.n = 0;
    }
    for (; started < devices && j.meeting.n; started++) {
        sides[started].job = &j;
        sides[started].number = started;
        if (pthread_create(&thread[started], NULL, run, &sides[started]) == 0) continue;
        atomic_store(&j.failed, 1); /* let those go that wait for the missing ones */
        atomic_fetch_add(&j.meeting.here, devices - started - 1);
        meet(&j.meeting);
        break;
    }
    double from = 0, to = 0;
    for (int32_t d = 0; d < started; d++) {
        pthread_join(thread[d], NULL);
        if (d == 0 || j.from[d] < from) from = j.from[d];
        if (d == 0 || j.to[d] > to) to = j.to[d];
    }
    for (int32_t d = 0; d < devices; d++) free(j.grads[d]);
    free(sides);
    return started == 0 || j.failed ? -1 : (to - from) / steps;
}

/* ---- an all-reduce ---------------------------------------------------------------------------------------- */

typedef struct part {
    float *x[2];
    int64_t from, to;
    int32_t repeats;
    meeting *meeting;
    double start, end;
} part;

static void *run_part(void *arg) {
    part *p = arg;
    cf_worker worker = {.backend = cf_backend_cpu(), .threads = 1};
    combine(&worker, 2, p->x, p->from, p->to);
    meet(p->meeting);
    p->start = now();
    for (int32_t k = 0; k < p->repeats; k++) combine(&worker, 2, p->x, p->from, p->to);
    p->end = now();
    return NULL;
}

/* Microseconds that the mean of two buffers, written to both, takes at least: `threads` threads, each with its
 * part, that never meet; the mean of `repeats`.  -1 if it cannot be run. */
FLOOR_API double conflux_floor_allreduce(float *a, float *b, int64_t n, int32_t threads, int32_t repeats) {
    meeting m = {.n = threads};
    part parts[MAX_THREADS];
    pthread_t thread[MAX_THREADS];
    if (threads < 1 || threads > MAX_THREADS) return -1;
    for (int32_t t = 0; t < threads; t++) {
        const int64_t units = n / ALIGN;
        parts[t] = (part){.x = {a, b},
                          .from = units * t / threads * ALIGN,
                          .repeats = repeats,
                          .meeting = &m,
                          .to = t + 1 < threads ? units * (t + 1) / threads * ALIGN : n};
    }
    int32_t started = 1; /* the caller is the first */
    while (started < threads && pthread_create(&thread[started], NULL, run_part, &parts[started]) == 0) started++;
    atomic_fetch_add(&m.here, threads - started);
    run_part(&parts[0]);
    for (int32_t t = 1; t < started; t++) pthread_join(thread[t], NULL);
    double start = parts[0].start, end = parts[0].end;
    for (int32_t t = 1; t < started; t++) {
        if (parts[t].start < start) start = parts[t].start;
        if (parts[t].end > end) end = parts[t].end;
    }
    return started < threads ? -1 : (end - start) / repeats;
}

/* ---- convolutions ----------------------------------------------------------------------------------------- */

/* One of a list, in the order of its numbers: y [batch, .., out] of x [batch, h, w, in].  directions: 1 forwards, 2 by
 * data, 4 by weights, or a sum of these. */
typedef struct conv_shape {
    int64_t h, w, in, out, kernel, stride, pad, groups, directions;
} conv_shape;
enum { MAX_CONVS = 256 };

/* A direction's primitive, and its weight in the format that the primitive likes. */
typedef struct bare_conv {
    cf_dnnl_conv found;
    float *weight;
} bare_conv;

typedef struct conv_side {
    const conv_shape *shapes; /* [n] */
    int32_t n, threads, repeats;
    int64_t batch;
    meeting *meeting;
    _Atomic int32_t *failed;
    cf_worker worker;
    bare_conv bare[MAX_CONVS][3];
    float *x[MAX_CONVS], *y[MAX_CONVS];
    double from, to;
} conv_side;

static const int conv_ops[] = {CF_OP_conv, CF_OP_conv_bw_data, CF_OP_conv_bw_weights};

static cf_conv form_of(const conv_shape *s, int64_t batch, int op) {
    const int64_t h = (s->h + 2 * s->pad - s->kernel) / s->stride + 1;
    const int64_t w = (s->w + 2 * s->pad - s->kernel) / s->stride + 1;
    return (cf_conv){.n = batch,
                     .in = s->in,
                     .out = s->out,
                     .groups = s->groups,
                     .x = {s->h, s->w},
                     .y = {h, w},
                     .kernel = {s->kernel, s->kernel},
                     .stride = {s->stride, s->stride},
                     .pad = {s->pad, s->pad},
                     .dilation = {1, 1},
                     .op = op,
                     .dtype = CFX_FLOAT32,
                     .act = -1};
}

static float *scattered(int64_t n) {
    float *x = floats(n);
    if (x) scatter(x, n, 0.1f);
    return x;
}

static int conv_begin(conv_side *s) {
    s->worker.backend = cf_backend_cpu();
    s->worker.threads = s->threads;
    if (s->worker.backend->thread_begin(&s->worker) != CFX_OK) return 0;
    for (int32_t k = 0; k < s->n; k++) {
        const cf_conv f = form_of(&s->shapes[k], s->batch, CF_OP_conv);
        s->x[k] = scattered(f.n * f.x[0] * f.x[1] * f.in);
        s->y[k] = scattered(f.n * f.y[0] * f.y[1] * f.out);
        if (!s->x[k] || !s->y[k]) return 0;
        for (int d = 0; d < 3; d++) {
            const cf_conv form = form_of(&s->shapes[k], s->batch, conv_ops[d]);
            bare_conv *b = &s->bare[k][d];
            if (!(s->shapes[k].directions & 1 << d)) continue;
            if (cf_dnnl_conv_find(&s->worker, &form, &b->found) != CFX_OK) return 0;
            b->weight = scattered((int64_t)b->found.room / 4);
            if (!b->weight) return 0;
        }
    }
    return 1;
}

static void conv_end(conv_side *s) {
    for (int32_t k = 0; k < s->n; k++) {
        for (int d = 0; d < 3; d++) free(s->bare[k][d].weight);
        free(s->x[k]);
        free(s->y[k]);
    }
    s->worker.backend->thread_end(&s->worker);
}

static int run_bare(conv_side *s, int32_t k, int direction) {
    const bare_conv *b = &s->bare[k][direction];
    if (!b->weight) return 1;
    return cf_dnnl_run(&s->worker, b->found.conv, (void *[]){s->x[k], b->weight, s->y[k]}) == CFX_OK;
}

/* All forwards, then all backwards from the last. */
static int conv_step(conv_side *s) {
    int good = 1;
    for (int32_t k = 0; k < s->n; k++) good &= run_bare(s, k, 0);
    for (int32_t k = s->n - 1; k >= 0; k--) good &= run_bare(s, k, 2) & run_bare(s, k, 1);
    return good;
}

static void *run_convs(void *arg) {
    conv_side *s = arg;
    if (!conv_begin(s)) atomic_store(s->failed, 1);
    meet(s->meeting);
    if (!atomic_load(s->failed)) {
        int good = conv_step(s);
        meet(s->meeting);
        s->from = now();
        for (int32_t r = 0; r < s->repeats; r++) good &= conv_step(s);
        s->to = now();
        if (!good) atomic_store(s->failed, 1);
    }
    conv_end(s);
    return NULL;
}

/* Microseconds that convolutions take at least on `devices` devices of `threads` threads side by side, each with `batch`
 * samples: n of them, one after the other, on buffers of their own, with weights that lie in oneDNN's format already;
 * the mean of `repeats`.  numbers [n, 9], as conv_shape has them.  -1 if they cannot be run. */
FLOOR_API double conflux_floor_convs(int32_t n, const int64_t *numbers, int64_t batch, int32_t devices, int32_t threads,
                                     int32_t repeats) {
    meeting m = {.n = devices};
    _Atomic int32_t failed = 0;
    conv_shape shapes[MAX_CONVS];
    pthread_t thread[MAX_DEVICES];
    if (n < 1 || n > MAX_CONVS || devices < 1 || devices > MAX_DEVICES) return -1;
    memcpy(shapes, numbers, (size_t)n * sizeof *shapes);
    conv_side *sides = calloc((size_t)devices, sizeof *sides);
    if (!sides) return -1;
    int32_t started = 0;
    for (; started < devices; started++) {
        conv_side *s = &sides[started];
        s->shapes = shapes, s->n = n, s->batch = batch, s->threads = threads, s->repeats = repeats;
        s->meeting = &m, s->failed = &failed;
        if (pthread_create(&thread[started], NULL, run_convs, s) == 0) continue;
        atomic_store(&failed, 1); /* let those go that wait for the missing ones */
        atomic_fetch_add(&m.here, devices - started - 1);
        meet(&m);
        break;
    }
    double from = 0, to = 0;
    for (int32_t d = 0; d < started; d++) {
        pthread_join(thread[d], NULL);
        if (d == 0 || sides[d].from < from) from = sides[d].from;
        if (d == 0 || sides[d].to > to) to = sides[d].to;
    }
    free(sides);
    return started == 0 || failed ? -1 : (to - from) / repeats;
}

/* ---- an operation ----------------------------------------------------------------------------------------- */

/* Microseconds that a + b and the release of its result take a C program, the mean of `repeats`; -1 on failure.
 * Nothing is waited for. */
FLOOR_API double conflux_floor_add(const cfx_tensor *a, const cfx_tensor *b, int32_t repeats) {
    const int32_t add = cfx_op_find("add");
    const double start = now();
    for (int32_t k = 0; k < repeats; k++) {
        cfx_tensor out = {0};
        if (cfx_binary(add, a, b, &out) != CFX_OK) return -1;
        cfx_release(&out);
    }
    return (now() - start) / repeats;
}
