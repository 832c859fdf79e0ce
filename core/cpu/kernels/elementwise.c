/* elementwise.c: the one engine of the UNARY, BINARY and TERNARY rows.
 *
 * The output's dimensions are put in the order of its strides, each operand is flattened by itself, and the
 * elements are taken by blocks: an operand that is a contiguous run of the compute type is used in place, any
 * other is gathered into a temporary (block.h), and the row's loop runs over the block.  Loops always run over
 * whole units, so an element's bits depend neither on its place in the tensor nor on the team.
 */
#include "cpu/kernels/elementwise.h"

#include "cpu/kernels/block.h"
#include "cpu/kernels/formulas.h"

/* ---- loops --------------------------------------------------------------------------------------------------- */

/* y [n] = f(a [n], b [n], c [n]; p), n a multiple of CF_UNIT, in one compute type.  y may be any operand. */
typedef void (*block_loop)(const void *a, const void *b, const void *c, void *y, int64_t n, const double *p);

#define LOOP(name, type, number, arity, ...)                                                               \
    static void name(const void *a, const void *b, const void *c, void *out, int64_t n, const double *p) { \
        typedef type T;                                                                                    \
        const T *in0 = a, *in1 = arity > 1 ? b : a, *in2 = arity > 2 ? c : a;                              \
        T *y = out;                                                                                        \
        const T p0 = number(p[0]), p1 = number(p[1]);                                                      \
        n -= n % CF_UNIT;                                                                                  \
        (void)b, (void)c, (void)p0, (void)p1;                                                              \
        CF_VECTOR                                                                                          \
        for (int64_t i = 0; i < n; i++) {                                                                  \
            const T u = in0[i], v = in1[i], w = in2[i];                                                    \
            (void)v, (void)w;                                                                              \
            y[i] = (T)(__VA_ARGS__);                                                                       \
        }                                                                                                  \
    }
