/* batchnorm.c: batch normalisation, with what may follow it: the sum with a residual, and an activation. */
#include <string.h>

#include "ops/activation.h"
#include "ops/gradients.h"
#include "ops/shape.h"
#include "tensor/issue.h"
#include "tensor/primitive.h"

/* A node's own: of the saved tensors, gamma and beta are there if affine, and y behind them. */
typedef struct kept {
    double eps;
    bool training, affine, relu, y;
} kept;

/* ---- checks ----------------------------------------------------------------------------------------- */

/* Statistics of half types are float32, and so may their parameters be. */
static bool fits(const cfx_tensor *x, int32_t dtype) {
    return dtype == x->_dtype || (x->_dtype != CFX_FLOAT64 && dtype == CFX_FLOAT32);
}

static cfx_status check_channels(const cfx_tensor *x, const char *argument, const cfx_tensor *t) {
    char have[256];
    const int64_t c = x->_shape[x->_ndim - 1];
    CF_TRY(cf_check_tensor("batchnorm", argument, t));
    CF_TRY(cf_check_same_device("batchnorm", argument, x, t));
    if (cf_has_shape(t, 1, &c) && fits(x, t->_dtype)) return CFX_OK;
    return cf_fail(CFX_EARG, "batchnorm: argument '%s': expected shape [%lld] (%s), got %s", argument, (long long)c,
                   cfx_dtype_name(x->_dtype), cf_describe(t, have));
}

/* Two arguments that come as a pair. */
static cfx_status check_pair(const cfx_tensor *x, const char *names[2], const cfx_tensor *a, const cfx_tensor *b) {
    if (!a != !b) return cf_fail(CFX_EARG, "batchnorm: expected %s and %s, or neither", names[0], names[1]);
    if (!a) return CFX_OK;
    CF_TRY(check_channels(x, names[0], a));
    return check_channels(x, names[1], b);
}

static cfx_status check_updates(const cfx_tensor *x, const cfx_batch_state *s, double momentum) {
    char have[256];
    if (s->mean) CF_TRY(cf_check_into("batchnorm", s->mean, NULL));
    if (s->var) CF_TRY(cf_check_into("batchnorm", s->var, NULL));
    if (s->mean && cf_shared(s->mean, s->var, 1) > 0)
        return cf_fail(CFX_EARG, "batchnorm: argument 'var': it shares memory with argument 'mean'");
    if (s->mean && momentum < 0 && !s->count)
        return cf_fail(CFX_EARG, "batchnorm: argument 'count': a cumulative mean (momentum < 0) needs one");
    if (!s->count) return CFX_OK;
    CF_TRY(cf_check_tensor("batchnorm", "count", s->count));
    CF_TRY(cf_check_same_device("batchnorm", "count", x, s->count));
    if (s->count->_dtype != CFX_INT64 || cf_numel(s->count) != 1)
        return cf_fail(CFX_EARG, "batchnorm: argument 'count': expected shape [1] (int64), got %s",
                       cf_describe(s->count, have));
    return cf_check_into("batchnorm", s->count, NULL);
}

static cfx_status check(const cfx_tensor *x, const cfx_batch_state *s, const cfx_tensor *residual, double momentum,
                        bool training) {
    char have[256], want[256];
    CF_TRY(cf_check_tensor("batchnorm", "x", x));
    if (!s) return cf_fail(CFX_EARG, "batchnorm: argument 'state': expected a state, got none");
    if (!cf_is_float(x->_dtype) || x->_ndim < 2)
        return cf_fail(CFX_EARG, "batchnorm: argument 'x': expected floats of shape [n, .., channels], got %s",
                       cf_describe(x, have));
    CF_TRY(check_pair(x, (const char *[]){"gamma", "beta"}, s->gamma, s->beta));
    CF_TRY(check_pair(x, (const char *[]){"mean", "var"}, s->mean, s->var));
    if (training) CF_TRY(check_updates(x, s, momentum));
    else if (!s->mean)
        return cf_fail(CFX_EARG, "batchnorm: argument 'mean': inference needs the running mean and variance");
    if (training && cf_shape_numel(x->_ndim - 1, x->_shape) == 1)
        return cf_fail(CFX_EARG, "batchnorm: argument 'x': expected more than one value a channel in training, got %s",
                       cf_describe(x, have));
    if (!residual) return CFX_OK;
    CF_TRY(cf_check_tensor("batchnorm", "residual", residual));
    CF_TRY(cf_check_same_device("batchnorm", "residual", x, residual));
    if (cf_same_shape(x, residual) && x->_dtype == residual->_dtype) return CFX_OK;
    return cf_fail(CFX_EARG, "batchnorm: argument 'residual': expected x's form %s, got %s", cf_describe(x, want),
                   cf_describe(residual, have));
}

