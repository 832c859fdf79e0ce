/* elementwise.c: unary, binary and ternary operations, with broadcasting, promotion and gradients. */
#include <math.h>
#include <string.h>

#include "ops/tape.h"
#include "tensor/primitive.h"

static cfx_status check_op(const char *function, int32_t op, cf_family family) {
    if (op < 0 || op >= CF_OPS || cf_op_table[op].family != family)
        return cf_fail(CFX_EARG, "%s: there is no such operation (%d)", function, op);
    return CFX_OK;
}

/* The dtypes that the row computes in, and that it gives, for operands of dtype `operand`. */
static int compute_dtype(int32_t op, int32_t operand) {
    return cf_op_table[op].domain == CF_FLOAT ? cf_float_of(operand) : operand;
}

static int result_dtype(int32_t op, int32_t compute) { return cf_op_table[op].domain == CF_TRUTH ? CFX_BOOL : compute; }

/* The shape that a and b broadcast to. */
static cfx_status broadcast(const char *function, const cfx_tensor *a, const cfx_tensor *b, int32_t *ndim,
                            int64_t *shape) {
    char left[256], right[256];
    *ndim = cf_shape_broadcast(a->_ndim, a->_shape, b->_ndim, b->_shape, shape);
    if (*ndim >= 0) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'b': expected a shape that broadcasts with a %s, got %s", function,
                   cf_describe(a, left), cf_describe(b, right));
}

/* x in that shape: itself where it has it, as most operands do, or a view in `room`. */
static cfx_tensor *widened(const cfx_tensor *x, int32_t ndim, const int64_t *shape, cfx_tensor *room) {
    if (cf_has_shape(x, ndim, shape)) return (cfx_tensor *)x; /* an input, which issuing does not write */
    cf_expand(x, ndim, shape, room);
    return room;
}

/* As much of the call as its gradient needs to know. */
typedef struct form {
    cf_op op;
    cf_formula_params params;
} form;

/* Keeps the form, and of the tensors those that the gradient needs. */
static cfx_status record(const form *form, cf_backward backward, int nin, const cfx_tensor *const *inputs, int nsaved,
                         const cfx_tensor *const *saved, cfx_tensor *out) {
    return cf_record(&(cf_recording){.op = cf_op_table[form->op].name,
                                     .backward = backward,
                                     .nin = nin,
                                     .nsaved = nsaved,
                                     .inputs = inputs,
                                     .saved = saved,
                                     .kept = form,
                                     .kept_bytes = sizeof *form},
                     out);
}

/* g_k = op(dy, a, b?; p) for input k. */
static cfx_status give_op(cfx_tape *tape, cf_node *node, int k, cf_op op, const cfx_tensor *dy, cfx_tensor *a,
                          cfx_tensor *b) {
    const form *form = node->kept;
    cfx_tensor g, x[3];
    cfx_tensor *const in[3] = {(cfx_tensor *)dy, a, b};
    cfx_tensor *const views[] = {&g, &x[0], &x[1], &x[2]};
    const int nin = 1 + (a != NULL) + (b != NULL);
    cf_place(tape, node, k, dy->_dtype, dy->_ndim, dy->_shape, &g);
    CF_TRY(cf_new(cf_device(dy), dy->_dtype, dy->_ndim, dy->_shape, &g));
    cf_issue issue = {.op = op, .dtype = dy->_dtype, .nout = 1, .nin = nin, .t = views, .params = &form->params};
    for (int i = 0; i < nin; i++) cf_expand(in[i], dy->_ndim, dy->_shape, &x[i]);
    CF_TRY(cf_issue_run(&issue));
    return cf_give(tape, node, k, &g);
}

/* ---- unary ------------------------------------------------------------------------------------------ */

static cfx_status neg_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_place(tape, node, 0, dy->_dtype, dy->_ndim, dy->_shape, &g);
    CF_TRY(cfx_unary(CF_OP_neg, dy, 0, 0, &g));
    return cf_give(tape, node, 0, &g);
}

