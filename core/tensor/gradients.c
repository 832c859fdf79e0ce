/* gradients.c: the gradient function of each row of the op table. */
#include "tensor/tape.h"

#define cf_grad_none NULL
#define CF_DECLARE(gradient) cfx_status cf_grad_##gradient(cfx_tape *, cf_node *, const cfx_tensor *);
CF_DECLARE(neg)
CF_DECLARE(from_input)
CF_DECLARE(from_output)
CF_DECLARE(add)
CF_DECLARE(sub)
CF_DECLARE(mul)
CF_DECLARE(div)
CF_DECLARE(pow)
CF_DECLARE(maximum)
CF_DECLARE(minimum)
CF_DECLARE(where)
CF_DECLARE(sum)
CF_DECLARE(mean)
CF_DECLARE(prod)
CF_DECLARE(extreme)
CF_DECLARE(norm)
CF_DECLARE(var)
CF_DECLARE(std)
CF_DECLARE(loss)
CF_DECLARE(tri)
CF_DECLARE(softmax)
CF_DECLARE(matmul)
CF_DECLARE(dense)
CF_DECLARE(index)
CF_DECLARE(gather)
CF_DECLARE(layernorm)
CF_DECLARE(dropout)
CF_DECLARE(crossentropy)
#undef CF_DECLARE

const cf_backward cf_gradients[CF_OPS] = {
#define CF_OP(name, family, domain, gradient) [CF_OP_##name] = cf_grad_##gradient,
#include "device/ops.def"
#undef CF_OP
};
