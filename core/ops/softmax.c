/* softmax.c: softmax and its logarithm. */
#include "ops/shape.h"
#include "ops/tape.h"
#include "tensor/issue.h"

static cfx_status run_along(cf_op op, int dtype, int32_t dim, cfx_tensor *out, const cfx_tensor *a,
                            const cfx_tensor *b) {
    cfx_tensor to, x, y;
    cf_move_last(out, dim, &to);
    cf_move_last(a, dim, &x);
    cf_move_last(b ? b : a, dim, &y);
    const cfx_status status =
        cf_issue_run(&(cf_issue){.op = op, .dtype = dtype, .nout = 1, .nin = b ? 2 : 1, .t = CF_VIEWS(&to, &x, &y)});
    cfx_release(&to);
    cfx_release(&x);
    cfx_release(&y);
    if (status != CFX_OK) cfx_release(out);
    return status;
}

typedef struct form {
    cf_op op;
    int32_t dim;
} form;

static cfx_status softmax_backward(cfx_tape *tape, cf_node *node, const cfx_tensor *dy) {
    const form *form = node->kept;
    cfx_tensor g = {0};
    CF_TRY(cf_new(cf_device(dy), dy->_dtype, dy->_ndim, dy->_shape, &g));
    CF_TRY(run_along(form->op + 1, dy->_dtype, form->dim, &g, dy, cf_saved(node, 0)));
    return cf_give(tape, node, 0, &g);
}

CFX_API cfx_status cfx_softmax(int32_t op, const cfx_tensor *x, int32_t dim, cfx_tensor *out) {
    if (op != CF_OP_softmax && op != CF_OP_logsoftmax)
        return cf_fail(CFX_EARG, "softmax: there is no such operation (%d)", op);
    const char *name = cf_op_table[op].name;
    CF_TRY(cf_check_tensor(name, "x", x));
    CF_TRY(cf_check_dim(name, x->_ndim, &dim));
    const int dtype = cf_float_of(x->_dtype);
    CF_TRY(cf_new(cf_device(x), dtype, x->_ndim, x->_shape, out));
    CF_TRY(run_along((cf_op)op, dtype, dim, out, x, NULL));
    return cf_record(&(cf_recording){.op = name,
                                     .backward = softmax_backward,
                                     .nin = 1,
                                     .nsaved = 1,
                                     .inputs = &x,
                                     .saved = (const cfx_tensor *[]){out},
                                     .kept = &(form){(cf_op)op, dim},
                                     .kept_bytes = sizeof(form)},
                     out);
}
