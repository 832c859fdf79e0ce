/* view_test.c: the geometry of views (core/base/view.c), against what cannot be wrong: lists that say of each element,
 * in row-major order, where it lies, made by counting the indices up one by one. */
#include "base/view.h"

#include <stdlib.h>

#include "base/status.h"
#include "test.h"

#include "chance.h"

enum { VIEWS = SANITIZED ? 4000 : 40000 };
enum { DIMS = 6, ROOM = 729 /* 3 to the 6th */, SHOWN = 5 /* faults, of one test */ };

/* ---- chance ------------------------------------------------------------------------------------------ */

/* from .. to, both included. */
static int64_t between(int64_t from, int64_t to) { return from + (int64_t)(bits() % (uint64_t)(to - from + 1)); }

static void random_shape(int ndim, int64_t *shape) {
    for (int d = 0; d < ndim; d++) shape[d] = between(0, 15) ? between(1, 3) : 0;
}

/* Dimensions in a random order. */
static void random_dims(int ndim, int32_t *dims) {
    for (int d = 0; d < ndim; d++) {
        const int64_t at = between(0, d);
        dims[d] = dims[at];
        dims[at] = d;
    }
}

/* A view as slices, permutations, flips and expansions of a packed array leave it, or with any strides at all. */
static void random_strides(int ndim, const int64_t *shape, int64_t *stride) {
    int32_t dims[DIMS];
    int64_t step = 1;
    random_dims(ndim, dims);
    if (between(0, 1))
        for (int d = 0; d < ndim; d++) dims[d] = ndim - 1 - d; /* row-major */
    for (int k = 0; k < ndim; k++) {
        const int d = dims[k];
        if (!between(0, 7)) step += between(1, 3); /* a gap */
        stride[d] = between(0, 9) ? step : between(-4, 4);
        if (!between(0, 7)) stride[d] = -stride[d];
        if (!between(0, 7)) stride[d] = 0;
        if (stride[d]) step = llabs(stride[d]) * (shape[d] ? shape[d] : 1);
    }
}

static cf_view random_view(void) {
    cf_view v = {.dtype = CFX_FLOAT32, .ndim = (int32_t)between(0, DIMS)};
    random_shape(v.ndim, v.shape);
    random_strides(v.ndim, v.shape, v.stride);
    return v;
}

/* ---- lists ------------------------------------------------------------------------------------------- */

typedef struct list {
    int64_t n, at[ROOM];
} list;

/* The next index in row-major order; false after the last one. */
static bool count_up(int ndim, const int64_t *shape, int64_t *index) {
    for (int d = ndim - 1; d >= 0; d--) {
        if (++index[d] < shape[d]) return true;
        index[d] = 0;
    }
    return false;
}
static bool has_elements(int ndim, const int64_t *shape) {
    for (int d = 0; d < ndim; d++)
        if (shape[d] == 0) return false;
    return true;
}
static int64_t lies_at(int ndim, const int64_t *stride, const int64_t *index) {
    int64_t at = 0;
    for (int d = 0; d < ndim; d++) at += index[d] * stride[d];
    return at;
}

static list list_of(int ndim, const int64_t *shape, const int64_t *stride) {
    list l = {.n = 0};
    int64_t index[CFX_MAX_DIMS] = {0};
    if (!has_elements(ndim, shape)) return l;
    do l.at[l.n++] = lies_at(ndim, stride, index);
    while (count_up(ndim, shape, index));
    return l;
}
static list list_of_view(const cf_view *v) { return list_of(v->ndim, v->shape, v->stride); }

static bool same(const list *a, const list *b) {
    return a->n == b->n && memcmp(a->at, b->at, (size_t)a->n * sizeof *a->at) == 0;
}

