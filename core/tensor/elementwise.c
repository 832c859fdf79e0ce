/* elementwise.c: unary, binary and ternary operations, with broadcasting, promotion and gradients. */
#include <math.h>
#include <string.h>

#include "tensor/tape.h"

static cfx_status check_op(const char *function, int32_t op, cf_family family) {
    if (op < 0 || op >= CF_OPS || cf_op_table[op].family != family)
        return cf_fail(CFX_EARG, "%s: there is no such operation (%d)", function, op);
    return CFX_OK;
}

/* What the row computes in, and what it gives, for operands of dtype `operand`. */
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

/* The last column of ops.def. */
cfx_status cf_grad_from_output(cfx_tape *tape, cf_node *node, const cfx_tensor *dy);
cfx_status cf_grad_from_input(cfx_tape *tape, cf_node *node, const cfx_tensor *dy);

/* ---- unary ------------------------------------------------------------------------------------------ */

CFX_API cfx_status cfx_unary(int32_t op, const cfx_tensor *x, double p0, double p1, cfx_tensor *out) {
    CF_TRY(check_op("unary", op, CF_UNARY));
    CF_TRY(cf_check_tensor(cf_op_table[op].name, "x", x));
    const int compute = compute_dtype(op, x->_dtype);
    CF_TRY(cf_new(cf_device(x), result_dtype(op, compute), x->_ndim, x->_shape, out));
    CF_TRY(cf_issue_run(&(cf_issue){
        .op = (cf_op)op, .dtype = compute, .nout = 1, .nin = 1, .t = {out, (cfx_tensor *)x}, .p = {p0, p1}}));
    const cf_backward backward = cf_gradients[op];
    cf_node *node = NULL;
    if (!backward || !x->_tape) return CFX_OK;
    CF_TRY(cf_record((cf_op)op, backward, 1, &x, out, &node));
    if (!node) return CFX_OK;
    node->p[0] = p0;
    node->p[1] = p1;
    if (backward == cf_grad_from_output) cf_save(node, out);
    else if (backward == cf_grad_from_input) cf_save(node, x);
    return CFX_OK;
}

cfx_status cf_grad_neg(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor g;
    cf_place(tape, node, 0, dy->_dtype, dy->_ndim, dy->_shape, &g);
    CF_TRY(cfx_unary(CF_OP_neg, dy, 0, 0, &g));
    return cf_give(tape, node, 0, &g);
}

/* g_k = op(dy, a, b?; p) for input k. */
static cfx_status give_op(cfx_tape *tape, cf_node *node, int k, cf_op op, const cfx_tensor *dy, cfx_tensor *a,
                          cfx_tensor *b) {
    cfx_tensor g, x[3];
    cfx_tensor *const in[3] = {(cfx_tensor *)dy, a, b};
    const int nin = 1 + (a != NULL) + (b != NULL);
    cf_place(tape, node, k, dy->_dtype, dy->_ndim, dy->_shape, &g);
    CF_TRY(cf_new(cf_device(dy), dy->_dtype, dy->_ndim, dy->_shape, &g));
    cf_issue issue = {.op = op, .dtype = dy->_dtype, .nout = 1, .nin = nin, .t = {&g}};
    for (int i = 0; i < nin; i++) {
        cf_expand(in[i], dy->_ndim, dy->_shape, &x[i]);
        issue.t[1 + i] = &x[i];
    }
    memcpy(issue.p, node->p, sizeof issue.p);
    issue.i[0] = node->i[0];
    CF_TRY(cf_issue_run(&issue));
    return cf_give(tape, node, k, &g);
}

/* The twin of a row is the row below it. */
cfx_status cf_grad_from_output(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_op(tape, node, 0, node->op + 1, dy, &node->saved[0], NULL);
}
cfx_status cf_grad_from_input(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_op(tape, node, 0, node->op + 1, dy, &node->saved[0], NULL);
}

/* ---- binary ----------------------------------------------------------------------------------------- */

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
    cf_expand(a, ndim, shape, &x);
    cf_expand(b, ndim, shape, &y);
    return cf_issue_run(&(cf_issue){.op = (cf_op)op, .dtype = compute, .nout = 1, .nin = 2, .t = {out, &x, &y}});
}

