/* random.c: random tensors by position.
 *
 * Element e, in row-major order, is made from the words at `position` + e (two words where it needs 64 bits),
 * whatever thread makes it.  Bits and uniforms are the same on every machine: what is scaled is so rounded that
 * a fused multiply-add gives the same.  Normals are pairs (Box and Muller 1958): elements 2j and 2j + 1.
 */
#include "base/rng.h"
#include "cpu/kernels/block.h"
#include "cpu/kernels/maths.h"

typedef struct job {
    uint64_t seed, stream, first; /* the block of four words that holds the first */
    cf_view y;
    cf_compute compute;
    double p0, p1, limit; /* limit: the largest value of the dtype below p1 */
    uint64_t range;
} job;

/* Words [from, from + n) of the call, both multiples of 4. */
static void words(const job *j, int64_t from, int64_t n, uint32_t *restrict out) {
    const uint64_t seed = j->seed, stream = j->stream, block = j->first + (uint64_t)from / 4;
    for (int64_t k = 0; k < n / 4; k++) {
        uint32_t w[4];
        cf_philox(seed, stream, block + (uint64_t)k, w);
        out[4 * k] = w[0];
        out[4 * k + 1] = w[1];
        out[4 * k + 2] = w[2];
        out[4 * k + 3] = w[3];
    }
}

static job job_of(const cf_call *call, cf_compute compute) {
    const cf_random_params *params = cf_call_params(call);
    job j = {.seed = params->at.seed,
             .stream = params->at.stream,
             .first = params->at.position / 4,
             .y = call->v[0],
             .compute = compute,
             .p0 = params->a,
             .p1 = params->b};
    cf_view_flatten(&j.y);
    return j;
}

/* Every block is made whole, by the same loops, and its first n elements are kept. */
static cfx_status run(cf_worker *worker, job *j, int cost, cf_part part) {
    const int64_t n = cf_view_numel(&j->y);
    CF_K(parallel)(cf_cpu_team(worker, n * cost), n, CF_BLOCK, part, j);
    return CFX_OK;
}

static void *target(const job *j, int64_t from, int64_t n, cf_block_memory *temp) {
    return n == CF_BLOCK && cf_direct(&j->y, j->compute) ? (void *)cf_at(&j->y, from) : (void *)temp;
}

/* ---- uniform --------------------------------------------------------------------------------------------- */

/* The largest value of `dtype` below x. */
static double below(int dtype, double x) {
    const cf_view v = {.dtype = dtype, .ndim = 1, .shape = {1}, .stride = {1}};
    uint64_t bits = 0;
    cf_view one = v;
    one.data = &bits;
    CF_K(write)(&one, CF_F64, 0, 1, &x);
    if (CF_K(number)(&one) < x) return CF_K(number)(&one);
    const int64_t size = cf_dtype_size(dtype);
    const uint64_t sign = (uint64_t)1 << (8 * size - 1);
    if ((bits & ~sign) == 0) bits = sign | 1; /* below 0 */
    else if (bits & sign) bits++;
    else bits--;
    return CF_K(number)(&one);
}

static void uniform_f32(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const float low = (float)j->p0, limit = (float)j->limit;
    const double span = (double)((float)j->p1 - low); /* a product of two floats is exact as a double */
    const int unit = j->p0 == 0 && j->p1 == 1 && j->y.dtype == CFX_FLOAT32;
    uint32_t w[CF_BLOCK] __attribute__((aligned(64)));
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        float *y = target(j, from, n, &temp);
        words(j, from, CF_BLOCK, w);
        if (unit) {
            for (int k = 0; k < CF_BLOCK; k++) y[k] = cf_uniform_f32(w[k]);
        } else {
            for (int k = 0; k < CF_BLOCK; k++) {
                const float v = (float)((double)cf_uniform_f32(w[k]) * span + (double)low);
                y[k] = v > limit ? limit : v;
            }
        }
        CF_K(write)(&j->y, CF_F32, from, n, y);
    }
}

static void uniform_f64(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const double low = j->p0, span = j->p1 - j->p0;
    uint32_t w[2 * CF_BLOCK] __attribute__((aligned(64)));
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        double *y = target(j, from, n, &temp);
        words(j, 2 * from, 2 * CF_BLOCK, w);
        for (int k = 0; k < CF_BLOCK; k++) {
            const double v = fma(cf_uniform_f64(w[2 * k], w[2 * k + 1]), span, low);
            y[k] = v > j->limit ? j->limit : v;
        }
        CF_K(write)(&j->y, CF_F64, from, n, y);
    }
}

cfx_status CF_K(uniform)(cf_worker *worker, const cf_call *call) {
    const int wide = call->v[0].dtype == CFX_FLOAT64;
    job j = job_of(call, wide ? CF_F64 : CF_F32);
    if (!cf_is_float(j.y.dtype)) return cf_fail(CFX_EFAULT, "needs a float dtype");
    j.limit = j.p0 < j.p1 ? below(j.y.dtype, j.p1) : j.p0;
    return run(worker, &j, 8, wide ? uniform_f64 : uniform_f32);
}

/* ---- normal ---------------------------------------------------------------------------------------------- */