static int by_number(const void *a, const void *b) {
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* A failure shows the seed and the view. */
static int holds(bool is, uint64_t seed, const cf_view *v, int *faults) {
    char shape[192], stride[192];
    if (is) return 1;
    if ((*faults)++ < SHOWN)
        printf("# seed %llu: sizes %s, strides %s\n", (unsigned long long)seed, cf_shape_text(v->ndim, v->shape, shape),
               cf_shape_text(v->ndim, v->stride, stride));
    return CHECK(is);
}
#define HOLDS(condition) holds(condition, seed, &v, &faults)
#define EACH_VIEW(v)                               \
    int faults = 0;                                \
    for (uint64_t seed = 1; seed <= VIEWS; seed++) \
        for (cf_view v = (state = seed, random_view()), *once = &v; once; once = NULL)

/* ---- dtypes ------------------------------------------------------------------------------------------ */

TEST(a_dtype_has_a_size_and_a_name_by_which_it_is_found) {
    const int64_t sizes[CFX_DTYPES] = {1, 1, 4, 8, 2, 2, 4, 8};
    for (int32_t k = 0; k < CFX_DTYPES; k++) {
        CHECK_EQ(cf_dtype_size(k), sizes[k]);
        CHECK_EQ(cfx_dtype_size(k), sizes[k]);
        CHECK_EQ(cfx_dtype_find(cfx_dtype_name(k)), k);
        CHECK_EQ(cf_is_float(k), strstr(cfx_dtype_name(k), "float") != NULL);
    }
    CHECK_EQ(cfx_dtype_size(-1), 0);
    CHECK_EQ(cfx_dtype_size(CFX_DTYPES), 0);
    CHECK_STR(cfx_dtype_name(CFX_DTYPES), "unknown");
    CHECK_EQ(cfx_dtype_find("unknown"), -1);
}

/* ---- shapes ------------------------------------------------------------------------------------------ */

TEST(a_shape_has_as_many_elements_as_can_be_counted) {
    EACH_VIEW(v) {
        const list l = list_of_view(&v);
        HOLDS(cf_shape_numel(v.ndim, v.shape) == l.n && cf_view_numel(&v) == l.n);
    }
    CHECK_EQ(cf_shape_numel(0, NULL), 1);
    CHECK_EQ(cf_shape_numel(2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 31}), 0);
    CHECK(cf_shape_numel(2, (int64_t[]){INT64_C(1) << 31, INT64_C(1) << 31}) == INT64_C(1) << 62);
}

TEST(the_bytes_of_a_shape_are_refused_beyond_what_memory_can_have) {
    size_t bytes = 7;
    EACH_VIEW(v) {
        const int dtype = (int)between(0, CFX_DTYPES - 1);
        HOLDS(cf_shape_bytes(dtype, v.ndim, v.shape, &bytes) &&
              bytes == (size_t)(list_of_view(&v).n * cf_dtype_size(dtype)));
    }
    CHECK(cf_shape_bytes(CFX_BOOL, 1, (int64_t[]){INT64_MAX}, &bytes) && bytes == INT64_MAX);
    CHECK(cf_shape_bytes(CFX_FLOAT32, 1, (int64_t[]){INT64_MAX / 4}, &bytes));
    CHECK(!cf_shape_bytes(CFX_FLOAT32, 1, (int64_t[]){INT64_MAX / 4 + 1}, &bytes));
    CHECK(!cf_shape_bytes(CFX_BOOL, 2, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 31}, &bytes));
    CHECK(!cf_shape_bytes(CFX_FLOAT64, 8, (int64_t[]){9999, 9999, 9999, 9999, 9999, 9999, 9999, 9999}, &bytes));
    /* beside a size of zero the others must fit, too */
    CHECK(!cf_shape_bytes(CFX_BOOL, 3, (int64_t[]){INT64_C(1) << 32, INT64_C(1) << 31, 0}, &bytes));
    CHECK(!cf_shape_bytes(CFX_BOOL, 3, (int64_t[]){0, INT64_C(1) << 32, INT64_C(1) << 31}, &bytes));
    CHECK(cf_shape_bytes(CFX_INT64, 2, (int64_t[]){0, INT64_MAX / 8}, &bytes) && bytes == 0);
}

