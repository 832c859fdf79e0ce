/* Collectives between devices of one process: core/comm. */
#include "test.h"

#include "comm.h"

#include <stdlib.h>

static const int counts[] = {1, 2, 3, 5};

TEST(every_reduction_on_every_dtype_and_number_of_devices) {
    static const char *const ops[] = {"sum", "prod", "max", "min", "avg"};
    for (int c = 0; c < 4; c++) {
        const int r = counts[c];
        setup(r);
        for (int dtype = CFX_UINT8; dtype < CFX_DTYPES; dtype++) {
            for (int op = 0; op < 5; op++) {
                double sum = 0, product = 1;
                cfx_tensor x[5] = {0}, *leaves[5];
                for (int i = 0; i < r; i++) {
                    x[i] = of(device[i], dtype, 1000, i + 1);
                    leaves[i] = &x[i];
                    sum += i + 1;
                    product *= i + 1;
                }
                const double expect[5] = {sum, product, r, 1, sum / r};
                if (op == 4 && dtype < CFX_FLOAT16) {
                    CHECK_STATUS(cfx_allreduce(ops[op], r, 1, leaves), CFX_EARG);
                    CHECK(says("avg needs floats"));
                } else {
                    CHECK_STATUS(cfx_allreduce(ops[op], r, 1, leaves), CFX_OK);
                    for (int i = 0; i < r; i++) CHECK_EQ(any_value(&x[i]), expect[op]);
                }
                release(r, x);
            }
        }
        teardown();
    }
}

TEST(only_the_root_of_a_reduction_changes_and_all_but_that_of_a_broadcast) {
    for (int c = 0; c < 4; c++) {
        const int r = counts[c];
        setup(r);
        for (int root = 0; root < r; root++) {
            cfx_tensor x[5] = {0}, *leaves[5];
            int sum = 0;
            for (int i = 0; i < r; i++) {
                x[i] = full(device[i], 50000, i + 1);
                leaves[i] = &x[i];
                sum += i + 1;
            }
            CHECK_STATUS(cfx_reduce_to("sum", root, r, 1, leaves), CFX_OK);
            for (int i = 0; i < r; i++) CHECK_EQ(value_of(&x[i]), i == root ? sum : i + 1);
            CHECK_STATUS(cfx_broadcast(root, r, 1, leaves), CFX_OK);
            for (int i = 0; i < r; i++) CHECK_EQ(value_of(&x[i]), sum);
            release(r, x);
        }
        cfx_tensor x = full(device[0], 4, 1), *leaves[5] = {&x, &x, &x, &x, &x};
        CHECK_STATUS(cfx_reduce_to("sum", r, r, 1, leaves), CFX_EARG);
        CHECK_STATUS(cfx_broadcast(-1, r, 1, leaves), CFX_EARG);
        cfx_release(&x);
        teardown();
    }
}

TEST(gathering_concatenates_and_scattering_cuts) {
    for (int c = 0; c < 4; c++) {
        const int r = counts[c];
        setup(r);
        cfx_tensor in[5] = {0}, out[5] = {0}, part[5] = {0};
        const cfx_tensor *ins[5], *outs[5];
        cfx_tensor *to[5], *parts[5];
        int64_t total = 0, shape[2] = {0, 3};
        for (int i = 0; i < r; i++) total += i + 1;
        for (int i = 0; i < r; i++) {
            shape[0] = i + 1; /* uneven */
            CHECK_STATUS(cfx_full(device[i], CFX_FLOAT32, 2, shape, i, &in[i]), CFX_OK);
            shape[0] = total;
            CHECK_STATUS(cfx_empty(device[i], CFX_FLOAT32, 2, shape, &out[i]), CFX_OK);
            ins[i] = &in[i];
            to[i] = &out[i];
            outs[i] = &out[i];
            parts[i] = &part[i];
        }
        CHECK_STATUS(cfx_allgather(r, ins, to), CFX_OK);
        for (int i = 0; i < r; i++) {
            int64_t at = 0;
            for (int s = 0; s < r; s++) {
                cfx_tensor rows = {0};
                CHECK_STATUS(cfx_slice(&out[i], 0, at, s + 1, 1, &rows), CFX_OK);
                CHECK_EQ(value_of(&rows), s);
                cfx_release(&rows);
                at += s + 1;
            }
        }
        shape[0] = 4 * r;
        for (int i = 0; i < r; i++) {
            cfx_release(&out[i]);
            CHECK_STATUS(cfx_full(device[i], CFX_FLOAT32, 2, shape, i + 1, &out[i]), CFX_OK);
        }
        shape[0] = 4;
        for (int i = 0; i < r; i++) CHECK_STATUS(cfx_empty(device[i], CFX_FLOAT32, 2, shape, &part[i]), CFX_OK);
        CHECK_STATUS(cfx_reduce_scatter("sum", r, outs, parts), CFX_OK);
        for (int i = 0; i < r; i++) {
            CHECK_EQ(value_of(&part[i]), (double)total);
            CHECK_EQ(value_of(&out[i]), i + 1);
        }
        release(r, in);
        release(r, out);
        release(r, part);
        teardown();
    }
}

