/* view.c: sizes and strides.  See view.h. */
#include "base/view.h"

#include <stdio.h>
#include <stdlib.h>

#include "base/status.h"

/* ---- shapes ----------------------------------------------------------------------------------------- */

bool cf_shape_bytes(int dtype, int ndim, const int64_t *shape, size_t *bytes) {
    size_t all = (size_t)cf_dtype_size(dtype);
    bool empty = false;
    for (int d = 0; d < ndim; d++) {
        empty |= shape[d] == 0;
        if (!cf_mul_size(all, (size_t)(shape[d] ? shape[d] : 1), &all) || all > (size_t)PTRDIFF_MAX) return false;
    }
    *bytes = empty ? 0 : all;
    return true;
}

int cf_shape_broadcast(int a_ndim, const int64_t *a, int b_ndim, const int64_t *b, int64_t *out) {
    const int n = a_ndim > b_ndim ? a_ndim : b_ndim;
    for (int d = 0; d < n; d++) {
        const int from_a = d - (n - a_ndim), from_b = d - (n - b_ndim);
        const int64_t x = from_a < 0 ? 1 : a[from_a], y = from_b < 0 ? 1 : b[from_b];
        if (x != y && x != 1 && y != 1) return -1;
        out[d] = x == 1 ? y : x;
    }
    return n;
}

bool cf_shape_expands(int a_ndim, const int64_t *a, int b_ndim, const int64_t *b) {
    const int lead = b_ndim - a_ndim;
    bool fits = lead >= 0;
    for (int d = 0; fits && d < a_ndim; d++) fits = a[d] == 1 || a[d] == b[d + lead];
    return fits;
}

bool cf_shape_complete(int64_t n, int ndim, const int64_t *shape, int64_t *full) {
    int64_t known = 1;
    int hole = -1;
    for (int d = 0; d < ndim; d++) {
        full[d] = shape[d];
        if (shape[d] == -1 && hole < 0) hole = d;
        else if (shape[d] < 0 || __builtin_mul_overflow(known, shape[d], &known)) return false;
    }
    if (hole < 0) return known == n;
    if (known == 0 || n % known) return false;
    full[hole] = n / known;
    return true;
}

const char *cf_shape_text(int ndim, const int64_t *shape, char text[192]) {
    size_t used = (size_t)snprintf(text, 192, "[");
    for (int d = 0; d < ndim && used < 170; d++)
        used += (size_t)snprintf(text + used, 192 - used, "%s%lld", d ? ", " : "", (long long)shape[d]);
    snprintf(text + used, 192 - used, "]");
    return text;
}

/* ---- the dimensions of a view ----------------------------------------------------------------------- */

void cf_dims_pack(int ndim, const int64_t *shape, int64_t *stride) {
    int64_t expect = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = expect;
        expect *= shape[d] ? shape[d] : 1;
    }
}

bool cf_dims_packed(int ndim, const int64_t *shape, const int64_t *stride) {
    int64_t expect = 1;
    bool packed = true;
    for (int d = ndim - 1; d >= 0; d--) {
        if (shape[d] == 0) return true;
        packed = packed && (shape[d] == 1 || stride[d] == expect);
        expect *= shape[d];
    }
    return packed;
}

bool cf_dims_expanded(int ndim, const int64_t *shape, const int64_t *stride) {
    bool is_expanded = false;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 0) return false;
        is_expanded = is_expanded || (stride[d] == 0 && shape[d] > 1);
    }
    return is_expanded;
}

void cf_dims_extent(int ndim, const int64_t *shape, const int64_t *stride, int64_t *low, int64_t *high) {
    *low = 0;
    *high = 1;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 0) {
            *low = *high = 0;
            return;
        }
        *(stride[d] > 0 ? high : low) += (shape[d] - 1) * stride[d];
    }
}

static void gather(int n, const int32_t *dims, int64_t *x) {
    int64_t picked[CFX_MAX_DIMS];
    for (int k = 0; k < n; k++) picked[k] = x[dims[k]];
    memcpy(x, picked, (size_t)n * sizeof *x);
}