/* Whether `to` can be had from `from` by adding dimensions in front, and repeating those of size 1. */
static bool broadcasts(int from_ndim, const int64_t *from, int to_ndim, const int64_t *to) {
    if (from_ndim > to_ndim) return false;
    for (int k = 1; k <= from_ndim; k++)
        if (from[from_ndim - k] != 1 && from[from_ndim - k] != to[to_ndim - k]) return false;
    return true;
}

TEST(two_shapes_broadcast_to_the_least_that_both_expand_to) {
    int faults = 0, fit = 0;
    for (uint64_t seed = 1; seed <= VIEWS; seed++) {
        cf_view v = {.ndim = 0}, w = {.ndim = 0};
        int64_t out[CFX_MAX_DIMS];
        state = seed;
        v.ndim = (int32_t)between(0, 3);
        w.ndim = (int32_t)between(0, 3);
        random_shape(v.ndim, v.shape);
        random_shape(w.ndim, w.shape);
        const int n = cf_shape_broadcast(v.ndim, v.shape, w.ndim, w.shape, out);
        HOLDS(cf_shape_expands(v.ndim, v.shape, w.ndim, w.shape) == broadcasts(v.ndim, v.shape, w.ndim, w.shape));
        if (n >= 0) {
            HOLDS(n == (v.ndim > w.ndim ? v.ndim : w.ndim));
            HOLDS(broadcasts(v.ndim, v.shape, n, out) && broadcasts(w.ndim, w.shape, n, out));
            for (int k = 1; k <= n; k++) /* each size is that of one of them */
                HOLDS((k <= v.ndim && v.shape[v.ndim - k] == out[n - k]) ||
                      (k <= w.ndim && w.shape[w.ndim - k] == out[n - k]));
        } else { /* some place has two sizes, neither of them 1 */
            bool clash = false;
            for (int k = 1; k <= v.ndim && k <= w.ndim; k++) {
                const int64_t a = v.shape[v.ndim - k], b = w.shape[w.ndim - k];
                clash = clash || (a != b && a != 1 && b != 1);
            }
            HOLDS(clash);
        }
        fit += n >= 0;
    }
    CHECK(fit > VIEWS / 8 && fit < VIEWS - VIEWS / 8);
}

TEST(a_hole_in_a_shape_takes_what_the_other_sizes_leave) {
    int faults = 0, found = 0;
    for (uint64_t seed = 1; seed <= VIEWS; seed++) {
        cf_view v = {.ndim = 0};
        int64_t full[CFX_MAX_DIMS];
        state = seed;
        const int64_t n = between(0, 12);
        v.ndim = (int32_t)between(0, 3);
        random_shape(v.ndim, v.shape);
        const int hole = v.ndim && between(0, 2) ? (int)between(0, v.ndim - 1) : -1;
        if (hole >= 0) v.shape[hole] = -1;
        int64_t tried[CFX_MAX_DIMS], fits = 0, size = 0;
        memcpy(tried, v.shape, sizeof tried);
        for (int64_t k = 0; k <= 12; k++) {
            if (hole >= 0) tried[hole] = k;
            if ((hole >= 0 || k == 0) && cf_shape_numel(v.ndim, tried) == n) fits++, size = k;
        }
        const bool is = cf_shape_complete(n, v.ndim, v.shape, full);
        HOLDS(is == (fits == 1)); /* of none there is any number beside a size of zero */
        if (!is) continue;
        for (int d = 0; d < v.ndim; d++) HOLDS(full[d] == (d == hole ? size : v.shape[d]));
        found++;
    }
    CHECK(found > VIEWS / 20);
    int64_t full[CFX_MAX_DIMS];
    CHECK(!cf_shape_complete(6, 2, (int64_t[]){-1, -1}, full));
    CHECK(!cf_shape_complete(6, 2, (int64_t[]){-2, -3}, full));
    CHECK(!cf_shape_complete(6, 3, (int64_t[]){INT64_MAX, INT64_MAX, -1}, full));
    CHECK(!cf_shape_complete(0, 2, (int64_t[]){INT64_MAX, 2}, full));
}

