/* Collectives between devices of one process: core/comm. */
#include "test.h"

#include "queues.h"
#include "tensor/layout.h"

static cfx_context *context;
static cfx_device *device[8];
static void setup(int devices) {
    char spec[16];
    snprintf(spec, sizeof spec, "cpu*%d", devices);
    context = new_context(spec);
    for (int i = 0; i < devices; i++) device[i] = cfx_device_at(context, i);
}
static void teardown(void) {
    for (int i = 0; i < cfx_device_count(context); i++) CHECK_EQ(blocks_of(device[i]), 0);
    cfx_context_free(context);
}
static void release(int n, cfx_tensor *xs) {
    for (int i = 0; i < n; i++) cfx_release(&xs[i]);
}

/* [n] of a dtype, all `value`. */
static cfx_tensor of(cfx_device *on, int32_t dtype, int64_t n, double value) {
    cfx_tensor x = {0};
    CHECK_STATUS(cfx_full(on, dtype, 1, &n, value, &x), CFX_OK);
    return x;
}
/* The one value of x as a double, of any dtype. */
static double any_value(const cfx_tensor *x) {
    cfx_tensor wide = {0};
    double value = NAN;
    if (CHECK_STATUS(cfx_to(x, NULL, CFX_FLOAT32, &wide), CFX_OK)) value = value_of(&wide);
    cfx_release(&wide);
    return value;
}

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

/* Replicas in flat buffers. */
typedef struct model {
    int replicas, n;
    cfx_tensor x[5][4], *leaves[20];
    cfx_layout *layout;
} model;
static void make_model(model *m, int replicas, int n, const int64_t *sizes) {
    static const char *const paths[] = {"0", "1", "2", "3"};
    memset(m, 0, sizeof *m);
    m->replicas = replicas;
    m->n = n;
    for (int r = 0; r < replicas; r++) {
        for (int k = 0; k < n; k++) {
            m->x[r][k] = full(device[r], sizes[k], (r + 1) * (k + 1));
            m->leaves[r * n + k] = &m->x[r][k];
        }
        if (r == 0) CHECK_STATUS(cfx_layout_new(n, (const cfx_tensor *const *)m->leaves, paths, &m->layout), CFX_OK);
        CHECK_STATUS(cfx_layout_pack(m->layout, device[r], &m->leaves[r * n]), CFX_OK);
    }
}
static void free_model(model *m) {
    for (int r = 0; r < m->replicas; r++) release(m->n, m->x[r]);
    cfx_layout_free(m->layout);
}

TEST(a_whole_model_is_one_command_a_device) {
    setup(2);
    model m;
    make_model(&m, 2, 4, (int64_t[]){1000, 77, 20000, 5});
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

TEST(what_is_tied_in_one_replica_only_is_refused) {
    setup(2);
    cfx_tensor x = full(device[0], 100, 1), y = full(device[1], 100, 2), z = full(device[1], 100, 3);
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&x, &x, &y, &z}), CFX_EARG);
    CHECK(says("allreduce: replica 1: tensors share memory that do not in all replicas"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, (cfx_tensor *[]){&y, &z, &x, &x}), CFX_EARG);
    CHECK(says("allreduce: replica 2:"));
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, (cfx_tensor *[]){&x, &x}), CFX_EARG);
    CHECK(says("allreduce: replicas 1 and 2 share memory"));
    CHECK_EQ(value_of(&x), 1);
    CHECK_EQ(value_of(&y), 2);
    cfx_release(&x);
    cfx_release(&y);
    cfx_release(&z);
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
    CHECK(says("allreduce: replica 2, tensor 2: expected a [4] (float32, cpu:0), got [5] (float32, cpu:1)"));
    leaves[3] = &ids;
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, leaves), CFX_EARG);
    CHECK(says("got [4] (int32, cpu:1)"));
    leaves[3] = &x[0][1];
    CHECK_STATUS(cfx_broadcast(0, 2, 2, leaves), CFX_EARG);
    CHECK(says("expected one device for a replica, cpu:1, got cpu:0"));
    leaves[3] = &none;
    CHECK_STATUS(cfx_reduce_to("max", 0, 2, 2, leaves), CFX_EARG);
    CHECK_STATUS(cfx_allreduce("mean", 2, 1, leaves), CFX_EARG);
    CHECK(says("expected sum, prod, max, min or avg, got 'mean'"));
    CHECK_STATUS(cfx_allreduce("sum", 0, 2, leaves), CFX_EARG);
    const cfx_tensor *in[2] = {&x[0][0], &x[1][0]};
    CHECK_STATUS(cfx_allgather(2, in, (cfx_tensor *[]){&x[0][0], &x[1][0]}), CFX_EARG);
    CHECK(says("allgather: argument 'out': replica 1: expected [16] (float32, cpu:0)"));
    CHECK_STATUS(cfx_allgather(0, in, NULL), CFX_EARG);
    CHECK_STATUS(cfx_reduce_scatter("sum", 2, in, (cfx_tensor *[]){&x[0][1], &x[1][1]}), CFX_EARG);
    CHECK(says("reducescatter: argument 'out': replica 2: expected [4] (float32, cpu:1), got [5]"));
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

