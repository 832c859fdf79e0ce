/* overlap.c: views that meet.  See overlap.h.
 *
 * Element (i, j, ..) of a is element (k, l, ..) of b if a's offset + i s1 + j s2 + .. is b's offset + k t1 + l t2 + ..
 * With b's indices counted from their ends, all terms stand on one side, and terms of one stride are one term: so two
 * views of one matrix leave a term a dimension.  The search goes from the largest stride down; what the smaller ones
 * can still add leaves two or three values to try at each.
 */
#include "tensor/overlap.h"

/* v stride, for 0 <= v < n; v is i + k with i < a and k < b: in that many ways. */
typedef struct term {
    int64_t stride, n, a, b;
    int64_t rest;   /* the most that the terms behind this one add */
    int64_t factor; /* of all that they add; 0: there are none */
} term;

typedef struct terms {
    term items[2 * CFX_MAX_DIMS];
    int n;
} terms;

/* x's dimensions, counted from its lowest element. */
static void add_terms(terms *t, const cfx_tensor *x) {
    const int known = t->n;
    for (int d = 0; d < x->_ndim; d++) {
        const int64_t n = x->_shape[d], stride = x->_stride[d] < 0 ? -x->_stride[d] : x->_stride[d];
        if (n == 1 || stride == 0) continue;
        int k = 0;
        while (k < known && (t->items[k].stride != stride || t->items[k].b != 1)) k++;
        if (k < known) {
            t->items[k].b = n;
            t->items[k].n += n - 1;
        } else {
            t->items[t->n++] = (term){.stride = stride, .n = n, .a = n, .b = 1};
        }
    }
}

static int64_t common_factor(int64_t a, int64_t b) {
    while (b) {
        const int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Largest strides first, each with what stands behind it. */
static void order(terms *t) {
    for (int i = 1; i < t->n; i++) {
        const term moved = t->items[i];
        int k = i;
        for (; k > 0 && t->items[k - 1].stride < moved.stride; k--) t->items[k] = t->items[k - 1];
        t->items[k] = moved;
    }
    int64_t rest = 0, factor = 0;
    for (int k = t->n - 1; k >= 0; k--) {
        t->items[k].rest = rest;
        t->items[k].factor = factor;
        rest += (t->items[k].n - 1) * t->items[k].stride;
        factor = common_factor(t->items[k].stride, factor);
    }
}

static int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* In how many ways the terms from k on add up to `sum`, up to `enough`. */
static int64_t ways(const terms *t, int k, int64_t sum, int64_t enough) {
    if (k == t->n) return sum == 0;
    const term *x = &t->items[k];
    const int64_t first = sum > x->rest ? (sum - x->rest + x->stride - 1) / x->stride : 0;
    const int64_t last = sum < 0 ? -1 : least(x->n - 1, sum / x->stride);
    int64_t found = 0;
    for (int64_t v = first; v <= last && found < enough; v++) {
        const int64_t left = sum - v * x->stride, times = 1 + least(least(v, x->n - 1 - v), least(x->a, x->b) - 1);
        if (x->factor ? left % x->factor == 0 : left == 0) found += times * ways(t, k + 1, left, enough);
    }
    return least(found, enough);
}

void cf_reach(const cfx_tensor *x, uintptr_t *from, uintptr_t *to) {
    int64_t low, high;
    cf_extent(x, &low, &high);
    *from = (uintptr_t)x->_buffer->data + (uintptr_t)low;
    *to = (uintptr_t)x->_buffer->data + (uintptr_t)high;
}

int64_t cf_shared(const cfx_tensor *a, const cfx_tensor *b, int64_t enough) {
    uintptr_t a_from, a_to, b_from, b_to;
    cf_reach(a, &a_from, &a_to);
    cf_reach(b, &b_from, &b_to);
    if (a_from >= b_to || b_from >= a_to || a_from == a_to || b_from == b_to) return 0;
    const int64_t size = cfx_dtype_size(a->_dtype), apart = (int64_t)b_from - (int64_t)a_from;
    if (a->_dtype != b->_dtype || apart % size) return 1;
    terms t = {.n = 0};
    add_terms(&t, a);
    add_terms(&t, b);
    order(&t);
    return ways(&t, 0, apart / size + (int64_t)(b_to - b_from) / size - 1, enough);
}

bool cf_is_expanded(const cfx_tensor *x) {
    bool is_expanded = false;
    for (int d = 0; d < x->_ndim; d++) {
        if (x->_shape[d] == 0) return false;
        is_expanded = is_expanded || (x->_stride[d] == 0 && x->_shape[d] > 1);
    }
    return is_expanded;
}

bool cf_is_same(const cfx_tensor *a, const cfx_tensor *b) {
    if (cf_data(a) != cf_data(b) || a->_dtype != b->_dtype || !cf_same_shape(a, b)) return false;
    for (int d = 0; d < a->_ndim; d++)
        if (a->_stride[d] != b->_stride[d] && a->_shape[d] != 1) return false;
    return true;
}