TEST(a_shape_is_written_in_brackets_and_cut_where_there_is_no_room) {
    char text[192];
    int64_t most[20];
    for (int d = 0; d < 20; d++) most[d] = INT64_MIN;
    CHECK_STR(cf_shape_text(0, NULL, text), "[]");
    CHECK_STR(cf_shape_text(1, (int64_t[]){5}, text), "[5]");
    CHECK_STR(cf_shape_text(3, (int64_t[]){32, 0, -1}, text), "[32, 0, -1]");
    for (int ndim = CFX_MAX_DIMS; ndim <= 20; ndim += 12) {
        CHECK(strlen(cf_shape_text(ndim, most, text)) > 8 * 20 && strlen(text) < sizeof text);
        CHECK(text[strlen(text) - 1] == ']');
    }
    CHECK(cf_shape_same(2, (int64_t[]){2, 3}, (int64_t[]){2, 3}) && !cf_shape_same(2, (int64_t[]){2, 3}, most));
    CHECK(cf_shape_same(0, NULL, NULL));
}

/* ---- one view ---------------------------------------------------------------------------------------- */

TEST(a_packed_view_counts_its_elements) {
    int packed = 0;
    EACH_VIEW(v) {
        cf_view w = v;
        bool counts = true;
        const list l = list_of_view(&v);
        for (int64_t e = 0; e < l.n; e++) counts = counts && l.at[e] == e;
        HOLDS(cf_view_packed(&v) == counts);
        packed += counts && l.n > 1;
        cf_dims_pack(w.ndim, w.shape, w.stride);
        const list all = list_of_view(&w);
        for (int64_t e = 0; e < all.n; e++) HOLDS(all.at[e] == e);
        for (int d = 0; d < w.ndim; d++) /* beside a size of 0, too, strides are what the other sizes make them */
            HOLDS(d + 1 == w.ndim ? w.stride[d] == 1
                                  : w.stride[d] == w.stride[d + 1] * (w.shape[d + 1] ? w.shape[d + 1] : 1));
    }
    CHECK(packed > VIEWS / 50);
}

TEST(an_expanded_view_has_neighbours_in_one_place) {
    int expanded = 0;
    EACH_VIEW(v) {
        bool is = false;
        int64_t index[CFX_MAX_DIMS] = {0};
        for (int d = 0; d < v.ndim && has_elements(v.ndim, v.shape); d++) {
            index[d] = 1;
            is = is || (v.shape[d] > 1 && lies_at(v.ndim, v.stride, index) == 0);
            index[d] = 0;
        }
        HOLDS(cf_dims_expanded(v.ndim, v.shape, v.stride) == is);
        expanded += is;
    }
    CHECK(expanded > VIEWS / 10 && expanded < VIEWS - VIEWS / 10);
}

TEST(the_extent_runs_from_the_lowest_element_to_the_highest) {
    static char memory[4];
    EACH_VIEW(v) {
        int64_t low, high, least = 0, most = -1;
        uintptr_t from, to;
        const list l = list_of_view(&v);
        for (int64_t e = 0; e < l.n; e++) {
            if (e == 0 || l.at[e] < least) least = l.at[e];
            if (e == 0 || l.at[e] > most) most = l.at[e];
        }
        cf_dims_extent(v.ndim, v.shape, v.stride, &low, &high);
        HOLDS(low == least && high == most + 1);
        v.data = memory;
        cf_view_reach(&v, &from, &to);
        HOLDS(from == (uintptr_t)memory + (uintptr_t)(4 * least) &&
              to == (uintptr_t)memory + (uintptr_t)(4 * most + 4));
    }
}

TEST(an_index_leads_to_its_element) {
    EACH_VIEW(v) {
        const list l = list_of_view(&v);
        for (int64_t e = 0; e < l.n; e++) HOLDS(cf_dims_offset(v.ndim, v.shape, v.stride, e) == l.at[e]);
    }
}

