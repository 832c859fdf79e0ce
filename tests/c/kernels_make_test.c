/* kernels_make_test.c: what makes and moves tensors, random numbers among it, in every instruction set. */
#include "test.h"

#include "kernels.h"

/* ---- make and move ------------------------------------------------------------------------------------------- */

TEST(a_copy_converts_between_all_dtypes_and_layouts) {
    EACH_TABLE(t)
    for (int from = 0; from < CFX_DTYPES; from++)
        for (int to = 0; to < CFX_DTYPES; to++)
            for (enum layout a = PACKED; a < LAYOUTS; a++)
                for (enum layout b = PACKED; b < REPEATED; b++) {
                    tensor x = make_as(a, from, SHAPE(3, 37, 41)), y = make_as(b, to, SHAPE(3, 37, 41));
                    randomize(&x, 0, 100);
                    set(&x, 5, 0);
                    const call c = CALL(CF_OP_copy, to, 1, &y, &x);
                    CHECK_STATUS(run(t, &c), CFX_OK);
                    int bad = 0;
                    for (int64_t i = 0; i < numel(&x); i++) {
                        uint64_t memory = 0;
                        store(to, &memory, get(&x, i));
                        bad += memcmp(&memory, element(&y.v, i), sizes[to]) != 0;
                    }
                    if (!CHECK_EQ(bad, 0))
                        printf("# %s %s to %s, layouts %d and %d\n", t->name, cfx_dtype_name(from), cfx_dtype_name(to),
                               a, b);
                    drop(&x), drop(&y);
                }
}

TEST(a_copy_has_the_same_result_with_every_team) {
    EACH_TABLE(t) for (int m = 0; m < TEAMS; m++) {
        worker.threads = teams[m];
        tensor x = make_as(TURNED, CFX_FLOAT32, SHAPE(301, 503)), y = make(CFX_FLOAT32, SHAPE(301, 503)),
               z = make_as(SPREAD, CFX_INT64, SHAPE(301 * 503));
        randomize(&x, -100, 100);
        call c = CALL(CF_OP_copy, CFX_FLOAT32, 1, &y, &x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(same_elements(&y, &x));
        tensor flat = {.v = y.v};
        flat.v.ndim = 1;
        flat.v.shape[0] = 301 * 503;
        flat.v.stride[0] = 1;
        c = CALL(CF_OP_copy, CFX_INT64, 1, &z, &flat);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK_EQ(get(&z, 100000), trunc(get(&flat, 100000)));
        drop(&x), drop(&y), drop(&z);
    }
    worker.threads = 2;
}

TEST(large_integers_are_copied_and_filled_exactly) {
    EACH_TABLE(t) {
        tensor x = make(CFX_INT64, SHAPE(3)), y = make(CFX_INT64, SHAPE(3)),
               f = VALUES(CFX_FLOAT64, 1e300, -INFINITY, NAN);
        call c = CALL(CF_OP_fill, CFX_INT64, 1, &x);
        *CF_PARAMS(&c.head, fill) = (cf_fill_params){.exact = INT64_MAX - 1, .is_exact = 1};
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = CALL(CF_OP_copy, CFX_INT64, 1, &y, &x);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(((int64_t *)y.memory)[2] == INT64_MAX - 1);
        c = CALL(CF_OP_copy, CFX_INT64, 1, &y, &f);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(((int64_t *)y.memory)[0] == INT64_MAX && ((int64_t *)y.memory)[1] == INT64_MIN &&
              ((int64_t *)y.memory)[2] == 0);
        drop(&x), drop(&y), drop(&f);
    }
}

TEST(a_fill_writes_its_view_and_nothing_else) {
    EACH_TABLE(t) for (int dtype = 0; dtype < CFX_DTYPES; dtype++) for (int k = 0; k < 2; k++) {
        tensor y = make_as(SPREAD, dtype, SHAPE(5, 900));
        memset(y.memory, 0x55, y.bytes);
        call c = CALL(CF_OP_fill, dtype, 1, &y);
        CF_PARAMS(&c.head, fill)->value = k;
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 4500; i++)
            if (get(&y, i) != k) {
                CHECK(!"filled");
                break;
            }
        CHECK_EQ(y.memory[sizes[dtype]], 0x55);
        CHECK_EQ(y.memory[y.bytes - 1], 0x55);
        drop(&y);
    }
}

TEST(zero_ranges_zeroes_bytes) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT32, SHAPE(100));
        memset(y.memory, 1, y.bytes);
        call c = CALL(CF_OP_zero_ranges, CFX_FLOAT32, 1, &y);
        cf_ranges_params *ranges = CF_PARAMS(&c.head, ranges);
        ranges->n = 2;
        ranges->range[0].from = 3, ranges->range[0].bytes = 5;
        ranges->range[1].from = 200, ranges->range[1].bytes = 100;
        CHECK_STATUS(run(t, &c), CFX_OK);
        int zeros = 0;
        for (int i = 0; i < 400; i++) zeros += !y.memory[i];
        CHECK_EQ(zeros, 105);
        CHECK(y.memory[2] && !y.memory[3] && !y.memory[7] && y.memory[8] && y.memory[199] && !y.memory[299] &&
              y.memory[300]);
        drop(&y);
    }
}

