/* chance.h: random bits that are the same on every machine, from `state` on. */
#ifndef CF_TEST_CHANCE_H
#define CF_TEST_CHANCE_H

#include <stdint.h>
#include <stdlib.h>

static uint64_t state; /* SplitMix64 (Steele, Lea, Flood 2014) */
static inline uint64_t bits(void) {
    uint64_t z = state += 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return z ^ z >> 31;
}

/* How many random cases a test tries: scripts/torture asks for many. */
static inline int fuzz_rounds(int few) {
    const char *asked = getenv("CONFLUX_FUZZ");
    return asked ? atoi(asked) : few;
}

#endif
