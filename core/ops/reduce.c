/* reduce.c: reductions over dimensions. */
#include <math.h>
#include <string.h>

#include "ops/tape.h"
#include "tensor/issue.h"

/* Dimensions in two groups. */
typedef struct split {
    int32_t nkept, nreduced;
    int32_t dims[CFX_MAX_DIMS], reduced[CFX_MAX_DIMS]; /* dims: those that are kept, then the reduced ones */
    int64_t count;                                     /* elements reduced into one */
} split;

/* As much of the call as its gradient needs to know. */
typedef struct form {
    int64_t reduced; /* which dimensions are, as bits */
    double param;
} form;

/* reduced: which dimensions are, as bits. */
static void split_by(int64_t reduced, int32_t ndim, const int64_t *shape, split *s) {
    int64_t sizes[CFX_MAX_DIMS];
    s->nkept = s->nreduced = 0;
    for (int32_t d = 0; d < ndim; d++) {
        if (reduced >> d & 1) {
            sizes[s->nreduced] = shape[d];
            s->reduced[s->nreduced++] = d;
        } else {
            s->dims[s->nkept++] = d;
        }
    }
    memcpy(s->dims + s->nkept, s->reduced, (size_t)s->nreduced * sizeof *s->dims);
    s->count = cf_shape_numel(s->nreduced, sizes);
}

/* x as the kernels want it, the reduced dimensions last; borrowed. */
static void arrange(const cfx_tensor *x, const split *s, cfx_tensor *out) {
    *out = *x;
    cf_pick_dims(out, x->_ndim, s->dims);
}

/* `r` (kept dimensions only) with the reduced ones back as dimensions of size 1; borrowed. */
static void with_ones(const cfx_tensor *r, const split *s, cfx_tensor *out) {
    *out = *r;
    for (int32_t k = 0; k < s->nreduced; k++)
        cf_dims_insert(out->_ndim++, s->reduced[k], 1, 0, out->_shape, out->_stride);
}

/* ---- gradients -------------------------------------------------------------------------------------- */

/* That of the node's forward call. */
static void split_of(const cf_node *node, split *s) {
    split_by(((form *)node->kept)->reduced, node->inputs[0].ndim, node->inputs[0].shape, s);
}

/* Borrowed: r (dy or a result: the kept dimensions, with or without ones) expanded to x's shape. */
static void spread(const cf_node *node, const split *s, const cfx_tensor *r, cfx_tensor *out) {
    const cf_input *in = &node->inputs[0];
    if (r->_ndim == s->nkept && s->nreduced) with_ones(r, s, out);
    else *out = *r;
    cf_dims_expand(in->ndim, out->_shape, out->_stride, in->ndim, in->shape);
    out->_tape = 0;
}

static cfx_status sum_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor wide, g;
    split_of(node, &s);
    spread(node, &s, dy, &wide);
    cf_alias(&wide, &g);
    return cf_give(tape, node, 0, &g);
}

static cfx_status mean_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor scaled = {0}, wide, g;
    split_of(node, &s);
    CF_TRY(cfx_binary_scalar(CF_OP_div, dy, (double)s.count, 0, &scaled));
    spread(node, &s, &scaled, &wide);
    cf_alias(&wide, &g);
    cfx_release(&scaled);
    return cf_give(tape, node, 0, &g);
}

static cfx_status prod_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor g = {0}, to, x, from;
    const cf_input *in = &node->inputs[0];
    split_of(node, &s);
    CF_TRY(cf_new(in->device, dy->_dtype, in->ndim, in->shape, &g));
    arrange(&g, &s, &to);
    arrange(cf_saved(node, 0), &s, &x);
    from = *dy; /* only the kept dimensions */
    if (dy->_ndim != s.nkept) cf_pick_dims(&from, s.nkept, s.dims);
    const cfx_status status = cf_issue_run(&(cf_issue){.op = CF_OP_prod_bw,
                                                       .dtype = dy->_dtype,
                                                       .nout = 1,
                                                       .nin = 2,
                                                       .t = CF_VIEWS(&to, &from, &x),
                                                       .params = &(cf_reduce_params){.dims = s.nreduced}});
    if (status != CFX_OK) {
        g._buffer = to._buffer; /* released by the failure */
        cfx_release(&g);
        return status;
    }
    return cf_give(tape, node, 0, &g);
}