TEST(replicas_end_with_the_same_bits_and_every_run_with_the_same) {
    setup(5);
    enum { N = 100003 };
    float *first = malloc(N * sizeof *first), *got = malloc(N * sizeof *got);
    const int64_t n = N;
    for (int run = 0; run < 5; run++) {
        cfx_tensor x[5] = {0}, *leaves[5];
        for (int i = 0; i < 5; i++) {
            leaves[i] = &x[i];
            cfx_rng_set(context, i, 77, 0);
            CHECK_STATUS(cfx_random(device[i], CFX_FLOAT32, 1, &n, "normal", 0, 1, i, &x[i]), CFX_OK);
        }
        CHECK_STATUS(cfx_allreduce("avg", 5, 1, leaves), CFX_OK);
        for (int i = 0; i < 5; i++) {
            CHECK_STATUS(cfx_read(&x[i], got, N * sizeof *got), CFX_OK);
            if (run == 0 && i == 0) memcpy(first, got, N * sizeof *got);
            CHECK(memcmp(first, got, N * sizeof *got) == 0);
        }
        release(5, x);
    }
    free(first);
    free(got);
    teardown();
}

TEST(strided_leaves_are_reduced_in_place_and_their_neighbours_stay) {
    setup(3);
    const int64_t shape[2] = {4, 6};
    cfx_tensor whole[3] = {0}, x[3] = {0}, *leaves[3];
    for (int i = 0; i < 3; i++) {
        cfx_tensor columns = {0};
        CHECK_STATUS(cfx_full(device[i], CFX_FLOAT32, 2, shape, i + 1, &whole[i]), CFX_OK);
        CHECK_STATUS(cfx_slice(&whole[i], 1, 1, 3, 2, &columns), CFX_OK);
        CHECK_STATUS(cfx_transpose(&columns, 0, 1, &x[i]), CFX_OK);
        cfx_release(&columns);
        leaves[i] = &x[i];
    }
    CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
    for (int i = 0; i < 3; i++) {
        float got[24];
        CHECK_STATUS(cfx_read(&whole[i], got, sizeof got), CFX_OK);
        for (int k = 0; k < 24; k++) CHECK_EQ(got[k], k % 6 % 2 ? 6 : i + 1);
    }
    CHECK_STATUS(cfx_reduce_to("max", 1, 3, 1, leaves), CFX_OK);
    release(3, x);
    release(3, whole);
    teardown();
}

TEST(a_whole_model_is_one_command_a_device) {
    setup(2);
    model m;
    make_model(&m, 2, 4, (int64_t[]){1000, 77, 60000, 5});
    const uint64_t before[2] = {last_of(device[0], CF_COMM).ticket, last_of(device[1], CF_COMM).ticket};
    CHECK_STATUS(cfx_allreduce("sum", 2, 4, m.leaves), CFX_OK);
    for (int d = 0; d < 2; d++) CHECK_EQ(last_of(device[d], CF_COMM).ticket, before[d] + 1);
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 4; k++) CHECK_EQ(value_of(&m.x[r][k]), 3 * (k + 1));
    free_model(&m);
    teardown();
}