/* By the row's twin, the row below it, from what was saved: the input or the output, as the row says. */
static cfx_status twin_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_op(tape, node, 0, ((form *)node->kept)->op + 1, dy, cf_saved(node, 0), NULL);
}

CFX_API cfx_status cfx_unary(int32_t op, const cfx_tensor *x, double p0, double p1, cfx_tensor *out) {
    CF_TRY(check_op("unary", op, CF_UNARY));
    CF_TRY(cf_check_tensor(cf_op_table[op].name, "x", x));
    const int compute = compute_dtype(op, x->_dtype);
    CF_TRY(cf_new(cf_device(x), result_dtype(op, compute), x->_ndim, x->_shape, out));
    const form form = {.op = (cf_op)op, .params.p = {p0, p1}};
    CF_TRY(cf_issue_run(&(cf_issue){.op = form.op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(out, (cfx_tensor *)x),
                                    .params = &form.params}));
    const cf_gradient gradient = cf_op_table[op].gradient;
    if (gradient == CF_GRADIENT_none || !x->_tape) return CFX_OK;
    if (gradient == CF_GRADIENT_own) return record(&form, neg_backward, 1, &x, 0, NULL, out);
    const cfx_tensor *saved = gradient == CF_GRADIENT_from_output ? out : x;
    return record(&form, twin_backward, 1, &x, 1, &saved, out);
}

/* ---- binary ----------------------------------------------------------------------------------------- */

/* Gives dy itself, or dy times a number. */
static cfx_status give_scaled(cfx_tape *tape, cf_node *node, int k, const cfx_tensor *dy, double scale) {
    cfx_tensor g;
    if (scale == 1) {
        cf_alias(dy, &g);
        return cf_give(tape, node, k, &g);
    }
    cf_place(tape, node, k, dy->_dtype, dy->_ndim, dy->_shape, &g);
    if (scale == -1) CF_TRY(cfx_unary(CF_OP_neg, dy, 0, 0, &g));
    else CF_TRY(cfx_binary_scalar(CF_OP_mul, dy, scale, 0, &g));
    return cf_give(tape, node, k, &g);
}

static cfx_status add_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    for (int k = 0; k < node->nin; k++)
        if (cf_needs(node, k)) CF_TRY(give_scaled(tape, node, k, dy, 1));
    return CFX_OK;
}

static cfx_status sub_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const form *form = node->kept;
    if (node->nin == 1) return give_scaled(tape, node, 0, dy, form->params.reversed ? -1 : 1);
    if (cf_needs(node, 0)) CF_TRY(give_scaled(tape, node, 0, dy, 1));
    return cf_needs(node, 1) ? give_scaled(tape, node, 1, dy, -1) : CFX_OK;
}

static cfx_status mul_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const form *form = node->kept;
    if (node->nin == 1) return give_scaled(tape, node, 0, dy, form->params.p[0]);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_mul, dy, cf_saved(node, 1), NULL));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_mul, dy, cf_saved(node, 0), NULL) : CFX_OK;
}

/* A tensor of no dimensions with the number in it, for the rows whose number is not their last operand. */
static cfx_status number(const cfx_tensor *like, double value, cfx_tensor *out) {
    return cfx_full(cf_device(like), like->_dtype, 0, NULL, value, out);
}

/* op(dy, number, a) for the reversed forms. */
static cfx_status give_reversed(cfx_tape *tape, cf_node *node, cf_op op, const cfx_tensor *dy) {
    const form *form = node->kept;
    cfx_tensor left = {0};
    CF_TRY(number(dy, form->params.p[0], &left));
    const cfx_status status = give_op(tape, node, 0, op, dy, &left, cf_saved(node, 0));
    cfx_release(&left);
    return status;
}

