/* select_test.c: index, gather, their adding twins, sort and topk against plain loops. */
#include "test.h"

#include "machines.h"

static const int id_types[] = {CFX_INT64, CFX_INT32, CFX_UINT8};

static void fill_ids(const cf_view *ids, int64_t size) {
    for (int64_t e = 0; e < cf_view_numel(ids); e++) set(ids, e, random_bits() % (uint32_t)size);
}

/* Small whole numbers, so that sums are exact in every type. */
static void fill_whole(const cf_view *v) {
    for (int64_t e = 0; e < cf_view_numel(v); e++) set(v, e, random_bits() % 4);
}

/* x's shape with the dimensions of ids in the place of `dim`. */
static int picked_shape(const cf_view *x, int dim, const cf_view *ids, int64_t *shape) {
    int n = 0;
    for (int d = 0; d < dim; d++) shape[n++] = x->shape[d];
    for (int d = 0; d < ids->ndim; d++) shape[n++] = ids->shape[d];
    for (int d = dim + 1; d < x->ndim; d++) shape[n++] = x->shape[d];
    return n;
}

/* Where element e of the picked shape lies in x, by ids. */
static int64_t source_of(const cf_view *x, int dim, const cf_view *ids, int64_t e) {
    int64_t tail = 1;
    for (int d = dim + 1; d < x->ndim; d++) tail *= x->shape[d];
    const int64_t n = cf_view_numel(ids), inner = e % tail, j = e / tail % n, outer = e / tail / n;
    return (outer * x->shape[dim] + (int64_t)get(ids, j)) * tail + inner;
}

static double plus(int dtype, double a, double b) {
    return dtype == CFX_BOOL ? a != 0 || b != 0 : dtype == CFX_UINT8 ? (uint8_t)(a + b) : a + b;
}

TEST(index_takes_by_ids_from_any_dimension_of_any_type) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int dim = 0; dim < 3; dim++)
                for (int p = 0; p < PATTERNS; p++) {
                    cf_view x = view(dtype, p, 3, (int64_t[]){4, 5, 6});
                    cf_view ids = view(id_types[p % 3], PACKED, 1 + p % 2, (int64_t[]){3, 2});
                    int64_t shape[8];
                    const int n = picked_shape(&x, dim, &ids, shape);
                    cf_view y = view(dtype, (p + dim) % PATTERNS, n, shape);
                    fill_whole(&x);
                    fill_ids(&ids, x.shape[dim]);
                    CHECK_STATUS(RUN(m, CF_OP_index, dtype, 1, .v = {y, x, ids}, .params = &(cf_select_params){dim}),
                                 CFX_OK);
                    for (int64_t e = 0; e < cf_view_numel(&y); e++)
                        if (!near_at(m, &y, e, get(&x, source_of(&x, dim, &ids, e)), 0)) return;
                }
    }
}

static uint64_t check_index_add(machine *m, int dtype, int dim, const int64_t *shape, int64_t n, pattern p) {
    cf_view y = view(dtype, p, 3, shape), ids = VECTOR(id_types[p % 3], n);
    int64_t picked[8];
    picked_shape(&y, dim, &ids, picked);
    cf_view src = view(dtype, (p + 1) % PATTERNS, 3, picked);
    fill_whole(&y);
    fill_whole(&src);
    fill_ids(&ids, shape[dim]);
    if (dtype == CFX_FLOAT32)
        for (int64_t e = 0; e < cf_view_numel(&src); e++) set(&src, e, get(&src, e) / 3);
    const int64_t elements = cf_view_numel(&y);
    double *expected = malloc((size_t)elements * sizeof(double));
    for (int64_t e = 0; e < elements; e++) expected[e] = get(&y, e);
    for (int64_t e = 0; e < cf_view_numel(&src); e++) {
        double *at = &expected[source_of(&y, dim, &ids, e)];
        *at = plus(dtype, *at, get(&src, e));
    }
    CHECK_STATUS(RUN(m, CF_OP_index_add, dtype, 1, .v = {y, ids, src}, .params = &(cf_select_params){dim}), CFX_OK);
    for (int64_t e = 0; e < elements; e++)
        if (!near_at(m, &y, e, expected[e], rounding(dtype, expected[e]) * 8)) break;
    free(expected);
    return bits_of(&y);
}