/* ---- order ------------------------------------------------------------------------------------------ */

TEST(a_collective_follows_the_participants_writes_and_comes_before_their_next_ones) {
    for (int round = 0; round < 50; round++) {
        setup(3);
        gate g = {0};
        cfx_tensor x[3] = {0}, *leaves[3], seen[3] = {0};
        shut_gate(&g, device[round % 3], CF_COMPUTE);
        for (int i = 0; i < 3; i++) {
            x[i] = full(device[i], 30000, i + 1);
            leaves[i] = &x[i];
        }
        CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
        for (int i = 0; i < 3; i++) {
            CHECK_STATUS(cfx_clone(&x[i], &seen[i]), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar_into(CF_OP_mul, &x[i], 10), CFX_OK);
            CHECK(!cfx_ready(&seen[i]));
        }
        CHECK_STATUS(cfx_allreduce("sum", 3, 1, leaves), CFX_OK);
        open_gate(&g);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(value_of(&seen[i]), 6);
            CHECK_EQ(value_of(&x[i]), 180);
        }
        release(3, x);
        release(3, seen);
        teardown();
    }
}

TEST(a_reduction_to_a_root_only_reads_the_others) {
    setup(2);
    gate g = {0};
    cfx_tensor root = full(device[0], 8, 1), other = full(device[1], 8, 2);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    hold_queue(&g, device[1], device[0], CF_COMM);
    CHECK_STATUS(cfx_reduce_to("sum", 0, 2, 1, (cfx_tensor *[]){&root, &other}), CFX_OK);
    CHECK(cfx_ready(&other)); /* its value is what it was */
    CHECK(!cfx_ready(&root));
    open_gate(&g);
    CHECK_EQ(value_of(&root), 3);
    cfx_release(&root);
    cfx_release(&other);
    teardown();
}

TEST(a_bucket_is_reduced_while_the_rest_of_backward_is_still_blocked) {
    setup(3);
    /* Two buckets: w is more than the first one's size, and its gradient is complete before v's begins. */
    const int64_t sizes[2] = {400000, 1000};
    model grads;
    make_model(&grads, 2, 2, sizes);
    cfx_tensor w[2], v[2], late[2] = {0}, far = full(device[2], 1000, 5);
    gate g = {0};
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    shut_gate(&g, device[2], CF_COMPUTE);
    CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 1), CFX_OK); /* 6, once the gate is open */
    for (int r = 0; r < 2; r++) {
        w[r] = full(device[r], sizes[0], r + 1);
        v[r] = full(device[r], sizes[1], 1);
        cfx_tensor custom = full(device[r], sizes[1], 1), a = {0}, b = {0}, y = {0}, loss = {0}, dy = {0};
        cfx_tape *tape;
        int32_t id;
        CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r], &v[r]}, &tape), CFX_OK);
        CHECK_STATUS(cfx_tape_record(1, 1, (const cfx_tensor *[]){&v[r]}, &custom), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &custom, 0, NULL, 0, 0, &a), CFX_OK);
        CHECK_STATUS(cfx_binary(CF_OP_mul, &w[r], &w[r], &b), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &b, 0, NULL, 0, 0, &y), CFX_OK);
        CHECK_STATUS(cfx_binary(CF_OP_add, &y, &a, &loss), CFX_OK);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_CUSTOM);
        CHECK_STATUS(cfx_tape_custom(tape, &id, &dy), CFX_OK);
        CHECK_STATUS(cfx_to(&far, device[r], -1, &late[r]), CFX_OK); /* the compute queue stands still from here on */
        CHECK_STATUS(cfx_tape_give(tape, 0, &late[r]), CFX_OK);
        CHECK_STATUS(cfx_tape_resume(tape), CFX_OK);
        cfx_tape_end(tape);
        cfx_tensor *all[] = {&custom, &a, &b, &y, &loss, &dy};
        for (int k = 0; k < 6; k++) cfx_release(all[k]);
    }
    CHECK_EQ(grads.x[0][0]._buffer->nbuckets, 2);
    const uint64_t first = last_of(device[0], CF_COMM).ticket + 1;
    CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
    CHECK_STATUS(cf_event_wait((cf_event){&device[0]->queue[CF_COMM], first}), CFX_OK); /* the first bucket's slices */
    CHECK_STATUS(cf_event_wait((cf_event){&device[1]->queue[CF_COMM], first}), CFX_OK);
    for (int r = 0; r < 2; r++) {
        const float *data = (const float *)(const void *)cf_data(&grads.x[r][0]);
        CHECK_EQ(data[0], 6);
        CHECK_EQ(data[sizes[0] - 1], 6);
        CHECK(!cf_event_done(last_of(device[r], CF_COMPUTE)));
    }
    CHECK(!cfx_ready(&grads.x[0][1]));
    open_gate(&g);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(value_of(&grads.x[r][0]), 6);
        CHECK_EQ(value_of(&grads.x[r][1]), 12);
        CHECK_EQ(grads.x[r][0]._buffer->nbuckets, 0);
    }
    release(2, w);
    release(2, v);
    release(2, late);
    cfx_release(&far);
    free_model(&grads);
    teardown();
}