/* Of integers there are formulas of all domains but one. */
#define WHOLE_ANY(there, none) there
#define WHOLE_TRUTH WHOLE_ANY
#define WHOLE_LOGIC WHOLE_ANY
#define WHOLE_CHOICE WHOLE_ANY
#define WHOLE_FLOAT(there, none) none
#define CF_FORMULA(name, arity, domain, cost, ...)         \
    LOOP(name##_f32, float, (float), arity, __VA_ARGS__)   \
    LOOP(name##_f64, double, (double), arity, __VA_ARGS__) \
    WHOLE_##domain(LOOP(name##_i64, int64_t, cf_integer, arity, __VA_ARGS__), )
#include "device/formulas.def"

static const block_loop loops[CF_FORMULAS][CF_COMPUTES] = {
#define CF_FORMULA(name, arity, domain, ...) {name##_f32, name##_f64, WHOLE_##domain(name##_i64, NULL)},
#include "device/formulas.def"
};

/* ---- the engine ---------------------------------------------------------------------------------------------- */

enum { MAX_IN = 3 };

typedef struct job {
    cf_compute compute;
    block_loop loop;
    int nin;              /* operands of the loop; a number is one too */
    int truth[MAX_IN];    /* read as 0 or 1 */
    int constant[MAX_IN]; /* one value for all elements */
    cf_view y, x[MAX_IN];
    int64_t block; /* elements a block */
    const double *p;
} job;

static void pad(cf_compute c, void *block, int64_t n, int64_t padded) {
    for (int64_t i = n; i < padded; i++) {
        if (c == CF_F32) ((float *)block)[i] = 1;
        else if (c == CF_F64) ((double *)block)[i] = 1;
        else ((int64_t *)block)[i] = 1;
    }
}

static void repeat(cf_compute c, void *block) {
    for (int64_t i = 1; i < CF_BLOCK; i++) {
        if (c == CF_F32) ((float *)block)[i] = ((float *)block)[0];
        else ((int64_t *)block)[i] = ((int64_t *)block)[0];
    }
}

/* Elements [from, from + n) of operand k, followed by padding up to a whole unit. */
static const void *operand(const job *j, int k, int64_t from, int64_t n, void *temp) {
    const cf_view *x = &j->x[k];
    const int64_t padded = cf_round_up(n, CF_UNIT);
    const void *block =
        j->truth[k] ? CF_K(read_truth)(x, j->compute, from, n, temp) : CF_K(read)(x, j->compute, from, n, temp);
    if (padded == n) return block;
    if (block != temp) memcpy(temp, block, (size_t)(n * cf_compute_size(j->compute)));
    pad(j->compute, temp, n, padded);
    return temp;
}

static void run_block(const job *j, int64_t from, int64_t n, const void **x, cf_block_memory *temp) {
    for (int k = 0; k < j->nin; k++)
        if (!j->constant[k]) x[k] = operand(j, k, from, n, &temp[k]);
    const int64_t padded = cf_round_up(n, CF_UNIT);
    const int direct = padded == n && cf_direct(&j->y, j->compute);
    void *y = direct ? (void *)cf_at(&j->y, from) : (void *)&temp[MAX_IN];
    j->loop(x[0], x[1], x[2], y, padded, j->p);
    if (!direct) CF_K(write)(&j->y, j->compute, from, n, y);
}

static void run_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    cf_block_memory temp[MAX_IN + 1];
    const void *x[MAX_IN] = {NULL, NULL, NULL};
    for (int k = 0; k < j->nin; k++) {
        if (!j->constant[k]) continue;
        const void *one = operand(j, k, 0, 1, &temp[k]);
        if (one != &temp[k]) memcpy(&temp[k], one, (size_t)cf_compute_size(j->compute));
        repeat(j->compute, &temp[k]);
        x[k] = &temp[k];
    }
    /* Of a ragged last block only what lies behind its last whole unit goes through temporaries. */
    for (; from < to; from += j->block) {
        const int64_t n = cf_least(j->block, to - from), whole = n - n % CF_UNIT;
        if (whole) run_block(j, from, whole, x, temp);
        if (n > whole) run_block(j, from + whole, n - whole, x, temp);
    }
}

/* A number as an operand. */
static void set_number(job *j, cf_view *x, double value, void *memory) {
    *x = (cf_view){.data = memory, .dtype = cf_compute_dtype(j->compute)};
    if (j->compute == CF_F32) *(float *)memory = (float)value;
    else if (j->compute == CF_F64) *(double *)memory = value;
    else *(int64_t *)memory = cf_integer(value);
}

cfx_status CF_K(elementwise)(cf_worker *worker, const cf_call *call) {
    const cf_compute c = cf_compute_of(call->dtype);
    const int formula = cf_formula_of(call), arity = cf_formula_info_of(cf_formula_of_row(call->op))->arity;
    const cf_formula_info *info = cf_formula_info_of(formula);
    const cf_formula_params *params = cf_call_params(call);
    job j = {.compute = c, .loop = loops[formula][c], .nin = arity, .p = params->p};
    if (!j.loop) return cf_fail(CFX_EFAULT, "needs float operands");
    if (call->nin != arity && (arity == 1 || call->nin != arity - 1))
        return cf_fail(CFX_EFAULT, "takes %d operands, got %d", arity, call->nin);

    const int64_t n = cf_view_numel(&call->v[0]);
    if (!n) return CFX_OK;
    double memory;
    cf_view views[MAX_IN + 1] = {call->v[0]};
    const int number_at = call->nin == arity ? arity : arity == 2 && params->reversed ? 0 : arity - 1;
    for (int k = 0, in = 0; k < arity; k++) {
        if (k == number_at) set_number(&j, &views[k + 1], params->p[0], &memory);
        else views[k + 1] = *cf_call_in(call, in++);
        cf_view_expand(&views[k + 1], &views[0]);
    }
    cf_views_sort(views, arity + 1);
    j.y = views[0];
    cf_view_flatten(&j.y);
    int temporary = !cf_direct(&j.y, c);
    for (int k = 0; k < arity; k++) {
        cf_view *x = &j.x[k];
        *x = views[k + 1];
        cf_view_flatten(x);
        j.constant[k] = x->ndim == 1 && (x->stride[0] == 0 || x->shape[0] == 1);
        j.truth[k] = CF_TRUTHS(info->domain) >> k & 1;
        temporary |= j.constant[k] || j.truth[k] || !cf_direct(x, c);
    }
    j.block = temporary ? CF_BLOCK : CF_DIRECT;
    CF_K(parallel)(cf_cpu_team(worker, n * info->cost), n, j.block, run_part, &j);
    return CFX_OK;
}