TEST(index_add_adds_into_any_dimension_of_any_type) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int dim = 0; dim < 3; dim++)
                for (int p = 0; p < PATTERNS; p++) check_index_add(m, dtype, dim, (int64_t[]){4, 5, 6}, 9, p);
    }
}

TEST(index_add_has_the_same_bits_with_any_team_whatever_is_split) {
    static uint64_t kept[4];
    EACH_MACHINE(m) {
        same_as_alone(m, check_index_add(m, CFX_FLOAT32, 0, (int64_t[]){20, 8, 32}, 900, PACKED), &kept[0]); /* tail */
        same_as_alone(m, check_index_add(m, CFX_FLOAT32, 1, (int64_t[]){64, 20, 8}, 500, TURNED), &kept[1]); /* outer */
        same_as_alone(m, check_index_add(m, CFX_FLOAT32, 0, (int64_t[]){50, 1, 2}, 90000, PADDED),
                      &kept[2]); /* places */
    }
}

static uint64_t check_gather(machine *m, int dtype, int dim, const int64_t *shape, const int64_t *ids_shape, pattern p,
                             int add) {
    cf_view x = view(dtype, p, 3, shape), ids = view(id_types[p % 3], (p + 1) % PATTERNS, 3, ids_shape);
    cf_view y = view(dtype, (p + 2) % PATTERNS, 3, ids_shape);
    fill_whole(&x);
    fill_whole(&y);
    fill_ids(&ids, shape[dim]);
    if (dtype == CFX_FLOAT32)
        for (int64_t e = 0; e < cf_view_numel(&y); e++) set(&y, e, get(&y, e) / 3);
    const int64_t elements = cf_view_numel(&x);
    double *expected = malloc((size_t)elements * sizeof(double));
    for (int64_t e = 0; e < elements; e++) expected[e] = get(&x, e);
    if (add)
        CHECK_STATUS(RUN(m, CF_OP_scatter_add, dtype, 1, .v = {x, ids, y}, .params = &(cf_select_params){dim}), CFX_OK);
    else CHECK_STATUS(RUN(m, CF_OP_gather, dtype, 1, .v = {y, x, ids}, .params = &(cf_select_params){dim}), CFX_OK);
    for (int64_t e = 0; e < cf_view_numel(&ids); e++) {
        int64_t at[3] = {e / ids_shape[2] / ids_shape[1], e / ids_shape[2] % ids_shape[1], e % ids_shape[2]};
        at[dim] = (int64_t)get(&ids, e);
        double *place = &expected[(at[0] * shape[1] + at[1]) * shape[2] + at[2]];
        if (add) *place = plus(dtype, *place, get(&y, e));
        else if (!near_at(m, &y, e, *place, 0)) break;
    }
    for (int64_t e = 0; add && e < elements; e++)
        if (!near_at(m, &x, e, expected[e], rounding(dtype, expected[e]) * 8)) break;
    free(expected);
    return bits_of(&x) ^ bits_of(&y);
}

TEST(gather_and_scatter_add_follow_ids_of_any_smaller_shape) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int dim = 0; dim < 3; dim++)
                for (int p = 0; p < PATTERNS; p++)
                    for (int add = 0; add < 2; add++) {
                        static const int64_t shape[] = {4, 5, 6}, same[] = {4, 5, 6};
                        static const int64_t other[3][3] = {{7, 3, 6}, {2, 9, 5}, {4, 4, 11}};
                        check_gather(m, dtype, dim, shape, same, p, add);
                        check_gather(m, dtype, dim, shape, other[dim], p, add);
                    }
        free_views();
    }
}