static cfx_status div_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const form *form = node->kept;
    if (node->nin == 1)
        return form->params.reversed ? give_reversed(tape, node, CF_OP_div_db, dy)
                                     : give_op(tape, node, 0, CF_OP_div, dy, NULL, NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_div, dy, cf_saved(node, 1), NULL));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_div_db, dy, cf_saved(node, 0), cf_saved(node, 1)) : CFX_OK;
}

static cfx_status pow_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const form *form = node->kept;
    if (node->nin == 1)
        return form->params.reversed ? give_reversed(tape, node, CF_OP_pow_db, dy)
                                     : give_op(tape, node, 0, CF_OP_pow_da, dy, cf_saved(node, 0), NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_pow_da, dy, cf_saved(node, 0), cf_saved(node, 1)));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_pow_db, dy, cf_saved(node, 0), cf_saved(node, 1)) : CFX_OK;
}

/* The gradient of the second operand is that of the first with the operands exchanged. */
static cfx_status give_picked(cfx_tape *tape, cf_node *node, cf_op op, const cfx_tensor *dy) {
    if (node->nin == 1) return give_op(tape, node, 0, op, dy, cf_saved(node, 0), NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, op, dy, cf_saved(node, 0), cf_saved(node, 1)));
    return cf_needs(node, 1) ? give_op(tape, node, 1, op, dy, cf_saved(node, 1), cf_saved(node, 0)) : CFX_OK;
}

static cfx_status maximum_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_picked(tape, node, CF_OP_maximum_da, dy);
}

static cfx_status minimum_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_picked(tape, node, CF_OP_minimum_da, dy);
}

/* A row's backward function, and whether it needs the operands: both; or the one, where the other is a number. */
static const struct {
    cf_backward backward;
    bool saves_both, saves_one, saves_reversed;
} binary_rows[CF_OPS] = {
    [CF_OP_add] = {add_backward, false, false, false},      [CF_OP_sub] = {sub_backward, false, false, false},
    [CF_OP_mul] = {mul_backward, true, false, false},       [CF_OP_div] = {div_backward, true, false, true},
    [CF_OP_pow] = {pow_backward, true, true, true},         [CF_OP_maximum] = {maximum_backward, true, true, true},
    [CF_OP_minimum] = {minimum_backward, true, true, true},
};

static cfx_status run_binary(int32_t op, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    int32_t ndim = 0;
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor x, y;
    const char *name = cf_op_table[op].name;
    CF_TRY(cf_check_tensor(name, "a", a));
    CF_TRY(cf_check_tensor(name, "b", b));
    CF_TRY(cf_check_same_device(name, "b", a, b));
    CF_TRY(broadcast(name, a, b, &ndim, shape));
    const int compute = compute_dtype(op, cfx_dtype_promote(a->_dtype, b->_dtype));
    CF_TRY(cf_new(cf_device(a), result_dtype(op, compute), ndim, shape, out));
    return cf_issue_run(&(cf_issue){.op = (cf_op)op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 2,
                                    .t = CF_VIEWS(out, widened(a, ndim, shape, &x), widened(b, ndim, shape, &y))});
}

CFX_API cfx_status cfx_binary(int32_t op, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    const cfx_tensor *const operands[] = {a, b};
    CF_TRY(check_op("binary", op, CF_BINARY));
    CF_TRY(run_binary(op, a, b, out));
    if (!binary_rows[op].backward || (!a->_tape && !b->_tape)) return CFX_OK;
    return record(&(form){.op = (cf_op)op}, binary_rows[op].backward, 2, operands, binary_rows[op].saves_both ? 2 : 0,
                  operands, out);
}

/* A number keeps the tensor's dtype, but for a fraction with integers, and `/`. */
static int scalar_dtype(int32_t op, const cfx_tensor *a, double b) {
    int operand = a->_dtype;
    if (!cf_is_float(operand)) {
        if (b != floor(b) || isinf(b)) operand = CFX_FLOAT32;
        else if (operand == CFX_BOOL && cf_op_table[op].domain != CF_TRUTH) operand = CFX_INT64;
        else if (cf_op_table[op].domain == CF_TRUTH && operand < CFX_INT64)
            operand = CFX_INT64; /* x == 300 of a uint8 */
    }
    return compute_dtype(op, operand);
}