enum { PAIRS = CF_BLOCK / 2 };

/* y [2 pairs] from u and v [pairs], uniforms on (0, 1] and [0, 1). */
#define BOX_MULLER(name, number, f, two_pi)                                                     \
    static void name(number *u, number *v, number mean, number deviation, number *restrict y) { \
        number r[PAIRS] __attribute__((aligned(64)));                                           \
        for (int k = 0; k < PAIRS; k++) r[k] = deviation * sqrt##f(-2 * log##f(u[k]));          \
        for (int k = 0; k < PAIRS; k++) u[k] = cos##f(two_pi * v[k]);                           \
        for (int k = 0; k < PAIRS; k++) v[k] = sin##f(two_pi * v[k]);                           \
        for (int k = 0; k < PAIRS; k++) {                                                       \
            y[2 * k] = mean + r[k] * u[k];                                                      \
            y[2 * k + 1] = mean + r[k] * v[k];                                                  \
        }                                                                                       \
    }
BOX_MULLER(pairs_f32, float, f, 6.28318530718f)
BOX_MULLER(pairs_f64, double, , 6.28318530717958647692)

static void normal_f32(void *context, int64_t from, int64_t to) {
    const job *j = context;
    uint32_t w[CF_BLOCK] __attribute__((aligned(64)));
    float u[PAIRS] __attribute__((aligned(64))), v[PAIRS] __attribute__((aligned(64)));
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        float *y = target(j, from, n, &temp);
        words(j, from, CF_BLOCK, w);
        for (int k = 0; k < PAIRS; k++) {
            u[k] = 1 - cf_uniform_f32(w[2 * k]);
            v[k] = cf_uniform_f32(w[2 * k + 1]);
        }
        pairs_f32(u, v, (float)j->p0, (float)j->p1, y);
        CF_K(write)(&j->y, CF_F32, from, n, y);
    }
}

static void normal_f64(void *context, int64_t from, int64_t to) {
    const job *j = context;
    uint32_t w[2 * CF_BLOCK] __attribute__((aligned(64)));
    double u[PAIRS] __attribute__((aligned(64))), v[PAIRS] __attribute__((aligned(64)));
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        double *y = target(j, from, n, &temp);
        words(j, 2 * from, 2 * CF_BLOCK, w);
        for (int k = 0; k < PAIRS; k++) {
            u[k] = 1 - cf_uniform_f64(w[4 * k], w[4 * k + 1]);
            v[k] = cf_uniform_f64(w[4 * k + 2], w[4 * k + 3]);
        }
        pairs_f64(u, v, j->p0, j->p1, y);
        CF_K(write)(&j->y, CF_F64, from, n, y);
    }
}

cfx_status CF_K(normal)(cf_worker *worker, const cf_call *call) {
    const int wide = call->v[0].dtype == CFX_FLOAT64;
    job j = job_of(call, wide ? CF_F64 : CF_F32);
    if (!cf_is_float(j.y.dtype)) return cf_fail(CFX_EFAULT, "needs a float dtype");
    return run(worker, &j, 16, wide ? normal_f64 : normal_f32);
}

/* ---- integers -------------------------------------------------------------------------------------------- */

static void randint_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const int64_t low = cf_integer(j->p0);
    uint32_t w[2 * CF_BLOCK] __attribute__((aligned(64)));
    cf_block_memory temp;
    for (; from < to; from += CF_BLOCK) {
        const int64_t n = cf_least(CF_BLOCK, to - from);
        words(j, 2 * from, 2 * CF_BLOCK, w);
        for (int k = 0; k < CF_BLOCK; k++) {
            const uint64_t bits = (uint64_t)w[2 * k] << 32 | w[2 * k + 1];
            const uint64_t draw = (uint64_t)(((unsigned __int128)bits * j->range) >> 64);
            temp.i64[k] = (int64_t)((uint64_t)low + (j->range ? draw : bits));
        }
        CF_K(write)(&j->y, CF_I64, from, n, &temp);
    }
}

cfx_status CF_K(randint)(cf_worker *worker, const cf_call *call) {
    job j = job_of(call, CF_I64);
    j.range = (uint64_t)cf_integer(j.p1) - (uint64_t)cf_integer(j.p0) + 1; /* 0: all 2^64 */
    return run(worker, &j, 16, randint_part);
}

/* Where the ids cannot be made in place. */
size_t CF_K(permutation_workspace)(const cf_call *call) {
    cf_view y = call->v[0];
    cf_view_flatten(&y);
    return cf_direct(&y, CF_I64) ? 0 : (size_t)cf_view_numel(&y) * sizeof(int64_t);
}

cfx_status CF_K(permutation)(cf_worker *worker, const cf_call *call) {
    (void)worker;
    cf_view y = call->v[0];
    const int64_t n = cf_view_numel(&y);
    const cf_position *at = &CF_PARAMS(call, random)->at;
    cf_view_flatten(&y);
    int64_t *ids = call->workspace ? call->workspace : y.data;
    cf_permutation(at->seed, at->stream + (at->position << 8), n, ids);
    if (call->workspace) CF_K(write)(&y, CF_I64, 0, n, ids);
    return CFX_OK;
}