CFX_API cfx_status cfx_binary(int32_t op, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    CF_TRY(run_binary(op, a, b, out));
    if (!cf_gradients[op] || (!a->_tape && !b->_tape)) return CFX_OK;
    cf_node *node = NULL;
    CF_TRY(cf_record((cf_op)op, cf_gradients[op], 2, (const cfx_tensor *[]){a, b}, out, &node));
    if (!node || op == CF_OP_add || op == CF_OP_sub) return CFX_OK;
    cf_save(node, a);
    cf_save(node, b);
    return CFX_OK;
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
    CF_TRY(cf_issue_run(&(cf_issue){.op = (cf_op)op,
                                    .dtype = compute,
                                    .nout = 1,
                                    .nin = 1,
                                    .t = {out, (cfx_tensor *)a},
                                    .p = {b},
                                    .i = {reversed}}));
    if (!cf_gradients[op] || !a->_tape) return CFX_OK;
    cf_node *node = NULL;
    CF_TRY(cf_record((cf_op)op, cf_gradients[op], 1, &a, out, &node));
    if (!node) return CFX_OK;
    node->p[0] = b;
    node->i[0] = reversed;
    const bool linear = op == CF_OP_add || op == CF_OP_sub || op == CF_OP_mul || (op == CF_OP_div && !reversed);
    if (!linear) cf_save(node, a);
    return CFX_OK;
}

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

cfx_status cf_grad_add(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    for (int k = 0; k < node->nin; k++)
        if (cf_needs(node, k)) CF_TRY(give_scaled(tape, node, k, dy, 1));
    return CFX_OK;
}

cfx_status cf_grad_sub(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    if (node->nin == 1) return give_scaled(tape, node, 0, dy, node->i[0] ? -1 : 1);
    if (cf_needs(node, 0)) CF_TRY(give_scaled(tape, node, 0, dy, 1));
    return cf_needs(node, 1) ? give_scaled(tape, node, 1, dy, -1) : CFX_OK;
}

cfx_status cf_grad_mul(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    if (node->nin == 1) return give_scaled(tape, node, 0, dy, node->p[0]);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_mul, dy, &node->saved[1], NULL));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_mul, dy, &node->saved[0], NULL) : CFX_OK;
}

/* A tensor of no dimensions with the number in it, for the rows whose number is not their last operand. */
static cfx_status number(const cfx_tensor *like, double value, cfx_tensor *out) {
    return cfx_full(cf_device(like), like->_dtype, 0, NULL, value, out);
}

/* op(dy, number, a) for the reversed forms. */
static cfx_status give_reversed(cfx_tape *tape, cf_node *node, cf_op op, const cfx_tensor *dy) {
    cfx_tensor left = {0};
    CF_TRY(number(dy, node->p[0], &left));
    const cfx_status status = give_op(tape, node, 0, op, dy, &left, &node->saved[0]);
    cfx_release(&left);
    return status;
}

cfx_status cf_grad_div(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    if (node->nin == 1)
        return node->i[0] ? give_reversed(tape, node, CF_OP_div_db, dy)
                          : give_op(tape, node, 0, CF_OP_div, dy, NULL, NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_div, dy, &node->saved[1], NULL));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_div_db, dy, &node->saved[0], &node->saved[1]) : CFX_OK;
}

cfx_status cf_grad_pow(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    if (node->nin == 1)
        return node->i[0] ? give_reversed(tape, node, CF_OP_pow_db, dy)
                          : give_op(tape, node, 0, CF_OP_pow_da, dy, &node->saved[0], NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, CF_OP_pow_da, dy, &node->saved[0], &node->saved[1]));
    return cf_needs(node, 1) ? give_op(tape, node, 1, CF_OP_pow_db, dy, &node->saved[0], &node->saved[1]) : CFX_OK;
}

/* The gradient of the second operand is that of the first with the operands exchanged. */
static cfx_status give_picked(cfx_tape *tape, cf_node *node, cf_op op, const cfx_tensor *dy) {
    if (node->nin == 1) return give_op(tape, node, 0, op, dy, &node->saved[0], NULL);
    if (cf_needs(node, 0)) CF_TRY(give_op(tape, node, 0, op, dy, &node->saved[0], &node->saved[1]));
    return cf_needs(node, 1) ? give_op(tape, node, 1, op, dy, &node->saved[1], &node->saved[0]) : CFX_OK;
}
cfx_status cf_grad_maximum(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_picked(tape, node, CF_OP_maximum_da, dy);
}
cfx_status cf_grad_minimum(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    return give_picked(tape, node, CF_OP_minimum_da, dy);
}