TEST(picked_dimensions_show_the_elements_where_the_others_are_0) {
    EACH_VIEW(v) {
        cf_view w = v;
        int32_t dims[CFX_MAX_DIMS];
        int64_t index[CFX_MAX_DIMS] = {0}, old[CFX_MAX_DIMS];
        random_dims(v.ndim, dims);
        w.ndim = (int32_t)between(0, v.ndim);
        cf_dims_pick(w.ndim, dims, w.shape, w.stride);
        const list l = list_of_view(&w);
        for (int64_t e = 0; e < l.n; e++) {
            memset(old, 0, sizeof old);
            for (int k = 0; k < w.ndim; k++) old[dims[k]] = index[k];
            for (int k = 0; k < w.ndim; k++) HOLDS(index[k] < v.shape[dims[k]]);
            HOLDS(l.at[e] == lies_at(v.ndim, v.stride, old));
            count_up(w.ndim, w.shape, index);
        }
        for (int k = 0; k < w.ndim; k++) HOLDS(w.shape[k] == v.shape[dims[k]]);
    }
}

TEST(an_inserted_dimension_steps_and_is_gone_when_it_is_dropped) {
    EACH_VIEW(v) {
        cf_view w = v;
        const int dim = (int)between(0, v.ndim);
        const int64_t size = between(0, 3), step = between(-5, 5);
        int64_t index[CFX_MAX_DIMS] = {0}, old[CFX_MAX_DIMS];
        cf_dims_insert(w.ndim++, dim, size, step, w.shape, w.stride);
        HOLDS(w.shape[dim] == size);
        if (has_elements(w.ndim, w.shape)) {
            do {
                for (int d = 0; d < v.ndim; d++) old[d] = index[d < dim ? d : d + 1];
                HOLDS(lies_at(w.ndim, w.stride, index) == lies_at(v.ndim, v.stride, old) + index[dim] * step);
            } while (count_up(w.ndim, w.shape, index));
        }
        cf_dims_drop(w.ndim--, dim, w.shape, w.stride);
        HOLDS(cf_shape_same(v.ndim, v.shape, w.shape) && cf_shape_same(v.ndim, v.stride, w.stride));
    }
}

TEST(an_expanded_dimension_repeats_its_one_element) {
    EACH_VIEW(v) {
        cf_view w = v, y = {.ndim = (int32_t)between(v.ndim, DIMS)};
        const int lead = y.ndim - v.ndim;
        int64_t index[CFX_MAX_DIMS] = {0}, old[CFX_MAX_DIMS];
        random_shape(y.ndim, y.shape);
        for (int d = 0; d < v.ndim; d++)
            if (v.shape[d] != 1) y.shape[lead + d] = v.shape[d];
        cf_view_expand(&w, &y);
        HOLDS(w.ndim == y.ndim && cf_shape_same(y.ndim, w.shape, y.shape));
        if (!has_elements(w.ndim, w.shape)) continue;
        do {
            for (int d = 0; d < v.ndim; d++) old[d] = v.shape[d] == 1 ? 0 : index[lead + d];
            HOLDS(lies_at(w.ndim, w.stride, index) == lies_at(v.ndim, v.stride, old));
        } while (count_up(w.ndim, w.shape, index));
    }
}