CFX_API cfx_status cfx_binary_scalar(int32_t op, const cfx_tensor *a, double b, int32_t reversed, cfx_tensor *out) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    CF_TRY(cf_check_tensor(cf_op_table[op].name, "a", a));
    const int compute = scalar_dtype(op, a, b);
    CF_TRY(cf_new(cf_device(a), result_dtype(op, compute), a->_ndim, a->_shape, out));
    const form form = {.op = (cf_op)op, .params = {.p = {b}, .reversed = reversed}};
    CF_TRY(cf_issue_run(&(cf_issue){.op = form.op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(out, (cfx_tensor *)a),
                                    .params = &form.params}));
    if (!binary_rows[op].backward || !a->_tape) return CFX_OK;
    const bool saves = reversed ? binary_rows[op].saves_reversed : binary_rows[op].saves_one;
    return record(&form, binary_rows[op].backward, 1, &a, saves, &a, out);
}

/* ---- where ------------------------------------------------------------------------------------------ */

/* da = c ? dy : 0 and db = c ? 0 : dy. */
static cfx_status where_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor zero = {0}, c, x;
    CF_TRY(number(dy, 0, &zero));
    cf_expand(cf_saved(node, 0), dy->_ndim, dy->_shape, &c);
    cf_expand(&zero, dy->_ndim, dy->_shape, &x);
    cfx_status status = CFX_OK;
    for (int k = 1; k < 3 && status == CFX_OK; k++) {
        cfx_tensor g = {0};
        if (!cf_needs(node, k)) continue;
        status = cf_new(cf_device(dy), dy->_dtype, dy->_ndim, dy->_shape, &g);
        if (status == CFX_OK)
            status = cf_issue_run(
                &(cf_issue){.op = CF_OP_where,
                            .dtype = dy->_dtype,
                            .nout = 1,
                            .nin = 3,
                            .t = CF_VIEWS(&g, &c, k == 1 ? (cfx_tensor *)dy : &x, k == 1 ? &x : (cfx_tensor *)dy)});
        if (status == CFX_OK) status = cf_give(tape, node, k, &g);
    }
    cfx_release(&zero);
    return status;
}

CFX_API cfx_status cfx_where(const cfx_tensor *condition, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    int32_t ndim = 0;
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor c, x, y, both;
    CF_TRY(cf_check_tensor("where", "condition", condition));
    CF_TRY(cf_check_tensor("where", "a", a));
    CF_TRY(cf_check_tensor("where", "b", b));
    CF_TRY(cf_check_same_device("where", "a", condition, a));
    CF_TRY(cf_check_same_device("where", "b", condition, b));
    CF_TRY(broadcast("where", a, b, &ndim, shape));
    cf_expand(a, ndim, shape, &both);
    CF_TRY(broadcast("where", condition, &both, &ndim, shape));
    const int dtype = cfx_dtype_promote(a->_dtype, b->_dtype);
    CF_TRY(cf_new(cf_device(a), dtype, ndim, shape, out));
    cf_expand(condition, ndim, shape, &c);
    cf_expand(a, ndim, shape, &x);
    cf_expand(b, ndim, shape, &y);
    CF_TRY(cf_issue_run(
        &(cf_issue){.op = CF_OP_where, .dtype = dtype, .nout = 1, .nin = 3, .t = CF_VIEWS(out, &c, &x, &y)}));
    const cfx_tensor *const inputs[] = {condition, a, b};
    return record(&(form){.op = CF_OP_where}, where_backward, 3, inputs, 1, inputs, out);
}

/* ---- in place --------------------------------------------------------------------------------------- */

