/* cudnn_none.cu: convolutions where the plugin is built without cuDNN's header. */
#include "cuda/kernel.cuh"

static cfx_status refuse(void) {
    return cf_fail(CFX_EFAULT, "convolutions on GPUs need cuDNN, which this build has none of");
}

extern "C" cfx_status cf_cuda_conv(cf_worker *, const cf_call *) { return refuse(); }
extern "C" cfx_status cf_cuda_conv_bw_data(cf_worker *, const cf_call *) { return refuse(); }
extern "C" cfx_status cf_cuda_conv_bw_weights(cf_worker *, const cf_call *) { return refuse(); }