TEST(some_leaves_of_flat_buffers_are_reduced_and_the_others_stay) {
    setup(3);
    model m;
    make_model(&m, 3, 4, (int64_t[]){100, 77, 64, 5});
    cfx_tensor *some[6];
    for (int r = 0; r < 3; r++) {
        some[2 * r] = &m.x[r][3]; /* in another order than they lie */
        some[2 * r + 1] = &m.x[r][1];
    }
    CHECK_STATUS(cfx_allreduce("sum", 3, 2, some), CFX_OK);
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 4; k++) CHECK_EQ(value_of(&m.x[r][k]), k % 2 ? 6 * (k + 1) : (r + 1) * (k + 1));
    free_model(&m);
    teardown();
}

TEST(views_of_parts_are_reduced_without_what_lies_between_them) {
    setup(2);
    model m;
    make_model(&m, 2, 1, (int64_t[]){128});
    cfx_tensor part[4] = {0};
    for (int r = 0; r < 2; r++) {
        CHECK_STATUS(cfx_slice(&m.x[r][0], 0, 0, 60, 1, &part[2 * r]), CFX_OK);
        CHECK_STATUS(cfx_slice(&m.x[r][0], 0, 64, 64, 1, &part[2 * r + 1]), CFX_OK);
    }
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&part[0], &part[1], &part[2], &part[3]}), CFX_OK);
    for (int r = 0; r < 2; r++) {
        float got[128];
        CHECK_STATUS(cfx_read(&m.x[r][0], got, sizeof got), CFX_OK);
        for (int i = 0; i < 128; i++) CHECK_EQ(got[i], i >= 60 && i < 64 ? r + 1 : 3);
    }
    release(4, part);
    free_model(&m);
    teardown();
}

TEST(tied_leaves_are_reduced_once) {
    setup(2);
    cfx_tensor x[2][3] = {0}, *leaves[8];
    for (int r = 0; r < 2; r++) {
        x[r][0] = full(device[r], 100, r + 1);
        x[r][1] = full(device[r], 100, 10 * (r + 1));
        CHECK_STATUS(cfx_retain(&x[r][0], &x[r][2]), CFX_OK);
        for (int k = 0; k < 4; k++) leaves[4 * r + k] = &x[r][k % 3];
    }
    CHECK_STATUS(cfx_allreduce("sum", 2, 4, leaves), CFX_OK);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(value_of(&x[r][0]), 3);
        CHECK_EQ(value_of(&x[r][1]), 30);
        CHECK_EQ(value_of(&x[r][2]), 3);
        release(3, x[r]);
    }
    teardown();
}

TEST(a_leaf_that_lies_in_another_is_reduced_with_it) {
    setup(2);
    model m;
    make_model(&m, 2, 2, (int64_t[]){100, 64});
    cfx_tensor part[2][3] = {0}, *leaves[10];
    for (int r = 0; r < 2; r++) {
        static const int64_t from[] = {0, 40, 60}, n[] = {10, 20, 40};
        for (int k = 0; k < 3; k++) CHECK_STATUS(cfx_slice(&m.x[r][0], 0, from[k], n[k], 1, &part[r][k]), CFX_OK);
        for (int k = 0; k < 5; k++) leaves[5 * r + k] = k < 3 ? &part[r][k] : &m.x[r][k - 3];
    }
    CHECK_STATUS(cfx_allreduce("sum", 2, 5, leaves), CFX_OK);
    for (int r = 0; r < 2; r++) {
        for (int k = 0; k < 2; k++) CHECK_EQ(value_of(&m.x[r][k]), 3 * (k + 1));
        release(3, part[r]);
    }
    free_model(&m);
    teardown();
}

TEST(what_is_tied_in_one_replica_only_is_refused) {
    setup(2);
    cfx_tensor x = full(device[0], 100, 1), y = full(device[1], 100, 2), z = full(device[1], 100, 3);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&x, &x, &y, &z}), CFX_EARG);
    CHECK(says_of("allreduce: replica 1 ($0): tensor 1 and tensor 2 share memory, and not likewise in replica 2 ($1)"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&y, &z, &x, &x}), CFX_EARG);
    CHECK(says_of("allreduce: replica 2 ($0): tensor 1 and tensor 2 share memory, and not likewise in replica 1 ($1)"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x, &x}), CFX_EARG);
    CHECK(says_of("allreduce: replicas 1 ($0) and 2 ($0) share memory: tensor 1 and tensor 1"));
    CHECK_EQ(value_of(&x), 1);
    CHECK_EQ(value_of(&y), 2);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
    teardown();
}