static cfx_status check_widening(const char *name, const cfx_tensor *y, int compute) {
    if (compute == y->_dtype || (cf_is_float(compute) && cf_is_float(y->_dtype)) ||
        (!cf_is_float(compute) && cfx_dtype_promote(compute, y->_dtype) == y->_dtype))
        return CFX_OK;
    return cf_fail(CFX_EARG, "%s: a result of type %s does not fit a tensor of %s in place", name,
                   cfx_dtype_name(compute), cfx_dtype_name(y->_dtype));
}

CFX_API cfx_status cfx_binary_into(int32_t op, cfx_tensor *y, const cfx_tensor *x) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    const char *name = cf_op_table[op].in_place;
    cfx_tensor wide, copy = {0};
    CF_TRY(cf_check_tensor(name, "x", y)); /* the Lua library calls the operands x and y, as in x:add_(y) */
    CF_TRY(cf_check_tensor(name, "y", x));
    CF_TRY(cf_check_same_device(name, "y", y, x));
    CF_TRY(cf_check_into(name, y, x));
    const int compute = compute_dtype(op, cfx_dtype_promote(y->_dtype, x->_dtype));
    CF_TRY(check_widening(name, y, compute));
    if (cf_overlaps(y, x)) CF_TRY(cf_clone(x, &copy));
    cf_expand(copy._buffer ? &copy : x, y->_ndim, y->_shape, &wide);
    const cfx_status status = cf_issue_run(
        &(cf_issue){.op = (cf_op)op, .dtype = compute, .nout = 1, .nin = 2, .t = CF_VIEWS(y, y, &wide), .nupdated = 1});
    cfx_release(&copy);
    return status;
}

CFX_API cfx_status cfx_binary_scalar_into(int32_t op, cfx_tensor *y, double value) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    const char *name = cf_op_table[op].in_place;
    CF_TRY(cf_check_tensor(name, "x", y));
    CF_TRY(cf_check_into(name, y, NULL));
    const int compute = y->_dtype == CFX_BOOL ? CFX_INT64 : scalar_dtype(op, y, value);
    CF_TRY(check_widening(name, y, compute));
    return cf_issue_run(&(cf_issue){.op = (cf_op)op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(y, y),
                                    .params = &(cf_formula_params){.p = {value}},
                                    .nupdated = 1});
}

CFX_API cfx_status cfx_clamp_into(cfx_tensor *y, double low, double high) {
    CF_TRY(cf_check_tensor("clamp_", "x", y));
    CF_TRY(cf_check_into("clamp_", y, NULL));
    return cf_issue_run(&(cf_issue){.op = CF_OP_clamp,
                                    .dtype = y->_dtype,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(y, y),
                                    .params = &(cf_formula_params){.p = {low, high}},
                                    .nupdated = 1});
}

/* ---- triangles -------------------------------------------------------------------------------------- */

/* Which triangle is kept. */
typedef struct triangle {
    int32_t upper;
    int64_t k;
} triangle;

static cfx_status tri_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const triangle *kept = node->kept;
    cfx_tensor g = {0};
    CF_TRY(cfx_tri(dy, kept->upper, kept->k, &g));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_tri(const cfx_tensor *x, int32_t upper, int64_t k, cfx_tensor *out) {
    CF_TRY(cf_check_tensor("tri", "x", x));
    if (x->_ndim < 2) return cf_fail(CFX_EARG, "tri: expected 2 dimensions or more, got %d", x->_ndim);
    CF_TRY(cf_new(cf_device(x), x->_dtype, x->_ndim, x->_shape, out));
    CF_TRY(cf_issue_run(&(cf_issue){.op = CF_OP_tri,
                                    .dtype = x->_dtype,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = CF_VIEWS(out, (cfx_tensor *)x),
                                    .params = &(cf_tri_params){.upper = upper, .diagonal = k}}));
    return cf_record_one("tri", tri_backward, x, &(triangle){upper, k}, sizeof(triangle), out);
}
