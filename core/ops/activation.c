/* activation.c: see activation.h. */
#include "ops/activation.h"

#include "tensor/issue.h"

cfx_status cf_check_act(const char *function, int32_t act) {
    if (act < 0 || (act < CF_OPS && cf_op_table[act].family == CF_UNARY)) return CFX_OK;
    return cf_fail(CFX_EARG, "%s: argument 'act': there is no such operation (%d)", function, act);
}

bool cf_act_fuses(int32_t act) {
    return act == CF_OP_relu || act == CF_OP_tanh || act == CF_OP_sigmoid || act == CF_OP_leakyrelu || act == CF_OP_elu;
}

double cf_act_number(int32_t act) { return act == CF_OP_leakyrelu ? 0.01 : 1; }

/* Both are made in one pass. */
cfx_status cf_act_backward(cfx_tape *tape, cf_node *node, int32_t act, const cfx_tensor *result, cfx_tensor *dy,
                           cfx_tensor *dpre) {
    const bool bias = cf_needs(node, 2);
    cfx_tensor y = {0}, dbias = {0};
    cfx_status status = CFX_OK;
    if (act >= 0) {
        cf_alias(result, &y);
        cf_set_packed(&y, 2, dy->_shape);
        status = cf_new(cf_device(dy), dy->_dtype, 2, dy->_shape, dpre);
    } else {
        cf_alias(dy, dpre);
    }
    if (status == CFX_OK && bias) {
        cf_place(tape, node, 2, dy->_dtype, 1, &dy->_shape[1], &dbias);
        status = cf_new(cf_device(dy), dy->_dtype, 1, &dy->_shape[1], &dbias);
    }
    if (status == CFX_OK && act >= 0)
        status = cf_issue_run(&(cf_issue){.op = CF_OP_dense_bw,
                                          .dtype = dy->_dtype,
                                          .nout = bias ? 2 : 1,
                                          .nin = 2,
                                          .t = CF_VIEWS(dpre, bias ? &dbias : dy, bias ? dy : &y, &y),
                                          .params = &(cf_dense_params){{cf_act_number(act)}, act, 0}});
    else if (status == CFX_OK && bias) status = cfx_reduce(CF_OP_sum, dy, 1, (int32_t[]){0}, 0, 0, &dbias);
    if (status == CFX_OK && bias) status = cf_give(tape, node, 2, &dbias);
    cfx_release(&y);
    return status;
}