void cf_dims_pick(int n, const int32_t *dims, int64_t *shape, int64_t *stride) {
    gather(n, dims, shape);
    gather(n, dims, stride);
}

void cf_dims_drop(int ndim, int dim, int64_t *shape, int64_t *stride) {
    const size_t behind = (size_t)(ndim - dim - 1) * sizeof *shape;
    memmove(shape + dim, shape + dim + 1, behind);
    memmove(stride + dim, stride + dim + 1, behind);
}

void cf_dims_insert(int ndim, int dim, int64_t size, int64_t step, int64_t *shape, int64_t *stride) {
    const size_t behind = (size_t)(ndim - dim) * sizeof *shape;
    memmove(shape + dim + 1, shape + dim, behind);
    memmove(stride + dim + 1, stride + dim, behind);
    shape[dim] = size;
    stride[dim] = step;
}

void cf_dims_expand(int ndim, int64_t *shape, int64_t *stride, int to_ndim, const int64_t *to) {
    const int lead = to_ndim - ndim;
    for (int d = to_ndim - 1; d >= 0; d--) { /* the sizes still to be read lie at d or before */
        stride[d] = d < lead || shape[d - lead] != to[d] ? 0 : stride[d - lead];
        shape[d] = to[d];
    }
}

bool cf_dims_slice(int64_t *size, int64_t *stride, int64_t start, int64_t n, int64_t step, int64_t *offset) {
    if (n < 0 || start < 0 || start > *size || (n > 0 && start == *size)) return false;
    if (n > 1) {
        const int64_t room = step > 0 ? (*size - 1 - start) / step : step < 0 ? -(start / step) : 0;
        if (n - 1 > room) return false;
    }
    if (n > 0) *offset += start * *stride;
    if (n > 1) *stride *= step;
    *size = n;
    return true;
}

/* The new dimensions are taken, from the last one, out of runs of the view's that lie as one; a dimension of size 1
 * lies anywhere, for its stride is never used. */
bool cf_dims_reshape(int ndim, const int64_t *shape, const int64_t *stride, int to_ndim, const int64_t *to,
                     int64_t *to_stride) {
    int64_t left = 1, step = 1; /* of the run at hand */
    int from = ndim - 1;
    if (cf_dims_packed(ndim, shape, stride)) {
        cf_dims_pack(to_ndim, to, to_stride);
        return true;
    }
    for (int d = to_ndim - 1; d >= 0; d--) {
        if (left == 1 && to[d] != 1) {
            while (shape[from] == 1) from--;
            step = stride[from];
            left = shape[from--];
            for (; from >= 0 && (shape[from] == 1 || stride[from] == step * left); from--) left *= shape[from];
        }
        if (left % to[d]) return false;
        to_stride[d] = step;
        step *= to[d];
        left /= to[d];
    }
    return true;
}

/* ---- several views at once -------------------------------------------------------------------------- */

int cf_dims_sort(int ndim, int64_t *shape, int n, int64_t *const *stride) {
    int32_t dims[CFX_MAX_DIMS];
    int count = 0;
    bool changes = false;
    for (int d = 0; d < ndim; d++) {
        if (shape[d] == 1) continue;
        int at = count++;
        for (; at > 0 && llabs(stride[0][dims[at - 1]]) < llabs(stride[0][d]); at--) dims[at] = dims[at - 1];
        dims[at] = d;
        changes = changes || at != d;
    }
    if (!changes) return count;
    gather(count, dims, shape);
    for (int k = 0; k < n; k++) gather(count, dims, stride[k]);
    return count;
}

/* Whether a stride is that of a dimension around one of this size and stride. */
static bool surrounds(int64_t outer, int64_t size, int64_t stride) {
    int64_t across;
    return !__builtin_mul_overflow(size, stride, &across) && outer == across;
}