TEST(bucket_events_hold_only_until_the_next_write) {
    setup(3);
    const int64_t sizes[2] = {400000, 1000};
    for (int round = 0; round < 20; round++) {
        model grads;
        gate g = {0};
        make_model(&grads, 2, 2, sizes);
        cfx_tensor w[2][2], far = full(device[2], 1, 2);
        for (int r = 0; r < 2; r++) {
            cfx_tensor a = {0}, loss = {0};
            cfx_tape *tape;
            w[r][0] = full(device[r], sizes[0], 1);
            w[r][1] = full(device[r], sizes[1], 1);
            CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r][0], &w[r][1]}, &tape), CFX_OK);
            CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r][0], 0, NULL, 0, 0, &a), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &a, r + 1, 0, &loss), CFX_OK);
            CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_OK);
            cfx_tape_end(tape);
            cfx_release(&a);
            cfx_release(&loss);
        }
        shut_gate(&g, device[2], CF_COMPUTE);
        CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 8), CFX_OK);
        for (int r = 0; r < 2; r++) { /* scaled, some time later: the reduction must wait for that */
            cfx_tensor ten = {0};
            CHECK_STATUS(cfx_to(&far, device[r], -1, &ten), CFX_OK);
            CHECK_STATUS(cfx_binary_into(CF_OP_mul, &grads.x[r][0], &ten), CFX_OK);
            CHECK_EQ(grads.x[r][0]._buffer->nbuckets, 0);
            cfx_release(&ten);
        }
        CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
        open_gate(&g);
        for (int r = 0; r < 2; r++) {
            CHECK_EQ(value_of(&grads.x[r][0]), 30);
            CHECK_EQ(value_of(&grads.x[r][1]), 0);
            release(2, w[r]);
        }
        cfx_release(&far);
        free_model(&grads);
    }
    teardown();
}

TEST(buckets_of_a_second_backward_are_its_own) {
    setup(3);
    const int64_t sizes[2] = {400000, 1000};
    model grads;
    gate g = {0};
    make_model(&grads, 2, 2, sizes);
    cfx_tensor w[2][2], far = full(device[2], 1, 2);
    for (int r = 0; r < 2; r++)
        for (int k = 0; k < 2; k++) w[r][k] = full(device[r], sizes[k], 1);
    for (int round = 0; round < 2; round++) {
        if (round) shut_gate(&g, device[2], CF_COMPUTE);
        for (int r = 0; r < 2; r++) {
            cfx_tensor a = {0}, loss = {0}, held = {0};
            cfx_tape *tape;
            if (round) { /* all of the second backward is held, the zeros of the untouched bucket among it */
                if (r == 0) CHECK_STATUS(cfx_binary_scalar_into(CF_OP_add, &far, 8), CFX_OK);
                CHECK_STATUS(cfx_to(&far, device[r], -1, &held), CFX_OK);
            }
            CHECK_STATUS(cfx_tape_begin(context, 2, (cfx_tensor *[]){&w[r][0], &w[r][1]}, &tape), CFX_OK);
            CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r][!round], 0, NULL, 0, 0, &a), CFX_OK);
            CHECK_STATUS(cfx_binary_scalar(CF_OP_mul, &a, 3, 0, &loss), CFX_OK);
            CHECK_STATUS(cfx_tape_backward(tape, &loss, &grads.leaves[2 * r], 0), CFX_OK);
            cfx_tape_end(tape);
            cfx_release(&a);
            cfx_release(&loss);
            cfx_release(&held);
        }
        CHECK_STATUS(cfx_allreduce("sum", 2, 2, grads.leaves), CFX_OK);
        if (round) open_gate(&g);
        for (int r = 0; r < 2; r++)
            for (int k = 0; k < 2; k++) CHECK_EQ(value_of(&grads.x[r][k]), k == !round ? 6 : 0);
    }
    release(2, w[0]);
    release(2, w[1]);
    cfx_release(&far);
    free_model(&grads);
    teardown();
}

