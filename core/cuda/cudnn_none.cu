/* cudnn_none.cu: in the place of conv.cu where the plugin is built without cuDNN's header. */
#include "cuda/conv.cuh"

#include <stdio.h>

void cf_cuda_cudnn_about(char *text, size_t bytes) { snprintf(text, bytes, "built without cuDNN"); }
void cf_cuda_convolutions_end(cf_cuda_device *) {}

static cfx_status refuse(void) {
    return cf_fail(CFX_EFAULT, "convolutions on GPUs need cuDNN, which this build has none of");
}

extern "C" cfx_status cf_cuda_conv(cf_worker *, const cf_call *) { return refuse(); }
extern "C" cfx_status cf_cuda_conv_bw_data(cf_worker *, const cf_call *) { return refuse(); }
extern "C" cfx_status cf_cuda_conv_bw_weights(cf_worker *, const cf_call *) { return refuse(); }
