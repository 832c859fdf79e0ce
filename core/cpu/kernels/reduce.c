/* reduce.c: reductions over dimensions.
 *
 * The input is split into kept and reduced dimensions, each flattened by itself.  Where elements to be merged
 * lie close together a result is made at a time ("rows"); where the kept ones do, a block of results is made at
 * a time, adding row to row ("columns": the gradients of biases).  Few results of many elements are cut into
 * chunks on a grid that the shape alone fixes, whose partial results are merged in order, so that no team size
 * changes a bit.
 */
#include "cpu/kernels/reduce_blocks.h"

/* Rows of columns that are added as floats before they are merged as doubles. */
enum { FOLD_ROWS = 64 };

typedef struct job {
    cf_worker *worker;
    int op;
    cf_compute compute;
    int truth, is_arg, is_max, by_rows;
    cf_step step;
    const cf_reduce_loops *loops;
    cf_view kept, reduced, y; /* of x: kept and reduced share its data */
    int64_t results, length;  /* elements of kept, of reduced */
    int64_t width, chunk;     /* a work item: width results over chunk elements */
    int64_t chunks;
    double correction;
    cf_partial *partial; /* [chunks, results], then shift [results] */
    int64_t *at;         /* [chunks, results] */
    cf_partial *shift;
} job;

static const void *read_block(const job *j, const cf_view *v, int64_t from, int64_t n, void *temp) {
    return j->truth ? CF_K(read_truth)(v, j->compute, from, n, temp) : CF_K(read)(v, j->compute, from, n, temp);
}

/* Element `index` of a flattened view. */
static char *element_of(const cf_view *v, int64_t index) {
    return cf_at(v, cf_dims_offset(v->ndim, v->shape, v->stride, index));
}

/* Results [first, first + n) over elements [from, from + length) of each; at: positions, of argmax and argmin. */
static void by_rows(const job *j, int64_t first, int64_t n, int64_t from, int64_t length, const cf_partial *shift,
                    cf_partial *out, int64_t *at) {
    cf_block_memory temp;
    cf_view x = j->reduced;
    for (int64_t r = 0; r < n; r++) {
        x.data = element_of(&j->kept, first + r);
        out[r] = j->loops->nothing;
        if (at) at[r] = -1;
        for (int64_t k = from; k < from + length; k += CF_BLOCK) {
            const int64_t m = cf_least(CF_BLOCK, from + length - k);
            const void *block = read_block(j, &x, k, m, &temp);
            if (at) {
                CF_K(arg_row)(j->compute, j->is_max, block, m, k, &out[r], &at[r]);
            } else {
                const cf_partial part = j->loops->row(block, m, &shift[r]);
                j->loops->merge(&out[r], &part, 1);
            }
        }
    }
}

static void by_columns(const job *j, int64_t first, int64_t n, int64_t from, int64_t length, const cf_partial *shift,
                       cf_partial *out, int64_t *at) {
    cf_block_memory temp, lanes;
    cf_view x = j->kept;
    for (int64_t k = 0; k < n; k++) out[k] = j->loops->nothing;
    if (at) memset(at, -1, (size_t)n * sizeof *at);
    j->loops->clear(&lanes, n);
    for (int64_t r = 0; r < length; r++) {
        x.data = element_of(&j->reduced, from + r);
        const void *block = read_block(j, &x, first, n, &temp);
        if (at) {
            CF_K(arg_column)(j->compute, j->is_max, block, n, from + r, out, at);
            continue;
        }
        j->loops->column(&lanes, block, n, shift);
        if (r % FOLD_ROWS == FOLD_ROWS - 1) {
            j->loops->fold(out, &lanes, n);
            j->loops->clear(&lanes, n);
        }
    }
    if (!at) j->loops->fold(out, &lanes, n);
}

static void run(const job *j, int64_t first, int64_t n, int64_t from, int64_t length, const cf_partial *shift,
                cf_partial *out, int64_t *at) {
    (j->by_rows ? by_rows : by_columns)(j, first, n, from, length, shift, out, at);
}