/* Replicas of n elements: element e of replica r is r + 1 + e % 7, or NaN where the replica's weight is 0. */
static cfx_tensor counting(int r, int32_t dtype, int64_t n, double weight) {
    cfx_tensor x = {0}, y = {0};
    double *values = malloc((size_t)n * sizeof *values);
    for (int64_t e = 0; e < n; e++) values[e] = weight == 0 ? NAN : (double)(r + 1 + e % 7);
    CHECK_STATUS(cfx_from_host(device[r], CFX_FLOAT64, 1, &n, values, &x), CFX_OK);
    CHECK_STATUS(cfx_to(&x, NULL, dtype, &y), CFX_OK);
    cfx_release(&x);
    free(values);
    return y;
}
/* Whether element e of x is base + e % 7, or with NaN for base all NaN. */
static int counts_from(const cfx_tensor *x, double base, double tolerance) {
    cfx_tensor wide = {0};
    const int64_t n = cf_numel(x);
    double *got = malloc((size_t)n * sizeof *got);
    CHECK_STATUS(cfx_to(x, NULL, CFX_FLOAT64, &wide), CFX_OK);
    CHECK_STATUS(cfx_read(&wide, got, (size_t)n * sizeof *got), CFX_OK);
    int right = 1;
    for (int64_t e = 0; e < n; e++)
        right = right && (isnan(base) ? isnan(got[e]) : fabs(got[e] - base - (double)(e % 7)) <= tolerance);
    if (!right) printf("# expected %g and more, got %g %g %g ..\n", base, got[0], got[1], got[2]);
    cfx_release(&wide);
    free(got);
    return right;
}

TEST(a_weighted_mean_is_that_of_the_samples_and_a_replica_without_samples_counts_nothing) {
    static const double weights[][5] = {
        {5, 3, 1, 0, 2}, {0, 4, 0, 4, 1}, {1, 0, 0, 0, 0}, {0.5, 1e300, 1e300, 0, 1e300}};
    for (int c = 1; c < 4; c++) {
        const int n = counts[c];
        setup(n);
        for (int w = 0; w < 4; w++) {
            double total = 0, sum = 0;
            for (int r = 0; r < n; r++) total += weights[w][r] / 1e150;
            if (total == 0) continue;
            for (int r = 0; r < n; r++) sum += weights[w][r] / 1e150 / total * (r + 1);
            for (int dtype = CFX_FLOAT16; dtype < CFX_DTYPES; dtype++)
                for (int root = -1; root < n; root++) {
                    cfx_tensor x[5], *leaves[5];
                    for (int r = 0; r < n; r++) {
                        x[r] = counting(r, dtype, 20011, weights[w][r]);
                        leaves[r] = &x[r];
                    }
                    const double near = dtype == CFX_BFLOAT16 ? 0.15 : dtype == CFX_FLOAT16 ? 0.02 : 1e-5;
                    CHECK_STATUS(cfx_weighted_mean(weights[w], root, n, 1, leaves), CFX_OK);
                    for (int r = 0; r < n; r++) {
                        const double own = weights[w][r] == 0 ? NAN : r + 1;
                        CHECK(counts_from(&x[r], root < 0 || r == root ? sum : own, near));
                    }
                    release(n, x);
                }
        }
        teardown();
    }
}

TEST(equal_weights_give_the_bits_of_a_mean_and_one_that_is_not_0_the_bits_of_its_replica) {
    setup(5);
    enum { N = 30011 };
    float *want = malloc(N * sizeof *want), *got = malloc(N * sizeof *got);
    static const double weights[][5] = {{7, 7, 7, 7, 7}, {0, 0, 9, 0, 0}};
    const int64_t n = N;
    for (int w = 0; w < 2; w++) {
        cfx_tensor x[2][5] = {0}, *leaves[2][5];
        for (int k = 0; k < 2; k++)
            for (int i = 0; i < 5; i++) {
                leaves[k][i] = &x[k][i];
                cfx_rng_set(context, i, 77, 0);
                CHECK_STATUS(cfx_random(device[i], CFX_FLOAT32, 1, &n, "normal", 0, 1, i, &x[k][i]), CFX_OK);
            }
        if (w == 0) CHECK_STATUS(cfx_allreduce("avg", 5, 1, leaves[0]), CFX_OK);
        CHECK_STATUS(cfx_weighted_mean(weights[w], -1, 5, 1, leaves[1]), CFX_OK);
        CHECK_STATUS(cfx_read(&x[0][2], want, N * sizeof *want), CFX_OK);
        for (int i = 0; i < 5; i++) {
            CHECK_STATUS(cfx_read(&x[1][i], got, N * sizeof *got), CFX_OK);
            CHECK(memcmp(want, got, N * sizeof *got) == 0);
        }
        release(5, x[0]);
        release(5, x[1]);
    }
    free(want);
    free(got);
    teardown();
}

