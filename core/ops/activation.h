/* activation.h: the activation that a layer ends with. */
#ifndef CF_OPS_ACTIVATION_H
#define CF_OPS_ACTIVATION_H

#include "ops/tape.h"

/* A unary row, or -1: none; or CFX_EARG naming function. */
cfx_status cf_check_act(const char *function, int32_t act);
/* Whether its gradient follows from its result: then a layer's kernel takes it, and keeps nothing of before. */
bool cf_act_fuses(int32_t act);
/* The number of a row that has one. */
double cf_act_number(int32_t act);

/* In the backward function of act(.. + bias), where the activation is -1 or fuses and the bias is input 2: gives the
 * bias's gradient, and *dpre [rows, cols], that before the activation, a handle on dy [rows, cols] where there is none.
 * y: the result, of as many elements, packed; read only where there is an activation. */
cfx_status cf_act_backward(cfx_tape *tape, cf_node *node, int32_t act, const cfx_tensor *y, cfx_tensor *dy,
                           cfx_tensor *dpre);

#endif