/* Of two passes: the second adds the squares of what is left after subtracting the mean. */
static int is_spread(const job *j) { return j->op == CF_OP_var || j->op == CF_OP_std; }

static void mean_of(const job *j, const cf_partial *sum, int64_t n, cf_partial *mean) {
    for (int64_t k = 0; k < n; k++) mean[k].f = sum[k].f / (double)j->length;
}

/* Partial results become results, and go to y. */
static void finish(const job *j, int64_t first, int64_t n, cf_partial *x, const int64_t *at) {
    const double count = (double)j->length, free = count - j->correction;
    for (int64_t k = 0; k < n; k++) {
        if (j->is_arg) x[k].i = at[k];
        else if (j->op == CF_OP_mean) x[k].f /= count;
        else if (j->op == CF_OP_norm) x[k].f = sqrt(x[k].f);
        else if (is_spread(j)) {
            x[k].f /= free > 0 ? free : 0;
            if (j->op == CF_OP_std) x[k].f = sqrt(x[k].f);
        }
    }
    CF_K(write)(&j->y, j->is_arg || j->compute == CF_I64 ? CF_I64 : CF_F64, first, n, x);
}

/* Items are blocks of `width` results over all their elements. */
static void whole_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    cf_partial out[CF_BLOCK], shift[CF_BLOCK];
    int64_t at[CF_BLOCK];
    memset(shift, 0, sizeof shift);
    for (int64_t item = from; item < to; item++) {
        const int64_t first = item * j->width, n = cf_least(j->width, j->results - first);
        run(j, first, n, 0, j->length, shift, out, j->is_arg ? at : NULL);
        if (is_spread(j)) {
            job second = *j;
            second.loops = &CF_K(reduce_loops)[j->compute][CF_STEP_DEVSQ];
            mean_of(j, out, n, shift);
            run(&second, first, n, 0, j->length, shift, out, NULL);
        }
        finish(j, first, n, out, at);
    }
}

/* Items are such blocks over one chunk of their elements, chunk by chunk. */
static void chunk_part(void *context, int64_t from, int64_t to) {
    const job *j = context;
    const int64_t blocks = (j->results + j->width - 1) / j->width;
    for (int64_t item = from; item < to; item++) {
        const int64_t chunk = item / blocks, first = item % blocks * j->width, start = chunk * j->chunk;
        const int64_t place = chunk * j->results + first;
        run(j, first, cf_least(j->width, j->results - first), start, cf_least(j->chunk, j->length - start),
            j->shift + first, j->partial + place, j->at ? j->at + place : NULL);
    }
}

/* All chunks, merged into the first. */
static void run_chunks(job *j, int team) {
    const int64_t blocks = (j->results + j->width - 1) / j->width;
    CF_K(parallel)(team, blocks * j->chunks, 1, chunk_part, j);
    for (int64_t chunk = 1; chunk < j->chunks; chunk++) {
        const cf_partial *other = j->partial + chunk * j->results;
        if (!j->is_arg) {
            j->loops->merge(j->partial, other, j->results);
            continue;
        }
        for (int64_t k = 0; k < j->results; k++) {
            if (!CF_K(arg_better)(j->compute, j->is_max, j->partial[k], other[k])) continue;
            j->partial[k] = other[k];
            j->at[k] = j->at[chunk * j->results + k];
        }
    }
}

static cfx_status by_chunks(job *j, int team) {
    const size_t partials = (size_t)(j->chunks * j->results);
    const size_t words = partials * (j->is_arg ? 2 : 1) + (size_t)j->results;
    cf_partial *memory = cf_worker_scratch(j->worker, words * sizeof *memory);
    if (!memory) return cf_fail(CFX_EMEMORY, "no memory for %zu partial results", partials);
    j->shift = memory;
    j->partial = memory + j->results;
    j->at = j->is_arg ? &j->partial[partials].i : NULL;
    memset(j->shift, 0, (size_t)j->results * sizeof *memory);
    run_chunks(j, team);
    if (is_spread(j)) {
        mean_of(j, j->partial, j->results, j->shift);
        j->loops = &CF_K(reduce_loops)[j->compute][CF_STEP_DEVSQ];
        run_chunks(j, team);
    }
    finish(j, 0, j->results, j->partial, j->at);
    return CFX_OK;
}