TEST(a_range_is_made_in_every_dtype) {
    EACH_TABLE(t) for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(50));
        call c = CALL(CF_OP_arange, dtype, 1, &y);
        *CF_PARAMS(&c.head, arange) = (cf_arange_params){5, 2};
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int i = 0; i < 50; i++) CHECK_EQ(get(&y, i), 5 + 2 * i);
        drop(&y);
    }
}

TEST(a_triangle_keeps_one_side_of_a_diagonal) {
    EACH_TABLE(t) for (int upper = 0; upper < 2; upper++) for (int64_t diagonal = -6; diagonal <= 6; diagonal++) {
        tensor x = make_as(TURNED, CFX_FLOAT64, SHAPE(2, 4, 5)), y = make(CFX_FLOAT64, SHAPE(2, 4, 5));
        randomize(&x, 1, 2), randomize(&y, 1, 2);
        call c = CALL(CF_OP_tri, CFX_FLOAT64, 1, &y, &x);
        *CF_PARAMS(&c.head, tri) = (cf_tri_params){.upper = upper, .diagonal = diagonal};
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 40; i++) {
            const int64_t row = i / 5 % 4, col = i % 5;
            const int keep = upper ? col - row >= diagonal : col - row <= diagonal;
            CHECK(get(&y, i) == (keep ? get(&x, i) : 0));
        }
        drop(&x), drop(&y);
    }
}

TEST(onehot_marks_ids_and_names_one_out_of_range) {
    EACH_TABLE(t) {
        tensor ids = VALUES(CFX_INT32, 2, 0, 9, 5), y = make(CFX_FLOAT32, SHAPE(4, 10));
        randomize(&y, 1, 2);
        const call c = CALL(CF_OP_onehot, CFX_FLOAT32, 1, &y, &ids);
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t i = 0; i < 40; i++) CHECK_EQ(get(&y, i), i % 10 == get(&ids, i / 10));
        set(&ids, 3, 12);
        CHECK_STATUS(run(t, &c), CFX_EFAULT);
        CHECK_STR(cfx_error(), "id 12 at position 4 is outside 0 to 9");
        drop(&ids), drop(&y);
    }
}

TEST(a_slot_holds_eight_numbers_and_the_clip_scale) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT64, SHAPE(8)), ss = scalar(CFX_FLOAT64);
        call c = CALL(CF_OP_slot, CFX_FLOAT64, 1, &y);
        *CF_PARAMS(&c.head, slot) = (cf_slot_params){{0, 1, 2, 3, 10, 11, 12, 13}};
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int k = 0; k < 4; k++) CHECK(get(&y, k) == k && get(&y, 4 + k) == 10 + k);
        set(&ss, 0, 16);
        const double limits[] = {2, 8, 0}, scales[] = {2 / (4 + 1e-6), 1, 1};
        for (int k = 0; k < 3; k++) {
            c = CALL(CF_OP_clip, CFX_FLOAT64, 1, &y, &ss);
            CF_PARAMS(&c.head, clip)->norm = limits[k];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK_NEAR(get(&y, 7), scales[k], 1e-15);
        }
        drop(&y), drop(&ss);
    }
}

/* ---- random numbers ------------------------------------------------------------------------------------------ */

static call random_call(int op, const tensor *y, double p0, double p1) {
    const tensor *t[] = {y};
    call c = call_of(op, y->v.dtype, 1, 0, t);
    const cf_random_params params = {{42, 3, 4000}, p0, p1};
    memcpy(c.room + cf_call_bytes(1, 0), &params, sizeof params);
    return c;
}

static uint32_t word_at(uint64_t position) {
    uint32_t w[4];
    cf_philox(42, 3, position / 4, w);
    return w[position % 4];
}

TEST(uniform_numbers_are_the_words_at_their_positions) {
    EACH_TABLE(t) {
        tensor y = make(CFX_FLOAT32, SHAPE(1003)), z = make(CFX_FLOAT64, SHAPE(1003));
        call c = random_call(CF_OP_uniform, &y, 0, 1);
        CHECK_STATUS(run(t, &c), CFX_OK);
        c = random_call(CF_OP_uniform, &z, 0, 1);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        for (uint64_t e = 0; e < 1003; e++) {
            bad += get(&y, (int64_t)e) != cf_uniform_f32(word_at(4000 + e));
            bad += get(&z, (int64_t)e) != cf_uniform_f64(word_at(4000 + 2 * e), word_at(4000 + 2 * e + 1));
        }
        CHECK_EQ(bad, 0);
        drop(&y), drop(&z);
    }
}