TEST(a_weighted_mean_covers_flat_buffers_and_strided_tensors) {
    static const double weights[] = {3, 0, 1};
    setup(3);
    model m;
    make_model(&m, 3, 4, (int64_t[]){1000, 77, 20000, 5});
    CHECK_STATUS(cfx_weighted_mean(weights, -1, 3, 4, m.leaves), CFX_OK);
    for (int r = 0; r < 3; r++)
        for (int k = 0; k < 4; k++) CHECK_EQ(value_of(&m.x[r][k]), 1.5 * (k + 1));
    free_model(&m);
    cfx_tensor whole[3] = {0}, x[3] = {0}, *leaves[3];
    for (int r = 0; r < 3; r++) {
        cfx_tensor half = {0};
        CHECK_STATUS(cfx_full(device[r], CFX_FLOAT32, 2, (int64_t[]){4, 6}, r + 1, &whole[r]), CFX_OK);
        CHECK_STATUS(cfx_slice(&whole[r], 1, 1, 3, 2, &half), CFX_OK);
        CHECK_STATUS(cfx_transpose(&half, 0, 1, &x[r]), CFX_OK);
        cfx_release(&half);
        leaves[r] = &x[r];
    }
    CHECK_STATUS(cfx_weighted_mean(weights, -1, 3, 1, leaves), CFX_OK);
    for (int r = 0; r < 3; r++) {
        float got[24];
        CHECK_STATUS(cfx_read(&whole[r], got, sizeof got), CFX_OK);
        for (int k = 0; k < 24; k++) CHECK_EQ(4 * got[k], k % 6 % 2 ? 6 : 4 * (r + 1));
    }
    release(3, x);
    release(3, whole);
    teardown();
}

TEST(weights_are_numbers_of_samples) {
    setup(2);
    cfx_tensor x[2] = {full(device[0], 10, 1), full(device[1], 10, 2)}, ids = of(device[0], CFX_INT32, 4, 2);
    cfx_tensor *leaves[] = {&x[0], &x[1]}, *one[] = {&ids};
    CHECK_STATUS(cfx_weighted_mean((double[]){1, -1}, -1, 2, 1, leaves), CFX_EARG);
    CHECK(says("allreduce: argument 'weights': expected 0 or more samples in replica 2, got -1"));
    CHECK_STATUS(cfx_weighted_mean((double[]){NAN, 1}, 0, 2, 1, leaves), CFX_EARG);
    CHECK(says("reduce: argument 'weights': expected 0 or more samples in replica 1, got nan"));
    CHECK_STATUS(cfx_weighted_mean((double[]){1, INFINITY}, -1, 2, 1, leaves), CFX_EARG);
    CHECK_STATUS(cfx_weighted_mean((double[]){0, 0}, -1, 2, 1, leaves), CFX_EARG);
    CHECK(says("allreduce: argument 'weights': all are 0: there is nothing to average"));
    CHECK_STATUS(cfx_weighted_mean((double[]){2, 1}, 2, 2, 1, leaves), CFX_EARG);
    CHECK_STATUS(cfx_weighted_mean((double[]){2}, -1, 1, 1, one), CFX_EARG);
    CHECK(says("avg needs floats"));
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), r + 1);
    CHECK_STATUS(cfx_weighted_mean(NULL, -1, 2, 1, leaves), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 1.5);
    release(2, x);
    cfx_release(&ids);
    teardown();
}