/* ---- the gradient ----------------------------------------------------------------------------------- */

/* Inputs of a node, in order. */
enum { X, RESIDUAL, GAMMA, BETA, INPUTS };

/* Makes the gradients g of the inputs that `wants` names: those of x and of a residual are rows [rows, c], as dy is. */
static cfx_status run_gradient(cf_node *node, cfx_tensor *dy, const bool *wants, cfx_tensor *g) {
    const kept *k = node->kept;
    cfx_tensor rows[2] = {g[X], g[RESIDUAL]}, *t[11];
    int n = 0, nout;
    for (int i = X; i <= RESIDUAL; i++)
        if (wants[i]) {
            cf_set_packed(&rows[i], 2, dy->_shape);
            t[n++] = &rows[i];
        }
    if (wants[GAMMA]) t[n++] = &g[GAMMA], t[n++] = &g[BETA];
    nout = n;
    t[n++] = dy;
    for (int i = 0; i < (k->affine ? 5 : 3); i++) t[n++] = cf_saved(node, i);
    cfx_tensor y;
    if (k->y) {
        y = *cf_saved(node, k->affine ? 5 : 3); /* borrowed */
        cf_set_packed(&y, 2, dy->_shape);
        t[n++] = &y;
    }
    const cf_batchnorm_bw_params params = {.eps = k->eps,
                                           .training = k->training,
                                           .relu = k->relu,
                                           .dx = wants[X],
                                           .dresidual = wants[RESIDUAL],
                                           .dgamma = wants[GAMMA],
                                           .affine = k->affine,
                                           .y = k->y};
    const cfx_status status = cf_issue_run(&(cf_issue){
        .op = CF_OP_batchnorm_bw, .dtype = dy->_dtype, .nout = nout, .nin = n - nout, .t = t, .params = &params});
    if (status != CFX_OK) memset(g, 0, INPUTS * sizeof *g); /* released by the failure */
    return status;
}

static cfx_status batchnorm_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *grad) {
    const kept *k = node->kept;
    const bool affine = cf_needs(node, GAMMA) || cf_needs(node, BETA);
    const bool wants[INPUTS] = {cf_needs(node, X), k->relu && cf_needs(node, RESIDUAL), affine, affine};
    cfx_tensor dy = {0}, alike;
    if (!k->relu && cf_needs(node, RESIDUAL)) {
        cf_alias(grad, &alike);
        CF_TRY(cf_give(tape, node, RESIDUAL, &alike));
    }
    if (!wants[X] && !wants[RESIDUAL] && !affine) return CFX_OK;
    CF_TRY(cf_rows_of(grad, grad->_ndim - 1, &dy));
    return cf_give_gradients(tape, node, INPUTS, wants, run_gradient, &dy);
}

/* ---- the result ------------------------------------------------------------------------------------- */

/* The statistics by which x is normalised, which are made: of its rows, or copies of what has run, which may move
 * before a gradient needs them. */
static cfx_status run_stats(cfx_tensor *rows, const cfx_batch_state *s, bool training, cfx_tensor *mean,
                            cfx_tensor *var) {
    cfx_device *device = cf_device(rows);
    const int dtype = rows->_dtype == CFX_FLOAT64 ? CFX_FLOAT64 : CFX_FLOAT32;
    if (!training) {
        CF_TRY(cf_copy_to(s->mean, device, dtype, mean));
        return cf_copy_to(s->var, device, dtype, var);
    }
    CF_TRY(cf_new(device, dtype, 1, &rows->_shape[1], mean));
    CF_TRY(cf_new(device, dtype, 1, &rows->_shape[1], var));
    return cf_issue_run(&(cf_issue){
        .op = CF_OP_batchnorm_stats, .dtype = rows->_dtype, .nout = 2, .nin = 1, .t = CF_VIEWS(mean, var, rows)});
}

/* out is made; residual: rows, or NULL. */
static cfx_status run_map(const kept *k, cfx_tensor *rows, cfx_tensor *mean, cfx_tensor *var, const cfx_batch_state *s,
                          cfx_tensor *residual, cfx_tensor *out) {
    cfx_tensor y = *out; /* borrowed */
    cfx_tensor *t[7] = {&y, rows, mean, var};
    const cf_batchnorm_params params = {k->eps, k->affine, residual != NULL, k->relu};
    int n = 4;
    cf_set_packed(&y, 2, rows->_shape);
    if (k->affine) t[n++] = (cfx_tensor *)s->gamma, t[n++] = (cfx_tensor *)s->beta;
    if (residual) t[n++] = residual;
    const cfx_status status = cf_issue_run(
        &(cf_issue){.op = CF_OP_batchnorm, .dtype = rows->_dtype, .nout = 1, .nin = n - 1, .t = t, .params = &params});
    if (status != CFX_OK) *out = y; /* released by the failure */
    return status;
}

