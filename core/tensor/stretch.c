/* stretch.c: joining neighbours.  See stretch.h. */
#include "tensor/stretch.h"

#include <stdlib.h>

typedef struct spot {
    const cfx_tensor *tensor; /* in the first list */
    int32_t leaf, first;      /* first: the leaf that its buffer comes with */
} spot;

/* qsort: by buffer, then by leaf. */
static int by_buffer(const void *a, const void *b) {
    const spot *x = a, *y = b;
    const uintptr_t one = (uintptr_t)x->tensor->_buffer, other = (uintptr_t)y->tensor->_buffer;
    return one != other ? (one < other ? -1 : 1) : x->leaf < y->leaf ? -1 : x->leaf > y->leaf;
}

/* qsort: by place, buffers in the order of the list, and of two at one place the larger first, which the other lies
 * in. */
static int by_place(const void *a, const void *b) {
    const spot *x = a, *y = b;
    if (x->first != y->first) return x->first < y->first ? -1 : 1;
    if (x->tensor->_offset != y->tensor->_offset) return x->tensor->_offset < y->tensor->_offset ? -1 : 1;
    const int64_t one = cf_numel(x->tensor), other = cf_numel(y->tensor);
    return one != other ? (one > other ? -1 : 1) : x->leaf < y->leaf ? -1 : x->leaf > y->leaf;
}

/* Orders spots by the list and then the place, never by addresses: sums are taken in this order. */
static void arrange(spot *spots, int32_t n) {
    qsort(spots, (size_t)n, sizeof *spots, by_buffer);
    for (int32_t i = 1; i < n; i++)
        if (spots[i].tensor->_buffer == spots[i - 1].tensor->_buffer) spots[i].first = spots[i - 1].first;
    qsort(spots, (size_t)n, sizeof *spots, by_place);
}

/* How far, in elements, leaf `to` lies behind leaf `from`, if that is the same in every list; else -1. */
static int64_t distance(int32_t lists, int32_t n, cfx_tensor *const *leaves, int32_t from, int32_t to) {
    const int64_t apart = leaves[to]->_offset - leaves[from]->_offset;
    for (int32_t r = 0; r < lists; r++) {
        const cfx_tensor *a = leaves[(int64_t)r * n + from], *b = leaves[(int64_t)r * n + to];
        if (a->_buffer != b->_buffer || b->_offset - a->_offset != apart || a->_dtype != b->_dtype) return -1;
    }
    return apart;
}

/* Whether the leaf is a whole place of a layout in every list: a view of a part of one has more of it behind it. */
static bool is_place(int32_t lists, int32_t n, cfx_tensor *const *leaves, int32_t leaf) {
    for (int32_t r = 0; r < lists; r++) {
        const cfx_tensor *x = leaves[(int64_t)r * n + leaf];
        if (!x->_buffer->layout || (x->_flags & CFX_FLAG_VIEW)) return false;
    }
    return true;
}

cfx_status cf_stretches(int32_t lists, int32_t n, cfx_tensor *const *leaves, const int32_t *group, cf_stretch **out,
                        int32_t *count) {
    void *memory, *made;
    int32_t used = 0, k = 0, before = 0; /* before: the leaf joined last */
    CF_TRY(cf_alloc((size_t)n * sizeof(spot), &memory));
    if (cf_alloc((size_t)n * sizeof(cf_stretch), &made) != CFX_OK) {
        free(memory);
        return CFX_EMEMORY;
    }
    spot *spots = memory;
    cf_stretch *list = made;
    for (int32_t i = 0; i < n; i++)
        if (cf_numel(leaves[i])) spots[used++] = (spot){leaves[i], i, i};
    arrange(spots, used);
    for (int32_t i = 0; i < used; i++) {
        const int32_t leaf = spots[i].leaf;
        const int64_t numel = cf_numel(leaves[leaf]);
        if (k && (!group || group[leaf] == group[list[k - 1].leaf])) {
            cf_stretch *last = &list[k - 1];
            const int64_t apart = distance(lists, n, leaves, last->leaf, leaf);
            if (apart >= 0 && apart + numel <= last->n) continue; /* tied */
            /* behind it with a gap of less than the alignment is its neighbour in the layout */
            const int64_t unit = CF_ALIGN / cfx_dtype_size(leaves[leaf]->_dtype), gap = apart - last->n;
            if (gap == 0 ||
                (gap > 0 && gap < unit && is_place(lists, n, leaves, before) && is_place(lists, n, leaves, leaf))) {
                last->n = apart + numel;
                before = leaf;
                continue;
            }
        }
        before = leaf;
        list[k++] = (cf_stretch){leaf, numel};
    }
    free(memory);
    *out = list;
    *count = k;
    return CFX_OK;
}
