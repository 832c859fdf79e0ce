/* rng.c: permutations. */
#include "base/rng.h"

/* A number in [0, bound) from 64 random bits, by the high half of the product (Lemire 2019); the bias is below
 * bound / 2^64, so nothing is rejected and element i always costs one block. */
static uint64_t bounded(uint64_t bits, uint64_t bound) { return (uint64_t)(((unsigned __int128)bits * bound) >> 64); }

void cf_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out) {
    for (int64_t i = 0; i < n; i++) out[i] = i;
    for (int64_t i = n - 1; i > 0; i--) {
        uint32_t w[4];
        cf_philox(seed, stream, (uint64_t)i, w);
        const int64_t j = (int64_t)bounded((uint64_t)w[0] << 32 | w[1], (uint64_t)i + 1);
        const int64_t t = out[i];
        out[i] = out[j];
        out[j] = t;
    }
}
