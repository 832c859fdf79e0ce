/* loss.c: losses of two tensors of one shape, and their gradients.
 *
 * A mean or a sum is made on the fixed grid of block.h; the loss of each element is made by blocks in the
 * compute type.  Of integers it is made in float, as the dispatcher would have it. */
#include "cpu/kernels/block.h"
#include "cpu/kernels/formulas.h"
#include "cpu/kernels/reduce_blocks.h"

/* Which input the gradient is for: i[1] of the call. */
enum { OF_X = 0, OF_Y = 1 };

/* out [n] = the loss of x [n] and y [n], which takes no dy, or a gradient of it times dy [n].  Loops run over whole
 * units, so that tails get the same bits. */
typedef void (*loss_loop)(const void *dy, const void *x, const void *y, void *out, int64_t n, double p);

#define LOOP(name, type, ...)                                                                        \
    static void name(const void *dy, const void *x, const void *y, void *out, int64_t n, double p) { \
        typedef type T;                                                                              \
        const T *grad = dy, *in = x, *target = y, delta = (T)p;                                      \
        T *to = out;                                                                                 \
        (void)delta;                                                                                 \
        n = cf_round_up(n, CF_UNIT);                                                                 \
        CF_VECTOR                                                                                    \
        for (int64_t i = 0; i < n; i++) {                                                            \
            const T g = grad[i], a = in[i], b = target[i], d = a - b;                                \
            (void)g, (void)d;                                                                        \
            to[i] = __VA_ARGS__;                                                                     \
        }                                                                                            \
    }