/* Columns [from, from + n) of x, which is [rows, columns]. */
static cfx_tensor columns(const cfx_tensor *x, int64_t from, int64_t n) {
    cfx_tensor y = {0};
    CHECK_STATUS(cfx_slice(x, 1, from, n, 1, &y), CFX_OK);
    return y;
}
static cfx_tensor ones(cfx_device *on, int64_t rows, int64_t cols) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(on, CFX_FLOAT32, 2, (int64_t[]){rows, cols}, 1, &x), CFX_OK);
    return x;
}
static cfx_tensor turned(const cfx_tensor *x) {
    cfx_tensor y = {0};
    CHECK_STATUS(cfx_transpose(x, 0, 1, &y), CFX_OK);
    return y;
}
/* Every collective that writes two replicas of one tensor each refuses these with the message. */
static void refused(cfx_tensor *a, cfx_tensor *b, const char *message) {
    char text[256];
    cfx_tensor *leaves[] = {a, b};
    snprintf(text, sizeof text, "allreduce: %s", message);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, leaves), CFX_EARG);
    CHECK(says_of(text));
    snprintf(text, sizeof text, "reduce: %s", message);
    CHECK_STATUS(cfx_reduce_to("sum", 1, 2, 1, leaves), CFX_EARG);
    CHECK(says_of(text));
    snprintf(text, sizeof text, "synchronize: %s", message);
    CHECK_STATUS(cfx_broadcast(0, 2, 1, leaves), CFX_EARG);
    CHECK(says_of(text));
}

TEST(strided_replicas_that_share_an_element_are_refused_before_anything_moves) {
    setup(2);
    cfx_tensor x = ones(device[0], 3, 4), square = ones(device[0], 3, 3);
    cfx_tensor a = columns(&x, 0, 2), b = columns(&x, 1, 2), t = turned(&square), u = turned(&square);
    static const char *const message = "replicas 1 ($0) and 2 ($0) share memory: tensor 1 and tensor 1";
    refused(&a, &b, message);
    refused(&b, &a, message);
    refused(&t, &u, message);
    refused(&square, &t, message);
    CHECK_EQ(value_of(&x), 1);
    CHECK_EQ(value_of(&square), 1);
    release(6, (cfx_tensor[]){x, square, a, b, t, u});
    teardown();
}

TEST(replicas_that_interleave_without_sharing_an_element_are_joined) {
    setup(2);
    cfx_tensor x = ones(device[0], 3, 4), a = columns(&x, 0, 2), b = columns(&x, 2, 2);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&a, &b}), CFX_OK);
    CHECK_EQ(value_of(&x), 2);
    release(3, (cfx_tensor[]){x, a, b});
    teardown();
}

TEST(what_is_expanded_is_not_written) {
    setup(2);
    cfx_tensor x[2], wide[2] = {0};
    for (int r = 0; r < 2; r++) {
        x[r] = ones(device[r], 1, 3);
        CHECK_STATUS(cfx_expand(&x[r], 2, (int64_t[]){4, 3}, &wide[r]), CFX_OK);
    }
    cfx_tensor whole = ones(device[1], 4, 3), *leaves[] = {&wide[0], &whole}, *first[] = {&wide[0]};
    static const char *const message =
        "allreduce: replica 1 ($0): tensor 1 is expanded: several elements share one place";
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, leaves), CFX_EARG);
    CHECK(says_of(message));
    CHECK_STATUS(cfx_allreduce("sum", 1, 1, first), CFX_EARG);
    CHECK(says_of(message));
    CHECK_STATUS(cfx_reduce_to("sum", 0, 2, 1, leaves), CFX_EARG);
    CHECK_STATUS(cfx_broadcast(1, 2, 1, leaves), CFX_EARG);
    CHECK_EQ(value_of(&x[0]), 1);
    CHECK_EQ(value_of(&whole), 1);
    CHECK_STATUS(cfx_reduce_to("sum", 1, 2, 1, leaves), CFX_OK); /* it is only read */
    CHECK_EQ(value_of(&whole), 2);
    CHECK_STATUS(cfx_broadcast(0, 2, 1, leaves), CFX_OK);
    CHECK_EQ(value_of(&whole), 1);
    release(2, x);
    release(2, wide);
    cfx_release(&whole);
    teardown();
}

