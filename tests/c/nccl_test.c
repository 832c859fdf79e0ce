/* Collectives of the CUDA plugin, core/cuda/nccl.cu, on as many GPUs as there are: with one, NCCL joins one rank, which
 * replicas never ask it for.  Without a GPU there is nothing to test; ctest runs it on pretended ones. */
#include "test.h"

#include "comm.h"
#include "comm/remote.h"

static int gpus(void) {
    char why[256];
    const cf_backend *cuda = cf_backend_of("cuda:0");
    const int n = cuda ? cuda->count(why, sizeof why) : 0;
    if (n == 0) printf("# there is no GPU: nothing is tested here\n");
    return n < 5 ? n : 5;
}

static void open_gpus(int n) {
    char spec[16];
    snprintf(spec, sizeof spec, "cuda*%d", n);
    context = new_context(spec);
    for (int i = 0; i < n; i++) device[i] = cfx_device_at(context, i);
}

static cf_group *ranks(int32_t n) {
    cf_group *group = NULL;
    CHECK_STATUS(cf_group_open(&cf_way_remote, n, device, &group), CFX_OK);
    return group;
}

static void join(cf_combine op, double scale, int32_t root, int32_t n, cfx_tensor *x) {
    const cf_collective how = {.op = op, .root = root, .scale = scale};
    cfx_tensor *handles[5];
    int64_t offsets[5] = {0};
    for (int i = 0; i < n; i++) handles[i] = &x[i];
    const cf_part part = {
        .n = x[0]._shape[0], .dtype = x[0]._dtype, .bucket = -1, .handles = handles, .stride = 1, .offset = offsets};
    CHECK_STATUS(cf_way_remote.combine(ranks(n), &how, 1, &part), CFX_OK);
}

TEST(ranks_are_joined_by_every_operation_in_every_dtype) {
    for (int n = 1; n <= gpus(); n++) {
        open_gpus(n);
        for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++)
            for (int op = CF_COMBINE_SUM; op <= (cf_is_float(dtype) ? CF_COMBINE_AVG : CF_COMBINE_MIN); op++) {
                double sum = 0, product = 1;
                cfx_tensor x[5];
                for (int i = 0; i < n; i++) {
                    x[i] = of(device[i], dtype, 1000, i + 1);
                    sum += i + 1;
                    product *= i + 1;
                }
                const double expect[] = {sum, product, n, 1, sum / n};
                join(op, 1, -1, n, x);
                for (int i = 0; i < n; i++) CHECK_EQ(any_value(&x[i]), expect[op]);
                release(n, x);
            }
        cfx_context_free(context);
    }
}

TEST(a_sum_may_be_scaled_and_one_rank_receive_or_send) {
    static const int floats[] = {CFX_FLOAT16, CFX_BFLOAT16, CFX_FLOAT32, CFX_FLOAT64};
    for (int n = 1; n <= gpus(); n++) {
        open_gpus(n);
        for (int root = 0; root < n; root++) {
            cfx_tensor x[5];
            double sum = 0;
            for (int i = 0; i < n; i++) {
                x[i] = of(device[i], floats[root % 4], 1000, i + 1);
                sum += i + 1;
            }
            join(CF_COMBINE_SUM, 1, root, n, x);
            for (int i = 0; i < n; i++) CHECK_EQ(any_value(&x[i]), i == root ? sum : i + 1);
            join(CF_COMBINE_COPY, 1, root, n, x);
            for (int i = 0; i < n; i++) CHECK_EQ(any_value(&x[i]), sum);
            join(CF_COMBINE_SUM, 0.5, -1, n, x);
            for (int i = 0; i < n; i++) CHECK_EQ(any_value(&x[i]), sum * n / 2);
            release(n, x);
        }
        cfx_context_free(context);
    }
}

TEST(ranks_gather_and_scatter) {
    for (int n = 1; n <= gpus(); n++) {
        open_gpus(n);
        cfx_tensor in[5], all[5], part[5];
        const cfx_tensor *from[5], *whole[5];
        cfx_tensor *to[5], *parts[5];
        for (int i = 0; i < n; i++) {
            in[i] = full(device[i], 100, i + 1);
            all[i] = full(device[i], 100 * n, 0);
            part[i] = full(device[i], 100, 0);
            from[i] = &in[i], whole[i] = to[i] = &all[i], parts[i] = &part[i];
        }
        CHECK_STATUS(cf_way_remote.gather(ranks(n), from, to), CFX_OK);
        for (int i = 0; i < n; i++)
            for (int s = 0; s < n; s++) {
                cfx_tensor rows = {0};
                CHECK_STATUS(cfx_slice(&all[i], 0, 100 * s, 100, 1, &rows), CFX_OK);
                CHECK_EQ(value_of(&rows), s + 1);
                cfx_release(&rows);
            }
        CHECK_STATUS(cf_way_remote.scatter(ranks(n), CF_COMBINE_SUM, whole, parts), CFX_OK);
        for (int i = 0; i < n; i++) CHECK_EQ(value_of(&part[i]), n * (i + 1));
        release(n, in);
        release(n, all);
        release(n, part);
        cfx_context_free(context);
    }
}
