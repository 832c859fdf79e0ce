/* apart.c: refuses collectives whose tensors share memory.  See apart.h. */
#include "comm/apart.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tensor/buffer.h"

/* ---- names ------------------------------------------------------------------------------------------ */

enum { NAME_BYTES = 256 };

/* "tensor 3", or "'1.weight'", or where a replica is one tensor "the value". */
static const char *place_name(int32_t k, const char *const *paths, char text[NAME_BYTES]) {
    if (!paths) snprintf(text, NAME_BYTES, "tensor %d", k + 1);
    else if (!*paths[k]) snprintf(text, NAME_BYTES, "the value");
    else snprintf(text, NAME_BYTES, "'%s'", paths[k]);
    return text;
}

/* ---- one list --------------------------------------------------------------------------------------- */

typedef struct list {
    const char *function;
    int32_t replicas, n;
    cfx_tensor *const *leaves;
    const char *const *paths;
} list;

static const cfx_tensor *leaf_of(const list *l, int32_t r, int32_t k) { return l->leaves[(int64_t)r * l->n + k]; }
static const char *device_name(const list *l, int32_t r) { return cf_device(leaf_of(l, r, 0))->name; }

/* The addresses that a leaf can touch. */
typedef struct span {
    uintptr_t from, to;
    int32_t replica, leaf;
} span;

static int by_address(const void *a, const void *b) {
    const span *x = a, *y = b;
    return x->from != y->from ? (x->from < y->from ? -1 : 1) : x->to < y->to ? -1 : x->to > y->to;
}

static bool same_strides(const cfx_tensor *a, const cfx_tensor *b) {
    return cf_shape_same(a->_ndim, a->_stride, b->_stride);
}

/* The first replica in which tensors j and k lie otherwise to each other than in replica r; -1: there is none. */
static int32_t differs_in(const list *l, int32_t r, int32_t j, int32_t k) {
    const cfx_tensor *x = leaf_of(l, r, j), *y = leaf_of(l, r, k);
    for (int32_t s = 0; s < l->replicas; s++) {
        const cfx_tensor *a = leaf_of(l, s, j), *b = leaf_of(l, s, k);
        if (cf_data(b) - cf_data(a) != cf_data(y) - cf_data(x) || !same_strides(a, x) || !same_strides(b, y)) return s;
    }
    return -1;
}

/* Whether a, before b in the list, may share memory with b as it does. */
static bool may_share(const list *l, const span *a, const span *b) {
    const cfx_tensor *x = leaf_of(l, a->replica, a->leaf), *y = leaf_of(l, b->replica, b->leaf);
    if (cf_shared(x, y, 1) == 0) return true;
    if (a->replica != b->replica || differs_in(l, a->replica, a->leaf, b->leaf) >= 0) return false;
    const int64_t n = cf_numel(x), m = cf_numel(y), smaller = n < m ? n : m;
    return cf_is_same(x, y) || cf_shared(x, y, smaller) == smaller;
}

static cfx_status refuse(const list *l, const span *a, const span *b) {
    char first[NAME_BYTES], second[NAME_BYTES];
    const int32_t r = a->replica, s = b->replica;
    place_name(a->leaf, l->paths, first);
    place_name(b->leaf, l->paths, second);
    if (r != s)
        return cf_fail(CFX_EARG, "%s: replicas %d (%s) and %d (%s) share memory: %s and %s", l->function, r + 1,
                       device_name(l, r), s + 1, device_name(l, s), first, second);
    const int32_t other = differs_in(l, r, a->leaf, b->leaf);
    if (other >= 0)
        return cf_fail(CFX_EARG, "%s: replica %d (%s): %s and %s share memory, and not likewise in replica %d (%s)",
                       l->function, r + 1, device_name(l, r), first, second, other + 1, device_name(l, other));
    return cf_fail(CFX_EARG, "%s: replica %d (%s): %s and %s share memory, but neither lies in the other", l->function,
                   r + 1, device_name(l, r), first, second);
}

static int by_place(const span *a, const span *b) {
    return a->replica != b->replica ? a->replica - b->replica : a->leaf - b->leaf;
}

/* The first pair at fault, by its places in the list: the order of addresses differs from run to run. */
typedef struct fault {
    const span *a, *b;
} fault;