TEST(gather_and_scatter_add_have_the_same_bits_with_any_team) {
    static uint64_t kept[4];
    EACH_MACHINE(m) {
        for (int add = 0; add < 2; add++) {
            same_as_alone(m,
                          check_gather(m, CFX_FLOAT32, 1, (int64_t[]){3, 9, 70}, (int64_t[]){3, 300, 70}, PACKED, add),
                          &kept[add]);
            same_as_alone(m,
                          check_gather(m, CFX_FLOAT32, 2, (int64_t[]){1, 1, 90}, (int64_t[]){1, 1, 50000}, TURNED, add),
                          &kept[2 + add]);
        }
    }
}

TEST(an_id_out_of_range_is_named_and_nothing_moves) {
    EACH_MACHINE(m) {
        cf_view x = MATRIX(CFX_FLOAT32, PACKED, 10, 2), ids = VECTOR(CFX_INT32, 5),
                y = MATRIX(CFX_FLOAT32, PACKED, 5, 2);
        fill(&x, 1);
        fill(&y, 7);
        fill(&ids, 9);
        set(&ids, 3, 12);
        CHECK_STATUS(RUN(m, CF_OP_index, CFX_FLOAT32, 1, .v = {y, x, ids}), CFX_EFAULT);
        CHECK_STR(cfx_error(), "id 12 at position 4 is outside 0 to 9");
        CHECK_EQ(get(&y, 0), 7);
        set(&ids, 3, -1);
        CHECK_STATUS(RUN(m, CF_OP_index_add, CFX_FLOAT32, 1, .v = {x, ids, y}), CFX_EFAULT);
        CHECK_STR(cfx_error(), "id -1 at position 4 is outside 0 to 9");
        CHECK_EQ(get(&x, 18), 1);
        cf_view square = MATRIX(CFX_INT64, PACKED, 5, 2);
        fill(&square, 0);
        set(&square, 9, 10);
        CHECK_STATUS(RUN(m, CF_OP_gather, CFX_FLOAT32, 1, .v = {y, x, square}), CFX_EFAULT);
        CHECK_STR(cfx_error(), "id 10 at position 10 is outside 0 to 9");
        CHECK_STATUS(RUN(m, CF_OP_scatter_add, CFX_FLOAT32, 1, .v = {x, square, y}), CFX_EFAULT);
        CHECK_EQ(get(&x, 0), 1);
    }
}

TEST(no_ids_select_nothing_and_from_nothing_nothing_can_be_taken) {
    EACH_MACHINE(m) {
        cf_view x = MATRIX(CFX_FLOAT32, PACKED, 0, 2), none = VECTOR(CFX_INT64, 0),
                y = MATRIX(CFX_FLOAT32, PACKED, 0, 2);
        CHECK_STATUS(RUN(m, CF_OP_index, CFX_FLOAT32, 1, .v = {y, x, none}), CFX_OK);
        CHECK_STATUS(RUN(m, CF_OP_index_add, CFX_FLOAT32, 1, .v = {x, none, y}), CFX_OK);
        cf_view one = VECTOR(CFX_INT64, 1), row = MATRIX(CFX_FLOAT32, PACKED, 1, 2);
        fill(&one, 0);
        CHECK_STATUS(RUN(m, CF_OP_index, CFX_FLOAT32, 1, .v = {row, x, one}), CFX_EFAULT);
        CHECK_STR(cfx_error(), "id 0 at position 1 is outside 0 to -1");
    }
}

/* ---- order */

/* Whether a comes after b in rising order; NaN is the largest. */
static int above(double a, double b) { return isnan(a) ? !isnan(b) : a > b; }

