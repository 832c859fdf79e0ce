/* gradients.c: see gradients.h. */
#include "ops/gradients.h"

cfx_status cf_give_gradients(cfx_tape *tape, cf_node *node, int n, const bool *wants, cf_make_gradients make,
                             cfx_tensor *dy) {
    cfx_tensor g[CF_GRADIENTS] = {{0}};
    cfx_status status = CFX_OK;
    for (int i = 0; i < n && status == CFX_OK; i++) {
        const cf_input *in = &node->inputs[i];
        if (!wants[i]) continue;
        if (cf_needs(node, i)) cf_place(tape, node, i, in->dtype, in->ndim, in->shape, &g[i]);
        status = cf_new(in->device, in->dtype, in->ndim, in->shape, &g[i]);
    }
    if (status == CFX_OK) status = make(node, dy, wants, g);
    for (int i = 0; i < n && status == CFX_OK; i++)
        if (wants[i]) status = cf_give(tape, node, i, &g[i]);
    for (int i = 0; i < n; i++) cfx_release(&g[i]);
    cfx_release(dy);
    return status;
}
