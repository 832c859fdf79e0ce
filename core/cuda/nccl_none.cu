/* nccl_none.cu: in the place of nccl.cu where the plugin is built without NCCL's header. */
#include "cuda/nccl.cuh"

#include <stdio.h>

cfx_status cf_cuda_joined_watch(cf_cuda_device *, int, bool, uint64_t *) { return CFX_OK; }
void cf_cuda_nccl_about(char *text, size_t bytes) { snprintf(text, bytes, "built without NCCL"); }
void cf_cuda_joined_over(cf_cuda_queue *) {}
void cf_cuda_joined_end(cf_cuda_device *) {}

static cfx_status open_group(int32_t, void *const *, void **) {
    return cf_fail(CFX_ESTATE, "several GPUs need NCCL, which this plugin was built without");
}
static bool reach(void *, void *) { return false; }

const cf_link cf_cuda_nccl = {"nccl", open_group, reach, NULL, NULL, NULL};