#define CF_LOSS(name, cost, value, by_x, by_y) \
    LOOP(name##_F32, float, value)             \
    LOOP(name##_F64, double, value)            \
    LOOP(name##_dx_F32, float, by_x)           \
    LOOP(name##_dx_F64, double, by_x)          \
    LOOP(name##_dy_F32, float, by_y)           \
    LOOP(name##_dy_F64, double, by_y)
#include "device/formulas.def"

typedef struct job {
    cf_compute compute;
    cf_view out, dy, x, y;
    loss_loop loop;
    double p, scale; /* scale: what each element's gradient is, where dy is a scalar */
    int scalar;
} job;

/* A block that may be read up to a whole unit. */
static const void *padded(const job *j, const cf_view *v, int64_t from, int64_t n, cf_block_memory *temp) {
    const size_t bytes = (size_t)(n * cf_compute_size(j->compute));
    const void *block = CF_K(read)(v, j->compute, from, n, temp);
    if (n % CF_UNIT == 0) return block;
    if (block != temp) memcpy(temp, block, bytes);
    memset((char *)temp + bytes, 0, (size_t)(cf_round_up(n, CF_UNIT) * cf_compute_size(j->compute)) - bytes);
    return temp;
}

static double forward_sum(void *context, int64_t from, int64_t n) {
    const job *j = context;
    cf_block_memory x, y, loss;
    double sum = 0;
    for (int64_t k = from; k < from + n; k += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, from + n - k);
        const void *a = padded(j, &j->x, k, m, &x);
        j->loop(a, a, padded(j, &j->y, k, m, &y), &loss, m, j->p);
        sum += CF_K(block_sum)(j->compute, &loss, m);
    }
    return sum;
}

static void forward_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    cf_block_memory x, y, loss;
    for (int64_t k = from; k < to; k += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, to - k);
        const void *a = padded(j, &j->x, k, m, &x);
        j->loop(a, a, padded(j, &j->y, k, m, &y), &loss, m, j->p);
        CF_K(write)(&j->out, j->compute, k, m, &loss);
    }
}

static void backward_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    cf_block_memory x, y, dy, out;
    if (j->scalar)
        for (int k = 0; k < CF_BLOCK; k++) {
            if (j->compute == CF_F32) dy.f32[k] = (float)j->scale;
            else dy.f64[k] = j->scale;
        }
    for (int64_t k = from; k < to; k += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, to - k);
        const void *g = j->scalar ? &dy : padded(j, &j->dy, k, m, &dy);
        j->loop(g, padded(j, &j->x, k, m, &x), padded(j, &j->y, k, m, &y), &out, m, j->p);
        CF_K(write)(&j->out, j->compute, k, m, &out);
    }
}

/* x and y, and what has their shape, in one order of elements, flattened. */
static void arrange(cf_view *v, int n) {
    for (int k = 1; k < n; k++) cf_view_expand(&v[k], &v[0]);
    cf_views_sort(v, n);
    for (int k = 0; k < n; k++) cf_view_flatten(&v[k]);
}

typedef struct loss {
    int cost;
    loss_loop value[2], gradient[2][2]; /* of float and double; of x and y */
} loss;

/* That of a row, or of its gradient's row. */
static const loss *loss_of(int op) {
    switch (op) {
#define CF_LOSS(name, cost, ...)                                                                               \
    case CF_OP_##name:                                                                                         \
    case CF_OP_##name##_bw: {                                                                                  \
        static const loss l = {                                                                                \
            cost, {name##_F32, name##_F64}, {{name##_dx_F32, name##_dx_F64}, {name##_dy_F32, name##_dy_F64}}}; \
        return &l;                                                                                             \
    }
#include "device/formulas.def"
    default: return NULL;
    }
}

cfx_status CF_K(loss)(cf_worker *worker, const cf_call *call) {
    const loss *l = loss_of(call->op);
    const cf_loss_params *params = cf_call_params(call);
    const int64_t n = cf_view_numel(cf_call_in(call, 0));
    job j = {.compute = call->dtype == CFX_FLOAT64 ? CF_F64 : CF_F32, .p = params->param};
    j.loop = l->value[j.compute == CF_F64];
    if (params->reduction == CFX_NONE) {
        cf_view v[3] = {call->v[0], *cf_call_in(call, 0), *cf_call_in(call, 1)};
        arrange(v, 3);
        j.out = v[0], j.x = v[1], j.y = v[2];
        CF_K(parallel)(cf_cpu_team(worker, n * l->cost), n, CF_BLOCK, forward_part, &j);
        return CFX_OK;
    }
    cf_view v[2] = {*cf_call_in(call, 0), *cf_call_in(call, 1)}, out = call->v[0];
    arrange(v, 2);
    j.x = v[0], j.y = v[1];
    double sum;
    CF_TRY(CF_K(grid_sum)(worker, n, l->cost, forward_sum, &j, &sum));
    if (params->reduction == CFX_MEAN) sum /= (double)n;
    cf_view_flatten(&out);
    CF_K(write)(&out, CF_F64, 0, 1, &sum);
    return CFX_OK;
}

static cfx_status backward(cf_worker *worker, const cf_call *call) {
    const loss *l = loss_of(call->op);
    const cf_loss_params *params = cf_call_params(call);
    cf_view v[4] = {call->v[0], *cf_call_in(call, 1), *cf_call_in(call, 2), *cf_call_in(call, 0)};
    const int64_t n = cf_view_numel(&v[0]);
    job j = {.compute = call->dtype == CFX_FLOAT64 ? CF_F64 : CF_F32, .p = params->param};
    j.loop = l->gradient[params->of_y == OF_Y][j.compute == CF_F64];
    j.scalar = params->reduction != CFX_NONE;
    if (j.scalar) j.scale = CF_K(number)(&v[3]) / (params->reduction == CFX_MEAN ? (double)n : 1);
    arrange(v, j.scalar ? 3 : 4);
    j.out = v[0], j.x = v[1], j.y = v[2], j.dy = v[3];
    CF_K(parallel)(cf_cpu_team(worker, n * l->cost), n, CF_BLOCK, backward_part, &j);
    return CFX_OK;
}

#define CF_LOSS(name, ...) \
    cfx_status CF_K(name##_bw)(cf_worker * worker, const cf_call *call) { return backward(worker, call); }
#include "device/formulas.def"