/* ---- faults ----------------------------------------------------------------------------------------- */

TEST(a_fault_of_one_replica_is_passed_to_all_so_that_none_updates) {
    setup(3);
    cfx_tensor w[3], grad[3], *leaves[3];
    for (int i = 0; i < 3; i++) {
        w[i] = full(device[i], 100, 7);
        if (i == 1) fault(device[i]);
        grad[i] = full(device[i], 100, 1);
        leaves[i] = &grad[i];
    }
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, leaves), CFX_OK);
    for (int i = 0; i < 3; i++) CHECK_STATUS(cfx_binary_into(CF_OP_sub, &w[i], &grad[i]), CFX_OK);
    CHECK_STATUS(cfx_wait(&w[2]), CFX_EFAULT);
    CHECK(says("made to fail"));
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(value_of(&w[i]), 7);
        CHECK_STATUS(cfx_wait(&grad[i]), CFX_EFAULT);
        CHECK(says("never written"));
    }
    const uint64_t before = last_of(device[0], CF_COMM).ticket;
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, leaves), CFX_EFAULT); /* void, and refused at once */
    CHECK_EQ(last_of(device[0], CF_COMM).ticket, before);
    CHECK_STATUS(cfx_allreduce("avg", 3, 1, (cfx_tensor *[]){&w[0], &w[1], &w[2]}), CFX_OK); /* life goes on */
    CHECK_EQ(value_of(&w[1]), 7);
    release(3, w);
    release(3, grad);
    teardown();
}

TEST(void_gradients_in_buckets_are_refused_too) {
    setup(2);
    model grads;
    make_model(&grads, 2, 1, (int64_t[]){1000});
    cfx_tensor w[2];
    for (int r = 0; r < 2; r++) {
        cfx_tensor loss = {0};
        cfx_tape *tape;
        w[r] = full(device[r], 1000, 1);
        if (r == 1) fault(device[r]);
        CHECK_STATUS(cfx_tape_begin(context, 1, (cfx_tensor *[]){&w[r]}, &tape), CFX_OK);
        CHECK_STATUS(cfx_reduce(CF_OP_sum, &w[r], 0, NULL, 0, 0, &loss), CFX_OK);
        CHECK_STATUS(cfx_tape_backward(tape, &loss, grads.leaves + r, 0), CFX_OK);
        cfx_tape_end(tape);
        cfx_release(&loss);
    }
    CHECK_STATUS(cfx_sync(context, NULL), CFX_EFAULT);
    CHECK_EQ(grads.x[1][0]._buffer->nbuckets, 1);
    CHECK_STATUS(cfx_allreduce("sum", 2, 1, grads.leaves), CFX_EFAULT);
    CHECK_EQ(value_of(&grads.x[0][0]), 1);
    release(2, w);
    free_model(&grads);
    teardown();
}

TEST(a_fault_elsewhere_does_not_take_the_value_of_what_is_only_read) {
    setup(2);
    cfx_tensor root = full(device[0], 100, 1);
    CHECK_STATUS(cfx_sync(context, NULL), CFX_OK);
    fault(device[1]);
    cfx_tensor other = full(device[1], 100, 2);
    CHECK_STATUS(cfx_broadcast(0, 2, 1, (cfx_tensor *[]){&root, &other}), CFX_OK);
    CHECK_STATUS(cfx_wait(&other), CFX_EFAULT);
    CHECK_EQ(value_of(&root), 1);
    cfx_release(&root);
    cfx_release(&other);
    teardown();
}