/* Whether x is what the reduction chose: equal to the result, or a NaN, which then is the result. */
static cfx_status chosen(const cfx_tensor *x, const cfx_tensor *result, cfx_tensor *out) {
    cfx_tensor equal = {0}, nan = {0};
    cfx_status status = cfx_binary(CF_OP_eq, x, result, &equal);
    if (status == CFX_OK) status = cfx_binary(CF_OP_ne, x, x, &nan);
    if (status == CFX_OK) status = cfx_binary(CF_OP_lor, &equal, &nan, out);
    cfx_release(&equal);
    cfx_release(&nan);
    return status;
}

/* max and min: dy goes to the elements that were chosen, in equal parts. */
static cfx_status extreme_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor wide, which = {0}, mask = {0}, count = {0}, share = {0}, part, g = {0};
    const cfx_tensor *x = cf_saved(node, 0);
    split_of(node, &s);
    spread(node, &s, cf_saved(node, 1), &wide);
    cfx_status status = chosen(x, &wide, &which);
    if (status == CFX_OK) status = cfx_to(&which, NULL, dy->_dtype, &mask);
    if (status == CFX_OK) status = cfx_reduce(CF_OP_sum, &mask, s.nreduced, s.reduced, dy->_ndim != s.nkept, 0, &count);
    if (status == CFX_OK) status = cfx_binary(CF_OP_div, dy, &count, &share);
    if (status == CFX_OK) {
        spread(node, &s, &share, &part);
        status = cfx_binary(CF_OP_mul, &mask, &part, &g);
    }
    cfx_release(&which);
    cfx_release(&mask);
    cfx_release(&count);
    cfx_release(&share);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

/* g = (x / r) dy, and 0 where r is 0.  x is divided before it is multiplied: x / r is never large, dy / r may be. */
static cfx_status give_ratio(cfx_tape *tape, cf_node *node, const split *s, const cfx_tensor *x, const cfx_tensor *r,
                             const cfx_tensor *dy) {
    cfx_tensor zero = {0}, infinite = {0}, safe = {0}, ratio = {0}, wide, g = {0};
    cfx_status status = cfx_binary_scalar(CF_OP_eq, r, 0, 0, &zero);
    if (status == CFX_OK) status = cfx_full(cf_device(dy), dy->_dtype, 0, NULL, INFINITY, &infinite);
    if (status == CFX_OK) status = cfx_where(&zero, &infinite, r, &safe);
    if (status == CFX_OK) {
        spread(node, s, &safe, &wide);
        status = cfx_binary(CF_OP_div, x, &wide, &ratio);
    }
    if (status == CFX_OK) {
        spread(node, s, dy, &wide);
        status = cfx_binary(CF_OP_mul, &ratio, &wide, &g);
    }
    cfx_release(&zero);
    cfx_release(&infinite);
    cfx_release(&safe);
    cfx_release(&ratio);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

/* d|x| = x / |x|. */
static cfx_status norm_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    split_of(node, &s);
    return give_ratio(tape, node, &s, cf_saved(node, 0), cf_saved(node, 1), dy);
}

/* x - mean, and dy times `factor` over the free elements. */
static cfx_status deviations(const cf_node *node, const split *s, const cfx_tensor *dy, double factor, cfx_tensor *away,
                             cfx_tensor *scaled) {
    const double free = (double)s->count - ((form *)node->kept)->param;
    cfx_tensor mean = {0};
    cfx_status status = cfx_reduce(CF_OP_mean, cf_saved(node, 0), s->nreduced, s->reduced, 1, 0, &mean);
    if (status == CFX_OK) status = cfx_binary(CF_OP_sub, cf_saved(node, 0), &mean, away);
    if (status == CFX_OK) status = cfx_binary_scalar(CF_OP_mul, dy, factor / (free > 0 ? free : 0), 0, scaled);
    cfx_release(&mean);
    return status;
}

/* d var = 2 (x - mean) / (n - correction). */
static cfx_status var_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor away = {0}, scaled = {0}, wide, g = {0};
    split_of(node, &s);
    cfx_status status = deviations(node, &s, dy, 2, &away, &scaled);
    if (status == CFX_OK) {
        spread(node, &s, &scaled, &wide);
        status = cfx_binary(CF_OP_mul, &away, &wide, &g);
    }
    cfx_release(&away);
    cfx_release(&scaled);
    return status == CFX_OK ? cf_give(tape, node, 0, &g) : status;
}

