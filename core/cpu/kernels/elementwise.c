/* elementwise.c: the one engine of the UNARY, BINARY and TERNARY rows.
 *
 * The output's dimensions are put in the order of its strides, each operand is flattened by itself, and the
 * elements are taken by blocks: an operand that is a contiguous run of the compute type is used in place, any
 * other is gathered into a temporary (block.h), and the row's loop runs over the block.  Loops always run over
 * whole units, so an element's bits depend neither on its place in the tensor nor on the team.
 */
#include "cpu/kernels/elementwise.h"

#include "cpu/kernels/elementwise_loops.h"

enum { MAX_IN = 3 };

typedef struct job {
    cf_compute compute;
    cf_block_loop loop;
    int nin;              /* operands of the loop; a number is one too */
    int truth[MAX_IN];    /* read as 0 or 1 */
    int constant[MAX_IN]; /* one value for all elements */
    cf_view y, x[MAX_IN];
    int64_t block; /* elements a block */
    const double *p;
} job;

/* What costs many times an addition. */
static int cost_of(int op) {
    switch (op) {
    case CF_OP_elu:
    case CF_OP_elu_bw:
    case CF_OP_gelu:
    case CF_OP_gelu_bw:
    case CF_OP_silu:
    case CF_OP_silu_bw:
    case CF_OP_softplus:
    case CF_OP_softplus_bw:
    case CF_OP_tanh:
    case CF_OP_sigmoid:
    case CF_OP_exp:
    case CF_OP_log:
    case CF_OP_sin:
    case CF_OP_sin_bw:
    case CF_OP_cos:
    case CF_OP_cos_bw:
    case CF_OP_erf:
    case CF_OP_erf_bw:
    case CF_OP_pow:
    case CF_OP_pow_da:
    case CF_OP_pow_db: return 8;
    default: return 1;
    }
}

/* The loop for a power that is a number on the right: a product is faster than pow, and exact. */
static int loop_of(const cf_call *call) {
    const int is_float = cf_is_float(call->dtype);
    const double p = call->p[0];
    if (call->op == CF_OP_pow && call->nin == 1 && !call->i[0]) {
        if (p == 2) return CF_POW_SQUARE;
        if (p == 3) return CF_POW_CUBE;
        if (p == 1) return CF_POW_SAME;
        if (p == -1 && is_float) return CF_POW_INVERSE;
        if (p == 0.5 && is_float) return CF_POW_SQRT;
    }
    if (call->op == CF_OP_pow_da && call->nin == 2) {
        if (p == 2) return CF_OP_square_bw;
        if (p == 3) return CF_POW_DA_CUBE;
        if (p == 1) return CF_POW_SAME;
        if (p == -1) return CF_POW_DA_INVERSE;
        if (p == 0.5) return CF_POW_DA_SQRT;
    }
    return call->op;
}

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
    const cf_op_info *info = &cf_op_table[call->op];
    const cf_compute c = cf_compute_of(call->dtype);
    const cf_block_loop *loops = c == CF_F32 ? CF_K(loops_f32) : c == CF_F64 ? CF_K(loops_f64) : CF_K(loops_i64);
    const int arity = info->family == CF_UNARY ? 1 : info->family == CF_BINARY ? 2 : 3;
    job j = {.compute = c, .loop = loops[loop_of(call)], .nin = arity, .p = call->p};
    if (!j.loop) return cf_fail(CFX_EFAULT, "needs float operands");
    if (call->nin != arity && (arity == 1 || call->nin != arity - 1))
        return cf_fail(CFX_EFAULT, "takes %d operands, got %d", arity, call->nin);

    const int64_t n = cf_view_numel(&call->v[0]);
    if (!n) return CFX_OK;
    double memory;
    cf_view views[MAX_IN + 1] = {call->v[0]};
    const int number_at = call->nin == arity ? arity : arity == 2 && call->i[0] ? 0 : arity - 1;
    for (int k = 0, in = 0; k < arity; k++) {
        if (k == number_at) set_number(&j, &views[k + 1], call->p[0], &memory);
        else views[k + 1] = *cf_call_in(call, in++);
        cf_view_expand(&views[k + 1], &views[0]);
    }
    cf_views_order(views, arity + 1);
    j.y = views[0];
    cf_view_flatten(&j.y);
    int temporary = !cf_direct(&j.y, c), cost = cost_of(call->op);
    if (cost > 1 && j.loop != loops[call->op]) cost = 1;
    for (int k = 0; k < arity; k++) {
        cf_view *x = &j.x[k];
        *x = views[k + 1];
        cf_view_flatten(x);
        j.constant[k] = x->ndim == 1 && (x->stride[0] == 0 || x->shape[0] == 1);
        j.truth[k] = call->op == CF_OP_land || call->op == CF_OP_lor || call->op == CF_OP_lnot ||
                     (call->op == CF_OP_where && k == 0);
        temporary |= j.constant[k] || j.truth[k] || !cf_direct(x, c);
    }
    j.block = temporary ? CF_BLOCK : CF_DIRECT;
    CF_K(parallel)(cf_cpu_team(worker, n * cost), n, j.block, run_part, &j);
    return CFX_OK;
}