/* Both leaves of a replica are made of one tensor of its own: likewise in both replicas, or not. */
TEST(tensors_of_a_replica_may_share_memory_only_likewise_in_all_and_not_in_part) {
    setup(2);
    cfx_tensor x[2], t[2], part[2], left[2], right[2], row[2][2] = {0};
    for (int r = 0; r < 2; r++) {
        x[r] = ones(device[r], 4, 4);
        t[r] = turned(&x[r]);
        part[r] = columns(&t[r], 0, 2);
        left[r] = columns(&x[r], 0, 3);
        right[r] = columns(&x[r], 1, 3);
        for (int k = 0; k < 2; k++) CHECK_STATUS(cfx_slice(&x[r], 0, k, 3, 1, &row[r][k]), CFX_OK);
    }
    static const char *const message =
        "allreduce: replica 1 ($0): tensor 1 and tensor 2 share memory, but neither lies in the other";
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&left[0], &right[0], &left[1], &right[1]}), CFX_EARG);
    CHECK(says_of(message));
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&row[0][0], &row[0][1], &row[1][0], &row[1][1]}),
                 CFX_EARG);
    CHECK(says_of(message));
    cfx_tensor other = ones(device[1], 4, 4);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&t[0], &x[0], &t[1], &other}), CFX_EARG);
    CHECK(says_of("allreduce: replica 1 ($0): tensor 1 and tensor 2 share memory, and not likewise in replica 2 ($1)"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&t[0], &x[0], &t[1], &t[1]}), CFX_EARG);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&t[0], &x[0], &t[1], &x[1]}), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 2);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&t[0], &part[0], &t[1], &part[1]}), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&x[r]), 4);
    release(2, x);
    release(2, t);
    release(2, part);
    release(2, left);
    release(2, right);
    release(2, row[0]);
    release(2, row[1]);
    cfx_release(&other);
    teardown();
}

TEST(a_gather_or_scatter_writes_nothing_that_is_read_but_in_its_own_place) {
    setup(2);
    cfx_tensor all[2], in[2] = {0}, second[2] = {0}, wide = {0}, one = ones(device[1], 1, 3);
    for (int r = 0; r < 2; r++) {
        all[r] = ones(device[r], 4, 3);
        CHECK_STATUS(cfx_fill(&all[r], r + 1), CFX_OK);
        CHECK_STATUS(cfx_slice(&all[r], 0, 2 * r, 2, 1, &in[r]), CFX_OK);
        CHECK_STATUS(cfx_slice(&all[r], 0, 1, 2, 1, &second[r]), CFX_OK);
    }
    CHECK_STATUS(cfx_expand(&one, 2, (int64_t[]){4, 3}, &wide), CFX_OK);
    const cfx_tensor *shifted[] = {&in[0], &second[1]}, *ins[] = {&in[0], &in[1]}, *alls[] = {&all[0], &all[1]};
    cfx_tensor *outs[] = {&all[0], &all[1]}, *same[] = {&all[0], &all[0]}, *flat[] = {&all[0], &wide};
    cfx_tensor *parts[] = {&in[0], &in[1]}, *moved[] = {&in[0], &second[1]};
    CHECK_STATUS(cfx_allgather(2, shifted, outs), CFX_EARG);
    CHECK(says_of("allgather: 'in' of replica 2 ($1) and 'out' of replica 2 ($1) share memory"));
    CHECK_STATUS(cfx_allgather(2, (const cfx_tensor *[]){&in[0], &in[0]}, same), CFX_EARG);
    CHECK_STATUS(cfx_allgather(2, ins, flat), CFX_EARG);
    CHECK(says_of("allgather: 'out' of replica 2 ($1) is expanded: several elements share one place"));
    CHECK_STATUS(cfx_reduce_scatter("sum", 2, alls, moved), CFX_EARG);
    CHECK(says_of("reducescatter: 'in' of replica 2 ($1) and 'out' of replica 2 ($1) share memory"));
    CHECK_STATUS(cfx_allgather(1, (const cfx_tensor *[]){&in[0]}, (cfx_tensor *[]){&second[0]}), CFX_EARG);
    CHECK_STATUS(cfx_reduce_scatter("sum", 1, (const cfx_tensor *[]){&in[0]}, (cfx_tensor *[]){&second[0]}), CFX_EARG);
    CHECK_STATUS(cfx_allgather(1, (const cfx_tensor *[]){&in[0]}, (cfx_tensor *[]){&in[0]}), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&all[r]), r + 1);
    CHECK_STATUS(cfx_allgather(2, ins, outs), CFX_OK);
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 2; k++) {
            cfx_tensor rows = {0};
            CHECK_STATUS(cfx_slice(&all[r], 0, 2 * k, 2, 1, &rows), CFX_OK);
            CHECK_EQ(value_of(&rows), k + 1);
            cfx_release(&rows);
        }
    CHECK_STATUS(cfx_reduce_scatter("sum", 2, alls, parts), CFX_OK);
    for (int r = 0; r < 2; r++) CHECK_EQ(value_of(&in[r]), 2 * (r + 1));
    release(2, all);
    release(2, in);
    release(2, second);
    cfx_release(&wide);
    cfx_release(&one);
    teardown();
}