TEST(a_slice_has_every_step_th_element_or_is_refused) {
    int taken = 0, backwards = 0;
    EACH_VIEW(v) {
        if (v.ndim == 0) continue;
        const int dim = (int)between(0, v.ndim - 1);
        const int64_t size = v.shape[dim] = between(0, 6), start = between(-1, size + 1), n = between(-1, size + 1);
        const int64_t step = between(-3, 3), last = start + (n - 1) * step;
        cf_view w = v;
        int64_t offset = 1000, index[CFX_MAX_DIMS] = {0}, old[CFX_MAX_DIMS];
        const bool fits = start >= 0 && start <= size && n >= 0 &&
                          (n == 0 || (start < size && (n == 1 || (step && last >= 0 && last < size))));
        const bool is = cf_dims_slice(&w.shape[dim], &w.stride[dim], start, n, step, &offset);
        HOLDS(is == fits);
        if (!is) {
            HOLDS(offset == 1000 && w.shape[dim] == v.shape[dim] && w.stride[dim] == v.stride[dim]);
            continue;
        }
        HOLDS(w.shape[dim] == n);
        taken++;
        backwards += step < 0 && n > 1;
        if (!has_elements(w.ndim, w.shape)) continue;
        do {
            memcpy(old, index, sizeof old);
            old[dim] = start + index[dim] * step;
            HOLDS(offset - 1000 + lies_at(w.ndim, w.stride, index) == lies_at(v.ndim, v.stride, old));
        } while (count_up(w.ndim, w.shape, index));
    }
    CHECK(taken > VIEWS / 10 && backwards > VIEWS / 100);
    /* between fewer than two elements any step fits, and more never do */
    int64_t size = 5, stride = 3, offset = 0;
    CHECK(cf_dims_slice(&size, &stride, 4, 1, INT64_MAX, &offset) && size == 1 && stride == 3 && offset == 12);
    CHECK(!cf_dims_slice(&size, &stride, 0, 2, INT64_MIN, &offset) && size == 1);
    CHECK(cf_dims_slice(&size, &stride, 1, 0, 1, &offset) && size == 0 && offset == 12);
    CHECK(!cf_dims_slice(&size, &stride, 0, 1, 1, &offset));
    size = INT64_MAX;
    CHECK(!cf_dims_slice(&size, &stride, 2, INT64_MAX, INT64_MAX, &offset));
}

/* The strides that a list has in a shape, if it has any. */
static bool strides_of(const list *l, int ndim, const int64_t *shape, int64_t *stride) {
    int64_t behind = 1;
    for (int d = ndim - 1; d >= 0; d--) {
        stride[d] = shape[d] > 1 ? l->at[behind] - l->at[0] : 0;
        behind *= shape[d];
    }
    const list other = list_of(ndim, shape, stride);
    return same(l, &other);
}

TEST(a_view_is_reshaped_wherever_strides_show_its_elements_in_order) {
    int fit = 0, unfit = 0;
    EACH_VIEW(v) {
        int64_t to[CFX_MAX_DIMS], stride[CFX_MAX_DIMS], known[CFX_MAX_DIMS];
        const list l = list_of_view(&v);
        int ndim = 0;
        for (int64_t left = l.n ? l.n : 1; left > 1 || (ndim < DIMS && !between(0, 2));) {
            const int64_t size = ndim + 1 == CFX_MAX_DIMS ? left : (int64_t[]){1, 2, 3, 6, left}[between(0, 4)];
            to[ndim++] = left % size ? 1 : size;
            left /= to[ndim - 1];
        }
        if (l.n == 0) to[ndim ? between(0, ndim - 1) : ndim++] = 0;
        const bool is = cf_dims_reshape(v.ndim, v.shape, v.stride, ndim, to, stride);
        const list now = is ? list_of(ndim, to, stride) : l;
        HOLDS(same(&now, &l));
        HOLDS(is == (l.n == 0 || strides_of(&l, ndim, to, known)));
        fit += is && l.n > 1;
        unfit += !is;
    }
    CHECK(fit > VIEWS / 10 && unfit > VIEWS / 10);
}

/* ---- several views ----------------------------------------------------------------------------------- */

/* Up to three views of one shape beside v. */
static int random_views(const cf_view *v, cf_view all[4]) {
    const int n = (int)between(1, 4);
    all[0] = *v;
    for (int k = 1; k < n; k++) {
        all[k] = *v;
        if (between(0, 2)) random_strides(v->ndim, v->shape, all[k].stride);
    }
    return n;
}