/* ---- where ------------------------------------------------------------------------------------------ */

CFX_API cfx_status cfx_where(const cfx_tensor *condition, const cfx_tensor *a, const cfx_tensor *b, cfx_tensor *out) {
    int32_t ndim = 0;
    int64_t shape[CFX_MAX_DIMS];
    cfx_tensor c, x, y, both;
    cf_node *node = NULL;
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
    CF_TRY(cf_issue_run(&(cf_issue){.op = CF_OP_where, .dtype = dtype, .nout = 1, .nin = 3, .t = {out, &c, &x, &y}}));
    CF_TRY(cf_record(CF_OP_where, cf_gradients[CF_OP_where], 3, (const cfx_tensor *[]){condition, a, b}, out, &node));
    if (node) cf_save(node, condition);
    return CFX_OK;
}

/* da = c ? dy : 0 and db = c ? 0 : dy. */
cfx_status cf_grad_where(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    cfx_tensor zero = {0}, c, x;
    CF_TRY(number(dy, 0, &zero));
    cf_expand(&node->saved[0], dy->_ndim, dy->_shape, &c);
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
                            .t = {&g, &c, k == 1 ? (cfx_tensor *)dy : &x, k == 1 ? &x : (cfx_tensor *)dy}});
        if (status == CFX_OK) status = cf_give(tape, node, k, &g);
    }
    cfx_release(&zero);
    return status;
}

/* ---- in place --------------------------------------------------------------------------------------- */

static cfx_status check_into(const char *name, const cfx_tensor *y, const cfx_tensor *x) {
    char have[256], want[256];
    if (x && cf_watched(x))
        return cf_fail(CFX_ESTATE, "%s: argument 'y' is watched by a gradient, which an in-place operation would lose",
                       name);
    CF_TRY(cf_check_writable(name, y));
    if (cf_is_expanded(y))
        return cf_fail(CFX_EARG, "%s: the tensor is expanded: several elements share one place", name);
    if (!x) return CFX_OK;
    if (!cf_shape_expands(x->_ndim, x->_shape, y->_ndim, y->_shape))
        return cf_fail(CFX_EARG, "%s: argument 'y': expected a shape that broadcasts to a %s, got %s", name,
                       cf_describe(y, want), cf_describe(x, have));
    return CFX_OK;
}

static cfx_status check_widening(const char *name, const cfx_tensor *y, int compute) {
    if (compute == y->_dtype || (cf_is_float(compute) && cf_is_float(y->_dtype)) ||
        (!cf_is_float(compute) && cfx_dtype_promote(compute, y->_dtype) == y->_dtype))
        return CFX_OK;
    return cf_fail(CFX_EARG, "%s: a result of type %s does not fit a tensor of %s in place", name,
                   cfx_dtype_name(compute), cfx_dtype_name(y->_dtype));
}

/* x and y overlap but are not the same elements: reading and writing would mix. */
static bool overlaps(const cfx_tensor *y, const cfx_tensor *x) {
    int64_t a, b, c, d;
    if (y->_buffer != x->_buffer || cf_same_view(y, x)) return false;
    cf_extent(y, &a, &b);
    cf_extent(x, &c, &d);
    return a < d && c < b;
}

CFX_API cfx_status cfx_binary_into(int32_t op, cfx_tensor *y, const cfx_tensor *x) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    const char *name = cf_op_table[op].in_place;
    cfx_tensor wide, copy = {0};
    CF_TRY(cf_check_tensor(name, "x", y)); /* the Lua library calls the operands x and y, as in x:add_(y) */
    CF_TRY(cf_check_tensor(name, "y", x));
    CF_TRY(cf_check_same_device(name, "y", y, x));
    CF_TRY(check_into(name, y, x));
    const int compute = compute_dtype(op, cfx_dtype_promote(y->_dtype, x->_dtype));
    CF_TRY(check_widening(name, y, compute));
    if (overlaps(y, x)) CF_TRY(cfx_clone(x, &copy));
    cf_expand(copy._buffer ? &copy : x, y->_ndim, y->_shape, &wide);
    const cfx_status status = cf_issue_run(
        &(cf_issue){.op = (cf_op)op, .dtype = compute, .nout = 1, .nin = 2, .t = {y, y, &wide}, .kind = CF_UPDATE});
    cfx_release(&copy);
    return status;
}

