/* Which elements two views share: core/base/view.c, as tensors have it. */
#include "test.h"

#include <stdlib.h>

#include "queues.h"
#include "tensor/buffer.h"

static uint64_t state;
static int64_t below(int64_t n) { /* 0 to n - 1; of none 0 */
    if (n < 2) return 0;
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((state >> 33) % (uint64_t)n);
}

/* Replaces x by y, and says so in `program`. */
static void become(cfx_tensor *x, cfx_tensor *y, char *program, const char *format, long long a, long long b,
                   long long c, long long d) {
    const size_t at = strlen(program);
    cfx_release(x);
    *x = *y;
    snprintf(program + at, 512 - at, format, a, b, c, d);
}

/* A view of `base`, which is packed, by a few random operations. */
static cfx_tensor random_view(const cfx_tensor *base, char program[512]) {
    static const int64_t shapes[][4] = {{4, 6, 5, 2}, {24, 10, 1, 1}, {240, 1, 1, 1}, {3, 8, 10, 1}, {5, 48, 1, 1}};
    cfx_tensor x = {0}, y = {0};
    const int k = (int)below(5), ndim = 1 + (int)below(4);
    int64_t shape[4];
    for (int d = 0; d < 4; d++) shape[d] = shapes[k][d];
    for (int d = 3; d >= ndim; d--) shape[d - 1] *= shape[d];
    CHECK_STATUS(cfx_reshape(base, ndim, shape, &x), CFX_OK);
    sprintf(program, "shape %d/%d", k, ndim);
    for (int64_t steps = below(5); steps > 0; steps--) {
        const int32_t dim = (int32_t)below(ndim), other = (int32_t)below(ndim);
        const int64_t size = x._shape[dim];
        memset(&y, 0, sizeof y);
        if (below(3)) {
            const int64_t n = size && below(40) ? 1 + below(size) : 0;
            const int64_t step = n > 1 ? 1 + below((size - 1) / (n - 1)) : 1;
            const int64_t room = n ? size - (n - 1) * step : size, start = room > 0 ? below(room) : 0;
            CHECK_STATUS(cfx_slice(&x, dim, start, n, step, &y), CFX_OK);
            become(&x, &y, program, ", slice %lld from %lld: %lld by %lld", dim, start, n, step);
            if (n == 0 || below(4)) continue;
            x._offset += (n - 1) * x._stride[dim]; /* backwards */
            x._stride[dim] = -x._stride[dim];
            strcat(program, ", backwards");
        } else {
            CHECK_STATUS(cfx_transpose(&x, dim, other, &y), CFX_OK);
            become(&x, &y, program, ", transpose %lld %lld", dim, other, 0, 0);
        }
    }
    return x;
}

/* Adds `mark` at each of x's elements. */
static void mark(const cfx_tensor *x, char *marks, char mark) {
    int64_t at[CFX_MAX_DIMS] = {0}, n = cf_numel(x);
    for (; n > 0; n--) {
        int64_t place = x->_offset;
        for (int d = 0; d < x->_ndim; d++) place += at[d] * x->_stride[d];
        marks[place] = (char)(marks[place] | mark);
        for (int d = x->_ndim - 1; d >= 0 && ++at[d] == x->_shape[d]; d--) at[d] = 0;
    }
}

TEST(two_views_share_the_elements_that_both_mark_one_by_one) {
    enum { N = 240 };
    cfx_context *context = new_context("cpu");
    const int64_t n = N;
    cfx_tensor base = {0};
    CHECK_STATUS(cfx_full(cfx_device_at(context, 0), CFX_FLOAT32, 1, &n, 0, &base), CFX_OK);
    int faults = 0, some = 0, interleaved = 0;
    for (uint64_t seed = 1; seed <= 50000 && faults < 5; seed++) {
        char program[2][512], marks[N] = {0};
        int64_t both = 0;
        uintptr_t from[2], to[2];
        state = seed;
        cfx_tensor a = random_view(&base, program[0]), b = random_view(&base, program[1]);
        mark(&a, marks, 1);
        mark(&b, marks, 2);
        for (int i = 0; i < N; i++) both += marks[i] == 3;
        const int64_t enough = 1 + below(N);
        const int right = cf_shared(&a, &b, N) == both && cf_shared(&b, &a, N) == both &&
                          cf_shared(&a, &b, enough) == (both < enough ? both : enough);
        if (!right)
            printf("# seed %lld: %s and %s share %lld elements, not %lld\n", (long long)seed, program[0], program[1],
                   (long long)both, (long long)cf_shared(&a, &b, N));
        faults += !CHECK(right);
        cf_reach(&a, &from[0], &to[0]);
        cf_reach(&b, &from[1], &to[1]);
        some += both > 0;
        interleaved += both == 0 && from[0] < to[1] && from[1] < to[0] && cf_numel(&a) && cf_numel(&b);
        cfx_release(&a);
        cfx_release(&b);
    }
    CHECK(some > 5000 && interleaved > 1000);
    cfx_release(&base);
    cfx_context_free(context);
}

TEST(large_views_are_compared_without_counting_to_their_ends) {
    cfx_context *context = new_context("cpu");
    cfx_device *cpu = cfx_device_at(context, 0);
    cfx_tensor x = {0}, left = {0}, right = {0}, turned = {0}, odd = {0}, even = {0}, flat = {0};
    CHECK_STATUS(cfx_empty(cpu, CFX_UINT8, 2, (int64_t[]){4000, 4000}, &x), CFX_OK);
    CHECK_STATUS(cfx_slice(&x, 1, 0, 2000, 1, &left), CFX_OK);
    CHECK_STATUS(cfx_slice(&x, 1, 2000, 2000, 1, &right), CFX_OK);
    CHECK_STATUS(cfx_transpose(&x, 0, 1, &turned), CFX_OK);
    CHECK_STATUS(cfx_reshape(&x, 1, (int64_t[]){16000000}, &flat), CFX_OK);
    CHECK_STATUS(cfx_slice(&flat, 0, 0, 8000000, 2, &even), CFX_OK);
    CHECK_STATUS(cfx_slice(&flat, 0, 1, 8000000, 2, &odd), CFX_OK);
    for (int k = 0; k < 1000; k++) {
        CHECK_EQ(cf_shared(&left, &right, 1), 0);
        CHECK_EQ(cf_shared(&even, &odd, 1), 0);
        CHECK_EQ(cf_shared(&turned, &x, INT64_MAX), 16000000);
        CHECK_EQ(cf_shared(&even, &x, 1), 1);
    }
    CHECK_EQ(cf_shared(&left, &x, INT64_MAX), 8000000);
    for (int k = 0; k < 7; k++) cfx_release((cfx_tensor *[]){&x, &left, &right, &turned, &odd, &even, &flat}[k]);
    cfx_context_free(context);
}