int cf_dims_collapse(int ndim, int64_t *shape, int n, int64_t *const *stride) {
    int left = 0;
    for (int d = 0; d < ndim; d++) {
        const int64_t size = shape[d];
        if (size == 1) continue;
        bool merges = left > 0;
        for (int k = 0; k < n && merges; k++) merges = surrounds(stride[k][left - 1], size, stride[k][d]);
        if (merges) shape[left - 1] *= size;
        else shape[left++] = size;
        for (int k = 0; k < n; k++) stride[k][left - 1] = stride[k][d];
    }
    return left;
}

enum { MOST_VIEWS = 4 };

typedef int (*change)(int ndim, int64_t *shape, int n, int64_t *const *stride);

static void change_all(change f, cf_view *views, int n) {
    int64_t *stride[MOST_VIEWS] = {views->stride};
    for (int k = 1; k < n; k++) stride[k] = views[k].stride;
    views->ndim = f(views->ndim, views->shape, n, stride);
    for (int k = 1; k < n; k++) {
        memcpy(views[k].shape, views->shape, sizeof views->shape);
        views[k].ndim = views->ndim;
    }
}

void cf_views_sort(cf_view *views, int n) { change_all(cf_dims_sort, views, n); }
void cf_views_collapse(cf_view *views, int n) { change_all(cf_dims_collapse, views, n); }

void cf_view_flatten(cf_view *v) {
    cf_views_collapse(v, 1);
    if (v->ndim > 0) return;
    v->ndim = 1;
    v->shape[0] = v->stride[0] = 1;
}

void cf_view_split(const cf_view *x, int lead, bool reorder, cf_view *first, cf_view *rest) {
    const int32_t n = x->ndim - lead;
    *first = *rest = *x;
    first->ndim = lead;
    rest->ndim = n;
    memcpy(rest->shape, x->shape + lead, (size_t)n * sizeof *x->shape);
    memcpy(rest->stride, x->stride + lead, (size_t)n * sizeof *x->stride);
    if (reorder) cf_views_sort(rest, 1);
    cf_view_flatten(first);
    cf_view_flatten(rest);
}

/* ---- views that meet -------------------------------------------------------------------------------- */

/* Element (i, j, ..) of a is element (k, l, ..) of b if a's offset + i s1 + j s2 + .. is b's offset + k t1 + l t2 + ..
 * With b's indices counted from their ends, all terms stand on one side, and terms of one stride are one term: so two
 * views of one matrix leave a term a dimension.  The search goes from the largest stride down; what the smaller ones
 * can still add leaves two or three values to try at each. */

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

/* v's dimensions, counted from its lowest element. */
static void add_terms(terms *t, const cf_view *v) {
    const int known = t->n;
    for (int d = 0; d < v->ndim; d++) {
        const int64_t n = v->shape[d], stride = llabs(v->stride[d]);
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
static void sort_terms(terms *t) {
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

void cf_view_reach(const cf_view *v, uintptr_t *from, uintptr_t *to) {
    const int64_t size = cf_dtype_size(v->dtype);
    int64_t low, high;
    cf_dims_extent(v->ndim, v->shape, v->stride, &low, &high);
    *from = (uintptr_t)v->data + (uintptr_t)(low * size);
    *to = (uintptr_t)v->data + (uintptr_t)(high * size);
}

int64_t cf_view_shared(const cf_view *a, const cf_view *b, int64_t enough) {
    uintptr_t a_from, a_to, b_from, b_to;
    cf_view_reach(a, &a_from, &a_to);
    cf_view_reach(b, &b_from, &b_to);
    if (a_from >= b_to || b_from >= a_to || a_from == a_to || b_from == b_to) return 0;
    const int64_t size = cf_dtype_size(a->dtype), apart = (int64_t)b_from - (int64_t)a_from;
    if (a->dtype != b->dtype || apart % size) return 1;
    terms t = {.n = 0};
    add_terms(&t, a);
    add_terms(&t, b);
    sort_terms(&t);
    return ways(&t, 0, apart / size + (int64_t)(b_to - b_from) / size - 1, enough);
}