/* d std = (x - mean) / (n - correction) / std. */
static cfx_status std_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    split s;
    cfx_tensor away = {0}, scaled = {0};
    split_of(node, &s);
    cfx_status status = deviations(node, &s, dy, 1, &away, &scaled);
    if (status == CFX_OK) status = give_ratio(tape, node, &s, &away, cf_saved(node, 1), &scaled);
    cfx_release(&away);
    cfx_release(&scaled);
    return status;
}

/* ---- reductions ------------------------------------------------------------------------------------- */

static const cf_backward backwards[CF_OPS] = {
    [CF_OP_sum] = sum_backward,     [CF_OP_mean] = mean_backward,   [CF_OP_prod] = prod_backward,
    [CF_OP_max] = extreme_backward, [CF_OP_min] = extreme_backward, [CF_OP_norm] = norm_backward,
    [CF_OP_var] = var_backward,     [CF_OP_std] = std_backward,
};

/* As bits; without any named all of them. */
static cfx_status named_dims(const char *name, const cfx_tensor *x, int32_t ndims, const int32_t *dims, int64_t *bits) {
    *bits = ndims ? 0 : ((int64_t)1 << x->_ndim) - 1;
    for (int32_t k = 0; k < ndims; k++) {
        int32_t d = dims[k];
        CF_TRY(cf_check_dim(name, x->_ndim, &d));
        if (*bits >> d & 1) return cf_fail(CFX_EARG, "%s: dimension %d is named twice", name, d + 1);
        *bits |= (int64_t)1 << d;
    }
    return CFX_OK;
}

static void reduced_dtypes(int32_t op, int32_t dtype, int32_t *compute, int32_t *result) {
    *compute = cf_op_table[op].domain == CF_FLOAT ? cf_float_of(dtype) : dtype;
    /* sums of small integers would overflow their own type */
    if ((op == CF_OP_sum || op == CF_OP_prod) && !cf_is_float(dtype)) *compute = CFX_INT64;
    *result = *compute;
    if (cf_op_table[op].domain == CF_TRUTH) *result = CFX_BOOL;
    if (op == CF_OP_argmax || op == CF_OP_argmin) *result = CFX_INT64;
}

CFX_API cfx_status cfx_reduce(int32_t op, const cfx_tensor *x, int32_t ndims, const int32_t *dims, int32_t keepdim,
                              double param, cfx_tensor *out) {
    if (op < 0 || op >= CF_OPS || cf_op_table[op].family != CF_REDUCE)
        return cf_fail(CFX_EARG, "reduce: there is no such operation (%d)", op);
    const char *name = cf_op_table[op].name;
    int32_t compute, result;
    int64_t reduced;
    cfx_tensor in, made = {0};
    split s;
    CF_TRY(cf_check_tensor(name, "x", x));
    CF_TRY(named_dims(name, x, ndims, dims, &reduced));
    split_by(reduced, x->_ndim, x->_shape, &s);
    const bool id = op == CF_OP_argmax || op == CF_OP_argmin;
    if (id && ndims > 1) return cf_fail(CFX_EARG, "%s: expected one dimension or none, got %d", name, ndims);
    if (s.count == 0 && (id || op == CF_OP_max || op == CF_OP_min)) {
        char text[256];
        return cf_fail(CFX_EARG, "%s: there is no element to take from a %s", name, cf_describe(x, text));
    }
    reduced_dtypes(op, x->_dtype, &compute, &result);
    arrange(x, &s, &in);
    if (out->_buffer && s.nkept != out->_ndim) return cf_fail(CFX_EARG, "%s: the place has another rank", name);
    cfx_tensor *to = out->_buffer ? out : &made;
    CF_TRY(cf_new(cf_device(x), result, s.nkept, in._shape, to));
    CF_TRY(cf_issue_run(&(cf_issue){.op = (cf_op)op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(to, &in),
                                    .params = &(cf_reduce_params){param, s.nreduced}}));
    if (to == &made) {
        *out = made;
        if (keepdim) with_ones(&made, &s, out);
    }
    if (!backwards[op] || !x->_tape) return CFX_OK;
    return cf_record(&(cf_recording){.op = name,
                                     .backward = backwards[op],
                                     .nin = 1,
                                     .nsaved = op == CF_OP_sum || op == CF_OP_mean ? 0 : 2,
                                     .inputs = &x,
                                     .saved = (const cfx_tensor *[]){x, out},
                                     .kept = &(form){reduced, param},
                                     .kept_bytes = sizeof(form)},
                     out);
}