TEST(a_uniform_number_is_never_its_upper_bound) {
    static const double bounds[][2] = {{0, 1}, {-1, 0}, {5, 7}, {-3, -2}, {0, 1e-3}, {1000, 1000.5}};
    EACH_TABLE(t) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) for (int k = 0; k < 6; k++) {
        tensor y = make(dtype, SHAPE(20000));
        const call c = random_call(CF_OP_uniform, &y, bounds[k][0], bounds[k][1]);
        CHECK_STATUS(run(t, &c), CFX_OK);
        int bad = 0;
        double sum = 0;
        for (int64_t e = 0; e < 20000; e++) {
            bad += !(get(&y, e) >= bounds[k][0] && get(&y, e) < bounds[k][1]);
            sum += get(&y, e);
        }
        CHECK_EQ(bad, 0);
        if (dtype >= CFX_FLOAT32)
            CHECK_NEAR(sum / 20000, (bounds[k][0] + bounds[k][1]) / 2, 0.01 * (bounds[k][1] - bounds[k][0]));
        drop(&y);
    }
}

TEST(uniforms_are_the_same_in_every_instruction_set) {
    tensor first = make(CFX_FLOAT32, SHAPE(5000)), y = make(CFX_FLOAT32, SHAPE(5000));
    EACH_TABLE(t) {
        const call c = random_call(CF_OP_uniform, t == tables() ? &first : &y, -0.1, 0.3);
        CHECK_STATUS(run(t, &c), CFX_OK);
        if (t != tables()) CHECK(memcmp(first.memory, y.memory, y.bytes) == 0);
    }
    drop(&first), drop(&y);
}

TEST(normal_numbers_have_their_mean_and_deviation) {
    EACH_TABLE(t) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(100001)), one = make(dtype, SHAPE(1));
        call c = random_call(CF_OP_normal, &y, 3, 2);
        CHECK_STATUS(run(t, &c), CFX_OK);
        double sum = 0, squares = 0, cubes = 0;
        for (int64_t e = 0; e < 100001; e++) {
            const double x = (get(&y, e) - 3) / 2;
            sum += x, squares += x * x, cubes += x * x * x;
        }
        CHECK_NEAR(sum / 100001, 0, 0.012);
        CHECK_NEAR(squares / 100001, 1, 0.02);
        CHECK_NEAR(cubes / 100001, 0, 0.05);
        c = random_call(CF_OP_normal, &one, 3, 2);
        CHECK_STATUS(run(t, &c), CFX_OK);
        CHECK(memcmp(one.memory, y.memory, sizes[dtype]) == 0);
        if (dtype == CFX_FLOAT32) {
            const double u = 1 - cf_uniform_f32(word_at(4006)), v = cf_uniform_f32(word_at(4007));
            CHECK_NEAR(get(&y, 6), 3 + 2 * sqrt(-2 * log(u)) * cos(2 * M_PI * v), 1e-5);
            CHECK_NEAR(get(&y, 7), 3 + 2 * sqrt(-2 * log(u)) * sin(2 * M_PI * v), 1e-5);
        }
        drop(&y), drop(&one);
    }
}

TEST(random_integers_reach_both_ends) {
    EACH_TABLE(t) for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++) {
        tensor y = make(dtype, SHAPE(4001));
        const call c = random_call(CF_OP_randint, &y, 2, 7);
        int count[10] = {0};
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int64_t e = 0; e < 4001; e++) count[(int)get(&y, e)]++;
        for (int k = 2; k <= 7; k++) CHECK(count[k] > 500);
        CHECK_EQ(count[1] + count[8], 0);
        drop(&y);
    }
}

TEST(a_permutation_holds_every_id_once) {
    EACH_TABLE(t) for (int dtype = CFX_INT32; dtype <= CFX_INT64; dtype++) {
        tensor y = make(dtype, SHAPE(1000));
        const call c = random_call(CF_OP_permutation, &y, 0, 0);
        int64_t seen[1000] = {0}, expected[1000];
        CHECK_STATUS(run(t, &c), CFX_OK);
        for (int e = 0; e < 1000; e++) seen[(int)get(&y, e)]++;
        for (int e = 0; e < 1000; e++) CHECK_EQ(seen[e], 1);
        cf_permutation(42, 3 + ((uint64_t)4000 << 8), 1000, expected);
        CHECK_EQ(get(&y, 77), expected[77]);
        drop(&y);
    }
}

TEST(random_numbers_have_the_same_bits_with_every_team) {
    static const int ops[] = {CF_OP_uniform, CF_OP_normal, CF_OP_randint};
    EACH_TABLE(t) for (int k = 0; k < 3; k++) for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++) {
        tensor y[TEAMS];
        for (int m = 0; m < TEAMS; m++) {
            y[m] = make(dtype, SHAPE(50001));
            const call c = random_call(ops[k], &y[m], 0, 10);
            worker.threads = teams[m];
            CHECK_STATUS(run(t, &c), CFX_OK);
            CHECK(memcmp(y[0].memory, y[m].memory, y[0].bytes) == 0);
        }
        worker.threads = 2;
        for (int m = 0; m < TEAMS; m++) drop(&y[m]);
    }
}