/* The k first of each row, by repeated search. */
static void check_order(machine *m, int dtype, int64_t rows, int64_t n, int64_t k, int falling, int top, pattern p) {
    cf_view x = MATRIX(dtype, p, rows, n), y = MATRIX(dtype, (p + 1) % PATTERNS, rows, k);
    cf_view ids = MATRIX(CFX_INT64, (p + 2) % PATTERNS, rows, k);
    for (int64_t e = 0; e < rows * n; e++) {
        const uint32_t r = random_bits() % 64;
        double value = cf_is_float(dtype)                        ? (double)(r % 40) - 20
                       : dtype == CFX_BOOL || dtype == CFX_UINT8 ? r % 40
                                                                 : (double)r - 32;
        if (cf_is_float(dtype) && r >= 60) value = r == 60 ? NAN : r == 61 ? INFINITY : r == 62 ? -INFINITY : -0.0;
        set(&x, e, dtype == CFX_BOOL ? r & 1 : value);
    }
    CHECK_STATUS(RUN(m, top ? CF_OP_topk : CF_OP_sort, dtype, 2, .v = {y, ids, x},
                     .params = top ? (void *)&(cf_topk_params){k} : &(cf_sort_params){falling}),
                 CFX_OK);
    char *taken = malloc((size_t)n + 1);
    for (int64_t r = 0; r < rows; r++) {
        memset(taken, 0, (size_t)n);
        for (int64_t i = 0; i < k; i++) {
            int64_t best = -1;
            for (int64_t j = 0; j < n; j++) {
                if (taken[j]) continue;
                const double a = get(&x, r * n + j), b = best < 0 ? 0 : get(&x, r * n + best);
                if (best < 0 || (falling ? above(a, b) : above(b, a))) best = j;
            }
            taken[best] = 1;
            if (near_at(m, &ids, r * k + i, (double)best, 0) && near_at(m, &y, r * k + i, get(&x, r * n + best), 0))
                continue;
            printf("# n %lld, k %lld, falling %d, pattern %d\n", (long long)n, (long long)k, falling, p);
            free(taken);
            return;
        }
    }
    free(taken);
    free_views();
}

TEST(sort_is_stable_in_both_directions_for_every_type) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int p = 0; p < PATTERNS; p++) {
                check_order(m, dtype, 3, 17, 17, p & 1, 0, p);
                check_order(m, dtype, 2, 200, 200, !(p & 1), 0, p);
            }
        check_order(m, CFX_FLOAT32, 60, 70, 70, 1, 0, PACKED);
        check_order(m, CFX_FLOAT32, 5, 1, 1, 1, 0, PACKED);
        check_order(m, CFX_FLOAT32, 5, 0, 0, 1, 0, PACKED);
    }
}

TEST(topk_gives_the_first_of_a_falling_sort) {
    EACH_MACHINE(m) {
        for (int dtype = 0; dtype < CFX_DTYPES; dtype++)
            for (int p = 0; p < PATTERNS; p++) {
                check_order(m, dtype, 3, 90, 5, 1, 1, p);
                check_order(m, dtype, 2, 90, 60, 1, 1, p);
            }
        check_order(m, CFX_FLOAT32, 90, 700, 40, 1, 1, PACKED);
        check_order(m, CFX_FLOAT32, 3, 7, 0, 1, 1, PACKED);
    }
}

TEST(values_are_sorted_with_all_their_bits) {
    EACH_MACHINE(m) {
        cf_view x = VECTOR(CFX_INT64, 100), y = VECTOR(CFX_INT64, 100), ids = VECTOR(CFX_INT64, 100);
        for (int i = 0; i < 100; i++) ((int64_t *)x.data)[i] = INT64_MAX - (i * 7919) % 100;
        CHECK_STATUS(RUN(m, CF_OP_sort, CFX_INT64, 2, .v = {y, ids, x}), CFX_OK);
        for (int i = 0; i < 100; i++) CHECK(((int64_t *)y.data)[i] == INT64_MAX - 99 + i);
    }
}
