/* random.c: random tensors, and dropout. */
#include <string.h>

#include "ops/tape.h"
#include "tensor/issue.h"

/* Where a stream is.  It moves on, by `advance`, when nothing can fail any more. */
static cfx_status position_of(const char *function, cfx_context *context, int32_t stream, cf_position *at) {
    if (stream < 0 || stream >= CF_STREAMS)
        return cf_fail(CFX_EARG, "%s: random stream %d does not exist", function, stream);
    const cf_rng_stream *s = &context->streams[stream];
    *at = (cf_position){s->seed, (uint64_t)stream, s->position};
    return CFX_OK;
}

/* Past the next `words` random words: a position is always a multiple of a block's four. */
static void advance(cfx_context *context, int32_t stream, int64_t words) {
    context->streams[stream].position += (uint64_t)(words + 3) / 4 * 4;
}

CFX_API cfx_status cfx_random(cfx_device *device, int32_t dtype, int32_t ndim, const int64_t *shape, const char *kind,
                              double a, double b, int32_t stream, cfx_tensor *out) {
    static const struct {
        const char *kind;
        cf_op op;
    } kinds[] = {{"uniform", CF_OP_uniform},
                 {"normal", CF_OP_normal},
                 {"integer", CF_OP_randint},
                 {"permutation", CF_OP_permutation}};
    size_t k = 0;
    while (k < 4 && strcmp(kinds[k].kind, kind) != 0) k++;
    if (k == 4) return cf_fail(CFX_EARG, "random: expected uniform, normal, integer or permutation, got '%s'", kind);
    const cf_op op = kinds[k].op;
    CF_TRY(cf_check_shape("random", dtype, ndim, shape));
    CF_TRY(cf_check_device("random", device));
    if ((op == CF_OP_uniform || op == CF_OP_normal) && !cf_is_float(dtype))
        return cf_fail(CFX_EARG, "random: expected a float dtype, got %s", cfx_dtype_name(dtype));
    if (op == CF_OP_permutation && (dtype != CFX_INT64 || ndim != 1))
        return cf_fail(CFX_EARG, "random: a permutation is int64 of one dimension");
    if (op == CF_OP_randint && !(a <= b)) return cf_fail(CFX_EARG, "random: expected low <= high, got %g and %g", a, b);
    CF_TRY(cf_new(device, dtype, ndim, shape, out));
    cf_random_params params = {.a = a, .b = b};
    const int64_t words = op == CF_OP_randint || dtype == CFX_FLOAT64 ? 2 : 1;
    const cfx_status status = position_of("random", cf_context_of(device), stream, &params.at);
    if (status != CFX_OK) {
        cfx_release(out);
        return status;
    }
    CF_TRY(cf_issue_run(&(cf_issue){.op = op, .dtype = dtype, .nout = 1, .t = CF_VIEWS(out), .params = &params}));
    advance(cf_context_of(device), stream, cf_numel(out) * words);
    return CFX_OK;
}

/* ---- dropout ---------------------------------------------------------------------------------------- */

static cfx_status run_dropout(const cfx_tensor *x, const cf_dropout_params *mask, cfx_tensor *out) {
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out));
    return cf_issue_run(&(cf_issue){.op = CF_OP_dropout,
                                    .dtype = x->_dtype,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(out, (cfx_tensor *)x),
                                    .params = mask});
}

/* The same numbers give the same mask. */
static cfx_status dropout_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g = {0};
    CF_TRY(run_dropout(dy, node->kept, &g));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_dropout(const cfx_tensor *x, double p, int32_t stream, cfx_tensor *out) {
    cf_dropout_params mask = {.p = p};
    CF_TRY(cf_check_tensor("dropout", "x", x));
    if (!cf_is_float(x->_dtype))
        return cf_fail(CFX_EARG, "dropout: argument 'x': expected a float tensor, got %s", cfx_dtype_name(x->_dtype));
    if (!(p >= 0 && p < 1)) return cf_fail(CFX_EARG, "dropout: argument 'p': expected 0 <= p < 1, got %g", p);
    CF_TRY(position_of("dropout", cf_context(x), stream, &mask.at));
    CF_TRY(run_dropout(x, &mask, out));
    CF_TRY(cf_record_one("dropout", dropout_backward, x, &mask, sizeof mask, out));
    advance(cf_context(x), stream, cf_numel(x));
    return CFX_OK;
}