TEST(collapsed_views_show_the_same_in_as_few_dimensions_as_can_be) {
    int merged = 0;
    EACH_VIEW(v) {
        cf_view all[4], old[4];
        const int n = random_views(&v, all);
        memcpy(old, all, sizeof old);
        cf_views_collapse(all, n);
        const int ndim = all[0].ndim;
        for (int k = 0; k < n; k++) {
            const list before = list_of_view(&old[k]), after = list_of_view(&all[k]);
            HOLDS(same(&before, &after) && all[k].ndim == ndim && cf_shape_same(ndim, all[0].shape, all[k].shape));
        }
        int sizes = 0;
        for (int d = 0; d < v.ndim; d++) sizes += v.shape[d] != 1;
        merged += ndim < sizes;
        for (int d = 0; d < ndim && has_elements(ndim, all[0].shape); d++) {
            bool apart = d == 0;
            for (int k = 0; k < n && d > 0; k++)
                apart = apart || all[k].stride[d - 1] != all[k].shape[d] * all[k].stride[d];
            HOLDS(all[0].shape[d] > 1 && apart);
        }
    }
    CHECK(merged > VIEWS / 10);
    /* a dimension that would overflow is no neighbour */
    int64_t shape[2] = {0, 2}, stride[2] = {INT64_MIN, INT64_C(1) << 62}, *strides[1] = {stride};
    CHECK_EQ(cf_dims_collapse(2, shape, 1, strides), 2);
}

TEST(ordered_views_show_the_same_elements_by_falling_strides_of_the_first) {
    int moved = 0;
    EACH_VIEW(v) {
        cf_view all[4], old[4];
        const int n = random_views(&v, all);
        memcpy(old, all, sizeof old);
        cf_views_sort(all, n);
        const int ndim = all[0].ndim;
        int sizes = 0;
        for (int d = 0; d < v.ndim; d++) sizes += v.shape[d] != 1;
        HOLDS(ndim == sizes);
        for (int d = 0; d < ndim; d++) {
            HOLDS(all[0].shape[d] != 1);
            HOLDS(d == 0 || llabs(all[0].stride[d - 1]) >= llabs(all[0].stride[d]));
        }
        /* an element lies in places of all views, which stay together */
        int64_t before[ROOM] = {0}, after[ROOM] = {0};
        for (int k = 0; k < n; k++) {
            const list a = list_of_view(&old[k]), b = list_of_view(&all[k]);
            HOLDS(a.n == b.n && all[k].ndim == ndim);
            for (int64_t e = 0; e < a.n; e++) {
                before[e] = before[e] * 4001 + a.at[e];
                after[e] = after[e] * 4001 + b.at[e];
            }
        }
        const size_t count = (size_t)list_of_view(&v).n;
        moved += memcmp(before, after, count * sizeof *before) != 0;
        qsort(before, count, sizeof *before, by_number);
        qsort(after, count, sizeof *after, by_number);
        HOLDS(memcmp(before, after, count * sizeof *before) == 0);
    }
    CHECK(moved > VIEWS / 10);
}

TEST(a_flattened_view_has_a_dimension) {
    EACH_VIEW(v) {
        cf_view w = v;
        cf_view_flatten(&w);
        const list before = list_of_view(&v), after = list_of_view(&w);
        HOLDS(w.ndim >= 1 && same(&before, &after));
        if (before.n == 1) HOLDS(w.ndim == 1 && w.shape[0] == 1 && w.stride[0] == 1);
    }
}

TEST(the_two_parts_of_a_split_view_lie_at_each_others_elements) {
    EACH_VIEW(v) {
        cf_view first, rest;
        const int lead = (int)between(0, v.ndim);
        const list all = list_of_view(&v);
        for (int reorder = 0; reorder < 2; reorder++) {
            cf_view_split(&v, lead, reorder, &first, &rest);
            const list outer = list_of_view(&first), inner = list_of_view(&rest);
            cf_view again[2] = {first, rest};
            for (int k = 0; k < 2; k++) cf_view_flatten(&again[k]);
            HOLDS(again[0].ndim == first.ndim && again[1].ndim == rest.ndim);
            for (int d = 1; d < rest.ndim && reorder; d++) HOLDS(llabs(rest.stride[d - 1]) >= llabs(rest.stride[d]));
            HOLDS(outer.n == cf_shape_numel(lead, v.shape) && outer.n * inner.n == all.n);
            for (int64_t i = 0; i < outer.n && all.n; i++) {
                int64_t before[ROOM], after[ROOM];
                for (int64_t k = 0; k < inner.n; k++) {
                    before[k] = all.at[i * inner.n + k];
                    after[k] = outer.at[i] + inner.at[k];
                }
                if (reorder) {
                    qsort(before, (size_t)inner.n, sizeof *before, by_number);
                    qsort(after, (size_t)inner.n, sizeof *after, by_number);
                }
                HOLDS(memcmp(before, after, (size_t)inner.n * sizeof *before) == 0);
            }
        }
    }
}