TEST(schema_errors_are_found_before_anything_moves) {
    setup(2);
    cfx_tensor x[2][2] = {{full(device[0], 8, 1), full(device[0], 4, 1)},
                          {full(device[1], 8, 2), full(device[1], 5, 2)}};
    cfx_tensor *leaves[4] = {&x[0][0], &x[0][1], &x[1][0], &x[1][1]}, ids = of(device[1], CFX_INT32, 4, 2), none = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    const uint64_t before = last_of(device[0], CF_COMM).ticket + last_of(device[1], CF_COMM).ticket;
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, leaves), CFX_EARG);
    CHECK(says_of("allreduce: replica 2, tensor 2: expected a [4] (float32, $0), got [5] (float32, $1)"));
    leaves[3] = &ids;
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, leaves), CFX_EARG);
    CHECK(says_of("got [4] (int32, $1)"));
    leaves[3] = &x[0][1];
    CHECK_STATUS(cfx_broadcast(0, 2, 2, leaves), CFX_EARG);
    CHECK(says_of("expected one device for a replica, $1, got $0"));
    leaves[3] = &none;
    CHECK_STATUS(cfx_reduce_to("max", 0, 2, 2, leaves), CFX_EARG);
    CHECK_STATUS(cfx_allreduce("mean", 2, 1, leaves), CFX_EARG);
    CHECK(says("expected sum, prod, max, min or avg, got 'mean'"));
    CHECK_STATUS(cfx_allreduce("sum", 0, 2, leaves), CFX_EARG);
    const cfx_tensor *in[2] = {&x[0][0], &x[1][0]};
    CHECK_STATUS(cfx_allgather(2, in, (cfx_tensor *[]){&x[0][0], &x[1][0]}), CFX_EARG);
    CHECK(says_of("allgather: argument 'out': replica 1: expected [16] (float32, $0)"));
    CHECK_STATUS(cfx_allgather(0, in, NULL), CFX_EARG);
    CHECK_STATUS(cfx_reduce_scatter("sum", 2, in, (cfx_tensor *[]){&x[0][1], &x[1][1]}), CFX_EARG);
    CHECK(says_of("reducescatter: argument 'out': replica 2: expected [4] (float32, $1), got [5]"));
    CHECK_EQ(last_of(device[0], CF_COMM).ticket + last_of(device[1], CF_COMM).ticket, before);
    CHECK_EQ(value_of(&x[0][0]), 1);
    CHECK_EQ(value_of(&x[1][0]), 2);
    release(2, x[0]);
    release(2, x[1]);
    cfx_release(&ids);
    teardown();
}

TEST(replicas_may_lie_on_one_device) {
    setup(2);
    cfx_tensor x[3] = {full(device[0], 50000, 1), full(device[0], 50000, 2), full(device[1], 50000, 3)};
    CHECK_STATUS(cfx_allreduce("sum", 3, 1, (cfx_tensor *[]){&x[0], &x[1], &x[2]}), CFX_OK);
    for (int i = 0; i < 3; i++) CHECK_EQ(value_of(&x[i]), 6);
    release(3, x);
    teardown();
}

TEST(thousands_of_loose_tensors_are_reduced_even_if_no_ring_holds_them_at_once) {
    setup(2);
    enum { N = 20000 };
    cfx_tensor *x = calloc(2 * N, sizeof *x), **leaves = malloc(2 * N * sizeof *leaves);
    for (int i = 0; i < 2 * N; i++) {
        x[i] = full(device[i / N], 1, i % N + i / N);
        leaves[i] = &x[i];
    }
    CHECK_STATUS(cfx_allreduce("max", 2, N, leaves), CFX_OK);
    int right = 1;
    for (int i = 0; i < 2 * N; i++) right = right && value_of(&x[i]) == i % N + 1;
    CHECK(right);
    release(2 * N, x);
    free(x);
    free(leaves);
    teardown();
}
