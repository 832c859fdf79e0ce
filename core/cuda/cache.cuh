/* cache.cuh: what a library has prepared, by all that it depends on.
 *
 * Nothing here throws: a lack of host memory is a call's error.  K has no padding; one of equal bytes is equal.
 */
#ifndef CF_CUDA_CACHE_CUH
#define CF_CUDA_CACHE_CUH

#include <stdint.h>
#include <string.h>

#include <new>

extern "C" {
#include "base/status.h"
}

template <class K, class P> struct cf_cuda_cache {
    struct entry {
        entry *next;
        K key;
        P plan;
    };
    enum { BUCKETS = 256 };
    entry *bucket[BUCKETS];

    /* The plan of that key.  If there is none, make(plan) fills a zeroed one; one that it could not is dropped. */
    template <class Make> cfx_status find(const K &key, Make make, void (*drop)(P *), P **out) {
        entry **at = &bucket[place_of(key)];
        for (entry *e = *at; e; e = e->next) {
            if (memcmp(&e->key, &key, sizeof key) != 0) continue;
            *out = &e->plan;
            return CFX_OK;
        }
        entry *made = new (std::nothrow) entry{*at, key, P()};
        if (!made) return cf_fail(CFX_EMEMORY, "out of host memory: a plan for a library");
        const cfx_status status = make(&made->plan);
        if (status != CFX_OK) {
            drop(&made->plan);
            delete made;
            return status;
        }
        *at = made;
        *out = &made->plan;
        return CFX_OK;
    }

    void clear(void (*drop)(P *)) {
        for (entry *&first : bucket) {
            for (entry *next; first; first = next) {
                next = first->next;
                drop(&first->plan);
                delete first;
            }
        }
    }

  private:
    /* FNV-1a. */
    static uint32_t place_of(const K &key) {
        const unsigned char *byte = (const unsigned char *)&key;
        uint32_t hash = 2166136261u;
        for (size_t i = 0; i < sizeof key; i++) hash = (hash ^ byte[i]) * 16777619u;
        return (hash ^ hash >> 16) % BUCKETS;
    }
};

#endif