cfx_status cf_add_into(cfx_tensor *y, const cfx_tensor *x) {
    cfx_tensor wide;
    cf_expand(x, y->_ndim, y->_shape, &wide);
    return cf_issue_run(&(cf_issue){.op = CF_OP_add, .dtype = y->_dtype, .nout = 1, .nin = 2, .t = {y, y, &wide}});
}

CFX_API cfx_status cfx_binary_scalar_into(int32_t op, cfx_tensor *y, double value) {
    CF_TRY(check_op("binary", op, CF_BINARY));
    const char *name = cf_op_table[op].in_place;
    CF_TRY(cf_check_tensor(name, "x", y));
    CF_TRY(check_into(name, y, NULL));
    const int compute = y->_dtype == CFX_BOOL ? CFX_INT64 : scalar_dtype(op, y, value);
    CF_TRY(check_widening(name, y, compute));
    return cf_issue_run(&(cf_issue){
        .op = (cf_op)op, .dtype = compute, .nout = 1, .nin = 1, .t = {y, y}, .p = {value}, .kind = CF_UPDATE});
}

CFX_API cfx_status cfx_clamp_into(cfx_tensor *y, double low, double high) {
    CF_TRY(cf_check_tensor("clamp_", "x", y));
    CF_TRY(check_into("clamp_", y, NULL));
    return cf_issue_run(&(cf_issue){
        .op = CF_OP_clamp, .dtype = y->_dtype, .nout = 1, .nin = 1, .t = {y, y}, .p = {low, high}, .kind = CF_UPDATE});
}

/* Filling all of a buffer makes its value if it has none yet; else an old one would be void where this is skipped.  So
 * it is to be where the old one is not that of the other replicas. */
static cf_write kind_of(const cfx_tensor *y) {
    if (cf_is_behind(y)) return CF_MAKE;
    return cf_is_whole(y) && (y->_buffer->empty || cf_refuse_void(y) != CFX_OK) ? CF_MAKE : CF_UPDATE;
}

CFX_API cfx_status cfx_fill(cfx_tensor *y, double value) {
    CF_TRY(cf_check_tensor("fill_", "x", y));
    CF_TRY(check_into("fill_", y, NULL));
    return cf_issue_run(
        &(cf_issue){.op = CF_OP_fill, .dtype = y->_dtype, .nout = 1, .t = {y}, .p = {value}, .kind = kind_of(y)});
}

cfx_status cf_fill_make(cfx_tensor *y) {
    return cf_issue_run(&(cf_issue){.op = CF_OP_fill, .dtype = y->_dtype, .nout = 1, .t = {y}});
}

static cfx_status copy_into(cfx_tensor *y, const cfx_tensor *x, cf_write kind) {
    cfx_tensor wide, near = {0};
    if (cf_is_far(cf_device(y), cf_device(x))) CF_TRY(cfx_to(x, cf_device(y), -1, &near));
    cf_expand(near._buffer ? &near : x, y->_ndim, y->_shape, &wide);
    const cfx_status status = cf_issue_run(
        &(cf_issue){.op = CF_OP_copy, .dtype = y->_dtype, .nout = 1, .nin = 1, .t = {y, &wide}, .kind = kind});
    cfx_release(&near);
    return status;
}

cfx_status cf_copy_make(cfx_tensor *y, const cfx_tensor *x) { return copy_into(y, x, CF_MAKE); }

CFX_API cfx_status cfx_copy(cfx_tensor *y, const cfx_tensor *x) {
    cfx_tensor copy = {0};
    CF_TRY(cf_check_tensor("copy_", "x", y));
    CF_TRY(cf_check_tensor("copy_", "y", x));
    CF_TRY(check_into("copy_", y, x));
    if (overlaps(y, x)) CF_TRY(cfx_clone(x, &copy));
    const cfx_status status = copy_into(y, copy._buffer ? &copy : x, kind_of(y));
    cfx_release(&copy);
    return status;
}