static cf_step step_of(int op) {
    switch (op) {
    case CF_OP_prod: return CF_STEP_PROD;
    case CF_OP_mean:
    case CF_OP_var:
    case CF_OP_std: return CF_STEP_MEAN;
    case CF_OP_norm: return CF_STEP_SUMSQ;
    case CF_OP_max:
    case CF_OP_argmax:
    case CF_OP_any: return CF_STEP_MAX;
    case CF_OP_min:
    case CF_OP_argmin:
    case CF_OP_all: return CF_STEP_MIN;
    default: return CF_STEP_SUM;
    }
}

/* Rows or columns: what lies closer together is taken innermost, unless it is too short to be worth it. */
static int prefers_rows(const job *j) {
    const cf_view *k = &j->kept, *r = &j->reduced;
    if (j->results == 1 || j->length == 1) return j->results == 1;
    const int64_t kept_stride = llabs(k->stride[k->ndim - 1]), stride = llabs(r->stride[r->ndim - 1]);
    if (stride <= kept_stride) return j->length >= 32 || j->results < 64;
    return j->results < 8 && j->length >= 1024;
}

cfx_status CF_K(reduce)(cf_worker *worker, const cf_call *call) {
    const cf_view *x = cf_call_in(call, 0);
    const int op = call->op, truth = op == CF_OP_any || op == CF_OP_all;
    job j = {.worker = worker,
             .op = op,
             .truth = truth,
             .is_arg = op == CF_OP_argmax || op == CF_OP_argmin,
             .is_max = op == CF_OP_argmax,
             .step = step_of(op),
             .correction = CF_PARAMS(call, reduce)->correction,
             .y = call->v[0]};
    j.compute = truth ? CF_I64 : cf_compute_of(j.is_arg ? x->dtype : call->dtype);
    if (cf_op_table[op].domain == CF_FLOAT) {
        if (j.compute == CF_I64) return cf_fail(CFX_EFAULT, "needs a float operand");
        if (!cf_is_float(x->dtype)) j.compute = CF_F64; /* integers are rounded with the result, not before */
    }
    j.loops = &CF_K(reduce_loops)[j.compute][j.step];
    /* argmax counts positions, so the order of dimensions stays */
    cf_view_split(x, x->ndim - (int)CF_PARAMS(call, reduce)->dims, !j.is_arg, &j.kept, &j.reduced);
    cf_view_flatten(&j.y);
    j.results = cf_view_numel(&j.kept);
    j.length = cf_view_numel(&j.reduced);
    if (!j.results) return CFX_OK;
    if (j.truth && !j.length) j.loops = &CF_K(reduce_loops)[CF_I64][op == CF_OP_all ? CF_STEP_PROD : CF_STEP_SUM];
    if (j.is_arg && !j.length) return cf_fail(CFX_EFAULT, "of no elements");

    j.by_rows = prefers_rows(&j);
    j.width = j.by_rows ? cf_most(1, cf_least(CF_BLOCK, CF_GRID / cf_most(j.length, 1))) : CF_BLOCK;
    j.chunk = j.by_rows ? CF_GRID : cf_most(FOLD_ROWS, CF_GRID / cf_least(j.width, j.results) / FOLD_ROWS * FOLD_ROWS);
    const int64_t blocks = (j.results + j.width - 1) / j.width;
    j.chunks = blocks >= 64 ? 1 : (j.length + j.chunk - 1) / j.chunk;
    const int team = cf_cpu_team(worker, j.results * j.length);
    if (j.chunks > 1) return by_chunks(&j, team);
    CF_K(parallel)(team, blocks, 1, whole_part, &j);
    return CFX_OK;
}

/* ---- prod_bw --------------------------------------------------------------------------------------------- */

typedef struct prod_job {
    cf_view dy, kept, reduced, dx_kept, dx;
    int64_t length;
    double *memory; /* [team, 2, length] */
    int threads;
    int64_t results;
} prod_job;

