/* gradients.h: the gradients of several inputs, which one command makes. */
#ifndef CF_OPS_GRADIENTS_H
#define CF_OPS_GRADIENTS_H

#include "ops/tape.h"

enum { CF_GRADIENTS = 4 }; /* at most */

/* Issues the command that makes the gradients g of the inputs that `wants` names, from dy.  A failure has released
 * them, and leaves zeros. */
typedef cfx_status (*cf_make_gradients)(cf_node *node, cfx_tensor *dy, const bool *wants, cfx_tensor *g);

/* Of n inputs: makes those that are wanted, each in its input's form and, if it is needed, in its place, and gives them.
 * dy is released. */
cfx_status cf_give_gradients(cfx_tape *tape, cf_node *node, int n, const bool *wants, cf_make_gradients make,
                             cfx_tensor *dy);

#endif