/* The running statistics move. */
static cfx_status run_move(const cfx_tensor *rows, cfx_tensor *mean, cfx_tensor *var, const cfx_batch_state *s,
                           double momentum) {
    const cf_batchnorm_move_params params = {momentum, rows->_shape[0], s->mean != NULL, s->count != NULL};
    cfx_tensor *t[5], count;
    int n = 0;
    if (s->mean) t[n++] = s->mean, t[n++] = s->var;
    if (s->count) {
        count = *s->count; /* borrowed */
        cf_set_packed(&count, 1, (int64_t[]){1});
        t[n++] = &count;
    }
    const int nout = n;
    if (nout == 0) return CFX_OK;
    t[n++] = mean;
    t[n++] = var;
    return cf_issue_run(&(cf_issue){.op = CF_OP_batchnorm_move,
                                    .dtype = rows->_dtype,
                                    .nout = nout,
                                    .nin = 2,
                                    .nupdated = nout,
                                    .t = t,
                                    .params = &params});
}

static cfx_status record(const cfx_tensor *x, const cfx_batch_state *s, const cfx_tensor *residual, const kept *k,
                         const cfx_tensor *rows, const cfx_tensor *mean, const cfx_tensor *var, cfx_tensor *out) {
    const cfx_tensor *saved[6] = {rows, mean, var};
    int n = 3;
    if (k->affine) saved[n++] = s->gamma, saved[n++] = s->beta;
    if (k->y) saved[n++] = out;
    return cf_record(&(cf_recording){.op = "batchnorm",
                                     .backward = batchnorm_backward,
                                     .nin = INPUTS,
                                     .nsaved = n,
                                     .inputs = (const cfx_tensor *[INPUTS]){x, residual, s->gamma, s->beta},
                                     .saved = saved,
                                     .kept = k,
                                     .kept_bytes = sizeof *k},
                     out);
}

/* out is made, and recorded; x and residual (or NULL) as rows. */
static cfx_status run_rows(const kept *k, const cfx_tensor *x, const cfx_tensor *residual, const cfx_batch_state *s,
                           cfx_tensor *rows, cfx_tensor *residual_rows, cfx_tensor *mean, cfx_tensor *var,
                           cfx_tensor *out) {
    cfx_status status = run_stats(rows, s, k->training, mean, var);
    if (status == CFX_OK) status = run_map(k, rows, mean, var, s, residual_rows, out);
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    return record(x, s, residual, k, rows, mean, var, out);
}

/* With relu, or nothing, behind it; and, last of all, since a call that fails changes nothing, what runs moves. */
static cfx_status run(const kept *k, const cfx_tensor *x, const cfx_batch_state *s, const cfx_tensor *residual,
                      int32_t act, double momentum, cfx_tensor *out) {
    cfx_tensor rows = {0}, more = {0}, mean = {0}, var = {0}, pre = {0};
    const bool apart = act >= 0 && !k->relu;
    cfx_status status = cf_rows_of(x, x->_ndim - 1, &rows);
    if (status == CFX_OK && residual) status = cf_rows_of(residual, x->_ndim - 1, &more);
    if (status == CFX_OK) status = cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, apart ? &pre : out);
    if (status == CFX_OK)
        status = run_rows(k, x, residual, s, &rows, residual ? &more : NULL, &mean, &var, apart ? &pre : out);
    if (status == CFX_OK && apart) status = cfx_unary(act, &pre, cf_act_number(act), 0, out);
    if (status == CFX_OK && k->training) {
        status = run_move(&rows, &mean, &var, s, momentum);
        if (status != CFX_OK) cfx_release(out);
    }
    cfx_release(&rows);
    cfx_release(&more);
    cfx_release(&mean);
    cfx_release(&var);
    cfx_release(&pre);
    return status;
}

CFX_API cfx_status cfx_batchnorm(const cfx_tensor *x, const cfx_batch_state *state, const cfx_tensor *residual,
                                 int32_t act, double eps, double momentum, int32_t training, cfx_tensor *out) {
    CF_TRY(check(x, state, residual, momentum, training));
    CF_TRY(cf_check_act("batchnorm", act));
    const bool relu = act == CF_OP_relu;
    const kept k = {eps, training, state->gamma != NULL, relu, relu && residual};
    const cf_mark mark = cf_mark_of(INPUTS, (const cfx_tensor *[]){x, residual, state->gamma, state->beta});
    const cfx_status status = run(&k, x, state, residual, act, momentum, out);
    if (status != CFX_OK) cf_rewind(mark);
    return status;
}