/* ---- views that meet --------------------------------------------------------------------------------- */

TEST(views_share_the_elements_that_lie_in_one_place) {
    enum { N = 120 };
    static float memory[N];
    int faults = 0, some = 0, interleaved = 0;
    for (uint64_t seed = 1; seed <= VIEWS; seed++) {
        cf_view both[2];
        char marks[N] = {0};
        int64_t shared = 0;
        state = seed;
        for (int i = 0; i < 2; i++) { /* slices, flips and a permutation of a packed array */
            cf_view *v = &both[i];
            *v = (cf_view){.dtype = CFX_FLOAT32, .ndim = 3, .shape = {4, 6, 5}};
            int32_t dims[CFX_MAX_DIMS];
            int64_t offset = 0;
            cf_dims_pack(3, v->shape, v->stride);
            for (int d = 0; d < 3; d++) {
                const int64_t size = v->shape[d], n = between(1, size),
                              step = n > 1 ? between(1, (size - 1) / (n - 1)) : 1;
                const int64_t start = between(0, size - 1 - (n - 1) * step);
                CHECK(cf_dims_slice(&v->shape[d], &v->stride[d], start, n, step, &offset));
                if (!between(0, 3)) CHECK(cf_dims_slice(&v->shape[d], &v->stride[d], n - 1, n, -1, &offset));
            }
            random_dims(3, dims);
            cf_dims_pick(3, dims, v->shape, v->stride);
            v->data = memory + offset;
            const list l = list_of_view(v);
            for (int64_t e = 0; e < l.n; e++) marks[offset + l.at[e]] = (char)(marks[offset + l.at[e]] | 1 << i);
        }
        for (int e = 0; e < N; e++) shared += marks[e] == 3;
        const cf_view v = both[0], w = both[1];
        const int64_t enough = between(1, N);
        HOLDS(cf_view_shared(&v, &w, N) == shared && cf_view_shared(&w, &v, N) == shared);
        HOLDS(cf_view_shared(&v, &w, enough) == (shared < enough ? shared : enough));
        uintptr_t from[2], to[2];
        for (int i = 0; i < 2; i++) cf_view_reach(&both[i], &from[i], &to[i]);
        some += shared > 0;
        interleaved += shared == 0 && from[0] < to[1] && from[1] < to[0];
    }
    CHECK(some > VIEWS / 10 && interleaved > VIEWS / 100);
}

TEST(views_of_two_dtypes_or_askew_share_where_their_bytes_overlap) {
    static float memory[8];
    cf_view a = {.data = memory, .dtype = CFX_FLOAT32, .ndim = 1, .shape = {4}, .stride = {2}}, b = a;
    b.data = memory + 1;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 0);
    b.dtype = CFX_INT32;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 1);
    b.dtype = CFX_FLOAT32;
    b.data = (char *)memory + 2;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 1);
    b.data = memory + 7;
    b.dtype = CFX_INT32;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 0);
    b = a;
    b.data = memory + 2;
    b.shape[0] = 0;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 0);
    b.stride[0] = 0;
    CHECK_EQ(cf_view_shared(&a, &b, 8), 0);
    CHECK_EQ(cf_view_shared(&b, &a, 8), 0);
    CHECK_EQ(cf_view_shared(&a, &a, INT64_MAX), 4);
}