static void look(const list *l, const span *a, const span *b, fault *first) {
    if (by_place(a, b) > 0) {
        const span *swapped = a;
        a = b;
        b = swapped;
    }
    if (first->a) {
        const int order = by_place(a, first->a);
        if (order > 0 || (order == 0 && by_place(b, first->b) > 0)) return;
    }
    if (!may_share(l, a, b)) *first = (fault){a, b};
}

cfx_status cf_check_apart(const char *function, int32_t replicas, int32_t n, cfx_tensor *const *leaves,
                          const char *const *paths) {
    const list l = {function, replicas, n, leaves, paths};
    const size_t count = (size_t)replicas * (size_t)n;
    void *memory;
    if (replicas == 1) return CFX_OK;
    CF_TRY(cf_alloc(count * sizeof(span), &memory));
    span *spans = memory;
    size_t used = 0, open = 0; /* spans [open, k) may reach into span k */
    for (int32_t r = 0; r < replicas; r++)
        for (int32_t k = 0; k < n; k++) {
            if (cf_numel(leaf_of(&l, r, k)) == 0) continue;
            spans[used] = (span){.replica = r, .leaf = k};
            cf_reach(leaf_of(&l, r, k), &spans[used].from, &spans[used].to);
            used++;
        }
    qsort(spans, used, sizeof *spans, by_address);
    fault first = {NULL, NULL};
    for (size_t k = 0; k < used; k++) {
        while (open < k && spans[open].to <= spans[k].from) open++;
        for (size_t i = open; i < k; i++)
            if (spans[i].to > spans[k].from) look(&l, &spans[i], &spans[k], &first);
    }
    const cfx_status status = first.a ? refuse(&l, first.a, first.b) : CFX_OK;
    free(memory);
    return status;
}

cfx_status cf_check_targets(const char *function, cf_combine op, int32_t root, int32_t replicas, int32_t n,
                            cfx_tensor *const *leaves, const char *const *paths) {
    char text[NAME_BYTES];
    for (int32_t r = 0; r < replicas; r++) {
        for (int32_t k = 0; k < n && cf_combine_writes(op, root, r); k++) {
            const cfx_tensor *x = leaves[(int64_t)r * n + k];
            if (cf_is_expanded(x))
                return cf_fail(CFX_EARG, "%s: replica %d (%s): %s is expanded: several elements share one place",
                               function, r + 1, cf_device(x)->name, place_name(k, paths, text));
        }
    }
    return CFX_OK;
}

CFX_API cfx_status cfx_check_replicas(const char *function, int32_t root, int32_t replicas, int32_t n,
                                      cfx_tensor *const *leaves, const char *const *paths) {
    for (int32_t r = 0; r < replicas; r++) {
        for (int32_t k = 0; k < n; k++) {
            const cfx_tensor *x = leaves[(int64_t)r * n + k];
            CF_TRY(cf_check_tensor(function, "list", x));
            if (cf_combine_writes(CF_COMBINE_SUM, root, r)) CF_TRY(cf_check_writable(function, x));
        }
    }
    CF_TRY(cf_check_targets(function, CF_COMBINE_SUM, root, replicas, n, leaves, paths));
    return cf_check_apart(function, replicas, n, leaves, paths);
}

/* ---- a list and its results ------------------------------------------------------------------------- */

static cfx_status fail_shared(const char *function, const char *what, int32_t s, const cfx_tensor *x, int32_t r,
                              const cfx_tensor *out) {
    return cf_fail(CFX_EARG, "%s: '%s' of replica %d (%s) and 'out' of replica %d (%s) share memory", function, what,
                   s + 1, cf_device(x)->name, r + 1, cf_device(out)->name);
}

cfx_status cf_check_outs(const char *function, int32_t replicas, const cfx_tensor *const *in, cfx_tensor *const *out,
                         const bool *in_place) {
    for (int32_t r = 0; r < replicas; r++) {
        if (cf_is_expanded(out[r]))
            return cf_fail(CFX_EARG, "%s: 'out' of replica %d (%s) is expanded: several elements share one place",
                           function, r + 1, cf_device(out[r])->name);
        for (int32_t s = 0; s < replicas; s++) {
            if (s < r && cf_shared(out[s], out[r], 1)) return fail_shared(function, "out", s, out[s], r, out[r]);
            if (!(s == r && in_place[r]) && cf_shared(in[s], out[r], 1))
                return fail_shared(function, "in", s, in[s], r, out[r]);
        }
    }
    return CFX_OK;
}
