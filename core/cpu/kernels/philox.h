/* philox.h: the words of base/rng.h, many blocks at once.
 *
 * A 32-bit number lies in each 64-bit lane, because every machine has the instruction that multiplies the lower
 * halves of lanes; compilers do not find it by themselves.  Two vectors go side by side, so that one works while
 * the other waits for its product.
 */
#ifndef CF_CPU_KERNELS_PHILOX_H
#define CF_CPU_KERNELS_PHILOX_H

#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__)
#include <immintrin.h>
enum { CF_PHILOX_BYTES = 64 };
#define CF_PHILOX_MUL(a, b) (cf_philox_lanes) _mm512_mul_epu32((__m512i)(a), (__m512i)(b))
#elif defined(__AVX2__)
#include <immintrin.h>
enum { CF_PHILOX_BYTES = 32 };
#define CF_PHILOX_MUL(a, b) (cf_philox_lanes) _mm256_mul_epu32((__m256i)(a), (__m256i)(b))
#elif defined(__SSE2__)
#include <emmintrin.h>
enum { CF_PHILOX_BYTES = 16 };
#define CF_PHILOX_MUL(a, b) (cf_philox_lanes) _mm_mul_epu32((__m128i)(a), (__m128i)(b))
#else
enum { CF_PHILOX_BYTES = 16 };
#define CF_PHILOX_MUL(a, b) ((a)&0xFFFFFFFFu) * (b)
#endif

typedef uint64_t cf_philox_lanes __attribute__((vector_size(CF_PHILOX_BYTES)));
enum { CF_PHILOX_LANES = CF_PHILOX_BYTES / 8, CF_PHILOX_BLOCKS = 2 * CF_PHILOX_LANES };

/* The 4 CF_PHILOX_BLOCKS words of as many blocks from `block` on. */
static inline void cf_philox_group(uint64_t seed, uint64_t stream, uint64_t block, uint32_t *out) {
    const cf_philox_lanes zero = {0}, low = zero + 0xFFFFFFFFu;
    const cf_philox_lanes m0 = zero + 0xD2511F53u, m2 = zero + 0xCD9E8D57u;
    cf_philox_lanes c0[2], c1[2], c2[2], c3[2];
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    static const uint64_t count[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    memcpy(c0, count, sizeof c0);
    for (int h = 0; h < 2; h++) {
        c0[h] += zero + block;
        c1[h] = c0[h] >> 32;
        c2[h] = zero + (uint32_t)stream;
        c3[h] = zero + (stream >> 32);
    }
    /* Upper halves hold what is left of products; the multiplication does not see them. */
    for (int round = 0; round < 10; round++) {
        for (int h = 0; h < 2; h++) {
            const cf_philox_lanes a = CF_PHILOX_MUL(c0[h], m0), b = CF_PHILOX_MUL(c2[h], m2);
            c0[h] = (b >> 32) ^ c1[h] ^ (zero + k0);
            c1[h] = b;
            c2[h] = (a >> 32) ^ c3[h] ^ (zero + k1);
            c3[h] = a;
        }
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    for (int h = 0; h < 2; h++) {
        const cf_philox_lanes first = (c0[h] & low) | (c1[h] << 32), second = (c2[h] & low) | (c3[h] << 32);
        for (int i = 0; i < CF_PHILOX_LANES; i++) {
            uint32_t *o = out + 4 * (h * CF_PHILOX_LANES + i);
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
            const uint64_t pair[2] = {first[i], second[i]};
            memcpy(o, pair, sizeof pair);
#else
            o[0] = (uint32_t)first[i], o[1] = (uint32_t)(first[i] >> 32);
            o[2] = (uint32_t)second[i], o[3] = (uint32_t)(second[i] >> 32);
#endif
        }
    }
}

/* At least n words from block `block` on; out has room for a whole number of groups. */
static inline void cf_philox_words(uint64_t seed, uint64_t stream, uint64_t block, int64_t n, uint32_t *out) {
    for (int64_t k = 0; k < n; k += 4 * CF_PHILOX_BLOCKS)
        cf_philox_group(seed, stream, block + (uint64_t)k / 4, out + k);
}

#endif