/* dx = dy times the product of all others: of those before, by a walk up, and those after, by a walk down. */
static void prod_part(void *context, int64_t from, int64_t to) {
    const prod_job *j = context;
    for (int64_t thread = from; thread < to; thread++) {
        double *x = j->memory + thread * 2 * j->length, *before = x + j->length, dy;
        int64_t first, end;
        cf_cpu_share(j->results, 1, j->threads, (int)thread, &first, &end);
        for (int64_t r = first; r < end; r++) {
            cf_view in = j->reduced, out = j->dx;
            in.data = element_of(&j->kept, r);
            out.data = element_of(&j->dx_kept, r);
            const double *row = CF_K(read)(&in, CF_F64, 0, j->length, x);
            double product = *(const double *)CF_K(read)(&j->dy, CF_F64, r, 1, &dy);
            for (int64_t k = 0; k < j->length; k++) {
                before[k] = product;
                product *= row[k];
            }
            product = 1;
            for (int64_t k = j->length - 1; k >= 0; k--) {
                before[k] *= product;
                product *= row[k];
            }
            CF_K(write)(&out, CF_F64, 0, j->length, before);
        }
    }
}

size_t CF_K(prod_bw_workspace)(const cf_call *call) {
    const int dims = (int)CF_PARAMS(call, reduce)->dims, kept = call->v[0].ndim - dims;
    const int64_t results = cf_shape_numel(kept, call->v[0].shape);
    const int64_t length = cf_shape_numel(dims, call->v[0].shape + kept);
    return (size_t)(cf_least(call->threads, results) * 2 * length) * sizeof(double);
}

cfx_status CF_K(prod_bw)(cf_worker *worker, const cf_call *call) {
    const int kept = call->v[0].ndim - (int)CF_PARAMS(call, reduce)->dims;
    prod_job j = {.dy = *cf_call_in(call, 0), .memory = call->workspace};
    cf_view_split(cf_call_in(call, 1), kept, false, &j.kept, &j.reduced);
    cf_view_split(&call->v[0], kept, false, &j.dx_kept, &j.dx);
    cf_view_flatten(&j.dy);
    j.results = cf_view_numel(&j.kept);
    j.length = cf_view_numel(&j.reduced);
    if (!j.results || !j.length) return CFX_OK;
    j.threads = (int)cf_least(cf_least(cf_cpu_team(worker, j.results * j.length * 4), call->threads), j.results);
    CF_K(parallel)(j.threads, j.threads, 1, prod_part, &j);
    return CFX_OK;
}

/* ---- sumsq ----------------------------------------------------------------------------------------------- */

typedef struct sumsq_job {
    cf_view x;
    cf_compute compute;
} sumsq_job;

static double sumsq_chunk(void *context, int64_t from, int64_t n) {
    const sumsq_job *j = context;
    cf_block_memory temp;
    double sum = 0;
    for (int64_t k = 0; k < n; k += CF_BLOCK) {
        const int64_t m = cf_least(CF_BLOCK, n - k);
        sum += CF_K(block_sumsq)(j->compute, CF_K(read)(&j->x, j->compute, from + k, m, &temp), m);
    }
    return sum;
}

static cfx_status sumsq_one(cf_worker *worker, const cf_call *call) {
    sumsq_job j = {.x = *cf_call_in(call, 0)};
    j.compute = j.x.dtype == CFX_FLOAT64 || !cf_is_float(j.x.dtype) ? CF_F64 : CF_F32;
    double sum, *y = call->v[0].data;
    cf_view_flatten(&j.x);
    CF_TRY(CF_K(grid_sum)(worker, cf_view_numel(&j.x), 1, sumsq_chunk, &j, &sum));
    *y = (CF_PARAMS(call, sumsq)->add ? *y : 0) + sum;
    return CFX_OK;
}

cfx_status CF_K(sumsq)(cf_worker *worker, const cf_call *call) {
    for (; call; call = cf_call_next(call)) CF_TRY(sumsq_one(worker, call));
    return CFX_OK;
}
