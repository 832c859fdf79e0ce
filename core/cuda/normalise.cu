/* normalise.cu: bytes as numbers, channel by channel. */
#include "cuda/items.cuh"

namespace {

typedef struct job {
    cf_view y, x, scale, shift; /* y and x packed */
    int64_t elements, c;
} job;

/* A thread makes the four of 16 bytes; channels are few, so a division finds the first. */
__global__ void normalise(const job j) {
    enum { N = 4 };
    const uint8_t *x = (const uint8_t *)j.x.data;
    const cf_span<cf_typed<float, float>, N> y(j.y, 0, 1, j.elements);
    for (CF_EACH(item, (j.elements + N - 1) / N)) {
        cf_items<float, N> out = {};
        int64_t channel = item * N % j.c;
        for (int k = 0; k < N && item * N + k < j.elements; k++) {
            out.x[k] =
                ::fma((float)x[item * N + k], cf_read<float>(j.scale, channel), cf_read<float>(j.shift, channel));
            channel = channel + 1 < j.c ? channel + 1 : 0;
        }
        y.put(item * N, out);
    }
}

} // namespace

extern "C" cfx_status cf_cuda_normalise(cf_worker *worker, const cf_call *call) {
    const job j = {call->v[0],           *cf_call_in(call, 0),       *cf_call_in(call, 1),
                   *cf_call_in(call, 2), cf_view_numel(&call->v[0]), cf_call_in(call, 1)->shape[0]};
    if (j.elements == 0) return CFX_OK;
    CF_LAUNCH(normalise, cf_cuda_blocks(worker, (j.elements + 3) / 4), CF_THREADS, worker, j);
    return cf_cuda_launched("normalise");
}
