/* rng.h: random numbers by position.
 *
 * Philox 4x32-10 (Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011) maps
 * (seed, stream, block) to four 32-bit words with no state, so that any thread or device can make any part of
 * a sequence, and team sizes change nothing.  Element p of a stream is word p % 4 of block p / 4.
 *
 * A compiler for another processor defines CF_HERE as what makes these functions its own.
 */
#ifndef CF_BASE_RNG_H
#define CF_BASE_RNG_H

#include <stdint.h>

#ifndef CF_HERE
#define CF_HERE
#endif

static inline CF_HERE void cf_philox(uint64_t seed, uint64_t stream, uint64_t block, uint32_t out[4]) {
    uint32_t c0 = (uint32_t)block, c1 = (uint32_t)(block >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xD2511F53u * c0, b = (uint64_t)0xCD9E8D57u * c2;
        const uint32_t n0 = (uint32_t)(b >> 32) ^ c1 ^ k0, n2 = (uint32_t)(a >> 32) ^ c3 ^ k1;
        c0 = n0;
        c1 = (uint32_t)b;
        c2 = n2;
        c3 = (uint32_t)a;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* 24 random bits as a float in [0, 1). */
static inline CF_HERE float cf_uniform_f32(uint32_t word) { return (float)(word >> 8) * 0x1p-24f; }
/* 53 random bits as a double in [0, 1). */
static inline CF_HERE double cf_uniform_f64(uint32_t high, uint32_t low) {
    return (double)((((uint64_t)high << 32) | low) >> 11) * 0x1p-53;
}

/* A permutation of 0 .. n-1 into out (Fisher and Yates), the same on every machine. */
void cf_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out);

#endif
